package storetest

import (
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func testDispatch(t *testing.T, open Open) {
	t.Run("a dispatch records step, generation and sandbox", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		read := w.mustRun(r.ID)
		equal(t, "status", read.Status, workbench.StatusDispatching)
		equal(t, "generation", read.Generation, 1)
		equal(t, "input", read.InputRoot, "root0")
		equal(t, "image", read.Image, "sha256:image")
		equal(t, "driver", read.Driver, "runsc")
		step, err := w.Step(ctx(t), r.ID, 0)
		want(t, err, "")
		equal(t, "step", step.Status, workbench.StatusDispatching)
		equal(t, "sandbox", step.SandboxID, "sbx_a")
		equal(t, "epoch", step.LeaseEpoch, epoch)
		log, err := w.Log(ctx(t), w.ann, r.ID, 1, 0)
		want(t, err, "")
		equal(t, "entry", string(log[0].Meta), `{"status":"dispatching"}`)
	})
	t.Run("of many dispatches of one run, one happens", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		r := w.mustAdmit(w.ann, s.ID)
		errs := together(20, func(int) error { return w.Dispatch(ctx(t), w.record(r, epoch)) })
		equal(t, "dispatched", count(errs, ""), 1)
		equal(t, "refused", count(errs, workbench.CodeConflict), 19)
	})
	t.Run("foreground runs leave in the order of admission, one at a time", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		first, second := w.mustAdmit(w.ann, s.ID), w.mustAdmit(w.ann, s.ID)
		want(t, w.Dispatch(ctx(t), w.record(second, epoch)), workbench.CodeConflict)
		w.mustDispatch(first, epoch)
		want(t, w.Dispatch(ctx(t), w.record(second, epoch)), workbench.CodeConflict)
		w.mustSettle(first, epoch)
		w.mustDispatch(second, epoch)
	})
	t.Run("a background run does not wait for the foreground", func(t *testing.T) {
		w := mustWorld(t, open)
		s, _, epoch := w.mustOut(w.ann)
		a := w.admission(s.ID, "", "f")
		a.Run.Lane = workbench.LaneBackground
		r, _, err := w.Admit(ctx(t), w.ann, a)
		want(t, err, "")
		w.mustDispatch(r, epoch)
	})
	t.Run("an older epoch or generation is fenced", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		r := w.mustAdmit(w.ann, s.ID)
		stale := w.record(r, epoch-1)
		want(t, w.Dispatch(ctx(t), stale), workbench.CodeFenced)
		_, err := w.BumpGeneration(ctx(t), w.ann, s.ID, epoch, false)
		want(t, err, "")
		want(t, w.Dispatch(ctx(t), w.record(r, epoch)), workbench.CodeFenced)
		missing := w.record(r, epoch)
		missing.RunID = "run_none"
		want(t, w.Dispatch(ctx(t), missing), workbench.CodeNotFound)
	})
	t.Run("a cancel races a dispatch and one of them wins whole", func(t *testing.T) {
		w := mustWorld(t, open)
		for range 20 {
			s := w.mustSession(w.ann)
			epoch := w.mustLease(s.ID)
			r := w.mustAdmit(w.ann, s.ID)
			errs := together(2, func(i int) error {
				if i == 0 {
					return w.Dispatch(ctx(t), w.record(r, epoch))
				}
				_, err := w.RequestCancel(ctx(t), w.ann, r.ID, workbench.ReasonCancelled, w.now)
				return err
			})
			want(t, errs[1], "")
			read := w.mustRun(r.ID)
			equal(t, "asked to cancel", read.CancelRequested, true)
			if errs[0] == nil {
				equal(t, "status", read.Status, workbench.StatusDispatching)
			} else {
				want(t, errs[0], workbench.CodeConflict)
				equal(t, "status", read.Status, workbench.StatusCancelled)
			}
		}
	})
}

func testSettle(t *testing.T, open Open) {
	t.Run("a settlement writes the whole receipt at once", func(t *testing.T) { testReceipt(t, open) })
	t.Run("a terminal status is final under races", func(t *testing.T) {
		w := mustWorld(t, open)
		ends := []workbench.Status{workbench.StatusSucceeded, workbench.StatusFailed, workbench.StatusTimedOut, workbench.StatusCancelled, workbench.StatusUnknown}
		for range 5 {
			_, r, epoch := w.mustOut(w.ann)
			errs := together(len(ends), func(i int) error { return w.Settle(ctx(t), w.settlement(r, epoch, ends[i])) })
			equal(t, "winners", count(errs, ""), 1)
			equal(t, "losers", count(errs, workbench.CodeConflict), len(ends)-1)
			for i, err := range errs {
				if err == nil {
					equal(t, "status", w.mustRun(r.ID).Status, ends[i])
				}
			}
			log, err := w.Log(ctx(t), w.ann, r.ID, 0, 0)
			want(t, err, "")
			equal(t, "entries", len(log), 3)
			equal(t, "the last one", log[2].Kind, workbench.LogTerminal)
			running := workbench.StatusRunning
			want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, &running, []workbench.LogEntry{output(4, workbench.Stdout, 0, "late")}), workbench.CodeConflict)
			_, err = w.SettleUnknown(ctx(t), r.ID, epoch, workbench.ReasonServerLost, w.now)
			want(t, err, "")
			equal(t, "unknown changes nothing", w.mustRun(r.ID).Status != workbench.StatusUnknown || errs[4] == nil, true)
		}
	})
	t.Run("a status that cannot follow is refused", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		r := w.mustAdmit(w.ann, s.ID)
		want(t, w.Settle(ctx(t), w.settlement(r, epoch, workbench.StatusSucceeded)), workbench.CodeConflict)
		want(t, w.Settle(ctx(t), w.settlement(r, epoch, workbench.StatusRunning)), workbench.CodeInternal)
		want(t, w.Settle(ctx(t), w.settlement(r, epoch, workbench.StatusFailed)), "") // before it was dispatched
	})
	t.Run("an older epoch or generation is fenced", func(t *testing.T) {
		w := mustWorld(t, open)
		s, r, epoch := w.mustOut(w.ann)
		stale := w.settlement(r, epoch-1, workbench.StatusSucceeded)
		want(t, w.Settle(ctx(t), stale), workbench.CodeFenced)
		_, err := w.BumpGeneration(ctx(t), w.ann, s.ID, epoch, false)
		want(t, err, "")
		want(t, w.Settle(ctx(t), w.settlement(r, epoch, workbench.StatusSucceeded)), workbench.CodeFenced)
		newer := w.settlement(r, epoch, workbench.StatusSucceeded)
		newer.Generation = 2 // right for the session, not for the step
		want(t, w.Settle(ctx(t), newer), workbench.CodeFenced)
		unknown, err := w.SettleUnknown(ctx(t), r.ID, epoch, workbench.ReasonSandboxLost, w.now)
		want(t, err, "")
		equal(t, "status", unknown.Status, workbench.StatusUnknown)
		equal(t, "reason", unknown.Reason, workbench.ReasonSandboxLost)
	})
	t.Run("a run that was lost keeps its output", func(t *testing.T) {
		w := mustWorld(t, open)
		s, r, epoch := w.mustOut(w.ann)
		running := workbench.StatusRunning
		want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, &running, []workbench.LogEntry{output(3, workbench.Stdout, 0, "half")}), "")
		taken, err := w.TakeOver(ctx(t), "eng_two", engine, time.Minute)
		want(t, err, "")
		equal(t, "sessions", len(taken), 1)
		stranded, err := w.StrandedRuns(ctx(t), s.ID, epoch+1)
		want(t, err, "")
		equal(t, "stranded", len(stranded), 1)
		_, err = w.SettleUnknown(ctx(t), r.ID, epoch, workbench.ReasonServerLost, w.now)
		want(t, err, workbench.CodeFenced)
		read, err := w.SettleUnknown(ctx(t), r.ID, epoch+1, workbench.ReasonServerLost, w.now.Add(time.Minute))
		want(t, err, "")
		equal(t, "status", read.Status, workbench.StatusUnknown)
		equal(t, "captured", read.Outputs.Stdout.CapturedBytes, 4)
		log, err := w.Log(ctx(t), w.ann, r.ID, 3, 0)
		want(t, err, "")
		equal(t, "entry", string(log[0].Meta), `{"status":"unknown","reason":"server_lost","message":"the server lost sight of this run; it was not started again"}`)
		queued := w.mustAdmit(w.ann, s.ID)
		_, err = w.SettleUnknown(ctx(t), queued.ID, epoch+1, workbench.ReasonServerLost, w.now)
		want(t, err, workbench.CodeConflict)
	})
	t.Run("the log of a settlement must end once", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		terminal := store.TerminalEntry(r.ID, 3, workbench.StatusSucceeded, "", w.now)
		for _, entries := range [][]workbench.LogEntry{
			{terminal, store.TerminalEntry(r.ID, 4, workbench.StatusSucceeded, "", w.now)},
			{terminal, output(4, workbench.Stdout, 0, "after")},
			{store.TerminalEntry(r.ID, 5, workbench.StatusSucceeded, "", w.now)}, // a gap
		} {
			s := w.settlement(r, epoch, workbench.StatusSucceeded)
			s.Entries = entries
			want(t, w.Settle(ctx(t), s), workbench.CodeConflict)
			equal(t, "status", w.mustRun(r.ID).Status, workbench.StatusDispatching)
		}
	})
}

func testReceipt(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s, r, epoch := w.mustOut(w.ann)
	running := workbench.StatusRunning
	want(t, w.AppendLog(ctx(t), r.ID, epoch, 1, &running, []workbench.LogEntry{output(3, workbench.Stdout, 0, "hello")}), "")
	end, code := w.now.Add(3*time.Second), 3
	commit := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), Root: "root1", RunIDs: []string{r.ID}, Exclusive: true, Files: 2, Bytes: 9,
		ManifestID: w.mustBlob("manifest"), CreatedAt: end}
	changes := []workbench.ChangedFile{
		{Path: "b.txt", Change: workbench.ChangeAdded, Type: "file", Size: 4, SHA256: "s1", Mode: "0644"},
		{Path: "a\xffz", Change: workbench.ChangeRemoved, Type: "file"}, // user code need not write UTF-8
	}
	want(t, w.Settle(ctx(t), store.Settlement{
		Run: workbench.Run{ID: r.ID, Status: workbench.StatusFailed, Reason: workbench.ReasonExit, Message: "exit code 3 \x00\xff", ExitCode: &code, Signal: "",
			Outputs:   workbench.Outputs{Stdout: workbench.StreamInfo{TotalBytes: 50, CapturedBytes: 7, Truncated: true, SHA256: "so"}},
			LimitsHit: []string{workbench.LimitOutput}, Notices: []workbench.Notice{{Code: workbench.NoticeFilesSkipped, Detail: "one"}},
			Files: workbench.FilesChanged{Exclusive: true}, OutputRoot: "root1", FinishedAt: &end, DurationMs: 2500, PeakMemoryBytes: 77},
		Epoch: epoch, Generation: 1, Commit: &commit, Changes: changes, ManifestRefs: []string{"manifest"},
		Entries: []workbench.LogEntry{output(4, workbench.Stdout, 5, "!!"), store.TerminalEntry(r.ID, 5, workbench.StatusFailed, workbench.ReasonExit, end)},
	}), "")
	read, err := w.Run(ctx(t), w.ann, r.ID)
	want(t, err, "")
	equal(t, "status", read.Status, workbench.StatusFailed)
	equal(t, "reason", read.Reason, workbench.ReasonExit)
	equal(t, "message", read.Message, "exit code 3 \ufffd\ufffd")
	equal(t, "exit code", *read.ExitCode, 3)
	equal(t, "total", read.Outputs.Stdout.TotalBytes, 50)
	equal(t, "captured", read.Outputs.Stdout.CapturedBytes, 7)
	equal(t, "digest", read.Outputs.Stdout.SHA256, "so")
	equal(t, "limit", read.LimitsHit[0], workbench.LimitOutput)
	equal(t, "notice", read.Notices[0].Code, workbench.NoticeFilesSkipped)
	equal(t, "files", read.Files.Total, 2)
	equal(t, "exclusive", read.Files.Exclusive, true)
	equal(t, "first path", read.Files.Items[0].Path, "a\xffz")
	equal(t, "second path", read.Files.Items[1], changes[0])
	equal(t, "input stays", read.InputRoot, "root0")
	equal(t, "output", read.OutputRoot, "root1")
	equal(t, "commit", read.CommitID, commit.ID)
	equal(t, "memory", read.PeakMemoryBytes, 77)
	equal(t, "duration", read.DurationMs, 2500)
	equal(t, "finished", *read.FinishedAt, end)
	equal(t, "receipt ends", *read.ReceiptEnds, end.Add(7*24*time.Hour))
	equal(t, "dependencies are never null", read.Dependencies != nil && read.Artifacts != nil, true)
	step, err := w.Step(ctx(t), r.ID, 0)
	want(t, err, "")
	equal(t, "step", step.Status, workbench.StatusFailed)
	equal(t, "step's exit code", *step.ExitCode, 3)
	equal(t, "head", w.mustRead(s.ID).HeadCommit, commit.ID)
	entries, total, err := w.OutputRange(ctx(t), w.ann, r.ID, workbench.Stdout, 0, 100)
	want(t, err, "")
	equal(t, "entries", len(entries), 2)
	equal(t, "bytes", total, 7)
}

func testCancel(t *testing.T, open Open) {
	t.Run("a queued run ends at once, with one terminal entry", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		r := w.mustAdmit(w.ann, s.ID)
		got, err := w.RequestCancel(ctx(t), w.ann, r.ID, workbench.ReasonCancelled, w.now.Add(2*time.Second))
		want(t, err, "")
		equal(t, "status", got.Status, workbench.StatusCancelled)
		equal(t, "reason", got.Reason, workbench.ReasonCancelled)
		equal(t, "queued", got.QueuedMs, 2000)
		again, err := w.RequestCancel(ctx(t), w.ann, r.ID, workbench.ReasonSessionClosed, w.now.Add(time.Hour))
		want(t, err, "")
		equal(t, "the first reason stays", again.Reason, workbench.ReasonCancelled)
		log, err := w.Log(ctx(t), w.ann, r.ID, 0, 0)
		want(t, err, "")
		equal(t, "entries", len(log), 2)
		equal(t, "meta", string(log[1].Meta), `{"status":"cancelled","reason":"cancelled_by_user","message":"cancelled before it started, on request"}`)
		equal(t, "message", again.Message, "cancelled before it started, on request")
	})
	t.Run("a run that is out is asked", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		got, err := w.RequestCancel(ctx(t), w.ann, r.ID, workbench.ReasonCancelled, w.now)
		want(t, err, "")
		equal(t, "status", got.Status, workbench.StatusDispatching)
		equal(t, "asked", got.CancelRequested, true)
		w.mustSettle(r, epoch) // it ended by itself first
		got, err = w.RequestCancel(ctx(t), w.ann, r.ID, workbench.ReasonCancelled, w.now)
		want(t, err, "")
		equal(t, "status", got.Status, workbench.StatusSucceeded)
		_, err = w.RequestCancel(ctx(t), w.ann, "run_none", workbench.ReasonCancelled, w.now)
		want(t, err, workbench.CodeNotFound)
	})
	t.Run("a whole session's runs are cancelled together", func(t *testing.T) {
		w := mustWorld(t, open)
		s, out, _ := w.mustOut(w.ann)
		queued := w.mustAdmit(w.ann, s.ID)
		runs, err := w.CancelSession(ctx(t), w.ann, s.ID, workbench.ReasonRestart, w.now)
		want(t, err, "")
		equal(t, "runs", len(runs), 2)
		equal(t, "out", runs[0].ID, out.ID)
		equal(t, "queued", runs[1].ID, queued.ID)
		equal(t, "queued one", runs[1].Status, workbench.StatusCancelled)
		active, err := w.ActiveRuns(ctx(t), s.ID)
		want(t, err, "")
		equal(t, "active", len(active), 1)
	})
}

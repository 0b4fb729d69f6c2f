package storetest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func testSessionEvents(t *testing.T, open Open) {
	t.Run("a session's life is one log", func(t *testing.T) { testSessionLog(t, open) })
	t.Run("appended by many at once it has no gaps", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		errs := together(8, func(i int) error {
			if i%2 == 0 {
				_, _, err := w.Admit(ctx(t), w.ann, w.admission(s.ID, "", "f"))
				return err
			}
			return w.AppendSessionEvent(ctx(t), s.ID, epoch, workbench.EventSuspended, struct{}{})
		})
		equal(t, "appended", count(errs, ""), 8)
		equal(t, "kinds", w.kinds(s.ID, "suspended", "run"), 9)
	})
	t.Run("an event of another engine's session, of an ended one, or a terminal one is refused", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		want(t, w.AppendSessionEvent(ctx(t), s.ID, epoch+1, workbench.EventSuspended, struct{}{}), workbench.CodeFenced)
		want(t, w.AppendSessionEvent(ctx(t), s.ID, epoch, workbench.EventClosed, struct{}{}), workbench.CodeConflict)
		want(t, w.AppendSessionEvent(ctx(t), "ses_none", 0, workbench.EventSuspended, struct{}{}), workbench.CodeNotFound)
		_, err := w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
		want(t, err, "")
		want(t, w.AppendSessionEvent(ctx(t), s.ID, epoch, workbench.EventSuspended, struct{}{}), workbench.CodeSessionClosed)
	})
	t.Run("the terminal event waits for the last run", func(t *testing.T) {
		w := mustWorld(t, open)
		s, r, epoch := w.mustOut(w.ann)
		_, err := w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
		want(t, err, "")
		equal(t, "log", w.log(s.ID), "created run:queued")
		want(t, w.Conclude(ctx(t), s.ID, 0, nil), workbench.CodeRunsActive)
		ending, err := w.EndingSessions(ctx(t), 10, "")
		want(t, err, "")
		equal(t, "ending", len(ending), 1)
		done, err := w.SessionConcluded(ctx(t), w.ann, s.ID)
		want(t, err, "")
		equal(t, "concluded", done, false)
		cancelled := w.settlement(r, epoch, workbench.StatusCancelled)
		want(t, w.Settle(ctx(t), cancelled), "")
		want(t, w.Conclude(ctx(t), s.ID, 0, nil), "")
		want(t, w.Conclude(ctx(t), s.ID, 0, nil), "")
		equal(t, "log", w.log(s.ID), "created run:queued run:cancelled closed")
		done, err = w.SessionConcluded(ctx(t), w.ann, s.ID)
		want(t, err, "")
		equal(t, "concluded", done, true)
	})
	t.Run("what was kept comes before the end, once", func(t *testing.T) { testKeptAtExpiry(t, open) })
	t.Run("a warning is given once", func(t *testing.T) { testWarnings(t, open) })
	t.Run("others see nothing of it", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		_, err := w.SessionEvents(ctx(t), w.mustDirect("acme", "ben"), s.ID, 0, 0)
		want(t, err, workbench.CodeNotFound)
		_, err = w.SessionConcluded(ctx(t), w.mustDirect("other", "ann"), s.ID)
		want(t, err, workbench.CodeNotFound)
		seen, err := w.SessionEvents(ctx(t), w.admin(), s.ID, 0, 0)
		want(t, err, "")
		equal(t, "events", len(seen), 1)
	})
}

func testSessionLog(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s, r, epoch := w.mustOut(w.ann)
	settled := w.settlement(r, epoch, workbench.StatusSucceeded)
	settled.Commit = &workbench.Commit{ID: "cmt_one", SessionID: s.ID, Root: "root1", RunIDs: []string{r.ID}, Exclusive: true, Files: 3, Bytes: 30, ManifestID: w.mustBlob("m1"), CreatedAt: w.now}
	settled.ManifestRefs = []string{"m1"}
	settled.Changes = []workbench.ChangedFile{{Path: "a", Change: workbench.ChangeAdded, Type: "file", Size: 1}}
	want(t, w.Settle(ctx(t), settled), "")
	next := workbench.Revision{SessionID: s.ID, Agent: "second", Limits: s.Limits, Size: s.Size, KeyID: "key_2", CreatedAt: w.now, KeepAtExpiry: []string{"out/**"}}
	changed, err := w.AddRevision(ctx(t), w.ann, next, nil, store.Seen{})
	want(t, err, "")
	equal(t, "globs", strings.Join(changed.KeepAtExpiry, " "), "out/**")
	equal(t, "globs read", strings.Join(w.mustRead(s.ID).KeepAtExpiry, " "), "out/**")
	first, err := w.Revision(ctx(t), w.ann, s.ID, 1)
	want(t, err, "")
	equal(t, "globs of the first revision", len(first.KeepAtExpiry), 0)
	_, err = w.BumpGeneration(ctx(t), w.ann, s.ID, epoch, false)
	want(t, err, "")
	_, _, err = w.StartOver(ctx(t), w.ann, s.ID, epoch, workbench.Commit{ID: "cmt_two", SessionID: s.ID, Root: "root2", ManifestID: w.mustBlob("m2"), CreatedAt: w.now}, []string{"m2"}, "")
	want(t, err, "")
	want(t, w.AppendSessionEvent(ctx(t), s.ID, epoch, workbench.EventResumed, workbench.ResumedEvent{MemoryKept: true, Generation: 3}), "")
	w.mustAdmit(w.ann, s.ID)
	_, err = w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
	want(t, err, "")
	equal(t, "log", w.log(s.ID), "created run:queued files run:succeeded configured sandbox_lost restarted files resumed run:queued run:cancelled closed")

	events, err := w.SessionEvents(ctx(t), w.ann, s.ID, 2, 1)
	want(t, err, "")
	equal(t, "a page", len(events), 1)
	equal(t, "its number", events[0].Seq, 3)
	equal(t, "its session", events[0].SessionID, s.ID)
	var files workbench.FilesEvent
	mustMeta(t, events[0], &files)
	equal(t, "commit", files.CommitID, "cmt_one")
	equal(t, "root", files.Root, "root1")
	equal(t, "run", files.RunIDs[0], r.ID)
	equal(t, "files", files.Files, 3)
	_, err = w.SessionEvents(ctx(t), w.ann, s.ID, 13, 0)
	want(t, err, workbench.CodeOffsetInvalid)
	events, err = w.SessionEvents(ctx(t), w.ann, s.ID, 12, 0)
	want(t, err, "")
	equal(t, "behind the last", len(events), 0)
	events, err = w.SessionEvents(ctx(t), w.ann, s.ID, 3, 0)
	want(t, err, "")
	var run workbench.RunEvent
	mustMeta(t, events[0], &run)
	equal(t, "run", run, workbench.RunEvent{RunID: r.ID, Number: 1, Lane: workbench.LaneForeground, Status: workbench.StatusSucceeded, FilesChanged: 1})
	var ended workbench.EndedEvent
	mustMeta(t, events[len(events)-1], &ended)
	equal(t, "end", ended, workbench.EndedEvent{EndedAt: w.now, Reason: workbench.ReasonSessionClosed, Generation: 3, Runs: 2, HeadCommit: "cmt_two"})
}

func testKeptAtExpiry(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s, r := w.newSession(w.ann)
	s.KeepAtExpiry = []string{"out/**"}
	want(t, w.CreateSession(ctx(t), w.ann, s, r), "")
	epoch := w.mustLease(s.ID)
	_, err := w.CreateCommit(ctx(t), workbench.Commit{ID: "cmt_one", SessionID: s.ID, Root: "root1", Generation: 1, ManifestID: w.mustBlob("m1"), CreatedAt: w.now}, epoch, []string{"m1"})
	want(t, err, "")
	early := w.artifact(s, 10)
	early.Origin = workbench.OriginExpiry
	want(t, w.ReserveArtifact(ctx(t), workbench.SystemPrincipal(), early, store.Quota{Epoch: epoch}), workbench.CodeConflict)
	_, err = w.EndSession(ctx(t), workbench.SystemPrincipal(), s.ID, workbench.SessionExpired, w.now)
	want(t, err, "")
	equal(t, "log", w.log(s.ID), "created files")
	want(t, w.Conclude(ctx(t), s.ID, epoch, nil), workbench.CodeConflict)

	// Cut off between the reservation and the contents, by an engine that is gone.
	cut := w.artifact(s, 10)
	cut.Origin = workbench.OriginExpiry
	want(t, w.ReserveArtifact(ctx(t), workbench.SystemPrincipal(), cut, store.Quota{Epoch: epoch}), "")
	_, err = w.TakeOver(ctx(t), "eng_two", engine, time.Minute)
	want(t, err, "")
	none, err := w.KeptAtExpiry(ctx(t), s.ID, epoch+1)
	want(t, err, "")
	equal(t, "kept so far", len(none), 0)
	use, err := w.QuotaUse(ctx(t), s.ID)
	want(t, err, "")
	equal(t, "files that hold room", use.SessionFiles, 0)
	want(t, w.ReserveArtifact(ctx(t), workbench.SystemPrincipal(), w.expiring(s), store.Quota{Epoch: epoch}), workbench.CodeFenced)

	whole := w.expiring(s)
	want(t, w.ReserveArtifact(ctx(t), workbench.SystemPrincipal(), whole, store.Quota{Epoch: epoch + 1}), "")
	_, err = w.CommitArtifact(ctx(t), whole.ID, 10, "sha", w.mustBlob("b1"), nil)
	want(t, err, "")
	kept, err := w.KeptAtExpiry(ctx(t), s.ID, epoch+1)
	want(t, err, "")
	equal(t, "kept", kept[0].ID, whole.ID)
	want(t, w.Conclude(ctx(t), s.ID, epoch, &workbench.KeptEvent{}), workbench.CodeFenced)
	for range 2 {
		want(t, w.Conclude(ctx(t), s.ID, epoch+1, &workbench.KeptEvent{Files: 1}), "")
	}
	equal(t, "log", w.log(s.ID), "created files kept expired")
	want(t, w.ReserveArtifact(ctx(t), workbench.SystemPrincipal(), w.expiring(s), store.Quota{Epoch: epoch + 1}), workbench.CodeSessionExpired)
}

// expiring is a file that is kept at a session's deadline.
func (w *world) expiring(s workbench.Session) workbench.Artifact {
	a := w.artifact(s, 10)
	a.Origin = workbench.OriginExpiry
	return a
}

func testWarnings(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann) // 24 h
	short, r := w.newSession(w.ann)
	short.ExpiresAt = w.now.Add(10 * time.Second)
	want(t, w.CreateSession(ctx(t), w.ann, short, r), "")
	due := func(at time.Duration, before time.Duration) string {
		all, err := w.SessionsToWarn(ctx(t), w.now.Add(at), before, 10, "")
		want(t, err, "")
		var ids []string
		for _, found := range all {
			switch found.ID {
			case s.ID:
				ids = append(ids, "long")
			case short.ID:
				ids = append(ids, "short")
			}
		}
		return strings.Join(ids, " ")
	}
	day := 24 * time.Hour
	equal(t, "before half its life", due(4*time.Second, time.Minute), "")
	equal(t, "at half its life", due(5*time.Second, time.Minute), "short")
	equal(t, "after its deadline", due(10*time.Second, time.Minute), "")
	equal(t, "long before", due(day-11*time.Minute, 10*time.Minute), "")
	equal(t, "ten minutes before", due(day-10*time.Minute, 10*time.Minute), "long")

	tell := func(before, now time.Duration) bool {
		told, err := w.WarnSession(ctx(t), s.ID, w.now.Add(day-before), w.now.Add(now), workbench.ExpiringEvent{Deadline: s.ExpiresAt, Keep: []string{}})
		want(t, err, "")
		return told
	}
	told := make(chan bool, 8)
	errs := together(8, func(int) error {
		ok, err := w.WarnSession(ctx(t), s.ID, w.now.Add(day-10*time.Minute), w.now.Add(day-10*time.Minute), workbench.ExpiringEvent{Keep: []string{}})
		told <- ok
		return err
	})
	equal(t, "no errors", count(errs, ""), 8)
	close(told)
	n := 0
	for ok := range told {
		if ok {
			n++
		}
	}
	equal(t, "of eight servers one tells", n, 1)
	equal(t, "nothing is due any more", due(day-9*time.Minute, 10*time.Minute), "")
	equal(t, "a minute before the next is due", due(day-time.Minute, time.Minute), "long")
	equal(t, "and is told", tell(time.Minute, day-time.Minute), true)
	equal(t, "once", tell(time.Minute, day-30*time.Second), false)
	equal(t, "log", w.log(s.ID), "created expiring expiring")
}

// log is a session's events in a line: their kinds, with the status of runs. It
// fails for a gap in their numbers.
func (w *world) log(sessionID string) string {
	w.t.Helper()
	events, err := w.SessionEvents(ctx(w.t), workbench.SystemPrincipal(), sessionID, 0, 0)
	want(w.t, err, "")
	var kinds []string
	for i, e := range events {
		equal(w.t, "number", e.Seq, int64(i+1))
		kind := string(e.Kind)
		if e.Kind == workbench.EventRun {
			var r workbench.RunEvent
			mustMeta(w.t, e, &r)
			kind += ":" + string(r.Status)
		}
		kinds = append(kinds, kind)
	}
	return strings.Join(kinds, " ")
}

// kinds counts the events of a session that has these kinds, and its first one.
func (w *world) kinds(sessionID string, kinds ...string) int {
	w.t.Helper()
	n := 0
	for _, kind := range strings.Fields(w.log(sessionID)) {
		name, _, _ := strings.Cut(kind, ":")
		if name == "created" || strings.Contains(strings.Join(kinds, " "), name) {
			n++
		}
	}
	return n
}

func mustMeta(t testing.TB, e workbench.SessionEvent, into any) {
	t.Helper()
	if err := json.Unmarshal(e.Meta, into); err != nil {
		t.Fatalf("%s: %v", e.Kind, err)
	}
}

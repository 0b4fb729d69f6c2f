package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// mustVersion runs something in the session that becomes a version: of the series, or
// of a new one.
func (w *world) mustVersion(s workbench.Session, epoch int64, series string) workbench.Run {
	w.t.Helper()
	a := w.admission(s.ID, "", "f")
	a.Run.ReusableRun = workbench.ReusableRun{SeriesID: series}
	r, _, err := w.Admit(ctx(w.t), w.ann, a)
	want(w.t, err, "")
	w.mustDispatch(r, epoch)
	w.mustEnd(r, epoch, workbench.StatusSucceeded, true)
	return w.mustRun(r.ID)
}

// mustEnd settles a run with a commit; exclusive says whether it was alone.
func (w *world) mustEnd(r workbench.Run, epoch int64, status workbench.Status, exclusive bool) {
	w.t.Helper()
	end := w.settlement(r, epoch, status)
	head, _, err := w.HeadCommit(ctx(w.t), r.SessionID)
	want(w.t, err, "")
	end.Commit = &workbench.Commit{ID: workbench.NewID(workbench.KindCommit), ParentID: head.ID, Root: r.ID, ManifestID: "m", CreatedAt: w.now}
	end.Run.CommitID, end.Run.Files.Exclusive = end.Commit.ID, exclusive
	want(w.t, w.Settle(ctx(w.t), end), "")
}

// mustJudged records a replay of a version in another session, with its verdict.
func (w *world) mustJudged(seriesID string, version int64, v workbench.Verdict) workbench.Replay {
	w.t.Helper()
	s := w.mustSession(w.ann)
	a := w.admission(s.ID, "", "f")
	a.Run.ReusableRun = workbench.ReusableRun{Mode: workbench.ReuseOff, Of: &workbench.VersionRef{SeriesID: seriesID, Version: version}}
	a.Replay = &workbench.Replay{ID: workbench.NewID(workbench.KindReplay), ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, SessionID: s.ID,
		SeriesID: seriesID, Version: version, RunID: a.Run.ID, Tools: workbench.ReplayRefuses, CreatedAt: w.now}
	a.Run.ReusableRun.ReplayID = a.Replay.ID
	_, _, err := w.Admit(ctx(w.t), w.ann, a)
	want(w.t, err, "")
	r, err := w.Judge(ctx(w.t), a.Replay.ID, v, []string{workbench.FactStdout}, w.now)
	want(w.t, err, "")
	return r
}

func (w *world) publish(id string, version, expected int64, rollback bool) error {
	_, err := w.Publish(ctx(w.t), w.ann, store.PublishRecord{SeriesID: id, By: w.ann.UserID, At: w.now,
		PublishVersion: workbench.PublishVersion{Version: version, Expected: expected, Rollback: rollback, Trail: w.row("series.publish")}})
	return err
}

func testSeries(t *testing.T, open Open) {
	t.Run("a run that succeeded alone, with a commit, is a version", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		first := w.mustVersion(s, epoch, "")
		equal(t, "the state", first.ReusableRun, workbench.ReusableRun{Mode: workbench.ReuseAuto, State: workbench.ReuseReady, SeriesID: workbench.SeriesOf(first.ID), Version: 1})
		second := w.mustVersion(s, epoch, first.ReusableRun.SeriesID)
		equal(t, "the next version", second.ReusableRun.Version, int64(2))
		equal(t, "of its series", second.ReusableRun.SeriesID, first.ReusableRun.SeriesID)
		for _, c := range []struct {
			reason    string
			status    workbench.Status
			exclusive bool
		}{{workbench.NotReusableOutcome, workbench.StatusFailed, true}, {workbench.NotReusableShared, workbench.StatusSucceeded, false}} {
			r := w.mustAdmit(w.ann, s.ID)
			equal(t, "before its end", w.mustRun(r.ID).ReusableRun.State, workbench.ReusePending)
			w.mustDispatch(r, epoch)
			w.mustEnd(r, epoch, c.status, c.exclusive)
			equal(t, "a run that is none", w.mustRun(r.ID).ReusableRun, workbench.ReusableRun{Mode: workbench.ReuseAuto, State: workbench.ReuseNotReusable, Reason: c.reason})
		}
		a := w.admission(s.ID, "", "f")
		a.Run.ReusableRun.Mode = workbench.ReuseOff
		off, _, err := w.Admit(ctx(t), w.ann, a)
		want(t, err, "")
		w.mustDispatch(off, epoch)
		w.mustEnd(off, epoch, workbench.StatusSucceeded, true)
		equal(t, "a run that is to be none", w.mustRun(off.ID).ReusableRun, workbench.ReusableRun{Mode: workbench.ReuseOff, State: workbench.ReuseDeclined})
		list, err := w.ListSeries(ctx(t), w.ann, workbench.Page{})
		want(t, err, "")
		equal(t, "series", len(list.Items), 1)
		versions, err := w.SeriesVersions(ctx(t), w.ann, first.ReusableRun.SeriesID, workbench.Page{Limit: 1})
		want(t, err, "")
		equal(t, "the newest version", versions.Items[0].ID, second.ID)
		versions, err = w.SeriesVersions(ctx(t), w.ann, first.ReusableRun.SeriesID, workbench.Page{Limit: 1, Cursor: versions.NextCursor})
		want(t, err, "")
		equal(t, "the version before", versions.Items[0].ID, first.ID)
	})
	t.Run("a series that is not there, or another's, is not continued", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		series := w.mustVersion(s, w.mustLease(s.ID), "").ReusableRun.SeriesID
		other := w.mustDirect("elsewhere", "eve")
		a := w.admission(w.mustSession(other).ID, "", "f")
		a.Run.ReusableRun.SeriesID = series
		want(t, second2(w.Admit(ctx(t), other, a)), workbench.CodeNotFound)
		want(t, second(w.Series(ctx(t), other, series)), workbench.CodeNotFound)
		want(t, second(w.SeriesVersion(ctx(t), other, series, 1)), workbench.CodeNotFound)
		want(t, second(w.SeriesVersions(ctx(t), other, series, workbench.Page{})), workbench.CodeNotFound)
	})
	t.Run("a version is published after a replay that matched, if the caller knows what is", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		id := w.mustVersion(s, epoch, "").ReusableRun.SeriesID
		w.mustVersion(s, epoch, id)
		want(t, w.publish(id, 1, 0, false), workbench.CodeReplayRequired)
		w.mustJudged(id, 1, workbench.VerdictDiffers)
		want(t, w.publish(id, 1, 0, false), workbench.CodeReplayRequired)
		replay := w.mustJudged(id, 1, workbench.VerdictMatches)
		again, err := w.Judge(ctx(t), replay.ID, workbench.VerdictDiffers, nil, w.now)
		want(t, err, "")
		equal(t, "a verdict that is reached once more", again.Verdict, workbench.VerdictMatches)
		want(t, w.publish(id, 1, 1, false), workbench.CodeVersionMismatch)
		want(t, w.publish(id, 3, 0, false), workbench.CodeNotFound)
		want(t, w.publish(id, 1, 0, false), "")
		want(t, w.publish(id, 1, 1, false), workbench.CodeConflict) // it is
		want(t, w.publish(id, 2, 1, false), workbench.CodeReplayRequired)
		want(t, w.publish(id, 2, 1, true), workbench.CodeConflict) // never published
		want(t, w.publish(id, 0, 1, true), workbench.CodeConflict) // nothing was before
		w.mustJudged(id, 2, workbench.VerdictMatches)
		want(t, w.publish(id, 2, 1, false), "")
		want(t, w.publish(id, 0, 2, true), "")
		x, err := w.Series(ctx(t), w.ann, id)
		want(t, err, "")
		equal(t, "published", x.PublishedVersion, int64(1))
		equal(t, "publications", len(x.Publications), 3)
		equal(t, "the last", x.Publications[0], workbench.Publication{Version: 1, PreviousVersion: 2, Rollback: true, By: w.ann.UserID, At: w.now})
		equal(t, "the first", x.Publications[2].ReplayID, replay.ID)
	})
	t.Run("of a hundred publications at once one is made", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		id := w.mustVersion(s, epoch, "").ReusableRun.SeriesID
		w.mustVersion(s, epoch, id)
		w.mustJudged(id, 1, workbench.VerdictMatches)
		w.mustJudged(id, 2, workbench.VerdictMatches)
		var all sync.WaitGroup
		outcomes := make(chan workbench.Code, 100)
		for i := range 100 {
			all.Go(func() { outcomes <- workbench.CodeOf(w.publish(id, int64(i%2+1), 0, false)) })
		}
		all.Wait()
		close(outcomes)
		counts := map[workbench.Code]int{}
		for c := range outcomes {
			counts[c]++
		}
		equal(t, "winners", counts[""], 1)
		equal(t, "losers", counts[workbench.CodeVersionMismatch], 99)
	})
	t.Run("versions of one series, at once, have each a number of its own", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		id := w.mustVersion(s, w.mustLease(s.ID), "").ReusableRun.SeriesID
		var all sync.WaitGroup
		numbers := make(chan int64, 10)
		for range 10 {
			other := w.mustSession(w.ann)
			epoch := w.mustLease(other.ID)
			all.Go(func() { numbers <- w.mustVersion(other, epoch, id).ReusableRun.Version })
		}
		all.Wait()
		close(numbers)
		seen := map[int64]bool{}
		for n := range numbers {
			seen[n] = true
		}
		equal(t, "numbers", len(seen), 10)
		equal(t, "the last", seen[11], true)
	})
	t.Run("a version goes with its receipt, unless it was published; the series goes with its last", func(t *testing.T) {
		w := mustWorld(t, open)
		var ids []string
		for range 2 {
			s := w.mustSession(w.ann)
			ids = append(ids, w.mustVersion(s, w.mustLease(s.ID), "").ReusableRun.SeriesID)
			_, err := w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
			want(t, err, "")
		}
		w.mustJudged(ids[0], 1, workbench.VerdictMatches)
		want(t, w.publish(ids[0], 1, 0, false), "")
		later := w.now.Add(workbench.ReceiptGrace + 48*time.Hour)
		for range 3 {
			_, err := w.PurgeReceipts(ctx(t), later, 100)
			want(t, err, "")
		}
		want(t, second(w.SeriesVersion(ctx(t), w.ann, ids[0], 1)), "")
		want(t, second(w.Series(ctx(t), w.ann, ids[1])), workbench.CodeNotFound)
	})
	t.Run("a series that is deleted keeps nothing", func(t *testing.T) { testDeletedSeries(t, open) })
}

// testDeletedSeries is part of testSeries: what was kept goes with time again.
func testDeletedSeries(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	run := w.mustVersion(s, w.mustLease(s.ID), "")
	id := run.ReusableRun.SeriesID
	w.mustJudged(id, 1, workbench.VerdictMatches)
	want(t, w.publish(id, 1, 0, false), "")
	_, err := w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
	want(t, err, "")
	want(t, w.DeleteSeries(ctx(t), w.mustDirect("elsewhere", "eve"), id, w.row("series.delete")), workbench.CodeNotFound)
	want(t, w.DeleteSeries(ctx(t), w.ann, id, w.row("series.delete")), "")
	want(t, w.DeleteSeries(ctx(t), w.ann, id, w.row("series.delete")), workbench.CodeNotFound)
	equal(t, "what its run says", w.mustRun(run.ID).ReusableRun,
		workbench.ReusableRun{Mode: workbench.ReuseAuto, State: workbench.ReuseNotReusable, Reason: workbench.NotReusableSeries, SeriesID: id})
	for range 3 {
		_, err := w.PurgeReceipts(ctx(t), w.now.Add(workbench.ReceiptGrace+48*time.Hour), 100)
		want(t, err, "")
	}
	want(t, second(w.Run(ctx(t), w.ann, run.ID)), workbench.CodeNotFound)
}

func second2[A, B any](_ A, _ B, err error) error { return err }

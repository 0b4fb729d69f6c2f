package storetest

import (
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func testSessions(t *testing.T, open Open) {
	t.Run("a session reads back as it was made", func(t *testing.T) {
		w := mustWorld(t, open)
		s, r := w.newSession(w.ann)
		s.Tools, s.Aliases, s.GroupID, s.KeyID = []workbench.ToolRef{{Name: "sql", Version: "2"}}, []string{"db"}, "grp_1", "key_1"
		want(t, w.CreateSession(ctx(t), w.ann, s, r), "")
		read, err := w.Session(ctx(t), w.ann, s.ID)
		want(t, err, "")
		equal(t, "state", read.State, workbench.SessionActive)
		equal(t, "tool", read.Tools[0], workbench.ToolRef{Name: "sql", Version: "2"})
		equal(t, "alias", read.Aliases[0], "db")
		equal(t, "label", read.Labels["team"], "blue")
		equal(t, "limits", read.Limits, workbench.DefaultLimits())
		equal(t, "group", read.GroupID, "grp_1")
		equal(t, "key", read.KeyID, "key_1")
		equal(t, "image", read.Image, "sha256:image")
		equal(t, "generation", read.Generation, 1)
		equal(t, "created", read.CreatedAt, w.now)
		equal(t, "expires", read.ExpiresAt, w.now.Add(24*time.Hour))
		want(t, w.CreateSession(ctx(t), w.ann, s, r), workbench.CodeConflict)
	})
	t.Run("nobody makes a session for somebody else", func(t *testing.T) {
		w := mustWorld(t, open)
		ben := w.mustDirect("acme", "ben")
		s, r := w.newSession(ben)
		want(t, w.CreateSession(ctx(t), w.ann, s, r), workbench.CodeForbidden)
		narrowed := w.ann
		narrowed.SessionID = "ses_other"
		s, r = w.newSession(w.ann)
		want(t, w.CreateSession(ctx(t), narrowed, s, r), workbench.CodeForbidden)
		_, err := w.Session(ctx(t), workbench.SystemPrincipal(), s.ID)
		want(t, err, workbench.CodeNotFound)
	})
	t.Run("configure makes an immutable revision", func(t *testing.T) { testConfigure(t, open) })
	t.Run("ending", func(t *testing.T) { testEnding(t, open) })
	t.Run("a new generation", func(t *testing.T) { testGeneration(t, open) })
	t.Run("the sweeper gets past sessions it cannot end", func(t *testing.T) {
		w := mustWorld(t, open)
		var ids []string
		for range 5 {
			ids = append(ids, w.mustSession(w.ann).ID)
		}
		closed := w.mustSession(w.ann)
		_, err := w.EndSession(ctx(t), w.ann, closed.ID, workbench.SessionClosed, w.now)
		want(t, err, "")
		none, err := w.ExpiredSessions(ctx(t), w.now.Add(time.Hour), 10, "")
		want(t, err, "")
		equal(t, "before the deadline", len(none), 0)
		var seen []string
		for after := ""; ; {
			part, err := w.ExpiredSessions(ctx(t), w.now.Add(24*time.Hour), 2, after)
			want(t, err, "")
			if len(part) == 0 {
				break
			}
			for _, s := range part {
				seen = append(seen, s.ID)
				after = s.ID
			}
		}
		equal(t, "sessions", len(seen), 5)
		for i := range ids {
			equal(t, "order", seen[i], ids[i])
		}
	})
	t.Run("activity and images in use", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		want(t, w.TouchSession(ctx(t), s.ID, w.now.Add(time.Minute)), "")
		equal(t, "active", w.mustRead(s.ID).ActiveAt, w.now.Add(time.Minute))
		want(t, w.TouchSession(ctx(t), s.ID, w.now), "")
		equal(t, "activity never goes back", w.mustRead(s.ID).ActiveAt, w.now.Add(time.Minute))
		used, err := w.ImageInUse(ctx(t), "sha256:image")
		want(t, err, "")
		equal(t, "in use", used, true)
		_, err = w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
		want(t, err, "")
		used, err = w.ImageInUse(ctx(t), "sha256:image")
		want(t, err, "")
		equal(t, "in use after the end", used, false)
	})
}

func testConfigure(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	lower := s.Limits
	lower.Tasks = 8
	next := workbench.Revision{SessionID: s.ID, Agent: "second", Limits: lower, Size: s.Size, KeyID: "key_2", CreatedAt: w.now.Add(time.Minute)}
	changed, err := w.AddRevision(ctx(t), w.ann, next, &map[string]string{"team": "red"}, store.Seen{Revision: 1})
	want(t, err, "")
	equal(t, "revision", changed.Revision, 2)
	read := w.mustRead(s.ID)
	equal(t, "revision", read.Revision, 2)
	equal(t, "agent", read.Agent, "second")
	equal(t, "tasks", read.Limits.Tasks, 8)
	equal(t, "label", read.Labels["team"], "red")
	first, err := w.Revision(ctx(t), w.ann, s.ID, 1)
	want(t, err, "")
	equal(t, "the first revision", first.Agent, "analyst")
	equal(t, "its tasks", first.Limits.Tasks, 64)
	_, err = w.AddRevision(ctx(t), w.ann, next, nil, store.Seen{Revision: 1})
	want(t, err, workbench.CodeVersionMismatch)
	_, err = w.Revision(ctx(t), w.ann, s.ID, 3)
	want(t, err, workbench.CodeNotFound)

	errs := together(8, func(int) error {
		_, err := w.AddRevision(ctx(t), w.ann, next, nil, store.Seen{Revision: 2})
		return err
	})
	equal(t, "winners of a race", count(errs, ""), 1)
	equal(t, "losers", count(errs, workbench.CodeVersionMismatch), 7)
	equal(t, "labels stay", w.mustRead(s.ID).Labels["team"], "red")

	other, none := "com_other", ""
	_, err = w.AddRevision(ctx(t), w.ann, next, nil, store.Seen{Head: &other})
	want(t, err, workbench.CodeVersionMismatch)
	equal(t, "revision where the files are others", w.mustRead(s.ID).Revision, 3)
	_, err = w.AddRevision(ctx(t), w.ann, next, nil, store.Seen{Head: &none})
	want(t, err, "")

	run := w.mustAdmit(w.ann, s.ID)
	_, err = w.AddRevision(ctx(t), w.ann, next, nil, store.Seen{})
	want(t, err, workbench.CodeRunsActive)
	_, err = w.RequestCancel(ctx(t), w.ann, run.ID, workbench.ReasonCancelled, w.now)
	want(t, err, "")
	_, err = w.AddRevision(ctx(t), w.ann, next, nil, store.Seen{})
	want(t, err, "")
	_, err = w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
	want(t, err, "")
	_, err = w.AddRevision(ctx(t), w.ann, next, nil, store.Seen{})
	want(t, err, workbench.CodeSessionClosed)
	list, err := w.ListRevisions(ctx(t), w.ann, s.ID, workbench.Page{Limit: 2})
	want(t, err, "")
	equal(t, "first page", len(list.Items), 2)
	list, err = w.ListRevisions(ctx(t), w.ann, s.ID, workbench.Page{Limit: 3, Cursor: list.NextCursor})
	want(t, err, "")
	equal(t, "second page", len(list.Items), 3)
	equal(t, "in order", list.Items[0].Number, 3)
	equal(t, "the end", list.NextCursor, "")
}

func testEnding(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s, out, epoch := w.mustOut(w.ann)
	queued := w.mustAdmit(w.ann, s.ID)
	ended, err := w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionExpired, w.now.Add(time.Minute))
	want(t, err, "")
	equal(t, "state", ended.State, workbench.SessionExpired)
	equal(t, "ended", *ended.EndedAt, w.now.Add(time.Minute))
	again, err := w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now.Add(time.Hour))
	want(t, err, "")
	equal(t, "the first end stays", again.State, workbench.SessionExpired)
	equal(t, "its time too", *again.EndedAt, w.now.Add(time.Minute))

	r := w.mustRun(queued.ID)
	equal(t, "a queued run", r.Status, workbench.StatusCancelled)
	equal(t, "its reason", r.Reason, workbench.ReasonSessionExpired)
	equal(t, "its message", r.Message, "cancelled before it started, when its session came to its deadline")
	r = w.mustRun(out.ID)
	equal(t, "a run that is out", r.Status, workbench.StatusDispatching)
	equal(t, "is asked to cancel", r.CancelRequested, true)
	reason, err := w.CancelReason(ctx(t), out.ID)
	want(t, err, "")
	equal(t, "with the reason", reason, workbench.ReasonSessionExpired)
	// Its engine can still settle it.
	end := w.settlement(out, epoch, workbench.StatusCancelled)
	end.Run.Reason = workbench.ReasonSessionExpired
	want(t, w.Settle(ctx(t), end), "")
	_, err = w.EndSession(ctx(t), w.ann, "ses_none", workbench.SessionClosed, w.now)
	want(t, err, workbench.CodeNotFound)
}

func testGeneration(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	epoch := w.mustLease(s.ID)
	bumped, err := w.BumpGeneration(ctx(t), w.ann, s.ID, epoch, true)
	want(t, err, "")
	equal(t, "generation", bumped.Generation, 2)
	_, err = w.BumpGeneration(ctx(t), w.ann, s.ID, epoch+1, true)
	want(t, err, workbench.CodeFenced)
	run := w.mustAdmit(w.ann, s.ID)
	_, err = w.BumpGeneration(ctx(t), w.ann, s.ID, epoch, true)
	want(t, err, workbench.CodeRunsActive)
	bumped, err = w.BumpGeneration(ctx(t), w.ann, s.ID, epoch, false) // a lost sandbox does not wait
	want(t, err, "")
	equal(t, "generation", bumped.Generation, 3)
	equal(t, "kept", w.mustRead(s.ID).Generation, 3)
	equal(t, "a queued run waits on", w.mustRun(run.ID).Status, workbench.StatusQueued)
	// A restart moves generation and workspace together, or not at all.
	first := workbench.Commit{ID: "cmt_over", Root: "r", RunIDs: []string{}, CreatedAt: w.now}
	_, _, err = w.StartOver(ctx(t), w.ann, s.ID, epoch, first, nil, "")
	want(t, err, workbench.CodeRunsActive)
	_, err = w.RequestCancel(ctx(t), w.ann, run.ID, workbench.ReasonCancelled, w.now)
	want(t, err, "")
	_, _, err = w.StartOver(ctx(t), w.ann, s.ID, epoch+1, first, nil, "")
	want(t, err, workbench.CodeFenced)
	_, _, err = w.StartOver(ctx(t), w.ann, s.ID, epoch, first, []string{"never_noted"}, "")
	want(t, err, workbench.CodeConflict)
	equal(t, "neither", w.mustRead(s.ID).Generation, 3)
	over, commit, err := w.StartOver(ctx(t), w.ann, s.ID, epoch, first, nil, "")
	want(t, err, "")
	equal(t, "generation", over.Generation, 4)
	equal(t, "of the commit", commit.Generation, 4)
	first.ID = "cmt_again"
	run = w.mustAdmit(w.ann, s.ID)
	_, commit, err = w.StartOver(ctx(t), w.ann, s.ID, epoch, first, nil, workbench.ReasonRestart)
	want(t, err, "")
	equal(t, "what waited is cancelled", w.mustRun(run.ID).Status, workbench.StatusCancelled)
	equal(t, "why", w.mustRun(run.ID).Reason, workbench.ReasonRestart)
	equal(t, "parent", commit.ParentID, "cmt_over")
	head, _, err := w.HeadCommit(ctx(t), s.ID)
	want(t, err, "")
	equal(t, "head", head.ID, "cmt_again")
	_, err = w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
	want(t, err, "")
	_, err = w.BumpGeneration(ctx(t), w.ann, s.ID, epoch, false)
	want(t, err, workbench.CodeSessionClosed)
}

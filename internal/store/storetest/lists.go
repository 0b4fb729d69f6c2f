package storetest

import (
	"encoding/base64"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func testAudit(t *testing.T, open Open) {
	w := mustWorld(t, open)
	for i := range 3 {
		want(t, w.Audit(ctx(t), workbench.AuditEntry{At: w.now.Add(time.Duration(i) * time.Minute), ProjectID: w.project.ID, TenantID: w.ann.TenantID,
			UserID: w.ann.UserID, KeyID: "key_1", Action: []string{"session.create", "run.submit", "run.submit"}[i], Target: fmt.Sprint("t", i), Outcome: "ok",
			Address: "127.0.0.1", RequestID: "req_1", Detail: []byte(`{"n":1}`)}), "")
	}
	all, err := w.ListAudit(ctx(t), w.admin(), store.AuditFilter{}, workbench.Page{})
	want(t, err, "")
	equal(t, "rows", len(all.Items), 3)
	equal(t, "newest first", all.Items[0].Target, "t2")
	equal(t, "detail", string(all.Items[0].Detail), `{"n":1}`)
	equal(t, "address", all.Items[0].Address, "127.0.0.1")
	for name, c := range map[string]struct {
		filter store.AuditFilter
		rows   int
	}{
		"action":       {store.AuditFilter{Action: "run.submit"}, 2},
		"target":       {store.AuditFilter{Target: "t0"}, 1},
		"key":          {store.AuditFilter{KeyID: "key_2"}, 0},
		"since":        {store.AuditFilter{Since: w.now.Add(time.Minute)}, 2},
		"until":        {store.AuditFilter{Until: w.now.Add(time.Minute)}, 1},
		"tenant, user": {store.AuditFilter{TenantID: w.ann.TenantID, UserID: w.ann.UserID}, 3},
	} {
		got, err := w.ListAudit(ctx(t), w.admin(), c.filter, workbench.Page{})
		want(t, err, "")
		equal(t, "rows by "+name, len(got.Items), c.rows)
	}
	want(t, w.Audit(ctx(t), all.Items[0]), workbench.CodeConflict)
}

func testLists(t *testing.T, open Open) {
	t.Run("a cursor is stable while items are added and removed", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		var before []string
		for range 7 {
			before = append(before, w.mustAdmit(w.ann, s.ID).ID)
		}
		slices.Reverse(before)
		var seen []string
		page := workbench.Page{Limit: 2}
		for {
			got, err := w.ListRuns(ctx(t), w.ann, workbench.RunFilter{SessionID: s.ID}, page)
			want(t, err, "")
			for _, r := range got.Items {
				seen = append(seen, r.ID)
			}
			w.mustAdmit(w.ann, s.ID) // newer: before the first page
			if got.NextCursor == "" {
				break
			}
			page.Cursor = got.NextCursor
		}
		equal(t, "every item once, in order", slices.Equal(seen, before), true)
	})
	t.Run("a cursor that this list did not give out is refused by name", func(t *testing.T) { testCursors(t, open) })
	t.Run("filters", func(t *testing.T) {
		w := mustWorld(t, open)
		a, b := w.mustSession(w.ann), w.mustSession(w.ann)
		_, err := w.EndSession(ctx(t), w.ann, b.ID, workbench.SessionClosed, w.now)
		want(t, err, "")
		for name, c := range map[string]struct {
			filter   workbench.SessionFilter
			sessions int
		}{
			"nothing":       {workbench.SessionFilter{}, 2},
			"state":         {workbench.SessionFilter{State: workbench.SessionClosed}, 1},
			"label":         {workbench.SessionFilter{Label: map[string]string{"team": "blue"}}, 2},
			"other label":   {workbench.SessionFilter{Label: map[string]string{"team": "red"}}, 0},
			"unknown label": {workbench.SessionFilter{Label: map[string]string{`x' OR 1=1 --?`: "blue"}}, 0},
			"since":         {workbench.SessionFilter{Since: w.now.Add(time.Second)}, 0},
			"until":         {workbench.SessionFilter{Until: w.now.Add(time.Second)}, 2},
		} {
			got, err := w.ListSessions(ctx(t), w.ann, c.filter, workbench.Page{})
			want(t, err, "")
			equal(t, "sessions by "+name, len(got.Items), c.sessions)
		}
		r := w.mustAdmit(w.ann, a.ID)
		for name, c := range map[string]struct {
			filter workbench.RunFilter
			runs   int
		}{
			"session": {workbench.RunFilter{SessionID: a.ID}, 1}, "other session": {workbench.RunFilter{SessionID: b.ID}, 0},
			"status": {workbench.RunFilter{Status: workbench.StatusQueued}, 1}, "other status": {workbench.RunFilter{Status: workbench.StatusFailed}, 0},
			"since": {workbench.RunFilter{Since: w.now.Add(time.Second)}, 0},
		} {
			got, err := w.ListRuns(ctx(t), w.ann, c.filter, workbench.Page{})
			want(t, err, "")
			equal(t, "runs by "+name, len(got.Items), c.runs)
			if c.runs > 0 {
				equal(t, "run", got.Items[0].ID, r.ID)
				equal(t, "lists leave the spec out", got.Items[0].Sealed == nil, true)
			}
		}
	})
	t.Run("changed files page by path, whatever the bytes", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		s := w.settlement(r, epoch, workbench.StatusSucceeded)
		paths := []string{"A", "B", "a", "a b", "b\xff", "é", "z:1"} // by bytes
		for _, i := range []int{3, 0, 6, 2, 5, 1, 4} {
			s.Changes = append(s.Changes, workbench.ChangedFile{Path: paths[i], Change: workbench.ChangeAdded, Type: "file", Size: 1})
		}
		for i := range 500 {
			s.Changes = append(s.Changes, workbench.ChangedFile{Path: fmt.Sprintf("zz/%04d", i), Change: workbench.ChangeAdded, Type: "file"})
		}
		want(t, w.Settle(ctx(t), s), "")
		var seen []string
		page := workbench.Page{Limit: 3}
		for len(seen) < 507 {
			got, err := w.Changes(ctx(t), w.ann, r.ID, page)
			want(t, err, "")
			for _, c := range got.Items {
				seen = append(seen, c.Path)
			}
			page = workbench.Page{Limit: 200, Cursor: got.NextCursor}
			if got.NextCursor == "" {
				break
			}
		}
		equal(t, "files", len(seen), 507)
		equal(t, "order", slices.Equal(seen[:7], []string{"A", "B", "a", "a b", "b\xff", "z:1", "zz/0000"}) || slices.IsSorted(seen), true)
		equal(t, "total", w.mustRun(r.ID).Files.Total, 507)
	})
}

func testCursors(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	w.mustSession(w.ann)
	_, r, _ := w.mustOut(w.ann)
	got, err := w.ListSessions(ctx(t), w.ann, workbench.SessionFilter{}, workbench.Page{Limit: 1})
	want(t, err, "")
	lists := map[string]func(workbench.Page) error{
		"runs": func(p workbench.Page) error {
			_, err := w.ListRuns(ctx(t), w.ann, workbench.RunFilter{}, p)
			return err
		},
		"keys":      func(p workbench.Page) error { _, err := w.ListKeys(ctx(t), w.ann, p); return err },
		"revisions": func(p workbench.Page) error { _, err := w.ListRevisions(ctx(t), w.ann, s.ID, p); return err },
		"files":     func(p workbench.Page) error { _, err := w.Changes(ctx(t), w.ann, r.ID, p); return err },
		"commits":   func(p workbench.Page) error { _, err := w.ListCommits(ctx(t), w.ann, s.ID, p); return err },
		"artifacts": func(p workbench.Page) error { _, err := w.ListArtifacts(ctx(t), w.ann, s.ID, p); return err },
		"audit":     func(p workbench.Page) error { _, err := w.ListAudit(ctx(t), w.ann, store.AuditFilter{}, p); return err },
	}
	for name, list := range lists {
		for _, cursor := range []string{"garbage", "%%%", "AAAA", got.NextCursor, base64.RawURLEncoding.EncodeToString([]byte("1:" + name + ":"))} {
			err := list(workbench.Page{Cursor: cursor})
			want(t, err, workbench.CodeInvalidRequest)
			equal(t, "field", workbench.AsError(err).Field, "cursor")
		}
		for _, limit := range []int{-1, 201} {
			err := list(workbench.Page{Limit: limit})
			want(t, err, workbench.CodeLimitOutOfRange)
			equal(t, "field", workbench.AsError(err).Field, "limit")
		}
	}
	_, err = w.ListRevisions(ctx(t), w.ann, s.ID, workbench.Page{Cursor: base64.RawURLEncoding.EncodeToString([]byte("1:revisions:x"))})
	want(t, err, workbench.CodeInvalidRequest)
}

func testRetention(t *testing.T, open Open) {
	w := mustWorld(t, open)
	week := 7 * 24 * time.Hour
	s, r, epoch := w.mustOut(w.ann)
	w.mustBlob("m")
	c := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), Root: "x", ManifestID: "m", CreatedAt: w.now}
	end := w.settlement(r, epoch, workbench.StatusSucceeded)
	end.Commit, end.ManifestRefs = &c, []string{"m"}
	want(t, w.Settle(ctx(t), end), "")
	keyed, _, err := w.Admit(ctx(t), w.ann, w.admission(s.ID, "k", "f"))
	want(t, err, "")
	a := w.mustArtifact(w.ann, s, 3) // until now + 7 days
	active, _, _ := w.mustOut(w.ann)
	_, err = w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now.Add(time.Second))
	want(t, err, "")

	purge := func(at time.Time) int {
		t.Helper()
		ids, err := w.PurgeReceipts(ctx(t), at, 100)
		want(t, err, "")
		return len(ids)
	}
	equal(t, "before a week", purge(w.now.Add(week-time.Hour)), 0)
	equal(t, "while a file is kept", purge(w.now.Add(4*week)), 0)
	want(t, w.MarkExpired(ctx(t), a.ID, a.ExpiresAt), "")
	equal(t, "a week after the last file went, not before", purge(a.ExpiresAt.Add(week-time.Second)), 0)
	_, err = w.Run(ctx(t), w.ann, r.ID)
	want(t, err, "")
	equal(t, "a week after the last file went", purge(a.ExpiresAt.Add(week)), 2)
	_, err = w.Run(ctx(t), w.ann, r.ID)
	want(t, err, workbench.CodeNotFound)
	_, err = w.Log(ctx(t), w.ann, keyed.ID, 0, 0)
	want(t, err, workbench.CodeNotFound)
	_, err = w.Session(ctx(t), w.ann, s.ID)
	want(t, err, workbench.CodeNotFound)
	_, err = w.Commit(ctx(t), w.ann, c.ID)
	want(t, err, workbench.CodeNotFound)
	gone, err := w.CommitGone(ctx(t), w.ann, c.ID)
	want(t, err, "")
	equal(t, "what is left of the commit", gone.SessionID == s.ID && gone.Reason != "" && gone.At.Equal(a.ExpiresAt.Add(week)), true)
	_, err = w.CommitGone(ctx(t), w.mustDirect("acme", "bob"), c.ID)
	want(t, err, workbench.CodeNotFound)
	_, err = w.CommitGone(ctx(t), w.ann, workbench.NewID(workbench.KindCommit))
	want(t, err, workbench.CodeNotFound)
	free, err := w.UnreferencedBlobs(ctx(t), w.now.Add(time.Second), 10)
	want(t, err, "")
	equal(t, "blobs of the session are free", len(free), 2)
	equal(t, "a session that lives is not touched", w.mustRead(active.ID).State, workbench.SessionActive)
	again, replayed, err := w.Admit(ctx(t), w.ann, w.admission(active.ID, "k", "other"))
	want(t, err, "")
	equal(t, "the key is free again", !replayed && again.ID != keyed.ID, true)
	purge(a.ExpiresAt.Add(week + 31*24*time.Hour))
	_, err = w.CommitGone(ctx(t), w.ann, c.ID)
	want(t, err, workbench.CodeNotFound)
}

// testFork: a fork needs its origin's blobs by itself, whoever goes first.
func testFork(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s, r, epoch := w.mustOut(w.ann)
	w.mustBlob("m")
	w.mustBlob("content")
	c := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), Root: "x", ManifestID: "m", Files: 1, Bytes: 7, CreatedAt: w.now}
	end := w.settlement(r, epoch, workbench.StatusSucceeded)
	end.Commit, end.ManifestRefs = &c, []string{"m", "content"}
	want(t, w.Settle(ctx(t), end), "")
	found, ok, err := w.CommitWithRoot(ctx(t), s.ID, "x", 2)
	equal(t, "the commit with the tree", err == nil && ok && found.ID == c.ID, true)
	_, ok, err = w.CommitWithRoot(ctx(t), s.ID, "x", 1)
	equal(t, "a commit before the first", err == nil && !ok, true)

	fork, revision := w.newSession(w.ann)
	fork.ForkedFrom = &workbench.Lineage{SessionID: s.ID, RunID: r.ID, CommitID: c.ID}
	first := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), Root: "x", ManifestID: "m", Files: 1, Bytes: 7, Exclusive: true, RestoredFrom: c.ID, CreatedAt: w.now}
	_, _, err = w.Fork(ctx(t), w.mustDirect("acme", "bob"), fork, revision, first, []string{"m", "content"})
	want(t, err, workbench.CodeForbidden)
	_, _, err = w.Fork(ctx(t), w.ann, fork, revision, first, []string{"m", "never noted"})
	want(t, err, workbench.CodeConflict)
	_, err = w.Session(ctx(t), w.ann, fork.ID)
	want(t, err, workbench.CodeNotFound) // nothing of it is left
	made, bytes, err := w.Fork(ctx(t), w.ann, fork, revision, first, []string{"m", "content"})
	want(t, err, "")
	equal(t, "number of the first commit", made.Number, int64(1))
	got := w.mustRead(fork.ID)
	equal(t, "lineage", *got.ForkedFrom, *fork.ForkedFrom)
	equal(t, "head", got.HeadCommit, first.ID)
	equal(t, "what its history begins with", bytes > 0 && bytes == got.HistoryBytes, true)
	read, err := w.Commit(ctx(t), w.ann, first.ID)
	want(t, err, "")
	equal(t, "what the first commit restored", read.RestoredFrom, c.ID)
	equal(t, "a session that is no fork", w.mustRead(s.ID).ForkedFrom == nil, true)

	want(t, w.DropBlobRefs(ctx(t), store.SessionBlobOwner(s.ID)), "")
	free, err := w.UnreferencedBlobs(ctx(t), w.now.Add(time.Hour), 10)
	want(t, err, "")
	equal(t, "blobs that the fork needs and that are free", len(free), 0)
	want(t, w.DropBlobRefs(ctx(t), store.SessionBlobOwner(fork.ID)), "")
	free, err = w.UnreferencedBlobs(ctx(t), w.now.Add(time.Hour), 10)
	want(t, err, "")
	equal(t, "blobs that nobody needs", len(free), 2)
}

func testSubscriptions(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	epoch := w.mustLease(s.ID)
	run := w.mustAdmit(w.ann, s.ID)
	ofRun, ofSession := w.Subscribe(store.RunTopic(run.ID)), w.Subscribe(store.SessionTopic(s.ID))
	queue, other := w.Subscribe(store.QueueTopic, store.RunTopic("run_other")), w.Subscribe(store.RunTopic("run_other"))
	defer ofRun.Close()
	defer queue.Close()
	defer other.Close()
	end := w.Subscribe(store.EndTopic(run.ID))
	defer end.Close()
	drain(ofRun, ofSession, queue, other, end)

	w.mustDispatch(run, epoch)
	awake(t, ofRun, ofSession)
	running := workbench.StatusRunning
	want(t, w.AppendLog(ctx(t), run.ID, epoch, 1, &running, []workbench.LogEntry{output(3, workbench.Stdout, 0, "a")}), "")
	awake(t, ofRun, ofSession)
	ofSession.Close()
	ofSession.Close()
	drain(ofSession, queue)
	equal(t, "wakeups before the end", len(end.C), 0)
	w.mustSettle(run, epoch)
	awake(t, ofRun, queue, end)
	w.mustAdmit(w.ann, s.ID)
	awake(t, queue)
	time.Sleep(50 * time.Millisecond)
	equal(t, "wakeups of another topic", len(other.C), 0)
	equal(t, "wakeups after Close", len(ofSession.C), 0)
}

func drain(subscriptions ...*store.Subscription) {
	time.Sleep(50 * time.Millisecond) // what is still on its way
	for _, s := range subscriptions {
		select {
		case <-s.C:
		default:
		}
	}
}

func awake(t testing.TB, subscriptions ...*store.Subscription) {
	t.Helper()
	for i, s := range subscriptions {
		select {
		case <-s.C:
		case <-time.After(5 * time.Second):
			t.Fatalf("subscription %d was not woken", i)
		}
	}
}

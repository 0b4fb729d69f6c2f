package storetest

import (
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
)

// away is a session that was suspended with the memory that its context lives in.
type away struct {
	workbench.Session
	epoch int64 // that it was suspended under
	kept  workbench.Checkpoint
}

func (w *world) mustAway() away {
	w.t.Helper()
	s := w.mustSession(w.ann)
	a := away{Session: s, epoch: w.mustLease(s.ID)}
	r := w.mustCell(s, "default")
	w.mustEnter(r, a.epoch, "m1")
	w.mustSettle(r, a.epoch)
	a.kept = workbench.Checkpoint{Blob: w.mustBlob("k_" + s.ID), Bytes: 7, Generation: 1, Memory: "m1", Interpreters: []string{"ctx_default"}, Head: "h"}
	want(w.t, w.Suspend(ctx(w.t), s.ID, a.epoch, 1, &a.kept, w.now), "")
	a.Session = w.mustRead(s.ID)
	return a
}

// unreferenced reports whether a blob is the sweeper's.
func (w *world) unreferenced(blob string) bool {
	w.t.Helper()
	ids, err := w.UnreferencedBlobs(ctx(w.t), w.now.Add(time.Hour), 100)
	want(w.t, err, "")
	for _, id := range ids {
		if id == blob {
			return true
		}
	}
	return false
}

func testSuspension(t *testing.T, open Open) {
	t.Run("a suspended session has its memory and no lease, once", func(t *testing.T) {
		w := mustWorld(t, open)
		a := w.mustAway()
		equal(t, "lease", a.LeaseOwner, "")
		equal(t, "suspended", *a.Suspended, workbench.Suspension{At: w.now, MemoryKept: true, Bytes: 7})
		want(t, w.Suspend(ctx(t), a.ID, a.epoch, 1, &a.kept, w.now.Add(time.Second)), "") // the answer was lost
		equal(t, "suspended since", w.mustRead(a.ID).Suspended.At, w.now)
		equal(t, "log", w.log(a.ID), "created run:queued run:succeeded suspended")
		got, err := w.Checkpoint(ctx(t), a.ID)
		want(t, err, "")
		equal(t, "kept blob", got.Blob, a.kept.Blob)
		equal(t, "kept memory", got.Memory, "m1")
		equal(t, "its blob is nobody's", w.unreferenced(a.kept.Blob), false)
		next, err := w.AcquireLease(ctx(t), a.ID, "eng_two", time.Minute)
		want(t, err, "")
		equal(t, "epoch", next, a.epoch+1)
		want(t, w.Suspend(ctx(t), a.ID, a.epoch, 1, &a.kept, w.now), workbench.CodeFenced)
	})
	t.Run("the memory is handed out once", func(t *testing.T) {
		w := mustWorld(t, open)
		a := w.mustAway()
		epoch := w.mustLease(a.ID)
		want(t, w.Resume(ctx(t), a.ID, a.epoch, a.kept.Blob), workbench.CodeFenced)
		want(t, w.Resume(ctx(t), a.ID, epoch, "k_another"), workbench.CodeConflict)
		equal(t, "kept", w.mustRead(a.ID).Suspended.MemoryKept, true)
		want(t, w.Resume(ctx(t), a.ID, epoch, a.kept.Blob), "")
		want(t, w.Resume(ctx(t), a.ID, epoch, a.kept.Blob), workbench.CodeConflict)
		if s := w.mustRead(a.ID); s.Suspended != nil || s.Generation != 1 {
			t.Fatalf("suspended %+v in generation %d", s.Suspended, s.Generation)
		}
		_, err := w.Checkpoint(ctx(t), a.ID)
		want(t, err, workbench.CodeNotFound)
		equal(t, "its blob is nobody's", w.unreferenced(a.kept.Blob), true)
		w.wantContext(a.Session, "default", workbench.ContextIdle, 1, "m1")
	})
	t.Run("who has lost every memory has not lost what is kept", func(t *testing.T) {
		w := mustWorld(t, open)
		a := w.mustAway()
		want(t, w.LoseContexts(ctx(t), a.ID, "", workbench.LossServer, w.now), "")
		w.wantContext(a.Session, "default", workbench.ContextIdle, 1, "m1")
		want(t, w.Resume(ctx(t), a.ID, w.mustLease(a.ID), a.kept.Blob), "")
		want(t, w.LoseContexts(ctx(t), a.ID, "", workbench.LossServer, w.now), "")
		w.wantContext(a.Session, "default", workbench.ContextLost, 1, "")
	})
	t.Run("contexts are lost with the kept memory", func(t *testing.T) {
		w := mustWorld(t, open)
		for why, forget := range map[workbench.LossReason]func(a away, epoch int64) error{
			workbench.LossRestart: func(a away, epoch int64) error {
				c := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: a.ID, TenantID: a.TenantID, Root: "root1", ManifestID: w.mustBlob("m_" + a.ID), CreatedAt: w.now}
				_, _, err := w.StartOver(ctx(t), w.ann, a.ID, epoch, c, []string{c.ManifestID}, workbench.ReasonNone)
				return err
			},
			workbench.LossSuspended: func(a away, epoch int64) error {
				_, err := w.ReturnWithoutMemory(ctx(t), a.ID, epoch)
				return err
			},
		} {
			a := w.mustAway()
			want(t, forget(a, w.mustLease(a.ID)), "")
			c := w.wantContext(a.Session, "default", workbench.ContextLost, 1, "")
			equal(t, "reason", c.Lost.Reason, why)
			_, _, err := w.Admit(ctx(t), w.ann, w.cell(a.Session, "default", workbench.Python, ""))
			want(t, err, workbench.CodeContextLost)
			equal(t, "its blob is nobody's", w.unreferenced(a.kept.Blob), true)
		}
	})
}

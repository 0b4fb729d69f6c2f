package storetest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func testAdmission(t *testing.T, open Open) {
	t.Run("a run, its step and its first log entry appear together", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		run, replayed, err := w.Admit(ctx(t), w.ann, w.admission(s.ID, "k", "f"))
		want(t, err, "")
		equal(t, "replayed", replayed, false)
		equal(t, "status", run.Status, workbench.StatusQueued)
		equal(t, "number", run.Number, 1)
		equal(t, "revision", run.Revision, 1)
		equal(t, "execution id", run.ExecutionID, run.ID)
		read := w.mustRun(run.ID)
		equal(t, "key", read.IdempotencyKey, "k")
		equal(t, "user", read.UserID, w.ann.UserID)
		equal(t, "created", read.CreatedAt, w.now)
		same(t, "spec", read.Sealed, []byte("sealed:f"))
		step, err := w.Step(ctx(t), run.ID, 0)
		want(t, err, "")
		equal(t, "step", step.Status, workbench.StatusQueued)
		log, err := w.Log(ctx(t), w.ann, run.ID, 0, 0)
		want(t, err, "")
		equal(t, "entries", len(log), 1)
		equal(t, "seq", log[0].Seq, 1)
		equal(t, "meta", string(log[0].Meta), `{"status":"queued"}`)
	})
	t.Run("a hundred identical submissions at once are one run", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		var mu sync.Mutex
		ids, fresh := map[string]bool{}, 0
		for _, err := range together(100, func(int) error {
			run, replayed, err := w.Admit(ctx(t), w.ann, w.admission(s.ID, "same", "f"))
			mu.Lock()
			defer mu.Unlock()
			ids[run.ID] = true
			if !replayed {
				fresh++
			}
			return err
		}) {
			want(t, err, "")
		}
		equal(t, "runs", len(ids), 1)
		equal(t, "fresh answers", fresh, 1)
		runs, err := w.ListRuns(ctx(t), w.ann, workbench.RunFilter{}, workbench.Page{})
		want(t, err, "")
		equal(t, "rows", len(runs.Items), 1)
	})
	t.Run("without a key every submission is a job, numbered without gaps", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		var mu sync.Mutex
		numbers := map[int64]bool{}
		for _, err := range together(30, func(int) error {
			run, _, err := w.Admit(ctx(t), w.ann, w.admission(s.ID, "", "f"))
			mu.Lock()
			defer mu.Unlock()
			numbers[run.Number] = true
			return err
		}) {
			want(t, err, "")
		}
		for n := int64(1); n <= 30; n++ {
			equal(t, "number is used", numbers[n], true)
		}
	})
	t.Run("the same key from two sessions is one run", func(t *testing.T) {
		w := mustWorld(t, open)
		a, b := w.mustSession(w.ann), w.mustSession(w.ann)
		for range 5 { // both orders, at once
			var mu sync.Mutex
			ids := map[string]bool{}
			key := workbench.NewID(workbench.KindRequest)
			for _, err := range together(20, func(i int) error {
				run, _, err := w.Admit(ctx(t), w.ann, w.admission([]string{a.ID, b.ID}[i%2], key, "f"))
				mu.Lock()
				defer mu.Unlock()
				ids[run.ID] = true
				return err
			}) {
				want(t, err, "")
			}
			equal(t, "runs", len(ids), 1)
		}
	})
	t.Run("two tenants have keys of their own", func(t *testing.T) {
		w := mustWorld(t, open)
		bob := w.mustDirect("globex", "bob")
		one, _, err := w.Admit(ctx(t), w.ann, w.admission(w.mustSession(w.ann).ID, "k", "f"))
		want(t, err, "")
		two, replayed, err := w.Admit(ctx(t), bob, w.admission(w.mustSession(bob).ID, "k", "f"))
		want(t, err, "")
		equal(t, "replayed", replayed, false)
		equal(t, "apart", one.ID != two.ID, true)
	})
	t.Run("a key with another request is refused", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		_, _, err := w.Admit(ctx(t), w.ann, w.admission(s.ID, "k", "f"))
		want(t, err, "")
		_, _, err = w.Admit(ctx(t), w.ann, w.admission(s.ID, "k", "g"))
		want(t, err, workbench.CodeIdempotencyReused)
		a := w.admission(s.ID, "k", "f")
		a.FingerprintVersion = 2
		_, _, err = w.Admit(ctx(t), w.ann, a)
		want(t, err, workbench.CodeIdempotencyReused)
	})
	t.Run("a key of a run the caller may not read is a conflict that tells nothing", func(t *testing.T) {
		w := mustWorld(t, open)
		ben := w.mustDirect("acme", "ben")
		original, _, err := w.Admit(ctx(t), w.ann, w.admission(w.mustSession(w.ann).ID, "k", "f"))
		want(t, err, "")
		s := w.mustSession(ben)
		_, _, same := w.Admit(ctx(t), ben, w.admission(s.ID, "k", "f"))
		want(t, same, workbench.CodeConflict)
		_, _, other := w.Admit(ctx(t), ben, w.admission(s.ID, "k", "g"))
		want(t, other, workbench.CodeConflict)
		equal(t, "both answers are alike", same.Error(), other.Error())
		equal(t, "the answer names the run", strings.Contains(same.Error(), original.ID), false)
		narrowed := w.ann
		narrowed.SessionID = w.mustSession(w.ann).ID
		_, _, err = w.Admit(ctx(t), narrowed, w.admission(narrowed.SessionID, "k", "f"))
		want(t, err, workbench.CodeConflict)
	})
	t.Run("a repeat is answered after the session ended, a new job is not", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		run, _, err := w.Admit(ctx(t), w.ann, w.admission(s.ID, "k", "f"))
		want(t, err, "")
		_, err = w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
		want(t, err, "")
		again, replayed, err := w.Admit(ctx(t), w.ann, w.admission(s.ID, "k", "f"))
		want(t, err, "")
		equal(t, "replayed", replayed, true)
		equal(t, "run", again.ID, run.ID)
		equal(t, "status", again.Status, workbench.StatusCancelled)
		_, _, err = w.Admit(ctx(t), w.ann, w.admission(s.ID, "new", "f"))
		want(t, err, workbench.CodeSessionClosed)
		expired := w.mustSession(w.ann)
		late := w.admission(expired.ID, "", "f")
		late.Run.CreatedAt = expired.ExpiresAt
		_, _, err = w.Admit(ctx(t), w.ann, late)
		want(t, err, workbench.CodeSessionExpired)
	})
	t.Run("a check is asked for a new job only, and refuses it whole", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		asked := 0
		a := w.admission(s.ID, "k", "f")
		a.Check = func() error { asked++; return workbench.E(workbench.CodeArtifactDeleted, "gone") }
		_, _, err := w.Admit(ctx(t), w.ann, a)
		want(t, err, workbench.CodeArtifactDeleted)
		_, _, err = w.Admit(ctx(t), w.ann, w.admission(s.ID, "k", "f"))
		want(t, err, "")
		_, replayed, err := w.Admit(ctx(t), w.ann, a)
		want(t, err, "")
		equal(t, "replayed", replayed, true)
		equal(t, "asked", asked, 1)
	})
	t.Run("an older revision is not admitted", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		_, err := w.AddRevision(ctx(t), w.ann, workbench.Revision{SessionID: s.ID, Agent: "b", Limits: s.Limits, Size: s.Size, CreatedAt: w.now}, nil, store.Seen{})
		want(t, err, "")
		a := w.admission(s.ID, "", "f")
		a.Run.Revision = 1
		_, _, err = w.Admit(ctx(t), w.ann, a)
		want(t, err, workbench.CodeVersionMismatch)
		a.Run.Revision = 0
		run, _, err := w.Admit(ctx(t), w.ann, a)
		want(t, err, "")
		equal(t, "revision", run.Revision, 2)
	})
	t.Run("the queue limit holds exactly under a race", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		errs := together(30, func(int) error {
			a := w.admission(s.ID, "", "f")
			a.QueueLimit = 7
			_, _, err := w.Admit(ctx(t), w.ann, a)
			return err
		})
		equal(t, "admitted", count(errs, ""), 7)
		equal(t, "refused", count(errs, workbench.CodeQueueFull), 23)
	})
	t.Run("an admission races a configure and a close, and one order holds", func(t *testing.T) {
		w := mustWorld(t, open)
		for range 10 {
			s := w.mustSession(w.ann)
			var admitted workbench.Run
			errs := together(2, func(i int) error {
				var err error
				if i == 0 {
					admitted, _, err = w.Admit(ctx(t), w.ann, w.admission(s.ID, "", "f"))
				} else {
					_, err = w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now.Add(time.Second))
				}
				return err
			})
			want(t, errs[1], "")
			if errs[0] == nil {
				equal(t, "status", w.mustRun(admitted.ID).Status, workbench.StatusCancelled)
			} else {
				want(t, errs[0], workbench.CodeSessionClosed)
			}
		}
	})
}

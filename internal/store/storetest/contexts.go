package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func (w *world) newContext(session, id string, l workbench.Language) workbench.Context {
	return workbench.Context{ID: id, SessionID: session, Handle: "ctx_" + id, Language: l, Dir: workbench.WorkspaceDir,
		SealedEnv: []byte("sealed env"), CreatedAt: w.now}
}

func (w *world) mustContext(s workbench.Session, id string, l workbench.Language) workbench.Context {
	w.t.Helper()
	c, made, err := w.CreateContext(ctx(w.t), w.ann, w.newContext(s.ID, id, l))
	if err != nil || !made {
		w.t.Fatalf("creating a context: made %v, %v", made, err)
	}
	return c
}

// cell is a submission to a context.
func (w *world) cell(s workbench.Session, id string, l workbench.Language, onLost workbench.LostContextPolicy) store.Admission {
	a := w.admission(s.ID, "", "f")
	a.Run.ContextID, a.Run.Language = id, l
	a.Context = &store.ContextUse{Default: w.newContext(s.ID, id, l), OnLost: onLost}
	return a
}

func (w *world) mustCell(s workbench.Session, id string) workbench.Run {
	w.t.Helper()
	r, _, err := w.Admit(ctx(w.t), w.ann, w.cell(s, id, workbench.Python, ""))
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// mustEnter dispatches a cell into a memory.
func (w *world) mustEnter(r workbench.Run, epoch int64, memory string) {
	w.t.Helper()
	d := w.record(r, epoch)
	d.Context = &store.ContextEntry{ID: r.ContextID, Handle: "ctx_" + r.ContextID, Memory: memory}
	if err := w.Dispatch(ctx(w.t), d); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wantContext(s workbench.Session, id string, state workbench.ContextState, cells int64, memory string) workbench.Context {
	w.t.Helper()
	c, err := w.Context(ctx(w.t), w.ann, s.ID, id)
	want(w.t, err, "")
	if c.State != state || c.Cells != cells || c.Memory != memory {
		w.t.Fatalf("context %s is %s with %d cells in memory %q, want %s, %d, %q", id, c.State, c.Cells, c.Memory, state, cells, memory)
	}
	return c
}

func testContexts(t *testing.T, open Open) {
	t.Run("a context is made once and read as it was made", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		made := w.mustContext(s, "analysis", workbench.Python)
		equal(t, "state", made.State, workbench.ContextIdle)
		equal(t, "generation", made.Generation, 0)
		other := w.newContext(s.ID, "analysis", workbench.Bash)
		kept, fresh, err := w.CreateContext(ctx(t), w.ann, other)
		want(t, err, "")
		equal(t, "made again", fresh, false)
		equal(t, "language", kept.Language, workbench.Python)
		same(t, "environment", kept.SealedEnv, []byte("sealed env"))
		_, err = w.Context(ctx(t), w.ann, s.ID, "nope")
		want(t, err, workbench.CodeContextNotFound)
		_, err = w.Context(ctx(t), w.mustDirect("acme", "ben"), s.ID, "analysis")
		want(t, err, workbench.CodeContextNotFound)
		_, _, err = w.CreateContext(ctx(t), w.mustDirect("acme", "ben"), w.newContext(s.ID, "mine", workbench.Bash))
		want(t, err, workbench.CodeNotFound)
	})
	t.Run("a session has eight at most, however many are asked for at once", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		errs := together(20, func(i int) error {
			_, _, err := w.CreateContext(ctx(t), w.ann, w.newContext(s.ID, fmt.Sprintf("c%02d", i), workbench.Python))
			return err
		})
		equal(t, "made", count(errs, ""), 8)
		equal(t, "refused", count(errs, workbench.CodeQuotaExceeded), 12)
		all, err := w.Contexts(ctx(t), w.ann, s.ID)
		want(t, err, "")
		equal(t, "listed", len(all), 8)
		_, _, err = w.Admit(ctx(t), w.ann, w.cell(s, "default", workbench.Python, ""))
		want(t, err, workbench.CodeQuotaExceeded)
	})
	t.Run("the default context is made by its first cell, others are not", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		_, _, err := w.Admit(ctx(t), w.ann, w.cell(s, "other", workbench.Python, ""))
		want(t, err, workbench.CodeContextNotFound)
		r := w.mustCell(s, "default")
		equal(t, "context of the run", w.mustRun(r.ID).ContextID, "default")
		w.wantContext(s, "default", workbench.ContextIdle, 0, "")
		_, _, err = w.Admit(ctx(t), w.ann, w.cell(s, "default", workbench.Bash, ""))
		want(t, err, workbench.CodeContextLanguage)
		equal(t, "runs", w.mustCell(s, "default").Number, 2)
	})
	t.Run("a refused cell leaves nothing", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		a := w.cell(s, "default", workbench.Python, "")
		a.Run.ID = w.mustAdmit(w.ann, s.ID).ID // taken: the insertion fails
		if _, _, err := w.Admit(ctx(t), w.ann, a); err == nil {
			t.Fatal("a run was admitted twice")
		}
		_, err := w.Context(ctx(t), w.ann, s.ID, "default")
		want(t, err, workbench.CodeContextNotFound)
	})
	t.Run("JavaScript and TypeScript share a context", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		w.mustContext(s, "js", workbench.JavaScript)
		_, _, err := w.Admit(ctx(t), w.ann, w.cell(s, "js", workbench.TypeScript, ""))
		want(t, err, "")
	})
	t.Run("a cell lives in a memory from its dispatch on", func(t *testing.T) { testCellLife(t, open) })
	t.Run("a cell that found its interpreter gone leaves the context lost", func(t *testing.T) { testCellLoss(t, open) })
	t.Run("what is lost is refused until somebody begins anew", func(t *testing.T) { testContextLoss(t, open) })
	t.Run("a context with unfinished cells is neither deleted nor restarted", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		r := w.mustCell(s, "default")
		_, err := w.DeleteContext(ctx(t), w.ann, s.ID, "default", w.now)
		want(t, err, workbench.CodeRunsActive)
		w.mustEnter(r, epoch, "m1")
		_, err = w.RestartContext(ctx(t), w.ann, s.ID, "default", "ctx_two", w.now)
		want(t, err, workbench.CodeRunsActive)
		w.mustSettle(r, epoch)
		_, err = w.RestartContext(ctx(t), w.mustDirect("acme", "ben"), s.ID, "default", "ctx_two", w.now)
		want(t, err, workbench.CodeNotFound)
		c, err := w.RestartContext(ctx(t), w.ann, s.ID, "default", "ctx_two", w.now)
		want(t, err, "")
		equal(t, "handle", c.Handle, "ctx_two")
		equal(t, "memory", c.Memory, "")
		_, err = w.DeleteContext(ctx(t), w.ann, s.ID, "default", w.now)
		want(t, err, "")
		_, err = w.DeleteContext(ctx(t), w.ann, s.ID, "default", w.now)
		want(t, err, workbench.CodeContextNotFound)
	})
	t.Run("an ended session takes no more contexts", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		w.mustContext(s, "a", workbench.Bash)
		_, err := w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
		want(t, err, "")
		_, _, err = w.CreateContext(ctx(t), w.ann, w.newContext(s.ID, "b", workbench.Bash))
		want(t, err, workbench.CodeSessionClosed)
		_, err = w.DeleteContext(ctx(t), w.ann, s.ID, "a", w.now)
		want(t, err, workbench.CodeSessionClosed)
		all, err := w.Contexts(ctx(t), w.ann, s.ID)
		want(t, err, "")
		equal(t, "listed", len(all), 1)
	})
}

func testCellLife(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	epoch := w.mustLease(s.ID)
	r := w.mustCell(s, "default")
	d := w.record(r, epoch)
	d.Context = &store.ContextEntry{ID: "default", Handle: "ctx_another", Memory: "m1"}
	want(t, w.Dispatch(ctx(t), d), workbench.CodeConflict)
	w.mustEnter(r, epoch, "m1")
	c := w.wantContext(s, "default", workbench.ContextBusy, 1, "m1")
	equal(t, "run", c.RunID, r.ID)
	equal(t, "generation", c.Generation, 1)
	done := w.settlement(r, epoch, workbench.StatusSucceeded)
	done.Run.Cell = 1
	want(t, w.Settle(ctx(t), done), "")
	equal(t, "cell", w.mustRun(r.ID).Cell, 1)
	w.wantContext(s, "default", workbench.ContextIdle, 1, "m1")
	last := w.mustCell(s, "default")
	w.mustEnter(last, epoch, "m1")
	ended := w.settlement(last, epoch, workbench.StatusFailed)
	ended.Context = &store.ContextEnd{ID: "default", Handle: "ctx_default"}
	want(t, w.Settle(ctx(t), ended), "")
	w.wantContext(s, "default", workbench.ContextEnded, 2, "")
	w.mustEnter(w.mustCell(s, "default"), epoch, "m1") // told: the next cell is taken as it is
	w.wantContext(s, "default", workbench.ContextBusy, 3, "m1")
}

func testCellLoss(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	epoch := w.mustLease(s.ID)
	r := w.mustCell(s, "default")
	w.mustEnter(r, epoch, "m1")
	failed := w.settlement(r, epoch, workbench.StatusFailed)
	failed.Context = &store.ContextEnd{ID: "default", Handle: "ctx_default", Lost: workbench.LossProcess}
	want(t, w.Settle(ctx(t), failed), "")
	c := w.wantContext(s, "default", workbench.ContextLost, 1, "")
	equal(t, "reason", c.Lost.Reason, workbench.LossProcess)
}

func testContextLoss(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	epoch := w.mustLease(s.ID)
	w.mustContext(s, "unused", workbench.Python)
	for _, id := range []string{"default", "kept"} {
		if id == "kept" {
			w.mustContext(s, id, workbench.Python)
		}
		r := w.mustCell(s, id)
		w.mustEnter(r, epoch, "memory of "+id)
		w.mustSettle(r, epoch)
	}
	at := w.now.Add(time.Minute)
	want(t, w.LoseContexts(ctx(t), s.ID, "memory of default", workbench.LossRoom, at), "")
	c := w.wantContext(s, "default", workbench.ContextLost, 1, "")
	if c.Lost == nil || c.Lost.Reason != workbench.LossRoom || !c.Lost.At.Equal(at) {
		t.Fatalf("lost: %+v", c.Lost)
	}
	w.wantContext(s, "kept", workbench.ContextIdle, 1, "memory of kept")
	w.wantContext(s, "unused", workbench.ContextIdle, 0, "")
	_, _, err := w.Admit(ctx(t), w.ann, w.cell(s, "default", workbench.Python, ""))
	want(t, err, workbench.CodeContextLost)
	again, _, err := w.Admit(ctx(t), w.ann, w.cell(s, "default", workbench.Python, workbench.LostContextRestart))
	want(t, err, "")
	w.wantContext(s, "default", workbench.ContextLost, 1, "") // until the cell is dispatched
	w.mustEnter(again, epoch, "m2")
	w.wantContext(s, "default", workbench.ContextBusy, 2, "m2")
	w.mustSettle(again, epoch)
	want(t, w.LoseContexts(ctx(t), s.ID, "", workbench.LossServer, at), "")
	w.wantContext(s, "default", workbench.ContextLost, 2, "")
	w.wantContext(s, "kept", workbench.ContextLost, 1, "")
	w.wantContext(s, "unused", workbench.ContextIdle, 0, "") // it had nothing to lose
	_, err = w.RestartContext(ctx(t), w.ann, s.ID, "kept", "ctx_anew", at)
	want(t, err, "")
	w.wantContext(s, "kept", workbench.ContextIdle, 1, "")
}

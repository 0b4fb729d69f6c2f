package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/store"
)

// endInterpreterWithin bounds the end of a context's interpreter, and how long
// whoever asked for it waits for that.
const endInterpreterWithin = 5 * time.Second

// sealedEnv is the kind of a context's sealed environment.
const sealedEnv = "context-env"

// CreateContext makes a context, or returns the session's own if it has one
// that is the same; made says which. Its interpreter starts with the first
// cell. Codes: invalid_request, limit_out_of_range, language_not_available,
// path_invalid, context_exists, quota_exceeded, not_found, session_closed,
// session_expired, forbidden.
func (e *Engine) CreateContext(ctx context.Context, p workbench.Principal, sessionID string, req workbench.CreateContext) (c workbench.Context, made bool, err error) {
	s, err := e.ownSession(ctx, p, sessionID)
	if err != nil {
		return c, false, err
	}
	if c, err = e.newContext(ctx, s, req); err != nil {
		return c, false, err
	}
	if err := e.hasDir(ctx, s, c.Dir); err != nil {
		if _, none := e.o.Store.Context(ctx, p, sessionID, c.ID); none != nil {
			return c, false, err
		}
	}
	kept, made, err := e.o.Store.CreateContext(ctx, p, c)
	if err != nil || made {
		return kept, made, err
	}
	env, err := e.contextEnv(ctx, s, kept)
	if err != nil {
		return kept, false, err
	}
	if kept.Language != c.Language || kept.Dir != c.Dir || !sameEnv(env, req.Env) {
		return kept, false, workbench.ErrContextExists()
	}
	return kept, false, nil
}

// ownSession is the session, for who acts as its owner.
func (e *Engine) ownSession(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error) {
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return workbench.Session{}, err
	}
	s, err := e.session(ctx, p, id)
	if err != nil {
		return s, err
	}
	return s, actsAsOwner(p, s)
}

// newContext is a context as asked for, before it is kept.
func (e *Engine) newContext(ctx context.Context, s workbench.Session, req workbench.CreateContext) (workbench.Context, error) {
	c := workbench.Context{ID: req.ID, SessionID: s.ID, Language: req.Language, Handle: workbench.NewID(workbench.KindContext), CreatedAt: e.now()}
	if c.ID == "" {
		c.ID = c.Handle
	}
	if err := workbench.CheckContextID("id", c.ID); err != nil {
		return c, err
	}
	if !slices.Contains(workbench.Languages(), req.Language) {
		return c, workbench.E(workbench.CodeInvalidRequest, "language must be python, javascript, typescript or bash").WithField("language")
	}
	if err := validateArgs(nil, req.Env); err != nil {
		return c, err
	}
	var err error
	if c.Dir, err = contextDir(req.Dir); err != nil {
		return c, err
	}
	if err := e.speaks(ctx, s.Image, req.Language); err != nil {
		return c, err
	}
	if len(req.Env) > 0 {
		plain, err := json.Marshal(req.Env)
		if err != nil {
			return c, err
		}
		c.SealedEnv, err = e.o.Seal.SealBytes(ctx, s.TenantID, sealedEnv, s.ID+"/"+c.ID, plain)
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// contextEnv unseals a context's environment.
func (e *Engine) contextEnv(ctx context.Context, s workbench.Session, c workbench.Context) (map[string]string, error) {
	if len(c.SealedEnv) == 0 {
		return nil, nil
	}
	plain, err := e.o.Seal.OpenBytes(ctx, s.TenantID, sealedEnv, s.ID+"/"+c.ID, c.SealedEnv)
	if err != nil {
		return nil, err
	}
	var env map[string]string
	if err := json.Unmarshal(plain, &env); err != nil {
		return nil, workbench.E(workbench.CodeCorrupt, "a stored environment cannot be read").Caused(err)
	}
	return env, nil
}

func sameEnv(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return len(a) == 0 || errX == nil && errY == nil && bytes.Equal(x, y) // keys are sorted
}

// validateCell refuses what only a program of its own can have.
func validateCell(spec workbench.RunSpec) error {
	cannot := func(field, why string) error {
		return workbench.E(workbench.CodeInvalidRequest, "a cell %s", why).WithField(field).WithHint("leave %s out, or contextId", field)
	}
	switch {
	case spec.ContextID == "" && spec.OnLost != "":
		return workbench.E(workbench.CodeInvalidRequest, "onLostContext is for cells").WithField("onLostContext").WithHint("send contextId with it")
	case spec.ContextID == "":
		return nil
	case len(spec.Args) > 0:
		return cannot("args", "takes no arguments: its context's interpreter was started without")
	case len(spec.Env) > 0:
		return cannot("env", "has the environment of its context: send env when the context is created")
	case spec.Stdin != "":
		return cannot("stdin", "takes no input")
	case spec.Background:
		return cannot("background", "runs in the foreground, in the order of admission")
	case spec.OnLost != "" && spec.OnLost != workbench.LostContextFail && spec.OnLost != workbench.LostContextRestart:
		return workbench.E(workbench.CodeInvalidRequest, "onLostContext must be fail or restart").WithField("onLostContext")
	}
	return workbench.CheckContextID("contextId", spec.ContextID)
}

// contextUse is what admission looks at for a cell; nil for what is none.
func (e *Engine) contextUse(s workbench.Session, spec workbench.RunSpec) *store.ContextUse {
	if spec.ContextID == "" {
		return nil
	}
	return &store.ContextUse{OnLost: spec.OnLost, Default: workbench.Context{ID: spec.ContextID, SessionID: s.ID, Language: spec.Language,
		Dir: workbench.WorkspaceDir, Handle: workbench.NewID(workbench.KindContext), CreatedAt: e.now()}}
}

// Contexts lists a session's contexts, the first one made first.
func (e *Engine) Contexts(ctx context.Context, p workbench.Principal, sessionID string) ([]workbench.Context, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return nil, err
	}
	s, err := e.session(ctx, p, sessionID)
	if err != nil {
		return nil, err
	}
	all, err := e.o.Store.Contexts(ctx, p, sessionID)
	for i := range all {
		all[i] = contextOf(s, all[i])
	}
	return all, err
}

// Context reads a context. Codes: not_found, context_not_found.
func (e *Engine) Context(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Context, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.Context{}, err
	}
	return e.context(ctx, p, sessionID, id)
}

func (e *Engine) context(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Context, error) {
	s, err := e.session(ctx, p, sessionID)
	if err != nil {
		return workbench.Context{}, err
	}
	c, err := e.o.Store.Context(ctx, p, sessionID, id)
	return contextOf(s, c), err
}

// contextOf is a context as its session lets it be: in one that has ended no
// interpreter lives.
func contextOf(s workbench.Session, c workbench.Context) workbench.Context {
	if s.State != workbench.SessionActive {
		c.State, c.Lost = workbench.ContextEnded, nil
	}
	return c
}

// DeleteContext ends a context's interpreter and forgets it. Codes: not_found,
// context_not_found, runs_active while a cell of it has not ended,
// session_closed, session_expired, forbidden.
func (e *Engine) DeleteContext(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Context, error) {
	if _, err := e.ownSession(ctx, p, sessionID); err != nil {
		return workbench.Context{}, err
	}
	c, err := e.o.Store.DeleteContext(ctx, p, sessionID, id, e.now())
	if err != nil {
		return c, err
	}
	e.endInterpreter(ctx, sessionID, c.Handle)
	c.State, c.Lost = workbench.ContextEnded, nil
	return c, nil
}

// RestartContext ends a context's interpreter; its next cell starts a fresh
// one. Codes: those of DeleteContext; with cancelActive its cells are cancelled
// first.
func (e *Engine) RestartContext(ctx context.Context, p workbench.Principal, sessionID, id string, cancelActive bool) (workbench.Context, error) {
	if _, err := e.ownSession(ctx, p, sessionID); err != nil {
		return workbench.Context{}, err
	}
	was, err := e.o.Store.Context(ctx, p, sessionID, id)
	if err != nil {
		return was, err
	}
	handle := workbench.NewID(workbench.KindContext)
	c, err := e.o.Store.RestartContext(ctx, p, sessionID, id, handle, e.now())
	for again := 0; cancelActive && again < 20 && workbench.HasCode(err, workbench.CodeRunsActive); again++ {
		if err = e.cancelCells(ctx, p, sessionID, id); err == nil {
			c, err = e.o.Store.RestartContext(ctx, p, sessionID, id, handle, e.now())
		}
	}
	if workbench.HasCode(err, workbench.CodeRunsActive) && !cancelActive {
		err = workbench.AsError(err).WithHint("wait for them, or restart the context with cancelActive: true")
	}
	if err != nil {
		return c, err
	}
	e.endInterpreter(ctx, sessionID, was.Handle)
	return c, nil
}

// cancelCells cancels the cells of a context that have not ended, and waits for
// their end.
func (e *Engine) cancelCells(ctx context.Context, p workbench.Principal, sessionID, id string) error {
	active, err := e.o.Store.ActiveRuns(ctx, sessionID)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(settleWait)
	for _, run := range slices.Backward(active) { // those that wait first: none of them begins
		if run.ContextID != id {
			continue
		}
		if _, err := e.cancelRun(ctx, p, run.ID, workbench.ReasonCancelled); err != nil {
			return err
		}
	}
	for _, run := range active {
		if run.ContextID != id {
			continue
		}
		if _, err := e.await(ctx, workbench.SystemPrincipal(), run.ID, time.Until(deadline)); err != nil {
			return err
		}
	}
	return nil
}

// InterruptContext cancels the cell that runs in a context, if one does; the
// interpreter lives on if it answers. Codes: not_found, context_not_found,
// forbidden.
func (e *Engine) InterruptContext(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Interrupted, error) {
	if !p.Has(workbench.ScopeManage) || !p.Admin() {
		if err := p.Require(workbench.ScopeExecute); err != nil {
			return workbench.Interrupted{}, err
		}
	}
	c, err := e.context(ctx, p, sessionID, id)
	if err != nil || c.RunID == "" {
		return workbench.Interrupted{Context: c}, err
	}
	run, err := e.cancelRun(ctx, p, c.RunID, workbench.ReasonCancelled)
	if err != nil {
		return workbench.Interrupted{Context: c}, err
	}
	if run.Status.Terminal() && run.Status != workbench.StatusCancelled { // it had just ended
		c, err = e.context(ctx, p, sessionID, id)
		return workbench.Interrupted{Context: c}, err
	}
	return workbench.Interrupted{Context: c, Interrupted: true, RunID: run.ID}, nil
}

// endInterpreter ends what runs under a handle in the session's sandbox on this
// engine. A sandbox that is busy with something else, or on another engine,
// ends it with the next cell of the session: see enter.
func (e *Engine) endInterpreter(ctx context.Context, sessionID, handle string) {
	e.mu.Lock()
	c := e.sessions[sessionID]
	e.mu.Unlock()
	if c == nil {
		return
	}
	done := make(chan struct{})
	e.loops.Go(func() {
		defer close(done)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.endInterpreter(e.ctx, handle)
	})
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(endInterpreterWithin):
	}
}

// endInterpreter ends one interpreter. The caller holds c.mu.
func (c *compute) endInterpreter(ctx context.Context, handle string) {
	if !c.interpreters[handle] || !c.live() {
		return
	}
	delete(c.interpreters, handle)
	ctx, cancel := context.WithTimeout(ctx, endInterpreterWithin)
	defer cancel()
	if err := c.wire.EndGroup(ctx, handle); err != nil && !workbench.HasCode(err, workbench.CodeNotFound) {
		c.e.log.Warn("an interpreter was not ended", "session", c.id, "context", handle, "err", err)
	}
}

// dropFor is drop, and says what for to those who ask for their variables.
func (c *compute) dropFor(ctx context.Context, why workbench.LossReason) {
	c.losing = why
	c.drop(ctx)
	c.losing = "" // where there was no sandbox
}

// loseMemory marks the contexts whose interpreters went with the sandbox as
// lost. Where the memory of a sandbox outlives it, as a checkpoint, this must
// not be called, and c.memory and c.interpreters stay as they are: an
// interpreter is found again by the memory that it lives in. The caller holds
// c.mu.
func (c *compute) loseMemory(ctx context.Context) {
	memory, why := c.memory, c.losing
	some := len(c.interpreters) > 0
	c.memory, c.interpreters, c.losing = "", nil, ""
	if !some {
		return
	}
	if why == "" {
		why = workbench.LossSandbox
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endInterpreterWithin)
	defer cancel()
	if err := c.e.o.Store.LoseContexts(ctx, c.id, memory, why, c.e.now()); err != nil {
		// Their next cell finds that they live in another memory.
		c.e.log.Warn("contexts not marked as lost", "session", c.id, "err", err)
	}
}

// cell is what an execution knows of the context it runs in.
type cell struct {
	entry  store.ContextEntry
	env    map[string]string
	dir    string
	onLost workbench.LostContextPolicy
	living bool // its interpreter is there
	begun  bool // the guest began the cell
	gone   bool // the guest says that the interpreter is not there after all
}

// enter looks at the context of a cell, once the sandbox is there. It reports
// false when the run is settled: the variables it counts on are gone. For what
// is no cell it does nothing.
func (x *execution) enter(ctx context.Context) (bool, error) {
	if x.spec.ContextID == "" {
		return true, nil
	}
	all, err := x.e.o.Store.Contexts(ctx, workbench.SystemPrincipal(), x.s.ID)
	if err != nil {
		return false, err // the run stays queued
	}
	x.c.endOrphans(ctx, all)
	i := slices.IndexFunc(all, func(c workbench.Context) bool { return c.ID == x.spec.ContextID })
	if i < 0 {
		return false, x.refuse(ctx, workbench.ReasonContextLost, workbench.E(workbench.CodeContextNotFound, "the context is not there any more; nothing ran"))
	}
	known := all[i]
	lives := known.Memory != "" && known.Memory == x.c.memory
	if known.Memory != "" && !lives {
		if err := x.e.o.Store.LoseContexts(ctx, x.s.ID, known.Memory, workbench.LossSandbox, x.e.now()); err != nil {
			return false, err
		}
		known.State, known.Lost = workbench.ContextLost, &workbench.ContextLoss{Reason: workbench.LossSandbox, At: x.e.now()}
	}
	if err := known.Usable(x.spec.Language, x.spec.OnLost); err != nil {
		e := workbench.AsError(err)
		return false, x.refuse(ctx, workbench.ReasonContextLost, workbench.E(e.Code, "%s; nothing ran", e.Detail))
	}
	x.cell = &cell{entry: store.ContextEntry{ID: known.ID, Handle: known.Handle, Memory: x.c.memory}, dir: known.Dir, onLost: x.spec.OnLost, living: lives}
	if x.cell.env, err = x.e.contextEnv(ctx, x.s, known); err != nil {
		return false, x.refuse(ctx, workbench.ReasonInfrastructure, err)
	}
	switch known.State {
	case workbench.ContextLost:
		x.notice(workbench.NoticeContextRestart, "the cell ran in a fresh interpreter, as it asked: "+known.Lost.Detail()+", and with it the variables of earlier cells")
	case workbench.ContextEnded:
		x.notice(workbench.NoticeContextRestart, "the cell ran in a fresh interpreter: the earlier one ended with its last cell, and its variables are gone")
	case workbench.ContextIdle, workbench.ContextBusy:
	}
	return true, nil
}

// endOrphans ends interpreters that no context names any more. The caller holds
// c.mu.
func (c *compute) endOrphans(ctx context.Context, all []workbench.Context) {
	for handle := range c.interpreters {
		if !slices.ContainsFunc(all, func(k workbench.Context) bool { return k.Handle == handle }) {
			c.endInterpreter(ctx, handle)
		}
	}
}

// contextEntry is what the dispatch record says of the cell's context; nil for what is
// no cell.
func (x *execution) contextEntry() *store.ContextEntry {
	if x.cell == nil {
		return nil
	}
	return &x.cell.entry
}

// entered notes that a cell was dispatched: from now on an interpreter may live
// in the sandbox. The caller holds c.mu.
func (x *execution) entered() {
	if x.cell == nil {
		return
	}
	if x.c.interpreters == nil {
		x.c.interpreters = map[string]bool{}
	}
	x.c.interpreters[x.cell.entry.Handle] = true
}

// leave says what became of the cell's context, once the cell has ended in
// whatever way: nil if its interpreter lives on. The caller holds c.mu.
func (x *execution) leave() *store.ContextEnd {
	k := x.cell
	if k == nil {
		return nil
	}
	end := store.ContextEnd{ID: k.entry.ID, Handle: k.entry.Handle}
	state := x.result.Context
	if state != nil {
		x.run.Cell = state.Cell
	}
	switch {
	case k.gone:
		end.Lost = workbench.LossProcess
	case x.c.box != x.box: // it went with the sandbox
		end.Unbegun = !k.begun && !k.living
		if !end.Unbegun {
			x.notice(workbench.NoticeContextLost, "the interpreter of this context went with the sandbox: its variables are gone")
		}
	case !k.begun && k.living, k.begun && state != nil && state.Alive:
		return nil
	case !k.begun: // none was started: there are no variables to miss
		end.Unbegun = true
	case k.begun:
		x.notice(workbench.NoticeContextLost, "the interpreter of this context ended with this cell: its variables are gone, and the next cell starts a fresh one")
	}
	delete(x.c.interpreters, end.Handle)
	return &end
}

// start has the guest begin the run. A cell that counts on what earlier ones
// left is begun only where their interpreter lives. Called without c.mu.
func (x *execution) start(ctx context.Context) (*guestwire.Exec, error) {
	r, k := x.request(), x.cell
	if k == nil {
		return x.wire.Exec(ctx, r, x)
	}
	r.Group, r.Context, r.Living, r.Env, r.Dir = k.entry.Handle, k.entry.Handle, k.living, k.env, k.dir
	exec, err := x.wire.Exec(ctx, r, x)
	if k.living && workbench.HasCode(err, workbench.CodeContextLost) {
		if k.onLost != workbench.LostContextRestart {
			k.gone = true
			return nil, err
		}
		x.notice(workbench.NoticeContextRestart, "the cell ran in a fresh interpreter, as it asked: the earlier one had ended between two cells, and with it the variables of earlier cells")
		k.living, r.Living = false, false
		exec, err = x.wire.Exec(ctx, r, x)
	}
	k.begun = err == nil || !refused(err)
	return exec, err
}

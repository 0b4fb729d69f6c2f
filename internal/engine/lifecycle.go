package engine

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// settleWait is how long closing and restarting wait for cancelled runs to
// settle: the guest's grace, then the kill of its sandbox.
const settleWait = 10 * time.Second

// CancelRun asks for a run's end: a queued run is cancelled at once, one in
// flight is interrupted, a terminal one is returned unchanged.
func (e *Engine) CancelRun(ctx context.Context, p workbench.Principal, runID string) (workbench.Run, error) {
	if !p.Has(workbench.ScopeManage) || !p.Admin() {
		if err := p.Require(workbench.ScopeExecute); err != nil {
			return workbench.Run{}, err
		}
	}
	return e.cancelRun(ctx, p, runID, workbench.ReasonCancelled)
}

func (e *Engine) cancelRun(ctx context.Context, p workbench.Principal, runID string, why workbench.Reason) (workbench.Run, error) {
	run, err := e.o.Store.RequestCancel(ctx, p, runID, why, e.now())
	if err != nil {
		return workbench.Run{}, err
	}
	// A run that was queued is over now, but may have a sandbox started for it.
	e.interrupt(run.SessionID, run.ID, why)
	return run, nil
}

// interrupt tells the run in flight, if this engine has it.
func (e *Engine) interrupt(sessionID, runID string, why workbench.Reason) {
	e.mu.Lock()
	c := e.sessions[sessionID]
	e.mu.Unlock()
	if c != nil {
		c.interrupt(runID, why)
	}
}

// Close ends a session: its runs are cancelled, its compute goes, its retained
// files and receipts stay. Closing twice is no error.
func (e *Engine) Close(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error) {
	if !p.Has(workbench.ScopeManage) || !p.Admin() {
		if err := p.Require(workbench.ScopeExecute); err != nil {
			return workbench.Session{}, err
		}
	}
	s, err := e.session(ctx, p, id)
	if err != nil {
		return workbench.Session{}, err
	}
	if s.State != workbench.SessionActive {
		e.forget(ctx, id) // in case an earlier close was cut short
		return s, nil
	}
	return e.end(ctx, p, id, workbench.SessionClosed, workbench.ReasonSessionClosed)
}

// end is the one way a session ends. From EndSession on nothing is admitted.
func (e *Engine) end(ctx context.Context, p workbench.Principal, id string, to workbench.SessionState, why workbench.Reason) (workbench.Session, error) {
	s, err := e.o.Store.EndSession(ctx, p, id, to, e.now())
	if err != nil {
		return workbench.Session{}, err
	}
	// What follows must happen also when the caller has left meanwhile.
	ending, done := context.WithTimeout(context.WithoutCancel(ctx), settleWait+killWithin)
	defer done()
	err = e.cancelAll(ending, id, why)
	e.forget(ending, id)
	if err == nil && (to != workbench.SessionExpired || len(s.KeepAtExpiry) == 0) { // keeping may take long: the sweep does it
		e.conclude(ctx, id)
	}
	return s, err
}

// cancelAll cancels every run of a session that is not terminal and waits until
// they have settled.
func (e *Engine) cancelAll(ctx context.Context, id string, why workbench.Reason) error {
	system := workbench.SystemPrincipal()
	active, err := e.o.Store.CancelSession(ctx, system, id, why, e.now())
	if err != nil {
		return err
	}
	e.interrupt(id, "", why) // the one in flight, also if it was still queued
	deadline := time.Now().Add(settleWait)
	for _, run := range active {
		if run.Status.Terminal() { // it had not begun
			continue
		}
		if _, err := e.await(ctx, system, run.ID, time.Until(deadline)); err != nil {
			return err
		}
	}
	return nil
}

// forget gives up a session's compute and lease on this engine. Where that
// cannot be done in time, for a run that is being started or settled, the sweep
// comes back.
func (e *Engine) forget(ctx context.Context, id string) {
	e.mu.Lock()
	c := e.sessions[id]
	if c != nil {
		c.over = true
	}
	e.mu.Unlock()
	if c == nil || c.lockWithin(ctx, settleWait) != nil {
		return
	}
	c.drop(ctx)
	c.mu.Unlock() // those that are out settle, now that they have no sandbox
	if lockBy(ctx, c.lockAlone, settleWait) != nil {
		return
	}
	defer c.mu.Unlock()
	c.drop(ctx)
	c.accept()
	e.release(ctx, id, c.epoch)
	c.epoch = 0
	e.mu.Lock()
	defer e.mu.Unlock()
	c.forgotten = true // its last worker, if there is one, removes it when it leaves
	if c.idle() && e.sessions[id] == c {
		delete(e.sessions, id)
	}
}

// forgot reports whether a session's compute has been given up for good. With
// c.mu held that does not change.
func (e *Engine) forgot(c *compute) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return c.forgotten
}

// ended has the sweep forget a session of which this engine learns that it is
// over.
func (e *Engine) ended(c *compute) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.over = true
}

// forgetEnded forgets what an earlier attempt could not.
func (e *Engine) forgetEnded(ctx context.Context) {
	e.mu.Lock()
	var left []string
	for id, c := range e.sessions {
		if c.over && !c.forgotten {
			left = append(left, id)
		}
	}
	e.mu.Unlock()
	for _, id := range left {
		e.begin(ctx, e.forgetting, id, func() { e.forget(ctx, id) })
	}
}

// Restart replaces the compute generation: memory and /tmp go, and the
// workspace holds the named retained files and nothing else. Codes:
// runs_active unless cancelActive, session_closed, session_expired, not_found,
// path_conflict, artifact_deleted, artifact_expired.
func (e *Engine) Restart(ctx context.Context, p workbench.Principal, id string, req workbench.RestartSession) (workbench.Session, error) {
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return workbench.Session{}, err
	}
	s, err := e.session(ctx, p, id)
	if err != nil {
		return workbench.Session{}, err
	}
	if err := s.Open(e.now()); err != nil {
		return workbench.Session{}, err
	}
	if len(req.Artifacts) > 0 {
		if err := actsAsOwner(p, s); err != nil {
			return workbench.Session{}, err
		}
	}
	spec, selected, err := e.selection(ctx, p, workbench.RunSpec{Artifacts: req.Artifacts})
	if err != nil {
		return workbench.Session{}, err
	}
	for i, a := range selected {
		if err := a.Readable(e.now()); err != nil {
			return workbench.Session{}, workbench.AsError(err).WithField(spec.Artifacts[i].ID)
		}
	}
	if err := e.o.Store.Depend(ctx, id, dependencies(selected), e.now()); err != nil {
		return workbench.Session{}, err
	}
	c := e.compute(id)
	lock := e.lockIdle
	if req.CancelActive {
		c.held.Add(1) // what others submit meanwhile does not begin
		defer c.held.Add(-1)
		if err := e.cancelAll(ctx, id, workbench.ReasonRestart); err != nil {
			return workbench.Session{}, err
		}
		lock = e.lockCancelling
	}
	if err := lock(ctx, c); err != nil {
		return workbench.Session{}, err
	}
	defer c.mu.Unlock()
	if e.draining() { // it gives c up, or has done so
		return workbench.Session{}, errDraining()
	}
	if err := c.lease(ctx); err != nil {
		return workbench.Session{}, err
	}
	made, err := c.build(ctx, p, s, spec.Artifacts, selected) // before anything is given up
	if err != nil {
		return workbench.Session{}, err
	}
	// What follows happens whole, also when the caller has left meanwhile.
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), 2*killWithin)
	defer done()
	waiting := workbench.ReasonNone
	if req.CancelActive { // submitted since the last cancel; none of it can have begun
		waiting = workbench.ReasonRestart
	}
	err = c.startOver(ctx, p, s, made, waiting)
	if err != nil {
		c.gaveUp(ctx, err)
		return workbench.Session{}, err
	}
	return e.session(ctx, p, id)
}

// lockCancelling takes c.mu, and cancels what is submitted until it has it.
// Code: runs_active if a run does not end in time.
func (e *Engine) lockCancelling(ctx context.Context, c *compute) error {
	for deadline := time.Now().Add(settleWait); !c.lockAlone(); {
		if time.Now().After(deadline) {
			return workbench.E(workbench.CodeRunsActive, "a run of this session has not ended yet").WithHint("try again")
		}
		if _, err := e.o.Store.CancelSession(ctx, workbench.SystemPrincipal(), c.id, workbench.ReasonRestart, e.now()); err != nil {
			return err
		}
		e.interrupt(c.id, "", workbench.ReasonRestart)
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return workbench.E(workbench.CodeCancelled, "the request was given up").Caused(ctx.Err())
		}
	}
	return nil
}

// lockAlone takes c.mu if it is free and no code of a run is in the sandbox.
func (c *compute) lockAlone() bool {
	if !c.mu.TryLock() {
		return false
	}
	if len(c.out) == 0 {
		return true
	}
	c.mu.Unlock()
	return false
}

// lockIdle takes c.mu unless a run of the session is not terminal: whoever
// executes one holds the lock when it settles it.
func (e *Engine) lockIdle(ctx context.Context, c *compute) error {
	for {
		active, err := e.o.Store.ActiveRuns(ctx, c.id)
		if err != nil {
			return err
		}
		if len(active) > 0 {
			return workbench.E(workbench.CodeRunsActive, "%s not terminal", counted(len(active), "run of this session is", "runs of this session are")).
				WithHint("wait for them, cancel them, or restart with cancelActive: true")
		}
		if c.lockAlone() {
			return nil
		}
		select { // the last run has settled; its goroutine is about to let go
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return workbench.E(workbench.CodeCancelled, "the request was given up").Caused(ctx.Err())
		}
	}
}

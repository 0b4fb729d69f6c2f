package engine

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

const (
	// sweepBatch bounds what one turn of a sweep does.
	sweepBatch = 100
	// endAtOnce bounds the sessions for which the same is done at the same time,
	// once they are over.
	endAtOnce = 8
)

// recover takes over what an earlier process of this instance left. The data
// directory's lock says that no such process lives, so its leases need not run
// out first. Its steps in flight become unknown: whether they happened cannot
// be known, and they are never started again. Its sandboxes are ended.
func (e *Engine) recover(ctx context.Context) error {
	if err := e.o.Store.RegisterEngine(ctx, e.id, e.o.Instance, e.now()); err != nil {
		return err
	}
	sessions, unknown, err := e.adoptDead(ctx)
	if err != nil {
		return err
	}
	reaped, err := e.o.Driver.Reap(ctx)
	if err != nil {
		return err
	}
	if sessions+unknown+len(reaped.Killed)+len(reaped.Left) > 0 {
		e.log.Warn("recovered from an earlier process that did not stop in order", "sessionsTakenOver", sessions,
			"runsSettledAsUnknown", unknown, "sandboxesEnded", len(reaped.Killed), "sandboxesLeft", len(reaped.Left))
	}
	return nil
}

// adoptDead takes over the sessions of every dead engine: earlier processes of
// this instance, and others that fell silent. It reports how many sessions they
// had, and how many runs were settled as unknown.
func (e *Engine) adoptDead(ctx context.Context) (taken, unknown int, err error) {
	dead, err := e.o.Store.DeadEngines(ctx, e.id, e.o.Instance, 2*e.o.LeaseTTL)
	if err != nil {
		return 0, 0, err
	}
	for _, old := range dead {
		sessions, err := e.o.Store.TakeOver(ctx, e.id, old.ID, e.o.LeaseTTL)
		if err != nil {
			return taken, unknown, err
		}
		for _, id := range sessions {
			n, err := e.adopt(ctx, id)
			taken, unknown = taken+1, unknown+n
			if err != nil {
				return taken, unknown, err
			}
		}
		if err := e.o.Store.ForgetEngine(ctx, old.ID); err != nil {
			return taken, unknown, err
		}
	}
	return taken, unknown, nil
}

// adopt continues a session whose engine died: its steps in flight end as
// unknown, a sandbox it may have had is a lost one, and its queue goes on. What
// could not be settled now is settled by the lane, before it does anything else. It reports
// how many runs it settled as unknown.
func (e *Engine) adopt(ctx context.Context, sessionID string) (unknown int, err error) {
	epoch, err := e.o.Store.AcquireLease(ctx, sessionID, e.id, e.o.LeaseTTL)
	if err != nil {
		return 0, err
	}
	c := e.compute(sessionID)
	c.mu.Lock()
	c.epoch, c.dirty = epoch, true
	active, unknown, err := c.clear(ctx)
	if err == nil && c.box == nil {
		// The memory of every sandbox it had is gone.
		err = e.o.Store.LoseContexts(ctx, sessionID, "", workbench.LossServer, e.now())
	}
	c.mu.Unlock()
	if active > 0 || err != nil {
		e.wakeAll(sessionID)
	}
	return unknown, err
}

// renewLeases keeps this engine's sessions its own. A session whose lease went
// elsewhere is given up at once: everything it still writes is fenced off.
func (e *Engine) renewLeases(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, e.o.LeaseTTL/2)
	defer cancel()
	lost, err := e.o.Store.RenewLeases(call, e.id, e.o.LeaseTTL)
	for _, id := range lost {
		e.mu.Lock()
		c := e.sessions[id]
		e.mu.Unlock()
		if c != nil {
			c.fenced()
		}
	}
	if err == nil {
		err = e.heartbeat(call)
	}
	e.heard.Store(&err)
	if err != nil && ctx.Err() == nil {
		e.log.Warn("leases not renewed", "err", err)
	}
}

// heartbeat says that the engine lives. One that was silent for so long that
// another server forgot it says so anew.
func (e *Engine) heartbeat(ctx context.Context) error {
	err := e.o.Store.HeartbeatEngine(ctx, e.id)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return e.o.Store.RegisterEngine(ctx, e.id, e.o.Instance, e.now())
	}
	return err
}

// lookLate is how long after news of the queue it is looked at: once for
// whatever happens meanwhile, and out of the way of the run that made them.
const lookLate = 10 * time.Millisecond

// followQueue starts work that other servers admitted, and what a start finds.
func (e *Engine) followQueue() {
	defer e.loops.Done()
	sub := e.o.Store.Subscribe(store.QueueTopic)
	defer sub.Close()
	for {
		e.pickUp(e.ctx)
		select {
		case <-e.ctx.Done():
			return
		case <-sub.C:
			e.pause(lookLate) // what this server admitted has begun by itself
		case <-time.After(2 * time.Second):
		}
	}
}

// pickUp wakes every session with queued runs.
func (e *Engine) pickUp(ctx context.Context) {
	after := ""
	for {
		ids, err := e.o.Store.SessionsWithQueued(ctx, e.id, sweepBatch, after)
		if err != nil {
			if ctx.Err() == nil {
				e.log.Warn("the queue could not be read", "err", err)
			}
			return
		}
		for _, id := range ids {
			e.wakeAll(id)
		}
		if len(ids) < sweepBatch {
			return
		}
		after = ids[len(ids)-1]
	}
}

// sweep warns sessions of their deadline and ends what is over: files past
// theirs, blobs nothing names, receipts past their time, leases of dead engines.
func (e *Engine) sweep(ctx context.Context) {
	e.warnExpiring(ctx)
	e.adoptAbandoned(ctx)
	if time.Since(e.retained) >= e.o.RetainEvery {
		e.retained = time.Now()
		e.sweepRetained(ctx)
		e.stock(ctx)
	}
	e.o.Metrics.Live(e.capacity.count(), e.foreground.Taken()+e.background.Taken())
}

// sweepRetained removes what is past its time: files, blobs that nothing names,
// receipts.
func (e *Engine) sweepRetained(ctx context.Context) {
	if err := e.o.Artifacts.Sweep(ctx, e.now()); err != nil {
		e.sweepFailed(ctx, "files", err)
	}
	if _, err := e.o.Store.PurgeReceipts(ctx, e.now(), sweepBatch); err != nil {
		e.sweepFailed(ctx, "receipts", err)
	}
}

// expireCalls ends tool calls that nobody decided in time.
func (e *Engine) expireCalls(ctx context.Context) {
	if err := e.o.Tools.Expire(ctx); err != nil {
		e.sweepFailed(ctx, "approvals", err)
	}
}

// tellOfCalls tells who decides of tool calls that wait.
func (e *Engine) tellOfCalls(ctx context.Context) {
	if err := e.o.Tools.Tell(ctx); err != nil {
		e.sweepFailed(ctx, "approvals", err)
	}
}

// endExpired ends sessions past their deadline.
func (e *Engine) endExpired(ctx context.Context) {
	now := e.now()
	for after := ""; ; {
		expired, err := e.o.Store.ExpiredSessions(ctx, now, sweepBatch, after)
		if err != nil {
			e.sweepFailed(ctx, "sessions", err)
			return
		}
		for _, s := range expired {
			e.begin(ctx, e.expiring, s.ID, func() {
				if _, err := e.end(ctx, workbench.SystemPrincipal(), s.ID, workbench.SessionExpired, workbench.ReasonSessionExpired); err != nil {
					e.sweepFailed(ctx, "session "+s.ID, err)
				}
			})
			after = s.ID
		}
		if len(expired) < sweepBatch {
			return
		}
	}
}

func (e *Engine) sweepFailed(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		e.log.Warn("sweep", "what", what, "err", err)
	}
}

// adoptAbandoned takes over sessions whose engine stopped renewing its lease
// while a step was out, so that no run stays in flight for ever.
func (e *Engine) adoptAbandoned(ctx context.Context) {
	ids, err := e.o.Store.AbandonedSessions(ctx, e.id, sweepBatch, "")
	if err != nil {
		e.sweepFailed(ctx, "abandoned sessions", err)
		return
	}
	for _, id := range ids {
		_, err := e.adopt(ctx, id)
		if err != nil && !workbench.HasCode(err, workbench.CodeConflict) { // conflict: somebody else was first
			e.sweepFailed(ctx, "abandoned session "+id, err)
		}
	}
}

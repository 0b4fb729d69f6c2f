package engine

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox/pool"
	"github.com/workbenchdev/workbench/internal/workspace"
)

const (
	// suspendEvery is how often idle sessions are looked for.
	suspendEvery = 500 * time.Millisecond
	// suspendAtOnce bounds the sessions that are being suspended at the same time.
	suspendAtOnce = 2
	// recordWithin bounds the attempts to write what became of a session that has
	// given its sandbox up, while the database does not answer.
	recordWithin = 30 * time.Second
)

// uptime is monotonic and never 0.
func (e *Engine) uptime() int64 { return int64(time.Since(e.began)) + 1 }

// Active keeps a session's sandbox, if it has one, until the function it
// returns is called: a file of the session is on its way.
func (e *Engine) Active(sessionID string) (done func()) {
	e.mu.Lock()
	c := e.sessions[sessionID]
	e.mu.Unlock()
	if c == nil {
		return func() {}
	}
	c.transfers.Add(1)
	return func() {
		if c.idleSince.Load() != 0 {
			c.idleSince.Store(e.uptime())
		}
		c.transfers.Add(-1)
	}
}

// suspendIdle suspends the sessions that have had no work for long enough.
func (e *Engine) suspendIdle(ctx context.Context) {
	before := e.uptime() - int64(e.o.SuspendAfter)
	idle := func(c *compute) bool {
		since := c.idleSince.Load()
		return since != 0 && since <= before && c.transfers.Load() == 0
	}
	e.mu.Lock()
	var due []*compute
	for _, c := range e.sessions {
		if idle(c) {
			due = append(due, c)
		}
	}
	e.mu.Unlock()
	work := errgroup.Group{}
	work.SetLimit(suspendAtOnce)
	for _, c := range due {
		work.Go(func() error {
			if !c.mu.TryLock() {
				return nil // it works again
			}
			defer c.mu.Unlock()
			if idle(c) && len(c.out) == 0 {
				c.suspend(ctx)
			}
			return nil
		})
	}
	_ = work.Wait()
	if e.keepsMemory() {
		e.readyReturns()
	}
}

// suspend gives the session's idle sandbox up, with its memory sealed if the
// session asked for that. Its files are those of the last commit, which is what
// the next run finds. The session's place on this engine
// then holds next to nothing. What has begun is brought to its end, also when
// ctx ends: the memory exists nowhere else meanwhile. The caller holds c.mu, and
// nothing is out.
func (c *compute) suspend(ctx context.Context) {
	if err := c.certain(ctx); err != nil {
		c.e.log.Warn("the last commit is not known", "session", c.id, "err", err)
	}
	if c.box == nil {
		return
	}
	why := c.losing
	if why == "" {
		why = workbench.LossSuspended
	}
	kind := vesselOf(pool.Kind{Class: c.box.Class()})
	var kept *workbench.Checkpoint
	if c.keep && c.epoch > 0 && c.live() {
		kept = c.keepMemory(ctx)
	}
	c.dropFor(ctx, why)
	if c.epoch == 0 {
		return
	}
	known, err := c.recordSuspension(ctx, kept)
	if err != nil { // the next run finds out by itself that its sandbox is gone
		if !workbench.HasCode(err, workbench.CodeSessionClosed) && !workbench.HasCode(err, workbench.CodeSessionExpired) {
			c.e.log.Warn("suspended without a record of it", "session", c.id, "err", err)
		}
		c.gaveUp(ctx, err)
		if kept != nil && known {
			c.memory, c.interpreters, c.losing = kept.Memory, setOf(kept.Interpreters), why
			c.loseMemory(ctx)
		}
		if known {
			return
		}
	}
	if kept != nil && err == nil {
		c.returns.Store(&kind)
	}
	c.vacate()
}

// vacate makes the session's place here as good as new: who needs it next begins
// with a lease and with what the store says. The caller holds c.mu.
func (c *compute) vacate() {
	c.epoch, c.generation, c.known, c.lost = 0, 0, 0, false
	c.tree, c.head, c.since = workspace.Empty(), "", nil
}

// recordSuspension writes that the session has no sandbox any more, what it has
// kept, and that its lease is free. An error with known false leaves open whether
// that was written.
func (c *compute) recordSuspension(ctx context.Context, kept *workbench.Checkpoint) (known bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	known = true
	err = c.e.stubbornly(ctx, "suspend", func() error {
		err := c.e.o.Store.Suspend(ctx, c.id, c.epoch, c.generation, kept, c.e.now())
		known = known && !workbench.HasCode(err, workbench.CodeUnavailable) && !workbench.HasCode(err, workbench.CodeCancelled)
		return err
	}, func() bool {
		if kept == nil {
			return false // the lease is gone either way
		}
		now, err := c.e.o.Store.Checkpoint(ctx, c.id)
		return err == nil && now.Blob == kept.Blob
	})
	return known, err
}

package engine

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/pool"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// arrival is how a session came to the sandbox that it has.
type arrival int

const (
	stayed   arrival = iota // it had it, or has its first
	replaced                // the one before was lost, with memory and /tmp
	returned                // it was suspended, and lost memory and /tmp
	resumed                 // it was suspended, and has its memory back
)

// ensure returns once the session has a sandbox of its current configuration,
// with its workspace as last committed, and says how it came to it. Codes:
// workspace_full (the limits are below what the workspace holds), and what
// keeps a sandbox from being there.
func (c *compute) ensure(ctx context.Context, s workbench.Session) (arrival, error) {
	if c.live() && c.bound == sandboxLimits(s.Limits) {
		return stayed, nil
	}
	if c.live() {
		if err := fits(c.tree, s.Limits); err != nil {
			return stayed, err // the sandbox stays: other limits may come before a smaller workspace
		}
		c.dropFor(ctx, workbench.LossLimits)
	}
	c.drop(ctx)
	c.alone() // those that were in the sandbox end with it, in its generation
	if err := c.loadHead(ctx, s); err != nil {
		return stayed, err
	}
	if err := fits(c.tree, s.Limits); err != nil {
		return stayed, err
	}
	if s.Suspended != nil && s.Suspended.MemoryKept {
		if back, err := c.comeBack(ctx, s); back || err != nil {
			return resumed, err
		}
	}
	how, s, err := c.nextGeneration(ctx, s)
	if err != nil {
		return how, err
	}
	c.generation, c.keep, c.tenant = s.Generation, s.KeepMemory, s.TenantID
	kind, err := c.e.kind(ctx, s.Image, s.Size, s.Limits)
	if err != nil {
		return how, err
	}
	warm := c.e.pool.Claim(kind) // with its place
	if warm == nil {
		if err := c.awaitPlace(ctx); err != nil {
			return how, err
		}
	}
	for attempt := 1; ; attempt++ {
		err = c.start(ctx, s, kind, warm)
		warm = nil
		if err == nil {
			return how, nil
		}
		if attempt == 2 || ctx.Err() != nil || !workbench.ClassOf(workbench.CodeOf(err)).Retryable {
			c.e.capacity.give()
			return how, err
		}
		c.e.log.Warn("sandbox start failed, trying once more", "session", c.id, "err", err)
	}
}

// awaitPlace waits until there may be one more sandbox. A server that has been
// told to stop meanwhile begins nothing more: the place may be that of a run which
// ended with it. Code: unavailable.
func (c *compute) awaitPlace(ctx context.Context) error {
	if err := c.e.capacity.take(ctx); err != nil {
		return err
	}
	if c.e.draining() {
		c.e.capacity.give()
		return errDraining()
	}
	return nil
}

// nextGeneration begins a new incarnation of the session's compute if the
// present one had a sandbox, whose memory is gone.
func (c *compute) nextGeneration(ctx context.Context, s workbench.Session) (arrival, workbench.Session, error) {
	how := stayed
	switch {
	case s.Suspended != nil:
		how = returned
	case c.lost:
		how = replaced
	case c.generation == 0: // an earlier process of the server may have had it
		used, err := c.e.o.Store.GenerationUsed(ctx, s.ID, s.Generation)
		if err != nil {
			return how, s, err
		}
		if used {
			how = replaced
		}
	}
	if how == stayed {
		return how, s, nil
	}
	var err error
	if how == returned {
		s, err = c.e.o.Store.ReturnWithoutMemory(ctx, s.ID, c.epoch)
	} else {
		s, err = c.e.o.Store.BumpGeneration(ctx, workbench.SystemPrincipal(), s.ID, c.epoch, false)
	}
	if err == nil {
		c.lost = false
	}
	return how, s, err
}

// first reports whether no run was dispatched in the current generation yet,
// and there was an earlier one: who sees the next run's receipt did perhaps not
// see the restart.
func (c *compute) first(ctx context.Context) (bool, error) {
	if c.generation <= 1 || c.known == c.generation {
		return false, nil
	}
	used, err := c.e.o.Store.GenerationUsed(ctx, c.id, c.generation)
	return !used && err == nil, err
}

// start binds a warm sandbox, or one that it starts, and restores the workspace
// into it.
func (c *compute) start(ctx context.Context, s workbench.Session, kind pool.Kind, w *pool.Warm) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	began := time.Now()
	outcome, good := "failed", "started"
	defer func() { c.e.o.Metrics.SandboxStarted(outcome, time.Since(began)) }()
	if w != nil {
		good = "claimed"
	} else if w, err = pool.Start(ctx, c.e.o.Driver, kind); err != nil {
		return err
	}
	box, wire := w.Box, w.Wire
	defer func() {
		if err != nil {
			_ = wire.Close()
			c.e.kill(ctx, box)
		}
	}()
	seed := make([]byte, 32)
	if _, err := rand.Read(seed); err != nil {
		return err
	}
	c.binding = rand.Text()
	bound, err := wire.Bind(ctx, guestwire.BindRequest{SessionNonce: c.binding, Seed: seed, Limits: kind.Limits})
	if err != nil {
		return err
	}
	base := bound.Token
	if c.tree.Root() != workspace.Empty().Root() {
		from := c.e.o.Workspace.Restore(ctx, s.TenantID, c.tree)
		restored, err := wire.Restore(ctx, treeSource{from})
		_ = from.Close()
		if err != nil {
			return err
		}
		base = restored.Token
	}
	c.memory = box.ID()
	c.returns.Store(nil)
	c.box, c.wire, c.bound, c.base, c.oomKills = box, wire, sandboxLimits(s.Limits), base, 0
	outcome = good
	return nil
}

package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/checkpoint"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// checkpointWithin bounds writing a sandbox's memory out and sealing it.
const checkpointWithin = 60 * time.Second

// keepsMemory reports whether sessions can keep their memory here.
func (e *Engine) keepsMemory() bool {
	can := e.info.Capabilities
	return can.Checkpoint && can.Restore && e.o.Memory != nil
}

// keepMemory ends the session's sandbox with its memory sealed. It returns nil
// where that cannot be: then the sandbox may still be there. The caller holds
// c.mu, and nothing is out.
func (c *compute) keepMemory(ctx context.Context) *workbench.Checkpoint {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkpointWithin)
	defer cancel()
	failed := func(err error) *workbench.Checkpoint {
		c.e.log.Warn("memory not kept", "session", c.id, "err", err)
		return nil
	}
	box, can := c.box.(sandbox.Checkpointer)
	if !can {
		return failed(workbench.E(workbench.CodeNotBuilt, "the driver cannot"))
	}
	dir, err := c.e.o.Memory.Make()
	if err != nil {
		return failed(err)
	}
	defer c.e.forgetMemory(dir)
	if err := c.wire.Settle(ctx); err != nil {
		return failed(err)
	}
	kept := workbench.Checkpoint{Generation: c.generation, Head: c.head, Binding: c.binding, Base: c.base, Limits: c.bound,
		Memory: c.memory, Interpreters: slices.Sorted(maps.Keys(c.interpreters))}
	if err := box.Checkpoint(ctx, dir); err != nil {
		return failed(err)
	}
	// From here on the sandbox is gone, and its memory is what the directory holds.
	sealed, err := c.e.o.Checkpoints.Seal(ctx, c.binds(), dir)
	if err != nil {
		return failed(err)
	}
	kept.Blob, kept.Bytes = sealed.BlobID, sealed.Stored
	c.memory, c.interpreters = "", nil // they live in what is kept
	c.drop(ctx)
	return &kept
}

func (c *compute) binds() checkpoint.Binding {
	return checkpoint.Binding{TenantID: c.tenant, SessionID: c.id, Generation: c.generation}
}

func (e *Engine) forgetMemory(dir string) {
	if err := e.o.Memory.Remove(dir); err != nil {
		e.log.Warn("a checkpoint was not removed from memory", "dir", dir, "err", err)
	}
}

// comeBack gives a suspended session its sandbox as it was. It reports false
// where its memory is gone. An error leaves the session suspended, with its
// memory: what is only lacking now, a place for the sandbox above all, costs
// nobody their variables. The caller holds c.mu and has loaded the head.
func (c *compute) comeBack(ctx context.Context, s workbench.Session) (bool, error) {
	if err := c.e.capacity.take(ctx); err != nil {
		return false, err
	}
	kept, ok, err := c.e.o.Store.Resume(ctx, s.ID, c.epoch)
	if err != nil {
		c.e.capacity.give()
		return false, err
	}
	c.generation, c.keep, c.tenant = s.Generation, s.KeepMemory, s.TenantID
	if ok {
		ok = kept.Head == c.head && kept.Limits == sandboxLimits(s.Limits)
	}
	began := time.Now()
	if ok {
		if err := c.restore(ctx, s, kept); err != nil {
			c.e.log.Warn("memory not restored", "session", c.id, "err", err)
			ok = false
		}
	}
	outcome := "restored"
	if !ok {
		c.e.capacity.give()
		outcome = "failed"
		c.memory, c.interpreters = kept.Memory, setOf(kept.Interpreters)
		c.losing = workbench.LossSuspended
		c.loseMemory(ctx)
		c.losing = ""
	}
	c.e.o.Metrics.SandboxStarted(outcome, time.Since(began))
	if err := c.e.o.Checkpoints.Drop(ctx, c.id, kept.Blob); err != nil {
		c.e.log.Warn("a used checkpoint was not removed", "session", c.id, "err", err)
	}
	if ok {
		err = c.e.o.Store.AppendSessionEvent(ctx, c.id, c.epoch, workbench.EventResumed, workbench.ResumedEvent{MemoryKept: true, Generation: c.generation})
		if err != nil {
			c.e.log.Warn("a session's return was not told", "session", c.id, "err", err)
		}
	}
	return ok, nil
}

// awake has a session with kept memory return before its files are changed: its
// programs must find them as they are. The caller holds c.mu.
func (c *compute) awake(ctx context.Context, s workbench.Session) error {
	back, err := c.comeBack(ctx, s)
	c.lost = c.lost || err == nil && !back
	return err
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// restore has the driver start what the checkpoint holds, in a place that the
// caller has taken.
func (c *compute) restore(ctx context.Context, s workbench.Session, kept workbench.Checkpoint) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	driver, can := c.e.o.Driver.(sandbox.Restorer)
	if !can {
		return workbench.E(workbench.CodeNotBuilt, "the driver cannot restore")
	}
	kind, err := c.e.kind(ctx, s.Image, s.Size, s.Limits)
	if err != nil {
		return err
	}
	dir, err := c.e.o.Memory.Make()
	if err != nil {
		return err
	}
	defer c.e.forgetMemory(dir)
	if err := c.e.o.Checkpoints.Open(ctx, c.binds(), kept.Blob, dir); err != nil {
		return err
	}
	box, err := driver.Restore(ctx, kind.Class, dir)
	if err != nil {
		return err
	}
	wire, err := guestwire.Dial(ctx, box.Stream(), guestwire.Options{})
	if err == nil {
		if wire.Hello().Bound != kept.Binding {
			err = workbench.E(workbench.CodeGuestProtocol, "what was restored is bound to something else")
		} else if err = wire.Wake(ctx); err == nil {
			err = wire.ResumeAll(ctx) // contexts stand still until their next cell all the same
		}
		if err != nil {
			_ = wire.Close()
		}
	}
	if err != nil {
		c.e.kill(ctx, box)
		return err
	}
	c.box, c.wire, c.bound, c.base, c.oomKills = box, wire, kept.Limits, kept.Base, 0
	c.binding, c.memory, c.interpreters = kept.Binding, kept.Memory, setOf(kept.Interpreters)
	return nil
}

package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/checkpoint"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/pool"
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
	if c.e.o.Memory == nil {
		return failed(errNoMemory())
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
	sealed, err := c.e.o.Checkpoints.Seal(ctx, checkpoint.Binding{TenantID: c.tenant, SessionID: c.id, Generation: c.generation}, dir)
	if err != nil {
		return failed(err)
	}
	kept.Blob, kept.Bytes = sealed.BlobID, sealed.Stored
	c.memory, c.interpreters = "", nil // they live in what is kept
	c.drop(ctx)
	return &kept
}

func (e *Engine) forgetMemory(dir string) {
	if err := e.o.Memory.Remove(dir); err != nil {
		e.log.Warn("a checkpoint was not removed from memory", "dir", dir, "err", err)
	}
}

// errNoMemory is why a server can neither keep memory nor give it back. The
// session's record of it stays as it is.
func errNoMemory() error {
	return workbench.E(workbench.CodeRuntimeUnavailable, "this server has no place for the live memory of suspended sessions").
		WithHint("its operator finds the reason in its log; restarting the session goes on without its memory")
}

// comeBack gives a suspended session its sandbox as it was. It reports false
// where its memory is gone. An error leaves the session suspended, with its
// memory: what is only lacking now, a place for the sandbox above all, costs
// nobody their variables. The caller holds c.mu and has loaded the head.
func (c *compute) comeBack(ctx context.Context, s workbench.Session) (back bool, err error) {
	if c.e.o.Memory == nil {
		return false, errNoMemory()
	}
	kind, err := c.e.kind(ctx, s.Image, s.Size, s.Limits)
	if err != nil {
		return false, err
	}
	vessel, err := c.awaitVessel(ctx, kind)
	if err != nil {
		return false, err
	}
	defer func() {
		if !back {
			if vessel != nil {
				c.e.kill(context.WithoutCancel(ctx), vessel)
			}
			c.e.capacity.give()
		}
	}()
	kept, err := c.e.o.Store.Checkpoint(ctx, s.ID)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return false, nil // it went with the session's end
	}
	if err != nil {
		return false, err
	}
	began := time.Now()
	r, err := c.unpack(ctx, s, kept)
	if err != nil {
		return false, err
	}
	defer c.e.later(r.discard)
	if ctx.Err() != nil {
		return false, workbench.E(workbench.CodeCancelled, "the session's return was given up").Caused(ctx.Err())
	}
	// From here on the memory is used or lost, so what follows happens whole.
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), 2*startWithin)
	defer done()
	if err := c.claimMemory(ctx, s, kept); err != nil {
		return false, err
	}
	c.generation, c.keep, c.tenant = s.Generation, s.KeepMemory, s.TenantID
	c.returns.Store(nil)
	cause := r.useless
	if cause == nil {
		cause = c.restore(ctx, r, kind.Class, vessel)
	}
	outcome := "restored"
	if back = cause == nil; !back {
		outcome = "failed"
		c.e.log.Warn("memory not restored", "session", c.id, "err", cause)
		c.memory, c.interpreters, c.losing = kept.Memory, setOf(kept.Interpreters), workbench.LossSuspended
		c.loseMemory(ctx)
	}
	c.e.o.Metrics.SandboxStarted(outcome, time.Since(began))
	c.e.later(func() {
		if err := c.e.o.Checkpoints.Remove(context.WithoutCancel(ctx), kept.Blob); err != nil { // the sweeper does it
			c.e.log.Warn("a used checkpoint was not removed", "session", c.id, "err", err)
		}
	})
	if back {
		err := c.e.o.Store.AppendSessionEvent(ctx, c.id, c.epoch, workbench.EventResumed, workbench.ResumedEvent{MemoryKept: true, Generation: c.generation})
		if err != nil {
			c.e.log.Warn("a session's return was not told", "session", c.id, "err", err)
		}
	}
	return back, nil
}

// awaitVessel takes a place for the sandbox that is restored, with the vessel that
// is ready for it, if there is one.
func (c *compute) awaitVessel(ctx context.Context, k pool.Kind) (sandbox.Sandbox, error) {
	if w := c.e.pool.Claim(vesselOf(k)); w != nil {
		return w.Box, nil
	}
	return nil, c.awaitPlace(ctx)
}

// vesselOf is what a session comes back into that has a sandbox of the kind.
func vesselOf(k pool.Kind) pool.Kind { return pool.Kind{Class: k.Class, Vessel: true} }

// vesselKinds is for how many kinds of suspended sessions a vessel is kept.
const vesselKinds = 2

// readyReturns has the pool keep a vessel for each kind of session that is
// suspended with its memory, of the few that most are.
func (e *Engine) readyReturns() {
	count := map[pool.Kind]int{}
	e.mu.Lock()
	for _, c := range e.sessions {
		if k := c.returns.Load(); k != nil && !c.over {
			count[*k]++
		}
	}
	e.mu.Unlock()
	kinds := slices.SortedFunc(maps.Keys(count), func(a, b pool.Kind) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), strings.Compare(a.Class.Image.ID+a.Class.Tier, b.Class.Image.ID+b.Class.Tier))
	})
	e.pool.KeepVessels(kinds[:min(len(kinds), vesselKinds)])
}

// claimMemory takes the session's kept memory from its record. Nobody gets it a
// second time.
func (c *compute) claimMemory(ctx context.Context, s workbench.Session, kept workbench.Checkpoint) error {
	return c.e.stubbornly(ctx, "resume", func() error {
		return c.e.o.Store.Resume(ctx, s.ID, c.epoch, kept.Blob)
	}, func() bool {
		now, err := c.e.o.Store.Session(ctx, workbench.SystemPrincipal(), s.ID)
		return err == nil && now.Suspended == nil && now.LeaseEpoch == c.epoch
	})
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

// unpacked is kept memory that only needs to be started, or the reason why it
// can never be.
type unpacked struct {
	kept    workbench.Checkpoint
	dir     string
	useless error
	discard func()
}

// unpack opens kept memory. An error is for what may be otherwise another time.
func (c *compute) unpack(ctx context.Context, s workbench.Session, kept workbench.Checkpoint) (*unpacked, error) {
	r := &unpacked{kept: kept, discard: func() {}}
	switch _, can := c.e.o.Driver.(sandbox.Restorer); {
	case !can:
		r.useless = workbench.E(workbench.CodeNotBuilt, "the driver cannot restore")
	case kept.Generation != s.Generation || kept.Head != c.head || kept.Limits != sandboxLimits(s.Limits):
		r.useless = workbench.E(workbench.CodeConflict, "the session is not the one it was")
	}
	if r.useless != nil {
		return r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	var err error
	if r.dir, err = c.e.o.Memory.Make(); err != nil {
		return nil, err
	}
	r.discard = func() { c.e.forgetMemory(r.dir) }
	b := checkpoint.Binding{TenantID: s.TenantID, SessionID: s.ID, Generation: kept.Generation}
	err = c.e.o.Checkpoints.Open(ctx, b, kept.Blob, r.dir)
	if workbench.HasCode(err, workbench.CodeCorrupt) {
		r.useless = err
		return r, nil
	}
	if err != nil {
		r.discard()
		return nil, err
	}
	return r, nil
}

// restore has the driver start what a checkpoint held, in a place that the
// caller has taken, and in the vessel if there is one.
func (c *compute) restore(ctx context.Context, r *unpacked, class sandbox.Class, vessel sandbox.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	box, err := c.e.o.Driver.(sandbox.Restorer).Restore(ctx, class, r.dir, vessel)
	if err != nil {
		return err
	}
	wire, err := guestwire.Dial(ctx, box.Stream(), guestwire.Options{})
	if err == nil {
		if wire.Hello().Bound != r.kept.Binding {
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
	c.box, c.wire, c.bound, c.base, c.oomKills = box, wire, r.kept.Limits, r.kept.Base, 0
	c.binding, c.memory, c.interpreters = r.kept.Binding, r.kept.Memory, setOf(r.kept.Interpreters)
	return nil
}

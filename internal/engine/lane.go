package engine

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/workbenchdev/workbench"
)

// compute returns the session's place on this engine, making it if needed.
func (e *Engine) compute(id string) *compute {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.computeLocked(id)
}

func (e *Engine) computeLocked(id string) *compute {
	c := e.sessions[id]
	if c == nil {
		c = newCompute(e, id)
		e.sessions[id] = c
	}
	return c
}

// BackgroundLanes is how many background runs of a session execute at once.
const BackgroundLanes = 4

// lane is the one of the name.
func (c *compute) lane(name workbench.Lane) (l *lane, width int) {
	if name == workbench.LaneBackground {
		return &c.background, BackgroundLanes
	}
	return &c.foreground, 1
}

// wake makes sure that a lane of the session is being worked on.
func (e *Engine) wake(id string, name workbench.Lane) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopping {
		return
	}
	c := e.computeLocked(id)
	l, width := c.lane(name)
	l.again = true
	if l.workers < width {
		l.workers++
		e.workers.Add(1)
		go e.work(c, name)
	}
}

// wakeAll is wake for every lane.
func (e *Engine) wakeAll(id string) {
	e.wake(id, workbench.LaneForeground)
	e.wake(id, workbench.LaneBackground)
}

// idle reports whether no goroutine works for the session. The caller holds
// Engine.mu.
func (c *compute) idle() bool { return c.foreground.workers+c.background.workers == 0 }

// work runs a lane of a session until its queue is empty.
func (e *Engine) work(c *compute, name workbench.Lane) {
	defer e.workers.Done()
	l, _ := c.lane(name)
	for {
		e.mu.Lock()
		if e.stopping || !l.again {
			l.workers--
			if c.forgotten && c.idle() && e.sessions[c.id] == c {
				delete(e.sessions, c.id)
			}
			e.mu.Unlock()
			return
		}
		l.again = false
		e.mu.Unlock()
		for {
			ran, err := e.runNext(c, name)
			if err != nil {
				e.log.Error("lane", "session", c.id, "lane", name, "err", err)
				e.pause(time.Second)
				e.mu.Lock()
				l.again = true // the queue is in the store, and so is what is unsettled
				e.mu.Unlock()
				break
			}
			if !ran {
				break
			}
		}
	}
}

func (e *Engine) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-e.ctx.Done():
	}
}

func (e *Engine) draining() bool {
	select {
	case <-e.drain:
		return true
	default:
		return false
	}
}

// staleAfter is how long a look at the queue is believed.
const staleAfter = 5 * time.Millisecond

// runNext takes the first queued run of a lane to its end. It reports whether
// there was one.
func (e *Engine) runNext(c *compute, name workbench.Lane) (bool, error) {
	ctx := e.ctx
	if e.draining() {
		return false, nil
	}
	if c.held.Load() > 0 {
		e.pause(5 * time.Millisecond)
		return true, nil
	}
	// What waits here is work: the session is not suspended for want of it.
	c.transfers.Add(1)
	defer c.transfers.Add(-1)
	c.mu.Lock()
	ours, again, err := c.own(ctx)
	epoch := c.epoch
	c.mu.Unlock()
	if !ours {
		return again, err
	}
	run, ok, err := e.o.Store.NextQueued(ctx, c.id, name)
	if err != nil || !ok {
		return false, err
	}
	looked := time.Now()
	places := e.foreground
	if name == workbench.LaneBackground {
		places = e.background
	}
	if !places.Try(run.TenantID) {
		c.last()
		if err := places.Acquire(ctx, run.TenantID); err != nil {
			return false, nil // stopping
		}
	}
	defer places.Release(run.TenantID)
	if e.draining() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.draining() {
		return false, nil
	}
	// While it waited, the session may have made room for others, or gone
	// elsewhere.
	if ours, again, err := c.own(ctx); !ours {
		return again, err
	}
	if name == workbench.LaneBackground || c.epoch != epoch || time.Since(looked) > staleAfter {
		// Cancelled while it waited for its turn, it must cost nobody a sandbox;
		// and another worker of the lane may have taken it.
		if run, ok, err = e.o.Store.NextQueued(ctx, c.id, name); err != nil || !ok {
			c.letGo(ctx)
			return false, err
		}
	}
	c.idleSince.Store(0)
	e.capacity.markBusy(c)
	err = e.execute(ctx, c, run)
	if c.gaveUp(ctx, err) {
		return true, nil
	}
	switch {
	case len(c.out) > 0: // it is in use
		c.outOfMemory(ctx) // what the host killed until now is not the next run's
	case c.live():
		c.outOfMemory(ctx)
		c.idleSince.Store(e.uptime())
		e.capacity.markIdle(c)
	default:
		c.drop(ctx) // one that died by itself gives its place back now, not with the next run
	}
	if errors.Is(err, workbench.ErrStopping) {
		return false, nil // it stays queued
	}
	return true, err
}

// own makes the session this engine's, with nothing in flight that an earlier
// failure left. Where it is not, again says whether to look at once. The caller
// holds c.mu.
func (c *compute) own(ctx context.Context) (ours, again bool, err error) {
	err = c.lease(ctx)
	if err == nil {
		_, _, err = c.clear(ctx)
	}
	switch {
	case c.gaveUp(ctx, err):
		return false, true, nil // as whoever has the lease now
	case workbench.HasCode(err, workbench.CodeConflict):
		return false, false, nil // another server has the session
	}
	return err == nil, false, err
}

// last makes the session's idle sandbox the last that has to make room: a run
// is about to wait for its turn, and needs it then.
func (c *compute) last() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idleSince.Load() != 0 {
		c.e.capacity.markIdle(c)
	}
}

// openSpec unseals what was submitted.
func (e *Engine) openSpec(ctx context.Context, run workbench.Run) (workbench.RunSpec, error) {
	plain, err := e.o.Seal.OpenBytes(ctx, run.TenantID, "spec", run.ID, run.Sealed)
	if err != nil {
		return workbench.RunSpec{}, err
	}
	var spec workbench.RunSpec
	if err := json.Unmarshal(plain, &spec); err != nil {
		return workbench.RunSpec{}, workbench.E(workbench.CodeCorrupt, "a stored submission cannot be read").Caused(err)
	}
	return spec, nil
}

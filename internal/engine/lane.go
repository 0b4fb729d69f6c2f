package engine

import (
	"context"
	"encoding/json"
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
		c = &compute{e: e, id: id}
		e.sessions[id] = c
	}
	return c
}

// wake makes sure that the session's foreground lane is being worked on.
func (e *Engine) wake(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopping {
		return
	}
	c := e.computeLocked(id)
	c.again = true
	if !c.working {
		c.working = true
		e.workers.Add(1)
		go e.work(c)
	}
}

// work runs the lane of a session until its queue is empty.
func (e *Engine) work(c *compute) {
	defer e.workers.Done()
	for {
		e.mu.Lock()
		if e.stopping || !c.again {
			c.working = false
			if c.over && e.sessions[c.id] == c {
				delete(e.sessions, c.id)
			}
			e.mu.Unlock()
			return
		}
		c.again = false
		e.mu.Unlock()
		for {
			ran, err := e.runNext(c)
			if err != nil {
				e.log.Error("lane", "session", c.id, "err", err)
				e.pause(time.Second)
				e.mu.Lock()
				c.again = true // the queue is in the store, and so is what is unsettled
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

// runNext takes the first queued run of the session to its end. It reports
// whether there was one.
func (e *Engine) runNext(c *compute) (bool, error) {
	ctx := e.ctx
	if e.draining() {
		return false, nil
	}
	if c.held.Load() > 0 {
		e.pause(5 * time.Millisecond)
		return true, nil
	}
	c.mu.Lock()
	err := c.lease(ctx)
	if err == nil {
		_, _, err = c.clear(ctx)
	}
	moved := c.gaveUp(ctx, err)
	c.mu.Unlock()
	if moved {
		return true, nil // look again, as whoever has the lease now
	}
	if workbench.HasCode(err, workbench.CodeConflict) {
		return false, nil // another server has the session
	}
	if err != nil {
		return false, err
	}
	run, ok, err := e.o.Store.NextQueued(ctx, c.id, workbench.LaneForeground)
	if err != nil || !ok {
		return false, err
	}
	looked := time.Now()
	if err := e.slots.acquire(ctx, run.TenantID); err != nil {
		return false, nil // stopping
	}
	defer e.slots.release()
	if e.draining() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(looked) > staleAfter {
		// Cancelled while it waited for its turn, it must cost nobody a sandbox.
		if run, ok, err = e.o.Store.NextQueued(ctx, c.id, workbench.LaneForeground); err != nil || !ok {
			return false, err
		}
	}
	e.capacity.markBusy(c)
	err = e.execute(ctx, c, run)
	c.dirty = c.dirty || err != nil
	if c.gaveUp(ctx, err) {
		return true, nil
	}
	switch {
	case c.live():
		e.capacity.markIdle(c)
	default:
		c.drop(ctx) // one that died by itself gives its place back now, not with the next run
	}
	return true, err
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

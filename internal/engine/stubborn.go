package engine

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// stubbornFor is how long a write that must not be lost is tried again while
// the database does not answer. Output waits meanwhile.
const stubbornFor = 60 * time.Second

// stubbornly repeats write while it says unavailable. done, asked after a
// first failure, reports whether the failed attempt had taken effect after
// all: a commit whose answer was lost.
func (e *Engine) stubbornly(ctx context.Context, what string, write func() error, done func() bool) error {
	err := write()
	if err == nil || !workbench.HasCode(err, workbench.CodeUnavailable) {
		return err
	}
	e.log.Warn("the database does not answer, trying again", "what", what, "err", err)
	deadline := time.Now().Add(stubbornFor)
	for delay := 50 * time.Millisecond; time.Now().Before(deadline); delay = min(2*delay, 2*time.Second) {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return err
		}
		err = write()
		if err == nil {
			return nil
		}
		if !workbench.HasCode(err, workbench.CodeUnavailable) {
			if done() {
				return nil
			}
			return err
		}
	}
	return err
}

// persisted reports whether the log already goes to seq.
func (e *Engine) persisted(runID string, seq int64) func() bool {
	return func() bool {
		entries, err := e.o.Store.Log(e.ctx, workbench.SystemPrincipal(), runID, seq-1, 1)
		return err == nil && len(entries) == 1
	}
}

// terminal reports whether the run has its terminal status.
func (e *Engine) terminal(runID string) func() bool {
	return func() bool {
		run, err := e.o.Store.Run(e.ctx, workbench.SystemPrincipal(), runID)
		return err == nil && run.Status.Terminal()
	}
}

// clear settles what execute, or another engine, left in flight: its end is not
// known, or could not be written. It reports how many runs of the session are
// not terminal, and how many it has settled as unknown. The caller holds c.mu.
func (c *compute) clear(ctx context.Context) (active, unknown int, err error) {
	if !c.dirty {
		return 0, 0, c.certain(ctx)
	}
	c.drop(ctx)
	c.alone() // whoever else had code in the sandbox settles it first
	runs, err := c.e.o.Store.ActiveRuns(ctx, c.id)
	if err != nil {
		return 0, 0, err
	}
	for _, run := range runs {
		if run.Status == workbench.StatusQueued {
			active++
			continue
		}
		c.lost = true
		_, err := c.e.o.Store.SettleUnknown(ctx, run.ID, c.epoch, workbench.ReasonServerLost, c.e.now())
		switch {
		case err == nil:
			unknown++
		case !workbench.HasCode(err, workbench.CodeConflict):
			return active, unknown, err
		}
	}
	c.dirty = false
	return active, unknown, c.certain(ctx)
}

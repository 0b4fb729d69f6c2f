package engine

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/meter"
	"github.com/workbenchdev/workbench/internal/store"
)

// elapsed is a monotonic clock in microseconds, on which active time is measured.
func (e *Engine) elapsed() int64 { return time.Since(e.began).Microseconds() }

// used notes active time that has yet to be written down: with the settlement of the run
// that it ended with, or by meterActive. The caller holds c.mu.
func (c *compute) used(i meter.Interval, ok bool) {
	if ok {
		c.unmetered = append(c.unmetered, store.ActiveTime{ID: workbench.NewID(workbench.KindUsage), RunID: i.RunID, Us: i.To - i.From, Rate: c.rate.RateMicros, RateVersion: c.rate.RateVersion, At: c.e.now()})
	}
}

// meterActive writes down the active time of code that goes on. What a server that dies
// has not written down costs nothing.
func (e *Engine) meterActive(ctx context.Context) {
	e.mu.Lock()
	all := make([]*compute, 0, len(e.sessions))
	for _, c := range e.sessions {
		all = append(all, c)
	}
	e.mu.Unlock()
	for _, c := range all {
		c.mu.Lock()
		c.used(c.meter.Renew(e.elapsed()))
		if len(c.unmetered) > 0 && c.epoch != 0 {
			err := e.o.Store.Meter(ctx, c.id, c.epoch, c.unmetered)
			switch {
			case err == nil, workbench.HasCode(err, workbench.CodeFenced), workbench.HasCode(err, workbench.CodeNotFound):
				c.unmetered = nil
			case ctx.Err() == nil:
				e.log.Warn("active time is not written down yet", "session", c.id, "err", err)
			}
		}
		c.mu.Unlock()
	}
}

// Usage sums the ledger as far as p may see it. Codes: invalid_request.
func (e *Engine) Usage(ctx context.Context, p workbench.Principal, q workbench.UsageQuery) (workbench.UsageReport, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.UsageReport{}, err
	}
	if q.SessionID != "" {
		if _, err := e.o.Store.Session(ctx, p, q.SessionID); err != nil {
			return workbench.UsageReport{}, workbench.AsError(err).WithField("session")
		}
	}
	return e.o.Store.Usage(ctx, p, q)
}

package api

import (
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
)

// audit records an action and how it ended, and every refusal: a missing or
// wrong key, a right not held, a thing not found or not the caller's.
func (s *Server) audit(c *call) {
	e := workbench.AsError(c.err)
	refused := e != nil && (e.Code == workbench.CodeUnauthenticated || e.Code == workbench.CodeForbidden || e.Code == workbench.CodeNotFound)
	if c.route.Public || c.recorded || c.route.Action == "" && !refused {
		return
	}
	if refused {
		write, suppressed := s.refusals.allow(c.p.KeyID != "")
		if !write {
			return
		}
		if suppressed > 0 {
			c.note("suppressed", suppressed)
		}
	}
	who, action := c.who(), c.route.Action
	if action == "" {
		action = c.route.ID
	}
	// What could not be written is in the server's log.
	_ = s.trail.Record(c.ctx, who, action, c.target, c.err, c.notes)
}

// who is the caller as the audit trail names it.
func (c *call) who() workbench.Principal {
	who := c.p
	who.Address, who.RequestID = clientAddress(c.r), c.requestID
	return who
}

// trailOfSuccess is the audit row of the route's action if it succeeds, for
// whoever writes it in the same transaction. Its target is theirs to name.
func (c *call) trailOfSuccess() workbench.AuditEntry {
	return audit.Entry(c.who(), c.s.o.Clock(), c.route.Action, "", nil, c.notes)
}

// refusals keeps a flood of refused requests from filling the database: one
// row a second, 100 at once, for callers with a key and for those without. What
// was left out is counted and told in the next row.
type refusals struct {
	mu      sync.Mutex
	now     func() time.Time
	buckets [2]bucket // without a key, with one
}

type bucket struct {
	tokens     float64
	at         time.Time
	suppressed int64
}

const refusalBurst = 100

func newRefusals(now func() time.Time) *refusals {
	start := now()
	return &refusals{now: now, buckets: [2]bucket{{tokens: refusalBurst, at: start}, {tokens: refusalBurst, at: start}}}
}

// allow says whether to write a row now, and how many were left out before.
func (r *refusals) allow(known bool) (write bool, suppressed int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := &r.buckets[0]
	if known {
		b = &r.buckets[1]
	}
	now := r.now()
	b.tokens = min(refusalBurst, b.tokens+max(0, now.Sub(b.at).Seconds()))
	b.at = now
	if b.tokens < 1 {
		b.suppressed++
		return false, 0
	}
	b.tokens--
	suppressed, b.suppressed = b.suppressed, 0
	return true, suppressed
}

package api

import (
	"sync"

	"github.com/workbenchdev/workbench"
)

// holds bounds the requests that hold their connection: long polls and event
// streams, per caller and in all.
type holds struct {
	mu        sync.Mutex
	perCaller int
	max       int
	total     int
	by        map[holder]int // no entry at zero
}

// holder is one caller: an embedded key acts for many users, each of whom has
// places of its own.
type holder struct{ keyID, userID string }

func newHolds(perCaller, max int) *holds {
	return &holds{perCaller: perCaller, max: max, by: map[holder]int{}}
}

func (h *holds) take(who holder) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by[who] >= h.perCaller {
		return workbench.E(workbench.CodeRateLimited, "this caller has %d long polls and event streams open", h.perCaller).
			WithHint("close some, or wait for them to end")
	}
	if h.total >= h.max {
		return workbench.E(workbench.CodeUnavailable, "the server holds as many long polls and event streams as it can").
			WithHint("try again shortly")
	}
	h.by[who]++
	h.total++
	return nil
}

func (h *holds) release(who holder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total--
	if h.by[who]--; h.by[who] == 0 {
		delete(h.by, who)
	}
}

// hold takes one of the caller's places if the request will hold its connection.
// The function returned gives it back. Codes: rate_limited, unavailable.
func (c *call) hold(wanted bool) (func(), error) {
	if !wanted {
		return func() {}, nil
	}
	who := holder{c.p.KeyID, c.p.UserID}
	if err := c.s.holds.take(who); err != nil {
		return nil, err
	}
	c.s.o.Metrics.Streams(1)
	return func() {
		c.s.o.Metrics.Streams(-1)
		c.s.holds.release(who)
	}, nil
}

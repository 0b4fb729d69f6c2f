package api

import (
	"sync"

	"github.com/workbenchdev/workbench"
)

// holds bounds the requests that hold their connection: long polls and event
// streams, per key and in all.
type holds struct {
	mu     sync.Mutex
	perKey int
	max    int
	total  int
	byKey  map[string]int // no entry at zero
}

func newHolds(perKey, max int) *holds {
	return &holds{perKey: perKey, max: max, byKey: map[string]int{}}
}

func (h *holds) take(keyID string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byKey[keyID] >= h.perKey {
		return workbench.E(workbench.CodeRateLimited, "this key has %d long polls and event streams open", h.perKey).
			WithHint("close some, or wait for them to end")
	}
	if h.total >= h.max {
		return workbench.E(workbench.CodeUnavailable, "the server holds as many long polls and event streams as it can").
			WithHint("try again shortly")
	}
	h.byKey[keyID]++
	h.total++
	return nil
}

func (h *holds) release(keyID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total--
	if h.byKey[keyID]--; h.byKey[keyID] == 0 {
		delete(h.byKey, keyID)
	}
}

// hold takes one of the key's places if the request will hold its connection.
// The function returned gives it back. Codes: rate_limited, unavailable.
func (c *call) hold(wanted bool) (func(), error) {
	if !wanted {
		return func() {}, nil
	}
	if err := c.s.holds.take(c.p.KeyID); err != nil {
		return nil, err
	}
	c.s.o.Metrics.Streams(1)
	return func() {
		c.s.o.Metrics.Streams(-1)
		c.s.holds.release(c.p.KeyID)
	}, nil
}

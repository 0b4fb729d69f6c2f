package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
)

// evictAgain is how soon a waiter looks again at sandboxes that were in use
// when it wanted to evict them.
const evictAgain = 10 * time.Millisecond

// capacity bounds the live sandboxes of this engine. When all places are
// taken, one that is warm for nobody makes room, then the one that idles
// longest; when none idles, the caller waits for one.
type capacity struct {
	yield func() bool // ends a sandbox that no session has; reports whether there was one

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever a place may have come free
	max     int
	live    int
	waiting int      // callers of take that found no place
	idle    []victim // least recently used first; each may be evicted
}

// victim is a sandbox that may make room; evict reports whether it did.
type victim interface {
	evict(ctx context.Context) bool
}

func newCapacity(n int) *capacity {
	return &capacity{max: n, changed: make(chan struct{}), yield: func() bool { return false }}
}

// take reserves a place for a sandbox, evicting an idle one where needed.
func (k *capacity) take(ctx context.Context) error {
	for first := true; ; first = false {
		k.mu.Lock()
		if !first {
			k.waiting--
		}
		if k.live < k.max {
			k.live++
			k.mu.Unlock()
			return nil
		}
		k.waiting++
		idle := append([]victim(nil), k.idle...)
		changed := k.changed
		k.mu.Unlock()
		// A victim leaves the list when it is dropped or becomes busy. One whose
		// lock is held is about to do either, or has just been marked idle.
		if k.yield() || slices.ContainsFunc(idle, func(v victim) bool { return v.evict(ctx) }) {
			continue
		}
		select {
		case <-changed:
		case <-time.After(evictAgain):
		case <-ctx.Done():
			k.mu.Lock()
			k.waiting--
			k.mu.Unlock()
			return workbench.E(workbench.CodeCapacity, "no sandbox came free in time").
				WithHint("try again, or raise --max-sandboxes").Caused(ctx.Err())
		}
	}
}

// tryTake reserves a place if one is free that nobody waits for.
func (k *capacity) tryTake() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.live >= k.max || k.waiting > 0 {
		return false
	}
	k.live++
	return true
}

// give returns a place.
func (k *capacity) give() {
	k.mu.Lock()
	k.live--
	k.signal()
	k.mu.Unlock()
}

// markIdle makes a sandbox the last candidate for eviction.
func (k *capacity) markIdle(v victim) {
	k.mu.Lock()
	k.removeLocked(v)
	k.idle = append(k.idle, v)
	k.signal()
	k.mu.Unlock()
}

// markBusy takes a sandbox off the candidates.
func (k *capacity) markBusy(v victim) {
	k.mu.Lock()
	k.removeLocked(v)
	k.mu.Unlock()
}

func (k *capacity) removeLocked(v victim) {
	for i, other := range k.idle {
		if other == v {
			k.idle = append(k.idle[:i:i], k.idle[i+1:]...)
			return
		}
	}
}

func (k *capacity) signal() {
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *capacity) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.live
}

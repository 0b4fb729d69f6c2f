package engine

import (
	"context"
	"sync"
)

// ends are what is done for sessions that are over, several at once: one that
// takes long holds up no other, and nobody who looks for more of them.
type ends struct {
	places chan struct{}

	mu   sync.Mutex
	busy map[string]bool // by session
}

func newEnds() *ends { return &ends{places: make(chan struct{}, endAtOnce), busy: map[string]bool{}} }

// begin has f done for a session once there is a place, unless that is under
// way. It waits for the place alone; the engine's end waits for f.
func (e *Engine) begin(ctx context.Context, of *ends, id string, f func()) {
	of.mu.Lock()
	busy := of.busy[id]
	of.busy[id] = true
	of.mu.Unlock()
	if busy {
		return
	}
	over := func() {
		of.mu.Lock()
		defer of.mu.Unlock()
		delete(of.busy, id)
	}
	select {
	case of.places <- struct{}{}:
	case <-ctx.Done():
		over()
		return
	}
	e.loops.Go(func() {
		defer over()
		defer func() { <-of.places }()
		f()
	})
}

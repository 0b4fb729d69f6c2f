package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/engine"
)

// A sandbox is offered for eviction by a lane that still holds it, and lets go
// a moment later without a further word: whoever looked in between must look
// again.
func TestWaiterSeesASandboxThatWasHeldWhenItLooked(t *testing.T) {
	k := engine.NewCapacity(1)
	if err := k.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	looked := make(chan struct{}, 100)
	let := make(chan struct{})
	v := &engine.Victim{}
	v.Evict = func() bool {
		select {
		case looked <- struct{}{}:
		default:
		}
		select {
		case <-let:
			k.MarkBusy(v)
			k.Give()
			return true
		default:
			return false // its lock is held
		}
	}
	took := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() { took <- k.Take(ctx) }()
	k.MarkIdle(v)
	<-looked
	close(let) // nobody is told
	if err := <-took; err != nil {
		t.Fatal(err)
	}
}

func TestWaiterIsWokenByAPlaceGivenBack(t *testing.T) {
	k := engine.NewCapacity(1)
	if err := k.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := make(chan error, 2)
	for range 2 {
		go func() { took <- k.Take(t.Context()) }()
	}
	k.Give()
	if err := <-took; err != nil {
		t.Fatal(err)
	}
	k.Give()
	if err := <-took; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := k.Take(ctx); !workbench.HasCode(err, workbench.CodeCapacity) {
		t.Errorf("a third place: %v", err)
	}
}

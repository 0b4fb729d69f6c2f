package engine_test

import (
	"testing"
	"time"

	"github.com/workbenchdev/workbench/internal/engine"
)

// What was written in vain counts for whom it is told of until it is swept, and however
// often that happens takes little to remember.
func TestWaste(t *testing.T) {
	w, at := engine.NewWastes(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 1000 { // as of many sessions
		w.Add("acme", at, 10)
		at = at.Add(59 * time.Millisecond)
	}
	w.Add("globex", at, 7)
	if acme, globex := w.Bytes("acme", at), w.Bytes("globex", at); acme != 10_000 || globex != 7 {
		t.Errorf("%d and %d bytes, want 10000 and 7", acme, globex)
	}
	if n := w.Entries(); n > 8 {
		t.Errorf("a minute of it takes %d entries", n)
	}
	if n := w.Bytes("acme", at.Add(4*time.Minute)); n != 10_000 {
		t.Errorf("%d bytes before they are swept, want 10000", n)
	}
	if n := w.Bytes("acme", at.Add(5*time.Minute)); n == 0 || n == 10_000 {
		t.Errorf("%d bytes five minutes later, want those of the last seconds", n)
	}
	if n := w.Bytes("acme", at.Add(6*time.Minute)); n != 0 || w.Entries() != 0 {
		t.Errorf("%d bytes and %d entries once all is swept", n, w.Entries())
	}
}

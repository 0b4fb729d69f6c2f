package engine

import (
	"context"
	"encoding/json"
	"time"
)

// Capacity is the bound on live sandboxes.
type Capacity struct{ k *capacity }

// NewCapacity has n places.
func NewCapacity(n int) Capacity { return Capacity{newCapacity(n)} }

// Take waits for a place.
func (c Capacity) Take(ctx context.Context) error { return c.k.take(ctx) }

// Give returns a place.
func (c Capacity) Give() { c.k.give() }

// MarkIdle offers a sandbox for eviction.
func (c Capacity) MarkIdle(v *Victim) { c.k.markIdle(v) }

// MarkBusy takes the offer back.
func (c Capacity) MarkBusy(v *Victim) { c.k.markBusy(v) }

// Victim is an idle sandbox.
type Victim struct{ Evict func() bool }

func (v *Victim) evict(context.Context) bool { return v.Evict() }

// Wastes is what changes wrote in vain.
type Wastes struct{ w *wastes }

// NewWastes has none.
func NewWastes() Wastes { return Wastes{newWastes()} }

// Add counts bytes of a session or tenant.
func (w Wastes) Add(id string, now time.Time, bytes int64) { w.w.add(id, now, bytes) }

// Bytes is what it has.
func (w Wastes) Bytes(id string, now time.Time) int64 { return w.w.bytes(id, now) }

// Entries is how much is remembered.
func (w Wastes) Entries() int {
	n := 0
	for _, all := range w.w.of {
		n += len(all)
	}
	return n
}

// ContentOf is contentOf.
func ContentOf(mimeType, value string) (string, error) {
	raw, err := contentOf(mimeType, json.RawMessage(value))
	return string(raw), err
}

// FormOf is formOf: the form as JSON, and its bytes.
func FormOf(mimeType string, raw json.RawMessage) (value, content string, ok bool) {
	f, ok := formOf(mimeType, raw)
	return string(f.value), string(f.content), ok
}

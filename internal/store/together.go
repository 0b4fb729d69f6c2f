package store

import (
	"sync"
	"sync/atomic"
	"time"
)

// Together is the writes of one origin that are about to come close to each other, such
// as the records of calls that a program makes at once. Where one is ready before others
// that are expected, SQLite's commit waits a moment for them: they are made durable
// together. The zero value expects nothing; PostgreSQL commits each by itself.
type Together struct{ coming atomic.Int64 }

// togetherWait bounds how long a write that could be committed waits for those expected.
const togetherWait = time.Millisecond

// Expect says that a write will come, for so long at most; 0: until here is called,
// which whoever expects it does once it comes, or will not.
func (g *Together) Expect(atMost time.Duration) (here func()) {
	if g == nil {
		return func() {}
	}
	g.coming.Add(1)
	var late *time.Timer
	var once sync.Once
	over := func() { once.Do(func() { g.coming.Add(-1) }) }
	if atMost > 0 {
		late = time.AfterFunc(atMost, over)
	}
	return func() {
		if late != nil {
			late.Stop()
		}
		over()
	}
}

func (g *Together) expected() bool { return g != nil && g.coming.Load() > 0 }

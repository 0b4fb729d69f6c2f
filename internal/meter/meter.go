// Package meter tells the active time of a sandbox: the time in which at least one run
// has code in it. Its one job is to cut that time into intervals that do not overlap,
// each of one run.
//
// It does no I/O and knows no price.
package meter

import "slices"

// Interval is active time of one sandbox, in microseconds of one monotonic clock.
type Interval struct {
	RunID    string // the one that has been active for the longest of those that were then
	From, To int64  // half-open
}

// Meter is that of one sandbox. The zero value has no run. It is not safe for concurrent
// use.
type Meter struct {
	active []string // in the order that they began
	from   int64    // of the time that no interval has yet; of no meaning where none is active
}

// Begin says that a run's code is about to reach the sandbox.
func (m *Meter) Begin(runID string, at int64) {
	if len(m.active) == 0 {
		m.from = max(m.from, at) // an earlier end may have been told late
	}
	m.active = append(m.active, runID)
}

// End says that a run has no code in the sandbox any more; ok is false where that ends no
// time which had no interval yet. A run that is not active is none.
func (m *Meter) End(runID string, at int64) (i Interval, ok bool) {
	n := slices.Index(m.active, runID)
	if n < 0 {
		return Interval{}, false
	}
	i, ok = m.Renew(at)
	m.active = slices.Delete(m.active, n, n+1)
	return i, ok
}

// Renew cuts the time so far; ok is false where nothing is active.
func (m *Meter) Renew(at int64) (i Interval, ok bool) {
	if len(m.active) == 0 || at <= m.from {
		return Interval{}, false
	}
	i = Interval{RunID: m.active[0], From: m.from, To: at}
	m.from = at
	return i, true
}

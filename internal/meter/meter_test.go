package meter_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/meter"
)

// TestIntervals compares with a reference that asks of every microsecond which runs were
// active in it.
func TestIntervals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m meter.Meter
		var got []meter.Interval
		began, ended := map[string]int64{}, map[string]int64{}
		var order, active []string
		at := int64(0)
		keep := func(i meter.Interval, ok bool) {
			if ok {
				got = append(got, i)
			}
		}
		steps := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 40).Draw(t, "steps")
		for n, step := range steps {
			at += rapid.Int64Range(0, 5).Draw(t, "passes")
			switch {
			case step == 0 || step == 1 && len(active) == 0:
				id := fmt.Sprint("run", n)
				began[id] = at
				order, active = append(order, id), append(active, id)
				m.Begin(id, at)
			case step == 1 || step == 2 && len(active) > 0:
				k := rapid.IntRange(0, len(active)-1).Draw(t, "which")
				ended[active[k]] = at
				keep(m.End(active[k], at))
				active = slices.Delete(active, k, k+1)
			case step == 3:
				keep(m.Renew(at))
			}
		}
		for len(active) > 0 {
			at++
			ended[active[0]] = at
			keep(m.End(active[0], at))
			active = active[1:]
		}
		perRun, total := map[string]int64{}, int64(0)
		for us := range at {
			for _, id := range order { // the one that began first
				if began[id] <= us && us < ended[id] {
					perRun[id]++
					total++
					break
				}
			}
		}
		sum, last := int64(0), int64(0)
		sums := map[string]int64{}
		for _, i := range got {
			if i.From < last || i.To <= i.From {
				t.Fatalf("%+v overlaps what was before %d, or is empty", i, last)
			}
			last = i.To
			sum += i.To - i.From
			sums[i.RunID] += i.To - i.From
		}
		if sum != total {
			t.Fatalf("%d µs were active, the intervals have %d: %+v", total, sum, got)
		}
		for id, want := range perRun {
			if sums[id] != want {
				t.Fatalf("%s has %d µs, want %d: %+v", id, sums[id], want, got)
			}
		}
	})
}

// TestLateEnds: an end that is told late overlaps nothing.
func TestLateEnds(t *testing.T) {
	var m meter.Meter
	m.Begin("a", 10)
	m.Begin("b", 12)
	if i, ok := m.End("b", 30); !ok || i != (meter.Interval{RunID: "a", From: 10, To: 30}) {
		t.Fatalf("%+v, %v", i, ok)
	}
	if i, ok := m.End("a", 20); ok {
		t.Fatalf("%+v is counted twice", i)
	}
	m.Begin("c", 25) // before the last interval's end
	if i, ok := m.End("c", 40); !ok || i != (meter.Interval{RunID: "c", From: 30, To: 40}) {
		t.Fatalf("%+v, %v", i, ok)
	}
	if i, ok := m.End("nobody", 50); ok {
		t.Fatalf("%+v is of no run", i)
	}
	if i, ok := m.Renew(50); ok {
		t.Fatalf("%+v, though nothing is active", i)
	}
}

// TestCharge: the charges of parts are that of the whole, to the millionth.
func TestCharge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(0, 2_000_000).Draw(t, "rate")
		var sum, us, carried int64
		for _, part := range rapid.SliceOfN(rapid.Int64Range(0, 4_000_000_000), 1, 50).Draw(t, "parts") {
			var charge int64
			charge, carried = workbench.Charge(part, rate, carried)
			sum += charge
			us += part
		}
		if want, _ := workbench.Charge(us, rate, 0); sum != want || carried >= 1_000_000 {
			t.Fatalf("the parts cost %d, the whole %d", sum, want)
		}
	})
}

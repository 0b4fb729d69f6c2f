package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// contender is one way to run the hello of one language.
type contender struct {
	name     string
	language string
	peer     bool // not Workbench: fewer samples where it is slow
	few      bool // as if it were a slow peer
	// run does it once, untimed work before and after included, and returns how
	// long request to result took. It fails unless the hello came out right.
	run func(ctx context.Context) (time.Duration, error)
}

// chosen tells whether a contender is among those asked for.
func (o options) chosen(c contender) bool {
	return slices.ContainsFunc(strings.Split(o.only, ","), func(part string) bool {
		return strings.Contains(c.name+", "+c.language, part)
	})
}

// slowPeer is the median from which a peer gets fewer samples.
const slowPeer = 100 * time.Millisecond

// maxFailed is how many samples of a contender may fail. They show in its row
// and count for no time.
const maxFailed = 3

// warmUps are the untimed first runs of each contender: what is read from disk
// for the first time is nobody's merit. Their median tells slow peers.
const warmUps = 3

// measure lets all contenders take turns.
func measure(ctx context.Context, o options, all []contender) ([]row, error) {
	all = slices.DeleteFunc(all, func(c contender) bool { return !o.chosen(c) })
	want := make([]int, len(all))
	for i, c := range all {
		first := make([]time.Duration, warmUps)
		for j := range first {
			var err error
			if first[j], err = c.run(ctx); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", c.name, c.language, err)
			}
		}
		want[i] = o.samples
		if c.few || c.peer && percentile(sorted(first), 50) > slowPeer {
			want[i] = min(o.slowSamples, o.samples)
		}
	}
	took, failed := make([][]time.Duration, len(all)), make([]int, len(all))
	for round := range o.samples {
		if round%20 == 0 {
			progress("round %d of %d (load average %.1f)", round, o.samples, loadAverage())
		}
		for _, i := range rand.Perm(len(all)) {
			if !takesPart(round, want[i], o.samples) {
				continue
			}
			d, err := all[i].run(ctx)
			if err == nil {
				took[i] = append(took[i], d)
				continue
			}
			err = fmt.Errorf("%s, %s: %w", all[i].name, all[i].language, err)
			if failed[i]++; ctx.Err() != nil || failed[i] > maxFailed {
				return nil, err
			}
			progress("a sample failed: %v", err)
		}
	}
	rows := make([]row, len(all))
	for i, c := range all {
		rows[i] = rowOf(c.name, c.language, took[i])
		rows[i].Failed = failed[i]
	}
	return rows, nil
}

// takesPart spreads n samples evenly over all rounds.
func takesPart(round, n, rounds int) bool {
	return (round+1)*n/rounds > round*n/rounds
}

// percentile is the nearest-rank percentile of ascending samples.
func percentile(ascending []time.Duration, p int) time.Duration {
	if len(ascending) == 0 {
		return 0
	}
	return ascending[max(0, (len(ascending)*p+99)/100-1)]
}

func sorted(d []time.Duration) []time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d
}

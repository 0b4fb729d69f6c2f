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
	tail     bool // judged by its p99: more samples where there is time
	// run does it once, untimed work before and after included, and returns how
	// long request to result took. It fails unless the result came out right.
	run func(ctx context.Context) (time.Duration, error)
	// rest, where there is one, waits untimed until what run leaves to be done
	// is over, so that it is not at the cost of whoever is next.
	rest func(ctx context.Context) error
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
// and count for no time. With one more, the contender is out and its row says
// why; the others go on.
const maxFailed = 3

// warmUps are the untimed first runs of each contender: what is read from disk
// for the first time is nobody's merit. Their median tells slow peers.
const warmUps = 3

// racer is a contender with what it has done so far.
type racer struct {
	contender
	settle func(context.Context) error // where it has no rest of its own; may be nil
	want   int                         // samples
	took   []time.Duration
	failed int
	out    error // why it takes part no more
}

func (r *racer) once(ctx context.Context) (time.Duration, error) {
	d, err := r.run(ctx)
	if err == nil && r.rest != nil {
		err = r.rest(ctx)
	} else if err == nil && r.settle != nil {
		err = r.settle(ctx)
	}
	return d, err
}

// rounds is how many samples the contender with most of them gets.
func (o options) rounds() int { return max(o.samples, o.tailSamples) }

// warmUp finds out how many samples the contender gets.
func (r *racer) warmUp(ctx context.Context, o options) {
	first := make([]time.Duration, warmUps)
	for i := range first {
		if first[i], r.out = r.once(ctx); r.out != nil {
			progress("%s, %s takes no part: %v", r.name, r.language, r.out)
			return
		}
	}
	r.want = o.samples
	if r.tail {
		r.want = o.rounds()
	}
	if r.few || r.peer && percentile(sorted(first), 50) > slowPeer {
		r.want = min(o.slowSamples, o.samples)
	}
}

// sample takes one more.
func (r *racer) sample(ctx context.Context) {
	d, err := r.once(ctx)
	if err == nil {
		r.took = append(r.took, d)
		return
	}
	progress("a sample of %s, %s failed: %v", r.name, r.language, err)
	if r.failed++; r.failed > maxFailed {
		r.out = err
	}
}

// failedRow begins the words of a row whose contender is out.
const failedRow = "failed: "

func (r *racer) row() row {
	row := rowOf(r.name, r.language, r.took)
	row.Failed = r.failed
	if r.out != nil {
		row.NotMeasured = failedRow + r.out.Error()
	}
	return row
}

// measure lets all contenders take turns. An error is that of the context.
func measure(ctx context.Context, o options, all []contender) ([]row, error) {
	var racers []*racer
	for _, c := range all {
		if o.chosen(c) {
			r := &racer{contender: c, settle: o.settle}
			r.warmUp(ctx, o)
			racers = append(racers, r)
		}
	}
	rounds := o.rounds()
	for round := range rounds {
		if round%20 == 0 {
			progress("round %d of %d (load average %.1f)", round, rounds, loadAverage())
		}
		for _, i := range rand.Perm(len(racers)) {
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("interrupted: %w", err)
			}
			if r := racers[i]; r.out == nil && takesPart(round, r.want, rounds) {
				r.sample(ctx)
			}
		}
	}
	rows := make([]row, len(racers))
	for i, r := range racers {
		rows[i] = r.row()
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

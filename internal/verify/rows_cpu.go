package verify

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// Rows about CPU time.

// checkHog: processes on every core get no more than the promised share, and
// the wall limit ends them.
func checkHog(pin bool) func(context.Context, *scene) finding {
	return func(ctx context.Context, s *scene) finding {
		return s.storm(ctx, "H09", map[string]any{"pin": pin}, "spinning")
	}
}

func checkTimerStorm(ctx context.Context, s *scene) finding {
	return s.storm(ctx, "H12", map[string]any{}, "storming")
}

// storm runs a probe that wants all the CPU there is in a sandbox of slowCPUs,
// measures what it got, and how late the host's own timers are meanwhile.
func (s *scene) storm(ctx context.Context, probe string, params map[string]any, word string) finding {
	b, err := s.session(ctx, slowSession)
	if err != nil {
		return broke(err)
	}
	run, err := b.stormy(ctx, probe, params, word, 4*time.Second)
	if err != nil { // with its part of a busy host's CPU it may take that long to begin
		run, err = b.stormy(ctx, probe, params, word, 12*time.Second)
	}
	if err != nil {
		return broke(err)
	}
	const window = 1500 * time.Millisecond
	throttled := s.throttled(b)
	before, began := mustStats(ctx, b), time.Now()
	late := lateness(ctx, window)
	after, took := mustStats(ctx, b), time.Since(began)
	share := (after.CPU - before.CPU).Seconds() / took.Seconds()
	// Quotas are dealt out in periods of 100 ms: one more may fall in.
	if most := slowCPUs * (1 + 0.15/took.Seconds()) * 1.05; share > most {
		_ = run.exec.Cancel(ctx) // the next row measures too
		_, _ = run.wait(ctx)
		return failed("it used %.2f CPUs of %.2f", share, slowCPUs)
	}
	met := s.throttled(b) > throttled
	out, err := run.wait(ctx)
	if err != nil {
		return broke(err)
	}
	if v, err := out.verdict(); err == nil {
		return failed("%s", v.Why)
	}
	if out.Reason != workbench.ReasonTimeout {
		return failed("it ended by %q, exit %d: %s", out.Reason, out.ExitCode, lastBytes(out.stderr, 300))
	}
	if !met {
		return errorf("it used %.2f CPUs and never met the bound of %.2f: this host is too busy to show it", share, slowCPUs)
	}
	if late > 250*time.Millisecond {
		// A host that is as late by itself says nothing of the storm.
		if calm := lateness(ctx, window); late > calm+250*time.Millisecond {
			return failed("timers of the host were up to %v late, and %v without it", late, calm)
		}
	}
	return proved("%.2f CPUs of %.2f used on %d cores; ended by the wall limit; the host's timers at most %v late (p99)", share, slowCPUs, runtime.NumCPU(), late.Round(100*time.Microsecond))
}

// stormy begins such a probe under a wall limit and waits until it has begun.
func (b *session) stormy(ctx context.Context, probe string, params map[string]any, word string, limit time.Duration) (*running, error) {
	params["seconds"] = (limit + 2*time.Second).Seconds()
	r, err := b.probeRequest(probe, params)
	if err != nil {
		return nil, err
	}
	r.Timeout, r.Grace = limit, 100*time.Millisecond
	run, err := b.begin(ctx, r)
	if err != nil {
		return nil, err
	}
	return run, run.hears(ctx, word)
}

func mustStats(ctx context.Context, b *session) sandbox.Stats {
	stats, err := b.box.Stats(ctx)
	if err != nil {
		return sandbox.Stats{CPU: -1}
	}
	return stats
}

// lateness is how late this process's timers fire, at the 99th percentile.
func lateness(ctx context.Context, during time.Duration) time.Duration {
	var late []time.Duration
	for end := time.Now().Add(during); time.Now().Before(end); {
		began := time.Now()
		if sleep(ctx, 2*time.Millisecond) != nil {
			break
		}
		late = append(late, time.Since(began)-2*time.Millisecond)
	}
	if len(late) == 0 {
		return 0
	}
	slices.Sort(late)
	return late[len(late)*99/100]
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
)

// burstOf is how many sessions are made at once.
const burstOf = 50

// burst makes many sessions at once, each with its first result, and compares
// the slowest with the processor time that so many take one after the other.
func (w *world) burst(ctx context.Context, o options) ([]row, []figure, error) {
	work, err := w.workOfOne(ctx, o.slowSamples)
	if err != nil {
		return nil, nil, err
	}
	if err := w.rest(ctx); err != nil {
		return nil, nil, err
	}
	took, errs := make([]time.Duration, burstOf), make([]error, burstOf)
	var wg sync.WaitGroup
	for i := range burstOf {
		wg.Go(func() { took[i], errs[i] = w.newSession(ctx, workbench.Python) })
	}
	wg.Wait()
	var good []time.Duration
	failed := 0
	for i, err := range errs {
		if err == nil {
			good = append(good, took[i])
			continue
		}
		failed++
		progress("a session of the burst failed: %v", err)
	}
	r := rowOf(nameBurst, string(workbench.Python), good)
	r.Failed = failed
	return []row{r}, []figure{
		{Name: nameWork, Value: ms(work), Unit: "ms", Samples: o.slowSamples, Note: "processor time of the host, from creation to the refilled pool; a busy host adds its own"},
		{Name: nameWorkPerCore, Value: ms(work) * burstOf / float64(runtime.NumCPU()), Unit: "ms", Samples: o.slowSamples, Note: fmt.Sprintf("%d × that ÷ %d cores", burstOf, runtime.NumCPU())},
		{Name: nameBurstFailed, Value: float64(failed), Samples: burstOf},
	}, w.refilled(ctx)
}

// workOfOne is the processor time of making a session, its first result, its
// end, and the sandbox that takes the place of the one it had.
func (w *world) workOfOne(ctx context.Context, n int) (time.Duration, error) {
	if err := w.rest(ctx); err != nil {
		return 0, err
	}
	before, err := processorTime()
	if err != nil {
		return 0, err
	}
	for range n {
		if _, err := w.newSession(ctx, workbench.Python); err != nil {
			return 0, err
		}
		if err := w.refilled(ctx); err != nil {
			return 0, err
		}
	}
	after, err := processorTime()
	return (after - before) / time.Duration(n), err
}

// processorTime is what the host's processors have worked since it started.
func processorTime() (time.Duration, error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := bytes.Cut(raw, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 9 || string(f[0]) != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	var ticks int64
	for i, value := range f[1:9] {
		if i == 3 || i == 4 || i == 7 { // idle, waiting for a disk, stolen
			continue
		}
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

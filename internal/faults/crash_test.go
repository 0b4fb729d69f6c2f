package faults_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
)

// The server is killed at failpoints that the scenario passes, at any of their
// first hits, one by one, and started again, and the clients go on: a few
// places, and in the long form all. Failpoints that only a new directory passes
// are tried on one.
func TestKillAtAnyHit(t *testing.T) {
	t.Parallel()
	w := mustWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.mustKey(ctx)
	if err := w.scenario(ctx, "dry", nil); err != nil {
		t.Fatalf("the scenario does not even run without faults: %v\n%s", err, w.log())
	}
	type place struct {
		name string
		hit  int
	}
	var all []place
	for name, hits := range w.mustHits() {
		if timed(name) {
			hits = 1
		}
		for n := range min(4, hits) {
			all = append(all, place{name, n + 1})
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	slices.SortFunc(all, func(a, b place) int { return cmp.Or(cmp.Compare(a.name, b.name), a.hit-b.hit) })
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if os.Getenv("WORKBENCH_SOAK") == "" {
		all = all[:2]
	}
	places := make(chan place, len(all))
	for _, p := range all {
		places <- p
	}
	close(places)
	var shards sync.WaitGroup
	for range max(1, min(3, len(all)/4)) { // worlds that share the places; three keep two cores busy
		w := mustWorld(t)
		shards.Go(func() {
			for p := range places {
				t.Run(fmt.Sprintf("%s@%d", p.name, p.hit), func(t *testing.T) { killAt(t, w, p.name, p.hit) })
			}
		})
	}
	shards.Wait()
}

// timed reports whether a timer or the pace of a program has a say in how often
// the scenario passes a failpoint: not every run of it passes it twice.
func timed(failpoint string) bool {
	for _, prefix := range []string{"store.lease.", "store.engine.", "store.append_log.", "engine.log."} {
		if strings.HasPrefix(failpoint, prefix) {
			return true
		}
	}
	return false
}

func killAt(t *testing.T, w *world, name string, n int) {
	at := fmt.Sprintf("%s=exit@%d", name, n)
	w.on(t).stop()
	if w.killedAt(at, strings.ReplaceAll(name, ".", "-")+"-"+strconv.Itoa(n)) {
		return
	}
	fresh := mustWorldAt(t, at)
	if !fresh.killedAt("", "fresh") {
		t.Fatal("the server passes this failpoint neither on this directory nor on a new one")
	}
}

// killedAt runs the scenario on a server with failpoints (none: the one that
// runs), restarts it when it dies, checks everything and reports whether it
// died.
func (w *world) killedAt(failpoints, name string) bool {
	w.t.Helper()
	if failpoints != "" {
		w.mustStart(failpoints)
	}
	before := w.started()
	watch, stopWatching := context.WithCancel(w.t.Context())
	var watcher sync.WaitGroup
	watcher.Go(func() { w.supervise(watch) })
	ctx, cancel := context.WithTimeout(w.t.Context(), 90*time.Second)
	defer cancel()
	if w.key == "" {
		w.mustKey(ctx)
	}
	if err := w.scenario(ctx, name, func() bool { return w.died(before) }); err != nil {
		w.t.Errorf("%v\n%s", err, w.log())
	}
	stopWatching()
	watcher.Wait()
	w.check(ctx)
	return w.died(before)
}

// mustHits counts the failpoints passed so far, by name.
func (w *world) mustHits() map[string]int {
	w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, "failpoints"))
	if err != nil {
		w.t.Fatal(err)
	}
	hits := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "exit ") {
			hits[strings.TrimSpace(line)]++
		}
	}
	return hits
}

// The server is killed at random moments while several clients work.
func TestKillAtRandomMoments(t *testing.T) {
	t.Parallel()
	kills := 40
	if os.Getenv("WORKBENCH_SOAK") != "" {
		kills = 1000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := mustWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(kills)*10*time.Second)
	defer cancel()
	w.mustKey(ctx)
	load, endLoad := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for i := range 3 {
		clients.Go(func() {
			for round := 0; load.Err() == nil; round++ {
				err := w.scenario(ctx, fmt.Sprintf("client%d-round%d", i, round), nil)
				if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
					t.Errorf("client %d: %v", i, err)
					return
				}
			}
		})
	}
	for range kills {
		select {
		case <-time.After(time.Duration(random.IntN(900)) * time.Millisecond):
		case <-ctx.Done():
		}
		w.kill()
		w.mustStart("")
	}
	endLoad()
	clients.Wait()
	w.check(ctx)
	w.mu.Lock()
	counts := map[workbench.Status]int{}
	for _, r := range w.runs {
		counts[r.last.Status]++
	}
	w.mu.Unlock()
	t.Logf("%d kills, %d runs: %v", kills, len(w.runs), counts)
	w.stop()
	w.checkNothingLeft()
	w.mustStart("") // for the cleanup
}

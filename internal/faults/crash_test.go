package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// scenario is what one client does: every kind of write the server makes.
func (w *world) scenario(ctx context.Context, name string) error {
	c := w.client(w.key)
	s, err := again(ctx, func() (workbench.Session, error) {
		return c.CreateAgentSession(ctx, sdk.CreateSession{Agent: name})
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	content := []byte("input of " + name)
	up, err := again(ctx, func() (workbench.Artifact, error) {
		return c.UploadSessionArtifact(ctx, s.ID, sdk.Upload{Name: "in.txt"}, bytes.NewReader(content))
	})
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	w.mu.Lock()
	w.files[up.ID] = digest(content)
	w.mu.Unlock()
	code := `tr a-z A-Z < in.txt; for i in 1 2 3 4; do echo "$i"; sleep 0.03; done; echo kept > out.txt; workbench save out.txt`
	first, err := w.submit(ctx, c, s.ID, name+"-1", code, up.ID)
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	second, err := w.submit(ctx, c, s.ID, name+"-2", "cat out.txt; echo second")
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	third, err := w.submit(ctx, c, s.ID, name+"-3", "sleep 30")
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	for _, run := range []string{first, second} {
		if _, err := w.wait(ctx, c, run); err != nil {
			return fmt.Errorf("wait: %w", err)
		}
	}
	if _, err := again(ctx, func() (workbench.Run, error) { return c.CancelRun(ctx, third) }); err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	if _, err := w.wait(ctx, c, third); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if _, err := again(ctx, func() (workbench.Session, error) {
		return c.RestartAgentSession(ctx, s.ID, sdk.RestartSession{Artifacts: []workbench.ArtifactSelect{{ID: up.ID}}, CancelActive: true})
	}); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	fourth, err := w.submit(ctx, c, s.ID, name+"-4", "cat in.txt; ls")
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	if _, err := w.wait(ctx, c, fourth); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	_, err = again(ctx, func() (workbench.Session, error) { return c.CloseAgentSession(ctx, s.ID) })
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// check holds the properties over the history and the final state.
func (w *world) check(ctx context.Context) {
	w.t.Helper()
	c := w.client(w.key)
	w.mu.Lock()
	runs := make(map[string]workbench.Status, len(w.runs))
	for id, status := range w.runs {
		runs[id] = status
	}
	w.mu.Unlock()
	for id := range runs {
		r, err := again(ctx, func() (workbench.Receipt, error) { return c.GetRun(ctx, id, 0) })
		if err != nil {
			w.t.Errorf("P1: run %s was accepted and is gone: %v", id, err)
			continue
		}
		w.saw(r)
		if !r.Status.Terminal() {
			w.t.Errorf("P14: run %s is still %s after the drain", id, r.Status)
		}
		w.checkFiles(ctx, c, r.Artifacts)
	}
	for id, want := range w.files {
		got, err := c.ReadSessionArtifact(ctx, id)
		if err != nil || digest(got) != want {
			w.t.Errorf("P9: artifact %s: %v, digest %s, want %s", id, err, digest(got), want)
		}
	}
	w.checkOracle()
	w.checkEvents(ctx, c, runs)
}

func (w *world) checkFiles(ctx context.Context, c *sdk.Client, files []workbench.Artifact) {
	for _, a := range files {
		got, err := c.ReadSessionArtifact(ctx, a.ID)
		if err != nil || digest(got) != a.SHA256 || int64(len(got)) != a.Size {
			w.t.Errorf("P9: listed file %s is not whole: %v", a.ID, err)
		}
	}
}

// checkOracle: no step's code left twice.
func (w *world) checkOracle() {
	raw, err := os.ReadFile(filepath.Join(w.dir, "oracle"))
	if err != nil {
		w.t.Errorf("the oracle has nothing: %v", err)
		return
	}
	started := map[string]int{}
	for _, id := range strings.Fields(string(raw)) {
		if started[id]++; started[id] > 1 {
			w.t.Errorf("P3: %s was handed to a runtime %d times", id, started[id])
		}
	}
	for id, status := range w.runs {
		if status == workbench.StatusSucceeded && started[id] != 1 {
			w.t.Errorf("P3: %s succeeded and was handed out %d times", id, started[id])
		}
	}
}

// checkEvents: the log of each run has no gap, its output is the receipt's, and
// it has one terminal entry, the last.
func (w *world) checkEvents(ctx context.Context, c *sdk.Client, runs map[string]workbench.Status) {
	for id := range runs {
		var out []byte
		last, terminals := int64(0), 0
		for e, err := range c.Events(ctx, id, 0) {
			if err != nil {
				w.t.Errorf("events of %s: %v", id, err)
				break
			}
			if e.Seq != last+1 {
				w.t.Errorf("P8: %s: event %d follows %d", id, e.Seq, last)
			}
			last = e.Seq
			if e.Kind == workbench.LogTerminal {
				terminals++
			}
			if e.Kind == workbench.LogOutput && e.Stream == workbench.Stdout {
				b, err := e.Bytes()
				if err != nil || e.Offset != int64(len(out)) {
					w.t.Errorf("P8: %s: output at %d after %d bytes (%v)", id, e.Offset, len(out), err)
				}
				out = append(out, b...)
			}
		}
		if terminals != 1 {
			w.t.Errorf("%s has %d terminal events", id, terminals)
		}
		if got := w.prefixes[id]; got != string(out) {
			w.t.Errorf("P8: %s: receipt says %q, events %q", id, got, out)
		}
	}
}

// checkNothingLeft: once the server stopped, nothing of its instance is there.
func (w *world) checkNothingLeft() {
	w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, "data", "instance"))
	if err != nil {
		w.t.Fatal(err)
	}
	instance := strings.TrimSpace(string(raw))
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		if cmdline, err := os.ReadFile(p); err == nil && bytes.Contains(cmdline, []byte(instance)) {
			w.t.Errorf("P7: process left: %s", bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}))
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), "sbx_") && strings.Contains(path, instance) {
			w.t.Errorf("P7: cgroup left: %s", path)
		}
		return nil
	})
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil && bytes.Contains(mounts, []byte(instance)) {
		w.t.Error("P7: a mount is left")
	}
}

// Every failpoint that the scenario passes, at its first hits, once: the server
// is killed there, started again, and the clients go on. Failpoints that only a
// new directory passes are tried on one.
func TestKillAtEveryFailpoint(t *testing.T) {
	w := mustWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.mustKey(ctx)
	if err := w.scenario(ctx, "dry"); err != nil {
		t.Fatalf("the scenario does not even run without faults: %v\n%s", err, w.log())
	}
	hits := w.mustHits()
	depth := 1
	if os.Getenv("WORKBENCH_SOAK") != "" {
		depth = 4
	}
	names := slices.Sorted(maps.Keys(hits))
	if len(names) < 40 {
		t.Fatalf("the scenario passes only %d failpoints: %v", len(names), names)
	}
	var killed atomic.Int64
	t.Run("at", func(t *testing.T) { // returns when all shards have ended
		for shard := range shards {
			t.Run(strconv.Itoa(shard), func(t *testing.T) {
				t.Parallel()
				w := mustWorld(t)
				for i, name := range names {
					for n := 1; i%shards == shard && n <= min(depth, hits[name]); n++ {
						t.Run(name+"@"+strconv.Itoa(n), func(t *testing.T) {
							killAt(t, w, name, n)
							killed.Add(1)
						})
					}
				}
			})
		}
	})
	t.Logf("killed at %d failpoints: %v", killed.Load(), names)
}

// shards is how many worlds share the failpoints; each is a server of its own.
const shards = 3

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
	before := w.starts
	watch, stopWatching := context.WithCancel(w.t.Context())
	var watcher sync.WaitGroup
	watcher.Go(func() { w.supervise(watch) })
	ctx, cancel := context.WithTimeout(w.t.Context(), 90*time.Second)
	defer cancel()
	if w.key == "" {
		w.mustKey(ctx)
	}
	if err := w.scenario(ctx, name); err != nil {
		w.t.Errorf("%v\n%s", err, w.log())
	}
	stopWatching()
	watcher.Wait()
	w.check(ctx)
	return w.starts > before || w.deaths > 0
}

// mustHits counts the failpoints passed so far, by name.
func (w *world) mustHits() map[string]int {
	w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, "failpoints"))
	if err != nil {
		w.t.Fatal(err)
	}
	hits := map[string]int{}
	for _, name := range strings.Fields(string(raw)) {
		hits[name]++
	}
	return hits
}

// The server is killed at random moments while several clients work.
func TestKillAtRandomMoments(t *testing.T) {
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
				err := w.scenario(ctx, fmt.Sprintf("client%d-round%d", i, round))
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
	for _, status := range w.runs {
		counts[status]++
	}
	w.mu.Unlock()
	t.Logf("%d kills, %d runs: %v", kills, len(w.runs), counts)
	w.stop()
	w.checkNothingLeft()
	w.mustStart("") // for the cleanup
}

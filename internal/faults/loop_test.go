package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// Sessions are created, used, suspended and closed while the server is killed
// every few seconds: nothing is lost that was told, no cell runs on variables
// that are not there, and nothing is left over. In the long form the kills come
// in bursts, so that in between sessions go and come with their memory.
func TestKillWhileSessionsLive(t *testing.T) {
	t.Parallel()
	sessions, rounds, calm, resumed := 5, 4, time.Duration(0), 0
	if os.Getenv("WORKBENCH_SOAK") != "" {
		sessions, rounds, calm, resumed = 200, 12, 40*time.Second, 50
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := mustWorldAt(t, "", "-warm=1", "-suspend-after=700ms")
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(sessions)*time.Minute)
	defer cancel()
	w.mustKey(ctx)
	names := make(chan int, sessions)
	for i := range sessions {
		names <- i
	}
	close(names)
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			for i := range names {
				l := &life{w: w, c: w.client(w.key), name: fmt.Sprintf("s%d", i), keep: i%2 == 0, random: rand.New(rand.NewPCG(seed, uint64(i+1))),
					files: map[string]string{}, trees: map[string]tree{}, cells: map[workbench.Language]*counter{}}
				if err := l.live(ctx, rounds); err != nil {
					t.Errorf("session %d (%s): %v", i, l.id, err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); clients.Wait() }()
	kills := w.killUntil(done, random, calm)
	w.closeAll(ctx)
	w.checkRuns(ctx)
	t.Logf("%d kills, %d runs, of cells: %+v", kills, len(w.runs), w.cells)
	if w.cells.resumed < resumed {
		t.Errorf("%d cells found their variables in memory that was kept, want %d or more", w.cells.resumed, resumed)
	}
	w.stop()
	w.checkNothingLeft()
	w.checkDirectories()
	for _, problem := range danglingBlobs(ctx, t, filepath.Join(w.dir, "data")) {
		t.Error(problem)
	}
	w.mustStart("") // for the cleanup
}

// killUntil kills the server every few seconds until done, and after every few
// kills leaves it alone for a time.
func (w *world) killUntil(done <-chan struct{}, random *rand.Rand, calm time.Duration) (kills int) {
	const burst = 5
	for {
		wait := 2*time.Second + time.Duration(random.IntN(3000))*time.Millisecond
		if kills%burst == 0 {
			wait += calm
		}
		select {
		case <-done:
			return kills
		case <-time.After(wait):
			w.kill()
			w.mustStart("")
			kills++
		}
	}
}

func (w *world) count(add func(*tally)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	add(&w.cells)
}

// closeAll closes the sessions whose creation was repeated because its answer
// was lost.
func (w *world) closeAll(ctx context.Context) {
	w.t.Helper()
	c := w.client(w.key)
	for {
		page, err := c.ListAgentSessions(ctx, sdk.SessionFilter{State: workbench.SessionActive}, workbench.Page{})
		if err != nil {
			w.t.Fatal(err)
		}
		if len(page.Items) == 0 {
			return
		}
		for _, s := range page.Items {
			if _, err := c.CloseAgentSession(ctx, s.ID); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// checkDirectories: what a server that stopped leaves of its instance is its
// data, and in it no live memory and no blob half written.
func (w *world) checkDirectories() {
	w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, "data", "instance"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, pattern := range []string{
		filepath.Join("/run/workbench", strings.TrimSpace(string(raw)), "*", "sbx_*"),
		filepath.Join("/run/workbench", strings.TrimSpace(string(raw)), "*", "*", "sbx_*"),
		filepath.Join(w.dir, "data", "memory", "*"),
		filepath.Join(w.dir, "data", "blobs", "tmp", "*"),
	} {
		left, err := filepath.Glob(pattern)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, path := range left {
			w.t.Errorf("P7: left over: %s", path)
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), w.dir) {
		w.t.Errorf("P7: a mount is left below %s (%v)", w.dir, err)
	}
}

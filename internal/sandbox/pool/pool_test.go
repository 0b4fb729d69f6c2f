package pool_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/pool"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// world is a pool over a real driver that can be broken, with places that are
// counted.
type world struct {
	*pool.Pool
	driver
	kind         pool.Kind
	places       atomic.Int64 // taken
	most         int64
	hits, misses atomic.Int64
	warm         atomic.Int64
	vessels      atomic.Int64
	fail         atomic.Bool  // Start does
	failClass    atomic.Int64 // and of classes with as many tasks
}

func (w *world) Claimed(hit bool) {
	if hit {
		w.hits.Add(1)
	} else {
		w.misses.Add(1)
	}
}

func (w *world) Warm(n, vessels int) { w.warm.Store(int64(n)); w.vessels.Store(int64(vessels)) }

// driver is the real one, under another name: a pool has a Close of its own.
type driver struct {
	sandbox.Driver
	broken *atomic.Bool
	class  *atomic.Int64
}

func (w driver) Start(ctx context.Context, c sandbox.Class) (sandbox.Sandbox, error) {
	if w.broken.Load() || int64(c.Tasks) == w.class.Load() {
		return nil, errors.New("broken")
	}
	return w.Driver.Start(ctx, c)
}

func (w driver) Vessel(ctx context.Context, c sandbox.Class) (sandbox.Sandbox, error) {
	return w.Driver.(sandbox.Restorer).Vessel(ctx, c)
}

func (w driver) Restore(ctx context.Context, c sandbox.Class, dir string, vessel sandbox.Sandbox) (sandbox.Sandbox, error) {
	return w.Driver.(sandbox.Restorer).Restore(ctx, c, dir, vessel)
}

func (w *world) reserve() bool {
	if w.places.Add(1) > w.most {
		w.places.Add(-1)
		return false
	}
	return true
}

// mustWorld is a pool with places for so many sandboxes.
func mustWorld(t *testing.T, most int64) *world {
	t.Helper()
	env := sandboxtest.MustEnv(t)
	d, err := oci.Open(oci.Options{Kind: oci.Runsc, Instance: sandboxtest.NewInstance(), Binary: env.Runsc, Guest: env.Guest, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{most: most}
	w.driver = driver{Driver: d, broken: &w.fail, class: &w.failClass}
	class := sandboxtest.Standard(env.Image)
	w.kind = pool.Kind{Class: class, Limits: guestwire.SandboxLimits{MemoryBytes: class.MemoryBytes, WorkspaceBytes: class.WorkspaceBytes,
		WorkspaceInodes: class.WorkspaceInodes, ScratchBytes: class.ScratchBytes, Tasks: class.Tasks, OpenFiles: sandboxtest.OpenFiles, CPUs: class.CPUs}}
	w.Pool = pool.New(pool.Options{Driver: w.driver, Reserve: w.reserve, Release: func() { w.places.Add(-1) }, Metrics: w})
	t.Cleanup(func() {
		w.Close()
		if n := w.sandboxes(t); n != 0 {
			t.Errorf("%d sandboxes are left after Close", n)
		}
		if n := w.places.Load(); n != 0 {
			t.Errorf("%d places are still taken after Close", n)
		}
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) sandboxes(t *testing.T) int {
	t.Helper()
	all, err := w.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// await waits until n are warm.
func (w *world) await(t *testing.T, n int64) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); w.warm.Load() != n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d sandboxes are warm, want %d", w.warm.Load(), n)
		}
	}
}

// use binds a claimed sandbox, runs something in it and ends it.
func (w *world) use(t *testing.T, c *pool.Warm) {
	t.Helper()
	if c == nil {
		t.Fatal("no warm sandbox")
	}
	if _, err := c.Wire.Bind(t.Context(), guestwire.BindRequest{SessionNonce: "s", Seed: make([]byte, 32), Limits: w.kind.Limits}); err != nil {
		t.Fatal(err)
	}
	s := &sandboxtest.Session{Sandbox: c.Box, Client: c.Wire}
	if out := s.MustPrint(t, "print(6*7)"); out != "42" && out != "42\n" {
		t.Errorf("stdout %q, want 42", out)
	}
	w.drop(t, c)
}

// drop ends a claimed sandbox and gives its place back.
func (w *world) drop(t *testing.T, c *pool.Warm) {
	t.Helper()
	_ = c.Wire.Close()
	if err := c.Box.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	w.places.Add(-1)
}

func TestPoolRefills(t *testing.T) {
	w := mustWorld(t, 8)
	if w.Claim(w.kind) != nil || w.misses.Load() != 0 {
		t.Error("a kind that nobody keeps is no miss")
	}
	w.Keep("standard", w.kind, 2)
	w.await(t, 2)
	seen := map[string]bool{}
	for range 3 {
		c := w.Claim(w.kind)
		w.use(t, c)
		if seen[c.Box.ID()] {
			t.Error("a sandbox came back")
		}
		seen[c.Box.ID()] = true
		w.await(t, 2)
	}
	other := w.kind
	other.Limits.Tasks--
	if w.Claim(other) != nil {
		t.Error("a sandbox of another kind was handed out")
	}
	if h, m := w.hits.Load(), w.misses.Load(); h != 3 || m != 0 {
		t.Errorf("%d hits, %d misses; want 3 and 0", h, m)
	}
}

func TestPoolEmpty(t *testing.T) {
	w := mustWorld(t, 8)
	w.Keep("standard", w.kind, 1)
	w.await(t, 1)
	w.fail.Store(true) // nothing takes its place meanwhile
	c := w.Claim(w.kind)
	if w.Claim(w.kind) != nil || w.misses.Load() != 1 {
		t.Error("an empty pool hands out nothing and counts a miss")
	}
	w.fail.Store(false)
	w.use(t, c)
}

func TestPoolYields(t *testing.T) {
	w := mustWorld(t, 2)
	w.Keep("standard", w.kind, 3) // one more than there are places
	w.await(t, 2)
	w.fail.Store(true) // nothing takes its place meanwhile
	if !w.Yield() || w.warm.Load() != 1 {
		t.Error("a sandbox makes room when asked")
	}
	if n := w.sandboxes(t); n != 1 {
		t.Errorf("%d sandboxes after one made room, want 1", n)
	}
	w.fail.Store(false)
	w.await(t, 2)
}

func TestPoolReplacesWhatDied(t *testing.T) {
	w := mustWorld(t, 8)
	w.Keep("standard", w.kind, 1)
	w.await(t, 1)
	all, err := w.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if err := w.Kill(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	var c *pool.Warm
	for deadline := time.Now().Add(30 * time.Second); c == nil && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		c = w.Claim(w.kind)
	}
	if c != nil && c.Box.ID() == all[0].ID {
		t.Error("a dead sandbox was handed out")
	}
	w.use(t, c)
}

func TestPoolFollowsItsKind(t *testing.T) {
	w := mustWorld(t, 8)
	w.Keep("standard", w.kind, 1)
	w.await(t, 1)
	was := w.kind
	w.kind.Class.Tasks, w.kind.Limits.Tasks = 32, 32
	w.Keep("standard", w.kind, 1)
	w.await(t, 1)
	if w.Claim(was) != nil {
		t.Error("a sandbox of the earlier kind was handed out")
	}
	w.use(t, w.Claim(w.kind))
	w.await(t, 1)
	w.Keep("standard", w.kind, 0)
	w.await(t, 0)
}

func TestPoolOutlastsABrokenDriver(t *testing.T) {
	w := mustWorld(t, 8)
	w.fail.Store(true)
	w.Keep("standard", w.kind, 1)
	time.Sleep(100 * time.Millisecond)
	if n := w.places.Load(); n != 0 {
		t.Errorf("%d places taken by failed starts", n)
	}
	w.fail.Store(false)
	w.await(t, 1)
}

// TestPoolGoesOnBesideAKindThatDoesNotStart: what cannot be started keeps no
// other kind from being ready, however often it is wanted.
func TestPoolGoesOnBesideAKindThatDoesNotStart(t *testing.T) {
	w := mustWorld(t, 8)
	other := w.kind
	other.Class.Tasks--
	w.failClass.Store(int64(other.Class.Tasks))
	w.Keep("other", other, 1)
	w.Keep("standard", w.kind, 2)
	w.await(t, 2)
	w.drop(t, w.Claim(w.kind))
	w.await(t, 2)
	w.failClass.Store(-1)
	w.await(t, 3)
}

// TestPoolKeepsVessels: one for each kind that is named, which counts neither as
// warm nor as hit, and is the first to make room.
func TestPoolKeepsVessels(t *testing.T) {
	w := mustWorld(t, 3)
	vessel, other := pool.Kind{Class: w.kind.Class, Vessel: true}, pool.Kind{Class: w.kind.Class, Vessel: true}
	other.Class.Tasks--
	mustClaim := func(k pool.Kind) *pool.Warm {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if c := w.Claim(k); c != nil {
				return c
			}
		}
		t.Fatal("no vessel")
		return nil
	}
	drop := func(c *pool.Warm) {
		t.Helper()
		if err := c.Box.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		w.places.Add(-1)
	}
	w.Keep("standard", w.kind, 1)
	w.await(t, 1)
	w.KeepVessels([]pool.Kind{vessel, other})
	for range 2 { // it is replaced
		drop(mustClaim(vessel))
	}
	mustTake := mustClaim(other)
	w.use(t, w.Claim(w.kind))
	drop(mustTake)
	w.await(t, 1)
	for deadline := time.Now().Add(30 * time.Second); w.vessels.Load() != 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d vessels, want 2", w.vessels.Load())
		}
	}
	if h, m, n := w.hits.Load(), w.misses.Load(), w.warm.Load(); h != 1 || m != 0 || n != 1 {
		t.Errorf("%d hits, %d misses, %d warm; want 1, 0 and 1", h, m, n)
	}
	w.Yield()
	if n := w.warm.Load(); n != 1 {
		t.Errorf("%d warm after one made room, want 1: a vessel goes first", n)
	}
	w.KeepVessels(nil)
	for deadline := time.Now().Add(30 * time.Second); w.places.Load() != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d places are taken by what nobody wants, want 1", w.places.Load())
		}
	}
	if w.Claim(vessel) != nil || w.Claim(other) != nil {
		t.Error("a vessel that nobody wants was handed out")
	}
}

package oci_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

func TestLife(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		o := options(t, kind)
		d := MustOpen(t, o)
		c := class(t)

		t.Run("info is honest", func(t *testing.T) {
			info, err := d.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := map[oci.Kind]sandbox.Strength{oci.Runsc: sandbox.StrengthHostile, oci.Runc: sandbox.StrengthShared}
			if info.Strength != want[kind] || info.Isolation == "" || info.Version == "" || len(info.Warnings) != 0 {
				t.Errorf("got %+v", info)
			}
		})
		t.Run("kill leaves nothing", func(t *testing.T) {
			g := MustStart(t, d, c)
			if got := sandboxtest.Leftovers(g.ID()); len(got) == 0 {
				t.Fatal("nothing carries the id of a sandbox that runs: the check below would pass vacuously")
			}
			if err := g.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			sandboxtest.MustNothingLeft(t, g.ID(), 0)
			if exit := MustEnd(t, g, 0); exit.Reason != sandbox.ExitKilled || !strings.Contains(exit.Stderr, "standin: up") {
				t.Errorf("exit %+v, want killed and the guest's log line", exit)
			}
			if err := g.Kill(t.Context()); err != nil {
				t.Errorf("a second kill: %v", err)
			}
			if n, err := g.Stream().Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("the stream of a killed sandbox read %d bytes, %v", n, err)
			}
			if _, err := d.Attach(t.Context(), g.ID()); !workbench.HasCode(err, workbench.CodeNotFound) {
				t.Errorf("attach: got %v, want not_found", err)
			}
		})
		t.Run("a kill whose caller has given up is carried out", func(t *testing.T) {
			g := MustStart(t, d, c)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := g.Kill(ctx); err != nil {
				t.Errorf("kill: %v", err)
			}
			sandboxtest.MustNothingLeft(t, g.ID(), 0)
		})
		t.Run("the guest leaves", func(t *testing.T) {
			g := MustStart(t, d, c)
			fmt.Fprintln(g.Stream(), "exit 7")
			if exit := MustEnd(t, g, 30*time.Second); exit.Reason != sandbox.ExitGuestLeft {
				t.Errorf("exit %+v, want guest_left", exit)
			}
			if err := g.Pause(t.Context()); !workbench.HasCode(err, workbench.CodeSandboxLost) {
				t.Errorf("pause: got %v, want sandbox_lost", err)
			}
			MustKill(t, g)
		})
		t.Run("the guest sees the end of its input", func(t *testing.T) {
			g := MustStart(t, d, c)
			if err := g.Stream().Close(); err != nil {
				t.Fatal(err)
			}
			MustEnd(t, g, 30*time.Second)
			MustKill(t, g)
		})
		t.Run("its log is bounded", func(t *testing.T) {
			g := MustStart(t, d, c)
			g.Ask("noise 20000")
			MustKill(t, g)
			exit := g.Exit()
			if len(exit.Stderr) > 17<<10 || !strings.Contains(exit.Stderr, "noise 19999") || strings.Contains(exit.Stderr, "noise 100\n") {
				t.Errorf("kept %d bytes, want the last 16 KiB", len(exit.Stderr))
			}
		})
		t.Run("pause stops everything until resume", func(t *testing.T) { testPause(t, d, c) })
		t.Run("many at once, and close ends them", func(t *testing.T) { testClose(t, kind, c) })
	})
}

func testPause(t *testing.T, d *oci.Driver, c sandbox.Class) {
	g := MustStart(t, d, c)
	fmt.Fprintln(g.Stream(), "spin 400")
	time.Sleep(100 * time.Millisecond)
	for range 2 { // idempotent
		if err := g.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if h := MustHandle(t, d, g.ID()); h.State != sandbox.StatePaused || !h.Owned || h.Class != c {
		t.Errorf("listed as %+v, want paused, owned, of its class", h)
	}
	before := MustStats(t, g).CPU
	time.Sleep(300 * time.Millisecond)
	if used := MustStats(t, g).CPU - before; used > 2*time.Millisecond {
		t.Errorf("a paused sandbox used %v of CPU", used)
	}
	for range 2 {
		if err := g.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := g.line(); got != "spun" {
		t.Errorf("after resume the guest said %q, want spun", got)
	}
	if err := g.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	MustKill(t, g) // also while paused
}

func testClose(t *testing.T, kind oci.Kind, c sandbox.Class) {
	o := options(t, kind)
	d := MustOpen(t, o)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := d.Start(t.Context(), c); err != nil {
				t.Errorf("start: %v", err)
			}
		})
	}
	wg.Wait()
	handles, err := d.List(t.Context())
	if err != nil || len(handles) != 6 {
		t.Errorf("listed %d, %v; want 6", len(handles), err)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	sandboxtest.MustNothingLeft(t, o.Instance, 0)
	if _, err := d.Start(t.Context(), c); !workbench.HasCode(err, workbench.CodeUnavailable) {
		t.Errorf("start after close: got %v, want unavailable", err)
	}
}

// TestBounds meets the host's bounds on a whole sandbox, without a guest that
// would act before them.
func TestBounds(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		d := MustOpen(t, options(t, kind))
		c := class(t)
		t.Run("16 threads get one CPU", func(t *testing.T) {
			g := MustStart(t, d, c)
			defer MustKill(t, g)
			before, began := MustStats(t, g).CPU, time.Now()
			g.Ask("spin 2000")
			used, wall := MustStats(t, g).CPU-before, time.Since(began)
			if share := used.Seconds() / wall.Seconds(); share > 1.1 || share < 0.1 {
				t.Errorf("used %v in %v: %.2f CPUs, want at most 1, and some", used, wall, share)
			}
		})
		t.Run("memory beyond the bound ends it as out of memory", func(t *testing.T) {
			g := MustStart(t, d, c)
			fmt.Fprintln(g.Stream(), "eat 2000")
			exit := MustEnd(t, g, 20*time.Second)
			if exit.Reason != sandbox.ExitOutOfMemory || exit.Last.OOMKills < 1 {
				t.Errorf("exit %+v, want out_of_memory", exit)
			}
			if exit.Last.MemoryPeakBytes > exit.Last.MemoryLimit+1<<20 { // the kernel charges in batches
				t.Errorf("peak %d above the bound %d", exit.Last.MemoryPeakBytes, exit.Last.MemoryLimit)
			}
			MustKill(t, g)
			sandboxtest.MustNothingLeft(t, g.ID(), 0)
		})
		t.Run("what the class allows fits", func(t *testing.T) {
			g := MustStart(t, d, c)
			defer MustKill(t, g)
			if got := g.Ask("eat 384"); got != "eaten" { // memory, workspace and scratch together
				t.Errorf("got %q, want eaten", got)
			}
		})
	})
}

// TestNothingInherited is H70 and H111: neither a descriptor nor the environment
// of the server reaches a sandbox, or a process that serves one.
func TestNothingInherited(t *testing.T) {
	const canary = "canary-6d1f0a9b"
	t.Setenv("WORKBENCH_CANARY", canary)
	secret, err := os.CreateTemp(t.TempDir(), canary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { secret.Close() })
	// As a descriptor that the server itself inherited would be.
	if _, err := unix.FcntlInt(secret.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		g := MustStart(t, MustOpen(t, options(t, kind)), class(t))
		if got := g.Ask("env"); strings.Contains(got, canary) {
			t.Errorf("inside: %s", got)
		}
		fds := strings.Fields(g.Ask("ls /proc/self/fd"))
		// With runc the guest gets three of the control group for user code.
		given := slices.DeleteFunc(slices.Clone(fds), func(fd string) bool { return kind == oci.Runc && strings.Contains(fd, g.ID()+"/code/") })
		if len(given) != 4 || len(fds) > 7 { // three and the one that lists
			t.Errorf("inside: descriptors %v, want 0, 1, 2 and the listing's own", fds)
		}
		if info := g.Ask("cat /proc/self/mountinfo"); strings.Contains(info, canary) || strings.Contains(info, g.ID()) {
			t.Errorf("inside: mountinfo names the sandbox's own directory: %s", info)
		}
		serving := 0
		for _, pid := range processesOf(g.ID()) {
			serving++
			if raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); strings.Contains(string(raw), canary) {
				t.Errorf("process %d has the server's environment", pid)
			}
			entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
			for _, e := range entries {
				if target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); strings.Contains(target, canary) {
					t.Errorf("process %d has the server's descriptor %s", pid, target)
				}
			}
		}
		if serving == 0 {
			t.Error("found no process of the sandbox")
		}
	})
}

// processesOf finds the host's processes of a sandbox by their control group.
func processesOf(id string) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if raw, err := os.ReadFile("/proc/" + e.Name() + "/cgroup"); err == nil && strings.Contains(string(raw), id) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// TestHostIdentity is A13 seen from outside: no process of a sandbox is root on
// the host.
func TestHostIdentity(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		g := MustStart(t, MustOpen(t, options(t, kind)), class(t))
		for _, pid := range processesOf(g.ID()) {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				continue
			}
			for line := range strings.SplitSeq(string(raw), "\n") {
				if f := strings.Fields(line); len(f) == 5 && (f[0] == "Uid:" || f[0] == "Gid:") && (f[1] == "0" || f[2] == "0") {
					t.Errorf("process %d is root on the host: %s", pid, line)
				}
			}
		}
		if got := g.Ask("cat /proc/self/status"); !strings.Contains(got, `NoNewPrivs:\t1`) || !strings.Contains(got, `CapBnd:\t00000000002401e0`) {
			t.Errorf("inside: want no_new_privs and the guest's six capabilities as the bound: %s", got)
		}
		if got := g.Ask("write /etc/planted"); got == "written" {
			t.Error("inside: the root could be written")
		}
	})
}

func MustKill(t testing.TB, s sandbox.Sandbox) {
	t.Helper()
	if err := s.Kill(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("kill: %v", err)
	}
}

func MustStats(t testing.TB, s sandbox.Sandbox) sandbox.Stats {
	t.Helper()
	stats, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stats
}

func MustHandle(t testing.TB, d sandbox.Driver, id string) sandbox.Handle {
	t.Helper()
	handles, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range handles {
		if h.ID == id {
			return h
		}
	}
	t.Fatalf("%s is not listed", id)
	return sandbox.Handle{}
}

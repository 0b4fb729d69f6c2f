package cgroup_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

var standard = cgroup.Limits{MemoryBytes: 402653184, CPUs: 1.5, Tasks: 5120, KillTogether: true}

func TestV2(t *testing.T) {
	t.Run("a group has its limits before any process", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		if f.h.Mode() != cgroup.ModeV2 {
			t.Fatalf("mode %s, want v2", f.h.Mode())
		}
		MustCreate(t, f.h, "one", standard)
		for file, want := range map[string]string{
			"memory.max": "402653184", "memory.swap.max": "0", "memory.oom.group": "1",
			"cpu.max": "150000 100000", "cpu.max.burst": "75000", "pids.max": "5120",
		} {
			if got := f.MustRead(parent + "/one/" + file); got != want {
				t.Errorf("%s is %q, want %q", file, got, want)
			}
		}
	})
	t.Run("controllers are turned on where they are off", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		MustCreate(t, f.h, "one", standard)
		if got := f.MustRead("cgroup.subtree_control"); got != "+pids" {
			t.Errorf("the root got %q, want +pids alone: the others were on", got)
		}
		if got := f.MustRead(parent + "/cgroup.subtree_control"); got != "+cpu +memory +pids" {
			t.Errorf("the parent got %q, want +cpu +memory +pids", got)
		}
	})
	t.Run("processes may be killed one by one", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		MustCreate(t, f.h, "one", cgroup.Limits{MemoryBytes: 1 << 20, CPUs: 1, Tasks: 1})
		if got := f.MustRead(parent + "/one/memory.oom.group"); got != "0" {
			t.Errorf("memory.oom.group is %q, want 0", got)
		}
	})
	t.Run("a kernel without swap accounting is told", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		if !f.h.SwapAccounted() {
			t.Error("memory.swap.max is there, but swap counts as unaccounted")
		}
		g := MustFixture(t, func(f *fixture) {
			pureV2(f)
			os.Remove(filepath.Join(f.root, "system.slice/memory.swap.max"))
		})
		if g.h.SwapAccounted() {
			t.Error("memory.swap.max is missing, but swap counts as accounted")
		}
	})
	t.Run("counters", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		got := MustCreate(t, f.h, "one", standard).Stats()
		want := cgroup.Stats{CPU: 1500 * time.Millisecond, MemoryBytes: 16 << 20, MemoryPeakBytes: 32 << 20,
			MemoryLimit: 402653184, OOMKills: 2, Tasks: 27}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
	t.Run("a group that is gone has no counters", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		want := cgroup.Stats{CPU: -1, MemoryBytes: -1, MemoryPeakBytes: -1, MemoryLimit: -1, OOMKills: -1, Tasks: -1}
		if got := f.h.Group("none").Stats(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
	t.Run("freeze waits for the kernel's word", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		g := MustCreate(t, f.h, "one", standard)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if err := g.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("froze although cgroup.events says frozen 0: %v", err)
		}
		f.write(parent+"/one/cgroup.events", "populated 1\nfrozen 1\n")
		if err := g.Freeze(t.Context()); err != nil || !g.Frozen() {
			t.Errorf("not frozen: %v", err)
		}
		f.write(parent+"/one/cgroup.events", "populated 1\nfrozen 0\n")
		if err := g.Thaw(t.Context()); err != nil || g.Frozen() {
			t.Errorf("still frozen: %v", err)
		}
	})
	t.Run("kill uses cgroup.kill", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		g := MustCreate(t, f.h, "one", standard)
		if err := g.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := f.MustRead(parent + "/one/cgroup.kill"); got != "1" {
			t.Errorf("cgroup.kill is %q, want 1", got)
		}
	})
	t.Run("list and remove", func(t *testing.T) {
		f := MustFixture(t, pureV2)
		a, b := MustCreate(t, f.h, "a", standard), MustCreate(t, f.h, "b", standard)
		f.h.Remove()
		if got := MustList(t, f.h); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("listed %v, want a and b: a parent in use stays", got)
		}
		for _, g := range []*cgroup.Group{a, b} {
			if err := g.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		f.h.Remove()
		if _, err := os.Stat(filepath.Join(f.root, parent)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the parent is still there: %v", err)
		}
	})
	t.Run("a missing controller is named", func(t *testing.T) {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpu io\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := cgroup.Open(root, parent)
		if err == nil || !strings.Contains(err.Error(), "memory, pids") {
			t.Errorf("got %v, want an error that names memory and pids", err)
		}
	})
}

func TestHybrid(t *testing.T) {
	t.Run("a group has its limits in every tree", func(t *testing.T) {
		f := MustFixture(t, hybrid)
		if f.h.Mode() != cgroup.ModeHybrid {
			t.Fatalf("mode %s, want hybrid", f.h.Mode())
		}
		MustCreate(t, f.h, "one", standard)
		for file, want := range map[string]string{
			"memory/" + parent + "/one/memory.limit_in_bytes":       "402653184",
			"memory/" + parent + "/one/memory.memsw.limit_in_bytes": "402653184",
			"memory/" + parent + "/one/memory.swappiness":           "0",
			"cpu,cpuacct/" + parent + "/one/cpu.cfs_quota_us":       "150000",
			"cpu,cpuacct/" + parent + "/one/cpu.cfs_burst_us":       "75000",
			"cpu,cpuacct/" + parent + "/one/cpu.cfs_period_us":      "100000",
			"pids/" + parent + "/one/pids.max":                      "5120",
			"freezer/" + parent + "/one/freezer.state":              "THAWED",
		} {
			if got := f.MustRead(file); got != want {
				t.Errorf("%s is %q, want %q", file, got, want)
			}
		}
	})
	t.Run("counters", func(t *testing.T) {
		f := MustFixture(t, hybrid)
		got := MustCreate(t, f.h, "one", standard).Stats()
		want := cgroup.Stats{CPU: 1500 * time.Millisecond, MemoryBytes: 16 << 20, MemoryPeakBytes: 32 << 20,
			MemoryLimit: 402653184, OOMKills: 3, Tasks: 27}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
	t.Run("without memsw the rest still holds", func(t *testing.T) {
		f := MustFixture(t, func(f *fixture) {
			hybrid(f)
			os.Remove(filepath.Join(f.root, "memory/memory.memsw.limit_in_bytes"))
		})
		if f.h.SwapAccounted() {
			t.Error("memsw is missing, but swap counts as accounted")
		}
	})
	t.Run("removed from every tree, also one that a runtime made", func(t *testing.T) {
		f := MustFixture(t, hybrid)
		g := MustCreate(t, f.h, "one", standard)
		f.write("systemd/"+parent+"/one/cgroup.procs", "")
		f.write("unified/"+parent+"/one/cgroup.procs", "")
		if err := g.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if g.Exists() {
			t.Error("the group still exists in some tree")
		}
	})
}

func TestRefused(t *testing.T) {
	f := MustFixture(t, pureV2)
	for _, name := range []string{"", "..", ".hidden", "a/b", "a\x00b"} {
		if _, err := f.h.Create(name, standard); err == nil {
			t.Errorf("the group name %q was taken", name)
		}
		if name == ".hidden" {
			continue
		}
		if _, err := cgroup.Open(f.root, name); err == nil {
			t.Errorf("the parent name %q was taken", name)
		}
	}
}

func TestKillSparesOthers(t *testing.T) {
	f := MustFixture(t, pureV2)
	g := MustCreate(t, f.h, "one", standard)
	victim := exec.Command("sleep", "60")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	// A number that once was the group's and now is another process's.
	f.write(parent+"/one/cgroup.procs", strconv.Itoa(victim.Process.Pid)+"\n")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := g.Kill(ctx); err == nil {
		t.Error("Kill says that the group is empty")
	}
	state, err := os.ReadFile("/proc/" + strconv.Itoa(victim.Process.Pid) + "/stat")
	if err != nil || strings.Contains(string(state), ") Z ") {
		t.Errorf("a process outside the group was killed: %s, %v", state, err)
	}
}

// TestThisHost uses the control groups of the host the test runs on.
func TestThisHost(t *testing.T) {
	h, err := cgroup.Open(cgroup.DefaultRoot, "workbench-cgrouptest001")
	if err != nil {
		t.Fatalf("this test needs writable control groups: %v", err)
	}
	t.Cleanup(h.Remove)
	g := MustCreate(t, h, "one", cgroup.Limits{MemoryBytes: 64 << 20, CPUs: 0.5, Tasks: 32})
	t.Cleanup(func() { _ = g.Kill(context.Background()); _ = g.Remove(context.Background()) })

	tree := []string{"sh", "-c", "for i in 1 2 3; do sleep 60 & done; wait"}
	cmd := exec.Command(tree[0], tree[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	MustJoin(t, "workbench-cgrouptest001/one", cmd.Process.Pid)
	if !g.Contains(cmd.Process.Pid) {
		t.Fatal("the process is not in the group by its own account")
	}
	if g.Contains(os.Getpid()) {
		t.Fatal("this process counts as the group's")
	}
	if s := g.Stats(); s.MemoryLimit != 64<<20 || s.Tasks < 1 || s.CPU < 0 || s.OOMKills != 0 {
		t.Errorf("counters %+v", s)
	}
	if err := g.Freeze(t.Context()); err != nil || !g.Frozen() {
		t.Errorf("not frozen: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := g.Kill(ctx); err != nil {
		t.Errorf("a frozen group was not killed: %v", err)
	}
	<-waited
	if err := g.Remove(ctx); err != nil {
		t.Errorf("not removed: %v", err)
	}
	if g.Exists() {
		t.Error("the group still exists")
	}
}

// MustJoin puts a process into a group of this host, in every tree.
func MustJoin(t *testing.T, path string, pid int) {
	t.Helper()
	files, err := filepath.Glob(cgroup.DefaultRoot + "/*/" + path + "/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, filepath.Join(cgroup.DefaultRoot, path, "cgroup.procs"))
	joined := 0
	for _, f := range files {
		if err := os.WriteFile(f, []byte(strconv.Itoa(pid)), 0); err == nil {
			joined++
		}
	}
	if joined == 0 {
		t.Fatalf("process %d joined no group at %s", pid, path)
	}
}

func MustCreate(t *testing.T, h *cgroup.Hierarchy, name string, l cgroup.Limits) *cgroup.Group {
	t.Helper()
	g, err := h.Create(name, l)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func MustList(t *testing.T, h *cgroup.Hierarchy) []string {
	t.Helper()
	names, err := h.List()
	if err != nil {
		t.Fatal(err)
	}
	return names
}

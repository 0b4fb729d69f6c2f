package cgroup_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

// parent is the fixtures' parent group.
const parent = "workbench-fixture00001-runsc"

// controlFiles are what the kernel puts into a new group, by its tree's name.
var controlFiles = map[string]map[string]string{
	"v2": {
		"cgroup.procs": "", "cgroup.controllers": "cpu memory pids\n", "cgroup.subtree_control": "",
		"cgroup.kill": "", "cgroup.freeze": "0\n", "cgroup.events": "populated 0\nfrozen 0\n",
		"memory.max": "max\n", "memory.current": "16777216\n", "memory.peak": "33554432\n",
		"memory.swap.max": "max\n", "memory.oom.group": "0\n",
		"memory.events": "low 0\nhigh 0\nmax 5\noom 2\noom_kill 2\noom_group_kill 1\n",
		"cpu.max":       "max 100000\n", "cpu.max.burst": "0\n", "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\n",
		"pids.max": "max\n", "pids.current": "27\n",
	},
	"memory": {
		"cgroup.procs": "", "memory.limit_in_bytes": "9223372036854771712\n",
		"memory.memsw.limit_in_bytes": "9223372036854771712\n", "memory.swappiness": "60\n",
		"memory.usage_in_bytes": "16777216\n", "memory.max_usage_in_bytes": "33554432\n",
		"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
	},
	"cpu,cpuacct": {
		"cgroup.procs": "", "cpu.cfs_period_us": "100000\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_burst_us": "0\n", "cpuacct.usage": "1500000000\n",
	},
	"pids":    {"cgroup.procs": "", "pids.max": "max\n", "pids.current": "27\n"},
	"freezer": {"cgroup.procs": "", "freezer.state": "THAWED\n"},
}

// fixture is a tree of plain files in which new groups get their control files.
type fixture struct {
	t    *testing.T
	root string
	h    *cgroup.Hierarchy
}

func MustFixture(t *testing.T, build func(f *fixture)) *fixture {
	t.Helper()
	f := &fixture{t: t, root: t.TempDir()}
	build(f)
	h, err := cgroup.Open(f.root, parent)
	if err != nil {
		t.Fatal(err)
	}
	h.SetKernel(f.mkdir, f.rmdir)
	f.h = h
	return f
}

// pureV2 is a host with version 2 alone.
func pureV2(f *fixture) {
	f.write("cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n")
	f.write("cgroup.procs", "1\n")
	f.write("cgroup.subtree_control", "cpu memory\n")
	f.write("system.slice/memory.max", "max\n")
	f.write("system.slice/memory.swap.max", "max\n")
}

// hybrid is a host with version 1 controllers and a version 2 tree beside them.
func hybrid(f *fixture) {
	for _, name := range []string{"memory", "cpu,cpuacct", "pids", "freezer", "systemd"} {
		f.write(name+"/cgroup.procs", "1\n")
	}
	f.write("memory/memory.memsw.limit_in_bytes", "9223372036854771712\n")
	f.write("unified/cgroup.procs", "1\n")
	f.write("unified/cgroup.controllers", "hugetlb\n")
	for _, link := range []string{"cpu", "cpuacct"} {
		if err := os.Symlink("cpu,cpuacct", filepath.Join(f.root, link)); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	rel, err := filepath.Rel(f.root, path)
	if err != nil {
		return err
	}
	tree, _, _ := strings.Cut(rel, "/")
	files, ok := controlFiles[tree]
	if !ok {
		files = controlFiles["v2"]
	}
	for name, value := range files {
		if err := os.WriteFile(filepath.Join(path, name), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// rmdir removes a group as the kernel does: its files go with it, groups below
// it do not.
func (f *fixture) rmdir(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			return &fs.PathError{Op: "rmdir", Path: path, Err: fs.ErrExist}
		}
	}
	return os.RemoveAll(path)
}

func (f *fixture) write(name, value string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// MustRead reads a control file.
func (f *fixture) MustRead(name string) string {
	f.t.Helper()
	raw, err := os.ReadFile(filepath.Join(f.root, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

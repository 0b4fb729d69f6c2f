package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits bound a group as a whole.
type Limits struct {
	MemoryBytes int64   // swap included: a page beyond it is never swapped out instead
	CPUs        float64 // CPU time per wall time
	Tasks       int64   // processes and threads
	// KillTogether ends every process of the group when the kernel kills one
	// at the memory bound. Version 2 does that itself; on version 1 the owner
	// watches Stats.
	KillTogether bool
}

// period is the interval in which a group's CPU time is counted, in µs. It is
// the kernel's default: shorter ones throttle a many-threaded process unevenly.
const period = 100_000

// Group is one sandbox's control group, in every tree it exists in.
type Group struct {
	h    *Hierarchy
	name string
}

// Group names a group that may or may not exist.
func (h *Hierarchy) Group(name string) *Group { return &Group{h: h, name: name} }

// Create makes a group with its limits in place, before any process is in it.
// Version 1: in the trees of the required controllers, of cpuacct and of the
// freezer; a runtime that joins makes it in the others by itself.
func (h *Hierarchy) Create(name string, l Limits) (*Group, error) {
	if name == "" || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") {
		return nil, fmt.Errorf("control group name %q is not one path element", name)
	}
	g := h.Group(name)
	var err error
	if h.mode == ModeV2 {
		err = g.createV2(l)
	} else {
		err = g.createV1(l)
	}
	if err != nil {
		return nil, errors.Join(err, g.removeEmpty())
	}
	return g, nil
}

func (g *Group) createV2(l Limits) error {
	root := g.h.trees[0].dir
	parent := filepath.Join(root, g.h.parent)
	if err := g.h.delegate(root); err != nil {
		return err
	}
	if err := g.h.ensure(parent); err != nil {
		return err
	}
	if err := g.h.delegate(parent); err != nil {
		return err
	}
	dir := filepath.Join(parent, g.name)
	if err := g.h.mkdir(dir); err != nil {
		return err
	}
	return apply(dir, settingsV2(l))
}

func settingsV2(l Limits) []setting {
	together := "0"
	if l.KillTogether {
		together = "1"
	}
	return []setting{
		{"memory.max", strconv.FormatInt(l.MemoryBytes, 10), true},
		{"memory.swap.max", "0", false},
		{"memory.oom.group", together, true},
		{"cpu.max", fmt.Sprintf("%d %d", quota(l.CPUs), period), true},
		{"cpu.max.burst", strconv.FormatInt(quota(l.CPUs)/2, 10), false},
		{"pids.max", strconv.FormatInt(l.Tasks, 10), true},
	}
}

// settingsOf are one version 1 controller's values.
type settingsOf struct {
	controller string
	values     []setting
}

func settingsV1(l Limits) []settingsOf {
	return []settingsOf{
		{"memory", []setting{
			{"memory.limit_in_bytes", strconv.FormatInt(l.MemoryBytes, 10), true},
			{"memory.memsw.limit_in_bytes", strconv.FormatInt(l.MemoryBytes, 10), false},
			{"memory.swappiness", "0", false},
		}},
		{"cpu", []setting{
			{"cpu.cfs_period_us", strconv.Itoa(period), true},
			{"cpu.cfs_quota_us", strconv.FormatInt(quota(l.CPUs), 10), true},
			{"cpu.cfs_burst_us", strconv.FormatInt(quota(l.CPUs)/2, 10), false},
		}},
		{"pids", []setting{{"pids.max", strconv.FormatInt(l.Tasks, 10), true}}},
		{"cpuacct", nil},
		{"freezer", nil},
	}
}

func (g *Group) createV1(l Limits) error {
	for _, c := range settingsV1(l) {
		t, ok := g.h.treeOf(c.controller)
		if !ok {
			continue // only cpuacct and freezer can be missing here
		}
		if err := g.h.ensure(filepath.Join(t.dir, g.h.parent)); err != nil {
			return err
		}
		dir := filepath.Join(t.dir, g.h.parent, g.name)
		if err := g.h.ensure(dir); err != nil {
			return err
		}
		if err := apply(dir, c.values); err != nil {
			return err
		}
	}
	return nil
}

// SetMemory changes the group's bound on its memory. A bound below what is in
// use may be refused.
func (g *Group) SetMemory(bytes int64) error {
	value := strconv.FormatInt(bytes, 10)
	dir := g.dir("memory")
	if g.h.mode == ModeV2 {
		return write(filepath.Join(dir, "memory.max"), value)
	}
	// Memory with swap may not be bounded lower than memory alone.
	files := []setting{{"memory.limit_in_bytes", value, true}, {"memory.memsw.limit_in_bytes", value, false}}
	if bytes > number(filepath.Join(dir, "memory.limit_in_bytes")) {
		slices.Reverse(files)
	}
	return apply(dir, files)
}

// SetCPUs changes the group's bound on CPU time per wall time.
func (g *Group) SetCPUs(cpus float64) error {
	if g.h.mode == ModeV2 {
		return write(filepath.Join(g.dir("cpu"), "cpu.max"), fmt.Sprintf("%d %d", quota(cpus), period))
	}
	return write(filepath.Join(g.dir("cpu"), "cpu.cfs_quota_us"), strconv.FormatInt(quota(cpus), 10))
}

// setting is one control file's value. One that is not required may be absent.
type setting struct {
	file, value string
	required    bool
}

func apply(dir string, values []setting) error {
	for _, v := range values {
		err := write(filepath.Join(dir, v.file), v.value)
		if err != nil && (v.required || !errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("set %s: %w", v.file, err)
		}
	}
	return nil
}

// quota is the processor time of a period. What a period left unused adds to a
// later one, up to half as much (burst, since Linux 5.14): an interpreter that
// starts on several threads is not held up for a whole period.
func quota(cpus float64) int64 { return int64(cpus * period) }

// Exists reports whether the group exists in any tree.
func (g *Group) Exists() bool { return len(g.dirs()) > 0 }

// dirs are the group's directories that exist.
func (g *Group) dirs() []string {
	var out []string
	for _, t := range g.h.trees {
		dir := filepath.Join(t.dir, g.h.parent, g.name)
		if _, err := os.Stat(dir); err == nil {
			out = append(out, dir)
		}
	}
	return out
}

// dir is the group's directory in the controller's tree; it may not exist.
func (g *Group) dir(controller string) string {
	t, ok := g.h.treeOf(controller)
	if !ok {
		return ""
	}
	return filepath.Join(t.dir, g.h.parent, g.name)
}

// Contains reports whether the process is in the group, by the kernel's account
// of it. The caller holds a pidfd, so that the pid cannot be another's. What
// stands before the group's own path depends on where this process sees the
// tree from; parent and name are unique enough without it.
func (g *Group) Contains(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	want := g.h.Path(g.name)
	for line := range strings.SplitSeq(string(raw), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) == 3 && strings.Contains(parts[2]+"/", want+"/") {
			return true
		}
	}
	return false
}

// Procs lists the pids in the group and in groups below it. They are hints: a
// pid can be reused at any time.
func (g *Group) Procs() ([]int, error) {
	seen := map[int]bool{}
	var pids []int
	for _, dir := range below(g.dirs()) {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // it was removed since
		}
		if err != nil {
			return nil, err
		}
		for f := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// below lists directories and all that lie in them, each before what it holds.
// What vanishes meanwhile is passed over.
func below(dirs []string) []string {
	var out []string
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				out = append(out, path)
			}
			return nil //nolint:nilerr // it was removed since
		})
	}
	return out
}

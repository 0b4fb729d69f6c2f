// Package cgroup bounds, measures, stops and kills groups of processes through
// the kernel's control groups: version 1 controllers, a hybrid tree (version 1
// controllers beside a nearly empty version 2 tree) and pure version 2.
//
// It owns one parent per instance and one group per sandbox below it. A group
// is also a sandbox's identity on the host: processes are found and killed by
// their membership, never by a remembered pid. The package does not start
// processes and knows no runtime.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultRoot is where Linux hosts mount control groups.
const DefaultRoot = "/sys/fs/cgroup"

// Mode is how a host offers its controllers.
type Mode string

// The modes.
const (
	ModeV1     Mode = "v1"
	ModeHybrid Mode = "hybrid" // controllers on version 1, a version 2 tree at "unified"
	ModeV2     Mode = "v2"
)

// required are the controllers without which no sandbox may be started.
var required = []string{"cpu", "memory", "pids"}

// Hierarchy is the part of a host's control groups that belongs to one parent,
// for example "workbench-k3v9…".
type Hierarchy struct {
	mode   Mode
	root   string
	parent string
	// trees are the mounted hierarchies. Version 1: one per directory, with the
	// controllers it carries. Version 2: one, all controllers.
	trees []tree
	// mkdir makes one control group, rmdir removes one. Tests over a plain
	// directory replace them, and make and remove the files the kernel would.
	mkdir, rmdir func(path string) error
}

type tree struct {
	dir         string // absolute
	controllers []string
	unified     bool // a version 2 tree
}

// Open finds out how the host offers control groups below root and prepares to
// use those below parent, a single path element. Nothing is created.
func Open(root, parent string) (*Hierarchy, error) {
	if parent == "" || strings.ContainsAny(parent, "/\x00") || parent == "." || parent == ".." {
		return nil, fmt.Errorf("control group parent %q is not one path element", parent)
	}
	h := &Hierarchy{root: root, parent: parent, rmdir: unix.Rmdir}
	h.mkdir = func(path string) error { return os.Mkdir(path, 0o755) }
	if raw, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		h.mode = ModeV2
		h.trees = []tree{{dir: root, controllers: strings.Fields(string(raw)), unified: true}}
		return h, h.check()
	}
	if err := h.scanV1(); err != nil {
		return nil, err
	}
	return h, h.check()
}

func (h *Hierarchy) scanV1() error {
	entries, err := os.ReadDir(h.root)
	if err != nil {
		return fmt.Errorf("no control groups at %s: %w", h.root, err)
	}
	h.mode = ModeV1
	for _, e := range entries {
		dir, err := filepath.EvalSymlinks(filepath.Join(h.root, e.Name()))
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
			h.mode = ModeHybrid
			h.trees = append(h.trees, tree{dir: dir, unified: true})
			continue
		}
		names := strings.Split(e.Name(), ",")
		if i := slices.IndexFunc(h.trees, func(t tree) bool { return t.dir == dir }); i >= 0 {
			h.trees[i].controllers = append(h.trees[i].controllers, names...)
			continue
		}
		h.trees = append(h.trees, tree{dir: dir, controllers: names})
	}
	return nil
}

func (h *Hierarchy) check() error {
	var missing []string
	for _, c := range required {
		if _, ok := h.treeOf(c); !ok {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("control group controllers missing below %s (%s): %s", h.root, h.mode, strings.Join(missing, ", "))
	}
	return nil
}

// Mode is the host's mode.
func (h *Hierarchy) Mode() Mode { return h.mode }

// Path is the group's path as an OCI runtime wants it: absolute from the root
// of each hierarchy.
func (h *Hierarchy) Path(name string) string { return "/" + h.parent + "/" + name }

// SwapAccounted reports whether the host can keep a group out of swap.
func (h *Hierarchy) SwapAccounted() bool {
	t, _ := h.treeOf("memory")
	if h.mode != ModeV2 {
		_, err := os.Stat(filepath.Join(t.dir, "memory.memsw.limit_in_bytes"))
		return err == nil
	}
	// The root of version 2 has no memory.swap.max; its children do.
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if _, err := os.Stat(filepath.Join(t.dir, e.Name(), "memory.max")); err == nil {
			_, err := os.Stat(filepath.Join(t.dir, e.Name(), "memory.swap.max"))
			return err == nil
		}
	}
	return false
}

// List names the groups below the parent, in any tree.
func (h *Hierarchy) List() ([]string, error) {
	var names []string
	for _, t := range h.trees {
		entries, err := os.ReadDir(filepath.Join(t.dir, h.parent))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Remove removes the parent when no group is left in it; otherwise it does
// nothing.
func (h *Hierarchy) Remove() {
	for _, t := range h.trees {
		_ = h.rmdir(filepath.Join(t.dir, h.parent))
	}
}

func (h *Hierarchy) treeOf(controller string) (tree, bool) {
	for _, t := range h.trees {
		if slices.Contains(t.controllers, controller) {
			return t, true
		}
	}
	return tree{}, false
}

// ensure makes a directory that may already exist.
func (h *Hierarchy) ensure(path string) error {
	err := h.mkdir(path)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// delegate turns the controllers on for the children of dir (version 2).
func (h *Hierarchy) delegate(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	on, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var want []string
	for _, c := range required {
		if !slices.Contains(strings.Fields(string(on)), c) {
			want = append(want, "+"+c)
		}
	}
	if len(want) == 0 {
		return nil
	}
	if err := write(file, strings.Join(want, " ")); err != nil {
		return fmt.Errorf("turn on %s for the groups in %s: %w", strings.Join(want, " "), dir, err)
	}
	return nil
}

// write writes one value to a control file that exists.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(value); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

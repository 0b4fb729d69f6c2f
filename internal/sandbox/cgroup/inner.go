package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A group may have inner groups: one that bounds the memory of a part of its
// processes, and on version 2 the one that holds the others, since there a
// group with groups below it has no processes of its own.

// CreateInner makes a group below g that bounds memory alone, before any
// process is in it. Version 1: in the memory controller's tree.
func (g *Group) CreateInner(name string, memoryBytes int64) error {
	if name == "" || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") {
		return fmt.Errorf("control group name %q is not one path element", name)
	}
	outer := g.dir("memory")
	dir := filepath.Join(outer, name)
	bytes := strconv.FormatInt(memoryBytes, 10)
	if g.h.mode != ModeV2 {
		if err := g.h.mkdir(dir); err != nil {
			return err
		}
		return apply(dir, []setting{
			{"memory.limit_in_bytes", bytes, true},
			{"memory.memsw.limit_in_bytes", bytes, false},
			{"memory.swappiness", "0", false},
		})
	}
	if err := g.h.delegate(outer); err != nil {
		return err
	}
	if err := g.h.mkdir(dir); err != nil {
		return err
	}
	// Not memory.oom.group: programs of several runs are in it.
	return apply(dir, []setting{
		{"memory.max", bytes, true},
		{"memory.swap.max", "0", false},
	})
}

// Inner is what the owner of an inner group works with.
type Inner struct {
	Procs *os.File // a process whose id is written here joins
	Stat  *os.File // memory by kind: lines of "key value"
	Kills *os.File // how many processes its bound has cost: lines of "key value"
}

// OpenInner opens an inner group's files. What is done through them is done
// with this process's rights, whoever holds them.
func (g *Group) OpenInner(name string) (*Inner, error) {
	dir := filepath.Join(g.dir("memory"), name)
	kills := "memory.oom_control"
	if g.h.mode == ModeV2 {
		kills = "memory.events"
	}
	in := &Inner{}
	var err error
	if in.Procs, err = os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0); err != nil {
		return nil, err
	}
	if in.Stat, err = os.Open(filepath.Join(dir, "memory.stat")); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	if in.Kills, err = os.Open(filepath.Join(dir, kills)); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

// Close lets go of the files; the group stays.
func (in *Inner) Close() error {
	var errs []error
	for _, f := range []*os.File{in.Procs, in.Stat, in.Kills} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

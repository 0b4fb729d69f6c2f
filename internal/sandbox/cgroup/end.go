package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Freeze stops every process of the group and returns when all have stopped.
func (g *Group) Freeze(ctx context.Context) error { return g.setFrozen(ctx, true) }

// Thaw lets them go on.
func (g *Group) Thaw(ctx context.Context) error { return g.setFrozen(ctx, false) }

// Frozen reports whether Freeze was asked for and not undone.
func (g *Group) Frozen() bool {
	if g.h.mode == ModeV2 {
		return number(filepath.Join(g.dir("memory"), "cgroup.freeze")) == 1
	}
	raw, err := os.ReadFile(filepath.Join(g.dir("freezer"), "freezer.state"))
	return err == nil && strings.TrimSpace(string(raw)) != "THAWED"
}

func (g *Group) setFrozen(ctx context.Context, frozen bool) error {
	file, value, reached := g.freezeFiles(frozen)
	if file == "" {
		return errors.New("the host has no freezer controller")
	}
	for delay := time.Millisecond; ; delay = min(2*delay, 20*time.Millisecond) {
		// Version 1 may need the value again: a task that was being made while
		// it froze leaves the group "FREEZING".
		if err := write(file, value); err != nil {
			return err
		}
		if reached() {
			return nil
		}
		if err := sleep(ctx, delay); err != nil {
			return fmt.Errorf("the processes of the group did not all stop: %w", err)
		}
	}
}

func (g *Group) freezeFiles(frozen bool) (file, value string, reached func() bool) {
	if g.h.mode == ModeV2 {
		dir := g.dir("memory")
		want, value := int64(0), "0"
		if frozen {
			want, value = 1, "1"
		}
		return filepath.Join(dir, "cgroup.freeze"), value, func() bool {
			return keyed(filepath.Join(dir, "cgroup.events"), "frozen") == want
		}
	}
	dir := g.dir("freezer")
	if dir == "" {
		return "", "", nil
	}
	value = "THAWED"
	if frozen {
		value = "FROZEN"
	}
	file = filepath.Join(dir, "freezer.state")
	return file, value, func() bool {
		raw, err := os.ReadFile(file)
		return err == nil && strings.TrimSpace(string(raw)) == value
	}
}

// Kill kills every process of the group, also stopped ones, and returns when
// none is left or ctx ends. A process that no longer belongs to the group is
// never signalled.
func (g *Group) Kill(ctx context.Context) error {
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		if g.h.mode == ModeV2 {
			// Since Linux 5.14; the sweep below serves older kernels.
			_ = write(filepath.Join(g.dir("memory"), "cgroup.kill"), "1")
		}
		pids, err := g.Procs()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			g.killMember(pid)
		}
		// A task frozen by version 1 takes its SIGKILL only once thawed.
		if g.h.mode != ModeV2 && g.Frozen() {
			_ = write(filepath.Join(g.dir("freezer"), "freezer.state"), "THAWED")
		}
		if err := sleep(ctx, delay); err != nil {
			return fmt.Errorf("%d processes outlived SIGKILL: %w", len(pids), err)
		}
	}
}

// killMember kills one process if it is the group's. The pidfd is taken first,
// so that what is checked and what is killed are one process.
func (g *Group) killMember(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if !g.Contains(pid) {
		return
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// Remove removes the group from every tree. The kernel keeps a group busy for
// a moment after its last process left, so it tries until ctx ends.
func (g *Group) Remove(ctx context.Context) error {
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		err := g.removeEmpty()
		if err == nil {
			return nil
		}
		if ctxErr := sleep(ctx, delay); ctxErr != nil {
			return err
		}
	}
}

// removeEmpty removes the group and groups below it once, deepest first.
func (g *Group) removeEmpty() error {
	var first error
	dirs := below(g.dirs())
	for i := len(dirs) - 1; i >= 0; i-- {
		err := g.h.rmdir(dirs[i])
		if err != nil && !errors.Is(err, unix.ENOENT) && first == nil {
			first = &fs.PathError{Op: "rmdir", Path: dirs[i], Err: err}
		}
	}
	return first
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

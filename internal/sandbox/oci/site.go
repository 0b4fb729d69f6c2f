package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

// site is where the sandboxes of one instance and one runtime are on the host:
// a parent control group and a state directory. All it knows comes from those
// two, so it serves a process that did not start the sandboxes as well.
type site struct {
	groups *cgroup.Hierarchy
	dir    string
}

func openSite(cgroupRoot, stateDir, instance string, kind Kind) (site, error) {
	groups, err := cgroup.Open(cgroupRoot, "workbench-"+instance+"-"+string(kind))
	return site{groups: groups, dir: filepath.Join(stateDir, string(kind))}, err
}

func (s site) layout(id string) layout { return layout{dir: filepath.Join(s.dir, id)} }

// lock takes the site for this process, or refuses after patience. A process
// that was just killed can hold it for a moment longer, through a child that it
// had begun to start.
func (s site) lock(patience time.Duration) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			_ = f.Close()
			return nil, fmt.Errorf("another process holds %s: %w", f.Name(), err)
		}
	}
}

// known lists the ids that have anything on the host, oldest first: ids sort by
// the time they were made.
func (s site) known() ([]string, error) {
	seen := map[string]bool{}
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && isID(e.Name()) {
			seen[e.Name()] = true
		}
	}
	names, err := s.groups.List()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if isID(n) {
			seen[n] = true
		}
	}
	return sorted(seen), nil
}

func isID(name string) bool { return workbench.ParseID(workbench.KindSandbox, name) == nil }

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// handle describes one found sandbox.
func (s site) handle(id, instance string, kind Kind) sandbox.Handle {
	h := sandbox.Handle{ID: id, Instance: instance, Driver: string(kind), State: sandbox.StateEnded}
	if r, err := readRecord(s.layout(id)); err == nil {
		h.Class, h.StartedAt = r.Class, r.StartedAt
	}
	g := s.groups.Group(id)
	if pids, err := g.Procs(); err == nil && len(pids) > 0 {
		h.State = sandbox.StateRunning
		if g.Frozen() {
			h.State = sandbox.StatePaused
		}
	}
	return h
}

// endTimeout bounds the ending of one sandbox, whatever its caller allows.
const endTimeout = 10 * time.Second

// end kills every process of a sandbox and removes all that it had. It says
// what stayed, and leaves the record of such a sandbox for the next attempt.
func (s site) end(ctx context.Context, id string) []sandbox.Leftover {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	g := s.groups.Group(id)
	if err := g.Kill(ctx); err != nil {
		return []sandbox.Leftover{{Sandbox: id, Kind: "process", Name: s.groups.Path(id), Why: err.Error()}}
	}
	var left []sandbox.Leftover
	if err := g.Remove(ctx); err != nil {
		left = append(left, sandbox.Leftover{Sandbox: id, Kind: "cgroup", Name: s.groups.Path(id), Why: err.Error()})
	}
	dir := s.layout(id).dir
	if err := unmountBelow(dir); err != nil {
		left = append(left, sandbox.Leftover{Sandbox: id, Kind: "mount", Name: dir, Why: err.Error()})
	}
	if len(left) > 0 {
		return left
	}
	if err := os.RemoveAll(dir); err != nil {
		left = append(left, sandbox.Leftover{Sandbox: id, Kind: "directory", Name: dir, Why: err.Error()})
	}
	return left
}

// vacate removes the site's own directories when no sandbox is left in it.
func (s site) vacate() {
	ids, err := s.known()
	if err != nil || len(ids) > 0 {
		return
	}
	s.groups.Remove()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if m, _ := filepath.Match("guest*", e.Name()); m || e.Name() == "lock" {
			_ = os.RemoveAll(filepath.Join(s.dir, e.Name()))
		}
	}
	if os.Remove(s.dir) == nil {
		_ = os.Remove(filepath.Dir(s.dir))
	}
}

package oci

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// Kill implements sandbox.Driver.
func (d *Driver) Kill(ctx context.Context, id string) error {
	if !isID(id) {
		return workbench.ErrNotFound("sandbox")
	}
	d.mu.Lock()
	l := d.live[id]
	d.mu.Unlock()
	if l != nil {
		l.mu.Lock()
		l.killed = true
		l.mu.Unlock()
	}
	// Once begun, a kill is carried out: its caller may stop waiting, but
	// nothing of the sandbox is left half removed.
	left := d.site.kill(context.WithoutCancel(ctx), id, l)
	if l != nil {
		l.release()
	}
	d.forget(id, left)
	return leftoverError(left)
}

// kill ends a sandbox. The counters of a live one are read between the end of
// its processes and the removal of its group.
func (s site) kill(ctx context.Context, id string, l *live) []sandbox.Leftover {
	if l != nil && l.group != nil {
		l.measure()
		killCtx, cancel := context.WithTimeout(ctx, endTimeout)
		defer cancel()
		if err := l.group.Kill(killCtx); err == nil {
			select {
			case <-l.done:
			case <-killCtx.Done():
			}
		}
	}
	return s.end(ctx, id)
}

// forget drops a sandbox that is gone. One with leftovers is no longer this
// process's own, so that Reap takes it up.
func (d *Driver) forget(id string, left []sandbox.Leftover) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.live[id]; l != nil {
		delete(d.live, id)
		if len(left) == 0 {
			delete(d.ranges, l.idRange)
		}
	}
	for _, f := range left {
		d.o.Log.Error("something of a sandbox stayed on the host", "sandbox", f.Sandbox, "kind", f.Kind, "name", f.Name, "why", f.Why)
	}
}

func leftoverError(left []sandbox.Leftover) error {
	if len(left) == 0 {
		return nil
	}
	var errs []error
	for _, f := range left {
		errs = append(errs, fmt.Errorf("%s %s: %s", f.Kind, f.Name, f.Why))
	}
	return workbench.E(workbench.CodeUnavailable, "something of the sandbox is still on the host").
		WithHint("the next clean-up tries again").Caused(errors.Join(errs...))
}

// Reap implements sandbox.Driver. Sandboxes of the instance that another
// runtime's driver started are taken up too, unless a process holds that driver
// open: an instance may change its runtime between two starts.
func (d *Driver) Reap(ctx context.Context) (sandbox.Reaped, error) {
	out := sandbox.Reaped{Killed: []string{}, Removed: []string{}, Left: []sandbox.Leftover{}}
	if err := d.site.reap(ctx, d.owns, &out); err != nil {
		return out, cannotList(err)
	}
	d.mu.Lock()
	for r, id := range d.ranges {
		if d.live[id] == nil && !d.site.groups.Group(id).Exists() {
			delete(d.ranges, r)
		}
	}
	d.mu.Unlock()
	for _, kind := range []Kind{Runsc, Runc} {
		if kind == d.o.Kind {
			continue
		}
		other, err := openSite(d.o.CgroupRoot, d.o.StateDir, d.o.Instance, kind)
		if err != nil {
			return out, cannotList(err)
		}
		if err := other.reapAbandoned(ctx, &out); err != nil {
			return out, cannotList(err)
		}
	}
	return out, nil
}

func (d *Driver) owns(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live[id] != nil
}

// reapAbandoned reaps a site that no process holds.
func (s site) reapAbandoned(ctx context.Context, out *sandbox.Reaped) error {
	ids, err := s.known()
	if err != nil || len(ids) == 0 {
		return err
	}
	held, err := s.lock(100 * time.Millisecond)
	if err != nil {
		return nil // in use, and that driver reaps for itself
	}
	defer func() { _ = held.Close() }()
	if err := s.reap(ctx, func(string) bool { return false }, out); err != nil {
		return err
	}
	s.vacate()
	return nil
}

// reap ends every sandbox of the site that is not owned.
func (s site) reap(ctx context.Context, owned func(string) bool, out *sandbox.Reaped) error {
	ids, err := s.known()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if owned(id) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		pids, _ := s.groups.Group(id).Procs()
		left := s.end(ctx, id)
		switch {
		case len(left) > 0:
			out.Left = append(out.Left, left...)
		case len(pids) > 0:
			out.Killed = append(out.Killed, id)
		default:
			out.Removed = append(out.Removed, filepath.Base(s.dir)+"/"+id)
		}
	}
	return nil
}

// watchInterval is how often the counters of gVisor sandboxes are read on hosts
// whose kernel cannot be told to end a group together.
const watchInterval = 200 * time.Millisecond

// watchMemory ends a gVisor sandbox as a whole once the kernel has killed one of
// its processes at its bound: without that process it would hang.
func (d *Driver) watchMemory(ctx context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, l := range d.running() {
			if l.group.OwnOOMKills() > 0 {
				killCtx, cancel := context.WithTimeout(ctx, endTimeout)
				_ = l.group.Kill(killCtx) // its watcher records why it ended
				cancel()
			}
		}
	}
}

// running are the sandboxes whose first process was found and has not ended.
func (d *Driver) running() []*live {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*live
	for _, l := range d.live {
		select {
		case <-l.done:
			continue
		case <-l.started:
			out = append(out, l)
		default:
		}
	}
	return out
}

package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

var _ sandbox.Driver = (*Driver)(nil)

// Driver starts sandboxes with one OCI runtime, for one instance.
type Driver struct {
	o             Options
	site          site
	locked        *os.File // the site's lock
	swapAccounted bool
	guestDir      string // holds the guest binary alone

	infoMu sync.Mutex
	info   *sandbox.Info

	mu     sync.Mutex
	closed bool
	live   map[string]*live  // started by this process and not yet removed
	ranges map[uint32]string // id range → sandbox id
	starts sync.WaitGroup    // Starts that run

	stop    context.CancelFunc // ends the driver's own goroutines
	workers sync.WaitGroup
}

// Open prepares a driver. It starts nothing and looks for no earlier sandboxes;
// Reap does.
//
// Codes: runtime_unavailable.
func Open(o Options) (*Driver, error) {
	o, err := o.complete()
	if err != nil {
		return nil, workbench.E(workbench.CodeRuntimeUnavailable, "the sandbox driver's options are wrong").Caused(err)
	}
	if err := o.checkHost(); err != nil {
		return nil, err
	}
	at, err := openSite(o.CgroupRoot, o.StateDir, o.Instance, o.Kind)
	if err != nil {
		return nil, workbench.E(workbench.CodeRuntimeUnavailable, "this host's control groups cannot hold sandboxes").
			WithHint("the server needs the cpu, memory and pids controllers, writable, at %s", o.CgroupRoot).Caused(err)
	}
	d := &Driver{
		o: o, site: at, swapAccounted: at.groups.SwapAccounted(),
		live: map[string]*live{}, ranges: map[uint32]string{},
	}
	if err := d.prepareState(); err != nil {
		return nil, workbench.E(workbench.CodeRuntimeUnavailable, "the sandbox driver's state directory cannot be used").
			WithHint("the server must be able to write to %s", o.StateDir).Caused(err)
	}
	if o.Weaken != nil {
		if err := at.groups.Bound(o.Weaken.Bound); err != nil {
			return nil, errors.Join(err, d.locked.Close())
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	if o.Kind == Runsc && at.groups.Mode() != cgroup.ModeV2 {
		d.workers.Go(func() { d.watchMemory(ctx) })
	}
	return d, nil
}

// lockPatience is how long the lock is waited for. A child of an owner that was
// killed holds it until it has started its program.
const lockPatience = 3 * time.Second

// prepareState makes the state directory and takes its lock.
func (d *Driver) prepareState() error {
	if err := os.MkdirAll(d.site.dir, 0o711); err != nil {
		return err
	}
	for _, dir := range []string{d.o.StateDir, d.site.dir} {
		if err := ownDirectory(dir); err != nil {
			return err
		}
	}
	locked, err := d.site.lock(lockPatience)
	if err != nil {
		return err
	}
	d.locked = locked
	if err := d.placeGuest(); err != nil {
		_ = locked.Close()
		return err
	}
	return nil
}

// placeGuest puts the guest binary into a directory of its own: what sandboxes
// see is one file, and replacing the original does not change what runs.
func (d *Driver) placeGuest() error {
	src, err := os.Open(d.o.Guest)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	tmp, err := os.MkdirTemp(d.site.dir, "guest.tmp-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	dst, err := os.OpenFile(filepath.Join(tmp, "guest"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o555)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(dst, sum), src); err != nil {
		_ = dst.Close()
		return err
	}
	if err := dst.Close(); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(tmp, "guest"), 0o555); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o555); err != nil {
		return err
	}
	d.guestDir = filepath.Join(d.site.dir, "guest-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	err = os.Rename(tmp, d.guestDir)
	if errors.Is(err, fs.ErrExist) {
		return nil // the same bytes are there already
	}
	return err
}

// Name implements sandbox.Driver.
func (d *Driver) Name() string { return string(d.o.Kind) }

// takeRange gives a sandbox a range of host ids that no other of this instance
// has. It begins where the id's hash falls, so that instances on one host
// seldom share one; if they do, the sandboxes are still in name spaces of their
// own.
func (d *Driver) takeRange(id string) (uint32, error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	first := h.Sum32() % d.o.IDRanges
	for i := range d.o.IDRanges {
		r := (first + i) % d.o.IDRanges
		if _, taken := d.ranges[r]; !taken {
			d.ranges[r] = id
			return r, nil
		}
	}
	return 0, workbench.E(workbench.CodeCapacity, "all %d ranges of user ids are in use", d.o.IDRanges).
		WithHint("close sessions, or give the driver more ranges")
}

// List implements sandbox.Driver.
func (d *Driver) List(context.Context) ([]sandbox.Handle, error) {
	ids, err := d.site.known()
	if err != nil {
		return nil, cannotList(err)
	}
	handles := make([]sandbox.Handle, 0, len(ids))
	for _, id := range ids {
		h := d.site.handle(id, d.o.Instance, d.o.Kind)
		d.mu.Lock()
		_, h.Owned = d.live[id]
		d.mu.Unlock()
		handles = append(handles, h)
	}
	return handles, nil
}

func cannotList(err error) *workbench.Error {
	return workbench.E(workbench.CodeInternal, "the sandboxes of this instance could not be listed").Caused(err)
}

// Attach implements sandbox.Driver. The pipes of a sandbox end with the process
// that started it, so only this process's sandboxes can be attached to.
func (d *Driver) Attach(ctx context.Context, id string) (sandbox.Sandbox, error) {
	d.mu.Lock()
	l, ok := d.live[id]
	d.mu.Unlock()
	if ok {
		return l, nil
	}
	ids, err := d.site.known()
	if err != nil {
		return nil, cannotList(err)
	}
	for _, k := range ids {
		if k == id {
			return nil, workbench.E(workbench.CodeNotBuilt, "a sandbox of an earlier server process cannot be attached to with %s", d.Name()).
				WithHint("kill it and restore its session from the last commit")
		}
	}
	return nil, workbench.ErrNotFound("sandbox")
}

// Close implements sandbox.Driver.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if closed {
		return nil
	}
	d.starts.Wait()
	d.mu.Lock()
	ids := sorted(d.live)
	d.mu.Unlock()

	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { errs[i] = d.Kill(ctx, id) })
	}
	wg.Wait()
	d.stop()
	d.workers.Wait()
	if err := errors.Join(errs...); err != nil {
		return workbench.E(workbench.CodeUnavailable, "some sandboxes could not be ended").Caused(err)
	}
	d.site.vacate()
	return d.locked.Close()
}

func (d *Driver) isClosed() error {
	if d.closed {
		return workbench.E(workbench.CodeUnavailable, "the sandbox driver is closed")
	}
	return nil
}

package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Scan implements guestwire.Guest.
func (s *supervisor) Scan(ctx context.Context, r guestwire.ScanRequest, yield func(guestwire.Entry, io.Reader) error) (guestwire.ScanResult, error) {
	b, err := s.current()
	if err != nil {
		return guestwire.ScanResult{}, err
	}
	s.tree.mu.Lock()
	defer s.tree.mu.Unlock()
	s.beginning.Lock()
	defer s.beginning.Unlock()
	quiet, resume, err := s.still(ctx)
	if err != nil {
		return guestwire.ScanResult{}, err
	}
	defer s.spares.renewIn(renewAfterAnswer) // the machine is free
	defer resume()

	defer s.tree.changes.release()
	w, err := s.tree.look(ctx, b.limits, quiet)
	if err != nil {
		return guestwire.ScanResult{}, scanError(err)
	}
	base := r.Base
	if base != s.tree.token && base != s.tree.before {
		base = ""
	}
	if entries := w.told(base); w.inHand(entries) {
		err = w.tell(entries, yield)
	} else {
		err = asUser(func() error { return w.tell(entries, yield) })
	}
	if err != nil {
		if w.whole {
			s.tree.changes.giveUp() // what they were before is not known any more
		}
		return guestwire.ScanResult{}, scanError(err)
	}
	s.tree.take(w, base)
	return s.tree.result(base == ""), nil
}

// goneWithin is how long an exec's end may wait for its processes to be gone, so
// that no scan has to follow. A scan would wait for them too.
const goneWithin = 3 * time.Millisecond

// fewChanges is how many names an exec's end may look at.
const fewChanges = 32

// leftBy puts into an exec's end what has become of the workspace, so that no scan
// has to follow: nothing, if it is certain at this moment that it is still as the
// last scan left it, or the few and small entries that have changed. No code may
// run beside the exec, which has ended; that of a context stands. It reports
// whether it did.
func (s *supervisor) leftBy(b *binding, g *group, stands bool, res *guestwire.ExecResult) bool {
	alone := func() bool { return !slices.ContainsFunc(s.live(), func(o *group) bool { return o != g }) }
	if !alone() || !s.tree.mu.TryLock() {
		return false
	}
	defer s.tree.mu.Unlock()
	t := s.tree
	if t.token == "" || t.vague || t.anyOpen || len(t.open) > fewChanges || !stands && !s.gone(g) || openWorkspace() != nil {
		return false
	}
	if len(t.open) == 0 && t.skips == 0 && t.changes.none() {
		res.Untouched = t.token
		return true
	}
	if !s.beginning.TryLock() {
		return false
	}
	defer s.beginning.Unlock()
	if !alone() {
		return false // one has begun meanwhile
	}
	if stands {
		if s.hold(g, holdScan, s.ranWith(g)) != nil {
			return false
		}
		defer func() { _ = g.letGo(holdScan) }() // it stands on: a context between two cells
	}
	res.Changes = t.few(b.limits, !stands)
	return res.Changes != nil
}

// few scans the workspace where few and small entries have changed, and are known;
// nil where there may be more.
func (t *tree) few(l guestwire.SandboxLimits, quiet bool) *guestwire.Changes {
	names, ok := t.changes.happened(func(inode uint64) []guestwire.Path { return t.names[inode] })
	defer t.changes.release()
	if !ok || len(names) > fewChanges {
		return nil
	}
	w := t.walker(context.Background(), l, quiet)
	w.most, w.reads = guestwire.MaxChanges, mostReads
	if err := asUser(func() error { return w.lookAt(names, l) }); err != nil {
		return nil
	}
	ch := &guestwire.Changes{Base: t.token}
	if entries := w.told(t.token); !w.inHand(entries) || w.tell(entries, ch.Add) != nil {
		return nil
	}
	t.take(w, t.token)
	ch.Scan = t.result(false)
	return ch
}

// gone waits a moment for everything of a group that was killed to be gone.
func (s *supervisor) gone(g *group) bool {
	deadline := time.Now().Add(goneWithin)
	isGone := func() bool {
		if !s.watch.own {
			return isEnded(g)
		}
		tasks, known := s.watch.tasksNow()
		return known && tasks == 0
	}
	for wait := leaveFirst; !isGone(); wait = min(2*wait, leaveMost) {
		if time.Now().After(deadline) {
			return false
		}
		ts := unix.NsecToTimespec(int64(wait))
		_ = unix.Nanosleep(&ts, nil)
	}
	return true
}

// left waits until every process of the groups that have ended is gone, with its
// memory and descriptors, and reports whether that came to be. Linux ends a
// group's first process after all others; gVisor does not, but there a task
// leaves its control group only when it has let go of everything. A group that
// is new by now has tasks, too, and nothing that it could have open.
func (s *supervisor) left(ctx context.Context) bool {
	deadline := time.Now().Add(leaveWithin)
	for wait := leaveFirst; ; wait = min(2*wait, leaveMost) {
		tasks, known := s.watch.tasksNow()
		if !known {
			return !s.watch.own
		}
		if tasks == 0 {
			return true
		}
		if len(s.live()) > 0 || ctx.Err() != nil || time.Now().After(deadline) {
			return false
		}
		ts := unix.NsecToTimespec(int64(wait))
		_ = unix.Nanosleep(&ts, nil) // the runtime's own sleep takes a millisecond at least
	}
}

// For how long a scan waits for processes that were killed, and the first and
// longest distance between two looks.
const (
	leaveWithin = time.Second
	leaveFirst  = 50 * time.Microsecond
	leaveMost   = time.Millisecond
)

// skippedNames bounds the bytes of the names of skipped entries that the host is
// told: each is longer in the answer, which must not pass MaxControl.
const skippedNames = 256 << 10

// result is the state as the host is told it.
func (t *tree) result(complete bool) guestwire.ScanResult {
	r := guestwire.ScanResult{Token: t.token, Complete: complete, Entries: int64(len(t.nodes)), Bytes: t.bytes, Skipped: []guestwire.Skipped{}, SkippedN: t.skips}
	room := skippedNames
	for _, p := range slices.Sorted(maps.Keys(t.skipped)) {
		if room -= len(p) + len(t.skipped[p]); len(r.Skipped) == guestwire.MaxSkipped || room < 0 {
			break
		}
		r.Skipped = append(r.Skipped, guestwire.Skipped{Path: p, Why: t.skipped[p]})
	}
	return r
}

func scanError(err error) error {
	if e := (*workbench.Error)(nil); errors.As(err, &e) {
		return e
	}
	return workbench.E(workbench.CodeUnavailable, "the workspace could not be scanned").Caused(err)
}

// still makes sure that no code changes the workspace until resume is called,
// and reports whether there is any at all. The caller lets none begin.
func (s *supervisor) still(ctx context.Context) (quiet bool, resume func(), err error) {
	if err := s.holdAll(ctx, holdScan); err != nil {
		_ = s.releaseAll(holdScan) // what could be held
		return false, nil, err
	}
	return len(s.live()) == 0 && s.left(ctx), func() {
		_ = s.releaseAll(holdScan) // a group that cannot go on is ended with its exec's timeout
	}, nil
}

// told lists what differs from the state that base names, or everything: removed
// entries first, children before parents; then the others, parents before
// children.
func (w *walker) told(base string) []guestwire.Entry {
	was, paths := w.t.find, map[guestwire.Path]bool{}
	for p := range w.changed() {
		paths[p] = true
	}
	switch base {
	case "":
		was = func(guestwire.Path) *node { return nil }
		for p := range w.t.nodes {
			paths[p] = true
		}
	case w.t.before:
		was = func(p guestwire.Path) *node {
			if n, ok := w.t.undo[p]; ok {
				return n
			}
			return w.t.find(p)
		}
		for p := range w.t.undo {
			paths[p] = true
		}
	}
	var gone, there []guestwire.Entry
	for p := range paths {
		before, now := was(p), w.after(p)
		switch {
		case now == nil && before != nil:
			gone = append(gone, guestwire.Entry{Path: p, Change: workbench.ChangeRemoved, Type: before.typ, Mode: before.mode, MtimeNs: before.mtime})
		case now != nil && (before == nil || !now.sameAs(*before)):
			e := now.entry(p)
			e.Change, e.Content = workbench.ChangeAdded, now.typ == guestwire.TypeFile
			if before != nil {
				e.Change = workbench.ChangeModified
				e.Content = now.typ == guestwire.TypeFile && (before.typ != guestwire.TypeFile || before.sum != now.sum)
			}
			there = append(there, e)
		}
	}
	slices.SortFunc(gone, func(a, b guestwire.Entry) int { return byDepth(a.Path, b.Path) })
	slices.SortFunc(there, func(a, b guestwire.Entry) int { return strings.Compare(string(a.Path), string(b.Path)) })
	return append(gone, there...)
}

// inHand reports whether the walk has every content that is to be told, so that
// nothing has to be opened with code's identity.
func (w *walker) inHand(entries []guestwire.Entry) bool {
	return !slices.ContainsFunc(entries, func(e guestwire.Entry) bool {
		_, read := w.small[e.Path]
		return e.Content && !read && e.Size > 0
	})
}

// tell yields entries with their contents.
func (w *walker) tell(entries []guestwire.Entry, yield func(guestwire.Entry, io.Reader) error) error {
	for _, e := range entries {
		if err := w.one(e, yield); err != nil {
			return err
		}
	}
	return nil
}

// hidden reports whether an entry, or a directory above it, could not be read.
func (w *walker) hidden(p guestwire.Path) bool {
	return w.unreadable[p] || under(p, w.unreadable)
}

// one yields an entry with its content. Nothing has changed since the walk: no
// code runs.
func (w *walker) one(e guestwire.Entry, yield func(guestwire.Entry, io.Reader) error) error {
	if !e.Content {
		return yield(e, nil)
	}
	p := e.Path
	if content, ok := w.small[p]; ok || e.Size == 0 {
		return yield(e, bytes.NewReader(content))
	}
	restore, err := openUp(p)
	if err != nil {
		return err
	}
	defer restore()
	f, _, err := openFile(p)
	if err != nil {
		return err
	}
	defer f.Close()
	return yield(e, f)
}

// openUp makes a file readable for its owner where modes on its path forbid it,
// and returns what undoes that.
func openUp(p guestwire.Path) (restore func(), err error) {
	var undo []func()
	restore = func() {
		for _, f := range slices.Backward(undo) {
			f()
		}
	}
	fd, err := openDir("")
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	rest := string(p)
	for rest != "" {
		name, more, isDir := cutElement(rest)
		rest = more
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return restore, err
		}
		need := uint32(0o400)
		if isDir {
			need = 0o100
		}
		if mode := st.Mode & 0o7777; mode&need == 0 && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			if err := unix.Fchmodat(fd, name, mode|need, 0); err == nil {
				dir, err := unix.Dup(fd)
				if err != nil {
					return restore, err
				}
				undo = append(undo, func() {
					_ = unix.Fchmodat(dir, name, mode, 0)
					_ = unix.Close(dir)
				})
			}
		}
		if isDir {
			next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				return restore, err
			}
			_ = unix.Close(fd)
			fd = next
		}
	}
	return restore, nil
}

func cutElement(p string) (first, rest string, more bool) {
	for i := range len(p) {
		if p[i] == '/' {
			return p[:i], p[i+1:], true
		}
	}
	return p, "", false
}

// Read implements guestwire.Guest.
func (s *supervisor) Read(_ context.Context, p guestwire.Path, send func(io.Reader) error) (guestwire.Entry, error) {
	if _, err := s.current(); err != nil {
		return guestwire.Entry{}, err
	}
	var e guestwire.Entry
	err := asUser(func() error {
		f, st, err := openFile(p)
		if err != nil {
			return err
		}
		defer f.Close()
		h := newCounted(io.LimitReader(f, st.Size))
		if err := send(h); err != nil {
			return err
		}
		e = guestwire.Entry{Path: p, Type: guestwire.TypeFile, Mode: st.Mode & 0o7777, Size: h.n, MtimeNs: st.Mtim.Nano(), SHA256: h.sum()}
		return nil
	})
	return e, err
}

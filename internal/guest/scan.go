package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
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
	quiet, resume, err := s.still(ctx)
	if err != nil {
		return guestwire.ScanResult{}, err
	}
	defer s.spares.renewIn(0) // the machine is free
	defer resume()

	base := s.tree.base(r.Base)
	var w *walker
	err = asUser(func() error {
		trust := base != nil && base.quiet && s.tree.times
		if w, err = s.tree.look(ctx, b.limits, base, trust, quiet); err != nil {
			return err
		}
		return w.tell(yield)
	})
	if err != nil {
		return guestwire.ScanResult{}, scanError(err)
	}
	s.tree.keep(base, w.now)
	return guestwire.ScanResult{Token: w.now.token, Complete: base == nil, Entries: int64(len(w.order)), Bytes: w.bytes,
		Skipped: w.skipped, SkippedN: w.skips}, nil
}

func scanError(err error) error {
	if e := (*workbench.Error)(nil); errors.As(err, &e) {
		return e
	}
	return workbench.E(workbench.CodeUnavailable, "the workspace could not be scanned").Caused(err)
}

// still makes sure that no code changes the workspace until resume is called,
// and reports whether there is any at all.
func (s *supervisor) still(ctx context.Context) (quiet bool, resume func(), err error) {
	paused := map[*group]bool{}
	for _, g := range s.live() {
		g.mu.Lock()
		paused[g] = g.paused
		g.mu.Unlock()
	}
	if err := s.PauseAll(ctx); err != nil {
		return false, nil, err
	}
	live := s.live()
	return len(live) == 0, func() {
		for _, g := range live {
			if !paused[g] {
				_ = s.resume(g) // a group that cannot go on is ended with its exec's timeout
			}
		}
	}, nil
}

// look walks the whole workspace.
func (t *tree) look(ctx context.Context, l guestwire.SandboxLimits, base *snapshot, trust, quiet bool) (*walker, error) {
	w := &walker{leftBytes: wholePages(l.WorkspaceBytes), leftEntries: l.WorkspaceInodes, base: base, trust: trust, buf: make([]byte, hashBuffer), skipped: []guestwire.Skipped{},
		small: map[guestwire.Path][]byte{}, room: smallFiles,
		now:    &snapshot{token: newToken(), nodes: map[guestwire.Path]node{}, at: time.Now(), quiet: quiet},
		cancel: ctx.Err}
	// Code may take the mode of its own workspace away. Part of it would be
	// enough to hide every file and to keep the next program out.
	var st unix.Stat_t
	if err := unix.Lstat(workspaceDir, &st); err != nil {
		return nil, err
	}
	if st.Mode&0o700 != 0o700 {
		if err := unix.Chmod(workspaceDir, 0o755); err != nil {
			return nil, err
		}
	}
	root, err := unix.Open(workspaceDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return w, w.walk(root, "", 0)
}

// tell yields what differs from the base: removed entries first, children
// before parents; then the others, parents before children.
func (w *walker) tell(yield func(guestwire.Entry, io.Reader) error) error {
	if w.base != nil {
		var gone []guestwire.Path
		for p, b := range w.base.nodes {
			if _, ok := w.now.nodes[p]; ok {
				continue
			}
			if w.hidden(p) {
				w.now.nodes[p] = b // what could not be looked at has not gone
				continue
			}
			gone = append(gone, p)
		}
		slices.SortFunc(gone, byDepth)
		for _, p := range gone {
			b := w.base.nodes[p]
			if err := yield(guestwire.Entry{Path: p, Change: workbench.ChangeRemoved, Type: b.typ, Mode: b.mode, MtimeNs: b.mtime}, nil); err != nil {
				return err
			}
		}
	}
	for _, p := range w.order {
		n := w.now.nodes[p]
		e := n.entry(p)
		e.Change, e.Content = workbench.ChangeAdded, n.typ == guestwire.TypeFile
		if w.base != nil {
			if b, ok := w.base.nodes[p]; ok {
				if n.sameAs(b) {
					continue
				}
				e.Change = workbench.ChangeModified
				e.Content = n.typ == guestwire.TypeFile && (b.typ != guestwire.TypeFile || b.sum != n.sum)
			}
		}
		if err := w.one(p, n, e, yield); err != nil {
			return err
		}
	}
	return nil
}

// hidden reports whether an entry, or a directory above it, could not be read.
func (w *walker) hidden(p guestwire.Path) bool {
	if len(w.unreadable) == 0 {
		return false
	}
	for i := range len(p) {
		if p[i] == '/' && w.unreadable[p[:i]] {
			return true
		}
	}
	return w.unreadable[p]
}

// one yields an entry with its content. Nothing has changed since the walk: no
// code runs.
func (w *walker) one(p guestwire.Path, n node, e guestwire.Entry, yield func(guestwire.Entry, io.Reader) error) error {
	if !e.Content {
		return yield(e, nil)
	}
	if content, ok := w.small[p]; ok || n.size == 0 {
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

package guest

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

// walker looks at the workspace, or at parts of it. It runs with user code's
// identity while no code runs.
type walker struct {
	t *tree
	// What may still be committed. Holes in files and several names of one file
	// make a tree larger than the space it takes; elsewhere it would not fit.
	leftBytes, leftEntries int64

	whole   bool // everything is looked at
	trust   bool // times tell every change since the last scan
	at      time.Time
	quiet   bool
	written map[guestwire.Path]node // contents that the guest itself wrote and that no code has seen

	found   map[guestwire.Path]node
	looked  map[guestwire.Path]bool // paths looked at by name
	walked  map[guestwire.Path]bool // directories looked at with everything below
	lost    map[guestwire.Path]bool // paths that are no more what everything below them was in
	gone    map[guestwire.Path]bool // known entries that are not there
	linked  []guestwire.Path        // further names of files that have several
	spread  map[uint64]bool         // files all of whose names are looked at: each of thousands would bring all the others
	skipped map[guestwire.Path]string
	skips   int64
	vague   bool
	// unreadable are the entries skipped for that: they are there.
	unreadable map[guestwire.Path]bool

	cancel func() error
	buf    []byte
	small  map[guestwire.Path][]byte // contents read already, so that most files are opened once
	room   int                       // bytes small may still take
	most   int64                     // bytes of entries that may still be told of; 0: any
	reads  int64                     // bytes that may still be read, where most is not 0
}

const (
	hashBuffer = 128 << 10
	smallFiles = 4 << 20 // contents kept between the two passes of a scan
	anEntry    = 256     // bytes of an entry that is to go with an exec's end, about
	mostReads  = 8 << 20 // bytes that an exec's end may read: some milliseconds' worth
)

// wholePages is what a file of that size takes without holes.
func wholePages(size int64) int64 {
	const page = 4096
	return (size + page - 1) / page * page
}

// Why an entry was skipped that is no file, directory or link, and otherwise.
const (
	whyFIFO       = "fifo"
	whySocket     = "socket"
	whyDevice     = "device"
	whyDepth      = "depth"
	whyTooMany    = "too_many"
	whyTooLarge   = "too_large"
	whyUnreadable = "unreadable"
)

// emptySum is the digest of no bytes.
var emptySum = sha256.Sum256(nil)

func (t *tree) walker(ctx context.Context, l guestwire.SandboxLimits, quiet bool) *walker {
	return &walker{t: t, leftBytes: wholePages(l.WorkspaceBytes), leftEntries: l.WorkspaceInodes,
		trust: t.quiet && t.times, at: time.Now(), quiet: quiet,
		found: map[guestwire.Path]node{}, looked: map[guestwire.Path]bool{}, walked: map[guestwire.Path]bool{},
		lost: map[guestwire.Path]bool{}, gone: map[guestwire.Path]bool{}, skipped: map[guestwire.Path]string{}, spread: map[uint64]bool{},
		small: map[guestwire.Path][]byte{}, room: smallFiles, cancel: ctx.Err}
}

// look finds what has changed since the last scan: at the names that may have
// changed, where those are known, else everywhere.
func (t *tree) look(ctx context.Context, l guestwire.SandboxLimits, quiet bool) (*walker, error) {
	names, ok := t.changes.happened(func(inode uint64) []guestwire.Path { return t.names[inode] })
	if err := openWorkspace(); err != nil {
		return nil, err
	}
	if ok && !t.vague && !t.anyOpen {
		w := t.walker(ctx, l, quiet)
		if len(names) == 0 && len(t.open) == 0 {
			return w, nil
		}
		err := asUser(func() error { return w.lookAt(names, l) })
		if !errors.Is(err, errUnsure) {
			return w, err
		}
	}
	return t.lookEverywhere(ctx, l, quiet, nil)
}

// openWorkspace gives the workspace its mode back, if code has taken it away.
// Part of it would be enough to hide every file and to keep the next program
// out.
func openWorkspace() error {
	var st unix.Stat_t
	if err := unix.Lstat(workspaceDir, &st); err != nil || st.Mode&0o700 == 0o700 {
		return err
	}
	return asUser(func() error { return unix.Chmod(workspaceDir, 0o755) })
}

// lookEverywhere walks the whole workspace, and follows its changes from then
// on.
func (t *tree) lookEverywhere(ctx context.Context, l guestwire.SandboxLimits, quiet bool, written map[guestwire.Path]node) (*walker, error) {
	w := t.walker(ctx, l, quiet)
	w.whole, w.written = true, written
	t.changes.follow()
	err := asUser(func() error {
		root, err := unix.Open(workspaceDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return w.walk(root, "", 0)
	})
	if err != nil {
		t.changes.giveUp()
		return nil, err
	}
	for p, n := range t.nodes {
		if _, ok := w.found[p]; ok {
			continue
		}
		if w.hidden(p) {
			w.found[p] = n // what could not be looked at has not gone
		} else {
			w.gone[p] = true
		}
	}
	return w, nil
}

// errUnsure says that looking at names alone does not do.
var errUnsure = errors.New("the whole workspace has to be looked at")

// lookAt looks at the names that may have changed, and at every other name of
// the files that have or had one of them.
func (w *walker) lookAt(names map[guestwire.Path]happening, l guestwire.SandboxLimits) error {
	left := make([]guestwire.Path, 0, len(names)+len(w.t.open))
	for p := range names {
		left = append(left, p)
	}
	for p := range w.t.open {
		left = append(left, p)
	}
	slices.Sort(left) // a directory before what is in it
	dirs := dirCache{fd: -1}
	defer dirs.close()
	for len(left) > 0 {
		if err := w.cancel(); err != nil {
			return err
		}
		p := left[0]
		left = left[1:]
		if w.looked[p] || under(p, w.walked) {
			continue
		}
		w.looked[p] = true
		if old, ok := w.t.nodes[p]; ok && old.typ == guestwire.TypeFile {
			left = append(left, w.namesOf(old.inode)...)
		}
		if err := w.lookOnce(&dirs, p, names[p]); err != nil {
			return err
		}
		left = append(left, w.linked...)
		w.linked = w.linked[:0]
	}
	w.loseBelow()
	if w.vague || w.over(l) {
		return errUnsure
	}
	return nil
}

// namesOf gives the names that a file had at the last scan, once.
func (w *walker) namesOf(inode uint64) []guestwire.Path {
	if w.spread[inode] {
		return nil
	}
	w.spread[inode] = true
	return w.t.names[inode]
}

// lookOnce looks at one name.
func (w *walker) lookOnce(dirs *dirCache, p guestwire.Path, h happening) error {
	appeared := h&appeared != 0
	old, known := w.t.nodes[p]
	wasDir := known && old.typ == guestwire.TypeDir
	if h&passed != 0 && !w.t.changes.sees() {
		return errUnsure // it may have been a further name of any file
	}
	dir, name := split(p)
	fd, err := dirs.open(dir)
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		w.gone[p] = known
		w.lost[p] = true
		return nil
	case err != nil:
		return errUnsure
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir && appeared && !w.t.changes.sees() {
		return errUnsure // any file may have had a further name in it
	}
	if isDir && wasDir && !appeared {
		n := old
		n.mode, n.mtime, n.ctime, n.inode = st.Mode&0o7777, st.Mtim.Nano(), st.Ctim.Nano(), st.Ino
		w.found[p] = n
		if old.inode != st.Ino {
			return errUnsure
		}
		return nil
	}
	if !isDir || appeared {
		w.lost[p] = true
	}
	if isDir {
		w.walked[p] = true
	}
	if err := w.visit(fd, name, p, st, depthOf(p)); err != nil {
		return err
	}
	if _, ok := w.found[p]; !ok && known {
		w.gone[p] = true // something that is skipped took its place
	}
	return nil
}

func depthOf(p guestwire.Path) int {
	depth := 0
	for i := range len(p) {
		if p[i] == '/' {
			depth++
		}
	}
	return depth
}

// under reports whether one of the directories above a path is in the set.
func under(p guestwire.Path, set map[guestwire.Path]bool) bool {
	if len(set) == 0 {
		return false
	}
	for i := range len(p) {
		if p[i] == '/' && set[p[:i]] {
			return true
		}
	}
	return false
}

// loseBelow finds what went with directories that are no more.
func (w *walker) loseBelow() {
	below := false
	for p := range w.lost {
		if n, ok := w.t.nodes[p]; ok && n.typ == guestwire.TypeDir {
			below = true
		}
	}
	if !below {
		return
	}
	for p := range w.t.nodes {
		if _, ok := w.found[p]; !ok && under(p, w.lost) {
			w.gone[p] = true
		}
	}
}

// over reports whether the tree would be larger than may be committed.
func (w *walker) over(l guestwire.SandboxLimits) bool {
	entries, pages := int64(len(w.t.nodes)), w.t.pages
	for p := range w.changed() {
		if old := w.t.find(p); old != nil {
			entries--
			pages -= wholePages(old.size)
		}
		if now := w.after(p); now != nil {
			entries++
			pages += wholePages(now.size)
		}
	}
	return entries > l.WorkspaceInodes || pages > wholePages(l.WorkspaceBytes)
}

// changed gives the paths that are not as the last scan left them.
func (w *walker) changed() func(yield func(guestwire.Path) bool) {
	return func(yield func(guestwire.Path) bool) {
		for p, n := range w.found {
			if old, ok := w.t.nodes[p]; (!ok || old != n) && !yield(p) {
				return
			}
		}
		for p, really := range w.gone {
			if really && !yield(p) {
				return
			}
		}
	}
}

// after is what is at a path now, nil for nothing.
func (w *walker) after(p guestwire.Path) *node {
	if n, ok := w.found[p]; ok {
		return &n
	}
	if w.gone[p] {
		return nil
	}
	return w.t.find(p)
}

// takeSkipped makes the tree know what is skipped now.
func (w *walker) takeSkipped() {
	t := w.t
	if w.whole {
		t.skipped, t.skips, t.vague = w.skipped, w.skips, w.vague
		return
	}
	for p := range t.skipped {
		if w.looked[p] || under(p, w.lost) || under(p, w.walked) {
			delete(t.skipped, p)
			t.skips--
		}
	}
	for p, why := range w.skipped {
		t.skipped[p] = why
		t.skips++
	}
	if len(t.skipped) > guestwire.MaxSkipped {
		t.vague = true
	}
}

// dirCache keeps the directory opened last.
type dirCache struct {
	path string
	fd   int // -1: none
}

func (c *dirCache) open(path string) (int, error) {
	if c.fd >= 0 && c.path == path {
		return c.fd, nil
	}
	c.close()
	fd, err := openDir(path)
	if err != nil {
		return -1, err
	}
	c.path, c.fd = path, fd
	return fd, nil
}

func (c *dirCache) close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
}

// walk visits a directory; fd is closed by it.
func (w *walker) walk(fd int, prefix string, depth int) error {
	dir := os.NewFile(uintptr(fd), prefix)
	defer dir.Close()
	w.t.changes.watch(strings.TrimSuffix(prefix, "/"))
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.cancel(); err != nil {
			return err
		}
		p := guestwire.Path(prefix + name)
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			w.skip(p, whyUnreadable)
			continue
		}
		if err := w.visit(fd, name, p, st, depth); err != nil {
			return err
		}
	}
	return nil
}

// looksTheSame reports whether a file has the size and times that it had: most
// likely it was only read.
func (w *walker) looksTheSame(p guestwire.Path, n node, size int64) bool {
	old, ok := w.t.nodes[p]
	return ok && old.inode == n.inode && old.size == size && old.mtime == n.mtime && old.ctime == n.ctime
}

// visit takes one entry up.
func (w *walker) visit(fd int, name string, p guestwire.Path, st unix.Stat_t, depth int) error {
	n := node{mode: st.Mode & 0o7777, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(), inode: st.Ino}
	if depth >= guestwire.MaxDepth || len(p) > guestwire.MaxPath {
		holder, _ := split(p)
		w.skip(guestwire.Path(holder), whyDepth) // p is no path that could be told
		return nil
	}
	if w.most > 0 {
		if w.reads -= st.Size; w.reads <= 0 {
			return errUnsure
		}
		if w.most -= anEntry; !w.looksTheSame(p, n, st.Size) {
			w.most -= st.Size
		}
		if w.most <= 0 {
			return errUnsure
		}
	}
	if w.leftEntries <= 0 {
		w.skip(p, whyTooMany)
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		n.typ = guestwire.TypeDir
		return w.directory(fd, name, p, n, depth)
	case unix.S_IFREG:
		n.typ, n.size = guestwire.TypeFile, st.Size
		if wholePages(n.size) > w.leftBytes {
			w.skip(p, whyTooLarge)
			return nil
		}
		if !w.whole && st.Nlink > 1 {
			w.linked = append(w.linked, w.namesOf(st.Ino)...)
		}
		if err := w.file(fd, name, p, &n); err != nil {
			w.skip(p, whyUnreadable)
			return nil //nolint:nilerr // the host is told that it was skipped
		}
		w.leftBytes -= wholePages(n.size)
		w.t.changes.watchFile(p, st.Ino)
	case unix.S_IFLNK:
		target, err := readlink(fd, name)
		if err != nil {
			w.skip(p, whyUnreadable)
			return nil //nolint:nilerr // the host is told that it was skipped
		}
		n.typ, n.target, n.mode = guestwire.TypeSymlink, target, 0o777
	case unix.S_IFIFO:
		w.skip(p, whyFIFO)
		return nil
	case unix.S_IFSOCK:
		w.skip(p, whySocket)
		return nil
	default:
		w.skip(p, whyDevice)
		return nil
	}
	w.take(p, n)
	return nil
}

package guest

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

// tree is what the guest knows of the workspace: the last states that the host
// may name as a base.
type tree struct {
	mu    sync.Mutex  // held by whoever scans or writes
	known []*snapshot // at most two: the base of the last scan, and its outcome

	times bool // file times tell every change, also by mapped memory
}

func newTree() *tree { return &tree{times: timesTell()} }

// snapshot is one state of the workspace.
type snapshot struct {
	token string
	nodes map[guestwire.Path]node
	at    time.Time // when its scan began
	quiet bool      // no code lived then: nothing can write through an older mapping
}

// node is one entry with what is needed to see that it has not changed.
type node struct {
	typ    guestwire.EntryType
	mode   uint32
	size   int64
	mtime  int64 // ns
	ctime  int64 // ns
	inode  uint64
	sum    [sha256.Size]byte
	target string
}

// racy is how close to a scan a change may be and still have the same time as
// one after it.
const racy = 100 * time.Millisecond

func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// base returns the snapshot with the token, or nil.
func (t *tree) base(token string) *snapshot {
	for _, s := range t.known {
		if token != "" && s.token == token {
			return s
		}
	}
	return nil
}

// keep remembers a new state beside the one it was compared with.
func (t *tree) keep(base, now *snapshot) {
	t.known = t.known[:0]
	if base != nil {
		t.known = append(t.known, base)
	}
	t.known = append(t.known, now)
}

// timesTell finds out whether the kernel changes a file's times when memory that
// is mapped from it is written. gVisor does not; there, contents are compared.
// The file is where code cannot use up the space: a mapped page for which there
// is none left ends the process that touches it.
func timesTell() bool {
	f, err := os.CreateTemp(runDir, ".probe-*")
	if err != nil {
		return false
	}
	defer f.Close()
	defer os.Remove(f.Name())
	page := make([]byte, 4096)
	if _, err := f.Write(page); err != nil || os.Chtimes(f.Name(), time.Unix(1, 0), time.Unix(1, 0)) != nil {
		return false
	}
	m, err := unix.Mmap(int(f.Fd()), 0, len(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return false
	}
	m[0] = 1
	_ = unix.Munmap(m)
	info, err := f.Stat()
	return err == nil && info.ModTime().After(time.Unix(1, 0))
}

// walker collects the workspace. It runs with user code's identity while no
// code runs.
type walker struct {
	// What may still be committed. Holes in files and several names of one file
	// make a tree larger than the space it takes; elsewhere it would not fit.
	leftBytes, leftEntries int64

	base    *snapshot // for hashes that need not be computed again; may be nil
	trust   bool      // times tell every change since base
	now     *snapshot
	order   []guestwire.Path // parents before children, names sorted
	bytes   int64
	skipped []guestwire.Skipped
	skips   int64
	// unreadable are the entries skipped for that: they are there.
	unreadable map[guestwire.Path]bool
	cancel     func() error
	buf        []byte
	small      map[guestwire.Path][]byte // contents read already, so that most files are opened once
	room       int                       // bytes small may still take
}

const (
	maxWalkDepth = 200 // below what a path may have on the wire
	hashBuffer   = 128 << 10
	smallFiles   = 4 << 20 // contents kept between the two passes of a scan
)

// wholePages is what a file of that size takes without holes.
func wholePages(size int64) int64 {
	const page = 4096
	return (size + page - 1) / page * page
}

// whyUnreadable is why an entry was skipped that could not be looked at.
const whyUnreadable = "unreadable"

// emptySum is the digest of no bytes.
var emptySum = sha256.Sum256(nil)

// walk visits a directory; fd is closed by it.
func (w *walker) walk(fd int, prefix string, depth int) error {
	dir := os.NewFile(uintptr(fd), prefix)
	defer dir.Close()
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

// visit takes one entry up.
func (w *walker) visit(fd int, name string, p guestwire.Path, st unix.Stat_t, depth int) error {
	n := node{mode: st.Mode & 0o7777, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(), inode: st.Ino}
	if depth >= maxWalkDepth || len(p) > guestwire.MaxPath {
		w.skip(p, "depth")
		return nil
	}
	if w.leftEntries <= 0 {
		w.skip(p, "too_many")
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		n.typ = guestwire.TypeDir
		return w.directory(fd, name, p, n, depth)
	case unix.S_IFREG:
		n.typ, n.size = guestwire.TypeFile, st.Size
		if wholePages(n.size) > w.leftBytes {
			w.skip(p, "too_large")
			return nil
		}
		if err := w.file(fd, name, p, &n); err != nil {
			w.skip(p, whyUnreadable)
			return nil //nolint:nilerr // the host is told that it was skipped
		}
		w.bytes += n.size
		w.leftBytes -= wholePages(n.size)
	case unix.S_IFLNK:
		target, err := readlink(fd, name)
		if err != nil {
			w.skip(p, whyUnreadable)
			return nil //nolint:nilerr // the host is told that it was skipped
		}
		n.typ, n.target, n.mode = guestwire.TypeSymlink, target, 0o777
	case unix.S_IFIFO:
		w.skip(p, "fifo")
		return nil
	case unix.S_IFSOCK:
		w.skip(p, "socket")
		return nil
	default:
		w.skip(p, "device")
		return nil
	}
	w.take(p, n)
	return nil
}

func (w *walker) take(p guestwire.Path, n node) {
	w.leftEntries--
	w.now.nodes[p] = n
	w.order = append(w.order, p)
}

func (w *walker) skip(p guestwire.Path, why string) {
	w.skips++
	if why == whyUnreadable {
		if w.unreadable == nil {
			w.unreadable = map[guestwire.Path]bool{}
		}
		w.unreadable[p] = true
	}
	if len(w.skipped) < guestwire.MaxSkipped && p.Check() == nil {
		w.skipped = append(w.skipped, guestwire.Skipped{Path: p, Why: why})
	}
}

func readlink(fd int, name string) (string, error) {
	buf := make([]byte, guestwire.MaxPath+1)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil || n == 0 || n > guestwire.MaxPath {
		return "", unix.ENAMETOOLONG
	}
	return string(buf[:n]), nil
}

// directory takes a directory and what is in it.
func (w *walker) directory(fd int, name string, p guestwire.Path, n node, depth int) error {
	open := func() (int, error) {
		return unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	restore := func() {}
	if n.mode&0o500 != 0o500 {
		// Its owner may look in spite of the mode, for a moment.
		if err := unix.Fchmodat(fd, name, n.mode|0o700, 0); err == nil {
			restore = func() { _ = unix.Fchmodat(fd, name, n.mode, 0) }
		}
	}
	child, err := open()
	if err != nil {
		restore()
		w.skip(p, whyUnreadable)
		return nil //nolint:nilerr // the host is told that it was skipped
	}
	w.take(p, n)
	err = w.walk(child, string(p)+"/", depth+1)
	restore()
	return err
}

// file fills in the digest, computed anew unless nothing can have changed.
func (w *walker) file(fd int, name string, p guestwire.Path, n *node) error {
	if w.base != nil && w.trust {
		b, ok := w.base.nodes[p]
		if ok && b.typ == guestwire.TypeFile && b.size == n.size && b.mtime == n.mtime && b.ctime == n.ctime && b.inode == n.inode &&
			n.ctime < w.base.at.Add(-racy).UnixNano() {
			n.sum = b.sum
			return nil
		}
	}
	if n.size == 0 {
		n.sum = emptySum
		return nil
	}
	if n.mode&0o400 == 0 {
		if err := unix.Fchmodat(fd, name, n.mode|0o400, 0); err == nil {
			defer func() {
				_ = unix.Fchmodat(fd, name, n.mode, 0)
				var st unix.Stat_t
				if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
					n.ctime = st.Ctim.Nano()
				}
			}()
		}
	}
	f, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(f)
	h := sha256.New()
	total := int64(0)
	for {
		got, err := unix.Read(f, w.buf)
		if err != nil {
			return err
		}
		if got == 0 {
			break
		}
		total += int64(got)
		_, _ = h.Write(w.buf[:got]) // never fails
		if total == n.size && int64(got) == total && got <= w.room {
			w.small[p] = bytes.Clone(w.buf[:got])
			w.room -= got
			break // no code runs: what its size says is all
		}
		if err := w.cancel(); err != nil {
			return err
		}
	}
	n.size = total
	h.Sum(n.sum[:0])
	return nil
}

// entry is a node as the host sees it.
func (n node) entry(p guestwire.Path) guestwire.Entry {
	e := guestwire.Entry{Path: p, Type: n.typ, Mode: n.mode, MtimeNs: n.mtime}
	switch n.typ {
	case guestwire.TypeFile:
		e.Size, e.SHA256 = n.size, bytes.Clone(n.sum[:])
	case guestwire.TypeSymlink:
		e.Target = guestwire.Path(n.target)
	case guestwire.TypeDir: // has neither
	}
	return e
}

// sameAs reports whether the host need not hear of the node again. A
// directory's times follow from what is in it.
func (n node) sameAs(b node) bool {
	if n.typ != b.typ || n.mode != b.mode {
		return false
	}
	switch n.typ {
	case guestwire.TypeFile:
		return n.sum == b.sum && n.size == b.size && n.mtime == b.mtime
	case guestwire.TypeSymlink:
		return n.target == b.target
	default:
		return true
	}
}

// byDepth orders removed paths children first.
func byDepth(a, b guestwire.Path) int {
	if d := strings.Count(string(b), "/") - strings.Count(string(a), "/"); d != 0 {
		return d
	}
	return strings.Compare(string(a), string(b))
}

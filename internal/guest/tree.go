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

// tree is what the guest knows of the workspace: its state as the last scan or
// restore left it, and how to get back to the one before, since the host may not
// have stored the last.
type tree struct {
	mu      sync.Mutex // held by whoever scans or writes
	changes *changes
	times   bool // file times tell every change, also by mapped memory

	nodes   map[guestwire.Path]node
	names   map[uint64][]guestwire.Path // of files, by inode: one may have several
	bytes   int64                       // of files' contents
	pages   int64                       // the same as what they take without holes
	skipped map[guestwire.Path]string   // what is there and not in nodes, and why; the first MaxSkipped
	skips   int64
	vague   bool      // something was skipped for what else is there: it may have changed all the same
	at      time.Time // when the scan began
	quiet   bool      // no code lived then: nothing can write through an older mapping

	// Files that code which lives may have open since before the last scan; if
	// anyOpen, every file may be one.
	open    map[guestwire.Path]bool
	anyOpen bool

	token  string
	before string                   // token of the state before; "" for none
	undo   map[guestwire.Path]*node // what was there then, where it differs; nil: nothing
}

func newTree() *tree {
	return &tree{changes: newChanges(), times: timesTell(), nodes: map[guestwire.Path]node{}, names: map[uint64][]guestwire.Path{},
		skipped: map[guestwire.Path]string{}, vague: true}
}

// begin takes up a workspace that is empty and that no code has seen.
func (t *tree) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.vague, t.quiet, t.at, t.token = false, true, time.Now(), newToken()
	t.changes.follow()
	t.changes.watch("")
}

// now is the token of the last scan or restore.
func (t *tree) now() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.token
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

// take replaces the state by what a look found, and keeps the way back to base,
// one of the tokens the host may name, or "".
func (t *tree) take(w *walker, base string) {
	was := map[guestwire.Path]*node{}
	if base != "" && base == t.before {
		was = t.undo
	}
	for p := range w.changed() {
		if _, ok := was[p]; !ok && base != "" {
			was[p] = t.find(p)
		}
		t.set(p, w.after(p))
	}
	w.takeSkipped()
	t.at, t.quiet = w.at, w.quiet
	switch {
	case w.quiet:
		t.open, t.anyOpen = nil, false
	case w.whole:
		t.open, t.anyOpen = nil, true
	default:
		if t.open == nil {
			t.open = map[guestwire.Path]bool{}
		}
		for p := range w.looked {
			t.open[p] = true
		}
		for p, n := range w.found {
			if n.typ == guestwire.TypeFile {
				t.open[p] = true
			}
		}
		for p := range t.open {
			if n, ok := t.nodes[p]; !ok || n.typ != guestwire.TypeFile {
				delete(t.open, p)
			}
		}
	}
	t.token, t.before, t.undo = newToken(), base, was
	t.changes.settle()
}

// find returns what the last scan found at a path, nil for nothing.
func (t *tree) find(p guestwire.Path) *node {
	if n, ok := t.nodes[p]; ok {
		return &n
	}
	return nil
}

// set puts a node in its place, nil for nothing.
func (t *tree) set(p guestwire.Path, now *node) {
	if old, ok := t.nodes[p]; ok {
		delete(t.nodes, p)
		if old.typ == guestwire.TypeFile {
			t.bytes -= old.size
			t.pages -= wholePages(old.size)
			if rest := slices.DeleteFunc(t.names[old.inode], func(q guestwire.Path) bool { return q == p }); len(rest) > 0 {
				t.names[old.inode] = rest
			} else {
				delete(t.names, old.inode)
			}
		}
	}
	if now == nil {
		return
	}
	t.nodes[p] = *now
	if now.typ == guestwire.TypeFile {
		t.bytes += now.size
		t.pages += wholePages(now.size)
		t.names[now.inode] = append(t.names[now.inode], p)
	}
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

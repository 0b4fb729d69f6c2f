package workspace

import (
	"encoding/hex"
	"slices"
	"strings"

	"github.com/workbenchdev/workbench"
)

// Tree is an exact state of a workspace. It is immutable, cheap to copy and
// safe for concurrent use. The zero value is the empty tree.
type Tree struct {
	root *node
	made manifest // where it is stored
}

// manifest says how a tree is stored. The zero value says that it is not.
type manifest struct {
	id    string
	depth int       // manifests below it in its chain
	ops   int       // differences in the chain since its full manifest
	base  *manifest // the one below
}

// EmptyManifest is the manifest id of the empty tree, which is not stored.
const EmptyManifest = "empty"

// Empty is the tree without entries.
func Empty() Tree { return Tree{} }

// Root is the Merkle root: 64 hex characters that name the exact tree, without
// modification times.
func (t Tree) Root() string {
	sum := t.root.digest()
	return hex.EncodeToString(sum[:])
}

// ManifestID names what Store.Load reads the tree from; empty if the tree was
// never committed.
func (t Tree) ManifestID() string {
	if t.made.id == "" && t.root == nil {
		return EmptyManifest
	}
	return t.made.id
}

// Counts are the tree's entries, its files and the bytes of their contents.
func (t Tree) Counts() (entries, files, bytes int64) {
	if t.root == nil {
		return 0, 0, 0
	}
	return t.root.entries, t.root.files, t.root.bytes
}

// Get finds an entry. Links are not followed.
func (t Tree) Get(path string) (Entry, bool) {
	it := t.root.lookup(path)
	if it == nil {
		return Entry{}, false
	}
	return it.entry(path), true
}

func (n *node) lookup(path string) *item {
	for {
		name, rest, deeper := strings.Cut(path, "/")
		it := n.find(name)
		if it == nil || !deeper {
			return it
		}
		n, path = it.dir, rest
	}
}

// Walk calls f with every entry: a directory before what is in it, names of one
// directory in order of their bytes. It ends when f returns false.
func (t Tree) Walk(f func(Entry) bool) {
	t.root.walk("", func(path string, it *item) bool { return f(it.entry(path)) })
}

// Files is Walk for files alone.
func (t Tree) Files(f func(Entry) bool) {
	t.root.walk("", func(path string, it *item) bool { return it.kind != File || f(it.entry(path)) })
}

func (n *node) walk(prefix string, f func(string, *item) bool) bool {
	for _, it := range n.items() {
		path := prefix + it.name
		if !f(path, it) || it.dir != nil && !it.dir.walk(path+"/", f) {
			return false
		}
	}
	return true
}

// Delta is a change of a tree: what goes, then what is put.
type Delta struct {
	Remove []string
	Put    []Entry // with the SHA256 of a file's content
}

// Apply makes the tree with a change, and lists what differs. The files' bytes
// are not its concern: a Builder stores those. Codes: path_invalid,
// path_conflict, guest_protocol.
func (t Tree) Apply(d Delta) (Tree, []workbench.ChangedFile, error) {
	c := newChange(t)
	for _, path := range d.Remove {
		if err := c.remove(path); err != nil {
			return Tree{}, nil, err
		}
	}
	for _, e := range d.Put {
		it := &item{kind: e.Type, mode: e.Mode, mtime: e.MtimeNs, target: e.Target}
		if e.Type == File {
			sum, err := hex.DecodeString(e.SHA256)
			if err != nil || len(sum) != len(it.sum) {
				return Tree{}, nil, violation("a file comes without the SHA-256 of its content")
			}
			it.size, it.sum = e.Size, [32]byte(sum)
		}
		if err := c.put(e, it); err != nil {
			return Tree{}, nil, err
		}
	}
	after := c.finish()
	return after, Diff(t, after), nil
}

// Diff lists what differs from a to b in order of the paths' bytes. A directory
// that came or went is listed with everything in it. Modification times do not
// count.
func Diff(a, b Tree) []workbench.ChangedFile {
	return changesOf(diff(a, b))
}

// difference is one path at which two trees differ.
type difference struct {
	path     string
	old, new *item // nil where there is none
	implied  bool  // a directory above went, with everything in it
}

func changesOf(ds []difference) []workbench.ChangedFile {
	changes := make([]workbench.ChangedFile, 0, len(ds))
	for _, d := range ds {
		switch {
		case d.old == nil:
			changes = append(changes, d.new.change(d.path, workbench.ChangeAdded))
		case d.new == nil:
			changes = append(changes, d.old.change(d.path, workbench.ChangeRemoved))
		case !d.old.same(d.new):
			changes = append(changes, d.new.change(d.path, workbench.ChangeModified))
		}
	}
	return changes
}

// diff finds every difference, modification times included, in order of path.
// Parts that the trees share are not looked at.
func diff(a, b Tree) []difference {
	var ds []difference
	diffDirs(a.root, b.root, "", func(d difference) { ds = append(ds, d) })
	slices.SortFunc(ds, func(x, y difference) int { return strings.Compare(x.path, y.path) })
	return ds
}

func diffDirs(a, b *node, prefix string, emit func(difference)) {
	if a == b {
		return
	}
	if a != nil && b != nil && a.kids != nil && b.kids != nil {
		for i := range a.kids {
			diffDirs(a.kids[i], b.kids[i], prefix, emit)
		}
		return
	}
	old, now := a.items(), b.items()
	for len(old) > 0 || len(now) > 0 {
		switch {
		case len(now) == 0 || len(old) > 0 && old[0].name < now[0].name:
			diffItem(prefix, old[0], nil, emit)
			old = old[1:]
		case len(old) == 0 || now[0].name < old[0].name:
			diffItem(prefix, nil, now[0], emit)
			now = now[1:]
		default:
			diffItem(prefix, old[0], now[0], emit)
			old, now = old[1:], now[1:]
		}
	}
}

// diffItem compares what one name is in two directories.
func diffItem(prefix string, old, now *item, emit func(difference)) {
	switch old {
	case now:
	case nil:
		path := prefix + now.name
		emit(difference{path: path, new: now})
		diffDirs(nil, now.dir, path+"/", emit)
	default:
		path := prefix + old.name
		if now == nil || !old.same(now) || old.mtime != now.mtime {
			emit(difference{path: path, old: old, new: now})
		}
		if now != nil && now.kind == Dir { // what was no directory has none
			diffDirs(old.dir, now.dir, path+"/", emit)
			return
		}
		old.dir.walk(path+"/", func(path string, it *item) bool {
			emit(difference{path: path, old: it, implied: true})
			return true
		})
	}
}

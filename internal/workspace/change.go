package workspace

import (
	"slices"
	"strings"

	"github.com/workbenchdev/workbench"
)

// change makes a tree from another. It is for one goroutine.
type change struct {
	edit    *edit
	root    *node
	placed  map[string]bool // paths put by this change
	parents map[string]bool // directories above them
	removed map[string]bool // paths taken out, and directories replaced by something else
}

func newChange(from Tree) *change {
	return &change{edit: &edit{}, root: from.root, placed: map[string]bool{}, parents: map[string]bool{}, removed: map[string]bool{}}
}

// finish makes the result a tree.
func (c *change) finish() Tree {
	c.root.finish(nil)
	return Tree{root: c.root}
}

func conflict(detail string) *workbench.Error {
	return workbench.E(workbench.CodePathConflict, "%s", detail).WithHint("give every path once, and nothing below what is not a directory")
}

// put puts an entry at its path. Missing directories above it are made with
// mode 0755 and its modification time. A directory that is put where one is
// keeps what is in it; anything else replaces what is there. Codes:
// path_invalid, path_conflict (a path that comes twice, or below something that
// is not a directory), guest_protocol.
func (c *change) put(e Entry, it *item) error {
	if err := e.check(); err != nil {
		return err
	}
	if c.placed[e.Path] {
		return conflict("a path of the workspace is given twice")
	}
	if it.kind != Dir && c.parents[e.Path] {
		return conflict("a path of the workspace is both a directory and something else")
	}
	root, err := c.insert(c.root, "", e.Path, it)
	if err != nil {
		return err
	}
	c.root = root
	c.placed[e.Path] = true
	for above := range parentsOf(e.Path) {
		if c.parents[above] {
			break
		}
		c.parents[above] = true
	}
	return nil
}

// parentsOf gives the directories above a path, the nearest first.
func parentsOf(path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := strings.LastIndexByte(path, '/'); i > 0; i = strings.LastIndexByte(path[:i], '/') {
			if !yield(path[:i]) {
				return
			}
		}
	}
}

func (c *change) insert(n *node, prefix, path string, it *item) (*node, error) {
	name, rest, deeper := strings.Cut(path, "/")
	old := n.find(name)
	if !deeper {
		it.name = name
		if old != nil && old.kind == Dir {
			if it.kind == Dir {
				it.dir = old.dir
			} else {
				c.removed[prefix+name] = true
			}
		}
		return n.with(c.edit, it), nil
	}
	parent := &item{name: name, kind: Dir, mode: 0o755, mtime: it.mtime}
	if old != nil {
		if old.kind != Dir {
			return nil, conflict("a path of the workspace lies below something that is not a directory")
		}
		parent = old
	}
	dir, err := c.insert(parent.dir, prefix+name+"/", rest, it)
	if err != nil {
		return nil, err
	}
	return c.withDir(n, parent, dir), nil
}

// withDir is n with the directory d holding dir. If d holds it already, this
// change made dir and everything above it, or nothing has changed.
func (c *change) withDir(n *node, d *item, dir *node) *node {
	if d.dir == dir && n.find(d.name) == d {
		return n
	}
	changed := *d // other trees share d
	changed.dir = dir
	return n.with(c.edit, &changed)
}

// remove takes out an entry and what is in it. Codes: path_invalid,
// path_conflict, guest_protocol (nothing is there).
func (c *change) remove(path string) error {
	if err := CheckPath(path); err != nil {
		return err
	}
	if c.placed[path] || c.parents[path] {
		return conflict("a path of the workspace is both put and removed")
	}
	if c.removed[path] {
		return violation("a path is removed twice")
	}
	if c.root.lookup(path) == nil {
		for above := range parentsOf(path) {
			if c.removed[above] {
				return nil // it went with its directory
			}
		}
		return violation("a path is removed that is not there")
	}
	c.root = c.cut(c.root, path)
	c.removed[path] = true
	return nil
}

// cut takes out a path that is there.
func (c *change) cut(n *node, path string) *node {
	name, rest, deeper := strings.Cut(path, "/")
	if !deeper {
		return n.without(c.edit, name)
	}
	d := n.find(name)
	return c.withDir(n, d, c.cut(d.dir, rest))
}

// keepPlaced takes out every entry that this change did not put, except
// directories above one that it did.
func (c *change) keepPlaced() { c.root = c.prune(c.root, "") }

func (c *change) prune(n *node, prefix string) *node {
	for _, it := range slices.Clone(n.items()) {
		path := prefix + it.name
		switch {
		case !c.placed[path] && !c.parents[path]:
			n = n.without(c.edit, it.name)
		case it.kind == Dir:
			n = c.withDir(n, it, c.prune(it.dir, path+"/"))
		}
	}
	return n
}

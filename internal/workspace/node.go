package workspace

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

const (
	treeVersion = 1
	leafMax     = 32
	fanout      = 16
	maxLevel    = 2 * sha256.Size // nibbles of a name's hash
)

// edit is who may change a node in place: the change under way that made it.
type edit struct{ _ byte }

// node is a part of one directory: a leaf with the entries in order of their
// names, or a branch with one child for each next nibble of SHA-256(name). A
// directory without entries is nil.
type node struct {
	edit *edit
	leaf []*item
	kids *[fanout]*node // nil for a leaf
	n    int            // entries of this directory in this part

	summed  bool // the rest is right
	sum     [sha256.Size]byte
	files   int64 // files in this part and in the directories below it
	entries int64
	bytes   int64 // of those files' contents
}

func nibble(hash *[sha256.Size]byte, level int) byte {
	b := hash[level/2]
	if level%2 == 0 {
		return b >> 4
	}
	return b & 15
}

func (n *node) count() int {
	if n == nil {
		return 0
	}
	return n.n
}

func search(leaf []*item, name string) (int, bool) {
	return slices.BinarySearchFunc(leaf, name, func(it *item, name string) int { return strings.Compare(it.name, name) })
}

// find returns the entry of that name, or nil.
func (n *node) find(name string) *item {
	if n == nil {
		return nil
	}
	if n.kids != nil {
		hash := sha256.Sum256([]byte(name))
		for level := 0; n != nil && n.kids != nil; level++ {
			n = n.kids[nibble(&hash, level)]
		}
		if n == nil {
			return nil
		}
	}
	if i, ok := search(n.leaf, name); ok {
		return n.leaf[i]
	}
	return nil
}

// own returns n if this change made it, else a copy that it may change.
func (n *node) own(e *edit) *node {
	if n.edit == e {
		return n
	}
	c := &node{edit: e, n: n.n}
	if n.kids != nil {
		kids := *n.kids
		c.kids = &kids
	} else {
		c.leaf = append(make([]*item, 0, len(n.leaf)+1), n.leaf...)
	}
	return c
}

// with returns the directory with the item, replacing one of its name.
func (n *node) with(e *edit, it *item) *node {
	hash := sha256.Sum256([]byte(it.name))
	return n.insert(e, it, &hash, 0)
}

func (n *node) insert(e *edit, it *item, hash *[sha256.Size]byte, level int) *node {
	if n == nil {
		return &node{edit: e, leaf: []*item{it}, n: 1}
	}
	n = n.own(e)
	if n.kids != nil {
		i := nibble(hash, level)
		before := n.kids[i].count()
		n.kids[i] = n.kids[i].insert(e, it, hash, level+1)
		n.n += n.kids[i].n - before
		return n
	}
	i, there := search(n.leaf, it.name)
	if there {
		n.leaf[i] = it
		return n
	}
	n.leaf = slices.Insert(n.leaf, i, it)
	n.n++
	if n.n > leafMax && level < maxLevel {
		n.split(e, level)
	}
	return n
}

// split turns a leaf with too many entries into a branch.
func (n *node) split(e *edit, level int) {
	leaf := n.leaf
	n.leaf, n.kids = nil, new([fanout]*node)
	for _, it := range leaf {
		hash := sha256.Sum256([]byte(it.name))
		i := nibble(&hash, level)
		n.kids[i] = n.kids[i].insert(e, it, &hash, level+1)
	}
}

// without returns the directory without the entry of that name.
func (n *node) without(e *edit, name string) *node {
	if n.find(name) == nil {
		return n
	}
	hash := sha256.Sum256([]byte(name))
	return n.remove(e, name, &hash, 0)
}

// remove takes out an entry that is there.
func (n *node) remove(e *edit, name string, hash *[sha256.Size]byte, level int) *node {
	if n.n == 1 {
		return nil
	}
	n = n.own(e)
	n.n--
	if n.kids == nil {
		i, _ := search(n.leaf, name)
		n.leaf = slices.Delete(n.leaf, i, i+1)
		return n
	}
	i := nibble(hash, level)
	n.kids[i] = n.kids[i].remove(e, name, hash, level+1)
	if n.n <= leafMax {
		n.leaf, n.kids = n.items(), nil
	}
	return n
}

// items gathers the entries in order of their names. The caller must not
// change the slice.
func (n *node) items() []*item {
	switch {
	case n == nil:
		return nil
	case n.kids == nil:
		return n.leaf
	}
	all := n.gather(make([]*item, 0, n.n))
	slices.SortFunc(all, func(a, b *item) int { return strings.Compare(a.name, b.name) })
	return all
}

func (n *node) gather(into []*item) []*item {
	if n == nil {
		return into
	}
	if n.kids == nil {
		return append(into, n.leaf...)
	}
	for _, kid := range n.kids {
		into = kid.gather(into)
	}
	return into
}

// emptySum is the digest of a directory without entries.
var emptySum = sha256.Sum256([]byte{0, treeVersion})

func (n *node) digest() [sha256.Size]byte {
	if n == nil {
		return emptySum
	}
	return n.sum
}

// finish computes what changed nodes sum up to, in buf. Afterwards the nodes
// never change again and may be shared.
func (n *node) finish(buf []byte) []byte {
	if n == nil || n.summed {
		return buf
	}
	n.files, n.entries, n.bytes = 0, 0, 0
	if n.kids != nil {
		for _, kid := range n.kids {
			buf = kid.finish(buf)
			n.add(kid)
		}
		var none [sha256.Size]byte
		buf = append(buf[:0], 1, treeVersion)
		for _, kid := range n.kids {
			if kid == nil {
				buf = append(buf, none[:]...)
			} else {
				buf = append(buf, kid.sum[:]...)
			}
		}
	} else {
		for _, it := range n.leaf {
			buf = it.dir.finish(buf)
		}
		buf = append(buf[:0], 0, treeVersion)
		for _, it := range n.leaf {
			buf = it.appendTo(buf)
			n.entries++
			if it.kind == File {
				n.files++
				n.bytes += it.size
			}
			n.add(it.dir)
		}
	}
	n.sum, n.summed, n.edit = sha256.Sum256(buf), true, nil
	return buf
}

func (n *node) add(below *node) {
	if below != nil {
		n.files += below.files
		n.entries += below.entries
		n.bytes += below.bytes
	}
}

// appendTo appends the canonical form of an entry, as the package comment says.
func (it *item) appendTo(b []byte) []byte {
	b = append(b, byte(it.kind))
	b = binary.BigEndian.AppendUint16(b, uint16(it.mode))
	b = binary.BigEndian.AppendUint32(b, uint32(len(it.name)))
	b = append(b, it.name...)
	switch it.kind {
	case File:
		b = binary.BigEndian.AppendUint64(b, uint64(it.size))
		b = append(b, it.sum[:]...)
	case Dir:
		sum := it.dir.digest()
		b = append(b, sum[:]...)
	case Symlink:
		b = binary.BigEndian.AppendUint32(b, uint32(len(it.target)))
		b = append(b, it.target...)
	}
	return b
}

package workspace

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/workbenchdev/workbench"
)

// A manifest, before it is sealed in a pack:
//
//	version      byte, 2
//	root         32 bytes: of the tree it makes
//	base         text: id of the manifest it differs from, empty for none
//	objects      count, then ids: where contents lie; "" is this manifest's pack
//	differences  count, then in order of path:
//	  shared     bytes of the previous path that this one begins with
//	  rest       text: the rest of the path
//	  kind       byte: "f", "d", "l", or "-" for a path that went with all below it
//	  mode       (not for "-")
//	  mtime      signed
//	  f: size, SHA-256 (32 bytes), number of its parts;
//	     of one part: index of its object, offset in it;
//	     of each of several: size, SHA-256, index of its object, offset in it
//	  l: target  text
//
// Version 1 has no parts: every file has one. Numbers are varints; texts are preceded by their length.
const (
	manifestVersion = 2
	firstVersion    = 1
	gone            = '-'

	// maxChain bounds how many manifests are read for one tree.
	maxChain = 256
	// alwaysFull is the number of entries up to which manifests stand alone.
	alwaysFull = 64
)

// stored is a manifest that was read.
type stored struct {
	id   string
	root [sha256.Size]byte
	base string
	ops  []op
}

// op is one difference.
type op struct {
	path string
	it   *item // nil: the path went
}

// opsOf are the differences that make b of a.
func opsOf(ds []difference) []op {
	ops := make([]op, 0, len(ds))
	for _, d := range ds {
		if !d.implied {
			ops = append(ops, op{d.path, d.new})
		}
	}
	return ops
}

// encodeManifest encodes differences. self is the pack that the manifest will
// be in; its id need not be known.
func encodeManifest(root [sha256.Size]byte, base string, ops []op, self *object) []byte {
	b := append(make([]byte, 0, 128+80*len(ops)), manifestVersion)
	b = append(b, root[:]...)
	b = appendText(b, base)

	index := map[*object]int{}
	var objects []*object
	for _, o := range ops {
		if o.it == nil || o.it.kind != File {
			continue
		}
		for _, p := range o.it.stored() {
			if _, known := index[p.at]; !known {
				index[p.at] = len(objects)
				objects = append(objects, p.at)
			}
		}
	}
	b = binary.AppendUvarint(b, uint64(len(objects)))
	for _, o := range objects {
		if o == self || o == nil {
			b = appendText(b, "")
		} else {
			b = appendText(b, o.id)
		}
	}

	b = binary.AppendUvarint(b, uint64(len(ops)))
	previous := ""
	for _, o := range ops {
		shared := 0
		for shared < len(previous) && shared < len(o.path) && previous[shared] == o.path[shared] {
			shared++
		}
		b = binary.AppendUvarint(b, uint64(shared))
		b = appendText(b, o.path[shared:])
		previous = o.path
		if o.it == nil {
			b = append(b, gone)
			continue
		}
		b = append(b, byte(o.it.kind))
		b = binary.AppendUvarint(b, uint64(o.it.mode))
		b = binary.AppendVarint(b, o.it.mtime)
		switch o.it.kind {
		case File:
			b = binary.AppendUvarint(b, uint64(o.it.size))
			b = append(b, o.it.sum[:]...)
			b = binary.AppendUvarint(b, uint64(max(1, len(o.it.parts))))
			for _, p := range o.it.stored() {
				if o.it.parts != nil {
					b = binary.AppendUvarint(b, uint64(p.size))
					b = append(b, p.sum[:]...)
				}
				b = binary.AppendUvarint(b, uint64(index[p.at]))
				b = binary.AppendUvarint(b, uint64(p.offset))
			}
		case Symlink:
			b = appendText(b, o.it.target)
		case Dir:
		}
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func damaged(what string) *workbench.Error {
	return workbench.E(workbench.CodeCorrupt, "a stored workspace is damaged: %s", what).
		WithHint("the operator has to restore it from a backup")
}

// decodeManifest reads a manifest that lies in the pack self. It believes no
// number in it.
func decodeManifest(b []byte, self *object) (stored, error) {
	r := reader{b: b}
	var m stored
	version := r.byte()
	if version != manifestVersion && version != firstVersion {
		return m, damaged("a manifest of another format")
	}
	copy(m.root[:], r.bytes(sha256.Size))
	m.base = r.text()
	objects := make([]*object, r.count(1))
	for i := range objects {
		if id := r.text(); id == "" {
			objects[i] = self
		} else {
			objects[i] = &object{id: id}
		}
	}
	ops := r.count(3)
	m.ops = make([]op, 0, min(ops, 1<<16))
	previous := ""
	for range ops {
		o, err := r.op(version, previous, objects)
		if err != nil {
			return stored{}, err
		}
		m.ops = append(m.ops, o)
		previous = o.path
	}
	if r.short || len(r.b) > 0 {
		return stored{}, damaged("a manifest of the wrong length")
	}
	return m, nil
}

// op reads one difference. Paths only grow, so none comes twice.
func (r *reader) op(version byte, previous string, objects []*object) (op, error) {
	shared := r.number()
	if shared > uint64(len(previous)) {
		return op{}, damaged("a path without a beginning")
	}
	o := op{path: previous[:shared] + r.text()}
	kind := r.byte()
	if r.short {
		return op{}, damaged("a manifest of the wrong length")
	}
	if o.path <= previous {
		return op{}, damaged("paths out of order")
	}
	if kind == gone {
		if CheckPath(o.path) != nil {
			return op{}, damaged("an impossible path")
		}
		return o, nil
	}
	o.it = &item{kind: Type(kind), mode: uint32(min(r.number(), 1<<31)), mtime: r.signed()}
	switch o.it.kind {
	case File:
		if err := r.file(version, o.it, objects); err != nil {
			return op{}, err
		}
	case Symlink:
		o.it.target = r.text()
	case Dir:
	}
	if r.short {
		return op{}, damaged("a manifest of the wrong length")
	}
	if err := o.it.entry(o.path).check(); err != nil {
		return op{}, damaged("an impossible entry")
	}
	return o, nil
}

// file reads where the content of a file is.
func (r *reader) file(version byte, it *item, objects []*object) error {
	nowhere := damaged("a content that is nowhere")
	size := r.number()
	copy(it.sum[:], r.bytes(sha256.Size))
	n := 1
	if version > firstVersion {
		n = r.count(2)
	}
	if size > 1<<62 || n == 0 {
		return nowhere
	}
	it.size = int64(size)
	var end uint64
	for range n {
		p := part{sum: it.sum, size: it.size}
		if n > 1 {
			s := r.number()
			if s == 0 || s > size {
				return nowhere
			}
			p.size = int64(s)
			copy(p.sum[:], r.bytes(sha256.Size))
		}
		i, offset := r.number(), r.number()
		if offset > 1<<62 || i >= uint64(len(objects)) {
			return nowhere
		}
		p.at, p.offset = objects[i], int64(offset)
		if end += uint64(p.size); end > size {
			return nowhere
		}
		if n > 1 {
			it.parts = append(it.parts, p)
		}
		if it.at == nil {
			it.at, it.offset = p.at, p.offset
		}
	}
	if end != size {
		return nowhere
	}
	return nil
}

// Encode is a whole tree as a manifest, before it is sealed. Where contents
// are is a part of it.
func Encode(t Tree) []byte {
	return encodeManifest(t.root.digest(), "", opsOf(diff(Empty(), t)), nil)
}

// Decode reads what Encode wrote; anything else is content_corrupt.
func Decode(b []byte) (Tree, error) {
	m, err := decodeManifest(b, nil)
	if err != nil {
		return Tree{}, err
	}
	return m.replay(Empty())
}

// replay applies a manifest to the tree it differs from.
func (m stored) replay(base Tree) (Tree, error) {
	c := newChange(base)
	for _, o := range m.ops {
		var err error
		if o.it == nil {
			err = c.remove(o.path)
		} else {
			err = c.put(o.it.entry(o.path), o.it)
		}
		if err != nil {
			return Tree{}, damaged("a difference that does not fit")
		}
	}
	t := c.finish()
	if t.root.digest() != m.root {
		return Tree{}, damaged("it is not the tree it names")
	}
	return t, nil
}

// reader takes values off the front of b and remembers if there was too little.
type reader struct {
	b       []byte
	short   bool
	counted int
}

func (r *reader) bytes(n int) []byte {
	if r.short || n < 0 || n > len(r.b) {
		r.short = true
		return nil
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) byte() byte {
	if p := r.bytes(1); p != nil {
		return p[0]
	}
	return 0
}

func (r *reader) number() uint64 {
	v, n := binary.Uvarint(r.b)
	if r.short || n <= 0 {
		r.short = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) signed() int64 {
	v, n := binary.Varint(r.b)
	if r.short || n <= 0 {
		r.short = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) text() string {
	n := r.number()
	if n > uint64(len(r.b)) {
		r.short = true
		return ""
	}
	return string(r.bytes(int(n)))
}

// count reads how many things of at least size bytes follow.
func (r *reader) count(size int) int {
	n := r.number()
	if n > uint64(len(r.b)/size) {
		r.short = true
		n = 0
	}
	r.counted = int(n)
	return r.counted
}

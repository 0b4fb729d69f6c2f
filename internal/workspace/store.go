package workspace

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/seal"
)

// Records is what the database does for this package; store.DB is one.
type Records interface {
	// NoteBlob announces a blob before it is put.
	NoteBlob(ctx context.Context, blobID, tenantID string, size int64, at time.Time) error
	// NoteBlobs announces several, by id with their sizes.
	NoteBlobs(ctx context.Context, tenantID string, sizes map[string]int64, at time.Time) error
	// InlineBlob reads what was stored with a commit.
	InlineBlob(ctx context.Context, tenantID, blobID string) ([]byte, error)
}

// Store keeps trees. It is safe for concurrent use.
type Store struct {
	blobs   blob.Store
	sealer  *seal.Sealer
	records Records
	clock   func() time.Time
}

// New makes a store.
func New(blobs blob.Store, sealer *seal.Sealer, records Records) *Store {
	return &Store{blobs: blobs, sealer: sealer, records: records, clock: time.Now}
}

// A pack is a sealed object of this kind:
//
//	"WBP", version 1 (4 bytes)
//	length of the manifest (uint32, big endian); 0 where there is none
//	manifest
//	contents, one after the other; offsets count from the first
//
// Its id is random: it exists before the contents do.
const (
	kindPack    = "pack"
	packMagic   = "WBP\x01"
	packHeader  = 8
	inlinePack  = "i_" // kept in the database
	blobPack    = "p_" // kept as a blob
	maxManifest = 1 << 30
)

// Load reads the tree that a manifest makes. Codes: content_corrupt,
// encryption_key_unavailable, unavailable.
func (s *Store) Load(ctx context.Context, tenantID, manifestID string) (Tree, error) {
	if manifestID == EmptyManifest {
		return Empty(), nil
	}
	var chain []stored
	for id := manifestID; id != ""; {
		if len(chain) > maxChain {
			return Tree{}, damaged("its manifests do not end")
		}
		m, err := s.readManifest(ctx, tenantID, id)
		if err != nil {
			return Tree{}, err
		}
		chain = append(chain, m)
		id = m.base
	}
	tree, ops := Empty(), 0
	for i := len(chain) - 1; i >= 0; i-- {
		var err error
		if tree, err = chain[i].replay(tree); err != nil {
			return Tree{}, err
		}
		if i < len(chain)-1 {
			ops += len(chain[i].ops)
		}
	}
	for i := len(chain) - 1; i >= 0; i-- {
		made := manifest{id: chain[i].id, depth: len(chain) - 1 - i}
		if i < len(chain)-1 {
			below := tree.made
			made.base = &below
		}
		tree.made = made
	}
	tree.made.ops = ops
	return tree, nil
}

func (s *Store) readManifest(ctx context.Context, tenantID, id string) (stored, error) {
	self := &object{id: id}
	p, err := s.openObject(ctx, tenantID, self)
	if err != nil {
		return stored{}, err
	}
	defer func() { _ = p.Close() }() // only read
	raw := make([]byte, p.start-packHeader)
	if _, err := p.ReadAt(raw, packHeader); err != nil {
		return stored{}, workbench.AsError(err)
	}
	m, err := decodeManifest(raw, self)
	m.id = id
	return m, err
}

// opened is an open pack or content.
type opened struct {
	*seal.Object
	start int64 // of the contents
}

// openObject opens what contents lie in.
func (s *Store) openObject(ctx context.Context, tenantID string, at *object) (opened, error) {
	if at == nil {
		return opened{}, damaged("a content that is nowhere")
	}
	kind := kindPack
	var src io.ReaderAt
	var size int64
	switch {
	case strings.HasPrefix(at.id, inlinePack):
		raw, err := s.records.InlineBlob(ctx, tenantID, at.id)
		if err != nil {
			return opened{}, missing(err)
		}
		src, size = bytes.NewReader(raw), int64(len(raw))
	default:
		r, err := s.blobs.Open(ctx, at.id)
		if err != nil {
			return opened{}, missing(err)
		}
		src, size = r, r.Size()
		if !strings.HasPrefix(at.id, blobPack) {
			kind = seal.KindContent
		}
	}
	o, err := s.sealer.Open(ctx, tenantID, kind, at.id, src, size)
	if err != nil {
		return opened{}, err
	}
	p := opened{Object: o}
	if kind == kindPack {
		if p.start, err = packStart(o); err != nil {
			_ = o.Close()
			return opened{}, err
		}
	}
	return p, nil
}

// packStart is where the contents of a pack begin.
func packStart(o *seal.Object) (int64, error) {
	var header [packHeader]byte
	if o.Size() < packHeader {
		return 0, damaged("a pack without a header")
	}
	if _, err := o.ReadAt(header[:], 0); err != nil {
		return 0, err
	}
	n := int64(binary.BigEndian.Uint32(header[4:]))
	if string(header[:4]) != packMagic || n > maxManifest || n > o.Size()-packHeader {
		return 0, damaged("a pack of another format")
	}
	return packHeader + n, nil
}

// section is a part of a file in an open object.
func (p opened) section(of part) (*io.SectionReader, error) {
	if start := p.start + of.offset; start > p.Size() || of.size > p.Size()-start {
		return nil, damaged("a content that is shorter than its file")
	}
	return io.NewSectionReader(p, p.start+of.offset, of.size), nil
}

// missing says that a referenced object is not there, which is damage.
func missing(err error) error {
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return workbench.E(workbench.CodeCorrupt, "a stored content is missing").
			WithHint("the operator has to restore it from a backup").Caused(err)
	}
	return err
}

// Open opens a file of a tree for reading, at any place; of a large file only
// the chunks that are read are opened, with ctx. Codes: not_found, path_invalid (it
// is no file), content_corrupt, encryption_key_unavailable, unavailable.
func (s *Store) Open(ctx context.Context, tenantID string, t Tree, path string) (Entry, io.ReadSeekCloser, error) {
	it := t.root.lookup(path)
	if it == nil {
		return Entry{}, nil, workbench.ErrNotFound("file").WithHint("the files of the tree are listed with the run")
	}
	if it.kind != File {
		return Entry{}, nil, workbench.E(workbench.CodePathInvalid, "the path is a %s, which has no contents to read", it.kind)
	}
	from := &Restoring{s: s, ctx: ctx, tenantID: tenantID, most: 2}
	content, err := newContent(it, from.object)
	if err != nil {
		_ = from.Close()
		return Entry{}, nil, err
	}
	return it.entry(path), fileReader{content, from}, nil
}

type fileReader struct {
	*io.SectionReader
	io.Closer
}

// Restore reads a tree entry by entry, to write it somewhere else.
func (s *Store) Restore(ctx context.Context, tenantID string, t Tree) *Restoring {
	r := &Restoring{s: s, ctx: ctx, tenantID: tenantID, most: maxOpen}
	t.root.walk("", func(path string, it *item) bool {
		r.left = append(r.left, op{path, it})
		return true
	})
	return r
}

// maxOpen bounds the objects a Restoring keeps open.
const maxOpen = 8

// Restoring gives the entries of a tree in order: a directory before what is
// in it. It is for one goroutine.
type Restoring struct {
	s        *Store
	ctx      context.Context
	tenantID string
	most     int // objects kept open
	left     []op
	open     []held // the last used at the end
}

type held struct {
	at *object
	opened
}

// Next returns the next entry and, for a file, its content, which is valid
// until the next call. It returns io.EOF after the last one, and the codes of
// Open.
func (r *Restoring) Next() (Entry, io.Reader, error) {
	if len(r.left) == 0 {
		_ = r.Close()
		return Entry{}, nil, io.EOF
	}
	next := r.left[0]
	r.left = r.left[1:]
	e := next.it.entry(next.path)
	if e.Type != File {
		return e, nil, nil
	}
	content, err := newContent(next.it, r.object)
	if err != nil {
		_ = r.Close()
		return Entry{}, nil, err
	}
	return e, content, nil
}

// object opens an object, or finds it open.
func (r *Restoring) object(at *object) (opened, error) {
	for i, h := range r.open {
		if h.at == at {
			r.open = append(append(r.open[:i], r.open[i+1:]...), h)
			return h.opened, nil
		}
	}
	p, err := r.s.openObject(r.ctx, r.tenantID, at)
	if err != nil {
		return opened{}, err
	}
	if len(r.open) == r.most {
		_ = r.open[0].Close()
		r.open = r.open[1:]
	}
	r.open = append(r.open, held{at, p})
	return p, nil
}

// Close releases what is open. It may be called at any time, also again.
func (r *Restoring) Close() error {
	for _, h := range r.open {
		_ = h.Close()
	}
	r.open, r.left = nil, nil
	return nil
}

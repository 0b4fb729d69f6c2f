package workspace

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"sync/atomic"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/failpoint"
	"github.com/workbenchdev/workbench/internal/seal"
)

const (
	// packable is the largest content that goes into a pack.
	packable = 256 << 10
	// packFull is when a pack is written and another begun.
	packFull = 4 << 20
	// maxInline is the largest pack, sealed, that is kept in the database.
	maxInline = 64 << 10
)

// Bounds of a tree where a Builder was given none.
const (
	DefaultMaxEntries = 1 << 20
	DefaultMaxBytes   = 16 << 30
)

// Builder makes the next tree from a parent. It is for one goroutine. What it
// wrote before a failure, or without a Commit that is recorded, is referred to
// by nothing and swept.
type Builder struct {
	s        *Store
	tenantID string
	parent   Tree
	change   *change

	maxEntries, maxBytes int64
	taken                int64 // bytes of content read

	room    func(context.Context) (Room, error) // asked once; nil: no bound
	asked   bool
	left    atomic.Int64 // of room, once asked
	refusal error        // of what is more than that
	stored  atomic.Int64 // bytes that went to the disk
	compare bool         // nothing is stored

	pack *pack
	refs []string

	gear         *gear
	cutting      []byte
	chunks       map[[sha256.Size]byte]part // of large files this builder stored
	pending      []chunk
	pendingBytes int64

	new map[[sha256.Size]byte]*item // contents this builder stored
	old map[[sha256.Size]byte]*item // contents of the parent; nil until needed
}

// pack is one that is not written yet.
type pack struct {
	object
	contents []byte
}

// Committed is a tree that is stored, or, if its pack is inline, will be by
// the transaction that records the commit.
type Committed struct {
	Tree    Tree
	Changes []workbench.ChangedFile // to the parent, in order of path
	Refs    []string                // blobs the parent did not refer to; empty if nothing was written
	Written int64                   // bytes of them that went to the disk
	inline  []byte                  // the pack of Tree's manifest, sealed, if it is small
}

// Describe fills in what a commit says about its tree.
func (c Committed) Describe(commit workbench.Commit) workbench.Commit {
	commit.Root, commit.ManifestID, commit.Inline = c.Tree.Root(), c.Tree.ManifestID(), c.inline
	_, commit.Files, commit.Bytes = c.Tree.Counts()
	return commit
}

// Begin starts a change of a tenant's tree.
func (s *Store) Begin(_ context.Context, tenantID string, parent Tree) *Builder {
	return &Builder{s: s, tenantID: tenantID, parent: parent, change: newChange(parent),
		maxEntries: DefaultMaxEntries, maxBytes: DefaultMaxBytes, new: map[[sha256.Size]byte]*item{},
		chunks: map[[sha256.Size]byte]part{}}
}

// Limit bounds the tree: its entries, and the bytes of its contents.
func (b *Builder) Limit(entries, bytes int64) { b.maxEntries, b.maxBytes = entries, bytes }

// Room is how many bytes a builder may write to the disk.
type Room struct {
	Bytes int64
	Full  error // what to return for a byte more; by default quota_exceeded
}

// Room bounds the bytes that the builder writes to the disk. room is asked once,
// before the first of them; what is small enough for the transaction of the
// commit is not counted, and judged there.
func (b *Builder) Room(room func(context.Context) (Room, error)) { b.room = room }

// CompareOnly makes the builder store nothing: its tree says what is where,
// digests included, and can only be compared with another.
func (b *Builder) CompareOnly() { b.compare = true }

// Written lists the blobs that the builder announced so far, and how many bytes
// of them it wrote: what has to go if nothing comes of it.
func (b *Builder) Written() (blobs []string, bytes int64) { return b.refs, b.stored.Load() }

// ask finds out how much room there is, before anything is announced.
func (b *Builder) ask(ctx context.Context) error {
	if b.room == nil || b.asked {
		return nil
	}
	left, err := b.room(ctx)
	b.asked = err == nil
	b.left.Store(left.Bytes)
	if b.refusal = left.Full; b.refusal == nil {
		b.refusal = workbench.E(workbench.CodeQuotaExceeded, "there is no room for what changed")
	}
	return err
}

// spend takes room for n bytes that are about to be written; it may be called
// by several writers at once. Once there is none, it returns what Room says.
func (b *Builder) spend(n int64) error {
	if b.room != nil && b.left.Add(-n) < 0 {
		return b.refusal
	}
	b.stored.Add(n)
	return nil
}

// File puts a file with the content that r gives, which must have exactly
// e.Size bytes. e's digest is ignored: the content is hashed here. Codes:
// path_invalid, path_conflict, guest_protocol (another size), workspace_full,
// quota_exceeded (see Room), unavailable, and what r returns.
func (b *Builder) File(ctx context.Context, e Entry, r io.Reader) error {
	e.Type = File
	if err := e.check(); err != nil {
		return err
	}
	if b.taken+e.Size > b.maxBytes {
		return b.full()
	}
	b.taken += e.Size
	it, err := b.store(ctx, e, r)
	if err != nil {
		return err
	}
	return b.place(e, it)
}

// Put puts a directory or a link. Codes: path_invalid, path_conflict,
// guest_protocol.
func (b *Builder) Put(e Entry) error {
	if e.Type == File {
		return violation("a file comes without its content")
	}
	return b.place(e, &item{kind: e.Type, mode: e.Mode, mtime: e.MtimeNs, target: e.Target})
}

// Touch puts a file whose content the parent tree has: at the same path, or
// anywhere if e.SHA256 says which. Codes: path_invalid, path_conflict,
// guest_protocol.
func (b *Builder) Touch(e Entry) error {
	e.Type = File
	if err := e.check(); err != nil {
		return err
	}
	old := b.parent.root.lookup(e.Path)
	if old != nil && old.kind != File {
		old = nil
	}
	if e.SHA256 != "" && (old == nil || hex.EncodeToString(old.sum[:]) != e.SHA256) {
		old = b.content(e.SHA256)
	}
	if old == nil {
		return violation("a file comes without its content")
	}
	return b.place(e, &item{kind: File, size: old.size, sum: old.sum, at: old.at, offset: old.offset, parts: old.parts})
}

func (b *Builder) place(e Entry, it *item) error {
	it.mode, it.mtime = e.Mode, e.MtimeNs
	return b.change.put(e, it)
}

// content finds a content that this builder or the parent tree has.
func (b *Builder) content(digest string) *item {
	raw, err := hex.DecodeString(digest)
	if err != nil || len(raw) != sha256.Size {
		return nil
	}
	sum := [sha256.Size]byte(raw)
	if it := b.new[sum]; it != nil {
		return it
	}
	if b.old == nil {
		b.old = map[[sha256.Size]byte]*item{}
		b.parent.root.walk("", func(_ string, it *item) bool {
			if it.kind == File {
				b.old[it.sum] = it
			}
			return true
		})
	}
	return b.old[sum]
}

// Remove takes out an entry of the parent tree, with everything in it. Codes:
// path_invalid, path_conflict, guest_protocol (nothing is there).
func (b *Builder) Remove(path string) error { return b.change.remove(path) }

// DropUnseen takes out every entry of the parent tree that was not put again.
func (b *Builder) DropUnseen() { b.change.keepPlaced() }

func (b *Builder) full() error {
	return workbench.E(workbench.CodeWorkspaceFull, "the workspace would hold more than %d entries or %d bytes", b.maxEntries, b.maxBytes).
		WithHint("remove files that are no longer needed")
}

// Commit stores the tree. Nothing counts before the caller has recorded it: the
// commit as Describe makes it, with Refs, in one transaction. Codes:
// workspace_full, quota_exceeded, encryption_key_unavailable, unavailable.
func (b *Builder) Commit(ctx context.Context) (Committed, error) {
	tree := b.change.finish()
	if entries, _, bytes := tree.Counts(); entries > b.maxEntries || bytes > b.maxBytes {
		return Committed{}, b.full()
	}
	ds := diff(b.parent, tree)
	if len(ds) == 0 { // not even a time
		return Committed{Tree: b.parent, Changes: []workbench.ChangedFile{}}, nil
	}
	made := Committed{Changes: changesOf(ds)}
	if b.compare {
		made.Tree = tree
		return made, nil
	}
	ops, base := opsOf(ds), b.parent.made
	next := manifest{depth: base.depth + 1, ops: base.ops + len(ops), base: &base}
	if entries, _, _ := tree.Counts(); base.id == "" || entries <= alwaysFull || next.depth >= maxChain || int64(2*next.ops) > entries {
		ops, base, next = opsOf(diff(Empty(), tree)), manifest{}, manifest{}
	}
	for _, o := range ops {
		if o.it != nil && o.it.kind == File && o.it.at == nil {
			return Committed{}, workbench.E(workbench.CodeInternal, "the parent tree has contents that were never stored")
		}
	}
	if err := b.writePending(ctx); err != nil {
		return Committed{}, err
	}
	if b.pack == nil {
		b.pack = &pack{}
	}
	encoded := encodeManifest(tree.root.digest(), base.id, ops, &b.pack.object)
	if len(encoded) > maxManifest {
		return Committed{}, b.full()
	}
	var err error
	if made.inline, err = b.flush(ctx, encoded); err != nil {
		return Committed{}, err
	}
	next.id = b.pack.id
	tree.made = next
	made.Tree, made.Refs, made.Written = tree, b.refs, b.stored.Load()
	return made, failpoint.Hit("workspace.after_blobs")
}

// store makes the content durable, or remembers it for the pack, unless the
// tree had it at that path.
func (b *Builder) store(ctx context.Context, e Entry, r io.Reader) (*item, error) {
	old := b.parent.root.lookup(e.Path)
	if e.Size > packable {
		return b.storeLarge(ctx, e, old, r)
	}
	var content bytes.Buffer
	content.Grow(int(e.Size) + bytes.MinRead)
	n, err := io.Copy(&content, io.LimitReader(r, e.Size+1))
	if err != nil {
		return nil, err
	}
	if n != e.Size {
		return nil, wrongSize()
	}
	it := &item{kind: File, size: n, sum: sha256.Sum256(content.Bytes())}
	if b.known(it, old) {
		return it, nil
	}
	if it.at, it.offset, err = b.packed(ctx, content.Bytes()); err != nil {
		return nil, err
	}
	b.new[it.sum] = it
	return it, nil
}

// packed adds a small content to the pack and says where it is.
func (b *Builder) packed(ctx context.Context, content []byte) (*object, int64, error) {
	if b.pack == nil {
		b.pack = &pack{}
	}
	at, offset := &b.pack.object, int64(len(b.pack.contents))
	if b.compare {
		return at, 0, nil
	}
	b.pack.contents = append(b.pack.contents, content...)
	if len(b.pack.contents) >= packFull {
		return at, offset, b.flushFull(ctx)
	}
	return at, offset, nil
}

// known finds the content where it is stored already.
func (b *Builder) known(it, old *item) bool {
	if old == nil || old.kind != File || old.sum != it.sum || old.at == nil {
		old = b.new[it.sum]
	}
	if old == nil {
		return false
	}
	it.at, it.offset, it.parts = old.at, old.offset, old.parts
	return true
}

// flushFull writes a pack without a manifest.
func (b *Builder) flushFull(ctx context.Context) error {
	_, err := b.flush(ctx, nil)
	b.pack = nil
	return err
}

// flush seals the pack and writes it as a blob, or returns it if it is small
// and has a manifest.
func (b *Builder) flush(ctx context.Context, manifest []byte) (inline []byte, err error) {
	var random [20]byte
	_, _ = rand.Read(random[:]) // never fails
	size := packHeader + int64(len(manifest)+len(b.pack.contents))
	small := len(manifest) > 0 && seal.SealedSize(size) <= maxInline
	prefix := blobPack
	if small {
		prefix = inlinePack
	}
	if !small {
		if err := b.ask(ctx); err != nil {
			return nil, err
		}
		if err := b.spend(size); err != nil {
			return nil, err
		}
	}
	b.pack.id = prefix + hex.EncodeToString(random[:])
	b.refs = append(b.refs, b.pack.id)
	if small {
		var sealed bytes.Buffer
		sealed.Grow(int(seal.SealedSize(size)))
		err := b.sealPack(ctx, &sealed, manifest)
		return sealed.Bytes(), err
	}
	w, err := b.s.blobs.Create(ctx)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	if err := b.sealPack(ctx, w, manifest); err != nil {
		return nil, err
	}
	if err := b.s.records.NoteBlob(ctx, b.pack.id, b.tenantID, size, b.s.clock()); err != nil {
		return nil, err
	}
	return nil, w.Commit(b.pack.id)
}

func (b *Builder) sealPack(ctx context.Context, to io.Writer, manifest []byte) error {
	w, err := b.s.sealer.NewWriter(ctx, b.tenantID, kindPack, to)
	if err != nil {
		return err
	}
	header := binary.BigEndian.AppendUint32([]byte(packMagic), uint32(len(manifest)))
	for _, part := range [][]byte{header, manifest, b.pack.contents} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return w.Close(b.pack.id)
}

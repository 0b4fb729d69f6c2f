package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"sync"

	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/seal"
)

// part is a run of a file's bytes and where it is stored.
type part struct {
	sum    [sha256.Size]byte
	size   int64
	at     *object
	offset int64 // in the contents of at
}

// stored gives the parts of a file, in order.
func (it *item) stored() []part {
	if it.parts != nil {
		return it.parts
	}
	return []part{{sum: it.sum, size: it.size, at: it.at, offset: it.offset}}
}

const (
	// pendingFull is how many bytes of chunks are gathered before they are
	// announced and written together.
	pendingFull = 8 << 20
	// writersAtOnce bounds the chunks under way to the disk: most of the time
	// goes into waiting for it.
	writersAtOnce = 4
)

// chunk is one that is not written yet.
type chunk struct {
	id      string
	content []byte
}

// storeLarge cuts a content into chunks and keeps those that are not known. A
// chunk that is small goes into the pack, another becomes an object under its
// content id, stored once per tenant.
func (b *Builder) storeLarge(ctx context.Context, e Entry, old *item, r io.Reader) (*item, error) {
	cutter, err := b.cutter(ctx, r, e.Size)
	if err != nil {
		return nil, err
	}
	before := map[[sha256.Size]byte]part{}
	if old != nil && old.kind == File && old.at != nil {
		for _, p := range old.stored() {
			before[p.sum] = p
		}
	}
	it := &item{kind: File}
	hash := sha256.New()
	mark := len(b.pending)
	for {
		content, err := cutter.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && it.size+int64(len(content)) > e.Size {
			err = wrongSize()
		}
		if err != nil {
			b.dropPending(mark)
			return nil, err
		}
		hash.Write(content) // never fails
		it.size += int64(len(content))
		p, known := before[sha256.Sum256(content)]
		if !known {
			if p, err = b.storeChunk(ctx, content); err != nil {
				return nil, err
			}
		}
		it.parts = append(it.parts, p)
		mark = min(mark, len(b.pending))
	}
	if it.size != e.Size {
		b.dropPending(mark)
		return nil, wrongSize()
	}
	it.sum = [sha256.Size]byte(hash.Sum(nil))
	it.at, it.offset = it.parts[0].at, it.parts[0].offset
	if len(it.parts) == 1 {
		it.parts = nil
	}
	b.new[it.sum] = it
	return it, nil
}

func wrongSize() error { return violation("a file has another size than its entry says") }

// cutter cuts what r gives, but no more than shows that it is too much.
func (b *Builder) cutter(ctx context.Context, r io.Reader, size int64) (*chunks, error) {
	if b.gear == nil {
		key, err := b.s.sealer.BoundaryKey(ctx, b.tenantID)
		if err != nil {
			return nil, err
		}
		if b.gear, err = newGear(key); err != nil {
			return nil, err
		}
		b.cutting = make([]byte, maxChunk)
	}
	return &chunks{gear: b.gear, r: io.LimitReader(r, size+1), buf: b.cutting}, nil
}

// storeChunk keeps a chunk that the parent's file does not have.
func (b *Builder) storeChunk(ctx context.Context, content []byte) (part, error) {
	p := part{sum: sha256.Sum256(content), size: int64(len(content))}
	if known, ok := b.chunks[p.sum]; ok {
		return known, nil
	}
	if len(content) <= packable { // a file's last
		at, offset, err := b.packed(ctx, content)
		if err != nil {
			return part{}, err
		}
		p.at, p.offset = at, offset
		b.chunks[p.sum] = p
		return p, nil
	}
	id, err := b.s.sealer.ContentID(ctx, b.tenantID, p.sum)
	if err != nil {
		return part{}, err
	}
	p.at = &object{id: id}
	b.chunks[p.sum] = p
	if b.compare {
		return p, nil
	}
	b.pending = append(b.pending, chunk{id, bytes.Clone(content)})
	b.pendingBytes += int64(len(content))
	if b.pendingBytes >= pendingFull {
		return p, b.writePending(ctx)
	}
	return p, nil
}

// dropPending forgets the chunks of a file that turned out to be wrong.
func (b *Builder) dropPending(mark int) {
	for _, c := range b.pending[mark:] {
		b.pendingBytes -= int64(len(c.content))
		delete(b.chunks, sha256.Sum256(c.content))
	}
	b.pending = b.pending[:mark]
}

// writePending announces the chunks, writes those that are not there and refers
// to all: one that is there is not swept once it was announced again.
func (b *Builder) writePending(ctx context.Context) error {
	if len(b.pending) == 0 {
		return nil
	}
	if err := b.ask(ctx); err != nil {
		return err
	}
	sizes := make(map[string]int64, len(b.pending))
	for _, c := range b.pending {
		sizes[c.id] = int64(len(c.content))
		b.refs = append(b.refs, c.id)
	}
	if err := b.s.records.NoteBlobs(ctx, b.tenantID, sizes, b.s.clock()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var writers sync.WaitGroup
	free := make(chan struct{}, writersAtOnce)
	for _, c := range b.pending {
		free <- struct{}{}
		writers.Go(func() {
			defer func() { <-free }()
			if err := b.writeChunk(ctx, c); err != nil {
				cancel(err)
			}
		})
	}
	writers.Wait()
	b.pending, b.pendingBytes = nil, 0
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// writeChunk seals a chunk into its object, unless that is there for certain. One
// that may not be durable yet is written over, which takes no room.
func (b *Builder) writeChunk(ctx context.Context, c chunk) error {
	s, tenantID := b.s, b.tenantID
	there, settled, err := blob.There(ctx, s.blobs, c.id, seal.SealedSize(int64(len(c.content))))
	if settled || err != nil {
		return err
	}
	if !there {
		if err := b.spend(int64(len(c.content))); err != nil {
			return err
		}
	}
	w, err := s.blobs.Create(ctx)
	if err != nil {
		return err
	}
	defer w.Abort()
	sealed, err := s.sealer.NewWriter(ctx, tenantID, seal.KindContent, w)
	if err != nil {
		return err
	}
	if _, err := sealed.Write(c.content); err != nil {
		return err
	}
	if err := sealed.Close(c.id); err != nil {
		return err
	}
	return w.Commit(c.id)
}

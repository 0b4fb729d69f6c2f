package seal

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/workbenchdev/workbench"
)

// Object is an open sealed object: ReadAt is safe for concurrent use; Read and
// Seek share one position and are not.
type Object struct {
	segments
	src      io.ReaderAt
	close    io.Closer // nil if src is none
	size     int64     // of the plaintext
	count    int64     // of segments
	last     []byte    // plaintext of the last segment
	position int64

	mu     sync.Mutex // guards the segment read last
	cached int64      // its number; -1 for none
	plain  []byte
	cipher []byte
}

var (
	_ io.ReadSeekCloser = (*Object)(nil)
	_ io.ReaderAt       = (*Object)(nil)
)

// Open opens a sealed object of size sealed bytes and verifies what it is: its
// tenant, kind, id and length. If src is an io.Closer, Close closes it, and so
// does an Open that fails.
//
// Codes, also of reads: content_corrupt, encryption_key_unavailable,
// unavailable, and what src returns.
func (s *Sealer) Open(ctx context.Context, tenantID, kind, id string, src io.ReaderAt, size int64) (*Object, error) {
	o := &Object{src: src, cached: -1}
	o.close, _ = src.(io.Closer)
	if err := o.open(ctx, s, tenantID, kind, id, size); err != nil {
		_ = o.Close()
		return nil, err
	}
	return o, nil
}

func (o *Object) open(ctx context.Context, s *Sealer, tenantID, kind, id string, size int64) error {
	body := size - headerSize
	if body < tagSize {
		return corrupt("a stored content is shorter than it was", nil)
	}
	o.count = (body + sealedSize - 1) / sealedSize
	tail := body - (o.count-1)*sealedSize
	if tail < tagSize || tail == tagSize && o.count > 1 || o.count > maxSegments {
		return corrupt("a stored content has an impossible length", nil)
	}
	o.size = body - o.count*tagSize
	header := make([]byte, headerSize)
	if err := readFull(o.src, header, 0); err != nil {
		return err
	}
	switch {
	case string(header[:4]) != objectMagic:
		return corrupt("a stored content is damaged", nil)
	case header[4] != objectVersion:
		return workbench.E(workbench.CodeCorrupt, "a stored content has format %d, which this version does not know", header[4]).
			WithHint("a newer Workbench wrote it, or it is damaged")
	case header[5] != segmentLog || header[6] != 0 || header[7] != 0:
		return corrupt("a stored content is damaged", nil)
	}
	k, err := s.named(ctx, tenantID, [tenantIDSize]byte(header[16:]))
	if err != nil {
		return err
	}
	if o.segments, err = k.segments(header, kind); err != nil {
		return err
	}
	o.last, err = o.segment(o.count-1, o.lastContext(id), nil, nil)
	return err
}

// Size is the size of the plaintext.
func (o *Object) Size() int64 { return o.size }

// Close closes the source.
func (o *Object) Close() error {
	if o.close == nil {
		return nil
	}
	return o.close.Close()
}

// segment reads and opens segment i into plain, using cipher as a buffer.
func (o *Object) segment(i int64, bound, cipher, plain []byte) ([]byte, error) {
	last := i == o.count-1
	n := sealedSize
	if last {
		n = int(o.size-i*segmentSize) + tagSize
	}
	if cap(cipher) < n {
		cipher = make([]byte, n)
	}
	cipher = cipher[:n]
	if err := readFull(o.src, cipher, headerSize+i*sealedSize); err != nil {
		return nil, err
	}
	plain, err := o.aead.Open(plain[:0], nonce(i, last), cipher, bound)
	if err != nil {
		return nil, corrupt("a stored content is damaged", err)
	}
	return plain, nil
}

// ReadAt implements io.ReaderAt. Only the segments asked for are read.
func (o *Object) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, workbench.E(workbench.CodeInternal, "read at a negative offset")
	}
	done := 0
	for done < len(p) && off < o.size {
		n, err := o.readSegment(p[done:], off)
		done += n
		off += int64(n)
		if err != nil {
			return done, err
		}
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

// readSegment copies from the segment that off lies in.
func (o *Object) readSegment(p []byte, off int64) (int, error) {
	i, within := off/segmentSize, off%segmentSize
	if i == o.count-1 {
		return copy(p, o.last[within:]), nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cached != i {
		if o.cipher == nil {
			o.cipher, o.plain = make([]byte, sealedSize), make([]byte, 0, segmentSize)
		}
		o.cached = -1
		plain, err := o.segment(i, o.context, o.cipher, o.plain)
		if err != nil {
			return 0, err
		}
		o.plain, o.cached = plain, i
	}
	return copy(p, o.plain[within:]), nil
}

// Read implements io.Reader.
func (o *Object) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := o.ReadAt(p, o.position)
	o.position += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Seek implements io.Seeker.
func (o *Object) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += o.position
	case io.SeekEnd:
		offset += o.size
	}
	if offset < 0 {
		return o.position, workbench.E(workbench.CodeInternal, "seek before the start")
	}
	o.position = offset
	return offset, nil
}

// readFull reads all of p; a source that ends early is damaged.
func readFull(src io.ReaderAt, p []byte, off int64) error {
	n, err := src.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("a stored content is shorter than it was", err)
	}
	return err
}

package seal

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"io"
	"math"

	"github.com/workbenchdev/workbench"
)

const (
	objectMagic   = "WBSO"
	objectVersion = 1
	saltAt        = 32
	headerSize    = saltAt + 32

	segmentLog  = 16
	segmentSize = 1 << segmentLog // plaintext bytes
	tagSize     = 16
	sealedSize  = segmentSize + tagSize
	maxSegments = math.MaxUint32
)

// KindContent is the kind of an object that is one file's content, under its
// content id, wherever it is referred to from: a file that was committed and
// retained is stored once.
const KindContent = "content"

// SealedSize is the size of a sealed object of n bytes.
func SealedSize(n int64) int64 {
	return headerSize + n + tagSize*max(1, (n+segmentSize-1)/segmentSize)
}

// segments is one object's cipher.
type segments struct {
	aead    cipher.AEAD
	context []byte // associated data of every segment
}

func (k *tenantKey) segments(header []byte, kind string) (segments, error) {
	bound := contextOf("workbench object", objectVersion, k.tenantID, kind)
	aead, err := k.objectKey(header[saltAt:headerSize], bound)
	if err != nil {
		return segments{}, err
	}
	return segments{aead: aead, context: append(append(make([]byte, 0, headerSize+len(bound)), header...), bound...)}, nil
}

// lastContext is the associated data of the last segment.
func (s *segments) lastContext(id string) []byte {
	out := make([]byte, 0, len(s.context)+4+len(id))
	out = append(out, s.context...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(id)))
	return append(out, id...)
}

// nonce of segment i.
func nonce(i int64, last bool) []byte {
	var n [12]byte
	binary.BigEndian.PutUint32(n[7:], uint32(i))
	if last {
		n[11] = 1
	}
	return n[:]
}

// Writer seals one object while it is written.
type Writer struct {
	segments
	to    io.Writer
	plain []byte // at most one segment that is not sealed yet
	out   []byte
	next  int64
	size  int64
	done  bool
	err   error
}

// NewWriter begins an object of a kind, sealed for the tenant, and writes its
// header to w. Close ends it and binds it to its id. Codes:
// encryption_key_unavailable, unavailable, and what w returns.
func (s *Sealer) NewWriter(ctx context.Context, tenantID, kind string, w io.Writer) (*Writer, error) {
	k, err := s.current(ctx, tenantID)
	if err != nil {
		return nil, err
	}
	header := make([]byte, headerSize)
	copy(header, objectMagic)
	header[4], header[5] = objectVersion, segmentLog
	copy(header[8:], k.masterID[:])
	copy(header[16:], k.id[:])
	_, _ = rand.Read(header[saltAt:]) // never fails
	seg, err := k.segments(header, kind)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(header); err != nil {
		return nil, err
	}
	return &Writer{segments: seg, to: w}, nil
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	if w.done {
		return 0, workbench.E(workbench.CodeInternal, "write to a sealed object that has ended")
	}
	n := len(p)
	for len(p) > 0 && w.err == nil {
		switch {
		case len(w.plain) == segmentSize: // more follows: it is not the last
			w.flush(w.plain, false, w.context)
			w.plain = w.plain[:0]
		case len(w.plain) == 0 && len(p) > segmentSize:
			w.flush(p[:segmentSize], false, w.context)
			p = p[segmentSize:]
		default:
			take := min(len(p), segmentSize-len(w.plain))
			w.plain = append(w.plain, p[:take]...)
			p = p[take:]
		}
	}
	w.size += int64(n - len(p))
	return n - len(p), w.err
}

// Close seals the last segment and binds the object to id. It does not close
// what it writes to.
func (w *Writer) Close(id string) error {
	if w.done {
		return workbench.E(workbench.CodeInternal, "a sealed object ends once")
	}
	w.done = true
	if w.err == nil {
		w.flush(w.plain, true, w.lastContext(id))
	}
	w.plain = nil
	return w.err
}

// Size is how many bytes of plaintext were written.
func (w *Writer) Size() int64 { return w.size }

func (w *Writer) flush(plain []byte, last bool, bound []byte) {
	if w.next > maxSegments {
		w.err = workbench.E(workbench.CodeInternal, "an object has too many segments")
		return
	}
	w.out = w.aead.Seal(w.out[:0], nonce(w.next, last), plain, bound)
	w.next++
	_, w.err = w.to.Write(w.out)
}

package seal

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"

	"github.com/workbenchdev/workbench"
)

// Formats. A small value: version, length of the key id, key id, nonce,
// ciphertext. An object: the same head with the magic of objects, then the
// wrapped data key and a nonce prefix, then segments. Each segment of
// SegmentBytes (the last one shorter, perhaps empty) is sealed under the data
// key with the nonce prefix ‖ segment number ‖ whether it is the last, so that
// segments cannot be cut off, swapped or moved, and any of them can be opened
// alone.
const (
	versionSmall  = 0x01
	versionObject = 0x02

	// SegmentBytes is how much plaintext one segment of an object holds.
	SegmentBytes = 64 * 1024
	overhead     = 16
	prefixBytes  = 7
	maxKeyID     = 64
)

// place is the associated data of something sealed.
func place(version byte, tenantID, kind, name string) []byte {
	return []byte("workbench\x00" + string([]byte{version}) + "\x00" + tenantID + "\x00" + kind + "\x00" + name)
}

// SealBytes seals a small value for the database. kind and name say what it is
// and where it belongs; opening it needs the same.
func (s *Sealer) SealBytes(ctx context.Context, tenantID, kind, name string, plain []byte) ([]byte, error) {
	k, err := s.ofTenant(ctx, tenantID)
	if err != nil {
		return nil, err
	}
	head := append([]byte{versionSmall, byte(len(k.id))}, k.id...)
	return append(head, sealWith(k.wrap, plain, place(versionSmall, tenantID, kind, name))...), nil
}

// OpenBytes opens what SealBytes sealed. Codes: content_corrupt,
// encryption_key_unavailable, unavailable.
func (s *Sealer) OpenBytes(ctx context.Context, tenantID, kind, name string, sealed []byte) ([]byte, error) {
	if len(sealed) < 2 || sealed[0] != versionSmall {
		return nil, corrupt("its format is not known")
	}
	keyID, rest, err := cutKeyID(sealed[1:])
	if err != nil {
		return nil, err
	}
	k, err := s.ofID(ctx, tenantID, keyID)
	if err != nil {
		return nil, err
	}
	plain, err := openWith(k.wrap, rest, place(versionSmall, tenantID, kind, name))
	if err != nil {
		return nil, corrupt("it was changed or belongs elsewhere")
	}
	return plain, nil
}

func cutKeyID(b []byte) (string, []byte, error) {
	if len(b) < 1 || int(b[0]) > maxKeyID || len(b) < 1+int(b[0]) {
		return "", nil, corrupt("its head is damaged")
	}
	return string(b[1 : 1+b[0]]), b[1+b[0]:], nil
}

// SealedSize is the size of a sealed object of n plain bytes under a key id of
// the usual length; for quotas and progress, not for parsing.
func SealedSize(n int64) int64 {
	segments := n/SegmentBytes + 1
	return 2 + 19 + nonceBytes + keyBytes + overhead + prefixBytes + n + segments*overhead
}

// SealReader returns a reader of the sealed form of plain.
func (s *Sealer) SealReader(ctx context.Context, tenantID, kind, name string, plain io.Reader) (io.Reader, error) {
	k, err := s.ofTenant(ctx, tenantID)
	if err != nil {
		return nil, err
	}
	dataKey := make([]byte, keyBytes)
	rand.Read(dataKey) //nolint:errcheck // never fails
	aead, err := newAEAD(dataKey)
	if err != nil {
		return nil, err
	}
	head := append([]byte{versionObject, byte(len(k.id))}, k.id...)
	head = append(head, sealWith(k.wrap, dataKey, place(versionObject, tenantID, kind, name))...)
	prefix := make([]byte, prefixBytes)
	rand.Read(prefix) //nolint:errcheck // never fails
	head = append(head, prefix...)
	return &sealing{plain: plain, aead: aead, prefix: prefix, out: head}, nil
}

// sealing is the reader of SealReader. It reads one segment ahead, to know the
// last one.
type sealing struct {
	plain   io.Reader
	aead    cipher.AEAD
	prefix  []byte
	out     []byte // sealed, not yet read
	ahead   []byte // the next segment's plaintext
	primed  bool
	ended   bool // the last segment is in out
	segment uint32
}

// Read implements io.Reader.
func (r *sealing) Read(p []byte) (int, error) {
	for len(r.out) == 0 {
		if r.ended {
			return 0, io.EOF
		}
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

func (r *sealing) next() error {
	if !r.primed {
		first, err := r.fill()
		if err != nil {
			return err
		}
		r.ahead, r.primed = first, true
	}
	var following []byte
	if len(r.ahead) == SegmentBytes {
		var err error
		if following, err = r.fill(); err != nil {
			return err
		}
	}
	last := len(r.ahead) < SegmentBytes
	r.out = r.aead.Seal(nil, nonceOf(r.prefix, r.segment, last), r.ahead, nil)
	r.segment++
	r.ahead, r.ended = following, last
	if r.segment == 0 {
		return workbench.E(workbench.CodeFileTooLarge, "too large to be sealed")
	}
	return nil
}

// fill reads one segment. Only io.EOF is an end: io.ReadFull would take a
// source that was cut off (io.ErrUnexpectedEOF) for a short one.
func (r *sealing) fill() ([]byte, error) {
	buf := make([]byte, SegmentBytes)
	n := 0
	for n < len(buf) {
		m, err := r.plain.Read(buf[n:])
		n += m
		if errors.Is(err, io.EOF) {
			return buf[:n], nil
		}
		if err != nil {
			return nil, err
		}
	}
	return buf, nil
}

func nonceOf(prefix []byte, segment uint32, last bool) []byte {
	nonce := make([]byte, nonceBytes)
	copy(nonce, prefix)
	binary.BigEndian.PutUint32(nonce[prefixBytes:], segment)
	if last {
		nonce[nonceBytes-1] = 1
	}
	return nonce
}

// Source is the sealed object's bytes.
type Source interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Object is an opened object: its plaintext, for reading and seeking. It reads
// only the segments it is asked for. Close closes the source.
type Object struct {
	source Source
	aead   cipher.AEAD
	prefix []byte
	body   int64 // offset of the first segment
	size   int64 // of the plaintext
	last   int64 // number of the last segment
	pos    int64
	have   int64 // number of the segment in buf, -1: none
	buf    []byte
}

// OpenObject opens what SealReader sealed. The last segment is opened at once,
// so an object that was cut short is refused here. Codes: as OpenBytes.
func (s *Sealer) OpenObject(ctx context.Context, tenantID, kind, name string, source Source) (*Object, error) {
	head := make([]byte, 2+maxKeyID+nonceBytes+keyBytes+overhead+prefixBytes)
	n, err := source.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, unreadable(err)
	}
	head = head[:n]
	if len(head) < 2 || head[0] != versionObject {
		return nil, corrupt("its format is not known")
	}
	keyID, rest, err := cutKeyID(head[1:])
	if err != nil {
		return nil, err
	}
	const wrapped = nonceBytes + keyBytes + overhead
	if len(rest) < wrapped+prefixBytes {
		return nil, corrupt("its head is damaged")
	}
	k, err := s.ofID(ctx, tenantID, keyID)
	if err != nil {
		return nil, err
	}
	dataKey, err := openWith(k.wrap, rest[:wrapped], place(versionObject, tenantID, kind, name))
	if err != nil {
		return nil, corrupt("it was changed or belongs elsewhere")
	}
	aead, err := newAEAD(dataKey)
	if err != nil {
		return nil, err
	}
	o := &Object{source: source, aead: aead, prefix: rest[wrapped : wrapped+prefixBytes], have: -1}
	o.body = int64(2+len(keyID)) + wrapped + prefixBytes
	sealed := source.Size() - o.body
	const whole = SegmentBytes + overhead
	tail := sealed % whole
	if sealed < overhead || tail < overhead {
		return nil, corrupt("it was cut short")
	}
	o.last = sealed / whole
	o.size = o.last*SegmentBytes + tail - overhead
	return o, o.load(o.last)
}

func unreadable(err error) error {
	return workbench.E(workbench.CodeUnavailable, "stored content cannot be read right now").Caused(err)
}

// Size is the size of the plaintext.
func (o *Object) Size() int64 { return o.size }

// load opens one segment into buf.
func (o *Object) load(segment int64) error {
	if o.have == segment {
		return nil
	}
	at := o.body + segment*(SegmentBytes+overhead)
	sealed := make([]byte, min(SegmentBytes+overhead, o.source.Size()-at))
	if _, err := o.source.ReadAt(sealed, at); err != nil && !errors.Is(err, io.EOF) {
		return unreadable(err)
	}
	plain, err := o.aead.Open(sealed[:0], nonceOf(o.prefix, uint32(segment), segment == o.last), sealed, nil)
	if err != nil {
		o.have = -1
		return corrupt("it was changed or belongs elsewhere")
	}
	o.buf, o.have = plain, segment
	return nil
}

// Read implements io.Reader.
func (o *Object) Read(p []byte) (int, error) {
	if o.pos >= o.size {
		return 0, io.EOF
	}
	if err := o.load(o.pos / SegmentBytes); err != nil {
		return 0, err
	}
	n := copy(p, o.buf[o.pos%SegmentBytes:])
	o.pos += int64(n)
	return n, nil
}

// Seek implements io.Seeker.
func (o *Object) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += o.pos
	case io.SeekEnd:
		offset += o.size
	}
	if offset < 0 {
		return 0, errors.New("seal: seek before the start")
	}
	o.pos = offset
	return offset, nil
}

// Close implements io.Closer.
func (o *Object) Close() error { return o.source.Close() }

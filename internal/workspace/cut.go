package workspace

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"io"
)

// Large contents are cut into chunks where the content itself says, so that an
// insertion moves no cut but those beside it. A gear hash rolls over the last 64
// bytes; a chunk ends where enough of its high bits are zero. Its table is
// secret, one for each tenant: the lengths of stored chunks tell others nothing
// that they could look up. Cuts are rarer below the usual size than above it,
// which keeps chunks near it.
const (
	minChunk   = packable
	usualChunk = 1 << 20
	maxChunk   = 4 << 20

	rareCut   = (1<<21 - 1) << (64 - 21)
	commonCut = (1<<18 - 1) << (64 - 18)
	gearBytes = 64
)

type gear [256]uint64

// newGear makes a tenant's table: the AES-256-CTR stream of its key.
func newGear(key [32]byte) (*gear, error) {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	var stream [8 * 256]byte
	cipher.NewCTR(block, make([]byte, aes.BlockSize)).XORKeyStream(stream[:], stream[:])
	var g gear
	for i := range g {
		g[i] = binary.BigEndian.Uint64(stream[8*i:])
	}
	return &g, nil
}

// cut is the length of the chunk that b begins with. What is shorter than
// maxChunk must be all there is.
func (g *gear) cut(b []byte) int {
	if len(b) <= minChunk {
		return len(b)
	}
	b = b[:min(len(b), maxChunk)]
	var h uint64
	i := minChunk - gearBytes
	for ; i < minChunk; i++ {
		h = h<<1 + g[b[i]]
	}
	for end := min(len(b), usualChunk); i < end; i++ {
		if h = h<<1 + g[b[i]]; h&rareCut == 0 {
			return i + 1
		}
	}
	for ; i < len(b); i++ {
		if h = h<<1 + g[b[i]]; h&commonCut == 0 {
			return i + 1
		}
	}
	return len(b)
}

// chunks cuts what r gives.
type chunks struct {
	gear *gear
	r    io.Reader
	buf  []byte // maxChunk long
	have int    // bytes of buf that were read
	gone int    // of those, the last chunk's
	end  bool
}

// next returns the next chunk, valid until the call after it, and io.EOF after
// the last one.
func (c *chunks) next() ([]byte, error) {
	c.have = copy(c.buf, c.buf[c.gone:c.have])
	c.gone = 0
	if !c.end {
		n, err := io.ReadFull(c.r, c.buf[c.have:])
		c.have += n
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			c.end = true
		case err != nil:
			return nil, err
		}
	}
	if c.have == 0 {
		return nil, io.EOF
	}
	c.gone = c.gear.cut(c.buf[:c.have])
	return c.buf[:c.gone], nil
}

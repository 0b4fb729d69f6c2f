package api

import (
	"encoding/base64"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
)

// textStream turns the entries of one output stream into chunks whose text
// never ends inside a character: an incomplete one is carried to the next
// chunk. Every byte is in exactly one chunk.
type textStream struct {
	stream workbench.Stream
	known  bool   // carry is what the bytes before the next entry say it is
	carry  []byte // at most 3 bytes, the beginning of a character
	next   int64  // offset behind the carry
}

// resume sets the carry from the up to 3 bytes before offset next.
func (t *textStream) resume(before []byte, next int64) {
	t.known, t.next = true, next
	tail := before[max(0, len(before)-(utf8.UTFMax-1)):]
	t.carry = append([]byte(nil), tail[workbench.CutText(tail, len(tail), false):]...)
}

// chunk takes the bytes of the next entry.
func (t *textStream) chunk(data []byte) Chunk {
	joined := append(t.carry, data...)
	start := t.next - int64(len(t.carry))
	n := workbench.CutText(joined, len(joined), false)
	t.next += int64(len(data))
	t.carry = append([]byte(nil), joined[n:]...)
	return newChunk(t.stream, start, joined[:n])
}

// end gives the carry that nothing will complete, if there is one.
func (t *textStream) end() (Chunk, bool) {
	if len(t.carry) == 0 {
		return Chunk{}, false
	}
	c := newChunk(t.stream, t.next-int64(len(t.carry)), t.carry)
	t.carry = nil
	return c, true
}

func newChunk(stream workbench.Stream, offset int64, data []byte) Chunk {
	c := Chunk{Stream: stream, Offset: offset, Length: int64(len(data)), Text: workbench.TextOf(data)}
	if !utf8.Valid(data) {
		c.Base64 = base64.StdEncoding.EncodeToString(data)
	}
	return c
}

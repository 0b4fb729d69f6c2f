package guestwire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
)

type frameType uint8

const (
	frameHello  frameType = 1  // JSON, once each way after a preamble
	frameOpen   frameType = 2  // JSON open: begins a channel
	frameReply  frameType = 3  // JSON: the answer, ends the channel
	frameFail   frameType = 4  // JSON wireError: the answer, ends the channel
	frameEvent  frameType = 5  // JSON: something on the way to the answer
	frameData   frameType = 6  // uint64 offset, bytes
	frameAck    frameType = 7  // uint64 offset: bytes before it were consumed
	frameEnd    frameType = 8  // uint64 offset: the stream's length
	frameCancel frameType = 9  // the opener gives up the channel
	framePing   frameType = 10 // 8 bytes, host to guest
	framePong   frameType = 11 // the same 8 bytes
)

const (
	headerSize = 12
	offsetSize = 8
	pingSize   = 8
)

// preamble begins every connection. Read as a header it has an impossible
// length, so a reader in the middle of an older connection notices it.
const preamble = "\xffWORKBENCH-WIRE\n"

// maxResync is how much of an older connection's bytes is thrown away while
// looking for a preamble.
const maxResync = 64 << 20

// errFrame is the cause of every malformed frame.
var errFrame = errors.New("malformed frame")

type frame struct {
	typ     frameType
	stream  uint8
	channel uint32
	payload []byte // data frames: valid until the next read
}

// maxPayload is the most a frame of the type may carry, -1 for unknown types.
func maxPayload(t frameType) int {
	switch t {
	case frameHello, frameOpen, frameReply, frameFail, frameEvent:
		return MaxControl
	case frameData:
		return offsetSize + MaxData
	case frameAck, frameEnd:
		return offsetSize
	case framePing, framePong:
		return pingSize
	case frameCancel:
		return 0
	}
	return -1
}

// frameReader reads frames. A malformed header is not consumed, so that a
// preamble that interrupts a connection can still be found.
type frameReader struct {
	r    *bufio.Reader
	data [offsetSize + MaxData]byte
}

// readAhead is what is read of a connection at once.
const readAhead = 128 << 10

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, readAhead)}
}

// next reads one frame. Errors: io.EOF between frames, io.ErrUnexpectedEOF
// inside one, errFrame for what is malformed, or the stream's own.
func (fr *frameReader) next() (frame, error) {
	head, err := fr.r.Peek(headerSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(head) > 0 {
			return frame{}, io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	f := frame{typ: frameType(head[4]), stream: head[5], channel: binary.BigEndian.Uint32(head[8:])}
	size := binary.BigEndian.Uint32(head)
	limit := maxPayload(f.typ)
	if limit < 0 || int64(size) > int64(limit) || head[6] != 0 || head[7] != 0 || f.stream >= streamCount {
		return frame{}, fmt.Errorf("%w: type %d, %d bytes", errFrame, f.typ, size)
	}
	switch f.typ {
	case frameData:
		if size <= offsetSize {
			return frame{}, fmt.Errorf("%w: empty data", errFrame)
		}
		f.payload = fr.data[:size]
	case frameAck, frameEnd, framePing, framePong:
		if int(size) != limit {
			return frame{}, fmt.Errorf("%w: type %d, %d bytes", errFrame, f.typ, size)
		}
		f.payload = make([]byte, size)
	default:
		f.payload = make([]byte, size)
	}
	if _, err := fr.r.Discard(headerSize); err != nil {
		return frame{}, err
	}
	if _, err := io.ReadFull(fr.r, f.payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	return f, nil
}

// resync reads until just after a preamble.
func (fr *frameReader) resync() error {
	for skipped := 0; skipped < maxResync; {
		head, err := fr.r.Peek(len(preamble))
		if err != nil {
			return err
		}
		if string(head) == preamble {
			_, err := fr.r.Discard(len(preamble))
			return err
		}
		n := 1
		if i := bytes.IndexByte(head[1:], preamble[0]); i >= 0 {
			n += i
		} else {
			n = len(head)
		}
		skipped += n
		if _, err := fr.r.Discard(n); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: no preamble in %d bytes", errFrame, maxResync)
}

// offset splits the payload of data, ack and end frames.
func (f frame) offset() (int64, []byte, error) {
	v := binary.BigEndian.Uint64(f.payload)
	if v > 1<<62 {
		return 0, nil, fmt.Errorf("%w: offset %d", errFrame, v)
	}
	return int64(v), f.payload[offsetSize:], nil
}

// frameWriter writes frames. Control frames that come together are written together,
// and go before data frames that wait.
type frameWriter struct {
	w     io.Writer
	mu    sync.Mutex
	turn  *sync.Cond
	busy  bool // somebody writes
	err   error
	buf   []byte // of whoever writes a data frame
	queue []byte // control frames that wait
	next  *batch // they; nil: there are none
	spare []byte // for the queue
}

// batch is control frames that are written together.
type batch struct {
	done bool
	err  error
}

// maxQueue is how much of a queue's memory is kept.
const maxQueue = 64 << 10

func newFrameWriter(w io.Writer) *frameWriter {
	fw := &frameWriter{w: w, buf: make([]byte, 0, headerSize+offsetSize+MaxData)}
	fw.turn = sync.NewCond(&fw.mu)
	return fw
}

// write writes one frame whose payload is the concatenation of head and body.
func (fw *frameWriter) write(t frameType, stream uint8, channel uint32, head, body []byte) error {
	if t != frameData {
		return fw.control(func(b []byte) ([]byte, error) { return appendFrame(b, t, stream, channel, head, body), nil })
	}
	fw.mu.Lock()
	defer fw.mu.Unlock()
	for fw.busy || fw.next != nil {
		fw.turn.Wait()
	}
	if fw.err != nil {
		return fw.err
	}
	return fw.now(appendFrame(fw.buf[:0], t, stream, channel, head, body))
}

// now writes while others may queue; fw.mu is held, and nobody writes.
func (fw *frameWriter) now(b []byte) error {
	fw.busy = true
	fw.mu.Unlock()
	_, err := fw.w.Write(b)
	fw.mu.Lock()
	fw.busy = false
	if err != nil && fw.err == nil {
		fw.err = err
	}
	fw.turn.Broadcast()
	return err
}

// control writes what add appends: control frames, or raw bytes. It is called in the
// order in which they are written.
func (fw *frameWriter) control(add func([]byte) ([]byte, error)) error {
	fw.mu.Lock()
	defer fw.mu.Unlock()
	if err := fw.enqueue(add); err != nil {
		return err
	}
	return fw.written(fw.next)
}

// later queues what add appends, until something else is written, or flush is called.
func (fw *frameWriter) later(add func([]byte) ([]byte, error)) error {
	fw.mu.Lock()
	defer fw.mu.Unlock()
	return fw.enqueue(add)
}

// enqueue adds to what waits; fw.mu is held.
func (fw *frameWriter) enqueue(add func([]byte) ([]byte, error)) error {
	if fw.err != nil {
		return fw.err
	}
	queue, err := add(fw.queue)
	if err != nil {
		return err
	}
	fw.queue = queue
	if fw.next == nil {
		fw.next = &batch{}
	}
	return nil
}

// flush writes what waits.
func (fw *frameWriter) flush() error {
	fw.mu.Lock()
	defer fw.mu.Unlock()
	if fw.next == nil {
		return fw.err
	}
	return fw.written(fw.next)
}

// written returns once a batch has been; fw.mu is held.
func (fw *frameWriter) written(mine *batch) error {
	for !mine.done {
		if fw.busy {
			fw.turn.Wait()
			continue
		}
		fw.busy = true
		fw.mu.Unlock()
		runtime.Gosched() // whoever is about to write does so now
		fw.mu.Lock()
		b := fw.queue
		fw.queue, fw.next, fw.spare = fw.spare[:0], nil, nil
		mine.err = fw.now(b)
		if mine.done = true; cap(b) <= maxQueue {
			fw.spare = b[:0]
		}
		fw.turn.Broadcast()
	}
	return mine.err
}

// reply writes the ends of streams and the reply behind them at once: whoever
// waits for it is woken once.
func (fw *frameWriter) reply(channel uint32, ends []frameEnding, body []byte) error {
	return fw.control(func(b []byte) ([]byte, error) {
		for _, end := range ends {
			var head [offsetSize]byte
			binary.BigEndian.PutUint64(head[:], uint64(end.at))
			b = appendFrame(b, frameEnd, end.stream, channel, head[:], nil)
		}
		return appendFrame(b, frameReply, 0, channel, body, nil), nil
	})
}

func appendFrame(b []byte, t frameType, stream uint8, channel uint32, head, body []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)+len(body)))
	b = append(b, byte(t), stream, 0, 0)
	b = binary.BigEndian.AppendUint32(b, channel)
	b = append(b, head...)
	return append(b, body...)
}

// raw writes bytes that are no frame.
func (fw *frameWriter) raw(p []byte) error {
	return fw.control(func(b []byte) ([]byte, error) { return append(b, p...), nil })
}

// fail makes every later write return err.
func (fw *frameWriter) fail(err error) {
	fw.mu.Lock()
	if fw.err == nil {
		fw.err = err
	}
	fw.mu.Unlock()
}

func (fw *frameWriter) offset(t frameType, stream uint8, channel uint32, offset int64, body []byte) error {
	var head [offsetSize]byte
	binary.BigEndian.PutUint64(head[:], uint64(offset))
	return fw.write(t, stream, channel, head[:], body)
}

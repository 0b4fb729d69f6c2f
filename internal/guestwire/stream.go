package guestwire

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// The byte streams of a channel.
const (
	streamStdout  = 1
	streamStderr  = 2
	streamStdin   = 3
	streamSource  = 4
	streamContent = 5
	streamCount   = 6
)

// inbound is the receiving end of one stream. The frame reader pushes, one
// consumer reads; what is buffered never exceeds Window.
type inbound struct {
	ch     *channel
	stream uint8

	mu    sync.Mutex
	buf   []byte // bytes from offset read on
	empty []byte // for buf once it was all read: new memory costs a guest more than what passes through it
	read  int64  // offset of the next byte the consumer gets
	acked int64  // what the sender was told
	ended bool
	err   error
	ready chan struct{} // something changed
}

func newInbound(ch *channel, stream uint8, from int64) *inbound {
	return &inbound{ch: ch, stream: stream, read: from, acked: from, ready: make(chan struct{}, 1)}
}

func (in *inbound) signal() {
	select {
	case in.ready <- struct{}{}:
	default:
	}
}

// push takes a data frame; an error is a violation of the protocol.
func (in *inbound) push(offset int64, data []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	next := in.read + int64(len(in.buf))
	switch {
	case in.ended:
		return fmt.Errorf("%w: data after the stream's end", errFrame)
	case offset != next:
		return fmt.Errorf("%w: data at offset %d, expected %d", errFrame, offset, next)
	case next+int64(len(data)) > in.acked+Window:
		return fmt.Errorf("%w: data beyond the window", errFrame)
	}
	if len(in.buf) == 0 {
		in.buf = in.empty
	}
	if in.buf = append(in.buf, data...); cap(in.buf) > cap(in.empty) {
		in.empty = in.buf[:0]
	}
	in.signal()
	return nil
}

// end takes an end frame.
func (in *inbound) end(offset int64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if next := in.read + int64(len(in.buf)); in.ended || offset != next {
		return fmt.Errorf("%w: end at offset %d, expected %d", errFrame, offset, next)
	}
	in.ended = true
	in.signal()
	return nil
}

// fail ends the stream with an error once the buffer is read.
func (in *inbound) fail(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil && !in.ended {
		in.err = err
	}
	in.signal()
}

// next returns what is buffered, at least one byte, with its offset. The bytes
// are the consumer's until consumed is called. io.EOF at the stream's end.
func (in *inbound) next() (int64, []byte, error) {
	for {
		in.mu.Lock()
		if n := len(in.buf); n > 0 {
			b, off := in.buf[:n:n], in.read
			in.mu.Unlock()
			return off, b, nil
		}
		ended, err, off := in.ended, in.err, in.read
		in.mu.Unlock()
		if ended {
			return off, nil, io.EOF
		}
		if err != nil {
			return off, nil, err
		}
		<-in.ready
	}
}

// keptEmpty is what a stream with nothing in it may hold.
const keptEmpty = 4 * MaxData

// consumed gives n bytes back to the sender's window. The sender is told in
// steps of half a window.
func (in *inbound) consumed(n int) {
	in.mu.Lock()
	in.read += int64(n)
	if in.buf = in.buf[n:]; len(in.buf) == 0 && cap(in.empty) > keptEmpty {
		in.buf, in.empty = nil, nil // an idle stream does not hold a window's memory
	}
	tell := !in.ended && in.err == nil && in.read-in.acked >= Window/2
	if tell {
		in.acked = in.read
	}
	at := in.acked
	in.mu.Unlock()
	if tell {
		// A failed write has ended the connection, which the reader reports.
		_ = in.ch.l.out.offset(frameAck, in.stream, in.ch.id, at, nil)
	}
}

// Read implements io.Reader.
func (in *inbound) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	_, b, err := in.next()
	if err != nil {
		return 0, err
	}
	n := copy(p, b)
	in.consumed(n)
	return n, nil
}

// outbound is the sending end of one stream, for content that is not kept once
// it is sent.
type outbound struct {
	ch     *channel
	stream uint8

	mu    sync.Mutex
	sent  int64
	acked int64
	ready chan struct{}
}

func newOutbound(ch *channel, stream uint8) *outbound {
	return &outbound{ch: ch, stream: stream, ready: make(chan struct{}, 1)}
}

// ack takes an ack frame.
func (o *outbound) ack(offset int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset <= o.acked || offset > o.sent {
		return fmt.Errorf("%w: acknowledged %d of %d sent", errFrame, offset, o.sent)
	}
	o.acked = offset
	select {
	case o.ready <- struct{}{}:
	default:
	}
	return nil
}

// Write sends p, waiting for the window. It implements io.Writer.
func (o *outbound) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := o.room(o.ch.ctx, min(len(p)-done, MaxData))
		if err != nil {
			return done, err
		}
		if err := o.ch.l.out.offset(frameData, o.stream, o.ch.id, o.reserve(n), p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// room waits until at least one byte may be sent and returns how many, at most
// want.
func (o *outbound) room(ctx context.Context, want int) (int, error) {
	for {
		o.mu.Lock()
		left := o.acked + Window - o.sent
		o.mu.Unlock()
		if left > 0 {
			return int(min(left, int64(want))), nil
		}
		select {
		case <-o.ready:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// reserve counts n bytes as sent and returns their offset.
func (o *outbound) reserve(n int) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.sent
	o.sent += int64(n)
	return at
}

// Close sends the end of the stream.
func (o *outbound) Close() error {
	o.mu.Lock()
	at := o.sent
	o.mu.Unlock()
	return o.ch.l.out.offset(frameEnd, o.stream, o.ch.id, at, nil)
}

package guestwire

import (
	"errors"
	"io"
	"sync"

	"github.com/workbenchdev/workbench"
)

// Tail is one output stream of an exec in the guest: it keeps what the host
// has not acknowledged, at most Window bytes, and counts everything. A full
// tail holds its writer back. Beyond its limit bytes are counted and dropped.
type Tail struct {
	limit int64

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	buf     []byte
	base    int64 // offset of buf[0]: everything before was acknowledged
	total   int64 // bytes written, dropped ones included
	closed  bool
	dropped bool // nobody will read it any more
}

func newTail(limit int64) *Tail { return &Tail{limit: limit, changed: make(chan struct{})} }

// wake tells everyone that waits. The caller holds mu.
func (t *Tail) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Write implements io.Writer. It waits while the tail is full, and fails only
// after Close.
func (t *Tail) Write(p []byte) (int, error) {
	n := len(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, io.ErrClosedPipe
	}
	t.total += int64(n)
	for len(p) > 0 && !t.dropped {
		left := t.limit - t.base - int64(len(t.buf))
		if left <= 0 {
			break
		}
		room := min(int64(Window-len(t.buf)), left, int64(len(p)))
		if room > 0 {
			t.buf = append(t.buf, p[:room]...)
			p = p[room:]
			t.wake()
			continue
		}
		c := t.changed
		t.mu.Unlock()
		<-c
		t.mu.Lock()
	}
	return n, nil
}

// Close ends the stream.
func (t *Tail) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.closed = true
		t.wake()
	}
}

// Drop releases the writer and what is kept: no host will come for it.
func (t *Tail) Drop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropped = true
	t.buf = nil
	t.wake()
}

// Total is how many bytes were written, and how many of them are forwarded.
func (t *Tail) Total() (total, forwarded int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total, min(t.total, t.limit)
}

// ackTo forgets what lies before the offset.
func (t *Tail) ackTo(offset int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ack(offset)
}

// ackSent is ackTo for what the host says of bytes it was sent: it may have
// been under way when the tail was dropped, and then means nothing.
func (t *Tail) ackSent(offset int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped {
		return nil
	}
	return t.ack(offset)
}

// ack does it; the caller holds mu.
func (t *Tail) ack(offset int64) error {
	if offset < t.base || offset > t.base+int64(len(t.buf)) {
		return violation("offset %d outside of what is kept, %d to %d", offset, t.base, t.base+int64(len(t.buf)))
	}
	rest := t.buf[offset-t.base:]
	t.base = offset
	if len(rest) == 0 {
		t.buf = nil
	} else {
		t.buf = rest
	}
	t.wake()
	return nil
}

// acked is the offset everything before which was acknowledged.
func (t *Tail) acked() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.base
}

// peek copies bytes from the offset on into p, as far as they are there. Without
// any, changed tells when to look again; it is nil, with io.EOF, at the stream's
// end.
func (t *Tail) peek(offset int64, p []byte) (n int, changed <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := offset - t.base; at < int64(len(t.buf)) && at >= 0 {
		return copy(p, t.buf[at:]), nil, nil
	}
	switch {
	case t.dropped:
		return 0, nil, workbench.E(workbench.CodeNotFound, "the exec was forgotten")
	case t.closed:
		return 0, nil, io.EOF
	}
	return 0, t.changed, nil
}

// tailOut is one host's view of a tail: it implements acknowledged.
type tailOut struct {
	t    *Tail
	mu   sync.Mutex
	sent int64
}

func (o *tailOut) ack(offset int64) error {
	o.mu.Lock()
	sent := o.sent
	o.mu.Unlock()
	if offset > sent {
		return violation("acknowledged %d of %d sent", offset, sent)
	}
	return o.t.ackSent(offset)
}

// forward sends a chunk of what the tail holds. Without any, changed tells when
// to look again; it is nil at the stream's end.
func (o *tailOut) forward(ch *channel, stream uint8, buf []byte) (sent bool, changed <-chan struct{}, err error) {
	o.mu.Lock()
	at := o.sent
	o.mu.Unlock()
	n, changed, err := o.t.peek(at, buf)
	if errors.Is(err, io.EOF) {
		return false, nil, nil
	}
	if err != nil || n == 0 {
		return false, changed, err
	}
	o.mu.Lock()
	o.sent += int64(n)
	o.mu.Unlock()
	return true, nil, ch.l.out.offset(frameData, stream, ch.id, at, buf[:n])
}

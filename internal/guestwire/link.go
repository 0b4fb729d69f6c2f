package guestwire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/workbenchdev/workbench"
)

// open is the payload of an open frame.
type open struct {
	Op   string          `json:"op"`
	Body json.RawMessage `json:"body"`
}

// operation is what one end offers the other.
type operation struct {
	in  []uint8 // streams the opener sends
	out []uint8 // streams the opener receives
	// run answers. What it returns is marshalled as the reply.
	run func(ch *channel) (any, error)
}

// link is one connection, either end.
type link struct {
	rw         io.ReadWriteCloser
	in         *frameReader
	out        *frameWriter
	host       bool
	operations map[string]operation
	maxOpened  int // channels the peer may have open; handlers of those that it gave up may linger

	mu       sync.Mutex
	channels map[uint32]*channel
	nextID   uint32
	peerID   uint32 // highest id the peer opened
	opened   int    // channels of the peer that it has not given up
	running  int    // handlers of the peer's channels that have not returned
	// droppable is how many bytes for channels that this end gave up may still
	// arrive. More is a violation: such a flood costs the host time.
	droppable int64
	pings     map[uint64]chan struct{}
	err       error

	ctx    context.Context // ends with the connection
	cancel context.CancelCauseFunc
	ponged chan [pingSize]byte // pings to answer
	work   sync.WaitGroup
}

// channel is one request and its answer, either end.
type channel struct {
	l      *link
	id     uint32
	own    bool // opened by this end
	op     string
	body   json.RawMessage
	ctx    context.Context // ends with the channel
	cancel context.CancelCauseFunc
	in     [streamCount]*inbound
	out    [streamCount]acknowledged
	gaveUp bool                        // the peer did; guarded by l.mu
	ends   []frameEnding               // of the peer's channels: what goes with the reply
	event  func(json.RawMessage) error // own channels; called by the reader, must not wait
	answer chan answer                 // own channels
}

// frameEnding is the end of a stream that the reply to its request follows.
type frameEnding struct {
	stream uint8
	at     int64 // offset
}

type acknowledged interface{ ack(offset int64) error }

type answer struct {
	body json.RawMessage
	err  error
}

func newLink(rw io.ReadWriteCloser, in *frameReader, host bool, ops map[string]operation, maxOpened int) *link {
	l := &link{rw: rw, in: in, out: newFrameWriter(rw), host: host, operations: ops, maxOpened: maxOpened,
		channels: map[uint32]*channel{}, pings: map[uint64]chan struct{}{}, ponged: make(chan [pingSize]byte, 64)}
	l.nextID = 2
	if host {
		l.nextID = 1
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// serve reads frames until the connection ends, and returns why.
func (l *link) serve() error {
	l.work.Go(l.answerPings)
	var err error
	for err == nil {
		var f frame
		if f, err = l.in.next(); err == nil {
			err = l.dispatch(f)
		}
	}
	l.end(err)
	return err
}

// end ends every channel with the connection's error.
func (l *link) end(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = lost(err)
	}
	err = l.err
	all := l.channels
	l.channels = map[uint32]*channel{}
	l.mu.Unlock()
	l.out.fail(err)
	l.cancel(err)
	for _, ch := range all {
		ch.finish(answer{err: err}, err)
	}
}

// lost is the error everything under way ends with.
func lost(err error) error {
	if errors.Is(err, errFrame) {
		return workbench.E(workbench.CodeGuestProtocol, "the sandbox broke its protocol").Caused(err)
	}
	if e := (*workbench.Error)(nil); errors.As(err, &e) {
		return e
	}
	return workbench.E(workbench.CodeSandboxLost, "the connection to the sandbox ended").Caused(err)
}

func (l *link) answerPings() {
	for {
		select {
		case <-l.ctx.Done():
			return
		case p := <-l.ponged:
			if l.out.write(framePong, 0, 0, p[:], nil) != nil {
				return
			}
		}
	}
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errFrame, fmt.Sprintf(format, args...))
}

// dispatch handles one frame. It never waits for a consumer.
func (l *link) dispatch(f frame) error {
	switch f.typ {
	case framePing:
		if l.host {
			return violation("ping from the guest")
		}
		select {
		case l.ponged <- [pingSize]byte(f.payload):
			return nil
		default:
			return violation("too many pings")
		}
	case framePong:
		return l.pong(f)
	case frameOpen:
		return l.accept(f)
	case frameHello:
		return violation("hello in a connection")
	default: // about a channel
	}
	ch, err := l.find(f)
	if ch == nil {
		return err
	}
	switch f.typ {
	case frameReply, frameFail, frameEvent:
		return ch.answered(f)
	case frameCancel:
		if ch.own {
			return violation("cancel of another's channel")
		}
		l.mu.Lock()
		if !ch.gaveUp { // the peer may open another from here on
			ch.gaveUp = true
			l.opened--
		}
		l.mu.Unlock()
		ch.cancel(workbench.E(workbench.CodeCancelled, "the request was given up"))
		return nil
	default: // about a stream
	}
	at, data, err := f.offset()
	if err != nil {
		return err
	}
	l.mu.Lock()
	in, out := ch.in[f.stream], ch.out[f.stream]
	l.mu.Unlock()
	switch {
	case f.typ == frameData && in != nil:
		return in.push(at, data)
	case f.typ == frameEnd && in != nil:
		return in.end(at)
	case f.typ == frameAck && out != nil:
		return out.ack(at)
	}
	return violation("frame %d for stream %d", f.typ, f.stream)
}

// find returns the frame's channel; nil without error when it ended before.
func (l *link) find(f frame) (*channel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ch := l.channels[f.channel]; ch != nil {
		return ch, nil
	}
	own := (f.channel%2 == 1) == l.host
	if f.channel == 0 || own && f.channel >= l.nextID || !own && f.channel > l.peerID {
		return nil, violation("frame for channel %d, which was never opened", f.channel)
	}
	l.droppable -= int64(headerSize + len(f.payload))
	if l.droppable < 0 {
		return nil, violation("frames for channels that ended")
	}
	return nil, nil
}

// lingering is how many times as many handlers may run as the peer may have
// channels open: one whose channel was given up takes some time to return.
const lingering = 4

// accept begins a channel that the peer opened.
func (l *link) accept(f frame) error {
	var o open
	if err := decode(f.payload, &o); err != nil {
		return violation("open: %v", err)
	}
	op, ok := l.operations[o.Op]
	if !ok && l.host {
		return violation("operation %.40q", o.Op)
	}
	l.mu.Lock()
	if (f.channel%2 == 1) == l.host || f.channel == 0 || f.channel <= l.peerID {
		l.mu.Unlock()
		return violation("channel %d opened", f.channel)
	}
	l.peerID = f.channel
	if l.opened >= l.maxOpened || l.running >= lingering*l.maxOpened {
		l.mu.Unlock()
		return violation("more than %d channels", l.maxOpened)
	}
	l.opened++
	l.running++
	ch := &channel{l: l, id: f.channel, op: o.Op, body: o.Body}
	ch.ctx, ch.cancel = context.WithCancelCause(l.ctx)
	for _, s := range op.in {
		ch.in[s] = newInbound(ch, s, 0)
	}
	for _, s := range op.out {
		ch.out[s] = newOutbound(ch, s)
	}
	l.channels[ch.id] = ch
	l.mu.Unlock()
	l.work.Go(func() { l.run(ch, op) })
	return nil
}

// run answers one channel of the peer.
func (l *link) run(ch *channel, op operation) {
	stop := context.AfterFunc(ch.ctx, func() { ch.failInbound(context.Cause(ch.ctx)) })
	var reply any
	err := error(workbench.E(workbench.CodeNotBuilt, "the sandbox does not know the operation"))
	if op.run != nil {
		reply, err = op.run(ch)
	}
	stop()
	l.mu.Lock()
	delete(l.channels, ch.id)
	l.running--
	if !ch.gaveUp {
		l.opened--
	}
	l.droppable += streamCount*Window + MaxControl
	l.mu.Unlock()
	ch.cancel(context.Canceled)
	if err == nil {
		var raw []byte
		if raw, err = Marshal(reply); err == nil && len(raw) > MaxControl {
			err = workbench.E(workbench.CodeInternal, "the answer has %d bytes", len(raw))
		}
		if err == nil {
			_ = l.out.reply(ch.id, ch.ends, raw)
			return
		}
	}
	raw, _ := Marshal(toWire(err)) // cannot fail: strings
	_ = l.out.write(frameFail, 0, ch.id, raw, nil)
}

func (ch *channel) failInbound(err error) {
	for _, in := range ch.in {
		if in != nil {
			in.fail(err)
		}
	}
}

// answered handles what the peer says on a channel of this end.
func (ch *channel) answered(f frame) error {
	if !ch.own {
		return violation("answer on another's channel")
	}
	switch f.typ {
	case frameEvent:
		if ch.event == nil {
			return violation("event")
		}
		return ch.event(f.payload)
	case frameReply:
		ch.l.drop(ch, 0)
		ch.finish(answer{body: f.payload}, errEnded)
	default:
		var we wireError
		if err := decode(f.payload, &we); err != nil {
			return violation("fail: %v", err)
		}
		err := we.toError()
		ch.l.drop(ch, 0)
		ch.finish(answer{err: err}, err)
	}
	return nil
}

// errEnded is what a stream without an end reads once its channel was answered.
var errEnded = workbench.E(workbench.CodeGuestProtocol, "the sandbox answered before its content was complete")

// pong wakes the ping that the frame answers.
func (l *link) pong(f frame) error {
	at, _, err := f.offset()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.pings[uint64(at)]
	if !ok {
		return violation("pong without a ping")
	}
	delete(l.pings, uint64(at))
	close(c)
	return nil
}

// Marshal is json.Marshal that leaves <, > and & as they are: in calls of code a
// bound counts what the code said, and HTML would have six bytes for each.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// decode reads exactly one JSON value.
func decode(raw []byte, v any) error {
	if v == nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.More() {
		return errors.New("trailing bytes")
	}
	return nil
}

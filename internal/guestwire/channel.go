package guestwire

import (
	"context"
	"encoding/json"
	"time"

	"github.com/workbenchdev/workbench"
)

// finish gives the answer to whoever waits, and ends the streams that have no
// end yet.
func (ch *channel) finish(a answer, streamErr error) {
	if ch.own {
		select {
		case ch.answer <- a:
		default:
		}
	}
	ch.failInbound(streamErr)
	ch.cancel(streamErr)
}

// drop forgets a channel; what still arrives for it is thrown away, up to more
// bytes.
func (l *link) drop(ch *channel, more int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.channels[ch.id] == ch {
		delete(l.channels, ch.id)
		l.droppable += more
	}
}

// request opens a channel. from gives the offsets inbound streams begin at.
func (l *link) request(op string, body any, in, out []uint8, from map[uint8]int64, event func(json.RawMessage) error) (*channel, error) {
	return l.requestBy(l.out.control, op, body, in, out, from, event)
}

// requestBy is a request that is written by a function of the connection's writer.
func (l *link) requestBy(write func(func([]byte) ([]byte, error)) error, op string, body any, in, out []uint8, from map[uint8]int64,
	event func(json.RawMessage) error) (*channel, error) {
	raw, err := Marshal(body)
	if err != nil {
		return nil, workbench.E(workbench.CodeInternal, "the request could not be encoded").Caused(err)
	}
	raw, _ = Marshal(open{Op: op, Body: raw}) // cannot fail: raw is JSON
	if len(raw) > MaxControl {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the request has %d bytes, %d are allowed", len(raw), MaxControl)
	}
	ch := &channel{l: l, own: true, op: op, event: event, answer: make(chan answer, 1)}
	ch.ctx, ch.cancel = context.WithCancelCause(l.ctx)
	for _, s := range in {
		ch.in[s] = newInbound(ch, s, from[s])
	}
	for _, s := range out {
		ch.out[s] = newOutbound(ch, s)
	}
	err = write(func(b []byte) ([]byte, error) { // ids are seen in order
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.err != nil {
			return b, l.err
		}
		if l.nextID > 1<<31 {
			return b, workbench.E(workbench.CodeInternal, "the connection has no more channels")
		}
		ch.id = l.nextID
		l.nextID += 2
		l.channels[ch.id] = ch
		return appendFrame(b, frameOpen, 0, ch.id, raw, nil), nil
	})
	if err != nil {
		l.drop(ch, 0)
		err = lost(err)
		ch.cancel(err)
		return nil, err
	}
	return ch, nil
}

// giveUpWithin is how long a peer may take to read that a channel was given up.
const giveUpWithin = 4 * time.Second

// giveUp cancels a channel of this end. A guest that has stopped reading, so that
// not even this reaches it, has lost the connection: whoever waits for room to
// write is woken by that. A host that does not read may have been stopped, and goes on.
func (ch *channel) giveUp(err error) {
	ch.l.drop(ch, streamCount*Window+2*MaxControl)
	ch.finish(answer{err: err}, err)
	if ch.l.host {
		stuck := time.AfterFunc(giveUpWithin, func() {
			ch.l.end(workbench.E(workbench.CodeSandboxLost, "the sandbox has stopped reading"))
			ch.l.rw.Close()
		})
		defer stuck.Stop()
	}
	_ = ch.l.out.write(frameCancel, 0, ch.id, nil, nil)
}

// wait waits for the answer and decodes it into reply.
func (ch *channel) wait(ctx context.Context, reply any) error {
	select {
	case a := <-ch.answer:
		return ch.decodeAnswer(a, reply)
	case <-ctx.Done():
		select {
		case a := <-ch.answer:
			return ch.decodeAnswer(a, reply)
		default:
		}
		err := workbench.E(workbench.CodeCancelled, "the request was given up").Caused(context.Cause(ctx))
		ch.giveUp(err)
		return err
	}
}

func (ch *channel) decodeAnswer(a answer, reply any) error {
	if a.err != nil {
		return a.err
	}
	if err := decode(a.body, reply); err != nil {
		err = violation("reply to %s: %v", ch.op, err)
		ch.l.end(err)
		ch.l.rw.Close()
		return lost(err)
	}
	return nil
}

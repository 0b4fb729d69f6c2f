package upstream

import (
	"bytes"
	"errors"
	"io"
)

// maxStream bounds, in bytes, what a server may send while it is asked one
// thing: notices of progress and the answer.
const maxStream = 4 * maxFrame

// eventTap looks at server-sent events that pass through it to the MCP client,
// bounds them, and shows messages to the flight that waits for one. Events pass whole.
type eventTap struct {
	body   io.ReadCloser
	flight *flight
	left   int

	line []byte // so far
	out  []byte // for the client
	end  error  // of the stream
	data []byte // of the event so far
	any  bool   // the event has data
}

func newEventTap(body io.ReadCloser, f *flight) *eventTap {
	return &eventTap{body: body, flight: f, left: maxStream}
}

func (t *eventTap) Close() error { return t.body.Close() }

func (t *eventTap) Read(p []byte) (int, error) {
	var piece [16 << 10]byte
	for len(t.out) == 0 && t.end == nil {
		n, err := t.body.Read(piece[:])
		if t.left -= n; t.left < 0 || !t.look(piece[:n]) {
			if t.flight != nil {
				t.flight.overflow()
			}
			t.out, t.end = nil, errOverflow
			break
		}
		if errors.Is(err, io.EOF) {
			t.endLine()
			t.endEvent()
		}
		t.end = err
	}
	n := copy(p, t.out)
	if t.out = t.out[n:]; len(t.out) > 0 {
		return n, nil
	}
	return n, t.end
}

// look goes on through the stream. It is false if an event is too large.
func (t *eventTap) look(p []byte) bool {
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			t.line = append(t.line, p...)
			return len(t.line)+len(t.data) <= maxFrame
		}
		t.line = append(t.line, p[:end]...)
		if len(t.line)+len(t.data) > maxFrame {
			return false
		}
		t.endLine()
		p = p[end+1:]
	}
	return true
}

func (t *eventTap) endLine() {
	line := bytes.TrimRight(t.line, "\r")
	if len(line) == 0 {
		t.endEvent()
	} else if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		if t.any {
			t.data = append(t.data, '\n')
		}
		t.data, t.any = append(t.data, bytes.TrimSpace(data)...), true
	} else {
		t.out = append(append(t.out, line...), '\n')
	}
	t.line = t.line[:0]
}

func (t *eventTap) endEvent() {
	if t.any {
		shown := t.data
		if t.flight != nil {
			shown = t.flight.observe(t.data)
		}
		for line := range bytes.SplitSeq(shown, []byte("\n")) {
			t.out = append(append(append(t.out, "data: "...), line...), '\n')
		}
	}
	t.out = append(t.out, '\n')
	t.data, t.any = t.data[:0], false
}

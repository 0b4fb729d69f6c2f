package sdk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

// Event is one entry of a run's log, as the server sends it. Seq grows by one.
type Event struct {
	Seq    int64             `json:"seq"`
	Kind   workbench.LogKind `json:"kind"`
	RunID  string            `json:"runId"`
	At     time.Time         `json:"at"`
	Stream workbench.Stream  `json:"stream,omitempty"`
	Offset int64             `json:"offset,omitempty"` // of the first byte, in raw bytes of the stream
	Length int64             `json:"length,omitempty"` // in raw bytes; may be 0
	Text   string            `json:"text,omitempty"`   // never ends inside a character
	Base64 string            `json:"base64,omitempty"` // the bytes, when they are not valid UTF-8
	Result *workbench.Result `json:"result,omitempty"` // result: what the run showed
	Meta   json.RawMessage   `json:"meta,omitempty"`
	Tail   []Chunk           `json:"tail,omitempty"` // terminal: last bytes of streams that end inside a character
}

// Chunk is a piece of a stream.
type Chunk struct {
	Stream workbench.Stream `json:"stream"`
	Offset int64            `json:"offset"`
	Length int64            `json:"length"`
	Text   string           `json:"text"`
	Base64 string           `json:"base64,omitempty"`
}

// Bytes are the raw bytes of an output event.
func (e Event) Bytes() ([]byte, error) { return Chunk{Text: e.Text, Base64: e.Base64}.Bytes() }

// Bytes are the raw bytes of the chunk.
func (c Chunk) Bytes() ([]byte, error) {
	if c.Base64 == "" {
		return []byte(c.Text), nil
	}
	return base64.StdEncoding.DecodeString(c.Base64)
}

// Status is what a status or terminal event says.
type Status struct {
	Status   workbench.Status `json:"status"`
	Reason   workbench.Reason `json:"reason"`
	Message  string           `json:"message"`
	ExitCode *int             `json:"exitCode"`
}

// Status reads the event's Meta; ok is false for events of other kinds.
func (e Event) Status() (s Status, ok bool) {
	if e.Kind != workbench.LogStatus && e.Kind != workbench.LogTerminal {
		return s, false
	}
	return s, json.Unmarshal(e.Meta, &s) == nil
}

// Events follows a run's log: every event after the given sequence number (0:
// from the start), in order, each once, up to and including the terminal one.
// A lost connection is taken up again behind the last event seen, as long as
// the server comes back within the client's patience.
func (c *Client) Events(ctx context.Context, runID string, after int64) iter.Seq2[Event, error] {
	return follow[Event](ctx, c, "/runs/"+seg(runID)+"/events", after)
}

// Files reads what an event of kind files says: what the run changed in its
// workspace. ok is false for events of other kinds.
func (e Event) Files() (f workbench.FilesEntry, ok bool) {
	return f, e.Kind == workbench.LogFiles && json.Unmarshal(e.Meta, &f) == nil
}

// Call reads what an event of kind call says: a tool call that the run made, and
// where it is. ok is false for events of other kinds.
func (e Event) Call() (entry workbench.CallEntry, ok bool) {
	return entry, e.Kind == workbench.LogCall && json.Unmarshal(e.Meta, &entry) == nil
}

// SessionEvent is something that happened to a session. What its Meta holds
// depends on the kind: see Read.
type SessionEvent workbench.SessionEvent

// Read reads the event's Meta into the type of its kind, such as
// *workbench.RunEvent for run.
func (e SessionEvent) Read(into any) error {
	if err := json.Unmarshal(e.Meta, into); err != nil {
		return workbench.E(workbench.CodeInternal, "the event's meta is not of that type").Caused(err)
	}
	return nil
}

// Approval reads what an event of kind approval says: a tool call that waits for
// somebody to decide, or what was decided. ok is false for events of other
// kinds.
func (e SessionEvent) Approval() (a workbench.ApprovalEvent, ok bool) {
	return a, e.Kind == workbench.EventApproval && json.Unmarshal(e.Meta, &a) == nil
}

// SessionEvents follows what happens to a session, as Events follows a run: up
// to and including the event that it was closed or has expired.
func (c *Client) SessionEvents(ctx context.Context, sessionID string, after int64) iter.Seq2[SessionEvent, error] {
	return follow[SessionEvent](ctx, c, "/sessions/"+seg(sessionID)+"/events", after)
}

// event is one of a stream's.
type event interface {
	number() int64
	last() bool // nothing follows it
}

func (e Event) number() int64        { return e.Seq }
func (e Event) last() bool           { return e.Kind == workbench.LogTerminal }
func (e SessionEvent) number() int64 { return e.Seq }
func (e SessionEvent) last() bool    { return e.Kind.Terminal() }

// follow reads a stream to its last event, over as many connections as it
// takes.
func follow[E event](ctx context.Context, c *Client, path string, after int64) iter.Seq2[E, error] {
	return func(yield func(E, error) bool) {
		var none E
		away := outage{c: c}
		for {
			done, err := connect(ctx, c, path, &after, &away, func(e E) bool { return yield(e, nil) })
			if done {
				return
			}
			if err := away.again(ctx, err); err != nil {
				yield(none, err)
				return
			}
		}
	}
}

// errTruncated is a stream that ended before its terminal event.
var errTruncated = workbench.E(workbench.CodeUnavailable, "the event stream broke off").
	WithHint("follow it again after the last event seen; what a run came to is in its receipt")

// connect reads one connection. done means that the caller has everything: the
// terminal event came, or it asked to stop.
func connect[E event](ctx context.Context, c *Client, path string, after *int64, away *outage, yield func(E) bool) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header := http.Header{"Accept": {"text/event-stream"}}
	if *after > 0 {
		header.Set("Last-Event-ID", strconv.FormatInt(*after, 10))
	}
	res, err := c.do(ctx, call{method: http.MethodGet, path: path, header: header, once: true})
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	away.answered()
	if res.StatusCode == http.StatusNoContent {
		return true, nil // the last event seen was the terminal one
	}
	// The server sends something at least every 15 s; a connection that is
	// silent for much longer is dead, whatever the network says.
	quiet := time.AfterFunc(maxSilence, cancel)
	defer quiet.Stop()
	frames := bufio.NewReaderSize(res.Body, 64<<10)
	for {
		e, ok, err := readEvent[E](frames, func() { quiet.Reset(maxSilence) })
		if err != nil {
			var coded *workbench.Error
			if errors.As(err, &coded) {
				return false, err
			}
			return false, errTruncated.Caused(err)
		}
		away.over() // also a ping: the server is there
		if !ok || e.number() <= *after {
			continue // a ping, or an event already seen
		}
		if e.number() != *after+1 {
			return false, workbench.E(workbench.CodeInternal, "the event stream has a gap: %d follows %d", e.number(), *after)
		}
		*after = e.number()
		if !yield(e) || e.last() {
			return true, nil
		}
	}
}

const (
	maxSilence = 60 * time.Second
	maxEvent   = 8 << 20 // bytes of one line of a stream
)

var errEventTooLarge = workbench.E(workbench.CodeInternal, "the server sent an event larger than %d bytes", maxEvent)

// readEvent reads one server-sent event; ok is false for one without data.
func readEvent[E event](r *bufio.Reader, alive func()) (e E, ok bool, err error) {
	var data bytes.Buffer
	var kind string
	for {
		line, err := readLine(r)
		if err != nil {
			return e, false, err
		}
		alive()
		switch {
		case len(line) == 0:
			if data.Len() == 0 {
				return e, false, nil
			}
			if kind == "problem" {
				return e, false, streamProblem(data.Bytes())
			}
			if err := json.Unmarshal(data.Bytes(), &e); err != nil {
				return e, false, workbench.E(workbench.CodeInternal, "the server sent an event that is not the JSON expected").Caused(err)
			}
			return e, e.number() > 0, nil
		case line[0] == ':': // a comment keeps the connection alive
		default:
			name, value, _ := strings.Cut(string(line), ":")
			value = strings.TrimPrefix(value, " ")
			switch name {
			case "event":
				kind = value
			case "data":
				data.WriteString(value)
				data.WriteByte('\n')
			}
			if data.Len() > maxEvent {
				return e, false, errEventTooLarge
			}
		}
	}
}

// streamProblem is the error that ends a stream which had already begun.
func streamProblem(raw []byte) error {
	var p problem
	if json.Unmarshal(raw, &p) != nil || p.Code == "" {
		return errTruncated
	}
	return p.toError(p.Status, "")
}

// readLine reads a line of bounded length, without its end.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxEvent {
			return nil, errEventTooLarge
		}
		if err == nil {
			return bytes.TrimRight(line, "\r\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) && len(line) > 0 {
				return nil, io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

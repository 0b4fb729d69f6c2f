package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
)

const (
	sseType    = "text/event-stream"
	ndjsonType = "application/x-ndjson"

	defaultHeartbeat = 10 * time.Second
	maxHeartbeat     = 15 * time.Second
	// firstBeat is when a stream without news shows that it is open.
	firstBeat = 200 * time.Millisecond

	maxSeq = 1<<53 - 1 // exact in every JSON reader
)

// streamEvents follows a run's log.
func streamEvents(c *call) error {
	return c.stream(func(e *eventStream, after int64) error {
		t := &runStream{eventStream: e}
		for _, stream := range []workbench.Stream{workbench.Stdout, workbench.Stderr} {
			t.streams = append(t.streams, &textStream{stream: stream, known: after == 0})
		}
		return c.s.o.Engine.Events(c.ctx, c.p, c.id, after, t.entry)
	})
}

// streamSessionEvents follows a session's events.
func streamSessionEvents(c *call) error {
	return c.stream(func(e *eventStream, after int64) error {
		return c.s.o.Engine.SessionEvents(c.ctx, c.p, c.id, after, func(event workbench.SessionEvent) error {
			event.At = event.At.UTC()
			return e.event(event.Seq, string(event.Kind), event)
		})
	})
}

// stream answers with a log that follow reads, as server-sent events or NDJSON.
// The answer begins with the first event or heartbeat: what is refused before is
// an HTTP error, and a log that holds nothing more answers 204.
func (c *call) stream(follow func(e *eventStream, after int64) error) error {
	mediaType, err := negotiateStream(c.r.Header.Values("Accept"))
	if err != nil {
		return err
	}
	after, err := resumeAfter(c)
	if err != nil {
		return err
	}
	done, err := c.hold(true)
	if err != nil {
		return err
	}
	defer done()
	e := &eventStream{c: c, sse: mediaType == sseType, mediaType: mediaType}
	stop := e.beat(c.s.o.Heartbeat)
	err = follow(e, after)
	stop()
	if workbench.HasCode(err, workbench.CodeOffsetInvalid) && !c.q.has("after") {
		err = workbench.AsError(err).WithField("Last-Event-ID")
	}
	return e.finish(err)
}

// resumeAfter is the number of the last event the client saw.
func resumeAfter(c *call) (int64, error) {
	after, header := c.q.integer("after"), c.r.Header.Get("Last-Event-ID")
	if header == "" {
		return after, nil
	}
	n, err := strconv.ParseInt(header, 10, 64)
	if err != nil || n < 0 || n > maxSeq {
		return 0, invalid("Last-Event-ID", "Last-Event-ID must be the number of an event").WithHint("send the id of the last event seen, or leave the header out to begin at the first")
	}
	if c.q.has("after") && after != n {
		return 0, invalid("after", "after and Last-Event-ID differ").WithHint("send one of them")
	}
	return n, nil
}

// negotiateStream picks the form of a stream by Accept; server-sent events
// unless NDJSON is preferred.
func negotiateStream(accept []string) (string, error) {
	if len(accept) == 0 {
		return sseType, nil
	}
	sse, ndjson := quality(accept, sseType), quality(accept, ndjsonType)
	switch {
	case sse <= 0 && ndjson <= 0:
		return "", workbench.E(workbench.CodeNotAcceptable, "events come as %s or %s", sseType, ndjsonType).
			WithField("Accept").WithHint("send Accept: %s, or %s", sseType, ndjsonType)
	case ndjson > sse:
		return ndjsonType, nil
	}
	return sseType, nil
}

// quality is the weight that Accept gives to a media type, by its most
// specific range.
func quality(accept []string, mediaType string) float64 {
	best, weight := -1, 0.0
	family, _, _ := strings.Cut(mediaType, "/")
	for _, part := range strings.Split(strings.Join(accept, ","), ",") {
		got, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		specific := -1
		switch got {
		case mediaType:
			specific = 2
		case family + "/*":
			specific = 1
		case "*/*":
			specific = 0
		}
		if specific <= best {
			continue
		}
		best, weight = specific, 1
		if q, ok := params["q"]; ok {
			if weight, err = strconv.ParseFloat(q, 64); err != nil {
				weight = 0
			}
		}
	}
	return weight
}

// eventStream is one open stream. The log's entries and the heartbeat write to
// it in turns.
type eventStream struct {
	c         *call
	sse       bool
	mediaType string

	mu    sync.Mutex
	begun bool
	err   error
}

// beat writes a heartbeat whenever interval passes, until the function it
// returns is called, which waits for the last one.
func (e *eventStream) beat(interval time.Duration) (stop func()) {
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		timer := time.NewTimer(min(firstBeat, interval))
		defer timer.Stop()
		for {
			select {
			case <-quit:
				return
			case <-timer.C:
				if e.heartbeat() != nil {
					return
				}
				timer.Reset(interval)
			}
		}
	}()
	return func() { close(quit); <-gone }
}

func (e *eventStream) heartbeat() error {
	if e.sse {
		return e.send([]byte(": heartbeat\n\n"))
	}
	line, _ := json.Marshal(struct {
		Kind string    `json:"kind"`
		At   time.Time `json:"at"`
	}{"heartbeat", e.c.s.o.Clock().UTC()}) // plain fields always marshal
	return e.send(append(line, '\n'))
}

// send writes one whole event and flushes it.
func (e *eventStream) send(b []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	if !e.begun {
		e.begun = true
		e.c.w.Header().Set("Content-Type", e.mediaType)
		e.c.w.Header().Set("X-Accel-Buffering", "no") // a proxy must not collect events
		e.c.w.WriteHeader(http.StatusOK)
	}
	if _, e.err = e.c.w.Write(b); e.err == nil {
		e.err = e.c.w.flush()
	}
	return e.err
}

// errHeadOnly ends the log of a HEAD request once the headers are out.
var errHeadOnly = workbench.E(workbench.CodeCancelled, "the request asked for headers only")

// event writes one event.
func (e *eventStream) event(seq int64, kind string, event any) error {
	body, err := json.Marshal(event)
	if err != nil {
		return workbench.E(workbench.CodeInternal, "an event could not be written").Caused(err)
	}
	if e.sse {
		body = fmt.Appendf(nil, "id: %d\nevent: %s\ndata: %s\n\n", seq, kind, body)
	} else {
		body = append(body, '\n')
	}
	if err := e.send(body); err != nil {
		return err
	}
	if e.c.r.Method == http.MethodHead {
		return errHeadOnly
	}
	return nil
}

// runStream is the stream of a run's log.
type runStream struct {
	*eventStream
	streams []*textStream
}

// entry writes one log entry as an event.
func (e *runStream) entry(entry workbench.LogEntry) error {
	event := Event{Seq: entry.Seq, Kind: entry.Kind, RunID: e.c.id, At: entry.At.UTC(), Meta: entry.Meta}
	switch entry.Kind {
	case workbench.LogOutput:
		chunk, err := e.chunk(entry)
		if err != nil {
			return err
		}
		event.Stream, event.Offset, event.Length = chunk.Stream, &chunk.Offset, &chunk.Length
		event.Text, event.Base64 = &chunk.Text, chunk.Base64
	case workbench.LogTerminal:
		var err error
		if event.Tail, err = e.tail(); err != nil {
			return err
		}
	case workbench.LogResult:
		result, err := workbench.ResultOf(entry)
		if err != nil {
			return workbench.E(workbench.CodeCorrupt, "a stored result cannot be read").Caused(err)
		}
		event.Result, event.Meta = &result, nil
	case workbench.LogStatus, workbench.LogFile, workbench.LogFiles, workbench.LogCall:
	}
	return e.event(entry.Seq, string(entry.Kind), event)
}

func (e *runStream) chunk(entry workbench.LogEntry) (Chunk, error) {
	for _, t := range e.streams {
		if t.stream != entry.Stream {
			continue
		}
		if !t.known {
			if err := e.recall(t, entry.Offset); err != nil {
				return Chunk{}, err
			}
		}
		return t.chunk(entry.Data), nil
	}
	return Chunk{}, workbench.E(workbench.CodeInternal, "the log names an unknown stream")
}

// recall sets what a resumed stream carries at offset next: the same as if it
// had never been cut.
func (e *runStream) recall(t *textStream, next int64) error {
	if next == 0 {
		t.resume(nil, 0)
		return nil
	}
	from := max(0, next-3)
	page, err := e.c.s.o.Engine.Output(e.c.ctx, e.c.p, e.c.id, workbench.OutputQuery{
		Stream: t.stream, Offset: from, Limit: int(next - from), Encoding: workbench.EncodingBase64,
	})
	if err != nil {
		return err
	}
	before, err := base64.StdEncoding.DecodeString(page.Text)
	if err != nil {
		return workbench.E(workbench.CodeInternal, "a page of output could not be read").Caused(err)
	}
	t.resume(before, next)
	return nil
}

// tail is what the streams still carry when the log ends.
func (e *runStream) tail() ([]Chunk, error) {
	var chunks []Chunk
	for _, t := range e.streams {
		if !t.known {
			page, err := e.c.s.o.Engine.Output(e.c.ctx, e.c.p, e.c.id, workbench.OutputQuery{Stream: t.stream, Limit: 1, Encoding: workbench.EncodingBase64})
			if err != nil {
				return nil, err
			}
			if err := e.recall(t, page.CapturedBytes); err != nil {
				return nil, err
			}
		}
		if chunk, ok := t.end(); ok {
			chunks = append(chunks, chunk)
		}
	}
	return chunks, nil
}

// finish ends the answer. An error after the first event cannot be a status
// any more: it is the last thing in the stream, without an id, so that the
// client resumes where it was.
func (e *eventStream) finish(err error) error {
	e.mu.Lock()
	begun, broken := e.begun, e.err
	e.mu.Unlock()
	switch {
	case err != nil && broken != nil:
		return workbench.E(workbench.CodeCancelled, "the client went away before the end of the stream").Caused(err)
	case err == nil && !begun:
		e.c.w.WriteHeader(http.StatusNoContent)
		return nil
	case err == nil || workbench.HasCode(err, workbench.CodeCancelled) && begun:
		return nil
	case !begun:
		return err
	}
	problem := problemOf(err, e.c.requestID)
	if e.sse {
		body, _ := json.Marshal(problem) // plain fields always marshal
		_ = e.send(fmt.Appendf(nil, "event: problem\ndata: %s\n\n", body))
	} else {
		body, _ := json.Marshal(struct {
			Kind string `json:"kind"`
			Problem
		}{"problem", problem})
		_ = e.send(append(body, '\n'))
	}
	return err
}

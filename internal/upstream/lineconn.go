package upstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workbenchdev/workbench/internal/redact"
)

const (
	// writeTimeout bounds the wait for a program to read what it is sent, where
	// nothing else does.
	writeTimeout = 30 * time.Second
	// maxSkipped bounds, in bytes, how much of one line is read without being
	// kept before the program is ended.
	maxSkipped = 256 * 1024 * 1024
	// maxQueued bounds the messages of one line: before 2025-06-18 a line could
	// hold several.
	maxQueued = 1000
	// maxAsked bounds the requests of a program, such as pings, that wait for their
	// answer: one that does not read them is ended.
	maxAsked = 256
)

// lineConn is the connection to a program: JSON-RPC messages, one a line. Unlike
// the SDK's own it bounds lines without ending the session, skips what is no
// message, does not wait for a program that does not read, and notes what
// becomes of a request.
type lineConn struct {
	in      *bufio.Reader
	from    *os.File
	kill    func()
	changed func() // hears that the list of tools has changed, before what comes after that is read
	red     *redact.Redactor
	log     *slog.Logger

	queue []jsonrpc.Message // of Read alone
	asked atomic.Int64      // requests of the program that are not answered

	writing sync.Mutex
	to      *os.File

	mu      sync.Mutex
	flights map[string]*flight // that wait for an answer, by id

	closing sync.Once
	over    chan struct{} // closed when there is nothing more to read
	finish  func()        // closes it
}

var _ mcp.Connection = (*lineConn)(nil)

func newLineConn(from, to *os.File, kill, changed func(), red *redact.Redactor, log *slog.Logger) *lineConn {
	over := make(chan struct{})
	return &lineConn{
		over: over, finish: sync.OnceFunc(func() { close(over) }),
		in: bufio.NewReaderSize(from, 64*1024), from: from, to: to, kill: kill, changed: changed, red: red, log: log,
		flights: map[string]*flight{},
	}
}

func (c *lineConn) SessionID() string { return "" }

// Close ends reading and writing; for the program, its stdin ends.
func (c *lineConn) Close() error {
	c.closing.Do(func() {
		_ = c.to.Close()
		_ = c.from.Close()
		c.finish()
	})
	return nil
}

// Read returns the next message.
func (c *lineConn) Read(context.Context) (jsonrpc.Message, error) {
	for {
		if len(c.queue) > 0 {
			next := c.queue[0]
			c.queue = c.queue[1:]
			return next, nil
		}
		var skipped idFinder
		line, tooLong, err := readLine(c.in, maxFrame, func(part []byte) {
			skipped.look(part)
			if skipped.seen > maxSkipped {
				c.kill()
			}
		})
		if err != nil {
			c.finish()
		}
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil, io.EOF
		case err != nil:
			return nil, err
		case tooLong:
			c.tooLarge(skipped.id())
		default:
			c.take(bytes.TrimSpace(line))
		}
	}
}

// take queues the messages of a line.
func (c *lineConn) take(line []byte) {
	if len(line) == 0 {
		return
	}
	messages := []json.RawMessage{line}
	if line[0] == '[' {
		messages = nil
		if json.Unmarshal(line, &messages) != nil || len(messages) > maxQueued {
			c.log.Debug("the app's program wrote a line that is no message", "bytes", len(line))
			return
		}
	}
	for _, m := range messages {
		f := c.answers(m)
		if f != nil {
			m = f.observe(m)
		}
		message, err := jsonrpc.DecodeMessage(m)
		switch {
		case err == nil && c.asksTooMuch(message):
			c.log.Warn("the app's program asks more than it takes answers to, and is ended", "requests", maxAsked)
			c.kill()
			return
		case err == nil:
			c.queue = append(c.queue, message)
		case f != nil:
			c.fail(f)
		default:
			c.log.Debug("the app's program wrote a line that is no message", "bytes", len(m),
				"begins", bounded(c.red.String(string(m[:min(len(m), 4096)])), 200))
		}
	}
}

// asksTooMuch counts the requests of the program that are not answered.
func (c *lineConn) asksTooMuch(message jsonrpc.Message) bool {
	request, ok := message.(*jsonrpc.Request)
	return ok && request.IsCall() && c.asked.Add(1) > maxAsked
}

// answers is the flight that a message answers; nil if there is none. A notice
// that the list of tools has changed is passed on.
func (c *lineConn) answers(message []byte) *flight {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
	}
	if json.Unmarshal(message, &m) != nil {
		return nil
	}
	if m.Method != nil {
		if *m.Method == listChanged {
			c.changed()
		}
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flights[idOf(m.ID)]
}

// fail ends the waiting for an answer that came and cannot be passed on. What it
// was, the flight knows.
func (c *lineConn) fail(f *flight) {
	var id any
	if json.Unmarshal([]byte(f.wireID()), &id) != nil {
		return
	}
	if id, err := jsonrpc.MakeID(id); err == nil {
		c.queue = append(c.queue, &jsonrpc.Response{ID: id, Error: errUnreadable})
	}
}

var errUnreadable = errors.New("the answer cannot be read")

// tooLarge notes an answer that was too large to be kept.
func (c *lineConn) tooLarge(id string) {
	c.mu.Lock()
	f := c.flights[id]
	c.mu.Unlock()
	c.log.Debug("the app's program wrote a line that is too long", "answers", f != nil)
	if f != nil {
		f.overflow()
	}
}

// Write writes a message. A request that a flight is about is noted as having
// left before a byte of it does.
func (c *lineConn) Write(ctx context.Context, message jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(message)
	if err != nil {
		return err
	}
	if _, ok := message.(*jsonrpc.Response); ok {
		defer c.asked.Add(-1)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	f, id := c.flightOf(ctx, message)
	if f != nil {
		f.leave(id)
	}
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(writeTimeout)
	}
	if err := c.to.SetWriteDeadline(until); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.to.SetWriteDeadline(time.Now()) })
	n, err := c.to.Write(append(data, '\n'))
	stop()
	switch {
	case err != nil && n > 0:
		c.kill() // it has half a message: nothing after it would be understood
	case err != nil && f != nil:
		f.stayed()
	}
	return err
}

// flightOf registers the flight of a request.
func (c *lineConn) flightOf(ctx context.Context, message jsonrpc.Message) (*flight, string) {
	f := flightOf(ctx)
	request, ok := message.(*jsonrpc.Request)
	if f == nil || !ok || !request.IsCall() || request.Method != f.method {
		return nil, ""
	}
	raw, err := json.Marshal(request.ID.Raw())
	if err != nil {
		return nil, ""
	}
	id := idOf(raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flights[id] = f
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.flights, id)
	})
	return f, id
}

// idFinder finds the id of a JSON-RPC message that is not kept.
type idFinder struct {
	seen   int // bytes
	depth  int
	quoted bool
	escape bool
	isKey  bool // the next string of the outermost object is a key
	text   []byte
	key    string
	value  []byte // of the key "id", as it is written
}

// maxID bounds, in bytes, an id, and a key.
const maxID = 64

func (s *idFinder) id() string { return idOf(bytes.TrimSpace(s.value)) }

func (s *idFinder) look(part []byte) {
	s.seen += len(part)
	for _, b := range part {
		if s.depth == 1 && s.key == "id" && !s.isKey && (s.quoted || b != ',' && b != '}' && b != ':') && len(s.value) < maxID {
			s.value = append(s.value, b)
		}
		switch {
		case s.quoted && s.escape:
			s.escape = false
		case s.quoted && b == '\\':
			s.escape = true
		case s.quoted && b == '"':
			s.quoted = false
			if s.depth == 1 && s.isKey {
				s.key, s.isKey = string(s.text), false
			}
		case s.quoted:
			if s.isKey && len(s.text) < maxID {
				s.text = append(s.text, b)
			}
		default:
			s.structure(b)
		}
	}
}

func (s *idFinder) structure(b byte) {
	switch b {
	case '"':
		s.quoted, s.text = true, s.text[:0]
	case '{', '[':
		s.depth++
		s.isKey = s.depth == 1 && b == '{'
	case '}', ']':
		s.depth--
	case ',':
		if s.depth == 1 {
			s.isKey, s.key = true, ""
		}
	}
}

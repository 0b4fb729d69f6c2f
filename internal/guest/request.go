package guest

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// brokerCall is a request.
type brokerCall struct {
	Number int64           `json:"n,omitempty"` // of the request on its connection, which stays open; 0: it has none
	Token  string          `json:"token"`
	Op     string          `json:"op"`
	Path   string          `json:"path,omitempty"`  // of save, base64
	Value  json.RawMessage `json:"value,omitempty"` // of result; the arguments of what the host alone understands

	Kind     string          `json:"kind,omitempty"` // of display
	ID       string          `json:"id,omitempty"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	Size     *int64          `json:"size,omitempty"` // of the content that follows
}

// brokerAnswer is an answer: one of its fields.
type brokerAnswer struct {
	Number int64           `json:"n,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *brokerError    `json:"error,omitempty"`
}

type brokerError struct {
	Code   workbench.Code `json:"code"`
	Detail string         `json:"detail"`
	Hint   string         `json:"hint,omitempty"`
	Field  string         `json:"field,omitempty"`
}

// caller is one connection of code.
type caller struct {
	c     *net.UnixConn
	r     *bufio.Reader
	asks  atomic.Bool  // a request has begun, and is the last of the connection or not read yet
	reads atomic.Int64 // since when a piece is waited for, Unix nanoseconds; 0: none is
	wrote atomic.Int64 // since when an answer is to be taken; 0: none is

	mu      sync.Mutex
	answers []byte        // that are to be written
	written chan struct{} // closed once they are
	writes  bool          // somebody writes
}

func newCaller(c *net.UnixConn) *caller {
	p := &caller{c: c}
	p.r = bufio.NewReader(p)
	return p
}

// Read reads from the connection.
func (p *caller) Read(b []byte) (int, error) {
	p.reads.Store(time.Now().UnixNano())
	n, err := p.c.Read(b)
	p.reads.Store(0)
	return n, err
}

// more reports whether another request has come whole.
func (p *caller) more() bool {
	head, err := p.r.Peek(min(4, p.r.Buffered()))
	return err == nil && len(head) == 4 && int64(p.r.Buffered()) >= 4+int64(binary.BigEndian.Uint32(head))
}

// stalled reports whether code lets the connection stand still for long: with ask
// only one in the midst of a request, or of an answer.
func (p *caller) stalled(ask bool) bool {
	long := time.Now().Add(-brokerIdle).UnixNano()
	since := func(at int64) bool { return at != 0 && at < long }
	return since(p.reads.Load()) && (!ask || p.asks.Load()) || since(p.wrote.Load())
}

// cut ends what the connection waits for.
func (p *caller) cut() { _ = p.c.SetDeadline(time.Unix(1, 0)) }

// hangUp takes no more from the connection.
func (p *caller) hangUp() { _ = p.c.SetReadDeadline(time.Unix(1, 0)) }

// request reads what the caller wants, content apart. Code: body_too_large where it
// was not read to its end.
func (p *caller) request() (call brokerCall, err error) {
	var head [4]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return call, workbench.E(workbench.CodeInvalidRequest, "no request")
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > brokerRequest+brokerNumber {
		return call, workbench.E(workbench.CodeBodyTooLarge, "the request has %d bytes, %d are allowed", size, brokerRequest).
			WithHint("save what is large as a file")
	}
	raw, err := io.ReadAll(io.LimitReader(p.r, int64(size)))
	if err != nil || len(raw) != int(size) {
		return call, workbench.E(workbench.CodeInvalidRequest, "the request ends early")
	}
	if err := json.Unmarshal(raw, &call); err != nil {
		return brokerCall{}, workbench.E(workbench.CodeInvalidRequest, "the request is not valid JSON")
	}
	return call, nil
}

// reply writes the answer, in a run's end too. Answers that come together are written
// together; none has returned before its own is taken.
func (p *caller) reply(ctx context.Context, number int64, result json.RawMessage, err error) {
	a := brokerAnswer{Number: number, Result: result}
	if err != nil {
		e := workbench.AsError(err)
		a = brokerAnswer{Number: number, Error: &brokerError{e.Code, e.Detail, e.Hint, e.Field}}
	} else if len(result) == 0 {
		a.Result = json.RawMessage("null")
	}
	raw, _ := guestwire.Marshal(a) // cannot fail: the result is valid JSON
	raw = append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
	p.mu.Lock()
	p.answers = append(p.answers, raw...)
	if p.written == nil {
		p.written = make(chan struct{})
	}
	mine := p.written
	if p.writes {
		p.mu.Unlock()
		<-mine
		return
	}
	p.writes = true
	p.mu.Unlock()
	runtime.Gosched() // whoever is about to answer does so now
	for {
		p.mu.Lock()
		raw, written := p.answers, p.written
		p.answers, p.written = nil, nil
		if p.writes = len(raw) > 0; !p.writes {
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		p.write(ctx, raw)
		close(written)
	}
}

// write writes what the caller, which may have gone, need not take.
func (p *caller) write(ctx context.Context, raw []byte) {
	p.wrote.Store(time.Now().UnixNano())
	defer p.wrote.Store(0)
	n := 0
	if ctx.Err() == nil {
		n, _ = p.c.Write(raw)
	}
	if n < len(raw) && ctx.Err() != nil {
		_ = p.c.SetWriteDeadline(time.Now().Add(brokerLast))
		_, _ = p.c.Write(raw[n:])
	}
}

// sayGoodbye lets a caller that still sends what nobody wants have its answer, while
// asking lasts: it is broken off otherwise.
func (p *caller) sayGoodbye(asking context.Context) {
	defer context.AfterFunc(asking, p.hangUp)()
	_ = p.c.CloseWrite()
	_, _ = io.CopyN(io.Discard, p.r, brokerUnwanted)
}

package guest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// brokerCall is a request.
type brokerCall struct {
	Token string          `json:"token"`
	Op    string          `json:"op"`
	Path  string          `json:"path,omitempty"`  // of save, base64
	Value json.RawMessage `json:"value,omitempty"` // of result; the arguments of what the host alone understands

	Kind     string          `json:"kind,omitempty"` // of display
	ID       string          `json:"id,omitempty"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	Size     *int64          `json:"size,omitempty"` // of the content that follows
}

// brokerAnswer is an answer: one of its fields.
type brokerAnswer struct {
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
	c       *net.UnixConn
	crowded func() bool // others wait for its place
}

// wait bounds what comes next on the connection; ctx cuts it short.
func (p caller) wait(ctx context.Context) {
	_ = p.c.SetDeadline(time.Now().Add(brokerIdle))
	if ctx.Err() != nil { // whoever ended it may have cut the connection before
		p.cut()
	}
}

// cut ends what the connection waits for.
func (p caller) cut() { _ = p.c.SetDeadline(time.Unix(1, 0)) }

// lenient reports whether a caller that was not heard of in time may be waited for
// longer: an event loop can be busy with something else.
func (p caller) lenient(ctx context.Context, err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil && !p.crowded()
}

// request reads what the caller wants. whole reports whether it was read to its
// end, content apart.
func (p caller) request(ctx context.Context, call *brokerCall) (whole bool, err error) {
	defer context.AfterFunc(ctx, p.cut)()
	r := &patientReader{ctx: ctx, p: p}
	var head [4]byte
	n, err := io.ReadFull(r, head[:])
	for n == 0 && p.lenient(ctx, err) {
		n, err = io.ReadFull(r, head[:])
	}
	if err != nil {
		return true, workbench.E(workbench.CodeInvalidRequest, "no request")
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > brokerRequest {
		return false, workbench.E(workbench.CodeBodyTooLarge, "the request has %d bytes, %d are allowed", size, brokerRequest).
			WithHint("save what is large as a file")
	}
	raw, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil || len(raw) != int(size) {
		return true, workbench.E(workbench.CodeInvalidRequest, "the request ends early")
	}
	if err := json.Unmarshal(raw, call); err != nil {
		return true, workbench.E(workbench.CodeInvalidRequest, "the request is not valid JSON")
	}
	return true, nil
}

// reply writes the answer, in a run's end too.
func (p caller) reply(ctx context.Context, result json.RawMessage, err error) {
	a := brokerAnswer{Result: result}
	if err != nil {
		e := workbench.AsError(err)
		a = brokerAnswer{Error: &brokerError{e.Code, e.Detail, e.Hint, e.Field}}
	} else if len(result) == 0 {
		a.Result = json.RawMessage("null")
	}
	raw, _ := guestwire.Marshal(a) // cannot fail: the result is valid JSON
	raw = append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
	wait := brokerIdle
	for len(raw) > 0 {
		if ctx.Err() != nil {
			wait = brokerLast
		}
		_ = p.c.SetWriteDeadline(time.Now().Add(wait))
		n, err := p.c.Write(raw)
		if raw = raw[n:]; err != nil && !p.lenient(ctx, err) {
			return // the caller may have gone
		}
	}
}

// sayGoodbye lets a caller that still sends what nobody wants have its answer: it
// is broken off otherwise.
func (p caller) sayGoodbye(ctx context.Context) {
	_ = p.c.CloseWrite()
	_, _ = io.CopyN(io.Discard, &patientReader{ctx: ctx, p: p}, brokerUnwanted)
}

// patientReader reads from code, which has some time for each piece.
type patientReader struct {
	ctx context.Context
	p   caller
}

func (r *patientReader) Read(b []byte) (int, error) {
	r.p.wait(r.ctx)
	return r.p.c.Read(b)
}

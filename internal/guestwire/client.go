package guestwire

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workbenchdev/workbench"
)

// Options adjust a Client.
type Options struct {
	// HelloTimeout bounds the handshake; default 10 s.
	HelloTimeout time.Duration
}

// Client is the host's end of a connection. Its methods may be called at the
// same time. Their errors are *workbench.Error: besides the codes named with a
// method, sandbox_lost (the connection ended), guest_protocol (the guest broke
// the protocol; the connection is closed) and request_cancelled (ctx ended).
type Client struct {
	l     *link
	hello Hello
	done  chan struct{}

	mu    sync.Mutex
	execs map[string]*Exec
	ping  atomic.Uint64
	work  sync.WaitGroup
}

// hostHello is what the host says first.
type hostHello struct {
	Version int    `json:"version"`
	Nonce   string `json:"nonce"`
}

// Dial shakes hands over the stream and owns it from then on, also when it
// fails. Codes: guest_protocol (also: a guest of another version).
func Dial(ctx context.Context, rw io.ReadWriteCloser, o Options) (*Client, error) {
	if o.HelloTimeout <= 0 {
		o.HelloTimeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, o.HelloTimeout)
	defer cancel()
	c := &Client{done: make(chan struct{}), execs: map[string]*Exec{}}
	c.l = newLink(rw, newFrameReader(rw), true, map[string]operation{
		"call": {in: []uint8{streamContent}, run: c.call},
	}, 2*MaxCalls)

	shaken := make(chan error, 1)
	go func() { shaken <- c.shake() }()
	var err error
	select {
	case err = <-shaken:
	case <-ctx.Done():
		rw.Close()
		<-shaken //nolint:errcheck // the closed stream ended it; the reason is the time
		err = workbench.E(workbench.CodeSandboxLost, "the sandbox did not answer the handshake").Caused(context.Cause(ctx))
	}
	if err != nil {
		rw.Close()
		c.l.cancel(err)
		return nil, lost(err)
	}
	c.work.Go(func() {
		_ = c.l.serve() // the link keeps the reason
		rw.Close()
		close(c.done)
	})
	return c, nil
}

// shake sends the host's hello and finds the guest's answer to it.
func (c *Client) shake() error {
	var nonce [16]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return err
	}
	mine := hostHello{Version: Version, Nonce: hex.EncodeToString(nonce[:])}
	raw, _ := json.Marshal(mine) // cannot fail: plain fields
	if err := c.l.out.raw([]byte(preamble)); err != nil {
		return err
	}
	if err := c.l.out.write(frameHello, 0, 0, raw, nil); err != nil {
		return err
	}
	for {
		if err := c.l.in.resync(); err != nil {
			return err
		}
		f, err := c.l.in.next()
		if errors.Is(err, errFrame) || err == nil && f.typ != frameHello {
			continue // the middle of an older connection
		}
		if err != nil {
			return err
		}
		if err := decode(f.payload, &c.hello); err != nil {
			return violation("hello: %v", err)
		}
		if c.hello.Version != Version {
			return workbench.E(workbench.CodeGuestProtocol, "the guest speaks version %d of the protocol, this server %d", c.hello.Version, Version).
				WithHint("the guest is injected by the server: restart the server after an upgrade, and end sandboxes of the older one")
		}
		if c.hello.Nonce != mine.Nonce {
			continue // the answer to an older handshake
		}
		h := c.hello
		if len(h.Boot) > maxID || len(h.Build) > maxShortText || len(h.Bound) > maxID || len(h.Capabilities) > 64 {
			return violation("hello out of bounds")
		}
		return nil
	}
}

// Hello is what the guest said of itself.
func (c *Client) Hello() Hello { return c.hello }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err says why the connection ended; nil while it lives.
func (c *Client) Err() error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.l.err
}

// Close ends the connection and waits for everything that used it: handlers
// under way must return. Execs in the guest go on.
func (c *Client) Close() error {
	c.l.end(workbench.E(workbench.CodeSandboxLost, "the connection to the sandbox was closed"))
	err := c.l.rw.Close()
	c.work.Wait()
	c.l.work.Wait()
	return err
}

// do makes a request without streams.
func (c *Client) do(ctx context.Context, op string, body, reply any) error {
	ch, err := c.l.request(op, body, nil, nil, nil, nil)
	if err != nil {
		return err
	}
	return ch.wait(ctx, reply)
}

// Prepare makes the unbound sandbox ready for any session with these limits, so
// that Bind takes no time. Codes: conflict (it is prepared or bound),
// invalid_request, sandbox_start_failed (the guest could not set it up).
func (c *Client) Prepare(ctx context.Context, l SandboxLimits) error {
	if err := l.Check(); err != nil {
		return err
	}
	return c.do(ctx, "prepare", l, nil)
}

// Bind makes the unbound sandbox one session's. Codes: conflict (it is bound),
// invalid_request, sandbox_start_failed (the guest could not set it up).
func (c *Client) Bind(ctx context.Context, r BindRequest) (BindReply, error) {
	if err := r.Check(); err != nil {
		return BindReply{}, err
	}
	var reply BindReply
	if err := c.do(ctx, "bind", r, &reply); err != nil {
		return BindReply{}, err
	}
	if len(reply.Languages) > 16 || len(reply.Enforced) > 16 || reply.Token != "" && !validID(reply.Token) {
		return BindReply{}, c.broken(violation("bind reply out of bounds"))
	}
	return reply, nil
}

// broken closes the connection for a violation and returns its error.
func (c *Client) broken(err error) error {
	c.l.end(err)
	c.l.rw.Close()
	return lost(err)
}

// Ping measures a round trip through the guest's supervisor. Codes: see Client.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	answered := make(chan struct{})
	id := c.ping.Add(1)
	c.l.mu.Lock()
	switch {
	case c.l.err != nil:
		err := c.l.err
		c.l.mu.Unlock()
		return 0, err
	case len(c.l.pings) >= 32:
		c.l.mu.Unlock()
		return 0, workbench.E(workbench.CodeSandboxLost, "the sandbox does not answer")
	}
	c.l.pings[id] = answered
	c.l.mu.Unlock()

	start := time.Now()
	var payload [pingSize]byte
	binary.BigEndian.PutUint64(payload[:], id)
	if err := c.l.out.write(framePing, 0, 0, payload[:], nil); err != nil {
		return 0, lost(err)
	}
	select {
	case <-answered:
		return time.Since(start), nil
	case <-c.l.ctx.Done():
		return 0, context.Cause(c.l.ctx)
	case <-ctx.Done():
		return 0, workbench.E(workbench.CodeCancelled, "the sandbox did not answer in time").Caused(context.Cause(ctx))
	}
}

// Stats asks the guest what it sees. Its numbers are claims.
func (c *Client) Stats(ctx context.Context) (GuestStats, error) {
	var s GuestStats
	return s, c.do(ctx, "stats", struct{}{}, &s)
}

type groupName struct {
	Group string `json:"group"`
}

// EndGroup ends everything in the group, also what detached, and returns when
// nothing is left. A group that does not exist has ended.
func (c *Client) EndGroup(ctx context.Context, group string) error {
	return c.do(ctx, "endGroup", groupName{group}, nil)
}

// ListGroups lists the live groups.
func (c *Client) ListGroups(ctx context.Context) ([]GroupInfo, error) {
	var groups []GroupInfo
	if err := c.do(ctx, "listGroups", struct{}{}, &groups); err != nil {
		return nil, err
	}
	if len(groups) > MaxGroups {
		return nil, c.broken(violation("%d groups", len(groups)))
	}
	for _, g := range groups {
		if !validID(g.Name) {
			return nil, c.broken(violation("group name"))
		}
	}
	return groups, nil
}

// PauseAll stops every process of every group and returns when none runs.
func (c *Client) PauseAll(ctx context.Context) error { return c.do(ctx, "pauseAll", struct{}{}, nil) }

// ResumeAll lets them go on.
func (c *Client) ResumeAll(ctx context.Context) error { return c.do(ctx, "resumeAll", struct{}{}, nil) }

// Settle makes the sandbox ready to be checkpointed, and its checkpoint small:
// every group is paused, what waits for a next run is given up, memory that is
// not in use is returned, and the time limits of programs stand still. Nothing
// may be asked of the guest between its answer and the checkpoint. Code:
// unavailable (something did not stop; Wake undoes the rest).
func (c *Client) Settle(ctx context.Context) error { return c.do(ctx, "settle", struct{}{}, nil) }

// Wake undoes Settle: after a checkpoint that failed, or, on a connection that
// was dialed anew, in the sandbox that was restored from it. Time limits go on
// where they stood, however long that was ago, and interpreters are started
// ahead again. Groups stay paused until ResumeAll, or until something runs in
// them. A sandbox that was not settled does not mind.
func (c *Client) Wake(ctx context.Context) error { return c.do(ctx, "wake", struct{}{}, nil) }

// callBody opens a call of code.
type callBody struct {
	Exec string          `json:"exec"`
	Op   string          `json:"op"`
	Args json.RawMessage `json:"args"`
	Size int64           `json:"size"` // -1: no content
}

// call answers one call of code through its exec's handler.
func (c *Client) call(ch *channel) (any, error) {
	var b callBody
	if err := decode(ch.body, &b); err != nil || !validOp(b.Op) || b.Size < -1 || b.Size > MaxTreeBytes {
		return nil, c.broken(violation("call out of bounds"))
	}
	if err := checkArgs(b.Args); err != nil {
		return nil, err
	}
	c.mu.Lock()
	e := c.execs[b.Exec]
	c.mu.Unlock()
	if e == nil {
		return nil, workbench.E(workbench.CodeConflict, "the run has ended")
	}
	ctx, cancel := context.WithCancel(ch.ctx)
	defer cancel()
	defer context.AfterFunc(e.ch.ctx, func() {
		cancel()
		ch.failInbound(context.Cause(e.ch.ctx)) // content that never comes outlasts no exec
	})()
	if b.Op == OpDisplay {
		if err := e.beforeDisplay(ctx, b); err != nil {
			return nil, err
		}
	}
	call := BrokerCall{Exec: b.Exec, Op: b.Op, Args: b.Args, Size: b.Size}
	if b.Size >= 0 {
		content := &sizedReader{r: ch.in[streamContent], left: b.Size}
		call.Content = content
		reply, err := e.handler.Call(ctx, call)
		if content.err != nil && errors.Is(content.err, errFrame) {
			return nil, c.broken(content.err)
		}
		return bounded(reply, err)
	}
	return bounded(e.handler.Call(ctx, call))
}

// bounded is a handler's answer, if it may have that many bytes.
func bounded(reply json.RawMessage, err error) (any, error) {
	if err == nil && len(reply) > MaxResult {
		err = workbench.E(workbench.CodeResultTooLarge, "the answer has %d bytes, %d are allowed", len(reply), MaxResult).
			WithHint("ask for less at once")
	}
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// beforeDisplay checks a display and waits for the output that was before it.
func (e *Exec) beforeDisplay(ctx context.Context, b callBody) error {
	var a DisplayArgs
	if err := decode(b.Args, &a); err != nil || b.Size < 0 || b.Size > MaxDisplay || len(a.ID) > maxShortText || a.At.Stdout < 0 || a.At.Stderr < 0 {
		return e.c.broken(violation("display out of bounds"))
	}
	switch a.Kind {
	case DisplayResult, DisplayShow, DisplayUpdate, DisplayError, DisplayClear:
		return e.reached(ctx, a.At)
	}
	return e.c.broken(violation("display of kind %.20q", a.Kind))
}

// sizedReader reads a stream that must have exactly so many bytes.
type sizedReader struct {
	r    io.Reader
	left int64
	err  error
}

func (s *sizedReader) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	s.left -= int64(n)
	switch {
	case s.left < 0:
		n, err = 0, violation("content longer than announced")
	case errors.Is(err, io.EOF) && s.left > 0:
		err = violation("content shorter than announced")
	}
	s.err = err
	return n, err
}

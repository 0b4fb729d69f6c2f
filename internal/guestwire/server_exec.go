package guestwire

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
)

// Running is one exec in the guest.
type Running struct {
	Stdout, Stderr *Tail
	id, group      string
	s              *Server

	startOnce sync.Once
	started   chan struct{}
	ended     chan struct{}
	result    ExecResult // valid once ended
	err       error      // likewise: it never started

	mu     sync.Mutex
	detach context.CancelCauseFunc // of the current attachment
	follow int                     // hosts' requests that are not over
}

// followed reports whether a host is being told of the exec: it must not be
// forgotten meanwhile.
func (x *Running) followed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.follow > 0
}

// Started says that the program is about to run.
func (x *Running) Started() { x.startOnce.Do(func() { close(x.started) }) }

func (x *Running) unfollow() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.follow--
}

// drop gives up what is kept of the exec.
func (x *Running) drop() {
	x.Stdout.Drop()
	x.Stderr.Drop()
}

// Call passes a call of code to the host and returns its reply. content, when
// size is not negative, must give exactly size bytes. Codes: body_too_large (the
// arguments have more than MaxCallArgs bytes), unavailable (no host is connected,
// or it went away: whether it acted is unknown), and the host's own.
func (x *Running) Call(ctx context.Context, op string, args json.RawMessage, size int64, content io.Reader) (json.RawMessage, error) {
	if err := checkArgs(args); err != nil {
		return nil, err
	}
	places := x.s.placesOf(op)
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-ctx.Done():
		return nil, workbench.E(workbench.CodeCancelled, "the run ended").Caused(context.Cause(ctx))
	}
	l, err := x.s.connected()
	if err != nil {
		return nil, err
	}
	var out []uint8
	if size >= 0 {
		out = []uint8{streamContent}
	}
	ch, err := l.request("call", callBody{Exec: x.id, Op: op, Args: args, Size: size}, nil, out, nil, nil)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() {
		ch.giveUp(workbench.E(workbench.CodeCancelled, "the run ended"))
	})()
	if size >= 0 {
		o := ch.out[streamContent].(*outbound)
		n, err := io.CopyBuffer(onlyWriter{o}, io.LimitReader(content, size), make([]byte, MaxData))
		if err == nil && n != size {
			err = workbench.E(workbench.CodeConflict, "the file changed while it was read").WithHint("finish writing before you save")
		}
		if err == nil {
			err = o.Close()
		}
		if err != nil && ch.ctx.Err() == nil {
			ch.giveUp(err)
		}
	}
	return ch.reply(ctx)
}

// reply waits for the host's reply to a call.
func (ch *channel) reply(ctx context.Context) (json.RawMessage, error) {
	var reply json.RawMessage
	if err := ch.wait(ctx, &reply); err != nil {
		return nil, err
	}
	if len(reply) > MaxCallArgs {
		return nil, workbench.E(workbench.CodeInternal, "the reply has %d bytes", len(reply))
	}
	return reply, nil
}

// placesOf are those for calls of an operation that are under way.
func (s *Server) placesOf(op string) chan struct{} {
	if takesLong(op) {
		return s.waits
	}
	return s.calls
}

// connected is the connection to the host.
func (s *Server) connected() (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil {
		return nil, workbench.E(workbench.CodeUnavailable, "the server is not connected to this sandbox at the moment").WithHint("try again shortly")
	}
	return s.link, nil
}

// Asked is a call that is under way.
type Asked struct {
	ch     *channel
	places chan struct{}
}

// Ask is Call without content in two steps, for calls that come together: what it
// asks leaves with Flush, or with whatever else is written before. It returns nil where
// that cannot be done at once, and Call has to.
func (x *Running) Ask(op string, args json.RawMessage) *Asked {
	if checkArgs(args) != nil {
		return nil
	}
	places := x.s.placesOf(op)
	select {
	case places <- struct{}{}:
	default:
		return nil
	}
	l, err := x.s.connected()
	if err == nil {
		var ch *channel
		if ch, err = l.requestBy(l.out.later, "call", callBody{Exec: x.id, Op: op, Args: args, Size: -1}, nil, nil, nil, nil); err == nil {
			return &Asked{ch: ch, places: places}
		}
	}
	<-places
	return nil
}

// Flush sends what was asked.
func (x *Running) Flush() {
	if l, err := x.s.connected(); err == nil {
		if err := l.out.flush(); err != nil {
			l.end(err)
		}
	}
}

// Reply waits for the reply to what was asked, as Call does. It is called once.
func (a *Asked) Reply(ctx context.Context) (json.RawMessage, error) {
	defer func() { <-a.places }()
	defer context.AfterFunc(ctx, func() {
		a.ch.giveUp(workbench.E(workbench.CodeCancelled, "the run ended"))
	})()
	return a.ch.reply(ctx)
}

func checkArgs(args json.RawMessage) error {
	if len(args) > MaxCallArgs {
		return workbench.E(workbench.CodeBodyTooLarge, "the call has %d bytes, %d are allowed", len(args), MaxCallArgs).
			WithHint("save a file instead")
	}
	return nil
}

// exec starts an exec and follows it for the host that asked.
func (s *Server) exec(ch *channel) (any, error) {
	var b execBody
	if err := parse(ch, &b); err != nil {
		return nil, err
	}
	if b.SourceBytes < 0 || b.SourceBytes > MaxSource || b.StdinBytes < 0 || b.StdinBytes > MaxStdin {
		return nil, workbench.E(workbench.CodeInvalidRequest, "code or input is too large")
	}
	r := ExecRequest{ID: b.ID, Group: b.Group, Argv: fromWords(b.Argv), Language: b.Language, Name: b.Name, Args: fromWords(b.Args),
		Env: map[string]string{}, Dir: b.Dir, Timeout: time.Duration(b.TimeoutNs), Grace: time.Duration(b.GraceNs),
		OutputBytes: b.OutputBytes, KeepGroup: b.KeepGroup, Context: b.Context, Living: b.Living, Packages: b.Packages}
	for _, kv := range b.Env {
		k, v, _ := strings.Cut(string(kv), "=")
		r.Env[k] = v
	}
	var err error
	if r.Source = b.Source; b.SourceBytes > 0 {
		if r.Source, err = whole(ch.in[streamSource], b.SourceBytes); err != nil {
			return nil, err
		}
	}
	if r.Stdin = b.Stdin; b.StdinBytes > 0 {
		if r.Stdin, err = whole(ch.in[streamStdin], b.StdinBytes); err != nil {
			return nil, err
		}
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	x, err := s.register(r)
	if err != nil {
		return nil, err
	}
	defer x.unfollow()
	select {
	case <-x.started:
	case <-x.ended:
		if x.err != nil {
			return nil, x.err
		}
	case <-ch.ctx.Done():
		return nil, context.Cause(ch.ctx)
	}
	return s.follow(ch, x, Offsets{})
}

// whole reads a stream of exactly so many bytes to its end.
func whole(r io.Reader, size int64) ([]byte, error) {
	var buf bytes.Buffer
	buf.Grow(int(size))
	if _, err := io.Copy(&buf, io.LimitReader(r, size+1)); err != nil {
		return nil, err
	}
	if int64(buf.Len()) != size {
		return nil, workbench.E(workbench.CodeInvalidRequest, "code or input has another length than announced")
	}
	return buf.Bytes(), nil
}

// register makes room for an exec and runs it.
func (s *Server) register(r ExecRequest) (*Running, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bound == "" {
		return nil, workbench.E(workbench.CodeConflict, "the sandbox is not bound to a session")
	}
	if s.ended {
		return nil, workbench.E(workbench.CodeUnavailable, "the sandbox is ending")
	}
	if s.execs[r.ID] != nil {
		return nil, workbench.E(workbench.CodeConflict, "an exec with this id exists")
	}
	for i := 0; len(s.execs) >= maxKept && i < len(s.order); {
		if x := s.execs[s.order[i]]; x.hasEnded() && !x.followed() {
			s.forget(s.order[i])
		} else {
			i++
		}
	}
	if len(s.execs) >= MaxExecs {
		return nil, workbench.E(workbench.CodeCapacity, "too many execs at once in this sandbox")
	}
	x := &Running{Stdout: newTail(r.OutputBytes), Stderr: newTail(r.OutputBytes), id: r.ID, group: r.Group, s: s,
		started: make(chan struct{}), ended: make(chan struct{}), follow: 1}
	s.execs[r.ID] = x
	s.work.Go(func() { s.runExec(r, x) })
	s.order = append(s.order, r.ID)
	return x, nil
}

// maxKept is how many execs are kept before ended ones are forgotten.
const maxKept = 8

// forget drops an exec. The caller holds mu.
func (s *Server) forget(id string) {
	x := s.execs[id]
	if x == nil {
		return
	}
	x.drop()
	delete(s.execs, id)
	for i, o := range s.order {
		if o == id {
			s.order = append(s.order[:i:i], s.order[i+1:]...)
			return
		}
	}
}

func (x *Running) hasEnded() bool {
	select {
	case <-x.ended:
		return true
	default:
		return false
	}
}

// runExec runs the program and keeps its end.
func (s *Server) runExec(r ExecRequest, x *Running) {
	res, err := s.g.Exec(s.ctx, r, x)
	x.Stdout.Close()
	x.Stderr.Close()
	begun := false
	select {
	case <-x.started:
		begun = true
	default:
	}
	if err != nil && !begun {
		x.err = err
		s.mu.Lock()
		s.forget(r.ID)
		s.mu.Unlock()
		close(x.ended)
		return
	}
	if err != nil {
		res = ExecResult{ExitCode: -1, Reason: workbench.ReasonInfrastructure, Message: workbench.AsError(err).Detail}
	}
	res.Total.Stdout, res.Forwarded.Stdout = x.Stdout.Total()
	res.Total.Stderr, res.Forwarded.Stderr = x.Stderr.Total()
	if res.LimitsHit == nil {
		res.LimitsHit = []string{}
	}
	x.result = res
	x.Started()
	close(x.ended)
}

// attach follows an exec for a host that comes back.
func (s *Server) attach(ch *channel) (any, error) {
	var b attachBody
	if err := parse(ch, &b); err != nil {
		return nil, err
	}
	s.mu.Lock()
	x := s.execs[b.ID]
	if x != nil {
		x.mu.Lock()
		x.follow++
		x.mu.Unlock()
	}
	s.mu.Unlock()
	if x == nil {
		return nil, workbench.ErrNotFound("exec in this sandbox")
	}
	defer x.unfollow()
	select {
	case <-x.started:
	case <-ch.ctx.Done():
		return nil, context.Cause(ch.ctx)
	}
	return s.follow(ch, x, b.From)
}

// follow sends a running exec's output from the offsets on, and answers with
// its end. It replaces whoever followed it before.
func (s *Server) follow(ch *channel, x *Running, from Offsets) (any, error) {
	x.mu.Lock()
	if x.detach != nil {
		x.detach(workbench.E(workbench.CodeConflict, "another connection took the exec over"))
	}
	x.detach = ch.cancel
	x.mu.Unlock()

	outs := [2]*tailOut{{t: x.Stdout, sent: from.Stdout}, {t: x.Stderr, sent: from.Stderr}}
	for i, o := range outs {
		if err := o.t.ackTo(o.sent); err != nil {
			return nil, workbench.E(workbench.CodeOffsetInvalid, "the bytes at this offset are not kept any more").Caused(err)
		}
		ch.setOut(execStreams[i], o)
	}
	if err := ch.l.out.write(frameEvent, 0, ch.id, []byte(`"started"`), nil); err != nil {
		return nil, err
	}
	if err := forwardAll(ch, outs); err != nil {
		return nil, err
	}
	select {
	case <-x.ended:
		for i, o := range outs {
			ch.ends = append(ch.ends, frameEnding{execStreams[i], o.sent})
		}
		return x.result, nil
	case <-ch.ctx.Done():
		return nil, context.Cause(ch.ctx)
	}
}

// forwardAll sends an exec's output until both streams have ended. What one of
// them has to say holds the other back by a chunk at most.
func forwardAll(ch *channel, outs [2]*tailOut) error {
	buf := make([]byte, MaxData)
	for {
		var news [2]<-chan struct{}
		more := false
		for i, o := range outs {
			sent, changed, err := o.forward(ch, execStreams[i], buf)
			if err != nil {
				return err
			}
			more, news[i] = more || sent, changed
		}
		if more {
			continue
		}
		if news[0] == nil && news[1] == nil {
			return nil
		}
		select {
		case <-news[0]: // nil, of a stream that has ended, never comes
		case <-news[1]:
		case <-ch.ctx.Done():
			return context.Cause(ch.ctx)
		}
	}
}

// setOut registers a sender after the channel began.
func (ch *channel) setOut(stream uint8, a acknowledged) {
	ch.l.mu.Lock()
	defer ch.l.mu.Unlock()
	ch.out[stream] = a
}

func (s *Server) release(ch *channel) (any, error) {
	var r signalBody
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.execs[r.ID]; x != nil {
		if !x.hasEnded() {
			return nil, workbench.E(workbench.CodeConflict, "the exec has not ended")
		}
		s.forget(r.ID)
	}
	return nil, nil
}

func (s *Server) listExecs(*channel) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]ExecInfo, 0, len(s.order))
	for _, id := range s.order {
		x := s.execs[id]
		list = append(list, ExecInfo{ID: id, Group: x.group, Ended: x.hasEnded(), Acked: Offsets{Stdout: x.Stdout.acked(), Stderr: x.Stderr.acked()}})
	}
	return list, nil
}

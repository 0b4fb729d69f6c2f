package guestwire

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"sync"

	"github.com/workbenchdev/workbench"
)

// Guest is what runs inside a sandbox, as the Server drives it. Its errors are
// *workbench.Error where the host should see more than internal.
type Guest interface {
	// Prepare does ahead what Bind needs of the limits. It is called once at
	// most, before Bind.
	Prepare(ctx context.Context, l SandboxLimits) error
	Bind(ctx context.Context, r BindRequest) (BindReply, error)
	// Exec runs a program to its end. It calls x.Started before the first byte
	// of it runs; an error before that is the answer to the host. ctx ends when
	// the guest must leave.
	Exec(ctx context.Context, r ExecRequest, x *Running) (ExecResult, error)
	Signal(exec string, signal int) error
	Cancel(exec string) error
	EndGroup(ctx context.Context, group string) error
	Groups(ctx context.Context) ([]GroupInfo, error)
	PauseAll(ctx context.Context) error
	ResumeAll(ctx context.Context) error
	// Settle makes the sandbox ready to be checkpointed, Wake ends that.
	Settle(ctx context.Context) error
	Wake(ctx context.Context) error
	// Scan calls yield for every entry; content is nil unless e.Content.
	Scan(ctx context.Context, r ScanRequest, yield func(e Entry, content io.Reader) error) (ScanResult, error)
	// Read calls send once with the file's content before it returns its entry.
	Read(ctx context.Context, path Path, send func(io.Reader) error) (Entry, error)
	Write(ctx context.Context, restore bool, src FileSource) (WriteResult, error)
	Live
	Stats(ctx context.Context) (GuestStats, error)
}

// Server is the guest's end. It keeps the execs; connections come and go.
type Server struct {
	g     Guest
	boot  string
	build string
	caps  []string

	mu       sync.Mutex
	link     *link // the current connection, nil without one
	bound    string
	prepared bool
	execs    map[string]*Running
	order    []string       // ids, oldest first
	calls    chan struct{}  // full while MaxCalls are under way that the host answers at once
	waits    chan struct{}  // likewise, for which it waits itself
	work     sync.WaitGroup // added to under mu, and not once closed
	ended    bool
	ctx      context.Context
	stop     context.CancelFunc
}

// NewServer makes a server. boot is random, one per process; build and
// capabilities go into the hello.
func NewServer(g Guest, boot, build string, capabilities []string) *Server {
	s := &Server{g: g, boot: boot, build: build, caps: capabilities, execs: map[string]*Running{}, calls: make(chan struct{}, MaxCalls), waits: make(chan struct{}, MaxCalls)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Close ends the execs and waits for everything.
func (s *Server) Close() {
	s.stop()
	s.mu.Lock()
	s.ended = true
	l := s.link
	for _, x := range s.execs {
		x.drop()
	}
	s.mu.Unlock()
	if l != nil {
		l.end(io.ErrClosedPipe)
	}
	s.work.Wait()
}

// Serve answers hosts on the stream until it ends, and returns why. After a
// violation, or when a host begins anew, it shakes hands again on the same
// stream. A host that comes later replaces an earlier one on another stream.
func (s *Server) Serve(rw io.ReadWriteCloser) error {
	in := newFrameReader(rw)
	for {
		if err := in.resync(); err != nil {
			return err
		}
		f, err := in.next()
		if errors.Is(err, errFrame) || err == nil && f.typ != frameHello {
			continue
		}
		if err != nil {
			return err
		}
		var hello hostHello
		if decode(f.payload, &hello) != nil || !validID(hello.Nonce) {
			continue
		}
		l := newLink(rw, in, false, s.operations(), MaxExecs+MaxRequests)
		s.replace(l)
		if err := s.greet(l, hello); err != nil {
			return err
		}
		err = l.serve()
		s.mu.Lock()
		if s.link == l {
			s.link = nil
		}
		s.mu.Unlock()
		l.work.Wait() // its requests have been given up
		if !errors.Is(err, errFrame) {
			return err
		}
	}
}

// replace makes l the current connection.
func (s *Server) replace(l *link) {
	s.mu.Lock()
	old := s.link
	s.link = l
	s.mu.Unlock()
	if old != nil {
		old.end(workbench.E(workbench.CodeSandboxLost, "another host took over"))
	}
}

func (s *Server) greet(l *link, host hostHello) error {
	s.mu.Lock()
	h := Hello{Version: Version, Nonce: host.Nonce, Boot: s.boot, Bound: s.bound, Capabilities: s.caps, Build: s.build}
	s.mu.Unlock()
	raw, _ := json.Marshal(h) // cannot fail: plain fields
	if err := l.out.raw([]byte(preamble)); err != nil {
		return err
	}
	return l.out.write(frameHello, 0, 0, raw, nil)
}

// operations is what the host may open.
func (s *Server) operations() map[string]operation {
	plain := func(run func(ch *channel) (any, error)) operation { return operation{run: run} }
	all := map[string]operation{
		"prepare":    plain(s.prepare),
		"bind":       plain(s.bind),
		"stats":      plain(func(ch *channel) (any, error) { return s.g.Stats(ch.ctx) }),
		"endGroup":   plain(s.endGroup),
		"listGroups": plain(func(ch *channel) (any, error) { return s.g.Groups(ch.ctx) }),
		"pauseAll":   plain(func(ch *channel) (any, error) { return nil, s.g.PauseAll(ch.ctx) }),
		"resumeAll":  plain(func(ch *channel) (any, error) { return nil, s.g.ResumeAll(ch.ctx) }),
		"settle":     plain(func(ch *channel) (any, error) { return nil, s.g.Settle(ch.ctx) }),
		"wake":       plain(func(ch *channel) (any, error) { return nil, s.g.Wake(ch.ctx) }),
		"signal":     plain(s.signal),
		"release":    plain(s.release),
		"listExecs":  plain(s.listExecs),
		"exec":       {in: []uint8{streamSource, streamStdin}, run: s.exec},
		"attach":     {run: s.attach},
		"scan":       {out: []uint8{streamContent}, run: s.scan},
		"read":       {out: []uint8{streamContent}, run: s.read},
		"write":      {in: []uint8{streamContent}, run: func(ch *channel) (any, error) { return s.write(ch, false) }},
		"restore":    {in: []uint8{streamContent}, run: func(ch *channel) (any, error) { return s.write(ch, true) }},
	}
	maps.Copy(all, s.liveOperations())
	return all
}

func parse(ch *channel, v any) error {
	if err := decode(ch.body, v); err != nil {
		return workbench.E(workbench.CodeInvalidRequest, "the request to the sandbox is malformed").Caused(err)
	}
	return nil
}

func (s *Server) prepare(ch *channel) (any, error) {
	var l SandboxLimits
	if err := parse(ch, &l); err != nil {
		return nil, err
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	late := s.bound != "" || s.prepared
	s.prepared = true
	s.mu.Unlock()
	if late {
		return nil, workbench.E(workbench.CodeConflict, "the sandbox is prepared already")
	}
	return nil, s.g.Prepare(ch.ctx, l)
}

func (s *Server) bind(ch *channel) (any, error) {
	var r BindRequest
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	bound := s.bound
	if bound == "" {
		s.bound = r.SessionNonce
	}
	s.mu.Unlock()
	if bound != "" {
		return nil, workbench.E(workbench.CodeConflict, "the sandbox is bound already")
	}
	reply, err := s.g.Bind(ch.ctx, r)
	if err != nil {
		s.mu.Lock()
		s.bound = ""
		s.mu.Unlock()
		return nil, err
	}
	return reply, nil
}

func (s *Server) endGroup(ch *channel) (any, error) {
	var r groupName
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	return nil, s.g.EndGroup(ch.ctx, r.Group)
}

func (s *Server) signal(ch *channel) (any, error) {
	var r signalBody
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	if r.Cancel {
		return nil, s.g.Cancel(r.ID)
	}
	return nil, s.g.Signal(r.ID, r.Signal)
}

func (s *Server) scan(ch *channel) (any, error) {
	var r ScanRequest
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	o := ch.out[streamContent].(*outbound)
	k := newChunker(o)
	res, err := s.g.Scan(ch.ctx, r, recordWriter{k}.write)
	if err != nil {
		return nil, err
	}
	if err := k.flush(); err != nil {
		return nil, err
	}
	return res, o.Close()
}

func (s *Server) read(ch *channel) (any, error) {
	var r readBody
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	if err := r.Path.Check(); err != nil {
		return nil, err
	}
	o := ch.out[streamContent].(*outbound)
	e, err := s.g.Read(ch.ctx, r.Path, func(content io.Reader) error {
		_, err := io.CopyBuffer(onlyWriter{o}, content, make([]byte, MaxData))
		return err
	})
	if err != nil {
		return nil, err
	}
	return e, o.Close()
}

func (s *Server) write(ch *channel, restore bool) (any, error) {
	return s.g.Write(ch.ctx, restore, newRecordReader(ch.in[streamContent], 0, 0))
}

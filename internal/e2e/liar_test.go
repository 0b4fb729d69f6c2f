package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// The types of frame and the streams that lies are told in, as package
// guestwire documents them.
const (
	fHello, fOpen, fReply, fFail, fEvent, fData, fAck, fEnd, fCancel, fPing, fPong = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
	sOut, sErr, sContent                                                           = 1, 2, 5
)

const wirePreamble = "\xffWORKBENCH-WIRE\n"

// frameOf is one frame, as it is.
func frameOf(typ, stream byte, channel uint32, payload string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	b = append(b, typ, stream, 0, 0)
	return append(binary.BigEndian.AppendUint32(b, channel), payload...)
}

// from is the payload of a data, ack or end frame.
func from(offset uint64, data string) string {
	return string(binary.BigEndian.AppendUint64(nil, offset)) + data
}

// record is one entry of a scan, as it is on the wire.
func record(entry, content string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(entry)))) + entry + content
}

// liar is a guest that is honest until it lies once.
type liar struct {
	conn net.Conn
	lie  lie
	told chan struct{} // closed when the lie began
	gone chan struct{} // closed when the host has hung up

	heard atomic.Uint64 // how much of its output the host has taken

	mu   sync.Mutex
	once sync.Once
}

// lie replaces what a guest answers to one operation.
type lie struct {
	at string // hello, bind, restore, write, exec, signal, scan, read
	// say says it; the channel is that of the request.
	say func(g *liar, channel uint32, body string)
	// deaf: from then on it does not read either.
	deaf bool
	// believed: nothing tells it from another workspace, so it is none to the host.
	believed bool
	// keep and upload are of the run that is lied about.
	keep   []string
	upload bool
	// cancel asks for the run's end once the lie was told.
	cancel bool
	want   []workbench.Status
	within time.Duration
}

func (g *liar) send(frames ...[]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range frames {
		if _, err := g.conn.Write(f); err != nil {
			return // the host has had enough
		}
	}
}

// reply answers a request.
func (g *liar) reply(channel uint32, answer string) { g.send(frameOf(fReply, 0, channel, answer)) }

// lies reports whether this is the moment, and lies.
func (g *liar) lies(at string, channel uint32, body string) bool {
	if g.lie.at != at {
		return false
	}
	g.once.Do(func() { close(g.told) })
	if g.lie.say != nil {
		g.lie.say(g, channel, body)
	}
	return true
}

// serve speaks until the host hangs up.
func (g *liar) serve() {
	defer g.conn.Close()
	head := make([]byte, 12)
	if _, err := io.ReadFull(g.conn, make([]byte, len(wirePreamble))); err != nil {
		return
	}
	ops := map[uint32]string{}
	got := map[uint32]uint64{}
	var talk sync.WaitGroup
	defer talk.Wait()
	for {
		if _, err := io.ReadFull(g.conn, head); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(g.conn, payload); err != nil {
			return
		}
		channel := binary.BigEndian.Uint32(head[8:])
		op := ops[channel]
		switch head[4] {
		case fHello:
			talk.Go(func() { g.hello(string(payload)) })
		case fOpen:
			var o struct {
				Op   string
				Body json.RawMessage
			}
			_ = json.Unmarshal(payload, &o)
			ops[channel] = o.Op
			if g.lie.deaf && g.lie.at == o.Op {
				g.lies(o.Op, channel, "")
				<-g.gone
				return
			}
			talk.Go(func() { g.answer(o.Op, channel, string(o.Body)) })
		case fAck:
			g.heard.Store(binary.BigEndian.Uint64(payload))
		case fData:
			if g.lie.at == op {
				continue // unacknowledged
			}
			got[channel] += uint64(len(payload) - 8)
			g.send(frameOf(fAck, head[5], channel, from(got[channel], "")))
		case fEnd:
			if g.lie.at != op {
				g.reply(channel, `{"token":"t1","entries":0,"bytes":0}`)
			}
		}
	}
}

// waits reports false once the host has hung up, at the latest after d.
func (g *liar) waits(d time.Duration) bool {
	select {
	case <-g.gone:
		return false
	case <-time.After(d):
		return true
	}
}

func (g *liar) hello(hello string) {
	if g.lies("hello", 0, hello) {
		return
	}
	var h struct{ Nonce string }
	_ = json.Unmarshal([]byte(hello), &h)
	g.send([]byte(wirePreamble), frameOf(fHello, 0, 0, helloOf(1, h.Nonce)))
}

func helloOf(version int, nonce string) string {
	return fmt.Sprintf(`{"version":%d,"nonce":%q,"boot":"b","capabilities":[]}`, version, nonce)
}

const honestEnd = `{"exitCode":0,"limitsHit":[],"total":{"stdout":0,"stderr":0},"forwarded":{"stdout":0,"stderr":0},"peakMemoryBytes":1,"durationNs":1}`

func (g *liar) answer(op string, channel uint32, body string) {
	if g.lies(op, channel, body) {
		return
	}
	switch op {
	case "bind":
		g.reply(channel, `{"languages":["python","bash"],"enforced":{}}`)
	case "restore", "write": // answered at the end of its content
	case "exec":
		g.send(frameOf(fEvent, 0, channel, `{}`))
		g.end(channel, honestEnd)
	case "scan":
		g.scanned(channel, "", `{"token":"t2","entries":1,"bytes":0,"skipped":[],"skippedTotal":0}`)
	default:
		g.reply(channel, `null`)
	}
}

// end ends an exec without output.
func (g *liar) end(channel uint32, result string) {
	g.send(frameOf(fEnd, sOut, channel, from(0, "")), frameOf(fEnd, sErr, channel, from(0, "")), frameOf(fReply, 0, channel, result))
}

// scanned answers a scan with records and a result.
func (g *liar) scanned(channel uint32, records, result string) {
	at := uint64(0)
	for part := []byte(records); len(part) > 0; {
		n := min(len(part), 32<<10)
		g.send(frameOf(fData, sContent, channel, from(at, string(part[:n]))))
		at += uint64(n)
		part = part[n:]
	}
	g.send(frameOf(fEnd, sContent, channel, from(at, "")), frameOf(fReply, 0, channel, result))
}

// swindle is a driver whose next sandbox of a session has a liar in it.
// Sessions are told apart by their limit of tasks.
type swindle struct {
	sandbox.Driver
	mu    sync.Mutex
	next  map[int]*lie
	last  map[int]sandbox.Sandbox
	liars map[int]*falseBox
}

func newSwindle(d sandbox.Driver) *swindle {
	return &swindle{Driver: d, next: map[int]*lie{}, last: map[int]sandbox.Sandbox{}, liars: map[int]*falseBox{}}
}

// arm puts a liar into the next sandbox of the session, and ends the one it has.
func (s *swindle) arm(ctx context.Context, tasks int, l lie) error {
	s.mu.Lock()
	s.next[tasks] = &l
	box, liar := s.last[tasks], s.liars[tasks]
	s.liars[tasks] = nil
	s.mu.Unlock()
	if liar != nil { // one that the engine should have ended
		_ = liar.Kill(ctx)
	}
	return box.Kill(ctx)
}

func (s *swindle) liar(tasks int) *falseBox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.liars[tasks]
}

// Start implements sandbox.Driver.
func (s *swindle) Start(ctx context.Context, class sandbox.Class) (sandbox.Sandbox, error) {
	s.mu.Lock()
	l := s.next[class.Tasks]
	delete(s.next, class.Tasks)
	s.mu.Unlock()
	if l == nil {
		box, err := s.Driver.Start(ctx, class)
		s.mu.Lock()
		s.last[class.Tasks] = box
		s.mu.Unlock()
		return box, err
	}
	host, guest := net.Pipe()
	f := &falseBox{class: class, done: make(chan struct{}), guest: &liar{conn: guest, lie: *l, told: make(chan struct{}), gone: make(chan struct{})}}
	f.stream = &hostEnd{Conn: host, gone: f.guest.gone}
	f.served.Go(f.guest.serve)
	s.mu.Lock()
	s.liars[class.Tasks] = f
	s.mu.Unlock()
	return f, nil
}

// hostEnd is the host's end of a liar's stream.
type hostEnd struct {
	net.Conn
	once sync.Once
	gone chan struct{}
}

func (h *hostEnd) Close() error {
	h.once.Do(func() { close(h.gone) })
	return h.Conn.Close()
}

// falseBox is a sandbox with nothing in it but a liar.
type falseBox struct {
	class  sandbox.Class
	stream io.ReadWriteCloser
	guest  *liar
	served sync.WaitGroup
	once   sync.Once
	done   chan struct{}
}

func (f *falseBox) ID() string                                   { return workbench.NewID(workbench.KindSandbox) }
func (f *falseBox) Class() sandbox.Class                         { return f.class }
func (f *falseBox) Stream() io.ReadWriteCloser                   { return f.stream }
func (f *falseBox) Stats(context.Context) (sandbox.Stats, error) { return sandbox.Stats{}, nil }
func (f *falseBox) Pause(context.Context) error                  { return nil }
func (f *falseBox) Resume(context.Context) error                 { return nil }
func (f *falseBox) Done() <-chan struct{}                        { return f.done }
func (f *falseBox) Exit() sandbox.Exit                           { return sandbox.Exit{Reason: sandbox.ExitKilled} }

func (f *falseBox) Kill(context.Context) error {
	f.once.Do(func() { close(f.done) })
	_ = f.stream.Close()
	_ = f.guest.conn.Close()
	f.served.Wait()
	return nil
}

// killed reports whether the engine has ended the liar.
func (f *falseBox) killed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

func repeated(frame []byte, n int) []byte { return bytes.Repeat(frame, n) }

package guest

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Bounds of the socket that code calls.
const (
	brokerConns    = 256                    // open at once, of one exec; more wait in the kernel's queue
	brokerRequests = 64                     // under way at once; more wait unread
	brokerRequest  = 384 << 10              // bytes of a request, without its number
	brokerNumber   = 32                     // more than that has
	brokerUnwanted = 64 << 20               // bytes that a caller may go on sending after its answer
	brokerIdle     = 10 * time.Second       // for a piece of a request to arrive, or of an answer to be taken, while others wait
	brokerLast     = 100 * time.Millisecond // for an answer to be taken once the run has ended
)

// broker answers the code of one exec that reaches out through a socket. A
// request is a big-endian uint32 length and JSON, with a size of content the
// content behind it; an answer is a length and JSON. A connection has one of each,
// or many: a request with a number leaves it open for more, which need not wait for
// the answer, and that has the number too. Answers come as they are ready.
// The token ends with the exec, and with a run its socket too.
type broker struct {
	e      *execution
	socket *brokerSocket
	own    bool // the socket is this exec's
	token  string
	told   atomic.Bool     // that somebody used another
	ctx    context.Context // of calls
	cancel context.CancelFunc
	asking context.Context // of connections that have not said yet what they want
	hangUp context.CancelFunc
	conns  sync.WaitGroup
	calls  atomic.Int64 // requests under way, and connections that have not said yet what they want
	shown  displays

	mu      sync.Mutex
	stopped bool
	resting map[*caller]bool // that were answered, and may ask for more
}

// bindings numbers the sockets made so far.
var bindings atomic.Int64

// brokerSocket is where code connects: a run's own, or a context's, whose cells
// answer in turn.
type brokerSocket struct {
	path   string
	l      *net.UnixListener
	places chan struct{} // one for each connection, and one for the next
	asked  chan struct{} // one for each request under way
	accept sync.WaitGroup
	closed chan struct{}
	once   sync.Once

	mu      sync.Mutex
	now     *broker // answers; nil between cells
	callers map[*caller]bool
}

// listenIn makes the socket in a directory that code may search if it knows its name.
// The socket is bound elsewhere: where it was bound is what /proc/net/unix tells
// everybody.
func listenIn(dir string) (*brokerSocket, error) {
	bound := fmt.Sprintf("%s/%d", bindDir, bindings.Add(1))
	s := &brokerSocket{path: dir + "/s", places: make(chan struct{}, brokerConns), asked: make(chan struct{}, brokerRequests),
		closed: make(chan struct{}), callers: map[*caller]bool{}}
	var err error
	if s.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: bound, Net: "unix"}); err != nil {
		return nil, err
	}
	s.l.SetUnlinkOnClose(false) // it is elsewhere, and its directory is removed whole
	if err := errors.Join(os.Chmod(bound, 0o666), os.Rename(bound, s.path)); err != nil {
		_ = os.Remove(bound)
		s.l.Close()
		return nil, err
	}
	s.accept.Go(s.serve)
	return s, nil
}

func (s *brokerSocket) serve() {
	for {
		if !s.place(s.places, s.closed, false) {
			return
		}
		c, err := s.l.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			<-s.places
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		p := newCaller(c)
		s.mu.Lock()
		b := s.now
		if b == nil {
			s.mu.Unlock()
			c.Close()
			<-s.places
			continue
		}
		s.callers[p] = true
		b.calls.Add(1)
		b.conns.Add(1)
		s.mu.Unlock()
		go func() { // waited for by finish
			b.answer(p)
			c.Close()
			s.mu.Lock()
			delete(s.callers, p)
			s.mu.Unlock()
			<-s.places
			b.conns.Done()
		}()
	}
}

// place waits for a place, and meanwhile cuts those off that keep theirs and neither
// send a piece nor take one: callers that ask, or all. It returns false once done is
// closed.
func (s *brokerSocket) place(places chan struct{}, done <-chan struct{}, ask bool) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
	}
	look := time.NewTicker(brokerIdle / 10)
	defer look.Stop()
	for {
		select {
		case places <- struct{}{}:
			return true
		case <-done:
			return false
		case <-look.C:
			s.mu.Lock()
			for p := range s.callers {
				if p.stalled(ask) {
					p.cut()
				}
			}
			s.mu.Unlock()
		}
	}
}

// turn lets a broker answer from here on, nil for none.
func (s *brokerSocket) turn(b *broker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = b
}

func (s *brokerSocket) close() {
	s.once.Do(func() { close(s.closed) })
	_ = s.l.Close()
	s.accept.Wait()
}

// newBroker lets an exec's code reach out, through a context's socket or one of
// its own.
func newBroker(e *execution, socket *brokerSocket, own bool) (*broker, error) {
	var token [16]byte
	if _, err := rand.Read(token[:]); err != nil {
		return nil, err
	}
	b := &broker{e: e, socket: socket, own: own, token: hex.EncodeToString(token[:]), resting: map[*caller]bool{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.asking, b.hangUp = context.WithCancel(b.ctx)
	b.socket.turn(b)
	return b, nil
}

// idle reports whether no call is under way.
func (b *broker) idle() bool { return b.calls.Load() == 0 }

// rest stops new calls and returns what is closed once those under way have ended.
// A connection that has not said what it wants has the grace for it.
func (b *broker) rest(grace time.Duration) <-chan struct{} {
	b.stop()
	over := make(chan struct{})
	late := time.AfterFunc(grace, b.hangUp)
	go func() { // ends with the calls, at the latest when the broker is closed
		b.conns.Wait()
		late.Stop()
		close(over)
	}()
	return over
}

// finish stops new calls and gives those under way some time to end.
func (b *broker) finish(grace time.Duration) {
	b.stop()
	if b.idle() {
		b.hangUp()
		b.conns.Wait()
		return
	}
	end := time.AfterFunc(grace, b.cancel)
	b.conns.Wait()
	end.Stop()
}

// stop lets no new call in.
func (b *broker) stop() {
	b.socket.turn(nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	for p := range b.resting {
		p.hangUp()
	}
}

// rests waits for the next request of a connection whose earlier ones were taken.
// It returns false where there is none.
func (b *broker) rests(p *caller) bool {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return false
	}
	b.resting[p] = true
	b.mu.Unlock()
	_, err := p.r.Peek(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.resting, p)
	if err != nil || b.stopped {
		return false
	}
	b.calls.Add(1)
	return true
}

// close ends everything.
func (b *broker) close() {
	b.cancel()
	b.stop()
	b.conns.Wait()
	if b.own {
		b.socket.close()
	}
}

// answer answers what comes on a connection, whose first request counts already.
func (b *broker) answer(p *caller) {
	defer context.AfterFunc(b.ctx, p.cut)()
	var answering sync.WaitGroup
	defer answering.Wait()
	defer b.e.x.Flush()
	for next := true; next; next = b.rests(p) {
		call, asked, err := b.read(p)
		over := func() {
			if asked {
				<-b.socket.asked
			}
			b.calls.Add(-1)
		}
		if err != nil || call.Number == 0 {
			b.e.x.Flush()
			answering.Wait()
			unread := b.last(p, call, err)
			over()
			if unread {
				p.sayGoodbye(b.asking)
			}
			return
		}
		passed := b.passOn(call)
		if !p.more() {
			b.e.x.Flush()
		}
		answering.Go(func() {
			var result json.RawMessage
			var err error
			if passed != nil {
				result, err = passed.Reply(b.ctx)
			} else {
				result, err = b.carryOut(call, p)
			}
			b.reply(p, call.Number, result, err)
			over()
		})
	}
}

// passOn asks the host what the host alone understands, so that it leaves with what is
// asked together with it. It returns nil where that is not to be, or not at once.
func (b *broker) passOn(call brokerCall) *guestwire.Asked {
	if b.refuse(call) != nil || !guestwire.PassedOn(call.Op) {
		return nil
	}
	return b.e.x.Ask(call.Op, call.Value)
}

// refuse says why a request is not even looked at, if it is not.
func (b *broker) refuse(call brokerCall) error {
	if subtle.ConstantTimeCompare([]byte(call.Token), []byte(b.token)) != 1 {
		return workbench.E(workbench.CodeForbidden, "the token is not this run's").
			WithHint("a run's socket and token end with it")
	}
	if guestwire.PassedOn(call.Op) && (len(call.Value) == 0 || call.Value[0] != '{') {
		return workbench.E(workbench.CodeInvalidRequest, "the arguments are not a JSON object").WithField("value")
	}
	return nil
}

// last answers the last request of a connection, and reports whether some of it was
// not read.
func (b *broker) last(p *caller, call brokerCall, err error) bool {
	unread := workbench.HasCode(err, workbench.CodeBodyTooLarge)
	var result json.RawMessage
	if err == nil {
		quiet := context.AfterFunc(b.asking, p.hangUp) // its content comes by then
		result, err = b.carryOut(call, p)
		quiet()
		unread = err != nil && call.Size != nil
	}
	b.reply(p, call.Number, result, err)
	return unread
}

// reply answers a request. Once nothing more may be asked, whoever does not take an
// answer has little time left for it.
func (b *broker) reply(p *caller, number int64, result json.RawMessage, err error) {
	defer context.AfterFunc(b.asking, func() { _ = p.c.SetWriteDeadline(time.Now().Add(callsCut)) })()
	p.reply(b.ctx, number, result, err)
}

// read reads a request once it has come and there is a place for it: asked.
func (b *broker) read(p *caller) (call brokerCall, asked bool, err error) {
	defer context.AfterFunc(b.asking, p.hangUp)()
	if _, err := p.r.Peek(1); err != nil {
		return call, false, workbench.E(workbench.CodeInvalidRequest, "no request")
	}
	if len(b.socket.asked) == cap(b.socket.asked) {
		b.e.x.Flush() // a place may be free only once that is answered
	}
	if asked = b.socket.place(b.socket.asked, b.asking.Done(), true); !asked {
		return call, false, workbench.E(workbench.CodeCancelled, "the run ended")
	}
	p.asks.Store(true)
	if call, err = p.request(); err != nil {
		return call, asked, err
	}
	if call.Number != 0 && call.Size != nil {
		return call, asked, workbench.E(workbench.CodeInvalidRequest, "a request with content has no number").WithField("n")
	}
	p.asks.Store(call.Number == 0)
	return call, asked, nil
}

func (b *broker) carryOut(call brokerCall, p *caller) (json.RawMessage, error) {
	if err := b.refuse(call); err != nil {
		if workbench.HasCode(err, workbench.CodeForbidden) && !b.told.Swap(true) {
			_, _ = b.pass(guestwire.OpRefused, struct{}{}, -1, nil) // the refusal stands whether or not anybody hears of it
		}
		return nil, err
	}
	if guestwire.PassedOn(call.Op) {
		return b.e.x.Call(b.ctx, call.Op, call.Value, -1, nil)
	}
	switch call.Op {
	case guestwire.OpSave:
		raw, err := base64.StdEncoding.DecodeString(call.Path)
		if err != nil {
			return nil, workbench.E(workbench.CodeInvalidRequest, "the path is not base64")
		}
		return b.save(string(raw))
	case guestwire.OpResult:
		if len(call.Value) == 0 {
			return nil, workbench.E(workbench.CodeInvalidRequest, "there is no value")
		}
		if len(call.Value) > guestwire.MaxResult {
			return nil, workbench.E(workbench.CodeBodyTooLarge, "the result has %d bytes, %d are allowed", len(call.Value), guestwire.MaxResult).
				WithHint("save it as a file instead")
		}
		return b.pass(guestwire.OpResult, guestwire.ResultArgs{Value: call.Value}, -1, nil)
	case guestwire.OpDisplay:
		return b.display(call, p)
	}
	return nil, workbench.E(workbench.CodeInvalidRequest, "there is no such operation")
}

// pass asks the host.
func (b *broker) pass(op string, args any, size int64, content io.Reader) (json.RawMessage, error) {
	raw, err := guestwire.Marshal(args)
	if err != nil {
		return nil, err
	}
	return b.e.x.Call(b.ctx, op, raw, size, content)
}

// save sends one file of the workspace to the host, opened as code itself could.
func (b *broker) save(p string) (json.RawMessage, error) {
	rel, err := workspacePath(p)
	if err != nil {
		return nil, err
	}
	var f *os.File
	var st unix.Stat_t
	err = asUser(func() error {
		var err error
		f, st, err = openFile(rel)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return b.pass(guestwire.OpSave, guestwire.SaveArgs{Path: rel}, st.Size, f)
}

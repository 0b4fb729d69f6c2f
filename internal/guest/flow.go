package guest

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

// gather is how long the reader of a pipe lets output add up that comes in small
// pieces: a program that prints much must not wake it with every line.
const gather = 2 * time.Millisecond

// flow is one output pipe of a program, and whose output it carries.
type flow struct {
	mu   sync.Mutex // held while bytes go from the pipe into the tail
	turn *sync.Cond // tail changed, or the pipe was closed
	fd   int        // -1 once closed
	tail *guestwire.Tail
	shut bool // nobody's output any more
	buf  []byte

	noRoom *atomic.Bool // of whose output it is: set once it says that there is no space
	before []byte       // the end of what was read last, which may be a beginning of that
}

// noSpace is how programs say, in Python, Node and C alike, that a file system is
// full, but for the case of the first letter.
const noSpace = "o space left on device"

func newFlow() *flow {
	f := &flow{fd: -1}
	f.turn = sync.NewCond(&f.mu)
	return f
}

// to makes what is read from here on the output of another exec; nil: nobody's.
func (f *flow) to(t *guestwire.Tail, noRoom *atomic.Bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tail, f.noRoom, f.before = t, noRoom, nil
	f.turn.Broadcast()
}

// shutDown makes what is read from here on nobody's output, and lets a reader that
// waits for a tail go.
func (f *flow) shutDown() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shut, f.tail, f.noRoom = true, nil, nil
	f.turn.Broadcast()
}

func (f *flow) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd >= 0 {
		_ = unix.Close(f.fd)
		f.fd = -1
	}
	f.turn.Broadcast()
}

// read moves what one read gives, once there is a tail for it. more is false at
// the pipe's end.
func (f *flow) read() (n int, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.tail == nil && f.fd >= 0 && !f.shut {
		f.turn.Wait()
	}
	if f.fd < 0 || f.tail == nil {
		return 0, false
	}
	if f.buf == nil {
		f.buf = make([]byte, 64<<10)
	}
	n, err := unix.Read(f.fd, f.buf)
	switch {
	case err == unix.EINTR || err == unix.EAGAIN:
		return 0, true
	case n <= 0:
		return 0, false
	}
	f.take(n)
	return n, true
}

// take passes the first n bytes of the buffer on.
func (f *flow) take(n int) {
	b := f.buf[:n]
	_, _ = f.tail.Write(b) // fails only after Close
	if f.noRoom == nil || f.noRoom.Load() {
		return
	}
	seam := append(f.before, b[:min(n, len(noSpace))]...)
	if bytes.Contains(b, []byte(noSpace)) || bytes.Contains(seam, []byte(noSpace)) {
		f.noRoom.Store(true)
	}
	seam = append(seam, b[min(n, len(noSpace)):]...)
	f.before = bytes.Clone(seam[max(0, len(seam)-len(noSpace)):])
}

// drain moves what is in the pipe now, and no more: somebody may go on writing.
func (f *flow) drain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd < 0 || f.tail == nil {
		return
	}
	left, err := unix.IoctlGetInt(f.fd, unix.TIOCINQ)
	if left > 0 && f.buf == nil {
		f.buf = make([]byte, 64<<10)
	}
	for err == nil && left > 0 {
		var n int
		if n, err = unix.Read(f.fd, f.buf[:min(left, len(f.buf))]); n <= 0 {
			return
		}
		f.take(n)
		left -= n
	}
}

// turn makes the process's output an exec's, from here on.
func (p *process) turn(e *execution) {
	p.out[0].to(e.x.Stdout, &e.noRoom)
	p.out[1].to(e.x.Stderr, &e.noRoom)
	e.mu.Lock()
	e.proc = p
	e.mu.Unlock()
}

// drain takes out of the pipes what they hold now.
func (p *process) drain() {
	for _, f := range p.out {
		f.drain()
	}
}

// pump copies a program's output into the tails until its pipes end, or halt
// says that what they hold is all. It waits by itself and not through the
// runtime, which every write into a pipe would wake, and so would its timers.
func (p *process) pump() {
	for _, f := range p.out {
		defer f.close()
	}
	look := []unix.PollFd{{Fd: int32(p.out[0].fd), Events: unix.POLLIN}, {Fd: int32(p.out[1].fd), Events: unix.POLLIN}, {Fd: int32(p.halt), Events: unix.POLLIN}}
	halt := &look[len(p.out)]
	for look[0].Fd >= 0 || look[1].Fd >= 0 {
		if _, err := unix.Poll(look, -1); err == unix.EINTR {
			continue
		}
		if halt.Revents != 0 {
			p.drain()
			return
		}
		little := true
		for i, f := range p.out {
			if look[i].Revents == 0 {
				continue
			}
			n, more := f.read()
			if !more {
				f.close()
				look[i].Fd = -1 // not looked at any more
			}
			little = little && n < len(f.buf)/2
		}
		if little {
			// Only their ends, which need no events, cut this short.
			ends := []unix.PollFd{{Fd: look[0].Fd}, {Fd: look[1].Fd}, {Fd: halt.Fd, Events: unix.POLLIN}}
			_, _ = unix.Poll(ends, int(gather.Milliseconds()))
		}
	}
}

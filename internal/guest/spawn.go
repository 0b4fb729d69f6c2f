package guest

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Descriptors of an interpreter besides 0 to 2.
const (
	controlFD = 4 // what to run: read to its end
	reportFD  = 5 // where the driver says how the run ended
)

// command is what an exec's stage becomes.
type command struct {
	program
	control []byte // what the driver reads; nil: no driver
}

// reportWait is for what the driver of a program that has ended has written last.
const reportWait = 50 * time.Millisecond

// maxReport bounds a line of what a driver says.
const maxReport = 16

// process is a stage and what it becomes, from the guest's side.
type process struct {
	group   *group
	pid     int // in the group
	spec    *os.File
	control *os.File
	report  *os.File
	stdin   *os.File
	out     [2]*os.File
	outputs sync.WaitGroup
	feeds   sync.WaitGroup
	ready   chan struct{} // closed once a driver waits for its code

	mu    sync.Mutex
	met   []string    // limits that the driver says ended the program
	exit  *groupEvent // how it ended, once it has or its driver has said so
	dead  bool
	ended func(groupEvent)
}

// pipe makes a pipe whose end for this process works with deadlines; the other
// end, a bare descriptor, is for a child.
func pipe(childReads bool) (mine *os.File, its int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, os.NewSyscallError("pipe", err)
	}
	own, its := fds[0], fds[1]
	if childReads {
		own, its = fds[1], fds[0]
	}
	if err := unix.SetNonblock(own, true); err != nil {
		_ = unix.Close(own)
		_ = unix.Close(its)
		return nil, 0, err
	}
	return os.NewFile(uintptr(own), "pipe"), its, nil
}

// startProcess starts a stage in the group: it waits for its specification.
// Until it is admitted, it does not count as user code, which it may not run.
func startProcess(g *group, admitted bool) (*process, error) {
	p := &process{group: g, ready: make(chan struct{})}
	var its []int
	defer func() {
		for _, fd := range its {
			_ = unix.Close(fd)
		}
	}()
	var err error
	for _, f := range []struct {
		to         **os.File
		childReads bool
	}{{&p.stdin, true}, {&p.out[0], false}, {&p.out[1], false}, {&p.spec, true}, {&p.control, true}, {&p.report, false}} {
		if err == nil {
			var fd int
			if *f.to, fd, err = pipe(f.childReads); err == nil {
				its = append(its, fd)
			}
		}
	}
	if err == nil {
		p.pid, err = g.spawn(its, admitted, p.exited)
	}
	if err != nil {
		p.closeAll()
		return nil, err
	}
	return p, nil
}

func (p *process) closeAll() {
	for _, f := range []*os.File{p.spec, p.control, p.report, p.stdin, p.out[0], p.out[1]} {
		if f != nil {
			f.Close()
		}
	}
}

// exited is called once, when the process has ended.
func (p *process) exited(e groupEvent) {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.over(e)
}

// over notes how the process ended: the first that says so is right.
func (p *process) over(e groupEvent) {
	p.mu.Lock()
	ended := p.ended
	if p.exit != nil {
		ended = nil
	} else {
		p.exit = &e
	}
	p.mu.Unlock()
	if ended != nil {
		ended(e)
	}
}

// onExit has f called once the process has ended, also if it has already.
func (p *process) onExit(f func(groupEvent)) {
	p.mu.Lock()
	p.ended = f
	was := p.exit
	p.mu.Unlock()
	if was != nil {
		f(*was)
	}
}

// alive reports whether the process may still run.
func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead
}

// launch lets the stage become the program.
func (p *process) launch(prog program) {
	_, _ = p.spec.Write(marshalProgram(prog)) // fails when it has ended, which is seen
	p.spec.Close()
	p.feeds.Go(p.follow)
}

// limits are those that the driver says ended the program.
func (p *process) limits() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met
}

// awaitReady waits until a driver is ready for its code, or will not be.
func (p *process) awaitReady(most time.Duration) {
	wait := time.NewTimer(most)
	defer wait.Stop()
	select {
	case <-p.ready:
	case <-p.group.ended:
	case <-wait.C:
	}
}

// attach makes the process the exec's.
func (p *process) attach(e *execution) {
	for i, tail := range []*guestwire.Tail{e.x.Stdout, e.x.Stderr} {
		p.outputs.Go(func() { pump(p.out[i], tail) })
	}
	p.onExit(func(ev groupEvent) { e.end(unix.WaitStatus(ev.Status), ev.MaxRSS) })
}

// feed gives the program its code and its input.
func (p *process) feed(control, stdin []byte) {
	for f, data := range map[*os.File][]byte{p.control: control, p.stdin: stdin} {
		if len(data) == 0 {
			f.Close()
			continue
		}
		p.feeds.Go(func() {
			_, _ = f.Write(data) // a program need not read; it may have ended
			f.Close()
		})
	}
}

// stop ends the reading: at once what the pipes hold, or, when nobody has the
// other ends any more, up to their end.
func (p *process) stop(gone bool) {
	now := time.Unix(1, 0)
	if !gone {
		for _, f := range p.out {
			_ = f.SetReadDeadline(now)
		}
	}
	_ = p.control.SetWriteDeadline(now)
	_ = p.stdin.SetWriteDeadline(now)
	if gone || !p.alive() {
		now = time.Now().Add(reportWait) // it has said what it had to; its own children may hold the pipe
	}
	_ = p.report.SetReadDeadline(now)
	p.feeds.Wait()
}

// pump copies a program's output into its tail until the pipe ends, or a
// deadline says that what it holds is all.
func pump(f *os.File, tail *guestwire.Tail) {
	defer f.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			_, _ = tail.Write(buf[:n]) // fails only after Close
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drain(f, tail, buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// drain reads what is in the pipe now, and no more: somebody may go on writing.
func drain(f *os.File, tail *guestwire.Tail, buf []byte) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for err == nil && left > 0 {
			var n int
			if n, err = unix.Read(int(fd), buf[:min(left, len(buf))]); n <= 0 {
				return
			}
			_, _ = tail.Write(buf[:n])
			left -= n
		}
	})
}

// follow reads what the driver says: that it is ready for its code, what ended
// it, and the exit code before it tears its interpreter down. A program without a driver
// says nothing.
func (p *process) follow() {
	defer p.report.Close()
	lines := bufio.NewReaderSize(p.report, maxReport)
	ready := false
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return // it ended without a report; its exit status says how
		}
		text := string(bytes.TrimSuffix(line, []byte("\n")))
		switch {
		case text == "ready" && !ready:
			ready = true
			close(p.ready)
			continue
		case text == workbench.LimitOpenFiles:
			p.mu.Lock()
			p.met = []string{text}
			p.mu.Unlock()
			continue
		}
		if code, err := strconv.ParseUint(text, 10, 8); err == nil {
			p.over(groupEvent{PID: p.pid, Status: uint32(code << 8)})
		}
		return
	}
}

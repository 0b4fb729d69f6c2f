package guest

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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

// process is a stage and what it becomes, from the guest's side.
type process struct {
	group   *group
	pid     int // in the group
	spec    *os.File
	control *os.File // nil without a driver
	report  *os.File
	stdin   *os.File
	out     [2]*os.File
	outputs sync.WaitGroup
	feeds   sync.WaitGroup

	mu    sync.Mutex
	exit  *groupEvent // how it ended, once it has
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
func startProcess(g *group, driver bool) (*process, error) {
	p := &process{group: g}
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
		driver     bool
	}{{&p.stdin, true, false}, {&p.out[0], false, false}, {&p.out[1], false, false}, {&p.spec, true, false}, {&p.control, true, true}, {&p.report, false, true}} {
		if err == nil && (!f.driver || driver) {
			var fd int
			if *f.to, fd, err = pipe(f.childReads); err == nil {
				its = append(its, fd)
			}
		}
	}
	if err == nil {
		p.pid, err = g.spawn(its, p.exited)
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
	p.exit = &e
	ended := p.ended
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
	return p.exit == nil
}

// launch lets the stage become the program.
func (p *process) launch(prog program) {
	_, _ = p.spec.Write(marshalProgram(prog)) // fails when it has ended, which is seen
	p.spec.Close()
}

// attach makes the process the exec's.
func (p *process) attach(e *execution) {
	for i, tail := range []*guestwire.Tail{e.x.Stdout, e.x.Stderr} {
		p.outputs.Go(func() { pump(p.out[i], tail) })
	}
	if p.report != nil {
		p.feeds.Go(func() { p.awaitReport(e) })
	}
	p.onExit(func(ev groupEvent) { e.end(unix.WaitStatus(ev.Status), ev.MaxRSS) })
}

// feed gives the program its code and its input.
func (p *process) feed(control, stdin []byte) {
	for f, data := range map[*os.File][]byte{p.control: control, p.stdin: stdin} {
		if f == nil {
			continue
		}
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
	for _, f := range []*os.File{p.control, p.stdin} {
		if f != nil {
			_ = f.SetWriteDeadline(now)
		}
	}
	if p.report != nil {
		_ = p.report.SetReadDeadline(now)
	}
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

// awaitReport takes the exit code the driver reports before it tears its
// interpreter down.
func (p *process) awaitReport(e *execution) {
	defer p.report.Close()
	var line []byte
	buf := make([]byte, 16)
	for len(line) < len(buf) {
		n, err := p.report.Read(buf)
		line = append(line, buf[:n]...)
		if text, _, whole := bytes.Cut(line, []byte("\n")); whole {
			if code, err := strconv.ParseUint(string(text), 10, 8); err == nil {
				e.end(unix.WaitStatus(code<<8), 0)
			}
			return
		}
		if err != nil {
			return // it ended without a report; its exit status says how
		}
	}
}

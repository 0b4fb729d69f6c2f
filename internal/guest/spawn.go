package guest

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// Descriptors of an interpreter besides 0 to 2.
const (
	controlFD = 4 // what to run, with its length
	reportFD  = 5 // where the driver says how the run ended
)

// command is what an exec's stage becomes.
type command struct {
	program
	control []byte // what the driver reads; nil: no driver
}

// What a program that has ended wrote last is read, but whoever holds its pipes
// has no say in when it is over: reportWait is for what its driver said, which
// hardly anything else can hold, outputWait for its output.
const (
	reportWait = time.Second
	outputWait = 50 * time.Millisecond
)

// maxReport bounds a line of what a driver says.
const maxReport = 16

// process is a stage and what it becomes, from the guest's side.
type process struct {
	group   *group
	pid     int // in the group
	outer   int // outside of it; 0: not known
	parent  int // outside of it, valid with outer
	spec    *sender
	control *sender
	report  *os.File
	stdin   *sender
	out     [2]*flow // the program's stdout and stderr
	halt    int      // an eventfd: what the output pipes hold is all
	outputs sync.WaitGroup
	feeds   sync.WaitGroup
	named   chan struct{} // closed once a fork has said its pid
	ready   chan struct{} // closed once a driver waits for its code

	mu     sync.Mutex
	met    []string    // limits that the driver says ended the program
	exit   *groupEvent // how it ended, once it has or its driver has said so
	dead   bool
	peak   int64         // most memory that it ever had, once it is dead
	gone   chan struct{} // closed once it is
	ended  func(groupEvent)
	said   func(string) bool // takes what an interpreter that lives on says
	silent func()            // called when it will say nothing more
}

// newProcess makes what leads to a process of the group, and the process's own
// ends, which are the caller's to close: stdin, stdout, stderr, the specification
// of a stage, control, report.
func newProcess(g *group, stage bool) (p *process, its []int, err error) {
	p = &process{group: g, out: [2]*flow{newFlow(), newFlow()}, halt: -1, named: make(chan struct{}), ready: make(chan struct{}), gone: make(chan struct{})}
	send := func(to **sender) {
		if err == nil {
			var own, fd int
			if own, fd, err = barePipe(true); err == nil {
				*to, its = &sender{fd: own}, append(its, fd)
			}
		}
	}
	send(&p.stdin)
	for i := range p.out {
		if err == nil {
			var fds [2]int
			if err = unix.Pipe2(fds[:], unix.O_CLOEXEC); err == nil {
				p.out[i].fd, its = fds[0], append(its, fds[1])
				err = unix.SetNonblock(fds[0], true)
			}
		}
	}
	if stage {
		send(&p.spec)
	}
	send(&p.control)
	if err == nil {
		var fd int
		if p.report, fd, err = pipe(false); err == nil {
			its = append(its, fd)
		}
	}
	if err == nil {
		p.halt, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	}
	return p, its, err
}

// startProcess starts a stage in the group: it waits for its specification.
// Until it is admitted, it does not count as user code, which it may not run.
func startProcess(g *group, admitted bool) (*process, error) {
	p, its, err := newProcess(g, true)
	defer func() {
		for _, fd := range its {
			_ = unix.Close(fd)
		}
	}()
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
	for _, s := range []*sender{p.spec, p.control, p.stdin} {
		s.Close()
	}
	if p.report != nil {
		p.report.Close()
	}
	for _, f := range p.out {
		f.close()
	}
	if p.halt >= 0 {
		_ = unix.Close(p.halt)
		p.halt = -1
	}
}

// exited is called once, when the process has ended.
func (p *process) exited(e groupEvent) {
	p.mu.Lock()
	if !p.dead {
		p.dead, p.peak = true, e.MaxRSS
		close(p.gone)
	}
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

// admit makes a process that waits count as user code from here on. Where its
// number outside of its group is known, the group is not asked.
func (p *process) admit(b *binding) error {
	if p.outer == 0 {
		return p.group.admit(p.pid)
	}
	_, err := unix.Write(b.tasksFD, []byte(strconv.Itoa(p.outer)))
	return os.NewSyscallError("write", err)
}

// findOuter finds the number that a group's only process has outside of it.
func (p *process) findOuter() {
	dir := "/proc/" + strconv.Itoa(p.group.pid) + "/task/"
	threads, err := os.ReadDir(dir) // any of them may have forked it
	if err != nil {
		return
	}
	var children []string
	for _, t := range threads {
		raw, err := os.ReadFile(dir + t.Name() + "/children")
		if err != nil {
			return // a kernel without it
		}
		children = append(children, strings.Fields(string(raw))...)
	}
	if len(children) == 1 {
		p.outer, _ = strconv.Atoi(children[0])
		p.parent = p.group.pid
	}
}

// launch lets the stage become the program.
func (p *process) launch(prog program) {
	_, _ = p.spec.Write(marshalProgram(prog)) // fails when it has ended, which is seen
	p.spec.Close()
	p.feeds.Go(p.follow)
}

// takeLimits gives those that the driver says ended the program, once.
func (p *process) takeLimits() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	met := p.met
	p.met = nil
	return met
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

// awaitNamed waits until a fork has said which process of its group it is.
func (p *process) awaitNamed(most time.Duration) error {
	wait := time.NewTimer(most)
	defer wait.Stop()
	select {
	case <-p.named:
		return nil
	case <-p.group.ended:
	case <-wait.C:
	}
	return errors.New("a forked interpreter does not begin")
}

// attach makes the process the exec's.
func (p *process) attach(e *execution) {
	p.turn(e)
	p.outputs.Go(p.pump)
	p.onExit(func(ev groupEvent) { e.end(unix.WaitStatus(ev.Status), ev.MaxRSS) })
}

// feed gives the program its code and its input.
func (p *process) feed(control, stdin []byte) {
	give := func(to *sender, data []byte) {
		_, _ = to.Write(data) // a program need not read; it may have ended
		to.Close()
	}
	for _, in := range []struct {
		to   *sender
		data []byte
	}{{p.control, control}, {p.stdin, stdin}} {
		if len(in.data) <= pipeHolds {
			give(in.to, in.data)
			continue
		}
		in.to.waits() // before it may be told to end
		p.feeds.Go(func() { give(in.to, in.data) })
	}
}

// stop ends the reading: at once with what the pipes hold, or, when nobody has the
// other ends any more, with their end.
func (p *process) stop(gone bool) {
	now := time.Unix(1, 0)
	if !gone {
		p.drain()
		for _, f := range p.out {
			f.shutDown()
		}
	}
	p.control.endWrites(now)
	p.stdin.endWrites(now)
	if gone || !p.alive() {
		now = time.Now().Add(reportWait) // it has said what it had to; its own children may hold the pipe
	}
	_ = p.report.SetReadDeadline(now)
	p.feeds.Wait()
	if gone {
		p.awaitOutput()
	}
}

// haltOutput says that what the pipes hold is all.
func (p *process) haltOutput() {
	_, _ = unix.Write(p.halt, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot fail: the counter is small
}

// awaitOutput waits for the end of the output. A program that has ended, with
// its group, may have sent its pipes to another group: then what they hold soon
// after is all.
func (p *process) awaitOutput() {
	over := make(chan struct{})
	go func() { defer close(over); p.outputs.Wait() }() // waited for below
	wait := time.NewTimer(outputWait)
	defer wait.Stop()
	select {
	case <-over:
	case <-wait.C:
		p.haltOutput()
		<-over
	}
}

// follow reads what the driver says: that it is ready for its code, what ended
// it, and the exit code before it tears its interpreter down. A program without a driver
// says nothing.
func (p *process) follow() {
	defer p.report.Close()
	defer p.hush()
	lines := bufio.NewReaderSize(p.report, maxReport)
	ready := false
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return // it ended without a report; its exit status says how
		}
		text := string(bytes.TrimSuffix(line, []byte("\n")))
		switch text {
		case "ready":
			if !ready { // one that starts again says it again
				ready = true
				close(p.ready)
			}
			continue
		case workbench.LimitOpenFiles:
			p.mu.Lock()
			p.met = []string{text}
			p.mu.Unlock()
			continue
		}
		if pid, ok := strings.CutPrefix(text, "pid "); ok && p.pid == 0 {
			if p.pid, err = strconv.Atoi(pid); err != nil || p.pid < 2 {
				return
			}
			close(p.named)
			continue
		}
		if p.hear(text) {
			continue
		}
		if code, err := strconv.ParseUint(text, 10, 8); err == nil {
			p.over(groupEvent{PID: p.pid, Status: uint32(code << 8)})
		}
		return
	}
}

// hear has a line taken by whoever follows an interpreter that lives on.
func (p *process) hear(line string) bool {
	p.mu.Lock()
	said := p.said
	p.mu.Unlock()
	return said != nil && said(line)
}

// hush tells whoever follows an interpreter that there is nothing more to hear.
func (p *process) hush() {
	p.mu.Lock()
	silent := p.silent
	p.mu.Unlock()
	if silent != nil {
		silent()
	}
}

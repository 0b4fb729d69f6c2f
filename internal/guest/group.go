package guest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// group is one group as the supervisor sees it.
type group struct {
	name   string
	pid    int // of its first process
	conn   packetConn
	spaces []int // descriptors of its PID, mount and IPC namespaces; set once it is ready

	mu      sync.Mutex
	seq     int64
	waiting map[int64]chan groupEvent
	exits   map[int]func(groupEvent) // by process in the group
	early   map[int]groupEvent       // ended before anyone asked
	ending  bool

	pausing sync.Mutex    // held while it is being stopped or let go on
	held    atomic.Uint32 // who wants it to stand still: a set of hold…
	stood   int64         // runs begun when it was last stopped, or othersRan; guarded by pausing
	alone   bool          // its resident was stopped, and nothing else is there; guarded by pausing

	resident atomic.Pointer[process] // an interpreter that lives in it

	ready chan groupEvent // the first packet
	ended chan struct{}   // nothing of it is left
}

// groupStart bounds the start of a group's first process, groupAnswer each of
// its answers.
const (
	groupStart  = 10 * time.Second
	groupAnswer = 10 * time.Second
)

// startGroup makes a group that nobody uses yet.
func (s *supervisor) startGroup(name string, b *binding) (*group, error) {
	mine, its, err := packetPair()
	if err != nil {
		return nil, err
	}
	defer its.close()
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		mine.close()
		return nil, err
	}
	defer unix.Close(null)
	g := &group{name: name, conn: mine, waiting: map[int64]chan groupEvent{}, exits: map[int]func(groupEvent){}, early: map[int]groupEvent{},
		ready: make(chan groupEvent, 1), ended: make(chan struct{})}
	attr := &syscall.ProcAttr{Dir: "/", Env: []string{"GOMAXPROCS=2"},
		Files: []uintptr{uintptr(null), uintptr(null), 2, uintptr(its.fd), uintptr(b.tasksFD)},
		Sys:   &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC}}
	if weak(weakNamespaces) {
		attr.Sys.Cloneflags = 0
	}
	g.pid, err = s.procs.start(guestBinary, stageArgs("init"), attr, func(exitStatus) { close(g.ended) })
	if err != nil {
		mine.close()
		return nil, err
	}
	go g.follow() // ends with the group
	select {
	case e := <-g.ready:
		if e.Ready {
			return g, nil
		}
		err = fmt.Errorf("first process of the group: %s", e.Error)
	case <-g.ended:
		err = fmt.Errorf("the group's first process ended")
	case <-time.After(groupStart):
		err = fmt.Errorf("the group's first process does not answer")
	}
	g.kill()
	<-g.ended
	return nil, err
}

// follow reads what the group's first process says, until the group ends.
func (g *group) follow() {
	defer g.conn.close()
	first := true
	for {
		var e groupEvent
		fds, err := g.conn.receive(&e)
		if first && err == nil {
			first = false
			g.spaces = fds
			g.ready <- e
			continue
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		if err != nil {
			break
		}
		g.mu.Lock()
		switch {
		case e.Seq > 0:
			if c := g.waiting[e.Seq]; c != nil {
				delete(g.waiting, e.Seq)
				c <- e
			}
		case g.exits[e.PID] != nil:
			f := g.exits[e.PID]
			delete(g.exits, e.PID)
			g.mu.Unlock()
			f(e)
			g.mu.Lock()
		case len(g.early) < 1024:
			g.early[e.PID] = e
		}
		g.mu.Unlock()
	}
	if first {
		g.ready <- groupEvent{Error: "no answer"}
	}
	<-g.ended
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, fd := range g.spaces {
		_ = unix.Close(fd)
	}
	g.spaces = nil
	for _, c := range g.waiting {
		c <- groupEvent{Error: "the group has ended"}
	}
	for pid, f := range g.exits {
		go f(groupEvent{PID: pid, Status: uint32(unix.SIGKILL)})
	}
	g.waiting, g.exits = nil, nil
}

// ask sends a command and waits for its answer.
func (g *group) ask(c groupCommand, fds ...int) (groupEvent, error) {
	answer := make(chan groupEvent, 1)
	g.mu.Lock()
	if g.waiting == nil {
		g.mu.Unlock()
		return groupEvent{}, fmt.Errorf("the group has ended")
	}
	g.seq++
	c.Seq = g.seq
	g.waiting[c.Seq] = answer
	err := g.conn.send(c, fds...)
	g.mu.Unlock()
	if err != nil {
		return groupEvent{}, err
	}
	select {
	case e := <-answer:
		if e.Error != "" {
			return e, fmt.Errorf("%s: %s", c.Op, e.Error)
		}
		return e, nil
	case <-time.After(groupAnswer):
		return groupEvent{}, fmt.Errorf("%s: no answer", c.Op)
	}
}

// enterable lends the descriptors of its namespaces to f, unless it has ended.
func (g *group) enterable(f func(spaces []int) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.spaces) == 0 {
		return errors.New("the group has ended")
	}
	return f(g.spaces)
}

// tell sends a command whose answer nobody needs.
func (g *group) tell(c groupCommand) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == nil {
		return fmt.Errorf("the group has ended")
	}
	return g.conn.send(c)
}

// spawn starts a stage with the descriptors and returns its process in the
// group. exited is called once when it has ended, also with the group.
func (g *group) spawn(fds []int, admitted bool, exited func(groupEvent)) (int, error) {
	e, err := g.ask(groupCommand{Op: "spawn", Admit: admitted}, fds...)
	if err != nil {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if was, ok := g.early[e.PID]; ok {
		delete(g.early, e.PID)
		go exited(was)
	} else if g.exits == nil {
		go exited(groupEvent{PID: e.PID, Status: uint32(unix.SIGKILL)})
	} else {
		g.exits[e.PID] = exited
	}
	return e.PID, nil
}

// admit makes a spawned process count as user code from here on.
func (g *group) admit(pid int) error {
	_, err := g.ask(groupCommand{Op: "admit", PID: pid})
	return err
}

// signal sends to a process of the group, or with a negative number to a
// process group in it, or with -1 to everything.
func (g *group) signal(pid int, sig unix.Signal) error {
	_, err := g.ask(groupCommand{Op: "signal", PID: pid, Signal: int(sig)})
	return err
}

// kill ends everything in the group. The kernel does: it takes whatever the
// first process leaves behind.
func (g *group) kill() {
	g.mu.Lock()
	was := g.ending
	g.ending = true
	g.mu.Unlock()
	if was {
		return // it has been killed
	}
	select {
	case <-g.ended:
	default:
		// The process is not reaped while ended is open, or its number could
		// be another's; the reaper closes ended first thing after.
		_ = unix.Kill(g.pid, unix.SIGKILL)
	}
}

// group returns the named group, making it if it does not exist; fresh reports
// that nothing of a user can have run in it.
func (s *supervisor) group(name string, b *binding) (g *group, fresh bool, err error) {
	s.mu.Lock()
	g = s.groups[name]
	full := len(s.groups) >= guestwire.MaxGroups
	s.mu.Unlock()
	if g != nil {
		g.mu.Lock()
		ending := g.ending
		g.mu.Unlock()
		if !ending {
			return g, false, nil
		}
		<-g.ended
	} else if full {
		return nil, false, workbench.E(workbench.CodeCapacity, "too many groups in this sandbox")
	}
	made, err := s.startGroup(name, b)
	if err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	if other := s.groups[name]; other != nil && other != g {
		s.mu.Unlock()
		made.kill()
		<-made.ended
		return other, false, nil
	}
	s.groups[name] = made
	s.mu.Unlock()
	go s.forgetEnded(made) // ends with the group
	return made, true, nil
}

// forgetEnded takes a group off the list once it has ended.
func (s *supervisor) forgetEnded(g *group) {
	<-g.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups[g.name] == g {
		delete(s.groups, g.name)
	}
}

// EndGroup implements guestwire.Guest.
func (s *supervisor) EndGroup(ctx context.Context, name string) error {
	s.mu.Lock()
	g := s.groups[name]
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	g.kill()
	select {
	case <-g.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// live lists the groups by name.
func (s *supervisor) live() []*group {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*group, 0, len(s.groups))
	for _, g := range s.groups {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *group) int { return strings.Compare(a.name, b.name) })
	return all
}

// Groups implements guestwire.Guest.
func (s *supervisor) Groups(context.Context) ([]guestwire.GroupInfo, error) {
	list := []guestwire.GroupInfo{}
	for _, g := range s.live() {
		e, err := g.ask(groupCommand{Op: "usage"})
		if err != nil {
			continue // it ended meanwhile
		}
		g.mu.Lock()
		list = append(list, guestwire.GroupInfo{Name: g.name, Tasks: e.Tasks, Paused: g.held.Load() != 0})
		g.mu.Unlock()
	}
	return list, nil
}

func isEnded(g *group) bool {
	select {
	case <-g.ended:
		return true
	default:
		return false
	}
}

// endsSoon tells a group that was just killed from one that does not answer.
func endsSoon(g *group) bool {
	select {
	case <-g.ended:
		return true
	case <-time.After(10 * time.Millisecond):
		return false
	}
}

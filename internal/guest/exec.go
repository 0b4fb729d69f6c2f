package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Times of an exec.
const (
	defaultGrace = time.Second
	groupEndWait = 5 * time.Second // for a killed group to be gone
)

// execution is one exec from start to end.
type execution struct {
	s     *supervisor
	b     *binding
	r     guestwire.ExecRequest
	x     *guestwire.Running
	place *place // of its own; nil for a cell, which has its context's

	broker *broker
	group  *group
	spare  *spare // whose group it is; may be nil
	fresh  bool   // nothing of a user has run in the group
	forked bool   // its process is a zygote's, which stays for it

	noScan bool        // none has to follow
	noRoom atomic.Bool // its output said that there is none

	admitted chan error // its process counts as user code; only with a spare
	pid      int        // of the main process, in the group
	start    time.Time

	limit  deadline
	ended  chan struct{} // closed once the main process has ended, as far as the run goes
	once   sync.Once
	status unix.WaitStatus
	maxRSS int64

	cancelled chan struct{}
	cancel    sync.Once
	outOfMem  chan struct{}
	oom       sync.Once

	mu     sync.Mutex
	limits []string
	proc   *process // that runs it, once it does
	kept   bool     // its source was kept for workers, or will not be
}

// Exec implements guestwire.Guest.
func (s *supervisor) Exec(ctx context.Context, r guestwire.ExecRequest, x *guestwire.Running) (guestwire.ExecResult, error) {
	b, err := s.current()
	if err != nil {
		return guestwire.ExecResult{}, err
	}
	if r.Language != "" && !slices.Contains(b.languages, r.Language) {
		return guestwire.ExecResult{}, workbench.E(workbench.CodeLanguageUnknown, "this image has no interpreter for %s", r.Language).WithField("language")
	}
	e := &execution{s: s, b: b, r: r, x: x, ended: make(chan struct{}), cancelled: make(chan struct{}), outOfMem: make(chan struct{})}
	if r.Context != "" {
		return e.cell(ctx)
	}
	s.spares.begun()
	defer func() { s.spares.ended(e.noScan) }()
	if err := e.enter(); err != nil {
		return guestwire.ExecResult{}, notStarted(err)
	}
	if err := e.prepare(); err != nil {
		e.giveForkBack()
		e.leave()
		return guestwire.ExecResult{}, notStarted(err)
	}
	defer s.spares.discard(e.cleanUp)
	s.mu.Lock()
	s.execs[r.ID] = e
	s.mu.Unlock()
	s.runs.Add(1)
	defer func() {
		e.giveForkBack()
		s.watch.remove(e)
		s.mu.Lock()
		delete(s.execs, r.ID)
		s.mu.Unlock()
		e.leave()
	}()
	return e.run(ctx)
}

// leave ends the exec's group, unless that is to go on.
func (e *execution) leave() {
	if !e.r.KeepGroup {
		e.group.kill()
	}
}

func notStarted(err error) error {
	if e := (*workbench.Error)(nil); errors.As(err, &e) {
		return e
	}
	return workbench.E(workbench.CodeUnavailable, "the program could not be started in its sandbox: %v", err)
}

// prepare gives the exec a place of its own for its source and its socket.
func (e *execution) prepare() error {
	var err error
	if e.place, err = e.s.spares.takePlace(); err != nil {
		return err
	}
	if e.broker, err = newBroker(e, e.place.socket, true); err != nil {
		e.place.remove(e.s.log)
	}
	return err
}

// cleanUp takes away what the exec had. Nobody waits for it: code has reached
// nothing of it since the exec's end.
func (e *execution) cleanUp() {
	e.broker.close()
	e.mu.Lock()
	p := e.proc
	e.kept = true // nothing more comes into its place
	e.mu.Unlock()
	if p != nil {
		p.haltOutput()
		p.outputs.Wait()
		p.closeAll()
	}
	e.place.remove(e.s.log)
}

// run starts the program, follows it and says how it ended.
func (e *execution) run(ctx context.Context) (guestwire.ExecResult, error) {
	e.start = time.Now()
	cmd, err := e.command(ctx)
	if err != nil {
		e.dropSpare()
		if failed := (*compileError)(nil); errors.As(err, &failed) {
			return e.compileFailed(failed), nil
		}
		return guestwire.ExecResult{}, notStarted(err)
	}
	p, err := e.process(cmd)
	if err != nil {
		return guestwire.ExecResult{}, notStarted(err)
	}
	e.mu.Lock()
	e.pid = p.pid
	e.mu.Unlock()
	e.start = time.Now()
	p.feed(cmd.control, e.r.Stdin) // what it prints waits in its pipes until it has started for everyone
	e.s.watch.add(e)               // it takes longer to use up anything
	e.x.Started()
	p.attach(e)
	timeout := e.limit.begin(e.r.Timeout)
	defer e.limit.stop()
	reason := e.follow(ctx, timeout)
	if reason == "" && (e.s.watch.victim(e) || e.condemned() || e.s.watch.over(e)) {
		e.hit(workbench.LimitMemory)
		e.oom.Do(func() { close(e.outOfMem) }) // the memory is its own until it is gone
		reason = workbench.ReasonOutOfMemory
		e.endGroup()
	}
	if reason == "" {
		e.s.watch.left(e)
	}
	goesOn := e.r.KeepGroup || !e.broker.idle()
	if !goesOn && !e.s.watch.nothingElse(p) {
		e.group.kill() // goes on while the end is told
	}
	unguard := func() {}
	if goesOn {
		unguard = e.guard()
	}
	p.stop(reason != "" || e.groupEnded())
	if reason == "" {
		reason = e.awaitCalls(ctx, timeout)
	}
	e.broker.finish(callsCut)
	if unguard(); e.condemned() && reason == "" {
		e.hit(workbench.LimitMemory)
		reason = workbench.ReasonOutOfMemory
	}
	for _, limit := range p.takeLimits() {
		e.hit(limit)
	}
	res := e.result(reason)
	if !e.r.KeepGroup {
		e.noScan = e.s.leftBy(e.b, e.group, false, &res)
	}
	return res, nil
}

// guard ends the group if that uses up the memory, until the function it returns
// is called: what a program has left behind goes on while its end is taken over
// and its calls have the time to end.
func (e *execution) guard() (stop func()) {
	over, watched := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(watched)
		select {
		case <-e.outOfMem:
			e.endGroup()
		case <-over:
		}
	}()
	return func() {
		close(over)
		<-watched
	}
}

func (e *execution) groupEnded() bool {
	select {
	case <-e.group.ended:
		return true
	default:
		return false
	}
}

// follow waits for the end of the main process and brings it about when time,
// memory or patience is over. It returns why, "" for an end by itself.
func (e *execution) follow(ctx context.Context, timeout <-chan time.Time) workbench.Reason {
	select {
	case <-e.ended:
		return ""
	case <-timeout:
		e.hit(workbench.LimitTime)
		e.endGroup()
		return workbench.ReasonTimeout
	case <-e.outOfMem:
		e.hit(workbench.LimitMemory)
		e.endGroup()
		return workbench.ReasonOutOfMemory
	case <-ctx.Done():
		e.endGroup()
		return workbench.ReasonCancelled
	case <-e.cancelled:
		return e.wind(timeout)
	}
}

// wind ends a cancelled program: an interrupt to its process group, as from a
// keyboard, then TERM to all of its group, then the end of the group.
func (e *execution) wind(timeout <-chan time.Time) workbench.Reason {
	grace := e.r.Grace
	if grace <= 0 {
		grace = defaultGrace
	}
	steps := []func(){
		func() { _ = e.group.signal(-e.pid, unix.SIGINT) },
		func() { _ = e.group.signal(-1, unix.SIGTERM); _ = e.group.signal(-1, unix.SIGCONT) },
		e.endGroup,
	}
	for _, step := range steps {
		step()
		wait := time.NewTimer(grace / 2)
		select {
		case <-e.ended:
			wait.Stop()
			return workbench.ReasonCancelled
		case <-e.outOfMem:
			e.endGroup()
		case <-timeout:
			e.endGroup()
		case <-wait.C:
		}
	}
	return workbench.ReasonCancelled
}

// endGroup kills the group and waits until it is gone.
func (e *execution) endGroup() {
	e.group.kill()
	wait := time.NewTimer(groupEndWait)
	defer wait.Stop()
	select {
	case <-e.group.ended:
		<-e.ended // follows at once
	case <-wait.C:
		fmt.Fprintln(e.s.log, "guest: a killed group does not end")
	}
}

// end records the end of the main process, once.
func (e *execution) end(status unix.WaitStatus, maxRSS int64) {
	e.once.Do(func() {
		e.status, e.maxRSS = status, maxRSS
		close(e.ended)
	})
}

// hit notes a limit that was met.
func (e *execution) hit(limit string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.limits, limit) {
		e.limits = append(e.limits, limit)
	}
}

func (e *execution) result(reason workbench.Reason) guestwire.ExecResult {
	res := guestwire.ExecResult{Reason: reason, Duration: time.Since(e.start) - e.limit.asleep()}
	e.s.watch.look(e)
	select {
	case <-e.ended:
		if e.status.Signaled() {
			res.ExitCode, res.Signal = -1, signalName(e.status.Signal())
		} else {
			res.ExitCode = e.status.ExitStatus()
		}
		res.PeakBytes = e.maxRSS
	default:
		res.ExitCode, res.Signal = -1, "SIGKILL"
	}
	res.PeakBytes = max(res.PeakBytes, e.s.watch.peak(e))
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.Sort(e.limits)
	res.LimitsHit = slices.Clone(e.limits)
	res.Displays, res.DisplaysDropped = e.broker.shown.counts()
	return res
}

func signalName(s unix.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s))
}

// find returns a running exec. Code: not_found.
func (s *supervisor) find(id string) (*execution, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.execs[id]; e != nil {
		return e, nil
	}
	return nil, workbench.ErrNotFound("running program")
}

// Cancel implements guestwire.Guest.
func (s *supervisor) Cancel(id string) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	e.cancel.Do(func() { close(e.cancelled) })
	return nil
}

// Signal implements guestwire.Guest.
func (s *supervisor) Signal(id string, sig int) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	e.mu.Lock()
	pid := e.pid
	e.mu.Unlock()
	if pid == 0 {
		return workbench.ErrNotFound("running program")
	}
	if err := e.group.signal(pid, unix.Signal(sig)); err != nil {
		return workbench.ErrNotFound("running program").Caused(err)
	}
	return nil
}

// marshalProgram is the stage's specification.
func marshalProgram(p program) []byte {
	raw, _ := json.Marshal(p) // cannot fail: bytes and numbers
	return raw
}

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// interruptWithin is for an interpreter to read that its cell is to end.
const interruptWithin = 100 * time.Millisecond

// cell runs a cell to its end.
func (e *execution) cell(ctx context.Context) (guestwire.ExecResult, error) {
	s := e.s
	s.mu.Lock()
	s.execs[e.r.ID] = e
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.execs, e.r.ID)
		s.mu.Unlock()
	}()
	k, fresh, err := s.contexts.take(ctx, e)
	if err != nil {
		return guestwire.ExecResult{}, err
	}
	defer func() { <-k.turn }()
	s.spares.begun()
	defer func() { s.spares.ended(e.noScan) }()
	s.runs.Add(1)
	k.begin(e)
	res, alive, err := e.runCell(ctx, k, fresh)
	k.mu.Lock()
	k.cell = nil
	alive = alive && !k.dead
	k.mu.Unlock()
	if !alive {
		k.end()
	}
	if e.broker != nil {
		e.broker.close()
	}
	if err != nil {
		return guestwire.ExecResult{}, notStarted(err)
	}
	res.Context = &guestwire.ContextState{Fresh: fresh, Alive: alive, Cell: k.cells}
	return res, nil
}

// begin makes the interpreter this cell's.
func (k *kernel) begin(e *execution) {
	k.cells++
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cell, k.number = e, k.cells
}

// runCell starts the interpreter if it must, gives it the cell and follows it.
// alive says whether the interpreter can go on.
func (e *execution) runCell(ctx context.Context, k *kernel, fresh bool) (res guestwire.ExecResult, alive bool, err error) {
	e.start = time.Now()
	switch {
	case fresh && !userMayEnter(e.r.Dir):
		err = cannotEnter(e.r.Dir)
	case fresh:
		err = k.start(e)
	default:
		if e.broker, err = newBroker(e, k.socket, false); err == nil {
			e.group = k.group
			k.p.turn(e)
		}
	}
	if err != nil {
		return res, false, err
	}
	e.mu.Lock()
	e.pid = k.p.pid
	e.mu.Unlock()
	defer e.s.watch.remove(e)
	reason := workbench.Reason("")
	if fresh {
		e.s.watch.add(e)
		reason = e.awaitKernel(ctx, k)
	}
	e.x.Started()
	e.start = time.Now()
	failed := (*compileError)(nil)
	if reason == "" && !e.over() {
		if reason, err = e.give(ctx, k, fresh); err != nil && !errors.As(err, &failed) {
			return res, false, err
		}
	}
	alive = e.settle(k, reason == "" || reason != workbench.ReasonOutOfMemory && e.over(), &reason)
	if failed != nil {
		return e.compileFailed(failed), alive, nil
	}
	res = e.result(reason)
	e.noScan = e.s.leftBy(e.b, k.group, alive, &res)
	return res, alive, nil
}

// over reports whether the cell has ended, as far as it is concerned.
func (e *execution) over() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// awaitKernel waits until a new interpreter is ready for its first cell, or has
// ended.
func (e *execution) awaitKernel(ctx context.Context, k *kernel) workbench.Reason {
	wait := time.NewTimer(kernelStart)
	defer wait.Stop()
	select {
	case <-k.began:
		return ""
	case <-e.ended:
		return ""
	case <-e.outOfMem:
		e.hit(workbench.LimitMemory)
		return workbench.ReasonOutOfMemory
	case <-e.cancelled:
	case <-ctx.Done():
	case <-wait.C:
		fmt.Fprintln(e.s.log, "guest: an interpreter does not start")
		return workbench.ReasonInfrastructure
	}
	return workbench.ReasonCancelled
}

// userMayEnter reports whether user code can have a directory as its own; ""
// stands for the workspace. It is asked before an interpreter starts: once one has,
// code that it reads then may have run.
func userMayEnter(dir string) bool {
	if dir == "" {
		dir = workspaceDir
	}
	return asUser(func() error {
		fd, err := unix.Open(dir+"/.", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}) == nil
}

// cannotEnter says why an interpreter is not started in a directory.
func cannotEnter(dir string) error {
	why := "user code may not enter it"
	switch info, err := os.Stat(dir); {
	case errors.Is(err, os.ErrNotExist):
		why = "there is no such directory"
	case err == nil && !info.IsDir():
		why = "it is no directory"
	}
	return workbench.E(workbench.CodePathInvalid, "the context's interpreter cannot start in its cwd %s: %s", dir, why).WithField("cwd")
}

// give lets the interpreter have the cell and waits for its end.
func (e *execution) give(ctx context.Context, k *kernel, fresh bool) (workbench.Reason, error) {
	name, source := e.r.Name, e.r.Source
	if name == "" {
		name = "cell-" + strconv.FormatInt(k.number, 10) + filepath.Ext(defaultNames[e.r.Language])
	}
	var message []byte
	var err error
	switch e.r.Language {
	case workbench.Bash:
		if message, err = k.shellCell(e, name, source); err != nil {
			return "", err
		}
		defer os.Remove(filepath.Join(k.dir, name))
	case workbench.TypeScript:
		if source, err = e.transpileCell(ctx, name, source); err != nil {
			return "", err
		}
		message = k.cellMessage(e, name, source)
	default:
		message = k.cellMessage(e, name, source)
	}
	wrote := make(chan error, 1)
	k.wrote = make(chan struct{})
	if len(message) <= pipeHolds && k.p.control.writeNow(message) == nil {
		wrote <- nil
		close(k.wrote)
	} else {
		k.p.control.waits()                                             // before it may be told to end
		go func() { defer close(k.wrote); wrote <- k.write(message) }() // waited for below
	}
	if err := k.group.letGo(holdIdle); err != nil && !isEnded(k.group) {
		return "", err
	}
	if !fresh {
		e.s.watch.add(e) // it takes longer to use up anything
	}
	reason := e.followCell(ctx, k)
	k.p.control.endWrites(time.Unix(1, 0)) // what was not read will not be
	if err := <-wrote; err != nil {
		k.fail()
	}
	k.p.control.endWrites(time.Time{})
	return reason, nil
}

// fail notes that the interpreter cannot be used any more.
func (k *kernel) fail() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dead = true
}

// followCell waits for the end of the cell, and of its calls, and brings it about
// when time, memory or patience is over. It returns why, "" for an end by itself.
func (e *execution) followCell(ctx context.Context, k *kernel) workbench.Reason {
	timeout := e.limit.begin(e.r.Timeout)
	defer e.limit.stop()
	select {
	case <-e.ended:
		return e.awaitCalls(ctx, timeout)
	case <-e.outOfMem:
		e.hit(workbench.LimitMemory)
		return workbench.ReasonOutOfMemory
	case <-ctx.Done():
		return workbench.ReasonCancelled
	case <-timeout:
		e.hit(workbench.LimitTime)
		e.interrupt(k)
		return workbench.ReasonTimeout
	case <-e.cancelled:
		e.interrupt(k)
		return workbench.ReasonCancelled
	}
}

// interrupt does to the cell what a keyboard does, to the interpreter and what it
// runs in the foreground, and waits for it to end.
func (e *execution) interrupt(k *kernel) {
	_ = k.group.signal(-e.pid, unix.SIGINT)
	if k.kind == workbench.JavaScript {
		k.interruptReader()
	}
	grace := e.r.Grace
	if grace <= 0 {
		grace = defaultGrace
	}
	wait := time.NewTimer(grace)
	defer wait.Stop()
	select {
	case <-e.ended:
	case <-e.outOfMem:
		e.hit(workbench.LimitMemory)
	case <-wait.C:
	}
}

// interruptReader tells the thread that reads for JavaScript, which no signal
// reaches while a program does not let go of the main one: an empty frame of no
// cell, behind the cell's.
func (k *kernel) interruptReader() {
	select {
	case <-k.wrote:
		_ = k.p.control.writeWithin(appendString(nil, "\x00\x00\x00\x00"), interruptWithin) // one that does not read is ended
	default:
	}
}

// settle stops everything in the context, or ends it, and takes over what was
// printed until then.
func (e *execution) settle(k *kernel, alive bool, reason *workbench.Reason) bool {
	if alive = alive && k.lives(); alive {
		alive = k.rest() == nil
	}
	if alive && *reason == "" && (e.condemned() || e.s.watch.over(e)) {
		e.hit(workbench.LimitMemory)
		*reason, alive = workbench.ReasonOutOfMemory, false
	}
	if *reason == "" && e.over() {
		if e.s.watch.victim(e) {
			*reason = workbench.ReasonOutOfMemory
		}
		e.s.watch.left(e)
	}
	if alive {
		k.p.drain()
		for _, f := range k.p.out {
			f.to(nil, nil)
		}
		e.broker.finish(callsStop)
		for _, limit := range k.p.takeLimits() {
			e.hit(limit)
		}
		return true
	}
	k.group.kill()
	wait := time.NewTimer(groupEndWait)
	defer wait.Stop()
	select {
	case <-k.group.ended:
		k.p.awaitOutput()
		<-e.ended
	case <-wait.C:
		fmt.Fprintln(e.s.log, "guest: a killed context does not end")
	}
	e.broker.finish(callsCut)
	for _, limit := range k.p.takeLimits() {
		e.hit(limit)
	}
	return false
}

// rest makes everything in the context stand still.
func (k *kernel) rest() error {
	err := k.s.hold(k.group, holdIdle, k.s.ranWith(k.group))
	if err != nil {
		fmt.Fprintln(k.s.log, "guest: a context does not stand still:", err)
	}
	return err
}

// exitedWith is the status of a process that ended with the code.
func exitedWith(code int) unix.WaitStatus { return unix.WaitStatus(code << 8) }

func waitStatus(ev groupEvent) unix.WaitStatus { return unix.WaitStatus(ev.Status) }

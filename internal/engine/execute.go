package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/failpoint"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

const (
	// cancelGrace is what a program gets from being asked to end until it is
	// killed inside.
	cancelGrace = time.Second
	// answerGrace is what the guest gets beyond that, before the host kills the
	// sandbox.
	answerGrace = 2 * time.Second
	// startGrace is what the guest gets, before a run's own time begins, for
	// starting an interpreter and translating TypeScript.
	startGrace = 15 * time.Second
)

// execution is one step of a run on its way through a sandbox.
type execution struct {
	e         *Engine
	c         *compute
	s         workbench.Session
	run       workbench.Run // what is settled in the end
	spec      workbench.RunSpec
	stop      <-chan workbench.Reason
	log       *runLog
	result    guestwire.ExecResult
	stopped   workbench.Reason // why it was asked to end, if it was
	input     workspace.Tree   // that the step began with
	box       sandbox.Sandbox  // it was dispatched to; nil before
	wire      *guestwire.Client
	epoch     int64 // it was dispatched under, and generation
	gen       int64
	shared    bool // others were out at the same time; guarded by c.mu
	began     time.Time
	full      atomic.Bool // a file was refused by a limit of retained files
	exhausted atomic.Bool // a tool call was refused by their limit
	refused   atomic.Bool // one was with another run's token
	calls     store.Together
	recorded  *govern.Recorded // of a replay: what the calls of the run that it repeats gave
	cell      *cell            // nil: a program of its own
	shown     results          // what the code showed
}

// execute takes a queued run to its terminal status. The caller holds c.mu,
// which others get while the code runs. An error means that the run is not
// settled: it stays queued, or, once dispatched, c is dirty and it is settled as
// unknown by whoever recovers it.
func (e *Engine) execute(ctx context.Context, c *compute, run workbench.Run) error {
	s, err := e.o.Store.Session(ctx, workbench.SystemPrincipal(), run.SessionID)
	if err != nil {
		return err
	}
	if err := s.Open(e.now()); err != nil {
		why := workbench.ReasonSessionExpired
		if s.State == workbench.SessionClosed {
			why = workbench.ReasonSessionClosed
		}
		_, err := e.cancelRun(ctx, workbench.SystemPrincipal(), run.ID, why)
		e.ended(c)
		return err
	}
	x := &execution{e: e, c: c, s: s, run: run, stop: c.takeoff(run.ID)}
	defer c.landed(run.ID)
	if x.spec, err = e.openSpec(ctx, run); err != nil {
		return x.refuse(ctx, workbench.ReasonInfrastructure, err)
	}
	if of := x.spec.Replay; of != nil {
		x.recorded = e.o.Tools.Recorded(s, of.RunID, of.Tools)
	}
	starting, ready := x.within(ctx, 2*startWithin)
	how, err := c.ensure(starting, s)
	ready()
	if x.stopped != workbench.ReasonNone {
		return nil // it was cancelled while it was queued, or belongs to another engine
	}
	if err != nil {
		if ctx.Err() != nil || workbench.HasCode(err, workbench.CodeFenced) || workbench.HasCode(err, workbench.CodeUnavailable) {
			return err // the run stays queued
		}
		if workbench.HasCode(err, workbench.CodeWorkspaceFull) {
			x.run.LimitsHit = append(x.run.LimitsHit, workbench.LimitWorkspace)
			return x.refuse(ctx, workbench.ReasonWorkspaceFull, workbench.E(workbench.CodeWorkspaceFull,
				"%s; nothing ran: %s", workbench.AsError(err).Detail, moreRoom))
		}
		return x.refuse(ctx, workbench.ReasonInfrastructure, err)
	}
	if c.rate, err = e.size(s.Size); err != nil {
		return x.refuse(ctx, workbench.ReasonInfrastructure, err)
	}
	x.run.Generation = c.generation
	first, err := c.first(ctx)
	if err != nil {
		return err // the run stays queued
	}
	x.tellMemory(how, first)
	if goes, err := x.enter(ctx); !goes {
		return err
	}
	placing, placed := x.within(ctx, startWithin)
	err = x.place(placing)
	placed()
	if err != nil {
		return x.unplaced(ctx, err)
	}
	dispatched, err := x.dispatch(ctx)
	if err != nil || !dispatched {
		return err
	}
	c.joined(x)
	x.entered()
	defer c.parted(x)
	if run.Lane == workbench.LaneBackground {
		e.wake(c.id, run.Lane) // the next one need not wait for this one's end
	}
	c.mu.Unlock()
	end, err := x.carry(ctx)
	over := e.elapsed() // what follows, such as its commit, is no active time
	c.mu.Lock()
	c.used(c.meter.End(run.ID, over))
	if err == nil {
		err = end(ctx)
	}
	c.dirty = c.dirty || err != nil
	return err
}

// tellMemory says on the receipt what became of the memory of earlier runs.
func (x *execution) tellMemory(how arrival, first bool) {
	switch {
	case how == returned:
		x.notice(workbench.NoticeMemoryLost, "the session had been suspended, for want of work or to make room; it returned with the files of the last commit, and its variables, memory and /tmp were lost")
	case how == resumed:
		x.notice(workbench.NoticeResumed, "the session had been suspended, for want of work or to make room; it returned with its memory")
	case how == replaced:
		x.notice(workbench.NoticeSandboxReplaced, "the sandbox of this session was gone; a new one began with the files of the last commit, and memory and /tmp were lost")
	case first:
		x.notice(workbench.NoticeSandboxReplaced, "this is the first run in a new sandbox: memory and /tmp are new; after a restart the workspace holds the files that it named and nothing else")
	}
}

func (x *execution) notice(code, detail string) {
	x.run.Notices = append(x.run.Notices, workbench.Notice{Code: code, Detail: detail})
}

// refuse settles a run of which no byte has left: the living server saw that.
func (x *execution) refuse(ctx context.Context, why workbench.Reason, cause error) error {
	public := workbench.AsError(cause)
	x.e.log.Warn("run not started", "run", x.run.ID, "reason", why, "err", cause)
	x.run.Status, x.run.Reason, x.run.Message = workbench.StatusFailed, why, public.Detail
	if why == workbench.ReasonInfrastructure {
		x.run.Message += "; no byte of the code had left, so it is safe to submit again"
	}
	finished := x.e.now()
	x.run.FinishedAt = &finished
	return x.e.stubbornly(ctx, "refuse", func() error {
		return x.e.o.Store.Settle(ctx, store.Settlement{Run: x.run, Epoch: x.c.epoch, Generation: x.generation()})
	}, x.e.terminal(x.run.ID))
}

// moreRoom is what to do about a workspace that is full.
const moreRoom = "delete files from the workspace, or configure the session with a higher limits.workspaceBytes"

// unplaced settles a run whose selected files could not be placed. Those that
// were placed are taken back; a sandbox that does not let them go is given up,
// unless others have code in it and only the history has no room for the files.
func (x *execution) unplaced(ctx context.Context, err error) error {
	where := ""
	if x.stopped == workbench.ReasonNone && !lost(err) && x.c.live() {
		undoing, undone := x.within(ctx, startWithin)
		undo := x.c.takeBack(undoing, x.s)
		undone()
		switch {
		case undo == nil:
		case workbench.HasCode(undo, workbench.CodeQuotaExceeded) && len(x.c.out) > 0 && x.c.live():
			where = ", and the files stay in the sandbox while other runs are in it"
		default:
			x.e.log.Warn("sandbox given up: selected files could not be taken back", "run", x.run.ID, "err", undo)
			x.c.drop(ctx)
		}
	} else {
		x.c.drop(ctx) // what was placed is not committed
	}
	if x.stopped != workbench.ReasonNone {
		return nil
	}
	if workbench.ClassOf(workbench.CodeOf(err)).HTTP >= 500 {
		return x.refuse(ctx, workbench.ReasonInfrastructure, err)
	}
	public := workbench.AsError(err)
	if public.Code == workbench.CodeWorkspaceFull {
		err = workbench.E(public.Code, "the selected files do not fit into the workspace; nothing ran: %s", moreRoom).Caused(err)
	}
	if public.Code == workbench.CodeQuotaExceeded {
		err = workbench.E(public.Code, "the selected files cannot be committed: %s; nothing ran%s: %s", public.Detail, where, public.Hint).Caused(err)
	}
	return x.refuse(ctx, workbench.ReasonSelection, x.misplaced(err))
}

// misplaced says which selected file is in whose way. What the sandbox says of
// a path conflict names neither.
func (x *execution) misplaced(err error) error {
	if !workbench.HasCode(err, workbench.CodePathConflict) {
		return err
	}
	for i, sel := range x.spec.Artifacts {
		cannot := func(what string) error {
			return workbench.E(workbench.CodePathConflict, "artifactIds[%d] cannot be put at %s: %s. No byte of the code ran; give it another path", i, shortened(sel.Path), what).
				WithField(fmt.Sprintf("artifactIds[%d]", i)).Caused(err)
		}
		for at := 0; ; {
			n := strings.IndexByte(sel.Path[at:], '/')
			if n < 0 {
				break
			}
			at += n
			if above, ok := x.c.tree.Get(sel.Path[:at]); ok && above.Type != workspace.Dir {
				return cannot(shortened(sel.Path[:at]) + " in the workspace is no directory")
			}
			at++
		}
		if there, ok := x.c.tree.Get(sel.Path); ok && there.Type != workspace.File {
			return cannot("something is there that is no regular file, such as a directory")
		}
	}
	return err
}

// generation is the session's, which a lost sandbox may have raised meanwhile.
func (x *execution) generation() int64 { return max(x.c.generation, x.s.Generation) }

// lone reports whether the sandbox that the code was in is still the session's,
// and nobody else has code in it. The caller holds c.mu.
func (x *execution) lone() bool { return x.c.box == x.box && len(x.c.out) == 1 }

// dispatch writes that the step is about to leave, before a byte of it does.
// It reports false when the run was cancelled first.
func (x *execution) dispatch(ctx context.Context) (bool, error) {
	x.run.InputRoot, x.input = x.c.tree.Root(), x.c.tree
	x.box, x.wire, x.epoch, x.gen = x.c.box, x.c.wire, x.c.epoch, x.c.generation
	x.s.Generation = x.gen // it was read before the sandbox was there
	x.run.Image, x.run.Driver = x.s.Image, x.e.info.Driver
	x.began = time.Now()
	at := x.e.now()
	x.run.StartedAt = &at
	x.run.QueuedMs = at.Sub(x.run.CreatedAt).Milliseconds()
	if err := failpoint.Hit("engine.dispatch.before"); err != nil {
		return false, x.refuse(ctx, workbench.ReasonInfrastructure, err)
	}
	err := x.e.o.Store.Dispatch(ctx, store.DispatchRecord{RunID: x.run.ID, Epoch: x.c.epoch, Generation: x.c.generation,
		SandboxID: x.c.box.ID(), InputRoot: x.run.InputRoot, Image: x.run.Image, Driver: x.run.Driver, At: at, Context: x.contextEntry()})
	if workbench.HasCode(err, workbench.CodeConflict) {
		// Cancelled between the look at the queue and now: it may still be queued.
		why, reasonErr := x.e.o.Store.CancelReason(ctx, x.run.ID)
		if reasonErr != nil {
			return false, reasonErr
		}
		if why == workbench.ReasonNone {
			return false, nil // another engine was first
		}
		_, err = x.e.o.Store.RequestCancel(ctx, workbench.SystemPrincipal(), x.run.ID, why, x.e.now())
		return false, err
	}
	if err != nil {
		x.c.dirty = true // it may be written all the same
		return false, err
	}
	x.c.known = x.c.generation
	return true, nil
}

// carry hands the code to the guest and follows it to its end. It returns what
// settles the run, which needs c.mu; carry is called without.
func (x *execution) carry(ctx context.Context) (func(context.Context) error, error) {
	if err := failpoint.Hit("engine.dispatch.after"); err != nil {
		return nil, err
	}
	run, epoch, generation := x.run.ID, x.epoch, x.gen
	dispatchedSeq := int64(2) // queued, dispatching
	if x.run.Approval != nil {
		dispatchedSeq++ // awaiting_approval before them
	}
	x.log = x.e.newRunLog(x.run, dispatchedSeq, x.outputBytes(), x.s.Limits.FileBytes,
		func(ctx context.Context, status *workbench.Status, entries []workbench.LogEntry) error {
			if err := failpoint.Hit("engine.log.before"); err != nil {
				return err
			}
			return x.e.o.Store.AppendLog(ctx, run, epoch, generation, status, entries)
		})
	defer x.log.stop()
	// No code begins while the guest reads the workspace for another's commit.
	beginning, begun := x.within(ctx, startWithin+startGrace+answerGrace)
	exec, err := x.start(beginning)
	begun()
	switch {
	case err != nil && refused(err):
		return func(ctx context.Context) error { return x.settleRefused(ctx, err) }, nil
	case err != nil:
		return func(ctx context.Context) error { return x.lost(ctx, err) }, nil
	}
	if err := failpoint.Hit("engine.exec.started"); err != nil {
		return nil, err
	}
	x.log.begin()
	if err := x.follow(ctx, exec); err != nil {
		return func(ctx context.Context) error { return x.lost(ctx, err) }, nil
	}
	if err := failpoint.Hit("engine.exec.ended"); err != nil {
		return nil, err
	}
	return x.settle, nil
}

// settleRefused settles a run that the guest did not begin.
func (x *execution) settleRefused(ctx context.Context, err error) error {
	x.e.log.Warn("the guest refused a run", "run", x.run.ID, "err", err)
	if x.lone() && x.c.base == "" {
		x.c.drop(ctx) // it holds what a run left that was not committed, and no scan follows this one
	}
	if x.cell != nil && x.cell.gone {
		return x.settleWithout(ctx, workbench.StatusFailed, workbench.ReasonContextLost,
			"the interpreter of this context ended between two cells, and its variables are gone; nothing ran")
	}
	if x.cell != nil && workbench.HasCode(err, workbench.CodePathInvalid) {
		return x.settleWithout(ctx, workbench.StatusFailed, workbench.ReasonContextStart,
			workbench.AsError(err).Detail+"; nothing ran. Make the directory, or make the context anew with another cwd")
	}
	if !workbench.HasCode(err, workbench.CodeLanguageUnknown) && x.lone() {
		x.c.drop(ctx) // it would refuse the next one too
	}
	return x.settleWithout(ctx, workbench.StatusFailed, workbench.ReasonInfrastructure,
		workbench.AsError(err).Detail+"; no byte of the code ran, so it is safe to submit again")
}

// refused reports whether an error of Exec means that no byte of code ran.
func refused(err error) bool {
	perhapsBegun := []workbench.Code{workbench.CodeSandboxLost, workbench.CodeGuestProtocol, workbench.CodeCancelled, workbench.CodeInternal}
	return !slices.Contains(perhapsBegun, workbench.CodeOf(err))
}

func (x *execution) outputBytes() int64 {
	if x.spec.OutputBytes > 0 {
		return x.spec.OutputBytes
	}
	return x.s.Limits.OutputBytes
}

func (x *execution) request() guestwire.ExecRequest {
	return guestwire.ExecRequest{
		ID: x.run.ID, Group: x.run.ID, Language: x.spec.Language, Source: []byte(x.spec.Code), Args: x.spec.Args,
		Env: x.spec.Env, Stdin: []byte(x.spec.Stdin), Timeout: time.Duration(x.run.TimeoutMs) * time.Millisecond,
		Packages: workbench.PackagePaths(x.s.Packages), Grace: cancelGrace, OutputBytes: x.outputBytes() + x.s.Limits.FileBytes + 4,
	}
}

// follow waits for the exec's end, passing on a request to cancel. A guest that
// answers neither a cancel nor its own timeout in time has lost the sandbox.
func (x *execution) follow(ctx context.Context, exec *guestwire.Exec) error {
	limit := startGrace + time.Duration(x.run.TimeoutMs)*time.Millisecond + cancelGrace + answerGrace
	wait, give := context.WithTimeout(ctx, limit)
	defer give()
	type end struct {
		result guestwire.ExecResult
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		result, err := exec.Wait(wait)
		ended <- end{result, err}
	}()
	stop := x.stop
	var overdue <-chan time.Time
	cancelled := func() {
		stop = nil
		go func() { _ = exec.Cancel(wait) }() // its end shows in ended
		overdue = time.After(cancelGrace + answerGrace)
	}
	if x.stopped != workbench.ReasonNone {
		cancelled() // while it began
	}
	// Another server may have been asked to cancel: that shows in the store.
	news := x.e.o.Store.Subscribe(store.SessionTopic(x.s.ID))
	defer news.Close()
	for {
		select {
		case <-news.C:
			if why, err := x.e.o.Store.CancelReason(wait, x.run.ID); err == nil && why != workbench.ReasonNone {
				x.c.interrupt(x.run.ID, why)
			}
		case e := <-ended:
			x.result = e.result
			return e.err
		case x.stopped = <-stop:
			cancelled()
		case <-overdue:
			give()
			overdue = nil
		}
	}
}

// lost settles a step whose end was not seen. The sandbox is given up; others
// that have code in it find that out by themselves. If the
// host itself ended it at its memory bound, that is the outcome; a step that
// was asked to end, or ran into its time limit, and did not answer was killed
// with its sandbox, which is its outcome too. Everything else is unknown.
func (x *execution) lost(ctx context.Context, cause error) error {
	stopping := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWithin+settleWait)
	defer cancel()
	x.e.log.Warn("sandbox lost under a run", "run", x.run.ID, "sandbox", x.box.ID(), "err", cause)
	box := x.box
	select { // how it ended by itself, before it is ended from here
	case <-box.Done():
	case <-time.After(time.Second):
	}
	if x.c.box == box {
		x.c.drop(ctx)
	}
	exit := box.Exit()
	if exit.Stderr != "" {
		x.e.log.Warn("guest said", "sandbox", box.ID(), "stderr", exit.Stderr)
	}
	x.notice(workbench.NoticeSandboxReplaced, "the sandbox was lost; the workspace is that of the commit before this run, and memory and /tmp were lost")
	elapsed := time.Since(x.began)
	switch {
	case stopping:
		return x.settleWithout(ctx, workbench.StatusUnknown, workbench.ReasonServerLost, "the server stopped while the code ran: what it did cannot be known")
	case exit.Reason == sandbox.ExitOutOfMemory:
		x.run.LimitsHit = append(x.run.LimitsHit, workbench.LimitMemory)
		x.run.PeakMemoryBytes = exit.Last.MemoryPeakBytes
		return x.settleWithout(ctx, workbench.StatusFailed, workbench.ReasonOutOfMemory, "the memory limit ended the run")
	case x.stopped != workbench.ReasonNone && x.stopped != workbench.ReasonServerLost:
		return x.settleWithout(ctx, workbench.StatusCancelled, x.stopped, workbench.CancelMessage(x.stopped, true)+"; it did not answer, and its sandbox was killed")
	case elapsed >= time.Duration(x.run.TimeoutMs)*time.Millisecond:
		x.run.LimitsHit = append(x.run.LimitsHit, workbench.LimitTime)
		return x.settleWithout(ctx, workbench.StatusTimedOut, workbench.ReasonTimeout, "the time limit was used up; the run did not answer and its sandbox was killed")
	}
	return x.settleWithout(ctx, workbench.StatusUnknown, workbench.ReasonSandboxLost, "the sandbox was lost while the code ran: what it did cannot be known")
}

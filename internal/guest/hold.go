package guest

import (
	"context"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// Who wants a group to stand still. It goes on once nobody does.
const (
	holdHost = 1 << iota // the host asked
	holdScan             // the workspace is being read
	holdIdle             // a context between two cells
)

// othersRan is for a group that was stopped while code of another ran.
const othersRan = -1

// hold stops everything in the group and returns when nothing of it runs. What
// stands still already is stopped again for a scan if code of another group has
// run meanwhile: code can wake what it shares a terminal with.
// now is what ranWith said of the group.
func (s *supervisor) hold(g *group, why uint32, now int64) error {
	g.pausing.Lock()
	defer g.pausing.Unlock()
	held := g.held.Load()
	if held == 0 || why == holdScan && (now == othersRan || now != g.stood) {
		if g.alone = s.stopAlone(g); !g.alone {
			if _, err := g.ask(groupCommand{Op: "pause", Within: within(why)}); err != nil {
				if held == 0 {
					_ = g.tell(groupCommand{Op: "resume"}) // what did stop goes on
				}
				return err
			}
		}
		g.stood = now
	}
	g.held.Store(held | why)
	return nil
}

// For how long a group may take to stand still. A cell's end waits for it, for
// which a host that has cancelled the cell gives 2 s behind the cell's grace, and a
// context that does not stop is ended. Where the host or a scan wants it, not stopping costs
// the sandbox.
const (
	idleWithin  = 2 * time.Second
	otherWithin = 8 * time.Second
)

func within(why uint32) time.Duration {
	if why == holdIdle {
		return idleWithin
	}
	return otherWithin
}

// ranWith is how many runs have begun, or othersRan while code of another group
// than g runs.
func (s *supervisor) ranWith(g *group) int64 {
	for _, other := range s.live() {
		if other != g && other.held.Load() == 0 {
			return othersRan
		}
	}
	return s.runs.Load()
}

// letGo ends a hold. Nobody waits for the group to go on: commands to it are
// carried out in order.
func (g *group) letGo(why uint32) error {
	g.pausing.Lock()
	defer g.pausing.Unlock()
	held := g.held.Load()
	g.held.Store(held &^ why)
	if held == 0 || held&^why != 0 {
		return nil
	}
	if g.alone {
		g.alone = false
		if p := g.resident.Load(); p.alive() && unix.Kill(p.outer, unix.SIGCONT) == nil {
			return nil
		}
	}
	return g.tell(groupCommand{Op: "resume"})
}

// aloneLooks is how often a process that was told to stop is looked at until its
// group is asked to stop everything.
const aloneLooks = 12

// stopAlone stops a context's interpreter, where no other code is in the sandbox,
// without the group's first process. It reports whether everything stands still.
//
// That it is alone is looked at before, so that nobody is there to wake it; and
// twice after it was seen to stand, so that neither who was born meanwhile can be
// there, nor it itself can have been woken by one that has gone again.
func (s *supervisor) stopAlone(g *group) bool {
	p := g.resident.Load()
	if p == nil || p.outer == 0 || !s.watch.own || !p.alive() {
		return false
	}
	before := readTask("/proc/" + strconv.Itoa(p.outer) + "/stat")
	alone := func(threads int) bool {
		tasks, known := s.watch.tasksNow()
		return known && threads > 0 && tasks == int64(threads)
	}
	if before.parent != p.parent || !alone(before.threads) || unix.Kill(p.outer, unix.SIGSTOP) != nil {
		return false
	}
	for i, wait := 0, sweepFirst; i < aloneLooks; i, wait = i+1, min(2*wait, sweepMost) {
		if n := standing(p.outer); n > 0 {
			return alone(n) && standing(p.outer) == n && alone(n)
		}
		ts := unix.NsecToTimespec(int64(wait))
		_ = unix.Nanosleep(&ts, nil) // an early look does no harm
	}
	return false
}

// holdAll holds every live group, those that run before those that stand still
// and may be woken by them. One that is about to end is waited for instead.
func (s *supervisor) holdAll(ctx context.Context, why uint32) error {
	var run, stand []*group
	ran := map[*group]int64{}
	for _, g := range s.live() {
		ran[g] = s.ranWith(g)
		if g.held.Load() == 0 {
			run = append(run, g)
		} else {
			stand = append(stand, g)
		}
	}
	for _, g := range append(run, stand...) {
		if g.ends() {
			select {
			case <-g.ended:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := s.hold(g, why, ran[g]); err != nil {
			if endsSoon(g) {
				continue
			}
			return workbench.E(workbench.CodeUnavailable, "the running code could not be paused").Caused(err)
		}
	}
	return nil
}

// releaseAll ends a hold of every live group.
func (s *supervisor) releaseAll(why uint32) error {
	var failed error
	for _, g := range s.live() {
		if err := g.letGo(why); err != nil && !endsSoon(g) {
			failed = workbench.E(workbench.CodeUnavailable, "paused code could not be resumed").Caused(err)
		}
	}
	return failed
}

// PauseAll implements guestwire.Guest.
func (s *supervisor) PauseAll(ctx context.Context) error {
	s.beginning.Lock()
	defer s.beginning.Unlock()
	return s.holdAll(ctx, holdHost)
}

// ResumeAll implements guestwire.Guest.
func (s *supervisor) ResumeAll(context.Context) error { return s.releaseAll(holdHost) }

// ends reports whether the group has ended or is about to.
func (g *group) ends() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ending || isEnded(g)
}

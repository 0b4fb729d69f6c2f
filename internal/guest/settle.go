package guest

import (
	"context"
	"runtime/debug"
	"sync"
	"time"
)

// Settle implements guestwire.Guest. What is given up here is what a checkpoint
// would carry for nothing.
func (s *supervisor) Settle(ctx context.Context) error {
	if err := s.PauseAll(ctx); err != nil {
		return err
	}
	paused := s.running()
	for _, e := range paused { // what stands still loses no time to what follows
		e.limit.hold()
	}
	if err := s.spares.settle(ctx); err != nil {
		for _, e := range paused {
			e.limit.release()
		}
		return err
	}
	debug.FreeOSMemory()
	return nil
}

// Wake implements guestwire.Guest.
func (s *supervisor) Wake(context.Context) error {
	for _, e := range s.running() {
		e.limit.release()
	}
	s.tree.changes.giveUp() // what was seen before may not be all: the next scan looks everywhere
	s.spares.wake()
	return nil
}

// running are the execs that have not ended.
func (s *supervisor) running() []*execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*execution, 0, len(s.execs))
	for _, e := range s.execs {
		all = append(all, e)
	}
	return all
}

// settle gives up what waits, and lets nothing more start, until wake or the
// next exec. It returns when all of it is gone.
func (p *spares) settle(ctx context.Context) error {
	p.mu.Lock()
	p.settled = true
	p.mu.Unlock()
	p.renewing.Lock() // whoever is starting one has finished
	p.mu.Lock()
	for lang := range p.kept {
		p.leave(lang)
	}
	p.giveZygoteUp()
	p.mu.Unlock()
	p.renewing.Unlock()
	for {
		p.mu.Lock()
		left := len(p.leaving) > 0 || p.zygote == nil && p.following
		p.mu.Unlock()
		if !left {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// wake has what waits started again.
func (p *spares) wake() {
	p.mu.Lock()
	p.settled = false
	p.mu.Unlock()
	p.renewIn(renewAfterWake)
}

// renewAfterWake is when what waits is started again after a return: the run for
// which the sandbox came back goes first.
const renewAfterWake = time.Second

// deadline is the time limit of one exec. It stands still between hold and
// release: the clock of a sandbox that was checkpointed leaps by all the time
// until it was restored.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer // nil without a limit
	at    time.Time   // when it is reached
	held  time.Time   // since when it stands still; zero when it does not
	slept time.Duration
}

// begin starts a limit, 0 for none, and returns what tells that it is reached.
func (d *deadline) begin(limit time.Duration) <-chan time.Time {
	if limit <= 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer, d.at = time.NewTimer(limit), time.Now().Add(limit)
	if !d.held.IsZero() {
		d.timer.Stop()
	}
	return d.timer.C
}

func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// hold makes it stand still.
func (d *deadline) hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.held.IsZero() {
		return
	}
	d.held = time.Now()
	if d.timer != nil {
		d.timer.Stop()
	}
}

// release lets it go on.
func (d *deadline) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held.IsZero() {
		return
	}
	gap := time.Since(d.held)
	d.held, d.slept = time.Time{}, d.slept+gap
	if d.timer != nil {
		d.at = d.at.Add(gap)
		d.timer.Reset(time.Until(d.at))
	}
}

// asleep is for how long it has stood still.
func (d *deadline) asleep() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.slept
}

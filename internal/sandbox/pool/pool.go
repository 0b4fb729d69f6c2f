// Package pool keeps sandboxes ready for sessions that do not exist yet:
// started, with a guest that answers, prepared for their limits, with
// interpreters that wait. One that is claimed serves one session and never
// comes back.
//
// The pool must not know sessions, images or sizes: it is told which kinds to
// keep, and how many of each.
package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// Kind is what a session needs of its sandbox. Kinds that are equal are served
// by the same sandboxes.
type Kind struct {
	Class  sandbox.Class
	Limits guestwire.SandboxLimits // zero for a vessel
	// Vessel: it waits for a checkpoint to be restored into it. Only a driver that
	// is a sandbox.Restorer makes some.
	Vessel bool
}

// Warm is a sandbox that is ready to be bound, or to be restored into.
type Warm struct {
	Box  sandbox.Sandbox
	Wire *guestwire.Client // nil for a vessel
}

// Options wires a Pool. Log and Metrics may be nil.
type Options struct {
	Driver sandbox.Driver
	// Reserve takes a place for one sandbox if there is one free, without
	// making room; Release gives back the place of one that was not claimed.
	Reserve func() bool
	Release func()
	Log     *slog.Logger
	Metrics Metrics
}

// Metrics is what the pool counts for operators.
type Metrics interface {
	// Claimed counts a session that wanted a warm sandbox; hit: it got one.
	Claimed(hit bool)
	// Warm is how many are ready now, and how many vessels besides.
	Warm(sandboxes, vessels int)
}

const (
	startWithin = 60 * time.Second
	killWithin  = 15 * time.Second
	// Failed starts are tried again after a pause that doubles.
	firstPause, longestPause = time.Second, time.Minute
	// roomEvery is how often a pool without a free place looks for one.
	roomEvery = time.Second
)

// Pool is safe for concurrent use. Close it in the end.
type Pool struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	wake   chan struct{} // capacity 1: something may be missing

	mu     sync.Mutex
	shelf  map[string]*shelf
	order  []string // shelves, in the order they were first wanted
	closed bool
}

// shelf keeps the sandboxes of one name, which are all of one kind.
type shelf struct {
	kind  Kind
	want  int
	ready []*Warm
	pause time.Duration // after the last start, which failed; 0: it did not
	again time.Time     // when the next start may be tried, see also claimed
}

// New makes a pool that keeps nothing until Keep.
func New(o Options) *Pool {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	p := &Pool{o: o, shelf: map[string]*shelf{}, wake: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.work.Go(p.fill)
	return p
}

// Keep has n sandboxes of the kind kept ready under the name. Those that were
// kept under it and are of another kind are ended.
func (p *Pool) Keep(name string, k Kind, n int) {
	p.mu.Lock()
	s := p.shelf[name]
	if s == nil {
		s = &shelf{}
		p.shelf[name] = s
		p.order = append(p.order, name)
	}
	var over []*Warm
	if s.kind != k {
		over, s.ready, s.pause, s.again = s.ready, nil, 0, time.Time{}
	}
	if len(s.ready) > n {
		over = append(over, s.ready[n:]...)
		s.ready = s.ready[:n:n]
	}
	s.kind, s.want = k, n
	p.counted()
	p.mu.Unlock()
	for _, w := range over {
		p.end(w)
	}
	p.poke()
}

// KeepVessels has one vessel of each of the kinds kept ready, and none of others.
func (p *Pool) KeepVessels(kinds []Kind) {
	wanted := map[string]Kind{}
	for _, k := range kinds {
		wanted[fmt.Sprintf("vessel %v", k.Class)] = k
	}
	p.mu.Lock()
	var over []*Warm
	for name, s := range p.shelf {
		if _, ok := wanted[name]; s.kind.Vessel && !ok {
			over = append(over, s.ready...)
			delete(p.shelf, name)
			p.order = slices.DeleteFunc(p.order, func(n string) bool { return n == name })
		}
		if s.kind.Vessel {
			delete(wanted, name)
		}
	}
	p.mu.Unlock()
	for _, w := range over {
		p.end(w)
	}
	for name, k := range wanted {
		p.Keep(name, k, 1)
	}
}

// Claim takes a sandbox of the kind out of the pool, with its place. It returns
// nil where there is none; a kind that nobody keeps is not counted as missed.
func (p *Pool) Claim(k Kind) *Warm {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := false
	for _, name := range p.order {
		s := p.shelf[name]
		if s.kind != k || s.want == 0 {
			continue
		}
		kept = true
		for len(s.ready) > 0 {
			w := s.ready[0]
			s.ready = s.ready[1:]
			s.claimed()
			p.counted()
			p.poke()
			if w.lives() {
				p.claimed(k, true)
				return w
			}
			p.work.Go(func() { p.end(w) })
		}
	}
	if kept {
		p.claimed(k, false)
	}
	return nil
}

func (p *Pool) claimed(k Kind, hit bool) {
	if !k.Vessel {
		p.o.Metrics.Claimed(hit)
	}
}

// lull is how long the start of another sandbox waits after a claim, while there
// are more: it takes the processors from the first run in the one claimed.
const lull = 40 * time.Millisecond

// vesselLull is the same for a vessel, which is seldom needed again soon.
const vesselLull = time.Second

// claimed puts the next start off, unless the last sandbox is gone or starts
// fail, which has a pause of its own.
func (s *shelf) claimed() {
	switch {
	case s.pause > 0:
	case s.kind.Vessel:
		s.again = time.Now().Add(vesselLull)
	case len(s.ready) > 0:
		s.again = time.Now().Add(lull)
	default:
		s.again = time.Time{}
	}
}

// Yield ends one sandbox to make room for a session that needs another kind, a
// vessel first: a return is only slower without. It reports whether there was
// one; its place is free then.
func (p *Pool) Yield() bool {
	p.mu.Lock()
	var from *shelf
	for _, name := range p.order {
		if s := p.shelf[name]; len(s.ready) > 0 && (from == nil || s.kind.Vessel && !from.kind.Vessel) {
			from = s
		}
	}
	var w *Warm
	if from != nil {
		w = from.ready[len(from.ready)-1]
		from.ready = from.ready[:len(from.ready)-1]
	}
	p.counted()
	p.mu.Unlock()
	if w == nil {
		return false
	}
	p.end(w)
	return true
}

// Close ends what the pool has, and waits for it.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	var all []*Warm
	for _, s := range p.shelf {
		all = append(all, s.ready...)
		s.ready, s.want = nil, 0
	}
	p.counted()
	p.mu.Unlock()
	p.cancel()
	for _, w := range all {
		p.end(w)
	}
	p.work.Wait()
}

// lives reports whether a warm sandbox may still be bound.
func (w *Warm) lives() bool {
	select {
	case <-w.Box.Done():
		return false
	case <-w.wireDone():
		return false
	default:
		return true
	}
}

// wireDone is closed when its guest does not answer any more.
func (w *Warm) wireDone() <-chan struct{} {
	if w.Wire == nil {
		return nil
	}
	return w.Wire.Done()
}

// end removes a sandbox and gives its place back.
func (p *Pool) end(w *Warm) {
	if w.Wire != nil {
		_ = w.Wire.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), killWithin)
	defer cancel()
	if err := w.Box.Kill(ctx); err != nil { // the driver's reaper tries again
		p.o.Log.Warn("warm sandbox not fully removed", "sandbox", w.Box.ID(), "err", err)
	}
	p.o.Release()
}

// counted tells the metrics; the caller holds mu.
func (p *Pool) counted() {
	sandboxes, vessels := 0, 0
	for _, s := range p.shelf {
		if s.kind.Vessel {
			vessels += len(s.ready)
		} else {
			sandboxes += len(s.ready)
		}
	}
	p.o.Metrics.Warm(sandboxes, vessels)
}

func (p *Pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// missing names a shelf that lacks a sandbox, having taken out what died: the
// first for which it is time. Where there is none, wait says for how long.
func (p *Pool) missing() (name string, k Kind, ok bool, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = longestPause
	if p.closed {
		return "", Kind{}, false, wait
	}
	for _, n := range p.order {
		s := p.shelf[n]
		alive := s.ready[:0:0]
		for _, w := range s.ready {
			if w.lives() {
				alive = append(alive, w)
			} else {
				p.work.Go(func() { p.end(w) })
			}
		}
		s.ready = alive
		if len(s.ready) >= s.want || ok {
			continue
		}
		if left := time.Until(s.again); left > 0 {
			wait = min(wait, left)
			continue
		}
		name, k, ok = n, s.kind, true
	}
	p.counted()
	return name, k, ok, wait
}

// fill starts what is missing, one at a time, until the pool is closed. A kind
// that does not start keeps no other waiting.
func (p *Pool) fill() {
	for p.ctx.Err() == nil {
		name, k, ok, wait := p.missing()
		if !ok {
			p.rest(wait)
			continue
		}
		if !p.o.Reserve() {
			p.rest(roomEvery)
			continue
		}
		w, err := Start(p.ctx, p.o.Driver, k)
		pause := p.tried(name, k, err)
		if err != nil {
			p.o.Release()
			if p.ctx.Err() == nil {
				p.o.Log.Warn("warm sandbox not started", "kind", name, "again", pause.String(), "err", err)
			}
			continue
		}
		p.put(name, k, w)
	}
}

// tried notes how a start for a shelf ended, and returns for how long none is
// tried.
func (p *Pool) tried(name string, k Kind, err error) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shelf[name]
	switch {
	case s == nil:
		return 0 // nobody wants it any more
	case err == nil:
		s.pause, s.again = 0, time.Time{}
	case s.kind == k: // another kind may start
		s.pause = max(firstPause, min(2*s.pause, longestPause))
		s.again = time.Now().Add(s.pause)
	}
	return s.pause
}

// put shelves a started sandbox, unless it is not wanted any more.
func (p *Pool) put(name string, k Kind, w *Warm) {
	p.mu.Lock()
	s := p.shelf[name]
	wanted := !p.closed && s != nil && s.kind == k && len(s.ready) < s.want
	if wanted {
		s.ready = append(s.ready, w)
	}
	p.counted()
	p.mu.Unlock()
	if !wanted {
		p.end(w)
		return
	}
	p.work.Go(func() { // a death is noticed at once
		select {
		case <-w.Box.Done():
			p.poke()
		case <-w.wireDone():
			p.poke()
		case <-p.ctx.Done():
		}
	})
}

// rest waits until something may be missing, or for a time.
func (p *Pool) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.wake:
	case <-timer.C:
	case <-p.ctx.Done():
	}
}

// Start starts one sandbox of a kind and makes it ready. The pool starts its
// own so, and whoever finds none in it. Codes: those of Driver.Start and of
// guestwire's Dial and Prepare.
func Start(ctx context.Context, d sandbox.Driver, k Kind) (w *Warm, err error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if k.Vessel {
		r, can := d.(sandbox.Restorer)
		if !can {
			return nil, workbench.E(workbench.CodeNotBuilt, "%s restores no sandbox", d.Name())
		}
		box, err := r.Vessel(ctx, k.Class)
		if err != nil {
			return nil, err
		}
		return &Warm{Box: box}, nil
	}
	box, err := d.Start(ctx, k.Class)
	if err != nil {
		return nil, err
	}
	wire, err := guestwire.Dial(ctx, box.Stream(), guestwire.Options{})
	if err == nil {
		if err = wire.Prepare(ctx, k.Limits); err == nil {
			return &Warm{Box: box, Wire: wire}, nil
		}
		_ = wire.Close()
	}
	kill, done := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
	defer done()
	killed := box.Kill(kill)
	if tail := box.Exit().Stderr; tail != "" {
		err = &StartError{Err: err, Stderr: tail}
	}
	return nil, errors.Join(err, killed)
}

// StartError is a failed start with what the guest said last.
type StartError struct {
	Err    error
	Stderr string
}

func (e *StartError) Error() string { return e.Err.Error() + "; the guest said: " + e.Stderr }
func (e *StartError) Unwrap() error { return e.Err }

type noMetrics struct{}

func (noMetrics) Claimed(bool)  {}
func (noMetrics) Warm(int, int) {}

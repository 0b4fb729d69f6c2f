// Package engine is the life of sessions and runs: it admits, queues,
// dispatches, logs, commits and settles, and it recovers what a crash left.
//
// It is the only room that sees all the others. Nothing below it knows HTTP,
// nothing above it knows a runtime. Everything it must not lose is in the
// store before it is told to anyone.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/checkpoint"
	"github.com/workbenchdev/workbench/internal/fair"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/image"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/pool"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// Options wires an Engine. Every field without a default is required.
type Options struct {
	Store     *store.DB
	Seal      *seal.Sealer
	Workspace *workspace.Store
	Artifacts *artifact.Service
	Images    *image.Store
	// Checkpoints and Memory are for sessions that keep their memory; nil where
	// the driver cannot checkpoint.
	Checkpoints *checkpoint.Store
	Memory      *checkpoint.Memory
	Driver      sandbox.Driver
	Instance    string // of the data directory; at most one live engine has it
	ID          string // of this engine; default: a new one
	Broker      Broker // what code asks of the server
	Tools       Tools  // what sessions may have

	Sizes        []workbench.Size // default: workbench.StandardSizes
	DefaultImage string           // name or id; default: the image store's
	MaxRunning   int              // foreground runs that execute at once; default 8
	// MaxBackground is how many background runs execute at once, besides the
	// others; default 8. They leave sandboxes for MaxRunning others where there
	// are enough.
	MaxBackground int
	MaxSandboxes  int              // live sandboxes; idle ones make room; default 64
	Warm          map[string]int   // sandboxes kept ready for new sessions, by size; default none
	LeaseTTL      time.Duration    // default 15 s
	SweepEvery    time.Duration    // of deadlines; default 1 s
	SuspendAfter  time.Duration    // without work, the sandbox of a session goes; default 30 s, below 0: never
	WarnBefore    []time.Duration  // a session's deadline; default workbench.DefaultWarnings; empty: never
	RetainEvery   time.Duration    // sweeps of what is kept for a time; default 15 s
	Clock         func() time.Time // default time.Now
	Log           *slog.Logger     // default: discards
	Metrics       Metrics          // default: counts nothing
}

// Metrics is what the engine counts for operators.
type Metrics interface {
	RunEnded(language, status string, queued, ran time.Duration)
	Committed(took time.Duration) // a workspace, after a run
	SandboxStarted(outcome string, took time.Duration)
	pool.Metrics
	Live(sandboxes, running int)
}

// Broker answers what code in a sandbox asks of the server; *broker.Broker is
// one. A receipt comes with the answer where a tool was called.
type Broker interface {
	Serve(ctx context.Context, from govern.Caller, op string, args json.RawMessage) (json.RawMessage, *workbench.ToolReceipt, error)
	// Repeat is Serve for the replay of a run: what that run's calls gave is given
	// again, and nothing leaves.
	Repeat(ctx context.Context, from govern.Caller, of *govern.Recorded, op string, args json.RawMessage) (json.RawMessage, *workbench.ToolReceipt, error)
}

// Tools knows the tools and connections of a project; *govern.Governor is one.
type Tools interface {
	// Validate refuses tools and aliases that the session cannot have.
	Validate(ctx context.Context, s, had workbench.Session) error
	// Hold asks the rules whether a run of the session has to be approved before
	// it starts, and for what; nil if not. The number is that of the rules.
	Hold(ctx context.Context, s workbench.Session, run workbench.Run) (*workbench.Approval, int64, error)
	// MayRead refuses who may not use, now, every tool and connection that
	// something of a session depends on. Code: access_denied.
	MayRead(ctx context.Context, p workbench.Principal, sessionID string, on []workbench.Dependency) error
	// Recorded is what the calls of a run of the session's owner gave.
	Recorded(s workbench.Session, runID string, serve workbench.ReplayTools) *govern.Recorded
	// Expire ends calls that nobody decided in time.
	Expire(ctx context.Context) error
	// Tell tells who decides of calls that wait.
	Tell(ctx context.Context) error
}

// Engine runs sessions. Start it before use and Stop it at the end.
type Engine struct {
	o          Options
	id         string
	log        *slog.Logger
	now        func() time.Time
	foreground *fair.Places
	background *fair.Places
	capacity   *capacity
	wasted     *wastes
	large      chan struct{} // places for large displays
	pool       *pool.Pool    // nil until Start
	sizes      []workbench.Size
	info       sandbox.Info

	began time.Time

	mu       sync.Mutex
	sessions map[string]*compute // of this engine, live or about to be
	stopping bool
	workers  sync.WaitGroup

	expiring, concluding, forgetting *ends // of sessions, each looked for by a loop of its own

	ctx    context.Context // ends when the engine must stop at once
	cancel context.CancelFunc
	drain  chan struct{} // closed when no further run may be dispatched
	loops  sync.WaitGroup

	imagesMu sync.Mutex
	images   map[string]image.Image // by id, see imageOf

	heard    atomic.Pointer[error] // what became of the last heartbeat
	retained time.Time             // when retention was last swept; the sweeping goroutine's
}

// New makes an engine; it does nothing until Start.
func New(o Options) *Engine {
	if o.Sizes == nil {
		o.Sizes = workbench.StandardSizes()
	}
	if o.MaxRunning == 0 {
		o.MaxRunning = 8
	}
	if o.MaxSandboxes == 0 {
		o.MaxSandboxes = 64
	}
	// Every run that executes needs a sandbox: with fewer, runs would wait for
	// each other's.
	asked := o.MaxSandboxes
	o.MaxSandboxes = max(o.MaxSandboxes, o.MaxRunning)
	if o.MaxBackground == 0 {
		o.MaxBackground = 8
	}
	o.MaxBackground = max(1, min(o.MaxBackground, o.MaxSandboxes-o.MaxRunning))
	if o.LeaseTTL == 0 {
		o.LeaseTTL = 15 * time.Second
	}
	if o.SweepEvery == 0 {
		o.SweepEvery = time.Second
	}
	if o.SuspendAfter == 0 {
		o.SuspendAfter = 30 * time.Second
	}
	if o.RetainEvery == 0 {
		o.RetainEvery = 15 * time.Second
	}
	o.WarnBefore = warnings(o.WarnBefore)
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if asked < o.MaxSandboxes {
		o.Log.Warn("there may be more sandboxes than asked for: every run that executes needs one", "asked", asked, "sandboxes", o.MaxSandboxes)
	}
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	if o.ID == "" {
		o.ID = workbench.NewID(workbench.KindEngine)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Engine{
		o: o, id: o.ID, log: o.Log, now: o.Clock,
		foreground: fair.New(o.MaxRunning), background: fair.New(o.MaxBackground), capacity: newCapacity(o.MaxSandboxes),
		wasted:   newWastes(),
		large:    make(chan struct{}, largeAtOnce),
		expiring: newEnds(), concluding: newEnds(), forgetting: newEnds(),
		sessions: map[string]*compute{}, images: map[string]image.Image{}, began: time.Now(),
		ctx: ctx, cancel: cancel, drain: make(chan struct{}),
	}
}

// Start looks at the host, recovers what an earlier process of the instance
// left (its sandboxes are ended, its steps in flight become unknown) and
// begins to work. Codes: runtime_unavailable, unavailable, image_not_found (the
// configured default).
func (e *Engine) Start(ctx context.Context) error {
	info, err := e.o.Driver.Info(ctx)
	if err != nil {
		return err
	}
	e.info = info
	if err := e.checkDefaultImage(ctx); err != nil {
		return err
	}
	e.sizes = fitSizes(e.o.Sizes, info)
	if err := e.checkWarm(); err != nil {
		return err
	}
	e.pool = pool.New(pool.Options{Driver: e.o.Driver, Reserve: e.capacity.tryTake, Release: e.capacity.give, Log: e.log, Metrics: e.o.Metrics})
	e.capacity.yield = e.pool.Yield
	if err := e.recover(ctx); err != nil {
		e.mu.Lock()
		e.stopping = true
		e.mu.Unlock()
		e.cancel()
		e.workers.Wait()
		e.pool.Close()
		return err
	}
	e.stock(ctx)
	e.loop(e.renewLeases, e.o.LeaseTTL/3)
	e.loop(e.sweep, e.o.SweepEvery)
	e.loop(e.endExpired, e.o.SweepEvery)
	e.loop(e.concludeEnded, e.o.SweepEvery)
	e.loop(e.forgetEnded, e.o.SweepEvery)
	e.loop(e.expireCalls, e.o.SweepEvery)
	e.loop(e.meterActive, workbench.MeterEvery)
	e.loop(e.tellOfCalls, e.o.SweepEvery)
	if e.o.SuspendAfter > 0 {
		e.loop(e.suspendIdle, min(suspendEvery, max(time.Millisecond, e.o.SuspendAfter/2)))
	}
	e.loops.Add(1)
	go e.followQueue()
	return nil
}

// Stop drains: no further run is dispatched, runs in flight get until ctx
// ends, then their sandboxes are killed and their steps end as unknown. Queued
// runs stay queued for the next start.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	if !e.stopping {
		e.stopping = true
		close(e.drain)
	}
	e.mu.Unlock()
	drained := make(chan struct{})
	go func() { e.workers.Wait(); close(drained) }()
	var late error
	select {
	case <-drained:
	case <-ctx.Done():
		late = ctx.Err()
	}
	e.cancel()
	<-drained
	e.loops.Wait()
	if e.pool != nil {
		e.pool.Close()
	}
	e.leaveAll()
	kill, done := context.WithTimeout(context.Background(), leaveWithin)
	defer done()
	return errors.Join(late, e.o.Driver.Close(kill))
}

// laterBy is for how long a run has processors and disk for itself, that found
// its session suspended.
const laterBy = 200 * time.Millisecond

// later does what nobody waits for. A stopping engine does it at once.
func (e *Engine) later(f func()) {
	e.mu.Lock()
	if e.stopping {
		e.mu.Unlock()
		f()
		return
	}
	defer e.mu.Unlock()
	e.loops.Go(func() { // waited for by Stop
		select {
		case <-time.After(laterBy):
		case <-e.drain:
		}
		f()
	})
}

// leaveWithin is how long a stopping engine begins to seal memory, and how long
// it then takes for the rest.
const leaveWithin = 10 * time.Second

// leaveAll gives every session up: first it seals the memory of those that keep
// it, as far as there is time.
func (e *Engine) leaveAll() {
	e.mu.Lock()
	all := slices.Collect(maps.Values(e.sessions))
	e.sessions = map[string]*compute{}
	e.mu.Unlock()
	begin, done := context.WithTimeout(context.Background(), leaveWithin)
	defer done()
	keeping := errgroup.Group{}
	keeping.SetLimit(suspendAtOnce)
	for _, c := range all {
		keeping.Go(func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.keep && c.live() && len(c.out) == 0 && begin.Err() == nil {
				c.losing = workbench.LossServer
				c.suspend(begin)
			}
			return nil
		})
	}
	_ = keeping.Wait()
	kill, done := context.WithTimeout(context.Background(), leaveWithin)
	defer done()
	for _, c := range all {
		c.mu.Lock()
		c.dropFor(kill, workbench.LossServer)
		c.accept()
		e.release(kill, c.id, c.epoch)
		c.mu.Unlock()
	}
}

// readyWithin is how soon a database answers that can be worked with.
const readyWithin = 2 * time.Second

// Ready reports whether the engine can accept work: the database answered just
// now, took the last heartbeat, there is an image for sessions, and the engine
// is not stopping. A database that can be read and not written, as on a full
// disk, is not ready.
func (e *Engine) Ready(ctx context.Context) error {
	if e.draining() {
		return errDraining()
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := e.o.Store.Ping(ctx); err != nil {
		return err
	}
	if last := e.heard.Load(); last != nil && *last != nil {
		return *last
	}
	_, err := e.resolveImage(ctx, "")
	return err
}

func errDraining() error {
	return workbench.E(workbench.CodeUnavailable, "the server is shutting down").WithHint("try another server, or again shortly").
		Caused(workbench.ErrStopping)
}

// Sizes lists the sandbox sizes with what this host can hold.
func (e *Engine) Sizes(context.Context) []workbench.Size {
	return append([]workbench.Size(nil), e.sizes...)
}

// loop calls f every interval until the engine stops. It owns its goroutine.
func (e *Engine) loop(f func(context.Context), every time.Duration) {
	e.loops.Add(1)
	go func() {
		defer e.loops.Done()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-e.ctx.Done():
				return
			case <-tick.C:
				f(e.ctx)
			}
		}
	}()
}

type noMetrics struct{}

func (noMetrics) RunEnded(string, string, time.Duration, time.Duration) {}
func (noMetrics) Committed(time.Duration)                               {}
func (noMetrics) SandboxStarted(string, time.Duration)                  {}
func (noMetrics) Claimed(bool)                                          {}
func (noMetrics) Warm(int, int)                                         {}
func (noMetrics) Live(int, int)                                         {}

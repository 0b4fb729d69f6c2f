package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/meter"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/pool"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

const (
	// startWithin bounds one attempt to get a sandbox ready.
	startWithin = 60 * time.Second
	// killWithin bounds the end of a sandbox.
	killWithin = 15 * time.Second
)

// compute is a session's place on this engine: its lease, its sandbox and the
// workspace as last committed.
type compute struct {
	e  *Engine
	id string // of the session

	// These belong to Engine.mu: the lanes' goroutines, whether the session has
	// ended, and whether nothing of it is left here.
	foreground, background lane
	over, forgotten        bool

	grant atomic.Int64 // epoch of a lease that is c's from accept on; 0: none
	held  atomic.Int32 // restarts that cancel what runs: no run begins meanwhile

	// mu is held by whoever uses or changes what follows: a lane while it brings
	// a run to its start and while it settles it, a restart, the end of the
	// session. While code runs nobody holds it for that: out says who has code in
	// the sandbox.
	mu         sync.Mutex
	left       *sync.Cond          // on mu: one of out is settled, or given up
	out        map[*execution]bool // dispatched and not settled
	since      []string            // runs that were active at any time since head was committed
	epoch      int64               // of the lease; 0: not held
	generation int64               // of box
	lost       bool                // the generation's sandbox is gone without a restart
	dirty      bool                // a dispatched run may not be settled
	box        sandbox.Sandbox
	wire       *guestwire.Client
	bound      workbench.Limits
	tree       workspace.Tree
	head       string    // commit that tree is
	base       string    // scan token of tree in the sandbox
	doubt      *doubtful // a commit that head may have to be; see certain
	oomKills   int64     // processes of box that the host had killed for memory, when last looked at
	known      int64     // generation that a run is known to have been dispatched in
	keep       bool      // the session keeps its memory when it is suspended
	meter      meter.Meter
	rate       workbench.Size     // what active time costs
	unmetered  []store.ActiveTime // of the session's runs, not in the ledger yet
	tenant     string             // of the session, once it has a sandbox
	binding    string             // of box: what its guest is bound to

	transfers atomic.Int32 // files of the session on their way, and lanes at work: they keep it awake
	idleSince atomic.Int64 // monotonic, see Engine.uptime; 0 while it works or has no sandbox

	memory       string                    // names what interpreters in box live in: that of its first sandbox
	interpreters map[string]bool           // contexts' handles that may live in it
	losing       workbench.LossReason      // why drop is called, if that is known
	returns      atomic.Pointer[pool.Kind] // what it will come back into, while it is suspended with its memory

	flight sync.Mutex
	stops  map[string]chan workbench.Reason // by run on its way or out; capacity 1; guarded by flight
}

// lane is a queue of a session as this engine works on it.
type lane struct {
	workers int  // goroutines
	again   bool // one of them must look once more
}

func newCompute(e *Engine, id string) *compute {
	c := &compute{e: e, id: id, out: map[*execution]bool{}, stops: map[string]chan workbench.Reason{}}
	c.left = sync.NewCond(&c.mu)
	return c
}

// joined notes that a run has been dispatched. What it changes cannot be told
// from what the others change that are out at any time while it is. The caller
// holds c.mu.
func (c *compute) joined(x *execution) {
	c.meter.Begin(x.run.ID, c.e.elapsed())
	c.out[x] = true
	c.since = append(c.since, x.run.ID)
	if len(c.out) > 1 {
		for other := range c.out {
			other.shared = true
		}
	}
}

// parted notes that a run is settled or given up. The caller holds c.mu.
func (c *compute) parted(x *execution) {
	delete(c.out, x)
	c.left.Broadcast()
}

// advance makes a commit the one that the sandbox is compared with, and returns
// nothing of what was active before but those that still are: x is not among
// them. The caller holds c.mu.
func (c *compute) advance(tree workspace.Tree, commit string, x *execution) {
	c.tree, c.head, c.since = tree, commit, nil
	for other := range c.out {
		if other != x {
			c.since = append(c.since, other.run.ID)
		}
	}
	slices.Sort(c.since)
}

// alone waits until no code of a run is in the sandbox. The caller holds c.mu,
// which others get meanwhile.
func (c *compute) alone() {
	for len(c.out) > 0 {
		c.left.Wait()
	}
}

// lease makes sure this engine owns the session. Code: conflict while another
// engine does, or once this one has forgotten it.
func (c *compute) lease(ctx context.Context) error {
	c.accept()
	if c.epoch > 0 {
		return nil
	}
	if c.e.forgot(c) { // nobody would give it back
		return workbench.E(workbench.CodeConflict, "the session is over")
	}
	epoch, err := c.e.o.Store.AcquireLease(ctx, c.id, c.e.id, c.e.o.LeaseTTL)
	if err != nil {
		return err
	}
	c.epoch = epoch
	return nil
}

// granted hands a lease that came with an admission to the session's place here.
// Where that is about to be given up nobody would give the lease back later.
func (e *Engine) granted(ctx context.Context, id string, epoch int64) {
	if epoch == 0 {
		return
	}
	e.mu.Lock()
	gone := e.stopping
	if !gone {
		c := e.computeLocked(id)
		if gone = c.over; !gone {
			c.grant.Store(epoch)
		}
	}
	e.mu.Unlock()
	if gone {
		e.release(context.WithoutCancel(ctx), id, epoch)
	}
}

// release gives a lease back, if there is one: epoch 0 is none. One that cannot
// be given back runs out once this engine has ended.
func (e *Engine) release(ctx context.Context, id string, epoch int64) {
	if epoch == 0 {
		return
	}
	if err := e.o.Store.ReleaseLease(ctx, id, e.id, epoch); err != nil {
		e.log.Warn("lease not released", "session", id, "err", err)
	}
}

// accept makes a lease that was granted c's. The caller holds c.mu.
func (c *compute) accept() {
	if epoch := c.grant.Swap(0); c.epoch == 0 {
		c.epoch = epoch
	}
}

// fenced gives up what another engine has taken over: the run in flight is
// interrupted, and what it still writes is refused by the store.
func (c *compute) fenced() {
	c.interrupt("", workbench.ReasonServerLost)
	c.e.loops.Go(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), killWithin)
		defer cancel()
		c.drop(ctx)
		c.alone() // what they write is refused
		c.epoch = 0
	})
}

// gaveUp gives the session up if err says that another engine has taken it
// over: whoever wants it again has to get a lease of its own. The caller holds
// c.mu.
func (c *compute) gaveUp(ctx context.Context, err error) bool {
	if !workbench.HasCode(err, workbench.CodeFenced) || c.epoch == 0 {
		return false
	}
	c.drop(ctx)
	c.epoch = 0
	return true
}

// takeoff registers a run in flight, so that a cancel from now on reaches it.
func (c *compute) takeoff(runID string) <-chan workbench.Reason {
	c.flight.Lock()
	defer c.flight.Unlock()
	c.stops[runID] = make(chan workbench.Reason, 1)
	return c.stops[runID]
}

func (c *compute) landed(runID string) {
	c.flight.Lock()
	defer c.flight.Unlock()
	delete(c.stops, runID)
}

// interrupt asks a run in flight to end. An empty runID means all. The first
// reason counts.
func (c *compute) interrupt(runID string, why workbench.Reason) {
	c.flight.Lock()
	defer c.flight.Unlock()
	for id, stop := range c.stops {
		if runID != "" && runID != id {
			continue
		}
		select {
		case stop <- why:
		default:
		}
	}
}

// live reports whether there is a sandbox that still runs.
func (c *compute) live() bool {
	if c.box == nil {
		return false
	}
	select {
	case <-c.box.Done():
		return false
	case <-c.wire.Done():
		return false
	default:
		return true
	}
}

// drop ends the sandbox, if there is one. Its files are those of the last
// commit; everything else of it is gone.
func (c *compute) drop(ctx context.Context) {
	if c.box == nil {
		return
	}
	c.e.capacity.markBusy(c)
	_ = c.wire.Close()
	kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
	defer cancel()
	if err := c.box.Kill(kill); err != nil {
		// The driver's reaper tries again.
		c.e.log.Warn("sandbox not fully removed", "sandbox", c.box.ID(), "err", err)
	}
	c.box, c.wire, c.base, c.lost = nil, nil, "", true
	c.idleSince.Store(0)
	c.e.capacity.give()
	c.loseMemory(ctx)
}

// evict makes room for another session's sandbox and reports whether it did.
func (c *compute) evict(ctx context.Context) bool {
	if !c.mu.TryLock() {
		return false // it is in use
	}
	defer c.mu.Unlock()
	if c.box == nil || len(c.out) > 0 {
		return false
	}
	c.losing = workbench.LossRoom
	c.suspend(ctx)
	return c.box == nil
}

// kill ends a sandbox that is nobody's.
func (e *Engine) kill(ctx context.Context, box sandbox.Sandbox) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
	defer done()
	if err := box.Kill(ctx); err != nil { // the driver's reaper tries again
		e.log.Warn("sandbox not fully removed", "sandbox", box.ID(), "err", err)
	}
	if tail := box.Exit().Stderr; tail != "" {
		e.log.Warn("guest said", "sandbox", box.ID(), "stderr", tail)
	}
}

// loadHead makes tree the session's last commit.
func (c *compute) loadHead(ctx context.Context, s workbench.Session) error {
	head, ok, err := c.e.o.Store.HeadCommit(ctx, s.ID)
	if err != nil {
		return err
	}
	if !ok {
		c.tree, c.head = workspace.Empty(), ""
		return nil
	}
	if c.head == head.ID {
		return nil
	}
	tree, err := c.e.loadTree(ctx, head)
	if err != nil {
		return err
	}
	c.advance(tree, head.ID, nil)
	return nil
}

// build stores a tree of the selected files and nothing else.
func (c *compute) build(ctx context.Context, p workbench.Principal, s workbench.Session, sel []workbench.ArtifactSelect, selected []workbench.Artifact) (workspace.Committed, error) {
	b := c.builder(ctx, s, workspace.Empty())
	made, err := c.fill(ctx, p, b, sel, selected)
	if err != nil {
		c.abandon(ctx, s, b)
	}
	return made, err
}

func (c *compute) fill(ctx context.Context, p workbench.Principal, b *workspace.Builder, sel []workbench.ArtifactSelect, selected []workbench.Artifact) (workspace.Committed, error) {
	for i, a := range selected {
		_, content, err := c.e.o.Artifacts.Open(ctx, p, a.ID)
		if err != nil {
			return workspace.Committed{}, err
		}
		err = b.File(ctx, workspace.Entry{Path: sel[i].Path, Mode: 0o644, Size: a.Size, MtimeNs: c.e.now().UnixNano()}, content)
		_ = content.Close()
		if err != nil {
			return workspace.Committed{}, err
		}
	}
	return b.Commit(ctx)
}

// startOver begins a new generation whose workspace is the tree, and ends the
// sandbox of the old one. With a reason it cancels what waits to begin.
func (c *compute) startOver(ctx context.Context, p workbench.Principal, s workbench.Session, made workspace.Committed, cancel workbench.Reason) error {
	commit := made.Describe(workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: s.ID, TenantID: s.TenantID,
		RunIDs: []string{}, Exclusive: true, CreatedAt: c.e.now()})
	s, commit, err := c.e.o.Store.StartOver(ctx, p, s.ID, c.epoch, commit, made.Refs, cancel)
	if err != nil {
		c.refusedFor(ctx, s, made, err)
		return err
	}
	c.dropFor(ctx, workbench.LossRestart)
	c.advance(made.Tree, commit.ID, nil)
	c.generation, c.lost = s.Generation, false
	return nil
}

// sandboxLimits are the limits a sandbox is bound with: a change of any of them
// needs another sandbox.
func sandboxLimits(l workbench.Limits) workbench.Limits {
	return workbench.Limits{CPUs: l.CPUs, MemoryBytes: l.MemoryBytes, WorkspaceBytes: l.WorkspaceBytes,
		WorkspaceFiles: l.WorkspaceFiles, ScratchBytes: l.ScratchBytes, Tasks: l.Tasks, OpenFiles: l.OpenFiles}
}

func guestLimits(l workbench.Limits) guestwire.SandboxLimits {
	return guestwire.SandboxLimits{MemoryBytes: l.MemoryBytes, WorkspaceBytes: l.WorkspaceBytes, WorkspaceInodes: l.WorkspaceFiles,
		ScratchBytes: l.ScratchBytes, Tasks: l.Tasks, OpenFiles: l.OpenFiles, CPUs: l.CPUs}
}

// outOfMemory reports whether the host killed processes of the sandbox for
// memory since it was last asked. The guest sees only a signal then.
func (c *compute) outOfMemory(ctx context.Context) bool {
	if c.box == nil {
		return false
	}
	stats, err := c.box.Stats(ctx)
	if err != nil {
		return false
	}
	more := stats.OOMKills > c.oomKills
	c.oomKills = max(c.oomKills, stats.OOMKills)
	return more
}

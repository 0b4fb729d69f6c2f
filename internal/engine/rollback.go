package engine

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// RollBack makes a new commit whose tree is that of an earlier one of the
// session: nothing of the history is lost. Files alone go back. A sandbox that
// is there is brought to the tree file by file and keeps its memory; where that
// does not come out exactly, it is given up, and the next run gets another.
// Codes: invalid_request (no commit named), runs_active while a run is not
// terminal, version_mismatch, not_found, commit_gone, conflict, workspace_full
// (the limits are lower now), session_closed, session_expired.
func (e *Engine) RollBack(ctx context.Context, p workbench.Principal, sessionID string, req workbench.RollBack) (workbench.RolledBack, error) {
	none := workbench.RolledBack{}
	s, err := e.changeable(ctx, p, sessionID)
	if err != nil {
		return none, err
	}
	if (req.CommitID == "") == (req.RunID == "") {
		return none, workbench.E(workbench.CodeInvalidRequest, "one of commit and run must name where to go back to").WithField("commit").
			WithHint("send one of them: GET /v1/workbench/sessions/{id}/commits lists the commits")
	}
	target, err := e.chosenCommit(ctx, p, s, req.CommitID, req.RunID)
	if err != nil {
		return none, err
	}
	to, err := e.loadTree(ctx, target)
	if err != nil {
		return none, err
	}
	c := e.compute(sessionID)
	if err := e.lockIdle(ctx, c); err != nil {
		if workbench.HasCode(err, workbench.CodeRunsActive) {
			err = workbench.AsError(err).WithHint("wait for them, or cancel them, and try again")
		}
		return none, err
	}
	defer c.mu.Unlock()
	defer e.Active(sessionID)()
	defer c.rest(ctx)
	// What follows happens whole, also when the caller has left meanwhile.
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), startWithin)
	defer done()
	if s, err = c.take(ctx, p); err != nil {
		return none, err
	}
	if err := fits(to, s.Limits); err != nil {
		return none, err
	}
	if req.ExpectedHead != "" && req.ExpectedHead != c.head {
		return none, workbench.E(workbench.CodeVersionMismatch, "the session's last commit is another one than expectedHead names").WithField("expectedHead").
			WithHint("read the session again and decide anew")
	}
	memory, err := c.rollBack(ctx, s, target, to)
	if err != nil {
		c.gaveUp(ctx, err)
		return none, err
	}
	e.touch(ctx, s.ID)
	out := workbench.RolledBack{Memory: memory}
	if out.Commit, err = e.headOf(ctx, p, c); err == nil {
		out.Session, err = e.session(ctx, p, sessionID)
	}
	return out, err
}

// rollBack commits the tree of an earlier commit and brings the sandbox to it.
// The caller holds c.mu, and no code runs.
func (c *compute) rollBack(ctx context.Context, s workbench.Session, target workbench.Commit, to workspace.Tree) (workbench.Memory, error) {
	memory := workbench.MemoryNone
	if c.live() {
		memory = workbench.MemoryKept
	}
	if to.Root() == c.tree.Root() {
		return memory, nil // it is there already
	}
	commit := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: s.ID, TenantID: s.TenantID, ParentID: c.head, Root: target.Root,
		Generation: max(c.generation, s.Generation), RunIDs: []string{}, Exclusive: true, Files: target.Files, Bytes: target.Bytes,
		RestoredFrom: target.ID, ManifestID: target.ManifestID, CreatedAt: c.e.now()}
	// The session has the blobs already.
	if err := c.add(ctx, commit, nil, to, memory == workbench.MemoryKept); err != nil {
		return memory, err
	}
	if memory == workbench.MemoryKept {
		if err := c.revert(ctx, s, c.tree, to); err != nil {
			c.e.log.Warn("sandbox given up: it could not be brought to an earlier commit", "session", s.ID, "sandbox", c.box.ID(), "err", err)
			c.dropFor(ctx, workbench.LossSandbox)
			memory = workbench.MemoryLost
		}
	}
	c.advance(to, commit.ID, nil)
	return memory, nil
}

// revert brings the sandbox from the tree it has to another.
func (c *compute) revert(ctx context.Context, s workbench.Session, from, to workspace.Tree) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin-10*time.Second)
	defer cancel()
	r := reverting{e: c.e, tenantID: s.TenantID, from: from, to: to}
	if err := r.inSandbox(ctx, c.wire); err != nil {
		return err
	}
	b := c.builder(ctx, s, c.tree)
	b.CompareOnly() // a commit has the contents already
	made, _, err := c.scanWith(ctx, s, b)
	if err == nil && made.Tree.Root() != to.Root() {
		err = workbench.E(workbench.CodeGuestProtocol, "the sandbox has another tree than it was given")
	}
	return err
}

// takeBack undoes a change of the workspace that was made by halves, so that it
// is the last commit again. While code runs, what changes by it cannot be told
// from that: then what is there is committed. The caller holds c.mu.
func (c *compute) takeBack(ctx context.Context, s workbench.Session) error {
	if err := c.certain(ctx); err != nil {
		return err
	}
	c.base = "" // the sandbox and the commit may differ: the scan tells all
	if len(c.out) > 0 {
		made, _, err := c.scan(ctx, s)
		if err == nil {
			err = c.record(ctx, s, made)
		}
		if err != nil {
			c.base = "" // what was scanned is no commit
		}
		return err
	}
	b := c.builder(ctx, s, c.tree)
	b.CompareOnly() // it goes again
	made, _, err := c.scanWith(ctx, s, b)
	switch {
	case err != nil:
		return err
	case made.Tree.Root() == c.tree.Root():
		return nil
	}
	c.base = "" // what was scanned is no tree that the engine goes on with
	return c.revert(ctx, s, made.Tree, c.tree)
}

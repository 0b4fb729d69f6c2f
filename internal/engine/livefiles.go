package engine

import (
	"context"
	"encoding/hex"
	"io"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// edit is a change of a workspace that a caller asks for. It is made in the
// sandbox, if the session has one, and in the tree of the last commit otherwise.
// Both say the same of the same wrong request.
type edit interface {
	inSandbox(ctx context.Context, wire *guestwire.Client, admit admission) error
	inTree(ctx context.Context, b *workspace.Builder, tree workspace.Tree) error
}

// admission says whether a content may be written to a path in the sandbox.
type admission func(path string, content *workspace.Staged) error

// lockPatience is how long a change waits for what holds the session: a run that
// is being started or settled.
const lockPatience = 30 * time.Second

// change makes an edit and commits it. While code runs the commit is shared: it
// holds what the code has made of the workspace so far, too. It returns the head
// with its tree.
func (e *Engine) change(ctx context.Context, p workbench.Principal, sessionID string, ed edit) (workbench.Commit, workspace.Tree, error) {
	if _, err := e.changeable(ctx, p, sessionID); err != nil {
		return workbench.Commit{}, workspace.Tree{}, err
	}
	c := e.compute(sessionID)
	defer e.Active(sessionID)()
	if err := c.lockWithin(ctx, lockPatience); err != nil {
		return workbench.Commit{}, workspace.Tree{}, err
	}
	defer c.mu.Unlock()
	defer c.rest(ctx)
	// What follows happens whole, also when the caller has left meanwhile.
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), startWithin)
	defer done()
	s, err := c.take(ctx, p)
	if err != nil {
		return workbench.Commit{}, workspace.Tree{}, err
	}
	err = c.edit(ctx, s, ed)
	c.gaveUp(ctx, err)
	if err != nil {
		return workbench.Commit{}, workspace.Tree{}, err
	}
	e.touch(ctx, s.ID)
	head, err := e.headOf(ctx, p, c)
	return head, c.tree, err
}

// changeable checks that p may change the session's files.
func (e *Engine) changeable(ctx context.Context, p workbench.Principal, sessionID string) (workbench.Session, error) {
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return workbench.Session{}, err
	}
	s, err := e.session(ctx, p, sessionID)
	if err == nil {
		err = actsAsOwner(p, s)
	}
	if err == nil {
		err = s.Open(e.now())
	}
	if err == nil && e.draining() {
		err = errDraining()
	}
	return s, err
}

func (e *Engine) headOf(ctx context.Context, p workbench.Principal, c *compute) (workbench.Commit, error) {
	if c.head == "" {
		return workbench.Commit{RunIDs: []string{}}, nil
	}
	return e.o.Store.Commit(ctx, p, c.head)
}

// rest is the end of a change. A sandbox that waits for work does so from now; a
// session without one holds next to nothing here again, as a suspended one. The
// caller holds c.mu.
func (c *compute) rest(ctx context.Context) {
	switch {
	case len(c.out) > 0:
	case c.live():
		c.idleSince.Store(c.e.uptime())
		c.e.capacity.markIdle(c)
	case c.resting():
		c.letGo(ctx)
	}
}

// letGo gives the lease of a session back that has nothing here. The caller
// holds c.mu.
func (c *compute) letGo(ctx context.Context) {
	if c.box != nil || len(c.out) > 0 || c.epoch == 0 || c.dirty {
		return
	}
	if err := c.e.o.Store.ReleaseLease(context.WithoutCancel(ctx), c.id, c.e.id, c.epoch); err != nil {
		return // it runs out
	}
	c.vacate()
}

// resting reports whether no lane works for the session: one that does is about
// to need what it finds here.
func (c *compute) resting() bool {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.idle()
}

// lockWithin takes c.mu. Code: runs_active if it is not free in time.
func (c *compute) lockWithin(ctx context.Context, patience time.Duration) error {
	return lockBy(ctx, c.mu.TryLock, patience)
}

// lockBy tries until it succeeds. Code: as lockWithin.
func lockBy(ctx context.Context, try func() bool, patience time.Duration) error {
	for deadline := time.Now().Add(patience); !try(); {
		if time.Now().After(deadline) {
			return workbench.E(workbench.CodeRunsActive, "a run of this session is being started or settled").WithHint("try again")
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return workbench.E(workbench.CodeCancelled, "the request was given up").Caused(ctx.Err())
		}
	}
	return nil
}

// take makes the session this engine's own, with its head and without what an
// earlier failure left, and returns it as it is now. The caller holds c.mu. An
// engine that stops takes nothing any more: it gives c up, or has done so.
func (c *compute) take(ctx context.Context, p workbench.Principal) (workbench.Session, error) {
	if c.e.draining() {
		return workbench.Session{}, errDraining()
	}
	s, err := c.e.session(ctx, p, c.id)
	if err == nil {
		err = s.Open(c.e.now())
	}
	if err != nil {
		c.e.forgetUnused(c) // it ended before this began
		return s, err
	}
	err = c.lease(ctx)
	if err == nil {
		_, _, err = c.clear(ctx)
	}
	if err == nil && !c.live() {
		c.drop(ctx)
		c.alone()
		if err = c.loadHead(ctx, s); err == nil && s.Suspended != nil && s.Suspended.MemoryKept {
			err = c.awake(ctx, s)
		}
	}
	c.gaveUp(ctx, err)
	return s, err
}

// forgetUnused lets go of the place of a session that has ended, if nothing has
// come of it. The caller holds c.mu.
func (e *Engine) forgetUnused(c *compute) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.box == nil && c.epoch == 0 && c.idle() && e.sessions[c.id] == c {
		delete(e.sessions, c.id)
	}
}

// edit makes a change where the workspace is, and commits it. The caller holds
// c.mu.
func (c *compute) edit(ctx context.Context, s workbench.Session, ed edit) error {
	if c.live() && c.bound != sandboxLimits(s.Limits) {
		c.dropFor(ctx, workbench.LossLimits) // it would take what the limits do not allow
	}
	if c.box != nil {
		err := c.editLive(ctx, s, ed)
		if c.live() {
			return err
		}
		// It was lost on the way. What is committed is what there is.
		c.drop(ctx)
		c.alone()
		if err == nil {
			return nil
		}
		if err := c.loadHead(ctx, s); err != nil {
			return err
		}
	}
	// A workspace that holds more than it may is allowed to become smaller.
	entries, bytes := takes(c.tree)
	room := s.Limits
	room.WorkspaceFiles, room.WorkspaceBytes = max(room.WorkspaceFiles, entries), max(room.WorkspaceBytes, bytes)
	b := c.builder(ctx, s, c.tree)
	b.Limit(room.WorkspaceFiles, room.WorkspaceBytes)
	err := ed.inTree(ctx, b, c.tree)
	made := workspace.Committed{}
	if err == nil {
		made, err = b.Commit(ctx)
	}
	if err == nil {
		err = fits(made.Tree, room)
	}
	if err != nil {
		c.abandon(ctx, s, b)
		return err
	}
	return c.record(ctx, s, made)
}

// editLive makes a change in the sandbox and commits what is there then, also
// when only a part of the change could be made.
func (c *compute) editLive(ctx context.Context, s workbench.Session, ed edit) error {
	edited := ed.inSandbox(ctx, c.wire, func(path string, content *workspace.Staged) error { return c.admit(ctx, s, path, content) })
	if lost(edited) || unchanged(edited) {
		return edited
	}
	made, _, err := c.scan(ctx, s)
	if err == nil {
		err = c.record(ctx, s, made)
	}
	if err != nil {
		c.base = "" // the sandbox and the commit may differ: the next scan tells all
		switch {
		case !workbench.HasCode(err, workbench.CodeQuotaExceeded):
		case len(c.out) == 0:
			c.undo(ctx, s)
		default:
			err = workbench.AsError(err).WithHint("the change stays in the sandbox while code runs there, and is committed with the next one that there is room for; %s", workbench.AsError(err).Hint)
		}
		if edited == nil {
			return err
		}
	}
	return edited
}

// admit refuses a file for which the history has no room, while code runs: it
// could not be taken back. Of one that replaces another, and of a content that the
// tree has already, much or all may be stored: the commit judges those.
func (c *compute) admit(ctx context.Context, s workbench.Session, path string, content *workspace.Staged) error {
	if len(c.out) == 0 {
		return nil
	}
	_, known := c.tree.Get(path)
	sum := hex.EncodeToString(content.SHA256[:])
	c.tree.Files(func(entry workspace.Entry) bool {
		known = known || entry.SHA256 == sum
		return !known
	})
	if known {
		return nil
	}
	room, err := c.room(ctx, s)
	if err == nil && content.Size > room.Bytes {
		err = room.Full
	}
	return err
}

// lost reports whether an error says that nobody knows what the sandbox did.
func lost(err error) bool {
	return slices.Contains([]workbench.Code{workbench.CodeSandboxLost, workbench.CodeGuestProtocol, workbench.CodeCancelled}, workbench.CodeOf(err))
}

// unchanged reports whether an error of an edit means that nothing was done.
func unchanged(err error) bool {
	return slices.Contains([]workbench.Code{workbench.CodeNotFound, workbench.CodeVersionMismatch, workbench.CodePathInvalid, workbench.CodeQuotaExceeded}, workbench.CodeOf(err))
}

// record makes a tree the session's head, unless it is that already.
func (c *compute) record(ctx context.Context, s workbench.Session, made workspace.Committed) error {
	if made.Tree.Root() == c.tree.Root() && len(made.Refs) == 0 {
		return nil
	}
	commit := made.Describe(workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: s.ID, TenantID: s.TenantID, ParentID: c.head,
		Generation: max(c.generation, s.Generation), RunIDs: nonNil(c.since), Exclusive: len(c.out) == 0, CreatedAt: c.e.now()})
	if err := c.add(ctx, commit, made.Refs, made.Tree, false); err != nil {
		c.refusedFor(ctx, s, made, err)
		return err
	}
	c.succeed(made.Tree, commit.ID)
	return nil
}

// scan asks the guest what changed since the tree the engine knows, stores the
// contents and returns the new tree. Nothing of it counts until it is recorded.
func (c *compute) scan(ctx context.Context, s workbench.Session) (workspace.Committed, guestwire.ScanResult, error) {
	b := c.builder(ctx, s, c.tree)
	made, result, err := c.scanWith(ctx, s, b)
	if err != nil {
		c.abandon(ctx, s, b)
	}
	return made, result, err
}

func (c *compute) scanWith(ctx context.Context, s workbench.Session, b *workspace.Builder) (workspace.Committed, guestwire.ScanResult, error) {
	result, err := c.wire.Scan(ctx, guestwire.ScanRequest{Base: c.base,
		MaxEntries: s.Limits.WorkspaceFiles, MaxBytes: s.Limits.WorkspaceBytes}, &scanSink{ctx: ctx, builder: b})
	if err != nil {
		return workspace.Committed{}, result, err
	}
	if result.Complete {
		b.DropUnseen() // the scan named everything there is
	}
	made, err := b.Commit(ctx)
	if err != nil {
		return workspace.Committed{}, result, err
	}
	c.base = result.Token
	return made, result, nil
}

// told is a scan that came with a program's end; it begins with what the engine
// knows.
func (c *compute) told(ctx context.Context, s workbench.Session, ch *guestwire.Changes) (workspace.Committed, guestwire.ScanResult, error) {
	b := c.builder(ctx, s, c.tree)
	err := ch.Feed(s.Limits.WorkspaceFiles, s.Limits.WorkspaceBytes, &scanSink{ctx: ctx, builder: b})
	var made workspace.Committed
	if err == nil {
		made, err = b.Commit(ctx)
	}
	if err != nil {
		c.abandon(ctx, s, b)
		return workspace.Committed{}, ch.Scan, err
	}
	c.base = ch.Scan.Token
	return made, ch.Scan, nil
}

// asItWas is what a scan would come to where nothing has changed.
func (c *compute) asItWas(ctx context.Context, s workbench.Session) (workspace.Committed, error) {
	return c.e.o.Workspace.Begin(ctx, s.TenantID, c.tree).Commit(ctx)
}

// WriteFile puts a file into the workspace, whole or not at all, and commits it.
// Directories above it are made. Codes: path_conflict (a directory or link is
// there, or a part of the path is none), version_mismatch, workspace_full,
// session_closed, session_expired, conflict (another server has the session),
// and what r returns.
func (e *Engine) WriteFile(ctx context.Context, p workbench.Principal, sessionID string, w workbench.WriteFile, r io.Reader) (workbench.WorkspaceChange, error) {
	s, err := e.changeable(ctx, p, sessionID)
	if err != nil {
		return workbench.WorkspaceChange{}, err
	}
	limit := s.Limits.WorkspaceBytes
	if w.MaxBytes > 0 {
		limit = min(limit, w.MaxBytes)
	}
	content, err := e.o.Workspace.Stage(ctx, s.TenantID, limit, r) // as slow as the caller sends it
	if err != nil {
		return workbench.WorkspaceChange{}, err
	}
	defer content.Discard(ctx)
	return e.changed(ctx, p, sessionID, w.Path, writing{w, content, e.now()})
}

// DeleteFile takes a file, a link or a directory out of the workspace; a
// directory that is not empty only with recursive. Codes: not_found,
// path_conflict, and those of every change.
func (e *Engine) DeleteFile(ctx context.Context, p workbench.Principal, sessionID, path string, recursive bool) (workbench.WorkspaceChange, error) {
	return e.changed(ctx, p, sessionID, "", deleting{path, recursive})
}

// MoveFile gives a file, a link or a directory another name. Directories above
// the new one are made. Codes: not_found, path_conflict (something is there),
// path_invalid (below itself), and those of every change.
func (e *Engine) MoveFile(ctx context.Context, p workbench.Principal, sessionID string, m workbench.MoveFile) (workbench.WorkspaceChange, error) {
	r := guestwire.MoveRequest{From: guestwire.Path(m.From), To: guestwire.Path(m.To), Overwrite: m.Overwrite}
	if err := r.Check(); err != nil {
		return workbench.WorkspaceChange{}, workbench.AsError(err).WithField("to").WithHint("name another place")
	}
	return e.changed(ctx, p, sessionID, m.To, moving{r})
}

// MakeDirectory makes a directory and those above it; one that is there stays as
// it is. Codes: path_conflict, and those of every change.
func (e *Engine) MakeDirectory(ctx context.Context, p workbench.Principal, sessionID, path string) (workbench.WorkspaceChange, error) {
	return e.changed(ctx, p, sessionID, path, making{path, e.now()})
}

// changed makes an edit and tells what is at a path then.
func (e *Engine) changed(ctx context.Context, p workbench.Principal, sessionID, path string, ed edit) (workbench.WorkspaceChange, error) {
	head, tree, err := e.change(ctx, p, sessionID, ed)
	out := workbench.WorkspaceChange{Commit: head}
	if entry, ok := tree.Get(path); ok && err == nil {
		shown := shownEntry(entry)
		out.Entry = &shown
	}
	return out, onPath(err)
}

package engine

import (
	"context"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// pageBytes is what the sandbox's file system gives a file's content in.
const pageBytes = 4096

// takes is what a tree needs of a workspace: entries, and bytes in whole pages.
func takes(tree workspace.Tree) (entries, bytes int64) {
	entries, _, _ = tree.Counts()
	tree.Files(func(entry workspace.Entry) bool {
		bytes += (entry.Size + pageBytes - 1) / pageBytes * pageBytes
		return true
	})
	return entries, bytes
}

// fits refuses a tree that a workspace with the limits could not hold. Files
// take whole pages there.
func fits(tree workspace.Tree, l workbench.Limits) error {
	entries, bytes := takes(tree)
	if entries <= l.WorkspaceFiles && bytes <= l.WorkspaceBytes {
		return nil
	}
	return workbench.E(workbench.CodeWorkspaceFull, "the workspace would hold %d entries and %d bytes, and may hold %d and %d", entries, bytes, l.WorkspaceFiles, l.WorkspaceBytes).
		WithHint("remove files that are no longer needed, or use a session of a larger size")
}

// Fork makes a new session of the same owner whose workspace is that of a
// commit of this one. The contents are shared, not copied; runs, contexts,
// retained files and memory stay where they are. The session it comes from may
// have ended. Codes: those of CreateSession; not_found, commit_gone, conflict (a
// run without a commit, a session without any), workspace_full.
func (e *Engine) Fork(ctx context.Context, p workbench.Principal, sessionID string, req workbench.ForkSession) (workbench.Session, error) {
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return workbench.Session{}, err
	}
	from, c, err := e.forkPoint(ctx, p, sessionID, req)
	if err != nil {
		return workbench.Session{}, err
	}
	like := forkRequest(from, req)
	like.KeepMemory = from.KeepMemory && e.keepsMemory() // a fork has no say in it
	s, r, err := e.sessionLike(ctx, p, from, like, req)
	if err != nil {
		return workbench.Session{}, err
	}
	s.ForkedFrom = &workbench.Lineage{SessionID: from.ID, RunID: req.RunID, CommitID: c.ID}
	s, err = e.branch(ctx, p, s, r, c)
	if err == nil {
		e.touch(ctx, from.ID)
	}
	return s, err
}

// sessionLike is a new session like another one, with its limits where the request
// names no size.
func (e *Engine) sessionLike(ctx context.Context, p workbench.Principal, from workbench.Session, like workbench.CreateSession, req workbench.ForkSession) (workbench.Session, workbench.Revision, error) {
	s, r, err := e.newSession(ctx, p, like, from)
	if err != nil {
		return s, r, err
	}
	s.KeepAtExpiry, r.KeepAtExpiry = nonNil(from.KeepAtExpiry), nonNil(from.KeepAtExpiry)
	if req.Size == "" { // limits as they are there, lowered
		size, err := e.size(from.Size)
		if err != nil {
			return s, r, err
		}
		if s.Limits, err = from.Limits.Within(size.Limits, req.Limits); err != nil {
			return s, r, err
		}
		r.Limits = s.Limits
	}
	return s, r, nil
}

// branch keeps a session that begins with the workspace of a commit.
func (e *Engine) branch(ctx context.Context, p workbench.Principal, s workbench.Session, r workbench.Revision, c workbench.Commit) (workbench.Session, error) {
	tree, err := e.loadTree(ctx, c)
	if err != nil {
		return workbench.Session{}, err
	}
	if err := fits(tree, s.Limits); err != nil {
		return workbench.Session{}, err
	}
	refs, err := e.o.Workspace.Refs(ctx, c.TenantID, tree)
	if err != nil {
		return workbench.Session{}, err
	}
	first := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: s.ID, TenantID: s.TenantID, Root: c.Root, Generation: s.Generation,
		RunIDs: []string{}, Exclusive: true, Files: c.Files, Bytes: c.Bytes, RestoredFrom: c.ID, ManifestID: c.ManifestID, CreatedAt: s.CreatedAt}
	if first, s.HistoryBytes, err = e.o.Store.Fork(ctx, p, s, r, first, refs); err != nil {
		if _, gone := e.commitOf(ctx, p, c.ID); gone != nil {
			err = gone // it went meanwhile
		}
		return workbench.Session{}, err
	}
	s.HeadCommit = first.ID
	return s, nil
}

// forkPoint finds the session and the commit that a fork begins with.
func (e *Engine) forkPoint(ctx context.Context, p workbench.Principal, sessionID string, req workbench.ForkSession) (workbench.Session, workbench.Commit, error) {
	from, err := e.session(ctx, p, sessionID)
	if workbench.HasCode(err, workbench.CodeNotFound) && req.CommitID != "" {
		if _, gone := e.commitOf(ctx, p, req.CommitID); workbench.HasCode(gone, workbench.CodeCommitGone) {
			err = gone // the session went with it
		}
	}
	if err != nil {
		return from, workbench.Commit{}, err
	}
	if err := actsAsOwner(p, from); err != nil {
		return from, workbench.Commit{}, err
	}
	c, err := e.chosenCommit(ctx, p, from, req.CommitID, req.RunID)
	return from, c, err
}

// chosenCommit is the commit of a session that a caller names: by its id, by
// the run that made it, or the last one. Codes: not_found (also for one of
// another session), commit_gone, conflict.
func (e *Engine) chosenCommit(ctx context.Context, p workbench.Principal, s workbench.Session, commitID, runID string) (workbench.Commit, error) {
	field := "commit"
	switch {
	case commitID != "":
	case runID != "":
		field = "run"
		run, err := e.o.Store.Run(ctx, p, runID)
		if err == nil && run.SessionID != s.ID {
			err = workbench.ErrNotFound("run")
		}
		if err == nil {
			err = hasCommit(run)
		}
		if err != nil {
			return workbench.Commit{}, workbench.AsError(err).WithField(field)
		}
		commitID = run.CommitID
	case s.HeadCommit == "":
		return workbench.Commit{}, workbench.E(workbench.CodeConflict, "the session has no commit yet").
			WithHint("it has one once a run has ended or a file was put into its workspace")
	default:
		commitID = s.HeadCommit
	}
	c, err := e.commitOf(ctx, p, commitID)
	if err == nil && c.SessionID != s.ID {
		err = workbench.ErrNotFound("commit").WithHint("name a commit of this session: GET /v1/workbench/sessions/{id}/commits lists them")
	}
	if err != nil {
		return workbench.Commit{}, workbench.AsError(err).WithField(field)
	}
	return c, nil
}

// forkRequest is the request for a session like the one that is forked.
func forkRequest(from workbench.Session, req workbench.ForkSession) workbench.CreateSession {
	out := workbench.CreateSession{Agent: from.Agent, Labels: from.Labels, Tools: from.Tools, Aliases: from.Aliases, Size: from.Size, Image: from.Image, TTL: req.TTL,
		KeepAtExpiry: from.KeepAtExpiry}
	if req.Agent != nil {
		out.Agent = *req.Agent
	}
	if req.Labels != nil {
		out.Labels = req.Labels
	}
	if req.Size != "" {
		out.Size, out.Limits = req.Size, req.Limits
	}
	if req.Image != "" {
		out.Image = req.Image
	}
	return out
}

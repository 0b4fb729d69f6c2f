package api_test

import (
	"context"
	"io"

	"github.com/workbenchdev/workbench"
)

// The stand-in makes no changes of a workspace: it checks who asks, reads what
// is sent and tells the head. The real ones are tested with real sandboxes.

func (e *standIn) unchangedWorkspace(ctx context.Context, p workbench.Principal, id string) (workbench.WorkspaceChange, error) {
	s, err := e.db.Session(ctx, p, id)
	if err != nil {
		return workbench.WorkspaceChange{}, err
	}
	c, err := e.db.Commit(ctx, p, s.HeadCommit)
	return workbench.WorkspaceChange{Commit: c}, err
}

func (e *standIn) WriteFile(ctx context.Context, p workbench.Principal, id string, w workbench.WriteFile, r io.Reader) (workbench.WorkspaceChange, error) {
	if _, err := e.db.Session(ctx, p, id); err != nil {
		return workbench.WorkspaceChange{}, err
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return workbench.WorkspaceChange{}, err
	}
	change, err := e.unchangedWorkspace(ctx, p, id)
	change.Entry = &workbench.TreeEntry{Path: w.Path, Type: "file", Mode: "0644"}
	return change, err
}

func (e *standIn) DeleteFile(ctx context.Context, p workbench.Principal, id, _ string, _ bool) (workbench.WorkspaceChange, error) {
	return e.unchangedWorkspace(ctx, p, id)
}

func (e *standIn) MoveFile(ctx context.Context, p workbench.Principal, id string, _ workbench.MoveFile) (workbench.WorkspaceChange, error) {
	return e.unchangedWorkspace(ctx, p, id)
}

func (e *standIn) MakeDirectory(ctx context.Context, p workbench.Principal, id, _ string) (workbench.WorkspaceChange, error) {
	return e.unchangedWorkspace(ctx, p, id)
}

func (e *standIn) RollBack(ctx context.Context, p workbench.Principal, id string, r workbench.RollBack) (workbench.RolledBack, error) {
	if r.CommitID == "" && r.RunID == "" {
		return workbench.RolledBack{}, workbench.E(workbench.CodeInvalidRequest, "one of commit and run must be named").WithField("commit").WithHint("send one")
	}
	s, err := e.db.Session(ctx, p, id)
	if err != nil {
		return workbench.RolledBack{}, err
	}
	c, err := e.db.Commit(ctx, p, s.HeadCommit)
	return workbench.RolledBack{Session: s, Commit: c, Memory: workbench.MemoryNone}, err
}

func (e *standIn) Fork(ctx context.Context, p workbench.Principal, id string, r workbench.ForkSession) (workbench.Session, error) {
	from, err := e.db.Session(ctx, p, id)
	if err != nil {
		return from, err
	}
	return e.CreateSession(ctx, p, workbench.CreateSession{Labels: from.Labels, Size: r.Size, Limits: r.Limits, TTL: r.TTL})
}

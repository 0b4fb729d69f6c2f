package engine

import (
	"context"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// waste is what a session wrote to the disk of late and that no commit names.
// It counts in no history, but lies on the disk until the sweep has taken it:
// within wasteKept.
type waste struct {
	at    time.Time
	bytes int64
}

const wasteKept = 5 * time.Minute

// builder begins a change of a tree that stores no more than there is room for
// in the session's history. The caller holds c.mu.
func (c *compute) builder(ctx context.Context, s workbench.Session, parent workspace.Tree) *workspace.Builder {
	b := c.e.o.Workspace.Begin(ctx, s.TenantID, parent)
	b.Limit(s.Limits.WorkspaceFiles, s.Limits.WorkspaceBytes)
	b.Room(c.room)
	return b
}

// room is how many bytes a change may store. Hostile code can have what it
// stores refused again and again: what waits to be swept may be as much as a
// history, and no more.
func (c *compute) room(ctx context.Context) (int64, error) {
	room, err := c.e.o.Store.HistoryRoom(ctx, c.id)
	if most := c.e.o.Store.HistoryQuota().SessionBytes; most > 0 && err == nil {
		room = min(room, most-c.wasted())
	}
	return room, err
}

func (c *compute) wasted() int64 {
	now := c.e.now()
	c.waste = slices.DeleteFunc(c.waste, func(w waste) bool { return now.Sub(w.at) > wasteKept })
	total := int64(0)
	for _, w := range c.waste {
		total += w.bytes
	}
	return total
}

// abandon has what a builder wrote go soon: nothing comes of it.
func (c *compute) abandon(ctx context.Context, s workbench.Session, b *workspace.Builder) {
	blobs, bytes := b.Written()
	c.release(ctx, s, blobs, bytes)
}

// release has blobs go soon that a change wrote, unless something refers to
// them. Where that cannot be noted, they go later.
func (c *compute) release(ctx context.Context, s workbench.Session, blobs []string, bytes int64) {
	if len(blobs) == 0 {
		return
	}
	if bytes > 0 {
		c.waste = append(c.waste, waste{c.e.now(), bytes})
	}
	if err := c.e.o.Store.ReleaseBlobs(context.WithoutCancel(ctx), s.TenantID, blobs, c.e.o.Artifacts.Released(c.e.now())); err != nil {
		c.e.log.Warn("what a change wrote in vain is swept later", "session", s.ID, "err", err)
	}
}

// refusedFor has go what a commit wrote that was refused because a history is
// full.
func (c *compute) refusedFor(ctx context.Context, s workbench.Session, made workspace.Committed, err error) {
	if workbench.HasCode(err, workbench.CodeQuotaExceeded) {
		c.release(ctx, s, made.Refs, made.Written)
	}
}

// uncommitted notes that the workspace as a run left it is not kept, and what
// can be done about it.
func (x *execution) uncommitted(ctx context.Context, err error) {
	x.e.log.Warn("workspace not committed", "run", x.run.ID, "err", err)
	public := workbench.AsError(err)
	detail := "the workspace could not be committed (" + public.Detail + "); the session goes on with the commit before this run"
	if public.Code == workbench.CodeQuotaExceeded && public.Hint != "" {
		detail += ": " + public.Hint
	}
	x.notice(workbench.NoticeCommitFailed, detail)
	if x.c.box == x.box {
		x.c.drop(ctx)
	}
}

// withoutCommit is a settlement whose commit was refused: the run ends as it
// ended, and the session goes on with the commit before.
func (x *execution) withoutCommit(ctx context.Context, s store.Settlement, made workspace.Committed, err error) store.Settlement {
	x.c.refusedFor(ctx, x.s, made, err)
	x.uncommitted(ctx, err)
	if s.Context == nil {
		s.Context = x.leave() // its interpreter went with the sandbox
	}
	x.run.OutputRoot, x.run.CommitID, x.run.Files.Exclusive = "", "", false
	s.Run, s.Commit, s.ManifestRefs, s.Changes = x.run, nil, nil, nil
	if i := slices.IndexFunc(s.Entries, func(e workbench.LogEntry) bool { return e.Kind == workbench.LogFiles }); i >= 0 {
		s.Entries = slices.Delete(slices.Clone(s.Entries), i, i+1)
		for j := i; j < len(s.Entries); j++ {
			s.Entries[j].Seq--
		}
	}
	return s
}

// undo takes an edit back that could be made but not committed, or gives the
// sandbox up. The caller holds c.mu, and no code runs.
func (c *compute) undo(ctx context.Context, s workbench.Session) {
	if err := c.takeBack(ctx, s); err != nil {
		c.e.log.Warn("sandbox given up: a change that was refused could not be taken back", "session", c.id, "err", err)
		c.dropFor(ctx, workbench.LossSandbox)
	}
}

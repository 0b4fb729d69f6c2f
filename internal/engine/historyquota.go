package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// wastes counts, by session and by tenant, what changes wrote to the disk of late
// and no commit names. It counts in no history, but lies on the disk until the
// sweep has taken it: within wasteKept.
type wastes struct {
	mu sync.Mutex
	of map[string][]waste // by the id of a session or tenant, the oldest first
}

// waste is what was written in vain within wasteStep from since on.
type waste struct {
	since time.Time
	bytes int64
}

const (
	wasteKept = 5 * time.Minute
	wasteStep = 10 * time.Second
)

func newWastes() *wastes { return &wastes{of: map[string][]waste{}} }

func (w *wastes) add(id string, now time.Time, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(now)
	all, step := w.of[id], now.Truncate(wasteStep)
	if n := len(all); n > 0 && !all[n-1].since.Before(step) {
		all[n-1].bytes += bytes
		return
	}
	w.of[id] = append(all, waste{step, bytes})
}

func (w *wastes) bytes(id string, now time.Time) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(now)
	total := int64(0)
	for _, each := range w.of[id] {
		total += each.bytes
	}
	return total
}

func (w *wastes) forget(now time.Time) {
	for id, all := range w.of {
		all = slices.DeleteFunc(all, func(each waste) bool { return now.Sub(each.since) > wasteKept+wasteStep })
		if w.of[id] = all; len(all) == 0 {
			delete(w.of, id)
		}
	}
}

// builder begins a change of a tree that stores no more than there is room for
// in the session's history. The caller holds c.mu.
func (c *compute) builder(ctx context.Context, s workbench.Session, parent workspace.Tree) *workspace.Builder {
	b := c.e.o.Workspace.Begin(ctx, s.TenantID, parent)
	b.Limit(s.Limits.WorkspaceFiles, s.Limits.WorkspaceBytes)
	b.Room(func(ctx context.Context) (workspace.Room, error) { return c.room(ctx, s) })
	return b
}

// room is how many bytes a change may store. Hostile code can have what it
// stores refused again and again: what a session and a tenant's sessions have
// waiting to be swept may be as much as their histories, and no more.
func (c *compute) room(ctx context.Context, s workbench.Session) (workspace.Room, error) {
	left, err := c.e.o.Store.HistoryRoom(ctx, c.id)
	if err != nil {
		return workspace.Room{}, err
	}
	room := workspace.Room{Bytes: left.Bytes, Full: left.Full}
	q, now := c.e.o.Store.HistoryQuota(), c.e.now()
	for _, scope := range []struct {
		id, whose string
		most      int64
	}{{s.ID, "the session", q.SessionBytes}, {s.TenantID, "the tenant's sessions", q.TenantBytes}} {
		if rest := scope.most - c.e.wasted.bytes(scope.id, now); scope.most > 0 && rest < room.Bytes {
			room = workspace.Room{Bytes: rest, Full: errWasted(scope.whose, scope.most)}
		}
	}
	return room, nil
}

func errWasted(whose string, most int64) error {
	return workbench.E(workbench.CodeQuotaExceeded, "what %s stored of late, and no commit names, may be no more than %d bytes until it is deleted", whose, most).
		WithField("historyBytes").WithHint("try again in five minutes: it is deleted by then")
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
		c.e.wasted.add(s.ID, c.e.now(), bytes)
		c.e.wasted.add(s.TenantID, c.e.now(), bytes)
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
// can be done about it. A sandbox that others have code in stays as it is.
func (x *execution) uncommitted(ctx context.Context, err error) {
	x.e.log.Warn("workspace not committed", "run", x.run.ID, "err", err)
	public := workbench.AsError(err)
	shares := x.c.box == x.box && !x.lone() && x.c.live() && !lost(err)
	goesOn := "the session goes on with the commit before this run"
	if shares {
		goesOn = "other runs are in the sandbox, so what this run changed stays there until they have ended, and is committed with the next change that there is room for"
	}
	detail := "the workspace could not be committed (" + public.Detail + "); " + goesOn
	if public.Code == workbench.CodeQuotaExceeded && public.Hint != "" {
		detail += ": " + public.Hint
	}
	x.notice(workbench.NoticeCommitFailed, detail)
	switch {
	case shares:
		x.c.base = "" // the sandbox and the commit differ: the next scan tells all
	case x.c.box == x.box:
		x.c.drop(ctx)
	}
}

// withoutCommit is a settlement whose commit was refused: the run ends as it
// ended, and the session goes on with the commit before.
func (x *execution) withoutCommit(ctx context.Context, s store.Settlement, made workspace.Committed, err error) store.Settlement {
	x.c.refusedFor(ctx, x.s, made, err)
	x.uncommitted(ctx, err)
	if s.Context == nil {
		s.Context = x.leave() // its interpreter may have gone with the sandbox
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

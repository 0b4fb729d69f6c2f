package govern

import (
	"context"
	"slices"
	"sync"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// Recorded is what the calls of a run gave, to be given to its replay: each once, in
// the order that they were made. A replay calls no tool, whatever it asks for. It is
// safe for concurrent use.
type Recorded struct {
	g     *Governor
	owner workbench.Principal
	runID string
	serve workbench.ReplayTools

	mu     sync.Mutex
	loaded bool
	rest   []workbench.ToolReceipt
}

// Recorded is that of a run of the session's owner. With ReplayRefuses it gives nothing.
func (g *Governor) Recorded(s workbench.Session, runID string, serve workbench.ReplayTools) *Recorded {
	owner := workbench.Principal{ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, GroupID: s.GroupID, KeyKind: workbench.KeyDirect,
		Scopes: []workbench.Scope{workbench.ScopeRead}}
	return &Recorded{g: g, owner: owner, runID: runID, serve: serve}
}

// Call is the receipt of the first of the run's calls that has not been given and is
// the same: of the tool, with the connection and the arguments, and at the version
// where one is named. Code: replay_called_tools where there is none.
func (r *Recorded) Call(ctx context.Context, req CallRequest) (workbench.ToolReceipt, error) {
	if r.serve != workbench.ReplayRecorded {
		return workbench.ToolReceipt{}, workbench.E(workbench.CodeReplayTools, "this is a replay, which calls no tools").
			WithHint("a replay with tools: recorded is given what the original's calls gave")
	}
	_, digest, err := canonical(req.Arguments)
	if err != nil {
		return workbench.ToolReceipt{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.load(ctx); err != nil {
		return workbench.ToolReceipt{}, err
	}
	i := slices.IndexFunc(r.rest, func(c workbench.ToolReceipt) bool {
		return c.Tool == req.Tool && c.Alias == req.Connection && c.ArgsDigest == digest && (req.Version == "" || c.Version == req.Version)
	})
	if i < 0 {
		return workbench.ToolReceipt{}, workbench.E(workbench.CodeReplayTools, "this is a replay, and the original made no such call").
			WithHint("a replay is given what the original's calls gave, each once: it calls no tool itself")
	}
	given, err := r.g.look(ctx, r.owner, r.rest[i].ID)
	if err == nil {
		r.rest = slices.Delete(r.rest, i, i+1)
	}
	if e := given.Error; err == nil && e != nil && given.Status == workbench.CallFailed && given.StartedAt == nil {
		err = workbench.E(e.Code, "%s", e.Detail).WithHint("%s", e.Hint).WithField(e.Field) // a mistake of the code: it was an exception then
	}
	return given, err
}

// Packages are the sets that the run had at its end.
func (r *Recorded) Packages(ctx context.Context) ([]workbench.PackageSet, error) {
	run, err := r.g.o.Store.Run(ctx, r.owner, r.runID)
	return run.Packages, err
}

func (r *Recorded) load(ctx context.Context) error {
	if r.loaded {
		return nil
	}
	var all []workbench.ToolReceipt
	for page := (workbench.Page{Limit: workbench.MaxPageLimit}); ; {
		l, err := r.g.o.Store.CallReceipts(ctx, r.owner, store.CallFilter{RunID: r.runID}, page)
		if err != nil {
			return err
		}
		all = append(all, l.Items...)
		if page.Cursor = l.NextCursor; page.Cursor == "" {
			break
		}
	}
	slices.SortFunc(all, func(a, b workbench.ToolReceipt) int { return int(a.Number - b.Number) })
	r.rest, r.loaded = all, true
	return nil
}

// Receipt reads a receipt of the run's session, as the code that is repeated could.
func (r *Recorded) Receipt(ctx context.Context, id string) (workbench.ToolReceipt, error) {
	c, err := r.g.look(ctx, r.owner, id)
	if err == nil && c.RunID != r.runID {
		return workbench.ToolReceipt{}, workbench.ErrNotFound("receipt")
	}
	return c, err
}

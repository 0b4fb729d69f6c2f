package engine

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

const (
	// comparedFile is the largest text, on either side, that is compared line by
	// line.
	comparedFile = 1 << 20
	// comparedPage is how much text one page compares: the page ends before it
	// would be more.
	comparedPage = 4 << 20
)

// CompareCommits compares a commit with another of the same owner: with its
// parent where from is "". Codes: not_found, commit_gone.
func (e *Engine) CompareCommits(ctx context.Context, p workbench.Principal, id, from string) (workbench.Compared, error) {
	if err := mayReadContents(p); err != nil {
		return nil, err
	}
	to, tree, err := e.treeOf(ctx, p, id)
	if err == nil {
		err = e.filesOf(ctx, p, to.SessionID)
	}
	if err != nil {
		return nil, err
	}
	out := workbench.Comparison{From: from, To: to.ID, RunIDs: []string{}}
	if from == "" || from == to.ParentID {
		out.From, out.RunIDs, out.Exclusive = to.ParentID, nonNil(to.RunIDs), to.Exclusive
	}
	base := workspace.Empty()
	if out.From != "" {
		var c workbench.Commit
		if c, base, err = e.treeOf(ctx, p, out.From); err != nil {
			return nil, workbench.AsError(err).WithField("from")
		}
		if c.TenantID != to.TenantID {
			return nil, workbench.ErrNotFound("commit").WithField("from")
		}
		if err := e.filesOf(ctx, p, c.SessionID); err != nil {
			return nil, err
		}
	}
	return e.compared(to.TenantID, out, base, tree), nil
}

// CompareRun compares the tree that a run left with the one it began with.
// Codes: not_found, conflict (it has not ended, or left no commit), commit_gone.
func (e *Engine) CompareRun(ctx context.Context, p workbench.Principal, runID string) (workbench.Compared, error) {
	if err := mayReadContents(p); err != nil {
		return nil, err
	}
	run, err := e.o.Store.Run(ctx, p, runID)
	if err == nil {
		err = e.filesOf(ctx, p, run.SessionID)
	}
	if err != nil {
		return nil, err
	}
	if err := hasCommit(run); err != nil {
		return nil, err
	}
	to, tree, err := e.treeOf(ctx, p, run.CommitID)
	if err != nil {
		return nil, err
	}
	out := workbench.Comparison{To: to.ID, RunIDs: []string{run.ID}, Exclusive: run.Files.Exclusive}
	base := workspace.Empty()
	before := to.Number
	if run.InputRoot == to.Root {
		before++ // it changed nothing
	}
	if c, ok, err := e.o.Store.CommitWithRoot(ctx, run.SessionID, run.InputRoot, before); err != nil {
		return nil, err
	} else if ok {
		out.From = c.ID
		if base, err = e.loadTree(ctx, c); err != nil {
			return nil, err
		}
	}
	if base.Root() != run.InputRoot {
		return nil, workbench.E(workbench.CodeCorrupt, "the tree that the run began with is not among the session's commits")
	}
	return e.compared(to.TenantID, out, base, tree), nil
}

// hasCommit refuses a run that left no tree, and says why.
func hasCommit(run workbench.Run) error {
	switch {
	case run.CommitID != "":
		return nil
	case !run.Status.Terminal():
		return workbench.E(workbench.CodeConflict, "the run has not ended, and what it leaves is known then").WithHint("wait for its end: GET /v1/workbench/runs/{id}?waitMs=…")
	}
	return workbench.E(workbench.CodeConflict, "the run ended as %s and left no commit", run.Status).
		WithHint("the workspace stayed as it was before the run: use the commit before it, or another run")
}

// compared is what differs from tree a to tree b; about is what every page of it
// says.
func (e *Engine) compared(tenantID string, about workbench.Comparison, a, b workspace.Tree) workbench.Compared {
	changes := workspace.Diff(a, b)
	about.Total = len(changes)
	return func(ctx context.Context, page workbench.Page) (workbench.Comparison, error) {
		after, limit, err := pageOf(page)
		if err != nil {
			return about, err
		}
		out := about
		out.Items = []workbench.FileDiff{}
		compared, last := int64(0), ""
		for _, change := range changes {
			if page.Cursor != "" && change.Path <= after {
				continue
			}
			d := difference{change: change}
			d.find(a, b)
			text := d.bytes()
			if len(out.Items) == limit || compared > 0 && compared+text > comparedPage {
				out.Next = cursorOf(last)
				break
			}
			compared += text
			shown, err := e.fileDiff(ctx, tenantID, d, a, b)
			if err != nil {
				return out, err
			}
			out.Items = append(out.Items, shown)
			last = change.Path
		}
		return out, nil
	}
}

// difference is one path at which two trees differ; a side is nil where nothing
// is.
type difference struct {
	change   workbench.ChangedFile
	old, now *workspace.Entry
}

func (d *difference) find(a, b workspace.Tree) {
	if entry, ok := a.Get(d.change.Path); ok {
		d.old = &entry
	}
	if entry, ok := b.Get(d.change.Path); ok {
		d.now = &entry
	}
}

// bytes is how much text is to be compared for it.
func (d *difference) bytes() int64 {
	if d.large() || d.sameContent() {
		return 0
	}
	return contentSize(d.old) + contentSize(d.now)
}

func (d *difference) large() bool {
	return contentSize(d.old) > comparedFile || contentSize(d.now) > comparedFile
}

func (d *difference) sameContent() bool {
	return d.old != nil && d.now != nil && d.old.Type == d.now.Type && d.old.SHA256 == d.now.SHA256 && d.old.Target == d.now.Target
}

func contentSize(entry *workspace.Entry) int64 {
	if entry == nil || entry.Type != workspace.File {
		return 0
	}
	return entry.Size
}

func version(entry *workspace.Entry) *workbench.FileVersion {
	if entry == nil {
		return nil
	}
	return &workbench.FileVersion{Type: entry.Type.String(), Size: entry.Size, SHA256: entry.SHA256, Mode: fmt.Sprintf("%04o", entry.Mode)}
}

// fileDiff describes one difference, with a patch where both sides are text.
func (e *Engine) fileDiff(ctx context.Context, tenantID string, d difference, a, b workspace.Tree) (workbench.FileDiff, error) {
	out := workbench.FileDiff{Change: d.change.Change, Old: version(d.old), New: version(d.now)}
	out.Path, out.PathBase64 = workbench.NameText(d.change.Path)
	if d.large() && !d.sameContent() {
		out.Truncated = true
		out.Diff = patchOf(d, nil, nil, true).text
		return out, nil
	}
	old, err := e.side(ctx, tenantID, a, d.old, d.sameContent())
	if err != nil {
		return out, err
	}
	now, err := e.side(ctx, tenantID, b, d.now, d.sameContent())
	if err != nil {
		return out, err
	}
	out.Binary = isBinary(old) || isBinary(now)
	patch := patchOf(d, old, now, out.Binary)
	out.Diff, out.Additions, out.Deletions = patch.text, patch.additions, patch.deletions
	return out, nil
}

// side is the content of one side as it is compared: a file's bytes, a link's
// target, nothing of a directory or where nothing is.
func (e *Engine) side(ctx context.Context, tenantID string, tree workspace.Tree, entry *workspace.Entry, unread bool) ([]byte, error) {
	switch {
	case entry == nil || unread:
		return nil, nil
	case entry.Type == workspace.Symlink:
		return []byte(entry.Target), nil
	case entry.Type != workspace.File:
		return nil, nil
	}
	_, content, err := e.o.Workspace.Open(ctx, tenantID, tree, entry.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // only read
	var b strings.Builder
	if _, err := io.Copy(&b, io.LimitReader(content, comparedFile)); err != nil {
		return nil, err
	}
	return []byte(b.String()), nil
}

package engine

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// mayReadContents refuses an admin key without the grant. That p may see the
// thing is the store's to say.
func mayReadContents(p workbench.Principal) error {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return err
	}
	if p.Admin() && !p.Contents {
		return workbench.E(workbench.CodeForbidden, "this key sees metadata, not contents").
			WithHint(`use the owner's key, or an admin key that was made with "contents": true`)
	}
	return nil
}

// filesOf refuses who may not use, now, every tool that the files of a session
// may come from. Code: access_denied.
func (e *Engine) filesOf(ctx context.Context, p workbench.Principal, sessionID string) error {
	on, err := e.o.Store.SessionDependencies(ctx, sessionID)
	if err != nil || len(on) == 0 {
		return err
	}
	return e.o.Tools.MayRead(ctx, p, sessionID, on)
}

// Commits lists a session's commits, newest first.
func (e *Engine) Commits(ctx context.Context, p workbench.Principal, sessionID string, page workbench.Page) (workbench.List[workbench.Commit], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.Commit]{}, err
	}
	return e.o.Store.ListCommits(ctx, p, sessionID, page)
}

// Commit reads a commit. Codes: not_found, commit_gone.
func (e *Engine) Commit(ctx context.Context, p workbench.Principal, id string) (workbench.Commit, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.Commit{}, err
	}
	return e.commitOf(ctx, p, id)
}

// commitOf tells a commit that is gone from one that never was.
func (e *Engine) commitOf(ctx context.Context, p workbench.Principal, id string) (workbench.Commit, error) {
	c, err := e.o.Store.Commit(ctx, p, id)
	if !workbench.HasCode(err, workbench.CodeNotFound) {
		return c, err
	}
	gone, goneErr := e.o.Store.CommitGone(ctx, p, id)
	if workbench.HasCode(goneErr, workbench.CodeNotFound) {
		return c, err
	}
	if goneErr != nil {
		return c, goneErr
	}
	return c, workbench.E(workbench.CodeCommitGone, "the commit was deleted at %s: %s", gone.At.UTC().Format(time.RFC3339), gone.Reason).
		WithHint("files that must live longer are retained files, or belong to a fork of the session")
}

// treeOf loads the tree of a commit that p may see.
func (e *Engine) treeOf(ctx context.Context, p workbench.Principal, id string) (workbench.Commit, workspace.Tree, error) {
	c, err := e.commitOf(ctx, p, id)
	if err != nil {
		return c, workspace.Tree{}, err
	}
	tree, err := e.loadTree(ctx, c)
	return c, tree, err
}

// CommitTree pages the entries of a commit. Codes: not_found, commit_gone,
// path_conflict (a part of the path is no directory).
func (e *Engine) CommitTree(ctx context.Context, p workbench.Principal, id string, q workbench.TreeQuery) (workbench.List[workbench.TreeEntry], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.TreeEntry]{}, err
	}
	_, tree, err := e.treeOf(ctx, p, id)
	if err != nil {
		return workbench.List[workbench.TreeEntry]{}, err
	}
	list, err := listTree(tree, q)
	return list, ofCommit(err, id)
}

// ofCommit is an error about a path, of the tree of a commit.
func ofCommit(err error, id string) error {
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return workbench.AsError(err).WithHint("list the tree of the commit %s to see its exact names", id)
	}
	return err
}

// CommitFile opens a file as a commit has it. Codes: not_found, commit_gone,
// path_conflict (it is no regular file).
func (e *Engine) CommitFile(ctx context.Context, p workbench.Principal, id, path string) (workbench.TreeEntry, io.ReadSeekCloser, error) {
	if err := mayReadContents(p); err != nil {
		return workbench.TreeEntry{}, nil, err
	}
	c, tree, err := e.treeOf(ctx, p, id)
	if err == nil {
		err = e.filesOf(ctx, p, c.SessionID)
	}
	if err != nil {
		return workbench.TreeEntry{}, nil, err
	}
	e.touch(ctx, c.SessionID)
	entry, content, err := e.openFile(ctx, c.TenantID, tree, path)
	return entry, content, ofCommit(err, id)
}

// CommitTar checks that p may have the files of a commit, and returns what
// writes them as an archive.
func (e *Engine) CommitTar(ctx context.Context, p workbench.Principal, id string) (func(io.Writer) error, error) {
	if err := mayReadContents(p); err != nil {
		return nil, err
	}
	c, tree, err := e.treeOf(ctx, p, id)
	if err == nil {
		err = e.filesOf(ctx, p, c.SessionID)
	}
	if err != nil {
		return nil, err
	}
	e.touch(ctx, c.SessionID)
	return func(w io.Writer) error { return e.o.Workspace.WriteTar(ctx, c.TenantID, tree, w) }, nil
}

// touch counts a transfer as activity of a session that is still open. That it
// could not be noted fails no transfer.
func (e *Engine) touch(ctx context.Context, sessionID string) {
	if err := e.o.Store.TouchSession(ctx, sessionID, e.now()); err != nil {
		e.log.Warn("activity not noted", "session", sessionID, "err", err)
	}
}

// openFile opens a file of a tree.
func (e *Engine) openFile(ctx context.Context, tenantID string, tree workspace.Tree, path string) (workbench.TreeEntry, io.ReadSeekCloser, error) {
	entry, err := lookUp(tree, path)
	if err != nil {
		return workbench.TreeEntry{}, nil, err
	}
	if err := isFile(entry.Type.String()); err != nil {
		return workbench.TreeEntry{}, nil, err
	}
	_, content, err := e.o.Workspace.Open(ctx, tenantID, tree, path)
	return shownEntry(entry), content, err
}

// isFile refuses to read or write what is no regular file.
func isFile(kind string) error {
	switch kind {
	case workspace.Symlink.String():
		return workbench.E(workbench.CodePathConflict, "the path is a symbolic link, which is never followed").WithField("path").
			WithHint("the list shows its target: name that, if it is inside the workspace")
	case workspace.Dir.String():
		return workbench.E(workbench.CodePathConflict, "the path is a directory, not a file").WithField("path").WithHint("list it, or name a file in it")
	}
	return nil
}

// lookUp finds an entry. Codes: not_found, path_conflict for a path below what
// is no directory.
func lookUp(tree workspace.Tree, path string) (workspace.Entry, error) {
	if entry, ok := tree.Get(path); ok {
		return entry, nil
	}
	if err := isBelowDirs(tree, path); err != nil {
		return workspace.Entry{}, err
	}
	return workspace.Entry{}, noSuchFile()
}

func noSuchFile() error {
	return workbench.ErrNotFound("file").WithField("path").WithHint("list the workspace to see its exact names")
}

func noSuchDirectory() error {
	return workbench.ErrNotFound("directory").WithField("path").WithHint("list the workspace to see its exact names")
}

// onPath is an error of a sandbox about the path that a request names.
func onPath(err error) error {
	if e := workbench.AsError(err); workbench.HasCode(err, workbench.CodePathConflict) && e.Field == "" {
		return e.WithField("path")
	}
	return err
}

// isBelowDirs refuses a path below a file or a link.
func isBelowDirs(tree workspace.Tree, path string) error {
	for at := 0; ; at++ {
		n := strings.IndexByte(path[at:], '/')
		if n < 0 {
			return nil
		}
		at += n
		if above, ok := tree.Get(path[:at]); ok && above.Type != workspace.Dir {
			return workbench.E(workbench.CodePathConflict, "a part of the path is a symbolic link or no directory").WithField("path").
				WithHint("links are never followed: name the real path")
		}
	}
}

// listTree pages the entries below a directory, or the one entry that is none.
func listTree(tree workspace.Tree, q workbench.TreeQuery) (workbench.List[workbench.TreeEntry], error) {
	none := workbench.List[workbench.TreeEntry]{Items: []workbench.TreeEntry{}}
	after, limit, err := pageOf(q.Page)
	if err != nil {
		return none, err
	}
	page := treePage{after: walkKey(after), limit: limit, list: none}
	if q.Path != "" {
		entry, err := lookUp(tree, q.Path)
		if workbench.HasCode(err, workbench.CodeNotFound) {
			err = noSuchDirectory()
		}
		if err != nil {
			return none, err
		}
		if entry.Type != workspace.Dir {
			page.add(entry)
			return page.list, nil
		}
	}
	if !q.Recursive {
		entries, err := tree.List(q.Path)
		if err != nil {
			return none, err
		}
		for _, entry := range entries {
			if !page.add(entry) {
				break
			}
		}
		return page.list, nil
	}
	prefix, inside := q.Path+"/", q.Path == ""
	tree.Walk(func(entry workspace.Entry) bool {
		if !inside && !strings.HasPrefix(entry.Path, prefix) {
			return true
		}
		return page.add(entry)
	})
	return page.list, nil
}

// treePage collects entries that come in the order of a walk.
type treePage struct {
	after string // walkKey
	limit int
	last  string
	list  workbench.List[workbench.TreeEntry]
}

// add reports whether the page can take more.
func (p *treePage) add(entry workspace.Entry) bool {
	if p.after != "" && walkKey(entry.Path) <= p.after {
		return true
	}
	if len(p.list.Items) == p.limit {
		p.list.NextCursor = cursorOf(p.last)
		return false
	}
	p.last = entry.Path
	p.list.Items = append(p.list.Items, shownEntry(entry))
	return true
}

// walkKey sorts paths in the order of a walk: a directory before what is in it,
// and that before its next neighbour.
func walkKey(path string) string { return strings.ReplaceAll(path, "/", "\x00") }

// Cursors of lists of paths are the last path, opaque to callers.

func cursorOf(path string) string { return base64.RawURLEncoding.EncodeToString([]byte(path)) }

// pageOf is where a page of paths begins, and how many it holds.
func pageOf(page workbench.Page) (after string, limit int, err error) {
	limit = page.Limit
	if limit == 0 {
		limit = workbench.DefaultPageLimit
	}
	if err := workbench.InRange("limit", int64(limit), 1, workbench.MaxPageLimit); err != nil {
		return "", 0, err
	}
	raw, err := base64.RawURLEncoding.DecodeString(page.Cursor)
	if err != nil || len(raw) > workbench.MaxTreePathBytes {
		return "", 0, workbench.E(workbench.CodeInvalidRequest, "the cursor is not one of this list").WithField("cursor").
			WithHint("send nextCursor of the previous page unchanged, or leave cursor out to start again")
	}
	return string(raw), limit, nil
}

// shownEntry is an entry as it is told.
func shownEntry(entry workspace.Entry) workbench.TreeEntry {
	t := workbench.TreeEntry{Type: entry.Type.String(), Size: entry.Size, SHA256: entry.SHA256, Mode: fmt.Sprintf("%04o", entry.Mode),
		ModifiedAt: time.Unix(0, entry.MtimeNs).UTC()}
	t.Path, t.PathBase64 = workbench.NameText(entry.Path)
	t.Target, t.TargetBase64 = workbench.NameText(entry.Target)
	return t
}

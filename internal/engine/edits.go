package engine

import (
	"context"
	"encoding/hex"
	"io"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// fileMode is the mode of a file that is new.
const fileMode = 0o644

// found is what an edit meets at a path; its kind is "" where nothing is.
type found struct {
	kind   string
	mode   uint32
	sha256 func() (string, error)
}

// meet looks at a path of the sandbox. Codes: path_conflict for one below what
// is no directory.
func meet(ctx context.Context, wire *guestwire.Client, path string) (found, error) {
	page, err := wire.ListFiles(ctx, guestwire.ListRequest{Path: guestwire.Path(path), Limit: 1})
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return found{}, nil
	}
	if err != nil {
		return found{}, err
	}
	if len(page.Entries) == 0 || string(page.Entries[0].Path) != path {
		return found{kind: workspace.Dir.String()}, nil // its entries were listed
	}
	e := page.Entries[0]
	return found{kind: string(e.Type), mode: e.Mode, sha256: func() (string, error) {
		read, err := wire.ReadFile(ctx, e.Path, io.Discard)
		return hex.EncodeToString(read.SHA256), err
	}}, nil
}

// meetInTree looks at a path of a tree.
func meetInTree(tree workspace.Tree, path string) (found, error) {
	entry, ok := tree.Get(path)
	if !ok {
		return found{}, isBelowDirs(tree, path)
	}
	return found{kind: entry.Type.String(), mode: entry.Mode, sha256: func() (string, error) { return entry.SHA256, nil }}, nil
}

// writing puts a file in its place.
type writing struct {
	w       workbench.WriteFile
	content *workspace.Staged
	at      time.Time
}

// mode checks what is there and says which mode the file gets.
func (w writing) mode(there found) (uint32, error) {
	if err := isFile(there.kind); err != nil {
		return 0, err
	}
	mismatch := func(header, detail string) error {
		return workbench.E(workbench.CodeVersionMismatch, "%s", detail).WithField(header).WithHint("read the file again and decide anew")
	}
	switch {
	case w.w.IfAbsent && there.kind != "":
		return 0, mismatch("If-None-Match", "the file exists already")
	case w.w.IfMatch != "" && there.kind == "":
		return 0, mismatch("If-Match", "there is no such file")
	case w.w.IfMatch != "" && w.w.IfMatch != "*":
		sum, err := there.sha256()
		if err != nil {
			return 0, err
		}
		if sum != w.w.IfMatch {
			return 0, mismatch("If-Match", "the file has other contents than If-Match names")
		}
	}
	switch {
	case w.w.Mode != nil:
		return *w.w.Mode, nil
	case there.kind != "":
		return there.mode, nil
	}
	return fileMode, nil
}

func (w writing) inSandbox(ctx context.Context, wire *guestwire.Client, admit admission) error {
	there, err := meet(ctx, wire, w.w.Path)
	if err != nil {
		return err
	}
	mode, err := w.mode(there)
	if err != nil {
		return err
	}
	if err := admit(w.w.Path, w.content); err != nil {
		return err
	}
	content, err := w.content.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }() // only read
	_, err = wire.WriteFiles(ctx, &oneEntry{content: content, entry: guestwire.Entry{Path: guestwire.Path(w.w.Path), Type: guestwire.TypeFile, Mode: mode,
		Size: w.content.Size, MtimeNs: w.at.UnixNano(), SHA256: w.content.SHA256[:], Content: true, Replace: true, Parents: true}})
	return err
}

func (w writing) inTree(ctx context.Context, b *workspace.Builder, tree workspace.Tree) error {
	there, err := meetInTree(tree, w.w.Path)
	if err != nil {
		return err
	}
	mode, err := w.mode(there)
	if err != nil {
		return err
	}
	content, err := w.content.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }() // only read
	return b.File(ctx, workspace.Entry{Path: w.w.Path, Mode: mode, Size: w.content.Size, MtimeNs: w.at.UnixNano()}, content)
}

// oneEntry is a guestwire.FileSource of one entry.
type oneEntry struct {
	entry   guestwire.Entry
	content io.Reader
	given   bool
}

// Next implements guestwire.FileSource.
func (o *oneEntry) Next() (guestwire.Entry, io.Reader, error) {
	if o.given {
		return guestwire.Entry{}, nil, io.EOF
	}
	o.given = true
	return o.entry, o.content, nil
}

// deleting takes something out.
type deleting struct {
	path      string
	recursive bool
}

func (d deleting) inSandbox(ctx context.Context, wire *guestwire.Client, _ admission) error {
	err := wire.RemoveFile(ctx, guestwire.RemoveRequest{Path: guestwire.Path(d.path), Recursive: d.recursive})
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return noSuchFile()
	}
	return err
}

func (d deleting) inTree(_ context.Context, b *workspace.Builder, tree workspace.Tree) error {
	entry, err := lookUp(tree, d.path)
	if err != nil {
		return err
	}
	if entry.Type == workspace.Dir && !d.recursive {
		below, err := tree.List(d.path)
		if err != nil {
			return err
		}
		if len(below) > 0 {
			return workbench.E(workbench.CodePathConflict, "the path is a directory that is not empty").WithHint("delete it with recursive=true")
		}
	}
	return b.Remove(d.path)
}

// moving gives something another name.
type moving struct{ r guestwire.MoveRequest }

func (m moving) inSandbox(ctx context.Context, wire *guestwire.Client, _ admission) error {
	err := wire.MoveFile(ctx, m.r)
	switch {
	case workbench.HasCode(err, workbench.CodeNotFound):
		return workbench.AsError(noSuchFile()).WithField("from")
	case workbench.HasCode(err, workbench.CodePathConflict):
		return workbench.AsError(err).WithField("to").WithHint("name another place, delete what is there, or send overwrite: true to replace a file")
	}
	return err
}

func (m moving) inTree(_ context.Context, b *workspace.Builder, tree workspace.Tree) error {
	from, to := string(m.r.From), string(m.r.To)
	entry, err := lookUp(tree, from)
	if err != nil {
		return workbench.AsError(err).WithField("from")
	}
	there, err := meetInTree(tree, to)
	if err == nil && there.kind != "" && (!m.r.Overwrite || there.kind == workspace.Dir.String()) {
		err = workbench.E(workbench.CodePathConflict, "something else is at the path")
	}
	if err == nil && there.kind != "" && entry.Type == workspace.Dir {
		err = workbench.E(workbench.CodePathConflict, "a directory cannot replace what is no directory")
	}
	if err != nil {
		return workbench.AsError(err).WithField("to").WithHint("name another place, delete what is there, or send overwrite: true to replace a file")
	}
	if err := b.Remove(from); err != nil {
		return err
	}
	var failed error
	tree.Walk(func(each workspace.Entry) bool {
		rest, below := strings.CutPrefix(each.Path, from+"/")
		switch {
		case below:
			each.Path = to + "/" + rest
		case each.Path == from:
			each.Path = to
		default:
			return true
		}
		if each.Type == workspace.File {
			failed = b.Touch(each)
		} else {
			failed = b.Put(each)
		}
		return failed == nil
	})
	return failed
}

// making makes a directory.
type making struct {
	path string
	at   time.Time
}

func (m making) inSandbox(ctx context.Context, wire *guestwire.Client, _ admission) error {
	_, err := wire.WriteFiles(ctx, &oneEntry{entry: guestwire.Entry{Path: guestwire.Path(m.path), Type: guestwire.TypeDir, Mode: 0o755, MtimeNs: m.at.UnixNano(), Parents: true}})
	if workbench.HasCode(err, workbench.CodePathConflict) {
		there, lookErr := meet(ctx, wire, m.path)
		if lookErr == nil && there.kind == workspace.Dir.String() {
			return nil
		}
	}
	return err
}

func (m making) inTree(_ context.Context, b *workspace.Builder, tree workspace.Tree) error {
	there, err := meetInTree(tree, m.path)
	switch {
	case err != nil:
		return err
	case there.kind == workspace.Dir.String():
		return nil
	case there.kind != "":
		return workbench.E(workbench.CodePathConflict, "something else is at the path").WithHint("name another place, or delete what is there")
	}
	return b.Put(workspace.Entry{Path: m.path, Type: workspace.Dir, Mode: 0o755, MtimeNs: m.at.UnixNano()})
}

// reverting brings a sandbox from one tree to another, file by file.
type reverting struct {
	e        *Engine
	tenantID string
	from, to workspace.Tree
}

func (r reverting) inSandbox(ctx context.Context, wire *guestwire.Client) error {
	put := []string{}
	gone := map[string]bool{} // directories that went, with everything in them
	for _, change := range workspace.Diff(r.from, r.to) {
		path := change.Path
		old, was := r.from.Get(path)
		now, stays := r.to.Get(path)
		if was && !isBelow(gone, path) && (!stays || (old.Type == workspace.Dir) != (now.Type == workspace.Dir)) {
			if err := wire.RemoveFile(ctx, guestwire.RemoveRequest{Path: guestwire.Path(path), Recursive: true}); err != nil {
				return err
			}
			gone[path] = true
		}
		if stays {
			put = append(put, path)
		}
	}
	source := &treePaths{r: r, ctx: ctx, left: put}
	defer source.close()
	_, err := wire.WriteFiles(ctx, source)
	return err
}

// isBelow reports whether a path lies below one of the directories.
func isBelow(dirs map[string]bool, path string) bool {
	for i := strings.LastIndexByte(path, '/'); i > 0; i = strings.LastIndexByte(path[:i], '/') {
		if dirs[path[:i]] {
			return true
		}
	}
	return false
}

// treePaths is a guestwire.FileSource of some paths of a tree, in order.
type treePaths struct {
	r    reverting
	ctx  context.Context
	left []string
	open io.Closer
}

// Next implements guestwire.FileSource.
func (t *treePaths) Next() (guestwire.Entry, io.Reader, error) {
	t.close()
	if len(t.left) == 0 {
		return guestwire.Entry{}, nil, io.EOF
	}
	path := t.left[0]
	t.left = t.left[1:]
	entry, _ := t.r.to.Get(path)
	out, err := wireEntry(entry)
	if err != nil || entry.Type != workspace.File {
		out.Replace = true
		return out, nil, err
	}
	_, content, err := t.r.e.o.Workspace.Open(t.ctx, t.r.tenantID, t.r.to, path)
	if err != nil {
		return guestwire.Entry{}, nil, err
	}
	t.open = content
	out.Replace = true
	return out, content, nil
}

func (t *treePaths) close() {
	if t.open != nil {
		_ = t.open.Close() // only read
		t.open = nil
	}
}

package engine

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// commit asks the guest what changed since the tree the engine knows, stores
// the contents and returns the new tree. Nothing of it counts until the
// settlement names it.
func (x *execution) commit(ctx context.Context) (workspace.Committed, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if x.untouched() {
		return x.c.asItWas(ctx, x.s)
	}
	var made workspace.Committed
	var result guestwire.ScanResult
	var err error
	if ch := x.result.Changes; ch != nil && ch.Base == x.c.base {
		made, result, err = x.c.told(ctx, x.s, ch)
	} else {
		made, result, err = x.c.scan(ctx, x.s)
	}
	if err != nil {
		return workspace.Committed{}, err
	}
	if result.SkippedN > 0 {
		first := ""
		if len(result.Skipped) > 0 {
			first = fmt.Sprintf("; the first is %s (%s)", shortened(string(result.Skipped[0].Path)), workbench.TextOf([]byte(result.Skipped[0].Why)))
		}
		x.notice(workbench.NoticeFilesSkipped, fmt.Sprintf("%s not committed%s", counted(result.SkippedN, "entry of the workspace is", "entries of the workspace are"), first))
	}
	return made, nil
}

// untouched reports whether the step left the workspace as the engine knows it,
// by what the guest said with its end. A change from outside since then has made
// the engine's state another.
func (x *execution) untouched() bool {
	return x.result.Untouched != "" && x.result.Untouched == x.c.base
}

// scanSink feeds what a guest says into a builder, which believes none of it.
type scanSink struct {
	ctx     context.Context
	builder *workspace.Builder
}

// Entry implements guestwire.ScanSink.
func (s *scanSink) Entry(e guestwire.Entry, content io.Reader) error {
	if e.Change == workbench.ChangeRemoved {
		return s.builder.Remove(string(e.Path))
	}
	entry := workspace.Entry{Path: string(e.Path), Mode: e.Mode, Size: e.Size, MtimeNs: e.MtimeNs, Target: string(e.Target)}
	switch e.Type {
	case guestwire.TypeDir:
		entry.Type = workspace.Dir
	case guestwire.TypeSymlink:
		entry.Type = workspace.Symlink
	case guestwire.TypeFile:
		entry.Type = workspace.File
		if e.Content {
			return s.builder.File(s.ctx, entry, content)
		}
		return s.builder.Touch(entry) // same bytes, other mode or time
	default:
		return workbench.E(workbench.CodeGuestProtocol, "a scan entry of no known type")
	}
	return s.builder.Put(entry)
}

// place puts the selected files into the workspace, replacing what is there,
// and commits that as the tree the run begins with.
func (x *execution) place(ctx context.Context) error {
	if len(x.spec.Artifacts) == 0 {
		return nil
	}
	source := &selectedFiles{x: x, ctx: ctx}
	defer source.close()
	if _, err := x.c.wire.WriteFiles(ctx, source); err != nil {
		return err
	}
	made, err := x.commit(ctx)
	if err != nil {
		return err
	}
	return x.adoptPlaced(ctx, made)
}

// adoptPlaced makes the tree with the selected files the session's head, so
// that what the run itself changes can be told from what was placed for it.
func (x *execution) adoptPlaced(ctx context.Context, made workspace.Committed) error {
	if made.Tree.Root() == x.c.tree.Root() && x.c.head != "" {
		return nil
	}
	return x.c.record(ctx, x.s, made)
}

// selectedFiles is a guestwire.FileSource of a run's selected artifacts. It
// reads as the run's owner, whose rights are checked again here.
type selectedFiles struct {
	x    *execution
	ctx  context.Context
	next int
	open io.Closer
}

// Next implements guestwire.FileSource.
func (f *selectedFiles) Next() (guestwire.Entry, io.Reader, error) {
	f.close()
	if f.next == len(f.x.spec.Artifacts) {
		return guestwire.Entry{}, nil, io.EOF
	}
	sel := f.x.spec.Artifacts[f.next]
	f.next++
	owner := workbench.Principal{ProjectID: f.x.s.ProjectID, TenantID: f.x.s.TenantID, UserID: f.x.s.UserID,
		KeyKind: workbench.KeyDirect, Scopes: []workbench.Scope{workbench.ScopeRead}}
	a, content, err := f.x.e.o.Artifacts.Open(f.ctx, owner, sel.ID)
	if err != nil {
		return guestwire.Entry{}, nil, err
	}
	f.open = content
	sum, err := hex.DecodeString(a.SHA256)
	if err != nil {
		return guestwire.Entry{}, nil, err
	}
	return guestwire.Entry{SHA256: sum,
		Path: guestwire.Path(sel.Path), Type: guestwire.TypeFile, Mode: 0o644, Size: a.Size,
		MtimeNs: f.x.e.now().UnixNano(), Content: true, Replace: true, Parents: true}, content, nil
}

func (f *selectedFiles) close() {
	if f.open != nil {
		_ = f.open.Close()
		f.open = nil
	}
}

// treeSource is a guestwire.FileSource of a committed tree.
type treeSource struct{ from *workspace.Restoring }

// Next implements guestwire.FileSource.
func (t treeSource) Next() (guestwire.Entry, io.Reader, error) {
	e, content, err := t.from.Next()
	if err != nil {
		return guestwire.Entry{}, nil, err
	}
	out, err := wireEntry(e)
	return out, content, err
}

// wireEntry is an entry of a tree as a guest is told it.
func wireEntry(e workspace.Entry) (guestwire.Entry, error) {
	out := guestwire.Entry{Path: guestwire.Path(e.Path), Mode: e.Mode, Size: e.Size, MtimeNs: e.MtimeNs, Target: guestwire.Path(e.Target)}
	var err error
	switch e.Type {
	case workspace.Dir:
		out.Type = guestwire.TypeDir
	case workspace.Symlink:
		out.Type = guestwire.TypeSymlink
	case workspace.File:
		out.Type, out.Content = guestwire.TypeFile, true
		out.SHA256, err = hex.DecodeString(e.SHA256)
	}
	return out, err
}

// counted is a number with the words for one or for many.
func counted[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// shortened is a path as text for a sentence: its beginning, if it is long.
func shortened(path string) string {
	const most = 120
	b := []byte(path)
	if n := workbench.CutText(b, most, true); n < len(b) {
		return workbench.TextOf(b[:n]) + "…"
	}
	return workbench.TextOf(b)
}

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// lookPatience is how long a look at a workspace waits for a run that is being
// started or settled; after that the last commit is shown.
const lookPatience = 2 * time.Second

// liveWire is the way into the sandbox of a session in which code runs; nil
// where none does, because the last commit is the workspace then.
func (e *Engine) liveWire(ctx context.Context, sessionID string) *guestwire.Client {
	e.mu.Lock()
	c := e.sessions[sessionID]
	e.mu.Unlock()
	if c == nil || c.lockWithin(ctx, lookPatience) != nil {
		return nil
	}
	defer c.mu.Unlock()
	if len(c.out) == 0 || !c.live() {
		return nil
	}
	return c.wire
}

// head is a session's last commit with its tree, the empty tree before the
// first.
func (e *Engine) head(ctx context.Context, p workbench.Principal, s workbench.Session) (workbench.Commit, workspace.Tree, error) {
	s, err := e.o.Store.Session(ctx, p, s.ID) // a run may have ended meanwhile
	if err != nil || s.HeadCommit == "" {
		return workbench.Commit{}, workspace.Empty(), err
	}
	return e.treeOf(ctx, p, s.HeadCommit)
}

// WorkspaceTree pages a session's workspace as it is now: live while code runs,
// else as last committed. Codes: not_found, path_conflict.
func (e *Engine) WorkspaceTree(ctx context.Context, p workbench.Principal, sessionID string, q workbench.TreeQuery) (workbench.WorkspaceView, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.WorkspaceView{}, err
	}
	s, err := e.session(ctx, p, sessionID)
	if err != nil {
		return workbench.WorkspaceView{}, err
	}
	if wire := e.liveWire(ctx, s.ID); wire != nil {
		list, err := listLive(ctx, wire, q)
		if !lost(err) {
			return workbench.WorkspaceView{Commit: s.HeadCommit, Live: true, List: list}, err
		}
	}
	c, tree, err := e.head(ctx, p, s)
	if err != nil {
		return workbench.WorkspaceView{}, err
	}
	list, err := listTree(tree, q)
	return workbench.WorkspaceView{Commit: c.ID, List: list}, err
}

// listLive is listTree of a sandbox.
func listLive(ctx context.Context, wire *guestwire.Client, q workbench.TreeQuery) (workbench.List[workbench.TreeEntry], error) {
	out := workbench.List[workbench.TreeEntry]{Items: []workbench.TreeEntry{}}
	after, limit, err := pageOf(q.Page)
	if err != nil {
		return out, err
	}
	page, err := wire.ListFiles(ctx, guestwire.ListRequest{Path: guestwire.Path(q.Path), Recursive: q.Recursive, After: guestwire.Path(after), Limit: limit})
	if err != nil {
		if workbench.HasCode(err, workbench.CodeNotFound) {
			err = noSuchDirectory()
		}
		return out, onPath(err)
	}
	for _, entry := range page.Entries {
		out.Items = append(out.Items, liveEntry(entry))
	}
	if page.More {
		out.NextCursor = cursorOf(string(page.Entries[len(page.Entries)-1].Path))
	}
	return out, nil
}

// liveEntry is an entry of a sandbox as it is told; its digest is not known.
func liveEntry(entry guestwire.Entry) workbench.TreeEntry {
	t := workbench.TreeEntry{Type: string(entry.Type), Size: entry.Size, Mode: fmt.Sprintf("%04o", entry.Mode), ModifiedAt: time.Unix(0, entry.MtimeNs).UTC()}
	t.Path, t.PathBase64 = workbench.NameText(string(entry.Path))
	t.Target, t.TargetBase64 = workbench.NameText(string(entry.Target))
	return t
}

// WorkspaceFile opens a file of a session's workspace as it is now. A live one
// has no digest, and may change while it is read: it gives as many bytes as it
// had at first, or an error. Codes: not_found, path_conflict.
func (e *Engine) WorkspaceFile(ctx context.Context, p workbench.Principal, sessionID, path string) (workbench.TreeEntry, io.ReadSeekCloser, error) {
	s, err := e.readable(ctx, p, sessionID)
	if err != nil {
		return workbench.TreeEntry{}, nil, err
	}
	if wire := e.liveWire(ctx, s.ID); wire != nil {
		entry, content, err := openLive(ctx, wire, path)
		if !lost(err) {
			return entry, content, err
		}
	}
	_, tree, err := e.head(ctx, p, s)
	if err != nil {
		return workbench.TreeEntry{}, nil, err
	}
	return e.openFile(ctx, s.TenantID, tree, path)
}

// readable checks that p may read the session's files, and counts that as
// activity.
func (e *Engine) readable(ctx context.Context, p workbench.Principal, sessionID string) (workbench.Session, error) {
	if err := mayReadContents(p); err != nil {
		return workbench.Session{}, err
	}
	s, err := e.session(ctx, p, sessionID)
	if err == nil {
		err = e.filesOf(ctx, p, s.ID)
	}
	if err == nil {
		e.touch(ctx, s.ID)
	}
	return s, err
}

func openLive(ctx context.Context, wire *guestwire.Client, path string) (workbench.TreeEntry, io.ReadSeekCloser, error) {
	page, err := wire.ListFiles(ctx, guestwire.ListRequest{Path: guestwire.Path(path), Limit: 1})
	switch {
	case workbench.HasCode(err, workbench.CodeNotFound):
		return workbench.TreeEntry{}, nil, noSuchFile()
	case err != nil:
		return workbench.TreeEntry{}, nil, onPath(err)
	case len(page.Entries) == 0 || string(page.Entries[0].Path) != path:
		return workbench.TreeEntry{}, nil, isFile(workspace.Dir.String())
	}
	entry := page.Entries[0]
	if err := isFile(string(entry.Type)); err != nil {
		return workbench.TreeEntry{}, nil, err
	}
	content := &liveContent{ctx: ctx, wire: wire, path: entry.Path, size: entry.Size}
	if err := content.look(); err != nil {
		_ = content.Close()
		if workbench.HasCode(err, workbench.CodeNotFound) {
			err = noSuchFile() // it has gone meanwhile
		}
		return workbench.TreeEntry{}, nil, onPath(err)
	}
	return liveEntry(entry), content, nil
}

// lookBytes are read of a live file before anything is said of it.
const lookBytes = 32 << 10

// liveContent reads a file of a sandbox. It is for one goroutine.
type liveContent struct {
	ctx  context.Context
	wire *guestwire.Client
	path guestwire.Path
	size int64
	at   int64

	first []byte         // what the file begins with, once it was looked at
	from  *io.PipeReader // of the stream that is open; nil without one
	next  int64          // where that goes on
	done  chan struct{}  // closed when it has ended
}

// look reads the beginning: a file that code may not read, or that has gone, is
// refused before a part of an answer is out.
func (l *liveContent) look() error {
	first := make([]byte, min(l.size, lookBytes))
	n, err := io.ReadFull(l, first)
	l.first, l.at = first[:n], 0
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return err
}

// Read implements io.Reader.
func (l *liveContent) Read(p []byte) (int, error) {
	if l.at >= l.size {
		return 0, io.EOF
	}
	if l.at < int64(len(l.first)) {
		n := copy(p, l.first[l.at:])
		l.at += int64(n)
		return n, nil
	}
	if l.next != l.at {
		_ = l.Close()
	}
	if l.from == nil {
		from, to := io.Pipe()
		l.from, l.next, l.done = from, l.at, make(chan struct{})
		request, done := guestwire.ReadRequest{Path: l.path, Offset: l.at}, l.done
		go func() {
			defer close(done)
			_ = to.CloseWithError(l.wire.ReadFileFrom(l.ctx, request, to)) // nil is the end of the file
		}()
	}
	n, err := l.from.Read(p[:min(int64(len(p)), l.size-l.at)])
	l.at += int64(n)
	l.next = l.at
	switch {
	case l.at == l.size:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		return n, workbench.E(workbench.CodeConflict, "the file became shorter while it was read").WithHint("read it again, or when the run has ended")
	}
	return n, err
}

// Seek implements io.Seeker.
func (l *liveContent) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += l.at
	case io.SeekEnd:
		offset += l.size
	}
	if offset < 0 {
		return 0, workbench.E(workbench.CodeOffsetInvalid, "the offset is negative")
	}
	l.at = offset
	return offset, nil
}

// Close implements io.Closer: nothing of it is under way afterwards.
func (l *liveContent) Close() error {
	if l.from != nil {
		_ = l.from.Close() // ends the copy
		<-l.done
		l.from = nil
	}
	return nil
}

// WorkspaceTar checks that p may have the files of a session's workspace as it
// is now, and returns what writes them as an archive. In a live one each file is
// as it was when its turn came.
func (e *Engine) WorkspaceTar(ctx context.Context, p workbench.Principal, sessionID string) (func(io.Writer) error, error) {
	s, err := e.readable(ctx, p, sessionID)
	if err != nil {
		return nil, err
	}
	if wire := e.liveWire(ctx, s.ID); wire != nil {
		source := &liveTree{ctx: ctx, wire: wire}
		return func(w io.Writer) error {
			defer source.close()
			return workspace.WriteTarOf(ctx, source.next, w)
		}, nil
	}
	_, tree, err := e.head(ctx, p, s)
	if err != nil {
		return nil, err
	}
	return func(w io.Writer) error { return e.o.Workspace.WriteTar(ctx, s.TenantID, tree, w) }, nil
}

// liveTree gives the entries of a sandbox in the order of a walk.
type liveTree struct {
	ctx  context.Context
	wire *guestwire.Client
	page []guestwire.Entry
	last guestwire.Path
	end  bool
	open *liveContent
}

func (t *liveTree) close() {
	if t.open != nil {
		_ = t.open.Close()
		t.open = nil
	}
}

// next gives an entry; a file that goes, or becomes something else, before its
// turn is left out, and one that becomes shorter is filled with zeros.
func (t *liveTree) next() (workspace.Entry, io.Reader, error) {
	for {
		t.close()
		if len(t.page) == 0 {
			if t.end {
				return workspace.Entry{}, nil, io.EOF
			}
			reply, err := t.wire.ListFiles(t.ctx, guestwire.ListRequest{Recursive: true, After: t.last, Limit: guestwire.MaxListed})
			if err != nil {
				return workspace.Entry{}, nil, err
			}
			t.page, t.end = reply.Entries, !reply.More
			continue
		}
		e := t.page[0]
		t.page, t.last = t.page[1:], e.Path
		out := workspace.Entry{Path: string(e.Path), Mode: e.Mode, Size: e.Size, MtimeNs: e.MtimeNs, Target: string(e.Target)}
		switch e.Type {
		case guestwire.TypeDir:
			out.Type = workspace.Dir
			return out, nil, nil
		case guestwire.TypeSymlink:
			out.Type = workspace.Symlink
			return out, nil, nil
		case guestwire.TypeFile:
		}
		out.Type = workspace.File
		t.open = &liveContent{ctx: t.ctx, wire: t.wire, path: e.Path, size: e.Size}
		first := make([]byte, min(e.Size, 32<<10))
		n, err := io.ReadFull(t.open, first)
		switch code := workbench.CodeOf(err); {
		case code == workbench.CodeNotFound || code == workbench.CodePathConflict || code == workbench.CodeForbidden:
			continue
		case lost(err):
			return workspace.Entry{}, nil, err
		}
		return out, io.LimitReader(io.MultiReader(bytes.NewReader(first[:n]), untilShorter{t.open}, zeros{}), e.Size), nil
	}
}

// untilShorter ends where its file became shorter.
type untilShorter struct{ r io.Reader }

func (u untilShorter) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if workbench.HasCode(err, workbench.CodeConflict) || workbench.HasCode(err, workbench.CodeOffsetInvalid) {
		err = io.EOF
	}
	return n, err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

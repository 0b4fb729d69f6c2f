package guest

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// List implements guestwire.Live. Code may be changing what it looks at: what
// goes meanwhile is left out.
func (s *supervisor) List(ctx context.Context, r guestwire.ListRequest) (guestwire.ListReply, error) {
	if _, err := s.current(); err != nil {
		return guestwire.ListReply{}, err
	}
	l := &lister{r: r, cancel: ctx.Err, reply: guestwire.ListReply{Entries: []guestwire.Entry{}}}
	err := asUser(func() error { return l.list() })
	if err != nil && !errors.Is(err, errPageFull) {
		return guestwire.ListReply{}, writeError(err)
	}
	return l.reply, nil
}

// errPageFull ends a walk.
var errPageFull = errors.New("the page is full")

// lister walks to one page of entries. It runs with user code's identity.
type lister struct {
	r      guestwire.ListRequest
	reply  guestwire.ListReply
	taken  int
	cancel func() error
}

func (l *lister) list() error {
	if l.r.Path == "" {
		return l.open("", "", 0)
	}
	parent, name := split(l.r.Path)
	fd, err := openDir(parent)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return l.open(string(l.r.Path), string(l.r.Path)+"/", strings.Count(string(l.r.Path), "/")+1)
	}
	e, ok := listed(fd, name, l.r.Path, st)
	if !ok {
		return workbench.E(workbench.CodePathConflict, "the path is neither a file nor a directory nor a link")
	}
	if l.r.After == "" {
		return l.add(e)
	}
	return nil
}

// open walks a directory that the request names.
func (l *lister) open(rel, prefix string, depth int) error {
	at, err := openDir(rel)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return l.walk(fd, prefix, depth)
}

// walk lists a directory behind l.r.After; fd is closed by it.
func (l *lister) walk(fd int, prefix string, depth int) error {
	dir := os.NewFile(uintptr(fd), prefix)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) { // one that was moved on while they were read comes twice
		if err := l.cancel(); err != nil {
			return err
		}
		p := guestwire.Path(prefix + name)
		within := p == l.r.After || strings.HasPrefix(string(l.r.After), string(p)+"/") // the page before ended in it
		if l.r.After != "" && !within && !guestwire.Before(l.r.After, p) || len(p) > guestwire.MaxPath {
			continue
		}
		if err := l.visit(fd, name, p, depth, within); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) visit(fd int, name string, p guestwire.Path, depth int, told bool) error {
	if depth >= guestwire.MaxDepth {
		return nil // no request could name it
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil //nolint:nilerr // it has gone
	}
	if !told {
		e, ok := listed(fd, name, p, st)
		if !ok {
			return nil
		}
		if err := l.add(e); err != nil {
			return err
		}
	}
	if !l.r.Recursive || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil //nolint:nilerr // it has gone, is another thing now, or is shut
	}
	return l.walk(next, string(p)+"/", depth+1)
}

func (l *lister) add(e guestwire.Entry) error {
	taken, fits := guestwire.Fits(l.taken, e)
	if !fits || len(l.reply.Entries) == l.r.Limit {
		l.reply.More = true
		return errPageFull
	}
	l.taken = taken
	l.reply.Entries = append(l.reply.Entries, e)
	return nil
}

// listed describes an entry of a kind that is committed.
func listed(fd int, name string, p guestwire.Path, st unix.Stat_t) (guestwire.Entry, bool) {
	e := guestwire.Entry{Path: p, Mode: st.Mode & 0o7777, MtimeNs: st.Mtim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.Type = guestwire.TypeDir
	case unix.S_IFREG:
		e.Type, e.Size = guestwire.TypeFile, st.Size
	case unix.S_IFLNK:
		target, err := readlink(fd, name)
		if err != nil || target == "" {
			return e, false
		}
		e.Type, e.Target = guestwire.TypeSymlink, guestwire.Path(target)
	default:
		return e, false
	}
	return e, true
}

// ReadFrom implements guestwire.Live.
func (s *supervisor) ReadFrom(_ context.Context, r guestwire.ReadRequest, send func(io.Reader) error) error {
	if _, err := s.current(); err != nil {
		return err
	}
	return asUser(func() error {
		f, st, err := openFile(r.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		if r.Offset < 0 || r.Offset > st.Size {
			return workbench.E(workbench.CodeOffsetInvalid, "the offset is beyond the end of the file")
		}
		return send(io.NewSectionReader(f, r.Offset, st.Size-r.Offset))
	})
}

// Remove implements guestwire.Live.
func (s *supervisor) Remove(ctx context.Context, r guestwire.RemoveRequest) error {
	if _, err := s.current(); err != nil {
		return err
	}
	s.tree.mu.Lock()
	defer s.tree.mu.Unlock()
	err := asUser(func() error {
		parent, name := split(r.Path)
		fd, err := openDir(parent)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return remove(ctx, fd, name, r.Recursive)
	})
	if err != nil {
		return writeError(err)
	}
	return nil
}

// remove takes out an entry of an open directory. A directory that code fills
// while it is emptied is a conflict.
func remove(ctx context.Context, fd int, name string, recursive bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlinkat(fd, name, 0)
	}
	err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if !recursive {
		return notEmpty()
	}
	if err := empty(ctx, fd, name, st.Mode); err != nil {
		return err
	}
	return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
}

func notEmpty() error {
	return workbench.E(workbench.CodePathConflict, "the path is a directory that is not empty").WithHint("delete it with recursive=true")
}

// empty removes what is in a directory, also in one that its mode shuts to its
// owner.
func empty(ctx context.Context, fd int, name string, mode uint32) error {
	if mode&0o700 != 0o700 {
		if err := unix.Fchmodat(fd, name, mode&0o7777|0o700, 0); err != nil {
			return err
		}
	}
	at, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(at), name)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, each := range names {
		if err := remove(ctx, at, each, true); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// Move implements guestwire.Live.
func (s *supervisor) Move(_ context.Context, r guestwire.MoveRequest) error {
	if _, err := s.current(); err != nil {
		return err
	}
	s.tree.mu.Lock()
	defer s.tree.mu.Unlock()
	err := asUser(func() error {
		fromDir, fromName := split(r.From)
		from, err := openDir(fromDir)
		if err != nil {
			return err
		}
		defer unix.Close(from)
		var st unix.Stat_t
		if err := unix.Fstatat(from, fromName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		toDir, toName := split(r.To)
		to, err := (&writer{}).parent(toDir, true)
		if err != nil {
			return err
		}
		defer unix.Close(to)
		err = unix.Renameat2(from, fromName, to, toName, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) || !r.Overwrite {
			return err
		}
		if err := unix.Fstatat(to, toName, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return workbench.E(workbench.CodePathConflict, "a directory is at the new path, and is never overwritten")
		}
		return unix.Renameat(from, fromName, to, toName)
	})
	if err != nil {
		return writeError(err)
	}
	return nil
}

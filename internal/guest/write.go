package guest

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// counted counts and hashes what is read through it.
type counted struct {
	r io.Reader
	n int64
	h hash.Hash
}

func newCounted(r io.Reader) *counted { return &counted{r: r, h: sha256.New()} }

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	_, _ = c.h.Write(p[:n]) // never fails
	return n, err
}

func (c *counted) sum() []byte { return c.h.Sum(nil) }

// Write implements guestwire.Guest. Everything is written with user code's
// identity, element by element, through no link.
func (s *supervisor) Write(ctx context.Context, restore bool, src guestwire.FileSource) (guestwire.WriteResult, error) {
	b, err := s.current()
	if err != nil {
		return guestwire.WriteResult{}, err
	}
	s.tree.mu.Lock()
	defer s.tree.mu.Unlock()
	var res guestwire.WriteResult
	w := &writer{restore: restore}
	if restore {
		s.beginning.Lock() // whoever begins has the whole of it
		defer s.beginning.Unlock()
		s.tree.changes.giveUp() // the scan at the end begins anew
		w.sums = map[guestwire.Path]node{}
	}
	err = asUser(func() error {
		if restore {
			if err := mustBeEmpty(); err != nil {
				return err
			}
		}
		for {
			if err := ctx.Err(); err != nil {
				return err
			}
			e, content, err := src.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				err = w.entry(e, content)
			}
			if err != nil {
				return err
			}
			res.Entries++
			res.Bytes += e.Size
		}
		return w.finishDirs()
	})
	if err == nil && restore {
		err = s.settle(ctx, b.limits, w, &res)
	}
	if err != nil {
		return guestwire.WriteResult{}, writeError(err)
	}
	return res, nil
}

// settle takes the restored tree as the base of the next scan. Its contents were
// hashed while they were written, and nobody else has been there since, unless
// code lives.
func (s *supervisor) settle(ctx context.Context, l guestwire.SandboxLimits, w *writer, res *guestwire.WriteResult) error {
	quiet := len(s.live()) == 0
	if !quiet {
		w.sums = nil
	}
	found, err := s.tree.lookEverywhere(ctx, l, quiet, w.sums)
	if err != nil {
		return err
	}
	s.tree.take(found, "")
	res.Token = s.tree.token
	return nil
}

func writeError(err error) error {
	if e := (*workbench.Error)(nil); errors.As(err, &e) {
		return e
	}
	return fileError(err)
}

func mustBeEmpty() error {
	fd, err := unix.Open(workspaceDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := unix.ReadDirent(fd, buf)
	if err != nil {
		return err
	}
	if _, count, _ := unix.ParseDirent(buf[:n], -1, nil); count > 0 {
		return workbench.E(workbench.CodeConflict, "the workspace is not empty")
	}
	return nil
}

// writer writes entries. Directories get their modes and times last, since
// writing into them needs one and changes the other.
type writer struct {
	restore bool
	dirs    []guestwire.Entry
	buf     []byte                  // for contents on their way
	sums    map[guestwire.Path]node // of the contents written, while restoring
}

func (w *writer) entry(e guestwire.Entry, content io.Reader) error {
	if e.Type == guestwire.TypeFile && content == nil {
		content = strings.NewReader("")
		if e.Size != 0 {
			return workbench.E(workbench.CodeInvalidRequest, "a file to be written has no content")
		}
	}
	parent, name := split(e.Path)
	fd, err := w.parent(parent, e.Parents)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	switch e.Type {
	case guestwire.TypeDir:
		err := unix.Mkdirat(fd, name, 0o700)
		if errors.Is(err, unix.EEXIST) && e.Replace {
			var st unix.Stat_t
			if err = unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
				err = unix.EEXIST
			}
		}
		if err != nil {
			return fileError(err)
		}
		w.dirs = append(w.dirs, e)
		return nil
	case guestwire.TypeSymlink:
		return w.place(fd, name, e, func(temp string) error { return unix.Symlinkat(string(e.Target), fd, temp) })
	default:
		return w.place(fd, name, e, func(temp string) error {
			sum, err := w.file(fd, temp, e, content)
			if err == nil && w.sums != nil {
				w.sums[e.Path] = node{size: e.Size, sum: sum}
			}
			return err
		})
	}
}

// parent opens the directory an entry goes into.
func (w *writer) parent(rel string, make bool) (int, error) {
	fd, err := openDir(rel)
	if err == nil || !make || !errors.Is(err, unix.ENOENT) {
		return fd, fileError(err)
	}
	if fd, err = openDir(""); err != nil {
		return -1, fileError(err)
	}
	for element := range strings.SplitSeq(rel, "/") {
		if err := unix.Mkdirat(fd, element, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			_ = unix.Close(fd)
			return -1, fileError(err)
		}
		next, err := unix.Openat(fd, element, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd)
		if err != nil {
			return -1, fileError(err)
		}
		fd = next
	}
	return fd, nil
}

// place makes an entry under a name of its own and moves it to its place, whole
// or not at all.
func (w *writer) place(fd int, name string, e guestwire.Entry, make func(temp string) error) error {
	temp := ".workbench-" + newToken()[:16]
	if err := make(temp); err != nil {
		_ = unix.Unlinkat(fd, temp, 0)
		return writeError(err)
	}
	if err := setTimes(fd, temp, e.MtimeNs); err != nil {
		_ = unix.Unlinkat(fd, temp, 0)
		return fileError(err)
	}
	var err error
	if e.Replace {
		err = unix.Renameat(fd, temp, fd, name)
	} else {
		err = unix.Renameat2(fd, temp, fd, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		_ = unix.Unlinkat(fd, temp, 0)
		return fileError(err)
	}
	return nil
}

func setTimes(fd int, name string, mtime int64) error {
	if mtime == 0 {
		return nil
	}
	ts := []unix.Timespec{unix.NsecToTimespec(mtime), unix.NsecToTimespec(mtime)}
	return unix.UtimesNanoAt(fd, name, ts, unix.AT_SYMLINK_NOFOLLOW)
}

func (w *writer) file(fd int, name string, e guestwire.Entry, content io.Reader) (sum [sha256.Size]byte, err error) {
	f, err := unix.Openat(fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return sum, err
	}
	defer unix.Close(f)
	h := newCounted(content)
	if w.buf == nil {
		w.buf = make([]byte, 64<<10)
	}
	if _, err := io.CopyBuffer(fdWriter(f), h, w.buf); err != nil {
		return sum, err
	}
	sum = [sha256.Size]byte(h.sum())
	if h.n != e.Size || len(e.SHA256) > 0 && !slices.Equal(sum[:], e.SHA256) {
		return sum, workbench.E(workbench.CodeCorrupt, "a file's content is not what was announced")
	}
	return sum, unix.Fchmod(f, e.Mode)
}

// fdWriter writes to a bare descriptor.
type fdWriter int

func (w fdWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Write(int(w), p[done:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// finishDirs gives directories their modes and times, the deepest first.
func (w *writer) finishDirs() error {
	for _, e := range slices.Backward(w.dirs) {
		parent, name := split(e.Path)
		fd, err := openDir(parent)
		if err != nil {
			return err
		}
		err = unix.Fchmodat(fd, name, e.Mode, 0)
		if err == nil {
			err = setTimes(fd, name, e.MtimeNs)
		}
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

package guest

import (
	"crypto/sha256"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

func (w *walker) take(p guestwire.Path, n node) {
	w.leftEntries--
	w.found[p] = n
}

func (w *walker) skip(p guestwire.Path, why string) {
	w.skips++
	switch why {
	case whyFIFO, whySocket, whyDevice:
	case whyUnreadable:
		if w.unreadable == nil {
			w.unreadable = map[guestwire.Path]bool{}
		}
		w.unreadable[p] = true
		w.vague = true
	default:
		w.vague = true
	}
	if len(w.skipped) < guestwire.MaxSkipped && p.Check() == nil {
		w.skipped[p] = why
	} else {
		w.vague = true
	}
}

func readlink(fd int, name string) (string, error) {
	buf := make([]byte, guestwire.MaxPath+1)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil || n == 0 || n > guestwire.MaxPath {
		return "", unix.ENAMETOOLONG
	}
	return string(buf[:n]), nil
}

// directory takes a directory and what is in it.
func (w *walker) directory(fd int, name string, p guestwire.Path, n node, depth int) error {
	open := func() (int, error) {
		return unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	restore := func() {}
	if n.mode&0o500 != 0o500 {
		// Its owner may look in spite of the mode, for a moment.
		if err := unix.Fchmodat(fd, name, n.mode|0o700, 0); err == nil {
			restore = func() { _ = unix.Fchmodat(fd, name, n.mode, 0) }
		}
	}
	child, err := open()
	if err != nil {
		restore()
		w.skip(p, whyUnreadable)
		return nil //nolint:nilerr // the host is told that it was skipped
	}
	w.take(p, n)
	err = w.walk(child, string(p)+"/", depth+1)
	restore()
	return err
}

// file fills in the digest, computed anew unless nothing can have changed.
func (w *walker) file(fd int, name string, p guestwire.Path, n *node) error {
	if b, ok := w.written[p]; ok && b.size == n.size {
		n.sum = b.sum
		return nil
	}
	if w.trust {
		b, ok := w.t.nodes[p]
		if ok && b.typ == guestwire.TypeFile && b.size == n.size && b.mtime == n.mtime && b.ctime == n.ctime && b.inode == n.inode &&
			n.ctime < w.t.at.Add(-racy).UnixNano() {
			n.sum = b.sum
			return nil
		}
	}
	if n.size == 0 {
		n.sum = emptySum
		return nil
	}
	if n.mode&0o400 == 0 {
		if err := unix.Fchmodat(fd, name, n.mode|0o400, 0); err == nil {
			defer func() {
				_ = unix.Fchmodat(fd, name, n.mode, 0)
				var st unix.Stat_t
				if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
					n.ctime = st.Ctim.Nano()
				}
			}()
		}
	}
	f, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(f)
	if n.size <= int64(w.room) && !w.looksTheSame(p, *n, n.size) {
		return w.keep(f, p, n)
	}
	if w.buf == nil {
		w.buf = make([]byte, hashBuffer)
	}
	h := sha256.New()
	total := int64(0)
	for {
		got, err := unix.Read(f, w.buf)
		if err != nil {
			return err
		}
		if got == 0 {
			break
		}
		total += int64(got)
		_, _ = h.Write(w.buf[:got]) // never fails
		if err := w.cancel(); err != nil {
			return err
		}
	}
	n.size = total
	h.Sum(n.sum[:0])
	return nil
}

// keep reads a file whole, for the second pass of a scan.
func (w *walker) keep(f int, p guestwire.Path, n *node) error {
	content, at := make([]byte, n.size), 0
	for at < len(content) { // no code runs: what its size says is all
		got, err := unix.Read(f, content[at:])
		if err != nil {
			return err
		}
		if got == 0 {
			break
		}
		at += got
	}
	w.small[p] = content[:at]
	w.room -= at
	n.size, n.sum = int64(at), sha256.Sum256(content[:at])
	return nil
}

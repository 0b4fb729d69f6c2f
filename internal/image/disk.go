package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// diskError gives a host's file error a code and, where there is one, the
// remedy. Errors that have a code keep it.
func diskError(doing string, err error) error {
	var coded *workbench.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &coded), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return diskFull(doing).Caused(err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return workbench.E(workbench.CodeUnavailable, "could not %s: not permitted", doing).
			WithHint("images are made by root, in a folder that can be written; name another with --images").Caused(err)
	default:
		return workbench.E(workbench.CodeUnavailable, "could not %s", doing).
			WithHint("look at the server's log for the cause").Caused(err)
	}
}

func diskFull(doing string) *workbench.Error {
	return workbench.E(workbench.CodeUnavailable, "could not %s: the disk is full", doing).
		WithHint("free some space (workbench image delete removes images that are not needed), or keep images on another disk with --images")
}

// lockPoll is how often a busy lock is tried again: flock cannot be waited for
// with a context.
const lockPoll = 100 * time.Millisecond

// lock takes the store's lock of the given name, across processes, and returns
// what releases it. waiting is called once if it has to wait.
func (s *Store) lock(ctx context.Context, name string, waiting func()) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, diskError("open the image lock", err)
	}
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil // closing releases it
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, diskError("take the image lock", err)
		}
		if first && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// workspace takes the build lock, clears what an interrupted build left, and
// returns a fresh folder in tmp that discard removes.
func (s *Store) workspace(ctx context.Context, progress ProgressFunc) (dir string, discard func(), err error) {
	unlock, err := s.lock(ctx, "build.lock", func() {
		progress.tell(StageWait, "another image is being made; waiting for it")
	})
	if err != nil {
		return "", nil, err
	}
	tmp := filepath.Join(s.dir, "tmp")
	if err := clearFolder(tmp); err != nil {
		unlock()
		return "", nil, diskError("clear the image work folder", err)
	}
	if graves, err := filepath.Glob(filepath.Join(s.dir, gravePrefix+"*")); err == nil {
		for _, g := range graves {
			_ = os.RemoveAll(g) // best effort: it is out of sight already
		}
	}
	dir, err = os.MkdirTemp(tmp, "image-")
	if err != nil {
		unlock()
		return "", nil, diskError("make an image work folder", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		unlock()
		return "", nil, diskError("make an image work folder", err)
	}
	return dir, func() {
		_ = os.RemoveAll(dir) // what stays is cleared by the next build
		unlock()
	}, nil
}

// makeOpenFolder makes a folder that everyone may search, whatever the umask. One
// that is there stays as it is, for its owner may have a reason.
func makeOpenFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755))
}

func clearFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// needSpace refuses to begin what would fill the disk.
func needSpace(dir string, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return diskError("look at the disk", err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < bytes { //nolint:unconvert // the field's type differs by architecture
		return diskFull("make the image").WithHint(
			"%d MB are free and about %d MB are needed while it is made; free some, or keep images on another disk with --images",
			free/1e6, bytes/1e6)
	}
	return nil
}

// syncFolder makes everything written below dir survive a power cut. It syncs
// the whole file system: cheaper than a sync per file.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// writeFileAtomic replaces path by content or leaves it as it was.
func writeFileAtomic(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return diskError("write a file of the image store", err)
	}
	defer os.Remove(f.Name()) // gone already when all went well
	defer f.Close()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return diskError("write a file of the image store", err)
	}
	return diskError("write a file of the image store", os.Rename(f.Name(), path))
}

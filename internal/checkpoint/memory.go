package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// Memory is where checkpoints lie as plaintext, between a driver and their seal:
// a file system in memory of its own, that nobody else may enter, that never
// reaches a disk, and that holds at most so many bytes.
type Memory struct {
	dir     string
	mounted bool
	swaps   bool
}

// OpenMemory mounts it at a directory, which is made; one that an earlier
// process of the instance left there is emptied and goes. The caller holds the
// instance's lock. Where this process may not mount, a directory that lies in
// memory already will do.
//
// A returning or leaving session needs as much room as its memory, workspace and
// scratch space together, for some hundred milliseconds. On hosts with little
// memory a small bound makes suspensions fail (the session keeps its files
// alone) rather than others' work.
//
// Codes: unavailable (nothing in memory can be had at the directory).
func OpenMemory(dir string, maxBytes int64) (*Memory, error) {
	failed := func(err error) error {
		return workbench.E(workbench.CodeUnavailable, "live memory cannot be kept: there is no file system in memory for it").
			WithHint("the server needs to mount a tmpfs at %s, or find one there", dir).Caused(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failed(err)
	}
	m := &Memory{dir: dir}
	if err := m.clear(); err != nil {
		return nil, failed(err)
	}
	options := fmt.Sprintf("mode=0700,size=%d,nr_inodes=4096", maxBytes)
	// Large pages make a return faster: taking the others one by one costs more than
	// all that is written there. noswap there is since Linux 6.4.
	var err error
	for _, more := range []string{",noswap,huge=within_size", ",noswap", ",huge=within_size", ""} {
		err = unix.Mount("workbench", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options+more)
		if !errors.Is(err, unix.EINVAL) {
			m.swaps = !strings.Contains(more, "noswap") && hostSwaps()
			break
		}
	}
	if err == nil {
		m.mounted = true
		return m, nil
	}
	var st unix.Statfs_t
	if statErr := unix.Statfs(dir, &st); statErr != nil || st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC {
		return nil, failed(errors.Join(err, statErr))
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, failed(err)
	}
	m.swaps = hostSwaps()
	return m, nil
}

// MaySwap reports whether the host could write what is here to its swap: its
// kernel cannot be told not to, and swap is on.
func (m *Memory) MaySwap() bool { return m.swaps }

// Make makes a fresh directory for one checkpoint. Code: unavailable.
func (m *Memory) Make() (string, error) {
	dir, err := os.MkdirTemp(m.dir, "checkpoint-")
	if err != nil {
		return "", workbench.E(workbench.CodeUnavailable, "there is no place in memory for a checkpoint").Caused(err)
	}
	return dir, nil
}

// Remove removes one, with what is in it. Files that somebody still holds open
// are emptied.
func (m *Memory) Remove(dir string) error {
	if filepath.Dir(dir) != m.dir {
		return workbench.E(workbench.CodeInternal, "not a directory of this place")
	}
	return m.remove(filepath.Base(dir))
}

func (m *Memory) remove(name string) error {
	root, err := os.OpenRoot(m.dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	_ = fs.WalkDir(root.FS(), name, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if f, err := root.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
				_ = f.Close()
			}
		}
		return nil //nolint:nilerr // what cannot be looked at cannot be removed either, and that is told
	})
	return root.RemoveAll(name)
}

// Close empties the place and takes it away.
func (m *Memory) Close() error {
	if err := m.clear(); err != nil {
		return err
	}
	if err := os.Remove(m.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// clear removes what is in the directory and every mount on it, one that another
// process still sees included: it is empty then.
func (m *Memory) clear() error {
	for {
		entries, err := os.ReadDir(m.dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := m.remove(e.Name()); err != nil {
				return err
			}
		}
		err = unix.Unmount(m.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			return nil // nothing is mounted here, or this process mounts nothing
		}
		if err != nil {
			return err
		}
	}
}

func hostSwaps() bool {
	raw, err := os.ReadFile("/proc/swaps")
	return err == nil && bytes.Count(bytes.TrimSpace(raw), []byte("\n")) > 0
}

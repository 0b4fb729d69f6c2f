package server

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// dataDir is an opened data directory: this process owns it until it is
// closed.
type dataDir struct {
	path     string
	instance string // [a-z0-9]{12}, of this directory for ever
	lock     *os.File
}

const instanceAlphabet = "abcdefghijklmnopqrstuvwxyz234567"

// openDataDir makes or opens a data directory and takes its exclusive lock. It
// can be passed through by others, because sandboxes of runc reach their image
// below it under an unprivileged id; what is in it is 0600 or 0700 where it
// must be.
// Code: unavailable if another process has it.
func openDataDir(path string) (*dataDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o711); err != nil {
		return nil, workbench.E(workbench.CodeUnavailable, "the data directory %s cannot be made", path).
			WithHint("name another one with --data").Caused(err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, workbench.E(workbench.CodeUnavailable, "the data directory %s cannot be written", path).Caused(err)
	}
	if err := takeLock(lock); err != nil {
		_ = lock.Close()
		return nil, workbench.E(workbench.CodeUnavailable, "the data directory %s is in use by another process", path).
			WithHint("wait for the other command or stop the other server, or name another directory with --data").Caused(err)
	}
	d := &dataDir{path: path, lock: lock}
	if d.instance, err = readInstance(filepath.Join(path, "instance")); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return d, nil
}

// takeLock takes the lock, or gives up after a second. A server that was just
// killed can hold it for a moment longer, through a child that it had begun to
// start and that has not yet become another program.
func takeLock(f *os.File) error {
	for end := time.Now().Add(time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			return err
		}
	}
}

// readInstance reads the instance id, or makes one.
func readInstance(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err == nil {
		id := strings.TrimSpace(string(raw))
		if len(id) == 12 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") == "" {
			return id, nil
		}
		return "", workbench.E(workbench.CodeCorrupt, "%s does not hold an instance id", file).
			WithHint("restore it from a backup; a new one would lose track of running sandboxes")
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	random := make([]byte, 12)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	for i, b := range random {
		random[i] = instanceAlphabet[b%32]
	}
	return string(random), writeDurably(file, append(random, '\n'))
}

func writeDurably(file string, content []byte) error {
	tmp := file + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, file); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (d *dataDir) close() error { return d.lock.Close() }

func (d *dataDir) join(elements ...string) string {
	return filepath.Join(append([]string{d.path}, elements...)...)
}

package packages

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// shelf is the sets on disk.
//
//	sets/NAME/python/…    the packages, or node/node_modules/…
//	sets/NAME/lock.json   the set; its time is when it was asked for last
//	asked/KEY             the name of the set that a request means; its time is since when
//	tmp/                  what is not whole
//
// Who knows no name can list none: sets/ cannot be read by code.
type shelf struct{ dir string }

const lockFile = "lock.json"

var namePattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s shelf) open() error {
	if err := os.RemoveAll(filepath.Join(s.dir, "tmp")); err != nil {
		return err
	}
	for name, mode := range map[string]fs.FileMode{"": 0o711, "sets": 0o711, "asked": 0o700, "tmp": 0o700} {
		at := filepath.Join(s.dir, name)
		if err := os.MkdirAll(at, mode); err != nil {
			return err
		}
		if err := os.Chmod(at, mode); err != nil { //nolint:gosec // sets/ must be passed through, and cannot be listed
			return err
		}
	}
	return nil
}

func (s shelf) set(name string) string { return filepath.Join(s.dir, "sets", name) }

// find is the set that a request means, and since when.
func (s shelf) find(key string) (set workbench.PackageSet, since time.Time, ok bool) {
	at := filepath.Join(s.dir, "asked", key)
	name, err := os.ReadFile(at)
	if err != nil || !namePattern.Match(name) {
		return set, since, false
	}
	info, err := os.Stat(at)
	if err != nil {
		return set, since, false
	}
	set, err = s.read(string(name))
	return set, info.ModTime(), err == nil
}

func (s shelf) read(name string) (set workbench.PackageSet, err error) {
	raw, err := os.ReadFile(filepath.Join(s.set(name), lockFile))
	if err == nil {
		err = json.Unmarshal(raw, &set)
	}
	if err == nil && set.Name != name {
		err = errors.New("it is another set's")
	}
	return set, err
}

// forget removes what was asked for and is not there any more.
func (s shelf) forget() error {
	dir := filepath.Join(s.dir, "asked")
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if _, _, ok := s.find(entry.Name()); !ok {
			err = errors.Join(err, os.Remove(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}

// touch notes that a set was asked for.
func (s shelf) touch(name string, now time.Time) {
	_ = os.Chtimes(filepath.Join(s.set(name), lockFile), now, now) // it only lives shorter
}

// kept is a set that is there.
type kept struct {
	set  workbench.PackageSet
	used time.Time
}

func (s shelf) all() []kept {
	entries, err := os.ReadDir(filepath.Join(s.dir, "sets"))
	if err != nil {
		return nil
	}
	var out []kept
	for _, e := range entries {
		set, err := s.read(e.Name())
		if err != nil {
			continue
		}
		if info, err := os.Stat(filepath.Join(s.set(e.Name()), lockFile)); err == nil {
			out = append(out, kept{set, info.ModTime()})
		}
	}
	return out
}

// remove takes a set away at once, and then its files.
func (s shelf) remove(name string) error {
	gone, err := os.MkdirTemp(filepath.Join(s.dir, "tmp"), "")
	if err != nil {
		return err
	}
	if err := os.Rename(s.set(name), filepath.Join(gone, "set")); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// draft is a set that is not whole.
type draft struct {
	dir   string
	root  *os.Root
	bytes int64
	lock  []byte // what the builder said of it
}

func (s shelf) begin() (*draft, error) {
	dir, err := os.MkdirTemp(filepath.Join(s.dir, "tmp"), "")
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &draft{dir: dir, root: root}, nil
}

// abandon removes what is left of a draft.
func (d *draft) abandon() {
	_ = d.root.Close()
	_ = os.RemoveAll(d.dir) // what stays goes at the next start
}

// Where the builder leaves a set in its workspace, and what it says of it.
const (
	builtSet     = "set/"
	builtOutcome = "set/outcome.json"
	maxOutcome   = 8 << 20
)

// Entry implements guestwire.ScanSink: it takes what the builder left. Times and
// owners are not kept, and files are writable by nobody.
func (d *draft) Entry(e guestwire.Entry, content io.Reader) error {
	name, ok := strings.CutPrefix(string(e.Path), builtSet)
	if !ok {
		return nil
	}
	if string(e.Path) == builtOutcome {
		if e.Size > maxOutcome || content == nil {
			return errors.New("what the builder says is too long")
		}
		raw, err := io.ReadAll(io.LimitReader(content, maxOutcome))
		d.lock = raw
		return err
	}
	if top, _, _ := strings.Cut(name, "/"); top != "python" && top != "node" {
		return nil // no package manager's
	}
	switch e.Type {
	case guestwire.TypeDir:
		return d.root.Mkdir(name, 0o755)
	case guestwire.TypeSymlink:
		// It is resolved inside a sandbox alone, where it can lead to nothing that
		// code could not open by itself.
		return d.root.Symlink(string(e.Target), name)
	case guestwire.TypeFile:
		if content == nil {
			return fmt.Errorf("%q came without its content", name)
		}
		f, err := d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444|fs.FileMode(e.Mode&0o111))
		if err != nil {
			return err
		}
		n, err := io.Copy(f, content)
		d.bytes += n
		return errors.Join(err, f.Close())
	}
	return nil
}

// put makes a draft a set, on disk before it is told to anyone.
func (s shelf) put(d *draft, key string, set workbench.PackageSet, now time.Time) error {
	raw, err := json.Marshal(set)
	if err != nil {
		return err
	}
	if err := d.root.WriteFile(lockFile, raw, 0o444); err != nil {
		return err
	}
	if err := os.Chmod(d.dir, 0o755); err != nil { //nolint:gosec // code reads it
		return err
	}
	if err := syncFS(d.dir); err != nil {
		return err
	}
	if _, err := s.read(set.Name); err != nil { // the same lock may be there: it is the same set
		_ = os.RemoveAll(s.set(set.Name))
		if err := os.Rename(d.dir, s.set(set.Name)); err != nil {
			return err
		}
	}
	asked := filepath.Join(s.dir, "tmp", key)
	if err := os.WriteFile(asked, []byte(set.Name), 0o600); err != nil {
		return err
	}
	if err := os.Chtimes(asked, now, now); err != nil {
		return err
	}
	return os.Rename(asked, filepath.Join(s.dir, "asked", key))
}

// syncFS writes everything below a directory to the disk.
func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

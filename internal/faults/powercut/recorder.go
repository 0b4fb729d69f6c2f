// Package powercut knows, for every moment of a server's life, what would be
// left of its data directory if the power went: of each file what its last
// fsync saw, under the names that the last fsync of its directory saw. Its one
// job is that; the tests start servers on what is left.
//
// It watches through the hooks of packages blob and store. The other files of
// a data directory (instance id, keys) are written, synced, before a server
// answers; they are taken as they are, so moments count from then on.
package powercut

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/store"
)

// Recorder watches one data directory.
type Recorder struct {
	dir  string
	vfs  string
	skip func(path string) bool

	mu      sync.Mutex
	synced  map[inode][]byte            // content at the last fsync
	names   map[string]map[string]inode // directory of blobs → what its last fsync saw
	held    map[inode]*os.File          // keeps numbers from being used again
	sqlite  map[string][]byte           // base name → content at the last fsync
	moments []Moment
}

type inode struct{ device, number uint64 }

// Moment is what would be left after one fsync.
type Moment struct {
	After string            // what was synced, below the data directory
	Files map[string][]byte // path below the data directory → content
}

// New makes a recorder for a data directory that need not be there yet. Files
// and directories that skip names, if it is given, are not synced: a broken
// server, to show that the tests notice.
func New(dir string, skip func(path string) bool) (*Recorder, error) {
	r := &Recorder{dir: dir, skip: skip, synced: map[inode][]byte{}, names: map[string]map[string]inode{},
		held: map[inode]*os.File{}, sqlite: map[string][]byte{}}
	var err error
	r.vfs, err = registerVFS(database{r})
	return r, err
}

// Blobs are the options of the disk below the data directory.
func (r *Recorder) Blobs() []blob.Option { return []blob.Option{blob.OnSync(r.blobSync)} }

// Database are the options of the database in the data directory. Checkpoints
// are frequent, since what a power cut does to them is of interest.
func (r *Recorder) Database() store.Options {
	return store.Options{SQLite: url.Values{"vfs": {r.vfs}, "_pragma": {"wal_autocheckpoint(40)"}}}
}

// Count is how many moments there are. What was acknowledged before must be
// there in all moments from this one on, and in Now.
func (r *Recorder) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.moments)
}

// Moments are all moments so far.
func (r *Recorder) Moments() []Moment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.moments[:len(r.moments):len(r.moments)]
}

// Now is what would be left now.
func (r *Recorder) Now() Moment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.moment("")
}

// Close lets go of the files.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, f := range r.held {
		errs = append(errs, f.Close())
	}
	r.held = nil
	return errors.Join(errs...)
}

// database watches SQLite's files. One that is removed without a sync of the
// directory is back after a power cut.
type database struct{ *Recorder }

// sync notes what an fsync makes durable: what was there before it. The shared
// memory of the log is never synced, and rebuilt from it.
func (r database) sync(path string, directory bool, real func() error) error {
	name := filepath.Base(path)
	if r.skip != nil && r.skip(name) {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	there, err := listed(filepath.Dir(path))
	if err != nil {
		return err
	}
	if err := real(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sqlite[name] = content
	if directory {
		maps.DeleteFunc(r.sqlite, func(name string, _ []byte) bool { _, ok := there[name]; return !ok })
	}
	r.moments = append(r.moments, r.moment(name))
	return nil
}

func (r database) removed(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sqlite, filepath.Base(path))
	r.moments = append(r.moments, r.moment("removal of "+filepath.Base(path)))
}

// blobSync is in place of each fsync of a blob or of a directory of blobs.
func (r *Recorder) blobSync(path string, real func() error) error {
	below := filepath.Join("blobs", path)
	if r.skip != nil && r.skip(below) {
		return nil
	}
	adopt, err := r.look(path, filepath.Join(r.dir, below))
	if err != nil {
		return err
	}
	if err := real(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	adopt()
	r.moments = append(r.moments, r.moment(below))
	return nil
}

// look reads what is about to be synced.
func (r *Recorder) look(path, file string) (adopt func(), err error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		names, err := listed(file)
		return func() { r.names[path] = names }, err
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(f)
	return func() {
		r.synced[inodeOf(info)] = content
		if old := r.held[inodeOf(info)]; old != nil {
			_ = old.Close()
		}
		r.held[inodeOf(info)] = f
	}, err
}

// listed are the files of a directory.
func listed(dir string) (map[string]inode, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := map[string]inode{}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
			continue
		}
		if err != nil {
			return nil, err
		}
		names[e.Name()] = inodeOf(info)
	}
	return names, nil
}

func inodeOf(info fs.FileInfo) inode {
	st := info.Sys().(*syscall.Stat_t)
	return inode{st.Dev, st.Ino}
}

// moment is called with mu held. A name whose file was never synced is left
// with an empty one.
func (r *Recorder) moment(after string) Moment {
	m := Moment{After: after, Files: maps.Clone(r.sqlite)}
	for dir, names := range r.names {
		for name, file := range names {
			m.Files[filepath.Join("blobs", dir, name)] = r.synced[file]
		}
	}
	return m
}

// Restore writes what is left into a new data directory.
func (r *Recorder) Restore(m Moment, dir string) error {
	if err := os.Mkdir(dir, 0o711); err != nil { //nolint:gosec // as a server's own
		return err
	}
	static, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	files := maps.Clone(m.Files)
	for _, e := range static {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), "workbench.db") && e.Name() != "lock" {
			if files[e.Name()], err = os.ReadFile(filepath.Join(r.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

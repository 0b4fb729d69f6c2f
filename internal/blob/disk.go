package blob

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/failpoint"
)

// Disk keeps each blob as a file below one directory:
//
//	tmp/<random>  blobs that are being written; emptied by OpenDisk
//	00/ … ff/<id> blobs, spread by the first byte of SHA-256(id)
//
// Directories have mode 0700 and files 0600. Every path is resolved beneath
// the root, so no link in it leads out. The directory must have one owner: the
// data directory's lock, taken by the caller, sees to that.
type Disk struct {
	root *os.Root
	sync func(path string, real func() error) error // nil: nobody looks
}

var _ Store = (*Disk)(nil)

// Option is a setting of OpenDisk.
type Option func(*Disk)

// OnSync calls f in place of every fsync of a path below the root: that of a
// file makes its content durable, that of a directory its entries. f does it by
// calling real. For tests of power loss.
func OnSync(f func(path string, real func() error) error) Option {
	return func(d *Disk) { d.sync = f }
}

const temporary = "tmp"

// OpenDisk opens or makes the directory and removes what writers that were cut
// off left in it. Code: unavailable.
func OpenDisk(dir string, options ...Option) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failed("cannot make the blob directory", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, failed("cannot open the blob directory", err)
	}
	d := &Disk{root: root}
	for _, o := range options {
		o(d)
	}
	if err := d.prepare(dir); err != nil {
		_ = root.Close()
		return nil, failed("cannot prepare the blob directory", err)
	}
	return d, nil
}

// prepare makes every directory there will be, so that a put never has to.
func (d *Disk) prepare(dir string) error {
	for i := range 257 {
		name := temporary
		if i < 256 {
			name = hex.EncodeToString([]byte{byte(i)})
		}
		if err := d.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	left, err := fs.ReadDir(d.root.FS(), temporary)
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := d.root.RemoveAll(filepath.Join(temporary, e.Name())); err != nil {
			return err
		}
	}
	if err := d.syncDir("."); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

// Close releases the directory. Open readers stay usable.
func (d *Disk) Close() error { return d.root.Close() }

func place(id string) (dir, path string) {
	sum := sha256.Sum256([]byte(id))
	dir = hex.EncodeToString(sum[:1])
	return dir, dir + "/" + id
}

// Create implements Store.
func (d *Disk) Create(ctx context.Context) (Writer, error) {
	if err := cancelled(ctx); err != nil {
		return nil, err
	}
	name := temporary + "/" + strings.ToLower(rand.Text())
	f, err := d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, failed("cannot write a blob", err)
	}
	return &diskWriter{d: d, ctx: ctx, f: f, name: name}, nil
}

type diskWriter struct {
	d    *Disk
	ctx  context.Context
	f    *os.File // nil when ended
	name string
	err  error // the first failed write
}

func (w *diskWriter) Write(p []byte) (int, error) {
	if w.f == nil {
		return 0, workbench.E(workbench.CodeInternal, "write to a blob that has ended")
	}
	if err := cancelled(w.ctx); err != nil {
		return 0, err
	}
	if err := failpoint.Hit("blob.put.write"); err != nil {
		w.err = failed("cannot write a blob", err)
		return 0, w.err
	}
	n, err := w.f.Write(p)
	if err != nil {
		w.err = failed("cannot write a blob", err)
	}
	return n, w.err
}

func (w *diskWriter) Commit(id string) error {
	defer w.Abort()
	if err := CheckID(id); err != nil {
		return err
	}
	if w.f == nil {
		return workbench.E(workbench.CodeInternal, "commit of a blob that has ended")
	}
	if w.err != nil { // a hole must not become a blob
		return w.err
	}
	if err := cancelled(w.ctx); err != nil {
		return err
	}
	dir, path := place(id)
	if err := w.install(dir, path); err != nil {
		return failed("cannot write a blob", err)
	}
	return nil
}

// install makes the written file durable, then its name.
func (w *diskWriter) install(dir, path string) error {
	if err := w.d.durable(w.name, w.f); err != nil {
		return err
	}
	if err := failpoint.Hit("blob.put.before_rename"); err != nil {
		return err
	}
	if err := w.d.root.Rename(w.name, path); err != nil {
		return err
	}
	w.name = ""
	if err := failpoint.Hit("blob.put.after_rename"); err != nil {
		return err
	}
	return w.d.syncDir(dir)
}

func (w *diskWriter) Abort() {
	if w.f == nil {
		return
	}
	_ = w.f.Close() // synced if it counts
	w.f = nil
	if w.name != "" {
		_ = w.d.root.Remove(w.name) // else OpenDisk removes it
	}
}

// Open implements Store.
func (d *Disk) Open(ctx context.Context, id string) (Reader, error) {
	if err := errors.Join(CheckID(id), cancelled(ctx)); err != nil {
		return nil, workbench.AsError(err)
	}
	_, path := place(id)
	// Not blocking: what lies there should be a file, but may be anything.
	f, err := d.root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, absent("cannot read a blob", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		_ = f.Close()
		return nil, failed("cannot read a blob", err)
	}
	return &diskReader{File: f, size: info.Size()}, nil
}

type diskReader struct {
	*os.File
	size int64
}

func (r *diskReader) Size() int64 { return r.size }

func (r *diskReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.File.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		err = failed("cannot read a blob", err)
	}
	return n, err
}

// Stat implements Store.
func (d *Disk) Stat(ctx context.Context, id string) (Info, error) {
	if err := errors.Join(CheckID(id), cancelled(ctx)); err != nil {
		return Info{}, workbench.AsError(err)
	}
	_, path := place(id)
	info, err := d.root.Lstat(path)
	if err != nil {
		return Info{}, absent("cannot look at a blob", err)
	}
	return Info{ID: id, Size: info.Size(), Modified: info.ModTime()}, nil
}

// Delete implements Store. It is durable when it returns, also when the blob
// was gone: an earlier removal may have been cut off before that.
func (d *Disk) Delete(ctx context.Context, id string) error {
	if err := errors.Join(CheckID(id), cancelled(ctx)); err != nil {
		return workbench.AsError(err)
	}
	if err := failpoint.Hit("blob.delete.before"); err != nil {
		return failed("cannot delete a blob", err)
	}
	dir, path := place(id)
	err := d.root.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = d.syncDir(dir)
	}
	if err != nil {
		return failed("cannot delete a blob", err)
	}
	return nil
}

// List implements Store.
func (d *Disk) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for i := range 256 {
			entries, err := fs.ReadDir(d.root.FS(), hex.EncodeToString([]byte{byte(i)}))
			if err != nil {
				yield(Info{}, failed("cannot list blobs", err))
				return
			}
			if err := cancelled(ctx); err != nil {
				yield(Info{}, err)
				return
			}
			for _, e := range entries {
				if !strings.HasPrefix(e.Name(), prefix) || CheckID(e.Name()) != nil {
					continue
				}
				info, err := e.Info()
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					yield(Info{}, failed("cannot list blobs", err))
					return
				}
				if !yield(Info{ID: e.Name(), Size: info.Size(), Modified: info.ModTime()}, nil) {
					return
				}
			}
		}
	}
}

func (d *Disk) syncDir(name string) error {
	f, err := d.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.durable(name, f), f.Close())
}

// durable does an fsync.
func (d *Disk) durable(path string, f *os.File) error {
	if d.sync != nil {
		return d.sync(path, f.Sync)
	}
	return f.Sync()
}

// absent is failed for a blob that is asked for by id.
func absent(what string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return workbench.ErrNotFound("blob").Caused(err)
	}
	return failed(what, err)
}

// failed explains an error of the file system.
func failed(what string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return workbench.E(workbench.CodeUnavailable, "the server's disk is full").
			WithHint("the operator has to make room in the data directory; then try again").Caused(err)
	}
	return workbench.E(workbench.CodeUnavailable, "%s", what).
		WithHint("try again; if it persists, the operator has to look at the server's disk").Caused(err)
}

// Package blob stores dumb bytes under ids: five verbs on a disk. It knows
// nothing of what the bytes mean; they are encrypted strictly above.
//
// A blob is whole or absent: it is written to a temporary file, synced and
// renamed. Putting an id that exists keeps what is there.
package blob

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/failpoint"
)

// Store is what the rooms above need. Ids are 3 to 128 characters of
// [a-z0-9_-]. Errors are *workbench.Error: not_found, unavailable (disk full or
// failing), invalid_request (an id), request_cancelled.
type Store interface {
	// Put stores r under id and returns its size. The bytes are durable when it
	// returns. An error of r is returned as it is, and nothing is stored.
	Put(ctx context.Context, id string, r io.Reader) (int64, error)
	// Open returns the blob for reading at any offset.
	Open(ctx context.Context, id string) (Reader, error)
	// Stat returns the size.
	Stat(ctx context.Context, id string) (int64, error)
	// Delete removes the blob; deleting an absent one succeeds.
	Delete(ctx context.Context, id string) error
	// List calls yield with every id until it returns false.
	List(ctx context.Context, yield func(id string) bool) error
}

// Reader is an open blob.
type Reader interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

var _ Store = (*Disk)(nil)

// Disk is a Store in a folder: <dir>/<two characters>/<id>.
type Disk struct {
	root *os.Root
	mu   sync.Mutex
	made map[string]bool // shards known to exist
}

const tmpDir = "tmp"

// OpenDisk opens or makes a folder of blobs and removes what an interrupted
// Put left. The caller owns the folder alone.
func OpenDisk(dir string) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, diskError("the blob folder cannot be made", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, diskError("the blob folder cannot be opened", err)
	}
	if err := root.RemoveAll(tmpDir); err != nil {
		return nil, diskError("the blob folder cannot be cleaned", err)
	}
	if err := root.Mkdir(tmpDir, 0o700); err != nil {
		return nil, diskError("the blob folder cannot be written", err)
	}
	return &Disk{root: root, made: map[string]bool{}}, nil
}

// Close releases the folder.
func (d *Disk) Close() error { return d.root.Close() }

func diskError(what string, err error) error {
	e := workbench.E(workbench.CodeUnavailable, "%s", what).Caused(err)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return e.WithHint("the disk of the data directory is full: make room, then try again")
	}
	return e.WithHint("the operator should look at the disk of the data directory")
}

// path checks an id and returns its shard and file name. The shard comes from
// the end: ids begin alike.
func path(id string) (shard, file string, err error) {
	if len(id) < 3 || len(id) > 128 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		return "", "", workbench.E(workbench.CodeInvalidRequest, "not a blob id")
	}
	shard = "s" + id[len(id)-2:]
	return shard, shard + "/" + id, nil
}

// Put implements Store.
func (d *Disk) Put(ctx context.Context, id string, r io.Reader) (int64, error) {
	shard, file, err := path(id)
	if err != nil {
		return 0, err
	}
	if err := d.shard(shard); err != nil {
		return 0, err
	}
	tmp := tmpDir + "/" + rand.Text()
	n, err := d.write(ctx, tmp, r)
	if err == nil {
		err = failpoint.Hit("blob.put.before_rename")
	}
	if err == nil {
		err = d.publish(tmp, file, shard)
	}
	if err != nil {
		_ = d.root.Remove(tmp)
		return 0, err
	}
	return n, failpoint.Hit("blob.put.after_rename")
}

// write makes a synced temporary file. Errors of the disk are told apart from
// the reader's own.
func (d *Disk) write(ctx context.Context, tmp string, r io.Reader) (int64, error) {
	f, err := d.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, diskError("a blob cannot be written", err)
	}
	out := &diskWriter{f: f}
	n, err := io.Copy(out, &cancellable{ctx, r})
	if out.err != nil {
		err = diskError("a blob cannot be written", out.err)
	}
	if err == nil {
		if syncErr := f.Sync(); syncErr != nil {
			err = diskError("a blob cannot be made durable", syncErr)
		}
	}
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = diskError("a blob cannot be written", closeErr)
	}
	return n, err
}

func (d *Disk) publish(tmp, file, shard string) error {
	if err := d.root.Rename(tmp, file); err != nil {
		return diskError("a blob cannot be published", err)
	}
	return d.syncDir(shard)
}

func (d *Disk) syncDir(name string) error {
	dir, err := d.root.Open(name)
	if err != nil {
		return diskError("a blob cannot be made durable", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return diskError("a blob cannot be made durable", err)
	}
	return nil
}

func (d *Disk) shard(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.made[name] {
		return nil
	}
	if err := d.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return diskError("the blob folder cannot be written", err)
	}
	if err := d.syncDir("."); err != nil {
		return err
	}
	d.made[name] = true
	return nil
}

// Open implements Store.
func (d *Disk) Open(_ context.Context, id string) (Reader, error) {
	_, file, err := path(id)
	if err != nil {
		return nil, err
	}
	f, err := d.root.Open(file)
	if err != nil {
		return nil, readError(err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, readError(err)
	}
	return &diskReader{f, info.Size()}, nil
}

// Stat implements Store.
func (d *Disk) Stat(_ context.Context, id string) (int64, error) {
	_, file, err := path(id)
	if err != nil {
		return 0, err
	}
	info, err := d.root.Stat(file)
	if err != nil {
		return 0, readError(err)
	}
	return info.Size(), nil
}

func readError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return workbench.E(workbench.CodeNotFound, "no such blob").Caused(err)
	}
	return diskError("a blob cannot be read", err)
}

// Delete implements Store.
func (d *Disk) Delete(_ context.Context, id string) error {
	_, file, err := path(id)
	if err != nil {
		return err
	}
	if err := d.root.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskError("a blob cannot be deleted", err)
	}
	return nil
}

// List implements Store.
func (d *Disk) List(ctx context.Context, yield func(id string) bool) error {
	shards, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return readError(err)
	}
	for _, shard := range shards {
		if !shard.IsDir() || shard.Name() == tmpDir {
			continue
		}
		files, err := fs.ReadDir(d.root.FS(), shard.Name())
		if err != nil {
			return readError(err)
		}
		for _, f := range files {
			if ctx.Err() != nil {
				return workbench.E(workbench.CodeCancelled, "the listing was given up").Caused(ctx.Err())
			}
			if !yield(f.Name()) {
				return nil
			}
		}
	}
	return nil
}

type diskReader struct {
	*os.File
	size int64
}

// Size implements Reader.
func (r *diskReader) Size() int64 { return r.size }

// diskWriter remembers its error, so that it is told from the source's.
type diskWriter struct {
	f   *os.File
	err error
}

func (w *diskWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

// cancellable ends a copy with its context.
type cancellable struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancellable) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, workbench.E(workbench.CodeCancelled, "the write was given up").Caused(c.ctx.Err())
	}
	return c.r.Read(p)
}

// Package checkpoint keeps the live memory of suspended sessions: it seals the
// directory that a driver wrote a sandbox into, as one blob, and opens it into a
// fresh directory again. Its one job is that such a directory lies nowhere on a
// disk but encrypted, and comes back only for the session and generation that it
// was sealed for. It knows no runtime: files of a directory are bytes to it.
//
// A sealed checkpoint is a sealed object of kind "checkpoint" whose plaintext is
// an S2 stream (pages of programs compress to about half, and what is not written
// costs no encryption and no fsync; S2 because somebody waits while it is unpacked,
// which takes half of the time that zstd's fastest level takes) of records:
//
//	"WBCK", version 2 (1 byte)
//	per file: length of the name (uint8, not 0), name, size (uint64), bytes
//	0 (uint8)
//
// Integers are big endian. The object's id in the seal is the blob's id, the
// session and the generation, so that a checkpoint moved to another session or
// generation does not verify.
//
// # Once
//
// A checkpoint may be restored once. The engine opens it, takes it from the
// session's row in the transaction that begins the return, and only then starts
// what it holds. Who refers to a checkpoint's blob is the business of that row;
// what no row names is swept like any other blob.
package checkpoint

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/failpoint"
	"github.com/workbenchdev/workbench/internal/seal"
)

// Records is what the database does for this package; store.DB is one.
type Records interface {
	NoteBlob(ctx context.Context, blobID, tenantID string, size int64, at time.Time) error
}

// Store keeps sealed checkpoints. It is safe for concurrent use.
type Store struct {
	blobs   blob.Store
	sealer  *seal.Sealer
	records Records
	clock   func() time.Time
}

// New makes a store.
func New(blobs blob.Store, sealer *seal.Sealer, records Records) *Store {
	return &Store{blobs: blobs, sealer: sealer, records: records, clock: time.Now}
}

// Binding is what a checkpoint is sealed for.
type Binding struct {
	TenantID   string
	SessionID  string
	Generation int64
}

const (
	kind   = "checkpoint"
	prefix = "k_"
)

func (b Binding) id(blobID string) string {
	return fmt.Sprintf("%s %s %d", blobID, b.SessionID, b.Generation)
}

// Sealed is a stored checkpoint.
type Sealed struct {
	BlobID string
	Bytes  int64 // of the directory's files
	Stored int64 // of the blob
}

// Seal stores the directory's files as a checkpoint of the session. It does not
// touch the directory. Nothing refers to the blob yet: until something does it
// lives as long as the sweeper spares what was just noted. Codes: unavailable (also: the disk is
// full), encryption_key_unavailable, request_cancelled.
func (s *Store) Seal(ctx context.Context, b Binding, dir string) (Sealed, error) {
	out := Sealed{BlobID: prefix + strings.ToLower(rand.Text())}
	w, err := s.blobs.Create(ctx)
	if err != nil {
		return Sealed{}, err
	}
	defer w.Abort()
	count := &counter{w: w}
	sealed, err := s.sealer.NewWriter(ctx, b.TenantID, kind, count)
	if err != nil {
		return Sealed{}, err
	}
	if out.Bytes, err = compress(ctx, sealed, dir); err != nil {
		return Sealed{}, err
	}
	if err := sealed.Close(b.id(out.BlobID)); err != nil {
		return Sealed{}, err
	}
	out.Stored = count.n
	if err := s.records.NoteBlob(ctx, out.BlobID, b.TenantID, out.Stored, s.clock()); err != nil {
		return Sealed{}, err
	}
	if err := w.Commit(out.BlobID); err != nil {
		return Sealed{}, err
	}
	if err := failpoint.Hit("checkpoint.seal.after_put"); err != nil {
		return Sealed{}, workbench.E(workbench.CodeUnavailable, "the checkpoint could not be stored").Caused(err)
	}
	return out, nil
}

// compress writes the records of a directory, compressed.
func compress(ctx context.Context, to io.Writer, dir string) (int64, error) {
	z := s2.NewWriter(to, s2.WriterBlockSize(block), s2.WriterConcurrency(atOnce))
	n, err := writeRecords(ctx, z, dir)
	if closeErr := z.Close(); err == nil {
		err = closeErr
	}
	return n, err
}

// Blocks are compressed, and unpacked, by themselves, a few at a time: somebody
// waits for a return.
const (
	block  = 256 << 10
	atOnce = 2
)

// Open writes the session's checkpoint into the directory, which must be empty
// and is best in memory (see Memory). After an error something may be in it.
// Codes: content_corrupt (it is damaged, gone, or another session's or
// generation's), encryption_key_unavailable, unavailable (also: no room),
// request_cancelled.
func (s *Store) Open(ctx context.Context, b Binding, blobID, dir string) error {
	r, err := s.blobs.Open(ctx, blobID)
	if blob.IsNotFound(err) {
		return damaged("it is gone", err)
	}
	if err != nil {
		return err
	}
	o, err := s.sealer.Open(ctx, b.TenantID, kind, b.id(blobID), r, r.Size())
	if err != nil {
		return err
	}
	defer func() { _ = o.Close() }() // only read
	records, unpacked := io.Pipe()
	var work sync.WaitGroup
	defer work.Wait()
	defer func() { _ = records.Close() }() // ends the work
	work.Go(func() {
		// Every segment was authenticated: a sum of each block would tell nothing.
		_, err := s2.NewReader(o, s2.ReaderMaxBlockSize(block), s2.ReaderIgnoreCRC()).DecodeConcurrent(unpacked, atOnce)
		_ = unpacked.CloseWithError(err) // never fails
	})
	return readRecords(ctx, records, dir)
}

// Remove removes the bytes of a checkpoint that nothing refers to any more. What
// is not there is no error. Codes: unavailable, request_cancelled.
func (s *Store) Remove(ctx context.Context, blobID string) error {
	if !strings.HasPrefix(blobID, prefix) {
		return workbench.E(workbench.CodeInternal, "not a checkpoint's blob")
	}
	// Its id is never put again, so nobody can have begun to need it; the sweeper
	// forgets it.
	return s.blobs.Delete(ctx, blobID)
}

func damaged(what string, cause error) error {
	return workbench.E(workbench.CodeCorrupt, "the session's checkpoint is damaged: %s", what).
		WithHint("its files are in its last commit; variables are lost").Caused(cause)
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// own is the error itself when it has a code, else damage.
func own(err error) error {
	if e := (*workbench.Error)(nil); errors.As(err, &e) {
		return e
	}
	return damaged("it cannot be unpacked", err)
}

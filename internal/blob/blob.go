// Package blob keeps dumb bytes under ids, on disk. Its one job is that a blob
// is either whole and durable or not there at all. It knows nothing of what
// the bytes mean, to whom they belong or whether they are encrypted; package
// seal sees to that above it.
package blob

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/workbenchdev/workbench"
)

// MaxIDBytes bounds an id.
const MaxIDBytes = 128

// Store is a place for blobs: five verbs. Put is in two steps, Create and
// Commit, because an id may depend on the bytes. Implementations are safe for
// concurrent use and must pass blobtest.
//
// Every error is a *workbench.Error: invalid_request for an id that is none,
// not_found, request_cancelled, and unavailable (retryable) when the storage
// is full or fails.
type Store interface {
	// Create begins a blob that nobody sees before its Commit.
	Create(ctx context.Context) (Writer, error)

	// Open opens a blob for reading at any place. It stays readable until it
	// is closed, also when it is deleted or replaced meanwhile.
	Open(ctx context.Context, id string) (Reader, error)

	// Stat is not_found for what is not there.
	Stat(ctx context.Context, id string) (Info, error)

	// Delete removes a blob for good; one that is not there is no error. Whoever
	// counts references may forget the blob when it returned nil.
	Delete(ctx context.Context, id string) error

	// List gives all blobs whose id begins with prefix, in no order. A blob
	// that comes or goes meanwhile may be missing. It ends at the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
}

// Writer takes the bytes of one blob. Exactly one of Commit and Abort must be
// called; Abort after Commit does nothing, so it can be deferred.
type Writer interface {
	io.Writer

	// Commit makes the blob visible under id, whole and durable, and replaces
	// what was there in one step. After an error the blob is not there, or, if
	// only its durability is in doubt, it may be.
	Commit(id string) error

	// Abort leaves nothing.
	Abort()
}

// Reader is an open blob.
type Reader interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Info describes a blob.
type Info struct {
	ID       string
	Size     int64
	Modified time.Time
}

// Put stores what r gives under id and returns its size.
func Put(ctx context.Context, s Store, id string, r io.Reader) (int64, error) {
	if err := CheckID(id); err != nil {
		return 0, err
	}
	w, err := s.Create(ctx)
	if err != nil {
		return 0, err
	}
	defer w.Abort()
	n, err := io.Copy(w, r)
	if err != nil {
		return n, err
	}
	return n, w.Commit(id)
}

// CommitOnce commits w under id, unless the blob is there with that size: then
// w is dropped. It is for ids that depend on nothing but the content. A blob
// that just appeared does not count: its writer may not have made it durable.
func CommitOnce(ctx context.Context, s Store, w Writer, id string, size int64) error {
	_, settled, err := There(ctx, s, id, size)
	if err != nil {
		return err
	}
	if settled {
		w.Abort()
		return nil
	}
	return w.Commit(id)
}

// There reports whether a blob is there with that size, and whether for long
// enough to be durable.
func There(ctx context.Context, s Store, id string, size int64) (there, settled bool, err error) {
	const after = time.Minute
	info, err := s.Stat(ctx, id)
	if IsNotFound(err) {
		return false, false, nil
	}
	there = err == nil && info.Size == size
	return there, there && time.Since(info.Modified) > after, err
}

// CheckID refuses, with invalid_request, whatever is not an id: 1 to 128 of
// the characters a–z, 0–9, "_" and "-".
func CheckID(id string) error {
	if id == "" || len(id) > MaxIDBytes {
		return errID
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return errID
		}
	}
	return nil
}

var errID = workbench.E(workbench.CodeInvalidRequest, "not a blob id")

// IsNotFound reports whether err says that a blob is not there.
func IsNotFound(err error) bool { return workbench.HasCode(err, workbench.CodeNotFound) }

// cancelled is the error of a context that ended.
func cancelled(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return workbench.E(workbench.CodeUnavailable, "the storage did not answer in time").WithHint("try again in a moment").Caused(err)
	}
	return workbench.E(workbench.CodeCancelled, "the request was given up before the storage answered").Caused(err)
}

package workspace

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"

	"github.com/workbenchdev/workbench"
)

// stagedInMemory is the largest content that is staged without the disk.
const stagedInMemory = 256 << 10

// kindStaged is the kind of a sealed object that holds one staged content.
const (
	kindStaged   = "staged"
	stagedPrefix = "s_"
)

// Staged is a content that has arrived whole and is in no tree yet: its size
// and digest are known. Discard it when it is in one, or not wanted.
type Staged struct {
	Size   int64
	SHA256 [sha256.Size]byte

	s        *Store
	tenantID string
	small    []byte // the content, or
	id       string // the sealed object that holds it
}

// Stage takes a content of at most limit bytes, sealed where it is not small.
// One that is never discarded is swept. Codes: workspace_full (it is larger),
// unavailable, encryption_key_unavailable, and what r returns.
func (s *Store) Stage(ctx context.Context, tenantID string, limit int64, r io.Reader) (*Staged, error) {
	st := &Staged{s: s, tenantID: tenantID}
	hash := sha256.New()
	r = io.TeeReader(io.LimitReader(r, limit+1), hash)
	first, err := io.ReadAll(io.LimitReader(r, stagedInMemory+1))
	if err != nil {
		return nil, err
	}
	if st.Size = int64(len(first)); len(first) <= stagedInMemory {
		st.small = first
	} else if err := st.seal(ctx, io.MultiReader(bytes.NewReader(first), r)); err != nil {
		return nil, err
	}
	if st.Size > limit {
		st.Discard(ctx)
		return nil, workbench.E(workbench.CodeWorkspaceFull, "the file is larger than the %d bytes it may have", limit).
			WithHint("send a smaller file, or use a session whose workspace is larger")
	}
	hash.Sum(st.SHA256[:0])
	return st, nil
}

// seal writes the content into an object of its own.
func (st *Staged) seal(ctx context.Context, r io.Reader) error {
	w, err := st.s.blobs.Create(ctx)
	if err != nil {
		return err
	}
	defer w.Abort()
	sealed, err := st.s.sealer.NewWriter(ctx, st.tenantID, kindStaged, w)
	if err != nil {
		return err
	}
	if st.Size, err = io.Copy(sealed, r); err != nil {
		return err
	}
	var random [20]byte
	_, _ = rand.Read(random[:]) // never fails
	id := stagedPrefix + hex.EncodeToString(random[:])
	if err := sealed.Close(id); err != nil {
		return err
	}
	if err := st.s.records.NoteBlob(ctx, id, st.tenantID, st.Size, st.s.clock()); err != nil {
		return err
	}
	if err := w.Commit(id); err != nil {
		return err
	}
	st.id = id
	return nil
}

// Open reads the content from its beginning. Codes: content_corrupt,
// encryption_key_unavailable, unavailable.
func (st *Staged) Open(ctx context.Context) (io.ReadCloser, error) {
	if st.id == "" {
		return io.NopCloser(bytes.NewReader(st.small)), nil
	}
	src, err := st.s.blobs.Open(ctx, st.id)
	if err != nil {
		return nil, missing(err)
	}
	o, err := st.s.sealer.Open(ctx, st.tenantID, kindStaged, st.id, src, src.Size())
	if err != nil {
		return nil, err
	}
	return fileReader{io.NewSectionReader(o, 0, st.Size), o}, nil
}

// Discard lets go of the content. Its row stays until the sweeper has seen that
// nothing is left to delete.
func (st *Staged) Discard(ctx context.Context) {
	if st.id != "" {
		_ = st.s.blobs.Delete(context.WithoutCancel(ctx), st.id) // else the sweeper does it
		st.id, st.small = "", nil
	}
}

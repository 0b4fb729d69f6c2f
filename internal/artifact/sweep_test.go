package artifact_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

func TestReservationsOfACrashAreGivenBack(t *testing.T) {
	w := mustWorld(t)
	now := w.clock.Now()
	for i := range 250 {
		w.must(w.db.ReserveArtifact(t.Context(), w.ann, workbench.Artifact{ID: workbench.NewID(workbench.KindArtifact), SessionID: w.session.ID, Revision: 1, Generation: 1,
			Name: fmt.Sprint(i), Path: fmt.Sprint(i), Size: 10, Origin: workbench.OriginUpload, CreatedAt: now, ExpiresAt: now.Add(time.Hour)}, store.Quota{}))
	}
	w.must(w.files.Sweep(t.Context(), now))
	if use := w.mustUse(); use.SessionFiles != 250 {
		t.Errorf("within the grace: %+v", use)
	}
	w.must(w.files.Sweep(t.Context(), now.Add(2*time.Minute)))
	if use := w.mustUse(); use != (store.QuotaUse{}) {
		t.Errorf("after the grace: %+v", use)
	}
}

func TestBlobsGoWithTheirLastReference(t *testing.T) {
	w := mustWorld(t)
	trees := workspace.New(w.disk, w.sealer, w.db)
	big := strings.Repeat("shared ", 100_000)
	build := trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	w.must(build.File(t.Context(), workspace.Entry{Path: "big", Size: int64(len(big)), Mode: 0o644}, strings.NewReader(big)))
	made, err := build.Commit(t.Context())
	w.must(err)
	_, err = w.db.CreateCommit(t.Context(), made.Describe(workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: w.session.ID, Generation: 1, CreatedAt: w.clock.Now()}), w.epoch, made.Refs)
	w.must(err)
	kept := w.mustUpload("big", big)
	twin := w.mustUpload("other name", big)
	if files := w.mustBlobFiles(); len(files) != 1 {
		t.Fatalf("one content is stored as %v", files)
	}
	other := w.mustUpload("small", "x")
	day := 24 * time.Hour
	_, err = w.files.Delete(t.Context(), w.ann, other.ID)
	w.must(err)
	w.must(w.files.Sweep(t.Context(), w.clock.Now().Add(day)))
	_, err = w.files.Delete(t.Context(), w.ann, kept.ID)
	w.must(err)
	w.must(w.files.Sweep(t.Context(), w.clock.Now().Add(day)))
	if files := w.mustBlobFiles(); len(files) != 1 {
		t.Errorf("blobs %v", files)
	}
	if got := w.mustRead(twin.ID); got != big {
		t.Error("the twin lost its bytes")
	}
	_, err = w.files.Delete(t.Context(), w.ann, twin.ID)
	w.must(err)
	w.must(w.files.Sweep(t.Context(), w.clock.Now().Add(2*day)))
	_, r, err := trees.Open(t.Context(), w.session.TenantID, made.Tree, "big")
	w.must(err)
	if got, err := io.ReadAll(r); string(got) != big || err != nil {
		t.Errorf("the commit lost its bytes: %v", err)
	}
	w.must(r.Close())
	again := w.mustUpload("big again", big)
	if got := w.mustRead(again.ID); got != big {
		t.Error("other bytes")
	}
}

// What was uploaded again after its bytes were swept is stored again.
func TestUploadAfterTheSweep(t *testing.T) {
	w := mustWorld(t)
	for range 3 {
		a := w.mustUpload("f", "the same")
		if got := w.mustRead(a.ID); got != "the same" {
			t.Errorf("%q", got)
		}
		_, err := w.files.Delete(t.Context(), w.ann, a.ID)
		w.must(err)
		w.must(w.files.Sweep(t.Context(), w.clock.Now().Add(2*time.Hour)))
		if files := w.mustBlobFiles(); len(files) != 0 {
			t.Errorf("left: %v", files)
		}
	}
}

// Commits that nothing refers to any more go, those in the database too.
func TestCommitsOfPurgedSessionsAreSwept(t *testing.T) {
	w := mustWorld(t)
	trees := workspace.New(w.disk, w.sealer, w.db)
	build := trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	w.must(build.File(t.Context(), workspace.Entry{Path: "f", Size: 1, Mode: 0o644}, strings.NewReader("x")))
	made, err := build.Commit(t.Context())
	w.must(err)
	c, err := w.db.CreateCommit(t.Context(), made.Describe(workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: w.session.ID, Generation: 1, CreatedAt: w.clock.Now()}), w.epoch, made.Refs)
	w.must(err)
	later := w.clock.Now().Add(2 * time.Hour)
	w.must(w.files.Sweep(t.Context(), later))
	if _, err := w.db.InlineBlob(t.Context(), w.session.TenantID, c.ManifestID); err != nil {
		t.Errorf("swept while it was referred to: %v", err)
	}
	w.must(w.db.DropBlobRefs(t.Context(), store.SessionBlobOwner(w.session.ID)))
	w.must(w.files.Sweep(t.Context(), later))
	_, err = w.db.InlineBlob(t.Context(), w.session.TenantID, c.ManifestID)
	want(t, "after the purge", err, workbench.CodeNotFound)
}

// faulty is a storage that fails when it is told to.
type faulty struct {
	blob.Store
	down    atomic.Bool
	stuck   func(id string) bool
	deleted atomic.Int64
}

func (f *faulty) fail() error {
	if f.down.Load() {
		return workbench.E(workbench.CodeUnavailable, "the storage is down")
	}
	return nil
}

func (f *faulty) Create(ctx context.Context) (blob.Writer, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Create(ctx)
}

func (f *faulty) Open(ctx context.Context, id string) (blob.Reader, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Open(ctx, id)
}

func (f *faulty) Delete(ctx context.Context, id string) error {
	if f.stuck != nil && f.stuck(id) {
		return workbench.E(workbench.CodeUnavailable, "this one is stuck")
	}
	f.deleted.Add(1)
	return f.Store.Delete(ctx, id)
}

func TestSweepsPassOverWhatIsStuck(t *testing.T) {
	f := &faulty{}
	w := mustWorldAt(t, t.TempDir(), func(s blob.Store) blob.Store { f.Store = s; return f })
	now := w.clock.Now()
	for i := range 500 {
		prefix := "stuck"
		if i >= 300 {
			prefix = "free"
		}
		w.must(w.db.NoteBlob(t.Context(), fmt.Sprintf("%s_%d", prefix, i), w.session.TenantID, 1, now.Add(time.Duration(i)*time.Millisecond)))
	}
	f.stuck = func(id string) bool { return strings.HasPrefix(id, "stuck") }
	err := w.files.Sweep(t.Context(), now.Add(2*time.Hour))
	want(t, "a sweep with stuck rows", err, workbench.CodeUnavailable)
	if n := f.deleted.Load(); n != 200 {
		t.Errorf("%d of 200 free blobs were deleted behind 300 stuck ones", n)
	}
	f.stuck = nil
	w.must(w.files.Sweep(t.Context(), now.Add(2*time.Hour)))
	if n := f.deleted.Load(); n != 500 {
		t.Errorf("%d deleted in the end", n)
	}
}

func TestStorageThatIsDown(t *testing.T) {
	f := &faulty{}
	w := mustWorldAt(t, t.TempDir(), func(s blob.Store) blob.Store { f.Store = s; return f })
	a := w.mustUpload("f", "x")
	f.down.Store(true)
	_, err := w.upload("g", "y")
	want(t, "upload", err, workbench.CodeUnavailable)
	_, _, err = w.files.Open(t.Context(), w.ann, a.ID)
	want(t, "open", err, workbench.CodeUnavailable)
	if use := w.mustUse(); use.SessionFiles != 1 {
		t.Errorf("%+v", use)
	}
	f.down.Store(false)
	if got := w.mustRead(a.ID); got != "x" {
		t.Errorf("%q", got)
	}
}

// A missing key is told apart from damage, by its id, and old files come back
// with it.
func TestRotatedMasterKey(t *testing.T) {
	w := mustWorld(t)
	a := w.mustUpload("f.txt", "old content")
	masters, err := seal.NewMasters([]byte("0123456789abcdef0123456789abcdef"))
	w.must(err)
	other := artifact.New(w.disk, seal.New(masters, w.db), w.db, artifact.WithClock(w.clock.Now))
	_, _, err = other.Open(t.Context(), w.ann, a.ID)
	want(t, "open", err, workbench.CodeKeyUnavailable)
	_, err = other.Upload(t.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: "g", Size: 1}, strings.NewReader("x"))
	want(t, "upload", err, workbench.CodeKeyUnavailable)
	got, err := other.Get(t.Context(), w.ann, a.ID)
	if err != nil || got.Name != "f.txt" || got.Preview != "" {
		t.Errorf("metadata without the key: %+v, %v", got, err)
	}
	if got := w.mustRead(a.ID); got != "old content" {
		t.Errorf("%q", got)
	}
}

package workspace_test

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// world is one session over a real database and disk.
type world struct {
	t       testing.TB
	dir     string
	db      *store.DB
	blobs   *blob.Disk
	sealer  *seal.Sealer
	trees   *workspace.Store
	session workbench.Session
	epoch   int64
	syncs   atomic.Int64 // fsyncs of the blob store
}

func mustWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	var err error
	if w.db, err = store.Open(t.Context(), filepath.Join(w.dir, "wb.db"), store.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.db.Close() })
	if w.blobs, err = blob.OpenDisk(filepath.Join(w.dir, "blobs"), blob.OnSync(func(_ string, real func() error) error { w.syncs.Add(1); return real() })); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.blobs.Close() })
	masters, err := seal.NewMasters(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	w.sealer = seal.New(masters, w.db)
	w.trees = workspace.New(w.blobs, w.sealer, w.db)
	w.session = w.mustSession("acme")
	w.syncs.Store(0)
	return w
}

// mustSession makes a session of the tenant, owned by one engine.
func (w *world) mustSession(tenant string) workbench.Session {
	w.t.Helper()
	ctx := w.t.Context()
	project, err := w.db.EnsureProject(ctx, "default")
	w.must(err)
	ten, err := w.db.EnsureTenant(ctx, project.ID, tenant)
	w.must(err)
	user, err := w.db.EnsureUser(ctx, project.ID, ten.ID, "ann")
	w.must(err)
	now := time.Now()
	s := workbench.Session{ID: workbench.NewID(workbench.KindSession), ProjectID: project.ID, TenantID: ten.ID, UserID: user.ID, Kind: workbench.SessionPersonal,
		State: workbench.SessionActive, Generation: 1, Revision: 1, Size: "standard", Limits: workbench.DefaultLimits(), CreatedAt: now, ActiveAt: now, ExpiresAt: now.Add(time.Hour)}
	p := workbench.Principal{ProjectID: project.ID, TenantID: ten.ID, UserID: user.ID, KeyKind: workbench.KeyDirect}
	w.must(w.db.CreateSession(ctx, p, s, workbench.Revision{SessionID: s.ID, Number: 1, Size: s.Size, Limits: s.Limits, CreatedAt: now}))
	w.epoch, err = w.db.AcquireLease(ctx, s.ID, "eng_test", time.Hour)
	w.must(err)
	return s
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// put adds a file with its content to a builder.
func put(b *workspace.Builder, path, content string) func(t testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		e := workspace.Entry{Path: path, Mode: 0o644, Size: int64(len(content)), MtimeNs: 42}
		if err := b.File(t.Context(), e, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
}

// mustRecord does what the engine does with a built tree: it records the
// commit with its blobs.
func (w *world) mustRecord(made workspace.Committed, parent string) workbench.Commit {
	w.t.Helper()
	c, err := w.db.CreateCommit(w.t.Context(), made.Describe(workbench.Commit{ID: workbench.NewID(workbench.KindCommit), ParentID: parent, Generation: 1,
		Exclusive: true, CreatedAt: time.Now(), SessionID: w.session.ID}), w.epoch, made.Refs)
	w.must(err)
	return c
}

func (w *world) mustCommit(b *workspace.Builder) workspace.Committed {
	w.t.Helper()
	made, err := b.Commit(w.t.Context())
	w.must(err)
	return made
}

func (w *world) mustLoad(manifestID string) workspace.Tree {
	w.t.Helper()
	tree, err := w.trees.Load(w.t.Context(), w.session.TenantID, manifestID)
	w.must(err)
	return tree
}

func (w *world) mustReadFile(tree workspace.Tree, path string) string {
	w.t.Helper()
	e, r, err := w.trees.Open(w.t.Context(), w.session.TenantID, tree, path)
	w.must(err)
	defer r.Close()
	b, err := io.ReadAll(r)
	w.must(err)
	if int64(len(b)) != e.Size {
		w.t.Errorf("%s has %d bytes, its entry says %d", path, len(b), e.Size)
	}
	return string(b)
}

// mustBlobFiles are the files below the blob directory.
func (w *world) mustBlobFiles() []string {
	w.t.Helper()
	var files []string
	w.must(filepath.WalkDir(filepath.Join(w.dir, "blobs"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return err
	}))
	return files
}

// mustNotHold fails if any file of the data directory holds the text.
func (w *world) mustNotHold(text string) {
	w.t.Helper()
	w.must(filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(text)) {
			w.t.Errorf("%s holds %q in the clear", path, text)
		}
		return err
	}))
}

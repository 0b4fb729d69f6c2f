package artifact_test

import (
	"bytes"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
)

// clock is a clock that stands until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }
func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a session of ann over a real database and disk.
type world struct {
	t       testing.TB
	dir     string
	clock   *clock
	db      *store.DB
	disk    *blob.Disk
	sealer  *seal.Sealer
	files   *artifact.Service
	ann     workbench.Principal
	session workbench.Session
	epoch   int64
}

func mustWorld(t testing.TB, options ...artifact.Option) *world {
	t.Helper()
	return mustWorldAt(t, t.TempDir(), nil, options...)
}

// mustWorldAt opens a world in a directory, which may hold an earlier one.
// wrap, when not nil, stands between the service and the disk.
func mustWorldAt(t testing.TB, dir string, wrap func(blob.Store) blob.Store, options ...artifact.Option) *world {
	t.Helper()
	w := &world{t: t, dir: dir, clock: &clock{now: time.Now().UTC().Truncate(time.Microsecond)}}
	var err error
	w.db, err = store.Open(t.Context(), filepath.Join(dir, "wb.db"), store.Options{Clock: w.clock.Now})
	w.must(err)
	t.Cleanup(func() { _ = w.db.Close() })
	w.disk, err = blob.OpenDisk(filepath.Join(dir, "blobs"))
	w.must(err)
	t.Cleanup(func() { _ = w.disk.Close() })
	masters, err := seal.NewMasters(bytes.Repeat([]byte{7}, 32))
	w.must(err)
	w.sealer = seal.New(masters, w.db)
	var blobs blob.Store = w.disk
	if wrap != nil {
		blobs = wrap(blobs)
	}
	w.files = artifact.New(blobs, w.sealer, w.db, append([]artifact.Option{artifact.WithClock(w.clock.Now), artifact.WithGrace(time.Minute, time.Hour, 0)}, options...)...)
	w.ann = w.mustPrincipal("acme", "ann")
	w.session = w.mustSession(w.ann, nil)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) mustPrincipal(tenant, user string) workbench.Principal {
	w.t.Helper()
	project, err := w.db.EnsureProject(w.t.Context(), "default")
	w.must(err)
	ten, err := w.db.EnsureTenant(w.t.Context(), project.ID, tenant)
	w.must(err)
	u, err := w.db.EnsureUser(w.t.Context(), project.ID, ten.ID, user)
	w.must(err)
	return workbench.Principal{ProjectID: project.ID, TenantID: ten.ID, UserID: u.ID, KeyKind: workbench.KeyDirect,
		Scopes: []workbench.Scope{workbench.ScopeExecute, workbench.ScopeRead}}
}

func (w *world) mustSession(p workbench.Principal, lower func(*workbench.Limits)) workbench.Session {
	w.t.Helper()
	now := w.clock.Now()
	s := workbench.Session{ID: workbench.NewID(workbench.KindSession), ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, Kind: workbench.SessionPersonal,
		State: workbench.SessionActive, Generation: 1, Revision: 1, Size: "standard", Limits: workbench.DefaultLimits(), CreatedAt: now, ActiveAt: now, ExpiresAt: now.Add(24 * time.Hour)}
	if lower != nil {
		lower(&s.Limits)
	}
	w.must(w.db.CreateSession(w.t.Context(), p, s, workbench.Revision{SessionID: s.ID, Number: 1, Size: s.Size, Limits: s.Limits, CreatedAt: now}))
	var err error
	w.epoch, err = w.db.AcquireLease(w.t.Context(), s.ID, "eng_test", time.Hour)
	w.must(err)
	return s
}

func (w *world) upload(name, content string) (workbench.Artifact, error) {
	return w.files.Upload(w.t.Context(), w.ann, w.session.ID, artifact.UploadRequest{Name: name, Size: int64(len(content))}, strings.NewReader(content))
}

func (w *world) mustUpload(name, content string) workbench.Artifact {
	w.t.Helper()
	a, err := w.upload(name, content)
	w.must(err)
	return a
}

func (w *world) mustRead(id string) string {
	w.t.Helper()
	_, r, err := w.files.Open(w.t.Context(), w.ann, id)
	w.must(err)
	defer r.Close()
	b, err := io.ReadAll(r)
	w.must(err)
	return string(b)
}

func (w *world) mustList() []workbench.Artifact {
	w.t.Helper()
	list, err := w.files.List(w.t.Context(), w.ann, w.session.ID, workbench.Page{Limit: workbench.MaxPageLimit})
	w.must(err)
	return list.Items
}

func (w *world) mustUse() store.QuotaUse {
	w.t.Helper()
	use, err := w.db.QuotaUse(w.t.Context(), w.session.ID)
	w.must(err)
	return use
}

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

func want(t testing.TB, what string, err error, code workbench.Code) {
	t.Helper()
	if got := workbench.CodeOf(err); got != code {
		t.Errorf("%s: %v is %q, want %q", what, err, got, code)
	}
}

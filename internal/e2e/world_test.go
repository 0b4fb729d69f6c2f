package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/api/apitest"
	"github.com/workbenchdev/workbench/internal/server"
	"github.com/workbenchdev/workbench/internal/store/pgtest"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// world is a running server and clients for it.
type world struct {
	server *server.Server
	url    string
	admin  *sdk.Client
	http   *httptest.Server
	dir    string
	log    *logBuffer

	mu         sync.Mutex
	deviations []error // exchanges that part from the OpenAPI document
}

func (w *world) deviated(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deviations = append(w.deviations, errors.New(what))
}

// shared is the server that tests use which do nothing to the server itself.
var (
	sharedOnce  sync.Once
	sharedWorld *world
	sharedErr   error
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if sharedWorld != nil {
		if err := sharedWorld.close(); err != nil {
			fmt.Fprintln(os.Stderr, "the shared server did not stop well:", err)
			code = 1
		}
		_ = os.RemoveAll(sharedWorld.dir)
	}
	os.Exit(code)
}

func mustShared(t *testing.T) *world {
	t.Helper()
	sharedOnce.Do(func() {
		dir, err := os.MkdirTemp("", "e2e")
		if err != nil {
			sharedErr = err
			return
		}
		sharedWorld, sharedErr = open(dir, nil)
	})
	if sharedErr != nil {
		t.Fatal(sharedErr)
	}
	return sharedWorld
}

// mustWorld is a server of the test's own.
func mustWorld(t *testing.T, change func(*server.Options)) *world {
	t.Helper()
	w, err := open(t.TempDir(), change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Errorf("the server did not stop well: %v", err)
		}
		if t.Failed() {
			t.Log(w.log.tail())
		}
	})
	return w
}

func open(dir string, change func(*server.Options)) (*world, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	images := os.Getenv("WORKBENCH_IMAGES")
	if images == "" {
		images = "/var/lib/workbench/images" // where make setup puts them
	}
	if _, err := os.Stat(filepath.Join(images, "names", "standard")); err != nil {
		return nil, fmt.Errorf("no image standard in %s: run make setup (%w)", images, err)
	}
	log := &logBuffer{}
	o := server.Options{DataDir: filepath.Join(dir, "data"), Images: images, DefaultImage: "standard",
		Runsc: filepath.Join(root, "bin", "runsc"), Runc: filepath.Join(root, "bin", "runc"), Guest: filepath.Join(root, "bin", "guest"),
		SuspendAfter: -1, // a busy machine takes its time between a test's runs
		Log:          slog.New(slog.NewTextHandler(log, nil))}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := server.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	w := &world{server: s, dir: dir, log: log}
	checked, err := apitest.New(api.Document(""), s.Handler(), w.deviated)
	if err != nil {
		return nil, err
	}
	w.http = httptest.NewServer(checked)
	w.url = w.http.URL
	if key := s.AdminKey(); key != "" {
		if err := os.WriteFile(filepath.Join(dir, "admin"), []byte(key), 0o600); err != nil {
			return nil, err
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, "admin"))
	if err != nil {
		return nil, err
	}
	w.admin, err = sdk.New(sdk.Options{BaseURL: w.url, Key: string(key)})
	return w, err
}

func (w *world) close() error { return w.closeWithin(30 * time.Second) }

// closeWithin gives runs that are out so long.
func (w *world) closeWithin(d time.Duration) error {
	w.http.CloseClientConnections()
	w.http.Close()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	err := w.server.Close(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(append(w.deviations, err)...)
}

// mustUser returns a client that acts as a user of a tenant.
func (w *world) mustUser(t *testing.T, tenant, user string) *sdk.Client {
	t.Helper()
	made, err := w.admin.CreateKey(t.Context(), sdk.CreateKey{Kind: workbench.KeyDirect, Name: t.Name(), Tenant: tenant, User: user})
	if err != nil {
		t.Fatal(err)
	}
	c, err := sdk.New(sdk.Options{BaseURL: w.url, Key: made.Secret})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// session is a session under test; it is closed at the test's end.
type session struct {
	t  *testing.T
	c  *sdk.Client
	id string
}

func (w *world) mustSession(t *testing.T, r sdk.CreateSession) *session {
	t.Helper()
	return mustSessionOf(t, w.mustUser(t, strings.ToLower(t.Name()), "ada"), r)
}

func mustSessionOf(t *testing.T, c *sdk.Client, r sdk.CreateSession) *session {
	t.Helper()
	s, err := c.CreateAgentSession(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if _, err := c.CloseAgentSession(ctx, s.ID); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &session{t: t, c: c, id: s.ID}
}

// mustOpenSession is a session that stays open: the server ends before it does.
func (w *world) mustOpenSession(t *testing.T) *session {
	t.Helper()
	c := w.mustUser(t, "acme", "ada")
	made, err := c.CreateAgentSession(t.Context(), sdk.CreateSession{})
	if err != nil {
		t.Fatal(err)
	}
	return &session{t: t, c: c, id: made.ID}
}

func (s *session) mustSubmit(r sdk.CreateRun) string {
	s.t.Helper()
	run, err := s.c.CreateSessionRun(s.t.Context(), s.id, r)
	if err != nil {
		s.t.Fatal(err)
	}
	return run.ID
}

func (s *session) mustWait(run string) workbench.Receipt {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	r, err := s.c.WaitForSessionRun(ctx, run)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// mustRun submits and waits.
func (s *session) mustRun(r sdk.CreateRun) workbench.Receipt {
	s.t.Helper()
	return s.mustWait(s.mustSubmit(r))
}

func (s *session) mustBash(code string) workbench.Receipt {
	s.t.Helper()
	return s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: code})
}

func (s *session) mustPython(code string) workbench.Receipt {
	s.t.Helper()
	return s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: code})
}

func (s *session) mustUpload(name, content string) workbench.Artifact {
	s.t.Helper()
	a, err := s.c.UploadSessionArtifact(s.t.Context(), s.id, sdk.Upload{Name: name}, strings.NewReader(content))
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *session) mustRead(artifact string) string {
	s.t.Helper()
	b, err := s.c.ReadSessionArtifact(s.t.Context(), artifact)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// wantEnd fails unless the run ended so, and says how.
func wantEnd(t *testing.T, r workbench.Receipt, status workbench.Status, reason workbench.Reason) {
	t.Helper()
	if r.Status != status || r.Reason != reason {
		t.Fatalf("run ended %s (%s), want %s (%s); message %q\nstdout %q\nstderr %q", r.Status, r.Reason, status, reason, r.Message, text(r.Stdout), text(r.Stderr))
	}
	if status != workbench.StatusSucceeded && r.Message == "" {
		t.Errorf("run ended %s (%s), without a message", r.Status, r.Reason)
	}
}

// wantMessage fails unless the run says in this sentence how it ended.
func wantMessage(t *testing.T, r workbench.Receipt, want string) {
	t.Helper()
	if r.Message != want {
		t.Errorf("a run that ended %s (%s) says %q, want %q", r.Status, r.Reason, r.Message, want)
	}
}

func wantOut(t *testing.T, r workbench.Receipt, want string) {
	t.Helper()
	if text(r.Stdout) != want {
		t.Fatalf("stdout %q, want %q; status %s (%s), stderr %q", text(r.Stdout), want, r.Status, r.Reason, text(r.Stderr))
	}
}

func text(s *string) string {
	if s == nil {
		return "<none>"
	}
	return *s
}

func wantCode(t *testing.T, err error, code workbench.Code) {
	t.Helper()
	if !workbench.HasCode(err, code) {
		t.Fatalf("error is %v, want code %s", err, code)
	}
}

// logBuffer keeps the server's log for failures.
type logBuffer struct {
	mu  sync.Mutex
	all []byte
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, p...)
	return len(p), nil
}

func (l *logBuffer) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.all[max(0, len(l.all)-8000):])
}

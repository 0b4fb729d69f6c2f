package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/api/apitest"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/identity"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/telemetry"
	"github.com/workbenchdev/workbench/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server with two of everything: projects, and in the first one two
// tenants with two users each.
type world struct {
	t       testing.TB
	db      *store.DB
	engine  *standIn
	ids     *identity.Service
	server  *httptest.Server
	checker *apitest.Checker
	log     *syncBuffer
	clock   *clock
	parts   parts
}

// parts is what an engine is made of besides its driver.
type parts struct {
	sealer *seal.Sealer
	blobs  *blob.Disk
	files  *artifact.Service
	tools  *govern.Governor
}

// clock is the time of a test.
type clock struct {
	mu   sync.Mutex
	now  time.Time
	real bool
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real {
		return time.Now()
	}
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// MustWorld starts a server over a new SQLite store. change may alter its
// options.
func MustWorld(t testing.TB, change ...func(*api.Options)) *world {
	t.Helper()
	w := mustParts(t, &clock{now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)})
	w.serve(w.engine, change...)
	return w
}

// mustParts is a world whose server does not run yet.
func mustParts(t testing.TB, c *clock) *world {
	t.Helper()
	db, err := store.Open(context.Background(), "sqlite:"+filepath.Join(t.TempDir(), "w.db"), store.Options{Clock: c.Now})
	if err != nil {
		t.Fatalf("opening the store: %v", err)
	}
	t.Cleanup(func() { _ = db.Close() })
	masters, err := seal.LoadMasters(t.TempDir(), "")
	if err != nil {
		t.Fatalf("making a master key: %v", err)
	}
	blobs, err := blob.OpenDisk(t.TempDir())
	if err != nil {
		t.Fatalf("opening the blobs: %v", err)
	}
	sealer := seal.New(masters, db)
	files := artifact.New(blobs, sealer, db, artifact.WithClock(c.Now))
	clients := upstream.New(upstream.Options{Clock: c.Now})
	t.Cleanup(func() { _ = clients.Close() })
	tools := govern.New(govern.Options{Store: db, Seal: sealer, Upstream: clients, Artifacts: files, EngineID: standInEngine, Clock: c.Now})
	return &world{t: t, db: db, engine: newStandIn(db, sealer, blobs, c.Now), ids: identity.New(db, c.Now), log: &syncBuffer{}, clock: c, parts: parts{sealer, blobs, files, tools}}
}

// serve starts the server over an engine.
func (w *world) serve(e api.Engine, change ...func(*api.Options)) {
	w.t.Helper()
	o := api.Options{
		Engine: e, Artifacts: w.parts.files, Tools: w.parts.tools, Identity: w.ids, Audit: w.db, Metrics: telemetry.NewMetrics(), Clock: w.clock.Now,
		Log: telemetry.NewLogger(w.log, telemetry.LogJSON, slog.LevelDebug), Heartbeat: 50 * time.Millisecond, MaxUploadBytes: 16 << 20,
	}
	for _, f := range change {
		f(&o)
	}
	w.checker = apitest.Checked(w.t, api.Document(""), api.New(o))
	w.server = httptest.NewUnstartedServer(w.checker)
	w.server.Config = api.HTTPServer(w.checker, slog.New(slog.DiscardHandler))
	w.server.Start()
	w.t.Cleanup(w.server.Close)
}

// MustKey makes a key in a project and returns it with its secret.
func (w *world) MustKey(r identity.KeyRequest) (workbench.Key, string) {
	w.t.Helper()
	key, secret, err := w.ids.CreateKey(context.Background(), workbench.SystemPrincipal(), r)
	if err != nil {
		w.t.Fatalf("creating a key: %v", err)
	}
	return key, secret
}

// Direct is the secret of a new direct key.
func (w *world) Direct(project, tenant, user string) string {
	w.t.Helper()
	_, secret := w.MustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Project: project, Tenant: tenant, User: user})
	return secret
}

// exchange is one answer.
type exchange struct {
	t      testing.TB
	Status int
	Header http.Header
	Body   []byte
}

// Do sends a request; headers are pairs of name and value.
func (w *world) Do(method, path, secret, body string, headers ...string) exchange {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatalf("request: %v", err)
	}
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	}
	if strings.HasPrefix(body, "{") {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return w.send(req)
}

func (w *world) send(req *http.Request) exchange {
	w.t.Helper()
	res, err := w.server.Client().Do(req)
	if err != nil {
		w.t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("%s %s: reading the answer: %v", req.Method, req.URL.Path, err)
	}
	return exchange{t: w.t, Status: res.StatusCode, Header: res.Header, Body: raw}
}

// Want fails the test unless the status is the one expected.
func (x exchange) Want(status int) exchange {
	x.t.Helper()
	if x.Status != status {
		x.t.Fatalf("status is %d, want %d: %s", x.Status, status, x.Body)
	}
	return x
}

// Text is a field of the JSON answer; nested ones are separated by dots.
func (x exchange) Text(path string) string {
	x.t.Helper()
	var v any
	if err := json.Unmarshal(x.Body, &v); err != nil {
		x.t.Fatalf("answer is not JSON: %s", x.Body)
	}
	for _, name := range strings.Split(path, ".") {
		if list, ok := v.([]any); ok {
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(list) {
				x.t.Fatalf("the answer has no %s: %s", path, x.Body)
			}
			v = list[i]
			continue
		}
		object, _ := v.(map[string]any)
		v = object[name]
	}
	switch v := v.(type) {
	case string:
		return v
	case nil:
		return ""
	}
	raw, _ := json.Marshal(v)
	return string(raw)
}

// MustSession creates a session and returns its id.
func (w *world) MustSession(secret string, headers ...string) string {
	w.t.Helper()
	return w.Do("POST", "/v1/workbench/sessions", secret, `{}`, headers...).Want(http.StatusCreated).Text("id")
}

// MustSubmit submits code and returns the run's id.
func (w *world) MustSubmit(secret, session string, headers ...string) string {
	w.t.Helper()
	return w.Do("POST", "/v1/workbench/sessions/"+session+"/runs", secret, `{"language":"python","code":"print(1)"}`, headers...).Want(http.StatusAccepted).Text("id")
}

// MustUpload uploads a file and returns its id.
func (w *world) MustUpload(secret, session, name, content string, headers ...string) string {
	w.t.Helper()
	return w.Do("POST", "/v1/workbench/sessions/"+session+"/artifacts?name="+name, secret, content,
		append([]string{"Content-Type", "text/plain"}, headers...)...).Want(http.StatusCreated).Text("id")
}

func mustRead(t testing.TB, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("reading %s: %v", file, err)
	}
	return string(raw)
}

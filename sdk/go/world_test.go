package sdk_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

const testKey = "wbk_d_test"

var start = time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC)

type (
	engine    = api.Engine
	artifacts = api.Artifacts
	identity  = api.Identity
	audit     = api.Audit
)

// world is a server with the real REST face over sessions, runs and files that
// the test decides on.
type world struct {
	// What a test does not set up must not be called: it is nil.
	engine
	artifacts
	identity
	audit

	mu      sync.Mutex
	session workbench.Session
	run     workbench.Run
	log     []workbench.LogEntry
	submits []workbench.SubmitRun
	content []byte
	grown   chan struct{} // closed and replaced when the log grows

	// between stands in front of the face.
	between func(w http.ResponseWriter, r *http.Request, next http.Handler)
	seen    []*http.Request
}

func newWorld() *world {
	w := &world{grown: make(chan struct{})}
	w.session = workbench.Session{
		ID: workbench.NewID(workbench.KindSession), ProjectID: "prj", TenantID: "ten", UserID: "usr", Kind: workbench.SessionPersonal, State: workbench.SessionActive,
		Generation: 1, Revision: 1, Size: "standard", CreatedAt: start, ExpiresAt: start.Add(time.Hour), ActiveAt: start,
	}
	w.run = workbench.Run{
		ID: workbench.NewID(workbench.KindRun), ProjectID: "prj", TenantID: "ten", UserID: "usr", SessionID: w.session.ID, Number: 1,
		Lane: workbench.LaneForeground, Language: workbench.Python, Status: workbench.StatusQueued, CreatedAt: start,
	}
	return w
}

// face is the REST API of the world, with between in front.
func (w *world) face() http.Handler {
	face := api.New(api.Options{Engine: w, Artifacts: w, Identity: w, Audit: w, Heartbeat: 50 * time.Millisecond})
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.seen = append(w.seen, r.Clone(context.Background()))
		between := w.between
		w.mu.Unlock()
		if between != nil {
			between(rw, r, face)
			return
		}
		face.ServeHTTP(rw, r)
	})
}

// requests counts what arrived, by method and path.
func (w *world) requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen)
}

// MustServe serves the world on a socket and returns a client.
func MustServe(t *testing.T, w *world) *sdk.Client {
	t.Helper()
	s := httptest.NewServer(w.face())
	t.Cleanup(s.Close)
	return MustClient(t, sdk.Options{BaseURL: s.URL, Key: testKey, Backoff: time.Millisecond, Patience: 300 * time.Millisecond})
}

func MustClient(t *testing.T, o sdk.Options) *sdk.Client {
	t.Helper()
	c, err := sdk.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) Authenticate(_ context.Context, bearer, tenant, endUser, group, _, _ string) (workbench.Principal, error) {
	if bearer != testKey {
		return workbench.Principal{}, workbench.E(workbench.CodeUnauthenticated, "no such key")
	}
	return workbench.Principal{ProjectID: "prj", TenantID: "ten", UserID: "usr", GroupID: tenant + "/" + endUser + "/" + group, KeyID: "key", KeyKind: workbench.KeyDirect,
		Scopes: []workbench.Scope{workbench.ScopeExecute, workbench.ScopeRead}}, nil
}

// Active is of no use here: the sandboxes of this world do not go.
func (w *world) Active(string) (done func()) { return func() {} }

func (w *world) Audit(context.Context, workbench.AuditEntry) error { return nil }

func (w *world) CreateSession(_ context.Context, _ workbench.Principal, r workbench.CreateSession) (workbench.Session, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.session.Agent = r.Agent
	return w.session, nil
}

func (w *world) Session(context.Context, workbench.Principal, string) (workbench.Session, error) {
	return w.session, nil
}

func (w *world) Submit(_ context.Context, _ workbench.Principal, r workbench.SubmitRun) (workbench.Submitted, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.submits = append(w.submits, r)
	return workbench.Submitted{Run: w.run, Replayed: len(w.submits) > 1 && r.IdempotencyKey != ""}, nil
}

func (w *world) Receipt(ctx context.Context, _ workbench.Principal, _ string, wait time.Duration) (workbench.Receipt, error) {
	over := time.After(wait)
	for {
		w.mu.Lock()
		run, grown := w.run, w.grown
		w.mu.Unlock()
		stdout, stderr := "out", "err"
		receipt := workbench.Receipt{Run: run, Session: w.session.Ref(), Stdout: &stdout, Stderr: &stderr}
		if run.Status.Terminal() || wait == 0 {
			return receipt, nil
		}
		select {
		case <-grown:
		case <-over:
			return receipt, nil
		case <-ctx.Done():
			return receipt, ctx.Err()
		}
	}
}

func (w *world) Events(ctx context.Context, _ workbench.Principal, _ string, after int64, yield func(workbench.LogEntry) error) error {
	for {
		w.mu.Lock()
		log, grown := w.log, w.grown
		w.mu.Unlock()
		for _, e := range log {
			if e.Seq <= after {
				continue
			}
			if err := yield(e); err != nil {
				return err
			}
			after = e.Seq
		}
		if len(log) > 0 && log[len(log)-1].Kind == workbench.LogTerminal {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *world) Output(_ context.Context, _ workbench.Principal, _ string, q workbench.OutputQuery) (workbench.OutputPage, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []byte
	for _, e := range w.log {
		if e.Kind == workbench.LogOutput && e.Stream == q.Stream {
			all = append(all, e.Data...)
		}
	}
	n := min(int64(len(all)), q.Offset+int64(q.Limit))
	return workbench.OutputPage{Stream: q.Stream, Encoding: q.Encoding, Offset: q.Offset, NextOffset: n, CapturedBytes: int64(len(all)),
		Text: encode(all[q.Offset:n], q.Encoding)}, nil
}

func (w *world) Upload(_ context.Context, _ workbench.Principal, _ string, r api.UploadRequest, content io.Reader) (workbench.Artifact, error) {
	b, err := io.ReadAll(content)
	if err != nil {
		return workbench.Artifact{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.content = b
	return w.artifact(r.Name, r.MimeType), nil
}

func (w *world) artifact(name, mimeType string) workbench.Artifact {
	return workbench.Artifact{ID: workbench.NewID(workbench.KindArtifact), ProjectID: "prj", TenantID: "ten", UserID: "usr", SessionID: w.session.ID,
		Name: name, Path: name, MimeType: mimeType, Size: int64(len(w.content)), SHA256: fmt.Sprintf("%064d", len(w.content)), Origin: workbench.OriginUpload, CreatedAt: start, ExpiresAt: start.Add(time.Hour)}
}

func (w *world) Open(context.Context, workbench.Principal, string) (workbench.Artifact, io.ReadSeekCloser, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.artifact("file.bin", "application/octet-stream"), nopCloser{bytes.NewReader(w.content)}, nil
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

func (w *world) Close(context.Context, workbench.Principal, string) (workbench.Session, error) {
	w.session.State = workbench.SessionClosed
	return w.session, nil
}

// write appends output to the run's log.
func (w *world) write(stream workbench.Stream, data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var offset int64
	for _, e := range w.log {
		if e.Stream == stream {
			offset += e.Length
		}
	}
	w.append(workbench.LogEntry{Kind: workbench.LogOutput, Stream: stream, Offset: offset, Length: int64(len(data)), Data: data})
}

// end makes the run terminal.
func (w *world) end(status workbench.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run.Status = status
	w.append(workbench.LogEntry{Kind: workbench.LogTerminal, Meta: []byte(`{"status":"` + string(status) + `"}`)})
}

func (w *world) append(e workbench.LogEntry) {
	e.RunID, e.Seq, e.At = w.run.ID, int64(len(w.log)+1), start
	w.log = append(w.log, e)
	close(w.grown)
	w.grown = make(chan struct{})
}

// Package storetest is the suite that every database of internal/store must
// pass. Its one job is to say what the store promises; it knows no database.
package storetest

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// Open opens an empty database that goes with the test.
type Open func(t testing.TB) *store.DB

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for _, group := range []struct {
		name string
		test func(*testing.T, Open)
	}{
		{"identity", testIdentity}, {"sessions", testSessions}, {"admission", testAdmission}, {"dispatch", testDispatch},
		{"log", testLog}, {"settle", testSettle}, {"cancel", testCancel}, {"leases", testLeases}, {"engines", testEngines},
		{"queue", testQueue}, {"commits", testCommits}, {"artifacts", testArtifacts}, {"blobs", testBlobs}, {"audit", testAudit},
		{"lists", testLists}, {"retention", testRetention}, {"fork", testFork}, {"session events", testSessionEvents}, {"subscriptions", testSubscriptions}, {"contexts", testContexts}, {"suspension", testSuspension}, {"history quota", testHistoryQuota}, {"tools", testTools}, {"packages", testPackages}, {"series", testSeries}, {"usage", testUsage}, {"audit chain", testAuditChain}, {"scope", testScope}, {"model", testModel},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel() // most of a test's time is the disk's
			group.test(t, open)
		})
	}
}

// world is a database with a project, a tenant and a user in it.
type world struct {
	*store.DB
	t       testing.TB
	project workbench.Named
	tenant  workbench.Named
	ann     workbench.Principal // a direct key's
	now     time.Time
}

const engine = "eng_one"

var projects atomic.Int64

func mustWorld(t testing.TB, open Open) *world {
	t.Helper()
	return mustWorldIn(t, open(t))
}

// mustWorldIn makes a project of its own in a database.
func mustWorldIn(t testing.TB, db *store.DB) *world {
	t.Helper()
	w := &world{DB: db, t: t, now: time.Now().UTC().Truncate(time.Microsecond)}
	var err error
	if w.project, err = db.EnsureProject(ctx(t), fmt.Sprintf("project-%d", projects.Add(1))); err != nil {
		t.Fatal(err)
	}
	w.ann = w.mustDirect("acme", "ann")
	w.tenant = workbench.Named{ID: w.ann.TenantID}
	return w
}

func ctx(t testing.TB) context.Context { return t.Context() }

// mustDirect is the principal of a direct key, its tenant and user made on
// first use.
func (w *world) mustDirect(tenant, user string) workbench.Principal {
	w.t.Helper()
	tn, err := w.EnsureTenant(ctx(w.t), w.project.ID, tenant)
	if err != nil {
		w.t.Fatal(err)
	}
	u, err := w.EnsureUser(ctx(w.t), w.project.ID, tn.ID, user)
	if err != nil {
		w.t.Fatal(err)
	}
	return workbench.Principal{ProjectID: w.project.ID, TenantID: tn.ID, UserID: u.ID, KeyKind: workbench.KeyDirect,
		Scopes: []workbench.Scope{workbench.ScopeExecute, workbench.ScopeRead}}
}

func (w *world) admin() workbench.Principal {
	return workbench.Principal{ProjectID: w.project.ID, KeyKind: workbench.KeyAdmin, Scopes: []workbench.Scope{workbench.ScopeManage, workbench.ScopeRead}}
}

func (w *world) newSession(p workbench.Principal) (workbench.Session, workbench.Revision) {
	limits := workbench.DefaultLimits()
	s := workbench.Session{
		ID: workbench.NewID(workbench.KindSession), ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, Kind: workbench.SessionPersonal,
		Agent: "analyst", Labels: map[string]string{"team": "blue"}, Generation: 1, Revision: 1, Size: "standard", Limits: limits,
		Tools: []workbench.ToolRef{}, Aliases: []string{}, Image: "sha256:image", Driver: "runsc", Isolation: "gvisor",
		CreatedAt: w.now, ExpiresAt: w.now.Add(24 * time.Hour),
	}
	return s, workbench.Revision{Number: 1, Agent: s.Agent, Limits: limits, Size: s.Size, CreatedAt: w.now}
}

func (w *world) mustSession(p workbench.Principal) workbench.Session {
	w.t.Helper()
	s, r := w.newSession(p)
	if err := w.CreateSession(ctx(w.t), p, s, r); err != nil {
		w.t.Fatal(err)
	}
	return w.mustRead(s.ID)
}

// mustRead reads a session as the server itself.
func (w *world) mustRead(id string) workbench.Session {
	w.t.Helper()
	s, err := w.Session(ctx(w.t), workbench.SystemPrincipal(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) mustRun(id string) workbench.Run {
	w.t.Helper()
	r, err := w.Run(ctx(w.t), workbench.SystemPrincipal(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// admission is a submission to a session; key "" makes it a job of its own.
func (w *world) admission(session, key, fingerprint string) store.Admission {
	return store.Admission{
		Run: workbench.Run{ID: workbench.NewID(workbench.KindRun), SessionID: session, Lane: workbench.LaneForeground, Language: workbench.Python,
			TimeoutMs: 30000, CreatedAt: w.now, Sealed: []byte("sealed:" + fingerprint)},
		IdempotencyKey: key, Fingerprint: fingerprint, FingerprintVersion: 1, QueueLimit: 100,
	}
}

func (w *world) mustAdmit(p workbench.Principal, session string) workbench.Run {
	w.t.Helper()
	r, _, err := w.Admit(ctx(w.t), p, w.admission(session, "", "f"))
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) mustLease(session string) int64 {
	w.t.Helper()
	epoch, err := w.AcquireLease(ctx(w.t), session, engine, time.Minute)
	if err != nil {
		w.t.Fatal(err)
	}
	return epoch
}

func (w *world) record(r workbench.Run, epoch int64) store.DispatchRecord {
	return store.DispatchRecord{RunID: r.ID, Epoch: epoch, Generation: 1, SandboxID: "sbx_a", InputRoot: "root0", Image: "sha256:image", Driver: "runsc", At: w.now}
}

func (w *world) mustDispatch(r workbench.Run, epoch int64) {
	w.t.Helper()
	if err := w.Dispatch(ctx(w.t), w.record(r, epoch)); err != nil {
		w.t.Fatal(err)
	}
}

// mustOut admits a run and dispatches it.
func (w *world) mustOut(p workbench.Principal) (workbench.Session, workbench.Run, int64) {
	w.t.Helper()
	s := w.mustSession(p)
	epoch := w.mustLease(s.ID)
	r := w.mustAdmit(p, s.ID)
	w.mustDispatch(r, epoch)
	return s, r, epoch
}

func (w *world) settlement(r workbench.Run, epoch int64, status workbench.Status) store.Settlement {
	end, zero := w.now.Add(time.Second), 0
	return store.Settlement{
		Run:   workbench.Run{ID: r.ID, Status: status, ExitCode: &zero, FinishedAt: &end, DurationMs: 900},
		Epoch: epoch, Generation: 1,
	}
}

func (w *world) mustSettle(r workbench.Run, epoch int64) {
	w.t.Helper()
	if err := w.Settle(ctx(w.t), w.settlement(r, epoch, workbench.StatusSucceeded)); err != nil {
		w.t.Fatal(err)
	}
}

// output is a log entry of a stream.
func output(seq int64, stream workbench.Stream, offset int64, text string) workbench.LogEntry {
	return workbench.LogEntry{Seq: seq, Kind: workbench.LogOutput, Stream: stream, Offset: offset, Length: int64(len(text)), Data: []byte(text), At: time.Now()}
}

// mustBlob announces a blob.
func (w *world) mustBlob(id string) string {
	w.t.Helper()
	if err := w.NoteBlob(ctx(w.t), id, w.tenant.ID, 1, w.now); err != nil {
		w.t.Fatal(err)
	}
	return id
}

func (w *world) artifact(session workbench.Session, size int64) workbench.Artifact {
	return workbench.Artifact{
		ID: workbench.NewID(workbench.KindArtifact), SessionID: session.ID, Revision: 1, Generation: 1, Name: "a.csv", Path: "data/a.csv",
		MimeType: "text/csv", Size: size, Origin: workbench.OriginUpload, CreatedAt: w.now, ExpiresAt: w.now.Add(7 * 24 * time.Hour),
		SealedPreview: []byte("preview"),
	}
}

// mustArtifact keeps a file of size bytes.
func (w *world) mustArtifact(p workbench.Principal, s workbench.Session, size int64) workbench.Artifact {
	w.t.Helper()
	a := w.artifact(s, size)
	if err := w.ReserveArtifact(ctx(w.t), p, a, store.Quota{}); err != nil {
		w.t.Fatal(err)
	}
	blob := "blob-" + a.ID
	if err := w.NoteBlob(ctx(w.t), blob, s.TenantID, size, w.now); err != nil {
		w.t.Fatal(err)
	}
	a, err := w.CommitArtifact(ctx(w.t), a.ID, size, "sha", blob, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// want fails unless err carries the code; "" wants no error.
func want(t testing.TB, err error, code workbench.Code) {
	t.Helper()
	if got := workbench.CodeOf(err); got != code {
		t.Fatalf("error %q, want code %q (%v)", got, code, err)
	}
}

func equal[T comparable](t testing.TB, what string, got, expected T) {
	t.Helper()
	if got != expected {
		t.Fatalf("%s is %v, want %v", what, got, expected)
	}
}

func same(t testing.TB, what string, got, expected []byte) {
	t.Helper()
	if !bytes.Equal(got, expected) {
		t.Fatalf("%s is %q, want %q", what, got, expected)
	}
}

// at once runs n calls together and returns their errors.
func together(n int, call func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	done := make(chan struct{})
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			<-start
			errs[i] = call(i)
		}()
	}
	close(start)
	for range n {
		<-done
	}
	return errs
}

// count returns how many errors carry the code.
func count(errs []error, code workbench.Code) int {
	n := 0
	for _, err := range errs {
		if workbench.CodeOf(err) == code {
			n++
		}
	}
	return n
}

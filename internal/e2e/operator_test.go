package e2e_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	"github.com/workbenchdev/workbench/internal/store"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustAsk sends one request, without the client's patience.
func (w *world) mustAsk(t *testing.T, method, path, key string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (w *world) mustSecret(t *testing.T) string {
	t.Helper()
	made, err := w.admin.CreateKey(t.Context(), sdk.CreateKey{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	return made.Secret
}

// Without an image the operator is told at the start where and how, a client
// only that it is the operator's turn.
func TestServerWithoutImages(t *testing.T) {
	empty := t.TempDir()
	w := mustWorld(t, func(o *server.Options) { o.Images, o.DefaultImage = empty, "" })
	log := w.log.tail()
	for _, want := range []string{"level=WARN", empty, "workbench image build standard --images " + empty} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %q: %s", want, log)
		}
	}
	if status, body := w.mustAsk(t, "GET", "/readyz", ""); status != 503 || !strings.Contains(body, "no sandbox image") || strings.Contains(body, empty) {
		t.Errorf("/readyz says %d %s", status, body)
	}
	status, body := w.mustAsk(t, "POST", "/v1/workbench/sessions", w.mustSecret(t))
	if status != 503 || !strings.Contains(body, `"unavailable"`) || !strings.Contains(body, "operator") || strings.Contains(body, empty) {
		t.Errorf("a session answers %d %s", status, body)
	}
	if log := w.log.tail(); strings.Count(log, empty) < 3 {
		t.Errorf("the refusal's reason is not in the log: %s", log)
	}
}

func TestDefaultImageThatIsNotThereIsRefused(t *testing.T) {
	w, err := open(t.TempDir(), func(o *server.Options) { o.DefaultImage = "nope" })
	if err == nil {
		_ = w.close()
	}
	wantCode(t, err, workbench.CodeImageNotFound)
	if e := workbench.AsError(err); !strings.Contains(e.Detail, `"nope"`) || !strings.Contains(e.Hint, "workbench image list") {
		t.Errorf("the error is %v, hint %q", err, e.Hint)
	}
}

func TestDatabaseIsAURLOfPostgreSQL(t *testing.T) {
	for _, dsn := range []string{"host=localhost password=canary dbname=w", "sqlite:x.db", "canary", "mysql://u:canary@h/d", " "} {
		dir := t.TempDir()
		w, err := open(dir, func(o *server.Options) { o.Database = dsn })
		if err == nil {
			_ = w.close()
		}
		wantCode(t, err, workbench.CodeInvalidRequest)
		e := workbench.AsError(err)
		if e.Field != "database" || !strings.Contains(e.Hint, "postgres://user:password@host") || strings.Contains(e.Error()+e.Hint, "canary") {
			t.Errorf("%q: %v, hint %q", dsn, err, e.Hint)
		}
		if made, err := filepath.Glob(filepath.Join(dir, "data", "*")); err != nil || len(made) != 0 {
			t.Errorf("%q: the refused start left %v, %v", dsn, made, err)
		}
	}
}

// While the server drains it takes no sessions, and what it ends in order is no
// error in its log.
func TestDrainRefusesSessionsAndLogsNoErrors(t *testing.T) {
	w := mustWorld(t, nil)
	s := w.mustOpenSession(t)
	secret := w.mustSecret(t)
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; sleep 60"})
	mustSay(t, s, run, "begun")
	followed := make(chan string, 1)
	go func() {
		_, body := w.mustAsk(t, "GET", "/v1/workbench/runs/"+run+"/events", secret)
		followed <- body
	}()
	time.Sleep(300 * time.Millisecond) // the stream is open
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = w.server.Stop(ctx) // it says that it was late
	}()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		status, body := w.mustAsk(t, "POST", "/v1/workbench/sessions", secret)
		if status == 503 && strings.Contains(body, "shutting down") && strings.Contains(body, "another server") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a session while the server drains: %d %s", status, body)
		}
	}
	<-stopped
	if body := <-followed; !strings.Contains(body, "begun") || !strings.Contains(body, "unknown") && !strings.Contains(body, "event: problem") {
		t.Errorf("the stream ended so: %s", body)
	}
	if log := w.log.tail(); strings.Contains(log, "level=ERROR") {
		t.Errorf("a stop in order logs errors: %s", log)
	}
}

// A start after a crash says in one line what it did about it.
func TestRecoveryIsLogged(t *testing.T) {
	dir := t.TempDir()
	w, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := w.mustOpenSession(t)
	first := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 5"})
	left := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo never"})
	mustBe(t, s, first, workbench.StatusRunning)
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(w.log.tail(), "recovered") {
		t.Errorf("a first start has nothing to recover: %s", w.log.tail())
	}
	mustDispatchAsDead(t, filepath.Join(dir, "data"), s.id, left)
	next, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := next.close(); err != nil {
			t.Error(err)
		}
	}()
	if log := next.log.tail(); !strings.Contains(log, "sessionsTakenOver=1 runsSettledAsUnknown=1 sandboxesEnded=0") {
		t.Errorf("the log does not say what was recovered: %s", log)
	}
	s.c = next.mustUser(t, "acme", "ada")
	wantEnd(t, s.mustWait(left), workbench.StatusUnknown, workbench.ReasonServerLost)
}

// mustDispatchAsDead leaves the run as an engine does that dies under it.
func mustDispatchAsDead(t *testing.T, data, session, run string) {
	t.Helper()
	db, err := store.Open(t.Context(), "sqlite:"+filepath.Join(data, "workbench.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	instance, err := os.ReadFile(filepath.Join(data, "instance"))
	if err != nil {
		t.Fatal(err)
	}
	const dead = "eng_dead"
	if err := db.RegisterEngine(t.Context(), dead, strings.TrimSpace(string(instance)), time.Now()); err != nil {
		t.Fatal(err)
	}
	epoch, err := db.AcquireLease(t.Context(), session, dead, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	got, err := db.Session(t.Context(), workbench.SystemPrincipal(), session)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Dispatch(t.Context(), store.DispatchRecord{RunID: run, Epoch: epoch, Generation: got.Generation, SandboxID: "sbx_gone", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
}

func TestKeysShowNamesAndTheLastAdminKeyStays(t *testing.T) {
	w := mustWorld(t, nil)
	made, err := w.admin.CreateKey(t.Context(), sdk.CreateKey{Kind: workbench.KeyDirect, Tenant: "Acme GmbH", User: "ada@acme"})
	if err != nil || made.TenantName != "Acme GmbH" || made.UserName != "ada@acme" || made.TenantID == "" || made.TenantID == made.TenantName {
		t.Fatalf("%+v, %v", made.Key, err)
	}
	list, err := w.admin.ListKeys(t.Context(), workbench.Page{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	first := ""
	for _, k := range list.Items {
		if k.Kind == workbench.KeyAdmin {
			first = k.ID
		} else if k.TenantName != "Acme GmbH" || k.UserName != "ada@acme" {
			t.Errorf("listed as %+v", k)
		}
	}
	admin, err := os.ReadFile(filepath.Join(w.dir, "admin"))
	if err != nil {
		t.Fatal(err)
	}
	path := "/v1/workbench/keys/" + first
	if status, body := w.mustAsk(t, "DELETE", path, string(admin)); status != 409 || !strings.Contains(body, "?force=true") {
		t.Errorf("the last admin key: %d %s", status, body)
	}
	if status, body := w.mustAsk(t, "DELETE", path+"?force=yes", string(admin)); status != 400 {
		t.Errorf("a wrong force: %d %s", status, body)
	}
	if status, body := w.mustAsk(t, "DELETE", path+"?force=true", string(admin)); status != 200 || !strings.Contains(body, "revokedAt") {
		t.Errorf("with force: %d %s", status, body)
	}
	if status, _ := w.mustAsk(t, "GET", "/v1/workbench/keys", string(admin)); status != 401 {
		t.Errorf("afterwards the key is answered %d", status)
	}
}

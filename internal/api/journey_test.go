package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/identity"
	"github.com/workbenchdev/workbench/internal/store"
)

// TestEveryOperation uses every operation of the document with success, so
// that each has been checked against it.
func TestEveryOperation(t *testing.T) {
	w := MustWorld(t)
	_, admin := w.MustKey(identity.KeyRequest{Kind: workbench.KeyAdmin})
	made := w.Do("POST", "/v1/workbench/keys", admin, `{"kind":"direct","tenant":"acme","user":"ada","name":"ada's"}`).Want(201)
	key := made.Text("secret")
	if len(key) != len("wbk_d_")+52 || key[:6] != "wbk_d_" {
		t.Errorf("secret has the form of %q", key)
	}
	w.Do("GET", "/v1/workbench/keys", admin, "").Want(200)

	created := w.Do("POST", "/v1/workbench/sessions", key, `{"agent":"Report helper","tools":[],"connections":[],"labels":{"team":"blue"}}`).Want(201)
	session := created.Text("id")
	base := "/v1/workbench/sessions/" + session
	if got := created.Header.Get("Location"); got != base {
		t.Errorf("Location is %q, want %q", got, base)
	}
	w.Do("GET", "/v1/workbench/sessions?label=team%3Dblue&state=active", key, "").Want(200)
	w.Do("GET", base, key, "").Want(200)

	up := w.Do("POST", base+"/artifacts?name=input.txt", key, "hello", "Content-Type", "text/plain").Want(201)
	artifact := up.Text("id")
	w.Do("GET", base+"/artifacts", key, "").Want(200)
	w.Do("GET", "/v1/workbench/artifacts/"+artifact, key, "").Want(200)
	if got := string(w.Do("GET", "/v1/workbench/artifacts/"+artifact+"/content", key, "").Want(200).Body); got != "hello" {
		t.Errorf("downloaded %q", got)
	}

	sub := w.Do("POST", base+"/runs", key, `{"language":"python","code":"print(open('input.txt').read().upper())","artifactIds":["`+artifact+`"],"idempotencyKey":"your-stable-run-key"}`).Want(202)
	run := sub.Text("id")
	if sub.Text("status") != "queued" || sub.Text("executionId") != run || sub.Text("session.id") != session || sub.Text("session.expiresAt") != "2026-11-30T12:00:00Z" {
		t.Errorf("the receipt of a submission is %s", sub.Body)
	}
	if got := sub.Header.Get("Location"); got != "/v1/workbench/runs/"+run {
		t.Errorf("Location is %q", got)
	}
	w.Do("GET", base+"/runs", key, "").Want(200)
	r := w.engine.MustStart(t, run)
	r.Write(workbench.Stdout, "HELLO\n")
	r.Show(workbench.Result{Type: workbench.ResultValue, Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"'HELLO'"`)}})
	r.End()
	done := w.Do("GET", "/v1/workbench/runs/"+run+"?waitMs=1000", key, "").Want(200)
	if done.Text("status") != "succeeded" || done.Text("stdout") != "HELLO\n" || done.Text("exitCode") != "0" {
		t.Errorf("the receipt is %s", done.Body)
	}
	w.Do("GET", "/v1/workbench/runs/"+run+"/events", key, "").Want(200)
	w.Do("GET", "/v1/workbench/runs/"+run+"/output", key, "").Want(200)
	w.Do("GET", "/v1/workbench/runs/"+run+"/files", key, "").Want(200)
	if got := string(w.Do("GET", "/v1/workbench/runs/"+run+"/files/content?path=out%2Fmade.txt", key, "").Want(200).Body); got != runFile {
		t.Errorf("the run's file is %q", got)
	}
	w.useHistory(key, base, run)

	if got := string(w.Do("GET", "/v1/workbench/runs/"+run+"/results/0?type=text/plain", key, "").Want(200).Body); got != "'HELLO'" {
		t.Errorf("the run's value is %q", got)
	}

	w.Do("POST", base+"/contexts", key, `{"id":"analysis","language":"python"}`).Want(201)
	w.Do("GET", base+"/contexts", key, "").Want(200)
	w.Do("GET", base+"/contexts/analysis", key, "").Want(200)
	w.Do("POST", base+"/contexts/analysis/restart", key, "").Want(200)
	w.Do("POST", base+"/contexts/analysis/interrupt", key, "").Want(200)
	w.Do("DELETE", base+"/contexts/analysis", key, "").Want(200)

	w.Do("POST", base+"/configure", key, `{"agent":"Another","expectedCurrentVersion":1}`).Want(200)
	w.Do("GET", base+"/revisions", key, "").Want(200)
	w.Do("POST", base+"/restart", key, "").Want(200)
	second := w.Do("POST", "/v1/workbench/bash", key, `{"sessionId":"`+session+`","command":"true"}`).Want(202).Text("id")
	w.Do("POST", "/v1/workbench/runs/"+second+"/cancel", key, "").Want(200)
	w.Do("POST", "/v1/workbench/run_code", key, `{"sessionId":"`+session+`","language":"typescript","code":"1"}`).Want(202)
	w.Do("DELETE", "/v1/workbench/artifacts/"+artifact, key, "").Want(200)
	w.Do("POST", base+"/close", key, "").Want(200)
	w.Do("GET", base+"/events", key, "").Want(200)

	w.useSeries(key, run)
	if got := w.Do("GET", "/v1/workbench/usage?groupBy=session&session="+session, key, "").Want(200).Text("items.0.retainedBytes"); got != "5" {
		t.Errorf("%s bytes were retained, want 5", got)
	}
	if got := string(w.Do("GET", "/v1/workbench/usage?groupBy=session&limit=1", key, "", "Accept", "text/csv").Want(200).Body); !strings.HasPrefix(got, "session,durationUs,") || !strings.Contains(got, "\n"+session+",0,0,0,0,5\n") {
		t.Errorf("the lines are %q", got)
	}
	w.useTools(admin, key)
	w.Do("GET", "/v1/workbench/runtime-tiers", key, "").Want(200)
	w.Do("GET", "/v1/workbench/audit?action=run.submit", admin, "").Want(200)
	w.Do("DELETE", "/v1/workbench/keys/"+made.Text("id"), admin, "").Want(200)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/openapi.json"} {
		w.Do("GET", path, "", "").Want(200)
	}
	if missing := w.checker.NeverSucceeded(); len(missing) > 0 {
		t.Errorf("operations that were not exercised: %v", missing)
	}
}

// useSeries uses every operation on series and replays.
func (w *world) useSeries(key, run string) {
	w.t.Helper()
	const v1 = "/v1/workbench"
	series := w.Do("GET", v1+"/series", key, "").Want(200).Text("items.0.id")
	if got := w.Do("GET", v1+"/runs/"+run, key, "").Want(200).Text("reusableRun.seriesId"); got != series {
		w.t.Errorf("the run's series is %s, want %s", got, series)
	}
	one := v1 + "/series/" + series
	w.Do("GET", one, key, "").Want(200)
	w.Do("GET", one+"/versions", key, "").Want(200)
	w.Do("GET", one+"/versions/1", key, "").Want(200)
	w.Do("GET", one+"/versions/2", key, "").Want(404)
	w.Do("GET", one+"/versions/none", key, "").Want(404)
	replay := w.Do("POST", one+"/replays", key, "").Want(202).Text("id")
	w.Do("POST", one+"/publish", key, `{"version":1,"expectedPublishedVersion":0}`).Want(409)
	if _, err := w.db.Judge(w.t.Context(), replay, workbench.VerdictMatches, nil, w.clock.Now()); err != nil {
		w.t.Fatal(err)
	}
	w.Do("GET", v1+"/replays/"+replay, key, "").Want(200)
	w.Do("GET", one+"/replays?version=1", key, "").Want(200)
	w.Do("POST", one+"/publish", key, `{"version":1,"expectedPublishedVersion":1}`).Want(412)
	w.Do("POST", one+"/publish", key, `{"version":1,"expectedPublishedVersion":0}`).Want(200)
	w.Do("POST", one+"/rollback", key, `{"expectedPublishedVersion":1}`).Want(409) // nothing was published before
	w.Do("POST", one+"/runs", key, `{"version":1}`).Want(202)
	// A second version, published, is gone back from.
	session := w.Do("POST", v1+"/sessions", key, `{}`).Want(201).Text("id")
	next := w.Do("POST", v1+"/sessions/"+session+"/runs", key, `{"language":"bash","code":"true","reusableRun":{"mode":"auto","seriesId":"`+series+`"}}`).Want(202).Text("id")
	w.engine.MustStart(w.t, next).End()
	if got := w.Do("GET", v1+"/runs/"+next, key, "").Want(200).Text("reusableRun.version"); got != "2" {
		w.t.Errorf("the next run of the series is version %s", got)
	}
	replay = w.Do("POST", one+"/replays", key, `{"version":2}`).Want(202).Text("id")
	if _, err := w.db.Judge(w.t.Context(), replay, workbench.VerdictMatches, nil, w.clock.Now()); err != nil {
		w.t.Fatal(err)
	}
	w.Do("POST", one+"/publish", key, `{"version":2,"expectedPublishedVersion":1}`).Want(200)
	if got := w.Do("POST", one+"/rollback", key, `{"expectedPublishedVersion":2}`).Want(200).Text("publishedVersion"); got != "1" {
		w.t.Errorf("rolled back to %s, want 1", got)
	}
	w.Do("DELETE", one, key, "").Want(204)
	w.Do("GET", one, key, "").Want(404)
	if got := w.Do("GET", v1+"/runs/"+run, key, "").Want(200).Text("reusableRun.reason"); got != workbench.NotReusableSeries {
		w.t.Errorf("the run of a series that was deleted says %q", got)
	}
}

// useTools uses every operation on tools, rules, receipts and approvals.
func (w *world) useTools(admin, key string) {
	w.t.Helper()
	const v1 = "/v1/workbench"
	w.Do("PUT", v1+"/apps/crm", admin, appOfStage).Want(200)
	w.Do("POST", v1+"/apps/crm/import", admin, "").Want(200)
	w.Do("GET", v1+"/apps", admin, "").Want(200)
	w.Do("GET", v1+"/apps/crm", admin, "").Want(200)
	if got := w.Do("GET", v1+"/tools?query=lookup", key, "").Want(200).Text("items.0.version"); got != "1" {
		w.t.Errorf("the tool's version is %q", got)
	}
	conn := v1 + "/connections/" + w.Do("POST", v1+"/connections", admin, `{"alias":"support","provider":"crm","auth":"bearer","credentials":{"token":"a-token"}}`).Want(201).Text("id")
	w.Do("GET", v1+"/connections", admin, "").Want(200)
	w.Do("GET", conn, admin, "").Want(200)
	w.Do("POST", conn+"/rotate", admin, `{"credentials":{"token":"another"},"expectedCurrentVersion":1}`).Want(200)
	w.Do("POST", conn+"/rotate", admin, `{"credentials":{"token":"another"},"expectedCurrentVersion":1}`).Want(412)
	rules, err := json.Marshal(map[string]any{"put": []any{map[string]string{"name": "all", "text": `permit(principal, action == Action::"call", resource);
		permit(principal, action == Action::"requireApproval", resource); permit(principal, action in [Action::"approve", Action::"approveRun"], resource);`}}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Do("POST", v1+"/rules/check", admin, `{"rules":[{"name":"x","text":"permit("}]}`).Want(200)
	w.Do("POST", v1+"/rules", admin, string(rules)).Want(200)
	w.Do("GET", v1+"/rules", admin, "").Want(200)

	session, out := w.sessionWithTools(key)
	_, boss := w.MustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "boss", Scopes: []workbench.Scope{workbench.ScopeRead, workbench.ScopeApprove}})
	var waiting []string
	for range 2 {
		r, err := w.parts.tools.Call(w.t.Context(), govern.Caller{Session: session, Run: out.run, Epoch: out.epoch}, govern.CallRequest{Tool: "crm.lookup"})
		if err != nil || r.Status != workbench.CallPending {
			w.t.Fatalf("the call is %s (%v)", r.Status, err)
		}
		waiting = append(waiting, r.ID)
	}
	w.Do("POST", v1+"/rules/explain", admin, `{"receipt":"`+waiting[0]+`"}`).Want(200)
	if got := w.Do("GET", v1+"/approvals", boss, "").Want(200).Text("items.0.id"); got != waiting[1] {
		w.t.Errorf("what waits begins with %s, want %s", got, waiting[1])
	}
	w.Do("GET", v1+"/receipts?session="+session.ID, key, "").Want(200)
	w.Do("POST", v1+"/receipts/"+waiting[0]+"/approve", boss, "").Want(200)
	w.Do("POST", v1+"/receipts/"+waiting[1]+"/deny", boss, `{"reason":"no"}`).Want(200)
	if got := w.Do("GET", v1+"/receipts/"+waiting[1], key, "").Want(200).Text("status"); got != "denied" {
		w.t.Errorf("the denied call is %s", got)
	}
	for _, verdict := range []string{"/approve", "/deny"} {
		held := w.hold(session)
		w.Do("GET", v1+"/approvals/runs", boss, "").Want(200)
		w.Do("POST", v1+"/runs/"+held+verdict, boss, "").Want(200)
	}
	w.Do("DELETE", conn, admin, "").Want(200)
	w.Do("DELETE", v1+"/apps/crm", admin, "").Want(204)
	w.Do("GET", v1+"/audit/export?after=1", admin, "").Want(200)
	if got := w.Do("GET", v1+"/audit/verify", admin, "").Want(200).Text("intact"); got != "true" {
		w.t.Errorf("the trail is not intact: %s", got)
	}
}

// sessionWithTools is a session that allows crm.lookup, and a run of it that is
// out.
func (w *world) sessionWithTools(key string) (workbench.Session, *running) {
	w.t.Helper()
	s, err := w.db.Session(w.t.Context(), workbench.SystemPrincipal(), w.MustSession(key))
	if err != nil {
		w.t.Fatal(err)
	}
	s.ID, s.Tools = workbench.NewID(workbench.KindSession), []workbench.ToolRef{{Name: "crm.lookup", Version: "1"}}
	owner := workbench.Principal{ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, KeyKind: workbench.KeyDirect}
	if err := w.db.CreateSession(w.t.Context(), owner, s, workbench.Revision{Number: 1, Tools: s.Tools, Limits: s.Limits, Size: s.Size, CreatedAt: s.CreatedAt}); err != nil {
		w.t.Fatal(err)
	}
	return s, w.engine.MustStart(w.t, w.MustSubmit(key, s.ID))
}

// hold admits a run that has to be approved.
func (w *world) hold(s workbench.Session) string {
	w.t.Helper()
	owner := workbench.Principal{ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, KeyKind: workbench.KeyDirect}
	id := workbench.NewID(workbench.KindRun)
	sealed, err := w.parts.sealer.SealBytes(w.t.Context(), s.TenantID, "spec", id, []byte(`{"language":"bash","code":"ls"}`))
	if err != nil {
		w.t.Fatal(err)
	}
	now := w.clock.Now()
	_, _, err = w.db.Admit(w.t.Context(), owner, store.Admission{Hold: &workbench.Approval{State: workbench.ApprovalPending, Rules: []string{}, ExpiresAt: now.Add(time.Hour)},
		Run: workbench.Run{ID: id, SessionID: s.ID, Lane: workbench.LaneBackground, Language: workbench.Bash, TimeoutMs: 1000, CreatedAt: now, Sealed: sealed}})
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// useHistory uses every operation on the workspace of a session and its commits.
func (w *world) useHistory(key, base, run string) {
	w.t.Helper()
	commits := w.Do("GET", base+"/commits", key, "").Want(200)
	var page struct{ Items []workbench.Commit }
	if err := json.Unmarshal(commits.Body, &page); err != nil || len(page.Items) != 1 || page.Items[0].RunIDs[0] != run {
		w.t.Fatalf("commits: %s", commits.Body)
	}
	commit := "/v1/workbench/commits/" + page.Items[0].ID
	w.Do("GET", commit, key, "").Want(200)
	w.Do("GET", commit+"/tree?recursive=true", key, "").Want(200)
	if x := w.Do("GET", commit+"/content?path=out/made.txt", key, "", "Range", "bytes=0-3").Want(206); string(x.Body) != "made" {
		w.t.Errorf("the first bytes of the file are %q", x.Body)
	}
	w.Do("GET", commit+"/tar", key, "").Want(200)
	if x := w.Do("HEAD", commit+"/tar", key, "").Want(200); len(x.Body) != 0 || x.Header.Get("Content-Type") != "application/x-tar" {
		w.t.Errorf("HEAD of an archive: %v, %d bytes", x.Header, len(x.Body))
	}
	w.Do("GET", commit+"/diff", key, "").Want(200)
	const patch = "diff --git a/out/made.txt b/out/made.txt\nnew file mode 100644\n--- /dev/null\n+++ b/out/made.txt\n@@ -0,0 +1 @@\n+made by the run\n"
	if x := w.Do("GET", "/v1/workbench/runs/"+run+"/diff", key, "", "Accept", "text/x-diff").Want(200); string(x.Body) != patch {
		w.t.Errorf("the run's patch is %q", x.Body)
	}
	w.Do("GET", "/v1/workbench/runs/"+run+"/diff?limit=1", key, "").Want(200)
	w.Do("POST", base+"/rollback", key, `{"run":"`+run+`"}`).Want(200)
	w.Do("POST", base+"/fork", key, "").Want(201)
	w.Do("GET", base+"/workspace", key, "").Want(200)
	w.Do("GET", base+"/workspace/content?path=out/made.txt", key, "").Want(200)
	w.Do("GET", base+"/workspace/tar", key, "").Want(200)
	w.Do("PUT", base+"/workspace/content?path=a", key, "x").Want(200)
	w.Do("DELETE", base+"/workspace/content?path=a", key, "").Want(200)
	w.Do("POST", base+"/workspace/move", key, `{"from":"a","to":"b"}`).Want(200)
	w.Do("POST", base+"/workspace/directories", key, `{"path":"d"}`).Want(200)
}

func TestReplay(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	one, two := w.MustSession(key), w.MustSession(key)
	const body = `{"language":"python","code":"print(1)","idempotencyKey":"k-1"}`
	first := w.Do("POST", "/v1/workbench/sessions/"+one+"/runs", key, body).Want(202)
	if first.Header.Get("Idempotency-Replayed") != "" {
		t.Error("a first submission says it is replayed")
	}
	again := w.Do("POST", "/v1/workbench/sessions/"+two+"/runs", key, `{"language":"python","code":"print(1)"}`, "Idempotency-Key", `"k-1"`).Want(202)
	if again.Text("id") != first.Text("id") || again.Text("sessionId") != one || again.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("the repeat is %s", again.Body)
	}
	if other := w.Do("POST", "/v1/workbench/sessions/"+one+"/runs", key, `{"language":"python","code":"print(2)","idempotencyKey":"k-1"}`).Want(409); other.Text("code") != "idempotency_key_reused" {
		t.Errorf("another job with the key: %s", other.Body)
	}
	bash := w.Do("POST", "/v1/workbench/bash", key, `{"sessionId":"`+one+`","command":"ls","idempotencyKey":"k-2"}`).Want(202)
	same := w.Do("POST", "/v1/workbench/run_code", key, `{"sessionId":"`+two+`","language":"bash","code":"ls","idempotencyKey":"k-2"}`).Want(202)
	if bash.Text("id") != same.Text("id") {
		t.Error("bash is not run_code with bash")
	}
}

func TestWaitOnSubmission(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	if x := w.Do("POST", "/v1/workbench/sessions/"+session+"/runs?waitMs=50", key, `{"language":"bash","code":"ls"}`).Want(202); x.Text("status") != "queued" {
		t.Errorf("after the wait: %s", x.Body)
	}
	body := `{"language":"bash","code":"ls -l","idempotencyKey":"waits"}`
	run := w.Do("POST", "/v1/workbench/sessions/"+session+"/runs", key, body).Want(202).Text("id")
	done := make(chan exchange, 1)
	go func() { done <- w.Do("POST", "/v1/workbench/sessions/"+session+"/runs?waitMs=20000", key, body) }()
	list := w.Do("GET", "/v1/workbench/sessions/"+session+"/runs?status=queued", key, "").Want(200)
	var page struct{ Items []workbench.Run }
	if err := json.Unmarshal(list.Body, &page); err != nil || len(page.Items) != 2 {
		t.Fatalf("queued runs: %s", list.Body)
	}
	w.Do("POST", "/v1/workbench/runs/"+page.Items[1].ID+"/cancel", key, "").Want(200)
	r := w.engine.MustStart(t, run)
	r.End()
	if x := <-done; x.Status != http.StatusOK || x.Text("status") != "succeeded" {
		t.Errorf("the wait answered %d %s", x.Status, x.Body)
	}
}

package sdk_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/store"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

type governed = api.Tools

// desk is the real REST face over tools, connections, rules and receipts that
// the test decides on, for an admin key with every scope.
type desk struct {
	governed // what a test does not set up must not be called: it is nil
	identity

	mu    sync.Mutex
	did   []string // what was asked, by method of the face's neighbours
	given []any    // with what
	chain []workbench.AuditEntry
	left  int // reads of a receipt until it is final
	// between stands in front of the face.
	between func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

// MustServeDesk serves the desk on a socket and returns a client.
func MustServeDesk(t *testing.T, d *desk) *sdk.Client {
	t.Helper()
	face := api.New(api.Options{Tools: d, Identity: d, Audit: d})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.between != nil {
			d.between(w, r, face)
			return
		}
		face.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return MustClient(t, sdk.Options{BaseURL: s.URL, Key: testKey, Backoff: time.Millisecond, Patience: 300 * time.Millisecond})
}

func (d *desk) note(what string, given ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.did, d.given = append(d.did, what), append(d.given, given...)
}

// mustHave checks what the desk was asked since it was last looked at.
func (d *desk) mustHave(t *testing.T, what string, given ...any) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.did, []string{what}) || !reflect.DeepEqual(d.given, given) {
		t.Errorf("asked %v with %+v, want %s with %+v", d.did, d.given, what, given)
	}
	d.did, d.given = nil, nil
}

func (d *desk) Authenticate(context.Context, string, string, string, string, string, string) (workbench.Principal, error) {
	return workbench.Principal{ProjectID: "prj", KeyID: "key", KeyKind: workbench.KeyAdmin,
		Scopes: []workbench.Scope{workbench.ScopeManage, workbench.ScopeRead, workbench.ScopeApprove}}, nil
}

func (d *desk) Active(string) (done func()) { return func() {} }

func (d *desk) Audit(context.Context, workbench.AuditEntry) error { return nil }

func (d *desk) ListAudit(_ context.Context, _ workbench.Principal, f workbench.AuditFilter, p workbench.Page) (workbench.List[workbench.AuditEntry], error) {
	d.note("list audit", f, p)
	return workbench.List[workbench.AuditEntry]{Items: d.chain[:1]}, nil
}

func (d *desk) AuditChain(_ context.Context, _ string, after int64) ([]workbench.AuditEntry, error) {
	rest := d.chain[min(after, int64(len(d.chain))):]
	return rest[:min(len(rest), 2)], nil // a page
}

func (d *desk) VerifyAudit(context.Context, string) (workbench.AuditCheck, error) {
	return workbench.AuditCheck{Rows: 2, Broken: 3, Why: "row 3 is missing", Head: "ab"}, nil
}

func (d *desk) PutApp(_ context.Context, _ workbench.Principal, a workbench.App, alias string) (govern.Import, error) {
	d.note("put app", a, alias)
	a.Version = 1
	return govern.Import{App: a, Tools: []workbench.Tool{listIssues}, Added: []workbench.ToolRef{listIssues.Ref()}, Skipped: []string{"x y: not a name"}}, nil
}

func (d *desk) ImportApp(_ context.Context, _ workbench.Principal, name, alias string) (govern.Import, error) {
	d.note("import app", name, alias)
	return govern.Import{App: workbench.App{Name: name}}, nil
}

func (d *desk) Apps(context.Context, workbench.Principal) ([]workbench.App, error) {
	d.note("apps")
	return []workbench.App{{Name: "github"}}, nil
}

func (d *desk) App(_ context.Context, _ workbench.Principal, name string) (workbench.App, error) {
	d.note("app", name)
	return workbench.App{Name: name}, nil
}

func (d *desk) RemoveApp(_ context.Context, _ workbench.Principal, name string) error {
	d.note("remove app", name)
	if name != "github" {
		return workbench.ErrNotFound("app")
	}
	return nil
}

var listIssues = workbench.Tool{App: "github", Name: "github.list_issues", Version: "2", State: workbench.ToolCurrent,
	InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: workbench.ToolAnnotations{ReadOnly: true}, CreatedAt: start}

func (d *desk) Tools(_ context.Context, _ workbench.Principal, f store.ToolFilter, query string) ([]workbench.Tool, error) {
	d.note("tools", f, query)
	return []workbench.Tool{listIssues}, nil
}

func (d *desk) Connect(_ context.Context, _ workbench.Principal, n govern.NewConnection) (workbench.Connection, error) {
	d.note("connect", n)
	return workbench.Connection{ID: connectionID, Alias: n.Alias, Auth: n.Auth, Version: 1}, nil
}

const (
	connectionID = "con_06h2gtscb9wff1kekzj2wj8e70"
	receiptID    = "rcp_06h2gtscb9wff1kekzj2wj8e70"
)

func (d *desk) Connection(_ context.Context, _ workbench.Principal, id string) (workbench.Connection, error) {
	d.note("connection", id)
	return workbench.Connection{ID: id}, nil
}

func (d *desk) Connections(_ context.Context, _ workbench.Principal, alias string, p workbench.Page) (workbench.List[workbench.Connection], error) {
	d.note("connections", alias, p)
	return workbench.List[workbench.Connection]{Items: []workbench.Connection{{ID: connectionID}}, NextCursor: "more"}, nil
}

func (d *desk) Rotate(_ context.Context, _ workbench.Principal, id string, c workbench.Credentials, expected int64) (workbench.Connection, error) {
	d.note("rotate", id, c, expected)
	return workbench.Connection{ID: id, Version: expected + 1}, nil
}

func (d *desk) Revoke(_ context.Context, _ workbench.Principal, id string) (workbench.Connection, error) {
	d.note("revoke", id)
	at := start
	return workbench.Connection{ID: id, RevokedAt: &at}, nil
}

func (d *desk) Rules(context.Context, workbench.Principal) (store.RuleSet, error) {
	d.note("rules")
	return store.RuleSet{Version: 7, Rules: []workbench.Rule{{Name: "reading", Text: permit, Version: 2}}}, nil
}

const permit = `permit(principal, action == Action::"call", resource);`

func (d *desk) ChangeRules(_ context.Context, _ workbench.Principal, expected int64, put []workbench.Rule, remove []string) (store.RuleSet, []policy.Problem, error) {
	d.note("change rules", expected, put, remove)
	return store.RuleSet{Version: expected + 1, Rules: put}, []policy.Problem{{Rule: "reading", Policy: "reading#1", Line: 2, Column: 3, Message: "odd", Hint: "look", Warning: true}}, nil
}

func (d *desk) Explain(_ context.Context, _ workbench.Principal, q govern.Question) (govern.Explanation, error) {
	d.note("explain", q)
	return govern.Explanation{Outcome: "needs_approval", Why: "because", Rules: []string{"a#1"}, Approval: []string{"b#1"}, Errors: []string{"c#1: no"}, Version: 7}, nil
}

func (d *desk) Receipt(_ context.Context, _ workbench.Principal, id string, wait time.Duration) (workbench.ToolReceipt, error) {
	d.note("receipt", id, wait)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left--; d.left >= 0 {
		return workbench.ToolReceipt{ID: id, Status: workbench.CallExecuting}, nil
	}
	return workbench.ToolReceipt{ID: id, Status: workbench.CallUnknown, Result: json.RawMessage(`{"n":1}`)}, nil
}

func (d *desk) Receipts(_ context.Context, _ workbench.Principal, f store.CallFilter, p workbench.Page) (workbench.List[workbench.ToolReceipt], error) {
	d.note("receipts", f, p)
	return workbench.List[workbench.ToolReceipt]{Items: []workbench.ToolReceipt{{ID: receiptID}}}, nil
}

func (d *desk) Waiting(_ context.Context, _ workbench.Principal, p workbench.Page) (workbench.List[workbench.ToolReceipt], error) {
	d.note("waiting", p)
	return workbench.List[workbench.ToolReceipt]{Items: []workbench.ToolReceipt{{ID: receiptID, Status: workbench.CallPending, Arguments: json.RawMessage(`{"q":1}`),
		Approval: &workbench.Approval{State: workbench.ApprovalPending, Why: "it pays", ExpiresAt: start}}}}, nil
}

func (d *desk) Decide(_ context.Context, _ workbench.Principal, id string, v govern.Verdict) (workbench.ToolReceipt, error) {
	d.note("decide", id, v)
	if v.Approve {
		return workbench.ToolReceipt{ID: id, Status: workbench.CallExecuting}, nil
	}
	return workbench.ToolReceipt{ID: id, Status: workbench.CallDenied}, nil
}

func TestApps(t *testing.T) {
	d := &desk{}
	c := MustServeDesk(t, d)
	ctx := t.Context()
	config := workbench.AppConfig{URL: "https://mcp.example.com", TimeoutMs: 5000}
	made, err := c.PutApp(ctx, "github", sdk.PutApp{Kind: workbench.AppMCPHTTP, Config: config, Provider: "gh", NeedsConnection: true, Connection: "main"})
	if err != nil || made.App.Name != "github" || len(made.Tools) != 1 || made.Tools[0].Version != "2" || made.Added[0] != listIssues.Ref() || made.Skipped[0] != "x y: not a name" {
		t.Fatalf("put %+v, %v", made, err)
	}
	d.mustHave(t, "put app", workbench.App{Name: "github", Kind: workbench.AppMCPHTTP, Config: config, Provider: "gh", NeedsConnection: true}, "main")
	if made, err = c.ImportApp(ctx, "github", "main"); err != nil || made.App.Name != "github" {
		t.Fatalf("imported %+v, %v", made, err)
	}
	d.mustHave(t, "import app", "github", "main")
	if _, err = c.ImportApp(ctx, "github", ""); err != nil {
		t.Fatal(err)
	}
	d.mustHave(t, "import app", "github", "")
	if apps, err := c.Apps(ctx); err != nil || len(apps) != 1 || apps[0].Name != "github" {
		t.Fatalf("apps %+v, %v", apps, err)
	}
	d.mustHave(t, "apps")
	if app, err := c.App(ctx, "github"); err != nil || app.Name != "github" {
		t.Fatalf("app %+v, %v", app, err)
	}
	d.mustHave(t, "app", "github")
	if err := c.RemoveApp(ctx, "github"); err != nil {
		t.Fatal(err)
	}
	d.mustHave(t, "remove app", "github")
	if err := c.RemoveApp(ctx, "other"); !workbench.HasCode(err, workbench.CodeNotFound) {
		t.Errorf("removing what is not there: %v", err)
	}
	d.mustHave(t, "remove app", "other")
}

func TestAppsCarryTheirDocuments(t *testing.T) {
	d := &desk{}
	c := MustServeDesk(t, d)
	config := workbench.AppConfig{Document: json.RawMessage(`{"openapi":"3.1.0"}`), Endpoints: []workbench.Endpoint{{Name: "get", Method: "GET", Path: "/x", InputSchema: json.RawMessage(`{"type":"object"}`)}},
		Command: "server", Args: []string{"-x"}, Env: map[string]string{"A": "b"}, CredentialEnv: "TOKEN"}
	if _, err := c.PutApp(t.Context(), "all", sdk.PutApp{Kind: workbench.AppOpenAPI, Config: config}); err != nil {
		t.Fatal(err)
	}
	d.mustHave(t, "put app", workbench.App{Name: "all", Kind: workbench.AppOpenAPI, Config: config}, "")
}

func TestToolsAreFiltered(t *testing.T) {
	d := &desk{}
	c := MustServeDesk(t, d)
	tools, err := c.Tools(t.Context(), sdk.ToolFilter{Query: "list issues", App: "github", Name: "github.list_issues", All: true})
	if err != nil || len(tools) != 1 || tools[0].Ref() != listIssues.Ref() || !tools[0].Annotations.ReadOnly || string(tools[0].InputSchema) != `{"type":"object"}` {
		t.Fatalf("tools %+v, %v", tools, err)
	}
	d.mustHave(t, "tools", store.ToolFilter{App: "github", Name: "github.list_issues", All: true}, "list issues")
	if _, err := c.Tools(t.Context(), sdk.ToolFilter{}); err != nil {
		t.Fatal(err)
	}
	d.mustHave(t, "tools", store.ToolFilter{}, "")
}

func TestConnections(t *testing.T) {
	d := &desk{}
	c := MustServeDesk(t, d)
	ctx := t.Context()
	credentials := workbench.Credentials{TokenURL: "https://id.example.com/token", ClientID: "me", ClientSecret: "s3cret-1", Scopes: []string{"read"}}
	made, err := c.CreateConnection(ctx, sdk.CreateConnection{Alias: "main", Provider: "github", Auth: workbench.AuthOAuthClient, Credentials: credentials,
		Hosts: []string{"api.example.com"}, Tenant: "acme", Group: "support", User: "ada"})
	if err != nil || made.ID != connectionID || made.Auth != workbench.AuthOAuthClient {
		t.Fatalf("made %+v, %v", made, err)
	}
	d.mustHave(t, "connect", govern.NewConnection{Alias: "main", Provider: "github", Auth: workbench.AuthOAuthClient, Credentials: credentials,
		Hosts: []string{"api.example.com"}, Tenant: "acme", Group: "support", User: "ada"})
	list, err := c.Connections(ctx, "main", workbench.Page{Limit: 5})
	if err != nil || len(list.Items) != 1 || list.NextCursor != "more" {
		t.Fatalf("list %+v, %v", list, err)
	}
	d.mustHave(t, "connections", "main", workbench.Page{Limit: 5})
	if one, err := c.Connection(ctx, connectionID); err != nil || one.ID != connectionID {
		t.Fatalf("one %+v, %v", one, err)
	}
	d.mustHave(t, "connection", connectionID)
	expected := int64(3)
	token := workbench.Credentials{Token: "s3cret-2"}
	if one, err := c.RotateConnection(ctx, connectionID, sdk.RotateConnection{Credentials: token, ExpectedCurrentVersion: &expected}); err != nil || one.Version != 4 {
		t.Fatalf("rotated %+v, %v", one, err)
	}
	d.mustHave(t, "rotate", connectionID, token, int64(3))
	if one, err := c.RevokeConnection(ctx, connectionID); err != nil || one.RevokedAt == nil {
		t.Fatalf("revoked %+v, %v", one, err)
	}
	d.mustHave(t, "revoke", connectionID)
}

func TestRules(t *testing.T) {
	d := &desk{}
	c := MustServeDesk(t, d)
	ctx := t.Context()
	if set, err := c.Rules(ctx); err != nil || set.Version != 7 || len(set.Items) != 1 || set.Items[0].Text != permit || set.Items[0].Version != 2 {
		t.Fatalf("rules %+v, %v", set, err)
	}
	d.mustHave(t, "rules")
	expected := int64(7)
	set, err := c.ChangeRules(ctx, sdk.ChangeRules{Put: []sdk.RuleText{{Name: "reading", Text: permit}}, Remove: []string{"old"}, ExpectedCurrentVersion: &expected})
	want := sdk.RuleProblem{Rule: "reading", Policy: "reading#1", Line: 2, Column: 3, Message: "odd", Hint: "look", Warning: true}
	if err != nil || set.Version != 8 || len(set.Warnings) != 1 || set.Warnings[0] != want {
		t.Fatalf("changed %+v, %v", set, err)
	}
	d.mustHave(t, "change rules", int64(7), []workbench.Rule{{Name: "reading", Text: permit}}, []string{"old"})
	check, err := c.CheckRules(ctx, []sdk.RuleText{{Name: "good", Text: permit}, {Name: "bad", Text: "permit(\n  nobody"}})
	if err != nil || check.Valid || len(check.Problems) == 0 || check.Problems[0].Rule != "bad" || check.Problems[0].Line < 1 || check.Problems[0].Message == "" {
		t.Fatalf("checked %+v, %v", check, err)
	}
	if check, err = c.CheckRules(ctx, []sdk.RuleText{{Name: "good", Text: permit}}); err != nil || !check.Valid {
		t.Fatalf("checked %+v, %v", check, err)
	}
	if check, err = c.CheckRules(ctx, nil); err != nil || !check.Valid {
		t.Errorf("no rules: %+v, %v", check, err)
	}
}

func TestACallIsExplained(t *testing.T) {
	d := &desk{}
	c := MustServeDesk(t, d)
	e, err := c.ExplainCall(t.Context(), sdk.ExplainCall{Receipt: receiptID})
	if err != nil || e.Outcome != "needs_approval" || e.Why != "because" || e.Rules[0] != "a#1" || e.Approval[0] != "b#1" || e.Errors[0] != "c#1: no" || e.RulesVersion != 7 {
		t.Fatalf("explained %+v, %v", e, err)
	}
	d.mustHave(t, "explain", govern.Question{ReceiptID: receiptID})
	ref := listIssues.Ref()
	if _, err = c.ExplainCall(t.Context(), sdk.ExplainCall{Session: "ses_x", Tool: &ref, Connection: "main", Arguments: json.RawMessage(`{"state":"open"}`), Rules: &[]sdk.RuleText{{Name: "a", Text: permit}}}); err != nil {
		t.Fatal(err)
	}
	d.mustHave(t, "explain", govern.Question{SessionID: "ses_x", Tool: ref, Connection: "main", Arguments: json.RawMessage(`{"state":"open"}`), Rules: []workbench.Rule{{Name: "a", Text: permit}}})
}

func TestReceiptsOfTools(t *testing.T) {
	d := &desk{}
	c := MustServeDesk(t, d)
	ctx := t.Context()
	r, err := c.ToolReceipt(ctx, receiptID, time.Hour)
	if err != nil || r.Status != workbench.CallUnknown || string(r.Result) != `{"n":1}` {
		t.Fatalf("receipt %+v, %v", r, err)
	}
	d.mustHave(t, "receipt", receiptID, sdk.MaxPoll)
	if _, err = c.ToolReceipt(ctx, receiptID, 0); err != nil {
		t.Fatal(err)
	}
	d.mustHave(t, "receipt", receiptID, time.Duration(0))
	list, err := c.ToolReceipts(ctx, sdk.ReceiptFilter{SessionID: "ses_x", RunID: "run_x", Tool: "github.list_issues", Status: workbench.CallDenied}, workbench.Page{Limit: 2, Cursor: "c"})
	if err != nil || len(list.Items) != 1 || list.Items[0].ID != receiptID {
		t.Fatalf("list %+v, %v", list, err)
	}
	d.mustHave(t, "receipts", store.CallFilter{SessionID: "ses_x", RunID: "run_x", Tool: "github.list_issues", Status: workbench.CallDenied}, workbench.Page{Limit: 2, Cursor: "c"})
}

func TestAReceiptIsWaitedFor(t *testing.T) {
	d := &desk{left: 2}
	r, err := MustServeDesk(t, d).WaitForToolReceipt(t.Context(), receiptID)
	if err != nil || r.Status != workbench.CallUnknown || len(d.did) != 3 {
		t.Errorf("%s after %d reads, %v; a call whose outcome is unknown is a receipt", r.Status, len(d.did), err)
	}
}

func TestApprovals(t *testing.T) {
	d := &desk{}
	c := MustServeDesk(t, d)
	ctx := t.Context()
	list, err := c.Approvals(ctx, workbench.Page{Limit: 3})
	if err != nil || len(list.Items) != 1 || string(list.Items[0].Arguments) != `{"q":1}` || list.Items[0].Approval.Why != "it pays" {
		t.Fatalf("waiting %+v, %v", list, err)
	}
	d.mustHave(t, "waiting", workbench.Page{Limit: 3})
	if r, err := c.ApproveCall(ctx, receiptID, "it is in order"); err != nil || r.Status != workbench.CallExecuting {
		t.Fatalf("approved %+v, %v", r, err)
	}
	d.mustHave(t, "decide", receiptID, govern.Verdict{Approve: true, Reason: "it is in order"})
	if r, err := c.DenyCall(ctx, receiptID, ""); err != nil || r.Status != workbench.CallDenied {
		t.Fatalf("denied %+v, %v", r, err)
	}
	d.mustHave(t, "decide", receiptID, govern.Verdict{})
}

func TestADecisionIsNotRepeated(t *testing.T) {
	d := &desk{between: func(_ http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler) // done, but the answer is lost
	}}
	if _, err := MustServeDesk(t, d).ApproveCall(t.Context(), receiptID, ""); !workbench.HasCode(err, workbench.CodeUnavailable) || len(d.did) != 1 {
		t.Errorf("decided %d times, %v", len(d.did), err)
	}
}

func chainOf(n int) []workbench.AuditEntry {
	var rows []workbench.AuditEntry
	hash := ""
	for i := range n {
		e := workbench.AuditEntry{ID: "aud_" + string(rune('a'+i)), At: start.Add(time.Duration(i) * time.Microsecond), ProjectID: "prj", Action: "app.put", Target: "<github>", Outcome: "ok",
			Detail: json.RawMessage(`{"tools":1}`), Seq: int64(i + 1)}
		hash = e.ChainHash(hash)
		e.Hash = hash
		rows = append(rows, e)
	}
	return rows
}

// mustFollow verifies an exported trail and returns the place of its last row.
func mustFollow(t *testing.T, exported []byte) int64 {
	t.Helper()
	var v workbench.AuditVerifier
	for line := range bytes.Lines(exported) {
		var e workbench.AuditEntry
		if err := json.Unmarshal(line, &e); err != nil || !bytes.HasSuffix(line, []byte("\n")) {
			t.Fatalf("line %q: %v", line, err)
		}
		if why := v.Next(e); why != "" {
			t.Fatal(why)
		}
	}
	last, _ := v.Head()
	return last
}

func TestTheTrailIsExportedWhole(t *testing.T) {
	d := &desk{chain: chainOf(5)}
	c := MustServeDesk(t, d)
	var out bytes.Buffer
	last, err := c.ExportAudit(t.Context(), &out, 0)
	if got := mustFollow(t, out.Bytes()); err != nil || last != 5 || got != 5 {
		t.Errorf("last %d, followed to %d, %v", last, got, err)
	}
	out.Reset()
	if last, err = c.ExportAudit(t.Context(), &out, 3); err != nil || last != 5 || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("behind 3: last %d, %q, %v", last, out.String(), err)
	}
	out.Reset()
	if last, err = c.ExportAudit(t.Context(), &out, 5); err != nil || last != 5 || out.Len() != 0 {
		t.Errorf("behind the last: %d, %q, %v", last, out.String(), err)
	}
}

func TestAnExportGoesOnWhereItBroke(t *testing.T) {
	d := &desk{chain: chainOf(5)}
	c := MustServeDesk(t, d)
	var asked []string
	d.between = func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		asked = append(asked, r.URL.RawQuery)
		if len(asked) < 3 {
			serveCut(w, r, next, 300) // a row and a piece of the next
			return
		}
		next.ServeHTTP(w, r)
	}
	var out bytes.Buffer
	last, err := c.ExportAudit(t.Context(), &out, 0)
	if got := mustFollow(t, out.Bytes()); err != nil || last != 5 || got != 5 {
		t.Errorf("last %d, followed to %d, %v", last, got, err)
	}
	if len(asked) != 3 || asked[0] != "" || asked[1] != "after=1" || asked[2] != "after=2" {
		t.Errorf("asked %q", asked)
	}
}

type full struct{}

var errFull = errors.New("no room")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestAnExportEndsWithItsDestination(t *testing.T) {
	d := &desk{chain: chainOf(2)}
	if last, err := MustServeDesk(t, d).ExportAudit(t.Context(), full{}, 0); !errors.Is(err, errFull) || last != 0 {
		t.Errorf("last %d, %v", last, err)
	}
}

func TestAnExportOfSomethingElseIsRefused(t *testing.T) {
	for name, body := range map[string]string{"no JSON": "<html>\n", "no entries": `{"items":[]}` + "\n", "the same again": `{"seq":1}` + "\n" + `{"seq":1}` + "\n", "no end of line": `{"seq":1}`} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
			defer s.Close()
			c := MustClient(t, sdk.Options{BaseURL: s.URL, Key: testKey, Retries: -1})
			if _, err := c.ExportAudit(t.Context(), io.Discard, 0); err == nil {
				t.Errorf("%q was taken for a trail", body)
			}
		})
	}
}

func TestTheTrailIsListedAndVerified(t *testing.T) {
	d := &desk{chain: chainOf(1)}
	c := MustServeDesk(t, d)
	list, err := c.ListAudit(t.Context(), sdk.AuditFilter{Action: "app.put", Target: "github", TenantID: "ten", UserID: "usr", KeyID: "key", Since: start, Until: start.Add(time.Hour)}, workbench.Page{Limit: 1})
	if err != nil || len(list.Items) != 1 || list.Items[0].Seq != 1 {
		t.Fatalf("list %+v, %v", list, err)
	}
	d.mustHave(t, "list audit", workbench.AuditFilter{Action: "app.put", Target: "github", TenantID: "ten", UserID: "usr", KeyID: "key", Since: start, Until: start.Add(time.Hour)}, workbench.Page{Limit: 1})
	check, err := c.VerifyAudit(t.Context())
	if want := (workbench.AuditCheck{Rows: 2, Broken: 3, Why: "row 3 is missing", Head: "ab"}); err != nil || check != want {
		t.Errorf("verified %+v, %v", check, err)
	}
}

func TestEventsOfCallsAndApprovals(t *testing.T) {
	call := workbench.CallEntry{ReceiptID: receiptID, Number: 2, Tool: "github.list_issues", Version: "1", Status: workbench.CallExecuting}
	raw, err := json.Marshal(call)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := (sdk.Event{Kind: workbench.LogCall, Meta: raw}).Call(); !ok || got != call {
		t.Errorf("call %+v, %v", got, ok)
	}
	if _, ok := (sdk.Event{Kind: workbench.LogStatus, Meta: raw}).Call(); ok {
		t.Error("another kind was read as a call")
	}
	asked := workbench.ApprovalEvent{ReceiptID: receiptID, RunID: "run_x", Tool: "github.list_issues", Version: "1", Status: workbench.CallPending, State: workbench.ApprovalPending, ExpiresAt: start}
	if raw, err = json.Marshal(asked); err != nil {
		t.Fatal(err)
	}
	if got, ok := (sdk.SessionEvent{Kind: workbench.EventApproval, Meta: raw}).Approval(); !ok || got != asked {
		t.Errorf("approval %+v, %v", got, ok)
	}
	if _, ok := (sdk.SessionEvent{Kind: workbench.EventRun, Meta: raw}).Approval(); ok {
		t.Error("another kind was read as an approval")
	}
}

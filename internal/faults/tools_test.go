package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// counted is a service whose tools count what they do, by the id in the
// arguments: the oracle of tool calls.
type counted struct {
	*httptest.Server
	mu   sync.Mutex
	done map[string]int
	told int // by the webhook
}

func newCounted(t *testing.T) *counted {
	t.Helper()
	c := &counted{done: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hook" {
			c.mu.Lock()
			c.told++
			c.mu.Unlock()
			return
		}
		var args struct {
			ID string `json:"id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		c.done[args.ID]++
		c.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"did": true}`))
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *counted) times(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done[id]
}

const toolRules = `permit(principal, action == Action::"call", resource);
permit(principal, action == Action::"use", resource);
permit(principal, action == Action::"requireApproval", resource == Tool::"desk.guarded");
permit(principal, action == Action::"approve", resource);
permit(principal, action == Action::"approveRun", resource);
permit(principal, action == Action::"holdRun", resource) when { context.session.agent == "held" };
@expiry("1s") permit(principal, action == Action::"holdRun", resource) when { context.session.agent == "forgotten" };`

// toolsOf is what clients, their code and those who decide do with tools, while
// the server dies under them.
func (w *world) toolsOf(c *counted) func(ctx context.Context, name string) error {
	schema := json.RawMessage(`{"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}`)
	endpoint := func(name string) workbench.Endpoint {
		return workbench.Endpoint{Name: name, Method: http.MethodPost, Path: "/" + name, InputSchema: schema}
	}
	return func(ctx context.Context, name string) error {
		raw, err := os.ReadFile(filepath.Join(w.dir, "admin"))
		if err != nil {
			return err
		}
		admin := w.client(string(raw))
		if _, err := again(ctx, func() (sdk.ImportedApp, error) {
			return admin.PutApp(ctx, "desk", sdk.PutApp{Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: c.URL, Endpoints: []workbench.Endpoint{endpoint("free"), endpoint("guarded")}}})
		}); err != nil {
			return fmt.Errorf("app: %w", err)
		}
		if _, err := again(ctx, func() (sdk.RuleSet, error) {
			return admin.ChangeRules(ctx, sdk.ChangeRules{Put: []sdk.RuleText{{Name: "all", Text: toolRules}}})
		}); err != nil {
			return fmt.Errorf("rules: %w", err)
		}
		if err := w.aConnection(ctx, admin, name); err != nil {
			return err
		}
		boss, err := again(ctx, func() (sdk.CreatedKey, error) {
			return admin.CreateKey(ctx, sdk.CreateKey{Kind: workbench.KeyDirect, Name: "boss", Tenant: "acme", User: "boss", Scopes: []workbench.Scope{workbench.ScopeRead, workbench.ScopeApprove}})
		})
		if err != nil {
			return fmt.Errorf("key: %w", err)
		}
		if err := w.heldRuns(ctx, w.client(boss.Secret), name); err != nil {
			return err
		}
		return w.callsOf(ctx, w.client(boss.Secret), name)
	}
}

// heldRuns are runs that somebody has to approve: one that is, one that is not,
// and one that nobody looks at.
func (w *world) heldRuns(ctx context.Context, boss *sdk.Client, name string) error {
	client := w.client(w.key)
	for _, how := range []string{"approved", "denied", "forgotten"} {
		agent := "held"
		if how == "forgotten" {
			agent = how
		}
		s, err := again(ctx, func() (workbench.Session, error) {
			return client.CreateAgentSession(ctx, sdk.CreateSession{Agent: agent})
		})
		if err != nil {
			return err
		}
		run, err := w.submit(ctx, client, s.ID, name+"-"+how, "echo held")
		if err != nil {
			return fmt.Errorf("submit: %w", err)
		}
		if how != "forgotten" {
			_, err := again(ctx, func() (workbench.Run, error) {
				decide := boss.ApproveRun
				if how == "denied" {
					decide = boss.DenyRun
				}
				r, err := decide(ctx, run, "")
				if workbench.HasCode(err, workbench.CodeApprovalDecided) { // before the server died
					err = nil
				}
				return r, err
			})
			if err != nil {
				return fmt.Errorf("decide a run: %w", err)
			}
		}
		r, err := w.wait(ctx, client, run)
		if err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if started := r.StartedAt != nil; started && how != "approved" || !started && how == "approved" {
			w.t.Errorf("a run that was %s ended %s (%s), started: %v", how, r.Status, r.Reason, started)
		}
		if _, err := again(ctx, func() (workbench.Session, error) { return client.CloseAgentSession(ctx, s.ID) }); err != nil {
			return err
		}
	}
	return nil
}

// aConnection makes, rotates and revokes one.
func (w *world) aConnection(ctx context.Context, admin *sdk.Client, name string) error {
	made, err := again(ctx, func() (workbench.Connection, error) {
		c, err := admin.CreateConnection(ctx, sdk.CreateConnection{Alias: "c" + name, Provider: "desk", Auth: workbench.AuthBearer, Credentials: workbench.Credentials{Token: "token-" + name}})
		if !workbench.HasCode(err, workbench.CodeConflict) { // made before the server died
			return c, err
		}
		list, err := admin.Connections(ctx, "c"+name, workbench.Page{})
		if err == nil && len(list.Items) > 0 {
			c = list.Items[0]
		}
		return c, err
	})
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	if _, err := again(ctx, func() (workbench.Connection, error) {
		return admin.RotateConnection(ctx, made.ID, sdk.RotateConnection{Credentials: workbench.Credentials{Token: "other-" + name}})
	}); err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	_, err = again(ctx, func() (workbench.Connection, error) {
		c, err := admin.RevokeConnection(ctx, made.ID)
		if workbench.HasCode(err, workbench.CodeConnectionRevoked) {
			err = nil
		}
		return c, err
	})
	return err
}

// callsOf runs code that calls both tools, and decides what waits.
func (w *world) callsOf(ctx context.Context, boss *sdk.Client, name string) error {
	client := w.client(w.key)
	s, err := again(ctx, func() (workbench.Session, error) {
		return client.CreateAgentSession(ctx, sdk.CreateSession{Agent: name, Tools: []workbench.ToolRef{{Name: "desk.free", Version: "1"}, {Name: "desk.guarded", Version: "1"}}})
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	code := fmt.Sprintf(`for i in 1 2; do workbench call desk.free '{"id": "%[1]s-'$i'"}' >>out || true; done
workbench call desk.guarded '{"id": "%[1]s-a"}' >>out; workbench call desk.guarded '{"id": "%[1]s-b"}' >>out; workbench call desk.guarded '{"id": "%[1]s-c"}' >>out; workbench ai summarise text; workbench save out; true`, name)
	run, err := w.submit(ctx, client, s.ID, name+"-calls", code)
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	ended, err := w.wait(ctx, client, run)
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	waiting, err := again(ctx, func() (workbench.List[workbench.ToolReceipt], error) {
		return client.ToolReceipts(ctx, sdk.ReceiptFilter{SessionID: s.ID, Status: workbench.CallPending}, workbench.Page{})
	})
	if err != nil {
		return fmt.Errorf("receipts: %w", err)
	}
	for i, r := range waiting.Items[:min(2, len(waiting.Items))] { // one may be left to the session's end
		_, err := again(ctx, func() (workbench.ToolReceipt, error) {
			decide := boss.ApproveCall
			if i%2 == 1 {
				decide = boss.DenyCall
			}
			r, err := decide(ctx, r.ID, "")
			if workbench.HasCode(err, workbench.CodeApprovalDecided) { // before the server died
				err = nil
			}
			return r, err
		})
		if err != nil {
			return fmt.Errorf("decide: %w", err)
		}
		if _, err := again(ctx, func() (workbench.ToolReceipt, error) { return client.WaitForToolReceipt(ctx, r.ID) }); err != nil {
			return fmt.Errorf("receipt: %w", err)
		}
	}
	restore := sdk.RestartSession{CancelActive: true}
	for _, a := range ended.Artifacts { // what was learned from the tools
		restore.Artifacts = append(restore.Artifacts, workbench.ArtifactSelect{ID: a.ID})
	}
	if _, err := again(ctx, func() (workbench.Session, error) { return client.RestartAgentSession(ctx, s.ID, restore) }); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	_, err = again(ctx, func() (workbench.Session, error) { return client.CloseAgentSession(ctx, s.ID) })
	return err
}

// checkCalls holds every receipt against what the service did: a tool that
// succeeded was asked once, one that was refused never, and none twice.
func (w *world) checkCalls(c *counted) func(ctx context.Context) {
	return func(ctx context.Context) {
		w.checkRuns(ctx)
		t, client := w.t, w.client(w.key)
		tally := map[workbench.CallStatus]int{}
		page := workbench.Page{Limit: 200}
		for {
			list, err := client.ToolReceipts(ctx, sdk.ReceiptFilter{}, page)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range list.Items {
				w.checkCall(ctx, c, client, r.ID, tally)
			}
			if page.Cursor = list.NextCursor; page.Cursor == "" {
				break
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for id, n := range c.done {
			if n != 1 {
				t.Errorf("the call %s was carried out %d times", id, n)
			}
		}
		t.Logf("%d calls were carried out, receipts: %v; the webhook was told %d times", len(c.done), tally, c.told)
		if c.told == 0 {
			t.Error("the webhook was never told")
		}
		raw, err := os.ReadFile(filepath.Join(w.dir, "admin"))
		if err != nil {
			t.Fatal(err)
		}
		if check, err := w.client(string(raw)).VerifyAudit(ctx); err != nil || !check.Intact || check.Rows == 0 {
			t.Errorf("the audit trail reads %+v (%v)", check, err)
		}
	}
}

func (w *world) checkCall(ctx context.Context, c *counted, client *sdk.Client, id string, tally map[workbench.CallStatus]int) {
	t := w.t
	var r workbench.ToolReceipt
	for deadline := time.Now().Add(10 * time.Second); ; {
		var err error
		if r, err = client.ToolReceipt(ctx, id, 0); err != nil {
			t.Fatal(err)
		}
		if r.Status.Terminal() || time.Now().After(deadline) {
			break
		}
		time.Sleep(50 * time.Millisecond) // what waits of closed sessions is swept
	}
	tally[r.Status]++
	var args struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(r.Arguments, &args); err != nil || args.ID == "" {
		t.Errorf("the receipt %s has the arguments %s", id, r.Arguments)
		return
	}
	n := c.times(args.ID)
	switch r.Status {
	case workbench.CallSucceeded:
		if n != 1 || !strings.Contains(string(r.Result), "did") {
			t.Errorf("%s succeeded with %s and was carried out %d times", args.ID, r.Result, n)
		}
	case workbench.CallDenied, workbench.CallExpired, workbench.CallFailed:
		if n != 0 {
			t.Errorf("%s is %s and was carried out %d times", args.ID, r.Status, n)
		}
	case workbench.CallUnknown:
		if n > 1 {
			t.Errorf("%s is unknown and was carried out %d times", args.ID, n)
		}
	default:
		t.Errorf("%s is still %s", args.ID, r.Status)
	}
}

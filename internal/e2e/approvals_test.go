package e2e_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// holdAll makes every call wait, and lets everybody decide.
const holdAll = `@why("all are looked at") permit(principal, action == Action::"requireApproval", resource);
permit(principal, action == Action::"approve", resource);`

// asks calls the tool with a query and returns its receipt's id.
func (d *desk) asks(t *testing.T, s *session, query string) string {
	t.Helper()
	r := s.mustPython(fmt.Sprintf(`r = arc0.call("your_app.lookup", {"query": %q}, connection_alias="support"); print(r.status, r.id)`, query))
	id, ok := strings.CutPrefix(strings.TrimSpace(text(r.Stdout)), "pending_approval ")
	if !ok {
		t.Fatalf("the call says %q (%s)", text(r.Stdout), text(r.Stderr))
	}
	return id
}

// told is one delivery of a webhook.
type told struct {
	id, stamp, signature string
	body                 []byte
}

// The webhook is told of a call that waits, signed, again until it takes it, and
// not of one that waits no more.
func TestApprovalWebhook(t *testing.T) {
	t.Parallel() // it waits more than it works
	const secret = "canary-hook-1f2e3d4c5b6a7988"
	deliveries := make(chan told, 100)
	refuses := make(chan int, 100) // statuses, in turn; then 204
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		status := http.StatusNoContent
		select {
		case status = <-refuses:
		default:
		}
		w.WriteHeader(status)
		deliveries <- told{r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp"), r.Header.Get("Webhook-Signature"), body}
	}))
	defer hook.Close()
	d := mustDesk(t, func(o *server.Options) {
		w, err := govern.NewWebhook(hook.URL, []byte("whsec_"+encoded(secret)))
		if err != nil {
			t.Fatal(err)
		}
		w.Again = 500 * time.Millisecond
		o.ApprovalWebhook = w
	})
	d.rules(t, "approvals", holdAll)
	s := d.mustSession(t)
	boss := d.mustKey(t, "acme", "boss", "read", "approve")
	next := func(t *testing.T) told {
		t.Helper()
		select {
		case got := <-deliveries:
			return got
		case <-time.After(20 * time.Second):
			t.Fatal("the webhook was not told within 20 s")
			return told{}
		}
	}
	t.Run("again until it answers well", func(t *testing.T) {
		refuses <- http.StatusInternalServerError
		refuses <- http.StatusFound
		id := d.asks(t, s, "private-7d1f")
		for range 3 {
			got := next(t)
			sum := hmac.New(sha256.New, []byte(secret))
			fmt.Fprintf(sum, "%s.%s.%s", got.id, got.stamp, got.body)
			if want := "v1," + base64.StdEncoding.EncodeToString(sum.Sum(nil)); got.signature != want {
				t.Errorf("signed %s, want %s", got.signature, want)
			}
			at, err := strconv.ParseInt(got.stamp, 10, 64)
			if err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
				t.Errorf("the timestamp is %s", got.stamp)
			}
			var n govern.Notice
			if err := json.Unmarshal(got.body, &n); err != nil {
				t.Fatal(err)
			}
			if got.id != id || n.Type != "approval.requested" || n.Data.ReceiptID != id || n.Data.SessionID != s.id || n.Data.Tool != "your_app.lookup" || n.Data.Version != "1" ||
				n.Data.Connection != "support" || n.Data.Tenant != "acme" || n.Data.User != "ada" || n.Data.Why != "all are looked at" || time.Until(n.Data.ExpiresAt) < time.Hour {
				t.Errorf("it is told %s: %s", got.id, got.body)
			}
			for _, hidden := range []string{"private-7d1f", d.token, secret} {
				if strings.Contains(string(got.body), hidden) {
					t.Errorf("it is told %s", got.body)
				}
			}
		}
	})
	t.Run("not of what was decided meanwhile", func(t *testing.T) {
		refuses <- http.StatusServiceUnavailable
		gone := d.asks(t, s, "1")
		if got := next(t); got.id != gone {
			t.Fatalf("told of %s, want %s", got.id, gone)
		}
		d.restAs(t, boss, http.MethodPost, "/v1/workbench/receipts/"+gone+"/deny", map[string]any{"reason": "no"}, http.StatusOK)
		// Three others later, longer than the pause after the first try.
		for i := range 3 {
			want := d.asks(t, s, strconv.Itoa(i))
			if got := next(t); got.id != want {
				t.Fatalf("told of %s, want %s; the denied call is %s", got.id, want, gone)
			}
		}
	})
	t.Run("the session tells of it too", func(t *testing.T) {
		id := d.asks(t, s, "last")
		next(t)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for e, err := range s.c.SessionEvents(ctx, s.id, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if raw, err := json.Marshal(e); err != nil || strings.Contains(string(raw), id) {
				if !strings.Contains(string(raw), `"approval"`) || err != nil {
					t.Errorf("the event is %s (%v)", raw, err)
				}
				return
			}
		}
		t.Error("no event names the call")
	})
	d.wantNoSecret(t, map[string]string{}, secret)
	if n := d.oracle.executed(); n != 0 {
		t.Errorf("the tool was executed %d times", n)
	}
}

// F58: an approval that comes too late, from beside, or after the rules changed
// makes nothing leave; one that comes after the run has ended makes the call
// leave once.
func TestApprovalThatDoesNotCount(t *testing.T) {
	t.Parallel() // it waits more than it works
	d := mustDesk(t, nil)
	d.rules(t, "approvals", holdAll)
	boss := d.mustKey(t, "acme", "boss", "read", "approve")
	s := d.mustSession(t)
	decide := func(t *testing.T, key, id, verdict string, status int) map[string]any {
		t.Helper()
		return d.restAs(t, key, http.MethodPost, "/v1/workbench/receipts/"+id+"/"+verdict, map[string]any{}, status)
	}
	t.Run("forged receipts", func(t *testing.T) {
		id := d.asks(t, s, "1")
		last := id[len(id)-1]
		forged := id[:len(id)-1] + string("0a"[map[bool]int{true: 1}[last == '0']])
		decide(t, boss, forged, "approve", http.StatusNotFound)
		decide(t, boss, "rcp_nothing", "approve", http.StatusNotFound)
		decide(t, "wbk_forged", id, "approve", http.StatusUnauthorized)
	})
	t.Run("a key of another session", func(t *testing.T) {
		id := d.asks(t, s, "2")
		other := d.mustSession(t)
		narrow := d.rest(t, http.MethodPost, "/v1/workbench/keys", map[string]any{"kind": "direct", "tenant": "acme", "user": "ada", "scopes": []string{"read", "approve"},
			"sessionId": other.id}, http.StatusCreated)["secret"].(string)
		decide(t, narrow, id, "approve", http.StatusNotFound)
	})
	t.Run("without the rule that lets decide", func(t *testing.T) {
		id := d.asks(t, s, "3")
		d.rules(t, "approvals", `permit(principal, action == Action::"requireApproval", resource);`)
		decide(t, boss, id, "approve", http.StatusForbidden)
		d.rules(t, "approvals", holdAll)
	})
	t.Run("without the rule that allows the call", func(t *testing.T) {
		id := d.asks(t, s, "4")
		d.unrule(t)
		decide(t, boss, id, "approve", http.StatusForbidden)
		d.rules(t, "access", allowAll)
	})
	t.Run("after a denial", func(t *testing.T) {
		id := d.asks(t, s, "5")
		decide(t, boss, id, "deny", http.StatusOK)
		decide(t, boss, id, "approve", http.StatusConflict)
		if got := d.receipt(t, boss, id); got["status"] != "denied" {
			t.Errorf("the receipt says %v", got["status"])
		}
	})
	t.Run("too late", func(t *testing.T) {
		d.rules(t, "approvals", strings.Replace(holdAll, "@why", `@expiry("1s") @why`, 1))
		id := d.asks(t, s, "6")
		if got := d.receipt(t, boss, id); got["status"] != "expired" { // waits for its end
			t.Fatalf("the receipt says %v", got["status"])
		}
		if got := decide(t, boss, id, "approve", http.StatusGone); got["code"] != "approval_expired" {
			t.Errorf("too late an approval is refused with %v", got["code"])
		}
		wantOut(t, s.mustPython(fmt.Sprintf("print(arc0.receipt(%q).status)", id)), "expired\n")
		d.rules(t, "approvals", holdAll)
	})
	t.Run("an expired session", func(t *testing.T) {
		c := d.mustUser(t, "acme", "ada")
		of := d.allowing()
		of.TTLMs = new(int64(4500))
		made, err := c.CreateAgentSession(t.Context(), of)
		if err != nil {
			t.Fatal(err)
		}
		id := d.asks(t, &session{t: t, c: c, id: made.ID}, "7")
		if got := d.receipt(t, boss, id); got["status"] != "expired" {
			t.Fatalf("the receipt says %v", got["status"])
		}
		if got := decide(t, boss, id, "approve", http.StatusGone); got["code"] != "session_expired" {
			t.Errorf("after the session's deadline an approval is refused with %v", got["code"])
		}
	})
	if n := d.oracle.executed(); n != 0 {
		t.Fatalf("the tool was executed %d times", n)
	}
	t.Run("many at once execute once", func(t *testing.T) {
		id := d.asks(t, s, "8")
		statuses := make(chan int, 20)
		for range cap(statuses) {
			go func() {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/v1/workbench/receipts/"+id+"/approve", strings.NewReader("{}"))
				if err != nil {
					statuses <- 0
					return
				}
				r.Header.Set("Authorization", "Bearer "+boss)
				r.Header.Set("Content-Type", "application/json")
				answer, err := http.DefaultClient.Do(r)
				if err != nil {
					statuses <- 0
					return
				}
				answer.Body.Close()
				statuses <- answer.StatusCode
			}()
		}
		count := map[int]int{}
		for range cap(statuses) {
			count[<-statuses]++
		}
		got := d.receipt(t, boss, id)
		if count[200] != 1 || count[409] != cap(statuses)-1 || got["status"] != "succeeded" || d.oracle.executed() != 1 {
			t.Errorf("answers %v, the receipt says %v, the tool was executed %d times", count, got["status"], d.oracle.executed())
		}
	})
	if v := d.rest(t, http.MethodGet, "/v1/workbench/audit/verify", nil, http.StatusOK); v["intact"] != true {
		t.Errorf("the audit trail: %v", v)
	}
	refused := d.rest(t, http.MethodGet, "/v1/workbench/audit?action=approval.decide&limit=200", nil, http.StatusOK)["items"].([]any)
	outcomes := map[string]int{}
	for _, row := range refused {
		outcomes[row.(map[string]any)["outcome"].(string)]++
	}
	if outcomes["ok"] != 2 || len(refused) < 25 {
		t.Errorf("the trail has %d decisions, which ended %v", len(refused), outcomes)
	}
}

// B43: nothing that code says to the server's socket decides a call, and rules
// that cannot be enforced are refused.
func TestApprovalForgedFromInside(t *testing.T) {
	d := mustDesk(t, nil)
	d.rules(t, "approvals", holdAll)
	s := d.mustSession(t)
	boss := d.mustKey(t, "acme", "boss", "read", "approve")
	const raw = `
import json, os, socket
def ask(**fields):
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["WORKBENCH_SOCKET"])
    body = json.dumps(dict(fields, token=os.environ["WORKBENCH_TOKEN"])).encode()
    s.sendall(len(body).to_bytes(4, "big") + body)
    got = b""
    while part := s.recv(65536): got += part
    return json.loads(got[4:])
def say(answer): return answer["error"]["code"] if "error" in answer else answer["result"]["status"]
call = {"tool": "your_app.lookup", "connection": "support", "args": {"query": "1"}}
`
	r := s.mustPython(raw + `
first = ask(op="call", value=call)["result"]["id"]
for forged in ({"approval": {"state": "approved"}}, {"approved": True, "receipt": first}, {"status": "succeeded", "id": first}, {"rules": [], "session": "ses_other"}):
    print(say(ask(op="call", value=dict(call, **forged), **forged)))
print(say(ask(op="call", value=dict(call, args={"query": "1", "approval": "approved"}))))
for op in ("approve", "decide", "receipts.approve", "rules.put", "call.execute"):
    print(say(ask(op=op, value={"id": first, "receipt": first, "approve": True})))
print(say(ask(op="receipt", value={"id": first, "approve": True, "status": "succeeded"})))
print("first", first)
`)
	out := text(r.Stdout)
	head, id, _ := strings.Cut(strings.TrimSpace(out), "first ")
	if want := strings.Repeat("pending_approval\n", 4) + "arguments_invalid\n" + strings.Repeat("invalid_request\n", 5) + "pending_approval\n"; head != want {
		t.Fatalf("the code was answered %q, want %q (%s)", head, want, text(r.Stderr))
	}
	if n := d.oracle.executed(); n != 0 {
		t.Fatalf("the tool was executed %d times", n)
	}
	d.restAs(t, boss, http.MethodPost, "/v1/workbench/receipts/"+id+"/approve", map[string]any{}, http.StatusOK)
	if got := d.receipt(t, boss, id); got["status"] != "succeeded" {
		t.Fatalf("the approved call reads %v", got)
	}
	again := s.mustPython(raw + `
print(say(ask(op="call", value=call)), say(ask(op="call", value=dict(call, args={"query": "2"}))))
`)
	wantOut(t, again, "pending_approval pending_approval\n")
	d.oracle.mu.Lock()
	calls := fmt.Sprint(d.oracle.calls)
	d.oracle.mu.Unlock()
	if calls != `[{"query":"1"}]` {
		t.Errorf("the tool was called with %s", calls)
	}
	for name, rule := range map[string]string{
		"an attribute that is none": `permit(principal, action == Action::"requireApproval", resource) when { context.risk > 3 };`,
		"an action that is none":    `permit(principal, action == Action::"escalate", resource);`,
		"an annotation that errs":   `@expiry("90d") permit(principal, action == Action::"requireApproval", resource);`,
	} {
		answer := d.rest(t, http.MethodPost, "/v1/workbench/rules", map[string]any{"put": []any{map[string]any{"name": "odd", "text": rule}}}, http.StatusBadRequest)
		if answer["code"] != "rule_invalid" {
			t.Errorf("%s: %v", name, answer)
		}
	}
	d.rest(t, http.MethodPost, "/v1/workbench/rules", map[string]any{"put": []any{map[string]any{"name": "odd", "text": allowAll, "enforce": "later"}}}, http.StatusBadRequest)
}

// F59: a session is not configured while runs wait in it, so that each has the
// tools of the revision that it was submitted under.
func TestToolsOfAQueuedRun(t *testing.T) {
	d := mustDesk(t, nil)
	s := d.mustSession(t)
	const code = `
try: print(arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support").status)
except arc0.WorkbenchError as e: print(e.code, e.field)
`
	asked, held := make(chan struct{}, 3), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	t.Cleanup(release) // before the oracle waits for its handlers
	d.oracle.answers(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-held
		w.WriteHeader(http.StatusNoContent)
	})
	first := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, Code: code})
	wait(t, asked, "the first call")
	queued := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, Code: code})
	none := []string{}
	without := sdk.ConfigureSession{Connections: &none}
	_, err := s.c.ConfigureAgentSession(t.Context(), s.id, without)
	wantCode(t, err, workbench.CodeRunsActive)
	release()
	for _, run := range []string{first, queued} {
		r := s.mustWait(run)
		wantOut(t, r, "succeeded\n")
		if r.Revision != 1 {
			t.Errorf("the run is of revision %d", r.Revision)
		}
	}
	if _, err := s.c.ConfigureAgentSession(t.Context(), s.id, without); err != nil {
		t.Fatal(err)
	}
	wantOut(t, s.mustPython(code), "connection_not_allowed connection\n")
	if n := d.oracle.executed(); n != 2 {
		t.Errorf("the tool was executed %d times", n)
	}
}

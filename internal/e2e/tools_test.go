package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// The first seed's snippets, as printed.
const (
	seedPython = `receipt = arc0.call("your_app.lookup", {"query": "1234"}, version="1", connection_alias="support")
# Inspect receipt.status; an approval requirement is not an execution result.
arc0.save("summary.txt", "Reviewed output")
`
	seedJavaScript = `const receipt = await arc0.call("your_app.lookup", { query: "1234" }, {
  version: "1", connectionAlias: "support",
});
arc0.save("summary.txt", "Reviewed output");
`
)

const allowAll = `permit(principal, action == Action::"call", resource);`

// oracle is a tool's own service: it counts what it executes, from outside.
type oracle struct {
	*httptest.Server
	mu     sync.Mutex
	calls  []string // bodies, in order
	tokens []string // Authorization headers
	answer http.HandlerFunc
}

func mustOracle(t *testing.T) *oracle {
	t.Helper()
	o := &oracle{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		o.mu.Lock()
		o.calls, o.tokens = append(o.calls, string(body)), append(o.tokens, r.Header.Get("Authorization"))
		answer := o.answer
		o.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"name": "Ada", "plan": "gold"}`)
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *oracle) executed() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.calls)
}

func (o *oracle) answers(h http.HandlerFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = h
}

// desk is a server with a tool, its service and a project that may use it.
type desk struct {
	*world
	t      *testing.T
	oracle *oracle
	token  string // the credential of the connection "support"
	conn   string
}

func mustDesk(t *testing.T, change func(*server.Options)) *desk {
	t.Helper()
	d := &desk{world: mustWorld(t, change), t: t, oracle: mustOracle(t), token: "canary-4f9d2b71c6e8a0d35b"}
	d.rest(t, http.MethodPut, "/v1/workbench/apps/your_app", map[string]any{"kind": "http", "needsConnection": true, "config": map[string]any{
		"url": d.oracle.URL, "endpoints": []any{map[string]any{"name": "lookup", "method": "POST", "path": "/lookup", "description": "Looks a customer up.",
			"inputSchema": map[string]any{"type": "object", "properties": map[string]any{"query": map[string]any{"type": "string"}, "amount": map[string]any{"type": "number"}},
				"required": []string{"query"}, "additionalProperties": false}}}}}, http.StatusOK)
	made := d.rest(t, http.MethodPost, "/v1/workbench/connections", map[string]any{"alias": "support", "provider": "your_app", "auth": "bearer",
		"credentials": map[string]any{"token": d.token}}, http.StatusCreated)
	d.conn = made["id"].(string)
	d.rules(t, "access", allowAll)
	return d
}

// rest asks as the admin and fails unless the status is this.
func (w *world) rest(t *testing.T, method, path string, body any, status int) map[string]any {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(w.dir, "admin"))
	if err != nil {
		t.Fatal(err)
	}
	return w.restAs(t, string(key), method, path, body, status)
}

func (w *world) restAs(t *testing.T, key, method, path string, body any, status int) map[string]any {
	t.Helper()
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		content = bytes.NewReader(raw)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, content)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != status {
		t.Fatalf("%s %s answers %d, want %d: %s", method, path, answer.StatusCode, status, raw)
	}
	out := map[string]any{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatalf("%s %s: %v: %s", method, path, err, raw)
		}
	}
	return out
}

func (w *world) rules(t *testing.T, name, text string) {
	t.Helper()
	w.rest(t, http.MethodPost, "/v1/workbench/rules", map[string]any{"put": []any{map[string]any{"name": name, "text": text}}}, http.StatusOK)
}

// unrule removes the rule access.
func (w *world) unrule(t *testing.T) {
	t.Helper()
	w.rest(t, http.MethodPost, "/v1/workbench/rules", map[string]any{"remove": []string{"access"}}, http.StatusOK)
}

// mustKey makes a key of a user with scopes.
func (w *world) mustKey(t *testing.T, tenant, user string, scopes ...string) string {
	t.Helper()
	made := w.rest(t, http.MethodPost, "/v1/workbench/keys", map[string]any{"kind": "direct", "tenant": tenant, "user": user, "scopes": scopes}, http.StatusCreated)
	return made["secret"].(string)
}

func (d *desk) mustSession(t *testing.T) *session {
	t.Helper()
	return mustSessionOf(t, d.mustUser(t, "acme", "ada"), d.allowing())
}

func (d *desk) allowing() sdk.CreateSession {
	return sdk.CreateSession{Tools: []workbench.ToolRef{{Name: "your_app.lookup", Version: "1"}}, Connections: []string{"support"}}
}

// receipt reads a receipt as a key, waiting for its end.
func (d *desk) receipt(t *testing.T, key, id string) map[string]any {
	t.Helper()
	return d.restAs(t, key, http.MethodGet, "/v1/workbench/receipts/"+id+"?waitMs=20000", nil, http.StatusOK)
}

func TestSeedSnippets(t *testing.T) {
	for _, c := range []struct {
		language workbench.Language
		snippet  string
		show     string
		later    string
	}{
		{workbench.Python, seedPython, "print(receipt.status, receipt.id)\nprint(receipt.result if receipt.status == 'succeeded' else None)\n",
			"r = arc0.receipt(%q)\nprint(r.status, r.result['plan'])\n"},
		{workbench.JavaScript, seedJavaScript, "console.log(receipt.status, receipt.id);\nconsole.log(receipt.status === 'succeeded' ? JSON.stringify(receipt.result) : 'None');\n",
			"const r = await arc0.receipt(%q);\nconsole.log(r.status, r.result.plan);\n"},
	} {
		t.Run(string(c.language), func(t *testing.T) {
			d := mustDesk(t, nil)
			s := d.mustSession(t)
			owner := d.mustKey(t, "acme", "ada", "execute", "read")
			boss := d.mustKey(t, "acme", "boss", "read", "approve")

			allowed := s.mustRun(sdk.CreateRun{Language: c.language, Code: c.snippet + c.show})
			wantEnd(t, allowed, workbench.StatusSucceeded, workbench.ReasonNone)
			if !strings.HasPrefix(text(allowed.Stdout), "succeeded rcp_") || !strings.Contains(text(allowed.Stdout), "gold") {
				t.Fatalf("an allowed call says %q", text(allowed.Stdout))
			}
			if len(allowed.Artifacts) != 1 || s.mustRead(allowed.Artifacts[0].ID) != "Reviewed output" {
				t.Fatalf("summary.txt is not kept: %+v", allowed.Artifacts)
			}
			if n := d.oracle.executed(); n != 1 {
				t.Fatalf("the tool was executed %d times", n)
			}
			if d.oracle.tokens[0] != "Bearer "+d.token || d.oracle.calls[0] != `{"query":"1234"}` {
				t.Fatalf("the tool got %q with %q", d.oracle.calls[0], d.oracle.tokens[0])
			}

			d.rules(t, "approvals", `@expiry("1h") @why("customers are private")
				permit(principal, action == Action::"requireApproval", resource == Tool::"your_app.lookup");
				permit(principal, action == Action::"approve", resource) unless { principal == context.requester };`)
			waiting := s.mustRun(sdk.CreateRun{Language: c.language, Code: c.snippet + c.show})
			wantEnd(t, waiting, workbench.StatusSucceeded, workbench.ReasonNone)
			status, id, _ := strings.Cut(strings.Split(text(waiting.Stdout), "\n")[0], " ")
			if status != "pending_approval" || d.oracle.executed() != 1 {
				t.Fatalf("a call that needs an approval says %q; the tool was executed %d times", text(waiting.Stdout), d.oracle.executed())
			}
			list := d.restAs(t, boss, http.MethodGet, "/v1/workbench/approvals", nil, http.StatusOK)["items"].([]any)
			if len(list) != 1 || list[0].(map[string]any)["id"] != id || fmt.Sprint(list[0].(map[string]any)["arguments"]) != "map[query:1234]" {
				t.Fatalf("what waits reads %v", list)
			}
			d.restAs(t, owner, http.MethodPost, "/v1/workbench/receipts/"+id+"/approve", map[string]any{}, http.StatusForbidden)
			self := d.mustKey(t, "acme", "ada", "read", "approve")
			d.restAs(t, self, http.MethodPost, "/v1/workbench/receipts/"+id+"/approve", map[string]any{}, http.StatusForbidden)
			stranger := d.mustKey(t, "elsewhere", "boss", "read", "approve")
			d.restAs(t, stranger, http.MethodPost, "/v1/workbench/receipts/"+id+"/approve", map[string]any{}, http.StatusNotFound)
			d.restAs(t, boss, http.MethodPost, "/v1/workbench/receipts/"+id+"/approve", map[string]any{"reason": "a customer asked"}, http.StatusOK)
			final := d.receipt(t, owner, id)
			if final["status"] != "succeeded" || d.oracle.executed() != 2 || final["approval"].(map[string]any)["reason"] != "a customer asked" {
				t.Fatalf("an approved call reads %v; the tool was executed %d times", final, d.oracle.executed())
			}
			d.restAs(t, boss, http.MethodPost, "/v1/workbench/receipts/"+id+"/approve", map[string]any{}, http.StatusConflict)
			later := s.mustRun(sdk.CreateRun{Language: c.language, Code: fmt.Sprintf(c.later, id)})
			wantOut(t, later, "succeeded gold\n")

			d.unrule(t)
			denied := s.mustRun(sdk.CreateRun{Language: c.language, Code: c.snippet + c.show})
			wantEnd(t, denied, workbench.StatusSucceeded, workbench.ReasonNone)
			if denied.Withheld == nil || denied.Withheld.Code != workbench.CodeAccessDenied || denied.Stdout != nil {
				t.Fatalf("output that came from a tool which may not be used any more is shown: %+v", denied.Withheld)
			}
			all := d.restAs(t, owner, http.MethodGet, "/v1/workbench/receipts?status=denied", nil, http.StatusOK)["items"].([]any)
			if len(all) != 1 || d.oracle.executed() != 2 {
				t.Fatalf("%d calls were denied, the tool was executed %d times", len(all), d.oracle.executed())
			}
		})
	}
}

// Everything the server wrote, and everything the code could see, is searched
// for a credential and the master key.
func TestCanary(t *testing.T) {
	d := mustDesk(t, nil)
	d.oracle.answers(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(r.URL.RawQuery, "fail") {
			w.WriteHeader(http.StatusTeapot)
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"echo": r.Header.Get("Authorization"), "hidden": "x" + d.token + "y"})
	})
	s := d.mustSession(t)
	r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Keep: []string{"**"}, Code: `
import os, subprocess, glob
r = arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support")
print(r.status, r.result)
open("receipt.txt", "w").write(repr(r))
print(dict(os.environ))
for f in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline") + glob.glob("/proc/self/maps"):
    try: print(f, open(f, "rb").read())
    except OSError as e: print(f, e)
`})
	wantEnd(t, r, workbench.StatusSucceeded, workbench.ReasonNone)
	if !strings.Contains(text(r.Stdout), "[redacted]") {
		t.Fatalf("the tool's echo of the credential is not redacted: %s", text(r.Stdout))
	}
	master, err := os.ReadFile(filepath.Join(d.dir, "data", "master.key"))
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{d.token, strings.TrimSpace(string(master))}
	seen := map[string]string{"stdout": text(r.Stdout), "stderr": text(r.Stderr), "log": d.log.whole(),
		"audit":       fmt.Sprint(d.rest(t, http.MethodGet, "/v1/workbench/audit?limit=200", nil, http.StatusOK)),
		"connections": fmt.Sprint(d.rest(t, http.MethodGet, "/v1/workbench/connections", nil, http.StatusOK))}
	for _, a := range r.Artifacts {
		seen["file "+a.Path] = s.mustRead(a.ID)
	}
	err = filepath.WalkDir(filepath.Join(d.dir, "data"), func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || e.Name() == "master.key" || strings.Contains(path, "/bin/") {
			return err
		}
		b, err := os.ReadFile(path)
		seen[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for where, content := range seen {
		for i, secret := range secrets {
			for _, form := range []string{secret, encoded(secret)} {
				if strings.Contains(content, form) {
					t.Errorf("secret %d is in %s", i, where)
				}
			}
		}
	}
}

func TestToolCallLimit(t *testing.T) {
	d := mustDesk(t, nil)
	s := d.mustSession(t)
	r := s.mustPython(`
import threading, collections
seen = collections.Counter()
def one(i):
    try:
        seen[arc0.call("your_app.lookup", {"query": str(i)}, connection_alias="support").status] += 1
    except arc0.WorkbenchError as e:
        seen[e.code] += 1
threads = []
for i in range(1000):
    while True:
        try:
            t = threading.Thread(target=one, args=(i,)); t.start(); threads.append(t); break
        except RuntimeError:  # 64 tasks
            threads[0].join(); threads.pop(0)
for t in threads: t.join()
print(sorted(seen.items()))
`)
	wantOut(t, r, "[('succeeded', 25), ('tool_calls_exhausted', 975)]\n")
	if n := d.oracle.executed(); n != 25 {
		t.Errorf("the tool was executed %d times, want 25", n)
	}
	if r.ToolCalls != 25 || !slices.Contains(r.LimitsHit, workbench.LimitToolCalls) {
		t.Errorf("the receipt counts %d calls and limits %v", r.ToolCalls, r.LimitsHit)
	}
	failed := s.mustPython(`
for i in range(26):
    arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support")
`)
	wantEnd(t, failed, workbench.StatusFailed, workbench.ReasonToolCalls)
}

// F57: a tool that does not answer, answers late, answers 500 after it did it, or
// far too much: each ends once, and nothing is asked twice.
func TestToolFaults(t *testing.T) {
	d := mustDesk(t, nil)
	owner := d.mustKey(t, "acme", "ada", "execute", "read")
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		status string
		code   string
	}{
		{"answers 500 after doing it", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, "unknown", "tool_failed"},
		{"refuses", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnprocessableEntity) }, "failed", "tool_failed"},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "unknown", "tool_unavailable"},
		{"answers with 100 MB", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			part := bytes.Repeat([]byte("1"), 1<<20)
			for range 100 {
				if _, err := w.Write(part); err != nil {
					return
				}
			}
		}, "unknown", "result_too_large"},
		{"redirects", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "failed", "tool_failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := d.mustSession(t)
			d.oracle.answers(c.answer)
			before := d.oracle.executed()
			r := s.mustPython(`
r = arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support")
print(r.status, r.error["code"], r.id)
`)
			out := strings.Fields(text(r.Stdout))
			if len(out) != 3 || out[0] != c.status || out[1] != c.code {
				t.Fatalf("the receipt says %q, want %s %s; stderr %s", text(r.Stdout), c.status, c.code, text(r.Stderr))
			}
			if n := d.oracle.executed() - before; n != 1 {
				t.Errorf("the tool was asked %d times", n)
			}
			if got := d.receipt(t, owner, out[2]); got["status"] != c.status {
				t.Errorf("read again, the receipt says %v", got["status"])
			}
		})
	}
}

func TestCodesMistakes(t *testing.T) {
	d := mustDesk(t, nil)
	s := d.mustSession(t)
	r := s.mustPython(`
for name, call in {
    "unknown tool": lambda: arc0.call("your_app.nothing", {}),
    "another version": lambda: arc0.call("your_app.lookup", {"query": "1"}, version="2", connection_alias="support"),
    "another alias": lambda: arc0.call("your_app.lookup", {"query": "1"}, connection_alias="sales"),
    "no alias": lambda: arc0.call("your_app.lookup", {"query": "1"}),
    "missing argument": lambda: arc0.call("your_app.lookup", {}, connection_alias="support"),
    "wrong type": lambda: arc0.call("your_app.lookup", {"query": 1}, connection_alias="support"),
    "unknown argument": lambda: arc0.call("your_app.lookup", {"query": "1", "colour": "red"}, connection_alias="support"),
}.items():
    try:
        print(name, call())
    except arc0.WorkbenchError as e:
        print(name, e.code, e.field, bool(e.hint))
`)
	wantOut(t, r, `unknown tool tool_not_allowed tool True
another version tool_not_allowed version True
another alias connection_not_allowed connection True
no alias connection_not_found connection True
missing argument arguments_invalid args.query True
wrong type arguments_invalid args.query True
unknown argument arguments_invalid args.colour True
`)
	if n := d.oracle.executed(); n != 0 {
		t.Errorf("the tool was executed %d times", n)
	}
	if r.ToolCalls != 7 {
		t.Errorf("%d calls are counted, want 7", r.ToolCalls)
	}
	c := d.mustUser(t, "acme", "ada")
	_, err := c.CreateAgentSession(t.Context(), sdk.CreateSession{Tools: []workbench.ToolRef{{Name: "your_app.lookup", Version: "2"}}})
	wantCode(t, err, workbench.CodeToolNotFound)
	_, err = c.CreateAgentSession(t.Context(), sdk.CreateSession{Connections: []string{"sales"}})
	wantCode(t, err, workbench.CodeConnectionNotFound)
}

// F58 and B43: an approval is for one call as it was asked for, and nothing else
// makes it leave.
func TestApprovalIsForTheVeryCall(t *testing.T) {
	d := mustDesk(t, nil)
	d.rules(t, "approvals", `permit(principal, action == Action::"requireApproval", resource);
		permit(principal, action == Action::"approve", resource);`)
	boss := d.mustKey(t, "acme", "boss", "read", "approve")
	ask := func(t *testing.T, s *session) string {
		t.Helper()
		r := s.mustPython(`print(arc0.call("your_app.lookup", {"query": "1", "amount": 5}, connection_alias="support").id)`)
		return strings.TrimSpace(text(r.Stdout))
	}
	approve := func(t *testing.T, id string, status int) map[string]any {
		t.Helper()
		return d.restAs(t, boss, http.MethodPost, "/v1/workbench/receipts/"+id+"/approve", map[string]any{}, status)
	}
	t.Run("code cannot mint it", func(t *testing.T) {
		s := d.mustSession(t)
		r := s.mustPython(`
for args in ({"query": "1", "approved": True}, {"query": "1"}):
    try:
        print(arc0.call("your_app.lookup", args, connection_alias="support").status)
    except arc0.WorkbenchError as e:
        print(e.code)
`)
		wantOut(t, r, "arguments_invalid\npending_approval\n")
	})
	t.Run("a repeat after the approval is another call", func(t *testing.T) {
		s := d.mustSession(t)
		id := ask(t, s)
		approve(t, id, http.StatusOK)
		if got := d.receipt(t, boss, id); got["status"] != "succeeded" {
			t.Fatalf("the approved call reads %v", got)
		}
		before := d.oracle.executed()
		if again := ask(t, s); again == id {
			t.Error("the repeat has the same receipt")
		}
		if d.oracle.executed() != before {
			t.Error("the repeat was executed")
		}
	})
	t.Run("a closed session", func(t *testing.T) {
		c := d.mustUser(t, "acme", "ada")
		made, err := c.CreateAgentSession(t.Context(), d.allowing())
		if err != nil {
			t.Fatal(err)
		}
		id := ask(t, &session{t: t, c: c, id: made.ID})
		if _, err := c.CloseAgentSession(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		before := d.oracle.executed()
		if got := approve(t, id, http.StatusGone); got["code"] != "session_closed" {
			t.Errorf("the approval is refused with %v", got["code"])
		}
		if d.oracle.executed() != before {
			t.Error("the call was executed")
		}
	})
	t.Run("another revision", func(t *testing.T) {
		s := d.mustSession(t)
		id := ask(t, s)
		none := []string{}
		if _, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Connections: &none}); err != nil {
			t.Fatal(err)
		}
		approve(t, id, http.StatusForbidden)
	})
	t.Run("a revoked connection", func(t *testing.T) {
		s := d.mustSession(t)
		id := ask(t, s)
		d.rest(t, http.MethodDelete, "/v1/workbench/connections/"+d.conn, nil, http.StatusOK)
		before := d.oracle.executed()
		approve(t, id, http.StatusBadRequest)
		if d.oracle.executed() != before {
			t.Error("the call was executed")
		}
	})
}

// A20: what was learned from a tool goes with everything that comes of it.
func TestDependenciesTravel(t *testing.T) {
	d := mustDesk(t, nil)
	s := d.mustSession(t)
	r := s.mustPython(`
r = arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support")
arc0.save("plan.txt", r.result["plan"])
`)
	wantEnd(t, r, workbench.StatusSucceeded, workbench.ReasonNone)
	if len(r.Dependencies) != 1 || r.Dependencies[0].Tool != "your_app.lookup" || r.Dependencies[0].ConnectionID != d.conn {
		t.Fatalf("the run depends on %+v", r.Dependencies)
	}
	saved := r.Artifacts[0]
	if len(saved.Dependencies) != 1 {
		t.Fatalf("the saved file depends on %+v", saved.Dependencies)
	}
	other := mustSessionOf(t, s.c, sdk.CreateSession{})
	copied := other.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "cp plan.txt copy.txt; cat copy.txt", Keep: []string{"copy.txt"},
		Artifacts: []workbench.ArtifactSelect{{ID: saved.ID}}})
	wantOut(t, copied, "gold")
	if len(copied.Artifacts) != 1 || len(copied.Artifacts[0].Dependencies) != 1 {
		t.Fatalf("a copy in another session depends on %+v", copied.Artifacts)
	}
	if got := other.mustRead(copied.Artifacts[0].ID); got != "gold" {
		t.Fatalf("the copy reads %q", got)
	}
	none := []workbench.ToolRef{}
	if _, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Tools: &none}); err != nil {
		t.Fatal(err)
	}
	if got := s.mustRead(saved.ID); got != "gold" {
		t.Fatalf("after another revision the file reads %q", got)
	}
	d.unrule(t)
	for _, id := range []string{saved.ID, copied.Artifacts[0].ID} {
		_, err := s.c.ReadSessionArtifact(t.Context(), id)
		wantCode(t, err, workbench.CodeAccessDenied)
	}
	clean := other.mustUpload("own.txt", "mine")
	if got := other.mustRead(clean.ID); got != "mine" {
		t.Errorf("an upload reads %q", got)
	}
	d.rules(t, "access", allowAll)
	if got := s.mustRead(saved.ID); got != "gold" {
		t.Errorf("once the tool is allowed again the file reads %q", got)
	}
}

// Who opened a run's events before it began learns no more of it than who opens
// them now.
func TestEventsAreWithheldToo(t *testing.T) {
	d := mustDesk(t, nil)
	s := d.mustSession(t)
	wantEnd(t, s.mustPython(`open("plan.txt", "w").write(arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support").result["plan"])`), workbench.StatusSucceeded, workbench.ReasonNone)
	d.rules(t, "runs", `permit(principal, action == Action::"holdRun", resource); permit(principal, action == Action::"approveRun", resource);`)
	d.unrule(t)
	boss := d.mustKey(t, "acme", "boss", "read", "approve")
	id := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, Code: `print(open("plan.txt").read())`})
	approved := false
	var printed string
	var failed error
	for event, err := range s.c.Events(t.Context(), id, 0) {
		if failed = err; err != nil {
			break
		}
		printed += event.Text
		if !approved {
			approved = true
			d.restAs(t, boss, http.MethodPost, "/v1/workbench/runs/"+id+"/approve", map[string]any{}, http.StatusOK)
		}
	}
	wantCode(t, failed, workbench.CodeAccessDenied)
	if !approved || printed != "" {
		t.Errorf("approved %v, read %q", approved, printed)
	}
	if r := s.mustWait(id); r.Status != workbench.StatusSucceeded || r.Withheld == nil {
		t.Errorf("the run ended %s, withheld: %+v", r.Status, r.Withheld)
	}
}

// A later call may pass on what an earlier one gave: to whom that is withheld, so are
// its arguments and its answer, and the arguments of one that waits.
func TestReceiptsAreWithheldToo(t *testing.T) {
	d := mustDesk(t, nil)
	d.rest(t, http.MethodPut, "/v1/workbench/apps/secrets", map[string]any{"kind": "http", "config": map[string]any{
		"url": d.oracle.URL, "endpoints": []any{map[string]any{"name": "read", "method": "POST", "path": "/read", "inputSchema": map[string]any{"type": "object"}}}}}, http.StatusOK)
	const own = `permit(principal, action == Action::"call", resource in App::"your_app");`
	d.rules(t, "access", own+`permit(principal, action == Action::"call", resource in App::"secrets");`)
	d.oracle.answers(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/read" {
			_, _ = io.WriteString(w, `{"secret": "the plan"}`)
			return
		}
		_, _ = io.WriteString(w, `{"fine": true}`)
	})
	of := d.allowing()
	of.Tools = append(of.Tools, workbench.ToolRef{Name: "secrets.read", Version: "1"})
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), of)
	call := func(code string) string {
		t.Helper()
		r := s.mustPython(code)
		id := strings.TrimSpace(text(r.Stdout))
		if !strings.HasPrefix(id, "rcp_") {
			t.Fatalf("the run says %q (%s)", id, text(r.Stderr))
		}
		return id
	}
	const look = `r = arc0.call("your_app.lookup", {"query": open("kept").read()}, connection_alias="support"); print(r.id)`
	before := call(`open("kept", "w").write("nothing"); ` + look)
	learned := call(`r = arc0.call("secrets.read", {}); open("kept", "w").write(r.result["secret"]); print(r.id)`)
	after := call(look)
	d.rules(t, "approvals", strings.Replace(holdAll, "resource)", `resource in App::"your_app")`, 1))
	waits := call(look)
	ada, boss := d.mustKey(t, "acme", "ada", "read"), d.mustKey(t, "acme", "boss", "read", "approve")
	check := func(who, id string, args, result bool) {
		t.Helper()
		key := map[string]string{"ada": ada, "boss": boss}[who]
		got := d.restAs(t, key, http.MethodGet, "/v1/workbench/receipts/"+id, nil, http.StatusOK)
		if (got["arguments"] != nil) != args || (got["result"] != nil) != result || (got["withheld"] == nil) != (args || who == "boss" && id != waits) {
			t.Errorf("%s reads %v", who, got)
		}
	}
	for _, id := range []string{before, learned, after} {
		check("ada", id, true, true)
	}
	check("ada", waits, true, false)
	check("boss", waits, true, false)
	d.rules(t, "access", own)
	check("ada", before, true, true)
	got := d.restAs(t, ada, http.MethodGet, "/v1/workbench/receipts/"+learned, nil, http.StatusOK)
	if got["arguments"] == nil || got["result"] != nil || got["withheld"] == nil { // nothing was learned before it
		t.Errorf("ada reads %v", got)
	}
	check("ada", after, false, false)
	check("ada", waits, false, false)
	check("boss", waits, false, false)
	list := d.restAs(t, boss, http.MethodGet, "/v1/workbench/approvals", nil, http.StatusOK)["items"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["arguments"] != nil {
		t.Errorf("the list of what waits: %v", list)
	}
}

// An app that cannot be had with its new configuration stays as it was, and a tool that
// an app does not offer any more is said not to be there.
func TestAppStaysAsItWas(t *testing.T) {
	d := mustDesk(t, nil)
	s := d.mustSession(t)
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	got := d.rest(t, http.MethodPut, "/v1/workbench/apps/your_app", map[string]any{"kind": "mcp_http", "config": map[string]any{"url": dead.URL}}, http.StatusServiceUnavailable)
	if got["code"] != "tool_unavailable" || !strings.Contains(fmt.Sprint(got["hint"]), "stays as it was") {
		t.Errorf("the answer is %v", got)
	}
	wantOut(t, s.mustPython(`print(arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support").status)`), "succeeded\n")
	if app := d.rest(t, http.MethodGet, "/v1/workbench/apps/your_app", nil, http.StatusOK); app["kind"] != "http" || app["error"] != nil {
		t.Errorf("the app is %v", app)
	}
	d.rest(t, http.MethodPut, "/v1/workbench/apps/your_app", map[string]any{"kind": "http", "config": map[string]any{
		"url": d.oracle.URL, "endpoints": []any{map[string]any{"name": "other", "method": "POST", "path": "/", "inputSchema": map[string]any{"type": "object"}}}}}, http.StatusOK)
	wantOut(t, s.mustPython(`
try: arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support")
except arc0.WorkbenchError as e: print(e.code)
`), "tool_not_found\n")
}

// Rules are asked about calls that can be made.
func TestExplainOfWrongArguments(t *testing.T) {
	d := mustDesk(t, nil)
	s := d.mustSession(t)
	ask := func(args any, status int) map[string]any {
		return d.rest(t, http.MethodPost, "/v1/workbench/rules/explain", map[string]any{"session": s.id, "tool": "your_app.lookup@1", "connection": "support", "arguments": args}, status)
	}
	if got := ask(map[string]any{"query": 5}, http.StatusBadRequest); got["code"] != "arguments_invalid" || got["field"] != "arguments.query" {
		t.Errorf("the answer is %v", got)
	}
	if got := ask(map[string]any{"query": "5"}, http.StatusOK); got["outcome"] != "allowed" {
		t.Errorf("the answer is %v", got)
	}
}

// A session whose connection was revoked can be configured and forked: what is gone is
// told to code that uses it, and to who asks for it anew.
func TestConfigureWithARevokedConnection(t *testing.T) {
	d := mustDesk(t, nil)
	s := d.mustSession(t)
	wantEnd(t, s.mustPython(`open("a", "w").write("b")`), workbench.StatusSucceeded, workbench.ReasonNone)
	d.rest(t, http.MethodDelete, "/v1/workbench/connections/"+d.conn, nil, http.StatusOK)
	tools := d.allowing().Tools
	if _, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Tools: &tools}); err != nil {
		t.Error(err)
	}
	if _, err := s.c.ForkAgentSession(t.Context(), s.id, sdk.ForkSession{}); err != nil {
		t.Error(err)
	}
	wantOut(t, s.mustPython(`
try: arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support")
except arc0.WorkbenchError as e: print(e.code, "support" in e.detail)
`), "connection_not_found True\n")
	_, err := s.c.CreateAgentSession(t.Context(), d.allowing())
	wantCode(t, err, workbench.CodeConnectionNotFound)
	more := []string{"support", "other"}
	_, err = s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Connections: &more})
	wantCode(t, err, workbench.CodeConnectionNotFound)
}

// A tool's large answer is a file with a preview.
func TestLargeAnswer(t *testing.T) {
	d := mustDesk(t, func(o *server.Options) { o.SuspendAfter = time.Second })
	big := strings.Repeat("0123456789", 20_000)
	d.oracle.answers(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, big)
	})
	s := d.mustSession(t)
	r := s.mustPython(`
r = arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support")
print(r.status, r.resultBytes, len(r.preview) > 1000, r.artifactId)
`)
	out := strings.Fields(text(r.Stdout))
	if len(out) != 4 || out[0] != "succeeded" || out[1] != "200000" || out[2] != "True" {
		t.Fatalf("the receipt says %q (%s)", text(r.Stdout), text(r.Stderr))
	}
	if got := s.mustRead(out[3]); got != big {
		t.Errorf("the file has %d bytes", len(got))
	}
	// The first run after a suspension is in another sandbox than its session was read with.
	s.mustSuspended()
	r = s.mustPython(`print(arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support").artifactId)`)
	if got := s.mustRead(strings.TrimSpace(text(r.Stdout))); got != big {
		t.Errorf("after a suspension the file has %d bytes", len(got))
	}
	// An approved call is nobody's run.
	d.rules(t, "approvals", holdAll)
	boss := d.mustKey(t, "acme", "boss", "read", "approve")
	for _, when := range []string{"while it lives", "once it is suspended"} {
		id := d.asks(t, s, "2")
		if when != "while it lives" {
			s.mustSuspended()
		}
		d.restAs(t, boss, http.MethodPost, "/v1/workbench/receipts/"+id+"/approve", map[string]any{}, http.StatusOK)
		got := d.receipt(t, boss, id)
		file, _ := got["artifactId"].(string)
		if got["status"] != "succeeded" || file == "" || s.mustRead(file) != big {
			t.Errorf("%s, the approved call's receipt says %v, file %q, error %v", when, got["status"], file, got["error"])
		}
	}
}

func (l *logBuffer) whole() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.all)
}

// encoded is a secret as basic authentication would send it.
func encoded(secret string) string { return base64.StdEncoding.EncodeToString([]byte(secret)) }

// N7: a run can be held before it starts, and what was submitted behind it waits
// with it.
func TestHeldRun(t *testing.T) {
	d := mustDesk(t, nil)
	d.rules(t, "runs", `@why("new agents are looked at") permit(principal, action == Action::"holdRun", resource) when { resource.language == "bash" };
		permit(principal, action == Action::"approveRun", resource) unless { principal == context.requester };`)
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	boss := d.mustKey(t, "acme", "boss", "read", "approve")
	const heldCode = "echo first >order; echo approved"
	first := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: heldCode})
	second := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, Code: "print(open('order').read().strip())"})
	denied := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo never >order"})
	held, err := s.c.GetRun(t.Context(), first, 0)
	if err != nil || held.Status != workbench.StatusAwaitingApproval || held.Approval == nil || held.Approval.Why != "new agents are looked at" {
		t.Fatalf("the held run reads %+v (%v)", held.Run, err)
	}
	list := d.restAs(t, boss, http.MethodGet, "/v1/workbench/approvals/runs", nil, http.StatusOK)["items"].([]any)
	if len(list) != 2 || list[1].(map[string]any)["spec"].(map[string]any)["code"] != heldCode {
		t.Fatalf("what waits reads %v", list)
	}
	own := d.mustKey(t, "acme", "ada", "read", "approve")
	d.restAs(t, own, http.MethodPost, "/v1/workbench/runs/"+first+"/approve", map[string]any{}, http.StatusForbidden)
	d.restAs(t, boss, http.MethodPost, "/v1/workbench/runs/"+denied+"/deny", map[string]any{"reason": "no"}, http.StatusOK)
	if waiting, err := s.c.GetRun(t.Context(), second, 0); err != nil || waiting.Status != workbench.StatusQueued {
		t.Fatalf("what waits behind it is %s (%v)", waiting.Status, err)
	}
	d.restAs(t, boss, http.MethodPost, "/v1/workbench/runs/"+first+"/approve", map[string]any{}, http.StatusOK)
	wantOut(t, s.mustWait(first), "approved\n")
	wantOut(t, s.mustWait(second), "first\n")
	r := s.mustWait(denied)
	if r.Status != workbench.StatusRejected || r.Reason != workbench.ReasonApprovalDenied || r.Approval.Reason != "no" {
		t.Errorf("the denied run ended %s (%s)", r.Status, r.Reason)
	}
	d.restAs(t, boss, http.MethodPost, "/v1/workbench/runs/"+denied+"/approve", map[string]any{}, http.StatusConflict)
	// However its log is written: at once, with its end, or while it goes on.
	d.rules(t, "all", `permit(principal, action == Action::"holdRun", resource);`)
	for _, code := range []string{"pass", "print('at once')", "print('at once')", "print('now', flush=True); import time; time.sleep(0.3); print('later')"} {
		id := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, Code: code})
		d.restAs(t, boss, http.MethodPost, "/v1/workbench/runs/"+id+"/approve", map[string]any{}, http.StatusOK)
		if r := s.mustWait(id); r.Status != workbench.StatusSucceeded {
			t.Errorf("%s ended %s (%s): %s", code, r.Status, r.Reason, r.Message)
		}
	}
}

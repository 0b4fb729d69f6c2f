package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// provider gives access tokens, as OAuth 2 has it, and is the tool that takes
// them: those alone that have not been withdrawn. A refresh token is good once.
type provider struct {
	*httptest.Server
	mu       sync.Mutex
	secret   string // the client's
	expires  int    // seconds, of access tokens
	broken   bool   // the token endpoint
	good     map[string]bool
	refresh  string
	given    []string // secrets that were given out
	grants   []string // kinds, in order
	reused   int      // refresh tokens that had been used
	executed int
}

func mustProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{secret: "canary-client-0", expires: 3600, good: map[string]bool{}, refresh: "canary-refresh-0"}
	p.given = []string{p.secret, p.refresh}
	mux := http.NewServeMux()
	mux.HandleFunc("/token", p.token)
	mux.HandleFunc("/lookup", p.lookup)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

func (p *provider) token(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, secret, _ := r.BasicAuth()
	kind := r.PostFormValue("grant_type")
	w.Header().Set("Content-Type", "application/json")
	refuse := func(status int, code string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": code, "error_description": "you sent " + secret + " and " + r.PostFormValue("refresh_token")})
	}
	switch {
	case p.broken:
		refuse(http.StatusInternalServerError, "server_error")
		return
	case secret != p.secret:
		refuse(http.StatusUnauthorized, "invalid_client")
		return
	case kind == "refresh_token" && r.PostFormValue("refresh_token") != p.refresh:
		p.reused++
		refuse(http.StatusBadRequest, "invalid_grant")
		return
	}
	p.grants = append(p.grants, kind)
	access := fmt.Sprintf("canary-access-%d", len(p.grants))
	p.good[access] = true
	answer := map[string]any{"access_token": access, "token_type": "bearer", "expires_in": p.expires}
	if kind == "refresh_token" {
		p.refresh = fmt.Sprintf("canary-refresh-%d", len(p.grants))
		answer["refresh_token"] = p.refresh
		p.given = append(p.given, p.refresh)
	}
	p.given = append(p.given, access)
	_ = json.NewEncoder(w).Encode(answer)
}

func (p *provider) lookup(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	access := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	w.Header().Set("Content-Type", "application/json")
	if !p.good[access] {
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": access + " is not good"})
		return
	}
	p.executed++
	_ = json.NewEncoder(w).Encode(map[string]string{"token": access, "encoded": encoded(access), "secret": p.secret})
}

func (p *provider) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// want fails unless the step takes so many tokens and executes so many calls, and
// no refresh token is used twice.
func (p *provider) want(t *testing.T, step string, tokens, calls int, do func()) {
	t.Helper()
	p.mu.Lock()
	tokens, calls = len(p.grants)+tokens, p.executed+calls
	p.mu.Unlock()
	do()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.grants) != tokens || p.executed != calls || p.reused != 0 {
		t.Errorf("%s: %d tokens and %d calls in all, want %d and %d; %d refresh tokens were used again", step, len(p.grants), p.executed, tokens, calls, p.reused)
	}
}

// Tokens of OAuth 2 are got, renewed and given up by the server, and are seen
// nowhere.
func TestOAuth(t *testing.T) {
	t.Parallel() // it waits more than it works
	t.Run("client credentials", func(t *testing.T) { oauth(t, "oauth2_client_credentials") })
	t.Run("refresh token", func(t *testing.T) { oauth(t, "oauth2_refresh_token") })
}

func oauth(t *testing.T, kind string) {
	p := mustProvider(t)
	dir := t.TempDir()
	w, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	shut := func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}
	defer func() { shut() }()
	w.rules(t, "access", allowAll)
	w.mustTools(t, "oauth", map[string]any{"kind": "http", "needsConnection": true, "config": map[string]any{"url": p.URL, "endpoints": []any{map[string]any{
		"name": "lookup", "method": "GET", "path": "/lookup", "inputSchema": map[string]any{"type": "object"}}}}})
	credentials := func() map[string]any {
		p.mu.Lock()
		defer p.mu.Unlock()
		out := map[string]any{"tokenUrl": p.URL + "/token", "clientId": "workbench", "clientSecret": p.secret}
		if kind == "oauth2_refresh_token" {
			out["refreshToken"] = p.refresh
		}
		return out
	}
	conn := w.rest(t, http.MethodPost, "/v1/workbench/connections", map[string]any{"alias": "api", "provider": "oauth", "auth": kind, "credentials": credentials()}, http.StatusCreated)["id"].(string)
	made, err := w.mustUser(t, "acme", "ada").CreateAgentSession(t.Context(), sdk.CreateSession{Tools: refs("oauth.lookup"), Connections: []string{"api"}})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, c: w.mustUser(t, "acme", "ada"), id: made.ID}
	seen := map[string]string{}
	calls := func(n int, want string) {
		t.Helper()
		r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Keep: []string{"**"}, Code: fmt.Sprintf(`
import threading
def one():
    try:
        r = arc0.call("oauth.lookup", {}, connection_alias="api")
        print(r.status, r.error and r.error["code"], r, "\n", end="")
    except arc0.WorkbenchError as e: print(e.code, None, e, "\n", end="")
threads = [threading.Thread(target=one) for i in range(%d)]
for t in threads:
    t.start()
    if %d < 4: t.join()
for t in threads: t.join()
open("kept", "w").write("kept")
`, n, n)})
		lines := strings.Split(strings.TrimSpace(text(r.Stdout)), "\n")
		for _, line := range lines {
			if !strings.HasPrefix(line, want+" ") {
				t.Errorf("a call ends %q, want %s", line, want)
			}
		}
		if len(lines) != n {
			t.Errorf("%d calls ended: %s", len(lines), text(r.Stderr))
		}
		seen["output "+r.ID] = text(r.Stdout) + text(r.Stderr)
	}
	p.want(t, "the first token serves two calls", 1, 2, func() { calls(2, "succeeded None") })
	p.want(t, "many calls at once", 0, 8, func() { calls(8, "succeeded None") })
	p.set(func() { clear(p.good); p.expires = 1 })
	p.want(t, "a token that the tool does not take any more", 0, 0, func() { calls(1, "failed tool_failed") })
	p.want(t, "is not used again, and what has expired is renewed", 2, 2, func() { calls(2, "succeeded None") })
	p.set(func() { p.broken = true })
	p.want(t, "a token endpoint that fails", 0, 0, func() { calls(1, "failed tool_unavailable") })
	p.set(func() { p.broken, p.expires = false, 3600 })
	p.want(t, "and is there again, for many at once", 1, 8, func() { calls(8, "succeeded None") })

	shut()
	if w, err = open(dir, nil); err != nil {
		t.Fatal(err)
	}
	s.c = w.mustUser(t, "acme", "ada")
	p.want(t, "after the server's restart", 1, 1, func() { calls(1, "succeeded None") })

	p.set(func() {
		p.secret = "canary-client-1"
		p.refresh = "canary-refresh-of-1"
		p.given = append(p.given, p.secret, p.refresh)
	})
	w.rest(t, http.MethodPost, "/v1/workbench/connections/"+conn+"/rotate", map[string]any{"credentials": credentials()}, http.StatusOK)
	p.want(t, "the next call after a rotation has a token of the new credentials", 1, 1, func() { calls(1, "succeeded None") })
	w.rest(t, http.MethodDelete, "/v1/workbench/connections/"+conn, nil, http.StatusOK)
	p.want(t, "after the revocation", 0, 0, func() {
		r := s.mustPython(`arc0.call("oauth.lookup", {}, connection_alias="api")`)
		if r.Status != workbench.StatusFailed || r.Withheld == nil { // what came of the connection before is in the session
			t.Errorf("the run ended %s, its output is withheld: %v", r.Status, r.Withheld)
		}
		last := w.rest(t, http.MethodGet, "/v1/workbench/receipts?limit=1", nil, http.StatusOK)["items"].([]any)[0].(map[string]any)
		if e, _ := last["error"].(map[string]any); e["code"] != "connection_not_found" {
			t.Errorf("the call ended %v", last)
		}
	})

	p.mu.Lock()
	secrets := p.given
	p.mu.Unlock()
	w.wantNoSecret(t, seen, secrets...)
	if !strings.Contains(fmt.Sprint(seen), "[redacted]") {
		t.Error("nothing was struck out of what the tool said")
	}
}

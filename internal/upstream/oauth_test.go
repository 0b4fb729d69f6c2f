package upstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// tokenEndpoint is an OAuth token endpoint.
type tokenEndpoint struct {
	*httptest.Server
	mu      sync.Mutex
	asked   []string // what the client says, in short
	given   int
	rotates bool
	formed  bool // takes the client's secret in the form alone
	expires int
	refuse  string // status and body
	refresh string // that it takes
	hold    chan struct{}
}

func mustTokenEndpoint(t *testing.T) *tokenEndpoint {
	t.Helper()
	e := &tokenEndpoint{expires: 3600, refresh: "refresh-0"}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func (e *tokenEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	user, pass, basic := r.BasicAuth()
	e.mu.Lock()
	hold := e.hold
	e.mu.Unlock()
	if hold != nil {
		<-hold
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, fmt.Sprintf("%s %s %s %t", r.Form.Get("grant_type"), r.Form.Get("refresh_token"), r.Form.Get("scope"), basic))
	w.Header().Set("Content-Type", "application/json")
	if basic { // RFC 6749, 2.3.1
		user, _ = url.QueryUnescape(user)
		pass, _ = url.QueryUnescape(pass)
	} else {
		user, pass = r.Form.Get("client_id"), r.Form.Get("client_secret")
	}
	switch {
	case e.refuse != "":
		status, body, _ := strings.Cut(e.refuse, " ")
		code := 0
		_, _ = fmt.Sscan(status, &code)
		w.WriteHeader(code)
		fmt.Fprint(w, body)
		return
	case user != "client-1" || pass != canary || basic == e.formed:
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error":"invalid_client","error_description":"not `+pass+`"}`)
		return
	case r.Form.Get("grant_type") == "refresh_token" && r.Form.Get("refresh_token") != e.refresh:
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"invalid_grant"}`)
		return
	}
	e.given++
	answer := map[string]any{"access_token": fmt.Sprintf("cnry-S3cret-access-%d", e.given), "token_type": "bearer"}
	if e.expires > 0 {
		answer["expires_in"] = e.expires
	}
	if e.rotates {
		e.refresh = fmt.Sprintf("refresh-%d", e.given)
		answer["refresh_token"] = e.refresh
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (e *tokenEndpoint) requests() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.asked...)
}

func (e *tokenEndpoint) grant(kind workbench.AuthKind) *upstream.Grant {
	return &upstream.Grant{ConnectionID: "con_1", Version: 1, Auth: kind, Credentials: workbench.Credentials{
		TokenURL: e.URL, ClientID: "client-1", ClientSecret: canary, RefreshToken: "refresh-0", Scopes: []string{"read", "write"},
	}}
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) time() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }
func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestAccessTokensAreKeptUntilTheyExpire(t *testing.T) {
	o, e := mustOracle(t), mustTokenEndpoint(t)
	at := &clock{now: time.Now()}
	w := mustWorld(t, upstream.Options{Clock: at.time})
	app := httpApp(o.URL, "/echo-secret", "/x")
	tools := w.mustTools(app, nil)
	g := e.grant(workbench.AuthOAuthClient)
	for range 3 {
		a, err := w.ask(t.Context(), app, tools["GET/echo-secret"], `{}`, g)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(a.Result), "access-") {
			t.Errorf("the access token is told: %s", a.Result)
		}
	}
	if got := e.requests(); len(got) != 1 || got[0] != "client_credentials  read write true" {
		t.Errorf("the endpoint was asked %q", got)
	}
	at.pass(3595 * time.Second)
	if _, err := w.ask(t.Context(), app, tools["GET/x"], `{}`, g); err != nil {
		t.Fatal(err)
	}
	if r, _ := o.last(); r.Header.Get("Authorization") != "Bearer cnry-S3cret-access-2" {
		t.Errorf("sent %q", r.Header.Get("Authorization"))
	}
	w.Forget("con_1")
	if _, err := w.ask(t.Context(), app, tools["GET/x"], `{}`, g); err != nil {
		t.Fatal(err)
	}
	if got := len(e.requests()); got != 3 {
		t.Errorf("the endpoint was asked %d times, want 3", got)
	}
}

func TestATokenThatTheToolDoesNotTakeIsNotUsedAgain(t *testing.T) {
	o, e := mustOracle(t), mustTokenEndpoint(t)
	w := mustWorld(t, upstream.Options{})
	app := httpApp(o.URL, "/401", "/x")
	tools := w.mustTools(app, nil)
	g := e.grant(workbench.AuthOAuthClient)
	_, err := w.ask(t.Context(), app, tools["POST/401"], `{}`, g)
	w.mustFail(err, workbench.CodeToolFailed, false)
	if o.count("/401") != 1 {
		t.Error("the tool was asked again")
	}
	if _, err := w.ask(t.Context(), app, tools["POST/x"], `{}`, g); err != nil {
		t.Fatal(err)
	}
	if r, _ := o.last(); r.Header.Get("Authorization") != "Bearer cnry-S3cret-access-2" {
		t.Errorf("sent %q", r.Header.Get("Authorization"))
	}
}

func TestConcurrentRefreshesAreOne(t *testing.T) {
	o, e := mustOracle(t), mustTokenEndpoint(t)
	e.rotates = true
	e.hold = make(chan struct{})
	var mu sync.Mutex
	var kept []string
	w := mustWorld(t, upstream.Options{Rotated: func(_ context.Context, id string, version int64, c workbench.Credentials) error {
		mu.Lock()
		defer mu.Unlock()
		kept = append(kept, fmt.Sprintf("%s %d %s %s", id, version, c.RefreshToken, c.ClientID))
		return nil
	}})
	app := httpApp(o.URL, "/x")
	tool := w.mustTools(app, nil)["POST/x"]
	g := e.grant(workbench.AuthOAuthRefresh)
	errs := make(chan error, 20)
	given, giveUp := context.WithCancel(t.Context())
	go func() {
		_, err := w.Call(given, app, tool, nil, g)
		errs <- err
	}()
	for range 19 {
		go func() {
			_, err := w.Call(t.Context(), app, tool, nil, g)
			errs <- err
		}()
	}
	giveUp() // the one that began the exchange, perhaps: it goes on for the others
	if err := <-errs; !workbench.HasCode(err, workbench.CodeCancelled) || upstream.Uncertain(err) {
		t.Errorf("who gave up: %v", err)
	}
	close(e.hold)
	for range 19 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := e.requests(); len(got) != 1 || got[0] != "refresh_token refresh-0  true" {
		t.Errorf("the endpoint was asked %q", got)
	}
	if o.count("/x") != 19 {
		t.Errorf("the tool was asked %d times", o.count("/x"))
	}
	mu.Lock()
	defer mu.Unlock()
	if len(kept) != 1 || kept[0] != "con_1 1 refresh-1 client-1" {
		t.Errorf("kept %q", kept)
	}
}

func TestARotatedRefreshTokenIsUsedNext(t *testing.T) {
	o, e := mustOracle(t), mustTokenEndpoint(t)
	e.rotates = true
	at := &clock{now: time.Now()}
	w := mustWorld(t, upstream.Options{Clock: at.time, Rotated: func(context.Context, string, int64, workbench.Credentials) error {
		return errors.New("the store is away: " + canary)
	}})
	app := httpApp(o.URL, "/x")
	tool := w.mustTools(app, nil)["POST/x"]
	g := e.grant(workbench.AuthOAuthRefresh) // as stored: the store was away
	for range 3 {
		if _, err := w.ask(t.Context(), app, tool, `{}`, g); err != nil {
			t.Fatal(err)
		}
		at.pass(2 * time.Hour)
	}
	want := []string{"refresh_token refresh-0  true", "refresh_token refresh-1  true", "refresh_token refresh-2  true"}
	if got := e.requests(); strings.Join(got, ";") != strings.Join(want, ";") {
		t.Errorf("the endpoint was asked %q", got)
	}
	if !strings.Contains(w.log.String(), "a new refresh token was not kept") {
		t.Error("nobody hears that it was not kept")
	}
}

// A refresh token that took the place of another is kept under the next version of
// the credentials, which goes on with the access token that came with it.
func TestTheNextVersionGoesOnWithItsToken(t *testing.T) {
	o, e := mustOracle(t), mustTokenEndpoint(t)
	e.rotates = true
	at := &clock{now: time.Now()}
	var kept []string
	w := mustWorld(t, upstream.Options{Clock: at.time, Rotated: func(_ context.Context, _ string, version int64, c workbench.Credentials) error {
		kept = append(kept, fmt.Sprintf("%d %s", version, c.RefreshToken))
		return nil
	}})
	app := httpApp(o.URL, "/x")
	tool := w.mustTools(app, nil)["POST/x"]
	old, next := e.grant(workbench.AuthOAuthRefresh), e.grant(workbench.AuthOAuthRefresh)
	next.Version, next.Credentials.RefreshToken = 2, "refresh-1"
	ask := func(g *upstream.Grant) {
		t.Helper()
		if _, err := w.ask(t.Context(), app, tool, `{}`, g); err != nil {
			t.Fatal(err)
		}
	}
	ask(old)
	ask(next)
	ask(old) // decided before the rotation
	if n := len(e.requests()); n != 1 {
		t.Errorf("the endpoint was asked %d times for one token", n)
	}
	at.pass(2 * time.Hour)
	ask(old) // also: its credentials' own refresh token is spent
	ask(next)
	if want := []string{"1 refresh-1", "2 refresh-2"}; strings.Join(kept, ";") != strings.Join(want, ";") || len(e.requests()) != 2 {
		t.Errorf("what is kept is %q after %q", kept, e.requests())
	}
}

func TestAnEndpointThatTakesTheSecretInTheForm(t *testing.T) {
	o, e := mustOracle(t), mustTokenEndpoint(t)
	e.formed = true
	e.expires = 1
	w := mustWorld(t, upstream.Options{})
	app := httpApp(o.URL, "/x")
	tool := w.mustTools(app, nil)["POST/x"]
	for range 2 {
		if _, err := w.ask(t.Context(), app, tool, `{}`, e.grant(workbench.AuthOAuthClient)); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(e.requests()); got != 3 { // once in vain
		t.Errorf("the endpoint was asked %d times, want 3", got)
	}
}

func TestAnEndpointThatRefuses(t *testing.T) {
	for _, c := range []struct {
		name, refuse, detail string
		change               func(*upstream.Grant)
		code                 workbench.Code
	}{
		{"the grant", `400 {"error":"invalid_grant","error_description":"` + canary + `"}`, "answered 400 (invalid_grant)", nil, workbench.CodeToolUnavailable},
		{"in its own words", `400 {"error":"` + canary + `"}`, "answered 400", nil, workbench.CodeToolUnavailable},
		{"the client", "", "answered 401 (invalid_client)", func(g *upstream.Grant) { g.Credentials.ClientID = "other" }, workbench.CodeToolUnavailable},
		{"broken", `503 ` + canary, "answered 503", nil, workbench.CodeToolUnavailable},
		{"elsewhere", `302 `, "answered 302", nil, workbench.CodeToolUnavailable},
		{"no token", `200 {}`, "gave no access token", nil, workbench.CodeToolUnavailable},
		{"not JSON", `200 <` + canary, "gave no access token", nil, workbench.CodeToolUnavailable},
		{"nobody", "", "was not reached", func(g *upstream.Grant) { g.Credentials.TokenURL = "http://127.0.0.1:1/" }, workbench.CodeToolUnavailable},
		{"no URL", "", "name no token endpoint", func(g *upstream.Grant) { g.Credentials.TokenURL = "" }, workbench.CodeToolUnavailable},
		{"not https", "", "not https", func(g *upstream.Grant) { g.Credentials.TokenURL = "http://api.example.com/token" }, workbench.CodeConnectionRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, e := mustOracle(t), mustTokenEndpoint(t)
			e.refuse = c.refuse
			w := mustWorld(t, upstream.Options{})
			g := e.grant(workbench.AuthOAuthRefresh)
			if c.change != nil {
				c.change(g)
			}
			app := httpApp(o.URL, "/x")
			_, err := w.ask(t.Context(), app, w.mustTools(app, nil)["POST/x"], `{}`, g)
			if got := w.mustFail(err, c.code, false); !strings.Contains(got.Detail, c.detail) {
				t.Errorf("detail %q, want %q in it", got.Detail, c.detail)
			}
			if o.count("/x") != 0 {
				t.Error("the tool was asked")
			}
		})
	}
}

func TestOAuthForMCP(t *testing.T) {
	o, e := mustMCPOracle(t), mustTokenEndpoint(t)
	w := mustWorld(t, upstream.Options{})
	app := mcpApp(o.URL)
	g := e.grant(workbench.AuthOAuthClient)
	a, err := w.ask(t.Context(), app, w.mustTools(app, g)["echo-auth"], ``, g)
	if err != nil || string(a.Result) != `{"got":"Bearer [redacted]"}` {
		t.Errorf("%s, %v", a.Result, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, got := range o.auth {
		if got != "Bearer cnry-S3cret-access-1" {
			t.Errorf("sent %q", got)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.given != 1 {
		t.Errorf("%d tokens were given", e.given)
	}
}

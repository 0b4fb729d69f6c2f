package upstream_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// oracle is a server that counts what was done, and does as the path says.
type oracle struct {
	*httptest.Server
	t       *testing.T
	mu      sync.Mutex
	done    map[string]int // by path
	seen    []*http.Request
	bodies  []string
	release chan struct{}
}

func mustOracle(t *testing.T) *oracle {
	t.Helper()
	o := &oracle{t: t, done: map[string]int{}, release: make(chan struct{})}
	o.Server = httptest.NewServer(http.HandlerFunc(o.serve))
	t.Cleanup(func() {
		close(o.release)
		o.CloseClientConnections()
		o.Close()
	})
	return o
}

func (o *oracle) count(path string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done[path]
}

func (o *oracle) asked() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.seen)
}

func (o *oracle) last() (*http.Request, string) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.seen) == 0 {
		o.t.Fatal("nothing was asked")
	}
	return o.seen[len(o.seen)-1], o.bodies[len(o.bodies)-1]
}

func (o *oracle) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	o.mu.Lock()
	o.done[r.URL.Path]++
	n := o.done[r.URL.Path]
	o.seen, o.bodies = append(o.seen, r), append(o.bodies, string(body))
	o.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/hang":
		select {
		case <-o.release:
		case <-r.Context().Done():
		}
	case "/500":
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, "it broke after ", r.Header.Get("Authorization"))
	case "/404":
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":"no such thing"}`)
	case "/401":
		w.WriteHeader(http.StatusUnauthorized)
	case "/429":
		w.WriteHeader(http.StatusTooManyRequests)
	case "/cut":
		o.cut(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"half\":")
	case "/cut-before":
		o.cut(w, "")
	case "/twice":
		o.cut(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n1HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n2")
	case "/second-is-cut":
		if n > 1 {
			o.cut(w, "")
			return
		}
		fmt.Fprint(w, `"first"`)
	case "/big":
		for range 100 * 16 {
			if _, err := w.Write([]byte(strings.Repeat("x", 64*1024))); err != nil {
				return
			}
		}
	case "/bomb":
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		zeros := make([]byte, 1<<20)
		for range 1000 {
			if _, err := z.Write(zeros); err != nil {
				return
			}
		}
		_ = z.Close()
	case "/drip":
		for {
			select {
			case <-o.release:
				return
			case <-r.Context().Done():
				return
			case <-time.After(5 * time.Millisecond):
				fmt.Fprint(w, " ")
				w.(http.Flusher).Flush()
			}
		}
	case "/text":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, "<p>h\xffi</p>")
	case "/binary":
		w.Header().Set("Content-Type", "image/png")
		_, _ = w.Write([]byte{0x89, 'P', 'N', 'G', 0})
	case "/empty":
		w.WriteHeader(http.StatusNoContent)
	case "/echo-secret":
		echoSecret(w, r)
	default:
		fmt.Fprintf(w, `{"path":%q,"n":12345678901234567890,"f":1.50}`, r.URL.EscapedPath())
	}
}

// cut answers with raw bytes and closes the connection.
func (o *oracle) cut(w http.ResponseWriter, raw string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		o.t.Error(err)
		return
	}
	_, _ = io.WriteString(conn, raw)
	_ = conn.Close()
}

// echoSecret says the credentials that it got, in every way.
func echoSecret(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	w.Header().Set("X-Secret", token)
	forms := []string{
		token, url.QueryEscape(token), hex.EncodeToString([]byte(token)), strings.ToUpper(hex.EncodeToString([]byte(token))),
		base64.StdEncoding.EncodeToString([]byte(token)), base64.RawURLEncoding.EncodeToString([]byte("u:" + token)),
		strings.ReplaceAll(token, "/", `\/`), r.Header.Get("Authorization"),
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"forms": forms, token: 1})
}

// httpApp is an app of one endpoint for each path of the oracle.
func httpApp(base string, paths ...string) workbench.App {
	app := workbench.App{ProjectID: "prj_1", Name: "web", Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: base, TimeoutMs: 60_000}}
	for _, p := range paths {
		for _, method := range []string{"GET", "POST"} {
			app.Config.Endpoints = append(app.Config.Endpoints, workbench.Endpoint{
				Name: method + p, Method: method, Path: p, InputSchema: json.RawMessage(`{"type":"object"}`),
			})
		}
	}
	return app
}

func TestWhatBecomesOfACall(t *testing.T) {
	for _, c := range []struct {
		path      string
		code      workbench.Code
		uncertain bool
		detail    string
	}{
		{"/hang", workbench.CodeToolTimeout, true, "did not answer in time"},
		{"/drip", workbench.CodeToolTimeout, true, "did not answer in time"},
		{"/500", workbench.CodeToolFailed, true, "answered 500; it may have been done: it broke after Bearer [redacted]"},
		{"/404", workbench.CodeToolFailed, false, `answered 404: {"error":"no such thing"}`},
		{"/401", workbench.CodeToolFailed, false, "answered 401"},
		{"/429", workbench.CodeToolFailed, false, "answered 429"},
		{"/cut", workbench.CodeToolUnavailable, true, "was cut"},
		{"/cut-before", workbench.CodeToolUnavailable, true, "was cut"},
		{"/big", workbench.CodeResultTooLarge, true, "8388608 bytes"},
		{"/bomb", workbench.CodeResultTooLarge, true, "8388608 bytes"},
	} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(method+c.path, func(t *testing.T) {
				t.Parallel()
				o := mustOracle(t)
				w := mustWorld(t, upstream.Options{})
				app := httpApp(o.URL, c.path)
				if c.code == workbench.CodeToolTimeout {
					app.Config.TimeoutMs = 3000
				}
				tool := w.mustTools(app, nil)[method+c.path]
				_, err := w.ask(t.Context(), app, tool, `{}`, bearer())
				e := w.mustFail(err, c.code, c.uncertain)
				if !strings.Contains(e.Detail, c.detail) {
					t.Errorf("detail %q, want %q in it", e.Detail, c.detail)
				}
				if n := o.count(c.path); n != 1 {
					t.Errorf("it was done %d times, want once", n)
				}
			})
		}
	}
}

func TestAnAnswerIsNotKeptWhereItIsTooLarge(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	app := httpApp(o.URL, "/bomb")
	tool := w.mustTools(app, nil)["GET/bomb"]
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, err := w.ask(t.Context(), app, tool, ``, nil)
	w.mustFail(err, workbench.CodeResultTooLarge, true)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 100<<20 {
		t.Errorf("an answer of 1000 MiB took %d MiB", grown>>20)
	}
}

func TestAnswers(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	app := httpApp(o.URL, "/json", "/text", "/binary", "/empty", "/twice")
	tools := w.mustTools(app, nil)
	for _, c := range []struct{ tool, result, binary, mime string }{
		{"GET/json", `{"path":"/json","n":12345678901234567890,"f":1.50}`, "", ""},
		{"GET/text", `"<p>h�i</p>"`, "", ""},
		{"POST/binary", `null`, "\x89PNG\x00", "image/png"},
		{"POST/empty", `null`, "", ""},
		{"GET/twice", `1`, "", ""},
		{"POST/twice", `1`, "", ""},
	} {
		a, err := w.ask(t.Context(), app, tools[c.tool], ``, nil)
		if err != nil || string(a.Result) != c.result || string(a.Binary) != c.binary || a.MimeType != c.mime || a.Failed {
			t.Errorf("%s: %s, %q of %s (%v), want %s, %q of %s", c.tool, a.Result, a.Binary, a.MimeType, err, c.result, c.binary, c.mime)
		}
	}
}

func TestNothingIsAskedTwice(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		t.Run("a kept connection breaks under a "+method, func(t *testing.T) {
			o := mustOracle(t)
			w := mustWorld(t, upstream.Options{})
			app := httpApp(o.URL, "/second-is-cut")
			tool := w.mustTools(app, nil)[method+"/second-is-cut"]
			if _, err := w.ask(t.Context(), app, tool, `{}`, nil); err != nil {
				t.Fatal(err)
			}
			_, err := w.ask(t.Context(), app, tool, `{}`, nil)
			w.mustFail(err, workbench.CodeToolUnavailable, true)
			if n := o.count("/second-is-cut"); n != 2 {
				t.Errorf("two calls were done %d times", n)
			}
		})
	}
	t.Run("an idle connection is closed by the server", func(t *testing.T) {
		o := mustOracle(t)
		w := mustWorld(t, upstream.Options{})
		app := httpApp(o.URL, "/x")
		tool := w.mustTools(app, nil)["POST/x"]
		for range 20 {
			if _, err := w.ask(t.Context(), app, tool, `{}`, nil); err != nil && !upstream.Uncertain(err) {
				t.Fatal(err)
			}
			o.CloseClientConnections()
		}
		if n := o.count("/x"); n > 20 {
			t.Errorf("20 calls were done %d times", n)
		}
	})
}

func TestGivingUp(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	app := httpApp(o.URL, "/hang")
	tool := w.mustTools(app, nil)["POST/hang"]

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := w.ask(ctx, app, tool, `{}`, nil)
	w.mustFail(err, workbench.CodeCancelled, false)

	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		for o.count("/hang") == 0 {
			runtime.Gosched()
		}
		cancel()
	}()
	_, err = w.ask(ctx, app, tool, `{}`, nil)
	w.mustFail(err, workbench.CodeCancelled, true)

	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = w.ask(ctx, app, tool, `{}`, nil)
	w.mustFail(err, workbench.CodeToolTimeout, true)

	done := make(chan error, 1)
	go func() {
		_, err := w.Call(t.Context(), app, tool, nil, bearer())
		done <- err
	}()
	for o.count("/hang") < 3 {
		runtime.Gosched()
	}
	w.Forget("con_1")
	w.mustFail(<-done, workbench.CodeToolUnavailable, true)
}

func TestNobodyIsReached(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := "http://" + listener.Addr().String()
	_ = listener.Close()
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	tls.Config.ErrorLog = nil
	defer tls.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	w := mustWorld(t, upstream.Options{})
	for _, c := range []struct{ name, url, detail string }{
		{"refused", refusing, "it refuses connections"},
		{"unknown name", "http://no-such-host.invalid", "not reached"},
		{"unknown certificate", tls.URL, "its certificate is not accepted"},
		{"not TLS", strings.Replace(plain.URL, "http:", "https:", 1), "not reached"},
	} {
		app := httpApp(c.url, "/x")
		_, err := w.ask(t.Context(), app, w.mustTools(app, nil)["POST/x"], `{}`, nil)
		if e := w.mustFail(err, workbench.CodeToolUnavailable, false); !strings.Contains(e.Detail, c.detail) {
			t.Errorf("%s: %q, want %q in it", c.name, e.Detail, c.detail)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	var stolen []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		stolen = append(stolen, r.Header.Get("Authorization"))
	}))
	defer thief.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		from := httptest.NewServer(http.RedirectHandler(thief.URL+"/"+canary, status))
		w := mustWorld(t, upstream.Options{})
		for _, app := range []workbench.App{httpApp(from.URL, "/x"), {ProjectID: "prj_1", Name: "mcp", Kind: workbench.AppMCPHTTP, Config: workbench.AppConfig{URL: from.URL}}} {
			if app.Kind == workbench.AppMCPHTTP {
				_, err := w.Import(t.Context(), app, bearer())
				w.mustFail(err, workbench.CodeToolUnavailable, false)
				continue
			}
			for _, name := range []string{"GET/x", "POST/x"} {
				_, err := w.ask(t.Context(), app, w.mustTools(app, nil)[name], `{}`, bearer())
				if e := w.mustFail(err, workbench.CodeToolFailed, false); e.Hint == "" {
					t.Error("no hint")
				}
			}
		}
		from.Close()
	}
	if len(stolen) > 0 {
		t.Errorf("the other host was asked, with %q", stolen)
	}
}

func TestCredentialsGoToTheirHostsAlone(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	host := strings.TrimPrefix(o.URL, "http://")
	for _, c := range []struct {
		name  string
		app   workbench.App
		hosts []string
		ok    bool
	}{
		{"the app's own", httpApp(o.URL, "/x"), nil, true},
		{"named", httpApp(o.URL, "/x"), []string{"api.example.com", "127.0.0.1"}, true},
		{"named with a port", httpApp(o.URL, "/x"), []string{host}, true},
		{"another", httpApp(o.URL, "/x"), []string{"api.example.com"}, false},
		{"another port", httpApp(o.URL, "/x"), []string{"127.0.0.1:1"}, false},
		{"a suffix", httpApp(o.URL, "/x"), []string{"0.0.1"}, false},
		{"not https", httpApp("http://api.example.invalid", "/x"), nil, false},
		{"MCP, another", workbench.App{ProjectID: "prj_1", Name: "mcp", Kind: workbench.AppMCPHTTP, Config: workbench.AppConfig{URL: o.URL}}, []string{"api.example.com"}, false},
	} {
		before := o.asked()
		g := bearer()
		g.Hosts = c.hosts
		var err error
		if c.app.Kind == workbench.AppMCPHTTP {
			_, err = w.Import(t.Context(), c.app, g)
		} else {
			_, err = w.ask(t.Context(), c.app, w.mustTools(c.app, nil)["GET/x"], `{}`, g)
		}
		if c.ok {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		w.mustFail(err, workbench.CodeConnectionRefused, false)
		if o.asked() != before {
			t.Errorf("%s: something was sent", c.name)
		}
	}
}

func TestHowCredentialsAreSent(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	app := httpApp(o.URL, "/x")
	app.Config.Endpoints = append(app.Config.Endpoints, workbench.Endpoint{
		Name: "mine", Method: "GET", Path: "/x", InputSchema: json.RawMessage(`{"type":"object"}`), In: map[string]string{"X-Api-Key": "header"},
	})
	tools := w.mustTools(app, nil)
	for _, c := range []struct {
		auth           workbench.AuthKind
		with           workbench.Credentials
		header, value  string
		tool, argument string
	}{
		{workbench.AuthBearer, workbench.Credentials{Token: "abcd"}, "Authorization", "Bearer abcd", "GET/x", `{}`},
		{workbench.AuthBasic, workbench.Credentials{Username: "ann", Password: "pass"}, "Authorization", "Basic YW5uOnBhc3M=", "GET/x", `{}`},
		{workbench.AuthHeader, workbench.Credentials{Header: "X-Api-Key", Value: "key1"}, "X-Api-Key", "key1", "GET/x", `{}`},
		{workbench.AuthHeader, workbench.Credentials{Header: "X-Api-Key", Value: "key1"}, "X-Api-Key", "key1", "mine", `{"X-Api-Key":"forged"}`},
	} {
		g := &upstream.Grant{ConnectionID: "con_1", Version: 1, Auth: c.auth, Credentials: c.with}
		if _, err := w.ask(t.Context(), app, tools[c.tool], c.argument, g); err != nil {
			t.Fatal(err)
		}
		r, _ := o.last()
		if got := r.Header.Values(c.header); len(got) != 1 || got[0] != c.value {
			t.Errorf("%s: sent %q, want %q", c.auth, got, c.value)
		}
		if strings.Contains(r.URL.String(), "abcd") {
			t.Error("credentials in the URL")
		}
	}
	for _, bad := range []*upstream.Grant{
		{ConnectionID: "con_1", Auth: workbench.AuthBearer, Credentials: workbench.Credentials{Token: "ab\r\nX-Evil: 1"}},
		{ConnectionID: "con_1", Auth: workbench.AuthHeader, Credentials: workbench.Credentials{Header: "Host", Value: "evil.example"}},
		{ConnectionID: "con_1", Auth: workbench.AuthHeader, Credentials: workbench.Credentials{Header: "X Y", Value: "1"}},
		{ConnectionID: "con_1", Auth: "other"},
	} {
		before := o.count("/x")
		_, err := w.ask(t.Context(), app, tools["GET/x"], `{}`, bad)
		w.mustFail(err, workbench.CodeToolUnavailable, false)
		if o.count("/x") != before {
			t.Error("something was sent")
		}
	}
}

func TestASecretThatComesBackIsTakenOut(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	app := httpApp(o.URL, "/echo-secret")
	a, err := w.ask(t.Context(), app, w.mustTools(app, nil)["GET/echo-secret"], `{}`, bearer())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(a.Result), "[redacted]"); n != 9 {
		t.Errorf("%d placeholders in %s, want 9", n, a.Result)
	}
	for _, form := range []string{canary, url.QueryEscape(canary), hex.EncodeToString([]byte(canary)), base64.StdEncoding.EncodeToString([]byte(canary))[:20]} {
		if strings.Contains(string(a.Result), form) {
			t.Errorf("%s holds %s", a.Result, form)
		}
	}
}

// A secret at the place where an error's text is cut must not be left by half.
func TestASecretAtTheCutOfAnError(t *testing.T) {
	secret := strings.Repeat("0123456789abcdef", 60)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, strings.Repeat(secret+" ", 100))
	}))
	defer s.Close()
	w := mustWorld(t, upstream.Options{})
	app := httpApp(s.URL, "/x")
	g := bearer()
	g.Credentials.Token = secret
	_, err := w.ask(t.Context(), app, w.mustTools(app, nil)["GET/x"], `{}`, g)
	if e := w.mustFail(err, workbench.CodeToolFailed, false); strings.Contains(e.Detail, secret[:8]) {
		t.Errorf("a part of the secret is left: %s", e.Detail)
	}
}

func TestAfterClose(t *testing.T) {
	o := mustOracle(t)
	c := upstream.New(upstream.Options{})
	app := httpApp(o.URL, "/x")
	got, err := c.Import(t.Context(), app, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = c.Call(t.Context(), app, toolOf(app, got.Tools[0]), nil, nil)
	if !workbench.HasCode(err, workbench.CodeToolUnavailable) || upstream.Uncertain(err) {
		t.Errorf("got %v", err)
	}
}

// An endpoint that answers before it has read, and one that never ends its
// header: bounds of time hold from the first byte to the last.
func TestASlowHeader(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		r := bufio.NewReader(conn)
		for {
			if _, err := r.ReadString('\n'); err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX-Slow: 1")
		}
	})
	w := mustWorld(t, upstream.Options{})
	app := httpApp("http://"+listener.Addr().String(), "/x")
	app.Config.TimeoutMs = 1000
	_, err = w.ask(t.Context(), app, w.mustTools(app, nil)["GET/x"], `{}`, nil)
	w.mustFail(err, workbench.CodeToolTimeout, true)
	wg.Wait()
}

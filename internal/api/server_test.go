package api_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/identity"
)

// panics is an engine with a defect.
type panics struct{ api.Engine }

func (panics) ListSessions(context.Context, workbench.Principal, workbench.SessionFilter, workbench.Page) (workbench.List[workbench.Session], error) {
	panic("a defect with wbk_d_0123456789abcdef")
}

func TestPanicIsAnAnswerAndOneLine(t *testing.T) {
	w := MustWorld(t, func(o *api.Options) { o.Engine = panics{o.Engine} })
	key := w.Direct("", "acme", "ada")
	x := w.Do("GET", "/v1/workbench/sessions", key, "", "Workbench-Request-Id", "my-id.7").Want(500)
	if x.Text("code") != "internal" || x.Text("requestId") != "my-id.7" || strings.Contains(string(x.Body), "defect") {
		t.Errorf("the answer is %s", x.Body)
	}
	log := w.log.String()
	if strings.Count(log, "panic in a handler") != 1 || !strings.Contains(log, `"requestId":"my-id.7"`) || !strings.Contains(log, "server_test.go") {
		t.Errorf("the log is %s", log)
	}
	if strings.Contains(log, "0123456789abcdef") {
		t.Error("the log holds a key")
	}
}

func TestRequestIDs(t *testing.T) {
	w := MustWorld(t)
	for sent, kept := range map[string]bool{"abc-1": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a b": false, "\x1b[31m": false, "": false} {
		req := func() string {
			if sent == "\x1b[31m" {
				return "" // no client library sends it; see the raw request below
			}
			return sent
		}()
		x := w.Do("GET", "/healthz", "", "", "Workbench-Request-Id", req)
		got := x.Header.Get("Workbench-Request-Id")
		if (got == sent) != kept || got == "" {
			t.Errorf("sent %q, got %q", sent, got)
		}
	}
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("GET /healthz HTTP/1.1\r\nHost: x\r\nWorkbench-Request-Id: \x1b[31m\r\nConnection: close\r\n\r\n"))
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	raw := make([]byte, 4096)
	n, _ := conn.Read(raw)
	if strings.Contains(string(raw[:n]), "\x1b") {
		t.Errorf("an escape came back: %q", raw[:n])
	}
}

// TestNothingSecretIsLogged: what users send and who they are stays out.
func TestNothingSecretIsLogged(t *testing.T) {
	w := MustWorld(t)
	_, secret := w.MustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme-canary", User: "ada-canary"})
	session := w.MustSession(secret)
	w.Do("POST", "/v1/workbench/sessions/"+session+"/runs", secret, `{"language":"bash","code":"echo code-canary","stdin":"stdin-canary","env":{"A":"env-canary"},"args":["arg-canary"],"idempotencyKey":"key-canary"}`).Want(202)
	w.Do("POST", "/v1/workbench/sessions/"+session+"/runs", secret, `{"language":"code-canary"}`).Want(400)
	w.MustUpload(secret, session, "name-canary", "content-canary")
	w.Do("GET", "/v1/workbench/sessions?label=label-canary%3Dx", secret, "").Want(200)
	w.Do("GET", "/path-canary", secret, "").Want(404)
	log := w.log.String()
	if n := strings.Count(log, `"msg":"request"`); n != 6 {
		t.Errorf("%d request lines, want 6: %s", n, log)
	}
	for _, canary := range []string{"canary", secret, secret[6:]} {
		if strings.Contains(log, canary) {
			t.Errorf("the log holds %q: %s", canary, log)
		}
	}
}

func TestReadiness(t *testing.T) {
	w := MustWorld(t)
	w.engine.unready = errors.New("dial tcp postgres://user:pw@db: refused")
	x := w.Do("GET", "/readyz", "", "").Want(503)
	if x.Text("code") != "unavailable" || x.Text("retryable") != "true" || strings.Contains(string(x.Body), "postgres") {
		t.Errorf("the answer is %s", x.Body)
	}
	if log := w.log.String(); !strings.Contains(log, "refused") || strings.Contains(log, "user:pw@") {
		t.Errorf("the log is %s", log)
	}
	w.Do("GET", "/healthz", "", "").Want(200)
	_ = w.db.Close()
	w.Do("GET", "/healthz", "", "").Want(200)
	if x := w.Do("GET", "/v1/workbench/sessions", "wbk_d_"+strings.Repeat("0", 52), ""); x.Status != 503 {
		t.Errorf("without a database a key is told %d, want 503: %s", x.Status, x.Body)
	}
}

// TestMetricsNameNobody: counts by route and status, and no id.
func TestMetricsNameNobody(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	w.Do("GET", "/v1/workbench/sessions/"+session, key, "").Want(200)
	w.Do("GET", "/v1/workbench/sessions/ses_"+unknownID, key, "").Want(404)
	w.Do("BREW", "/whatever/"+session, key, "").Want(404)
	text := string(w.Do("GET", "/metrics", "", "").Want(200).Body)
	for _, want := range []string{
		`workbench_http_requests_total{method="POST",route="/v1/workbench/sessions",status="201"} 1`,
		`workbench_http_requests_total{method="GET",route="/v1/workbench/sessions/{id}",status="404"} 1`,
		`workbench_http_requests_total{method="other",route="none",status="404"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no line %s", want)
		}
	}
	for _, id := range []string{session, "acme", "ada\"", "key_", "BREW"} {
		if strings.Contains(text, id) {
			t.Errorf("the metrics name %q", id)
		}
	}
}

// raw opens a connection and writes what a well-behaved client would not.
func (w *world) raw(t *testing.T, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn
}

// TestBoundsOfAConnection: headers are small and come soon, and an idle
// connection is not kept for ever.
func TestBoundsOfAConnection(t *testing.T) {
	w := MustWorld(t)
	c := w.server.Config
	if c.ReadHeaderTimeout <= 0 || c.ReadHeaderTimeout > 30*time.Second || c.IdleTimeout <= 0 || c.MaxHeaderBytes > 64<<10 {
		t.Errorf("the server's bounds are %+v", c)
	}
	conn := w.raw(t, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n")
	answer := make([]byte, 64)
	if n, _ := conn.Read(answer); !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 431") {
		t.Errorf("64 KiB of header are answered %q", answer[:n])
	}
}

// TestSilentClients: a body that stops coming ends the request, and leaves
// nothing behind.
func TestSilentClients(t *testing.T) {
	w := MustWorld(t, func(o *api.Options) { o.ReadTimeout = 200 * time.Millisecond })
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	for _, request := range []string{
		"POST /v1/workbench/sessions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n",
		"POST /v1/workbench/sessions/" + session + "/artifacts?name=x HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n",
		"POST /v1/workbench/sessions/" + session + "/artifacts?name=x HTTP/1.1\r\nContent-Type: multipart/form-data; boundary={\r\nTransfer-Encoding: chunked\r\n",
	} {
		start := time.Now()
		conn := w.raw(t, request+"Host: x\r\nAuthorization: Bearer "+key+"\r\n\r\n{")
		answer, _ := io.ReadAll(conn)
		if took := time.Since(start); !strings.HasPrefix(string(answer), "HTTP/1.1 400") || took > 5*time.Second {
			t.Errorf("after %s: %q", took, answer)
		}
	}
	// So does a body that no handler reads.
	start := time.Now()
	conn := w.raw(t, "POST /v1/workbench/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	if answer, _ := io.ReadAll(conn); !strings.HasPrefix(string(answer), "HTTP/1.1 401") || time.Since(start) > 5*time.Second {
		t.Errorf("a refused request, after %s: %q", time.Since(start), answer)
	}
	if use, err := w.db.QuotaUse(t.Context(), session); err != nil || use.SessionFiles != 0 {
		t.Errorf("the quota counts %+v (err %v), want no file", use, err)
	}
}

// TestSlowUpload: an upload that is slow but moves is taken.
func TestSlowUpload(t *testing.T) {
	w := MustWorld(t, func(o *api.Options) { o.ReadTimeout = 1500 * time.Millisecond })
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	conn := w.raw(t, "POST /v1/workbench/sessions/"+session+"/artifacts?name=slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nAuthorization: Bearer "+key+"\r\n\r\n")
	for _, c := range "slowly" {
		time.Sleep(300 * time.Millisecond) // longer in all than it may stand still
		_, _ = conn.Write([]byte(string(c)))
	}
	if answer, _ := io.ReadAll(conn); !strings.HasPrefix(string(answer), "HTTP/1.1 201") {
		t.Errorf("a slow upload: %q", answer)
	}
	if use, err := w.db.QuotaUse(t.Context(), session); err != nil || use.SessionFiles != 1 {
		t.Errorf("the quota counts %+v (err %v), want the slow file", use, err)
	}
}

// TestClientThatDoesNotRead is let go, so that it holds no handler.
func TestClientThatDoesNotRead(t *testing.T) {
	w := MustWorld(t, func(o *api.Options) { o.WriteTimeout = 200 * time.Millisecond })
	key := w.Direct("", "acme", "ada")
	file := w.MustUpload(key, w.MustSession(key), "big", strings.Repeat("x", 8<<20))
	conn := w.raw(t, "GET /v1/workbench/artifacts/"+file+"/content HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+key+"\r\n\r\n")
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetReadBuffer(4096)
	}
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(w.log.String(), `"route":"/v1/workbench/artifacts/{id}/content"`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the handler still waits for a client that does not read")
		}
	}
}

// TestRefusedWhileSending: a client that reads nothing before it has sent
// everything learns all the same why it was refused.
func TestRefusedWhileSending(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	for name, request := range map[string]string{
		"an upload over the limit": "POST /v1/workbench/sessions/" + session + "/artifacts?name=x HTTP/1.1\r\nContent-Type: text/plain\r\n",
		"a body over the limit":    "POST /v1/workbench/sessions HTTP/1.1\r\nContent-Type: application/json\r\n",
		"an unknown session":       "POST /v1/workbench/sessions/ses_" + unknownID + "/artifacts?name=x HTTP/1.1\r\nContent-Type: text/plain\r\n",
	} {
		conn := w.raw(t, request+"Host: x\r\nContent-Length: 16777216\r\nConnection: close\r\nAuthorization: Bearer "+key+"\r\n\r\n")
		for range 32 {
			if _, err := conn.Write(make([]byte, 512<<10)); err != nil {
				t.Errorf("%s: cut off while sending: %v", name, err)
				break
			}
			time.Sleep(25 * time.Millisecond) // longer in all than a server waits that only lingers
		}
		answer, _ := io.ReadAll(conn)
		if !strings.HasPrefix(string(answer), "HTTP/1.1 4") || !strings.Contains(string(answer), `"hint"`) {
			t.Errorf("%s: %q", name, answer)
		}
	}
	// One that waits for a go-ahead is not waited for, neither at its first try nor
	// at a third: whoever sends is given 5 s.
	took := time.Minute
	for range 3 {
		if took < 3*time.Second {
			break
		}
		start := time.Now()
		conn := w.raw(t, "POST /v1/workbench/sessions/ses_"+unknownID+"/artifacts?name=x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 16777216\r\nConnection: close\r\nAuthorization: Bearer "+key+"\r\n\r\n")
		answer, _ := io.ReadAll(conn)
		took = time.Since(start)
		if !strings.HasPrefix(string(answer), "HTTP/1.1 404") {
			t.Errorf("after %s: %q", took, answer)
		}
	}
	if took >= 3*time.Second {
		t.Errorf("a client that waits for a go-ahead is kept for %s", took)
	}
}

// TestHead: what can be read with GET answers HEAD without a body.
func TestHead(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	for _, path := range []string{"/healthz", "/openapi.json", "/v1/workbench/sessions", "/v1/workbench/sessions/" + session} {
		if x := w.Do("HEAD", path, key, "").Want(200); len(x.Body) != 0 {
			t.Errorf("HEAD %s has a body", path)
		}
	}
	w.Do("HEAD", "/v1/workbench/sessions/ses_"+unknownID, key, "").Want(404)
	w.Do("HEAD", "/v1/workbench/sessions", "", "").Want(401)
	w.Do("HEAD", "/v1/workbench/bash", key, "").Want(405)
}

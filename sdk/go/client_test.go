package sdk_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func encode(b []byte, e workbench.Encoding) string {
	if e == workbench.EncodingBase64 {
		return base64.StdEncoding.EncodeToString(b)
	}
	return string(b)
}

func TestSeedExample(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w)
	ctx := t.Context()
	session, err := c.CreateAgentSession(ctx, sdk.CreateSession{Agent: "Report helper", Tools: []workbench.ToolRef{}, Connections: []string{}})
	if err != nil || session.ID != w.session.ID || session.Agent != "Report helper" {
		t.Fatalf("session %+v, %v", session, err)
	}
	file, err := c.UploadSessionArtifact(ctx, session.ID, sdk.Upload{Name: "input.txt", MimeType: "text/plain"}, strings.NewReader("hello"))
	if err != nil || file.Size != 5 || file.Name != "input.txt" || file.MimeType != "text/plain" {
		t.Fatalf("file %+v, %v", file, err)
	}
	queued, err := c.CreateSessionRun(ctx, session.ID, sdk.CreateRun{
		Language: workbench.Python, Code: `print(open("input.txt").read().upper())`,
		Artifacts: []workbench.ArtifactSelect{{ID: file.ID}}, IdempotencyKey: "your-stable-run-key",
	})
	if err != nil || queued.Status != workbench.StatusQueued || queued.Replayed {
		t.Fatalf("queued %+v, %v", queued, err)
	}
	sent := w.submits[0]
	if sent.IdempotencyKey != "your-stable-run-key" || sent.Spec.Artifacts[0].ID != file.ID || sent.Spec.Language != workbench.Python {
		t.Errorf("submitted %+v", sent)
	}
	w.end(workbench.StatusSucceeded)
	result, err := c.WaitForSessionRun(ctx, queued.ID)
	if err != nil || *result.Stdout != "out" || result.Status != workbench.StatusSucceeded {
		t.Fatalf("result %+v, %v", result, err)
	}
	if closed, err := c.CloseAgentSession(ctx, session.ID); err != nil || closed.State != workbench.SessionClosed {
		t.Fatalf("closed %+v, %v", closed, err)
	}
	if b, err := c.ReadSessionArtifact(ctx, file.ID); err != nil || string(b) != "hello" {
		t.Fatalf("downloaded %q, %v", b, err)
	}
}

func TestErrorsCarryWhatTheServerSaid(t *testing.T) {
	w := newWorld()
	s := httptest.NewServer(w.face())
	defer s.Close()
	c := MustClient(t, sdk.Options{BaseURL: s.URL, Key: "wrong"})
	_, err := c.AgentSession(t.Context(), w.session.ID)
	var answer *sdk.Error
	if !errors.As(err, &answer) || answer.Status != 401 || !strings.HasPrefix(answer.RequestID, "req_") || answer.Retryable {
		t.Fatalf("error %#v", err)
	}
	if !workbench.HasCode(err, workbench.CodeUnauthenticated) || answer.Err.Detail != "no such key" {
		t.Errorf("code %s, detail %q", workbench.CodeOf(err), answer.Err.Detail)
	}
	c = MustClient(t, sdk.Options{BaseURL: s.URL, Key: testKey})
	_, err = c.CreateAgentSession(t.Context(), sdk.CreateSession{Agent: strings.Repeat("a", 201)})
	if !errors.As(err, &answer) || answer.Status != 400 || answer.Err.Field != "agent" {
		t.Errorf("error %v, want one that names the field agent", err)
	}
}

func TestAnAnswerThatIsNoProblemShowsItsStatusOnly(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadGateway)
		_, _ = w.Write([]byte("<script>alert(1)</script>"))
	}))
	defer s.Close()
	c := MustClient(t, sdk.Options{BaseURL: s.URL, Key: testKey, Retries: -1})
	_, err := c.AgentSession(t.Context(), "ses_x")
	if !workbench.HasCode(err, workbench.CodeUnavailable) || strings.Contains(err.Error(), "script") {
		t.Errorf("error %v, want unavailable without the page", err)
	}
}

func TestWhatIsRepeated(t *testing.T) {
	keyed := func(c *sdk.Client, w *world) error {
		_, err := c.CreateSessionRun(context.Background(), w.session.ID, sdk.CreateRun{Language: workbench.Bash, Code: "true", IdempotencyKey: "k"})
		return err
	}
	unkeyed := func(c *sdk.Client, w *world) error {
		_, err := c.CreateSessionRun(context.Background(), w.session.ID, sdk.CreateRun{Language: workbench.Bash, Code: "true"})
		return err
	}
	read := func(c *sdk.Client, w *world) error {
		_, err := c.AgentSession(context.Background(), w.session.ID)
		return err
	}
	create := func(c *sdk.Client, _ *world) error {
		_, err := c.CreateAgentSession(context.Background(), sdk.CreateSession{})
		return err
	}
	upload := func(c *sdk.Client, w *world) error {
		_, err := c.UploadSessionArtifact(context.Background(), w.session.ID, sdk.Upload{Name: "a"}, strings.NewReader("a"))
		return err
	}
	busy := func(rw http.ResponseWriter, _ *http.Request, _ http.Handler) {
		rw.Header().Set("Content-Type", "application/problem+json")
		rw.WriteHeader(http.StatusServiceUnavailable)
		_, _ = rw.Write([]byte(`{"code":"unavailable","detail":"busy","status":503,"retryable":true}`))
	}
	cut := func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }
	lost := func(_ http.ResponseWriter, r *http.Request, next http.Handler) { // done, but the answer is lost
		next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
	for _, tc := range []struct {
		name  string
		do    func(*sdk.Client, *world) error
		fault func(http.ResponseWriter, *http.Request, http.Handler)
		want  int // requests
	}{
		{"a read, when the server is busy", read, busy, 3},
		{"a read, when the connection breaks", read, cut, 3},
		{"a keyed submission, when the server is busy", keyed, busy, 3},
		{"a keyed submission, when its answer is lost", keyed, lost, 3},
		{"an unkeyed submission, when the server is busy: never", unkeyed, busy, 1},
		{"an unkeyed submission, when its answer is lost: never", unkeyed, lost, 1},
		{"a new session: never", create, lost, 1},
		{"an upload: never", upload, busy, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			c := MustServe(t, w)
			faults := 0
			w.between = func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
				if faults++; faults <= 2 {
					tc.fault(rw, r, next)
					return
				}
				next.ServeHTTP(rw, r)
			}
			err := tc.do(c, w)
			if n := w.requests(); n != tc.want {
				t.Errorf("%d requests, want %d", n, tc.want)
			}
			if (err == nil) != (tc.want == 3) {
				t.Errorf("error %v", err)
			}
			if tc.want == 1 && len(w.submits) > 1 {
				t.Errorf("submitted %d times", len(w.submits))
			}
		})
	}
}

func TestARefusalIsNotRepeated(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w)
	if _, err := c.GetRun(t.Context(), "run_none", 0); !workbench.HasCode(err, workbench.CodeNotFound) {
		t.Errorf("error %v, want not_found", err)
	}
	if n := w.requests(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestRetryAfterIsWaitedOut(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w)
	first := true
	w.between = func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		if first {
			first = false
			rw.Header().Set("Retry-After", "1")
			rw.WriteHeader(http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(rw, r)
	}
	began := time.Now()
	if _, err := c.AgentSession(t.Context(), w.session.ID); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("asked again after %s, want 1s", took)
	}
}

func TestWaitingNeverSubmits(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w)
	w.between = func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		if w.requests()%2 == 1 {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(rw, r)
	}
	go func() { time.Sleep(100 * time.Millisecond); w.end(workbench.StatusUnknown) }()
	r, err := c.WaitForSessionRun(t.Context(), w.run.ID)
	if err != nil || r.Status != workbench.StatusUnknown {
		t.Fatalf("receipt %s, %v; an unknown outcome is a receipt", r.Status, err)
	}
	for _, req := range w.seen {
		if req.Method != http.MethodGet {
			t.Errorf("sent %s %s", req.Method, req.URL.Path)
		}
	}
}

func TestADownloadGoesOnWhereItBroke(t *testing.T) {
	w := newWorld()
	w.content = bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	c := MustServe(t, w)
	var ranges []string
	w.between = func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		ranges = append(ranges, r.Header.Get("Range"))
		if len(ranges) < 3 {
			serveCut(rw, r, next, 300_000)
			return
		}
		next.ServeHTTP(rw, r)
	}
	var got bytes.Buffer
	n, err := c.DownloadSessionArtifact(t.Context(), workbench.NewID(workbench.KindArtifact), &got)
	if err != nil || n != 1<<20 || !bytes.Equal(got.Bytes(), w.content) {
		t.Fatalf("%d bytes, equal %t, %v", n, bytes.Equal(got.Bytes(), w.content), err)
	}
	if len(ranges) != 3 || ranges[0] != "" || !strings.HasPrefix(ranges[1], "bytes=") || ranges[2] == ranges[1] {
		t.Errorf("ranges %q", ranges)
	}
}

// serveCut breaks the connection after some bytes of the body.
func serveCut(rw http.ResponseWriter, r *http.Request, next http.Handler, bytes int) {
	w := &cutWriter{ResponseWriter: rw, left: bytes}
	next.ServeHTTP(w, r)
	if w.cut {
		panic(http.ErrAbortHandler)
	}
}

type cutWriter struct {
	http.ResponseWriter
	left int
	cut  bool
}

func (c *cutWriter) Write(p []byte) (int, error) {
	if c.cut || len(p) >= c.left {
		n := min(c.left, len(p))
		_, _ = c.ResponseWriter.Write(p[:n])
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		c.left, c.cut = 0, true
		return n, io.ErrClosedPipe
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

func (c *cutWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func TestAddressesAreChecked(t *testing.T) {
	for _, bad := range []string{"127.0.0.1:8080", "ftp://host", "http://", "https://key@host"} {
		if _, err := sdk.New(sdk.Options{BaseURL: bad}); !workbench.HasCode(err, workbench.CodeInvalidRequest) {
			t.Errorf("New(%q) = %v, want invalid_request", bad, err)
		}
	}
}

func TestAKeyIsNotSentElsewhere(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	s := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer s.Close()
	c := MustClient(t, sdk.Options{BaseURL: s.URL, Key: testKey, Retries: -1})
	if _, err := c.AgentSession(t.Context(), "ses_x"); err == nil {
		t.Error("a redirect was taken for an answer")
	}
}

func TestAnEmbeddedKeyNamesItsUser(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w).For("acme", "ada@example.com", "support")
	if _, err := c.AgentSession(t.Context(), w.session.ID); err != nil {
		t.Fatal(err)
	}
	h := w.seen[0].Header
	if h.Get("Workbench-Tenant") != "acme" || h.Get("Workbench-End-User") != "ada@example.com" || h.Get("Workbench-Group") != "support" {
		t.Errorf("headers %v", h)
	}
}

func TestAClientWithoutAKeyIsRefused(t *testing.T) {
	_, err := sdk.New(sdk.Options{BaseURL: "http://127.0.0.1:8080"})
	if !workbench.HasCode(err, workbench.CodeUnauthenticated) || !strings.Contains(err.Error(), "Options.Key is empty") {
		t.Errorf("without a key: %v", err)
	}
	if _, err := sdk.New(sdk.Options{HTTP: sdk.DefaultHTTP()}); err != nil {
		t.Errorf("with a client that may add the header: %v", err)
	}
}

func TestTheWrongSchemeIsNamed(t *testing.T) {
	plain := httptest.NewServer(newWorld().face())
	defer plain.Close()
	secure := httptest.NewUnstartedServer(newWorld().face())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	for _, tc := range []struct{ address, detail, hint string }{
		{"https" + strings.TrimPrefix(plain.URL, "http"), "speaks http, not https", "write its address with http://, or start it with a certificate"},
		{"http" + strings.TrimPrefix(secure.URL, "https"), "the server speaks https, not http", "write its address with https://"},
	} {
		_, err := MustClient(t, sdk.Options{BaseURL: tc.address, Key: testKey}).AgentSession(t.Context(), "ses_x")
		told := workbench.AsError(err)
		if told.Code != workbench.CodeInvalidRequest || !strings.HasSuffix(told.Detail, tc.detail) || told.Hint != tc.hint {
			t.Errorf("%s: %s %q, hint %q", tc.address, told.Code, told.Detail, told.Hint)
		}
	}
}

func TestOutputOfAReceipt(t *testing.T) {
	out := "out"
	if r := (workbench.Receipt{Stdout: &out}); r.Output() != "out" || r.ErrorOutput() != "" {
		t.Errorf("output %q, %q", r.Output(), r.ErrorOutput())
	}
}

func TestTheLastAdminKeyEndsByForceOnly(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String())
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"key_x","tenantName":"acme"}`)
	}))
	defer s.Close()
	c := MustClient(t, sdk.Options{BaseURL: s.URL, Key: testKey})
	if _, err := c.RevokeKey(t.Context(), "key_x"); err != nil {
		t.Fatal(err)
	}
	if k, err := c.ForceRevokeKey(t.Context(), "key_x"); err != nil || k.ID != "key_x" {
		t.Fatal(k, err)
	}
	want := "DELETE /v1/workbench/keys/key_x, DELETE /v1/workbench/keys/key_x?force=true"
	if got := strings.Join(asked, ", "); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
}

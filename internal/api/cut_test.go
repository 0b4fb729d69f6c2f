package api_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/identity"
)

// torn is an engine whose archives never end well.
type torn struct {
	api.Engine
	write func(io.Writer) error
}

func (e torn) WorkspaceTar(context.Context, workbench.Principal, string) (func(io.Writer) error, error) {
	return e.write, nil
}

// TestCutAnswerIsRecorded: an answer that is cut on its way is in the trail, in
// the log and in the metrics like any other, whoever cut it; and it does not
// look whole.
func TestCutAnswerIsRecorded(t *testing.T) {
	for _, c := range []struct {
		name    string
		write   func(io.Writer) error
		stay    bool // the client reads to the end
		outcome string
		log     []string // of its line
	}{
		{"content that is damaged", func(w io.Writer) error {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
			return workbench.E(workbench.CodeCorrupt, "a stored content is damaged")
		}, true, "content_corrupt", []string{`"level":"ERROR"`, `"code":"content_corrupt"`}},
		{"a client that goes away", func(w io.Writer) error {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return err
				}
			}
		}, false, "request_cancelled", []string{`"level":"DEBUG"`, `"code":"request_cancelled"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := MustWorld(t, func(o *api.Options) { o.Engine = torn{o.Engine, c.write} })
			key := w.Direct("", "acme", "ada")
			_, admin := w.MustKey(identity.KeyRequest{Kind: workbench.KeyAdmin})
			session := w.MustSession(key)
			conn := w.raw(t, "GET /v1/workbench/sessions/"+session+"/workspace/tar HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+key+"\r\n\r\n")
			if c.stay {
				if answer, _ := io.ReadAll(conn); !strings.HasPrefix(string(answer), "HTTP/1.1 200") || strings.HasSuffix(string(answer), "0\r\n\r\n") {
					t.Errorf("the answer of %d bytes ends as if it were whole", len(answer))
				}
			} else if _, err := io.ReadFull(conn, make([]byte, 2<<20)); err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
			line := w.mustLogged(t, `"route":"/v1/workbench/sessions/{id}/workspace/tar"`)
			for _, want := range c.log {
				if !strings.Contains(line, want) {
					t.Errorf("the log has no %s: %s", want, line)
				}
			}
			if x := w.Do("GET", "/v1/workbench/audit?action=workspace.download&target="+session, admin, "").Want(200); !strings.Contains(string(x.Body), `"outcome":"`+c.outcome+`"`) {
				t.Errorf("the trail has %s", x.Body)
			}
			const count = `workbench_http_requests_total{method="GET",route="/v1/workbench/sessions/{id}/workspace/tar",status="200"} 1`
			if x := w.Do("GET", "/metrics", "", "").Want(200); !strings.Contains(string(x.Body), count) {
				t.Errorf("the metrics have no %s", count)
			}
		})
	}
}

// mustLogged waits for the log line that holds text.
func (w *world) mustLogged(t *testing.T, text string) string {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		for _, line := range strings.Split(w.log.String(), "\n") {
			if strings.Contains(line, text) && strings.HasSuffix(line, "}") {
				return line
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing with %s was logged: %s", text, w.log.String())
		}
	}
}

// unread is the answer to a client that is gone, which net/http has not noticed.
type unread struct{ http.ResponseWriter }

func (unread) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestReaderOfEventsThatGoesAwayIsNoError: a write that its client does not take
// is no failure of the server.
func TestReaderOfEventsThatGoesAwayIsNoError(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	for _, path := range []string{"/v1/workbench/runs/" + w.MustSubmit(key, session) + "/events", "/v1/workbench/sessions/" + session + "/events"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Workbench-Request-Id", "gone."+path)
		w.checker.ServeHTTP(unread{httptest.NewRecorder()}, r)
		if line := w.mustLogged(t, `"requestId":"gone.`+path+`"`); !strings.Contains(line, `"level":"DEBUG"`) || !strings.Contains(line, `"code":"request_cancelled"`) {
			t.Errorf("it is logged as %s", line)
		}
	}
}

// TestDownloadThatIsNotTakenIsRecorded: where only the writing fails, of a file
// or of a patch, the trail has the download as cut, too.
func TestDownloadThatIsNotTakenIsRecorded(t *testing.T) {
	w := MustWorld(t, func(o *api.Options) { o.Engine = &comparing{Engine: o.Engine} })
	key := w.Direct("", "acme", "ada")
	_, admin := w.MustKey(identity.KeyRequest{Kind: workbench.KeyAdmin})
	session := w.MustSession(key)
	run := w.MustSubmit(key, session)
	file := w.MustUpload(key, session, "f", "content")
	for _, c := range []struct{ action, path, target string }{
		{"artifact.download", "/v1/workbench/artifacts/" + file + "/content", file},
		{"file.download", "/v1/workbench/runs/" + run + "/files/content?path=out/made.txt", run},
		{"run.compare", "/v1/workbench/runs/" + run + "/diff", run},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil)
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Accept", "text/x-diff, application/octet-stream")
		func() {
			defer func() {
				if v := recover(); v != http.ErrAbortHandler { //nolint:errorlint // it is panicked with bare
					t.Errorf("%s: the connection is not cut: %v", c.action, v)
				}
			}()
			w.checker.ServeHTTP(unread{httptest.NewRecorder()}, r)
		}()
		x := w.Do("GET", "/v1/workbench/audit?action="+c.action+"&target="+c.target, admin, "").Want(200)
		if !strings.Contains(string(x.Body), `"outcome":"request_cancelled"`) {
			t.Errorf("%s: the trail has %s", c.action, x.Body)
		}
	}
}

// TestRefusedBeforeSending: who waits for the answer before it sends a large
// body, with or without asking for a go-ahead, gets it at once, also on a
// connection that could have been kept.
func TestRefusedBeforeSending(t *testing.T) {
	w := MustWorld(t, func(o *api.Options) { o.ReadTimeout = 10 * time.Minute })
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	const large = "Content-Length: 17179869184\r\n"
	for _, c := range []struct{ request, status string }{
		{"POST /v1/workbench/sessions/" + session + "/artifacts?name=x HTTP/1.1\r\n", "413"},
		{"PUT /v1/workbench/sessions/" + session + "/workspace/content?path=x HTTP/1.1\r\n", "413"},
		{"POST /v1/workbench/sessions/" + session + "/runs HTTP/1.1\r\nContent-Type: application/json\r\n", "413"},
		{"POST /v1/workbench/sessions/ses_" + unknownID + "/artifacts?name=x HTTP/1.1\r\n", "413"},
		{"POST /v1/workbench/nothing HTTP/1.1\r\n", "404"},
	} {
		for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
			conn := w.raw(t, c.request+"Host: x\r\nAuthorization: Bearer "+key+"\r\n"+large+expect+"\r\n")
			answer := make([]byte, len("HTTP/1.1 413"))
			if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 "+c.status {
				t.Errorf("%s%s: %q, %v; want %s", c.request, expect, answer, err, c.status)
			}
			_ = conn.Close()
		}
	}
	// A body that is small and announced is asked for.
	conn := w.raw(t, "POST /v1/workbench/sessions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\nAuthorization: Bearer "+key+"\r\n\r\n")
	head := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
	if _, err := io.ReadFull(conn, head); err != nil || !strings.HasPrefix(string(head), "HTTP/1.1 100") {
		t.Fatalf("no go-ahead: %q, %v", head, err)
	}
	_, _ = conn.Write([]byte("{}"))
	if answer, _ := io.ReadAll(conn); !strings.HasPrefix(string(answer), "HTTP/1.1 201") {
		t.Errorf("after the go-ahead: %q", answer)
	}
}

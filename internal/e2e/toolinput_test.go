package e2e_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustEndpoint declares an app of one tool without a connection, name.do.
func (w *world) mustEndpoint(t *testing.T, name, url string, timeoutMs int) {
	t.Helper()
	w.mustTools(t, name, map[string]any{"kind": "http", "config": map[string]any{"url": url, "timeoutMs": timeoutMs, "endpoints": []any{map[string]any{
		"name": "do", "method": "POST", "path": "/do", "inputSchema": map[string]any{"type": "object"}}}}})
}

// mustTwice is a service that answers every request twice, at once. It counts
// requests, and says which it answers.
func mustTwice(t *testing.T) (url string, executed *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	executed = &atomic.Int64{}
	go func() { // until the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					n := executed.Add(1)
					answer := func(body string) string {
						return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
					}
					_, _ = io.WriteString(c, answer(fmt.Sprintf(`{"n": %d}`, n))+answer(fmt.Sprintf(`{"n": %d, "again": true}`, n)))
				}
			}()
		}
	}()
	return "http://" + l.Addr().String(), executed
}

// F57: whatever a tool's service does, a call ends with one clear receipt and is
// made once. (TestToolFaults has those that answer wrongly.)
func TestToolsThatDoNotAnswer(t *testing.T) {
	var said logBuffer
	was := log.Writer()
	log.SetOutput(&said) // net/http writes there what nobody asked for
	t.Cleanup(func() { log.SetOutput(was) })
	w := mustWorld(t, nil)
	w.rules(t, "access", allowAll)
	slow, down := mustOracle(t), mustOracle(t)
	gone := make(chan struct{}, 10)
	slow.answers(func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done() // until the server gives up
		_, _ = io.WriteString(w, "late")
		gone <- struct{}{}
	})
	twice, executed := mustTwice(t)
	w.mustEndpoint(t, "slow", slow.URL, 300)
	w.mustEndpoint(t, "down", down.URL, 0)
	w.mustEndpoint(t, "twice", twice, 0)
	down.Close()
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{Tools: refs("slow.do", "down.do", "twice.do")})
	r := s.mustPython(`
for tool in ("slow.do", "down.do"):
    r = arc0.call(tool, {})
    print(r.status, r.error["code"], bool(r.error["hint"]), arc0.receipt(r.id).status)
print([arc0.call("twice.do", {}).result for i in range(3)])
`)
	wantOut(t, r, `unknown tool_timeout True unknown
failed tool_unavailable True failed
[{'n': 1}, {'n': 2}, {'n': 3}]
`)
	wait(t, gone, "the slow service is given up")
	if slow.executed() != 1 || down.executed() != 0 || executed.Load() != 3 {
		t.Errorf("the services were asked %d, %d and %d times, want 1, 0 and 3", slow.executed(), down.executed(), executed.Load())
	}
	if strings.Contains(said.whole(), "again") {
		t.Errorf("the second answer is in a log: %s", said.whole())
	}
	t.Run("a call dies with its run", func(t *testing.T) {
		asked := make(chan struct{}, 1)
		slow.answers(func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-r.Context().Done()
			gone <- struct{}{}
		})
		w.mustEndpoint(t, "slow", slow.URL, 60_000)
		run := s.mustSubmit(sdk.CreateRun{Language: workbench.JavaScript, Code: `await workbench.call("slow.do", {})`})
		wait(t, asked, "the tool is asked")
		if _, err := s.c.CancelRun(t.Context(), run); err != nil {
			t.Fatal(err)
		}
		wait(t, gone, "the call is given up")
		wantEnd(t, s.mustWait(run), workbench.StatusCancelled, workbench.ReasonCancelled)
		list := w.rest(t, http.MethodGet, "/v1/workbench/receipts?limit=1", nil, http.StatusOK)["items"].([]any)
		if got := list[0].(map[string]any); got["status"] != "unknown" || got["runId"] != run || slow.executed() != 2 {
			t.Errorf("the call reads %v; the tool was asked %d times", got, slow.executed())
		}
	})
}

// A schema that refers to anything outside of itself is refused, and nothing is
// asked for it.
func TestRemoteSchemas(t *testing.T) {
	w := mustShared(t)
	elsewhere := mustOracle(t)
	remote := map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{"$ref": elsewhere.URL + "/schema.json"}}}
	document := map[string]any{"openapi": "3.1.0", "info": map[string]any{"title": "x", "version": "1"}, "servers": []any{map[string]any{"url": elsewhere.URL}},
		"paths": map[string]any{"/do": map[string]any{"post": map[string]any{"operationId": "do", "responses": map[string]any{},
			"requestBody": map[string]any{"content": map[string]any{"application/json": map[string]any{"schema": remote}}}}}}}
	for name, app := range map[string]map[string]any{
		"http": {"kind": "http", "config": map[string]any{"url": elsewhere.URL, "endpoints": []any{map[string]any{"name": "do", "method": "POST", "path": "/do", "inputSchema": remote}}}},
		"file": {"kind": "http", "config": map[string]any{"url": elsewhere.URL, "endpoints": []any{map[string]any{"name": "do", "method": "POST", "path": "/do",
			"inputSchema": map[string]any{"type": "object", "$ref": "file:///etc/passwd"}}}}},
		"openapi": {"kind": "openapi", "config": map[string]any{"document": document}},
	} {
		answer := w.rest(t, http.MethodPut, "/v1/workbench/apps/remote-"+name, app, http.StatusBadRequest)
		if answer["code"] != "schema_invalid" || answer["field"] == nil {
			t.Errorf("%s: %v", name, answer)
		}
	}
	if n := elsewhere.executed(); n != 0 {
		t.Errorf("the place that the schemas refer to was asked %d times", n)
	}
}

// H84: a run's token is of no use to another run, of its session or of another,
// while it lives or afterwards.
func TestTokenReplay(t *testing.T) {
	d := mustDesk(t, nil)
	a, b := d.mustSession(t), d.mustSession(t)
	const show = `import os; print(os.environ["WORKBENCH_TOKEN"], os.environ["WORKBENCH_SOCKET"], flush=True)`
	live := a.mustSubmit(sdk.CreateRun{Language: workbench.Python, Background: true, Code: show + "\nimport time; time.sleep(60)"})
	token := func() string {
		for e, err := range a.c.Events(t.Context(), live, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if fields := strings.Fields(e.Text); len(fields) == 2 {
				return fmt.Sprintf("%q, %q", fields[0], fields[1])
			}
		}
		t.Fatal("the run ended without a token")
		return ""
	}()
	uses := fmt.Sprintf(`
import os
mine = os.environ["WORKBENCH_TOKEN"], os.environ["WORKBENCH_SOCKET"]
token, path = %s
for t, s in ((token, mine[1]), (token, path), (mine[0], path), ("", mine[1]), mine):
    os.environ["WORKBENCH_TOKEN"], os.environ["WORKBENCH_SOCKET"] = t, s
    try: print(arc0.call("your_app.lookup", {"query": "1"}, connection_alias="support").status)
    except arc0.WorkbenchError as e: print(e.code)
`, token)
	const refused = "forbidden\nunavailable\nunavailable\nforbidden\nsucceeded\n"
	elsewhere := b.mustPython(uses)
	wantOut(t, elsewhere, refused)
	// In its own session the socket is there, for code of the same user: the run's
	// own call, which counts as its own.
	beside := a.mustPython(uses)
	same := text(beside.Stdout)
	if lines := strings.Split(same, "\n"); len(lines) != 6 || lines[0] != "forbidden" || lines[2] != "forbidden" && lines[2] != "unavailable" || lines[3] != "forbidden" {
		t.Errorf("a run beside it was answered %q", same)
	}
	if _, err := a.c.CancelRun(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	a.mustWait(live)
	before := d.oracle.executed()
	after := a.mustPython(uses)
	wantOut(t, after, refused)
	if n := d.oracle.executed() - before; n != 1 {
		t.Errorf("the tool was executed %d times", n)
	}
	// It is a row of the trail, one for each run that tried.
	told := map[string]int{}
	for _, v := range d.rest(t, http.MethodGet, "/v1/workbench/audit?action=tool.refused&limit=200", nil, http.StatusOK)["items"].([]any) {
		row := v.(map[string]any)
		if row["outcome"] != string(workbench.CodeForbidden) {
			t.Errorf("a refusal is recorded as %v", row)
		}
		told[row["target"].(string)]++
	}
	for _, run := range []string{elsewhere.ID, beside.ID, after.ID} {
		if told[run] != 1 {
			t.Errorf("run %s has %d rows of refusals, want 1", run, told[run])
		}
	}
}

// names is a resolver of names for the server under test: each lookup of a name
// gives the next of its addresses, all of them at once where they are one entry.
func names(t *testing.T, of map[string][]string) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	was := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
	t.Cleanup(func() { net.DefaultResolver = was; c.Close() })
	asked := map[string]int{}
	go func() { // until the socket is closed
		for buf := make([]byte, 1500); ; {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(answerTo(buf[:n], func(name string) string {
				list := of[name]
				if len(list) == 0 {
					return ""
				}
				asked[name]++
				return list[(asked[name]-1)%len(list)]
			}), from)
		}
	}()
}

// answerTo is a DNS message (RFC 1035, 4.1) that answers a question for A
// records; others have none.
func answerTo(q []byte, of func(name string) string) []byte {
	var labels []string
	end := 12
	for end < len(q) && q[end] > 0 {
		labels = append(labels, string(q[end+1:end+1+int(q[end])]))
		end += 1 + int(q[end])
	}
	kind := binary.BigEndian.Uint16(q[end+1:])
	var addresses []string
	if kind == 1 {
		addresses = strings.Fields(of(strings.ToLower(strings.Join(labels, "."))))
	}
	out := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, byte(len(addresses)), 0, 0, 0, 0}, q[12:end+5]...)
	for _, a := range addresses {
		out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		out = append(out, net.ParseIP(a).To4()...)
	}
	return out
}

// H102: a name is judged by the address that is dialled, on every request: one
// that means another place each time reaches no private network.
func TestFetchOfNamesThatRebind(t *testing.T) {
	inside := mustOracle(t)
	port := inside.URL[strings.LastIndex(inside.URL, ":"):]
	names(t, map[string][]string{
		"api.test":    {"127.0.0.1"},
		"rebind.test": {"203.0.113.9", "127.0.0.1", "169.254.169.254", "10.0.0.1", "127.0.0.1"},
		"many.test":   {"203.0.113.9 127.0.0.1 169.254.169.254"},
	})
	d := mustDesk(t, func(o *server.Options) { o.FetchPrivate = []string{"api.test" + port} })
	d.rules(t, "hosts", fetchAll)
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	inside.answers(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://rebind.test"+port+"/", http.StatusFound)
	})
	r := s.mustPython(fmt.Sprintf(`
port = %q
first = workbench.fetch("http://api.test" + port + "/")
print(first.status)
for url in [first.headers["location"]] * 5 + ["http://many.test" + port + "/", "http://REBIND.test." + port + "/", "http://api.test:1/"]:
    try: print(workbench.fetch(url).status, url)
    except workbench.WorkbenchError as e: print(e.code)
`, port))
	wantOut(t, r, "302\n"+strings.Repeat("access_denied\n", 8))
	if n := inside.executed(); n != 1 {
		t.Errorf("the host inside was asked %d times, want once, by its own name", n)
	}
}

package upstream_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

func mcpApp(url string) workbench.App {
	return workbench.App{ProjectID: "prj_1", Name: "remote", Kind: workbench.AppMCPHTTP, Config: workbench.AppConfig{URL: url, TimeoutMs: 60_000}}
}

func TestAnMCPServerOfTheSDK(t *testing.T) {
	for name, options := range map[string]*mcp.StreamableHTTPOptions{
		"with sessions": {}, "stateless": {Stateless: true}, "JSON": {JSONResponse: true}, "stateless JSON": {Stateless: true, JSONResponse: true},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			done := map[string]int{}
			server := sdkServer(func(tool string) {
				mu.Lock()
				defer mu.Unlock()
				done[tool]++
			})
			s := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options))
			defer s.Close()
			w := mustWorld(t, upstream.Options{})
			checkHonestTools(t, w, mcpApp(s.URL))
			mu.Lock()
			defer mu.Unlock()
			for tool, n := range done {
				if n != 1 {
					t.Errorf("%s was done %d times", tool, n)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// mcpOracle is an MCP server by hand, over HTTP, that counts what it does. A
// tool's name says how it behaves.
type mcpOracle struct {
	*httptest.Server
	mu      sync.Mutex
	done    []string
	greeted int
	listed  int
	resumed int
	deleted int
	auth    []string
	version int
	release chan struct{}
}

func mustMCPOracle(t *testing.T) *mcpOracle {
	t.Helper()
	o := &mcpOracle{release: make(chan struct{}), version: 1}
	o.Server = httptest.NewServer(o)
	t.Cleanup(func() {
		close(o.release)
		o.CloseClientConnections()
		o.Close()
	})
	return o
}

func (o *mcpOracle) counts() (done []string, greeted, listed, resumed, deleted int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.done), o.greeted, o.listed, o.resumed, o.deleted
}

func (o *mcpOracle) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name string `json:"name"`
		} `json:"params"`
	}
	_ = json.Unmarshal(body, &m)
	o.mu.Lock()
	o.auth = append(o.auth, r.Header.Get("Authorization"))
	version := o.version
	switch {
	case r.Method == http.MethodGet:
		o.resumed++
	case r.Method == http.MethodDelete:
		o.deleted++
	case m.Method == "initialize":
		o.greeted++
	case m.Method == "tools/list":
		o.listed++
	case m.Method == "tools/call":
		o.done = append(o.done, m.Params.Name)
	}
	o.mu.Unlock()
	switch {
	case r.Method == http.MethodGet:
		o.resume(w, r)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	case len(m.ID) == 0:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == "initialize":
		w.Header().Set("Mcp-Session-Id", "s-1")
		answer(w, m.ID, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"oracle","version":"1"}}`)
	case m.Method == "tools/list":
		var tools []string
		for _, name := range oracleTools {
			tools = append(tools, fmt.Sprintf(`{"name":%q,"description":"version %d","inputSchema":{"type":"object"}}`, name, version))
		}
		answer(w, m.ID, `{"tools":[`+strings.Join(tools, ",")+`]}`)
	case m.Method == "tools/call":
		o.call(w, r, m.ID, m.Params.Name)
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
	}
}

var oracleTools = []string{"say", "hang", "500", "500-rpc", "404", "401", "302", "cut", "cut-before", "big", "big-event", "stream", "noise", "inside", "refuse",
	"other-id", "twice", "resume", "silent-end", "html", "drip", "echo-auth", "400-rpc"}

func answer(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func event(w http.ResponseWriter, id string, data string) {
	if id != "" {
		fmt.Fprintf(w, "id: %s\n", id)
	}
	fmt.Fprintf(w, "data: %s\n\n", data)
	w.(http.Flusher).Flush()
}

func (o *mcpOracle) resume(w http.ResponseWriter, r *http.Request) {
	last, id, _ := strings.Cut(r.Header.Get("Last-Event-ID"), "/")
	if last != "ev" {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event(w, "ev2/"+id, `{"jsonrpc":"2.0","id":`+id+`,"result":{"content":[{"type":"text","text":"resumed"}]}}`)
}

func (o *mcpOracle) call(w http.ResponseWriter, r *http.Request, id json.RawMessage, name string) {
	stream := func() { w.Header().Set("Content-Type", "text/event-stream") }
	rpc := `{"jsonrpc":"2.0","id":` + string(id) + `,`
	result := rpc + `"result":{"content":[{"type":"text","text":"done"}]}}`
	switch name {
	case "hang":
		select {
		case <-o.release:
		case <-r.Context().Done():
		}
	case "500":
		http.Error(w, "broke with "+r.Header.Get("Authorization"), http.StatusInternalServerError)
	case "500-rpc", "400-rpc":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(map[string]int{"500-rpc": 500, "400-rpc": 400}[name])
		fmt.Fprint(w, rpc+`"error":{"code":-32000,"message":"broke"}}`)
	case "404":
		http.Error(w, "session not found", http.StatusNotFound)
	case "401":
		http.Error(w, "", http.StatusUnauthorized)
	case "302":
		http.Redirect(w, r, "http://127.0.0.1:1/"+canary, http.StatusTemporaryRedirect)
	case "cut", "cut-before":
		conn, _, _ := w.(http.Hijacker).Hijack()
		if name == "cut" {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"jsonrpc\"")
		}
		_ = conn.Close()
	case "big", "big-event":
		w.Header().Set("Content-Type", "application/json")
		if name == "big-event" {
			stream()
			fmt.Fprint(w, "id: ev/", string(id), "\ndata: ")
		}
		fmt.Fprint(w, rpc, `"result":{"content":[{"type":"text","text":"`)
		part := strings.Repeat("x", 1<<20)
		for range 100 {
			if _, err := io.WriteString(w, part); err != nil {
				return
			}
		}
		fmt.Fprint(w, "\"}]}}\n\n")
	case "stream":
		stream()
		event(w, "", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
		event(w, "", result)
	case "noise":
		stream()
		for {
			event(w, "", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"`+strings.Repeat("x", 1<<20)+`"}}`)
			if r.Context().Err() != nil {
				return
			}
		}
	case "inside":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, rpc+`"error":{"code":-32603,"message":"broke with `+r.Header.Get("Authorization")+`"}}`)
	case "refuse":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, rpc+`"error":{"code":-32602,"message":"bad arguments"}}`)
	case "other-id":
		stream()
		event(w, "", `{"jsonrpc":"2.0","id":99999,"result":{"content":[{"type":"text","text":"not yours"}]}}`)
		event(w, "", result)
	case "twice":
		stream()
		event(w, "", result)
		event(w, "", strings.Replace(result, "done", "again", 1))
	case "resume":
		stream()
		fmt.Fprint(w, "retry: 10\n")
		event(w, "ev/"+string(id), "")
	case "silent-end":
		stream()
		event(w, "", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
	case "html":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<p>hello")
	case "drip":
		stream()
		for r.Context().Err() == nil {
			fmt.Fprint(w, ": still here\n\n")
			w.(http.Flusher).Flush()
			time.Sleep(5 * time.Millisecond)
		}
	case "echo-auth":
		answer(w, id, `{"content":[],"structuredContent":{"got":"`+r.Header.Get("Authorization")+`"}}`)
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, result)
	}
}

func TestWhatBecomesOfAnMCPCall(t *testing.T) {
	for _, c := range []struct {
		tool      string
		code      workbench.Code
		uncertain bool
		result    string
	}{
		{"say", "", false, `"done"`},
		{"stream", "", false, `"done"`},
		{"other-id", "", false, `"done"`},
		{"twice", "", false, `"done"`},
		{"resume", "", false, `"resumed"`},
		{"echo-auth", "", false, `{"got":"Bearer [redacted]"}`},
		{"hang", workbench.CodeToolTimeout, true, ""},
		{"drip", workbench.CodeToolTimeout, true, ""},
		{"500", workbench.CodeToolFailed, true, ""},
		{"500-rpc", workbench.CodeToolFailed, true, ""},
		{"400-rpc", workbench.CodeToolFailed, false, ""},
		{"404", workbench.CodeToolUnavailable, false, ""},
		{"401", workbench.CodeToolFailed, false, ""},
		{"302", workbench.CodeToolFailed, false, ""},
		{"cut", workbench.CodeToolUnavailable, true, ""},
		{"cut-before", workbench.CodeToolUnavailable, true, ""},
		{"silent-end", workbench.CodeToolUnavailable, true, ""},
		{"html", workbench.CodeToolFailed, true, ""},
		{"big", workbench.CodeResultTooLarge, true, ""},
		{"big-event", workbench.CodeResultTooLarge, true, ""},
		{"noise", workbench.CodeResultTooLarge, true, ""},
		{"inside", workbench.CodeToolFailed, true, ""},
		{"refuse", workbench.CodeToolFailed, false, ""},
	} {
		t.Run(c.tool, func(t *testing.T) {
			t.Parallel()
			o := mustMCPOracle(t)
			w := mustWorld(t, upstream.Options{})
			app := mcpApp(o.URL)
			if c.code == workbench.CodeToolTimeout {
				app.Config.TimeoutMs = 3000
			}
			tools := w.mustTools(app, bearer())
			a, err := w.ask(t.Context(), app, tools[c.tool], `{"a":1}`, bearer())
			if c.code == "" {
				if err != nil || string(a.Result) != c.result {
					t.Errorf("%s (%v), want %s", a.Result, err, c.result)
				}
			} else {
				w.mustFail(err, c.code, c.uncertain)
			}
			done, _, _, resumed, _ := o.counts()
			if !slices.Equal(done, []string{c.tool}) {
				t.Errorf("done: %q", done)
			}
			if (c.tool == "resume") != (resumed > 0) {
				t.Errorf("a stream was taken up again %d times", resumed)
			}
			// The next call works, whatever became of this one.
			if a, err := w.ask(t.Context(), app, tools["say"], ``, bearer()); err != nil || string(a.Result) != `"done"` {
				// A session that was lost is seen to be so at the latest now.
				if upstream.Uncertain(err) {
					t.Fatalf("the next call: %s, %v", a.Result, err)
				}
				if _, err := w.ask(t.Context(), app, tools["say"], ``, bearer()); err != nil {
					t.Fatalf("the call after: %v", err)
				}
			}
		})
	}
}

func TestAnMCPSessionIsSetUpOnce(t *testing.T) {
	o := mustMCPOracle(t)
	w := mustWorld(t, upstream.Options{})
	app := mcpApp(o.URL)
	spec := workbench.ToolSpec{Name: "say", Description: "version 1", InputSchema: json.RawMessage(`{"type":"object"}`),
		Annotations: workbench.ToolAnnotations{Destructive: true, OpenWorld: true}, Binding: json.RawMessage(`{"kind":"mcp"}`)}
	errs := make(chan error, 20)
	for range 20 {
		go func() {
			_, err := w.Call(t.Context(), app, toolOf(app, spec), nil, nil)
			errs <- err
		}()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	done, greeted, listed, _, _ := o.counts()
	if len(done) != 20 || greeted != 1 || listed != 1 {
		t.Errorf("%d calls, %d greetings, %d lists", len(done), greeted, listed)
	}
	if _, err := w.Call(t.Context(), app, toolOf(app, spec), nil, bearer()); err != nil {
		t.Fatal(err)
	}
	if _, greeted, _, _, _ = o.counts(); greeted != 2 {
		t.Errorf("a connection shares the session of none: %d greetings", greeted)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, _, _, deleted := o.counts(); deleted != 2 {
		t.Errorf("%d sessions were ended, want 2", deleted)
	}
}

func TestAChangeBehindASessionIsNoticed(t *testing.T) {
	o := mustMCPOracle(t)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var mu sync.Mutex
	w := mustWorld(t, upstream.Options{Clock: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	app := mcpApp(o.URL)
	tools := w.mustTools(app, nil)
	o.mu.Lock()
	o.version = 2
	o.mu.Unlock()
	mu.Lock()
	now = now.Add(2 * time.Minute)
	mu.Unlock()
	_, err := w.ask(t.Context(), app, tools["say"], ``, nil)
	w.mustFail(err, workbench.CodeToolChanged, false)
	if done, _, _, _, _ := o.counts(); len(done) != 0 {
		t.Errorf("done: %q", done)
	}
}

func TestAnIdleSessionEnds(t *testing.T) {
	o := mustMCPOracle(t)
	w := mustWorld(t, upstream.Options{IdleAfter: 20 * time.Millisecond})
	w.mustTools(mcpApp(o.URL), nil)
	waitFor(t, func() bool { _, _, _, _, deleted := o.counts(); return deleted == 1 })
}

func TestARevokedConnectionIsUsedNoMore(t *testing.T) {
	o := mustMCPOracle(t)
	w := mustWorld(t, upstream.Options{})
	app := mcpApp(o.URL)
	tools := w.mustTools(app, bearer())
	errs := make(chan error, 1)
	go func() {
		_, err := w.Call(t.Context(), app, tools["hang"], nil, bearer())
		errs <- err
	}()
	waitFor(t, func() bool { done, _, _, _, _ := o.counts(); return len(done) == 1 })
	w.Forget("con_1")
	w.mustFail(<-errs, workbench.CodeToolUnavailable, true)
	o.mu.Lock()
	used := len(o.auth)
	o.mu.Unlock()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.auth) != used {
		t.Errorf("the credentials were used %d times more", len(o.auth)-used)
	}
}

func TestAnMCPServerThatIsNone(t *testing.T) {
	for status, hint := range map[int]string{401: "connection", 403: "connection", 404: "URL", 500: "URL"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "you sent "+r.Header.Get("Authorization"), status)
		}))
		w := mustWorld(t, upstream.Options{})
		_, err := w.Import(t.Context(), mcpApp(s.URL), bearer())
		e := w.mustFail(err, workbench.CodeToolUnavailable, false)
		w.mustHide("the error", err.Error())
		if !strings.Contains(e.Detail, fmt.Sprint(status)) || !strings.Contains(e.Hint, hint) {
			t.Errorf("%d: %s (%s)", status, e.Detail, e.Hint)
		}
		s.Close()
	}
}

func TestAListWithoutEnd(t *testing.T) {
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		switch {
		case len(m.ID) == 0:
			w.WriteHeader(http.StatusAccepted)
		case m.Method == "initialize":
			answer(w, m.ID, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"endless","version":"1"}}`)
		case m.Method == "tools/list":
			n++
			answer(w, m.ID, fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{"type":"object"}}],"nextCursor":"c%d"}`, n, n))
		default:
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer s.Close()
	w := mustWorld(t, upstream.Options{})
	_, err := w.Import(t.Context(), mcpApp(s.URL), nil)
	w.mustFail(err, workbench.CodeToolFailed, false)
	if n > 1000 {
		t.Errorf("%d pages were asked for", n)
	}
}

package e2e_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/broker"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

const (
	useAI     = `permit(principal, action == Action::"use", resource == Service::"ai");`
	useSearch = `permit(principal, action == Action::"use", resource == Service::"search");`
)

// talker is a language model: it speaks OpenAI's protocol of chat completions,
// gives its answers in turn and keeps what it was asked.
type talker struct {
	*httptest.Server
	mu      sync.Mutex
	says    []string
	instead http.HandlerFunc // of an answer
	asked   []string         // bodies
	auth    string
}

func mustTalker(t *testing.T) *talker {
	t.Helper()
	m := &talker{}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	return m
}

func (m *talker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m.mu.Lock()
	m.asked, m.auth = append(m.asked, string(body)), r.Header.Get("Authorization")
	instead, said := m.instead, "nothing"
	if len(m.says) > 0 {
		said, m.says = m.says[0], m.says[1:]
	}
	m.mu.Unlock()
	if instead != nil {
		instead(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "created": 1,
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": said}}},
		"usage":   map[string]any{"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}})
}

func (m *talker) answers(says ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.says, m.instead = says, nil
}

func (m *talker) does(h http.HandlerFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.instead = h
}

func (m *talker) questions() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

func TestAIFromInside(t *testing.T) {
	t.Parallel() // it waits more than it works
	const key = "canary-ai-5d2f81c07b9e4a36"
	m := mustTalker(t)
	w := mustWorld(t, func(o *server.Options) {
		o.Services.AI = broker.NewAI(broker.AIOptions{BaseURL: m.URL + "/v1", Model: "small", Key: key})
	})
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	seen := map[string]string{}
	t.Run("without a rule nothing is asked", func(t *testing.T) {
		r := s.mustPython(`
try: workbench.ai.complete("private question")
except workbench.WorkbenchError as e: print(e.code, "Service" in e.hint)
`)
		wantOut(t, r, "access_denied True\n")
		if n := m.questions(); n != 0 {
			t.Errorf("the model was asked %d times", n)
		}
	})
	w.rules(t, "ai", useAI+`forbid(principal, action == Action::"use", resource == Service::"ai") when { context.detail.task == "summarise" && context.run.language == "bash" };`)
	t.Run("tasks", func(t *testing.T) {
		m.answers("42", " Short. ", `{"label": "praise"}`, "I would say twelve", "```json\n{\"total\": 12.5}\n```")
		r := s.mustPython(`
print(workbench.ai.complete("6*7?", system="be brief", max_tokens=5))
print(workbench.ai.summarise("a long private text", words=5))
print(workbench.ai.classify("great", ["complaint", "praise"]))
print(workbench.ai.extract("12.50", {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}))
`)
		wantOut(t, r, "42\nShort.\npraise\n{'total': 12.5}\n")
		m.mu.Lock()
		auth := m.auth
		m.mu.Unlock()
		if auth != "Bearer "+key || m.questions() != 5 {
			t.Errorf("the model was asked %d times with %q", m.questions(), auth)
		}
		if got := r.Services["ai"]; got != (workbench.ServiceUse{Calls: 4, InputTokens: 50, OutputTokens: 15}) {
			t.Errorf("the receipt counts %+v", got)
		}
		rows := w.rest(t, http.MethodGet, "/v1/workbench/audit?action=service.use&target="+r.ID, nil, http.StatusOK)["items"].([]any)
		if len(rows) != 4 || !strings.Contains(fmt.Sprint(rows[0]), "task:extract") || !strings.Contains(fmt.Sprint(rows[0]), "model:small") {
			t.Errorf("the trail tells of %v", rows)
		}
		if trail := fmt.Sprint(rows); strings.Contains(trail, "private") || strings.Contains(trail, "praise") {
			t.Errorf("the trail holds contents: %s", trail)
		}
		seen["stdout"] = text(r.Stdout)
	})
	t.Run("other languages", func(t *testing.T) {
		m.answers(`{"label": "b"}`, `{"n": 1}`)
		wantOut(t, s.mustRun(sdk.CreateRun{Language: workbench.JavaScript, Code: `console.log(await workbench.ai.classify("x", ["a", "b"]));
console.log(await workbench.ai.extract("one", { type: "object", properties: { n: { type: "integer" } } }));`}), "b\n{ n: 1 }\n")
		m.answers("hello")
		r := s.mustBash(`echo hi | workbench ai complete; workbench ai summarise "text" || echo refused`)
		wantOut(t, r, "hello\nrefused\n")
		if !strings.Contains(text(r.Stderr), "access_denied") {
			t.Errorf("a rule that forbids it says %q", text(r.Stderr))
		}
	})
	t.Run("an answer that is never what was asked for", func(t *testing.T) {
		m.answers(`{"total": "a lot"}`, `{"sum": 1}`, `{"total": 1}`)
		before := m.questions()
		r := s.mustPython(`
try: workbench.ai.extract("12.50", {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]})
except workbench.WorkbenchError as e: print(e.code, "total" in e.detail)
`)
		wantOut(t, r, "tool_failed True\n")
		if n := m.questions() - before; n != 2 || r.Services["ai"].InputTokens != 20 {
			t.Errorf("the model was asked %d times; the receipt counts %+v", n, r.Services["ai"])
		}
	})
	t.Run("a key that comes back is struck out", func(t *testing.T) {
		m.answers("your key is "+key+", in base64 "+base64.StdEncoding.EncodeToString([]byte(key)), `{"label": "a", "key": "`+key+`"}`)
		r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Keep: []string{"**"}, Code: `
import os, glob
print(workbench.ai.complete("what is your key?"), workbench.ai.classify("x", ["a", "b"]), dict(os.environ))
for f in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
    try: print(open(f, "rb").read())
    except OSError: pass
open("kept.txt", "w").write("done")
`})
		if !strings.HasPrefix(text(r.Stdout), "your key is [redacted], in base64 [redacted]") {
			t.Errorf("the code reads %q", text(r.Stdout))
		}
		seen["stdout of the echo"] = text(r.Stdout)
	})
	t.Run("faults", func(t *testing.T) {
		for _, c := range []struct {
			name string
			does http.HandlerFunc
			want string
		}{
			{"fails", func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "broken "+key, http.StatusInternalServerError)
			}, "tool_unavailable"},
			{"refuses the key", func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, `{"error": {"message": "`+key+` is wrong"}}`, http.StatusUnauthorized)
			}, "tool_unavailable"},
			{"asks for patience", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }, "tool_unavailable"},
			{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "tool_unavailable"},
			{"says something else", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>welcome "+key) }, "tool_failed"},
			{"says nothing", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"choices": []}`) }, "tool_failed"},
			{"sends elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/else", http.StatusFound) }, "tool_failed"},
			{"never ends", func(w http.ResponseWriter, _ *http.Request) {
				for part := bytes.Repeat([]byte(" "), 1<<20); ; {
					if _, err := w.Write(part); err != nil {
						return
					}
				}
			}, "tool_failed"},
		} {
			m.does(c.does)
			before := m.questions()
			r := s.mustPython("try: workbench.ai.complete('x')\nexcept workbench.WorkbenchError as e: print(e.code, e)")
			if code, _, _ := strings.Cut(text(r.Stdout), " "); code != c.want {
				t.Errorf("a model that %s: %q, want %s", c.name, text(r.Stdout), c.want)
			}
			if n := m.questions() - before; n != 1 {
				t.Errorf("a model that %s was asked %d times", c.name, n)
			}
			seen["error of a model that "+c.name] = text(r.Stdout)
		}
	})
	t.Run("a slow one is given up with the run", func(t *testing.T) {
		asked, gone := make(chan struct{}), make(chan struct{})
		m.does(func(_ http.ResponseWriter, r *http.Request) {
			close(asked)
			<-r.Context().Done()
			close(gone)
		})
		run := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, Code: "workbench.ai.complete('x')"})
		wait(t, asked, "the model is asked")
		if _, err := s.c.CancelRun(t.Context(), run); err != nil {
			t.Fatal(err)
		}
		wantEnd(t, s.mustWait(run), workbench.StatusCancelled, workbench.ReasonCancelled)
		wait(t, gone, "the request is given up")
	})
	t.Run("one that is not there", func(t *testing.T) {
		m.Close()
		r := s.mustPython("try: workbench.ai.complete('x')\nexcept workbench.WorkbenchError as e: print(e.code, e.hint)")
		wantOut(t, r, "tool_unavailable ask again\n")
	})
	w.wantNoSecret(t, seen, key)
}

// wait fails unless it happens soon.
func wait(t *testing.T, happened <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not within 20 s", what)
	}
}

// wantNoSecret fails where a secret, in any usual form, is in what was seen, or in
// the server's log, audit trail, lists or data directory.
func (w *world) wantNoSecret(t *testing.T, seen map[string]string, secrets ...string) {
	t.Helper()
	seen["log"] = w.log.whole()
	for _, list := range []string{"audit?limit=200", "connections", "apps", "receipts?limit=200"} {
		seen[list] = fmt.Sprint(w.rest(t, http.MethodGet, "/v1/workbench/"+list, nil, http.StatusOK))
	}
	err := filepath.WalkDir(filepath.Join(w.dir, "data"), func(path string, e os.DirEntry, err error) error {
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
			for _, form := range []string{secret, encoded(secret), hex.EncodeToString([]byte(secret)), url.QueryEscape(secret)} {
				if strings.Contains(content, form) {
					t.Errorf("secret %d is in %s", i, where)
				}
			}
		}
	}
}

const searches = `
for p in workbench.web.search("town hall", limit=2): print(p.title, p.url, p.snippet)
`

const foundPages = "A https://a.example about a\nB https://b.example \n"

func TestWebSearchFromInside(t *testing.T) {
	t.Parallel() // it waits more than it works
	const key = "canary-search-90b1c2d3e4f5a687"
	for _, c := range []struct {
		provider, path, answer string
		sends                  func(r *http.Request) string // the key, where it is sent
	}{
		{"searxng", "/search", `{"results": [{"title": "A", "url": "https://a.example", "content": "about a"}, {"title": "odd", "url": "javascript:alert(1)"}, {"title": "B", "url": "https://b.example"}, {"title": "C", "url": "https://c.example"}]}`,
			func(*http.Request) string { return key }},
		{"brave", "/res/v1/web/search", `{"web": {"results": [{"title": "A", "url": "https://a.example", "description": "about a"}, {"title": "B", "url": "https://b.example"}]}}`,
			func(r *http.Request) string { return r.Header.Get("X-Subscription-Token") }},
		{"tavily", "/search", `{"results": [{"title": "A", "url": "https://a.example", "content": "about a"}, {"title": "B", "url": "https://b.example"}]}`,
			func(r *http.Request) string { return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") }},
	} {
		t.Run(c.provider, func(t *testing.T) {
			o := mustOracle(t)
			search, err := broker.NewSearch(broker.SearchOptions{Provider: c.provider, URL: o.URL, Key: key})
			if err != nil {
				t.Fatal(err)
			}
			w := mustWorld(t, func(o *server.Options) { o.Services.Search = search })
			s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
			denied := s.mustPython("try: workbench.web.search('town hall')\nexcept workbench.WorkbenchError as e: print(e.code)")
			wantOut(t, denied, "access_denied\n")
			if o.executed() != 0 {
				t.Fatal("the provider was asked without a rule")
			}
			w.rules(t, "search", useSearch)
			var sent atomic.Value
			o.answers(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == c.path {
					sent.Store(c.sends(r))
					_, _ = io.WriteString(w, c.answer)
				}
			})
			r := s.mustPython(searches)
			wantOut(t, r, foundPages)
			if sent.Load() != key || r.Services["search"].Calls != 1 {
				t.Errorf("the provider got the key %q; the receipt counts %+v", sent.Load(), r.Services)
			}
			seen := map[string]string{}
			for name, answer := range map[string]http.HandlerFunc{
				"tool_failed":      func(w http.ResponseWriter, _ *http.Request) { http.Error(w, key, http.StatusInternalServerError) },
				"tool_unavailable": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, key, http.StatusForbidden) },
			} {
				o.answers(answer)
				before := o.executed()
				r := s.mustPython("try: workbench.web.search('town hall')\nexcept workbench.WorkbenchError as e: print(e.code, e)")
				if !strings.HasPrefix(text(r.Stdout), name+" ") || o.executed()-before != 1 {
					t.Errorf("a provider that fails: %q, want %s; it was asked %d times", text(r.Stdout), name, o.executed()-before)
				}
				seen[name] = text(r.Stdout)
			}
			o.answers(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[{]") })
			wantOut(t, s.mustPython("try: workbench.web.search('town hall')\nexcept workbench.WorkbenchError as e: print(e.code)"), "tool_failed\n")
			w.wantNoSecret(t, seen, key)
		})
	}
	t.Run("a tool of an MCP server", func(t *testing.T) {
		var mu sync.Mutex
		var queries []string
		type query struct {
			Query string `json:"query"`
		}
		tools := mcp.NewServer(&mcp.Implementation{Name: "pages", Version: "1"}, nil)
		mcp.AddTool(tools, &mcp.Tool{Name: "search", Description: "Searches pages."}, func(_ context.Context, _ *mcp.CallToolRequest, q query) (*mcp.CallToolResult, any, error) {
			mu.Lock()
			defer mu.Unlock()
			queries = append(queries, q.Query)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: `[{"title": "A", "link": "https://a.example", "snippet": "about a"}, {"title": "B", "link": "https://b.example"}]`}}}, nil, nil
		})
		host := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tools }, nil))
		defer host.Close()
		search, err := broker.NewSearch(broker.SearchOptions{Provider: "tool", Tool: workbench.ToolRef{Name: "pages.search", Version: "1"}})
		if err != nil {
			t.Fatal(err)
		}
		w := mustWorld(t, func(o *server.Options) { o.Services.Search = search })
		w.rules(t, "search", useSearch)
		w.mustTools(t, "pages", map[string]any{"kind": "mcp_http", "config": map[string]any{"url": host.URL}})
		ada := w.mustUser(t, "acme", "ada")
		s := mustSessionOf(t, ada, sdk.CreateSession{Tools: refs("pages.search")})
		const tries = "try: print(workbench.web.search('town hall'))\nexcept workbench.WorkbenchError as e: print(e.code)"
		wantOut(t, s.mustPython(tries), "tool_failed\n") // no rule for the tool
		w.rules(t, "access", allowAll)
		r := s.mustPython(searches)
		wantOut(t, r, foundPages)
		if len(r.Dependencies) != 1 || r.Dependencies[0].Tool != "pages.search" || r.ToolCalls != 1 {
			t.Errorf("the run depends on %+v and made %d calls", r.Dependencies, r.ToolCalls)
		}
		without := mustSessionOf(t, ada, sdk.CreateSession{})
		wantOut(t, without.mustPython(tries), "tool_not_allowed\n")
		mu.Lock()
		defer mu.Unlock()
		if len(queries) != 1 || queries[0] != "town hall" {
			t.Errorf("the tool was asked %q", queries)
		}
	})
}

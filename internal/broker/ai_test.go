package broker_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/broker"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/upstream"
)

const key = "canary-key-0123456789abcdef"

// desk is a governed path that allows what it is told to, and counts.
type desk struct {
	mu     sync.Mutex
	denied bool
	uses   []string
	tokens [2]int64
	calls  []govern.CallRequest
	answer workbench.ToolReceipt
}

func (d *desk) Call(_ context.Context, _ govern.Caller, req govern.CallRequest) (workbench.ToolReceipt, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, req)
	return d.answer, nil
}

func (d *desk) Receipt(context.Context, workbench.Principal, string, time.Duration) (workbench.ToolReceipt, error) {
	return d.answer, nil
}

func (d *desk) Search(context.Context, workbench.Session, string, int) ([]govern.Found, error) {
	return []govern.Found{}, nil
}

func (d *desk) Schema(context.Context, workbench.Session, govern.CallRequest) (govern.Found, error) {
	return govern.Found{}, nil
}

func (d *desk) Use(_ context.Context, _ govern.Caller, service string, _ int, detail map[string]string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.denied {
		return workbench.E(workbench.CodeAccessDenied, "no")
	}
	d.uses = append(d.uses, service+" "+detail["task"]+detail["provider"])
	return nil
}

func (d *desk) Fetch(context.Context, govern.Caller, upstream.FetchRequest, string) (upstream.FetchAnswer, error) {
	return upstream.FetchAnswer{}, nil
}

func (d *desk) Used(_ context.Context, _ govern.Caller, _ string, input, output int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens[0] += input
	d.tokens[1] += output
	return nil
}

// model is an endpoint that speaks OpenAI's protocol of chat completions: it
// gives its answers in turn, and keeps what it was asked.
type model struct {
	*httptest.Server
	mu      sync.Mutex
	asked   []map[string]any
	auth    string
	answers []string
	status  int
}

func mustModel(t *testing.T, answers ...string) *model {
	t.Helper()
	m := &model{answers: answers}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req map[string]any
		if r.URL.Path != "/v1/chat/completions" || json.NewDecoder(r.Body).Decode(&req) != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.asked, m.auth = append(m.asked, req), r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/json")
		if m.status != 0 {
			w.WriteHeader(m.status)
			_, _ = io.WriteString(w, `{"error": {"message": "key `+key+` is wrong", "type": "invalid_request_error"}}`)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "created": 1,
			"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": m.answers[min(len(m.asked), len(m.answers))-1]}}},
			"usage":   map[string]any{"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}})
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *model) broker(d *desk) *broker.Broker {
	return broker.New(d, broker.Options{AI: broker.NewAI(broker.AIOptions{BaseURL: m.URL + "/v1/", Model: "m", Key: key})})
}

func ask(t *testing.T, b *broker.Broker, args any) (string, error) {
	t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	answer, _, err := b.Serve(t.Context(), govern.Caller{}, guestwire.OpAI, raw)
	if err != nil {
		return "", err
	}
	var got guestwire.AIAnswer
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Fatal(err)
	}
	return string(got.Output), nil
}

func TestAI(t *testing.T) {
	schema := json.RawMessage(`{"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}`)
	t.Run("tasks", func(t *testing.T) {
		for _, c := range []struct {
			name, answer, want string
			args               guestwire.AIArgs
		}{
			{"summary", " Short. ", `"Short."`, guestwire.AIArgs{Task: guestwire.AISummarise, Input: "long", Words: 5}},
			{"completion", "42", `"42"`, guestwire.AIArgs{Task: guestwire.AIComplete, Input: "6*7?", System: "be brief"}},
			{"label", `{"label": "praise"}`, `"praise"`, guestwire.AIArgs{Task: guestwire.AIClassify, Input: "great", Labels: []string{"praise", "complaint"}}},
			{"object in a fence", "```json\n{\"total\": 12.5}\n```", `{"total":12.5}`, guestwire.AIArgs{Task: guestwire.AIExtract, Input: "12.50", Schema: schema}},
		} {
			t.Run(c.name, func(t *testing.T) {
				m, d := mustModel(t, c.answer), &desk{}
				got, err := ask(t, m.broker(d), c.args)
				if err != nil {
					t.Fatal(err)
				}
				if strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(c.want, " ", "") {
					t.Errorf("the answer is %s, want %s", got, c.want)
				}
				if m.auth != "Bearer "+key || m.asked[0]["model"] != "m" {
					t.Errorf("the endpoint was asked with %q for %v", m.auth, m.asked[0]["model"])
				}
				if d.tokens != [2]int64{10, 3} || len(d.uses) != 1 || d.uses[0] != "ai "+c.args.Task {
					t.Errorf("what was counted: %v %v", d.uses, d.tokens)
				}
			})
		}
	})
	t.Run("an answer that is not what was asked for is asked for once more, and then given up", func(t *testing.T) {
		m, d := mustModel(t, `{"total": "twelve"}`, `{"total": 12}`), &desk{}
		got, err := ask(t, m.broker(d), guestwire.AIArgs{Task: guestwire.AIExtract, Input: "x", Schema: schema})
		if err != nil || strings.ReplaceAll(got, " ", "") != `{"total":12}` {
			t.Fatalf("the answer is %s (%v)", got, err)
		}
		if d.tokens != [2]int64{20, 6} || len(m.asked[1]["messages"].([]any)) != 4 {
			t.Errorf("the second question has %d messages; tokens %v", len(m.asked[1]["messages"].([]any)), d.tokens)
		}
		bad, d := mustModel(t, "I would say praise"), &desk{}
		_, err = ask(t, bad.broker(d), guestwire.AIArgs{Task: guestwire.AIClassify, Input: "x", Labels: []string{"a", "b"}})
		if !workbench.HasCode(err, workbench.CodeToolFailed) || len(bad.asked) != 2 || d.tokens[0] != 20 {
			t.Errorf("error %v after %d questions, tokens %v", err, len(bad.asked), d.tokens)
		}
	})
	t.Run("what the rules deny is not asked", func(t *testing.T) {
		m := mustModel(t, "x")
		_, err := ask(t, m.broker(&desk{denied: true}), guestwire.AIArgs{Task: guestwire.AIComplete, Input: "x"})
		if !workbench.HasCode(err, workbench.CodeAccessDenied) || len(m.asked) != 0 {
			t.Errorf("error %v, the endpoint was asked %d times", err, len(m.asked))
		}
	})
	t.Run("the endpoint's errors are told without its key", func(t *testing.T) {
		for status, code := range map[int]workbench.Code{401: workbench.CodeToolUnavailable, 429: workbench.CodeToolUnavailable, 400: workbench.CodeToolFailed, 500: workbench.CodeToolUnavailable} {
			m := mustModel(t, "x")
			m.status = status
			_, err := ask(t, m.broker(&desk{}), guestwire.AIArgs{Task: guestwire.AIComplete, Input: "x"})
			if !workbench.HasCode(err, code) || strings.Contains(err.Error(), key) {
				t.Errorf("%d: %v", status, err)
			}
		}
	})
	t.Run("bad questions name their field", func(t *testing.T) {
		m := mustModel(t, "x")
		for field, args := range map[string]guestwire.AIArgs{
			"task":   {Task: "guess", Input: "x"},
			"input":  {Task: guestwire.AIComplete},
			"labels": {Task: guestwire.AIClassify, Input: "x", Labels: []string{"one"}},
			"schema": {Task: guestwire.AIExtract, Input: "x", Schema: json.RawMessage(`{"$ref": "http://127.0.0.1/x"}`)},
			"words":  {Task: guestwire.AISummarise, Input: "x", Words: -1},
		} {
			_, err := ask(t, m.broker(&desk{}), args)
			if e := workbench.AsError(err); e == nil || e.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
		if len(m.asked) != 0 {
			t.Errorf("the endpoint was asked %d times", len(m.asked))
		}
	})
	t.Run("without an endpoint", func(t *testing.T) {
		_, err := ask(t, broker.New(&desk{}, broker.Options{}), guestwire.AIArgs{Task: guestwire.AIComplete, Input: "x"})
		if !workbench.HasCode(err, workbench.CodeToolUnavailable) || workbench.AsError(err).Hint == "" {
			t.Error(err)
		}
	})
}

func TestWebSearch(t *testing.T) {
	type asked struct {
		path, query, auth, token, body string
	}
	serve := func(t *testing.T, answer string) (*httptest.Server, *asked) {
		t.Helper()
		seen := &asked{}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			*seen = asked{r.URL.Path, r.URL.Query().Get("q"), r.Header.Get("Authorization"), r.Header.Get("X-Subscription-Token"), string(body)}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
		}))
		t.Cleanup(s.Close)
		return s, seen
	}
	search := func(t *testing.T, d *desk, o broker.SearchOptions) (guestwire.FoundPages, error) {
		t.Helper()
		s, err := broker.NewSearch(o)
		if err != nil {
			t.Fatal(err)
		}
		raw, _, err := broker.New(d, broker.Options{Search: s}).Serve(t.Context(), govern.Caller{}, guestwire.OpWebSearch, json.RawMessage(`{"query": "town hall", "limit": 2}`))
		var got guestwire.FoundPages
		if err == nil {
			err = json.Unmarshal(raw, &got)
		}
		return got, err
	}
	want := func(t *testing.T, got guestwire.FoundPages, err error) {
		t.Helper()
		if err != nil || len(got.Items) != 2 || got.Items[0] != (guestwire.FoundPage{Title: "A", URL: "https://a.example", Snippet: "about a"}) {
			t.Fatalf("found %+v (%v)", got, err)
		}
	}
	t.Run("searxng", func(t *testing.T) {
		s, seen := serve(t, `{"results": [{"title": "A", "url": "https://a.example", "content": "about a"}, {"title": "odd", "url": "javascript:alert(1)"}, {"title": "B", "url": "https://b.example"}, {"title": "C", "url": "https://c.example"}]}`)
		got, err := search(t, &desk{}, broker.SearchOptions{Provider: "searxng", URL: s.URL})
		want(t, got, err)
		if seen.path != "/search" || seen.query != "town hall" {
			t.Errorf("it was asked %+v", seen)
		}
	})
	t.Run("brave", func(t *testing.T) {
		s, seen := serve(t, `{"web": {"results": [{"title": "A", "url": "https://a.example", "description": "about a"}, {"title": "B", "url": "https://b.example"}]}}`)
		got, err := search(t, &desk{}, broker.SearchOptions{Provider: "brave", URL: s.URL, Key: key})
		want(t, got, err)
		if seen.path != "/res/v1/web/search" || seen.token != key {
			t.Errorf("it was asked %+v", seen)
		}
	})
	t.Run("tavily", func(t *testing.T) {
		s, seen := serve(t, `{"results": [{"title": "A", "url": "https://a.example", "content": "about a"}, {"title": "B", "url": "https://b.example"}]}`)
		got, err := search(t, &desk{}, broker.SearchOptions{Provider: "tavily", URL: s.URL, Key: key})
		want(t, got, err)
		if seen.path != "/search" || seen.auth != "Bearer "+key || !strings.Contains(seen.body, "town hall") {
			t.Errorf("it was asked %+v", seen)
		}
	})
	t.Run("a tool of the session", func(t *testing.T) {
		d := &desk{answer: workbench.ToolReceipt{ID: "rcp_1", Status: workbench.CallSucceeded,
			Result: json.RawMessage(`"[{\"title\": \"A\", \"link\": \"https://a.example\", \"snippet\": \"about a\"}, {\"title\": \"B\", \"link\": \"https://b.example\"}]"`)}}
		got, err := search(t, d, broker.SearchOptions{Provider: "tool", Tool: workbench.ToolRef{Name: "web.search", Version: "1"}})
		want(t, got, err)
		if len(d.calls) != 1 || string(d.calls[0].Arguments) != `{"query":"town hall"}` {
			t.Errorf("the tool was called with %+v", d.calls)
		}
	})
	t.Run("a provider that is not there", func(t *testing.T) {
		_, err := search(t, &desk{}, broker.SearchOptions{Provider: "searxng", URL: "http://127.0.0.1:1"})
		if !workbench.HasCode(err, workbench.CodeToolUnavailable) {
			t.Error(err)
		}
	})
}

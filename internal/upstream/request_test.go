package upstream_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

func endpoint(method, path, schema string, in map[string]string) workbench.Endpoint {
	return workbench.Endpoint{Name: "t", Method: method, Path: path, InputSchema: json.RawMessage(schema), In: in}
}

func TestWhereArgumentsGo(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	const schema = `{"type":"object","properties":{"id":{},"q":{},"X-Trace":{},"n":{}}}`
	for _, c := range []struct {
		name, args string
		e          workbench.Endpoint
		path       string
		query      string
		header     string
		body       string
	}{
		{"the rest of a GET is a query", `{"id":"a b","q":["x","y&z"],"n":1.50,"z":{"a":1}}`, endpoint("GET", "/u/{id}", schema, nil),
			"/u/a%20b", "n=1.50&q=x&q=y%26z&z=%7B%22a%22%3A1%7D", "", ""},
		{"the rest of a POST is a body", `{"id":7,"q":["x"],"n":12345678901234567890}`, endpoint("POST", "/u/{id}/x", schema, nil),
			"/u/7/x", "", "", `{"n":12345678901234567890,"q":["x"]}`},
		{"declared places", `{"id":true,"q":"s","X-Trace":"t1","n":null}`, endpoint("PUT", "/u/{id}.json", schema, map[string]string{"q": "query", "X-Trace": "header", "id": "path", "n": "body"}),
			"/u/true.json", "q=s", "t1", `{"n":null}`},
		{"nothing", `{"id":"x","q":null}`, endpoint("DELETE", "/u/{id}", schema, nil), "/u/x", "", "", ""},
		{"an empty body", `{"id":"x"}`, endpoint("PATCH", "/u/{id}", schema, nil), "/u/x", "", "", "{}"},
		{"characters of a path", `{"id":"a/b?c#d%2F;e\\f"}`, endpoint("GET", "/u/{id}", schema, nil), "/u/a%2Fb%3Fc%23d%252F%3Be%5Cf", "", "", ""},
		{"two in a segment", `{"id":"a","q":"b"}`, endpoint("GET", "/u/{id}..{q}", schema, nil), "/u/a..b", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			app := workbench.App{ProjectID: "prj_1", Name: "web", Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: o.URL + "/base/", Endpoints: []workbench.Endpoint{c.e}}}
			if _, err := w.ask(t.Context(), app, w.mustTools(app, nil)["t"], c.args, nil); err != nil {
				t.Fatal(err)
			}
			r, body := o.last()
			if got := r.URL.EscapedPath(); got != "/base"+c.path {
				t.Errorf("path %s, want /base%s", got, c.path)
			}
			if r.URL.RawQuery != c.query || r.Header.Get("X-Trace") != c.header || body != c.body || r.Method != c.e.Method {
				t.Errorf("%s, query %s, header %q, body %s", r.Method, r.URL.RawQuery, r.Header.Get("X-Trace"), body)
			}
		})
	}
}

func TestArgumentsThatWouldChangeTheRequest(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	const schema = `{"type":"object","properties":{"id":{},"X-H":{}}}`
	app := workbench.App{ProjectID: "prj_1", Name: "web", Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: o.URL,
		Endpoints: []workbench.Endpoint{endpoint("GET", "/u/{id}/x", schema, map[string]string{"X-H": "header"})}}}
	tool := w.mustTools(app, nil)["t"]
	for _, args := range []string{
		`{"id":".."}`, `{"id":"."}`, `{"id":"../../admin"}`, `{"id":"a/../b"}`, `{"id":"..\\b"}`, `{"id":""}`, `{"id":null}`, `{}`,
		`{"id":["a"]}`, `{"id":{"a":1}}`, `{"id":"a\r\nHost: evil"}`, `{"id":"a\u0000b"}`,
		`{"id":"a","X-H":"1\r\nX-Evil: 1"}`, `{"id":"a","X-H":"1\n"}`, `{"id":"a","X-H":{"a":1}}`, `{"id":"a","X-H":"\u0000"}`,
	} {
		before := o.asked()
		_, err := w.ask(t.Context(), app, tool, args, nil)
		w.mustFail(err, workbench.CodeArgumentsInvalid, false)
		if o.asked() != before {
			t.Errorf("%s: something was sent", args)
		}
	}
}

func FuzzAnArgumentOfAPath(f *testing.F) {
	for _, s := range []string{"..", "a/b", "%2e%2e", "//evil.example/", "?x=1", "#", "\\..\\", "a b", "é", "%", "@evil", ":80"} {
		f.Add(s)
	}
	var target string
	base := "https://api.example.com/v1"
	app := workbench.App{ProjectID: "prj_1", Name: "web", Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: base,
		Endpoints: []workbench.Endpoint{endpoint("GET", "/u/{id}/x", `{"type":"object","properties":{"id":{}}}`, nil)}}}
	c := upstream.New(upstream.Options{})
	defer c.Close()
	got, err := c.Import(f.Context(), app, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value string) {
		args, err := json.Marshal(map[string]string{"id": value})
		if err != nil {
			t.Skip()
		}
		target, err = upstream.Target(app, toolOf(app, got.Tools[0]), args)
		if err != nil {
			return
		}
		u, err := url.Parse(target)
		if err != nil {
			t.Fatalf("%q makes %q: %v", value, target, err)
		}
		parts := strings.Split(u.EscapedPath(), "/")
		if u.Host != "api.example.com" || u.RawQuery != "" || u.Fragment != "" || len(parts) != 5 || parts[1] != "v1" || parts[2] != "u" || parts[4] != "x" {
			t.Errorf("%q makes %q", value, target)
		}
		if plain, _ := url.PathUnescape(parts[3]); plain == "." || plain == ".." || plain == "" {
			t.Errorf("%q makes %q", value, target)
		}
	})
}

func TestCheck(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	strict := upstream.New(upstream.Options{})
	defer strict.Close()
	obj := json.RawMessage(`{"type":"object","properties":{"id":{"type":"string"}},"additionalProperties":false}`)
	web := func(e workbench.Endpoint) workbench.App {
		if e.Name == "" {
			e.Name = "t"
		}
		if e.InputSchema == nil {
			e.InputSchema = obj
		}
		return workbench.App{Name: "web", Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: "https://api.example.com", Endpoints: []workbench.Endpoint{e}}}
	}
	stdio := func(cf workbench.AppConfig) workbench.App {
		return workbench.App{Name: "local", Kind: workbench.AppMCPStdio, Config: cf}
	}
	mcp := func(u string) workbench.App {
		return workbench.App{Name: "mcp", Kind: workbench.AppMCPHTTP, Config: workbench.AppConfig{URL: u}}
	}
	needs := mcp("http://api.example.com/mcp")
	needs.NeedsConnection = true
	blind := stdio(workbench.AppConfig{Command: "x"})
	blind.NeedsConnection = true
	for _, c := range []struct {
		name  string
		app   workbench.App
		field string // "": it is right
	}{
		{"a program", stdio(workbench.AppConfig{Command: "npx", Args: []string{"x"}, Env: map[string]string{"A_1": "b"}, CredentialEnv: "TOKEN"}), ""},
		{"no program", stdio(workbench.AppConfig{}), "config.command"},
		{"a relative program", stdio(workbench.AppConfig{Command: "./x"}), "config.command"},
		{"a zero byte", stdio(workbench.AppConfig{Command: "x", Args: []string{"a\x00b"}}), "config.args[0]"},
		{"a bad variable", stdio(workbench.AppConfig{Command: "x", Env: map[string]string{"A=B": "1"}}), "config.env"},
		{"a credential in PATH", stdio(workbench.AppConfig{Command: "x", CredentialEnv: "PATH"}), "config.credentialEnv"},
		{"a credential in LD_PRELOAD", stdio(workbench.AppConfig{Command: "x", CredentialEnv: "LD_PRELOAD"}), "config.credentialEnv"},
		{"credentials that nothing takes", blind, "config.credentialEnv"},
		{"a URL beside a program", stdio(workbench.AppConfig{Command: "x", URL: "https://a.example"}), "config.url"},
		{"MCP", mcp("https://api.example.com/mcp?x=1"), ""},
		{"no URL", mcp(""), "config.url"},
		{"a password in the URL", mcp("https://a:b@api.example.com"), "config.url"},
		{"another scheme", mcp("file:///etc/passwd"), "config.url"},
		{"no host", mcp("https://"), "config.url"},
		{"credentials over http", needs, "config.url"},
		{"an endpoint", web(endpoint("GET", "/u/{id}", string(obj), nil)), ""},
		{"a bad name", web(workbench.Endpoint{Name: "a b", Method: "GET", Path: "/"}), "config.endpoints[0].name"},
		{"a bad method", web(workbench.Endpoint{Method: "TRACE", Path: "/"}), "config.endpoints[0].method"},
		{"a bad path", web(workbench.Endpoint{Method: "GET", Path: "u"}), "config.endpoints[0].path"},
		{"steps in the path", web(workbench.Endpoint{Method: "GET", Path: "/a/%2e%2e/b"}), "config.endpoints[0].path"},
		{"an open placeholder", web(workbench.Endpoint{Method: "GET", Path: "/{id"}), "config.endpoints[0].path"},
		{"an unknown placeholder", web(workbench.Endpoint{Method: "GET", Path: "/{other}"}), "config.endpoints[0].path"},
		{"a bad schema", web(workbench.Endpoint{Method: "GET", Path: "/", InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"$ref":"https://evil.example/s"}}}`)}), "config.endpoints[0].inputSchema/properties/a/$ref"},
		{"no schema", workbench.App{Name: "web", Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: "https://a.example", Endpoints: []workbench.Endpoint{{Name: "t", Method: "GET", Path: "/"}}}}, "config.endpoints[0].inputSchema"},
		{"a header that is the connection's", web(workbench.Endpoint{Method: "GET", Path: "/", In: map[string]string{"Authorization": "header"}}), "config.endpoints[0].in.Authorization"},
		{"a header that ends the message", web(workbench.Endpoint{Method: "GET", Path: "/", In: map[string]string{"Transfer-Encoding": "header"}}), "config.endpoints[0].in.Transfer-Encoding"},
		{"a placeholder elsewhere", web(workbench.Endpoint{Method: "GET", Path: "/{id}", In: map[string]string{"id": "query"}}), "config.endpoints[0].in.id"},
		{"a place that is none", web(workbench.Endpoint{Method: "GET", Path: "/", In: map[string]string{"id": "cookie"}}), "config.endpoints[0].in.id"},
		{"no endpoints", workbench.App{Name: "web", Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: "https://a.example"}}, "config.endpoints"},
		{"a long time", workbench.App{Name: "mcp", Kind: workbench.AppMCPHTTP, Config: workbench.AppConfig{URL: "https://a.example", TimeoutMs: 180_001}}, "config.timeoutMs"},
		{"no kind", workbench.App{Name: "x"}, "kind"},
		{"a bad app name", workbench.App{Name: "X", Kind: workbench.AppMCPHTTP}, "name"},
	} {
		err := w.Check(c.app)
		if c.field == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err == nil || workbench.AsError(err).Field != c.field {
			t.Errorf("%s: %v, want the field %s", c.name, err, c.field)
			continue
		}
		if code := workbench.CodeOf(err); code != workbench.CodeInvalidRequest && code != workbench.CodeSchemaInvalid {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := strict.Check(stdio(workbench.AppConfig{Command: "npx"})); !workbench.HasCode(err, workbench.CodeInvalidRequest) {
		t.Errorf("a program where none is allowed: %v", err)
	}
}

func TestAnnotationsOfMethods(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app := workbench.App{ProjectID: "prj_1", Name: "web", Kind: workbench.AppHTTP, Config: workbench.AppConfig{URL: "https://a.example"}}
	for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
		app.Config.Endpoints = append(app.Config.Endpoints, workbench.Endpoint{Name: m, Method: m, Path: "/", InputSchema: json.RawMessage(`{"type":"object"}`)})
	}
	app.Config.Endpoints = append(app.Config.Endpoints, workbench.Endpoint{Name: "own", Method: "POST", Path: "/", InputSchema: json.RawMessage(`{"type":"object"}`),
		Annotations: &workbench.ToolAnnotations{Title: "T", ReadOnly: true}})
	tools := w.mustTools(app, nil)
	for name, want := range map[string]workbench.ToolAnnotations{
		"GET":    {ReadOnly: true, Idempotent: true, OpenWorld: true},
		"HEAD":   {ReadOnly: true, Idempotent: true, OpenWorld: true},
		"POST":   {Destructive: true, OpenWorld: true},
		"PUT":    {Destructive: true, Idempotent: true, OpenWorld: true},
		"PATCH":  {Destructive: true, OpenWorld: true},
		"DELETE": {Destructive: true, Idempotent: true, OpenWorld: true},
		"own":    {Title: "T", ReadOnly: true},
	} {
		if got := tools[name].Annotations; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestADigestIsOfTheWholeForm(t *testing.T) {
	base := workbench.ToolSpec{Name: "t", Description: "d", InputSchema: json.RawMessage(`{"type":"object","a":1}`), Binding: json.RawMessage(`{"kind":"mcp"}`)}
	same := base
	same.InputSchema = json.RawMessage(`{ "a" : 1, "type" : "object" }`)
	if upstream.Digest("app", base) != upstream.Digest("app", same) {
		t.Error("the order of keys counts")
	}
	seen := map[string]bool{upstream.Digest("app", base): true, upstream.Digest("app2", base): true}
	for _, change := range []func(*workbench.ToolSpec){
		func(s *workbench.ToolSpec) { s.Name = "u" },
		func(s *workbench.ToolSpec) { s.Description = "e" },
		func(s *workbench.ToolSpec) { s.InputSchema = json.RawMessage(`{"type":"object","a":1.0}`) },
		func(s *workbench.ToolSpec) { s.OutputSchema = json.RawMessage(`{"type":"object"}`) },
		func(s *workbench.ToolSpec) { s.Annotations.ReadOnly = true },
		func(s *workbench.ToolSpec) { s.Binding = json.RawMessage(`{"kind":"http"}`) },
	} {
		other := base
		change(&other)
		seen[upstream.Digest("app", other)] = true
	}
	if len(seen) != 8 {
		t.Errorf("%d digests of 8 forms", len(seen))
	}
}

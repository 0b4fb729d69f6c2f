package api_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func init() {
	maps.Copy(expected, map[string][13]int{
		//                   own  ro   xo   user ten  proj eown eoth adm  admc oadm here else
		"createContext":    {201, 403, 201, 404, 404, 404, 201, 404, 403, 403, 403, 201, 404},
		"listContexts":     {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
		"getContext":       {200, 200, 403, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
		"deleteContext":    {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
		"restartContext":   {200, 403, 200, 404, 404, 404, 200, 404, 403, 403, 403, 200, 404},
		"interruptContext": {200, 403, 200, 404, 404, 404, 200, 404, 200, 200, 404, 200, 404},
		"readRunResult":    {200, 200, 403, 404, 404, 404, 200, 404, 403, 200, 404, 200, 404},
	})
}

// contextOfStage is the context that the stage's session has.
const contextOfStage = "analysis"

// badContextRequests are wrong requests about contexts, cells and results; run
// has a result 0 with one form, of type application/json.
func badContextRequests(session, run string) []badRequest {
	contexts := "/v1/workbench/sessions/" + session + "/contexts"
	foreign := "/v1/workbench/sessions/ses_" + unknownID + "/contexts"
	runs := "/v1/workbench/sessions/" + session + "/runs"
	code := func(more string) string { return `{"language":"python","code":"1"` + more + `}` }
	post := func(name, path, body string, status int, c workbench.Code, field string) badRequest {
		return badRequest{name, "POST", path, body, nil, status, c, field}
	}
	get := func(name, path string, status int, c workbench.Code, field string) badRequest {
		return badRequest{name, "GET", path, "", nil, status, c, field}
	}
	return []badRequest{
		post("context without a language", contexts, `{"id":"a"}`, 400, "invalid_request", "language"),
		post("context in an unknown language", contexts, `{"language":"SECRETVALUE"}`, 400, "invalid_request", "language"),
		post("context with a bad id", contexts, `{"language":"bash","id":"a/b"}`, 400, "invalid_request", "id"),
		post("context with a dot for an id", contexts, `{"language":"bash","id":".."}`, 400, "invalid_request", "id"),
		post("context with a long id", contexts, `{"language":"bash","id":"`+strings.Repeat("x", 65)+`"}`, 400, "invalid_request", "id"),
		post("context with an unknown field", contexts, `{"language":"bash","dir":"/"}`, 400, "unknown_field", "dir"),
		post("context of a foreign session", foreign, `{"language":"bash"}`, 404, "not_found", ""),
		get("contexts of a foreign session", foreign, 404, "not_found", ""),
		get("unknown context", contexts+"/nope", 404, "context_not_found", ""),
		get("malformed context", contexts+"/a%20b", 404, "context_not_found", ""),
		get("context of a foreign session's", foreign+"/default", 404, "not_found", ""),
		post("restart of an unknown context", contexts+"/nope/restart", "", 404, "context_not_found", ""),
		post("restart with an unknown field", contexts+"/nope/restart", `{"force":true}`, 400, "unknown_field", "force"),
		post("interrupt of an unknown context", contexts+"/nope/interrupt", "", 404, "context_not_found", ""),
		{"delete of an unknown context", "DELETE", contexts + "/nope", "", nil, 404, "context_not_found", ""},
		{"method on contexts", "PUT", contexts, "", nil, 405, "method_not_allowed", ""},
		post("cell of an unknown context", runs, code(`,"contextId":"nope"`), 404, "context_not_found", "contextId"),
		post("cell of a malformed context", runs, code(`,"contextId":"a b"`), 400, "invalid_request", "contextId"),
		post("cell of an empty context", runs, code(`,"contextId":""`), 400, "invalid_request", "contextId"),
		post("unknown policy", runs, code(`,"contextId":"default","onLostContext":"SECRETVALUE"`), 400, "invalid_request", "onLostContext"),
		get("result of a foreign run", "/v1/workbench/runs/run_"+unknownID+"/results/0", 404, "not_found", ""),
		get("result that is not there", "/v1/workbench/runs/"+run+"/results/7", 404, "not_found", ""),
		get("result that is no number", "/v1/workbench/runs/"+run+"/results/first", 404, "not_found", ""),
		get("result beyond numbers", "/v1/workbench/runs/"+run+"/results/99999999999999999999", 404, "not_found", ""),
		get("unknown parameter of a result", "/v1/workbench/runs/"+run+"/results/0?mime=x", 400, "unknown_field", "mime"),
	}
}

func TestContexts(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	path := "/v1/workbench/sessions/" + session + "/contexts"
	made := w.Do("POST", path, key, `{"id":"analysis","language":"python","env":{"MODE":"demo"},"cwd":"data"}`).Want(201)
	if made.Header.Get("Location") != path+"/analysis" || made.Text("state") != "idle" || made.Text("cells") != "0" {
		t.Errorf("a new context is %s at %s", made.Body, made.Header.Get("Location"))
	}
	if strings.Contains(string(made.Body), "demo") {
		t.Errorf("a context shows its environment: %s", made.Body)
	}
	w.Do("POST", path, key, `{"id":"analysis","language":"python","cwd":"data"}`).Want(200)
	if x := w.Do("POST", path, key, `{"id":"analysis","language":"bash"}`).Want(409); x.Text("code") != "context_exists" || x.Text("field") != "id" {
		t.Errorf("another context of the id: %s", x.Body)
	}
	generated := w.Do("POST", path, key, `{"language":"bash"}`).Want(201).Text("id")
	list := w.Do("GET", path, key, "").Want(200)
	var page struct{ Items []workbench.Context }
	if err := json.Unmarshal(list.Body, &page); err != nil || len(page.Items) != 2 || page.Items[1].ID != generated {
		t.Errorf("contexts: %s", list.Body)
	}
	runs := "/v1/workbench/sessions/" + session + "/runs"
	cell := w.Do("POST", runs, key, `{"language":"python","code":"x = 1","contextId":"analysis","idempotencyKey":"c1"}`).Want(202)
	if cell.Text("contextId") != "analysis" {
		t.Errorf("the cell's receipt: %s", cell.Body)
	}
	if x := w.Do("POST", runs, key, `{"language":"python","code":"x = 1","idempotencyKey":"c1"}`).Want(409); x.Text("code") != "idempotency_key_reused" {
		t.Errorf("the same code without the context: %s", x.Body)
	}
	if x := w.Do("POST", runs, key, `{"language":"bash","code":"ls","contextId":"analysis"}`).Want(409); x.Text("code") != "context_language" || x.Text("field") != "language" {
		t.Errorf("a cell in another language: %s", x.Body)
	}
	for _, x := range []exchange{w.Do("DELETE", path+"/analysis", key, ""), w.Do("POST", path+"/analysis/restart", key, "")} {
		if x.Want(409).Text("code") != "runs_active" {
			t.Errorf("with a cell that waits: %s", x.Body)
		}
	}
	if x := w.Do("POST", path+"/analysis/interrupt", key, "").Want(200); x.Text("interrupted") != "false" {
		t.Errorf("an interrupt of what is idle: %s", x.Body)
	}
	w.engine.MustStart(t, cell.Text("id")).End()
	w.Do("POST", path+"/analysis/restart", key, "").Want(200)
	w.Do("DELETE", path+"/"+generated, key, "").Want(200)
	w.Do("GET", path+"/"+generated, key, "").Want(404)
	w.Do("POST", "/v1/workbench/sessions/"+session+"/close", key, "").Want(200)
	if x := w.Do("POST", path, key, `{"language":"bash"}`).Want(410); x.Text("code") != "session_closed" {
		t.Errorf("a context of a closed session: %s", x.Body)
	}
}

// TestLostContext: a cell never runs on variables that are gone.
func TestLostContext(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	runs := "/v1/workbench/sessions/" + session + "/runs"
	id := w.Do("POST", runs, key, `{"language":"python","code":"x = 1","contextId":"default"}`).Want(202).Text("id")
	made, err := w.db.Context(t.Context(), workbench.SystemPrincipal(), session, "default")
	if err != nil {
		t.Fatal(err)
	}
	w.engine.enter = &store.ContextEntry{ID: made.ID, Handle: made.Handle, Memory: "m1"}
	w.engine.MustStart(t, id).End()
	if err := w.db.LoseContexts(t.Context(), session, "", workbench.LossRoom, w.clock.Now()); err != nil {
		t.Fatal(err)
	}
	x := w.Do("POST", runs, key, `{"language":"python","code":"print(x)","contextId":"default"}`).Want(409)
	if x.Text("code") != "context_lost" || x.Text("field") != "contextId" || !strings.Contains(x.Text("detail"), "made room for another session's at 2026-11-29T12:00:00Z") ||
		!strings.Contains(x.Text("hint"), "onLostContext") {
		t.Errorf("a cell of a lost context: %s", x.Body)
	}
	path := "/v1/workbench/sessions/" + session + "/contexts/default"
	if x := w.Do("GET", path, key, "").Want(200); x.Text("state") != "lost" || x.Text("lost.reason") != "sandbox_evicted" {
		t.Errorf("a lost context: %s", x.Body)
	}
	w.Do("POST", runs, key, `{"language":"python","code":"x = 1","contextId":"default","onLostContext":"restart"}`).Want(202)
}

// TestResults: what a run showed is on its receipt and in its events, in order,
// and each form can be downloaded in a shape that no browser runs.
func TestResults(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	run := w.MustSubmit(key, session)
	r := w.engine.MustStart(t, run)
	r.Write(workbench.Stdout, "before\n")
	png := "iVBORw0KGgo="
	r.Show(workbench.Result{Index: 0, Type: workbench.ResultDisplay, Data: map[string]json.RawMessage{
		"image/png": json.RawMessage(`"` + png + `"`), "text/html": json.RawMessage(`"<script>alert('añ')</script>"`)}, Metadata: json.RawMessage(`{"width":2}`)})
	r.Write(workbench.Stdout, "after\n")
	r.Show(workbench.StructuredResult(1, json.RawMessage(`{"n":3}`)))
	r.End()
	x := w.Do("GET", "/v1/workbench/runs/"+run, key, "").Want(200)
	var receipt workbench.Receipt
	if err := json.Unmarshal(x.Body, &receipt); err != nil || len(receipt.Results) != 2 {
		t.Fatalf("receipt: %s", x.Body)
	}
	if got := receipt.Results[0]; got.Index != 0 || got.Type != workbench.ResultDisplay || string(got.Data["image/png"]) != `"`+png+`"` || string(got.Metadata) != `{"width":2}` {
		t.Errorf("the first result: %+v", got)
	}
	if got := receipt.Results[1]; got.Index != 1 || got.Type != workbench.ResultStructured || string(got.Data["application/json"]) != `{"n":3}` {
		t.Errorf("the second result: %+v", got)
	}
	c := w.MustFollow(t, key, run)
	defer c.Close()
	var order []string
	for e, ok := c.Next(); ok; e, ok = c.Next() {
		what := string(e.Data.Kind)
		if e.Data.Result != nil {
			what += " " + string(e.Data.Result.Type)
		}
		order = append(order, what)
	}
	if got := strings.Join(order, ", "); got != "status, status, output, result display, output, result structured, terminal" {
		t.Errorf("events: %s", got)
	}
	form := w.Do("GET", "/v1/workbench/runs/"+run+"/results/0?type=text%2Fhtml", key, "").Want(200)
	if string(form.Body) != "<script>alert('añ')</script>" || form.Header.Get("X-Content-Type-Options") != "nosniff" ||
		!strings.HasPrefix(form.Header.Get("Content-Disposition"), "attachment") || form.Header.Get("Content-Security-Policy") != "default-src 'none'; sandbox" {
		t.Errorf("the HTML: %q %v", form.Body, form.Header)
	}
	if form := w.Do("GET", "/v1/workbench/runs/"+run+"/results/0?type=image/png", key, "").Want(200); string(form.Body) != "\x89PNG\r\n\x1a\n" || form.Header.Get("Content-Type") != "image/png" {
		t.Errorf("the image: %q %v", form.Body, form.Header)
	}
	list := w.Do("GET", "/v1/workbench/sessions/"+session+"/runs", key, "").Want(200)
	if strings.Contains(string(list.Body), "results") {
		t.Errorf("a list holds results: %s", list.Body)
	}
}

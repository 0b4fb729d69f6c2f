package api_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/identity"
)

// badRequest is one wrong request and what it must be told.
type badRequest struct {
	name, method, path, body string
	headers                  []string
	status                   int
	code                     workbench.Code
	field                    string
}

const unknownID = "06h2gq0931tt93r5m5b6dh5rar"

func badRequests(session, run, file string) []badRequest {
	const sessions = "/v1/workbench/sessions"
	runs := sessions + "/" + session + "/runs"
	uploads := sessions + "/" + session + "/artifacts"
	files := sessions + "/" + session + "/workspace"
	code := func(more string) string { return `{"language":"python","code":"1"` + more + `}` }
	post := func(name, path, body string, status int, c workbench.Code, field string, headers ...string) badRequest {
		return badRequest{name, "POST", path, body, headers, status, c, field}
	}
	get := func(name, path string, status int, c workbench.Code, field string, headers ...string) badRequest {
		return badRequest{name, "GET", path, "", headers, status, c, field}
	}
	return append(badContextRequests(session, run), []badRequest{
		// Bodies as such.
		post("no body", runs, "", 400, "invalid_request", ""),
		post("not JSON", runs, `{"language":`, 400, "invalid_request", ""),
		post("trailing comma", runs, `{"language":"python","code":"1",}`, 400, "invalid_request", ""),
		post("two values", runs, code("")+code(""), 400, "invalid_request", ""),
		post("an array", runs, `[]`, 400, "invalid_request", "", "Content-Type", "application/json"),
		post("half a surrogate pair", runs, code(`,"stdin":"\ud83d!"`), 400, "invalid_request", ""),
		post("the other half", runs, code(`,"stdin":"\ude00"`), 400, "invalid_request", ""),
		post("two first halves", runs, code(`,"stdin":"\ud83d\ud83d\ude00"`), 400, "invalid_request", ""),
		post("an exponent", runs, code(`,"timeoutMs":1e3`), 400, "invalid_request", "timeoutMs"),
		post("compressed", runs, code(""), 415, "unsupported_media_type", "Content-Encoding", "Content-Encoding", "gzip"),
		post("not UTF-8", runs, "{\"language\":\"python\",\"code\":\"\xff\"}", 400, "invalid_request", ""),
		post("a name twice", runs, code(`,"code":"2"`), 400, "invalid_request", "code"),
		post("a nested name twice", runs, code(`,"env":{"A":"1","A":"2"}`), 400, "invalid_request", "env.A"),
		post("too deep", runs, code(`,"reusableRun":`+strings.Repeat(`{"a":`, 40)+"1"+strings.Repeat("}", 40)), 400, "invalid_request", "reusableRun"+strings.Repeat(".a", 31)),
		post("wrong content type", runs, code(""), 415, "unsupported_media_type", "Content-Type", "Content-Type", "application/x-www-form-urlencoded"),
		post("wrong charset", runs, code(""), 415, "unsupported_media_type", "Content-Type", "Content-Type", "application/json; charset=latin1"),
		post("too large", runs, `{"code":"`+strings.Repeat("x", api.MaxJSONBody)+`"}`, 413, "body_too_large", ""),
		// Fields of a run.
		post("unknown field", runs, code(`,"langage":"bash"`), 400, "unknown_field", "langage"),
		post("unknown field by case", runs, `{"Language":"python","code":"1"}`, 400, "unknown_field", "Language"),
		post("unknown nested field", runs, code(`,"artifactIds":[{"id":"x","dir":"y"}]`), 400, "unknown_field", "artifactIds[0].dir"),
		post("language missing", runs, `{"code":"1"}`, 400, "invalid_request", "language"),
		post("language unknown", runs, `{"language":"SECRETVALUE","code":"1"}`, 400, "invalid_request", "language"),
		post("language of the wrong type", runs, `{"language":7,"code":"1"}`, 400, "invalid_request", "language"),
		post("code empty", runs, `{"language":"bash","code":""}`, 400, "invalid_request", "code"),
		post("code null", runs, `{"language":"bash","code":null}`, 400, "invalid_request", "code"),
		post("command empty", "/v1/workbench/bash", `{"sessionId":"`+session+`","command":""}`, 400, "invalid_request", "command"),
		post("bash with a language", "/v1/workbench/bash", `{"sessionId":"`+session+`","command":"ls","language":"bash"}`, 400, "unknown_field", "language"),
		post("args not a list", runs, code(`,"args":"a"`), 400, "invalid_request", "args"),
		post("an arg not a text", runs, code(`,"args":["a",1]`), 400, "invalid_request", "args[1]"),
		post("env not texts", runs, code(`,"env":{"A":1}`), 400, "invalid_request", "env.A"),
		post("timeout 0", runs, code(`,"timeoutMs":0`), 400, "limit_out_of_range", "timeoutMs"),
		post("timeout -1", runs, code(`,"timeoutMs":-1`), 400, "limit_out_of_range", "timeoutMs"),
		post("timeout over the ceiling", runs, code(`,"timeoutMs":180001`), 400, "limit_out_of_range", "timeoutMs"),
		post("timeout a fraction", runs, code(`,"timeoutMs":1000.5`), 400, "invalid_request", "timeoutMs"),
		post("timeout a text", runs, code(`,"timeoutMs":"1000"`), 400, "invalid_request", "timeoutMs"),
		post("timeout beyond 64 bits", runs, code(`,"timeoutMs":1e300`), 400, "limit_out_of_range", "timeoutMs"),
		post("output 0", runs, code(`,"outputBytes":0`), 400, "limit_out_of_range", "outputBytes"),
		post("output over the ceiling", runs, code(`,"outputBytes":2097153`), 400, "limit_out_of_range", "outputBytes"),
		post("key empty", runs, code(`,"idempotencyKey":""`), 400, "invalid_request", "idempotencyKey"),
		post("key too long", runs, code(`,"idempotencyKey":"`+strings.Repeat("k", 256)+`"`), 400, "invalid_request", "idempotencyKey"),
		post("key with a control character", runs, code(`,"idempotencyKey":"a\u0007"`), 400, "invalid_request", "idempotencyKey"),
		post("key header empty", runs, code(""), 400, "invalid_request", "Idempotency-Key", "Idempotency-Key", `""`),
		post("key header unterminated", runs, code(""), 400, "invalid_request", "Idempotency-Key", "Idempotency-Key", `"abc`),
		post("key header too long", runs, code(""), 400, "invalid_request", "Idempotency-Key", "Idempotency-Key", strings.Repeat("k", 256)),
		post("keys that differ", runs, code(`,"idempotencyKey":"a"`), 400, "idempotency_key_mismatch", "idempotencyKey", "Idempotency-Key", "b"),
		post("artifact id malformed", runs, code(`,"artifactIds":["nope"]`), 400, "invalid_request", "artifactIds[0]"),
		post("artifact id of another kind", runs, code(`,"artifactIds":["`+session+`"]`), 400, "invalid_request", "artifactIds[0]"),
		post("artifact id foreign", runs, code(`,"artifactIds":["art_`+unknownID+`"]`), 404, "not_found", "artifactIds[0]"),
		post("artifact path escapes", runs, code(`,"artifactIds":[{"id":"`+file+`","path":"../x"}]`), 400, "path_invalid", "artifactIds[0].path"),
		post("artifact path absolute", runs, code(`,"artifactIds":[{"id":"`+file+`","path":"/etc/passwd"}]`), 400, "path_invalid", "artifactIds[0].path"),
		post("background a text", runs, code(`,"background":"yes"`), 400, "invalid_request", "background"),
		post("background over its ceiling", runs, code(`,"background":true,"timeoutMs":3600001`), 400, "limit_out_of_range", "timeoutMs"),
		post("saved wait", runs, code(`,"afterExecution":{"mode":"saved"}`), 501, "not_built", "afterExecution"),
		post("reusable run of a series that is none", runs, code(`,"reusableRun":{"seriesId":"x"}`), 400, "invalid_request", "reusableRun.seriesId"),
		post("reusable run off and of a series", runs, code(`,"reusableRun":{"mode":"off","seriesId":"ser_`+unknownID+`"}`), 400, "invalid_request", "reusableRun.seriesId"),
		post("reusable run of another mode", runs, code(`,"reusableRun":{"mode":"always"}`), 400, "invalid_request", "reusableRun.mode"),
		post("reusable run of a series that there is not", runs, code(`,"reusableRun":{"seriesId":"ser_`+unknownID+`"}`), 404, "not_found", "reusableRun.seriesId"),
		post("a cell in a series", runs, code(`,"contextId":"default","reusableRun":{"seriesId":"ser_`+unknownID+`"}`), 400, "invalid_request", "reusableRun.seriesId"),
		post("replay of a version that is none", "/v1/workbench/series/ser_"+unknownID+"/replays", `{"version":0}`, 400, "limit_out_of_range", "version"),
		post("publication without an expectation", "/v1/workbench/series/ser_"+unknownID+"/publish", `{"version":1}`, 400, "invalid_request", "expectedPublishedVersion"),
		post("publication of an unknown series", "/v1/workbench/series/ser_"+unknownID+"/publish", `{"version":1,"expectedPublishedVersion":0}`, 404, "not_found", ""),
		post("replay with tools called", "/v1/workbench/series/ser_"+unknownID+"/replays", `{"tools":"call"}`, 400, "invalid_request", "tools"),
		post("wait too long", runs+"?waitMs=60001", code(""), 400, "limit_out_of_range", "waitMs"),
		post("wait not a number", runs+"?waitMs=soon", code(""), 400, "invalid_request", "waitMs"),
		post("session id malformed", "/v1/workbench/run_code", `{"sessionId":"nope","language":"bash","code":"1"}`, 400, "invalid_request", "sessionId"),
		post("session id foreign", "/v1/workbench/run_code", `{"sessionId":"ses_`+unknownID+`","language":"bash","code":"1"}`, 404, "not_found", "sessionId"),
		post("session id missing", "/v1/workbench/bash", `{"command":"ls"}`, 400, "invalid_request", "sessionId"),
		post("session of the path foreign", sessions+"/ses_"+unknownID+"/runs", code(""), 404, "not_found", ""),
		post("session of the path malformed", sessions+"/nope/runs", code(""), 404, "not_found", ""),
		// Fields of a session.
		post("kind unknown", sessions, `{"kind":"group"}`, 400, "invalid_request", "kind"),
		post("agent too long", sessions, `{"agent":"`+strings.Repeat("a", 201)+`"}`, 400, "invalid_request", "agent"),
		post("too many labels", sessions, `{"labels":{`+manyLabels(33)+`}}`, 400, "invalid_request", "labels"),
		post("label too long", sessions, `{"labels":{"a":"`+strings.Repeat("v", 129)+`"}}`, 400, "invalid_request", "labels"),
		post("a tool", sessions, `{"tools":["crm.lookup@1"]}`, 400, "tool_not_found", "tools[0]"),
		post("a tool without a version", sessions, `{"tools":["a"]}`, 400, "invalid_request", "tools[0]"),
		post("a tool as a number", sessions, `{"tools":[1]}`, 400, "invalid_request", "tools[0]"),
		post("ttl 0", sessions, `{"ttlMs":0}`, 400, "limit_out_of_range", "ttlMs"),
		post("ttl over 8 days", sessions, `{"ttlMs":691200001}`, 400, "limit_out_of_range", "ttlMs"),
		post("size unknown", sessions, `{"size":"giant"}`, 400, "invalid_request", "size"),
		post("sizes that differ", sessions, `{"size":"standard","sandboxSize":"large"}`, 400, "invalid_request", "sandboxSize"),
		post("a limit raised", sessions, `{"limits":{"memoryBytes":1073741824}}`, 400, "limit_out_of_range", "limits.memoryBytes"),
		post("a limit of 0", sessions, `{"limits":{"tasks":0}}`, 400, "limit_out_of_range", "limits.tasks"),
		post("an unknown limit", sessions, `{"limits":{"cpu":1}}`, 400, "unknown_field", "limits.cpu"),
		// Configure, restart, close.
		post("configure without a body", sessions+"/"+session+"/configure", "", 400, "invalid_request", ""),
		post("configure nothing", sessions+"/"+session+"/configure", `{}`, 400, "invalid_request", ""),
		post("configure nothing, at the current version", sessions+"/"+session+"/configure", `{"expectedCurrentVersion":1}`, 400, "invalid_request", ""),
		post("configure nothing, at an old version", sessions+"/"+session+"/configure", `{"expectedCurrentVersion":9}`, 412, "version_mismatch", ""),
		post("configure an old version", sessions+"/"+session+"/configure", `{"agent":"x","expectedCurrentVersion":9}`, 412, "version_mismatch", ""),
		post("configure by If-Match", sessions+"/"+session+"/configure", `{"agent":"x"}`, 412, "version_mismatch", "", "If-Match", `"9"`),
		post("If-Match malformed", sessions+"/"+session+"/configure", `{"agent":"x"}`, 400, "invalid_request", "If-Match", "If-Match", `W/"9"`),
		post("versions that differ", sessions+"/"+session+"/configure", `{"expectedCurrentVersion":1}`, 400, "invalid_request", "expectedCurrentVersion", "If-Match", `"2"`),
		post("version 0", sessions+"/"+session+"/configure", `{"expectedCurrentVersion":0}`, 400, "limit_out_of_range", "expectedCurrentVersion"),
		post("close with a field", sessions+"/"+session+"/close", `{"force":true}`, 400, "unknown_field", "force"),
		post("restart with a wrong type", sessions+"/"+session+"/restart", `{"cancelActive":"yes"}`, 400, "invalid_request", "cancelActive"),
		// Reading.
		get("limit 0", sessions+"?limit=0", 400, "limit_out_of_range", "limit"),
		get("limit 201", sessions+"?limit=201", 400, "limit_out_of_range", "limit"),
		get("cursor malformed", sessions+"?cursor=%21%21", 400, "invalid_request", "cursor"),
		get("state unknown", sessions+"?state=open", 400, "invalid_request", "state"),
		get("label malformed", sessions+"?label=team", 400, "invalid_request", "label"),
		get("since malformed", sessions+"?since=yesterday", 400, "invalid_request", "since"),
		get("unknown parameter", sessions+"?lmit=5", 400, "unknown_field", "lmit"),
		get("parameter twice", sessions+"?limit=5&limit=6", 400, "invalid_request", "limit"),
		get("query malformed", sessions+"?a=%zz", 400, "invalid_request", ""),
		get("offset negative", "/v1/workbench/runs/"+run+"/output?offset=-1", 400, "offset_invalid", "offset"),
		get("offset not a number", "/v1/workbench/runs/"+run+"/output?offset=x", 400, "offset_invalid", "offset"),
		get("offset beyond the end", "/v1/workbench/runs/"+run+"/output?offset=999", 400, "offset_invalid", "offset"),
		get("offset inside a character", "/v1/workbench/runs/"+run+"/output?offset=1", 400, "offset_invalid", "offset"),
		get("stream unknown", "/v1/workbench/runs/"+run+"/output?stream=stdin", 400, "invalid_request", "stream"),
		get("encoding unknown", "/v1/workbench/runs/"+run+"/output?encoding=latin1", 400, "invalid_request", "encoding"),
		get("page too big", "/v1/workbench/runs/"+run+"/output?limit=65537", 400, "limit_out_of_range", "limit"),
		get("events as HTML", "/v1/workbench/runs/"+run+"/events", 406, "not_acceptable", "Accept", "Accept", "text/html"),
		get("Last-Event-ID malformed", "/v1/workbench/runs/"+run+"/events", 400, "invalid_request", "Last-Event-ID", "Last-Event-ID", "x"),
		get("after and Last-Event-ID differ", "/v1/workbench/runs/"+run+"/events?after=1", 400, "invalid_request", "after", "Last-Event-ID", "2"),
		get("run id foreign", "/v1/workbench/runs/run_"+unknownID, 404, "not_found", ""),
		get("run id malformed", "/v1/workbench/runs/RUN_"+unknownID, 404, "not_found", ""),
		get("a session where a run is meant", "/v1/workbench/runs/"+session, 404, "not_found", ""),
		get("a run's file without a path", "/v1/workbench/runs/"+run+"/files/content", 400, "invalid_request", "path"),
		get("a run's file that escapes", "/v1/workbench/runs/"+run+"/files/content?path=../../etc/passwd", 400, "path_invalid", "path"),
		get("a run's file that is not there", "/v1/workbench/runs/"+run+"/files/content?path=none", 404, "not_found", "path"),
		get("range beyond the end", "/v1/workbench/artifacts/"+file+"/content", 416, "range_not_satisfiable", "Range", "Range", "bytes=100-"),
		get("range malformed", "/v1/workbench/artifacts/"+file+"/content", 416, "range_not_satisfiable", "Range", "Range", "bytes=x-y"),
		// Uploads.
		post("upload without a name", uploads, "x", 400, "invalid_request", "name", "Content-Type", "text/plain"),
		post("upload to a path that escapes", uploads+"?path=..%2Fx", "x", 400, "path_invalid", "path", "Content-Type", "text/plain"),
		post("upload with a malformed type", uploads+"?name=x", "x", 415, "unsupported_media_type", "Content-Type", "Content-Type", "text"),
		post("upload over the file limit", uploads+"?name=x", strings.Repeat("x", 8<<20+1), 413, "file_too_large", "", "Content-Type", "text/plain"),
		post("upload over the server's limit", uploads+"?name=x", strings.Repeat("x", 16<<20+1), 413, "file_too_large", "", "Content-Type", "text/plain"),
		post("upload that is compressed on the way", uploads+"?name=x", "x", 415, "unsupported_media_type", "Content-Encoding", "Content-Type", "text/plain", "Content-Encoding", "gzip"),
		post("upload with an unknown parameter", uploads+"?name=x&size=1", "x", 400, "unknown_field", "size", "Content-Type", "text/plain"),
		post("upload without a boundary", uploads, "x", 400, "invalid_request", "Content-Type", "Content-Type", "multipart/form-data"),
		// Workspaces and their history.
		get("a file of the workspace without a path", files+"/content", 400, "invalid_request", "path"),
		get("a file of the workspace that escapes", files+"/content?path=a/../../x", 400, "path_invalid", "path"),
		get("a file of the workspace that is absolute", files+"/content?path=/etc/passwd", 400, "path_invalid", "path"),
		get("a path with a NUL", files+"/content?path=a%00b", 400, "path_invalid", "path"),
		get("a path with an element too long", files+"/content?path="+strings.Repeat("x", 256), 400, "path_invalid", "path"),
		get("a path that is no base64", files+"/content?pathBase64=SECRETVALUE", 400, "path_invalid", "pathBase64"),
		get("a path that escapes in base64", files+"/content?pathBase64=Li4veA==", 400, "path_invalid", "pathBase64"),
		get("a path named twice", files+"/content?path=a&pathBase64=YQ==", 400, "invalid_request", "path"),
		get("a file of the workspace that is not there", files+"/content?path=none", 404, "not_found", "path"),
		get("a directory as a file", files+"/content?path=out", 409, "path_conflict", "path"),
		get("a path below a file", files+"/content?path=out/made.txt/x", 409, "path_conflict", "path"),
		get("a directory that is not there", files+"?path=none", 404, "not_found", "path"),
		get("recursive as a number", files+"?recursive=1", 400, "invalid_request", "recursive"),
		get("a tree's cursor malformed", files+"?cursor=%21%21", 400, "invalid_request", "cursor"),
		get("a commit foreign", "/v1/workbench/commits/cmt_"+unknownID, 404, "not_found", ""),
		get("a run where a commit is meant", "/v1/workbench/commits/"+run+"/tree", 404, "not_found", ""),
		get("a diff from no commit", "/v1/workbench/runs/"+run+"/diff?from=x", 400, "unknown_field", "from"),
		get("a diff as HTML", "/v1/workbench/runs/"+run+"/diff", 406, "not_acceptable", "Accept", "Accept", "text/html"),
		{"a mode that is none", "PUT", files + "/content?path=a&mode=999", "x", nil, 400, "invalid_request", "mode"},
		{"a mode with set-uid", "PUT", files + "/content?path=a&mode=4755", "x", nil, 400, "invalid_request", "mode"},
		{"If-Match that is no digest", "PUT", files + "/content?path=a", "x", []string{"If-Match", `"1"`}, 400, "invalid_request", "If-Match"},
		{"If-None-Match of a digest", "PUT", files + "/content?path=a", "x", []string{"If-None-Match", `"1"`}, 400, "invalid_request", "If-None-Match"},
		{"a file over the server's limit", "PUT", files + "/content?path=a", strings.Repeat("x", 16<<20+1), nil, 413, "file_too_large", ""},
		{"a delete without a path", "DELETE", files + "/content", "", nil, 400, "invalid_request", "path"},
		post("a move from nowhere", files+"/move", `{"to":"b"}`, 400, "invalid_request", "from"),
		post("a move that escapes", files+"/move", `{"from":"a","to":"../b"}`, 400, "path_invalid", "to"),
		post("a directory at the top", files+"/directories", `{"path":"."}`, 400, "path_invalid", "path"),
		post("a rollback to nothing", sessions+"/"+session+"/rollback", `{}`, 400, "invalid_request", "commit"),
		post("a rollback to two things", sessions+"/"+session+"/rollback", `{"commit":"cmt_`+unknownID+`","run":"run_`+unknownID+`"}`, 400, "invalid_request", "run"),
		post("a rollback with a malformed head", sessions+"/"+session+"/rollback", `{"run":"`+run+`","expectedHead":"x"}`, 400, "invalid_request", "expectedHead"),
		post("a fork from a malformed commit", sessions+"/"+session+"/fork", `{"commit":"SECRETVALUE"}`, 400, "invalid_request", "commit"),
		post("a fork with an unknown field", sessions+"/"+session+"/fork", `{"tools":[]}`, 400, "unknown_field", "tools"),
		post("a fork with ttl 0", sessions+"/"+session+"/fork", `{"ttlMs":0}`, 400, "limit_out_of_range", "ttlMs"),
		// Routes.
		get("no such route", "/v1/workbench/nope", 404, "not_found", ""),
		get("a path that is not clean", "/v1//workbench/sessions", 404, "not_found", ""),
		get("a trailing slash", "/v1/workbench/sessions/", 404, "not_found", ""),
		{"wrong method", "PUT", sessions, "{}", nil, 405, "method_not_allowed", ""},
		{"unknown method", "BREW", sessions, "", nil, 405, "method_not_allowed", ""},
	}...)
}

// TestNoRouteAndNoJSONSayWhere: what is nearly a route gets a suggestion, and a
// body that was cut is told from one that is malformed.
func TestNoRouteAndNoJSONSayWhere(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	if x := w.Do("GET", "/v1/workbench/session", key, ""); x.Status != 404 || x.Text("hint") != "did you mean /v1/workbench/sessions?" {
		t.Errorf("a route that is nearly one: %d %s", x.Status, x.Body)
	}
	if x := w.Do("POST", "/v1/workbench/sessions", key, `{"agent":"a"`); x.Status != 400 || x.Text("detail") != "the body is not valid JSON: it ends too early" {
		t.Errorf("a body that was cut: %d %s", x.Status, x.Body)
	}
	if x := w.Do("POST", "/v1/workbench/sessions", key, `{"agent":a}`); x.Status != 400 || x.Text("detail") != "the body is not valid JSON (byte 9)" {
		t.Errorf("a body that is malformed: %d %s", x.Status, x.Body)
	}
	if x := w.Do("POST", "/v1/workbench/sessions", key, "\ufeff{}", "Content-Type", "application/json"); x.Status != 400 || x.Text("detail") != "the body begins with a byte order mark" || x.Text("hint") == "" {
		t.Errorf("a body with a byte order mark: %d %s", x.Status, x.Body)
	}
	if x := w.Do("POST", "/v1/workbench/sessions", key, `{"limits":{"timeoutMs":1e400}}`); x.Status != 400 || x.Text("code") != "limit_out_of_range" || x.Text("field") != "limits.timeoutMs" {
		t.Errorf("a number beyond every range: %d %s", x.Status, x.Body)
	}
}

func manyLabels(n int) string {
	pairs := make([]string, n)
	for i := range pairs {
		pairs[i] = fmt.Sprintf(`"l%d":"v"`, i)
	}
	return strings.Join(pairs, ",")
}

// TestBadInput: each wrong request gets its own code and field, no value of it
// comes back, and nothing is half created.
func TestBadInput(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	file := w.MustUpload(key, session, "input.txt", "hello")
	run := w.MustSubmit(key, session)
	r := w.engine.MustStart(t, run)
	r.Write(workbench.Stdout, "é")
	r.End()
	before := census(t, w, key, session)
	for _, b := range badRequests(session, run, file) {
		t.Run(b.name, func(t *testing.T) {
			w.t = t
			x := w.Do(b.method, b.path, key, b.body, b.headers...)
			if x.Status != b.status || x.Text("code") != string(b.code) || x.Text("field") != b.field {
				t.Errorf("got %d, code %q, field %q; want %d, %q, %q: %s", x.Status, x.Text("code"), x.Text("field"), b.status, b.code, b.field, x.Body)
			}
			for _, canary := range []string{"SECRETVALUE", "yesterday", unknownID} {
				if strings.Contains(string(x.Body), canary) {
					t.Errorf("the answer repeats a value: %s", x.Body)
				}
			}
			if x.Text("hint") == "" || x.Text("detail") == "" {
				t.Errorf("the answer does not say what to do: %s", x.Body)
			}
			if b.status == 405 && x.Header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
	w.t = t
	if after := census(t, w, key, session); after != before {
		t.Errorf("bad requests left something behind: %s, before: %s", after, before)
	}
}

// census counts everything a request could have created.
func census(t *testing.T, w *world, key, session string) string {
	t.Helper()
	use, err := w.db.QuotaUse(t.Context(), session)
	if err != nil {
		t.Fatalf("quota: %v", err)
	}
	count := func(path string) int {
		return strings.Count(string(w.Do("GET", path, key, "").Want(200).Body), `"createdAt"`)
	}
	return fmt.Sprintf("sessions %d, runs %d, files %d, revisions %d, quota %+v", count("/v1/workbench/sessions"),
		count("/v1/workbench/sessions/"+session+"/runs"), count("/v1/workbench/sessions/"+session+"/artifacts"), count("/v1/workbench/sessions/"+session+"/revisions"), use)
}

// TestBadKeys: every wrong field of a new key is named.
func TestBadKeys(t *testing.T) {
	w := MustWorld(t)
	_, admin := w.MustKey(identity.KeyRequest{Kind: workbench.KeyAdmin})
	session := w.MustSession(w.Direct("", "acme", "ada"))
	for name, c := range map[string]struct {
		body, code, field string
		status            int
	}{
		"no kind":                   {`{}`, "invalid_request", "kind", 400},
		"unknown kind":              {`{"kind":"super"}`, "invalid_request", "kind", 400},
		"direct without a tenant":   {`{"kind":"direct","user":"u"}`, "invalid_request", "tenant", 400},
		"direct without a user":     {`{"kind":"direct","tenant":"t"}`, "invalid_request", "user", 400},
		"tenant too long":           {`{"kind":"direct","tenant":"` + strings.Repeat("é", 65) + `","user":"u"}`, "invalid_request", "tenant", 400},
		"tenant with a newline":     {`{"kind":"direct","tenant":"a\nb","user":"u"}`, "invalid_request", "tenant", 400},
		"embedded with a user":      {`{"kind":"embedded","user":"u"}`, "invalid_request", "user", 400},
		"direct with tenants":       {`{"kind":"direct","tenant":"t","user":"u","tenants":["t"]}`, "invalid_request", "tenants", 400},
		"an empty tenant name":      {`{"kind":"embedded","tenants":[""]}`, "invalid_request", "tenants", 400},
		"unknown scope":             {`{"kind":"embedded","scopes":["all"]}`, "invalid_request", "scopes[0]", 400},
		"a scope twice":             {`{"kind":"embedded","scopes":["read","read"]}`, "invalid_request", "scopes", 400},
		"manage for one session":    {`{"kind":"direct","tenant":"acme","user":"ada","scopes":["manage"],"sessionId":"` + session + `"}`, "invalid_request", "scopes", 400},
		"execute for an admin":      {`{"kind":"admin","scopes":["execute"]}`, "invalid_request", "scopes", 400},
		"contents for a direct":     {`{"kind":"direct","tenant":"t","user":"u","contents":true}`, "invalid_request", "contents", 400},
		"expired already":           {`{"kind":"admin","expiresAt":"2020-01-01T00:00:00Z"}`, "invalid_request", "expiresAt", 400},
		"expiry malformed":          {`{"kind":"admin","expiresAt":"tomorrow"}`, "invalid_request", "expiresAt", 400},
		"session malformed":         {`{"kind":"embedded","sessionId":"x"}`, "invalid_request", "sessionId", 400},
		"session foreign":           {`{"kind":"embedded","sessionId":"ses_` + unknownID + `"}`, "not_found", "sessionId", 404},
		"another user's session":    {`{"kind":"direct","tenant":"acme","user":"bob","sessionId":"` + session + `"}`, "invalid_request", "sessionId", 400},
		"session for an admin":      {`{"kind":"admin","sessionId":"` + session + `"}`, "invalid_request", "sessionId", 400},
		"the secret chosen by hand": {`{"kind":"admin","secret":"x"}`, "unknown_field", "secret", 400},
	} {
		x := w.Do("POST", "/v1/workbench/keys", admin, c.body)
		if x.Status != c.status || x.Text("code") != c.code || x.Text("field") != c.field {
			t.Errorf("%s: got %d %s", name, x.Status, x.Body)
		}
		if x.Text("hint") == "" {
			t.Errorf("%s: the answer does not say what to do: %s", name, x.Body)
		}
	}
	if n, _ := w.db.CountKeys(t.Context(), workbench.KeyEmbedded); n != 0 {
		t.Errorf("%d embedded keys were created by wrong requests", n)
	}
}

// TestUploadForms: the two ways to upload, and forms that are wrong.
func TestUploadForms(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	path := "/v1/workbench/sessions/" + session + "/artifacts"
	form := func(parts ...string) exchange {
		var body bytes.Buffer
		m := multipart.NewWriter(&body)
		for i := 0; i < len(parts); i += 2 {
			var part io.Writer
			if parts[i] == "file" {
				part, _ = m.CreateFormFile("file", "résumé 報告.csv")
			} else {
				part, _ = m.CreateFormField(parts[i])
			}
			_, _ = io.WriteString(part, parts[i+1])
		}
		_ = m.Close()
		return w.Do("POST", path, key, body.String(), "Content-Type", m.FormDataContentType())
	}
	if x := form("file", "a,b\n"); x.Status != 201 || x.Text("name") != "résumé 報告.csv" || x.Text("size") != "4" {
		t.Errorf("a form with a file: %d %s", x.Status, x.Body)
	}
	if x := form("name", "x.csv", "path", "in/x.csv", "file", ""); x.Status != 201 || x.Text("path") != "in/x.csv" || x.Text("size") != "0" {
		t.Errorf("a form with a path and an empty file: %d %s", x.Status, x.Body)
	}
	for name, c := range map[string]struct {
		parts []string
		code  string
		field string
	}{
		"no file":              {[]string{"name", "x"}, "invalid_request", "file"},
		"two files":            {[]string{"file", "1", "file", "2"}, "invalid_request", "file"},
		"a part after":         {[]string{"file", "1", "path", "x"}, "invalid_request", "file"},
		"an unknown part":      {[]string{"mode", "x", "file", "1"}, "unknown_field", "mode"},
		"a name twice":         {[]string{"name", "x", "name", "y", "file", "1"}, "invalid_request", "name"},
		"a name far too long":  {[]string{"name", strings.Repeat("x", 5000), "file", "1"}, "invalid_request", "name"},
		"a path that escapes":  {[]string{"path", "../x", "file", "1"}, "path_invalid", "path"},
		"a file over the size": {[]string{"file", strings.Repeat("x", 8<<20+1)}, "file_too_large", ""},
	} {
		if x := form(c.parts...); x.Text("code") != c.code || x.Text("field") != c.field {
			t.Errorf("%s: got %d %s", name, x.Status, x.Body)
		}
	}
	if x := form("file", "1", "path", "x"); x.Text("hint") != `put "name" and "path" before "file", and leave other parts out; send one file per request` {
		t.Errorf("a part after: hint %q", x.Text("hint"))
	}
	if x := w.Do("POST", path, key, "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\ncut", "Content-Type", "multipart/form-data; boundary=b"); x.Status != 400 || x.Text("code") != "invalid_request" {
		t.Errorf("a form that ends early: %d %s", x.Status, x.Body)
	}
	list := w.Do("GET", path, key, "").Want(200)
	if n := strings.Count(string(list.Body), `"sha256"`); n != 2 {
		t.Errorf("%d files are listed, want 2: %s", n, list.Body)
	}
	if use, err := w.db.QuotaUse(t.Context(), session); err != nil || use.SessionFiles != 2 || use.SessionBytes != 4 {
		t.Errorf("the quota counts %+v (err %v), want 2 files of 4 bytes", use, err)
	}
}

// TestUploadTypes: a type that the client chose stays; one that it only sends
// by default is replaced by what the name says.
func TestUploadTypes(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	path := "/v1/workbench/sessions/" + w.MustSession(key) + "/artifacts?name="
	for _, c := range []struct{ name, sent, want string }{
		{"may.csv", "application/x-www-form-urlencoded", "text/csv"},
		{"may.csv", "Application/X-WWW-Form-Urlencoded; charset=utf-8", "text/csv"},
		{"may.csv", "application/octet-stream", "text/csv"},
		{"may.csv", "", "text/csv"},
		{"may.csv", "text/x-ledger", "text/x-ledger"},
		{"chart.png", "application/x-www-form-urlencoded", "image/png"},
		{"no-ending", "application/x-www-form-urlencoded", "text/plain; charset=utf-8"},
	} {
		x := w.Do("POST", path+c.name, key, "a,b\n", "Content-Type", c.sent)
		if x.Status != 201 || x.Text("mimeType") != c.want {
			t.Errorf("%s sent as %q: %d, type %q, want %q", c.name, c.sent, x.Status, x.Text("mimeType"), c.want)
		}
	}
}

// TestHeadersGivenTwice: a header that says two things says nothing.
func TestHeadersGivenTwice(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	for name, status := range map[string]int{"Authorization": 401, identity.TenantHeader: 400} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+"/v1/workbench/sessions", nil)
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Add(name, "acme")
		if name != "Authorization" {
			req.Header.Add(name, "acme")
		}
		if x := w.send(req); x.Status != status {
			t.Errorf("%s twice: %d, want %d", name, x.Status, status)
		}
	}
}

// TestWorkspaceTakesNoForm: a form is not stored in the place of the file.
func TestWorkspaceTakesNoForm(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	w.engine.MustStart(t, w.MustSubmit(key, session)).End()
	path := "/v1/workbench/sessions/" + session + "/workspace/content?path=a.txt"
	form := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nhello\r\n--x--\r\n"
	x := w.Do("PUT", path, key, form, "Content-Type", "multipart/form-data; boundary=x")
	if x.Status != 415 || x.Text("code") != "unsupported_media_type" || x.Text("field") != "Content-Type" || !strings.Contains(x.Text("hint"), "--data-binary @FILE") {
		t.Errorf("a form: %d %s", x.Status, x.Body)
	}
	for _, contentType := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "nonsense;;"} {
		w.Do("PUT", path, key, form, "Content-Type", contentType).Want(200)
	}
}

package api_test

import (
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/identity"
)

// TestSchemaErrorsSayWhatToSend: the field, what is wrong, what is allowed and
// what to do, in words.
func TestSchemaErrorsSayWhatToSend(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	_, admin := w.MustKey(identity.KeyRequest{Kind: workbench.KeyAdmin})
	session := w.MustSession(key)
	const base = "/v1/workbench"
	runs := base + "/sessions/" + session + "/runs"
	for _, c := range []struct{ name, path, key, body, field, detail, hint string }{
		{"a value outside a list", runs, key, `{"language":"ruby","code":"1"}`, "language", `language must be one of "python", "javascript", "typescript", "bash"`, "send one of these, spelled exactly so"},
		{"a value in another case", runs, key, `{"language":"Python","code":"1"}`, "language", `language must be one of "python", "javascript", "typescript", "bash"`, `did you mean "python"?`},
		{"another word for a value", runs, key, `{"language":"sh","code":"1"}`, "language", `language must be one of "python", "javascript", "typescript", "bash"`, `did you mean "bash"?`},
		{"a value in a list", base + "/keys", admin, `{"kind":"embedded","scopes":["all"]}`, "scopes[0]", `scopes[0] must be one of "execute", "read", "approve", "manage"`, "send one of these, spelled exactly so"},
		{"a field that is missing", runs, key, `{"code":"1"}`, "language", "language is required", `add it: one of "python", "javascript", "typescript", "bash"; a cell ("contextId") may leave it out`},
		{"a text that is missing", runs, key, `{"language":"bash"}`, "code", "code is required", "add it: a text in double quotes"},
		{"a number where a text belongs", runs, key, `{"language":"bash","code":7}`, "code", "code must be a text", "send a text in double quotes"},
		{"a text where a number belongs", runs, key, `{"language":"bash","code":"1","timeoutMs":"1000"}`, "timeoutMs", "timeoutMs must be a whole number", "send a whole number without quotes"},
		{"a fraction", runs, key, `{"language":"bash","code":"1","timeoutMs":1000.5}`, "timeoutMs", "timeoutMs must be a whole number", "send a whole number without quotes"},
		{"a text where a switch belongs", base + "/sessions/" + session + "/restart", key, `{"cancelActive":"yes"}`, "cancelActive", "cancelActive must be true or false", "send true or false, without quotes"},
		{"a text where a list belongs", runs, key, `{"language":"bash","code":"1","args":"a"}`, "args", "args must be a list", "send a list in square brackets"},
		{"a list where an object belongs", runs, key, `{"language":"bash","code":"1","env":["A=1"]}`, "env", "env must be an object", "send an object in curly brackets"},
		{"null", runs, key, `{"language":"bash","code":null}`, "code", "code must be a text", "send a text in double quotes"},
		{"an empty text", runs, key, `{"language":"bash","code":""}`, "code", "code must not be empty", "send a text in double quotes"},
		{"below the least", base + "/sessions/" + session + "/configure", key, `{"expectedCurrentVersion":0}`, "expectedCurrentVersion", "expectedCurrentVersion must be at least 1", "send a value in that range"},
		{"a form of two", runs, key, `{"language":"bash","code":"1","artifactIds":[7]}`, "artifactIds[0]", `artifactIds[0] must be a text in double quotes or an object with the fields "id", "path"`, "see /openapi.json for its form"},
		{"a field of the second form", runs, key, `{"language":"bash","code":"1","artifactIds":[{"id":"art_x","pth":"x"}]}`, "artifactIds[0].pth", `artifactIds[0]: the request has an unknown field "pth"`, `did you mean "path"?`},
		{"a pattern", base + "/sessions", key, `{"tools":["a"]}`, "tools[0]", "tools[0] must be a text of the form name@version", "see /openapi.json for its form"},
		{"a time", base + "/keys", admin, `{"kind":"admin","expiresAt":"tomorrow"}`, "expiresAt", "expiresAt must be an RFC 3339 time", "send a time such as 2026-01-31T08:00:00Z"},

		{"code sent to bash", base + "/bash", key, `{"sessionId":"` + session + `","code":"ls"}`, "code", `the request has an unknown field "code"`, `did you mean "command"?`},
		{"command sent to run_code", base + "/run_code", key, `{"sessionId":"` + session + `","language":"bash","command":"ls"}`, "command", `the request has an unknown field "command"`, `did you mean "code"?`},
		{"a slip", runs, key, `{"language":"bash","code":"1","langage":"bash"}`, "langage", `the request has an unknown field "langage"`, `did you mean "language"?`},
		{"snake case", base + "/bash", key, `{"session_id":"x","command":"ls"}`, "session_id", `the request has an unknown field "session_id"`, `did you mean "sessionId"?`},
		{"without its unit", runs, key, `{"language":"bash","code":"1","timeout":5}`, "timeout", `the request has an unknown field "timeout"`, `did you mean "timeoutMs"?`},
		{"a nested field", base + "/sessions", key, `{"limits":{"memory":1}}`, "limits.memory", `the request has an unknown field "limits.memory"`, `did you mean "memoryBytes"?`},
		{"nothing near", runs, key, `{"language":"bash","code":"1","xyzzy":1}`, "xyzzy", `the request has an unknown field "xyzzy"`,
			`remove it, or use one of "afterExecution", "args", "artifactIds", "background", "code", "contextId", "env", "idempotencyKey", "keep", "language", "onLostContext", "outputBytes", "reusableRun", "stdin", "timeoutMs"`},
		{"what a session has for good", base + "/sessions/" + session + "/configure", key, `{"keepMemory":true}`, "keepMemory", `the request has an unknown field "keepMemory"`,
			"it is chosen when a session is created and stays: create another session, or fork this one"},
		{"no fields at all", base + "/sessions/" + session + "/close", key, `{"force":true}`, "force", `the request has an unknown field "force"`, "remove it: there is no field to set here"},
		{"a parameter", runs + "?wait=5", key, `{"language":"bash","code":"1"}`, "wait", `the request has an unknown parameter "wait"`, `did you mean "waitMs"?`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			x := w.Do("POST", c.path, c.key, c.body)
			if x.Status != 400 || x.Text("field") != c.field || x.Text("detail") != c.detail || x.Text("hint") != c.hint {
				t.Errorf("status %d, field %q\n detail %q, want %q\n hint %q, want %q", x.Status, x.Text("field"), x.Text("detail"), c.detail, x.Text("hint"), c.hint)
			}
		})
	}
	w.t = t
	x := w.Do("GET", runs+"?status=done", key, "")
	if x.Status != 400 || !strings.HasPrefix(x.Text("detail"), `status must be one of "awaiting_approval", "queued", `) || x.Text("hint") == "" {
		t.Errorf("a parameter outside a list: %d %s", x.Status, x.Body)
	}
}

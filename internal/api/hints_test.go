package api_test

import (
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/identity"
)

// TestHintsNameTheWay: what is refused for a mistake that many make is told with
// what to send instead, in the words of the API.
func TestHintsNameTheWay(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	_, reader := w.MustKey(identity.KeyRequest{Kind: workbench.KeyDirect, Tenant: "acme", User: "ada", Scopes: []workbench.Scope{workbench.ScopeRead}})
	session := w.MustSession(key)
	run := w.MustSubmit(key, session)
	w.engine.MustStart(t, run).End()
	file := w.MustUpload(key, session, "input.txt", "hello")
	w.Do("DELETE", "/v1/workbench/artifacts/"+file, key, "").Want(200)
	sessions, runs := "/v1/workbench/sessions", "/v1/workbench/runs"
	files := sessions + "/" + session + "/workspace"
	for _, c := range []struct {
		name, method, path, key, body string
		status                        int
		hint                          string
	}{
		{"a scope that is missing", "POST", sessions + "/" + session + "/runs", reader, `{"language":"bash","code":"true"}`, 403, `POST /v1/workbench/keys gives a key those that "scopes" lists`},
		{"a name that is no text", "PUT", files + "/content?path=%FF", key, "x", 400, "pathBase64"},
		{"a list of one", "GET", files + "?path=a%FF", key, "", 400, "pathBase64"},
		{"a directory that is no text", "POST", files + "/directories", key, "{\"path\":\"\xff\"}", 400, "pathBase64"},
		{"a move of a name that is no text", "POST", files + "/move", key, "{\"from\":\"\xff\",\"to\":\"b\"}", 400, "fromBase64"},
		{"deleting a session", "DELETE", sessions + "/" + session, key, "", 405, "POST /v1/workbench/sessions/{id}/close ends the session"},
		{"changing a session", "PATCH", sessions + "/" + session, key, "{}", 405, "POST /v1/workbench/sessions/{id}/configure changes the session"},
		{"deleting a run", "DELETE", runs + "/" + run, key, "", 405, "POST /v1/workbench/runs/{id}/cancel cancels the run"},
		{"a file that was deleted", "GET", "/v1/workbench/artifacts/" + file + "/content", key, "", 410, "upload this one again"},
	} {
		x := w.Do(c.method, c.path, c.key, c.body)
		if x.Status != c.status || !strings.Contains(x.Text("hint"), c.hint) || strings.Contains(x.Text("hint"), "--") {
			t.Errorf("%s: %d, hint %q, want %d with %q", c.name, x.Status, x.Text("hint"), c.status, c.hint)
		}
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
)

// stub is a server that answers what a test says, by method and path below
// /v1/workbench, and notes what it was asked. Several answers to one request are
// given in turn, the last of them again and again.
type stub struct {
	answers map[string][]string

	mu    sync.Mutex
	asked []string // method, path, query and body
	url   string
}

// MustStub serves a stub, and has commands of this test speak to it.
func MustStub(t *testing.T, answers map[string][]string) *stub {
	t.Helper()
	hermetic(t)
	s := &stub{answers: answers}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	t.Setenv("WORKBENCH_SERVER", server.URL)
	t.Setenv("WORKBENCH_KEY", "wbk_a_test")
	return s
}

func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	path := strings.TrimPrefix(r.URL.Path, "/v1/workbench")
	s.mu.Lock()
	defer s.mu.Unlock()
	line := r.Method + " " + path
	if r.URL.RawQuery != "" {
		line += "?" + r.URL.RawQuery
	}
	s.asked = append(s.asked, strings.TrimSpace(line+" "+string(body)))
	answers := s.answers[r.Method+" "+path]
	if len(answers) == 0 {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"code":"not_found","detail":"no such thing","status":404}`)
		return
	}
	if len(answers) > 1 {
		s.answers[r.Method+" "+path] = answers[1:]
	}
	if detail, ok := strings.CutPrefix(answers[0], "forbidden: "); ok {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, `{"code":"forbidden","detail":%q,"status":403}`, detail)
		return
	}
	if answers[0] == "" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	_, _ = io.WriteString(w, answers[0])
}

// mustBeAsked checks what the server was asked since it was last looked at.
func (s *stub) mustBeAsked(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := strings.Join(s.asked, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the server was asked\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	s.asked = nil
}

// mustInvoke runs a command line that has to end with a status, and returns what
// it printed.
func mustInvoke(t *testing.T, status int, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, got := invoke(t, args...)
	if got != status {
		t.Fatalf("workbench %s: status %d, want %d\n%s%s", strings.Join(args, " "), got, status, stdout, stderr)
	}
	return stdout, stderr
}

// mustPrint runs a command line that succeeds and prints exactly want.
func mustPrint(t *testing.T, want string, args ...string) {
	t.Helper()
	if stdout, _ := mustInvoke(t, 0, args...); stdout != want {
		t.Errorf("workbench %s printed\n%q\nwant\n%q", strings.Join(args, " "), stdout, want)
	}
}

// mustWrite makes a file in a directory of the test's.
func mustWrite(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// withInput runs f with a standard input of this content.
func withInput(t *testing.T, content string) {
	t.Helper()
	f, err := os.Open(mustWrite(t, "stdin", content))
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stdin
	os.Stdin = f
	t.Cleanup(func() { os.Stdin = old; _ = f.Close() })
}

const imported = `{"app":{"name":"pets","kind":"openapi"},"tools":[{"name":"pets.get","version":"2"},{"name":"pets.list","version":"1"}],
	"added":[{"name":"pets.get","version":"2"}],"skipped":["a b: not a name\u001b[2J"]}`

func TestToolsAdd(t *testing.T) {
	s := MustStub(t, map[string][]string{"PUT /apps/pets": {imported}, "PUT /apps/files": {imported}})
	yamlDoc := mustWrite(t, "pets.yaml", "openapi: 3.1.0\npaths:\n  /pets:\n    get:\n      responses:\n        200: {description: ok}\n")
	endpoints := mustWrite(t, "http.json", `{"url":"https://a.example.com","endpoints":[{"name":"get","method":"GET","path":"/x/{id}","inputSchema":{"type":"object"}}]}`)
	document := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("a key was sent to where a document is")
		}
		_, _ = io.WriteString(w, `{"openapi": "3.0.0"}`)
	}))
	defer document.Close()
	t.Setenv("TOKEN_OF_THIS_TEST", "x")
	for _, tc := range []struct {
		args []string
		body string
	}{
		{[]string{"pets", "--mcp-http", "https://mcp.example.com", "--provider", "p", "--needs-connection", "--connection", "main", "--timeout", "5s"},
			`{"kind":"mcp_http","config":{"url":"https://mcp.example.com","timeoutMs":5000},"provider":"p","needsConnection":true,"connection":"main"}`},
		{[]string{"pets", "--openapi", yamlDoc, "--url", "https://pets.example.com/v1"},
			`{"kind":"openapi","config":{"url":"https://pets.example.com/v1","document":{"openapi":"3.1.0","paths":{"/pets":{"get":{"responses":{"200":{"description":"ok"}}}}}}}}`},
		{[]string{"pets", "--openapi", document.URL}, `{"kind":"openapi","config":{"document":{"openapi":"3.0.0"}}}`},
		{[]string{"pets", "--http", endpoints}, `{"kind":"http","config":{"url":"https://a.example.com","endpoints":[{"name":"get","method":"GET","path":"/x/{id}","inputSchema":{"type":"object"}}]}}`},
		{[]string{"files", "--mcp-stdio", "--env", "MODE=ro", "--env", "TOKEN_OF_THIS_TEST", "--credential-env", "SECRET", "--", "npx", "-y", "server", "--json"},
			`{"kind":"mcp_stdio","config":{"command":"npx","args":["-y","server","--json"],"env":{"MODE":"ro","TOKEN_OF_THIS_TEST":"x"},"credentialEnv":"SECRET"}}`},
	} {
		stdout, stderr := mustInvoke(t, 0, append([]string{"tools", "add"}, tc.args...)...)
		if stdout != "pets.get@2\n" || stderr != "workbench: left out a b: not a name\\x1b[2J\nworkbench: pets offers 2 tools, 1 of them new or changed\n" {
			t.Errorf("%v: stdout %q, stderr %q", tc.args, stdout, stderr)
		}
		s.mustBeAsked(t, "PUT /apps/"+tc.args[0]+" "+tc.body)
	}
	stdout, _ := mustInvoke(t, 0, "tools", "add", "pets", "--mcp-http", "https://mcp.example.com", "--json")
	if !json.Valid([]byte(stdout)) || strings.Contains(stdout, "\x1b") {
		t.Errorf("as JSON: %q", stdout)
	}
}

func TestToolsAddIsRefused(t *testing.T) {
	s := MustStub(t, nil)
	noYAML := mustWrite(t, "bad.yaml", "{[")
	list := mustWrite(t, "list.yaml", "- a\n")
	unknown := mustWrite(t, "unknown.json", `{"url":"https://x","endpoint":[]}`)
	empty := mustWrite(t, "empty.json", " \n")
	big := mustWrite(t, "big.json", `{"x":"`+strings.Repeat("x", 5<<20)+`"}`)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"pets"}, "workbench: say where the app is"},
		{[]string{"--mcp-stdio", "--", "server"}, "workbench: name one app; the command of --mcp-stdio comes after --"},
		{[]string{"pets", "--mcp-stdio"}, "workbench: --mcp-stdio needs the program"},
		{[]string{"pets", "--mcp-http", "https://x", "--", "server"}, "workbench: a command after -- goes with --mcp-stdio alone"},
		{[]string{"pets", "--mcp-http", "https://x", "--openapi", "a.json"}, "workbench: an app is of one kind"},
		{[]string{"pets", "--mcp-http", "https://x", "--url", "https://y"}, "workbench: --url does not go with an app of this kind"},
		{[]string{"pets", "--mcp-http", "https://x", "--env", "A=b"}, "workbench: --env does not go with an app of this kind"},
		{[]string{"pets", "--mcp-http", "https://x", "--timeout", "0s"}, "workbench: --timeout must be more than nothing"},
		{[]string{"pets", "--openapi", "testdata/none.yaml"}, "workbench: --openapi cannot be read: testdata/none.yaml"},
		{[]string{"pets", "--openapi", noYAML}, "workbench: --openapi " + noYAML + " is neither JSON nor YAML"},
		{[]string{"pets", "--openapi", list}, "workbench: --openapi " + list + " is neither JSON nor YAML"},
		{[]string{"pets", "--openapi", empty}, "workbench: --openapi " + empty + " is empty"},
		{[]string{"pets", "--openapi", "https://user:secret@x"}, "workbench: --openapi: that is no URL of a document\n"},
		{[]string{"pets", "--http", unknown}, "workbench: --http " + unknown + " does not declare endpoints: json: unknown field \"endpoint\""},
	} {
		if _, stderr := mustInvoke(t, workbench.ExitUsage, append([]string{"tools", "add"}, tc.args...)...); !strings.HasPrefix(stderr, tc.want) || strings.Contains(stderr, "secret@") {
			t.Errorf("tools add %v: %q, want %q", tc.args, stderr, tc.want)
		}
	}
	if _, stderr := mustInvoke(t, workbench.ExitLimit, "tools", "add", "pets", "--openapi", big); !strings.HasPrefix(stderr, "workbench: the app takes 5.0 MiB to send, and a server takes at most 4.0 MiB\n") {
		t.Errorf("a big document: %q", stderr)
	}
	s.mustBeAsked(t)
}

func TestYAML(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"keys that are numbers":      {"responses: {200: a, true: b}", `{"responses":{"200":"a","true":"b"}}`},
		"numbers, bools and nothing": {"a: 1\nb: 1.5\nc: true\nd: null\ne: 0x10\nf:", `{"a":1,"b":1.5,"c":true,"d":null,"e":16,"f":null}`},
		"dates stay text":            {"version: 2026-01-31", `{"version":"2026-01-31"}`},
		"text that looks like one":   {"a: '1'\nb: \"true\"", `{"a":"1","b":"true"}`},
		"anchors":                    {"a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}\nf: {b: 3, <<: *x}", `{"a":{"b":1},"c":{"b":1},"d":{"b":1,"e":2},"f":{"b":3}}`},
		"what JSON has no number of": {"a: .inf", `{"a":".inf"}`},
	} {
		if got, err := fromYAML([]byte(tc.yaml)); err != nil || string(got) != tc.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, tc.want)
		}
	}
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'i'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 10))
	}
	for name, bad := range map[string]string{"no mapping": "a", "nothing": "", "twice": "a: 1\na: 2", "aliases of aliases": bomb, "keys that are no text": "{[a]: b}"} {
		if got, err := fromYAML([]byte(bad)); err == nil {
			t.Errorf("%s: %.100s", name, got)
		}
	}
}

const tools = `{"items":[
	{"app":"pets","name":"pets.get","version":"2","state":"current","description":"Get a pet\u001b[2J","inputSchema":{"type":"object"},"annotations":{"readOnly":true},"createdAt":"2026-05-01T08:00:00Z"},
	{"app":"pets","name":"pets.get","version":"1","state":"superseded","description":"Get","inputSchema":{},"annotations":{"destructive":true},"createdAt":"2026-05-01T07:00:00Z"}]}`

func TestToolsAreListedAndShown(t *testing.T) {
	s := MustStub(t, map[string][]string{"GET /tools": {tools}, "GET /apps": {`{"items":[
		{"name":"files","kind":"mcp_stdio","provider":"files","version":3,"config":{"command":"npx","args":["a b"]},"error":"ended at once\u0007"},
		{"name":"pets","kind":"openapi","provider":"p","needsConnection":true,"version":1,"config":{"url":"https://x"},"importedAt":"2026-05-01T08:00:00Z"}]}`},
		"DELETE /apps/pets": {""}, "POST /apps/pets/import": {imported}})
	mustPrint(t, "pets.get\t2\tcurrent\treads\t2026-05-01T08:00:00Z\tGet a pet\\x1b[2J\npets.get\t1\tsuperseded\tdestroys\t2026-05-01T07:00:00Z\tGet\n",
		"tools", "list", "get", "a", "--app", "pets", "--all")
	s.mustBeAsked(t, "GET /tools?all=true&app=pets&query=get+a")
	mustPrint(t, "tool\tpets.get\nversion\t2\nstate\tcurrent\napp\tpets\neffect\treads\ncreated\t2026-05-01T08:00:00Z\ndescription\tGet a pet\\x1b[2J\ntakes\t{\"type\":\"object\"}\n", "tools", "show", "pets.get")
	s.mustBeAsked(t, "GET /tools?name=pets.get")
	stdout, _ := mustInvoke(t, 0, "tools", "show", "pets.get@1")
	if !strings.HasPrefix(stdout, "tool\tpets.get\nversion\t1\nstate\tsuperseded\n") {
		t.Errorf("version 1: %q", stdout)
	}
	s.mustBeAsked(t, "GET /tools?all=true&name=pets.get")
	if _, stderr := mustInvoke(t, workbench.ExitUsage, "tools", "show", "pets.get@7"); !strings.Contains(stderr, "hint: workbench tools list --all shows every version") {
		t.Errorf("a version that there is not: %q", stderr)
	}
	s.mustBeAsked(t, "GET /tools?all=true&name=pets.get")
	mustPrint(t, "files\tmcp_stdio\tfiles\tno\t3\t\tnpx 'a b'\tended at once\\x07\npets\topenapi\tp\tyes\t1\t2026-05-01T08:00:00Z\thttps://x\t\n", "tools", "apps")
	s.mustBeAsked(t, "GET /apps")
	if _, stderr := mustInvoke(t, 0, "tools", "remove", "pets"); stderr != "workbench: removed pets\n" {
		t.Errorf("removed: %q", stderr)
	}
	s.mustBeAsked(t, "DELETE /apps/pets")
	mustPrint(t, "pets.get@2\n", "tools", "import", "pets", "--connection", "main")
	s.mustBeAsked(t, `POST /apps/pets/import {"connection":"main"}`)
	if _, stderr := mustInvoke(t, workbench.ExitNotFound, "tools", "remove", "other"); !strings.Contains(stderr, "(not_found)") {
		t.Errorf("removing what is not there: %q", stderr)
	}
}

func TestSessionsNameTools(t *testing.T) {
	s := MustStub(t, map[string][]string{"GET /tools": {tools}, "POST /sessions": {`{"id":"ses_x"}`}, "POST /sessions/ses_x/configure": {`{"id":"ses_x"}`}})
	mustPrint(t, "ses_x\n", "session", "create", "--tool", "pets.get", "--tool", "pets.list@3", "--connection", "main")
	s.mustBeAsked(t, "GET /tools?name=pets.get", `POST /sessions {"tools":[{"name":"pets.get","version":"2"},{"name":"pets.list","version":"3"}],"connections":["main"]}`)
	mustInvoke(t, 0, "session", "configure", "ses_x", "--tool", "", "--connection", "")
	s.mustBeAsked(t, `POST /sessions/ses_x/configure {"tools":[],"connections":[]}`)
	mustInvoke(t, 0, "session", "configure", "ses_x", "--tool", "pets.get@1")
	s.mustBeAsked(t, `POST /sessions/ses_x/configure {"tools":[{"name":"pets.get","version":"1"}]}`)
}

const connected = `{"id":"con_1","alias":"main","provider":"pets","auth":"bearer","hosts":["a.example.com"],"version":1,"tenant":"ten_1","user":"usr_1","createdAt":"2026-05-01T08:00:00Z"}`

func TestConnectionAdd(t *testing.T) {
	s := MustStub(t, map[string][]string{"POST /connections": {connected}})
	token, password := mustWrite(t, "token", "s3cret-1\r\n"), mustWrite(t, "password", "two words \n")
	t.Setenv("SECRET_OF_THIS_TEST", "s3cret-3")
	t.Setenv("WORKBENCH_TENANT", "of-another-key")
	withInput(t, "s3cret-2\n")
	for _, tc := range []struct {
		args []string
		body string
	}{
		{[]string{"--bearer-file", token, "--host", "a.example.com", "--tenant", "acme", "--user", "ada"},
			`{"alias":"main","provider":"pets","auth":"bearer","credentials":{"token":"s3cret-1"},"hosts":["a.example.com"],"tenant":"acme","user":"ada"}`},
		{[]string{"--username", "ada", "--password-file", password, "--tenant", "acme", "--group", "support"},
			`{"alias":"main","provider":"pets","auth":"basic","credentials":{"username":"ada","password":"two words "},"tenant":"acme","group":"support"}`},
		{[]string{"--header", "X-Api-Key", "--value-file", "-"}, `{"alias":"main","provider":"pets","auth":"header","credentials":{"header":"X-Api-Key","value":"s3cret-2"}}`},
		{[]string{"--token-url", "https://id.example.com", "--client-id", "me", "--client-secret-env", "SECRET_OF_THIS_TEST", "--oauth-scope", "a", "--oauth-scope", "b"},
			`{"alias":"main","provider":"pets","auth":"oauth2_client_credentials","credentials":{"tokenUrl":"https://id.example.com","clientId":"me","clientSecret":"s3cret-3","scopes":["a","b"]}}`},
		{[]string{"--token-url", "https://id.example.com", "--client-id", "me", "--refresh-token-file", token},
			`{"alias":"main","provider":"pets","auth":"oauth2_refresh_token","credentials":{"tokenUrl":"https://id.example.com","clientId":"me","refreshToken":"s3cret-1"}}`},
	} {
		mustPrint(t, "con_1\n", append([]string{"connection", "add", "main", "--provider", "pets"}, tc.args...)...)
		s.mustBeAsked(t, "POST /connections "+tc.body)
	}
}

func TestConnectionAddIsRefused(t *testing.T) {
	s := MustStub(t, nil)
	token, empty := mustWrite(t, "token", "s3cret-1\n"), mustWrite(t, "empty", "\n")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "workbench: give credentials, such as a token with --bearer-file or --bearer-env\n"},
		{[]string{"--bearer-file", token, "--username", "ada"}, "workbench: a connection has credentials of one kind, and --username is of another\n"},
		{[]string{"--bearer-file", token, "--bearer-env", "X"}, "workbench: --bearer-file and --bearer-env are the same secret\n"},
		{[]string{"--client-secret-file", "-", "--refresh-token-file", "-"}, "workbench: --client-secret-file and --refresh-token-file cannot both be standard input\n"},
		{[]string{"--bearer-file", "testdata/none"}, "workbench: --bearer-file cannot be read: testdata/none\n"},
		{[]string{"--bearer-file", empty}, "workbench: --bearer-file is empty\n"},
		{[]string{"--bearer-env", "UNSET_VARIABLE_OF_THIS_TEST"}, "workbench: --bearer-env UNSET_VARIABLE_OF_THIS_TEST: no variable of that name is set, or it is empty\n"},
		{[]string{"--token", "s3cret-1"}, "workbench: unknown flag: --token\n"},
	} {
		if tc.want == "workbench: --client-secret-file and --refresh-token-file cannot both be standard input\n" {
			withInput(t, "s3cret-1\n")
		}
		stdout, stderr := mustInvoke(t, workbench.ExitUsage, append([]string{"connection", "add", "main", "--provider", "pets"}, tc.args...)...)
		if !strings.HasPrefix(stderr, tc.want) || strings.Contains(stdout+stderr, "s3cret") {
			t.Errorf("%v: %q, want %q", tc.args, stderr, tc.want)
		}
	}
	s.mustBeAsked(t)
}

func TestConnectionsAreListedRotatedAndRevoked(t *testing.T) {
	list := `{"items":[` + connected + `,{"id":"con_0","alias":"main","provider":"pets","auth":"basic","hosts":[],"version":4,"createdAt":"2026-05-01T07:00:00Z","revokedAt":"2026-05-01T07:30:00Z"}],"nextCursor":""}`
	s := MustStub(t, map[string][]string{"GET /connections": {list}, "POST /connections/con_1/rotate": {connected}, "DELETE /connections/con_1": {connected}, "GET /connections/con_1": {connected}})
	mustPrint(t, "con_1\tmain\tpets\tbearer\tvalid\tuser\tusr_1\t1\t\t2026-05-01T08:00:00Z\ta.example.com\ncon_0\tmain\tpets\tbasic\trevoked\tproject\t\t4\t\t2026-05-01T07:00:00Z\t\n", "connection", "list", "--alias", "main")
	s.mustBeAsked(t, "GET /connections?alias=main&limit=50")
	token := mustWrite(t, "token", "s3cret-2\n")
	mustInvoke(t, 0, "connection", "rotate", "main", "--bearer-file", token, "--expected-version", "1")
	s.mustBeAsked(t, "GET /connections?alias=main&limit=200", `POST /connections/con_1/rotate {"credentials":{"token":"s3cret-2"},"expectedCurrentVersion":1}`)
	mustInvoke(t, 0, "connection", "revoke", "con_1")
	s.mustBeAsked(t, "DELETE /connections/con_1")
	stdout, _ := mustInvoke(t, 0, "connection", "show", "con_1")
	if want := "connection\tcon_1\nalias\tmain\nprovider\tpets\nauth\tbearer\nstate\tvalid\nscope\tuser\ntenant\tten_1\nuser\tusr_1\nhosts\ta.example.com\nversion\t1\ncreated\t2026-05-01T08:00:00Z\n"; stdout != want {
		t.Errorf("shown %q", stdout)
	}
	s.mustBeAsked(t, "GET /connections/con_1")
	s.answers["GET /connections"] = []string{`{"items":[` + connected + `,` + strings.Replace(connected, "con_1", "con_2", 1) + `]}`}
	if _, stderr := mustInvoke(t, workbench.ExitConflict, "connection", "revoke", "main"); !strings.Contains(stderr, "hint: name one by its id: workbench connection list --alias main shows them") {
		t.Errorf("an alias of several: %q", stderr)
	}
	s.answers["GET /connections"] = []string{`{"items":[]}`}
	mustInvoke(t, workbench.ExitNotFound, "connection", "revoke", "main")
}

const permit = "permit(principal, action == Action::\"call\", resource);\n"

func TestPolicyCheckWithoutAServer(t *testing.T) {
	hermetic(t)
	good, bad := mustWrite(t, "reading.cedar", permit), mustWrite(t, "paying.cedar", "permit(\n  principal,\n  action == Action::\"cal\",\n  resource);\n")
	if stdout, stderr := mustInvoke(t, 0, "policy", "check", good); stdout != "" || stderr != "workbench: nothing is wrong with 1 rule\n" {
		t.Errorf("a good one: %q, %q", stdout, stderr)
	}
	stdout, _ := mustInvoke(t, workbench.ExitUsage, "policy", "check", good, bad)
	if want := bad + ":1:1: there is no action \"cal\"\n  hint: actions are "; !strings.HasPrefix(stdout, want) {
		t.Errorf("a bad one: %q, want %q", stdout, want)
	}
	empty := mustWrite(t, "empty.cedar", "// nothing\n")
	if stdout, _ := mustInvoke(t, 0, "policy", "check", empty); stdout != empty+": warning: the text holds no policy\n" {
		t.Errorf("a warning: %q", stdout)
	}
	stdout, _ = mustInvoke(t, workbench.ExitUsage, "policy", "check", "--json", bad)
	var check struct {
		Valid    bool
		Problems []map[string]any
	}
	if err := json.Unmarshal([]byte(stdout), &check); err != nil || check.Valid || len(check.Problems) == 0 || check.Problems[0]["rule"] != "paying" || check.Problems[0]["line"] != 1.0 {
		t.Errorf("as JSON: %s, %v", stdout, err)
	}
	withInput(t, permit)
	mustInvoke(t, 0, "policy", "check", "-", "--name", "reading")
	for _, args := range [][]string{{"check"}, {"check", "-"}, {"check", good, good}, {"check", good, bad, "--name", "x"}, {"check", "testdata/none.cedar"}, {"put"}, {"remove"}} {
		mustInvoke(t, workbench.ExitUsage, append([]string{"policy"}, args...)...)
	}
}

func TestPolicyAtAServer(t *testing.T) {
	set := `{"version":7,"items":[{"name":"reading","text":"permit(principal);\u001b[2J","version":2,"updatedAt":"2026-05-01T08:00:00Z","updatedByKey":"key_1"}],"warnings":[]}`
	warned := strings.Replace(set, `"warnings":[]`, `"warnings":[{"rule":"reading","line":2,"column":3,"message":"odd","hint":"look","warning":true}]`, 1)
	s := MustStub(t, map[string][]string{"GET /rules": {set}, "POST /rules": {warned}, "POST /rules/check": {`{"valid":false,"problems":[{"Rule":"reading","Policy":"","Line":1,"Column":9,"Message":"wrong","Hint":"","Warning":false}]}`}})
	file := mustWrite(t, "reading.cedar", permit)
	text := strings.ReplaceAll(strings.TrimSuffix(permit, "\n"), `"`, `\"`) + `\n`
	if stdout, _ := mustInvoke(t, workbench.ExitUsage, "policy", "check", file); stdout != file+":1:9: wrong\n" {
		t.Errorf("checked: %q", stdout)
	}
	s.mustBeAsked(t, `POST /rules/check {"rules":[{"name":"reading","text":"`+text+`"}]}`)
	if stdout, stderr := mustInvoke(t, 0, "policy", "put", file, "--expected-version", "6"); stdout != "" ||
		stderr != "workbench: the rules are at version 7 now: 1 rule\n"+file+":2:3: warning: odd\n  hint: look\n" {
		t.Errorf("put: %q, %q", stdout, stderr)
	}
	s.mustBeAsked(t, `POST /rules {"put":[{"name":"reading","text":"`+text+`"}],"expectedCurrentVersion":6}`)
	mustInvoke(t, 0, "policy", "remove", "reading", "old")
	s.mustBeAsked(t, `POST /rules {"remove":["reading","old"]}`)
	if stdout, stderr := mustInvoke(t, 0, "policy", "list"); stdout != "reading\t2\t22\t2026-05-01T08:00:00Z\tkey_1\n" || stderr != "workbench: the rules are at version 7\n" {
		t.Errorf("listed: %q, %q", stdout, stderr)
	}
	mustPrint(t, "permit(principal);\x1b[2J\n", "policy", "show", "reading") // exact where it is piped
	mustInvoke(t, workbench.ExitNotFound, "policy", "show", "other")
}

func TestPolicyExplain(t *testing.T) {
	s := MustStub(t, map[string][]string{"POST /rules/explain": {`{"outcome":"needs_approval","why":"allowed by a#1","rules":["a#1"],"approval":["b#1","c#1"],"errors":["d#1: no"],"rulesVersion":7}`}, "GET /tools": {tools}})
	file := mustWrite(t, "reading.cedar", "x")
	mustPrint(t, "outcome\tneeds_approval\nwhy\tallowed by a#1\nrules\ta#1\napproval\tb#1, c#1\nnot evaluated\td#1: no\nrules version\t7\n", "policy", "explain", "rcp_1", "--rules", file)
	s.mustBeAsked(t, `POST /rules/explain {"receipt":"rcp_1","rules":[{"name":"reading","text":"x"}]}`)
	mustInvoke(t, 0, "policy", "explain", "--session", "ses_1", "--tool", "pets.get", "--connection", "main", "--args", `{"id": 12345678901234567890}`)
	s.mustBeAsked(t, "GET /tools?name=pets.get", `POST /rules/explain {"session":"ses_1","tool":{"name":"pets.get","version":"2"},"connection":"main","arguments":{"id":12345678901234567890}}`)
	withInput(t, `{"id":1}`)
	mustInvoke(t, 0, "policy", "explain", "--session", "ses_1", "--tool", "pets.get@1", "--args", "-")
	s.mustBeAsked(t, `POST /rules/explain {"session":"ses_1","tool":{"name":"pets.get","version":"1"},"arguments":{"id":1}}`)
	for _, args := range [][]string{nil, {"--session", "ses_1"}, {"rcp_1", "--session", "ses_1"}, {"--session", "s", "--tool", "a.b@1", "--args", "[]"}, {"--session", "s", "--tool", "a.b@1", "--args", "null"}} {
		mustInvoke(t, workbench.ExitUsage, append([]string{"policy", "explain"}, args...)...)
	}
}

// called is a receipt in a status.
func called(status workbench.CallStatus, more string) string {
	return `{"id":"rcp_1","status":"` + string(status) + `","tool":"pets.get","version":"2","connection":"main","sessionId":"ses_1","runId":"run_1","number":3,"revision":1,
		"user":"usr_1","tenant":"ten_1","rules":["a#1"],"createdAt":"2026-05-01T08:00:00Z"` + more + `}`
}

func TestApprove(t *testing.T) {
	const since = `,"startedAt":"2026-05-01T08:00:00Z","finishedAt":"2026-05-01T08:00:01Z","durationMs":1000`
	for _, tc := range []struct {
		name   string
		args   []string
		after  string // what the receipt is then
		status int
		want   string // at the end of what is printed
	}{
		{"it succeeds", nil, called(workbench.CallSucceeded, since+`,"result":{"name":"Rex\u001b"}`), 0, "finished\t2026-05-01T08:00:01Z\nresult\t{\"name\":\"Rex\\u001b\"}\n"},
		{"it fails", nil, called(workbench.CallFailed, since+`,"error":{"code":"tool_failed","detail":"the tool answered 500\u001b[2J","hint":"look"}`), 9, ""},
		{"it is denied after all", nil, called(workbench.CallDenied, ""), 9, ""},
		{"nobody knows", nil, called(workbench.CallUnknown, since), 10, ""},
		{"it is not waited for", []string{"--wait", "0"}, called(workbench.CallSucceeded, ""), 0, ""},
		{"it takes too long", []string{"--wait", "1ms"}, called(workbench.CallExecuting, ""), 8, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := MustStub(t, map[string][]string{"POST /receipts/rcp_1/approve": {called(workbench.CallExecuting, "")}, "GET /receipts/rcp_1": {tc.after}})
			stdout, stderr := mustInvoke(t, tc.status, append([]string{"approve", "rcp_1", "--reason", "in order"}, tc.args...)...)
			if !strings.HasPrefix(stdout, "receipt\trcp_1\nstatus\t") || !strings.HasSuffix(stdout, tc.want) || strings.Contains(stdout+stderr, "\x1b") {
				t.Errorf("printed %q, %q", stdout, stderr)
			}
			if s.asked[0] != `POST /receipts/rcp_1/approve {"reason":"in order"}` {
				t.Errorf("asked %q", s.asked)
			}
		})
	}
	t.Run("it fails, as a person reads it", func(t *testing.T) {
		MustStub(t, map[string][]string{"POST /receipts/rcp_1/approve": {called(workbench.CallFailed, `,"error":{"code":"tool_failed","detail":"the tool answered 500","hint":"look"}`)}})
		if stdout, _ := mustInvoke(t, 9, "approve", "rcp_1"); !strings.Contains(stdout, "\nerror\ttool_failed: the tool answered 500 (look)\n") {
			t.Errorf("printed %q", stdout)
		}
	})
	t.Run("the key may not read", func(t *testing.T) {
		MustStub(t, map[string][]string{"POST /receipts/rcp_1/approve": {called(workbench.CallExecuting, "")}, "GET /receipts/rcp_1": {`forbidden: this key lacks the scope "read"`}})
		stdout, stderr := mustInvoke(t, 0, "approve", "rcp_1")
		if !strings.HasPrefix(stdout, "receipt\trcp_1\nstatus\texecuting\n") ||
			!strings.Contains(stderr, `rcp_1 is approved, and its call is made. This key may not read what comes of it (this key lacks the scope "read")`) {
			t.Errorf("printed %q, %q", stdout, stderr)
		}
	})
	t.Run("the decision is refused", func(t *testing.T) {
		MustStub(t, nil)
		mustInvoke(t, workbench.ExitNotFound, "approve", "rcp_1")
	})
}

func TestApprovalsAndDeny(t *testing.T) {
	waiting := called(workbench.CallPending, `,"approval":{"state":"pending","rules":["b#1"],"why":"it pays\u001b[2J","expiresAt":"2026-05-02T08:00:00Z"},"arguments":{"amount":12}`)
	s := MustStub(t, map[string][]string{"GET /approvals": {`{"items":[` + waiting + `],"nextCursor":"n"}`}, "POST /receipts/rcp_1/deny": {called(workbench.CallDenied, "")}})
	stdout, stderr := mustInvoke(t, 0, "approvals", "list", "--limit", "1")
	if want := "rcp_1\tpets.get\t2\tmain\tusr_1\t2026-05-01T08:00:00Z\t2026-05-02T08:00:00Z\tit pays\\x1b[2J\t{\"amount\":12}\trun_1\tses_1\n"; stdout != want || stderr != "workbench: there is more: --cursor n\n" {
		t.Errorf("waiting: %q, %q", stdout, stderr)
	}
	s.mustBeAsked(t, "GET /approvals?limit=1")
	mustInvoke(t, 0, "deny", "rcp_1", "--reason", "too much")
	s.mustBeAsked(t, `POST /receipts/rcp_1/deny {"reason":"too much"}`)
	mustInvoke(t, workbench.ExitUsage, "deny", "rcp_1")
	mustInvoke(t, workbench.ExitUsage, "approve", "rcp_1", "--wait", "-1s")
	s.mustBeAsked(t)
	t.Setenv("WORKBENCH_SERVER", "")
	for _, args := range [][]string{{"approvals", "list"}, {"approve", "rcp_1"}, {"deny", "rcp_1", "--reason", "x"}} {
		if _, stderr := mustInvoke(t, workbench.ExitUsage, args...); !strings.HasPrefix(stderr, "workbench: workbench "+strings.Join(args[:1], " ")) || !strings.Contains(stderr, "hint: name it with --server or WORKBENCH_SERVER") {
			t.Errorf("%v without a server: %q", args, stderr)
		}
	}
}

func TestReceipts(t *testing.T) {
	s := MustStub(t, map[string][]string{
		"GET /receipts":       {`{"items":[` + called(workbench.CallDenied, `,"error":{"code":"access_denied","detail":"no"}`) + `]}`},
		"GET /receipts/rcp_1": {called(workbench.CallPending, `,"approval":{"state":"pending","rules":["b#1"],"expiresAt":"2026-05-02T08:00:00Z"}`), called(workbench.CallExecuting, ""), called(workbench.CallUnknown, "")},
	})
	mustPrint(t, "rcp_1\tdenied\tpets.get\t2\tmain\t\t2026-05-01T08:00:00Z\trun_1\t3\tses_1\taccess_denied\n",
		"receipts", "list", "--session", "ses_1", "--run", "run_1", "--tool", "pets.get", "--status", "denied")
	s.mustBeAsked(t, "GET /receipts?limit=50&run=run_1&session=ses_1&status=denied&tool=pets.get")
	stdout, _ := mustInvoke(t, 0, "receipts", "show", "rcp_1")
	if !strings.Contains(stdout, "\nstatus\tpending_approval\n") || !strings.Contains(stdout, "\napproval\tpending\nasked by\tb#1\nuntil\t2026-05-02T08:00:00Z\n") {
		t.Errorf("shown %q", stdout)
	}
	s.mustBeAsked(t, "GET /receipts/rcp_1")
	mustInvoke(t, workbench.ExitRunUnknown, "receipts", "show", "rcp_1", "--wait")
	s.mustBeAsked(t, "GET /receipts/rcp_1?waitMs=25000", "GET /receipts/rcp_1?waitMs=25000")
}

func TestExitOfCall(t *testing.T) {
	want := map[workbench.CallStatus]int{workbench.CallSucceeded: 0, workbench.CallFailed: 9, workbench.CallDenied: 9, workbench.CallExpired: 9, workbench.CallUnknown: 10, workbench.CallExecuting: 8, workbench.CallPending: 8}
	for _, s := range workbench.CallStatuses() {
		if got := exitOfCall(workbench.ToolReceipt{Status: s}); got != want[s] {
			t.Errorf("%s: %d, want %d", s, got, want[s])
		}
	}
}

// trail is an audit trail of n rows as it is exported.
func trail(t *testing.T, n int) []string {
	t.Helper()
	var lines []string
	hash := ""
	for i := range n {
		e := workbench.AuditEntry{ID: fmt.Sprint("aud_", i), At: time.Date(2026, 5, 1, 8, 0, i, 1000, time.UTC), ProjectID: "prj", KeyID: "key_1", Action: "app.put", Target: "pets", Outcome: "ok",
			Detail: json.RawMessage(`{"tools":1}`), Seq: int64(i + 1)}
		hash = e.ChainHash(hash)
		e.Hash = hash
		raw, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(raw)+"\n")
	}
	return lines
}

func TestAuditVerifiesACopy(t *testing.T) {
	hermetic(t)
	rows := trail(t, 4)
	whole := strings.Join(rows, "")
	file := mustWrite(t, "audit.jsonl", whole)
	var last workbench.AuditEntry
	if err := json.Unmarshal([]byte(rows[3]), &last); err != nil {
		t.Fatal(err)
	}
	intact := "intact\tyes\nrows\t4\nhead\t" + last.Hash + "\n"
	mustPrint(t, intact, "audit", "verify", file)
	mustPrint(t, intact, "audit", "verify", mustWrite(t, "a", rows[0]+rows[1]), mustWrite(t, "b", rows[2]+rows[3]))
	withInput(t, whole)
	mustPrint(t, intact, "audit", "verify", "-")
	for name, tc := range map[string]struct{ content, broken, line, why string }{
		"a row that was changed":    {rows[0] + strings.Replace(rows[1], "app.put", "app.get", 1) + rows[2] + rows[3], "2", "2", "the row, or one before it, was changed"},
		"a row that was removed":    {rows[0] + rows[2] + rows[3], "2", "2", "row 2 is missing"},
		"a row that was added":      {rows[0] + rows[1] + rows[1] + rows[2], "3", "3", "row 3 is missing"},
		"a field that was added":    {strings.Replace(rows[0], `{"id"`, `{"note":"x","id"`, 1) + rows[1], "2", "1", "the line holds more than the row that it is about, or was written anew"},
		"something else":            {rows[0] + "<html>\n", "2", "2", "the line is not a row of an audit trail"},
		"the middle of a trail":     {rows[2] + rows[3], "1", "1", "row 1 is missing"},
		"an empty line in a trail":  {rows[0] + "\n" + rows[1], "2", "2", "the line is not a row of an audit trail"},
		"a line that never ends":    {rows[0] + strings.Repeat("x", maxAuditLine+1), "2", "2", "the line is not a row of an audit trail"},
		"a hash that was put in it": {rows[0] + strings.Replace(rows[1], `"hash":"`, `"hash":"0`, 1), "2", "2", "the row, or one before it, was changed"},
	} {
		file := mustWrite(t, "bad", tc.content)
		stdout, _ := mustInvoke(t, workbench.ExitFailure, "audit", "verify", file)
		if want := "\nbroken at\t" + tc.broken + "\nin\t" + file + ":" + tc.line + "\nwhy\t" + tc.why + "\n"; !strings.HasPrefix(stdout, "intact\tno\n") || !strings.HasSuffix(stdout, want) {
			t.Errorf("%s: %q, want %q", name, stdout, want)
		}
	}
	mustInvoke(t, workbench.ExitUsage, "audit", "verify", "testdata/none.jsonl")
	mustInvoke(t, workbench.ExitUsage, "audit", "verify", file, "--server", "http://127.0.0.1:1")
	stdout, _ := mustInvoke(t, 0, "audit", "verify", file, "--json")
	var check workbench.AuditCheck
	if err := json.Unmarshal([]byte(stdout), &check); err != nil || !check.Intact || check.Rows != 4 || check.Head != last.Hash {
		t.Errorf("as JSON: %s, %v", stdout, err)
	}
}

func TestAuditAtAServer(t *testing.T) {
	rows := trail(t, 3)
	s := MustStub(t, map[string][]string{"GET /audit/export": {strings.Join(rows, "")}, "GET /audit": {`{"items":[` + rows[2] + `]}`},
		"GET /audit/verify": {`{"intact":true,"rows":3,"unchained":2,"head":"ab"}`, `{"intact":false,"rows":1,"unchained":0,"head":"ab","broken":2,"why":"row 2 is missing"}`}})
	mustPrint(t, strings.Join(rows, ""), "audit", "export")
	s.mustBeAsked(t, "GET /audit/export")
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	mustPrint(t, file+"\n", "audit", "export", file)
	if raw, err := os.ReadFile(file); err != nil || string(raw) != strings.Join(rows, "") {
		t.Errorf("exported %q, %v", raw, err)
	}
	s.mustBeAsked(t, "GET /audit/export")
	s.answers["GET /audit/export"] = []string{rows[0] + "<html>\n"}
	cut := filepath.Join(t.TempDir(), "cut.jsonl")
	mustInvoke(t, workbench.ExitFailure, "audit", "export", cut)
	if _, err := os.Stat(cut); !os.IsNotExist(err) {
		t.Errorf("a part of an export stayed: %v", err)
	}
	s.asked = nil
	mustPrint(t, "3\t2026-05-01T08:00:02Z\tapp.put\tpets\tok\tkey_1\t\t\t\t\t{\"tools\":1}\n", "audit", "list", "--action", "app.put", "--target", "pets", "--tenant", "ten_1", "--user", "usr_1", "--key", "key_1", "--since", "2026-05-01T08:00:00Z")
	s.mustBeAsked(t, "GET /audit?action=app.put&key=key_1&limit=50&since=2026-05-01T08%3A00%3A00Z&target=pets&tenant=ten_1&user=usr_1")
	mustPrint(t, "intact\tyes\nrows\t3\nhead\tab\nwithout a place\t2\n", "audit", "verify")
	if stdout, _ := mustInvoke(t, workbench.ExitFailure, "audit", "verify"); stdout != "intact\tno\nrows\t1\nhead\tab\nbroken at\t2\nwhy\trow 2 is missing\n" {
		t.Errorf("a broken one: %q", stdout)
	}
	mustInvoke(t, workbench.ExitUsage, "audit", "list", "--since", "yesterday")
	mustInvoke(t, workbench.ExitUsage, "audit", "export", "--after", "-1")
}

func TestMoments(t *testing.T) {
	now := time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{"": {}, "24h": now.Add(-24 * time.Hour), "2026-01-31T08:00:00Z": time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)} {
		if got, err := moment("since", s, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v, want %v", s, got, err, want)
		}
	}
	if _, err := moment("since", "-1h", now); !workbench.HasCode(err, workbench.CodeInvalidRequest) {
		t.Errorf("the future: %v", err)
	}
}

// TestReceiptsOnATerminal: contents come last and indented there, and nothing in
// them acts on it.
func TestReceiptsOnATerminal(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out, outTTY: true}
	r := workbench.ToolReceipt{ID: "rcp_1", Status: workbench.CallSucceeded, Tool: "pets.get", Version: "2", Number: 1, Revision: 1, Arguments: json.RawMessage(`{"id":1}`), Result: json.RawMessage(`{"name":"Rex` + "\u202e" + `"}`),
		Approval: &workbench.Approval{State: workbench.ApprovalApproved, Rules: []string{"b#1"}, Reason: "in order\x1b[2J"}}
	if err := a.showReceipt(r); err != nil {
		t.Fatal(err)
	}
	if want := "\narguments\n{\n  \"id\": 1\n}\n\nresult\n{\n  \"name\": \"Rex\\u202e\"\n}\n"; !strings.HasSuffix(out.String(), want) || !strings.Contains(out.String(), "in order\\x1b[2J\n") {
		t.Errorf("shown\n%s", out.String())
	}
	for text, want := range map[string]string{"short": "short", "first\nsecond": "first …", strings.Repeat("x", 100): strings.Repeat("x", 59) + "…"} {
		if got := a.inShort(text); got != want {
			t.Errorf("in short: %q, want %q", got, want)
		}
	}
}

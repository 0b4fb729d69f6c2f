package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

const fetchAll = `permit(principal, action == Action::"fetch", resource);`

func hostOf(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// Code reaches a host that the rules allow, with credentials that it never sees,
// in every language.
func TestFetch(t *testing.T) {
	api := mustOracle(t)
	host := hostOf(t, api.URL)
	d := mustDesk(t, func(o *server.Options) { o.FetchPrivate = []string{host} })
	const token = "canary-fetch-77aa11bb22cc"
	d.rest(t, http.MethodPost, "/v1/workbench/connections", map[string]any{"alias": "api", "provider": "api", "auth": "bearer", "hosts": []string{host},
		"credentials": map[string]any{"token": token}}, http.StatusCreated)
	d.rest(t, http.MethodPost, "/v1/workbench/connections", map[string]any{"alias": "elsewhere", "provider": "api", "auth": "bearer", "hosts": []string{"api.example.com"},
		"credentials": map[string]any{"token": token + "x"}}, http.StatusCreated)
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), sdk.CreateSession{Connections: []string{"api", "elsewhere"}})
	big := strings.Repeat("0123456789abcdef", 40_000)
	api.answers(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/big":
			_, _ = io.WriteString(w, big)
		case "/echo":
			w.Header().Set("X-Seen", r.Header.Get("Authorization"))
			_, _ = fmt.Fprintf(w, `{"method": %q, "seen": %q}`, r.Method, r.Header.Get("Authorization"))
		case "/away":
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		}
	})
	denied := s.mustPython(fmt.Sprintf(`
try: workbench.fetch(%q)
except workbench.WorkbenchError as e: print(e.code)
`, api.URL+"/echo"))
	wantOut(t, denied, "access_denied\n")
	if n := api.executed(); n != 0 {
		t.Fatalf("without a rule the host was asked %d times", n)
	}
	d.rules(t, "hosts", fmt.Sprintf(`permit(principal, action == Action::"fetch", resource == Host::"127.0.0.1") when { context.path != "/never" && resource.port == %s };`,
		host[strings.LastIndex(host, ":")+1:]))
	for _, c := range []struct {
		language workbench.Language
		code     string
		want     string
	}{
		{workbench.Python, `r = workbench.fetch(URL + "/echo", "POST", json={"a": 1}, connection="api"); print(r.status, r.json()["method"], r.json()["seen"], r.headers["x-seen"]); print(len(workbench.fetch(URL + "/big").content))`,
			"200 POST Bearer [redacted] Bearer [redacted]\n640000\n"},
		{workbench.JavaScript, `const r = await workbench.fetch(URL + "/echo", { method: "POST", json: { a: 1 }, connection: "api" }); console.log(r.status, r.json().method, r.json().seen, r.headers["x-seen"]); console.log((await workbench.fetch(URL + "/big")).body.length)`,
			"200 POST Bearer [redacted] Bearer [redacted]\n640000\n"},
		{workbench.Bash, `workbench fetch URL/echo --method POST --body x --connection api; echo; workbench fetch URL/big | wc -c`,
			"{\"method\": \"POST\", \"seen\": \"Bearer [redacted]\"}\n640000\n"},
	} {
		t.Run(string(c.language), func(t *testing.T) {
			code := strings.ReplaceAll(c.code, "URL + ", fmt.Sprintf("%q + ", api.URL))
			r := s.mustRun(sdk.CreateRun{Language: c.language, Code: strings.ReplaceAll(code, "URL", api.URL)})
			wantOut(t, r, c.want)
			if r.Services["fetch"].Calls != 2 || len(r.Dependencies) == 0 {
				t.Errorf("the receipt counts %+v and depends on %+v", r.Services, r.Dependencies)
			}
		})
	}
	api.mu.Lock()
	seen := api.tokens[0]
	api.mu.Unlock()
	if seen != "Bearer "+token {
		t.Errorf("the host got %q", seen)
	}
	refusals := s.mustPython(fmt.Sprintf(`
URL = %q
for name, call in {
    "another path": lambda: workbench.fetch(URL + "/never"),
    "a header of the server's": lambda: workbench.fetch(URL + "/echo", headers={"Authorization": "Bearer mine"}),
    "credentials for another host": lambda: workbench.fetch(URL + "/echo", connection="elsewhere"),
    "an alias of no session's": lambda: workbench.fetch(URL + "/echo", connection="sales"),
    "a user in the URL": lambda: workbench.fetch(URL.replace("//", "//me:secret@")),
    "another scheme": lambda: workbench.fetch("file:///etc/passwd"),
    "a redirect": lambda: print(workbench.fetch(URL + "/away").status),
}.items():
    try: call(); print(name, "is answered")
    except workbench.WorkbenchError as e: print(name, e.code)
`, api.URL))
	wantOut(t, refusals, `another path access_denied
a header of the server's invalid_request
credentials for another host connection_not_allowed
an alias of no session's connection_not_allowed
a user in the URL invalid_request
another scheme invalid_request
302
a redirect is answered
`)
}

// H101 to H104: whatever the rules allow, private networks are not reached: not
// the server itself, not the host's others, not metadata, in no way of writing
// them.
func TestFetchReachesNoPrivateNetwork(t *testing.T) {
	d := mustDesk(t, nil)
	d.rules(t, "hosts", fetchAll)
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	port := hostOf(t, d.url)
	port = port[strings.LastIndex(port, ":"):]
	var urls []string
	for _, host := range []string{"127.0.0.1", "localhost", "127.1.2.3", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"} {
		urls = append(urls, "http://"+host+port+"/healthz")
	}
	urls = append(urls, "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://[fe80::1]/", "http://[::ffff:10.0.0.1]/", "http://10.0.0.1/", "http://172.17.0.1/",
		"http://192.168.1.1/", "http://100.64.0.1/", "http://[ff02::1]/", "http://224.0.0.1/")
	r := s.mustPython(fmt.Sprintf(`
for url in %s:
    try: print(url, workbench.fetch(url).status)
    except workbench.WorkbenchError as e:
        if e.code != "access_denied": print(url, e)
print("done")
`, quotedList(urls)))
	wantOut(t, r, "done\n")
}

func quotedList(items []string) string {
	out := make([]string, len(items))
	for i, s := range items {
		out[i] = fmt.Sprintf("%q", s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

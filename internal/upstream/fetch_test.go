package upstream_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// H102 to H104: what is dialled is judged, in every way to write it.
func TestPublicAddresses(t *testing.T) {
	for _, text := range []string{
		"127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "169.254.169.254", "100.64.0.1", "100.127.255.255",
		"192.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::",
		"fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
	} {
		if upstream.Public(netip.MustParseAddr(text)) {
			t.Errorf("%s counts as public", text)
		}
	}
	for _, text := range []string{"1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "192.0.1.1", "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8"} {
		if !upstream.Public(netip.MustParseAddr(text)) {
			t.Errorf("%s does not count as public", text)
		}
	}
}

func TestFetchURL(t *testing.T) {
	for raw, want := range map[string]string{
		"https://API.Example.com./v1?a=b#frag": "https://api.example.com/v1?a=b",
		"http://example.com:80":                "http://example.com/",
		"https://example.com:443/x":            "https://example.com/x",
		"https://example.com:8443/x":           "https://example.com:8443/x",
		"http://[2606:4700::1111]:8080/":       "http://[2606:4700::1111]:8080/",
		"http://ｌｏｃａｌｈｏｓｔ:81/":                 "http://localhost:81/",
		"http://localhoſt/":                    "http://localhost/",
		"http://127。0。0。1/":                    "http://127.0.0.1/",
		"https://MÜNCHEN.example./":            "https://xn--mnchen-3ya.example/",
		"https://h/v1/a..b/.well-known/...":    "https://h/v1/a..b/.well-known/...",
		"https://h/projects/group%2Fname":      "https://h/projects/group%2Fname",
		"https://h/v1?path=../x":               "https://h/v1?path=../x",
	} {
		u, err := upstream.FetchURL(raw)
		if err != nil || u.String() != want {
			t.Errorf("%s is %v (%v), want %s", raw, u, err, want)
		}
	}
	for _, raw := range []string{"", "example.com", "file:///etc/passwd", "gopher://x/", "https://me@example.com/", "https:///x", "http://a b/", "//x/",
		"https://h/v1/../private", "https://h/v1/..", "https://h/./x", "https://h/v1/%2e%2e/x", "https://h/v1/.%2E/x", "https://h/v1/..%2fx", "https://h/v1/%252e%252e/x",
		`https://h/v1/..\x`, "https://h/v1/..%5cx", "https://h/v1/..;a=b/x", "https://h/v1/%2e%2e%3bx/y", "https://h/v1/%25252e%25252e/x", "https://h/v1/..%20/x", "https://h/v1/..%00/x"} {
		if _, err := upstream.FetchURL(raw); !workbench.HasCode(err, workbench.CodeInvalidRequest) {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func TestFetchGoesToNamedPrivateHostsAlone(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		_, _ = io.WriteString(w, "here")
	}))
	defer s.Close()
	u, err := url.Parse(s.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	closed := upstream.New(upstream.Options{})
	defer closed.Close()
	_, err = closed.Fetch(t.Context(), upstream.FetchRequest{URL: u, Method: http.MethodGet}, nil)
	if !workbench.HasCode(err, workbench.CodeAccessDenied) || upstream.Uncertain(err) || asked != 0 {
		t.Fatalf("a private host: %v; it was asked %d times", err, asked)
	}
	named := upstream.New(upstream.Options{FetchPrivate: []string{u.Host}})
	defer named.Close()
	a, err := named.Fetch(t.Context(), upstream.FetchRequest{URL: u, Method: http.MethodGet}, nil)
	if err != nil || string(a.Body) != "here" || a.Status != http.StatusOK {
		t.Fatalf("a named one: %+v (%v)", a, err)
	}
}

// Rules see where a path leads, however many slashes it is written with.
func TestRulesPath(t *testing.T) {
	for raw, want := range map[string]string{"https://h": "/", "https://h/a/b": "/a/b", "https://h//private/x": "/private/x", "https://h/priv%61te//x/": "/private/x/", `https://h/\private`: "/private"} {
		u, err := upstream.FetchURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if got := upstream.RulesPath(u); got != want {
			t.Errorf("rules see %s as %s, want %s", raw, got, want)
		}
	}
}

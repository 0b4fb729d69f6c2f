package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/workbenchdev/workbench"
)

// FetchRequest is one request that code makes to a host which the rules let it
// reach.
type FetchRequest struct {
	URL    *url.URL // http or https, without user and password
	Method string
	Header http.Header
	Body   []byte
}

// FetchAnswer is what the host gave, whatever its status. Redirects are not
// followed: each place is asked for, and allowed, by itself.
type FetchAnswer struct {
	Status int
	Header http.Header
	Body   []byte
}

// errPrivate is a host that is not in the public network.
var errPrivate = errors.New("the host is in a private network")

// guarded dials public addresses alone, and hosts that the operator named.
// Names are resolved before they are judged, and what is judged is what is dialled.
func guarded(private []string) *http.Transport {
	t := newTransport()
	t.Proxy = nil // it would resolve names by itself
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(address)
		d := net.Dialer{Timeout: dialTimeout}
		if !slices.Contains(private, address) && !slices.Contains(private, host) {
			d.Control = func(_, address string, _ syscall.RawConn) error {
				to, err := netip.ParseAddrPort(address)
				if err != nil || !public(to.Addr()) {
					return errPrivate
				}
				return nil
			}
		}
		return d.DialContext(ctx, network, address)
	}
	return t
}

// special are the networks that are no hosts of the public one, or lead into
// others (RFC 6890 and those that came after).
var special = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
	"192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8")

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, s := range texts {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

func public(a netip.Addr) bool {
	a = a.Unmap()
	if a.Zone() != "" || !a.IsGlobalUnicast() {
		return false
	}
	return !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Fetch makes a request, once. Credentials go to a host that the connection
// names, over https, and nowhere else; code cannot set or see them.
//
// Codes: invalid_request (headers), connection_not_allowed, access_denied (a
// private network), tool_unavailable, tool_timeout, result_too_large,
// request_cancelled. Uncertain tells whether the request may have been carried
// out.
func (c *Clients) Fetch(ctx context.Context, r FetchRequest, g *Grant) (FetchAnswer, error) {
	app := workbench.App{Name: "fetch", Kind: workbench.AppHTTP}
	var a FetchAnswer
	err := c.run(ctx, app, g, func(ctx context.Context) (err error) {
		a, err = c.fetch(ctx, r, g)
		return err
	})
	if err != nil {
		return FetchAnswer{}, err
	}
	return a, nil
}

func (c *Clients) fetch(ctx context.Context, r FetchRequest, g *Grant) (FetchAnswer, error) {
	if g != nil && len(g.Hosts) == 0 {
		return FetchAnswer{}, workbench.E(workbench.CodeConnectionRefused, "the connection names no hosts that its credentials may go to").WithField("connection").
			WithHint("nothing was sent; make the connection with hosts")
	}
	if err := g.mayGo(r.URL); err != nil {
		return FetchAnswer{}, err
	}
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL.String(), bytes.NewReader(r.Body))
	if err != nil {
		return FetchAnswer{}, workbench.E(workbench.CodeInvalidRequest, "the request cannot be made").WithField("url").Caused(err)
	}
	for name, values := range r.Header {
		lower := strings.ToLower(name)
		if !headerName(name) || reserved(name) && lower != "content-type" && lower != "user-agent" || slices.ContainsFunc(values, func(v string) bool { return !headerValue(v) }) {
			return FetchAnswer{}, workbench.E(workbench.CodeInvalidRequest, "a request cannot set that header").WithField("headers").
				WithHint("credentials are placed by the server: name a connection")
		}
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	f := &flight{abort: abort}
	d := door{clients: c, ctx: c.ctx, home: r.URL, grant: g, transport: c.open}
	resp, err := d.send(req, f, "")
	switch {
	case errors.Is(err, errPrivate):
		return FetchAnswer{}, workbench.E(workbench.CodeAccessDenied, "the host is in a private network, or is none").WithField("url").
			WithHint("hosts of private networks are reached where the operator has named them (--fetch-private)")
	case err != nil && f.landed().sent:
		return FetchAnswer{}, lost(ctx, err)
	case err != nil:
		return FetchAnswer{}, notSent(ctx, "the host", err)
	}
	defer resp.Body.Close()
	body, err := readAll(resp.Body, workbench.MaxToolResult)
	switch {
	case errors.Is(err, errOverflow):
		return FetchAnswer{}, errTooLarge()
	case err != nil:
		return FetchAnswer{}, lost(ctx, err)
	}
	red := c.redactor(g)
	a := FetchAnswer{Status: resp.StatusCode, Header: http.Header{}, Body: red.Bytes(body)}
	for name, values := range resp.Header {
		if structural(name) && !strings.EqualFold(name, "content-type") || g != nil && strings.EqualFold(name, "set-cookie") {
			continue
		}
		for _, v := range values {
			a.Header.Add(red.String(name), red.String(v))
		}
	}
	return a, nil
}

// FetchURL checks a URL that code wants to reach. Code: invalid_request.
func FetchURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || len(raw) > 8192:
		return nil, workbench.E(workbench.CodeInvalidRequest, "url must be an http or https URL").WithField("url").WithHint("such as https://api.example.com/v1/items")
	case u.User != nil:
		return nil, workbench.E(workbench.CodeInvalidRequest, "url must not hold a user or password").WithField("url").WithHint("name a connection instead")
	}
	u.Fragment, u.RawFragment = "", ""
	if u.Host, err = hostOf(u.Hostname()); err != nil {
		return nil, err
	}
	if strings.Contains(u.Host, ":") {
		u.Host = "[" + u.Host + "]"
	}
	if port := mustURL(raw).Port(); port != "" && port != map[string]string{"http": "80", "https": "443"}[u.Scheme] {
		u.Host += ":" + port
	}
	if u.Path == "" {
		u.Path = "/"
	}
	if climbs(u.Path) {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the url's path must not have . or .. in it, however they are encoded").WithField("url").
			WithHint("rules look at the path as it is written: say where it leads")
	}
	return u, nil
}

// hostOf is a host's name in the one form that rules compare, and that is dialled.
func hostOf(name string) (string, error) {
	if !isASCII(name) { // the client would map it after the rules have seen it
		mapped, err := idna.Lookup.ToASCII(name)
		if err != nil {
			return "", workbench.E(workbench.CodeInvalidRequest, "the url's host is not a name that a host can have").WithField("url")
		}
		name = mapped
	}
	return strings.TrimSuffix(strings.ToLower(name), "."), nil
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

// climbs reports whether a path, as somebody may read it, leads elsewhere than it says:
// the host decides how often it decodes, what it takes for a slash, and what it ignores
// of a step.
func climbs(path string) bool {
	for {
		for step := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
			name, _, _ := strings.Cut(step, ";")
			if name = strings.TrimFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }); name == "." || name == ".." {
				return true
			}
		}
		plain, err := url.PathUnescape(path)
		if err != nil || plain == path {
			return false
		}
		path = plain
	}
}

// RulesPath is the path of a URL as rules see it: decoded, without steps that are empty.
func RulesPath(u *url.URL) string {
	return slashes.ReplaceAllString(u.Path, "/")
}

var slashes = regexp.MustCompile(`[/\\]+`)

func mustURL(raw string) *url.URL {
	u, err := url.Parse(raw)
	if err != nil {
		panic(fmt.Sprintf("upstream: a URL that was parsed before: %v", err))
	}
	return u
}

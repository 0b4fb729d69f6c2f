package upstream

import (
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/redact"
)

// redactor takes out of text everything that must not be seen of a grant.
func (c *Clients) redactor(g *Grant) *redact.Redactor {
	if g == nil {
		return nil
	}
	secrets := g.Credentials.Secrets()
	if g.Auth == workbench.AuthBasic {
		secrets = append(secrets, g.Credentials.Username+":"+g.Credentials.Password)
	}
	return redact.New(append(secrets, c.tokens.known(g)...)...)
}

// mayGo refuses to send credentials where they may not go: elsewhere than the
// grant's hosts, or unencrypted over a network. Code connection_not_allowed.
func (g *Grant) mayGo(u *url.URL) error {
	if g == nil {
		return nil
	}
	if u.Scheme != "https" && !loopback(u.Hostname()) {
		return workbench.E(workbench.CodeConnectionRefused, "the app's URL is not https: credentials do not go there").
			WithHint("nothing was sent; use an https URL")
	}
	if len(g.Hosts) == 0 {
		return nil
	}
	for _, host := range g.Hosts {
		if strings.EqualFold(host, u.Hostname()) || strings.EqualFold(host, u.Host) {
			return nil
		}
	}
	return workbench.E(workbench.CodeConnectionRefused, "the connection's credentials may not go to the app's host").
		WithHint("nothing was sent; use a connection for that host")
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// authorize puts a grant's credentials into a request's headers, in place of
// what is there under their name.
func (c *Clients) authorize(ctx context.Context, g *Grant, h http.Header) error {
	if g == nil {
		return nil
	}
	var value string
	name := "Authorization"
	switch cr := g.Credentials; g.Auth {
	case workbench.AuthBearer:
		value = "Bearer " + cr.Token
	case workbench.AuthBasic:
		value = "Basic " + base64.StdEncoding.EncodeToString([]byte(cr.Username+":"+cr.Password))
	case workbench.AuthHeader:
		name, value = cr.Header, cr.Value
	case workbench.AuthOAuthClient, workbench.AuthOAuthRefresh:
		token, err := c.tokens.get(ctx, g)
		if err != nil {
			return err
		}
		value = token.kind + " " + token.access
	default:
		return errCredentials("are of an unknown kind")
	}
	if !headerName(name) || g.Auth == workbench.AuthHeader && structural(name) {
		return errCredentials("name a header that cannot carry them")
	}
	if !headerValue(value) || strings.TrimSpace(value) == "" {
		return errCredentials("cannot be written in a header")
	}
	h.Set(name, value)
	return nil
}

// secret is what a program is given of a grant.
func (c *Clients) secret(ctx context.Context, g *Grant) (string, error) {
	value := ""
	switch cr := g.Credentials; g.Auth {
	case workbench.AuthBearer:
		value = cr.Token
	case workbench.AuthBasic:
		value = cr.Username + ":" + cr.Password
	case workbench.AuthHeader:
		value = cr.Value
	case workbench.AuthOAuthClient, workbench.AuthOAuthRefresh:
		token, err := c.tokens.get(ctx, g)
		if err != nil {
			return "", err
		}
		value = token.access
	}
	if value == "" || strings.ContainsRune(value, 0) {
		return "", errCredentials("cannot be given to a program")
	}
	return value, nil
}

func errCredentials(what string) error {
	return workbench.E(workbench.CodeToolUnavailable, "the connection's credentials %s", what).
		WithHint("nothing was sent; rotate the connection with credentials that fit its kind")
}

// headerName reports whether a header may have the name (RFC 9110, 5.6.2).
func headerName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// headerValue reports whether a header may have the value.
func headerValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// structural are the headers that say where a message begins, ends and goes, or
// how it is encoded: no argument and no credential of its own name is one.
func structural(name string) bool {
	switch strings.ToLower(name) {
	case "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "keep-alive",
		"te", "trailer", "upgrade", "expect", "accept-encoding", "proxy-connection", "proxy-authorization", "proxy-authenticate":
		return true
	}
	return false
}

// reserved are the headers that no argument may set.
func reserved(name string) bool {
	switch strings.ToLower(name) {
	case "authorization", "cookie", "cookie2", "set-cookie", "user-agent", "idempotency-key", "x-idempotency-key":
		return true
	}
	return structural(name)
}

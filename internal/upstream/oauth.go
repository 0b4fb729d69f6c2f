package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/workbenchdev/workbench"
)

const (
	// tokenTimeout bounds one exchange with a token endpoint. It goes on when the
	// call that wanted it is given up: a refresh token that was used is spent, and
	// the one that took its place must not be lost.
	tokenTimeout = 20 * time.Second
	// expiresEarly is how long before its end an access token is not used any
	// more.
	expiresEarly = 10 * time.Second
	// spentKept is how many tokens of a connection that are not used any more are
	// still looked for in what comes back, and buriedKept for how many connections
	// that were forgotten: their last calls are ending.
	spentKept  = 4
	buriedKept = 256
)

type tokenKey struct {
	connection string
	version    int64
}

// accessToken is one that a token endpoint gave.
type accessToken struct {
	kind, access string
	until        time.Time // zero: it does not say
}

// tokens are the access tokens of connections, by version of their credentials.
type tokens struct {
	ctx     context.Context
	wg      *sync.WaitGroup
	web     *http.Client
	now     func() time.Time
	rotated func(context.Context, string, int64, workbench.Credentials) error
	log     *slog.Logger

	mu     sync.Mutex
	of     map[tokenKey]*tokenState
	buried []buried
}

// buried are the tokens of a connection that was forgotten.
type buried struct {
	connection string
	tokens     []string
}

type tokenState struct {
	token   *accessToken
	refresh string           // the newest; "" until one took the place of the credentials' own
	spent   []string         // access and refresh tokens before, for redaction
	style   oauth2.AuthStyle // that the endpoint took
	asking  *asking          // an exchange under way
	version int64            // of the credentials that hold refresh, once it was kept
	used    time.Time
}

// asking is an exchange with a token endpoint, which any number of calls wait
// for.
type asking struct {
	done  chan struct{}
	token *accessToken
	err   error
}

// maxTokens bounds the connections whose tokens are kept; one that was not used
// for longest gives way.
const maxTokens = 4096

func newTokens(ctx context.Context, wg *sync.WaitGroup, web http.RoundTripper, now func() time.Time,
	rotated func(context.Context, string, int64, workbench.Credentials) error, log *slog.Logger,
) *tokens {
	return &tokens{
		ctx: ctx, wg: wg, now: now, rotated: rotated, log: log, of: map[tokenKey]*tokenState{},
		web: &http.Client{Transport: web, Timeout: tokenTimeout, CheckRedirect: noRedirect},
	}
}

// get returns an access token for a grant: the one that is kept, or a new one.
// Calls that want one at once share it. Codes: tool_unavailable,
// connection_not_allowed, request_cancelled; nothing was asked of the tool.
func (t *tokens) get(ctx context.Context, g *Grant) (accessToken, error) {
	endpoint, err := url.Parse(g.Credentials.TokenURL)
	if err != nil || endpoint.Host == "" || endpoint.User != nil {
		return accessToken{}, errCredentials("name no token endpoint")
	}
	if endpoint.Scheme != "https" && (endpoint.Scheme != "http" || !loopback(endpoint.Hostname())) {
		return accessToken{}, workbench.E(workbench.CodeConnectionRefused, "the connection's token endpoint is not https").
			WithHint("nothing was sent; rotate the connection with an https token URL")
	}
	a, now := t.ask(g)
	if now != nil {
		return *now, nil
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return accessToken{}, notSent(ctx, "the connection's token endpoint", ctx.Err())
	}
	if a.err != nil {
		return accessToken{}, a.err
	}
	return *a.token, nil
}

// ask returns the token that is kept, or the exchange that will give one.
func (t *tokens) ask(g *Grant) (*asking, *accessToken) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := tokenKey{g.ConnectionID, g.Version}
	s := t.of[key]
	if s == nil {
		t.makeRoom()
		s = &tokenState{}
		t.of[key] = s
	}
	s.used = t.now()
	if k := s.token; k != nil && (k.until.IsZero() || t.now().Before(k.until.Add(-expiresEarly))) {
		return nil, k
	}
	if s.asking == nil {
		s.asking = &asking{done: make(chan struct{})}
		t.wg.Add(1)
		go t.exchange(*g, key, s, s.asking)
	}
	return s.asking, nil
}

func (t *tokens) makeRoom() {
	if len(t.of) < maxTokens {
		return
	}
	var oldest tokenKey
	var at time.Time
	for key, s := range t.of {
		if s.asking == nil && (at.IsZero() || s.used.Before(at)) {
			oldest, at = key, s.used
		}
	}
	delete(t.of, oldest)
}

// exchange asks the token endpoint and keeps what it gives.
func (t *tokens) exchange(g Grant, key tokenKey, s *tokenState, a *asking) {
	defer t.wg.Done()
	ctx, cancel := context.WithTimeout(t.ctx, tokenTimeout)
	defer cancel()
	t.mu.Lock()
	refresh, style := s.refresh, s.style
	g.Version = max(g.Version, s.version)
	t.mu.Unlock()
	if refresh == "" {
		refresh = g.Credentials.RefreshToken
	}
	got, style, err := t.fetch(ctx, g, refresh, style)
	renewed := err == nil && g.Auth == workbench.AuthOAuthRefresh && got.RefreshToken != "" && got.RefreshToken != refresh

	t.mu.Lock()
	s.asking = nil
	renewed = renewed && t.of[key] == s // else the connection was forgotten meanwhile
	if err == nil {
		s.style = style
		a.token = &accessToken{kind: got.Type(), access: got.AccessToken}
		if got.ExpiresIn > 0 {
			a.token.until = t.now().Add(time.Duration(got.ExpiresIn) * time.Second)
		} else if !got.Expiry.IsZero() {
			a.token.until = t.now().Add(time.Until(got.Expiry))
		}
		if s.token != nil {
			s.spent = append(s.spent, s.token.access)
		}
		if renewed {
			s.spent, s.refresh = append(s.spent, refresh), got.RefreshToken
		}
		s.spent = s.spent[max(0, len(s.spent)-spentKept):]
		s.token = a.token
	}
	a.err = err
	t.mu.Unlock()

	if renewed && t.keep(g, got.RefreshToken) {
		t.follow(g, key, s)
	}
	close(a.done)
}

// follow has the next version of a connection's credentials, which holds the
// refresh token that was kept, go on with the tokens of this one.
func (t *tokens) follow(g Grant, key tokenKey, s *tokenState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[key] != s {
		return // forgotten meanwhile
	}
	s.version = g.Version + 1
	for k := range t.of {
		if k.connection == key.connection && k.version < g.Version {
			delete(t.of, k)
		}
	}
	t.of[tokenKey{key.connection, s.version}] = s
}

// keep reports a refresh token that took the place of another, and whether it was
// kept: the credentials have the next version then.
func (t *tokens) keep(g Grant, refresh string) bool {
	if t.rotated == nil {
		return false
	}
	c := g.Credentials
	c.RefreshToken = refresh
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), tokenTimeout)
	defer cancel()
	if err := t.rotated(ctx, g.ConnectionID, g.Version, c); err != nil {
		// The tokens work until the process ends: the call goes on.
		t.log.Error("a new refresh token was not kept", "connection", g.ConnectionID, "version", g.Version, "code", workbench.CodeOf(err))
		return false
	}
	return true
}

// fetch asks for a token, with the client's secret in the header first, as every
// endpoint must take it (RFC 6749, 2.3.1), and in the form if that is refused.
func (t *tokens) fetch(ctx context.Context, g Grant, refresh string, style oauth2.AuthStyle) (*oauth2.Token, oauth2.AuthStyle, error) {
	ctx = context.WithValue(ctx, oauth2.HTTPClient, t.web)
	styles := []oauth2.AuthStyle{oauth2.AuthStyleInHeader, oauth2.AuthStyleInParams}
	switch {
	case style != oauth2.AuthStyleAutoDetect:
		styles = []oauth2.AuthStyle{style}
	case g.Credentials.ClientSecret == "":
		styles = styles[1:]
	}
	for i, style := range styles {
		token, err := fetchAs(ctx, g, refresh, style)
		if err == nil {
			return token, style, nil
		}
		var refused *oauth2.RetrieveError
		unknown := errors.As(err, &refused) && (refused.Response.StatusCode == http.StatusUnauthorized ||
			refused.Response.StatusCode == http.StatusBadRequest && refused.ErrorCode == "invalid_client")
		if !unknown || i == len(styles)-1 {
			return nil, style, errToken(ctx, err)
		}
	}
	return nil, style, errToken(ctx, nil)
}

func fetchAs(ctx context.Context, g Grant, refresh string, style oauth2.AuthStyle) (*oauth2.Token, error) {
	c := g.Credentials
	if g.Auth == workbench.AuthOAuthClient {
		config := clientcredentials.Config{ClientID: c.ClientID, ClientSecret: c.ClientSecret, TokenURL: c.TokenURL, Scopes: c.Scopes, AuthStyle: style}
		return config.Token(ctx)
	}
	config := oauth2.Config{ClientID: c.ClientID, ClientSecret: c.ClientSecret, Endpoint: oauth2.Endpoint{TokenURL: c.TokenURL, AuthStyle: style}}
	return config.TokenSource(ctx, &oauth2.Token{RefreshToken: refresh}).Token()
}

// oauthErrors are the codes of RFC 6749, 5.2: an endpoint's own text is not
// repeated.
var oauthErrors = map[string]bool{
	"invalid_request": true, "invalid_client": true, "invalid_grant": true, "unauthorized_client": true,
	"unsupported_grant_type": true, "invalid_scope": true,
}

func errToken(ctx context.Context, err error) error {
	var refused *oauth2.RetrieveError
	var unreached *url.Error
	if !errors.As(err, &refused) && !errors.As(err, &unreached) && ctx.Err() == nil {
		return certain(workbench.E(workbench.CodeToolUnavailable, "the connection's token endpoint gave no access token").
			WithHint("nothing was sent to the tool; look at the connection's token URL"), err)
	}
	if !errors.As(err, &refused) {
		return notSent(ctx, "the connection's token endpoint", fmt.Errorf("no access token: %w", err))
	}
	said := ""
	if oauthErrors[refused.ErrorCode] {
		said = " (" + refused.ErrorCode + ")"
	}
	status := refused.Response.StatusCode
	e := workbench.E(workbench.CodeToolUnavailable, "the connection's token endpoint answered %d%s", status, said).
		WithHint("nothing was sent to the tool; try again later")
	if status < 500 {
		e = e.WithHint("nothing was sent to the tool; the connection's credentials may have expired or been withdrawn: rotate it")
	}
	return certain(e, fmt.Errorf("token endpoint: status %d", status))
}

// drop forgets an access token that a tool did not take. The next call gets a
// new one.
func (t *tokens) drop(g *Grant) {
	if g == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.of[tokenKey{g.ConnectionID, g.Version}]; s != nil && s.token != nil {
		s.spent = append(s.spent, s.token.access)
		s.spent = s.spent[max(0, len(s.spent)-spentKept):]
		s.token = nil
	}
}

// known lists the tokens of a grant that must not be seen.
func (t *tokens) known(g *Grant) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	if s := t.of[tokenKey{g.ConnectionID, g.Version}]; s != nil {
		out = s.secrets()
	}
	for _, b := range t.buried {
		if b.connection == g.ConnectionID {
			out = append(out, b.tokens...)
		}
	}
	return out
}

func (s *tokenState) secrets() []string {
	out := append([]string(nil), s.spent...)
	if s.token != nil {
		out = append(out, s.token.access)
	}
	if s.refresh != "" {
		out = append(out, s.refresh)
	}
	return out
}

func (t *tokens) forget(connectionID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, s := range t.of {
		if key.connection == connectionID {
			t.buried = append(t.buried, buried{connectionID, s.secrets()})
			t.buried = t.buried[max(0, len(t.buried)-buriedKept):]
			delete(t.of, key)
		}
	}
}

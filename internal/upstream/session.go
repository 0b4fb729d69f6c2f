package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workbenchdev/workbench"
)

const (
	// maxSessions bounds the MCP sessions that are kept; beyond it one that waits
	// gives way to a new one.
	maxSessions = 256
	// politeEnd is how long a session may take to end by itself.
	politeEnd = 2 * time.Second
)

// sessionKey tells sessions apart: nothing that one credential set up is used
// with another, nor what was set up for another form of an app, or for another tenant:
// a server may keep in a session what it was told.
type sessionKey struct {
	project, tenant, app, connection string
	version                          int64
	config, secret                   [sha256.Size]byte // secret: of what a program was started with
}

type tenantKey struct{}

// WithTenant says on whose behalf a tool is asked: tenants have no MCP session, and no
// program, in common.
func WithTenant(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, tenantKey{}, id)
}

func tenantOf(ctx context.Context) string {
	id, _ := ctx.Value(tenantKey{}).(string)
	return id
}

// session is an MCP session, and the program it is with.
type session struct {
	key   sessionKey
	ready chan struct{} // closed when mcp or err is set
	mcp   *mcp.ClientSession
	err   error

	ctx    context.Context // ends with the session, at the latest
	cancel context.CancelCauseFunc
	polite context.Context // ends when the session is to end by itself
	close  context.CancelFunc

	listing listing

	// Of Clients.mu:
	uses  int
	idle  *time.Timer
	since time.Time // of the last use
}

// kill ends the session at once.
func (s *session) kill(why error) { s.cancel(why) }

// acquire returns a session for an app and a grant, set up; calls that want one
// at once share it. Its error means that nothing was asked of a tool.
func (c *Clients) acquire(ctx context.Context, app workbench.App, g *Grant) (*session, error) {
	secret := ""
	if app.Kind == workbench.AppMCPHTTP {
		home, err := url.Parse(app.Config.URL)
		if err != nil {
			return nil, errURL()
		}
		if err := g.mayGo(home); err != nil {
			return nil, err
		}
	} else {
		var err error
		if secret, err = c.programSecret(ctx, app, g); err != nil {
			return nil, err
		}
	}
	s, err := c.session(tenantOf(ctx), app, g, secret)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		c.release(s)
		return nil, notSent(ctx, "the app", ctx.Err())
	}
	if s.err != nil {
		c.release(s)
		return nil, s.err
	}
	return s, nil
}

// programSecret is what a program is given of a grant.
func (c *Clients) programSecret(ctx context.Context, app workbench.App, g *Grant) (string, error) {
	switch {
	case g == nil:
		return "", nil
	case app.Config.CredentialEnv == "":
		return "", workbench.E(workbench.CodeConnectionRefused, "the app's program takes no credentials").
			WithHint("nothing was sent; name the variable for them in the app's config.credentialEnv")
	case len(g.Hosts) > 0:
		return "", workbench.E(workbench.CodeConnectionRefused, "the connection's credentials are for some hosts alone, and a program may send them anywhere").
			WithHint("nothing was sent; use a connection without hosts for this app")
	}
	return c.secret(ctx, g)
}

// session finds or begins a session, and counts a use of it.
func (c *Clients) session(tenant string, app workbench.App, g *Grant, secret string) (*session, error) {
	if g != nil {
		own := *g // it outlives the call
		g = &own
	}
	config, err := json.Marshal(app.Config)
	if err != nil {
		return nil, err
	}
	key := sessionKey{project: app.ProjectID, tenant: tenant, app: app.Name, connection: g.id(), config: sha256.Sum256(config), secret: sha256.Sum256([]byte(secret))}
	if g != nil {
		key.version = g.Version
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errStopping()
	}
	s := c.sessions[key]
	if s == nil {
		if err := c.makeRoom(); err != nil {
			return nil, err
		}
		s = &session{key: key, ready: make(chan struct{})}
		s.ctx, s.cancel = context.WithCancelCause(context.Background())
		s.polite, s.close = context.WithCancel(context.Background())
		s.listing.turn = make(chan struct{}, 1)
		c.sessions[key] = s
		c.wg.Add(1)
		go c.live(s, app, g, secret)
	}
	s.uses++
	s.since = time.Now()
	if s.idle != nil {
		s.idle.Stop()
	}
	return s, nil
}

// release ends a use of a session. One that nobody uses ends after a while.
func (c *Clients) release(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.uses--; s.uses > 0 {
		return
	}
	if c.sessions[s.key] != s { // nobody will find it any more
		s.close()
		return
	}
	s.idle = time.AfterFunc(c.idleAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.uses == 0 && c.sessions[s.key] == s {
			delete(c.sessions, s.key)
			s.close()
		}
	})
}

// makeRoom ends the session that nobody used for longest if there are too many.
func (c *Clients) makeRoom() error {
	if len(c.sessions) < maxSessions {
		return nil
	}
	var oldest *session
	for _, s := range c.sessions {
		if s.uses == 0 && (oldest == nil || s.since.Before(oldest.since)) {
			oldest = s
		}
	}
	if oldest == nil {
		return workbench.E(workbench.CodeToolUnavailable, "too many apps are in use at once").WithHint("nothing was done; try again")
	}
	delete(c.sessions, oldest.key)
	oldest.close()
	return nil
}

// live is the life of a session, from its set-up until nothing of it is left.
func (c *Clients) live(s *session, app workbench.App, g *Grant, secret string) {
	defer c.wg.Done()
	defer s.cancel(errShut)
	defer s.close()
	end, err := c.setUp(s, app, g, secret)
	defer end()
	if err != nil {
		s.err = cleanError(err, c.redactor(g))
		c.remove(s)
		close(s.ready)
		return
	}
	close(s.ready)
	gone := make(chan struct{})
	go func() {
		_ = s.mcp.Wait()
		close(gone)
	}()
	select {
	case <-gone: // the server ended it, or it broke
	case <-s.polite.Done():
	case <-s.ctx.Done():
	}
	c.remove(s)
	hurry := time.AfterFunc(politeEnd, func() { s.cancel(errShut) })
	defer hurry.Stop()
	_ = s.mcp.Close()
	<-gone
}

// remove makes the next call begin another session.
func (c *Clients) remove(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s.key] == s {
		delete(c.sessions, s.key)
	}
	if s.idle != nil {
		s.idle.Stop()
	}
}

// setUp greets the server. end releases what was taken for it, once the session
// is closed.
func (c *Clients) setUp(s *session, app workbench.App, g *Grant, secret string) (end func(), err error) {
	ctx, cancel := context.WithTimeoutCause(s.ctx, timeout(app), errTime)
	defer cancel()
	defer context.AfterFunc(s.polite, func() { s.cancel(workbench.ErrStopping) })()
	options := &mcp.ClientOptions{
		Capabilities:   &mcp.ClientCapabilities{},                  // no sampling, elicitation or roots
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}, // it would ask again
	}
	if app.Kind == workbench.AppMCPStdio {
		// Makes the client subscribe. Over HTTP this would take a stream that stays
		// open: there the list is looked at again after a while. What it would hear
		// late, the connection tells at once.
		options.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) {}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "workbench", Version: "1"}, options)

	var transport mcp.Transport
	end = func() {}
	var trouble func() error // why the app could not be greeted, if that is known
	if app.Kind == workbench.AppMCPStdio {
		p, err := startProgram(app, secret, s.listing.changed, c.redactor(g), c.log)
		if err != nil {
			return end, err
		}
		stop := context.AfterFunc(s.ctx, p.kill)
		end = func() { stop(); p.end() }
		transport, trouble = p, p.trouble
	} else {
		home, err := url.Parse(app.Config.URL)
		if err != nil {
			return end, errURL()
		}
		d := &rpcDoor{door: door{clients: c, ctx: s.ctx, home: home, grant: g}}
		trouble = d.lastTrouble
		transport = &mcp.StreamableClientTransport{
			Endpoint:             app.Config.URL,
			HTTPClient:           &http.Client{Transport: d, CheckRedirect: noRedirect},
			DisableStandaloneSSE: true, // it would hold the set-up for as long as the server likes
			MaxEventSize:         maxFrame + 1024,
		}
	}
	s.mcp, err = client.Connect(ctx, transport, nil)
	if err == nil {
		return end, nil
	}
	if ended(ctx) == nil {
		if known := trouble(); known != nil {
			return end, known
		}
	}
	return end, notSent(ctx, "the app", err)
}

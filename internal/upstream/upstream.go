// Package upstream speaks to where tools live: MCP servers over streamable HTTP
// or as programs of this host, the operations of OpenAPI documents, and single
// HTTP endpoints. Its one job is to ask them, once, within bounds, without a
// secret leaking.
//
// It knows no rules, receipts, sessions of users or database: who may call what,
// and what becomes of an answer, is decided elsewhere. It never asks a second
// time: every way in which a request could be repeated behind the caller's back
// (replays of net/http, redirects, logging in again, the retries of MCP) is
// closed, and an error says whether the call may have been executed.
package upstream

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/redact"
)

// Grant is the right to use a connection's credentials in one call. A nil Grant
// is none.
type Grant struct {
	ConnectionID string
	Version      int64 // of the credentials
	Auth         workbench.AuthKind
	Credentials  workbench.Credentials
	// Hosts are the exact names of the hosts that the credentials may go to, with
	// a port or for any; empty: the app's own host alone.
	Hosts []string
}

func (g *Grant) id() string {
	if g == nil {
		return ""
	}
	return g.ConnectionID
}

// Options of New. The zero value is usable.
type Options struct {
	// Log hears of what cannot be reported otherwise, and at debug level what
	// programs write to stderr. nil: nothing is logged.
	Log *slog.Logger
	// StdioAllowed lets apps be programs of this host.
	StdioAllowed bool
	// Rotated keeps a refresh token that took the place of the one in a
	// connection's credentials. It is called once for each, before the access
	// token that came with it is used.
	Rotated func(ctx context.Context, connectionID string, version int64, c workbench.Credentials) error
	// FetchPrivate names hosts (name or address, with a port or for any) of private
	// networks that Fetch may reach nevertheless.
	FetchPrivate []string
	// IdleAfter is how long a session with an MCP server, or its program, stays
	// without a call. 0: five minutes.
	IdleAfter time.Duration
	// Clock tells when access tokens expire and lists of tools are old. nil:
	// time.Now.
	Clock func() time.Time
}

// Clients asks tools. It is safe for concurrent use; Close ends what it keeps.
type Clients struct {
	log          *slog.Logger
	stdioAllowed bool
	idleAfter    time.Duration
	now          func() time.Time
	web          *http.Transport // for requests without credentials
	single       *http.Transport // for those with some
	open         *http.Transport // to public hosts, see Fetch
	tokens       *tokens

	ctx  context.Context // ends with Close
	stop context.CancelCauseFunc
	wg   sync.WaitGroup // every goroutine that a call does not wait for

	mu       sync.Mutex
	closed   bool
	sessions map[sessionKey]*session
	calls    map[*call]struct{} // under way
}

// call is one call or import under way.
type call struct {
	connectionID, project, app string
	cancel                     context.CancelCauseFunc
}

// New makes clients.
func New(o Options) *Clients {
	silence()
	c := &Clients{
		log: o.Log, stdioAllowed: o.StdioAllowed, idleAfter: o.IdleAfter, now: o.Clock,
		web: newTransport(), single: single(), open: guarded(o.FetchPrivate),
		sessions: map[sessionKey]*session{}, calls: map[*call]struct{}{},
	}
	if c.log == nil {
		c.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if c.idleAfter <= 0 {
		c.idleAfter = 5 * time.Minute
	}
	if c.now == nil {
		c.now = time.Now
	}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.tokens = newTokens(c.ctx, &c.wg, c.single, c.now, o.Rotated, c.log)
	return c
}

// Imported is what an app offers.
type Imported struct {
	Tools   []workbench.ToolSpec
	Skipped []string // what could not become a tool, and why; for people
}

// Answer is what a tool gave.
type Answer struct {
	Result   json.RawMessage // valid JSON; null if there is nothing, or Binary is set
	Failed   bool            // the tool itself says that it failed; it did run
	Detail   string          // what it says of that, at most 2 KiB
	Binary   []byte          // an answer that is neither JSON nor text
	MimeType string          // of Binary
}

// Import lists what an app offers. Of openapi and http this asks nobody.
// Codes: those of Check, tool_unavailable, tool_failed, connection_not_allowed,
// request_cancelled.
func (c *Clients) Import(ctx context.Context, app workbench.App, g *Grant) (Imported, error) {
	var out Imported
	err := c.run(ctx, app, g, func(ctx context.Context) (err error) {
		switch app.Kind {
		case workbench.AppMCPStdio, workbench.AppMCPHTTP:
			out, err = c.importMCP(ctx, app, g)
		case workbench.AppOpenAPI:
			out, err = importOpenAPI(app)
		case workbench.AppHTTP:
			out, err = importEndpoints(app)
		}
		return err
	})
	if err != nil {
		return Imported{}, err
	}
	r := c.redactor(g)
	for i, s := range out.Skipped {
		out.Skipped[i] = r.String(s)
	}
	return out, nil
}

// Call asks a tool, once. The arguments must be valid for the tool: see
// Arguments. Uncertain tells of an error whether the call may have been
// executed nevertheless.
//
// Codes: tool_unavailable (nobody was reached, or the connection was cut),
// tool_timeout, tool_failed, tool_changed, result_too_large,
// arguments_invalid, connection_not_allowed, request_cancelled, and those of
// Check.
func (c *Clients) Call(ctx context.Context, app workbench.App, tool workbench.Tool, args json.RawMessage, g *Grant) (Answer, error) {
	var a Answer
	err := c.run(ctx, app, g, func(ctx context.Context) (err error) {
		switch app.Kind {
		case workbench.AppMCPStdio, workbench.AppMCPHTTP:
			a, err = c.callMCP(ctx, app, tool, args, g)
		default:
			a, err = c.callHTTP(ctx, app, tool, args, g)
		}
		if err != nil {
			return err
		}
		a, err = clean(a, c.redactor(g))
		return err
	})
	if err != nil {
		return Answer{}, err
	}
	return a, nil
}

// run bounds one piece of work in time, lets Forget and Close end it, and takes
// secrets out of its error.
func (c *Clients) run(ctx context.Context, app workbench.App, g *Grant, work func(context.Context) error) error {
	if err := c.admits(app); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	one := &call{connectionID: g.id(), project: app.ProjectID, app: app.Name, cancel: cancel}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errStopping()
	}
	c.calls[one] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.calls, one)
		c.mu.Unlock()
	}()
	ctx, stop := context.WithTimeoutCause(ctx, timeout(app), errTime)
	defer stop()
	return cleanError(work(ctx), c.redactor(g))
}

func timeout(app workbench.App) time.Duration {
	ms := app.Config.TimeoutMs
	if ms <= 0 {
		ms = workbench.DefaultToolTimeoutMs
	}
	return time.Duration(min(ms, workbench.MaxToolTimeoutMs)) * time.Millisecond
}

// Forget ends at once what was made with a connection's credentials: sessions,
// programs, access tokens and calls under way. It is for a connection that was
// revoked or rotated.
func (c *Clients) Forget(connectionID string) {
	if connectionID == "" {
		return
	}
	c.tokens.forget(connectionID)
	c.end(errForgotten, func(connection, _, _ string) bool { return connection == connectionID })
}

// ForgetApp ends at once what was made for an app.
func (c *Clients) ForgetApp(projectID, name string) {
	c.end(errAppGone, func(_, project, app string) bool { return project == projectID && app == name })
}

func (c *Clients) end(why error, which func(connection, project, app string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Sessions first: a call that is given up tells its server, with the
	// credentials, unless the session has ended.
	for key, s := range c.sessions {
		if which(key.connection, key.project, key.app) {
			delete(c.sessions, key)
			s.kill(why)
		}
	}
	for one := range c.calls {
		if which(one.connectionID, one.project, one.app) {
			one.cancel(why)
		}
	}
}

// Close ends everything and waits for it. Calls under way end with an error.
func (c *Clients) Close() error {
	c.mu.Lock()
	c.closed = true
	for one := range c.calls {
		one.cancel(workbench.ErrStopping)
	}
	for key, s := range c.sessions {
		delete(c.sessions, key)
		s.close()
	}
	c.mu.Unlock()
	c.stop(workbench.ErrStopping)
	c.wg.Wait()
	c.web.CloseIdleConnections()
	c.single.CloseIdleConnections()
	c.open.CloseIdleConnections()
	return nil
}

// clean takes secrets out of an answer.
func clean(a Answer, r *redact.Redactor) (Answer, error) {
	if a.Result == nil {
		a.Result = json.RawMessage("null")
	}
	result, err := r.JSON(a.Result)
	if err != nil {
		return Answer{}, uncertain(workbench.E(workbench.CodeToolFailed, "the tool's answer cannot be read; it was done"), err)
	}
	a.Result, a.Binary, a.MimeType = result, r.Bytes(a.Binary), r.String(a.MimeType)
	a.Detail = bounded(r.String(a.Detail), maxDetail)
	if len(a.Result) > workbench.MaxToolResult || len(a.Binary) > workbench.MaxToolResult {
		return Answer{}, errTooLarge()
	}
	return a, nil
}

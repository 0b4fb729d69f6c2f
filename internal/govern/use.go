package govern

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// The services that code may use besides tools, as the rules name them.
const (
	ServiceAI       = "ai"
	ServiceSearch   = "search"
	ServicePackages = "packages"
	ServiceFetch    = "fetch" // has an action of its own in the rules
)

// Use asks the rules whether a run may use a service now, and counts the use:
// limit is what a run may make of it. detail is for the rules and the trail.
//
// Codes: access_denied, tool_calls_exhausted, conflict (the run has ended),
// fenced, unavailable.
func (g *Governor) Use(ctx context.Context, from Caller, service string, limit int, detail map[string]string) error {
	u := use{g: g, from: from, service: service, limit: limit, notes: map[string]any{"service": service, "session": from.Session.ID}}
	for k, v := range detail {
		u.notes[k] = v
	}
	u.request = policy.Request{Action: policy.ActionUse, Service: service, Detail: detail}
	u.denied = func(why string) error {
		return workbench.E(workbench.CodeAccessDenied, "the rules do not allow %s here: %s", service, why).
			WithHint(`a rule such as permit(principal, action == Action::"use", resource == Service::"%s") allows it`, service)
	}
	return u.begin(ctx)
}

// fetchesOfRun is how many requests to hosts a run may make.
const fetchesOfRun = 100

// Fetch makes a request of code to a host, if the rules allow that now, with the
// credentials of a connection of the session if one is named: they go to the
// hosts that the connection names alone.
//
// Codes: access_denied (the rules, or a private network), connection_not_allowed,
// connection_not_found, invalid_request, tool_calls_exhausted, and those of the
// request itself.
func (g *Governor) Fetch(ctx context.Context, from Caller, r upstream.FetchRequest, alias string) (upstream.FetchAnswer, error) {
	for attempt := 1; ; attempt++ {
		conn, err := g.fetchConnection(ctx, from.Session, alias)
		if err != nil {
			return upstream.FetchAnswer{}, err
		}
		u := use{g: g, from: from, service: ServiceFetch, limit: fetchesOfRun, request: fetchRequest(r), conn: conn,
			notes: map[string]any{"service": ServiceFetch, "session": from.Session.ID, "host": r.URL.Host, "method": r.Method}}
		u.denied = func(why string) error {
			return workbench.E(workbench.CodeAccessDenied, "the rules do not let this run reach %s: %s", r.URL.Host, why).
				WithHint(`a rule such as permit(principal, action == Action::"fetch", resource == Host::"%s") lets it`, r.URL.Hostname())
		}
		if conn != nil { // what anybody can have is nobody's to protect
			u.notes["connection"], u.notes["connectionId"] = conn.Alias, conn.ID
			u.depend = []workbench.Dependency{{Tool: fetched + r.URL.Scheme + "://" + r.URL.Host, Version: r.Method + " " + shortened(r.URL.Path, 200),
				Alias: conn.Alias, ConnectionID: conn.ID}}
		}
		if err := u.begin(ctx); err != nil {
			if workbench.HasCode(err, workbench.CodeVersionMismatch) && attempt < decideAgain {
				continue
			}
			return upstream.FetchAnswer{}, err
		}
		grant, err := g.grant(ctx, conn)
		if err != nil {
			return upstream.FetchAnswer{}, err
		}
		return g.o.Upstream.Fetch(ctx, r, grant)
	}
}

// fetched begins the name of a dependency that is a host.
const fetched = "fetch "

func fetchRequest(r upstream.FetchRequest) policy.Request {
	port, err := strconv.Atoi(r.URL.Port())
	if err != nil {
		port = map[string]int{"http": 80, "https": 443}[r.URL.Scheme]
	}
	return policy.Request{Action: policy.ActionFetch, Host: r.URL.Hostname(), Scheme: r.URL.Scheme, Port: port, Method: r.Method, Path: upstream.RulesPath(r.URL)}
}

func (g *Governor) fetchConnection(ctx context.Context, s workbench.Session, alias string) (*workbench.Connection, error) {
	if alias == "" {
		return nil, nil //nolint:nilnil // without credentials
	}
	if !slices.Contains(s.Aliases, alias) {
		return nil, workbench.E(workbench.CodeConnectionRefused, "this session does not allow a connection of that alias").WithField("connection").
			WithHint("it allows %s; a session is configured with more from outside", quoted(s.Aliases))
	}
	conn, err := g.o.Store.ConnectionFor(ctx, s, alias)
	return &conn, err
}

// use is one use of a service on its way.
type use struct {
	g       *Governor
	from    Caller
	service string
	limit   int
	request policy.Request
	conn    *workbench.Connection
	depend  []workbench.Dependency
	notes   map[string]any
	denied  func(why string) error
}

// begin asks the rules, and records the use before anything of it leaves.
func (u use) begin(ctx context.Context) error {
	g, s, run := u.g, u.from.Session, u.from.Run
	for attempt := 1; ; attempt++ {
		set, version, err := g.current(ctx, s.ProjectID)
		if err != nil {
			return err
		}
		who, err := g.identityOf(ctx, s)
		if err != nil {
			return err
		}
		req := u.request
		req.Principal, req.Session, req.RunID, req.Language, req.Lane, req.Connection = who, &s, run.ID, run.Language, run.Lane, u.conn
		may := set.Decide(req)
		row := store.Use{RunID: run.ID, ProjectID: s.ProjectID, Epoch: u.from.Epoch, Service: u.service, Limit: u.limit, RulesVersion: version, Depend: u.depend}
		if u.conn != nil {
			row.ConnectionID, row.ConnectionVersion = u.conn.ID, u.conn.Version
		}
		var refused error
		if !may.Allowed {
			refused, row.Depend = u.denied(may.Denied), nil
		}
		notes := maps.Clone(u.notes)
		if len(may.Rules) > 0 {
			notes["rules"] = may.Rules
		}
		row.Trail = audit.Entry(workbench.Principal{ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID}, g.now(), "service.use", run.ID, refused, notes)
		err = g.o.Store.BeginUse(ctx, row)
		if u.conn == nil && workbench.HasCode(err, workbench.CodeVersionMismatch) && attempt < decideAgain {
			continue
		}
		if err != nil {
			return err
		}
		return refused
	}
}

// Used notes what a use of a service took, in tokens.
func (g *Governor) Used(ctx context.Context, from Caller, service string, input, output int64) error {
	if input+output == 0 {
		return nil
	}
	return g.o.Store.EndUse(ctx, from.Run.ID, service, input, output)
}

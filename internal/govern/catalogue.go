package govern

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// Import is what an app offered.
type Import struct {
	App     workbench.App
	Tools   []workbench.Tool // as they are current now
	Added   []workbench.ToolRef
	Skipped []string // what it offers that cannot be a tool here, and why
}

// PutApp declares an app, or changes one, and imports its tools. Nothing is kept
// if it is not valid. If it is, and its tools cannot be had now, a new app stays,
// with its error, and can be imported again; one that was there stays as it was.
// alias names a connection of the project to ask with; "" asks without.
//
// Codes: forbidden, invalid_request and schema_invalid (config.…),
// connection_not_found, tool_unavailable, tool_failed.
func (g *Governor) PutApp(ctx context.Context, p workbench.Principal, a workbench.App, alias string) (Import, error) {
	if err := manages(p); err != nil {
		return Import{}, err
	}
	if err := workbench.AppName("name", a.Name); err != nil {
		return Import{}, err
	}
	if a.Provider == "" {
		a.Provider = a.Name
	}
	if err := workbench.AppName("provider", a.Provider); err != nil {
		return Import{}, err
	}
	if !slices.Contains(workbench.AppKinds(), a.Kind) {
		return Import{}, workbench.E(workbench.CodeInvalidRequest, "kind must be one of %v", workbench.AppKinds()).WithField("kind")
	}
	a.ProjectID, a.CreatedAt = p.ProjectID, g.now()
	if err := g.o.Upstream.Check(a); err != nil {
		return Import{}, err
	}
	offered, err := g.first(ctx, p, a, alias)
	if err != nil {
		return Import{}, err
	}
	a, err = g.o.Store.PutApp(ctx, a, audit.Entry(p, g.now(), "app.put", a.Name, nil, map[string]any{"kind": string(a.Kind), "provider": a.Provider}))
	if err != nil {
		return Import{}, err
	}
	g.o.Upstream.ForgetApp(a.ProjectID, a.Name)
	if offered != nil {
		return g.record(ctx, p, a, *offered)
	}
	return g.importTools(ctx, p, a, alias)
}

// first asks an app that is about to replace another one what it offers: nil if it
// replaces none.
func (g *Governor) first(ctx context.Context, p workbench.Principal, a workbench.App, alias string) (*upstream.Imported, error) {
	was, err := g.o.Store.App(ctx, a.ProjectID, a.Name)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil || was.Kind == a.Kind && was.Provider == a.Provider && reflect.DeepEqual(was.Config, a.Config) {
		return nil, err
	}
	grant, err := g.importGrant(ctx, p, a, alias)
	if err != nil {
		return nil, err
	}
	offered, err := g.o.Upstream.Import(ctx, a, grant)
	if err != nil {
		return nil, withHint(err, "the app "+a.Name+" stays as it was")
	}
	return &offered, nil
}

// ImportApp asks an app anew what it offers. Codes: as PutApp, not_found.
func (g *Governor) ImportApp(ctx context.Context, p workbench.Principal, name, alias string) (Import, error) {
	if err := manages(p); err != nil {
		return Import{}, err
	}
	a, err := g.o.Store.App(ctx, p.ProjectID, name)
	if err != nil {
		return Import{}, err
	}
	g.o.Upstream.ForgetApp(a.ProjectID, a.Name) // what it is asked with was listed before
	return g.importTools(ctx, p, a, alias)
}

func (g *Governor) importTools(ctx context.Context, p workbench.Principal, a workbench.App, alias string) (Import, error) {
	grant, err := g.importGrant(ctx, p, a, alias)
	if err != nil {
		return Import{}, err
	}
	offered, err := g.o.Upstream.Import(ctx, a, grant)
	if err != nil {
		if note := g.o.Store.NoteImport(context.WithoutCancel(ctx), a.ProjectID, a.Name, workbench.AsError(err).Detail); note != nil {
			g.log.Error("the failure of an import was not recorded", "app", a.Name, "err", note)
		}
		return Import{}, withHint(err, "the app "+a.Name+" is declared, and no tool of it is new: workbench tools import asks it again")
	}
	return g.record(ctx, p, a, offered)
}

// withHint says besides what the error advises what became of the app.
func withHint(err error, what string) error {
	e := workbench.AsError(err)
	if advice := strings.TrimPrefix(e.Hint, upstream.NothingDone+"; "); advice != "" {
		what += "; " + advice
	}
	return e.WithHint("%s", what)
}

// record makes tools of what an app offered.
func (g *Governor) record(ctx context.Context, p workbench.Principal, a workbench.App, offered upstream.Imported) (Import, error) {
	made := Import{Skipped: offered.Skipped}
	now := g.now().UTC().Truncate(time.Microsecond)
	var err error
	var tools []workbench.Tool
	for _, spec := range offered.Tools {
		name := a.Name + "." + upstream.LocalName(spec.Name)
		if err := workbench.ToolName("name", name); err != nil {
			made.Skipped = append(made.Skipped, fmt.Sprintf("%s: the name is too long, or has characters that a tool's cannot", shortened(name, 100)))
			continue
		}
		tools = append(tools, workbench.Tool{App: a.Name, Name: name, Description: spec.Description, InputSchema: spec.InputSchema, OutputSchema: spec.OutputSchema,
			Annotations: spec.Annotations, Binding: spec.Binding, Digest: upstream.Digest(a.Name, spec)})
	}
	made.Tools, err = g.o.Store.ImportTools(ctx, a.ProjectID, a.Name, tools, now,
		audit.Entry(p, now, "app.import", a.Name, nil, map[string]any{"tools": len(tools), "skipped": len(made.Skipped)}))
	if err != nil {
		return Import{}, err
	}
	g.mu.Lock()
	clear(g.tools) // states changed
	g.mu.Unlock()
	for _, t := range made.Tools {
		if t.CreatedAt.Equal(now) {
			made.Added = append(made.Added, t.Ref())
		}
	}
	made.App, err = g.o.Store.App(ctx, a.ProjectID, a.Name)
	return made, err
}

// importGrant is what an app is asked with for its tools.
func (g *Governor) importGrant(ctx context.Context, p workbench.Principal, a workbench.App, alias string) (*upstream.Grant, error) {
	if alias == "" {
		return nil, nil //nolint:nilnil // without credentials
	}
	conn, err := g.o.Store.ConnectionFor(ctx, workbench.Session{ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, GroupID: p.GroupID}, alias)
	if err != nil {
		return nil, err
	}
	if conn.Provider != a.Provider {
		return nil, workbench.E(workbench.CodeConnectionRefused, "the connection %s is for %s, the app needs one for %s", alias, conn.Provider, a.Provider).WithField("connection")
	}
	return g.grant(ctx, &conn)
}

// RemoveApp withdraws an app and its tools. Their versions keep their labels.
func (g *Governor) RemoveApp(ctx context.Context, p workbench.Principal, name string) error {
	if err := manages(p); err != nil {
		return err
	}
	err := g.o.Store.RemoveApp(ctx, p.ProjectID, name, g.now(), audit.Entry(p, g.now(), "app.remove", name, nil, nil))
	if err == nil {
		g.o.Upstream.ForgetApp(p.ProjectID, name)
	}
	return err
}

// Apps lists the project's apps by name.
func (g *Governor) Apps(ctx context.Context, p workbench.Principal) ([]workbench.App, error) {
	if err := manages(p); err != nil {
		return nil, err
	}
	return g.o.Store.Apps(ctx, p.ProjectID)
}

// App reads an app.
func (g *Governor) App(ctx context.Context, p workbench.Principal, name string) (workbench.App, error) {
	if err := manages(p); err != nil {
		return workbench.App{}, err
	}
	return g.o.Store.App(ctx, p.ProjectID, name)
}

// Tools lists the project's tools that match every word of query, by name.
func (g *Governor) Tools(ctx context.Context, p workbench.Principal, f store.ToolFilter, query string) ([]workbench.Tool, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return nil, err
	}
	all, err := g.o.Store.Tools(ctx, p.ProjectID, f)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(t workbench.Tool) bool { return rank(t, query) == 0 }), nil
}

// Tool reads one version of a tool.
func (g *Governor) Tool(ctx context.Context, p workbench.Principal, ref workbench.ToolRef) (workbench.Tool, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.Tool{}, err
	}
	return g.o.Store.Tool(ctx, p.ProjectID, ref)
}

// rank says how well a tool matches a query: 0 not at all; words in its name
// count more than those in its description. Every word has to be there.
func rank(t workbench.Tool, query string) int {
	name, text, score := strings.ToLower(t.Name), strings.ToLower(t.Annotations.Title+" "+t.Description), 1
	for _, word := range strings.Fields(strings.ToLower(query)) {
		switch {
		case strings.Contains(name, word):
			score += 3
		case strings.Contains(text, word):
			score++
		default:
			return 0
		}
	}
	return score
}

// Validate refuses tools and aliases that a session cannot have: a tool has to
// be there at that version, a connection for this identity, but for those that it had
// before. Codes:
// invalid_request, tool_not_found, connection_not_found, naming the element.
func (g *Governor) Validate(ctx context.Context, s, had workbench.Session) error {
	for i, ref := range s.Tools {
		field := fmt.Sprintf("tools[%d]", i)
		if err := workbench.ToolName(field+".name", ref.Name); err != nil {
			return err
		}
		if err := workbench.ToolVersion(field+".version", ref.Version); err != nil {
			return err
		}
		if slices.Contains(s.Tools[:i], ref) {
			return workbench.E(workbench.CodeInvalidRequest, "%s is there twice", field).WithField(field)
		}
		if slices.Contains(had.Tools, ref) {
			continue
		}
		t, err := g.o.Store.Tool(ctx, s.ProjectID, ref)
		switch {
		case workbench.HasCode(err, workbench.CodeNotFound):
			return workbench.E(workbench.CodeToolNotFound, "there is no tool of that name at that version").WithField(field).
				WithHint("GET /v1/workbench/tools lists the tools and their versions")
		case err != nil:
			return err
		case t.State == workbench.ToolWithdrawn:
			return workbench.E(workbench.CodeToolNotFound, "the tool is not offered any more").WithField(field).
				WithHint("GET /v1/workbench/tools lists the tools that are")
		}
	}
	for i, alias := range s.Aliases {
		field := fmt.Sprintf("connections[%d]", i)
		if err := workbench.ConnectionAlias(field, alias); err != nil {
			return err
		}
		if slices.Contains(s.Aliases[:i], alias) {
			return workbench.E(workbench.CodeInvalidRequest, "%s is there twice", field).WithField(field)
		}
		if slices.Contains(had.Aliases, alias) {
			continue
		}
		if _, err := g.o.Store.ConnectionFor(ctx, s, alias); err != nil {
			if workbench.HasCode(err, workbench.CodeConnectionNotFound) {
				err = workbench.AsError(err).WithField(field)
			}
			return err
		}
	}
	return nil
}

// Found is a tool as code in a session sees it.
type Found struct {
	Name         string                    `json:"name"`
	Version      string                    `json:"version"`
	Description  string                    `json:"description"`
	Annotations  workbench.ToolAnnotations `json:"annotations"`
	Connections  []string                  `json:"connections"` // of the session, that it can be called with
	InputSchema  any                       `json:"inputSchema,omitempty"`
	OutputSchema any                       `json:"outputSchema,omitempty"`
}

// Search lists the tools that the session allows and that match every word of
// the query, the best first, limit at most.
func (g *Governor) Search(ctx context.Context, s workbench.Session, query string, limit int) ([]Found, error) {
	type ranked struct {
		Found
		rank int
	}
	var found []ranked
	for _, ref := range s.Tools {
		f, t, err := g.find(ctx, s, ref)
		if workbench.HasCode(err, workbench.CodeToolNotFound) {
			continue // withdrawn since
		}
		if err != nil {
			return nil, err
		}
		if r := rank(t, query); r > 0 {
			f.Description = shortened(f.Description, 500)
			found = append(found, ranked{f, r})
		}
	}
	slices.SortStableFunc(found, func(a, b ranked) int { return b.rank - a.rank })
	out := []Found{}
	for _, f := range found[:min(len(found), limit)] {
		out = append(out, f.Found)
	}
	return out, nil
}

// Schema describes a tool that the session allows, whole.
func (g *Governor) Schema(ctx context.Context, s workbench.Session, req CallRequest) (Found, error) {
	ref, err := allowed(s, req)
	if err != nil {
		return Found{}, err
	}
	f, t, err := g.find(ctx, s, ref)
	if err != nil {
		return Found{}, err
	}
	f.InputSchema = t.InputSchema
	if len(t.OutputSchema) > 0 {
		f.OutputSchema = t.OutputSchema
	}
	return f, nil
}

func (g *Governor) find(ctx context.Context, s workbench.Session, ref workbench.ToolRef) (Found, workbench.Tool, error) {
	t, err := g.tool(ctx, s.ProjectID, ref)
	if err != nil {
		return Found{}, t, missingTool(err, ref)
	}
	app, err := g.app(ctx, s.ProjectID, t.App)
	if err != nil {
		return Found{}, t, missingTool(err, ref)
	}
	f := Found{Name: t.Name, Version: t.Version, Description: t.Description, Annotations: t.Annotations, Connections: []string{}}
	for _, alias := range s.Aliases {
		conn, err := g.o.Store.ConnectionFor(ctx, s, alias)
		if err == nil && conn.Provider == app.Provider {
			f.Connections = append(f.Connections, alias)
		} else if err != nil && !workbench.HasCode(err, workbench.CodeConnectionNotFound) {
			return f, t, err
		}
	}
	return f, t, nil
}

// manages refuses who does not manage the project's tools.
func manages(p workbench.Principal) error {
	if !p.Admin() && !p.System() {
		return workbench.E(workbench.CodeForbidden, "only an admin key manages apps and rules").
			WithHint("workbench serve prints one at its first start; POST /v1/workbench/keys makes others")
	}
	return p.Require(workbench.ScopeManage)
}

package api

import (
	"net/http"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/store"
)

// PutAppRequest is the body of PUT /v1/workbench/apps/{app}.
type PutAppRequest struct {
	Kind            workbench.AppKind   `json:"kind" doc:"how its tools are reached"`
	Config          workbench.AppConfig `json:"config" doc:"what the kind needs; holds no secret"`
	Provider        string              `json:"provider,omitempty" maxLength:"64" doc:"what its connections are made for; default the app's name"`
	NeedsConnection bool                `json:"needsConnection,omitempty" doc:"refuse calls without a connection"`
	Connection      string              `json:"connection,omitempty" maxLength:"64" doc:"alias of a project's connection to ask the app for its tools with"`
}

// ImportAppRequest is the body of POST /v1/workbench/apps/{app}/import.
type ImportAppRequest struct {
	Connection string `json:"connection,omitempty" maxLength:"64" doc:"alias of a project's connection to ask the app with"`
}

// ImportedApp is what an app offers.
type ImportedApp struct {
	App     workbench.App       `json:"app"`
	Tools   []workbench.Tool    `json:"tools" doc:"at their current versions"`
	Added   []workbench.ToolRef `json:"added" doc:"versions that this import made"`
	Skipped []string            `json:"skipped" doc:"what cannot be a tool here, and why"`
}

// CreateConnectionRequest is the body of POST /v1/workbench/connections.
type CreateConnectionRequest struct {
	Alias       string             `json:"alias" maxLength:"64" doc:"what sessions and code call it"`
	Provider    string             `json:"provider" maxLength:"64" doc:"the provider of the apps that it serves"`
	Auth        workbench.AuthKind `json:"auth" doc:"how the credentials are used"`
	Credentials CredentialsInput   `json:"credentials" doc:"sealed; never shown again"`
	Hosts       []string           `json:"hosts,omitempty" maxItems:"20" doc:"hosts that the credentials may go to; default those of the provider's apps"`
	Tenant      string             `json:"tenant,omitempty" maxLength:"128" doc:"admin keys: the tenant whose it is; default the whole project's"`
	Group       string             `json:"group,omitempty" maxLength:"128" doc:"admin keys: the group of the tenant whose it is"`
	User        string             `json:"user,omitempty" maxLength:"128" doc:"admin keys: the user of the tenant whose it is"`
}

// CredentialsInput is the secret of a connection. Which fields count is auth's.
type CredentialsInput struct {
	Token        string   `json:"token,omitempty" doc:"bearer"`
	Username     string   `json:"username,omitempty" doc:"basic"`
	Password     string   `json:"password,omitempty" doc:"basic"`
	Header       string   `json:"header,omitempty" doc:"header: its name"`
	Value        string   `json:"value,omitempty" doc:"header: its value"`
	TokenURL     string   `json:"tokenUrl,omitempty" doc:"oauth2_…: the token endpoint"`
	ClientID     string   `json:"clientId,omitempty" doc:"oauth2_…"`
	ClientSecret string   `json:"clientSecret,omitempty" doc:"oauth2_…"`
	RefreshToken string   `json:"refreshToken,omitempty" doc:"oauth2_refresh_token"`
	Scopes       []string `json:"scopes,omitempty" maxItems:"50" doc:"oauth2_…"`
}

// RotateConnectionRequest is the body of POST …/connections/{id}/rotate.
type RotateConnectionRequest struct {
	Credentials            CredentialsInput `json:"credentials" doc:"take the place of the old ones, which end at once"`
	ExpectedCurrentVersion *int64           `json:"expectedCurrentVersion,omitempty" minimum:"1" doc:"the version that the caller believes to be current; another one answers 412"`
}

// DecideRequest is the body of POST …/receipts/{id}/approve and …/deny.
type DecideRequest struct {
	Reason string `json:"reason,omitempty" maxLength:"1000" doc:"for the receipt"`
}

var appPart = PathPart{Name: "app", Doc: "name of the app", Schema: "^[a-z0-9_-]{1,64}$"}

func toolRoutes() []Route {
	return append(append(appRoutes(), connectionRoutes()...), receiptRoutes()...)
}

func appRoutes() []Route {
	app := func(r Route) Route {
		r.Tag, r.Scope, r.Admin = "tools", workbench.ScopeManage, AdminOnly
		return r
	}
	upstream := []workbench.Code{workbench.CodeSchemaInvalid, workbench.CodeConnectionNotFound, workbench.CodeConnectionRefused, workbench.CodeToolUnavailable,
		workbench.CodeToolFailed, workbench.CodeToolTimeout, workbench.CodeResultTooLarge, workbench.CodeNotFound}
	return []Route{
		app(Route{
			Method: http.MethodPut, Pattern: base + "/apps/{app}", ID: "putApp", Summary: "Declare an app and import its tools",
			Description: "An app is where tools come from: an MCP server, an OpenAPI document, declared HTTP endpoints. What it offers becomes versions of tools; a form that a tool has not had yet makes a version, and none is ever altered.",
			Body:        PutAppRequest{}, BodyBytes: MaxAppBody, BodyDepth: maxAppDepth, handle: putApp, Replies: []Reply{ok("What was imported.", ImportedApp{})}, Errors: upstream,
		}),
		app(Route{
			Method: http.MethodPost, Pattern: base + "/apps/{app}/import", ID: "importApp", Summary: "Ask an app anew what it offers",
			Body: ImportAppRequest{}, OptionalBody: true, handle: importApp, Replies: []Reply{ok("What was imported.", ImportedApp{})}, Errors: upstream,
		}),
		app(Route{
			Method: http.MethodGet, Pattern: base + "/apps", ID: "listApps", Summary: "List the project's apps", handle: listApps,
			Replies: []Reply{ok("All of them.", workbench.List[workbench.App]{})},
		}),
		app(Route{
			Method: http.MethodGet, Pattern: base + "/apps/{app}", ID: "getApp", Summary: "Read an app", handle: getApp,
			Replies: []Reply{ok("The app.", workbench.App{})}, Errors: []workbench.Code{workbench.CodeNotFound},
		}),
		app(Route{
			Method: http.MethodDelete, Pattern: base + "/apps/{app}", ID: "removeApp", Summary: "Remove an app",
			Description: "Its tools are withdrawn at once: calls of them are refused. Their versions keep their labels.", handle: removeApp,
			Replies: []Reply{{Status: http.StatusNoContent, Doc: "It is removed."}}, Errors: []workbench.Code{workbench.CodeNotFound},
		}),
		{
			Method: http.MethodGet, Pattern: base + "/tools", ID: "listTools", Tag: "tools", Summary: "List the project's tools",
			Scope: workbench.ScopeRead, Admin: AdminReads, handle: listTools,
			Params: []Param{
				{Name: "query", Doc: "words that are all in the name or description", Kind: TextParam},
				{Name: "app", Doc: "of one app", Kind: TextParam},
				{Name: "name", Doc: "one tool by its whole name", Kind: TextParam},
				{Name: "all", Doc: "true lists versions that are not current too", Kind: TextParam, Enum: []string{"true", "false"}},
			},
			Replies: []Reply{ok("The tools by name, the youngest version first.", workbench.List[workbench.Tool]{})},
		},
	}
}

func connectionRoutes() []Route {
	of := func(r Route) Route {
		r.Tag, r.Scope, r.Admin = "tools", workbench.ScopeManage, AdminManages
		return r
	}
	one := []workbench.Code{workbench.CodeConnectionRevoked}
	return []Route{
		of(Route{
			Method: http.MethodPost, Pattern: base + "/connections", ID: "createConnection", Summary: "Create a connection",
			Description: "Credentials that the server alone uses, under an alias that sessions name. An admin key makes them for the project, a tenant, a group or a user; another key with the scope manage for its own user alone, without OAuth.",
			Body:        CreateConnectionRequest{}, handle: createConnection,
			Replies: []Reply{{Status: http.StatusCreated, Doc: "The connection, without its credentials.", Body: workbench.Connection{}, Headers: []string{"Location"}}},
			Errors:  []workbench.Code{workbench.CodeConflict},
		}),
		of(Route{
			Method: http.MethodGet, Pattern: base + "/connections", ID: "listConnections", Summary: "List connections", handle: listConnections,
			Params:  []Param{{Name: "alias", Doc: "of one alias", Kind: TextParam}, limitParam, cursorParam},
			Replies: []Reply{ok("A page of connections, without credentials.", workbench.List[workbench.Connection]{})},
		}),
		of(Route{
			Method: http.MethodGet, Pattern: base + "/connections/{id}", ID: "getConnection", Target: workbench.KindConnect, Summary: "Read a connection", handle: getConnection,
			Replies: []Reply{ok("The connection, without its credentials.", workbench.Connection{})},
		}),
		of(Route{
			Method: http.MethodPost, Pattern: base + "/connections/{id}/rotate", ID: "rotateConnection", Target: workbench.KindConnect, Summary: "Replace a connection's credentials",
			Body: RotateConnectionRequest{}, handle: rotateConnection, Replies: []Reply{ok("The connection.", workbench.Connection{})},
			Errors: append([]workbench.Code{workbench.CodeVersionMismatch}, one...),
		}),
		of(Route{
			Method: http.MethodDelete, Pattern: base + "/connections/{id}", ID: "revokeConnection", Target: workbench.KindConnect, Summary: "Revoke a connection",
			Description: "No call uses it from then on, and its credentials are gone.", handle: revokeConnection,
			Replies: []Reply{ok("The connection, revoked.", workbench.Connection{})}, Errors: one,
		}),
	}
}

func receiptRoutes() []Route {
	wait := Param{Name: "waitMs", Doc: "long poll: answer when the receipt is final, or after so many milliseconds", Kind: IntegerParam, Min: 0, Max: govern.MaxReceiptWait.Milliseconds()}
	decided := []workbench.Code{workbench.CodeAccessDenied, workbench.CodeApprovalDecided, workbench.CodeApprovalExpired, workbench.CodeToolChanged, workbench.CodeToolNotAllowed,
		workbench.CodeConnectionNotFound, workbench.CodeConnectionRevoked, workbench.CodeConflict, workbench.CodeSessionClosed, workbench.CodeSessionExpired}
	decide := func(r Route) Route {
		r.Method, r.Tag, r.Scope, r.Admin, r.Target, r.Errors = http.MethodPost, "tools", workbench.ScopeApprove, AdminApproves, workbench.KindReceipt, decided
		r.Body, r.OptionalBody, r.Replies = DecideRequest{}, true, []Reply{ok("The receipt; of an approved call that may be executing still.", workbench.ToolReceipt{})}
		return r
	}
	decideRun := func(r Route) Route {
		r.Method, r.Tag, r.Scope, r.Admin, r.Target = http.MethodPost, "tools", workbench.ScopeApprove, AdminApproves, workbench.KindRun
		r.Errors = []workbench.Code{workbench.CodeAccessDenied, workbench.CodeApprovalDecided, workbench.CodeApprovalExpired, workbench.CodeSessionClosed, workbench.CodeSessionExpired}
		r.Body, r.OptionalBody, r.Replies = DecideRequest{}, true, []Reply{ok("The run.", workbench.Run{})}
		return r
	}
	return []Route{
		{
			Method: http.MethodGet, Pattern: base + "/receipts", ID: "listReceipts", Tag: "tools", Summary: "List receipts of tool calls, newest first",
			Description: "Without results and arguments.", Scope: workbench.ScopeRead, Admin: AdminReads, handle: listReceipts,
			Params: []Param{
				{Name: "session", Doc: "of one session", Kind: TextParam}, {Name: "run", Doc: "of one run", Kind: TextParam}, {Name: "tool", Doc: "of one tool", Kind: TextParam},
				{Name: "status", Doc: "of one status", Kind: TextParam, Enum: names(workbench.CallStatuses())}, limitParam, cursorParam,
			},
			Replies: []Reply{ok("A page of receipts.", workbench.List[workbench.ToolReceipt]{})},
		},
		{
			Method: http.MethodGet, Pattern: base + "/receipts/{id}", ID: "getReceipt", Tag: "tools", Target: workbench.KindReceipt, Summary: "Read the receipt of a tool call",
			Scope: workbench.ScopeRead, Admin: AdminReads, handle: getReceipt, Params: []Param{wait}, Replies: []Reply{ok("The receipt.", workbench.ToolReceipt{})},
		},
		{
			Method: http.MethodGet, Pattern: base + "/approvals", ID: "listApprovals", Tag: "tools", Summary: "List the tool calls that wait for a decision, newest first",
			Description: "Those of the key's tenant; of an admin key, the project's. With their arguments: who decides has to know them. The rules say who may decide which.",
			Scope:       workbench.ScopeApprove, Admin: AdminApproves, handle: listApprovals, Params: []Param{limitParam, cursorParam},
			Replies: []Reply{ok("A page of receipts.", workbench.List[workbench.ToolReceipt]{})},
		},
		decide(Route{
			Pattern: base + "/receipts/{id}/approve", ID: "approveCall", Summary: "Approve a tool call", handle: approveCall,
			Description: "The call is made once, as it was asked for: its arguments, the tool's version, the connection and the session must still be the same, and the rules are asked again.",
		}),
		{
			Method: http.MethodGet, Pattern: base + "/approvals/runs", ID: "listHeldRuns", Tag: "tools", Summary: "List the runs that wait for a decision, newest first",
			Description: "Those of the key's tenant which the rules let it decide, with what they would execute; of an admin key, all of the project's.",
			Scope:       workbench.ScopeApprove, Admin: AdminApproves, handle: listHeldRuns, Params: []Param{limitParam, cursorParam},
			Replies: []Reply{ok("A page of runs.", workbench.List[govern.HeldRun]{})},
		},
		decideRun(Route{Pattern: base + "/runs/{id}/approve", ID: "approveRun", Summary: "Approve a run that waits", handle: approveRun, Description: "It joins its queue at the place that it was submitted at."}),
		decideRun(Route{Pattern: base + "/runs/{id}/deny", ID: "denyRun", Summary: "Deny a run that waits", handle: denyRun, Description: "It ends as rejected; nothing runs."}),
		decide(Route{Pattern: base + "/receipts/{id}/deny", ID: "denyCall", Summary: "Deny a tool call", handle: denyCall, Description: "Nothing is called."}),
	}
}

// names are values as an enumeration lists them.
func names[T ~string](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

func imported(i govern.Import) ImportedApp {
	return ImportedApp{App: i.App, Tools: whole(i.Tools), Added: whole(i.Added), Skipped: whole(i.Skipped)}
}

func putApp(c *call) error {
	b := c.body.(*PutAppRequest)
	c.target = c.r.PathValue(appPart.Name)
	made, err := c.s.o.Tools.PutApp(c.ctx, c.who(), workbench.App{Name: c.target, Kind: b.Kind, Config: b.Config, Provider: b.Provider, NeedsConnection: b.NeedsConnection}, b.Connection)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, imported(made))
}

func importApp(c *call) error {
	c.target = c.r.PathValue(appPart.Name)
	made, err := c.s.o.Tools.ImportApp(c.ctx, c.who(), c.target, c.body.(*ImportAppRequest).Connection)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, imported(made))
}

func listApps(c *call) error {
	apps, err := c.s.o.Tools.Apps(c.ctx, c.p)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, workbench.List[workbench.App]{Items: whole(apps)})
}

func getApp(c *call) error {
	a, err := c.s.o.Tools.App(c.ctx, c.p, c.r.PathValue(appPart.Name))
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, a)
}

func removeApp(c *call) error {
	c.target = c.r.PathValue(appPart.Name)
	if err := c.s.o.Tools.RemoveApp(c.ctx, c.who(), c.target); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func listTools(c *call) error {
	f := store.ToolFilter{App: c.q.text("app"), Name: c.q.text("name"), All: c.q.text("all") == "true"}
	tools, err := c.s.o.Tools.Tools(c.ctx, c.p, f, c.q.text("query"))
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, workbench.List[workbench.Tool]{Items: whole(tools)})
}

func createConnection(c *call) error {
	b := c.body.(*CreateConnectionRequest)
	made, err := c.s.o.Tools.Connect(c.ctx, c.who(), govern.NewConnection{Alias: b.Alias, Provider: b.Provider, Tenant: b.Tenant, Group: b.Group, User: b.User,
		Auth: b.Auth, Credentials: workbench.Credentials(b.Credentials), Hosts: b.Hosts})
	if err != nil {
		return err
	}
	c.target = made.ID
	c.w.Header().Set("Location", base+"/connections/"+made.ID)
	return c.json(http.StatusCreated, wholeConnection(made))
}

func wholeConnection(c workbench.Connection) workbench.Connection {
	c.Hosts = whole(c.Hosts)
	return c
}

func listConnections(c *call) error {
	list, err := c.s.o.Tools.Connections(c.ctx, c.p, c.q.text("alias"), c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeList(list, wholeConnection))
}

func getConnection(c *call) error { return c.connection(c.s.o.Tools.Connection(c.ctx, c.p, c.id)) }

func rotateConnection(c *call) error {
	b := c.body.(*RotateConnectionRequest)
	expected := int64(0)
	if b.ExpectedCurrentVersion != nil {
		expected = *b.ExpectedCurrentVersion
	}
	return c.connection(c.s.o.Tools.Rotate(c.ctx, c.who(), c.id, workbench.Credentials(b.Credentials), expected))
}

func revokeConnection(c *call) error { return c.connection(c.s.o.Tools.Revoke(c.ctx, c.who(), c.id)) }

func (c *call) connection(made workbench.Connection, err error) error {
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeConnection(made))
}

func listReceipts(c *call) error {
	list, err := c.s.o.Tools.Receipts(c.ctx, c.p, store.CallFilter{SessionID: c.q.text("session"), RunID: c.q.text("run"), Tool: c.q.text("tool"),
		Status: workbench.CallStatus(c.q.text("status"))}, c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeList(list, wholeReceipt))
}

func wholeReceipt(r workbench.ToolReceipt) workbench.ToolReceipt {
	r.Rules = whole(r.Rules)
	if r.Approval != nil {
		a := *r.Approval
		a.Rules = whole(a.Rules)
		r.Approval = &a
	}
	return r
}

func getReceipt(c *call) error {
	return c.toolReceipt(c.s.o.Tools.Receipt(c.ctx, c.p, c.id, time.Duration(c.q.integer("waitMs"))*time.Millisecond))
}

func listApprovals(c *call) error {
	list, err := c.s.o.Tools.Waiting(c.ctx, c.p, c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeList(list, wholeReceipt))
}

func listHeldRuns(c *call) error {
	list, err := c.s.o.Tools.HeldRuns(c.ctx, c.p, c.q.page())
	if err != nil {
		return err
	}
	for i := range list.Items {
		list.Items[i].Run = wholeRun(list.Items[i].Run)
	}
	return c.json(http.StatusOK, list)
}

func approveRun(c *call) error { return c.decideRun(true) }

func denyRun(c *call) error { return c.decideRun(false) }

func (c *call) decideRun(approve bool) error {
	c.recorded = true // with the decision, or its refusal
	r, err := c.s.o.Tools.DecideRun(c.ctx, c.who(), c.id, govern.Verdict{Approve: approve, Reason: c.body.(*DecideRequest).Reason})
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeRun(r))
}

func approveCall(c *call) error { return c.decide(true) }

func denyCall(c *call) error { return c.decide(false) }

func (c *call) decide(approve bool) error {
	c.recorded = true // with the decision, or its refusal
	return c.toolReceipt(c.s.o.Tools.Decide(c.ctx, c.who(), c.id, govern.Verdict{Approve: approve, Reason: c.body.(*DecideRequest).Reason}))
}

func (c *call) toolReceipt(r workbench.ToolReceipt, err error) error {
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeReceipt(r))
}

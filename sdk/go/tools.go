package sdk

import (
	"context"
	"net/http"
	"net/url"

	"github.com/workbenchdev/workbench"
)

// PutApp declares an app: where tools come from. It holds no secret; these are
// in connections.
type PutApp struct {
	Kind   workbench.AppKind   `json:"kind"`
	Config workbench.AppConfig `json:"config"`
	// Provider is what connections of the app are made for. Default: its name.
	Provider        string `json:"provider,omitempty"`
	NeedsConnection bool   `json:"needsConnection,omitempty"` // refuse calls without one
	// Connection is the alias of a project's connection to ask the app for its
	// tools with. Default: without.
	Connection string `json:"connection,omitempty"`
}

// ImportedApp is what an app offers.
type ImportedApp struct {
	App     workbench.App       `json:"app"`
	Tools   []workbench.Tool    `json:"tools"`   // at their current versions
	Added   []workbench.ToolRef `json:"added"`   // versions that this import made
	Skipped []string            `json:"skipped"` // what cannot be a tool, and why
}

func appPath(name string) string { return "/apps/" + seg(name) }

// PutApp declares an app, or changes one, and imports its tools. It is never
// repeated by itself. Where the app is valid and could not be asked, it is there
// nevertheless, and can be imported later. Needs an admin key. Codes:
// invalid_request, schema_invalid, connection_not_found, connection_not_allowed,
// tool_unavailable, tool_failed, tool_timeout.
func (c *Client) PutApp(ctx context.Context, name string, r PutApp) (ImportedApp, error) {
	out, _, err := decode[ImportedApp](ctx, c, call{method: http.MethodPut, path: appPath(name), json: r})
	return out, err
}

// ImportApp asks an app anew what it offers, with the project's connection of
// that alias; "" asks without. What is new becomes further versions of tools.
// Codes: those of PutApp, not_found.
func (c *Client) ImportApp(ctx context.Context, name, connection string) (ImportedApp, error) {
	return post[ImportedApp](ctx, c, appPath(name)+"/import", struct {
		Connection string `json:"connection,omitempty"`
	}{connection})
}

// Apps lists the project's apps by name. Needs an admin key.
func (c *Client) Apps(ctx context.Context) ([]workbench.App, error) {
	list, err := get[workbench.List[workbench.App]](ctx, c, "/apps", nil)
	return list.Items, err
}

// App reads an app. Needs an admin key. Codes: not_found.
func (c *Client) App(ctx context.Context, name string) (workbench.App, error) {
	return get[workbench.App](ctx, c, appPath(name), nil)
}

// RemoveApp withdraws an app and its tools: calls of them are refused from then
// on. Needs an admin key. Codes: not_found.
func (c *Client) RemoveApp(ctx context.Context, name string) error {
	res, err := c.do(ctx, call{method: http.MethodDelete, path: appPath(name)})
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// ToolFilter narrows a list of tools. Zero fields do not filter.
type ToolFilter struct {
	Query string // words that are all in the name or the description
	App   string
	Name  string // whole: app.tool
	All   bool   // versions that are not current, too
}

// Tools lists the project's tools by name, the youngest version first.
func (c *Client) Tools(ctx context.Context, f ToolFilter) ([]workbench.Tool, error) {
	q := url.Values{}
	for name, value := range map[string]string{"query": f.Query, "app": f.App, "name": f.Name} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if f.All {
		q.Set("all", "true")
	}
	list, err := get[workbench.List[workbench.Tool]](ctx, c, "/tools", q)
	return list.Items, err
}

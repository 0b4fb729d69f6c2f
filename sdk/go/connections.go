package sdk

import (
	"context"
	"net/http"

	"github.com/workbenchdev/workbench"
)

// CreateConnection asks for a connection: credentials that the server alone
// uses, under an alias that sessions and code name.
type CreateConnection struct {
	Alias       string                `json:"alias"`
	Provider    string                `json:"provider"` // of the apps that it serves
	Auth        workbench.AuthKind    `json:"auth"`
	Credentials workbench.Credentials `json:"credentials"`     // sealed; never shown again
	Hosts       []string              `json:"hosts,omitempty"` // that they may go to; default: those of the provider's apps
	// Whose it is, by name. Default: every tenant's of the project; of a key that
	// is no admin key, its own user's.
	Tenant string `json:"tenant,omitempty"`
	Group  string `json:"group,omitempty"` // of the tenant
	User   string `json:"user,omitempty"`  // of the tenant
}

// CreateConnection makes a connection. It is never repeated by itself. Codes:
// conflict where its owner has one of that alias.
func (c *Client) CreateConnection(ctx context.Context, r CreateConnection) (workbench.Connection, error) {
	return post[workbench.Connection](ctx, c, "/connections", r)
}

// Connections pages the connections that the key manages, newest first, revoked
// ones too, without their credentials; with an alias, those of that alias.
func (c *Client) Connections(ctx context.Context, alias string, page workbench.Page) (workbench.List[workbench.Connection], error) {
	q := pageQuery(page)
	if alias != "" {
		q.Set("alias", alias)
	}
	return get[workbench.List[workbench.Connection]](ctx, c, "/connections", q)
}

// Connection reads a connection, without its credentials. Codes: not_found.
func (c *Client) Connection(ctx context.Context, id string) (workbench.Connection, error) {
	return get[workbench.Connection](ctx, c, "/connections/"+seg(id), nil)
}

// RotateConnection asks for other credentials of a connection, of the same kind.
type RotateConnection struct {
	Credentials workbench.Credentials `json:"credentials"`
	// ExpectedCurrentVersion is the version believed to be current; another one
	// answers version_mismatch.
	ExpectedCurrentVersion *int64 `json:"expectedCurrentVersion,omitempty"`
}

// RotateConnection replaces a connection's credentials. What uses the old ones
// ends at once. It is never repeated by itself. Codes: not_found,
// version_mismatch, connection_revoked.
func (c *Client) RotateConnection(ctx context.Context, id string, r RotateConnection) (workbench.Connection, error) {
	return post[workbench.Connection](ctx, c, "/connections/"+seg(id)+"/rotate", r)
}

// RevokeConnection ends a connection: no call uses it from then on, and its
// credentials are gone. Codes: not_found, connection_revoked.
func (c *Client) RevokeConnection(ctx context.Context, id string) (workbench.Connection, error) {
	out, _, err := decode[workbench.Connection](ctx, c, call{method: http.MethodDelete, path: "/connections/" + seg(id)})
	return out, err
}

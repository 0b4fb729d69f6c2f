package sdk

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/workbenchdev/workbench"
)

// CreateKey asks for an API key. Needs an admin key.
type CreateKey struct {
	Kind      workbench.KeyKind `json:"kind"`
	Name      string            `json:"name,omitempty"`
	Tenant    string            `json:"tenant,omitempty"`  // direct keys: the tenant's name
	User      string            `json:"user,omitempty"`    // direct keys: the user's name
	Tenants   []string          `json:"tenants,omitempty"` // embedded keys: limited to these
	Scopes    []workbench.Scope `json:"scopes,omitempty"`
	SessionID string            `json:"sessionId,omitempty"`
	Contents  bool              `json:"contents,omitempty"` // admin keys
	ExpiresAt *time.Time        `json:"expiresAt,omitempty"`
}

// CreatedKey is a new key with its secret, which cannot be shown again.
type CreatedKey struct {
	workbench.Key
	Secret string `json:"secret"`
}

// CreateKey makes a key. It is never repeated by itself.
func (c *Client) CreateKey(ctx context.Context, r CreateKey) (CreatedKey, error) {
	return post[CreatedKey](ctx, c, "/keys", r)
}

// ListKeys pages the project's keys, without secrets.
func (c *Client) ListKeys(ctx context.Context, page workbench.Page) (workbench.List[workbench.Key], error) {
	return get[workbench.List[workbench.Key]](ctx, c, "/keys", pageQuery(page))
}

// RevokeKey ends a key: the next request with it is refused. Codes: not_found,
// conflict for the last admin key.
func (c *Client) RevokeKey(ctx context.Context, id string) (workbench.Key, error) {
	return c.revoke(ctx, id, nil)
}

// ForceRevokeKey is RevokeKey for the last admin key too. Only the server's own
// command line can make another one then.
func (c *Client) ForceRevokeKey(ctx context.Context, id string) (workbench.Key, error) {
	return c.revoke(ctx, id, url.Values{"force": {"true"}})
}

func (c *Client) revoke(ctx context.Context, id string, query url.Values) (workbench.Key, error) {
	out, _, err := decode[workbench.Key](ctx, c, call{method: http.MethodDelete, path: "/keys/" + seg(id), query: query})
	return out, err
}

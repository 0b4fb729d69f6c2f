package govern

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// NewConnection asks for a connection. Whose it is are names, as the operator or
// client gives them.
type NewConnection struct {
	Alias, Provider     string
	Tenant, Group, User string // of admin keys; empty: everybody's
	Auth                workbench.AuthKind
	Credentials         workbench.Credentials
	Hosts               []string
}

// Connect makes a connection. An admin's is the project's, or whose it names; a
// user's is the user's own.
//
// Codes: forbidden, invalid_request (the field), conflict.
func (g *Governor) Connect(ctx context.Context, p workbench.Principal, n NewConnection) (workbench.Connection, error) {
	c, err := g.newConnection(ctx, p, n)
	if err != nil {
		return workbench.Connection{}, err
	}
	if c.Sealed, err = g.sealCredentials(ctx, c, n.Credentials); err != nil {
		return workbench.Connection{}, err
	}
	trail := audit.Entry(p, g.now(), "connection.create", c.ID, nil, map[string]any{"alias": c.Alias, "provider": c.Provider, "auth": string(c.Auth), "scope": c.Scope()})
	return c, g.o.Store.CreateConnection(ctx, c, trail)
}

func (g *Governor) newConnection(ctx context.Context, p workbench.Principal, n NewConnection) (workbench.Connection, error) {
	c := workbench.Connection{ID: workbench.NewID(workbench.KindConnect), ProjectID: p.ProjectID, Alias: n.Alias, Provider: n.Provider, Auth: n.Auth,
		Hosts: n.Hosts, Version: 1, CreatedAt: g.now().UTC().Truncate(time.Microsecond), CreatedBy: p.KeyID}
	if err := p.Require(workbench.ScopeManage); err != nil {
		return c, err
	}
	if p.SessionID != "" {
		return c, workbench.E(workbench.CodeForbidden, "this key is narrowed to one session").WithHint("use a key that is not narrowed to manage connections")
	}
	if err := workbench.ConnectionAlias("alias", n.Alias); err != nil {
		return c, err
	}
	if err := workbench.AppName("provider", n.Provider); err != nil {
		return c, err
	}
	if err := checkCredentials(n.Auth, n.Credentials); err != nil {
		return c, err
	}
	if err := mayAskTokens(p, n.Auth); err != nil {
		return c, err
	}
	for i, h := range n.Hosts {
		if u, err := url.Parse("https://" + h); err != nil || u.Host != h || h == "" || strings.ContainsAny(h, "/?#@*") {
			return c, workbench.E(workbench.CodeInvalidRequest, "hosts[%d] must be a host's name, with a port if it has one", i).WithField("hosts").
				WithHint("such as api.example.com")
		}
	}
	if !p.Admin() {
		if n.Tenant+n.Group+n.User != "" {
			return c, workbench.E(workbench.CodeForbidden, "this key makes connections of its own user only").WithField("user").WithHint("leave tenant, group and user out")
		}
		c.TenantID, c.UserID = p.TenantID, p.UserID
		return c, nil
	}
	return g.ownedBy(ctx, c, n)
}

// ownedBy gives a connection to whom an admin named.
func (g *Governor) ownedBy(ctx context.Context, c workbench.Connection, n NewConnection) (workbench.Connection, error) {
	if n.Tenant == "" && n.Group+n.User != "" {
		return c, workbench.E(workbench.CodeInvalidRequest, "a group or user is one of a tenant").WithField("tenant").WithHint("name the tenant too")
	}
	if n.Group != "" && n.User != "" {
		return c, workbench.E(workbench.CodeInvalidRequest, "a connection is a user's or a group's, not both").WithField("group")
	}
	if n.Tenant == "" {
		return c, nil
	}
	tenant, err := g.o.Store.EnsureTenant(ctx, c.ProjectID, n.Tenant)
	if err != nil {
		return c, err
	}
	c.TenantID = tenant.ID
	switch {
	case n.User != "":
		var user workbench.Named
		user, err = g.o.Store.EnsureUser(ctx, c.ProjectID, tenant.ID, n.User)
		c.UserID = user.ID
	case n.Group != "":
		var group workbench.Named
		group, err = g.o.Store.EnsureGroup(ctx, c.ProjectID, tenant.ID, n.Group)
		c.GroupID = group.ID
	}
	return c, err
}

// checkCredentials refuses credentials that are not of their kind. No value is
// repeated.
func checkCredentials(kind workbench.AuthKind, c workbench.Credentials) error {
	need := map[workbench.AuthKind][]struct {
		field string
		value string
	}{
		workbench.AuthBearer:       {{"token", c.Token}},
		workbench.AuthBasic:        {{"username", c.Username}, {"password", c.Password}},
		workbench.AuthHeader:       {{"header", c.Header}, {"value", c.Value}},
		workbench.AuthOAuthClient:  {{"tokenUrl", c.TokenURL}, {"clientId", c.ClientID}, {"clientSecret", c.ClientSecret}},
		workbench.AuthOAuthRefresh: {{"tokenUrl", c.TokenURL}, {"clientId", c.ClientID}, {"refreshToken", c.RefreshToken}},
	}
	fields, ok := need[kind]
	if !ok {
		return workbench.E(workbench.CodeInvalidRequest, "auth must be one of %v", workbench.AuthKinds()).WithField("auth")
	}
	for _, f := range fields {
		if f.value == "" {
			return workbench.E(workbench.CodeInvalidRequest, "credentials.%s is missing", f.field).WithField("credentials." + f.field)
		}
	}
	for _, f := range append(fields, struct{ field, value string }{"clientSecret", c.ClientSecret}) {
		if len(f.value) > 16*1024 || strings.ContainsAny(f.value, "\r\n\x00") {
			return workbench.E(workbench.CodeInvalidRequest, "credentials.%s must be one line of at most 16 KiB", f.field).WithField("credentials." + f.field)
		}
	}
	for _, s := range c.Secrets() {
		if len(s) < minSecret {
			return workbench.E(workbench.CodeInvalidRequest, "a secret has at least %d bytes", minSecret).WithField("credentials").
				WithHint("a shorter one could not be kept out of what tools answer")
		}
	}
	if kind == workbench.AuthHeader && forbiddenHeader(c.Header) {
		return workbench.E(workbench.CodeInvalidRequest, "credentials.header cannot be that header").WithField("credentials.header")
	}
	if u, err := url.Parse(c.TokenURL); c.TokenURL != "" && (err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && !loopback(u.Hostname())) {
		return workbench.E(workbench.CodeInvalidRequest, "credentials.tokenUrl must be an https URL").WithField("credentials.tokenUrl")
	}
	return nil
}

// mayAskTokens refuses OAuth to who is no admin: the server itself asks the
// token endpoint, and only an admin says where it goes.
func mayAskTokens(p workbench.Principal, kind workbench.AuthKind) error {
	if p.Admin() || kind != workbench.AuthOAuthClient && kind != workbench.AuthOAuthRefresh {
		return nil
	}
	return workbench.E(workbench.CodeForbidden, "only an admin key gives credentials with a token endpoint").WithField("auth").
		WithHint("use bearer, basic or header, or let an admin make the connection for you")
}

// minSecret is the shortest secret: what is shorter cannot be told from other
// text, and so not be redacted.
const minSecret = 6

func loopback(host string) bool { return host == "localhost" || host == "127.0.0.1" || host == "::1" }

func forbiddenHeader(name string) bool {
	if strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		return true
	}
	return slices.Contains([]string{"host", "content-length", "content-type", "transfer-encoding", "connection", "upgrade", "te", "trailer", "cookie"}, strings.ToLower(name))
}

// Rotate replaces a connection's credentials. What uses the old ones ends at
// once. expected, when not 0, must be their version.
func (g *Governor) Rotate(ctx context.Context, p workbench.Principal, id string, credentials workbench.Credentials, expected int64) (workbench.Connection, error) {
	c, err := g.own(ctx, p, id)
	if err != nil {
		return c, err
	}
	if err := checkCredentials(c.Auth, credentials); err != nil {
		return c, err
	}
	if err := mayAskTokens(p, c.Auth); err != nil {
		return c, err
	}
	c, err = g.rotate(ctx, p, c, credentials, expected)
	if err == nil {
		g.o.Upstream.Forget(c.ID)
	}
	return c, err
}

func (g *Governor) rotate(ctx context.Context, p workbench.Principal, c workbench.Connection, credentials workbench.Credentials, expected int64) (workbench.Connection, error) {
	if expected == 0 {
		expected = c.Version
	}
	c.Version = expected + 1
	sealed, err := g.sealCredentials(ctx, c, credentials)
	if err != nil {
		return c, err
	}
	return g.o.Store.RotateConnection(ctx, c.ID, expected, sealed, g.now().UTC().Truncate(time.Microsecond),
		audit.Entry(p, g.now(), "connection.rotate", c.ID, nil, map[string]any{"version": expected + 1}))
}

// Refreshed keeps credentials that a provider replaced while they were used: the
// call under way goes on.
func (g *Governor) Refreshed(ctx context.Context, id string, version int64, credentials workbench.Credentials) error {
	c, err := g.o.Store.Connection(ctx, workbench.SystemPrincipal(), id)
	if err != nil {
		return err
	}
	_, err = g.rotate(ctx, workbench.Principal{ProjectID: c.ProjectID, TenantID: c.TenantID, UserID: c.UserID}, c, credentials, version)
	return err
}

// Revoke ends a connection: no call uses it from then on, and its credentials
// are gone.
func (g *Governor) Revoke(ctx context.Context, p workbench.Principal, id string) (workbench.Connection, error) {
	c, err := g.own(ctx, p, id)
	if err != nil {
		return c, err
	}
	c, err = g.o.Store.RevokeConnection(ctx, id, g.now().UTC().Truncate(time.Microsecond), audit.Entry(p, g.now(), "connection.revoke", id, nil, nil))
	if err == nil {
		g.o.Upstream.Forget(id)
	}
	return c, err
}

func (g *Governor) own(ctx context.Context, p workbench.Principal, id string) (workbench.Connection, error) {
	if err := p.Require(workbench.ScopeManage); err != nil {
		return workbench.Connection{}, err
	}
	return g.o.Store.Connection(ctx, p, id)
}

// Connection reads a connection that p may manage.
func (g *Governor) Connection(ctx context.Context, p workbench.Principal, id string) (workbench.Connection, error) {
	return g.o.Store.Connection(ctx, p, id)
}

// Connections lists those p may manage, newest first.
func (g *Governor) Connections(ctx context.Context, p workbench.Principal, alias string, page workbench.Page) (workbench.List[workbench.Connection], error) {
	if err := p.Require(workbench.ScopeManage); err != nil {
		return workbench.List[workbench.Connection]{}, err
	}
	return g.o.Store.ListConnections(ctx, p, alias, page)
}

// grant is what a connection lets the server use; nil for none.
func (g *Governor) grant(ctx context.Context, c *workbench.Connection) (*upstream.Grant, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // none
	}
	tenant, err := g.vault(ctx, *c)
	if err != nil {
		return nil, err
	}
	plain, err := g.o.Seal.OpenBytes(ctx, tenant, sealedCredentials, place(*c), c.Sealed)
	if err != nil {
		return nil, err
	}
	grant := &upstream.Grant{ConnectionID: c.ID, Version: c.Version, Auth: c.Auth, Hosts: c.Hosts}
	if err := json.Unmarshal(plain, &grant.Credentials); err != nil {
		return nil, workbench.E(workbench.CodeCorrupt, "the stored credentials are damaged").Caused(err)
	}
	return grant, nil
}

func (g *Governor) sealCredentials(ctx context.Context, c workbench.Connection, credentials workbench.Credentials) ([]byte, error) {
	plain, err := json.Marshal(credentials)
	if err != nil {
		return nil, workbench.E(workbench.CodeInternal, "the credentials cannot be kept").Caused(err)
	}
	tenant, err := g.vault(ctx, c)
	if err != nil {
		return nil, err
	}
	return g.o.Seal.SealBytes(ctx, tenant, sealedCredentials, place(c), plain)
}

// place binds sealed credentials to their connection and version.
func place(c workbench.Connection) string { return c.ID + "/" + strconv.FormatInt(c.Version, 10) }

// projectVault is the tenant whose key seals what belongs to a whole project.
const projectVault = "(project)"

// vault is the tenant whose key seals a connection's credentials.
func (g *Governor) vault(ctx context.Context, c workbench.Connection) (string, error) {
	if c.TenantID != "" {
		return c.TenantID, nil
	}
	t, err := g.o.Store.EnsureTenant(ctx, c.ProjectID, projectVault)
	return t.ID, err
}

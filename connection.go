package workbench

import (
	"strings"
	"time"
)

// AuthKind is how a connection's credentials are used.
type AuthKind string

// The kinds of credentials.
const (
	AuthBearer       AuthKind = "bearer"                    // Authorization: Bearer …
	AuthBasic        AuthKind = "basic"                     // Authorization: Basic …
	AuthHeader       AuthKind = "header"                    // a header of a name of its own
	AuthOAuthClient  AuthKind = "oauth2_client_credentials" // a token from the token endpoint
	AuthOAuthRefresh AuthKind = "oauth2_refresh_token"      // likewise, by a refresh token
)

// AuthKinds lists every kind.
func AuthKinds() []AuthKind {
	return []AuthKind{AuthBearer, AuthBasic, AuthHeader, AuthOAuthClient, AuthOAuthRefresh}
}

// Credentials are a connection's secret. They are sealed at rest, used by the
// server alone and never shown again. Which fields count is the kind's.
type Credentials struct {
	Token        string   `json:"token,omitempty"`    // bearer
	Username     string   `json:"username,omitempty"` // basic
	Password     string   `json:"password,omitempty"` // basic
	Header       string   `json:"header,omitempty"`   // header: its name
	Value        string   `json:"value,omitempty"`    // header: its value
	TokenURL     string   `json:"tokenUrl,omitempty"` // oauth2_…
	ClientID     string   `json:"clientId,omitempty"`
	ClientSecret string   `json:"clientSecret,omitempty"`
	RefreshToken string   `json:"refreshToken,omitempty"`
	Scopes       []string `json:"scopes,omitempty"`
}

// Secrets lists what of the credentials must never be seen.
func (c Credentials) Secrets() []string {
	var out []string
	for _, s := range []string{c.Token, c.Password, c.Value, c.ClientSecret, c.RefreshToken} {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

// Connection is the right to act at a provider, with credentials that only the
// server uses. It belongs to a project, or to a tenant, group or user of it.
// Code names it by its alias alone.
type Connection struct {
	ID        string    `json:"id"`
	ProjectID string    `json:"project"`
	TenantID  string    `json:"tenant,omitempty"` // empty: every tenant's of the project
	GroupID   string    `json:"group,omitempty"`
	UserID    string    `json:"user,omitempty"`
	Alias     string    `json:"alias"`
	Provider  string    `json:"provider"`
	Auth      AuthKind  `json:"auth"`
	Hosts     []string  `json:"hosts"`   // that the credentials may go to; empty: those of the provider's apps
	Version   int64     `json:"version"` // of the credentials; grows at rotation
	CreatedAt time.Time `json:"createdAt"`
	CreatedBy string    `json:"createdByKey,omitempty"`

	RotatedAt  *time.Time `json:"rotatedAt,omitempty"`
	RevokedAt  *time.Time `json:"revokedAt,omitempty"`
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty"`

	Sealed []byte `json:"-"` // Credentials as JSON
}

// Scope is how far the connection reaches: user, group, tenant or project.
func (c Connection) Scope() string {
	switch {
	case c.UserID != "":
		return "user"
	case c.GroupID != "":
		return "group"
	case c.TenantID != "":
		return "tenant"
	}
	return "project"
}

// Serves reports whether a session's identity may reach the connection at all;
// rules decide whether it may use it.
func (c Connection) Serves(s Session) bool {
	return c.ProjectID == s.ProjectID && (c.TenantID == "" || c.TenantID == s.TenantID) &&
		(c.GroupID == "" || c.GroupID == s.GroupID) && (c.UserID == "" || c.UserID == s.UserID)
}

// MaxAlias bounds an alias, in bytes.
const MaxAlias = 64

// ConnectionAlias checks an alias: letters, digits, _, - and dots.
func ConnectionAlias(field, alias string) error {
	if alias == "" || len(alias) > MaxAlias || strings.TrimLeft(alias, toolLetters) != "" {
		return E(CodeInvalidRequest, "%s must be 1 to %d letters, digits, _, - or dots", field, MaxAlias).WithField(field)
	}
	return nil
}

package workbench

import (
	"slices"
	"time"
)

// Scope is one right of a key.
type Scope string

// The scopes. ScopeApprove is never implied by another.
const (
	ScopeExecute Scope = "execute"
	ScopeRead    Scope = "read"
	ScopeApprove Scope = "approve"
	ScopeManage  Scope = "manage"
)

// KeyKind says for whom a key acts.
type KeyKind string

// The kinds of key. A direct key binds one tenant and one user. An embedded
// key acts for whom the client names on each request. An admin key manages
// and sees metadata, not contents, unless Contents was granted.
const (
	KeyDirect   KeyKind = "direct"
	KeyEmbedded KeyKind = "embedded"
	KeyAdmin    KeyKind = "admin"
)

// Key is an API key without its secret. The secret is shown once, at creation.
type Key struct {
	ID         string     `json:"id"`
	ProjectID  string     `json:"project"`
	Kind       KeyKind    `json:"kind"`
	Name       string     `json:"name"`
	TenantID   string     `json:"tenant,omitempty"`     // direct keys
	UserID     string     `json:"user,omitempty"`       // direct keys
	TenantName string     `json:"tenantName,omitempty"` // direct keys: as the operator gave it
	UserName   string     `json:"userName,omitempty"`   // direct keys: as the operator gave it
	Tenants    []string   `json:"tenants,omitempty"`    // embedded keys: the tenant names it is limited to; empty means any
	Scopes     []Scope    `json:"scopes"`
	SessionID  string     `json:"session,omitempty"` // narrowed to one session
	Contents   bool       `json:"contents"`          // admin keys: may also read contents
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`
	RevokedAt  *time.Time `json:"revokedAt,omitempty"`
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty"`
	SecretHash []byte     `json:"-"` // SHA-256 of the secret
}

// Principal is who acts: every store call takes one.
type Principal struct {
	ProjectID string
	TenantID  string // empty only for admin keys
	UserID    string // empty only for admin keys
	GroupID   string // descriptive; gives nobody else a right to read
	KeyID     string
	KeyKind   KeyKind
	Scopes    []Scope
	SessionID string // non-empty: may touch this session only
	Contents  bool   // admin: may read contents
	RequestID string
	Address   string // the caller's network address, for the audit trail
}

// SystemPrincipal is the server itself, for sweeps and recovery. It is made by
// the server only and never from a request.
func SystemPrincipal() Principal {
	return Principal{KeyKind: keySystem, Scopes: []Scope{ScopeExecute, ScopeRead, ScopeManage}, Contents: true}
}

const keySystem KeyKind = "system"

// System reports whether p is the server itself.
func (p Principal) System() bool { return p.KeyKind == keySystem }

// Admin reports whether p acts through an admin key.
func (p Principal) Admin() bool { return p.KeyKind == KeyAdmin }

// Has reports whether p carries the scope.
func (p Principal) Has(s Scope) bool { return slices.Contains(p.Scopes, s) }

// Require returns forbidden if p lacks the scope.
func (p Principal) Require(s Scope) error {
	if p.Has(s) {
		return nil
	}
	if s == ScopeApprove {
		return E(CodeForbidden, "this key lacks the scope %q", s).
			WithHint(`no key has it by default: POST /v1/workbench/keys makes one with {"kind": "direct", "tenant": …, "user": …, "scopes": ["read", "approve"]}`)
	}
	return E(CodeForbidden, "this key lacks the scope %q", s).
		WithHint(`use a key that has it: POST /v1/workbench/keys gives a key those that "scopes" lists, such as ["execute", "read"]`)
}

// Owner is whom a thing belongs to.
type Owner struct {
	ProjectID string
	TenantID  string
	UserID    string
	SessionID string
}

// MaySee reports whether p may know that the thing exists and read its
// metadata: its own user in its own tenant, or an admin of the project.
func (p Principal) MaySee(o Owner) bool {
	switch {
	case p.System():
		return true
	case p.ProjectID != o.ProjectID:
		return false
	case p.SessionID != "" && p.SessionID != o.SessionID:
		return false
	case p.Admin():
		return true
	}
	return p.TenantID == o.TenantID && p.UserID == o.UserID
}

// MayReadContents reports whether p may read code, output and file contents.
func (p Principal) MayReadContents(o Owner) bool {
	return p.MaySee(o) && (!p.Admin() || p.Contents)
}

// MayChange reports whether p may change the thing or run in it. An admin key
// manages (close, cancel, delete) but does not act as the owner.
func (p Principal) MayChange(o Owner) bool { return p.MaySee(o) }

// Identity limits of request headers, in bytes.
const MaxIdentityBytes = 128

// Named is a project, tenant, user or group: an id and the opaque name the
// operator or client knows it by.
type Named struct {
	ID        string    `json:"id"`
	ProjectID string    `json:"project,omitempty"`
	TenantID  string    `json:"tenant,omitempty"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
}

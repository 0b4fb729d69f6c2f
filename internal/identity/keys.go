package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

// A secret is "wbk_" + a letter for the kind + "_" + 32 random bytes in
// lower-case base32: 52 characters, 256 bits.
const (
	secretPrefix = "wbk_"
	secretBytes  = 32
	secretLength = len(secretPrefix) + 2 + 52
)

var secretEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

var kindLetters = map[workbench.KeyKind]string{
	workbench.KeyDirect: "d", workbench.KeyEmbedded: "e", workbench.KeyAdmin: "a",
}

func newSecret(kind workbench.KeyKind) string {
	var raw [secretBytes]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	return secretPrefix + kindLetters[kind] + "_" + secretEncoding.EncodeToString(raw[:])
}

func wellFormedSecret(s string) bool {
	return len(s) == secretLength && strings.HasPrefix(s, secretPrefix)
}

// KeyRequest asks for a key.
type KeyRequest struct {
	Kind      workbench.KeyKind
	Name      string            // for people; at most 128 bytes, may be empty
	Tenant    string            // direct: the tenant's name, created if it is new
	User      string            // direct: the user's name, created if it is new
	Tenants   []string          // embedded: the tenant names it is limited to; empty means any
	Scopes    []workbench.Scope // empty: the kind's default
	SessionID string            // direct and embedded: may touch this session only
	Contents  bool              // admin: may also read contents
	ExpiresAt *time.Time        // nil: never
	Project   string            // the server itself only: the project's name; empty means DefaultProject
}

// maxTenants bounds the tenants an embedded key is limited to.
const maxTenants = 256

// CreateKey makes a key in p's project and returns it with its secret, which
// is not stored and cannot be shown again. Codes: forbidden (p lacks manage),
// invalid_request (Field names what is wrong), not_found (the session).
func (s *Service) CreateKey(ctx context.Context, p workbench.Principal, r KeyRequest) (workbench.Key, string, error) {
	key, secret, err := s.newKey(ctx, p, r)
	if err != nil {
		return workbench.Key{}, "", err
	}
	if err := s.store.CreateKey(ctx, key); err != nil {
		return workbench.Key{}, "", err
	}
	return key, secret, nil
}

// newKey makes a key that is stored nowhere yet, and its secret.
func (s *Service) newKey(ctx context.Context, p workbench.Principal, r KeyRequest) (workbench.Key, string, error) {
	if err := mayManage(p); err != nil {
		return workbench.Key{}, "", err
	}
	now := s.now()
	if err := r.check(p, now); err != nil {
		return workbench.Key{}, "", err
	}
	key := workbench.Key{
		ID: workbench.NewID(workbench.KindKey), ProjectID: p.ProjectID, Kind: r.Kind, Name: r.Name,
		Tenants: r.Tenants, Scopes: r.scopes(), SessionID: r.SessionID, Contents: r.Contents,
		CreatedAt: now, ExpiresAt: r.ExpiresAt,
	}
	if p.System() {
		name := r.Project
		if name == "" {
			name = DefaultProject
		}
		project, err := s.store.EnsureProject(ctx, name)
		if err != nil {
			return workbench.Key{}, "", err
		}
		key.ProjectID = project.ID
	}
	if err := s.bind(ctx, r, &key); err != nil {
		return workbench.Key{}, "", err
	}
	secret := newSecret(r.Kind)
	sum := sha256.Sum256([]byte(secret))
	key.SecretHash = sum[:]
	return key, secret, nil
}

// bind sets whom a direct key acts for, and checks the session of a narrowed
// key. The session is looked up before anything is created.
func (s *Service) bind(ctx context.Context, r KeyRequest, key *workbench.Key) error {
	var session workbench.Session
	if r.SessionID != "" {
		var err error
		admin := workbench.Principal{ProjectID: key.ProjectID, KeyKind: workbench.KeyAdmin, Scopes: []workbench.Scope{workbench.ScopeRead}}
		if session, err = s.store.Session(ctx, admin, r.SessionID); err != nil {
			return workbench.AsError(err).WithField("sessionId")
		}
	}
	if r.Kind != workbench.KeyDirect {
		return nil
	}
	tenant, err := s.store.EnsureTenant(ctx, key.ProjectID, r.Tenant)
	if err != nil {
		return err
	}
	user, err := s.store.EnsureUser(ctx, key.ProjectID, tenant.ID, r.User)
	if err != nil {
		return err
	}
	key.TenantID, key.UserID, key.TenantName, key.UserName = tenant.ID, user.ID, tenant.Name, user.Name
	if r.SessionID != "" && (session.TenantID != tenant.ID || session.UserID != user.ID) {
		return workbench.E(workbench.CodeInvalidRequest, "that session does not belong to the key's user").WithField("sessionId").
			WithHint("name a session of the same tenant and user")
	}
	return nil
}

func mayManage(p workbench.Principal) error {
	if err := p.Require(workbench.ScopeManage); err != nil {
		return err
	}
	if !p.Admin() && !p.System() {
		return workbench.E(workbench.CodeForbidden, "only an admin key manages keys").WithHint("use an admin key")
	}
	return nil
}

// scopes are the scopes asked for, or the kind's default.
func (r KeyRequest) scopes() []workbench.Scope {
	if len(r.Scopes) > 0 {
		return slices.Clone(r.Scopes)
	}
	if r.Kind == workbench.KeyAdmin {
		return []workbench.Scope{workbench.ScopeManage, workbench.ScopeRead}
	}
	return []workbench.Scope{workbench.ScopeExecute, workbench.ScopeRead}
}

func invalid(field, format string, args ...any) *workbench.Error {
	return workbench.E(workbench.CodeInvalidRequest, format, args...).WithField(field)
}

// check refuses what the kind does not know, so that no setting is ignored.
func (r KeyRequest) check(p workbench.Principal, now time.Time) error {
	if _, ok := kindLetters[r.Kind]; !ok {
		return invalid("kind", `kind must be one of "direct", "embedded", "admin"`).WithHint("direct acts for one user, embedded for whom the client names, admin manages")
	}
	if r.Name != "" {
		if why := checkName(r.Name); why != "" {
			return invalid("name", "name %s", why).WithHint("send a short name of one line")
		}
	}
	if r.Project != "" && !p.System() {
		return invalid("project", "a key belongs to the project of the admin key that made it").WithHint("leave project out")
	}
	if r.ExpiresAt != nil && !r.ExpiresAt.After(now) {
		return invalid("expiresAt", "expiresAt must be in the future").WithHint("send a later time, or leave expiresAt out for a key that does not expire")
	}
	if r.SessionID != "" {
		if err := workbench.ParseID(workbench.KindSession, r.SessionID); err != nil {
			return workbench.AsError(err).WithField("sessionId")
		}
		if r.Kind == workbench.KeyAdmin {
			return invalid("sessionId", "an admin key cannot be narrowed to a session").WithHint("leave sessionId out, or create a direct or an embedded key")
		}
	}
	if err := r.checkScopes(); err != nil {
		return err
	}
	return r.checkIdentity()
}

func (r KeyRequest) checkScopes() error {
	for i, scope := range r.Scopes {
		switch {
		case slices.Contains(r.Scopes[:i], scope):
			return invalid("scopes", "scopes names %s twice", scope).WithHint("send each scope once")
		case scope == workbench.ScopeRead || scope == workbench.ScopeApprove:
		case scope == workbench.ScopeManage:
			if r.SessionID != "" {
				return invalid("scopes", "a key that is narrowed to one session cannot have the scope manage").
					WithHint("connections are a user's, not a session's: leave manage or sessionId out")
			}
		case scope == workbench.ScopeExecute:
			if r.Kind == workbench.KeyAdmin {
				return invalid("scopes", "an admin key acts for nobody and cannot have the scope execute").
					WithHint("create a direct or an embedded key to run code")
			}
		default:
			return invalid("scopes", `each of scopes must be one of "execute", "read", "approve", "manage"`).WithHint("leave scopes out for the default of the kind")
		}
	}
	return nil
}

func (r KeyRequest) checkIdentity() error {
	direct := r.Kind == workbench.KeyDirect
	for _, f := range []struct{ field, name string }{{"tenant", r.Tenant}, {"user", r.User}} {
		field, name := f.field, f.name
		switch {
		case !direct && name != "":
			return invalid(field, "only a direct key binds a %s", field).WithHint("leave %s out, or create a direct key", field)
		case direct && name == "":
			return invalid(field, "a direct key needs a %s", field).WithHint("name one tenant and one user; new ones are created")
		case direct:
			if why := checkName(name); why != "" {
				return invalid(field, "%s %s", field, why).WithHint("send a name of one line, at most %d bytes", workbench.MaxIdentityBytes)
			}
		}
	}
	if len(r.Tenants) > 0 && r.Kind != workbench.KeyEmbedded {
		return invalid("tenants", "only an embedded key is limited to tenants").WithHint("leave tenants out; a direct key has one tenant")
	}
	if len(r.Tenants) > maxTenants {
		return invalid("tenants", "tenants may hold at most %d names", maxTenants).WithHint("create several keys")
	}
	for _, name := range r.Tenants {
		if why := checkName(name); why != "" {
			return invalid("tenants", "a name in tenants %s", why).WithHint("send names of one line, at most %d bytes each", workbench.MaxIdentityBytes)
		}
	}
	if r.Contents && r.Kind != workbench.KeyAdmin {
		return invalid("contents", "contents is a right of admin keys; other keys read what is theirs").WithHint("leave contents out")
	}
	return nil
}

// ListKeys lists the project's keys, without secrets. Codes: forbidden,
// invalid_request (the cursor).
func (s *Service) ListKeys(ctx context.Context, p workbench.Principal, page workbench.Page) (workbench.List[workbench.Key], error) {
	if err := mayManage(p); err != nil {
		return workbench.List[workbench.Key]{}, err
	}
	return s.store.ListKeys(ctx, p, page)
}

// RevokeKey ends a key; the next request with it is refused. Revoking twice
// changes nothing. The last admin key of a project ends with force only. Codes:
// forbidden, not_found, conflict.
func (s *Service) RevokeKey(ctx context.Context, p workbench.Principal, id string, force bool) (workbench.Key, error) {
	if err := mayManage(p); err != nil {
		return workbench.Key{}, err
	}
	return s.store.RevokeKey(ctx, p, id, s.now(), force)
}

// Bootstrap makes the default project and, when there is no admin key yet, the
// first one. It returns that key's secret once, and whether it was created.
func (s *Service) Bootstrap(ctx context.Context) (secret string, created bool, err error) {
	if _, err := s.store.EnsureProject(ctx, DefaultProject); err != nil {
		return "", false, err
	}
	n, err := s.store.CountKeys(ctx, workbench.KeyAdmin)
	if err != nil || n > 0 {
		return "", false, err
	}
	_, secret, err = s.CreateKey(ctx, workbench.SystemPrincipal(), KeyRequest{Kind: workbench.KeyAdmin, Name: "first admin key"})
	return secret, err == nil, err
}

// Package identity turns what a request carries — a bearer secret and the
// identity headers — into a principal, and owns the life of API keys: made,
// shown once, listed, revoked.
//
// It stores no secret: a key is found by the SHA-256 of its secret. It caches
// no key, so that a revocation takes effect on the next request of every
// server. It decides who acts, never what they may see: that is the store's.
package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
)

// Store is what identity needs of the database.
type Store interface {
	EnsureProject(ctx context.Context, name string) (workbench.Named, error)
	EnsureTenant(ctx context.Context, projectID, name string) (workbench.Named, error)
	EnsureUser(ctx context.Context, projectID, tenantID, name string) (workbench.Named, error)
	EnsureGroup(ctx context.Context, projectID, tenantID, name string) (workbench.Named, error)
	// Tenant and User find by id; not_found if there is none.
	Tenant(ctx context.Context, id string) (workbench.Named, error)
	User(ctx context.Context, id string) (workbench.Named, error)

	CreateKey(ctx context.Context, k workbench.Key) error
	KeyByHash(ctx context.Context, hash []byte) (workbench.Key, error)
	ListKeys(ctx context.Context, p workbench.Principal, page workbench.Page) (workbench.List[workbench.Key], error)
	RevokeKey(ctx context.Context, p workbench.Principal, id string, at time.Time, force bool) (workbench.Key, error)
	TouchKey(ctx context.Context, id string, at time.Time) error
	CountKeys(ctx context.Context, kind workbench.KeyKind) (int, error)

	Session(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error)
}

// DefaultProject is the project of the first start.
const DefaultProject = "default"

// touchEvery is how exact the last use of a key is.
const touchEvery = time.Minute

// Service authenticates requests and manages keys.
type Service struct {
	store Store
	now   func() time.Time
	names *nameCache

	process processKeys
}

// New makes a Service. A nil clock means time.Now.
func New(store Store, clock func() time.Time) *Service {
	if clock == nil {
		clock = time.Now
	}
	return &Service{store: store, now: clock, names: newNameCache(4096)}
}

// Authenticate resolves a bearer secret and the identity headers (empty when
// absent) into a principal. Codes: unauthenticated (missing, malformed,
// unknown, expired and revoked keys alike), forbidden (the headers name
// somebody the key may not act for), invalid_request (a malformed or missing
// header, named in Field), unavailable.
func (s *Service) Authenticate(ctx context.Context, bearer, tenantName, endUserName, groupName, address, requestID string) (workbench.Principal, error) {
	key, err := s.keyOf(ctx, bearer)
	if err != nil {
		// Whose dead key it was is for the audit trail; such a principal has no
		// scope.
		return workbench.Principal{ProjectID: key.ProjectID, KeyID: key.ID, RequestID: requestID, Address: address}, err
	}
	p := workbench.Principal{
		ProjectID: key.ProjectID, KeyID: key.ID, KeyKind: key.Kind, Scopes: key.Scopes,
		SessionID: key.SessionID, Contents: key.Contents, RequestID: requestID, Address: address,
	}
	headers := []header{
		{TenantHeader, tenantName}, {EndUserHeader, endUserName}, {GroupHeader, groupName},
	}
	for _, h := range headers {
		if err := h.check(); err != nil {
			return p, err
		}
	}
	switch key.Kind {
	case workbench.KeyEmbedded:
		err = s.actFor(ctx, key, headers, &p)
	case workbench.KeyDirect:
		p.TenantID, p.UserID = key.TenantID, key.UserID
		err = s.namesItself(ctx, key, headers)
	case workbench.KeyAdmin:
		err = adminActsForNobody(headers)
	default:
		err = errUnauthenticated()
	}
	// The principal is returned beside a refusal as far as it is known: the
	// audit trail records whose key was refused.
	return p, err
}

// keyOf finds a live key by its secret. A key that is revoked or expired is
// returned beside the error.
func (s *Service) keyOf(ctx context.Context, bearer string) (workbench.Key, error) {
	if !wellFormedSecret(bearer) {
		return workbench.Key{}, errUnauthenticated()
	}
	sum := sha256.Sum256([]byte(bearer))
	if key, ok := s.process.byHash(sum); ok {
		return key, nil
	}
	key, err := s.store.KeyByHash(ctx, sum[:])
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return workbench.Key{}, errUnauthenticated()
	}
	if err != nil {
		return workbench.Key{}, err
	}
	now := s.now()
	live := subtle.ConstantTimeCompare(key.SecretHash, sum[:]) == 1 &&
		key.RevokedAt == nil && (key.ExpiresAt == nil || now.Before(*key.ExpiresAt))
	if !live {
		return key, errUnauthenticated()
	}
	if key.LastUsedAt == nil || now.Sub(*key.LastUsedAt) >= touchEvery {
		// A use that could not be noted is noted with the next one: what can be
		// read stays readable on a full disk.
		_ = s.store.TouchKey(ctx, key.ID, now)
	}
	return key, nil
}

// errUnauthenticated never says what was wrong with the key.
func errUnauthenticated() *workbench.Error {
	return workbench.E(workbench.CodeUnauthenticated, "a valid API key is required").
		WithHint("send Authorization: Bearer wbk_… with a key that is neither revoked nor expired")
}

// actFor makes p the tenant and end user an embedded key's client names.
func (s *Service) actFor(ctx context.Context, key workbench.Key, headers []header, p *workbench.Principal) error {
	tenant, user, group := headers[0], headers[1], headers[2]
	for _, h := range []header{tenant, user} {
		if h.value == "" {
			return workbench.E(workbench.CodeInvalidRequest, "an embedded key needs the header %s", h.name).WithField(h.name).
				WithHint("name the tenant in %s and the end user in %s", TenantHeader, EndUserHeader)
		}
	}
	if len(key.Tenants) > 0 && !slices.Contains(key.Tenants, tenant.value) {
		return workbench.E(workbench.CodeForbidden, "this key may not act for that tenant").WithField(TenantHeader).
			WithHint("use a key that was created for the tenant")
	}
	t, err := s.names.get(nameOf{"tenant", key.ProjectID, tenant.value}, func() (workbench.Named, error) {
		return s.store.EnsureTenant(ctx, key.ProjectID, tenant.value)
	})
	if err != nil {
		return err
	}
	u, err := s.names.get(nameOf{"user", t, user.value}, func() (workbench.Named, error) {
		return s.store.EnsureUser(ctx, key.ProjectID, t, user.value)
	})
	if err != nil {
		return err
	}
	p.TenantID, p.UserID = t, u
	if group.value == "" {
		return nil
	}
	p.GroupID, err = s.names.get(nameOf{"group", t, group.value}, func() (workbench.Named, error) {
		return s.store.EnsureGroup(ctx, key.ProjectID, t, group.value)
	})
	return err
}

// namesItself refuses headers by which a direct key's client names somebody
// else than the key's own tenant and user.
func (s *Service) namesItself(ctx context.Context, key workbench.Key, headers []header) error {
	own := []func() (workbench.Named, error){
		func() (workbench.Named, error) { return s.store.Tenant(ctx, key.TenantID) },
		func() (workbench.Named, error) { return s.store.User(ctx, key.UserID) },
		func() (workbench.Named, error) { return workbench.Named{}, nil }, // a direct key has no group
	}
	for i, h := range headers {
		if h.value == "" {
			continue
		}
		named, err := own[i]()
		if err != nil {
			return err
		}
		if named.Name != h.value {
			return workbench.E(workbench.CodeForbidden, "a direct key acts for its own tenant and user only").WithField(h.name).
				WithHint("leave the header %s out, or use an embedded key", h.name)
		}
	}
	return nil
}

func adminActsForNobody(headers []header) error {
	for _, h := range headers {
		if h.value != "" {
			return workbench.E(workbench.CodeForbidden, "an admin key manages and acts for nobody").WithField(h.name).
				WithHint("leave the header %s out, or use an embedded key to act for an end user", h.name)
		}
	}
	return nil
}

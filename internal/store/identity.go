package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"database/sql"

	"github.com/workbenchdev/workbench"
)

func scanNamed(s scanner) (workbench.Named, error) {
	var n workbench.Named
	var created int64
	err := s.Scan(&n.ID, &n.ProjectID, &n.TenantID, &n.Name, &created)
	n.CreatedAt = fromMicros(created)
	return n, err
}

// ensure finds a named thing or makes it. Both statements are constants whose
// parameters are the find's, with id and created_at appended for the insert.
func (db *DB) ensure(ctx context.Context, kind workbench.IDKind, find, insert string, args ...any) (workbench.Named, error) {
	n, err := one(ctx, db, "name", scanNamed, find, args...)
	if !workbench.HasCode(err, workbench.CodeNotFound) {
		return n, err
	}
	id, now := workbench.NewID(kind), micros(db.clock())
	err = db.write(ctx, "ensure", func(t *tx) error {
		// The loser of a race inserts nothing and finds the winner's row.
		if _, err := t.exec(insert, append(append([]any{}, args...), id, now)...); err != nil {
			return err
		}
		var err error
		n, err = scanNamed(t.row(find, args...))
		return err
	})
	return n, err
}

// EnsureProject finds the project of that name or makes it.
func (db *DB) EnsureProject(ctx context.Context, name string) (workbench.Named, error) {
	return db.ensure(ctx, workbench.KindProject,
		"SELECT id, '', '', name, created_at FROM projects WHERE name = $1",
		"INSERT INTO projects (name, id, created_at) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING", name)
}

// EnsureTenant finds the project's tenant of that name or makes it.
func (db *DB) EnsureTenant(ctx context.Context, projectID, name string) (workbench.Named, error) {
	return db.ensure(ctx, workbench.KindTenant,
		"SELECT id, project_id, '', name, created_at FROM tenants WHERE project_id = $1 AND name = $2",
		"INSERT INTO tenants (project_id, name, id, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT (project_id, name) DO NOTHING",
		projectID, name)
}

// EnsureUser finds the tenant's user of that name or makes it.
func (db *DB) EnsureUser(ctx context.Context, projectID, tenantID, name string) (workbench.Named, error) {
	return db.ensure(ctx, workbench.KindUser,
		"SELECT id, project_id, tenant_id, name, created_at FROM users WHERE project_id = $1 AND tenant_id = $2 AND name = $3",
		"INSERT INTO users (project_id, tenant_id, name, id, created_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant_id, name) DO NOTHING",
		projectID, tenantID, name)
}

// EnsureGroup finds the tenant's group of that name or makes it.
func (db *DB) EnsureGroup(ctx context.Context, projectID, tenantID, name string) (workbench.Named, error) {
	return db.ensure(ctx, workbench.KindGroup,
		"SELECT id, project_id, tenant_id, name, created_at FROM user_groups WHERE project_id = $1 AND tenant_id = $2 AND name = $3",
		"INSERT INTO user_groups (project_id, tenant_id, name, id, created_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant_id, name) DO NOTHING",
		projectID, tenantID, name)
}

// Tenant finds a tenant by id.
func (db *DB) Tenant(ctx context.Context, id string) (workbench.Named, error) {
	return one(ctx, db, "tenant", scanNamed, "SELECT id, project_id, '', name, created_at FROM tenants WHERE id = $1", id)
}

// User finds a user by id.
func (db *DB) User(ctx context.Context, id string) (workbench.Named, error) {
	return one(ctx, db, "user", scanNamed, "SELECT id, project_id, tenant_id, name, created_at FROM users WHERE id = $1", id)
}

// Group finds a group by id.
func (db *DB) Group(ctx context.Context, id string) (workbench.Named, error) {
	return one(ctx, db, "group", scanNamed, "SELECT id, project_id, tenant_id, name, created_at FROM user_groups WHERE id = $1", id)
}

// bareKeyColumns leave out the names of tenant and user: every request reads
// its key, and needs them not.
const bareKeyColumns = "k.id, k.project_id, k.kind, k.name, k.tenant_id, k.user_id, k.tenants, k.scopes, k.session_id, k.contents, " +
	"k.secret_hash, k.created_at, k.expires_at, k.revoked_at, k.last_used_at, '', ''"

const keyColumns = "k.id, k.project_id, k.kind, k.name, k.tenant_id, k.user_id, k.tenants, k.scopes, k.session_id, k.contents, " +
	"k.secret_hash, k.created_at, k.expires_at, k.revoked_at, k.last_used_at, " +
	"COALESCE((SELECT t.name FROM tenants t WHERE t.id = k.tenant_id), ''), COALESCE((SELECT u.name FROM users u WHERE u.id = k.user_id), '')"

func scanKey(s scanner) (workbench.Key, error) {
	var k workbench.Key
	var tenants, scopes string
	var contents, created, expires, revoked, used int64
	if err := s.Scan(&k.ID, &k.ProjectID, &k.Kind, &k.Name, &k.TenantID, &k.UserID, &tenants, &scopes, &k.SessionID, &contents,
		&k.SecretHash, &created, &expires, &revoked, &used, &k.TenantName, &k.UserName); err != nil {
		return k, err
	}
	k.Contents, k.CreatedAt = contents != 0, fromMicros(created)
	k.ExpiresAt, k.RevokedAt, k.LastUsedAt = pointMicros(expires), pointMicros(revoked), pointMicros(used)
	return k, errors.Join(fromJSON(tenants, &k.Tenants), fromJSON(scopes, &k.Scopes))
}

// CreateKey keeps a key; SecretHash identifies it. The caller has checked that
// whoever asks may make it.
func (db *DB) CreateKey(ctx context.Context, k workbench.Key) error {
	return db.write(ctx, "create_key", func(t *tx) error {
		_, err := t.exec(`INSERT INTO api_keys (id, project_id, kind, name, tenant_id, user_id, tenants, scopes, session_id, contents,
			secret_hash, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
			k.ID, k.ProjectID, string(k.Kind), k.Name, k.TenantID, k.UserID, toJSON(list(k.Tenants)), toJSON(list(k.Scopes)), k.SessionID,
			oneOrZero(k.Contents), k.SecretHash, micros(k.CreatedAt), microsOf(k.ExpiresAt))
		return err
	})
}

// KeyByHash finds the key of a secret's SHA-256, also a revoked or expired one.
func (db *DB) KeyByHash(ctx context.Context, hash []byte) (workbench.Key, error) {
	return one(ctx, db, "key", scanKey, "SELECT "+bareKeyColumns+" FROM api_keys k WHERE k.secret_hash = $1", hash)
}

// ListKeys lists the keys p may see, newest first.
func (db *DB) ListKeys(ctx context.Context, p workbench.Principal, pg workbench.Page) (workbench.List[workbench.Key], error) {
	l, err := newListing("keys", pg)
	if err != nil {
		return workbench.List[workbench.Key]{}, err
	}
	q := newQuery("SELECT "+keyColumns+" FROM api_keys k WHERE 1 = 1").visible(p, "k", "session_id")
	l.newest(q, "k.id")
	keys, err := all(ctx, db, scanKey, q.String(), q.args...)
	return page(l, keys, func(k workbench.Key) string { return k.ID }), err
}

// RevokeKey ends a key for good. A second call changes nothing. The last admin
// key of a project that can manage is ended with force only: conflict.
func (db *DB) RevokeKey(ctx context.Context, p workbench.Principal, id string, at time.Time, force bool) (workbench.Key, error) {
	var k workbench.Key
	err := db.write(ctx, "revoke_key", func(t *tx) error {
		q := newQuery("SELECT "+keyColumns+" FROM api_keys k WHERE ").add("k.id = ?", id).visible(p, "k", "session_id")
		var err error
		if k, err = scanKey(t.row(q.String(), q.args...)); err != nil {
			return missing(err, "key")
		}
		// Before the key itself, and in order: two that end each other's key do
		// not both succeed, nor wait for each other.
		managing, err := t.lockManaging(k.ProjectID, at)
		if err != nil {
			return err
		}
		if k, err = scanKey(t.row(q.String()+t.forUpdate(), q.args...)); err != nil {
			return missing(err, "key")
		}
		if k.RevokedAt != nil {
			return nil
		}
		if !force && len(managing) == 1 && managing[0] == k.ID {
			return workbench.E(workbench.CodeConflict, "this is the project's last admin key").
				WithHint("make another admin key first; or repeat with ?force=true, and who has the data directory makes a new one with workbench key create")
		}
		k.RevokedAt = pointMicros(micros(at))
		_, err = t.exec("UPDATE api_keys SET revoked_at = $2 WHERE id = $1", id, micros(at))
		return err
	})
	return k, err
}

// lockManaging holds the project's admin keys and names those that can manage.
func (t *tx) lockManaging(projectID string, at time.Time) ([]string, error) {
	rows, err := t.rows("SELECT "+bareKeyColumns+` FROM api_keys k WHERE k.project_id = $1 AND k.kind = 'admin' AND k.revoked_at = 0
		AND (k.expires_at = 0 OR k.expires_at > $2) ORDER BY k.id`+t.forUpdate(), projectID, micros(at))
	keys, err := collect(rows, err, scanKey)
	var ids []string
	for _, k := range keys {
		if slices.Contains(k.Scopes, workbench.ScopeManage) {
			ids = append(ids, k.ID)
		}
	}
	return ids, err
}

// touchEvery is how exact a key's last use is.
const touchEvery = time.Minute

// maxTouched bounds the memory of recent uses.
const maxTouched = 4096

// touched remembers recent uses, so that a request does not cost a write.
type touched struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (t *touched) due(id string, at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, ok := t.last[id]; ok && at.Sub(last) < touchEvery {
		return false
	}
	if t.last == nil || len(t.last) >= maxTouched {
		t.last = map[string]time.Time{}
	}
	t.last[id] = at
	return true
}

// TouchKey records a use, at most once a minute for each key.
func (db *DB) TouchKey(ctx context.Context, id string, at time.Time) error {
	if !db.touch.due(id, at) {
		return nil
	}
	return db.write(ctx, "touch_key", func(t *tx) error {
		_, err := t.exec("UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND last_used_at < $2", id, micros(at))
		return err
	})
}

// CountKeys counts the keys ever made of a kind.
func (db *DB) CountKeys(ctx context.Context, kind workbench.KeyKind) (int, error) {
	return one(ctx, db, "key", scanInt, "SELECT COUNT(*) FROM api_keys WHERE kind = $1", string(kind))
}

func scanInt(s scanner) (int, error) {
	var n int
	err := s.Scan(&n)
	return n, err
}

type tenantKey struct {
	keyID, tenantID string
	wrapped         []byte
}

func scanTenantKey(s scanner) (tenantKey, error) {
	var k tenantKey
	err := s.Scan(&k.keyID, &k.tenantID, &k.wrapped)
	return k, err
}

// TenantKey is the tenant's wrapped key; not_found before the first PutTenantKey.
func (db *DB) TenantKey(ctx context.Context, tenantID string) (keyID string, wrapped []byte, err error) {
	k, err := one(ctx, db, "tenant key", scanTenantKey, "SELECT key_id, tenant_id, wrapped FROM tenant_keys WHERE tenant_id = $1", tenantID)
	return k.keyID, k.wrapped, err
}

// PutTenantKey keeps the tenant's wrapped key unless there is one, and returns
// the one that counts: the first writer's.
func (db *DB) PutTenantKey(ctx context.Context, tenantID, keyID string, wrapped []byte) (string, []byte, error) {
	var k tenantKey
	err := db.write(ctx, "tenant_key", func(t *tx) error {
		if _, err := t.exec("INSERT INTO tenant_keys (key_id, tenant_id, wrapped) VALUES ($1, $2, $3) ON CONFLICT (tenant_id) DO NOTHING",
			keyID, tenantID, wrapped); err != nil {
			return err
		}
		var err error
		k, err = scanTenantKey(t.row("SELECT key_id, tenant_id, wrapped FROM tenant_keys WHERE tenant_id = $1", tenantID))
		if errors.Is(err, sql.ErrNoRows) {
			return errAgain // PostgreSQL: the winner has not committed yet
		}
		return err
	})
	return k.keyID, k.wrapped, err
}

// TenantKeyByID finds the wrapped key that a blob names.
func (db *DB) TenantKeyByID(ctx context.Context, keyID string) (tenantID string, wrapped []byte, err error) {
	k, err := one(ctx, db, "tenant key", scanTenantKey, "SELECT key_id, tenant_id, wrapped FROM tenant_keys WHERE key_id = $1", keyID)
	return k.tenantID, k.wrapped, err
}

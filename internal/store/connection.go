package store

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

const connectionColumns = "c.id, c.project_id, c.tenant_id, c.group_id, c.user_id, c.alias, c.provider, c.auth, c.hosts, c.version, c.sealed, " +
	"c.created_at, c.created_by, c.rotated_at, c.revoked_at, c.last_used_at"

func scanConnection(s scanner) (workbench.Connection, error) {
	var c workbench.Connection
	var hosts string
	var created, rotated, revoked, used int64
	if err := s.Scan(&c.ID, &c.ProjectID, &c.TenantID, &c.GroupID, &c.UserID, &c.Alias, &c.Provider, &c.Auth, &hosts, &c.Version, &c.Sealed,
		&created, &c.CreatedBy, &rotated, &revoked, &used); err != nil {
		return c, err
	}
	c.CreatedAt, c.RotatedAt, c.RevokedAt, c.LastUsedAt = fromMicros(created), pointMicros(rotated), pointMicros(revoked), pointMicros(used)
	err := fromJSON(hosts, &c.Hosts)
	c.Hosts = list(c.Hosts)
	return c, err
}

// CreateConnection keeps a connection. Code: conflict where its owner has one of
// that alias.
func (db *DB) CreateConnection(ctx context.Context, c workbench.Connection, trail workbench.AuditEntry) error {
	return db.write(ctx, "connection", func(t *tx) error {
		t.audit(trail)
		_, err := t.exec(`INSERT INTO connections (id, project_id, tenant_id, group_id, user_id, alias, provider, auth, hosts, version, sealed, created_at, created_by)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1, $10, $11, $12)`,
			c.ID, c.ProjectID, c.TenantID, c.GroupID, c.UserID, c.Alias, c.Provider, string(c.Auth), toJSON(list(c.Hosts)), c.Sealed, micros(c.CreatedAt), c.CreatedBy)
		if duplicate(err) {
			return workbench.E(workbench.CodeConflict, "there is a connection of that alias already").WithField("alias").
				WithHint("rotate its credentials, revoke it, or choose another alias")
		}
		return err
	})
}

// Connection reads a connection that p may manage, also a revoked one: an
// admin's of its project, or a user's own.
func (db *DB) Connection(ctx context.Context, p workbench.Principal, id string) (workbench.Connection, error) {
	q := newQuery("SELECT "+connectionColumns+" FROM connections c WHERE ").add("c.id = ?", id)
	manages(q, p)
	return one(ctx, db, "connection", scanConnection, q.String(), q.args...)
}

// manages appends whose connections p may see as their owner.
func manages(q *query, p workbench.Principal) {
	if p.System() {
		return
	}
	q.add(" AND c.project_id = ?", p.ProjectID)
	if !p.Admin() {
		q.add(" AND c.tenant_id = ? AND c.user_id = ?", p.TenantID, p.UserID)
	}
}

// ListConnections lists the connections p may manage, newest first.
func (db *DB) ListConnections(ctx context.Context, p workbench.Principal, alias string, pg workbench.Page) (workbench.List[workbench.Connection], error) {
	l, err := newListing("connections", pg)
	if err != nil {
		return workbench.List[workbench.Connection]{}, err
	}
	q := newQuery("SELECT " + connectionColumns + " FROM connections c WHERE 1 = 1")
	manages(q, p)
	if alias != "" {
		q.add(" AND c.alias = ?", alias)
	}
	l.newest(q, "c.id")
	found, err := all(ctx, db, scanConnection, q.String(), q.args...)
	return page(l, found, func(c workbench.Connection) string { return c.ID }), err
}

// ConnectionFor finds what an alias means in a session: its user's connection,
// else its group's, its tenant's or the project's. Code: connection_not_found.
func (db *DB) ConnectionFor(ctx context.Context, s workbench.Session, alias string) (workbench.Connection, error) {
	c, err := one(ctx, db, "connection", scanConnection, "SELECT "+connectionColumns+` FROM connections c WHERE c.project_id = $1 AND c.alias = $2 AND c.revoked_at = 0
		AND (c.tenant_id = '' OR c.tenant_id = $3) AND (c.user_id = '' OR c.user_id = $4) AND (c.group_id = '' OR c.group_id = $5)
		ORDER BY CASE WHEN c.user_id <> '' THEN 0 WHEN c.group_id <> '' THEN 1 WHEN c.tenant_id <> '' THEN 2 ELSE 3 END LIMIT 1`,
		s.ProjectID, alias, s.TenantID, s.UserID, s.GroupID)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return c, workbench.E(workbench.CodeConnectionNotFound, "there is no connection %q for this session", alias).WithField("connection").
			WithHint("it was revoked, or never made: ask who manages the project's connections")
	}
	return c, err
}

// Rotate replaces a connection's credentials, if they are still those of the
// version expected (0: whichever); its version grows. Codes: not_found,
// connection_revoked, version_mismatch.
func (db *DB) RotateConnection(ctx context.Context, id string, expected int64, sealed []byte, at time.Time, trail workbench.AuditEntry) (workbench.Connection, error) {
	return db.changeConnection(ctx, id, trail, func(t *tx, c *workbench.Connection) error {
		if expected != 0 && c.Version != expected {
			return workbench.E(workbench.CodeVersionMismatch, "the credentials were replaced meanwhile").WithHint("read the connection again")
		}
		c.Version, c.Sealed, c.RotatedAt = c.Version+1, sealed, &at
		_, err := t.exec("UPDATE connections SET version = $2, sealed = $3, rotated_at = $4 WHERE id = $1", id, c.Version, sealed, micros(at))
		return err
	})
}

// RevokeConnection ends a connection; its credentials are gone with that.
func (db *DB) RevokeConnection(ctx context.Context, id string, at time.Time, trail workbench.AuditEntry) (workbench.Connection, error) {
	return db.changeConnection(ctx, id, trail, func(t *tx, c *workbench.Connection) error {
		c.RevokedAt, c.Sealed = &at, nil
		_, err := t.exec("UPDATE connections SET revoked_at = $2, sealed = NULL WHERE id = $1", id, micros(at))
		return err
	})
}

func (db *DB) changeConnection(ctx context.Context, id string, trail workbench.AuditEntry, change func(*tx, *workbench.Connection) error) (workbench.Connection, error) {
	var c workbench.Connection
	err := db.write(ctx, "connection", func(t *tx) error {
		var err error
		if c, err = scanConnection(t.row("SELECT "+connectionColumns+" FROM connections c WHERE c.id = $1"+t.forUpdate(), id)); err != nil {
			return missing(err, "connection")
		}
		if c.RevokedAt != nil {
			return workbench.E(workbench.CodeConnectionRevoked, "connection %s was revoked", id).WithHint("make a new one; the alias is free again")
		}
		t.audit(trail)
		return change(t, &c)
	})
	return c, err
}

// liveConnection refuses a connection that was revoked, or whose credentials
// were replaced, since it was read; it stays as it is until the transaction ends.
func (t *tx) liveConnection(id string, version int64) error {
	var now, revoked int64
	err := t.row("SELECT version, revoked_at FROM connections WHERE id = $1"+t.forShare(), id).Scan(&now, &revoked)
	switch {
	case err != nil:
		return missing(err, "connection")
	case revoked != 0:
		return workbench.E(workbench.CodeConnectionRevoked, "the connection was revoked").WithField("connection")
	case now != version:
		return stale()
	}
	return nil
}

// stale is what a decision made under rules, or with credentials, of before gets.
func stale() error {
	return workbench.E(workbench.CodeVersionMismatch, "the rules, or the connection, changed meanwhile").WithHint("decide again")
}

// forShare is the dialect's clause that keeps the rows of a SELECT as they are
// until the transaction ends.
func (t *tx) forShare() string {
	if t.db.dialect == SQLite {
		return ""
	}
	return " FOR SHARE"
}

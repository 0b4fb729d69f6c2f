package store

import (
	"context"

	"github.com/workbenchdev/workbench"
)

// Tenant finds a tenant by id, for identity.
func (db *DB) Tenant(ctx context.Context, id string) (workbench.Named, error) {
	return one(ctx, db, "tenant", scanNamed, "SELECT id, project_id, '', name, created_at FROM tenants WHERE id = $1", id)
}

// User finds a user by id, for identity.
func (db *DB) User(ctx context.Context, id string) (workbench.Named, error) {
	return one(ctx, db, "user", scanNamed, "SELECT id, project_id, tenant_id, name, created_at FROM users WHERE id = $1", id)
}

package store

import (
	"context"
	"database/sql"
)

// MigrateTo brings a schema up to a version, as a program did that knew no later
// one.
func MigrateTo(ctx context.Context, db *sql.DB, d Dialect, version int64) error {
	provider, err := migrations(db, d)
	if err != nil {
		return err
	}
	_, err = provider.UpTo(ctx, version)
	return err
}

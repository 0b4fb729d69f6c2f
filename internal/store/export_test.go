package store

import (
	"context"
	"database/sql"
	"time"
)

// WaitTogether sets how long a write waits for those expected; before any is made.
func (db *DB) WaitTogether(d time.Duration) { db.writer.patience = d }

// Expected tells whether a write is waited for.
func (g *Together) Expected() bool { return g.expected() }

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

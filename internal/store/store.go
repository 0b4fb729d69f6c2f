// Package store keeps what Workbench knows in SQL: portable queries on SQLite
// and PostgreSQL, migrations, and the wakeups that tell waiters something
// changed. Its one job is to make every move of a session, run, artifact or
// key one transaction that is scoped to its principal, fenced against older
// engines and durable when it returns.
//
// It does not seal: specs, output and previews arrive sealed and leave sealed.
// It decides no policy beyond the rules that need a transaction (order, quota,
// idempotency, finality, fencing).
//
// Every method returns *workbench.Error. What does not exist and what the
// principal may not see are the same not_found. A database that is gone, full
// or too slow is unavailable, which is retryable; a write that then was in its
// commit may have happened.
package store

import (
	"log/slog"
	"time"
)

// Dialect names the database in use.
type Dialect string

// The dialects.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// Options are the settings of Open. The zero value is usable.
type Options struct {
	Clock       func() time.Time // nil: time.Now
	Logger      *slog.Logger     // nil: discard
	MaxConns    int              // PostgreSQL pool, SQLite readers; 0: 16 and 4
	CallTimeout time.Duration    // bound of one call without an earlier deadline; 0: 10 s
}


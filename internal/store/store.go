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
// commit may have happened. Methods without a principal are for the engine and
// its sweepers, never for a request.
package store

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workbenchdev/workbench"
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
	SQLite      url.Values       // in tests: further parameters of SQLite's connections
}

// defaultCallTimeout bounds a call whose caller gave no earlier deadline: no
// call hangs on a database that stopped answering.
const defaultCallTimeout = 10 * time.Second

// DB is an open database. It is safe for concurrent use.
type DB struct {
	dialect Dialect
	clock   func() time.Time
	log     *slog.Logger
	timeout time.Duration

	read    *sql.DB       // PostgreSQL: reads and writes
	writer  *sqliteWriter // SQLite only: the one connection that writes
	hub     *hub
	listen  *listener // PostgreSQL only
	touch   touched
	history atomic.Pointer[HistoryQuota]
	reads   reads // SQLite only
	closed  sync.Once
}

// Open opens the database and brings its schema to this program's version.
// dsn is "postgres://…", "sqlite:PATH" or a bare path. A SQLite file must have
// one owner: the data directory's lock, taken by the caller, sees to that.
//
// Errors: invalid_request for a dsn it cannot use, unavailable when the
// database cannot be reached or a newer Workbench has changed its schema.
func Open(ctx context.Context, dsn string, o Options) (*DB, error) {
	db := &DB{clock: o.Clock, log: o.Logger, timeout: o.CallTimeout, hub: newHub()}
	if db.clock == nil {
		db.clock = time.Now
	}
	if db.log == nil {
		db.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if db.timeout <= 0 {
		db.timeout = defaultCallTimeout
	}
	var err error
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		db.dialect = Postgres
		err = db.openPostgres(ctx, dsn, o.MaxConns)
	} else {
		db.dialect = SQLite
		err = db.openSQLite(ctx, strings.TrimPrefix(dsn, "sqlite:"), o)
	}
	if err != nil {
		_ = db.Close()
		return nil, db.explain(ctx, err)
	}
	return db, nil
}

// Close ends the subscriptions' wakeups and closes the database. Calls under
// way fail.
func (db *DB) Close() error {
	var err error
	db.closed.Do(func() {
		if db.listen != nil {
			db.listen.stop()
		}
		db.reads.close()
		if db.writer != nil {
			err = db.writer.close()
		}
		if db.read != nil {
			if e := db.read.Close(); err == nil {
				err = e
			}
		}
	})
	return err
}

// Ping reports whether the database answers; unavailable if not.
func (db *DB) Ping(ctx context.Context) error {
	ctx, cancel := db.bound(ctx)
	defer cancel()
	var one int
	return db.explain(ctx, db.read.QueryRowContext(ctx, "SELECT 1").Scan(&one))
}

// Dialect is the database in use.
func (db *DB) Dialect() Dialect { return db.dialect }

// Now is the database's clock, which leases are measured by.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	if db.dialect == SQLite {
		return db.clock().UTC(), nil
	}
	ctx, cancel := db.bound(ctx)
	defer cancel()
	var now int64
	if err := db.read.QueryRowContext(ctx, "SELECT "+postgresNow).Scan(&now); err != nil {
		return time.Time{}, db.explain(ctx, err)
	}
	return fromMicros(now), nil
}

// bound gives a call its deadline.
func (db *DB) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, db.timeout)
}

// micros and fromMicros are how times are kept: unix microseconds, UTC, 0 for
// none.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func microsOf(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return micros(*t)
}

func fromMicros(v int64) time.Time {
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMicro(v).UTC()
}

func pointMicros(v int64) *time.Time {
	if v == 0 {
		return nil
	}
	t := fromMicros(v)
	return &t
}

func oneOrZero(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// mayCreate refuses to make a thing for another identity than the caller's.
func mayCreate(p workbench.Principal, o workbench.Owner) error {
	if p.MayChange(o) {
		return nil
	}
	return workbench.E(workbench.CodeForbidden, "this key does not act for that identity")
}

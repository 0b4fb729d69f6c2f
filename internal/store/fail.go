package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/workbenchdev/workbench"
)

// errAgain makes write run the transaction again from its start.
var errAgain = errors.New("store: run the transaction again")

// missing turns "no rows" into not_found of what.
func missing(err error, what string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return workbench.ErrNotFound(what)
	}
	return err
}

// aborted reports whether the database undid the transaction for a reason that
// does not lie in it, so that running it again is safe.
func aborted(err error) bool {
	if errors.Is(err, errAgain) {
		return true
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == "40001" || pg.Code == "40P01" // serialization failure, deadlock
	}
	switch sqliteCode(err) & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return true
	}
	return false
}

// duplicate reports whether a unique rule was broken.
func duplicate(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == "23505"
	}
	code := sqliteCode(err)
	return code == sqlite3.SQLITE_CONSTRAINT_UNIQUE || code == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
}

func sqliteCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// explain turns any error of the database into a *workbench.Error; nil stays
// nil. ctx is the call's: it tells a caller who left from a database that did
// not answer.
func (db *DB) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var own *workbench.Error
	if errors.As(err, &own) {
		return own
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled) || (ctx.Err() == nil && errors.Is(err, context.Canceled)):
		return workbench.E(workbench.CodeCancelled, "the request was given up before the database answered").Caused(err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return unavailable("the database did not answer in time", err)
	case aborted(err):
		return unavailable("the database is too busy with conflicting work", err)
	case duplicate(err):
		return workbench.E(workbench.CodeConflict, "it exists already").Caused(err)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return explainPostgres(pg, err)
	}
	if code := sqliteCode(err); code != 0 {
		return explainSQLite(code, err)
	}
	var network net.Error
	var dial *pgconn.ConnectError
	var op *net.OpError
	if errors.As(err, &network) || errors.As(err, &dial) || errors.As(err, &op) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, sql.ErrConnDone) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || pgconn.SafeToRetry(err) ||
		errors.Is(err, net.ErrClosed) || strings.Contains(err.Error(), "conn closed") || strings.Contains(err.Error(), "database is closed") {
		return unavailable("the database cannot be reached", err)
	}
	return workbench.AsError(err)
}

func unavailable(detail string, cause error) error {
	return workbench.E(workbench.CodeUnavailable, "%s", detail).WithHint("try again in a moment").Caused(cause)
}

// diskFull is nothing that passes by itself.
func diskFull(cause error) error {
	return workbench.E(workbench.CodeUnavailable, "the database's disk is full").
		WithHint("the operator has to make room where the database is; then try again").Caused(cause)
}

// explainPostgres knows the SQLSTATE classes that are not this program's fault.
func explainPostgres(pg *pgconn.PgError, err error) error {
	switch {
	case pg.Code == "53100":
		return diskFull(err)
	case pg.Code == "55P03" || pg.Code == "57014" || pg.Code == "25P03":
		return unavailable("the database did not answer in time", err)
	case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "57"), strings.HasPrefix(pg.Code, "58"),
		pg.Code == "25006": // read only: a standby
		return unavailable("the database is not available", err)
	case strings.HasPrefix(pg.Code, "28"), pg.Code == "3D000":
		return unavailable("the database refused the connection", err)
	case pg.Code == "22021" || pg.Code == "22P05":
		return workbench.E(workbench.CodeInvalidRequest, "a text holds bytes that are no UTF-8").Caused(err)
	}
	return workbench.AsError(err)
}

func explainSQLite(code int, err error) error {
	switch code & 0xff {
	case sqlite3.SQLITE_CONSTRAINT:
		if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER { // the audit trail's
			return workbench.E(workbench.CodeConflict, "it exists already and cannot change").Caused(err)
		}
	case sqlite3.SQLITE_FULL:
		return diskFull(err)
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return unavailable("the database's disk failed", err)
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return workbench.E(workbench.CodeCorrupt, "the database file is damaged").
			WithHint("stop the server and restore a backup").Caused(err)
	case sqlite3.SQLITE_INTERRUPT:
		return unavailable("the database did not answer in time", err)
	}
	return workbench.AsError(err)
}

package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/failpoint"
)

// errDiscard tells database/sql to close a connection instead of pooling it.
var errDiscard = driver.ErrBadConn

// maxAttempts bounds how often a transaction that the database aborted
// (serialization failure, deadlock, busy) is run again.
const maxAttempts = 8

// tx is one write transaction.
type tx struct {
	ctx    context.Context
	db     *DB
	sql    *sql.Tx       // PostgreSQL
	writer *sqliteWriter // SQLite
	topics []string
	trail  []workbench.AuditEntry // rows for the end, see chain
	heads  map[string]head        // SQLite: ends of chains as they will be, by project
	// together is the writes that it is committed with, where they come; nil: none.
	together *Together
}

// write runs fn in one transaction and returns when it is durable. fn may run
// more than once, each time from a clean start, so it must assign its results
// afresh. point names the failpoints store.<point>.before_commit and
// store.<point>.after_commit.
func (db *DB) write(ctx context.Context, point string, fn func(*tx) error) error {
	ctx, cancel := db.bound(ctx)
	defer cancel()
	for attempt := 1; ; attempt++ {
		err := db.attempt(ctx, point, fn)
		if err == nil {
			return nil
		}
		if attempt == maxAttempts || !aborted(err) {
			return db.explain(ctx, err)
		}
		pause := time.Millisecond<<attempt + time.Duration(rand.Int64N(int64(3*time.Millisecond)))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return db.explain(ctx, ctx.Err())
		}
	}
}

func (db *DB) attempt(ctx context.Context, point string, fn func(*tx) error) (err error) {
	t := &tx{ctx: ctx, db: db, heads: map[string]head{}}
	if err := t.begin(); err != nil {
		return err
	}
	open := true
	defer func() {
		if open { // also when fn panics
			if lost := t.end(false); lost != nil {
				err = lost
			}
		}
	}()
	if err := fn(t); err != nil {
		return err
	}
	if err := t.announce(); err != nil {
		return err
	}
	if err := t.chain(); err != nil {
		return err
	}
	if err := failpoint.Hit("store." + point + ".before_commit"); err != nil {
		return err
	}
	open = false
	if err := t.end(true); err != nil {
		return err
	}
	db.hub.wake(t.topics...)
	return failpoint.Hit("store." + point + ".after_commit")
}

func (t *tx) begin() error {
	if w := t.db.writer; w != nil {
		if err := w.begin(t.ctx); err != nil {
			return err
		}
		t.writer = w
		t.ctx = context.WithoutCancel(t.ctx)
		return nil
	}
	var err error
	t.sql, err = t.db.read.BeginTx(t.ctx, nil)
	return err
}

// end commits or rolls back. For a transaction that is rolled back an error says
// that what it was decided on was never committed.
func (t *tx) end(commit bool) error {
	if t.writer != nil {
		return t.writer.end(t.ctx, commit, t.heads, t.together)
	}
	if commit {
		return t.sql.Commit()
	}
	_ = t.sql.Rollback() // what it read was committed
	return nil
}

// notify wakes the topics' subscribers when the transaction has committed.
func (t *tx) notify(topics ...string) { t.topics = append(t.topics, topics...) }

// maxNotifyBytes keeps a payload under PostgreSQL's 8000 bytes.
const maxNotifyBytes = 7000

// announce sends the wakeups to other servers on the same PostgreSQL. NOTIFY
// is part of the transaction: it leaves if and when the commit does.
func (t *tx) announce() error {
	if t.sql == nil || len(t.topics) == 0 {
		return nil
	}
	var b strings.Builder
	flush := func() error {
		if b.Len() == 0 {
			return nil
		}
		_, err := t.sql.ExecContext(t.ctx, "SELECT pg_notify($1, $2)", notifyChannel, b.String())
		b.Reset()
		return err
	}
	for _, topic := range t.topics {
		if b.Len()+len(topic) >= maxNotifyBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(topic)
	}
	return flush()
}

// exec runs a constant statement and returns how many rows it touched.
func (t *tx) exec(query string, args ...any) (int64, error) {
	var r sql.Result
	var err error
	if t.writer != nil {
		stmt, e := t.writer.prepare(t.ctx, query) //nolint:sqlclosecheck // cached until the connection ends
		if e != nil {
			return 0, e
		}
		r, err = stmt.ExecContext(t.ctx, args...)
	} else {
		r, err = t.sql.ExecContext(t.ctx, query, args...)
	}
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// execOnce runs a built statement, around the statement cache.
func (t *tx) execOnce(query string, args ...any) error {
	var err error
	if t.writer != nil {
		_, err = t.writer.conn.ExecContext(t.ctx, query, args...)
	} else {
		_, err = t.sql.ExecContext(t.ctx, query, args...)
	}
	return err
}

// scanner is a row.
type scanner interface{ Scan(dest ...any) error }

// row runs a constant query for one row.
func (t *tx) row(query string, args ...any) scanner {
	if t.writer != nil {
		stmt, err := t.writer.prepare(t.ctx, query) //nolint:sqlclosecheck // cached until the connection ends
		if err != nil {
			return failedRow{err}
		}
		return stmt.QueryRowContext(t.ctx, args...)
	}
	return t.sql.QueryRowContext(t.ctx, query, args...)
}

// rows runs a query, built or constant, around the statement cache.
func (t *tx) rows(query string, args ...any) (*sql.Rows, error) {
	if t.writer != nil {
		return t.writer.conn.QueryContext(t.ctx, query, args...)
	}
	return t.sql.QueryContext(t.ctx, query, args...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// now is the database's clock inside the transaction, in microseconds.
func (t *tx) now() (int64, error) {
	if t.db.dialect == SQLite {
		return micros(t.db.clock()), nil
	}
	var now int64
	err := t.row("SELECT " + postgresNow).Scan(&now)
	return now, err
}

// forUpdate is the dialect's clause that locks the rows of a SELECT until the
// transaction ends. SQLite has one writer, so there it is nothing. NO KEY
// leaves room for the key locks that foreign keys take.
func (t *tx) forUpdate() string {
	if t.db.dialect == SQLite {
		return ""
	}
	return " FOR NO KEY UPDATE"
}

// collect reads all rows with scan and closes them.
func collect[T any](rows *sql.Rows, err error, scan func(scanner) (T, error)) ([]T, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	out := []T{}
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

func scanString(s scanner) (string, error) {
	var v string
	err := s.Scan(&v)
	return v, err
}

// maxReadStatements bounds the prepared reads; a query past it is prepared for
// each call.
const maxReadStatements = 256

// reads are SQLite's prepared read statements, by their text. (pgx keeps its
// own, by connection.)
type reads struct {
	mu    sync.RWMutex
	stmts map[string]*sql.Stmt
}

func (r *reads) prepare(ctx context.Context, db *sql.DB, query string) (*sql.Stmt, error) {
	r.mu.RLock()
	s, full := r.stmts[query], len(r.stmts) >= maxReadStatements
	r.mu.RUnlock()
	if s != nil || full {
		return s, nil
	}
	s, err := db.PrepareContext(ctx, query) //nolint:sqlclosecheck // cached until the database is closed
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.stmts[query]; other != nil { // prepared meanwhile
		_ = s.Close() //nolint:sqlclosecheck // at once
		return other, nil
	}
	if r.stmts == nil {
		r.stmts = map[string]*sql.Stmt{}
	}
	r.stmts[query] = s
	return s, nil
}

func (r *reads) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for q, s := range r.stmts {
		_ = s.Close()
		delete(r.stmts, q)
	}
}

// query runs a read.
func (db *DB) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if db.dialect == SQLite {
		s, err := db.reads.prepare(ctx, db.read, query) //nolint:sqlclosecheck // cached until the database is closed
		if err != nil {
			return nil, err
		}
		if s != nil {
			return s.QueryContext(ctx, args...)
		}
	}
	return db.read.QueryContext(ctx, query, args...)
}

// all runs a read query and scans every row.
func all[T any](ctx context.Context, db *DB, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	ctx, cancel := db.bound(ctx)
	defer cancel()
	rows, err := db.query(ctx, query, args...)
	out, err := collect(rows, err, scan)
	return out, db.explain(ctx, err)
}

// one runs a read query for one row; what names it in not_found.
func one[T any](ctx context.Context, db *DB, what string, scan func(scanner) (T, error), query string, args ...any) (T, error) {
	var none T
	ctx, cancel := db.bound(ctx)
	defer cancel()
	rows, err := db.query(ctx, query, args...)
	found, err := collect(rows, err, scan)
	if err != nil {
		return none, db.explain(ctx, err)
	}
	if len(found) == 0 {
		return none, workbench.ErrNotFound(what)
	}
	return found[0], nil
}

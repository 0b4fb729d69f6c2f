package store

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"github.com/workbenchdev/workbench"
)

// sqlitePragmas hold for every connection. synchronous=FULL makes a commit
// durable when it returns; temp_store keeps temporary tables off the disk.
var sqlitePragmas = []string{"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "temp_store(MEMORY)"}

// sqliteDSN writes the DSN of a connection to path.
func sqliteDSN(path string, extra ...url.Values) string {
	q := url.Values{"_pragma": sqlitePragmas, "_txlock": {"immediate"}, "_dqs": {"0"}, "_defensive": {"1"}}
	for _, more := range extra {
		for k, v := range more {
			q[k] = append(slices.Clip(q[k]), v...)
		}
	}
	escape := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23")
	return "file:" + escape.Replace(path) + "?" + q.Encode()
}

func (db *DB) openSQLite(ctx context.Context, path string, o Options) error {
	if path == "" || strings.HasPrefix(path, ":") || strings.Contains(path, "://") {
		return workbench.E(workbench.CodeInvalidRequest, "the database must be a file path or a postgres:// address").
			WithHint("for example --database postgres://user@host/workbench")
	}
	readers := o.MaxConns
	if readers <= 0 {
		readers = 4
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	// SQLite gives its -wal and -shm files the mode of the database file.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return workbench.E(workbench.CodeUnavailable, "the database file cannot be opened").Caused(err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return err
	}
	writer, err := sql.Open("sqlite", sqliteDSN(path, o.SQLite))
	if err != nil {
		return err
	}
	writer.SetMaxOpenConns(1)
	db.writer = newSQLiteWriter(writer)
	if err := migrate(ctx, writer, SQLite); err != nil {
		return err
	}
	db.read, err = sql.Open("sqlite", sqliteDSN(path, o.SQLite, url.Values{"mode": {"ro"}, "_query_only": {"1"}}))
	if err != nil {
		return err
	}
	db.read.SetMaxOpenConns(readers)
	db.read.SetMaxIdleConns(readers)
	return db.read.PingContext(ctx)
}

// sqliteWriter is the one connection that writes. It runs its transactions by
// hand on one database/sql connection, so that prepared statements live as
// long as the process: on the hot path that is half the time.
//
// Transactions that wait for each other are committed together, each but the first in
// a savepoint of its own: writing the log and syncing it is the other half. None has ended before
// that commit has, not even one that is rolled back: what it saw, and was refused for,
// is only then there for others to see.
type sqliteWriter struct {
	db       *sql.DB
	patience time.Duration // togetherWait
	turn     chan struct{} // holds one token: whose turn it is to write
	waiting  atomic.Int64  // for the turn
	ended    chan struct{} // closed by close

	// Of whoever has the turn:
	conn  *sql.Conn // nil after a broken connection
	stmts map[string]*sql.Stmt
	batch *batch // of the transaction that is open; nil: none is
}

// batch is the transactions that are committed together.
type batch struct {
	parts   int             // all that took part
	members int             // of them that are to be committed
	heads   map[string]head // ends of chains as those leave them, by project
	late    *time.Timer     // bounds the wait for those expected; nil: nobody has waited
	over    bool            // it has
	done    chan struct{}   // closed once they are, or cannot be
	err     error           // of that; read after done
}

// finish tells those that wait.
func (b *batch) finish(err error) {
	if b.late != nil {
		b.late.Stop()
	}
	b.err = err
	close(b.done)
}

// maxParts bounds a batch, and so how long the first of it waits for the others.
const maxParts = 16

func newSQLiteWriter(db *sql.DB) *sqliteWriter {
	w := &sqliteWriter{db: db, patience: togetherWait, turn: make(chan struct{}, 1), ended: make(chan struct{}), stmts: map[string]*sql.Stmt{}}
	w.turn <- struct{}{}
	return w
}

// begin waits for the turn and opens an immediate transaction, or joins the one
// that is open. The statements of a transaction are not interrupted: they are short
// and local, and an interrupted one would cost the connection.
func (w *sqliteWriter) begin(ctx context.Context) error {
	w.waiting.Add(1)
	select {
	case <-w.turn:
		w.waiting.Add(-1)
	case <-w.ended:
		w.waiting.Add(-1)
		return sql.ErrConnDone
	case <-ctx.Done():
		w.waiting.Add(-1)
		go w.relieve(nil)
		return ctx.Err()
	}
	err := w.start(context.WithoutCancel(ctx))
	if err != nil {
		w.turn <- struct{}{}
	}
	return err
}

// relieve commits what others left to one that has given up waiting, or that has not
// come by the time that late, if it is not nil, waits for it.
func (w *sqliteWriter) relieve(late *batch) {
	select {
	case <-w.turn:
	case <-w.ended: // close has done it
		return
	}
	if late != nil {
		late.over = true
	}
	if w.waiting.Load() == 0 {
		_ = w.settle(context.Background()) // the batch's members are told
	}
	w.turn <- struct{}{}
}

func (w *sqliteWriter) start(ctx context.Context) error {
	if w.conn == nil {
		conn, err := w.db.Conn(ctx)
		if err != nil {
			return err
		}
		w.conn = conn
	}
	if w.batch == nil {
		if err := w.run(ctx, "BEGIN IMMEDIATE"); err != nil {
			w.discard(err)
			return err
		}
		w.batch = &batch{parts: 1, heads: map[string]head{}, done: make(chan struct{})}
		return nil
	}
	w.batch.parts++
	err := w.run(ctx, "SAVEPOINT member")
	if err != nil {
		w.discard(err)
	}
	return err
}

// end gives the turn on. A transaction that is to be committed has been when it
// returns nil. For one that is rolled back an error says that what it was decided on
// could not be committed. heads are the ends of chains that it moved; with others of g it
// is committed together.
func (w *sqliteWriter) end(ctx context.Context, commit bool, heads map[string]head, g *Together) error {
	ctx = context.WithoutCancel(ctx)
	b := w.batch
	err := w.leave(ctx, commit)
	if commit {
		maps.Copy(b.heads, heads)
	}
	switch {
	case err != nil:
		// SQLite rolls everything back by itself after a full disk or an I/O error:
		// nothing of the batch is there any more.
		w.discard(err)
	case b.members > 0 && b.parts < maxParts && w.waiting.Load() > 0:
		w.turn <- struct{}{} // whoever waits joins, and ends it
		<-b.done
		return b.err
	case b.members > 0 && b.parts < maxParts && !b.over && g.expected():
		if b.late == nil {
			b.late = time.AfterFunc(w.patience, func() { w.relieve(b) })
		}
		w.turn <- struct{}{} // who comes joins, and ends it; where nobody does, relieve
		<-b.done
		return b.err
	default:
		err = w.settle(ctx)
	}
	w.turn <- struct{}{}
	return err
}

// leave ends the savepoint of one transaction. The first of a batch has none: it is
// rolled back with the batch, which nobody has joined then.
func (w *sqliteWriter) leave(ctx context.Context, commit bool) error {
	if commit {
		w.batch.members++
	}
	switch {
	case w.batch.parts == 1:
		return nil
	case commit:
		return w.run(ctx, "RELEASE member")
	}
	if err := w.run(ctx, "ROLLBACK TO member"); err != nil {
		return err
	}
	return w.run(ctx, "RELEASE member")
}

// settle commits the batch that is open, if one is.
func (w *sqliteWriter) settle(ctx context.Context) error {
	b := w.batch
	if b == nil {
		return nil
	}
	var err error
	if b.members > 0 {
		if err = w.writeHeads(ctx, b); err == nil {
			err = w.run(ctx, "COMMIT")
		}
	}
	if b.members == 0 || err != nil { // a failed COMMIT leaves the transaction open
		if e := w.run(ctx, "ROLLBACK"); e != nil {
			w.discard(errors.Join(err, e))
			return err
		}
	}
	w.batch = nil
	b.finish(err)
	return err
}

func (w *sqliteWriter) writeHeads(ctx context.Context, b *batch) error {
	for project, h := range b.heads {
		stmt, err := w.prepare(ctx, updateHead) //nolint:sqlclosecheck // cached until the connection ends
		if err != nil {
			return err
		}
		if _, err := stmt.ExecContext(ctx, project, h.seq, h.hash); err != nil {
			return err
		}
	}
	return nil
}

func (w *sqliteWriter) run(ctx context.Context, query string) error {
	stmt, err := w.prepare(ctx, query) //nolint:sqlclosecheck // cached until the connection ends
	if err != nil {
		return err
	}
	_, err = stmt.ExecContext(ctx)
	return err
}

// prepare returns the cached statement. Queries are constants of this package
// except a few that are built from them; those pass around the cache.
func (w *sqliteWriter) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if s, ok := w.stmts[query]; ok {
		return s, nil
	}
	s, err := w.conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	w.stmts[query] = s
	return s, nil
}

// discard drops a connection whose state is not known; the next transaction
// opens another. Closing rolls back.
func (w *sqliteWriter) discard(why error) {
	if b := w.batch; b != nil {
		w.batch = nil
		b.finish(why)
	}
	w.drop()
}

func (w *sqliteWriter) drop() {
	for q, s := range w.stmts {
		_ = s.Close()
		delete(w.stmts, q)
	}
	if w.conn != nil {
		_ = w.conn.Raw(func(any) error { return errDiscard })
		_ = w.conn.Close()
		w.conn = nil
	}
}

// close waits for the transaction under way; the next ones fail at once.
func (w *sqliteWriter) close() error {
	<-w.turn
	_ = w.settle(context.Background()) // the batch's members are told
	close(w.ended)
	w.drop()
	return w.db.Close()
}

package store

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// postgresNow is the server's clock in microseconds, also inside a transaction
// that has waited for a lock.
const postgresNow = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT"

// notifyChannel carries the topics of a transaction, separated by spaces. A
// channel is local to its database.
const notifyChannel = "workbench"

const (
	postgresConnectTimeout = 5 * time.Second
	postgresUserTimeout    = 10 * time.Second // unacknowledged bytes: the peer is gone
	listenProbe            = 15 * time.Second // a silent listener asks whether the server lives
)

// postgresConfig reads the address and sets the bounds no call may pass:
// a server that stopped answering must not hold a goroutine for ever.
func (db *DB) postgresConfig(dsn string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		// The parse error may repeat the password.
		return nil, workbench.E(workbench.CodeInvalidRequest, "the database address is not a valid postgres:// address").
			WithHint("for example --database postgres://user@host/workbench").Caused(errors.New("address withheld"))
	}
	if cfg.ConnectTimeout == 0 || cfg.ConnectTimeout > postgresConnectTimeout {
		cfg.ConnectTimeout = postgresConnectTimeout
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var set error
			err := c.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(postgresUserTimeout.Milliseconds()))
			})
			return errors.Join(err, set)
		},
	}
	cfg.DialFunc = dialer.DialContext
	set := func(name, value string) {
		if _, ok := cfg.RuntimeParams[name]; !ok {
			cfg.RuntimeParams[name] = value
		}
	}
	set("application_name", "workbench")
	set("statement_timeout", "30000")
	set("lock_timeout", "8000")
	set("idle_in_transaction_session_timeout", "30000")
	cfg.RuntimeParams["default_transaction_isolation"] = "read committed"
	cfg.RuntimeParams["timezone"] = "UTC"
	return cfg, nil
}

func (db *DB) openPostgres(ctx context.Context, dsn string, conns int) error {
	cfg, err := db.postgresConfig(dsn)
	if err != nil {
		return err
	}
	if conns <= 0 {
		conns = 16
	}
	if err := db.checkDurability(ctx, cfg); err != nil {
		return err
	}
	db.read = stdlib.OpenDB(*cfg)
	db.read.SetMaxOpenConns(conns)
	db.read.SetMaxIdleConns(conns)
	db.read.SetConnMaxIdleTime(5 * time.Minute)
	db.read.SetConnMaxLifetime(time.Hour)
	if err := migrate(ctx, db.read, Postgres); err != nil {
		return err
	}
	db.listen, err = startListener(ctx, db, cfg)
	return err
}

// checkDurability sees that a commit is on disk when it returns, whatever the
// database's or the role's default is, and reports a server that cannot promise
// it.
func (db *DB) checkDurability(ctx context.Context, cfg *pgx.ConnConfig) error {
	ctx, cancel := context.WithTimeout(ctx, 2*postgresConnectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var commit, fsync string
	if err := conn.QueryRow(ctx, "SELECT current_setting('synchronous_commit'), current_setting('fsync')").Scan(&commit, &fsync); err != nil {
		return err
	}
	if commit == "off" {
		cfg.RuntimeParams["synchronous_commit"] = "on"
	}
	if fsync == "off" {
		db.log.Warn("the database server runs with fsync off: accepted work can be lost when its machine stops")
	}
	return nil
}

// listener holds the connection that hears other servers' commits.
type listener struct {
	db     *DB
	cfg    *pgx.ConnConfig
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// startListener listens before it returns, then in the background.
func startListener(ctx context.Context, db *DB, cfg *pgx.ConnConfig) (*listener, error) {
	l := &listener{db: db, cfg: cfg.Copy()}
	l.cfg.RuntimeParams["application_name"] = "workbench-listen"
	conn, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.cancel = cancel
	l.done.Go(func() { l.run(background, conn) })
	return l, nil
}

func (l *listener) stop() {
	l.cancel()
	l.done.Wait()
}

func (l *listener) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresConnectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, l.cfg)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+notifyChannel); err != nil {
		l.drop(conn)
		return nil, err
	}
	return conn, nil
}

func (l *listener) drop(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// run hears until it is stopped. After every new connection it wakes every
// subscriber, because what was sent in between is lost.
func (l *listener) run(ctx context.Context, conn *pgx.Conn) {
	pause := 50 * time.Millisecond
	for {
		if conn != nil {
			err := l.hear(ctx, conn)
			l.drop(conn)
			if ctx.Err() != nil {
				return
			}
			l.db.log.Warn("the database's notifications stopped; reconnecting", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		var err error
		if conn, err = l.connect(ctx); err != nil {
			conn = nil
			pause = min(2*pause, 2*time.Second)
			continue
		}
		pause = 50 * time.Millisecond
		l.db.hub.wakeAll()
	}
}

// hear passes notifications on until the connection fails. A connection that
// is silent for listenProbe must answer a question.
func (l *listener) hear(ctx context.Context, conn *pgx.Conn) error {
	for {
		wait, cancel := context.WithTimeout(ctx, listenProbe)
		n, err := conn.WaitForNotification(wait)
		silent := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			l.db.hub.wake(strings.Fields(n.Payload)...)
			continue
		}
		if !silent || conn.IsClosed() {
			return err
		}
		probe, cancel := context.WithTimeout(ctx, postgresConnectTimeout)
		err = conn.Ping(probe)
		cancel()
		if err != nil {
			return err
		}
	}
}

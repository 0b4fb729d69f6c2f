package store_test

import (
	"context"
	"database/sql"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/store/pgtest"
)

// client is an open session on a database that may be in trouble.
type client struct {
	*store.DB
	p       workbench.Principal
	session string
}

func mustClient(t testing.TB, db *store.DB) *client {
	t.Helper()
	c := &client{DB: db}
	project, err1 := db.EnsureProject(t.Context(), "p")
	tenant, err2 := db.EnsureTenant(t.Context(), project.ID, "t")
	user, err3 := db.EnsureUser(t.Context(), project.ID, tenant.ID, "u")
	c.p = workbench.Principal{ProjectID: project.ID, TenantID: tenant.ID, UserID: user.ID, KeyKind: workbench.KeyDirect}
	now := time.Now()
	s := workbench.Session{ID: workbench.NewID(workbench.KindSession), ProjectID: project.ID, TenantID: tenant.ID, UserID: user.ID,
		Kind: workbench.SessionPersonal, Generation: 1, Size: "standard", CreatedAt: now, ExpiresAt: now.Add(time.Hour)}
	c.session = s.ID
	err4 := db.CreateSession(t.Context(), c.p, s, workbench.Revision{Number: 1, Size: "standard", CreatedAt: now})
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// mustPrepare is a session on db, whose calls have little time, and a run that
// was admitted with the key "before"; both made with all the time there is.
func mustPrepare(t testing.TB, db *store.DB, dsn string) (*client, workbench.Run) {
	t.Helper()
	patient, err := store.Open(t.Context(), dsn, store.Options{CallTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	c := mustClient(t, patient)
	run, err := c.admit(t.Context(), "before")
	wantCode(t, err, "")
	if err := patient.Close(); err != nil {
		t.Fatal(err)
	}
	c.DB = db
	return c, run
}

func (c *client) admit(ctx context.Context, key string) (workbench.Run, error) {
	r, _, err := c.Admit(ctx, c.p, store.Admission{Run: workbench.Run{ID: workbench.NewID(workbench.KindRun), SessionID: c.session,
		Language: workbench.Python, CreatedAt: time.Now()}, IdempotencyKey: key, Fingerprint: "f", FingerprintVersion: 1})
	return r, err
}

func wantCode(t testing.TB, err error, code workbench.Code) {
	t.Helper()
	if got := workbench.CodeOf(err); got != code {
		t.Fatalf("error %q, want %q (%v)", got, code, err)
	}
}

func wantWake(t testing.TB, s *store.Subscription) {
	t.Helper()
	select {
	case <-s.C:
	case <-time.After(10 * time.Second):
		t.Fatal("the subscriber was not woken within ten seconds")
	}
}

// quiet waits until no wakeup is on its way.
func quiet(s *store.Subscription) {
	for {
		select {
		case <-s.C:
		case <-time.After(200 * time.Millisecond):
			return
		}
	}
}

func TestTwoServersWakeEachOther(t *testing.T) {
	url := pgtest.MustURL(t)
	one, two := mustClient(t, mustOpen(t, url)), mustOpen(t, url)
	queue := two.Subscribe(store.QueueTopic)
	defer queue.Close()
	quiet(queue)
	run, err := one.admit(t.Context(), "")
	wantCode(t, err, "")
	wantWake(t, queue)

	ofRun, session := two.Subscribe(store.RunTopic(run.ID)), one.Subscribe(store.SessionTopic(one.session))
	defer ofRun.Close()
	defer session.Close()
	quiet(ofRun)
	quiet(session)
	_, err = one.RequestCancel(t.Context(), one.p, run.ID, workbench.ReasonCancelled, time.Now())
	wantCode(t, err, "")
	wantWake(t, ofRun)
	quiet(session)
	_, err = two.EndSession(t.Context(), one.p, one.session, workbench.SessionClosed, time.Now())
	wantCode(t, err, "")
	wantWake(t, session)
}

func TestListenerReconnectsAndWakesEverybody(t *testing.T) {
	server := pgtest.MustShared(t)
	name := server.MustDatabase(t)
	db := mustClient(t, mustOpen(t, server.URL(name)))
	idle, queue := db.Subscribe("run:nobody"), db.Subscribe(store.QueueTopic)
	defer idle.Close()
	defer queue.Close()
	quiet(idle)
	server.MustExec(t, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"' AND application_name = 'workbench-listen'")
	wantWake(t, idle) // what was sent meanwhile is lost, so all look
	quiet(queue)
	other := mustOpen(t, server.URL(name))
	_, _, err := other.Admit(t.Context(), db.p, store.Admission{Run: workbench.Run{ID: workbench.NewID(workbench.KindRun), SessionID: db.session, CreatedAt: time.Now()}})
	wantCode(t, err, "")
	wantWake(t, queue)
}

func TestDatabaseRestart(t *testing.T) {
	server, err := pgtest.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	server.MustExec(t, "postgres", "CREATE DATABASE w")
	db, err := store.Open(t.Context(), server.URL("w"), store.Options{CallTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c, kept := mustPrepare(t, db, server.URL("w"))
	idle := db.Subscribe("run:nobody")
	defer idle.Close()
	for _, crash := range []bool{false, true} {
		server.Stop(crash)
		_, err = c.admit(t.Context(), "during")
		wantCode(t, err, workbench.CodeUnavailable)
		if !workbench.ClassOf(workbench.CodeUnavailable).Retryable || workbench.AsError(err).Hint == "" {
			t.Fatal("unavailable must be retryable and say what to do")
		}
		_, err = db.Run(t.Context(), c.p, kept.ID)
		wantCode(t, err, workbench.CodeUnavailable)
		wantCode(t, db.Ping(t.Context()), workbench.CodeUnavailable)
		quiet(idle)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		wantWake(t, idle)
		again := mustEventually(t, func() (workbench.Run, error) { return c.admit(t.Context(), "before") })
		if again.ID != kept.ID {
			t.Fatalf("after the restart the key gives %s, want %s", again.ID, kept.ID)
		}
	}
}

// mustEventually repeats a call while it is unavailable.
func mustEventually[T any](t testing.TB, call func() (T, error)) T {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		v, err := call()
		if err == nil {
			return v
		}
		if !workbench.HasCode(err, workbench.CodeUnavailable) || time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// blackhole is a proxy that can stop passing bytes without closing anything.
type blackhole struct {
	listener net.Listener
	target   string
	mu       sync.Mutex
	open     chan struct{} // closed while bytes pass
	conns    []net.Conn
	done     sync.WaitGroup
}

func mustBlackhole(t testing.TB, target string) *blackhole {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &blackhole{listener: l, target: target, open: make(chan struct{})}
	close(b.open)
	b.done.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			b.mu.Lock()
			b.conns = append(b.conns, in, out)
			b.mu.Unlock()
			b.done.Go(func() { b.pass(in, out) })
			b.done.Go(func() { b.pass(out, in) })
		}
	})
	t.Cleanup(func() {
		b.heal()
		_ = l.Close()
		b.mu.Lock()
		for _, c := range b.conns {
			_ = c.Close()
		}
		b.mu.Unlock()
		b.done.Wait()
	})
	return b
}

func (b *blackhole) pass(from, to net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		b.mu.Lock()
		open := b.open
		b.mu.Unlock()
		<-open
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (b *blackhole) swallow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = make(chan struct{})
}

func (b *blackhole) heal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.open:
	default:
		close(b.open)
	}
}

func TestConnectionsThatSwallowEverything(t *testing.T) {
	server := pgtest.MustShared(t)
	name := server.MustDatabase(t)
	proxy := mustBlackhole(t, server.Address())
	url := strings.Replace(server.TCPURL(name), server.Address(), proxy.listener.Addr().String(), 1)
	db, err := store.Open(t.Context(), url, store.Options{CallTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c, run := mustPrepare(t, db, server.URL(name))
	proxy.swallow()
	start := time.Now()
	errs := make(chan error, 40)
	for range 20 {
		go func() { _, err := c.admit(t.Context(), ""); errs <- err }()
		go func() { _, err := db.Run(t.Context(), c.p, run.ID); errs <- err }()
	}
	for range 40 {
		wantCode(t, <-errs, workbench.CodeUnavailable)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Fatalf("the calls took %v, want about their deadline of 2s", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = c.admit(ctx, "")
	wantCode(t, err, workbench.CodeCancelled) // the caller left: that is told apart
	proxy.heal()
	again := mustEventually(t, func() (workbench.Run, error) { return c.admit(t.Context(), "before") })
	if again.ID != run.ID {
		t.Fatalf("the key gives %s, want %s", again.ID, run.ID)
	}
}

func TestAbortedTransactionsRunAgain(t *testing.T) {
	server := pgtest.MustShared(t)
	name := server.MustDatabase(t)
	c := mustClient(t, mustOpen(t, server.URL(name)))
	// nextval is not rolled back, so it counts attempts.
	server.MustExec(t, name, `CREATE SEQUENCE attempts; CREATE TABLE bound (n BIGINT); INSERT INTO bound VALUES (4);
		CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('attempts') < (SELECT n FROM bound) THEN RAISE EXCEPTION 'forced' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER fail BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION fail()`)
	run, err := c.admit(t.Context(), "k")
	wantCode(t, err, "")
	if run.Number != 1 {
		t.Fatalf("number %d, want 1: an attempt that was undone leaves nothing", run.Number)
	}
	server.MustExec(t, name, "UPDATE bound SET n = 1000000")
	_, err = c.admit(t.Context(), "other")
	wantCode(t, err, workbench.CodeUnavailable)
}

func TestCommitsAreSynchronous(t *testing.T) {
	server := pgtest.MustShared(t)
	name := server.MustDatabase(t)
	server.MustExec(t, "postgres", "ALTER DATABASE "+name+" SET synchronous_commit = off")
	c := mustClient(t, mustOpen(t, server.URL(name)))
	server.MustExec(t, name, `CREATE FUNCTION durable() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF current_setting('synchronous_commit') <> 'on' THEN RAISE EXCEPTION 'not durable'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER durable BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION durable()`)
	_, err := c.admit(t.Context(), "k")
	wantCode(t, err, "")
}

func TestDeadlockIsRetried(t *testing.T) {
	server := pgtest.MustShared(t)
	name := server.MustDatabase(t)
	c := mustClient(t, mustOpen(t, server.URL(name)))
	raw := mustRaw(t, "pgx", server.URL(name))
	ctx := t.Context()
	tx, err := raw.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	mustTx(t, tx, "SET LOCAL deadlock_timeout = '20s'") // so the store's side is the victim
	mustTx(t, tx, "UPDATE tenants SET name = name")
	reserved := make(chan error, 1)
	go func() {
		reserved <- c.ReserveArtifact(ctx, c.p, workbench.Artifact{ID: workbench.NewID(workbench.KindArtifact), SessionID: c.session, Size: 1,
			Origin: workbench.OriginUpload, CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)}, store.Quota{})
	}()
	time.Sleep(60 * time.Millisecond) // it holds the session and waits for the tenant
	mustTx(t, tx, "UPDATE sessions SET agent = agent")
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-reserved, "")
	use, err := c.QuotaUse(ctx, c.session)
	wantCode(t, err, "")
	if use != (store.QuotaUse{SessionBytes: 1, SessionFiles: 1, TenantBytes: 1}) {
		t.Fatalf("use is %+v: counted once", use)
	}
}

func TestSmallPool(t *testing.T) {
	db, err := store.Open(t.Context(), pgtest.MustURL(t), store.Options{MaxConns: 2, CallTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c := mustClient(t, db)
	errs := make(chan error, 101)
	for range 100 {
		go func() { _, err := c.admit(t.Context(), ""); errs <- err }()
	}
	go func() { errs <- db.Ping(t.Context()) }()
	for range 101 {
		wantCode(t, <-errs, "")
	}
}

func TestServersMigrateTogether(t *testing.T) {
	url := pgtest.MustURL(t)
	errs := make(chan error, 4)
	for range 4 {
		go func() {
			db, err := store.Open(context.Background(), url, store.Options{})
			if err == nil {
				err = db.Close()
			}
			errs <- err
		}()
	}
	for range 4 {
		wantCode(t, <-errs, "")
	}
}

func TestAddressesThatCannotBeUsed(t *testing.T) {
	ctx := t.Context()
	_, err := store.Open(ctx, "postgres://u:secretpassword@host:notaport/x", store.Options{})
	wantCode(t, err, workbench.CodeInvalidRequest)
	if strings.Contains(err.Error(), "secretpassword") {
		t.Fatal("the error repeats the password")
	}
	_, err = store.Open(ctx, "postgres://u:secretpassword@127.0.0.1:1/x?sslmode=disable", store.Options{})
	wantCode(t, err, workbench.CodeUnavailable)
	if strings.Contains(err.Error(), "secretpassword") {
		t.Fatal("the error repeats the password")
	}
	for _, dsn := range []string{"", "mysql://x", ":memory:", "sqlite:"} {
		_, err := store.Open(ctx, dsn, store.Options{})
		wantCode(t, err, workbench.CodeInvalidRequest)
	}
}

// mustRaw opens the database around the store.
func mustRaw(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func mustTx(t testing.TB, tx *sql.Tx, query string) {
	t.Helper()
	if _, err := tx.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

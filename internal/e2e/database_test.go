package e2e_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the servers' own database, looked at from outside

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	"github.com/workbenchdev/workbench/internal/store/pgtest"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustPostgres is a database server that the test may stop.
func mustPostgres(t *testing.T) *pgtest.Server {
	t.Helper()
	pg, err := pgtest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pg.Close(); err != nil {
			t.Error(err)
		}
	})
	pg.MustExec(t, "postgres", "CREATE DATABASE w")
	return pg
}

func mustMasterKey(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "master.key")
	if err := os.WriteFile(file, []byte("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// persistent repeats a call for as long as its error says that trying again may
// help.
func persistent[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if err == nil || ctx.Err() != nil || !workbench.ClassOf(workbench.CodeOf(err)).Retryable {
			return v, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// The database goes and comes back every second or two, in order and by a
// crash, while clients work. What was accepted is there, each key is one run,
// everything ends by itself, and what a living server could see is not unknown.
func TestDatabaseRestartsUnderLoad(t *testing.T) {
	t.Parallel() // it waits more than it works
	pg := mustPostgres(t)
	w := mustWorld(t, func(o *server.Options) {
		o.Database, o.MasterKey, o.DefaultImage = pg.TCPURL("w"), mustMasterKey(t), "minimal"
	})
	c := w.mustUser(t, "acme", "ada")
	sessions := make([]string, 3)
	for i := range sessions {
		s, err := c.CreateAgentSession(t.Context(), sdk.CreateSession{})
		if err != nil {
			t.Fatal(err)
		}
		sessions[i] = s.ID
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var clients sync.WaitGroup
	var mu sync.Mutex
	accepted := map[string]string{} // key → run
	end := time.Now().Add(6 * time.Second)
	working := func() bool { // so long, and for ten runs at the least
		mu.Lock()
		defer mu.Unlock()
		return ctx.Err() == nil && (time.Now().Before(end) || len(accepted) < 10)
	}
	for i, id := range sessions {
		clients.Go(func() {
			for n := 0; working(); n++ {
				key := fmt.Sprintf("%d-%d", i, n)
				r := sdk.CreateRun{Language: workbench.Bash, Code: fmt.Sprintf("echo %d >> log; sleep 0.2; wc -l < log", n), IdempotencyKey: key}
				run, err := persistent(ctx, func() (sdk.Submitted, error) { return c.CreateSessionRun(ctx, id, r) })
				if err != nil {
					t.Errorf("submit: %v", err)
					return
				}
				again, err := persistent(ctx, func() (sdk.Submitted, error) { return c.CreateSessionRun(ctx, id, r) })
				if err != nil || again.ID != run.ID {
					t.Errorf("P2: the key %s gave %s, then %s, %v", key, run.ID, again.ID, err)
				}
				mu.Lock()
				accepted[key] = run.ID
				mu.Unlock()
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	for crash := false; working(); crash = !crash {
		time.Sleep(time.Second)
		pg.Stop(crash)
		time.Sleep(500 * time.Millisecond)
		if err := pg.Start(); err != nil {
			t.Fatal(err)
		}
	}
	clients.Wait()
	ended := map[string]int{}
	for key, id := range accepted {
		r, err := persistent(ctx, func() (workbench.Receipt, error) { return c.GetRun(ctx, id, 30*time.Second) })
		if err != nil {
			t.Errorf("P1: %s was accepted and is gone: %v", key, err)
			continue
		}
		ended[string(r.Status)+" "+string(r.Reason)]++
		if !r.Status.Terminal() {
			t.Errorf("P14: %s is still %s", id, r.Status)
		}
	}
	t.Logf("%d runs ended as %v", len(accepted), ended)
	if len(accepted) < 10 || ended["succeeded "] < len(accepted)*8/10 {
		t.Errorf("of %d runs there ended %v", len(accepted), ended)
	}
}

// A run is cancelled, and a session closed, through a server that does not have
// it.
func TestCancelThroughAnotherServer(t *testing.T) {
	dsn, key := pgtest.MustURL(t), mustMasterKey(t)
	use := func(o *server.Options) { o.Database, o.MasterKey, o.DefaultImage = dsn, key, "minimal" }
	one := mustWorld(t, use)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "admin"), []byte(mustKeyOf(t, one)), 0o600); err != nil {
		t.Fatal(err)
	}
	two, err := open(dir, use)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := two.close(); err != nil {
			t.Error(err)
		}
	})
	s := one.mustOpenSession(t)
	clients := map[string]*sdk.Client{one.mustInstance(t): two.mustUser(t, "acme", "ada"), two.mustInstance(t): s.c}
	for _, reason := range []workbench.Reason{workbench.ReasonCancelled, workbench.ReasonSessionClosed} {
		run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; sleep 60"})
		mustSay(t, s, run, "begun")
		elsewhere := clients[mustHolder(t, dsn, s.id)]
		began := time.Now()
		if reason == workbench.ReasonCancelled {
			_, err = elsewhere.CancelRun(t.Context(), run)
		} else {
			_, err = elsewhere.CloseAgentSession(t.Context(), s.id)
		}
		if err != nil {
			t.Fatal(err)
		}
		wantEnd(t, s.mustWait(run), workbench.StatusCancelled, reason)
		if took := time.Since(began); took > 20*time.Second { // the run sleeps for longer, and may for 30
			t.Errorf("%s took %s", reason, took)
		}
	}
}

func (w *world) mustInstance(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, "data", "instance"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// mustHolder is the instance whose engine has the session.
func mustHolder(t *testing.T, dsn, session string) (instance string) {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow("SELECT e.instance FROM sessions s JOIN engines e ON e.id = s.lease_owner WHERE s.id = $1", session).Scan(&instance); err != nil {
		t.Fatal(err)
	}
	return instance
}

// wire is between a server and its database. Once armed it lets the database
// make one commit of a workspace, and is cut before the answer comes back.
type wire struct {
	t        *testing.T
	listener net.Listener
	to       string
	work     sync.WaitGroup

	mu    sync.Mutex
	armed bool
	cut   bool
	named []byte // the statement that makes a commit, as connections have it prepared
	conns map[net.Conn]bool
}

func mustWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, listener: l, to: to, conns: map[net.Conn]bool{}}
	w.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() { w.carry(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.set(false, true)
		w.work.Wait()
	})
	return w
}

// set arms the wire, or mends it.
func (w *wire) set(armed, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed, w.cut = armed, cut
	for conn := range w.conns {
		if cut {
			_ = conn.Close()
		}
	}
}

func (w *wire) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

func (w *wire) carry(client net.Conn) {
	defer client.Close()
	database, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer database.Close()
	w.mu.Lock()
	if w.cut {
		w.mu.Unlock()
		return
	}
	w.conns[client] = true
	w.mu.Unlock()
	var last atomic.Bool // what is asked next is answered to nobody
	w.work.Go(func() {
		defer client.Close()
		buf := make([]byte, 1<<16)
		for {
			n, err := database.Read(buf)
			if err != nil {
				return
			}
			if last.Load() {
				w.set(false, true)
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	buf := make([]byte, 1<<16)
	for marked := false; ; {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		marked = w.makesCommit(buf[:n]) || marked
		if bytes.Contains(buf[:n], []byte("commit\x00")) {
			w.mu.Lock()
			last.Store(marked && w.armed)
			w.mu.Unlock()
			marked = false
		}
		if _, err := database.Write(buf[:n]); err != nil {
			return
		}
	}
}

// makesCommit reports whether what is sent adds a commit.
func (w *wire) makesCommit(sent []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := bytes.Index(sent, []byte("INSERT INTO commits")); i > 0 { // it is prepared, after its name
		w.named = bytes.Clone(sent[max(0, i-17) : i-1]) // the end of it
	}
	return len(w.named) > 0 && bytes.Contains(sent, w.named)
}

// A commit of the workspace whose answer was lost counts: who asked for it hears
// that it is not known, and the session goes on from it, with its variables.
func TestCommitWhoseAnswerIsLost(t *testing.T) {
	pg := mustPostgres(t)
	between := mustWire(t, pg.Address())
	w := mustWorld(t, func(o *server.Options) {
		o.Database, o.MasterKey, o.DefaultImage = strings.Replace(pg.TCPURL("w"), pg.Address(), between.listener.Addr().String(), 1), mustMasterKey(t), "minimal"
	})
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	cell := sdk.CreateRun{Language: workbench.Bash, Code: "x=41; echo old > f; echo $x", ContextID: "default"}
	first := s.mustRun(cell)
	wantOut(t, first, "41\n")
	made, err := w.admin.CreateKey(t.Context(), sdk.CreateKey{Kind: workbench.KeyDirect, Name: "once", Tenant: "acme", User: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	once, err := sdk.New(sdk.Options{BaseURL: w.url, Key: made.Secret, Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	between.set(true, false)
	if _, err := once.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "f"}, strings.NewReader("new")); err == nil {
		t.Fatal("a change was confirmed that nobody could know of")
	}
	if !between.isCut() {
		t.Fatal("the wire was not cut")
	}
	between.set(false, false)
	cell.Code, cell.IdempotencyKey = "echo $((x + 1)); cat f; echo more > g", "next"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, err := persistent(ctx, func() (sdk.Submitted, error) { return s.c.CreateSessionRun(ctx, s.id, cell) })
	if err != nil {
		t.Fatal(err)
	}
	r := s.mustWait(run.ID)
	wantEnd(t, r, workbench.StatusSucceeded, "")
	wantOut(t, r, "42\nnew")
	if r.Generation != 1 || len(r.Files.Items) != 1 || r.Files.Items[0].Path != "g" || r.InputRoot == first.OutputRoot {
		t.Errorf("generation %d, changed %+v, input %s after %s", r.Generation, r.Files.Items, r.InputRoot, first.OutputRoot)
	}
}

package e2e_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the server's own database, looked at from outside

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustDatabase opens the database of a running server.
func (w *world) mustDatabase(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(w.dir, "data", "workbench.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// mustOwner is the engine that has the session's lease, "" if none has.
func (w *world) mustOwner(t *testing.T, session string) (owner string) {
	t.Helper()
	db := w.mustDatabase(t)
	defer db.Close()
	if err := db.QueryRow("SELECT lease_owner FROM sessions WHERE id = ?", session).Scan(&owner); err != nil {
		t.Fatal(err)
	}
	return owner
}

// mustTouch runs a statement that changes something.
func (w *world) mustTouch(t *testing.T, statement string, args ...any) {
	t.Helper()
	db := w.mustDatabase(t)
	defer db.Close()
	done, err := db.Exec(statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		t.Fatalf("%s touched %d rows, %v", statement, n, err)
	}
}

// A server that could not renew in time (it was stopped, its database was away,
// the clock jumped) and whose sessions nobody took has lost nothing.
func TestLeaseThatRanOutCostsNoWork(t *testing.T) {
	w := mustWorld(t, nil)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; echo x > /tmp/mark; sleep 8; echo done"})
	mustSay(t, s, run, "begun")
	w.mustTouch(t, "UPDATE sessions SET lease_expires = 1 WHERE id = ?", s.id)
	wantOut(t, s.mustWait(run), "begun\ndone\n")
	r := s.mustBash("cat /tmp/mark")
	wantOut(t, r, "x\n")
	if r.Generation != 1 {
		t.Errorf("generation %d: the sandbox was given up", r.Generation)
	}
}

// A server whose session was taken over, and that was forgotten meanwhile,
// writes nothing more for it. Once the session is free again it serves it.
func TestSessionTakenOverIsGivenUp(t *testing.T) {
	w := mustWorld(t, nil)
	c := w.mustUser(t, "acme", "ada")
	db := w.mustDatabase(t)
	defer db.Close()
	var s *session
	var run string
	// The server must hear of it from its own run, not from the next renewal: so the
	// run is short, and longer only where it was over too soon.
	for seconds := 1; ; seconds *= 2 {
		s = mustSessionOf(t, c, sdk.CreateSession{})
		run = s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: fmt.Sprintf("echo begun; sleep %d; echo late", seconds)})
		mustSay(t, s, run, "begun")
		if mustTakeOver(t, db, s.id) {
			break
		}
		if seconds > 8 {
			t.Fatal("the run is always over before its session can be taken")
		}
		wantOut(t, s.mustWait(run), "begun\nlate\n")
	}
	next := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo next"})
	r := s.mustWait(run) // the other one is gone too: whoever comes next says so
	wantEnd(t, r, workbench.StatusUnknown, workbench.ReasonServerLost)
	wantOut(t, r, "begun\n")
	r = s.mustWait(next)
	wantOut(t, r, "next\n")
	if r.Generation != 2 {
		t.Errorf("generation %d, want 2", r.Generation)
	}
	w.mustTouch(t, "UPDATE engines SET seen_at = seen_at") // it has registered anew
}

// mustTakeOver takes the session for an engine that is none, and has all engines
// forgotten; unless the session's run has said more than one thing, or is over.
func mustTakeOver(t *testing.T, db *sql.DB, session string) bool {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	done, err := tx.ExecContext(t.Context(), `UPDATE sessions SET lease_previous = lease_owner, lease_owner = 'eng_other', lease_epoch = lease_epoch + 1,
		lease_expires = ? WHERE id = ? AND (SELECT COUNT(*) FROM runs r JOIN run_log l ON l.run_id = r.id
		WHERE r.session_id = sessions.id AND r.finished_at = 0 AND l.stream <> '') = 1`, time.Now().Add(7*time.Second).UnixMicro(), session)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return false
	}
	if _, err := tx.ExecContext(t.Context(), "DELETE FROM engines"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return true
}

// What cannot be read before a run has left costs the session nothing: the run
// stays queued, and finds its sandbox as it was.
func TestReadThatFailsBeforeARunCostsNothing(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.DefaultImage = "minimal" })
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	cell := sdk.CreateRun{Language: workbench.Bash, Code: "x=41; echo $x", ContextID: "default"}
	wantOut(t, s.mustRun(cell), "41\n")
	db := w.mustDatabase(t)
	defer db.Close()
	mustExec := func(statement string) {
		t.Helper()
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	blocked := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: untilFile("stop")})
	cell.Code = "echo $((x + 1))"
	next := s.mustSubmit(cell)
	mustExec("ALTER TABLE contexts RENAME TO contexts_elsewhere")
	if _, err := s.c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "stop"}, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	s.mustWait(blocked)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(w.log.tail(), "msg=lane"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing failed")
		}
	}
	mustExec("ALTER TABLE contexts_elsewhere RENAME TO contexts")
	r := s.mustWait(next)
	wantOut(t, r, "42\n")
	if r.Generation != 1 || len(r.Notices) > 0 {
		t.Errorf("generation %d, notices %+v", r.Generation, r.Notices)
	}
}

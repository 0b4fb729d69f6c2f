package store_test

import (
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// mustFirst makes a database of the first schema, with a session that a server
// of that time left in the middle of its third run.
func mustFirst(t testing.TB, driver, dsn string) {
	t.Helper()
	raw, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	dialect, bytes := store.SQLite, func(s string) string { return "X'" + hex.EncodeToString([]byte(s)) + "'" }
	if driver == "pgx" {
		dialect, bytes = store.Postgres, func(s string) string { return `'\x` + hex.EncodeToString([]byte(s)) + "'" }
	}
	if err := store.MigrateTo(t.Context(), raw, dialect, 1); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-time.Hour).UnixMicro()
	const run = "INSERT INTO runs (id, project_id, tenant_id, user_id, session_id, revision, generation, number, lane, language, status, reason, timeout_ms, idempotency_key, fingerprint, fingerprint_version, log_seq, stdout_bytes, commit_id, created_at, started_at, finished_at, receipt_ends) VALUES "
	for _, statement := range []string{
		fmt.Sprintf("INSERT INTO projects (id, name, created_at) VALUES ('prj_1', 'p', %d)", at),
		fmt.Sprintf("INSERT INTO tenants (id, project_id, name, files_bytes, created_at) VALUES ('ten_1', 'prj_1', 't', 4, %d)", at),
		fmt.Sprintf("INSERT INTO users (id, project_id, tenant_id, name, created_at) VALUES ('usr_1', 'prj_1', 'ten_1', 'u', %d)", at),
		fmt.Sprintf("INSERT INTO sessions (id, project_id, tenant_id, user_id, kind, state, generation, revision, size, limits, head_commit, created_at, expires_at, active_at, run_count, commit_count, files_bytes, files_count, lease_owner, lease_epoch, lease_expires) VALUES ('ses_1', 'prj_1', 'ten_1', 'usr_1', 'personal', 'active', 1, 1, 'standard', '{}', 'cmt_1', %d, %d, %d, 3, 1, 4, 1, 'eng_old', 1, %d)", at, time.Now().Add(time.Hour).UnixMicro(), at, at),
		fmt.Sprintf("INSERT INTO sessions (id, project_id, tenant_id, user_id, kind, state, generation, revision, size, limits, created_at, expires_at, ended_at, active_at) VALUES ('ses_2', 'prj_1', 'ten_1', 'usr_1', 'personal', 'closed', 1, 1, 'standard', '{}', %d, %d, %d, %d)", at, at+1, at, at),
		fmt.Sprintf("INSERT INTO revisions (session_id, number, agent, tools, aliases, limits, size, created_at) VALUES ('ses_1', 1, 'a', '[]', '[]', '{}', 'standard', %d)", at),
		run + fmt.Sprintf("('run_1', 'prj_1', 'ten_1', 'usr_1', 'ses_1', 1, 1, 1, 'foreground', 'python', 'succeeded', '', 60000, 'key-1', 'f', 1, 2, 2, 'cmt_1', %d, %d, %d, %d)", at, at, at+1, time.Now().Add(time.Hour).UnixMicro()),
		run + fmt.Sprintf("('run_2', 'prj_1', 'ten_1', 'usr_1', 'ses_1', 1, 1, 2, 'foreground', 'python', 'failed', 'infrastructure', 60000, '', '', 0, 0, 0, '', %d, %d, %d, %d)", at, at, at+1, time.Now().Add(time.Hour).UnixMicro()),
		run + fmt.Sprintf("('run_3', 'prj_1', 'ten_1', 'usr_1', 'ses_1', 1, 1, 3, 'foreground', 'bash', 'running', '', 60000, '', '', 0, 0, 0, '', %d, %d, 0, 0)", at, at),
		fmt.Sprintf("INSERT INTO steps (run_id, number, status, generation, lease_epoch, sandbox_id, dispatched_at) VALUES ('run_3', 1, 'running', 1, 1, 'sbx_1', %d)", at),
		fmt.Sprintf("INSERT INTO run_log (run_id, seq, kind, stream, length, data, at) VALUES ('run_1', 1, 'output', 'stdout', 2, %s, %d)", bytes("hi"), at),
		fmt.Sprintf("INSERT INTO run_log (run_id, seq, kind, at) VALUES ('run_1', 2, 'terminal', %d)", at),
		fmt.Sprintf("INSERT INTO changed_files (run_id, path, change, type, size) VALUES ('run_1', %s, 'added', 'file', 2)", bytes("f")),
		fmt.Sprintf("INSERT INTO blobs (id, tenant_id, size, noted_at) VALUES ('blob_1', 'ten_1', 4, %d)", at),
		fmt.Sprintf("INSERT INTO commits (id, project_id, tenant_id, user_id, session_id, number, root, generation, exclusive, files, bytes, manifest_id, created_at) VALUES ('cmt_1', 'prj_1', 'ten_1', 'usr_1', 'ses_1', 1, 'r', 1, 1, 1, 2, 'blob_1', %d)", at),
		"INSERT INTO blob_refs (owner, blob_id) VALUES ('session:ses_1', 'blob_1')",
		fmt.Sprintf("INSERT INTO artifacts (id, project_id, tenant_id, user_id, session_id, run_id, revision, generation, state, name, path, size, sha256, origin, blob_id, created_at, expires_at) VALUES ('art_1', 'prj_1', 'ten_1', 'usr_1', 'ses_1', 'run_1', 1, 1, 'ready', 'f', 'f', 4, 's', 'save', 'blob_1', %d, %d)", at, time.Now().Add(time.Hour).UnixMicro()),
		fmt.Sprintf("INSERT INTO engines (id, instance, registered_at, seen_at) VALUES ('eng_old', 'here', %d, %d)", at, at),
	} {
		if _, err := raw.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantFirst finds everything of mustFirst in a database of today's schema, and
// works in it.
func wantFirst(t *testing.T, dsn string) {
	t.Helper()
	db, p, ctx := mustOpen(t, dsn), workbench.SystemPrincipal(), t.Context()
	for id, want := range map[string]workbench.Status{"run_1": "succeeded", "run_2": "failed", "run_3": "running"} {
		if r, err := db.Run(ctx, p, id); err != nil || r.Status != want {
			t.Errorf("%s is %q, %v; want %s", id, r.Status, err, want)
		}
	}
	log, err := db.Log(ctx, p, "run_1", 0, 0)
	if err != nil || len(log) != 2 || string(log[0].Data) != "hi" || log[1].Kind != workbench.LogTerminal {
		t.Errorf("the log is %+v, %v", log, err)
	}
	if c, err := db.Commit(ctx, p, "cmt_1"); err != nil || c.Root != "r" {
		t.Errorf("the commit is %+v, %v", c, err)
	}
	if a, err := db.Artifact(ctx, p, "art_1"); err != nil || a.BlobID != "blob_1" {
		t.Errorf("the file is %+v, %v", a, err)
	}
	for id, want := range map[string][]workbench.SessionEventKind{"ses_1": {"created"}, "ses_2": {"created", "closed"}} {
		events, err := db.SessionEvents(ctx, p, id, 0, 10)
		var kinds []workbench.SessionEventKind
		for _, e := range events {
			kinds = append(kinds, e.Kind)
		}
		if err != nil || fmt.Sprint(kinds) != fmt.Sprint(want) {
			t.Errorf("the events of %s are %v, %v; want %v", id, kinds, err, want)
		}
	}
	// The server of that time does not live any more.
	taken, err := db.TakeOver(ctx, "eng_new", "eng_old", time.Minute)
	if err != nil || len(taken) != 1 || taken[0] != "ses_1" {
		t.Errorf("took over %v, %v", taken, err)
	}
	s, err := db.Session(ctx, p, "ses_1")
	if err != nil || s.HeadCommit != "cmt_1" || s.KeepMemory || s.Suspended != nil || s.LeaseOwner != "eng_new" {
		t.Errorf("the session is %+v, %v", s, err)
	}
	if _, err := db.SettleUnknown(ctx, "run_3", s.LeaseEpoch, workbench.ReasonServerLost, time.Now()); err != nil {
		t.Errorf("settling what was in flight: %v", err)
	}
	user := workbench.Principal{ProjectID: "prj_1", TenantID: "ten_1", UserID: "usr_1", KeyKind: workbench.KeyDirect}
	admit := func(id, key string) (workbench.Run, bool, error) {
		return db.Admit(ctx, user, store.Admission{Run: workbench.Run{ID: id, SessionID: "ses_1", Language: workbench.Python, CreatedAt: time.Now()},
			IdempotencyKey: key, Fingerprint: "f", FingerprintVersion: 1})
	}
	if r, _, err := admit("run_4", "key-1"); err != nil || r.ID != "run_1" {
		t.Errorf("its key of then gives %s, %v", r.ID, err)
	}
	if r, _, err := admit("run_4", "key-4"); err != nil || r.ID != "run_4" || r.Number != 4 {
		t.Errorf("the next run is %s, number %d, %v", r.ID, r.Number, err)
	}
}

// What a server of the first schema wrote is there for today's.
func TestUpgradeFromTheFirstSchema(t *testing.T) {
	onBoth(t, func(t *testing.T, driver, dsn string) {
		mustFirst(t, driver, dsn)
		wantFirst(t, dsn)
	})
}

// A process killed after any statement of a migration leaves a schema that the
// next one brings up to date.
func TestKilledWhileMigrating(t *testing.T) {
	program := filepath.Join(t.TempDir(), "crash")
	build := exec.Command("go", "build", "-tags", "failpoint", "-o", program, "./storetest/crash")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building storetest/crash: %v\n%s", err, out)
	}
	onBoth(t, func(t *testing.T, driver, dsn string) {
		mustFirst(t, driver, dsn)
		if kills := killedAtEachStatement(t, program, driver, dsn); kills < 25 {
			t.Errorf("killed at only %d statements", kills)
		}
		wantFirst(t, dsn)
	})
	t.Run("the first", func(t *testing.T) {
		dsn := filepath.Join(t.TempDir(), "workbench.db")
		if kills := killedAtEachStatement(t, program, "sqlite", dsn); kills < 60 {
			t.Errorf("killed at only %d statements", kills)
		}
		if _, err := mustClient(t, mustOpen(t, dsn)).admit(t.Context(), "k"); err != nil {
			t.Error(err)
		}
	})
}

// killedAtEachStatement opens the database again and again with a process that
// dies one statement later than the last, until one does not die: each begins
// with what the last one left.
func killedAtEachStatement(t *testing.T, program, driver, dsn string) (kills int) {
	t.Helper()
	raw := mustRaw(t, driver, dsn)
	version := func() (v int64) {
		_ = raw.QueryRowContext(t.Context(), "SELECT MAX(version_id) FROM schema_version").Scan(&v) // 0: not even that table
		return v
	}
	before := version()
	for n := 1; ; n++ {
		cmd := exec.Command(program, dsn, "upgrade")
		cmd.Env = append(os.Environ(), fmt.Sprintf("WORKBENCH_FAILPOINTS=store.migrate.statement=exit@%d", n))
		out, err := cmd.CombinedOutput()
		if err == nil {
			return kills
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("after %d kills it does not open: %v\n%s", kills, err, strings.TrimSpace(string(out)))
		}
		kills++
		if v := version(); v != before { // a migration is done, and the next counts anew
			before, n = v, 1 // killed at its first already
		}
	}
}

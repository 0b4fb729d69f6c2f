package store_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/store/pgtest"
)

func TestSQLiteFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?x#%20é.db")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := mustClient(t, db)
	run, err := c.admit(t.Context(), "k")
	wantCode(t, err, "")
	found, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(found) != 3 {
		t.Fatalf("files %v (%v), want the database, its -wal and -shm", found, err)
	}
	for _, f := range found {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o, want 600", f, info.Mode().Perm())
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = c.admit(t.Context(), "after")
	wantCode(t, err, workbench.CodeUnavailable)
	_, err = db.Run(t.Context(), c.p, run.ID)
	wantCode(t, err, workbench.CodeUnavailable)
	again := mustOpen(t, path)
	read, err := again.Run(t.Context(), c.p, run.ID)
	wantCode(t, err, "")
	if read.IdempotencyKey != "k" {
		t.Fatalf("after reopening the run has key %q, want k", read.IdempotencyKey)
	}
	_, err = store.Open(t.Context(), filepath.Join(t.TempDir(), "missing", "x.db"), store.Options{})
	wantCode(t, err, workbench.CodeUnavailable)
	garbage := filepath.Join(t.TempDir(), "garbage.db")
	if err := os.WriteFile(garbage, bytes.Repeat([]byte("not a database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = store.Open(t.Context(), garbage, store.Options{})
	wantCode(t, err, workbench.CodeCorrupt)
}

// onBoth runs a test against a database file or server and a raw connection to
// it.
func onBoth(t *testing.T, run func(t *testing.T, driver, dsn string)) {
	t.Run("sqlite", func(t *testing.T) { run(t, "sqlite", filepath.Join(t.TempDir(), "workbench.db")) })
	t.Run("postgres", func(t *testing.T) { run(t, "pgx", pgtest.MustURL(t)) })
}

func TestANewerSchemaIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, driver, dsn string) {
		db, err := store.Open(t.Context(), dsn, store.Options{})
		wantCode(t, err, "")
		wantCode(t, db.Close(), "")
		if _, err := mustRaw(t, driver, dsn).Exec("INSERT INTO schema_version (version_id, is_applied) VALUES (99999, $1)", true); err != nil {
			t.Fatal(err)
		}
		_, err = store.Open(t.Context(), dsn, store.Options{})
		wantCode(t, err, workbench.CodeUnavailable)
		e := workbench.AsError(err)
		if !strings.Contains(e.Detail, "schema 99999") || !strings.Contains(e.Hint, "newer Workbench") {
			t.Fatalf("the error must say what to do: %q, %q", e.Detail, e.Hint)
		}
	})
}

func TestTheAuditTrailIsAppendOnly(t *testing.T) {
	onBoth(t, func(t *testing.T, driver, dsn string) {
		db := mustOpen(t, dsn)
		wantCode(t, db.Audit(t.Context(), workbench.AuditEntry{ID: "aud_1", ProjectID: "p", Action: "key.create", Outcome: "ok"}), "")
		raw := mustRaw(t, driver, dsn)
		statements := []string{"UPDATE audit SET outcome = 'changed'", "DELETE FROM audit", "DELETE FROM audit WHERE id = 'aud_1'"}
		if driver == "pgx" {
			statements = append(statements, "TRUNCATE audit", "INSERT INTO audit (id, at, action, outcome) VALUES ('aud_1', 0, 'x', 'x') ON CONFLICT (id) DO UPDATE SET outcome = 'changed'")
		} else {
			statements = append(statements, "REPLACE INTO audit (id, at, action, outcome) VALUES ('aud_1', 0, 'x', 'changed')",
				"INSERT INTO audit (id, at, action, outcome) VALUES ('aud_1', 0, 'x', 'x') ON CONFLICT (id) DO UPDATE SET outcome = 'changed'")
		}
		for _, s := range statements {
			if _, err := raw.Exec(s); err == nil || !strings.Contains(err.Error(), "append only") {
				t.Errorf("%s: %v, want a refusal", s, err)
			}
		}
		rows, err := db.ListAudit(t.Context(), workbench.SystemPrincipal(), store.AuditFilter{}, workbench.Page{})
		wantCode(t, err, "")
		if len(rows.Items) != 1 || rows.Items[0].Outcome != "ok" {
			t.Fatalf("the trail is %+v, want its one row as written", rows.Items)
		}
	})
}

func TestTheUsageLedgerIsAppendOnly(t *testing.T) {
	onBoth(t, func(t *testing.T, driver, dsn string) {
		w := mustBench(t, dsn)
		run := w.mustAdmit(t, 0)
		w.mustDispatch(t, run)
		wantCode(t, w.Meter(t.Context(), w.session, w.epoch, []store.ActiveTime{{ID: "use_1", RunID: run.ID, Us: 5, At: time.Now()}}), "")
		raw := mustRaw(t, driver, dsn)
		statements := []string{"UPDATE usage_ledger SET us = 1", "DELETE FROM usage_ledger"}
		if driver == "pgx" {
			statements = append(statements, "TRUNCATE usage_ledger")
		} else {
			statements = append(statements, "REPLACE INTO usage_ledger (id, at, project_id, tenant_id, user_id, session_id, kind) VALUES ('use_1', 0, 'x', 'x', 'x', 'x', 'active')")
		}
		for _, s := range statements {
			if _, err := raw.Exec(s); err == nil || !strings.Contains(err.Error(), "append only") {
				t.Errorf("%s: %v, want a refusal", s, err)
			}
		}
		r, err := w.Usage(t.Context(), workbench.SystemPrincipal(), workbench.UsageQuery{})
		wantCode(t, err, "")
		if r.Total.DurationUs != 5 {
			t.Errorf("the ledger has %d µs, want 5", r.Total.DurationUs)
		}
	})
}

func TestSQLiteFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatalf("this test mounts a small tmpfs and needs root: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	db, err := store.Open(t.Context(), filepath.Join(dir, "workbench.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c := mustClient(t, db)
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil { // until the disk is full
		_, err = f.Write(make([]byte, 64<<10))
	}
	_ = f.Close()
	if err := os.Truncate(ballast, 5<<20); err != nil {
		t.Fatal(err)
	}
	kept := map[string]string{}
	for i := 0; ; i++ {
		key := workbench.NewID(workbench.KindRequest)
		r, err := c.admit(t.Context(), key)
		if err != nil {
			wantCode(t, err, workbench.CodeUnavailable)
			if hint := workbench.AsError(err).Hint; hint != "the operator has to make room where the database is; then try again" {
				t.Errorf("a full disk has the hint %q", hint)
			}
			break
		}
		kept[key] = r.ID
		if i > 20000 {
			t.Fatal("the disk never became full")
		}
	}
	_, err = c.ListRuns(t.Context(), c.p, workbench.RunFilter{}, workbench.Page{})
	wantCode(t, err, "") // reading goes on
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	_, err = c.admit(t.Context(), "after")
	wantCode(t, err, "")
	for key, id := range kept {
		if r, err := c.admit(t.Context(), key); err != nil || r.ID != id {
			t.Fatalf("an admitted run is %s (%v), want %s", r.ID, err, id)
		}
	}
}

// A caller that leaves while it waits for the writer is told so, and the one
// that writes is not disturbed.
func TestSQLiteWaitingForTheWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workbench.db")
	db, err := store.Open(t.Context(), path, store.Options{CallTimeout: time.Second})
	wantCode(t, err, "")
	defer db.Close()
	c, _ := mustPrepare(t, db, path)
	release, inside := make(chan struct{}), make(chan struct{})
	held := make(chan error, 1)
	go func() {
		_, _, err := c.Admit(t.Context(), c.p, store.Admission{Run: workbench.Run{ID: workbench.NewID(workbench.KindRun), SessionID: c.session, CreatedAt: time.Now()},
			Check: func() error { close(inside); <-release; return nil }})
		held <- err
	}()
	<-inside
	_, err = c.admit(t.Context(), "")
	wantCode(t, err, workbench.CodeUnavailable)
	wantCode(t, db.Ping(t.Context()), "")
	close(release)
	wantCode(t, <-held, "")
	_, err = c.admit(t.Context(), "")
	wantCode(t, err, "")
}

// Writers that wait for each other are committed together, and each is by itself all
// the same: what one refuses or gives up takes nothing from the others, and what was
// told to be committed is.
func TestSQLiteWritersTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workbench.db")
	db, err := store.Open(t.Context(), path, store.Options{})
	wantCode(t, err, "")
	c, _ := mustPrepare(t, db, path)
	const writers = 60
	release, inside := make(chan struct{}), make(chan struct{})
	refusal := workbench.E(workbench.CodeRateLimited, "this one is refused")
	var mu sync.Mutex
	kept := map[string]bool{}
	refused, gone := 0, 0
	before, err := db.ListRuns(t.Context(), c.p, workbench.RunFilter{}, workbench.Page{})
	wantCode(t, err, "")
	for _, r := range before.Items {
		kept[r.ID] = true
	}
	var all sync.WaitGroup
	for i := range writers {
		ctx, leave := context.WithCancel(t.Context())
		all.Go(func() {
			defer leave()
			id := workbench.NewID(workbench.KindRun)
			_, _, err := c.Admit(ctx, c.p, store.Admission{Run: workbench.Run{ID: id, SessionID: c.session, CreatedAt: time.Now()},
				Check: func() error {
					switch {
					case i == 0: // the others come to wait for this one
						close(inside)
						<-release
					case i%5 == 1:
						return refusal
					}
					return nil
				}})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				kept[id] = true
			case errors.Is(err, refusal):
				refused++
			case ctx.Err() != nil:
				gone++
			default:
				t.Errorf("writer %d: %v", i, err)
			}
		})
		switch {
		case i == 0:
			<-inside
		case i%5 == 2:
			time.AfterFunc(20*time.Millisecond, leave) // while it waits
		}
	}
	time.Sleep(100 * time.Millisecond)
	close(release)
	all.Wait()
	if n := len(kept) - len(before.Items); n != 36 || refused != 12 || gone != 12 {
		t.Errorf("%d were kept, %d refused and %d gave up; want 36, 12 and 12", n, refused, gone)
	}
	wantCode(t, db.Close(), "")
	db, err = store.Open(t.Context(), path, store.Options{})
	wantCode(t, err, "")
	defer db.Close()
	found := 0
	for page := (workbench.Page{}); ; {
		l, err := db.ListRuns(t.Context(), c.p, workbench.RunFilter{}, page)
		wantCode(t, err, "")
		for _, r := range l.Items {
			if kept[r.ID] {
				found++
			} else {
				t.Errorf("run %s is there, which nobody was told of", r.ID)
			}
		}
		if page.Cursor = l.NextCursor; page.Cursor == "" {
			break
		}
	}
	if found != len(kept) {
		t.Errorf("%d of %d runs are there", found, len(kept))
	}
}

// Whoever is refused for what another writer did finds that in what it reads next:
// its next attempt is no repetition of this one.
func TestRefusedWritersSeeWhy(t *testing.T) {
	onBoth(t, func(t *testing.T, _, dsn string) {
		db, err := store.Open(t.Context(), dsn, store.Options{})
		wantCode(t, err, "")
		defer db.Close()
		c := mustClient(t, db)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				refusedAt := int64(0)
				for range 25 {
					s, err := db.Session(t.Context(), c.p, c.session)
					if err != nil {
						t.Error(err)
						return
					}
					if s.Revision <= refusedAt {
						t.Errorf("revision %d was refused as old, and is read again", refusedAt)
						return
					}
					refusedAt = 0
					_, err = db.AddRevision(t.Context(), c.p, workbench.Revision{SessionID: s.ID, Size: "standard", CreatedAt: time.Now()}, nil, store.Seen{Revision: s.Revision})
					if workbench.HasCode(err, workbench.CodeVersionMismatch) {
						refusedAt = s.Revision
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

package store_test

import (
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// What was there before histories were counted is summed up by the migration.
func TestHistoriesFromBeforeAreCounted(t *testing.T) {
	onBoth(t, func(t *testing.T, driver, dsn string) {
		db, err := store.Open(t.Context(), dsn, store.Options{})
		wantCode(t, err, "")
		c := mustClient(t, db)
		now := time.Now()
		for id, size := range map[string]int64{"m": 5, "chunk": 70, "nobody's": 900} {
			wantCode(t, db.NoteBlob(t.Context(), id, c.p.TenantID, size, now), "")
		}
		epoch, err := db.AcquireLease(t.Context(), c.session, "eng", time.Minute)
		wantCode(t, err, "")
		_, err = db.CreateCommit(t.Context(), workbench.Commit{ID: "cmt_1", SessionID: c.session, Root: "r", Generation: 1, ManifestID: "m", CreatedAt: now}, epoch,
			[]string{"m", "chunk"})
		wantCode(t, err, "")
		wantCode(t, db.PutBlobRefs(t.Context(), store.ArtifactBlobOwner("art_1"), c.p.TenantID, []string{"nobody's"}), "")
		wantCode(t, db.Close(), "")

		raw := mustRaw(t, driver, dsn)
		for _, back := range append(append(beforeSeries(driver), beforeTools()...), "ALTER TABLE sessions DROP COLUMN packages", "ALTER TABLE runs DROP COLUMN packages", "ALTER TABLE sessions DROP COLUMN history_bytes", "ALTER TABLE tenants DROP COLUMN history_bytes",
			"DELETE FROM schema_version WHERE version_id >= 7") {
			if _, err := raw.Exec(back); err != nil {
				t.Fatal(err)
			}
		}
		db, err = store.Open(t.Context(), dsn, store.Options{})
		wantCode(t, err, "")
		defer db.Close()
		use, err := db.HistoryUse(t.Context(), c.session)
		wantCode(t, err, "")
		if want := (store.HistoryUse{SessionBytes: 75, TenantBytes: 75}); use != want {
			t.Fatalf("the histories hold %+v, want %+v", use, want)
		}
	})
}

// beforeSeries takes back what the tenth migration does, and what came after it.
func beforeSeries(driver string) []string {
	back := []string{"DROP TABLE usage_ledger", "ALTER TABLE runs DROP COLUMN key_id", "ALTER TABLE sessions DROP COLUMN charge_rest", "DROP TABLE replays", "DROP TABLE publications", "DROP TABLE series", "DROP INDEX runs_series", "DROP INDEX runs_kept",
		"ALTER TABLE runs DROP COLUMN reuse", "ALTER TABLE runs DROP COLUMN series_id", "ALTER TABLE runs DROP COLUMN series_version", "ALTER TABLE runs DROP COLUMN series_kept"}
	if driver == "pgx" {
		back = append(back, "DROP FUNCTION usage_append_only()")
	}
	return back
}

// beforeTools takes back what the eighth migration does.
func beforeTools() []string {
	back := []string{"DROP INDEX audit_chain", "DROP INDEX runs_held"}
	for _, table := range []string{"session_dependencies", "tool_calls", "rules", "connections", "tools", "apps", "audit_heads"} {
		back = append(back, "DROP TABLE "+table)
	}
	for _, column := range []string{"audit DROP COLUMN seq", "audit DROP COLUMN hash", "projects DROP COLUMN rules_version",
		"runs DROP COLUMN tool_calls", "runs DROP COLUMN service_use", "runs DROP COLUMN approval", "runs DROP COLUMN approval_expires"} {
		back = append(back, "ALTER TABLE "+column)
	}
	return back
}

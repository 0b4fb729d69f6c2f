package store_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
)

// The cost of a hot query must not grow with the runs a session has had: these
// are the plans that SQLite makes without statistics.
func TestSQLitePlans(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workbench.db")
	mustOpen(t, path)
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for query, index := range map[string]string{
		"SELECT COUNT(*) FROM runs WHERE session_id = $1 AND finished_at = 0":                                                                                                                           "runs_unfinished",
		"SELECT COUNT(*) FROM runs WHERE session_id = $1 AND finished_at = 0 AND lane = $2 AND status = 'queued'":                                                                                       "runs_unfinished",
		"SELECT COUNT(*) FROM runs WHERE session_id = $1 AND lane = 'foreground' AND finished_at = 0 AND number < $2":                                                                                   "runs_unfinished",
		"SELECT id FROM runs WHERE session_id = $1 AND finished_at = 0 ORDER BY lane, number":                                                                                                           "runs_unfinished",
		"SELECT r.id FROM runs r WHERE r.session_id = $1 AND r.lane = $2 AND r.finished_at = 0 AND r.status = 'queued' ORDER BY r.number LIMIT 1":                                                       "runs_unfinished",
		"SELECT r.id FROM runs r WHERE r.project_id = $1 AND r.tenant_id = $2 AND r.idempotency_key = $3 AND r.idempotency_key <> ''":                                                                   "runs_idempotency",
		"SELECT r.id FROM runs r WHERE r.project_id = $1 AND r.tenant_id = $2 AND r.user_id = $3 AND r.session_id = $4 ORDER BY r.id DESC LIMIT 50":                                                     "runs_session",
		"SELECT s.id FROM sessions s WHERE s.state = 'active' AND s.expires_at <= $1 AND (s.expires_at, s.id) > (0, '') ORDER BY s.expires_at, s.id LIMIT 9":                                            "sessions_deadline",
		"SELECT s.id FROM sessions s WHERE s.state = 'active' AND s.expires_at > $1 AND s.expires_at <= $2 AND s.warned_at < $3 AND (s.expires_at, s.id) > (0, '') ORDER BY s.expires_at, s.id LIMIT 9": "sessions_deadline",
		"SELECT s.id FROM sessions s WHERE s.ending = 1 AND s.id > $1 ORDER BY s.id LIMIT 9":                                                                                                            "sessions_ending",
		"SELECT o.id FROM runs o WHERE o.session_id = $1 AND o.finished_at = 0 AND o.context_id = $2 AND o.status <> 'queued' ORDER BY o.lane DESC, o.number DESC LIMIT 1":                              "runs_unfinished",
		"SELECT e.seq FROM session_events e WHERE e.session_id = $1 ORDER BY e.seq DESC LIMIT 1":                                                                                                        "PRIMARY KEY (session_id=?)",
		"SELECT a.id FROM artifacts a WHERE a.state = 'ready' AND a.expires_at <= $1 ORDER BY a.expires_at, a.id LIMIT 9":                                                                               "artifacts_deadline",
		"SELECT l.seq FROM run_log l WHERE l.run_id = $1 AND l.stream = $2 AND l.position < $3 AND l.position + l.length > $4 AND l.stream <> ''":                                                       "run_log_stream",
		"SELECT id FROM sessions WHERE lease_owner = $1 AND lease_owner <> '' ORDER BY id":                                                                                                              "sessions_lease",
		"SELECT s.id FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.finished_at = 0 AND r.status = 'queued' AND r.lane = 'foreground' GROUP BY s.id":                                        "runs_unfinished",
	} {
		if plan := mustExplain(t, db, query); !strings.Contains(plan, index) {
			t.Errorf("%s\nuses %s, want %s", query, plan, index)
		}
	}
}

func mustExplain(t *testing.T, db *sql.DB, query string) string {
	t.Helper()
	rows, err := db.Query("EXPLAIN QUERY PLAN "+query, "a", "b", "c", "d")
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "; ")
}

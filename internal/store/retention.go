package store

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// due is the condition, for session s and $1 (the time a grace ago), that
// nothing of it need be kept: it ended by then, and so did the life of its last
// retained file, and none of its runs is a version that was published.
const due = `s.state <> 'active' AND s.ended_at <> 0 AND s.ended_at <= $1
	AND NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.session_id = s.id AND (a.state IN ('ready', 'pending') OR a.gone_at > $1))
	AND NOT EXISTS (SELECT 1 FROM runs k WHERE k.session_id = s.id AND k.series_kept <> 0)`

// PurgeReceipts removes up to limit runs, with logs and changed files, of
// sessions that ended a ReceiptGrace ago and whose last retained file went as
// long ago, and whose own ReceiptEnds has passed; then what is left of the
// sessions that have no run any more (commits with their blob references, rows
// of files that are gone, revisions, the session). Of the commits it is
// remembered for 30 days that there were any. A series goes with its last version.
// It returns the runs. Their idempotency keys are free again.
func (db *DB) PurgeReceipts(ctx context.Context, now time.Time, limit int) ([]string, error) {
	var purged []string
	err := db.write(ctx, "purge", func(t *tx) error {
		lock := ""
		if t.db.dialect == Postgres {
			lock = " FOR UPDATE OF r SKIP LOCKED"
		}
		cutoff := micros(now.Add(-workbench.ReceiptGrace))
		rows, err := t.rows("SELECT r.id FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.finished_at <> 0 AND r.receipt_ends <= $2 AND "+due+
			" ORDER BY r.id LIMIT $3"+lock, cutoff, micros(now), limit)
		if purged, err = collect(rows, err, scanString); err != nil {
			return err
		}
		for _, id := range purged {
			series, err := scanString(t.row("SELECT series_id FROM runs WHERE id = $1", id))
			if err != nil {
				return err
			}
			// Its log, steps and changed files go with it.
			if _, err := t.exec("DELETE FROM runs WHERE id = $1", id); err != nil {
				return err
			}
			if _, err := t.exec("DELETE FROM series WHERE id = $1 AND id <> '' AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.series_id = series.id)", series); err != nil {
				return err
			}
		}
		if err := t.forgetGone(now, limit); err != nil {
			return err
		}
		return t.purgeSessions(cutoff, micros(now), limit)
	})
	return purged, err
}

func (t *tx) purgeSessions(cutoff, now int64, limit int) error {
	lock := ""
	if t.db.dialect == Postgres {
		lock = " FOR UPDATE OF s SKIP LOCKED"
	}
	rows, err := t.rows("SELECT s.id FROM sessions s WHERE "+due+" AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = s.id) ORDER BY s.id LIMIT $2"+lock,
		cutoff, limit)
	sessions, err := collect(rows, err, scanString)
	if err != nil {
		return err
	}
	histories := map[string]int64{}
	for _, id := range sessions {
		var tenant string
		var bytes int64
		if err := t.row("SELECT tenant_id, history_bytes FROM sessions WHERE id = $1", id).Scan(&tenant, &bytes); err != nil {
			return err
		}
		histories[tenant] += bytes
		if err := t.commitsGone(id, "its session ended more than 7 days ago, and so did the life of its last retained file", now); err != nil {
			return err
		}
		for _, owner := range []string{SessionBlobOwner(id), CheckpointBlobOwner(id)} {
			if _, err := t.exec("DELETE FROM blob_refs WHERE owner = $1", owner); err != nil {
				return err
			}
		}
		for _, query := range []string{
			"DELETE FROM commits WHERE session_id = $1",
			"DELETE FROM artifacts WHERE session_id = $1",
			"DELETE FROM revisions WHERE session_id = $1",
			"DELETE FROM session_events WHERE session_id = $1",
			"DELETE FROM sessions WHERE id = $1",
		} {
			if _, err := t.exec(query, id); err != nil {
				return err
			}
		}
	}
	return t.shrink(histories)
}

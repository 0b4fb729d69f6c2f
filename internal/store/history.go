package store

import (
	"context"
	"errors"
	"time"

	"github.com/workbenchdev/workbench"
)

// goneFor is how long it is remembered that there was a commit.
const goneFor = 30 * 24 * time.Hour

// GoneCommit is what is known of a commit that is no more.
type GoneCommit struct {
	SessionID string
	Reason    string // in words, for its owner
	At        time.Time
}

// CommitGone finds what is left of a commit: not_found for one that never was,
// that is still there, that p may not see, or that went more than 30 days ago.
func (db *DB) CommitGone(ctx context.Context, p workbench.Principal, id string) (GoneCommit, error) {
	q := newQuery("SELECT g.session_id, g.reason, g.gone_at FROM gone_commits g WHERE ").add("g.id = ?", id).visible(p, "g", "session_id")
	return one(ctx, db, "commit", func(s scanner) (GoneCommit, error) {
		var g GoneCommit
		var at int64
		err := s.Scan(&g.SessionID, &g.Reason, &at)
		g.At = fromMicros(at)
		return g, err
	}, q.String(), q.args...)
}

// commitsGone remembers the commits of a session that is about to be purged.
func (t *tx) commitsGone(sessionID, reason string, at int64) error {
	_, err := t.exec(`INSERT INTO gone_commits (id, project_id, tenant_id, user_id, session_id, reason, gone_at)
		SELECT id, project_id, tenant_id, user_id, session_id, CAST($2 AS TEXT), CAST($3 AS BIGINT) FROM commits WHERE session_id = $1`, sessionID, reason, at)
	return err
}

// forgetGone forgets up to limit commits that went long ago.
func (t *tx) forgetGone(now time.Time, limit int) error {
	_, err := t.exec("DELETE FROM gone_commits WHERE id IN (SELECT id FROM gone_commits WHERE gone_at < $1 ORDER BY gone_at LIMIT $2)",
		micros(now.Add(-goneFor)), limit)
	return err
}

// CommitWithRoot finds the newest commit of a session with the tree that comes
// before the number; ok is false where there is none.
func (db *DB) CommitWithRoot(ctx context.Context, sessionID, root string, before int64) (c workbench.Commit, ok bool, err error) {
	c, err = one(ctx, db, "commit", scanCommit, "SELECT "+commitColumns+` FROM commits c WHERE c.session_id = $1 AND c.root = $2 AND c.number < $3
		ORDER BY c.number DESC LIMIT 1`, sessionID, root, before)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return workbench.Commit{}, false, nil
	}
	return c, err == nil, err
}

// Fork keeps a new active session with its first revision and its first commit,
// which shares the blobs that refs name with the session it comes from, in one
// transaction, and tells how many bytes its history begins with. Both must be of
// one tenant.
//
// Errors: those of CreateSession; conflict if a blob is gone or of another
// tenant; quota_exceeded (of the history).
func (db *DB) Fork(ctx context.Context, p workbench.Principal, s workbench.Session, r workbench.Revision, c workbench.Commit, refs []string) (first workbench.Commit, bytes int64, err error) {
	if err := mayCreate(p, s.Owner()); err != nil {
		return c, 0, err
	}
	err = db.write(ctx, "fork", func(t *tx) error {
		if err := t.insertSession(s, r); err != nil {
			return err
		}
		var err error
		if s.ForkedFrom != nil {
			if err := t.inherit(s.ID, s.ForkedFrom.SessionID, micros(s.CreatedAt)); err != nil {
				return err
			}
		}
		if first, err = t.insertCommit(held{id: s.ID, generation: s.Generation, owner: s.Owner()}, c, refs); err != nil {
			if errors.Is(err, errSessionBound) {
				err = forkHistoryFull(db.HistoryQuota())
			}
			return err
		}
		return t.row("SELECT history_bytes FROM sessions WHERE id = $1", s.ID).Scan(&bytes)
	})
	return first, bytes, err
}

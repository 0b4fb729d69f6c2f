package store

import (
	"context"

	"github.com/workbenchdev/workbench"
)

const commitColumns = "c.id, c.session_id, c.tenant_id, c.parent_id, c.number, c.root, c.generation, c.run_ids, c.exclusive, c.files, c.bytes, c.manifest_id, c.created_at, c.restored_from"

func scanCommit(s scanner) (workbench.Commit, error) {
	var c workbench.Commit
	var runs string
	var exclusive, created int64
	if err := s.Scan(&c.ID, &c.SessionID, &c.TenantID, &c.ParentID, &c.Number, &c.Root, &c.Generation, &runs, &exclusive, &c.Files, &c.Bytes,
		&c.ManifestID, &created, &c.RestoredFrom); err != nil {
		return c, err
	}
	c.Exclusive, c.CreatedAt = exclusive != 0, fromMicros(created)
	err := fromJSON(runs, &c.RunIDs)
	c.RunIDs = list(c.RunIDs)
	return c, err
}

// CreateCommit adds a commit made outside a run (a restart, an upload into the
// workspace) and makes it the session's head. refs are as in Settlement.
//
// Errors: not_found, fenced, conflict (the parent is not the head, a blob was
// never noted), session_closed, session_expired, quota_exceeded (of the
// history: every commit whose blobs are new to the session may be refused so).
func (db *DB) CreateCommit(ctx context.Context, c workbench.Commit, epoch int64, refs []string) (workbench.Commit, error) {
	var made workbench.Commit
	err := db.write(ctx, "create_commit", func(t *tx) error {
		h, err := t.lockFenced(c.SessionID, epoch, c.Generation)
		if err != nil {
			return err
		}
		if h.state != workbench.SessionActive {
			return open(workbench.Session{ID: h.id, State: h.state})
		}
		t.notify(SessionTopic(h.id))
		made, err = t.insertCommit(h, c, refs)
		return err
	})
	return made, err
}

// insertCommit adds a commit to a locked session. Commits are linear: the
// parent must be the head.
func (t *tx) insertCommit(h held, c workbench.Commit, refs []string) (workbench.Commit, error) {
	if c.ParentID != h.headCommit {
		return c, workbench.E(workbench.CodeConflict, "the workspace has another head than the commit's parent")
	}
	c.SessionID, c.TenantID, c.Number, c.Generation = h.id, h.owner.TenantID, h.commits+1, h.generation
	c.RunIDs = list(c.RunIDs)
	if _, err := t.exec(`INSERT INTO commits (id, project_id, tenant_id, user_id, session_id, parent_id, number, root, generation, run_ids, exclusive,
		files, bytes, manifest_id, created_at, restored_from) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
		c.ID, h.owner.ProjectID, h.owner.TenantID, h.owner.UserID, h.id, c.ParentID, c.Number, c.Root, c.Generation, toJSON(c.RunIDs),
		oneOrZero(c.Exclusive), c.Files, c.Bytes, c.ManifestID, micros(c.CreatedAt), c.RestoredFrom); err != nil {
		return c, err
	}
	if _, err := t.exec("UPDATE sessions SET head_commit = $2, commit_count = $3 WHERE id = $1", h.id, c.ID, c.Number); err != nil {
		return c, err
	}
	if len(c.Inline) > 0 {
		if err := t.insertInline(c.ManifestID, h.owner.TenantID, c.Inline, micros(c.CreatedAt)); err != nil {
			return c, err
		}
		c.Inline = nil
	}
	if err := t.tell(h.id, workbench.EventFiles, workbench.FilesEvent{CommitID: c.ID, Number: c.Number, Root: c.Root, Generation: c.Generation,
		RunIDs: c.RunIDs, Exclusive: c.Exclusive, Files: c.Files, Bytes: c.Bytes}, micros(c.CreatedAt)); err != nil {
		return c, err
	}
	added, err := t.insertRefs(SessionBlobOwner(h.id), h.owner.TenantID, refs)
	if err != nil {
		return c, err
	}
	return c, t.grow(h.id, h.owner.TenantID, added)
}

// Commit reads a commit.
func (db *DB) Commit(ctx context.Context, p workbench.Principal, id string) (workbench.Commit, error) {
	q := newQuery("SELECT "+commitColumns+" FROM commits c WHERE ").add("c.id = ?", id).visible(p, "c", "session_id")
	return one(ctx, db, "commit", scanCommit, q.String(), q.args...)
}

// HeadCommit is the session's newest commit; ok is false before the first.
func (db *DB) HeadCommit(ctx context.Context, sessionID string) (head workbench.Commit, ok bool, err error) {
	head, err = one(ctx, db, "commit", scanCommit, "SELECT "+commitColumns+" FROM commits c JOIN sessions s ON s.head_commit = c.id WHERE s.id = $1", sessionID)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return workbench.Commit{}, false, nil
	}
	return head, err == nil, err
}

// ListCommits lists a session's commits, newest first.
func (db *DB) ListCommits(ctx context.Context, p workbench.Principal, sessionID string, pg workbench.Page) (workbench.List[workbench.Commit], error) {
	none := workbench.List[workbench.Commit]{}
	l, err := newListing("commits", pg)
	if err != nil {
		return none, err
	}
	if _, err := db.Session(ctx, p, sessionID); err != nil {
		return none, err
	}
	q := newQuery("SELECT "+commitColumns+" FROM commits c WHERE ").add("c.session_id = ?", sessionID).visible(p, "c", "session_id")
	l.newest(q, "c.id")
	commits, err := all(ctx, db, scanCommit, q.String(), q.args...)
	return page(l, commits, func(c workbench.Commit) string { return c.ID }), err
}

package store

import (
	"context"
	"errors"
	"time"

	"github.com/workbenchdev/workbench"
)

// A retained file's row is pending while its bytes arrive (invisible, its
// declared size reserved), then ready, then deleted or expired.

const artifactColumns = "a.id, a.project_id, a.tenant_id, a.user_id, a.session_id, a.run_id, a.revision, a.generation, a.lease_epoch, a.state, a.name, a.path, " +
	"a.mime_type, a.size, a.sha256, a.origin, a.derived_from, a.dependencies, a.blob_id, a.preview, a.created_at, a.expires_at, a.gone_at"

// artifactRow is a retained file with what only the store knows of it.
type artifactRow struct {
	workbench.Artifact
	epoch int64
	state string
}

func scanArtifactRow(s scanner) (artifactRow, error) {
	var a artifactRow
	var derived, dependencies string
	var created, expires, gone int64
	if err := s.Scan(&a.ID, &a.ProjectID, &a.TenantID, &a.UserID, &a.SessionID, &a.RunID, &a.Revision, &a.Generation, &a.epoch, &a.state, &a.Name,
		&a.Path, &a.MimeType, &a.Size, &a.SHA256, &a.Origin, &derived, &dependencies, &a.BlobID, &a.SealedPreview, &created, &expires, &gone); err != nil {
		return a, err
	}
	a.CreatedAt, a.ExpiresAt = fromMicros(created), fromMicros(expires)
	if a.state == "deleted" {
		a.DeletedAt = pointMicros(gone)
	}
	err := errors.Join(fromJSON(derived, &a.DerivedFrom), fromJSON(dependencies, &a.Dependencies))
	a.DerivedFrom, a.Dependencies = list(a.DerivedFrom), list(a.Dependencies)
	return a, err
}

func scanArtifact(s scanner) (workbench.Artifact, error) {
	a, err := scanArtifactRow(s)
	return a.Artifact, err
}

func quotaExceeded(what string, limit int64) error {
	return workbench.E(workbench.CodeQuotaExceeded, "%s would be more than %d", what, limit).
		WithHint("delete retained files that are no longer needed, or wait for their deadline")
}

// ReserveArtifact makes room for a retained file of at most a.Size bytes. The
// row stays invisible until CommitArtifact; AbandonArtifact gives the room
// back. Racing reservations never pass a quota together.
//
// Errors: not_found (session), session_closed, session_expired (uploads also
// once the deadline has passed at a.CreatedAt), fenced, quota_exceeded.
func (db *DB) ReserveArtifact(ctx context.Context, p workbench.Principal, a workbench.Artifact, q Quota) error {
	return db.write(ctx, "reserve_artifact", func(t *tx) error {
		s, err := t.lockSession(p, a.SessionID)
		if err != nil {
			return err
		}
		switch a.Origin {
		case workbench.OriginUpload:
			err = s.Open(a.CreatedAt)
		case workbench.OriginExpiry:
			err = t.expiring(s)
		case workbench.OriginSave, workbench.OriginKeep, workbench.OriginOverflow, workbench.OriginResult, workbench.OriginTool:
			err = open(s)
		}
		if err != nil {
			return err
		}
		if q.Epoch != 0 && (s.LeaseEpoch != q.Epoch || s.Generation != a.Generation) {
			return fenced()
		}
		if err := t.stillCalling(q); err != nil {
			return err
		}
		if err := t.reserve(s, a.Size, q); err != nil {
			return err
		}
		_, err = t.exec(`INSERT INTO artifacts (id, project_id, tenant_id, user_id, session_id, run_id, revision, generation, lease_epoch, state, name, path,
			mime_type, size, sha256, origin, derived_from, dependencies, preview, created_at, expires_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'pending', $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)`,
			a.ID, s.ProjectID, s.TenantID, s.UserID, s.ID, a.RunID, a.Revision, a.Generation, q.Epoch, a.Name, a.Path, plain(a.MimeType), a.Size, a.SHA256,
			string(a.Origin), toJSON(list(a.DerivedFrom)), toJSON(list(a.Dependencies)), a.SealedPreview, micros(a.CreatedAt), micros(a.ExpiresAt))
		return err
	})
}

// stillCalling refuses what a call gave whose end others have recorded.
func (t *tx) stillCalling(q Quota) error {
	if q.CallID == "" {
		return nil
	}
	n, err := scanInt(t.row("SELECT COUNT(*) FROM tool_calls WHERE id = $1 AND engine_id = $2 AND status = 'executing'", q.CallID, q.EngineID))
	if err == nil && n == 0 {
		err = fenced()
	}
	return err
}

// expiring refuses a session that has not reached its deadline, or that is
// concluded.
func (t *tx) expiring(s workbench.Session) error {
	if s.State != workbench.SessionExpired {
		return workbench.E(workbench.CodeConflict, "the session has not expired")
	}
	ending, err := scanInt(t.row("SELECT ending FROM sessions WHERE id = $1", s.ID))
	if err == nil && ending == 0 {
		err = open(s)
	}
	return err
}

// KeptAtExpiry lists the files that were kept at the session's deadline so far,
// also those that are gone since. What an engine before the epoch left
// unfinished is abandoned, and its room is free.
func (db *DB) KeptAtExpiry(ctx context.Context, sessionID string, epoch int64) ([]workbench.Artifact, error) {
	rows, err := all(ctx, db, scanArtifactRow, "SELECT "+artifactColumns+" FROM artifacts a WHERE a.session_id = $1 AND a.origin = 'expiry' ORDER BY a.id", sessionID)
	if err != nil {
		return nil, err
	}
	kept := make([]workbench.Artifact, 0, len(rows))
	for _, a := range rows {
		switch {
		case a.state != "pending":
			kept = append(kept, a.Artifact)
		case a.epoch < epoch:
			if err := db.AbandonArtifact(ctx, a.ID); err != nil {
				return nil, err
			}
		}
	}
	return kept, nil
}

// reserve adds one file to the counters of a locked session and its tenant.
func (t *tx) reserve(s workbench.Session, size int64, q Quota) error {
	var use QuotaUse
	if err := t.row("SELECT files_bytes, files_count FROM sessions WHERE id = $1", s.ID).Scan(&use.SessionBytes, &use.SessionFiles); err != nil {
		return err
	}
	switch {
	case q.SessionFiles > 0 && use.SessionFiles+1 > q.SessionFiles:
		return quotaExceeded("the number of the session's retained files", int64(q.SessionFiles))
	case q.SessionBytes > 0 && use.SessionBytes+size > q.SessionBytes:
		return quotaExceeded("the bytes of the session's retained files", q.SessionBytes)
	}
	// The condition is judged on the newest row, under its lock: two sessions
	// of a tenant do not both pass.
	n, err := t.exec("UPDATE tenants SET files_bytes = files_bytes + $2 WHERE id = $1 AND (CAST($3 AS BIGINT) = 0 OR files_bytes + $2 <= $3)", s.TenantID, size, q.TenantBytes)
	if err != nil {
		return err
	}
	if n == 0 {
		return quotaExceeded("the bytes of the tenant's retained files", q.TenantBytes)
	}
	_, err = t.exec("UPDATE sessions SET files_bytes = files_bytes + $2, files_count = files_count + 1 WHERE id = $1", s.ID, size)
	return err
}

// release takes bytes and files from the counters of a locked session and its
// tenant.
func (t *tx) release(a workbench.Artifact, bytes int64, files int) error {
	if _, err := t.exec("UPDATE tenants SET files_bytes = files_bytes - $2 WHERE id = $1", a.TenantID, bytes); err != nil {
		return err
	}
	_, err := t.exec("UPDATE sessions SET files_bytes = files_bytes - $2, files_count = files_count - $3 WHERE id = $1", a.SessionID, bytes, files)
	return err
}

// lockArtifact holds the session of a retained file and reads the file.
func (t *tx) lockArtifact(p workbench.Principal, id string) (artifactRow, error) {
	q := newQuery("SELECT a.session_id FROM artifacts a WHERE ").add("a.id = ?", id).visible(p, "a", "session_id")
	session, err := scanString(t.row(q.String(), q.args...))
	if err != nil {
		return artifactRow{}, missing(err, "artifact")
	}
	if _, err := t.lockSession(workbench.SystemPrincipal(), session); err != nil {
		return artifactRow{}, missing(err, "artifact")
	}
	a, err := scanArtifactRow(t.row("SELECT "+artifactColumns+" FROM artifacts a WHERE a.id = $1", id))
	return a, missing(err, "artifact")
}

// CommitArtifact makes a pending file ready: complete, hashed, stored under
// blobID. size must not be more than was reserved; what is left goes back. The
// file keeps blobID and refs under ArtifactBlobOwner. What code made depends on
// all that its session has learned from. A repeat with the same contents
// succeeds.
//
// Errors: not_found, fenced (a save of an engine that lost the session),
// conflict (not pending, larger than reserved, a blob that was never noted).
func (db *DB) CommitArtifact(ctx context.Context, id string, size int64, sha, blobID string, refs []string) (workbench.Artifact, error) {
	var made workbench.Artifact
	err := db.write(ctx, "commit_artifact", func(t *tx) error {
		a, err := t.lockArtifact(workbench.SystemPrincipal(), id)
		if err != nil {
			return err
		}
		switch {
		case a.state == "ready" && a.Size == size && a.SHA256 == sha && a.BlobID == blobID:
			made = a.Artifact
			return nil
		case a.state != "pending":
			return workbench.E(workbench.CodeConflict, "the file is %s", a.state)
		case size < 0 || size > a.Size:
			return workbench.E(workbench.CodeConflict, "the file has %d bytes and %d were reserved", size, a.Size)
		}
		if a.epoch != 0 {
			if _, err := t.lockFenced(a.SessionID, a.epoch, a.Generation); err != nil {
				return err
			}
		}
		if spare := a.Size - size; spare > 0 {
			if err := t.release(a.Artifact, spare, 0); err != nil {
				return err
			}
		}
		if _, err := t.insertRefs(ArtifactBlobOwner(id), a.TenantID, append([]string{blobID}, refs...)); err != nil {
			return err
		}
		a.Size, a.SHA256, a.BlobID = size, sha, blobID
		if a.Origin != workbench.OriginUpload {
			learned, err := t.dependencies(a.SessionID)
			if err != nil {
				return err
			}
			a.Dependencies = united(a.Dependencies, learned)
		}
		made = a.Artifact
		if err := t.meterRetained(a.Artifact); err != nil {
			return err
		}
		t.notify(SessionTopic(a.SessionID))
		_, err = t.exec("UPDATE artifacts SET state = 'ready', size = $2, sha256 = $3, blob_id = $4, dependencies = $5 WHERE id = $1", id, size, sha, blobID, toJSON(a.Dependencies))
		return err
	})
	return made, err
}

// DescribeArtifact sets what is known only once the bytes were read: the type
// and the sealed preview. It touches pending files only.
func (db *DB) DescribeArtifact(ctx context.Context, id, mimeType string, sealedPreview []byte) error {
	return db.write(ctx, "describe_artifact", func(t *tx) error {
		n, err := t.exec("UPDATE artifacts SET mime_type = $2, preview = $3 WHERE id = $1 AND state = 'pending'", id, plain(mimeType), sealedPreview)
		if err == nil && n == 0 {
			return workbench.ErrNotFound("artifact")
		}
		return err
	})
}

// AbandonArtifact removes a pending file and gives its room back. What does
// not exist is done; a ready file is a conflict.
func (db *DB) AbandonArtifact(ctx context.Context, id string) error {
	err := db.write(ctx, "abandon_artifact", func(t *tx) error {
		a, err := t.lockArtifact(workbench.SystemPrincipal(), id)
		if err != nil {
			return err
		}
		if a.state != "pending" {
			return workbench.E(workbench.CodeConflict, "the file is %s", a.state)
		}
		if err := t.release(a.Artifact, a.Size, 1); err != nil {
			return err
		}
		_, err = t.exec("DELETE FROM artifacts WHERE id = $1", id)
		return err
	})
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return nil
	}
	return err
}

// Artifact reads a retained file, also a deleted or expired one: its Readable
// tells. A pending one is not_found.
func (db *DB) Artifact(ctx context.Context, p workbench.Principal, id string) (workbench.Artifact, error) {
	q := newQuery("SELECT "+artifactColumns+" FROM artifacts a WHERE ").add("a.id = ? AND a.state <> 'pending'", id).visible(p, "a", "session_id")
	a, err := one(ctx, db, "artifact", scanArtifact, q.String(), q.args...)
	return hidePreview(p, a), err
}

func hidePreview(p workbench.Principal, a workbench.Artifact) workbench.Artifact {
	if !p.MayReadContents(a.Owner()) {
		a.SealedPreview = nil
	}
	return a
}

// ListArtifacts lists a session's files that can be read now, newest first.
func (db *DB) ListArtifacts(ctx context.Context, p workbench.Principal, sessionID string, pg workbench.Page) (workbench.List[workbench.Artifact], error) {
	none := workbench.List[workbench.Artifact]{}
	l, err := newListing("artifacts", pg)
	if err != nil {
		return none, err
	}
	if _, err := db.Session(ctx, p, sessionID); err != nil {
		return none, err
	}
	q := newQuery("SELECT "+artifactColumns+" FROM artifacts a WHERE ").
		add("a.session_id = ? AND a.state = 'ready' AND a.expires_at > ?", sessionID, micros(db.clock())).visible(p, "a", "session_id")
	l.newest(q, "a.id")
	artifacts, err := all(ctx, db, scanArtifact, q.String(), q.args...)
	for i := range artifacts {
		artifacts[i] = hidePreview(p, artifacts[i])
	}
	return page(l, artifacts, func(a workbench.Artifact) string { return a.ID }), err
}

// ArtifactsOfRun lists the files a run left, oldest first, also those that
// were deleted or have expired since.
func (db *DB) ArtifactsOfRun(ctx context.Context, runID string) ([]workbench.Artifact, error) {
	return all(ctx, db, scanArtifact, "SELECT "+artifactColumns+" FROM artifacts a WHERE a.run_id = $1 AND a.run_id <> '' AND a.state <> 'pending' ORDER BY a.id", runID)
}

// DeleteArtifact deletes a retained file for good, its blob references and its
// share of the quota with it; the row stays as a tombstone.
//
// Errors: not_found, artifact_deleted, artifact_expired.
func (db *DB) DeleteArtifact(ctx context.Context, p workbench.Principal, id string, at time.Time) (workbench.Artifact, error) {
	var gone workbench.Artifact
	err := db.write(ctx, "delete_artifact", func(t *tx) error {
		a, err := t.lockArtifact(p, id)
		if err != nil {
			return err
		}
		if a.state == "pending" {
			return workbench.ErrNotFound("artifact")
		}
		if err := a.Readable(at); err != nil {
			return err
		}
		if a.state != "ready" { // swept by a server whose clock runs ahead
			return workbench.E(workbench.CodeArtifactExpired, "artifact %s has expired", id)
		}
		a.DeletedAt = pointMicros(micros(at))
		gone = hidePreview(p, a.Artifact)
		return t.drop(a, "deleted", at)
	})
	return gone, err
}

// drop ends a ready file of a locked session.
func (t *tx) drop(a artifactRow, state string, at time.Time) error {
	if err := t.release(a.Artifact, a.Size, 1); err != nil {
		return err
	}
	if _, err := t.exec("DELETE FROM blob_refs WHERE owner = $1", ArtifactBlobOwner(a.ID)); err != nil {
		return err
	}
	t.notify(SessionTopic(a.SessionID))
	_, err := t.exec("UPDATE artifacts SET state = $2, gone_at = $3, preview = NULL WHERE id = $1", a.ID, state, micros(at))
	return err
}

// ExpiredArtifacts lists ready files whose deadline has passed, the earliest
// first.
func (db *DB) ExpiredArtifacts(ctx context.Context, now time.Time, limit int) ([]workbench.Artifact, error) {
	return all(ctx, db, scanArtifact, "SELECT "+artifactColumns+" FROM artifacts a WHERE a.state = 'ready' AND a.expires_at <= $1 ORDER BY a.expires_at, a.id LIMIT $2",
		micros(now), limit)
}

// MarkExpired ends a file whose deadline has passed. One that is gone already,
// or whose deadline lies ahead of at, stays as it is.
func (db *DB) MarkExpired(ctx context.Context, id string, at time.Time) error {
	return db.write(ctx, "expire_artifact", func(t *tx) error {
		a, err := t.lockArtifact(workbench.SystemPrincipal(), id)
		if err != nil {
			return err
		}
		if a.state != "ready" || at.Before(a.ExpiresAt) {
			return nil
		}
		return t.drop(a, "expired", at)
	})
}

// PendingArtifacts lists reservations older than olderThan: their upload or
// save was cut off. The sweeper abandons them.
func (db *DB) PendingArtifacts(ctx context.Context, olderThan time.Time, limit int) ([]workbench.Artifact, error) {
	return all(ctx, db, scanArtifact, "SELECT "+artifactColumns+" FROM artifacts a WHERE a.state = 'pending' AND a.created_at < $1 ORDER BY a.created_at, a.id LIMIT $2",
		micros(olderThan), limit)
}

// QuotaUse is what a session and its tenant hold, reservations included.
func (db *DB) QuotaUse(ctx context.Context, sessionID string) (QuotaUse, error) {
	return one(ctx, db, "session", func(s scanner) (QuotaUse, error) {
		var u QuotaUse
		err := s.Scan(&u.SessionBytes, &u.SessionFiles, &u.TenantBytes)
		return u, err
	}, "SELECT s.files_bytes, s.files_count, t.files_bytes FROM sessions s JOIN tenants t ON t.id = s.tenant_id WHERE s.id = $1", sessionID)
}

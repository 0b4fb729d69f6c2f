package store

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// CheckpointBlobOwner is the owner of the blob reference of a session's kept
// memory.
func CheckpointBlobOwner(sessionID string) string { return "checkpoint:" + sessionID }

// Suspend records that an idle session has no sandbox any more, and gives its
// lease up with that. kept is its memory, nil if that is gone; its blob must
// have been noted. Repeating it is harmless.
//
// Errors: not_found, fenced, session_closed, session_expired, conflict (the blob
// was never noted).
func (db *DB) Suspend(ctx context.Context, sessionID string, epoch, generation int64, kept *workbench.Checkpoint, at time.Time) error {
	return db.write(ctx, "suspend", func(t *tx) error {
		h, err := t.lockFenced(sessionID, epoch, generation)
		if err != nil {
			return err
		}
		if h.state != workbench.SessionActive {
			return open(workbench.Session{ID: h.id, State: h.state})
		}
		suspended, err := scanInt(t.row("SELECT suspended_at FROM sessions WHERE id = $1", h.id))
		if err != nil || suspended != 0 {
			return err // under this epoch nobody else can have done so
		}
		if err := t.dropMemory(h.id); err != nil {
			return err
		}
		checkpoint := ""
		if kept != nil {
			checkpoint = toJSON(kept)
			if _, err := t.insertRefs(CheckpointBlobOwner(h.id), h.owner.TenantID, []string{kept.Blob}); err != nil {
				return err
			}
		}
		t.notify(SessionTopic(h.id), QueueTopic)
		if _, err = t.exec("UPDATE sessions SET suspended_at = $2, checkpoint = $3, lease_owner = '', lease_expires = 0 WHERE id = $1",
			h.id, micros(at), checkpoint); err != nil {
			return err
		}
		return t.tell(h.id, workbench.EventSuspended, workbench.SuspendedEvent{Generation: generation, MemoryKept: kept != nil}, micros(at))
	})
}

// Checkpoint reads the record of a suspended session's kept memory. Code:
// not_found where it has none.
func (db *DB) Checkpoint(ctx context.Context, sessionID string) (workbench.Checkpoint, error) {
	return one(ctx, db, "kept memory", func(r scanner) (kept workbench.Checkpoint, err error) {
		var checkpoint string
		if err = r.Scan(&checkpoint); err == nil {
			err = fromJSON(checkpoint, &kept)
		}
		return kept, err
	}, "SELECT checkpoint FROM sessions WHERE id = $1 AND checkpoint <> ''", sessionID)
}

// Resume ends a session's suspension and hands its kept memory, which is blob,
// out to the caller, once: who got it must use it or lose it. Nothing needs the
// blob any more.
//
// Errors: not_found, fenced, conflict (its memory is not that one, or was handed
// out already).
func (db *DB) Resume(ctx context.Context, sessionID string, epoch int64, blob string) error {
	return db.write(ctx, "resume", func(t *tx) error {
		h, err := t.lockFenced(sessionID, epoch, 0)
		if err != nil {
			return err
		}
		kept, err := t.keptMemory(h.id)
		if err != nil {
			return err
		}
		if kept.Blob != blob {
			return workbench.E(workbench.CodeConflict, "the session's memory is not the one it was")
		}
		if err := t.dropMemory(h.id); err != nil {
			return err
		}
		t.notify(SessionTopic(h.id))
		_, err = t.exec("UPDATE sessions SET suspended_at = 0, checkpoint = '' WHERE id = $1", h.id)
		return err
	})
}

// keptMemory is what a locked session has kept; the zero value where it has not.
func (t *tx) keptMemory(sessionID string) (kept workbench.Checkpoint, err error) {
	var checkpoint string
	if err := t.row("SELECT checkpoint FROM sessions WHERE id = $1", sessionID).Scan(&checkpoint); err != nil {
		return kept, missing(err, "session")
	}
	if checkpoint != "" {
		err = fromJSON(checkpoint, &kept)
	}
	return kept, err
}

// ReturnWithoutMemory ends a session's suspension as a new incarnation of its
// compute: its memory is gone.
//
// Errors: not_found, session_closed, session_expired, fenced.
func (db *DB) ReturnWithoutMemory(ctx context.Context, sessionID string, epoch int64) (workbench.Session, error) {
	var s workbench.Session
	err := db.write(ctx, "return_without_memory", func(t *tx) error {
		var err error
		if s, err = t.bump(workbench.SystemPrincipal(), sessionID, epoch, false, workbench.LossSuspended); err != nil {
			return err
		}
		return t.tell(s.ID, workbench.EventResumed, workbench.ResumedEvent{Generation: s.Generation}, micros(db.clock()))
	})
	return s, err
}

func (t *tx) dropMemory(sessionID string) error {
	_, err := t.exec("DELETE FROM blob_refs WHERE owner = $1", CheckpointBlobOwner(sessionID))
	return err
}

// forgetMemory ends a suspension without a return: its memory, if it was kept,
// belongs to what the session is not any more, and the contexts that lived in it
// are lost for that reason. The caller has locked s.
func (t *tx) forgetMemory(s *workbench.Session, why workbench.LossReason) error {
	if s.Suspended == nil {
		return nil
	}
	if err := t.dropMemory(s.ID); err != nil {
		return err
	}
	s.Suspended = nil
	if _, err := t.exec("UPDATE sessions SET suspended_at = 0, checkpoint = '' WHERE id = $1", s.ID); err != nil {
		return err
	}
	return t.loseContexts(s.ID, "", "", why, t.db.clock())
}

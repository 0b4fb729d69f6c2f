package store

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// CheckpointBlobOwner is the owner of the blob reference of a session's kept
// memory.
func CheckpointBlobOwner(sessionID string) string { return "checkpoint:" + sessionID }

// Suspend records that an idle session has no sandbox any more. kept is its
// memory, nil if that is gone; its blob must have been noted.
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
		if err := t.dropMemory(h.id); err != nil {
			return err
		}
		checkpoint := ""
		if kept != nil {
			checkpoint = toJSON(kept)
			if err := t.insertRefs(CheckpointBlobOwner(h.id), h.owner.TenantID, []string{kept.Blob}); err != nil {
				return err
			}
		}
		t.notify(SessionTopic(h.id))
		if _, err = t.exec("UPDATE sessions SET suspended_at = $2, checkpoint = $3 WHERE id = $1", h.id, micros(at), checkpoint); err != nil {
			return err
		}
		return t.tell(h.id, workbench.EventSuspended, workbench.SuspendedEvent{Generation: generation, MemoryKept: kept != nil}, micros(at))
	})
}

// Resume ends a session's suspension and hands out its kept memory, once: who
// gets it must use it or lose it. ok is false when it has none.
//
// Errors: not_found, fenced.
func (db *DB) Resume(ctx context.Context, sessionID string, epoch int64) (kept workbench.Checkpoint, ok bool, err error) {
	err = db.write(ctx, "resume", func(t *tx) error {
		h, err := t.lockFenced(sessionID, epoch, 0)
		if err != nil {
			return err
		}
		var checkpoint string
		if err := t.row("SELECT checkpoint FROM sessions WHERE id = $1", h.id).Scan(&checkpoint); err != nil {
			return missing(err, "session")
		}
		if checkpoint != "" {
			if err := fromJSON(checkpoint, &kept); err != nil {
				return err
			}
			ok = kept.Generation == h.generation
		}
		t.notify(SessionTopic(h.id))
		// The reference stays until the memory has been read and is dropped.
		_, err = t.exec("UPDATE sessions SET suspended_at = 0, checkpoint = '' WHERE id = $1", h.id)
		return err
	})
	return kept, ok && err == nil, err
}

// ReturnWithoutMemory ends a session's suspension as a new incarnation of its
// compute: its memory is gone.
//
// Errors: not_found, session_closed, session_expired, fenced.
func (db *DB) ReturnWithoutMemory(ctx context.Context, sessionID string, epoch int64) (workbench.Session, error) {
	var s workbench.Session
	err := db.write(ctx, "return_without_memory", func(t *tx) error {
		var err error
		if s, err = t.bump(workbench.SystemPrincipal(), sessionID, epoch, false); err != nil {
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
// belongs to what the session is not any more. The caller has locked s.
func (t *tx) forgetMemory(s *workbench.Session) error {
	if s.Suspended == nil {
		return nil
	}
	if err := t.dropMemory(s.ID); err != nil {
		return err
	}
	s.Suspended = nil
	_, err := t.exec("UPDATE sessions SET suspended_at = 0, checkpoint = '' WHERE id = $1", s.ID)
	return err
}

package store

import (
	"context"
	"errors"
	"time"

	"github.com/workbenchdev/workbench"
)

// A lease says which engine may act for a session. It is measured by the
// database's clock. Its epoch fences writers: it grows whenever the lease
// changes hands, and every write of an engine names the epoch it acts under.

func fenced() error {
	return workbench.E(workbench.CodeFenced, "another engine or a newer incarnation has taken over this session").
		WithHint("the work was taken over; read the run again")
}

// held is what a fencing write knows of the session it has locked.
type held struct {
	id         string
	epoch      int64
	generation int64
	state      workbench.SessionState
	headCommit string
	commits    int64
	owner      workbench.Owner
}

// lockForRun holds the session of a run and checks the fence; generation 0
// leaves the generation unchecked.
func (t *tx) lockForRun(runID string, epoch, generation int64) (held, error) {
	return t.lockHeld("(SELECT session_id FROM runs WHERE id = $1)", runID, "run", epoch, generation)
}

// lockFenced holds a session and checks the fence.
func (t *tx) lockFenced(sessionID string, epoch, generation int64) (held, error) {
	return t.lockHeld("$1", sessionID, "session", epoch, generation)
}

func (t *tx) lockHeld(which, id, what string, epoch, generation int64) (held, error) {
	var h held
	err := t.row("SELECT id, lease_epoch, generation, state, head_commit, commit_count, project_id, tenant_id, user_id FROM sessions WHERE id = "+
		which+t.forUpdate(), id).Scan(&h.id, &h.epoch, &h.generation, &h.state, &h.headCommit, &h.commits,
		&h.owner.ProjectID, &h.owner.TenantID, &h.owner.UserID)
	if err != nil {
		return h, missing(err, what)
	}
	h.owner.SessionID = h.id
	if h.epoch != epoch || (generation != 0 && h.generation != generation) {
		return h, fenced()
	}
	return h, nil
}

// AcquireLease makes the engine the session's owner for ttl and returns the
// epoch it acts under. An own lease keeps its epoch and is prolonged when less
// than half of ttl is left; a free or expired one is taken and its epoch grows.
// An ended session still has leases, so that its last runs can be settled.
//
// Errors: not_found, conflict while another engine's lease lives.
func (db *DB) AcquireLease(ctx context.Context, sessionID, engineID string, ttl time.Duration) (int64, error) {
	var epoch int64
	err := db.write(ctx, "lease", func(t *tx) error {
		var owner string
		var expires int64
		err := t.row("SELECT lease_owner, lease_epoch, lease_expires FROM sessions WHERE id = $1"+t.forUpdate(), sessionID).Scan(&owner, &epoch, &expires)
		if err != nil {
			return missing(err, "session")
		}
		now, err := t.now() // after the lock: waiting for it takes time
		if err != nil {
			return err
		}
		live := owner != "" && expires > now
		if live && owner != engineID {
			return workbench.E(workbench.CodeConflict, "another engine owns the session").
				WithHint("try again in a moment; where servers share a database, ask the one that has the session")
		}
		if live && expires-now > ttl.Microseconds()/2 {
			return nil // long enough: an own lease costs no write
		}
		previous := ""
		if !live {
			epoch++
			if owner != engineID {
				previous = owner
			}
		}
		t.notify(SessionTopic(sessionID))
		_, err = t.exec(`UPDATE sessions SET lease_owner = $2, lease_epoch = $3, lease_expires = $4,
			lease_previous = CASE WHEN $5 <> '' THEN $5 ELSE lease_previous END WHERE id = $1`,
			sessionID, engineID, epoch, now+ttl.Microseconds(), previous)
		return err
	})
	return epoch, err
}

// RenewLeases prolongs every lease the engine holds, also one that had run out:
// as long as nobody has taken it, its epoch has not moved and nobody else has
// written. A database that was away, or a clock that jumped, thus costs no work.
// lost are the sessions that another engine took since the last call: the
// engine must stop what it does for them.
func (db *DB) RenewLeases(ctx context.Context, engineID string, ttl time.Duration) (lost []string, err error) {
	err = db.write(ctx, "lease", func(t *tx) error {
		now, err := t.now()
		if err != nil {
			return err
		}
		// Rows in id order, one at a time for every engine: no deadlock.
		rows, err := t.rows("SELECT id FROM sessions WHERE lease_previous = $1 ORDER BY id"+t.forUpdate(), engineID)
		if lost, err = collect(rows, err, scanString); err != nil {
			return err
		}
		for _, id := range lost {
			if _, err := t.exec("UPDATE sessions SET lease_previous = '' WHERE id = $1", id); err != nil {
				return err
			}
		}
		_, err = t.exec("UPDATE sessions SET lease_expires = $2 WHERE lease_owner = $1", engineID, now+ttl.Microseconds())
		return err
	})
	return lost, err
}

// ReleaseLease gives the session up. It does nothing if the lease is no longer
// the engine's at that epoch.
func (db *DB) ReleaseLease(ctx context.Context, sessionID, engineID string, epoch int64) error {
	return db.write(ctx, "lease", func(t *tx) error {
		n, err := t.exec("UPDATE sessions SET lease_owner = '', lease_expires = 0 WHERE id = $1 AND lease_owner = $2 AND lease_epoch = $3",
			sessionID, engineID, epoch)
		if n > 0 {
			t.notify(SessionTopic(sessionID), QueueTopic)
		}
		return err
	})
}

// TakeOver moves every lease of a dead engine to this one at once and returns
// the sessions. It is for an engine known to be dead: the same instance,
// started again under its exclusive lock. Their epochs grow.
func (db *DB) TakeOver(ctx context.Context, engineID, deadEngineID string, ttl time.Duration) ([]string, error) {
	if engineID == deadEngineID {
		return nil, workbench.E(workbench.CodeInvalidRequest, "an engine does not take over from itself").Caused(errors.New("same engine id"))
	}
	var sessions []string
	err := db.write(ctx, "lease", func(t *tx) error {
		rows, err := t.rows("SELECT id FROM sessions WHERE lease_owner = $1 ORDER BY id"+t.forUpdate(), deadEngineID)
		if sessions, err = collect(rows, err, scanString); err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		for _, id := range sessions {
			t.notify(SessionTopic(id))
		}
		_, err = t.exec("UPDATE sessions SET lease_owner = $1, lease_epoch = lease_epoch + 1, lease_expires = $3, lease_previous = '' WHERE lease_owner = $2",
			engineID, deadEngineID, now+ttl.Microseconds())
		return err
	})
	return sessions, err
}

// AbandonedSessions lists sessions that have a dispatched, unfinished run and
// whose lease is free or has run out, by id after afterID: work for an engine
// that recovers what another one left. What the engine itself holds is not
// abandoned, even if it is late to renew it.
func (db *DB) AbandonedSessions(ctx context.Context, engineID string, limit int, afterID string) ([]string, error) {
	now, err := db.Now(ctx)
	if err != nil {
		return nil, err
	}
	return all(ctx, db, scanString, `SELECT s.id FROM sessions s WHERE s.id > $1 AND (s.lease_owner = '' OR s.lease_expires <= $2) AND s.lease_owner <> $3
		AND EXISTS (SELECT 1 FROM runs r WHERE r.session_id = s.id AND r.finished_at = 0 AND r.status NOT IN ('queued', 'awaiting_approval'))
		ORDER BY s.id LIMIT $4`, afterID, micros(now), engineID, limit)
}

// RegisterEngine records a server process; its heartbeat starts now.
func (db *DB) RegisterEngine(ctx context.Context, id, instance string, at time.Time) error {
	return db.write(ctx, "engine", func(t *tx) error {
		now, err := t.now()
		if err != nil {
			return err
		}
		_, err = t.exec(`INSERT INTO engines (id, instance, registered_at, seen_at) VALUES ($1, $2, $3, $4)
			ON CONFLICT (id) DO UPDATE SET instance = $2, seen_at = $4`, id, instance, micros(at), now)
		return err
	})
}

// HeartbeatEngine says the engine lives; not_found if it was forgotten.
func (db *DB) HeartbeatEngine(ctx context.Context, id string) error {
	return db.write(ctx, "engine", func(t *tx) error {
		now, err := t.now()
		if err != nil {
			return err
		}
		n, err := t.exec("UPDATE engines SET seen_at = $2 WHERE id = $1", id, now)
		if err == nil && n == 0 {
			return workbench.ErrNotFound("engine")
		}
		return err
	})
}

func scanEngine(s scanner) (Engine, error) {
	var e Engine
	var registered, seen int64
	err := s.Scan(&e.ID, &e.Instance, &registered, &seen)
	e.Registered, e.Seen = fromMicros(registered), fromMicros(seen)
	return e, err
}

// DeadEngines lists the other engines of the same instance, which its
// exclusive lock proves dead, and those silent for longer than silent.
func (db *DB) DeadEngines(ctx context.Context, self, instance string, silent time.Duration) ([]Engine, error) {
	now, err := db.Now(ctx)
	if err != nil {
		return nil, err
	}
	return all(ctx, db, scanEngine, `SELECT id, instance, registered_at, seen_at FROM engines
		WHERE id <> $1 AND (instance = $2 OR seen_at < $3) ORDER BY id`, self, instance, micros(now.Add(-silent)))
}

// ForgetEngine removes an engine that ended or whose leases were taken over.
// Tool calls that it had sent end as unknown.
func (db *DB) ForgetEngine(ctx context.Context, id string) error {
	return db.write(ctx, "engine", func(t *tx) error {
		if err := t.abandonCalls("engine_id = $1", id, micros(db.clock())); err != nil {
			return err
		}
		_, err := t.exec("DELETE FROM engines WHERE id = $1", id)
		return err
	})
}

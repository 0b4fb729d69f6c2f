package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/workbenchdev/workbench"
)

// A session's events are one append-only log. Whoever adds to it holds the
// session's row, so that numbers have no gaps and appear in order.

// tell adds an event of a locked session.
func (t *tx) tell(sessionID string, kind workbench.SessionEventKind, meta any, at int64) error {
	_, err := t.exec(`INSERT INTO session_events (session_id, seq, kind, meta, at) VALUES ($1,
		COALESCE((SELECT e.seq FROM session_events e WHERE e.session_id = $1 ORDER BY e.seq DESC LIMIT 1), 0) + 1, $2, $3, $4)`,
		sessionID, string(kind), plain(toJSON(meta)), at)
	return err
}

func (t *tx) tellRun(r workbench.Run, at int64) error {
	return t.tell(r.SessionID, workbench.EventRun, workbench.RunEvent{RunID: r.ID, Number: r.Number, Lane: r.Lane, Status: r.Status,
		Reason: r.Reason, FilesChanged: r.Files.Total, SeriesID: r.ReusableRun.SeriesID, Version: r.ReusableRun.Version}, at)
}

// AppendSessionEvent adds an event that tells of nothing else in the store. An
// epoch other than 0 must be the session's lease epoch. meta is the type of the
// kind, as the root package has it.
//
// Errors: not_found, fenced, session_closed and session_expired, conflict for
// a terminal kind.
func (db *DB) AppendSessionEvent(ctx context.Context, sessionID string, epoch int64, kind workbench.SessionEventKind, meta any) error {
	if kind.Terminal() {
		return workbench.E(workbench.CodeConflict, "a terminal event is written by ending the session")
	}
	return db.write(ctx, "session_event", func(t *tx) error {
		s, err := t.lockSession(workbench.SystemPrincipal(), sessionID)
		if err != nil {
			return err
		}
		if epoch != 0 && s.LeaseEpoch != epoch {
			return fenced()
		}
		if err := open(s); err != nil {
			return err
		}
		t.notify(SessionTopic(sessionID))
		return t.tell(sessionID, kind, meta, micros(db.clock()))
	})
}

func scanSessionEvent(s scanner) (workbench.SessionEvent, error) {
	var e workbench.SessionEvent
	var meta string
	var at int64
	err := s.Scan(&e.SessionID, &e.Seq, &e.Kind, &meta, &at)
	if meta != "" {
		e.Meta = json.RawMessage(meta)
	}
	e.At = fromMicros(at)
	return e, err
}

// SessionEvents reads a session's events after afterSeq, in order, limit at
// most (0: 1000, which is also the most). Codes: not_found, offset_invalid where
// afterSeq is beyond the last event.
func (db *DB) SessionEvents(ctx context.Context, p workbench.Principal, sessionID string, afterSeq int64, limit int) ([]workbench.SessionEvent, error) {
	if limit <= 0 || limit > maxLogPage {
		limit = maxLogPage
	}
	q := newQuery("SELECT e.session_id, e.seq, e.kind, e.meta, e.at FROM session_events e JOIN sessions s ON s.id = e.session_id WHERE ").
		add("e.session_id = ? AND e.seq > ?", sessionID, afterSeq).visible(p, "s", "id").add(" ORDER BY e.seq LIMIT ?", limit)
	events, err := all(ctx, db, scanSessionEvent, q.String(), q.args...)
	if err == nil && len(events) == 0 {
		q := newQuery("SELECT COALESCE((SELECT MAX(e.seq) FROM session_events e WHERE e.session_id = s.id), 0) FROM sessions s WHERE ").
			add("s.id = ?", sessionID).visible(p, "s", "id")
		var last int
		if last, err = one(ctx, db, "session", scanInt, q.String(), q.args...); err == nil {
			err = notBeyond(afterSeq, int64(last))
		}
	}
	return events, err
}

// SessionConcluded reports whether the session's terminal event is written.
func (db *DB) SessionConcluded(ctx context.Context, p workbench.Principal, sessionID string) (bool, error) {
	q := newQuery("SELECT s.state, s.ending FROM sessions s WHERE ").add("s.id = ?", sessionID).visible(p, "s", "id")
	return one(ctx, db, "session", func(s scanner) (bool, error) {
		var state workbench.SessionState
		var ending int64
		err := s.Scan(&state, &ending)
		return state != workbench.SessionActive && ending == 0, err
	}, q.String(), q.args...)
}

// EndingSessions lists sessions that have ended and whose terminal event is
// still to come, by id after afterID.
func (db *DB) EndingSessions(ctx context.Context, limit int, afterID string) ([]workbench.Session, error) {
	return all(ctx, db, scanSession, "SELECT "+sessionColumns+" FROM sessions s WHERE s.ending = 1 AND s.id > $1 ORDER BY s.id LIMIT $2", afterID, limit)
}

// keeps reports whether a session that expires has something to keep first.
func keeps(s workbench.Session) bool {
	return s.State == workbench.SessionExpired && len(s.KeepAtExpiry) > 0
}

// Conclude writes the last events of a session that has ended, once its last
// run has: what was kept, if it asked for that, and the terminal one. Of a
// session that is concluded already nothing changes. kept is of an engine that
// holds the lease at the epoch; without it a session that expired with
// something to keep is a conflict.
//
// Errors: not_found, fenced, runs_active, conflict (it has not ended).
func (db *DB) Conclude(ctx context.Context, sessionID string, epoch int64, kept *workbench.KeptEvent) error {
	return db.write(ctx, "conclude", func(t *tx) error {
		s, err := t.lockSession(workbench.SystemPrincipal(), sessionID)
		if err != nil {
			return err
		}
		if s.State == workbench.SessionActive {
			return workbench.E(workbench.CodeConflict, "the session has not ended")
		}
		ending, err := scanInt(t.row("SELECT ending FROM sessions WHERE id = $1", s.ID))
		if err != nil || ending == 0 {
			return err
		}
		n, err := t.unfinished(s.ID)
		switch {
		case err != nil:
			return err
		case n > 0:
			return runsActive(n)
		case kept != nil && s.LeaseEpoch != epoch:
			return fenced()
		case kept == nil && keeps(s):
			return workbench.E(workbench.CodeConflict, "what the session asked to keep is not kept yet")
		}
		if kept != nil {
			if err := t.tell(s.ID, workbench.EventKept, *kept, micros(db.clock())); err != nil {
				return err
			}
		}
		return t.conclude(s)
	})
}

// conclude writes the terminal event of a locked session without unfinished
// runs.
func (t *tx) conclude(s workbench.Session) error {
	kind, reason := workbench.EventClosed, workbench.ReasonSessionClosed
	if s.State == workbench.SessionExpired {
		kind, reason = workbench.EventExpired, workbench.ReasonSessionExpired
	}
	e := workbench.EndedEvent{EndedAt: fromMicros(microsOf(s.EndedAt)), Reason: reason, Generation: s.Generation, HeadCommit: s.HeadCommit}
	if err := t.row("SELECT run_count FROM sessions WHERE id = $1", s.ID).Scan(&e.Runs); err != nil {
		return err
	}
	t.notify(SessionTopic(s.ID))
	if err := t.tell(s.ID, kind, e, micros(t.db.clock())); err != nil {
		return err
	}
	_, err := t.exec("UPDATE sessions SET ending = 0 WHERE id = $1", s.ID)
	return err
}

// SessionsToWarn lists active sessions for which a warning is due: before ahead
// of their deadline, or half their life where that is less, and none was given
// since. The earliest deadline comes first; afterID is the last session of the
// page before.
func (db *DB) SessionsToWarn(ctx context.Context, now time.Time, before time.Duration, limit int, afterID string) ([]workbench.Session, error) {
	n, w := micros(now), before.Microseconds()
	return all(ctx, db, scanSession, "SELECT "+sessionColumns+` FROM sessions s WHERE s.state = 'active' AND s.expires_at > $1 AND s.expires_at <= $2
		AND `+warningDue+` <= $1 AND s.warned_at < `+warningDue+`
		AND (s.expires_at, s.id) > (SELECT COALESCE(MAX(expires_at), 0), COALESCE(MAX(id), '') FROM sessions WHERE id = $4)
		ORDER BY s.expires_at, s.id LIMIT $5`, n, n+w, w, afterID, limit)
}

// warningDue is when a warning $3 microseconds ahead of the deadline is due.
const warningDue = `(s.expires_at - CASE WHEN CAST($3 AS BIGINT) < (s.expires_at - s.created_at) / 2 THEN CAST($3 AS BIGINT) ELSE (s.expires_at - s.created_at) / 2 END)`

// WarnSession adds the event that the session's deadline is near, if no warning
// was given since it was due. It reports whether it did: of many callers one
// does.
func (db *DB) WarnSession(ctx context.Context, sessionID string, due, now time.Time, e workbench.ExpiringEvent) (bool, error) {
	var told bool
	err := db.write(ctx, "warn_session", func(t *tx) error {
		told = false
		s, err := t.lockSession(workbench.SystemPrincipal(), sessionID)
		if err != nil {
			return err
		}
		n, err := t.exec("UPDATE sessions SET warned_at = $2 WHERE id = $1 AND state = 'active' AND warned_at < $3", s.ID, micros(now), micros(due))
		if err != nil || n == 0 {
			return err
		}
		told = true
		t.notify(SessionTopic(s.ID))
		return t.tell(s.ID, workbench.EventExpiring, e, micros(now))
	})
	return told, err
}

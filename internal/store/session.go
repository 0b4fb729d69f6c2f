package store

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

const sessionColumns = "s.id, s.project_id, s.tenant_id, s.user_id, s.group_id, s.key_id, s.kind, s.agent, s.labels, s.state, s.generation, s.revision, " +
	"s.size, s.limits, s.tools, s.aliases, s.image, s.driver, s.isolation, s.head_commit, s.created_at, s.expires_at, s.ended_at, s.active_at, " +
	"s.lease_owner, s.lease_epoch, s.keep_at_expiry, s.keep_memory, s.suspended_at, s.checkpoint, s.fork_session, s.fork_run, s.fork_commit, s.history_bytes, s.packages"

func scanSession(r scanner) (workbench.Session, error) {
	var s workbench.Session
	var labels, limits, tools, aliases, keep, checkpoint, packages string
	var created, expires, ended, active, keepMemory, suspended int64
	var from workbench.Lineage
	if err := r.Scan(&s.ID, &s.ProjectID, &s.TenantID, &s.UserID, &s.GroupID, &s.KeyID, &s.Kind, &s.Agent, &labels, &s.State, &s.Generation,
		&s.Revision, &s.Size, &limits, &tools, &aliases, &s.Image, &s.Driver, &s.Isolation, &s.HeadCommit, &created, &expires, &ended, &active,
		&s.LeaseOwner, &s.LeaseEpoch, &keep, &keepMemory, &suspended, &checkpoint, &from.SessionID, &from.RunID, &from.CommitID,
		&s.HistoryBytes, &packages); err != nil {
		return s, err
	}
	if from.CommitID != "" {
		s.ForkedFrom = &from
	}
	s.CreatedAt, s.ExpiresAt, s.EndedAt, s.ActiveAt = fromMicros(created), fromMicros(expires), pointMicros(ended), fromMicros(active)
	err := errors.Join(fromJSON(labels, &s.Labels), fromJSON(limits, &s.Limits), fromJSON(tools, &s.Tools), fromJSON(aliases, &s.Aliases),
		fromJSON(keep, &s.KeepAtExpiry), fromJSON(packages, &s.Packages))
	for i := range s.Packages {
		s.Packages[i].Lock = nil
	}
	s.Tools, s.Aliases, s.KeepAtExpiry = list(s.Tools), list(s.Aliases), list(s.KeepAtExpiry)
	s.KeepMemory = keepMemory != 0
	if suspended != 0 {
		s.Suspended = &workbench.Suspension{At: fromMicros(suspended)}
		if checkpoint != "" {
			var kept workbench.Checkpoint
			err = errors.Join(err, fromJSON(checkpoint, &kept))
			s.Suspended.MemoryKept, s.Suspended.Bytes = true, kept.Bytes
		}
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	return s, err
}

// CreateSession keeps a new active session and its first revision. forbidden
// if p does not act for its owner.
func (db *DB) CreateSession(ctx context.Context, p workbench.Principal, s workbench.Session, r workbench.Revision) error {
	if err := mayCreate(p, s.Owner()); err != nil {
		return err
	}
	return db.write(ctx, "create_session", func(t *tx) error { return t.insertSession(s, r) })
}

func (t *tx) insertSession(s workbench.Session, r workbench.Revision) error {
	var from workbench.Lineage
	if s.ForkedFrom != nil {
		from = *s.ForkedFrom
	}
	var packages any // NULL: those of what it is forked from
	if s.Packages != nil {
		packages = toJSON(s.Packages)
	}
	if _, err := t.exec(`INSERT INTO sessions (id, project_id, tenant_id, user_id, group_id, key_id, kind, agent, labels, state, generation,
		revision, size, limits, tools, aliases, image, driver, isolation, created_at, expires_at, active_at, keep_at_expiry, keep_memory,
		fork_session, fork_run, fork_commit, packages)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27,
			COALESCE(CAST($28 AS TEXT), (SELECT f.packages FROM sessions f WHERE f.id = $25), '[]'))`,
		s.ID, s.ProjectID, s.TenantID, s.UserID, s.GroupID, s.KeyID, string(s.Kind), s.Agent, labelsJSON(s.Labels), string(workbench.SessionActive),
		s.Generation, r.Number, s.Size, toJSON(s.Limits), toJSON(list(s.Tools)), toJSON(list(s.Aliases)), s.Image, s.Driver, s.Isolation,
		micros(s.CreatedAt), micros(s.ExpiresAt), micros(s.CreatedAt), toJSON(list(s.KeepAtExpiry)), oneOrZero(s.KeepMemory),
		from.SessionID, from.RunID, from.CommitID, packages); err != nil {
		return err
	}
	t.notify(SessionTopic(s.ID))
	r.SessionID, r.KeepAtExpiry = s.ID, s.KeepAtExpiry
	if err := t.insertRevision(r); err != nil {
		return err
	}
	return t.tell(s.ID, workbench.EventCreated, workbench.CreatedEvent{Generation: s.Generation, Revision: r.Number, Size: s.Size,
		ExpiresAt: fromMicros(micros(s.ExpiresAt)), KeyID: s.KeyID}, micros(s.CreatedAt))
}

// labelsJSON writes labels so that a filter can search them on every database:
// PostgreSQL's JSON operators fail on an escaped NUL.
func labelsJSON(labels map[string]string) string {
	clean := make(map[string]string, len(labels))
	for k, v := range labels {
		clean[plain(k)] = plain(v)
	}
	return toJSON(clean)
}

func (t *tx) insertRevision(r workbench.Revision) error {
	_, err := t.exec(`INSERT INTO revisions (session_id, number, agent, tools, aliases, limits, size, key_id, created_at, keep_at_expiry)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		r.SessionID, r.Number, r.Agent, toJSON(list(r.Tools)), toJSON(list(r.Aliases)), toJSON(r.Limits), r.Size, r.KeyID, micros(r.CreatedAt),
		toJSON(list(r.KeepAtExpiry)))
	return err
}

// Session reads a session.
func (db *DB) Session(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error) {
	q := newQuery("SELECT "+sessionColumns+" FROM sessions s WHERE ").add("s.id = ?", id).visible(p, "s", "id")
	return one(ctx, db, "session", scanSession, q.String(), q.args...)
}

// lockSession reads a session that p may see and holds it until the
// transaction ends: it is what serialises everything that happens to one
// session.
func (t *tx) lockSession(p workbench.Principal, id string) (workbench.Session, error) {
	q := newQuery("SELECT "+sessionColumns+" FROM sessions s WHERE ").add("s.id = ?", id).visible(p, "s", "id")
	s, err := scanSession(t.row(q.String()+t.forUpdate(), q.args...))
	return s, missing(err, "session")
}

// ListSessions lists the sessions p may see, newest first.
func (db *DB) ListSessions(ctx context.Context, p workbench.Principal, f workbench.SessionFilter, pg workbench.Page) (workbench.List[workbench.Session], error) {
	l, err := newListing("sessions", pg)
	if err != nil {
		return workbench.List[workbench.Session]{}, err
	}
	q := newQuery("SELECT "+sessionColumns+" FROM sessions s WHERE 1 = 1").visible(p, "s", "id").between("s.created_at", f.Since, f.Until)
	if f.State != "" {
		q.add(" AND s.state = ?", string(f.State))
	}
	for _, k := range sortedKeys(f.Label) {
		if db.dialect == SQLite {
			q.add(" AND EXISTS (SELECT 1 FROM json_each(s.labels) AS label WHERE label.key = ? AND label.value = ?)", plain(k), plain(f.Label[k]))
		} else {
			q.add(" AND s.labels::jsonb ->> ?::text = ?::text", plain(k), plain(f.Label[k]))
		}
	}
	l.newest(q, "s.id")
	sessions, err := all(ctx, db, scanSession, q.String(), q.args...)
	return page(l, sessions, func(s workbench.Session) string { return s.ID }), err
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// unfinished counts the session's runs that are not terminal.
func (t *tx) unfinished(sessionID string) (int, error) {
	return scanInt(t.row("SELECT COUNT(*) FROM runs WHERE session_id = $1 AND finished_at = 0", sessionID))
}

func runsActive(n int) error {
	return workbench.E(workbench.CodeRunsActive, "%d of the session's runs have not ended", n).
		WithHint("wait for them, or cancel them, and try again")
}

// open refuses what an ended session cannot do. Only the state counts here: a
// deadline is the caller's clock to judge.
func open(s workbench.Session) error {
	if s.State == workbench.SessionActive {
		return nil
	}
	return s.Open(s.ExpiresAt.Add(-1))
}

// Seen is what of a session a new revision was computed from.
type Seen struct {
	Revision int64   // 0 for any
	Head     *string // the last commit, "" for none; nil for any
}

// AddRevision makes r the session's configuration, as the next revision; nil
// labels stay.
//
// Errors: not_found, session_closed, session_expired, version_mismatch (the
// session is not as it was seen), runs_active while any run is not terminal.
func (db *DB) AddRevision(ctx context.Context, p workbench.Principal, r workbench.Revision, labels *map[string]string, seen Seen) (workbench.Session, error) {
	var s workbench.Session
	err := db.write(ctx, "add_revision", func(t *tx) error {
		var err error
		if s, err = t.lockSession(p, r.SessionID); err != nil {
			return err
		}
		if err := s.Open(r.CreatedAt); err != nil {
			return err
		}
		if seen.Revision != 0 && seen.Revision != s.Revision {
			return workbench.E(workbench.CodeVersionMismatch, "the session is at revision %d, not %d", s.Revision, seen.Revision).
				WithHint("read the session again and decide anew")
		}
		if seen.Head != nil && *seen.Head != s.HeadCommit {
			return workbench.E(workbench.CodeVersionMismatch, "the session's files changed while it was configured").WithHint("send the request again")
		}
		n, err := t.unfinished(s.ID)
		if err != nil {
			return err
		}
		if n > 0 {
			return runsActive(n)
		}
		next := r
		next.Number = s.Revision + 1
		if err := t.insertRevision(next); err != nil {
			return err
		}
		s.Revision, s.Agent, s.Tools, s.Aliases, s.Limits, s.Size, s.ActiveAt = next.Number, r.Agent, list(r.Tools), list(r.Aliases), r.Limits, r.Size, r.CreatedAt
		s.KeepAtExpiry = list(r.KeepAtExpiry)
		if labels != nil {
			s.Labels = *labels
		}
		t.notify(SessionTopic(s.ID))
		if _, err = t.exec(`UPDATE sessions SET revision = $2, agent = $3, tools = $4, aliases = $5, limits = $6, size = $7, labels = $8, active_at = $9,
			keep_at_expiry = $10 WHERE id = $1`, s.ID, s.Revision, s.Agent, toJSON(s.Tools), toJSON(s.Aliases), toJSON(s.Limits), s.Size,
			labelsJSON(s.Labels), micros(s.ActiveAt), toJSON(s.KeepAtExpiry)); err != nil {
			return err
		}
		return t.tell(s.ID, workbench.EventConfigured, workbench.ConfiguredEvent{Revision: s.Revision, KeyID: r.KeyID}, micros(r.CreatedAt))
	})
	return s, err
}

const revisionColumns = "r.session_id, r.number, r.agent, r.tools, r.aliases, r.limits, r.size, r.key_id, r.created_at, r.keep_at_expiry"

func scanRevision(row scanner) (workbench.Revision, error) {
	var r workbench.Revision
	var tools, aliases, limits, keep string
	var created int64
	if err := row.Scan(&r.SessionID, &r.Number, &r.Agent, &tools, &aliases, &limits, &r.Size, &r.KeyID, &created, &keep); err != nil {
		return r, err
	}
	r.CreatedAt = fromMicros(created)
	err := errors.Join(fromJSON(tools, &r.Tools), fromJSON(aliases, &r.Aliases), fromJSON(limits, &r.Limits), fromJSON(keep, &r.KeepAtExpiry))
	r.Tools, r.Aliases, r.KeepAtExpiry = list(r.Tools), list(r.Aliases), list(r.KeepAtExpiry)
	return r, err
}

// Revision reads one configuration of a session.
func (db *DB) Revision(ctx context.Context, p workbench.Principal, sessionID string, n int64) (workbench.Revision, error) {
	q := newQuery("SELECT "+revisionColumns+" FROM revisions r JOIN sessions s ON s.id = r.session_id WHERE ").
		add("r.session_id = ? AND r.number = ?", sessionID, n).visible(p, "s", "id")
	return one(ctx, db, "revision", scanRevision, q.String(), q.args...)
}

// ListRevisions lists a session's configurations, the first one first.
func (db *DB) ListRevisions(ctx context.Context, p workbench.Principal, sessionID string, pg workbench.Page) (workbench.List[workbench.Revision], error) {
	none := workbench.List[workbench.Revision]{}
	l, err := newListing("revisions", pg)
	if err != nil {
		return none, err
	}
	if _, err := db.Session(ctx, p, sessionID); err != nil {
		return none, err
	}
	q := newQuery("SELECT "+revisionColumns+" FROM revisions r JOIN sessions s ON s.id = r.session_id WHERE ").
		add("r.session_id = ?", sessionID).visible(p, "s", "id")
	if l.after != "" {
		n, err := numberCursor(l.after)
		if err != nil {
			return none, err
		}
		q.add(" AND r.number > ?", n)
	}
	q.add(" ORDER BY r.number LIMIT ?", l.limit+1)
	revisions, err := all(ctx, db, scanRevision, q.String(), q.args...)
	return page(l, revisions, func(r workbench.Revision) string { return fmt.Sprint(r.Number) }), err
}

func numberCursor(key string) (int64, error) {
	n, err := strconv.ParseInt(key, 10, 64)
	if err != nil {
		_, err = decodeCursor("", "!")
		return 0, err
	}
	return n, nil
}

// EndSession closes or expires an active session. In the same transaction
// every queued run ends as cancelled (session_closed or session_expired), the
// active ones are asked to cancel, and the lease is given up once none is
// left. A session that has ended stays as it ended: a second call returns it.
// Its terminal event comes with it, unless a run is still out or it expires
// with something to keep: then with Conclude.
func (db *DB) EndSession(ctx context.Context, p workbench.Principal, id string, to workbench.SessionState, at time.Time) (workbench.Session, error) {
	reason := workbench.ReasonSessionClosed
	if to == workbench.SessionExpired {
		reason = workbench.ReasonSessionExpired
	}
	var s workbench.Session
	err := db.write(ctx, "end_session", func(t *tx) error {
		var err error
		if s, err = t.lockSession(p, id); err != nil {
			return err
		}
		if s.State != workbench.SessionActive {
			return nil
		}
		if !workbench.SessionTransition(s.State, to) {
			return workbench.E(workbench.CodeConflict, "a session cannot become %s", to)
		}
		if _, err := t.cancelUnfinished(s.ID, reason, at); err != nil {
			return err
		}
		s.State, s.EndedAt = to, pointMicros(micros(at))
		t.notify(SessionTopic(s.ID))
		if _, err := t.exec("UPDATE sessions SET state = $2, ended_at = $3, ending = 1 WHERE id = $1", s.ID, string(to), micros(at)); err != nil {
			return err
		}
		if err := t.forgetMemory(&s, workbench.LossSuspended); err != nil {
			return err
		}
		n, err := t.unfinished(s.ID)
		if err != nil || n > 0 || keeps(s) {
			return err
		}
		return t.conclude(s)
	})
	return s, err
}

// BumpGeneration begins a new incarnation of the session's compute: a restart
// (requireIdle) or the loss of its sandbox. From then on writes of the older
// generation are fenced.
//
// Errors: not_found, session_closed, session_expired, fenced by epoch,
// runs_active if requireIdle and a run is not terminal.
func (db *DB) BumpGeneration(ctx context.Context, p workbench.Principal, sessionID string, epoch int64, requireIdle bool) (workbench.Session, error) {
	var s workbench.Session
	err := db.write(ctx, "bump_generation", func(t *tx) error {
		var err error
		kind, why := workbench.EventSandboxLost, workbench.LossSandbox
		if requireIdle {
			kind, why = workbench.EventRestarted, workbench.LossRestart
		}
		if s, err = t.bump(p, sessionID, epoch, requireIdle, why); err != nil {
			return err
		}
		return t.tell(s.ID, kind, workbench.GenerationEvent{Generation: s.Generation}, micros(db.clock()))
	})
	return s, err
}

// StartOver begins a new incarnation of an idle session's compute whose
// workspace is the commit, whatever the head was: both or neither. refs are as
// in Settlement. With a reason, what waits to begin is cancelled for it first;
// without one it is in the way.
//
// Errors: those of BumpGeneration, conflict for a blob that was never noted,
// quota_exceeded (of the history).
func (db *DB) StartOver(ctx context.Context, p workbench.Principal, sessionID string, epoch int64, c workbench.Commit, refs []string, cancel workbench.Reason) (workbench.Session, workbench.Commit, error) {
	var s workbench.Session
	var made workbench.Commit
	err := db.write(ctx, "start_over", func(t *tx) error {
		_, err := t.lockSession(p, sessionID)
		if err == nil && cancel != workbench.ReasonNone {
			_, err = t.cancelUnfinished(sessionID, cancel, c.CreatedAt)
		}
		if err != nil {
			return err
		}
		if s, err = t.bump(p, sessionID, epoch, true, workbench.LossRestart); err != nil {
			return err
		}
		if err := t.tell(s.ID, workbench.EventRestarted, workbench.GenerationEvent{Generation: s.Generation}, micros(c.CreatedAt)); err != nil {
			return err
		}
		h, err := t.lockFenced(s.ID, epoch, s.Generation)
		if err != nil {
			return err
		}
		first := c
		first.ParentID = h.headCommit
		made, err = t.insertCommit(h, first, refs)
		return err
	})
	return s, made, err
}

// bump raises the generation of a session that p may change. why is what takes
// the memory away that a suspended one has kept.
func (t *tx) bump(p workbench.Principal, sessionID string, epoch int64, requireIdle bool, why workbench.LossReason) (workbench.Session, error) {
	s, err := t.lockSession(p, sessionID)
	if err != nil {
		return s, err
	}
	if s.LeaseEpoch != epoch {
		return s, fenced()
	}
	if err := open(s); err != nil {
		return s, err
	}
	if requireIdle {
		n, err := t.unfinished(s.ID)
		if err != nil {
			return s, err
		}
		if n > 0 {
			return s, runsActive(n)
		}
	}
	s.Generation++
	t.notify(SessionTopic(s.ID))
	if _, err := t.exec("UPDATE sessions SET generation = $2 WHERE id = $1", s.ID, s.Generation); err != nil {
		return s, err
	}
	return s, t.forgetMemory(&s, why)
}

// GenerationUsed reports whether a run of the session was dispatched in that
// generation.
func (db *DB) GenerationUsed(ctx context.Context, sessionID string, generation int64) (bool, error) {
	n, err := one(ctx, db, "session", scanInt, "SELECT COUNT(*) FROM (SELECT 1 FROM runs WHERE session_id = $1 AND generation = $2 LIMIT 1) AS x", sessionID, generation)
	return n > 0, err
}

// TouchSession records activity of a session that has not ended; one second is
// as exact as it gets.
func (db *DB) TouchSession(ctx context.Context, id string, at time.Time) error {
	return db.write(ctx, "touch_session", func(t *tx) error {
		_, err := t.exec("UPDATE sessions SET active_at = $2 WHERE id = $1 AND active_at < $3 AND state = 'active'", id, micros(at), micros(at.Add(-time.Second)))
		return err
	})
}

// ExpiredSessions lists active sessions whose deadline has passed, the earliest
// first. afterID is the last session of the previous page, so that a sweeper
// gets past those it cannot end.
func (db *DB) ExpiredSessions(ctx context.Context, now time.Time, limit int, afterID string) ([]workbench.Session, error) {
	return all(ctx, db, scanSession, "SELECT "+sessionColumns+` FROM sessions s WHERE s.state = 'active' AND s.expires_at <= $1
		AND (s.expires_at, s.id) > (SELECT COALESCE(MAX(expires_at), 0), COALESCE(MAX(id), '') FROM sessions WHERE id = $2)
		ORDER BY s.expires_at, s.id LIMIT $3`, micros(now), afterID, limit)
}

// ImageInUse reports whether a session that has not ended uses the image.
func (db *DB) ImageInUse(ctx context.Context, imageID string) (bool, error) {
	n, err := one(ctx, db, "image", scanInt, "SELECT COUNT(*) FROM (SELECT 1 FROM sessions WHERE state = 'active' AND image = $1 LIMIT 1) AS x", imageID)
	return n > 0, err
}

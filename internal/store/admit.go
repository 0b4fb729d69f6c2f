package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/workbenchdev/workbench"
)

// Admit makes a submission durable, in one transaction: the run, its step 0
// and the first entry of its log. A key that names an earlier identical job of
// the project and tenant returns that job's run and true, whatever the session
// and whether or not it is still open.
//
// Errors: conflict (the key's run is one p may not see), idempotency_key_reused
// (the key's job was another one), not_found, session_closed, session_expired,
// version_mismatch (Admission.Run.Revision is no longer current), queue_full.
func (db *DB) Admit(ctx context.Context, p workbench.Principal, a Admission) (run workbench.Run, replayed bool, err error) {
	if a.Run.Lane == "" {
		a.Run.Lane = workbench.LaneForeground
	}
	err = db.write(ctx, "admit", func(t *tx) error {
		var err error
		if a.Lease != nil {
			a.Lease.Epoch = 0
		}
		run, replayed, err = t.admit(p, a)
		if duplicate(err) && a.IdempotencyKey != "" {
			// PostgreSQL: another session's admission with this key committed
			// first. The next attempt finds it.
			return errors.Join(errAgain, err)
		}
		return err
	})
	if err != nil {
		return workbench.Run{}, false, err
	}
	return hideContents(p, run), replayed, nil
}

func (t *tx) admit(p workbench.Principal, a Admission) (workbench.Run, bool, error) {
	// The key comes before everything that depends on the session. It is the
	// tenant's; an admin key has no tenant, so there it is the session's.
	if p.TenantID != "" {
		if run, found, err := t.original(p, p.ProjectID, p.TenantID, a); err != nil || found {
			return run, found, err
		}
	}
	s, queued, err := t.lockForAdmission(p, a.Run.SessionID, a.Run.Lane)
	if err != nil {
		return workbench.Run{}, false, err
	}
	if p.TenantID == "" {
		if run, found, err := t.original(p, s.ProjectID, s.TenantID, a); err != nil || found {
			return run, found, err
		}
	}
	if err := s.Open(a.Run.CreatedAt); err != nil {
		return workbench.Run{}, false, err
	}
	if a.Run.Revision != 0 && a.Run.Revision != s.Revision {
		return workbench.Run{}, false, workbench.E(workbench.CodeVersionMismatch, "the session is at revision %d now", s.Revision).
			WithHint("submit again under the current configuration")
	}
	if a.QueueLimit > 0 && queued >= a.QueueLimit {
		return workbench.Run{}, false, workbench.E(workbench.CodeQueueFull, "%d runs wait in this session already", queued).
			WithHint("wait until some have ended, or cancel some")
	}
	if a.Check != nil {
		if err := a.Check(); err != nil {
			return workbench.Run{}, false, err
		}
	}
	if a.Context != nil {
		if err := t.admitCell(s.ID, *a.Context); err != nil {
			return workbench.Run{}, false, err
		}
	}
	if a.Decided != nil {
		if err := t.currentRules(s.ProjectID, *a.Decided); err != nil {
			return workbench.Run{}, false, err
		}
	}
	if wish := a.Run.ReusableRun.SeriesID; wish != "" {
		if err := t.mayContinue(p, wish); err != nil {
			return workbench.Run{}, false, err
		}
	}
	a.Run.KeyID = p.KeyID
	run, err := t.insertRun(s, a)
	if err == nil && a.Replay != nil {
		err = t.insertReplay(*a.Replay)
	}
	if err == nil {
		err = t.depend(s.ID, a.Dependencies, micros(a.Run.CreatedAt))
	}
	if err == nil && a.Lease != nil && s.LeaseOwner == "" {
		err = t.takeLease(s.Session, a.Lease)
	}
	if err == nil && a.Trail != nil {
		t.audit(*a.Trail)
	}
	return run, false, err
}

// takeLease takes a free lease.
func (t *tx) takeLease(s workbench.Session, wish *LeaseWish) error {
	now, err := t.now()
	if err != nil {
		return err
	}
	wish.Epoch = s.LeaseEpoch + 1
	_, err = t.exec("UPDATE sessions SET lease_owner = $2, lease_epoch = $3, lease_expires = $4 WHERE id = $1",
		s.ID, wish.EngineID, wish.Epoch, now+wish.TTL.Microseconds())
	return err
}

// admitting is what admission needs of a session.
type admitting struct {
	workbench.Session
	runs int64
}

func (t *tx) lockForAdmission(p workbench.Principal, id string, lane workbench.Lane) (admitting, int, error) {
	var s admitting
	var expires, ended int64
	q := newQuery("SELECT s.id, s.project_id, s.tenant_id, s.user_id, s.state, s.revision, s.expires_at, s.ended_at, s.run_count, s.lease_owner, s.lease_epoch FROM sessions s WHERE ").
		add("s.id = ?", id).visible(p, "s", "id")
	err := t.row(q.String()+t.forUpdate(), q.args...).Scan(&s.ID, &s.ProjectID, &s.TenantID, &s.UserID, &s.State, &s.Revision, &expires, &ended, &s.runs,
		&s.LeaseOwner, &s.LeaseEpoch)
	if err != nil {
		return s, 0, missing(err, "session")
	}
	s.ExpiresAt, s.EndedAt = fromMicros(expires), pointMicros(ended)
	// After the lock, so that it counts what others have committed meanwhile.
	queued, err := scanInt(t.row("SELECT COUNT(*) FROM runs WHERE session_id = $1 AND finished_at = 0 AND lane = $2 AND status IN ('queued', 'awaiting_approval')", id, string(lane)))
	return s, queued, err
}

// original finds the run that the key names in a tenant. It takes no lock: two
// admissions that both find nothing meet again at the unique index.
func (t *tx) original(p workbench.Principal, projectID, tenantID string, a Admission) (workbench.Run, bool, error) {
	if a.IdempotencyKey == "" {
		return workbench.Run{}, false, nil
	}
	var version int
	run, err := scanRun(prefixed{t.row("SELECT r.fingerprint_version, "+runColumns+` FROM runs r WHERE r.project_id = $1 AND r.tenant_id = $2
		AND r.idempotency_key = $3 AND r.idempotency_key <> ''`, projectID, tenantID, a.IdempotencyKey), &version})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return workbench.Run{}, false, nil
	case err != nil:
		return workbench.Run{}, false, err
	case !p.MaySee(run.Owner()):
		// Whether the request is the same is not told either.
		return workbench.Run{}, false, workbench.E(workbench.CodeConflict, "this idempotency key is taken").
			WithHint("use a key of your own, such as a UUID").WithField("idempotencyKey")
	case run.Fingerprint != a.Fingerprint || version != a.FingerprintVersion:
		return workbench.Run{}, false, workbench.E(workbench.CodeIdempotencyReused, "this idempotency key was used for a different request").
			WithHint("use a new key for a new job").WithField("idempotencyKey")
	}
	return run, true, nil
}

// prefixed scans its own columns before those of the row's scan function.
type prefixed struct {
	row   scanner
	first any
}

func (p prefixed) Scan(dest ...any) error { return p.row.Scan(append([]any{p.first}, dest...)...) }

func (t *tx) insertRun(s admitting, a Admission) (workbench.Run, error) {
	r := a.Run
	r.ExecutionID, r.ProjectID, r.TenantID, r.UserID = r.ID, s.ProjectID, s.TenantID, s.UserID
	r.Revision, r.Number, r.Generation = s.Revision, s.runs+1, 0
	r.Status, r.Reason, r.Approval = workbench.StatusQueued, workbench.ReasonNone, a.Hold
	if a.Hold != nil {
		r.Status = workbench.StatusAwaitingApproval
	}
	r.CreatedAt = fromMicros(micros(r.CreatedAt))
	r.IdempotencyKey, r.Fingerprint = a.IdempotencyKey, a.Fingerprint
	r.LimitsHit, r.Notices, r.Artifacts, r.Dependencies = []string{}, []workbench.Notice{}, []workbench.Artifact{}, []workbench.Dependency{}
	r.Files = workbench.FilesChanged{Items: []workbench.ChangedFile{}}
	r.ReusableRun = workbench.ReuseOf(r.ReusableRun, r)
	created := micros(r.CreatedAt)
	if _, err := t.exec(`INSERT INTO runs (id, project_id, tenant_id, user_id, session_id, revision, number, lane, language, status, timeout_ms,
		idempotency_key, fingerprint, fingerprint_version, sealed, log_seq, created_at, context_id, approval, approval_expires, reuse, key_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $17, $10, $11, $12, $13, $14, 1, $15, $16, $18, $19, $20, $21)`,
		r.ID, r.ProjectID, r.TenantID, r.UserID, r.SessionID, r.Revision, r.Number, string(r.Lane), string(r.Language), r.TimeoutMs,
		r.IdempotencyKey, r.Fingerprint, a.FingerprintVersion, r.Sealed, created, r.ContextID, string(r.Status), approvalJSON(a.Hold), approvalExpires(a.Hold),
		workbench.MarshalReuse(r.ReusableRun), r.KeyID); err != nil {
		return r, err
	}
	if _, err := t.exec("INSERT INTO steps (run_id, number, status) VALUES ($1, 0, 'queued')", r.ID); err != nil {
		return r, err
	}
	if err := t.insertEntry(StatusEntry(r.ID, 1, r.Status, r.Reason, r.CreatedAt)); err != nil {
		return r, err
	}
	t.notify(RunTopic(r.ID), SessionTopic(s.ID), QueueTopic)
	if a.Hold != nil {
		t.notify(ApprovalTopic(s.ProjectID))
	}
	if _, err := t.exec("UPDATE sessions SET run_count = run_count + 1, active_at = $2 WHERE id = $1", s.ID, created); err != nil {
		return r, err
	}
	return r, t.tellRun(r, created)
}

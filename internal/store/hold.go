package store

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// RunDecision is what somebody decided of a run that waits for it.
type RunDecision struct {
	RunID  string
	State  workbench.ApprovalState // approved or denied
	By     string                  // user, or key of one that is nobody's
	KeyID  string
	Reason string
	At     time.Time
	Rules  int64 // number of the rules that let them decide
	Trail  workbench.AuditEntry
}

// DecideRun decides a run that waits, once. An approved one joins its queue at
// the place that it was admitted at; another one ends as rejected.
//
// Errors: not_found, approval_decided, approval_expired, version_mismatch (decide
// again), session_closed, session_expired.
func (db *DB) DecideRun(ctx context.Context, d RunDecision) (workbench.Run, error) {
	var run workbench.Run
	err := db.write(ctx, "decide_run", func(t *tx) error {
		r, s, err := t.lockHeldRun(d.RunID)
		if err != nil {
			return err
		}
		if r.Status != workbench.StatusAwaitingApproval || r.Approval == nil {
			return workbench.E(workbench.CodeApprovalDecided, "the run is %s", r.Status).WithHint("a run is decided once; read its receipt")
		}
		if !d.At.Before(r.Approval.ExpiresAt) {
			return workbench.E(workbench.CodeApprovalExpired, "the approval could be given until %s", r.Approval.ExpiresAt.UTC().Format(time.RFC3339)).
				WithHint("the run has to be submitted again")
		}
		if err := t.currentRules(r.ProjectID, d.Rules); err != nil {
			return err
		}
		a := *r.Approval
		a.State, a.DecidedAt, a.DecidedBy, a.KeyID, a.Reason = d.State, &d.At, d.By, d.KeyID, plain(d.Reason)
		d.Trail.Target = r.ID
		t.audit(d.Trail)
		if d.State != workbench.ApprovalApproved {
			run, err = t.reject(r, a, workbench.ReasonApprovalDenied, "it was not approved, and nothing ran", d.At)
			return err
		}
		if err := s.Open(d.At); err != nil {
			return err
		}
		run, err = t.admitHeld(r, a, d.At)
		return err
	})
	return run, err
}

// lockHeldRun holds a run's session and reads both.
func (t *tx) lockHeldRun(id string) (workbench.Run, workbench.Session, error) {
	session, err := scanString(t.row("SELECT session_id FROM runs WHERE id = $1", id))
	if err != nil {
		return workbench.Run{}, workbench.Session{}, missing(err, "run")
	}
	s, err := t.lockSession(workbench.SystemPrincipal(), session)
	if err != nil {
		return workbench.Run{}, s, missing(err, "run")
	}
	r, err := t.readRun(id)
	return r, s, err
}

// admitHeld lets an approved run join its queue.
func (t *tx) admitHeld(r workbench.Run, a workbench.Approval, at time.Time) (workbench.Run, error) {
	o, err := t.readOut(r.ID)
	if err != nil {
		return r, err
	}
	if err := t.append(r.ID, &o.end, []workbench.LogEntry{StatusEntry(r.ID, o.end.seq+1, workbench.StatusQueued, workbench.ReasonNone, at)}); err != nil {
		return r, err
	}
	if _, err := t.exec("UPDATE runs SET status = 'queued', approval = $2, log_seq = $3 WHERE id = $1", r.ID, approvalJSON(&a), o.end.seq); err != nil {
		return r, err
	}
	t.notify(RunTopic(r.ID), SessionTopic(r.SessionID), QueueTopic, ApprovalTopic(r.ProjectID))
	r.Status, r.Approval = workbench.StatusQueued, &a
	return r, t.tellRun(r, micros(at))
}

// reject ends a run that was not approved.
func (t *tx) reject(r workbench.Run, a workbench.Approval, why workbench.Reason, message string, at time.Time) (workbench.Run, error) {
	o, err := t.readOut(r.ID)
	if err != nil {
		return r, err
	}
	if _, err := t.exec("UPDATE runs SET approval = $2 WHERE id = $1", r.ID, approvalJSON(&a)); err != nil {
		return r, err
	}
	t.notify(ApprovalTopic(r.ProjectID))
	r.Status, r.Reason, r.Message, r.FinishedAt = workbench.StatusRejected, why, message, pointMicros(micros(at))
	return t.endWithoutEngine(r, o, at)
}

// ExpireRuns rejects runs that nobody decided in time, limit at most.
func (db *DB) ExpireRuns(ctx context.Context, at time.Time, limit int) (int, error) {
	ids, err := all(ctx, db, scanString, "SELECT r.id FROM runs r WHERE r.status = 'awaiting_approval' AND r.approval_expires <= $1 ORDER BY r.approval_expires LIMIT $2", micros(at), limit)
	for _, id := range ids {
		err := db.write(ctx, "expire_run", func(t *tx) error {
			r, _, err := t.lockHeldRun(id)
			if err != nil || r.Status != workbench.StatusAwaitingApproval || r.Approval == nil {
				return err
			}
			a := *r.Approval
			a.State, a.DecidedAt = workbench.ApprovalExpired, &at
			t.audit(workbench.AuditEntry{ID: workbench.NewID(workbench.KindAudit), At: at, ProjectID: r.ProjectID, TenantID: r.TenantID, UserID: r.UserID,
				Action: "approval.expire", Target: r.ID, Outcome: "ok"})
			_, err = t.reject(r, a, workbench.ReasonApprovalExpired, "nobody approved it in time, and nothing ran", at)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return len(ids), err
}

// HeldRuns lists the runs that wait for a decision of somebody like p, newest
// first: those of p's tenant, of an admin all of the project.
func (db *DB) HeldRuns(ctx context.Context, p workbench.Principal, pg workbench.Page) (workbench.List[workbench.Run], error) {
	l, err := newListing("held", pg)
	if err != nil {
		return workbench.List[workbench.Run]{}, err
	}
	q := newQuery("SELECT "+runColumns+" FROM runs r WHERE r.status = 'awaiting_approval'").add(" AND r.project_id = ?", p.ProjectID)
	if !p.Admin() {
		q.add(" AND r.tenant_id = ?", p.TenantID)
	}
	if p.SessionID != "" {
		q.add(" AND r.session_id = ?", p.SessionID)
	}
	l.newest(q, "r.id")
	runs, err := all(ctx, db, scanRun, q.String(), q.args...)
	return page(l, runs, func(r workbench.Run) string { return r.ID }), err
}

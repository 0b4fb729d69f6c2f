package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

// CallIntent is a tool call before anything of it leaves.
type CallIntent struct {
	// Receipt gives everything but Number. Its Status is executing or
	// pending_approval, or denied or failed of a call that is refused at once.
	Receipt workbench.ToolReceipt
	Epoch   int64 // lease epoch under which the engine acts
	Limit   int   // calls that the run may make
	// Decided says under which rules, and with which credentials, the decision
	// was made; nil of a call that is refused whatever they are.
	Decided *Decided
	Trail   workbench.AuditEntry
	// Together is that of the run; nil: it is recorded by itself.
	Together *Together
}

// Decided is what a decision stands on. If it is no longer so when the call is
// recorded, the decision has to be made again.
type Decided struct {
	RulesVersion      int64
	AppVersion        int64 // of the tool's app; 0: any
	ConnectionVersion int64 // of Receipt.ConnectionID, if there is one
}

// BeginCall records a call, in one transaction: its number among the run's
// calls, its receipt, what the session depends on from now on, and the row of
// the trail. Only then may anything leave.
//
// Errors: not_found, fenced, conflict (the run has ended), tool_calls_exhausted,
// version_mismatch (decide again), connection_revoked.
func (db *DB) BeginCall(ctx context.Context, in CallIntent) (workbench.ToolReceipt, error) {
	r := in.Receipt
	err := db.write(ctx, "call", func(t *tx) error {
		t.together = in.Together
		h, err := t.lockForRun(r.RunID, in.Epoch, 0)
		if err != nil {
			return err
		}
		if err := t.countCall(&r, in.Limit); err != nil {
			return err
		}
		if in.Decided != nil {
			if err := t.stillDecided(r, *in.Decided); err != nil {
				return err
			}
		}
		r.ProjectID, r.TenantID, r.UserID, r.SessionID = h.owner.ProjectID, h.owner.TenantID, h.owner.UserID, h.id
		if err := t.insertCall(r); err != nil {
			return err
		}
		if r.Status == workbench.CallExecuting {
			err = t.depend(h.id, []workbench.Dependency{dependencyOf(r)}, micros(r.CreatedAt))
		}
		if r.Status == workbench.CallPending {
			t.notify(ApprovalTopic(r.ProjectID), SessionTopic(h.id))
			err = t.tell(h.id, workbench.EventApproval, approvalEvent(r), micros(r.CreatedAt))
		}
		in.Trail.Target = r.ID
		t.audit(in.Trail)
		return err
	})
	return r, err
}

// countCall takes the next number of the run's calls.
func (t *tx) countCall(r *workbench.ToolReceipt, limit int) error {
	err := t.row("UPDATE runs SET tool_calls = tool_calls + 1 WHERE id = $1 AND finished_at = 0 AND tool_calls < $2 RETURNING tool_calls, revision",
		r.RunID, limit).Scan(&r.Number, &r.Revision)
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	var finished int64
	if err := t.row("SELECT finished_at FROM runs WHERE id = $1", r.RunID).Scan(&finished); err != nil {
		return missing(err, "run")
	}
	if finished != 0 {
		return workbench.E(workbench.CodeConflict, "the run has ended").WithHint("its socket and token end with it")
	}
	return workbench.E(workbench.CodeToolCallLimit, "the run has made its %d tool calls", limit).
		WithHint("do the rest in another run; limits.toolCalls of the session says how many a run may make")
}

// stillDecided refuses a decision that stands on what has changed since.
func (t *tx) stillDecided(r workbench.ToolReceipt, d Decided) error {
	var rules, app int64
	var state workbench.ToolState
	name, _, _ := strings.Cut(r.Tool, ".")
	err := t.row(`SELECT p.rules_version, a.version, t.state FROM projects p JOIN apps a ON a.project_id = p.id AND a.name = $2
		JOIN tools t ON t.project_id = p.id AND t.name = $3 AND t.version = $4 WHERE p.id = $1`+t.forShare(),
		r.ProjectID, name, r.Tool, versionNumber(r.Version)).Scan(&rules, &app, &state)
	if err != nil {
		return missing(err, "tool")
	}
	if rules != d.RulesVersion || d.AppVersion != 0 && app != d.AppVersion || state == workbench.ToolWithdrawn {
		return stale()
	}
	if r.ConnectionID != "" {
		if err := t.liveConnection(r.ConnectionID, d.ConnectionVersion); err != nil {
			return err
		}
	}
	return nil
}

func dependencyOf(r workbench.ToolReceipt) workbench.Dependency {
	return workbench.Dependency{Tool: r.Tool, Version: r.Version, Alias: r.Alias, ConnectionID: r.ConnectionID}
}

func approvalEvent(r workbench.ToolReceipt) workbench.ApprovalEvent {
	e := workbench.ApprovalEvent{ReceiptID: r.ID, RunID: r.RunID, Tool: r.Tool, Version: r.Version, Alias: r.Alias, Status: r.Status}
	if r.Approval != nil {
		e.State, e.ExpiresAt, e.DecidedBy = r.Approval.State, r.Approval.ExpiresAt, r.Approval.DecidedBy
	}
	return e
}

func (t *tx) insertCall(r workbench.ToolReceipt) error {
	notify := int64(0)
	if r.Status == workbench.CallPending {
		notify = micros(r.CreatedAt)
	}
	_, err := t.exec(`INSERT INTO tool_calls (id, project_id, tenant_id, user_id, session_id, run_id, revision, number, tool, version, tool_digest, alias,
		connection_id, args_digest, status, rules, error, sealed_args, approval, approval_expires, engine_id, created_at, started_at, finished_at, notify_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)`,
		r.ID, r.ProjectID, r.TenantID, r.UserID, r.SessionID, r.RunID, r.Revision, r.Number, plain(r.Tool), plain(r.Version), r.ToolDigest, plain(r.Alias),
		r.ConnectionID, r.ArgsDigest, string(r.Status), toJSON(list(r.Rules)), errorJSON(r.Error), r.SealedArgs, approvalJSON(r.Approval), approvalExpires(r.Approval),
		r.EngineID, micros(r.CreatedAt), microsOf(r.StartedAt), microsOf(r.FinishedAt), notify)
	return err
}

func errorJSON(e *workbench.CallError) string {
	if e == nil {
		return ""
	}
	return plain(toJSON(e))
}

func approvalJSON(a *workbench.Approval) string {
	if a == nil {
		return ""
	}
	return plain(toJSON(a))
}

func approvalExpires(a *workbench.Approval) int64 {
	if a == nil {
		return 0
	}
	return micros(a.ExpiresAt)
}

// CallDecision is what somebody decided of a call that waits for it.
type CallDecision struct {
	ReceiptID string
	State     workbench.ApprovalState // approved, denied or revoked
	By        string                  // user, or key of one that is nobody's
	KeyID     string
	Reason    string
	At        time.Time
	// Of an approval: who executes, what the decision stands on, and the
	// session's revision that allows the tool.
	EngineID string
	Decided  *Decided
	Revision int64
	Trail    workbench.AuditEntry
}

// DecideCall decides a call that waits, once. An approved one is executing from
// then on, and its executor is the engine named: nothing else may execute it.
//
// Errors: not_found, approval_decided, approval_expired, version_mismatch
// (decide again), connection_revoked, session_closed, session_expired.
func (db *DB) DecideCall(ctx context.Context, d CallDecision) (workbench.ToolReceipt, error) {
	var r workbench.ToolReceipt
	err := db.write(ctx, "decide", func(t *tx) error {
		var err error
		if r, err = t.lockCall(d.ReceiptID); err != nil {
			return err
		}
		if r.Status != workbench.CallPending || r.Approval == nil {
			return workbench.E(workbench.CodeApprovalDecided, "the call is %s", r.Status).WithHint("a call is decided once; read its receipt")
		}
		if !d.At.Before(r.Approval.ExpiresAt) {
			return workbench.E(workbench.CodeApprovalExpired, "the approval could be given until %s", r.Approval.ExpiresAt.UTC().Format(time.RFC3339)).
				WithHint("the code has to call again")
		}
		a := *r.Approval
		a.State, a.DecidedAt, a.DecidedBy, a.KeyID, a.Reason = d.State, &d.At, d.By, d.KeyID, plain(d.Reason)
		r.Approval = &a
		if d.State == workbench.ApprovalApproved {
			err = t.approve(&r, d)
		} else {
			r.Status, r.FinishedAt = workbench.CallDenied, &d.At
			r.Error = &workbench.CallError{Code: workbench.CodeAccessDenied, Detail: "the call was not approved", Hint: a.Reason}
		}
		if err != nil {
			return err
		}
		d.Trail.Target = r.ID
		t.audit(d.Trail)
		return t.decided(r, d.At)
	})
	return r, err
}

// approve lets a call leave, if everything it stands on still holds.
func (t *tx) approve(r *workbench.ToolReceipt, d CallDecision) error {
	var state workbench.SessionState
	var expires, ended, revision int64
	err := t.row("SELECT state, expires_at, ended_at, revision FROM sessions WHERE id = $1", r.SessionID).Scan(&state, &expires, &ended, &revision)
	if err != nil {
		return err
	}
	if err := (workbench.Session{ID: r.SessionID, State: state, ExpiresAt: fromMicros(expires), EndedAt: pointMicros(ended)}).Open(d.At); err != nil {
		return err
	}
	if revision != d.Revision {
		return stale()
	}
	if err := t.stillDecided(*r, *d.Decided); err != nil {
		return err
	}
	r.Status, r.EngineID, r.StartedAt = workbench.CallExecuting, d.EngineID, &d.At
	return t.depend(r.SessionID, []workbench.Dependency{dependencyOf(*r)}, micros(d.At))
}

// decided writes a call whose approval was decided, and tells of it.
func (t *tx) decided(r workbench.ToolReceipt, at time.Time) error {
	if _, err := t.exec(`UPDATE tool_calls SET status = $2, approval = $3, engine_id = $4, started_at = $5, finished_at = $6, error = $7,
		notify_at = 0 WHERE id = $1`,
		r.ID, string(r.Status), approvalJSON(r.Approval), r.EngineID, microsOf(r.StartedAt), microsOf(r.FinishedAt), errorJSON(r.Error)); err != nil {
		return err
	}
	t.notify(CallTopic(r.ID), ApprovalTopic(r.ProjectID), SessionTopic(r.SessionID))
	var ending int
	err := t.row("SELECT CASE WHEN state = 'active' THEN 0 ELSE 1 END FROM sessions WHERE id = $1", r.SessionID).Scan(&ending)
	if err != nil || ending != 0 {
		return err // its log has ended, or is about to
	}
	return t.tell(r.SessionID, workbench.EventApproval, approvalEvent(r), micros(at))
}

// lockCall holds a call's session and reads the call.
func (t *tx) lockCall(id string) (workbench.ToolReceipt, error) {
	session, err := scanString(t.row("SELECT session_id FROM tool_calls WHERE id = $1", id))
	if err != nil {
		return workbench.ToolReceipt{}, missing(err, "receipt")
	}
	if _, err := t.lockSession(workbench.SystemPrincipal(), session); err != nil {
		return workbench.ToolReceipt{}, missing(err, "receipt")
	}
	return scanCall(t.row("SELECT "+callColumns+" FROM tool_calls c WHERE c.id = $1", id))
}

// CallEnd is what became of a call that left.
type CallEnd struct {
	ID           string
	EngineID     string // its executor
	Status       workbench.CallStatus
	Error        *workbench.CallError
	SealedResult []byte
	ArtifactID   string
	ResultBytes  int64
	At           time.Time
	Duration     time.Duration
	Trail        workbench.AuditEntry
	Together     *Together // as of its intent
}

// EndCall records what became of a call. Code: conflict where it has ended
// already, such as unknown when its engine was taken for dead: the receipt stays
// as it is, and only the trail tells of the answer.
func (db *DB) EndCall(ctx context.Context, e CallEnd) error {
	var late bool
	err := db.write(ctx, "call_end", func(t *tx) error {
		late = false
		t.together = e.Together
		e.Trail.Target = e.ID
		n, err := t.exec(`UPDATE tool_calls SET status = $3, error = $4, sealed_result = $5, artifact_id = $6, result_bytes = $7, finished_at = $8, duration_ms = $9
			WHERE id = $1 AND engine_id = $2 AND status = 'executing'`,
			e.ID, e.EngineID, string(e.Status), errorJSON(e.Error), e.SealedResult, e.ArtifactID, e.ResultBytes, micros(e.At), e.Duration.Milliseconds())
		if err != nil {
			return err
		}
		if late = n == 0; late {
			e.Trail.Action = "tool.late"
		}
		t.audit(e.Trail)
		t.notify(CallTopic(e.ID))
		return nil
	})
	if err == nil && late {
		return workbench.E(workbench.CodeConflict, "the call has ended already")
	}
	return err
}

// abandonCalls ends, as unknown, the calls that somebody who is gone had sent.
func (t *tx) abandonCalls(where string, arg string, at int64) error {
	gone := toJSON(workbench.CallError{Code: workbench.CodeSandboxLost, Detail: "the server lost sight of the call before its answer was recorded",
		Hint: "it may have been carried out: look at the tool before you call again"})
	rows, err := t.rows("SELECT id FROM tool_calls WHERE status = 'executing' AND "+where+" ORDER BY id", arg)
	ids, err := collect(rows, err, scanString)
	for _, id := range ids {
		if _, err := t.exec("UPDATE tool_calls SET status = 'unknown', error = $2, finished_at = $3 WHERE id = $1", id, gone, at); err != nil {
			return err
		}
		t.notify(CallTopic(id))
	}
	return err
}

// ExpireCalls ends calls that nobody decided in time, or whose session has
// ended, limit at most, and returns them.
func (db *DB) ExpireCalls(ctx context.Context, at time.Time, limit int) ([]workbench.ToolReceipt, error) {
	ids, err := all(ctx, db, scanString, `SELECT c.id FROM tool_calls c JOIN sessions s ON s.id = c.session_id
		WHERE c.status = 'pending_approval' AND (c.approval_expires <= $1 OR s.state <> 'active') ORDER BY c.approval_expires LIMIT $2`, micros(at), limit)
	var ended []workbench.ToolReceipt
	for _, id := range ids {
		r, err := db.expireCall(ctx, id, at)
		if err != nil {
			return ended, err
		}
		if r.Status == workbench.CallExpired {
			ended = append(ended, r)
		}
	}
	return ended, err
}

func (db *DB) expireCall(ctx context.Context, id string, at time.Time) (workbench.ToolReceipt, error) {
	var r workbench.ToolReceipt
	err := db.write(ctx, "expire_call", func(t *tx) error {
		var err error
		if r, err = t.lockCall(id); err != nil || r.Status != workbench.CallPending || r.Approval == nil {
			return err
		}
		a := *r.Approval
		a.State, a.DecidedAt = workbench.ApprovalExpired, &at
		why := "nobody decided in time"
		if at.Before(a.ExpiresAt) {
			a.State, why = workbench.ApprovalRevoked, "the session ended before anybody decided"
		}
		r.Status, r.Approval, r.FinishedAt = workbench.CallExpired, &a, &at
		r.Error = &workbench.CallError{Code: workbench.CodeApprovalExpired, Detail: why, Hint: "call again, and have it approved in time"}
		t.audit(workbench.AuditEntry{ID: workbench.NewID(workbench.KindAudit), At: at, ProjectID: r.ProjectID, TenantID: r.TenantID, UserID: r.UserID,
			Action: "approval.expire", Target: r.ID, Outcome: "ok"})
		return t.decided(r, at)
	})
	return r, err
}

// depend adds to what a locked session depends on.
func (t *tx) depend(sessionID string, on []workbench.Dependency, at int64) error {
	for _, d := range on {
		if _, err := t.exec(`INSERT INTO session_dependencies (session_id, tool, version, alias, connection_id, at) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT DO NOTHING`, sessionID, d.Tool, d.Version, d.Alias, d.ConnectionID, at); err != nil {
			return err
		}
	}
	return nil
}

const dependencyQuery = "SELECT tool, version, alias, connection_id FROM session_dependencies WHERE session_id = $1 ORDER BY tool, version, alias, connection_id"

func scanDependency(s scanner) (workbench.Dependency, error) {
	var d workbench.Dependency
	err := s.Scan(&d.Tool, &d.Version, &d.Alias, &d.ConnectionID)
	return d, err
}

// dependencies are those of a session, inside a transaction.
func (t *tx) dependencies(sessionID string) ([]workbench.Dependency, error) {
	rows, err := t.rows(dependencyQuery, sessionID)
	return collect(rows, err, scanDependency)
}

// SessionDependencies is what a session may have learned from so far.
func (db *DB) SessionDependencies(ctx context.Context, sessionID string) ([]workbench.Dependency, error) {
	return all(ctx, db, scanDependency, dependencyQuery, sessionID)
}

// DependenciesBefore is what a session may have learned from before a time: what it
// said then can hold no more. A tool whose call was recorded at the time is not in it.
func (db *DB) DependenciesBefore(ctx context.Context, sessionID string, at time.Time) ([]workbench.Dependency, error) {
	return all(ctx, db, scanDependency, `SELECT tool, version, alias, connection_id FROM session_dependencies WHERE session_id = $1 AND at < $2
		ORDER BY tool, version, alias, connection_id`, sessionID, micros(at))
}

// Depend makes a session depend on what files that it is given depend on.
func (db *DB) Depend(ctx context.Context, sessionID string, on []workbench.Dependency, at time.Time) error {
	if len(on) == 0 {
		return nil
	}
	return db.write(ctx, "depend", func(t *tx) error { return t.depend(sessionID, on, micros(at)) })
}

// inherit makes a session depend on what another one does.
func (t *tx) inherit(sessionID, from string, at int64) error {
	on, err := t.dependencies(from)
	if err != nil {
		return err
	}
	return t.depend(sessionID, on, at)
}

// united is both lists, each dependency once.
func united(a, b []workbench.Dependency) []workbench.Dependency {
	out := list(slices.Clone(a))
	for _, d := range b {
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

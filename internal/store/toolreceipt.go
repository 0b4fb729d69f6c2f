package store

import (
	"context"
	"strconv"

	"github.com/workbenchdev/workbench"
)

// CallTopic wakes who waits for a tool call to end.
func CallTopic(receiptID string) string { return "call:" + receiptID }

// ApprovalTopic wakes who waits for something to decide in a project.
func ApprovalTopic(projectID string) string { return "approvals:" + projectID }

const callColumns = "c.id, c.project_id, c.tenant_id, c.user_id, c.session_id, c.run_id, c.revision, c.number, c.tool, c.version, c.tool_digest, c.alias, " +
	"c.connection_id, c.args_digest, c.status, c.rules, c.error, c.artifact_id, c.result_bytes, c.sealed_args, c.sealed_result, c.approval, c.engine_id, " +
	"c.created_at, c.started_at, c.finished_at, c.duration_ms"

func scanCall(s scanner) (workbench.ToolReceipt, error) {
	var r workbench.ToolReceipt
	var rules, failure, approval string
	var created, started, finished int64
	if err := s.Scan(&r.ID, &r.ProjectID, &r.TenantID, &r.UserID, &r.SessionID, &r.RunID, &r.Revision, &r.Number, &r.Tool, &r.Version, &r.ToolDigest, &r.Alias,
		&r.ConnectionID, &r.ArgsDigest, &r.Status, &rules, &failure, &r.ArtifactID, &r.ResultBytes, &r.SealedArgs, &r.SealedResult, &approval, &r.EngineID,
		&created, &started, &finished, &r.DurationMs); err != nil {
		return r, err
	}
	r.CreatedAt, r.StartedAt, r.FinishedAt = fromMicros(created), pointMicros(started), pointMicros(finished)
	if err := fromJSON(rules, &r.Rules); err != nil {
		return r, err
	}
	r.Rules = list(r.Rules)
	if failure != "" {
		r.Error = &workbench.CallError{}
		if err := fromJSON(failure, r.Error); err != nil {
			return r, err
		}
	}
	if approval != "" {
		r.Approval = &workbench.Approval{}
		return r, fromJSON(approval, r.Approval)
	}
	return r, nil
}

// versionNumber is a label as the database keeps it; 0 of what is none.
func versionNumber(label string) int64 {
	n, err := strconv.ParseInt(label, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// CallReceipt reads the receipt of a call that p may see.
func (db *DB) CallReceipt(ctx context.Context, p workbench.Principal, id string) (workbench.ToolReceipt, error) {
	q := newQuery("SELECT "+callColumns+" FROM tool_calls c WHERE ").add("c.id = ?", id).visible(p, "c", "session_id")
	return one(ctx, db, "receipt", scanCall, q.String(), q.args...)
}

// ProjectCall reads a receipt of a project, for who decides: rules say whether
// they may.
func (db *DB) ProjectCall(ctx context.Context, projectID, id string) (workbench.ToolReceipt, error) {
	return one(ctx, db, "receipt", scanCall, "SELECT "+callColumns+" FROM tool_calls c WHERE c.id = $1 AND c.project_id = $2", id, projectID)
}

// CallFilter narrows a list of receipts. Zero fields do not filter.
type CallFilter struct {
	SessionID string
	RunID     string
	Status    workbench.CallStatus
	Tool      string
}

// CallReceipts lists the receipts p may see, newest first.
func (db *DB) CallReceipts(ctx context.Context, p workbench.Principal, f CallFilter, pg workbench.Page) (workbench.List[workbench.ToolReceipt], error) {
	q := newQuery("SELECT "+callColumns+" FROM tool_calls c WHERE 1 = 1").visible(p, "c", "session_id")
	return db.calls(ctx, "receipts", q, f, pg)
}

// PendingCalls lists the calls that wait for a decision of somebody like p,
// newest first: those of p's tenant, of an admin all of the project.
func (db *DB) PendingCalls(ctx context.Context, p workbench.Principal, pg workbench.Page) (workbench.List[workbench.ToolReceipt], error) {
	q := newQuery("SELECT "+callColumns+" FROM tool_calls c WHERE ").add("c.project_id = ?", p.ProjectID)
	if !p.Admin() {
		q.add(" AND c.tenant_id = ?", p.TenantID)
	}
	if p.SessionID != "" {
		q.add(" AND c.session_id = ?", p.SessionID)
	}
	return db.calls(ctx, "approvals", q, CallFilter{Status: workbench.CallPending}, pg)
}

func (db *DB) calls(ctx context.Context, name string, q *query, f CallFilter, pg workbench.Page) (workbench.List[workbench.ToolReceipt], error) {
	l, err := newListing(name, pg)
	if err != nil {
		return workbench.List[workbench.ToolReceipt]{}, err
	}
	for _, c := range []struct{ column, value string }{
		{"c.session_id", f.SessionID}, {"c.run_id", f.RunID}, {"c.status", string(f.Status)}, {"c.tool", f.Tool},
	} {
		if c.value != "" {
			q.add(" AND "+c.column+" = ?", c.value)
		}
	}
	l.newest(q, "c.id")
	found, err := all(ctx, db, scanCall, q.String(), q.args...)
	return page(l, found, func(r workbench.ToolReceipt) string { return r.ID }), err
}

package store

import (
	"context"
	"encoding/json"

	"github.com/workbenchdev/workbench"
)

// Audit appends a row to the audit trail and returns when it is durable. The
// database refuses to change or delete it afterwards.
func (db *DB) Audit(ctx context.Context, e workbench.AuditEntry) error {
	if e.ID == "" {
		e.ID = workbench.NewID(workbench.KindAudit)
	}
	if e.At.IsZero() {
		e.At = db.clock()
	}
	return db.write(ctx, "audit", func(t *tx) error { return t.insertAudit(e) })
}

func (t *tx) insertAudit(e workbench.AuditEntry) error {
	_, err := t.exec(`INSERT INTO audit (id, at, project_id, tenant_id, user_id, key_id, action, target, outcome, address, request_id, detail)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		e.ID, micros(e.At), e.ProjectID, e.TenantID, e.UserID, e.KeyID, e.Action, plain(e.Target), e.Outcome, plain(e.Address), plain(e.RequestID), plain(string(e.Detail)))
	return err
}

const auditColumns = "a.id, a.at, a.project_id, a.tenant_id, a.user_id, a.key_id, a.action, a.target, a.outcome, a.address, a.request_id, a.detail"

func scanAudit(s scanner) (workbench.AuditEntry, error) {
	var e workbench.AuditEntry
	var at int64
	var detail string
	err := s.Scan(&e.ID, &at, &e.ProjectID, &e.TenantID, &e.UserID, &e.KeyID, &e.Action, &e.Target, &e.Outcome, &e.Address, &e.RequestID, &detail)
	e.At = fromMicros(at)
	if detail != "" {
		e.Detail = json.RawMessage(detail)
	}
	return e, err
}

// ListAudit lists the rows p may see, newest first: an admin its project's, a
// user its own. A key narrowed to a session sees rows about that session.
func (db *DB) ListAudit(ctx context.Context, p workbench.Principal, f AuditFilter, pg workbench.Page) (workbench.List[workbench.AuditEntry], error) {
	l, err := newListing("audit", pg)
	if err != nil {
		return workbench.List[workbench.AuditEntry]{}, err
	}
	q := newQuery("SELECT "+auditColumns+" FROM audit a WHERE 1 = 1").visible(p, "a", "target").between("a.at", f.Since, f.Until)
	for _, c := range []struct{ column, value string }{
		{"a.tenant_id", f.TenantID}, {"a.user_id", f.UserID}, {"a.key_id", f.KeyID}, {"a.action", f.Action}, {"a.target", f.Target},
	} {
		if c.value != "" {
			q.add(" AND "+c.column+" = ?", c.value)
		}
	}
	l.newest(q, "a.id")
	entries, err := all(ctx, db, scanAudit, q.String(), q.args...)
	return page(l, entries, func(e workbench.AuditEntry) string { return e.ID }), err
}

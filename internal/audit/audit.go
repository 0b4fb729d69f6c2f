// Package audit writes the audit trail. Its one job is to be the place that
// makes a row from a principal, an action and its outcome, and to see it
// durably appended before it returns: nothing is queued, so nothing is dropped.
//
// It reads no request and decides nothing. A row names ids, counts and codes,
// never contents: no code, output, file name, path or secret.
package audit

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/workbenchdev/workbench"
)

// Store appends and lists rows; *store.DB is one.
type Store interface {
	Audit(ctx context.Context, e workbench.AuditEntry) error
	ListAudit(ctx context.Context, p workbench.Principal, f workbench.AuditFilter, page workbench.Page) (workbench.List[workbench.AuditEntry], error)
}

// writeTimeout bounds the wait for the database when the caller's own deadline
// is gone already: a refused or abandoned request is recorded too.
const writeTimeout = 5 * time.Second

// Trail is the audit trail of one server.
type Trail struct {
	store Store
	clock func() time.Time
	log   *slog.Logger
}

// New makes a trail; log hears of rows that could not be written.
func New(store Store, clock func() time.Time, log *slog.Logger) *Trail {
	return &Trail{store: store, clock: clock, log: log}
}

// Entry makes a row: who (p), what (action, such as "session.create"), on which
// thing (target, an id) and how it ended (cause, nil for ok). notes are counts,
// flags and codes.
func Entry(p workbench.Principal, at time.Time, action, target string, cause error, notes map[string]any) workbench.AuditEntry {
	e := workbench.AuditEntry{
		ID: workbench.NewID(workbench.KindAudit), At: at.UTC(),
		ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, KeyID: p.KeyID,
		Action: action, Target: target, Outcome: "ok", Address: p.Address, RequestID: p.RequestID,
	}
	if cause != nil {
		e.Outcome = string(workbench.CodeOf(cause))
	}
	if len(notes) > 0 {
		b, err := json.Marshal(notes)
		if err != nil {
			b = []byte(`{"note":"not representable"}`)
		}
		e.Detail = b
	}
	return e
}

// Record appends a row and returns when it is durable. It goes on when ctx is
// cancelled. The error is the store's; it is logged here as well, with the row,
// so that a row the database did not take is not lost without a trace.
func (t *Trail) Record(ctx context.Context, p workbench.Principal, action, target string, cause error, notes map[string]any) error {
	e := Entry(p, t.clock(), action, target, cause, notes)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	err := t.store.Audit(ctx, e)
	if err != nil {
		t.log.Error("audit row not written", "id", e.ID, "action", e.Action, "target", e.Target, "outcome", e.Outcome,
			"key", e.KeyID, "requestId", e.RequestID, "error", err)
	}
	return err
}

// List reads the rows that p may see, newest first.
func (t *Trail) List(ctx context.Context, p workbench.Principal, f workbench.AuditFilter, page workbench.Page) (workbench.List[workbench.AuditEntry], error) {
	return t.store.ListAudit(ctx, p, f, page)
}

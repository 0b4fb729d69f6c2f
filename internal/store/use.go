package store

import (
	"context"

	"github.com/workbenchdev/workbench"
)

// Use is one use of a service by a run.
type Use struct {
	RunID        string
	ProjectID    string
	Epoch        int64 // lease epoch under which the engine acts
	Service      string
	Limit        int   // uses that the run may make
	RulesVersion int64 // that the decision was made under
	// ConnectionID and ConnectionVersion are of the credentials that it is made
	// with, and Depend is what the session depends on from then on.
	ConnectionID      string
	ConnectionVersion int64
	Depend            []workbench.Dependency
	Trail             workbench.AuditEntry
}

// BeginUse counts a use before anything of it leaves.
//
// Errors: not_found, fenced, conflict (the run has ended), tool_calls_exhausted,
// version_mismatch (decide again), connection_revoked.
func (db *DB) BeginUse(ctx context.Context, u Use) error {
	return db.write(ctx, "use", func(t *tx) error {
		h, err := t.lockForRun(u.RunID, u.Epoch, 0)
		if err != nil {
			return err
		}
		uses, err := t.uses(u.RunID)
		if err != nil {
			return err
		}
		if err := t.currentRules(u.ProjectID, u.RulesVersion); err != nil {
			return err
		}
		if u.ConnectionID != "" {
			if err := t.liveConnection(u.ConnectionID, u.ConnectionVersion); err != nil {
				return err
			}
		}
		use := uses[u.Service]
		if use.Calls >= int64(u.Limit) {
			return workbench.E(workbench.CodeToolCallLimit, "the run has used %s %d times, which is what a run may", u.Service, u.Limit).
				WithHint("do the rest in another run")
		}
		use.Calls++
		uses[u.Service] = use
		t.audit(u.Trail)
		if err := t.depend(h.id, u.Depend, micros(u.Trail.At)); err != nil {
			return err
		}
		return t.setUses(u.RunID, uses)
	})
}

// EndUse adds the tokens that a use took.
func (db *DB) EndUse(ctx context.Context, runID, service string, input, output int64) error {
	return db.write(ctx, "use", func(t *tx) error {
		if err := t.row("SELECT id FROM runs WHERE id = $1"+t.forUpdate(), runID).Scan(&runID); err != nil {
			return missing(err, "run")
		}
		uses := map[string]workbench.ServiceUse{}
		var kept string
		if err := t.row("SELECT service_use FROM runs WHERE id = $1", runID).Scan(&kept); err != nil {
			return err
		}
		if err := fromJSON(kept, &uses); err != nil {
			return err
		}
		use := uses[service]
		use.InputTokens += input
		use.OutputTokens += output
		uses[service] = use
		if err := t.meterTokens(runID, input, output); err != nil {
			return err
		}
		return t.setUses(runID, uses)
	})
}

// uses are those of a run that has not ended.
func (t *tx) uses(runID string) (map[string]workbench.ServiceUse, error) {
	var kept string
	var finished int64
	if err := t.row("SELECT service_use, finished_at FROM runs WHERE id = $1"+t.forUpdate(), runID).Scan(&kept, &finished); err != nil {
		return nil, missing(err, "run")
	}
	if finished != 0 {
		return nil, workbench.E(workbench.CodeConflict, "the run has ended").WithHint("its socket and token end with it")
	}
	uses := map[string]workbench.ServiceUse{}
	return uses, fromJSON(kept, &uses)
}

func (t *tx) setUses(runID string, uses map[string]workbench.ServiceUse) error {
	_, err := t.exec("UPDATE runs SET service_use = $2 WHERE id = $1", runID, toJSON(uses))
	return err
}

package store

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// RuleSet is all of a project's rules, as of one moment.
type RuleSet struct {
	Version int64 // grows with every change
	Rules   []workbench.Rule
}

func scanRule(s scanner) (workbench.Rule, error) {
	var r workbench.Rule
	var updated int64
	err := s.Scan(&r.ProjectID, &r.Name, &r.Text, &r.Version, &updated, &r.UpdatedBy)
	r.UpdatedAt = fromMicros(updated)
	return r, err
}

const ruleQuery = "SELECT r.project_id, r.name, r.text, r.version, r.updated_at, r.updated_by FROM rules r WHERE r.project_id = $1"

// RulesVersion is the number of a project's rules as they are.
func (db *DB) RulesVersion(ctx context.Context, projectID string) (int64, error) {
	n, err := one(ctx, db, "project", scanInt, "SELECT rules_version FROM projects WHERE id = $1", projectID)
	return int64(n), err
}

// Rules reads a project's rules by name, with their number.
func (db *DB) Rules(ctx context.Context, projectID string) (RuleSet, error) {
	for {
		before, err := db.RulesVersion(ctx, projectID)
		if err != nil {
			return RuleSet{}, err
		}
		rules, err := all(ctx, db, scanRule, ruleQuery+" ORDER BY r.name", projectID)
		if err != nil {
			return RuleSet{}, err
		}
		after, err := db.RulesVersion(ctx, projectID)
		if err != nil || before == after {
			return RuleSet{Version: after, Rules: rules}, err
		}
	}
}

// ChangeRules replaces, adds and removes rules of a project in one transaction:
// those of put by their name, and those named in remove. expected, when not 0,
// must be the number of the rules as they are. check sees the rules as they will
// be and may refuse them. Codes: version_mismatch, not_found (of remove),
// quota_exceeded.
func (db *DB) ChangeRules(ctx context.Context, projectID string, expected int64, put []workbench.Rule, remove []string, at time.Time, key string,
	check func([]workbench.Rule) error, trail workbench.AuditEntry) (RuleSet, error) {
	var now RuleSet
	err := db.write(ctx, "rules", func(t *tx) error {
		if err := t.row("SELECT rules_version FROM projects WHERE id = $1"+t.forUpdate(), projectID).Scan(&now.Version); err != nil {
			return missing(err, "project")
		}
		if expected != 0 && now.Version != expected {
			return workbench.E(workbench.CodeVersionMismatch, "the rules are at version %d, not %d", now.Version, expected).WithHint("read the rules again and decide anew")
		}
		for _, name := range remove {
			n, err := t.exec("DELETE FROM rules WHERE project_id = $1 AND name = $2", projectID, name)
			if err != nil {
				return err
			}
			if n == 0 {
				return workbench.ErrNotFound("rule")
			}
		}
		for _, r := range put {
			if _, err := t.exec(`INSERT INTO rules (project_id, name, text, version, updated_at, updated_by) VALUES ($1, $2, $3, 1, $4, $5)
				ON CONFLICT (project_id, name) DO UPDATE SET text = $3, version = rules.version + 1, updated_at = $4, updated_by = $5`,
				projectID, r.Name, r.Text, micros(at), key); err != nil {
				return err
			}
		}
		rows, err := t.rows(ruleQuery+" ORDER BY r.name", projectID)
		if now.Rules, err = collect(rows, err, scanRule); err != nil {
			return err
		}
		if len(now.Rules) > workbench.MaxRules {
			return workbench.E(workbench.CodeQuotaExceeded, "a project has at most %d rules", workbench.MaxRules).WithHint("put several policies into one rule")
		}
		if err := check(now.Rules); err != nil {
			return err
		}
		t.audit(trail)
		now.Version++
		_, err = t.exec("UPDATE projects SET rules_version = $2 WHERE id = $1", projectID, now.Version)
		return err
	})
	return now, err
}

// currentRules refuses what was decided under other rules than those of now;
// they stay as they are until the transaction ends.
func (t *tx) currentRules(projectID string, version int64) error {
	var now int64
	if err := t.row("SELECT rules_version FROM projects WHERE id = $1"+t.forShare(), projectID).Scan(&now); err != nil {
		return missing(err, "project")
	}
	if now != version {
		return stale()
	}
	return nil
}

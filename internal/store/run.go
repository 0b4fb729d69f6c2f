package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/workbenchdev/workbench"
)

// receipt is the part of a run that is read whole and never searched.
type receipt struct {
	Outputs   workbench.Outputs  `json:"outputs"`
	LimitsHit []string           `json:"limitsHit,omitempty"`
	Notices   []workbench.Notice `json:"notices,omitempty"`
	Files     int                `json:"files"`
	Exclusive bool               `json:"exclusive"`
	Cell      int64              `json:"cell,omitempty"`
}

const runColumns = "r.id, r.project_id, r.tenant_id, r.user_id, r.session_id, r.revision, r.generation, r.number, r.lane, r.language, r.status, r.reason, " +
	"r.message, r.exit_code, r.signal, r.timeout_ms, r.idempotency_key, r.fingerprint, r.sealed, r.cancel_requested, r.stdout_bytes, r.stderr_bytes, " +
	"r.receipt, r.dependencies, r.input_root, r.output_root, r.commit_id, r.image, r.driver, r.peak_memory, r.created_at, r.started_at, r.finished_at, " +
	"r.queued_ms, r.duration_ms, r.receipt_ends, r.context_id, r.tool_calls, r.service_use, r.approval, r.packages, r.reuse, r.series_id, r.series_version, r.key_id"

// listedRunColumns leave the sealed spec out, and the locks of packages.
const listedRunColumns = "r.id, r.project_id, r.tenant_id, r.user_id, r.session_id, r.revision, r.generation, r.number, r.lane, r.language, r.status, r.reason, " +
	"r.message, r.exit_code, r.signal, r.timeout_ms, r.idempotency_key, r.fingerprint, NULL, r.cancel_requested, r.stdout_bytes, r.stderr_bytes, " +
	"r.receipt, r.dependencies, r.input_root, r.output_root, r.commit_id, r.image, r.driver, r.peak_memory, r.created_at, r.started_at, r.finished_at, " +
	"r.queued_ms, r.duration_ms, r.receipt_ends, r.context_id, r.tool_calls, r.service_use, r.approval, '[]', r.reuse, r.series_id, r.series_version, r.key_id"

func scanRun(s scanner) (workbench.Run, error) {
	var r workbench.Run
	var exit sql.NullInt64
	var cancel, stdout, stderr, created, started, finished, ends int64
	var kept, dependencies, uses, approval, packages, reuse, series string
	var version int64
	if err := s.Scan(&r.ID, &r.ProjectID, &r.TenantID, &r.UserID, &r.SessionID, &r.Revision, &r.Generation, &r.Number, &r.Lane, &r.Language,
		&r.Status, &r.Reason, &r.Message, &exit, &r.Signal, &r.TimeoutMs, &r.IdempotencyKey, &r.Fingerprint, &r.Sealed, &cancel, &stdout, &stderr,
		&kept, &dependencies, &r.InputRoot, &r.OutputRoot, &r.CommitID, &r.Image, &r.Driver, &r.PeakMemoryBytes, &created, &started, &finished,
		&r.QueuedMs, &r.DurationMs, &ends, &r.ContextID, &r.ToolCalls, &uses, &approval, &packages,
		&reuse, &series, &version, &r.KeyID); err != nil {
		return r, err
	}
	var k receipt
	err := errors.Join(fromJSON(kept, &k), fromJSON(dependencies, &r.Dependencies), fromJSON(uses, &r.Services), fromJSON(packages, &r.Packages))
	if approval != "" {
		r.Approval = &workbench.Approval{}
		err = errors.Join(err, fromJSON(approval, r.Approval))
	}
	if reuse != "" {
		err = errors.Join(err, fromJSON(reuse, &r.ReusableRun))
	}
	if version != 0 {
		r.ReusableRun.SeriesID, r.ReusableRun.Version = series, version
	}
	r.ExecutionID, r.CancelRequested = r.ID, cancel != 0
	if exit.Valid {
		code := int(exit.Int64)
		r.ExitCode = &code
	}
	r.Outputs, r.LimitsHit, r.Notices, r.Cell = k.Outputs, list(k.LimitsHit), list(k.Notices), k.Cell
	r.VariablesLost = workbench.TellsLoss(r.Notices)
	r.Files = workbench.FilesChanged{Total: k.Files, Exclusive: k.Exclusive, Items: []workbench.ChangedFile{}}
	r.Dependencies, r.Artifacts = list(r.Dependencies), []workbench.Artifact{}
	r.CreatedAt, r.StartedAt, r.FinishedAt, r.ReceiptEnds = fromMicros(created), pointMicros(started), pointMicros(finished), pointMicros(ends)
	r.ReusableRun = workbench.ReuseOf(r.ReusableRun, r)
	if !r.Status.Terminal() || r.Outputs.Stdout.CapturedBytes < stdout || r.Outputs.Stderr.CapturedBytes < stderr {
		// Until it is settled, what the log holds is what is known.
		r.Outputs.Stdout = logged(r.Outputs.Stdout, stdout)
		r.Outputs.Stderr = logged(r.Outputs.Stderr, stderr)
	}
	return r, err
}

func logged(i workbench.StreamInfo, n int64) workbench.StreamInfo {
	i.CapturedBytes, i.TotalBytes = n, max(i.TotalBytes, n)
	return i
}

// receiptFiles is how many changed files Run itself carries.
const receiptFiles = 1000

// Run reads a run. Files.Items holds the first 1000 changed files; Artifacts
// is empty (ArtifactsOfRun); Sealed is nil for who may not read contents.
func (db *DB) Run(ctx context.Context, p workbench.Principal, id string) (workbench.Run, error) {
	q := newQuery("SELECT "+runColumns+" FROM runs r WHERE ").add("r.id = ?", id).visible(p, "r", "session_id")
	r, err := one(ctx, db, "run", scanRun, q.String(), q.args...)
	if err != nil {
		return workbench.Run{}, err
	}
	if r.Files.Total > 0 {
		r.Files.Items, err = all(ctx, db, scanChange, "SELECT "+changeColumns+" FROM changed_files f WHERE f.run_id = $1 ORDER BY f.path LIMIT $2", id, receiptFiles)
	}
	return hideContents(p, r), err
}

// RunOfKey reads the run that an idempotency key of p's tenant names, if p may see it. Code:
// not_found.
func (db *DB) RunOfKey(ctx context.Context, p workbench.Principal, key string) (workbench.Run, error) {
	q := newQuery("SELECT "+listedRunColumns+" FROM runs r WHERE ").
		add("r.project_id = ? AND r.tenant_id = ? AND r.idempotency_key = ? AND r.idempotency_key <> ''", p.ProjectID, p.TenantID, key).visible(p, "r", "session_id")
	return one(ctx, db, "run", scanRun, q.String(), q.args...)
}

func hideContents(p workbench.Principal, r workbench.Run) workbench.Run {
	if !p.MayReadContents(r.Owner()) {
		r.Sealed = nil
	}
	return r
}

// ListRuns lists the runs p may see, newest first, without their specs and
// changed files.
func (db *DB) ListRuns(ctx context.Context, p workbench.Principal, f workbench.RunFilter, pg workbench.Page) (workbench.List[workbench.Run], error) {
	l, err := newListing("runs", pg)
	if err != nil {
		return workbench.List[workbench.Run]{}, err
	}
	q := newQuery("SELECT "+listedRunColumns+" FROM runs r WHERE 1 = 1").visible(p, "r", "session_id").between("r.created_at", f.Since, f.Until)
	if f.SessionID != "" {
		q.add(" AND r.session_id = ?", f.SessionID)
	}
	if f.Lane != "" {
		q.add(" AND r.lane = ?", string(f.Lane))
	}
	if f.Status != "" {
		q.add(" AND r.status = ?", string(f.Status))
	}
	l.newest(q, "r.id")
	runs, err := all(ctx, db, scanRun, q.String(), q.args...)
	return page(l, runs, func(r workbench.Run) string { return r.ID }), err
}

// NextQueued is the run of the lane that was admitted first among those that
// wait. ok is false when none waits, or a foreground run that was admitted before
// them has to be approved first.
func (db *DB) NextQueued(ctx context.Context, sessionID string, lane workbench.Lane) (run workbench.Run, ok bool, err error) {
	run, err = one(ctx, db, "run", scanRun, "SELECT "+runColumns+` FROM runs r WHERE r.session_id = $1 AND r.lane = $2 AND r.finished_at = 0
		AND r.status = 'queued' AND (r.lane <> 'foreground' OR NOT EXISTS (SELECT 1 FROM runs h WHERE h.session_id = $1 AND h.lane = $2 AND h.finished_at = 0
		AND h.status = 'awaiting_approval' AND h.number < r.number)) ORDER BY r.number LIMIT 1`, sessionID, string(lane))
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return workbench.Run{}, false, nil
	}
	return run, err == nil, err
}

// SessionsWithQueued lists sessions in which a run may start now: a background
// run waits, or a foreground run does and none is out, and no other engine's
// lease lives. The order takes
// one session of every tenant in turn, each tenant's longest waiting first.
// afterID is the last session of the previous page, so that an engine gets
// past those it cannot serve.
func (db *DB) SessionsWithQueued(ctx context.Context, engineID string, limit int, afterID string) ([]string, error) {
	now, err := db.Now(ctx)
	if err != nil {
		return nil, err
	}
	return all(ctx, db, scanString, `WITH waiting AS (
			SELECT s.id AS id, s.tenant_id AS tenant_id, MIN(r.id) AS first
			FROM runs r JOIN sessions s ON s.id = r.session_id
			WHERE r.finished_at = 0 AND r.status = 'queued'
			AND (s.lease_owner = '' OR s.lease_owner = $1 OR s.lease_expires <= $2)
			AND (r.lane <> 'foreground' OR NOT EXISTS (SELECT 1 FROM runs o WHERE o.session_id = s.id AND o.lane = 'foreground' AND o.finished_at = 0 AND o.status <> 'queued'
				AND (o.status <> 'awaiting_approval' OR o.number < r.number)))
			GROUP BY s.id, s.tenant_id),
		ranked AS (SELECT id, ROW_NUMBER() OVER (PARTITION BY tenant_id ORDER BY first) AS place FROM waiting)
		SELECT id FROM ranked WHERE (place, id) > (SELECT COALESCE(MAX(place), 0), COALESCE(MAX(id), '') FROM ranked WHERE id = $3)
		ORDER BY place, id LIMIT $4`, engineID, micros(now), afterID, limit)
}

// ActiveRuns lists the session's runs that are not terminal, in the order of
// their admission.
func (db *DB) ActiveRuns(ctx context.Context, sessionID string) ([]workbench.Run, error) {
	runs, err := all(ctx, db, scanRun, "SELECT "+runColumns+" FROM runs r WHERE r.session_id = $1 AND r.finished_at = 0 ORDER BY r.lane, r.number", sessionID)
	return byNumber(runs), err
}

// byNumber sorts here: asked to sort by number, SQLite walks all runs the
// session ever had.
func byNumber(runs []workbench.Run) []workbench.Run {
	slices.SortFunc(runs, func(a, b workbench.Run) int { return cmp.Compare(a.Number, b.Number) })
	return runs
}

// StrandedRuns lists the session's runs that were dispatched under an older
// lease epoch and have not ended: whoever holds the lease at epoch settles
// them as unknown.
func (db *DB) StrandedRuns(ctx context.Context, sessionID string, epoch int64) ([]workbench.Run, error) {
	runs, err := all(ctx, db, scanRun, "SELECT "+runColumns+` FROM runs r WHERE r.session_id = $1 AND r.finished_at = 0 AND r.status <> 'queued'
		AND EXISTS (SELECT 1 FROM steps t WHERE t.run_id = r.id AND t.finished_at = 0 AND t.dispatched_at <> 0 AND t.lease_epoch < $2)
		ORDER BY r.lane, r.number`, sessionID, epoch)
	return byNumber(runs), err
}

// Step reads one step of a run.
func (db *DB) Step(ctx context.Context, runID string, index int) (workbench.Step, error) {
	return one(ctx, db, "step", scanStep, "SELECT "+stepColumns+" FROM steps WHERE run_id = $1 AND number = $2", runID, index)
}

const stepColumns = "run_id, number, status, generation, lease_epoch, sandbox_id, exit_code, dispatched_at, finished_at"

func scanStep(r scanner) (workbench.Step, error) {
	var s workbench.Step
	var exit sql.NullInt64
	var dispatched, finished int64
	err := r.Scan(&s.RunID, &s.Index, &s.Status, &s.Generation, &s.LeaseEpoch, &s.SandboxID, &exit, &dispatched, &finished)
	if exit.Valid {
		code := int(exit.Int64)
		s.ExitCode = &code
	}
	s.DispatchedAt, s.FinishedAt = pointMicros(dispatched), pointMicros(finished)
	return s, err
}

// CancelReason is the reason a cancel was asked for with; none if it was not.
func (db *DB) CancelReason(ctx context.Context, runID string) (workbench.Reason, error) {
	return one(ctx, db, "run", func(s scanner) (workbench.Reason, error) {
		var r workbench.Reason
		err := s.Scan(&r)
		return r, err
	}, "SELECT cancel_reason FROM runs WHERE id = $1", runID)
}

const changeColumns = "f.path, f.change, f.type, f.size, f.sha256, f.mode"

func scanChange(s scanner) (workbench.ChangedFile, error) {
	var c workbench.ChangedFile
	var path []byte
	err := s.Scan(&path, &c.Change, &c.Type, &c.Size, &c.SHA256, &c.Mode)
	c.Path = string(path)
	return c, err
}

// Changes lists what a run changed in its workspace, by path.
func (db *DB) Changes(ctx context.Context, p workbench.Principal, runID string, pg workbench.Page) (workbench.List[workbench.ChangedFile], error) {
	none := workbench.List[workbench.ChangedFile]{}
	l, err := newListing("files", pg)
	if err != nil {
		return none, err
	}
	if err := db.seeRun(ctx, p, runID); err != nil {
		return none, err
	}
	q := newQuery("SELECT "+changeColumns+" FROM changed_files f JOIN runs r ON r.id = f.run_id WHERE ").
		add("f.run_id = ?", runID).visible(p, "r", "session_id")
	if l.after != "" {
		q.add(" AND f.path > ?", []byte(l.after))
	}
	q.add(" ORDER BY f.path LIMIT ?", l.limit+1)
	changes, err := all(ctx, db, scanChange, q.String(), q.args...)
	return page(l, changes, func(c workbench.ChangedFile) string { return c.Path }), err
}

// seeRun returns not_found unless p may see the run.
func (db *DB) seeRun(ctx context.Context, p workbench.Principal, runID string) error {
	q := newQuery("SELECT 1 FROM runs r WHERE ").add("r.id = ?", runID).visible(p, "r", "session_id")
	_, err := one(ctx, db, "run", scanInt, q.String(), q.args...)
	return err
}

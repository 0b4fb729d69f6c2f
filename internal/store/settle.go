package store

import (
	"context"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

// Dispatch records that a step is about to leave for a sandbox: queued becomes
// dispatching, for the run and its step. It comes before the first byte does,
// and it happens once: a second call is a conflict, never a second start.
//
// Errors: not_found, fenced, conflict (not queued, a cancel was asked for, or
// an earlier foreground run of the session has not ended).
func (db *DB) Dispatch(ctx context.Context, d DispatchRecord) error {
	return db.write(ctx, "dispatch", func(t *tx) error {
		h, err := t.lockForRun(d.RunID, d.Epoch, d.Generation)
		if err != nil {
			return err
		}
		if h.state != workbench.SessionActive {
			return workbench.E(workbench.CodeConflict, "the session has ended")
		}
		o, err := t.readOut(d.RunID)
		if err != nil {
			return err
		}
		switch {
		case o.status != workbench.StatusQueued || o.step.number != d.StepIndex || !workbench.StepTransition(o.step.status, workbench.StatusDispatching):
			return workbench.E(workbench.CodeConflict, "the run is %s", o.status)
		case o.asked:
			return workbench.E(workbench.CodeConflict, "a cancel was asked for")
		}
		if o.lane == workbench.LaneForeground {
			earlier, err := scanInt(t.row("SELECT COUNT(*) FROM runs WHERE session_id = $1 AND lane = 'foreground' AND finished_at = 0 AND number < $2", h.id, o.number))
			if err != nil {
				return err
			}
			if earlier > 0 {
				return workbench.E(workbench.CodeConflict, "an earlier foreground run of the session has not ended")
			}
		}
		entry := d.Entry
		if entry.Seq == 0 {
			entry = StatusEntry(d.RunID, o.end.seq+1, workbench.StatusDispatching, workbench.ReasonNone, d.At)
		}
		if err := t.append(d.RunID, &o.end, []workbench.LogEntry{entry}); err != nil {
			return err
		}
		at := micros(d.At)
		if _, err := t.exec(`UPDATE steps SET status = 'dispatching', generation = $3, lease_epoch = $4, sandbox_id = $5, dispatched_at = $6
			WHERE run_id = $1 AND number = $2`, d.RunID, d.StepIndex, d.Generation, d.Epoch, d.SandboxID, at); err != nil {
			return err
		}
		if d.Context != nil {
			if err := t.enterContext(h.id, *d.Context, d.Generation, at); err != nil {
				return err
			}
		}
		t.notify(RunTopic(d.RunID), SessionTopic(h.id))
		_, err = t.exec(`UPDATE runs SET status = 'dispatching', packages = (SELECT s.packages FROM sessions s WHERE s.id = runs.session_id), generation = $2, input_root = $3, image = $4, driver = $5, log_seq = $6,
			started_at = CASE WHEN started_at = 0 THEN $7 ELSE started_at END,
			queued_ms = CASE WHEN started_at = 0 AND $7 > created_at THEN ($7 - created_at) / 1000 ELSE queued_ms END WHERE id = $1`,
			d.RunID, d.Generation, d.InputRoot, d.Image, d.Driver, o.end.seq, at)
		return err
	})
}

// Settle ends a step and its run, in one transaction: status and receipt, the
// workspace commit as the session's head, changed files, and the end of the
// log. A terminal run never changes again.
//
// Errors: not_found, fenced, conflict (already terminal, a status that cannot
// follow, a log that does not continue, a commit whose parent is not the head,
// a blob that was never noted), quota_exceeded (of the history).
func (db *DB) Settle(ctx context.Context, s Settlement) error {
	if !s.Run.Status.Terminal() || s.Run.FinishedAt == nil {
		return workbench.E(workbench.CodeInternal, "a settlement needs a terminal status and its time")
	}
	return db.write(ctx, "settle", func(t *tx) error {
		h, err := t.lockForRun(s.Run.ID, s.Epoch, s.Generation)
		if err != nil {
			return err
		}
		o, err := t.readOut(s.Run.ID)
		if err != nil {
			return err
		}
		switch {
		case o.status.Terminal():
			return workbench.E(workbench.CodeConflict, "the run ended as %s already", o.status)
		case !workbench.Transition(o.status, s.Run.Status) || o.step.number != s.StepIndex:
			return workbench.E(workbench.CodeConflict, "a run cannot go from %s to %s", o.status, s.Run.Status)
		case o.status != workbench.StatusQueued && (o.step.generation != s.Generation || o.step.epoch != s.Epoch):
			return fenced()
		}
		entries := s.Entries
		if terminals(entries) == 0 {
			entries = append(append([]workbench.LogEntry{}, entries...),
				endOf(s.Run, o.end.seq+int64(len(entries))+1, *s.Run.FinishedAt))
		}
		if terminals(entries) != 1 || entries[len(entries)-1].Kind != workbench.LogTerminal {
			return workbench.E(workbench.CodeConflict, "a run's log ends with exactly one terminal entry")
		}
		if err := t.append(s.Run.ID, &o.end, entries); err != nil {
			return err
		}
		run := s.Run
		if s.Commit != nil {
			c, err := t.insertCommit(h, *s.Commit, s.ManifestRefs)
			if err != nil {
				return err
			}
			run.CommitID = c.ID
		}
		if s.Context != nil {
			if err := t.endContext(h.id, *s.Context, microsOf(s.Run.FinishedAt)); err != nil {
				return err
			}
		}
		if err := t.insertChanges(run.ID, s.Changes); err != nil {
			return err
		}
		if err := t.meter(h.id, s.Usage); err != nil {
			return err
		}
		run.Files.Total = len(s.Changes)
		return t.finish(h.id, run, o)
	})
}

func terminals(entries []workbench.LogEntry) int {
	n := 0
	for _, e := range entries {
		if e.Kind == workbench.LogTerminal {
			n++
		}
	}
	return n
}

// finish writes the terminal state of a run and its last step. The log's end
// is in o. It is the only place that sets finished_at.
func (t *tx) finish(sessionID string, r workbench.Run, o out) error {
	at := microsOf(r.FinishedAt)
	var exit any
	if r.ExitCode != nil {
		exit = int64(*r.ExitCode)
	}
	if _, err := t.exec("UPDATE steps SET status = $3, exit_code = $4, finished_at = $5 WHERE run_id = $1 AND number = $2",
		r.ID, o.step.number, string(r.Status), exit, at); err != nil {
		return err
	}
	ends := microsOf(r.ReceiptEnds)
	if ends == 0 {
		ends = at + workbench.ReceiptGrace.Microseconds()
	}
	var err error
	if r.Dependencies, err = t.dependencies(sessionID); err != nil {
		return err
	}
	if err := t.abandonCalls("approval = '' AND run_id = $1", r.ID, at); err != nil {
		return err
	}
	series, version, err := t.version(r, o)
	if err != nil {
		return err
	}
	kept := receipt{Outputs: r.Outputs, LimitsHit: r.LimitsHit, Notices: r.Notices, Files: r.Files.Total, Exclusive: r.Files.Exclusive, Cell: r.Cell}
	t.notify(RunTopic(r.ID), EndTopic(r.ID), SessionTopic(sessionID), QueueTopic)
	// Fields that dispatch has set stay unless the settlement knows better.
	if _, err := t.exec(`UPDATE runs SET status = $2, reason = $3, message = $4, exit_code = $5, signal = $6, receipt = $7, dependencies = $8,
		input_root = CASE WHEN $9 <> '' THEN $9 ELSE input_root END, output_root = $10, commit_id = $11,
		peak_memory = $12, started_at = CASE WHEN CAST($13 AS BIGINT) <> 0 THEN $13 ELSE started_at END, finished_at = $14, duration_ms = $15,
		queued_ms = CASE WHEN started_at = 0 AND $14 > created_at THEN ($14 - created_at) / 1000 ELSE queued_ms END,
		receipt_ends = $16, log_seq = $17, stdout_bytes = $18, stderr_bytes = $19, series_id = $20, series_version = $21 WHERE id = $1`,
		r.ID, string(r.Status), string(r.Reason), plain(r.Message), exit, r.Signal, toJSON(kept), toJSON(list(r.Dependencies)),
		r.InputRoot, r.OutputRoot, r.CommitID, r.PeakMemoryBytes, microsOf(r.StartedAt), at, r.DurationMs,
		ends, o.end.seq, o.end.stdout, o.end.stderr, series, version); err != nil {
		return err
	}
	r.SessionID, r.Number, r.Lane = sessionID, o.number, o.lane
	r.ReusableRun = workbench.ReusableRun{SeriesID: series, Version: version}
	return t.tellRun(r, at)
}

// plain makes text that every database takes: valid UTF-8 without NUL.
func plain(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// changesPerInsert bounds the bound values of one statement.
const changesPerInsert = 200

func (t *tx) insertChanges(runID string, changes []workbench.ChangedFile) error {
	for len(changes) > 0 {
		part := changes[:min(len(changes), changesPerInsert)]
		changes = changes[len(part):]
		args := make([]any, 0, len(part)*7)
		for _, c := range part {
			args = append(args, runID, []byte(c.Path), plain(string(c.Change)), plain(c.Type), c.Size, plain(c.SHA256), plain(c.Mode))
		}
		query := "INSERT INTO changed_files (run_id, path, change, type, size, sha256, mode) VALUES " + placeholders(len(part), 7)
		if err := t.execOnce(query, args...); err != nil {
			return err
		}
	}
	return nil
}

// RequestCancel ends a queued run as cancelled at once. A run that is out is
// marked, so that its engine ends it, and is returned as it still is. A
// terminal one is returned unchanged.
func (db *DB) RequestCancel(ctx context.Context, p workbench.Principal, runID string, reason workbench.Reason, at time.Time) (workbench.Run, error) {
	var run workbench.Run
	err := db.write(ctx, "cancel", func(t *tx) error {
		q := newQuery("SELECT r.session_id FROM runs r WHERE ").add("r.id = ?", runID).visible(p, "r", "session_id")
		session, err := scanString(t.row(q.String(), q.args...))
		if err != nil {
			return missing(err, "run")
		}
		if _, err := t.lockSession(p, session); err != nil {
			return missing(err, "run")
		}
		if run, err = t.cancel(runID, reason, at); err != nil {
			return err
		}
		return nil
	})
	return hideContents(p, run), err
}

// CancelSession is RequestCancel for every unfinished run of a session, in one
// transaction. It returns those runs as they are now.
func (db *DB) CancelSession(ctx context.Context, p workbench.Principal, sessionID string, reason workbench.Reason, at time.Time) ([]workbench.Run, error) {
	var runs []workbench.Run
	err := db.write(ctx, "cancel", func(t *tx) error {
		if _, err := t.lockSession(p, sessionID); err != nil {
			return err
		}
		var err error
		runs, err = t.cancelUnfinished(sessionID, reason, at)
		return err
	})
	for i := range runs {
		runs[i] = hideContents(p, runs[i])
	}
	return runs, err
}

// cancelUnfinished cancels every unfinished run of a locked session.
func (t *tx) cancelUnfinished(sessionID string, reason workbench.Reason, at time.Time) ([]workbench.Run, error) {
	rows, err := t.rows("SELECT id FROM runs WHERE session_id = $1 AND finished_at = 0 ORDER BY lane, number", sessionID)
	ids, err := collect(rows, err, scanString)
	if err != nil {
		return nil, err
	}
	var runs []workbench.Run
	for _, id := range ids {
		r, err := t.cancel(id, reason, at)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// cancel moves one run of a locked session.
func (t *tx) cancel(runID string, reason workbench.Reason, at time.Time) (workbench.Run, error) {
	r, err := t.readRun(runID)
	if err != nil || r.Status.Terminal() {
		return r, err
	}
	if r.Status != workbench.StatusQueued && r.Status != workbench.StatusAwaitingApproval {
		if r.CancelRequested {
			return r, nil
		}
		r.CancelRequested = true
		t.notify(RunTopic(runID), SessionTopic(r.SessionID))
		_, err := t.exec("UPDATE runs SET cancel_requested = 1, cancel_reason = $2 WHERE id = $1", runID, string(reason))
		return r, err
	}
	o, err := t.readOut(runID)
	if err != nil {
		return r, err
	}
	r.Status, r.Reason, r.CancelRequested, r.FinishedAt = workbench.StatusCancelled, reason, true, pointMicros(micros(at))
	r.Message = workbench.CancelMessage(reason, false)
	if _, err := t.exec("UPDATE runs SET cancel_requested = 1, cancel_reason = $2 WHERE id = $1", runID, string(reason)); err != nil {
		return r, err
	}
	return t.endWithoutEngine(r, o, at)
}

// endWithoutEngine settles a run that no engine reports on: its outputs are
// what the log holds.
func (t *tx) endWithoutEngine(r workbench.Run, o out, at time.Time) (workbench.Run, error) {
	if err := t.append(r.ID, &o.end, []workbench.LogEntry{endOf(r, o.end.seq+1, at)}); err != nil {
		return r, err
	}
	if err := t.finish(r.SessionID, r, o); err != nil {
		return r, err
	}
	return t.readRun(r.ID)
}

func (t *tx) readRun(runID string) (workbench.Run, error) {
	r, err := scanRun(t.row("SELECT "+runColumns+" FROM runs r WHERE r.id = $1", runID))
	return r, missing(err, "run")
}

// SettleUnknown ends a run whose engine was lost: nobody saw its end, so it is
// unknown, with the output that the log holds. Only the lease counts, because
// the generation that ran it is gone. A run that is terminal stays as it is.
//
// Errors: not_found, fenced, conflict for a run that was never dispatched.
func (db *DB) SettleUnknown(ctx context.Context, runID string, epoch int64, reason workbench.Reason, at time.Time) (workbench.Run, error) {
	var run workbench.Run
	err := db.write(ctx, "settle_unknown", func(t *tx) error {
		if _, err := t.lockForRun(runID, epoch, 0); err != nil {
			return err
		}
		r, err := t.readRun(runID)
		if err != nil {
			return err
		}
		if run = r; r.Status.Terminal() {
			return nil
		}
		if !workbench.Transition(r.Status, workbench.StatusUnknown) {
			return workbench.E(workbench.CodeConflict, "the run is %s", r.Status)
		}
		o, err := t.readOut(runID)
		if err != nil {
			return err
		}
		r.Status, r.Reason, r.FinishedAt = workbench.StatusUnknown, reason, pointMicros(micros(at))
		r.Message = "the server lost sight of this run; it was not started again"
		run, err = t.endWithoutEngine(r, o, at)
		return err
	})
	return run, err
}

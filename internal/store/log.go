package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/workbenchdev/workbench"
)

// StatusEntry is the log entry of a move to a status: meta is
// {"status": …, "reason": …}.
func StatusEntry(runID string, seq int64, s workbench.Status, r workbench.Reason, at time.Time) workbench.LogEntry {
	return workbench.LogEntry{RunID: runID, Seq: seq, Kind: workbench.LogStatus, Meta: statusMeta(s, r, ""), At: at}
}

// TerminalEntry is the last entry of every run's log.
func TerminalEntry(runID string, seq int64, s workbench.Status, r workbench.Reason, at time.Time) workbench.LogEntry {
	return endOf(workbench.Run{ID: runID, Status: s, Reason: r}, seq, at)
}

// endOf is the terminal entry of a run that has ended, with what is said of that.
func endOf(r workbench.Run, seq int64, at time.Time) workbench.LogEntry {
	return workbench.LogEntry{RunID: r.ID, Seq: seq, Kind: workbench.LogTerminal, Meta: statusMeta(r.Status, r.Reason, r.Message), At: at}
}

func statusMeta(s workbench.Status, r workbench.Reason, message string) json.RawMessage {
	return json.RawMessage(toJSON(struct {
		Status  workbench.Status `json:"status"`
		Reason  workbench.Reason `json:"reason,omitempty"`
		Message string           `json:"message,omitempty"`
	}{s, r, message}))
}

func (t *tx) insertEntry(e workbench.LogEntry) error {
	_, err := t.exec("INSERT INTO run_log (run_id, seq, kind, stream, position, length, data, meta, at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
		e.RunID, e.Seq, string(e.Kind), string(e.Stream), e.Offset, e.Length, e.Data, plain(string(e.Meta)), micros(e.At))
	return err
}

// tail is how far a run's log has come.
type tail struct {
	seq    int64
	stdout int64
	stderr int64
}

// append adds entries that continue the log exactly and moves the tail;
// conflict if seq has a gap or a repeat, or a stream's offset does not go on
// where it ended.
func (t *tx) append(runID string, end *tail, entries []workbench.LogEntry) error {
	for _, e := range entries {
		if e.Seq != end.seq+1 {
			return workbench.E(workbench.CodeConflict, "the run's log is at entry %d, not %d", end.seq, e.Seq-1)
		}
		switch e.Stream {
		case workbench.Stdout, workbench.Stderr:
			at := &end.stdout
			if e.Stream == workbench.Stderr {
				at = &end.stderr
			}
			if e.Offset != *at || e.Length < 0 {
				return workbench.E(workbench.CodeConflict, "the log's %s is at byte %d, not %d", e.Stream, *at, e.Offset)
			}
			*at += e.Length
		case "":
			if e.Kind == workbench.LogOutput {
				return workbench.E(workbench.CodeConflict, "an output entry names no stream")
			}
		default:
			return workbench.E(workbench.CodeConflict, "an entry names an unknown stream")
		}
		end.seq = e.Seq
		e.RunID = runID
		if err := t.insertEntry(e); err != nil {
			return err
		}
	}
	return nil
}

// AppendLog adds entries to the log of a run that is out and, when status is
// not nil, moves the run there (dispatching to running). A repeat of a call
// whose answer was lost, with the same seqs, streams and offsets, changes
// nothing and succeeds.
//
// Errors: not_found, fenced, conflict (a gap, a repeat that differs, a status
// that cannot follow, a run that is not out).
func (db *DB) AppendLog(ctx context.Context, runID string, epoch, generation int64, status *workbench.Status, entries []workbench.LogEntry) error {
	return db.write(ctx, "append_log", func(t *tx) error {
		h, err := t.lockForRun(runID, epoch, generation)
		if err != nil {
			return err
		}
		out, err := t.readOut(runID)
		if err != nil {
			return err
		}
		if len(entries) > 0 && entries[0].Seq <= out.end.seq {
			return t.sameEntries(runID, entries)
		}
		if out.step.generation != generation || out.step.epoch != epoch {
			return fenced()
		}
		if out.status.Terminal() || out.status == workbench.StatusQueued {
			return workbench.E(workbench.CodeConflict, "the run is %s", out.status)
		}
		moved := out.status
		if status != nil && *status != out.status {
			if status.Terminal() || !workbench.Transition(out.status, *status) {
				return workbench.E(workbench.CodeConflict, "a run cannot go from %s to %s here", out.status, *status)
			}
			moved = *status
			if _, err := t.exec("UPDATE steps SET status = $3 WHERE run_id = $1 AND number = $2", runID, out.step.number, string(moved)); err != nil {
				return err
			}
		}
		for _, e := range entries {
			if e.Kind == workbench.LogTerminal {
				return workbench.E(workbench.CodeConflict, "a terminal entry is written by settling the run")
			}
		}
		if err := t.append(runID, &out.end, entries); err != nil {
			return err
		}
		t.notify(RunTopic(runID))
		if moved != out.status {
			t.notify(SessionTopic(h.id))
		}
		_, err = t.exec("UPDATE runs SET status = $2, log_seq = $3, stdout_bytes = $4, stderr_bytes = $5 WHERE id = $1",
			runID, string(moved), out.end.seq, out.end.stdout, out.end.stderr)
		return err
	})
}

// sameEntries succeeds if the log holds these entries already. Data is not
// compared: it is sealed anew each time.
func (t *tx) sameEntries(runID string, entries []workbench.LogEntry) error {
	for _, e := range entries {
		n, err := scanInt(t.row(`SELECT COUNT(*) FROM run_log WHERE run_id = $1 AND seq = $2 AND kind = $3 AND stream = $4 AND position = $5 AND length = $6`,
			runID, e.Seq, string(e.Kind), string(e.Stream), e.Offset, e.Length))
		if err != nil {
			return err
		}
		if n == 0 {
			return workbench.E(workbench.CodeConflict, "the run's log has gone another way at entry %d", e.Seq)
		}
	}
	return nil
}

// out is a run and its current step as an engine's write finds them.
type out struct {
	status workbench.Status
	end    tail
	asked  bool // a cancel was asked for
	// context is the cell's, reuse as it was admitted.
	context string
	reuse   workbench.ReusableRun
	lane    workbench.Lane
	number  int64
	step    struct {
		number     int
		status     workbench.Status
		generation int64
		epoch      int64
	}
}

// readOut reads a run and its last step. The session is locked, and every
// write to a run takes that lock, so the rows need none of their own.
func (t *tx) readOut(runID string) (out, error) {
	var o out
	var asked int64
	var reuse string
	err := t.row(`SELECT r.status, r.log_seq, r.stdout_bytes, r.stderr_bytes, r.cancel_requested, r.lane, r.number, r.context_id, r.reuse,
		s.number, s.status, s.generation, s.lease_epoch FROM runs r JOIN steps s ON s.run_id = r.id WHERE r.id = $1 ORDER BY s.number DESC LIMIT 1`, runID).
		Scan(&o.status, &o.end.seq, &o.end.stdout, &o.end.stderr, &asked, &o.lane, &o.number, &o.context, &reuse,
			&o.step.number, &o.step.status, &o.step.generation, &o.step.epoch)
	o.asked = asked != 0
	if err == nil && reuse != "" {
		err = fromJSON(reuse, &o.reuse)
	}
	return o, missing(err, "run")
}

const entryColumns = "l.run_id, l.seq, l.kind, l.stream, l.position, l.length, l.data, l.meta, l.at"

func scanEntry(s scanner) (workbench.LogEntry, error) {
	var e workbench.LogEntry
	var meta string
	var at int64
	err := s.Scan(&e.RunID, &e.Seq, &e.Kind, &e.Stream, &e.Offset, &e.Length, &e.Data, &meta, &at)
	if meta != "" {
		e.Meta = json.RawMessage(meta)
	}
	e.At = fromMicros(at)
	return e, err
}

// maxLogPage bounds the entries of one read.
const maxLogPage = 1000

// Log reads entries after afterSeq, in order, limit at most (0: 1000, which is
// also the most). Data is nil for who may not read contents. Codes: not_found,
// offset_invalid where afterSeq is beyond the last entry.
func (db *DB) Log(ctx context.Context, p workbench.Principal, runID string, afterSeq int64, limit int) ([]workbench.LogEntry, error) {
	if limit <= 0 || limit > maxLogPage {
		limit = maxLogPage
	}
	q := newQuery("SELECT "+entryColumns+" FROM run_log l JOIN runs r ON r.id = l.run_id WHERE ").
		add("l.run_id = ? AND l.seq > ?", runID, afterSeq).visible(p, "r", "session_id").add(" ORDER BY l.seq LIMIT ?", limit)
	entries, err := all(ctx, db, scanEntry, q.String(), q.args...)
	if err == nil && len(entries) == 0 {
		q := newQuery("SELECT r.log_seq FROM runs r WHERE ").add("r.id = ?", runID).visible(p, "r", "session_id")
		last, err := one(ctx, db, "run", scanInt, q.String(), q.args...)
		if err == nil {
			err = notBeyond(afterSeq, int64(last))
		}
		return entries, err
	}
	if p.Admin() && !p.Contents {
		for i := range entries {
			entries[i].Data = nil
		}
	}
	return entries, err
}

// notBeyond refuses to read behind what there is not yet: who asks for that has
// mistaken one log for another, and would miss what comes. It is read after the
// entries were, so a number that somebody has seen is never beyond it.
func notBeyond(after, last int64) error {
	if after <= last {
		return nil
	}
	return workbench.E(workbench.CodeOffsetInvalid, "after is beyond the last event, which is number %d", last).WithField("after").
		WithHint("send the number of the last event seen of this log, or 0 to begin at the first")
}

// OutputRange reads the entries of one stream that overlap the bytes from
// offset, limit bytes long, in order, and how many bytes of it the log holds.
// forbidden for who may not read contents.
func (db *DB) OutputRange(ctx context.Context, p workbench.Principal, runID string, s workbench.Stream, offset, limit int64) ([]workbench.LogEntry, int64, error) {
	column := "r.stdout_bytes"
	if s == workbench.Stderr {
		column = "r.stderr_bytes"
	}
	q := newQuery("SELECT "+column+" FROM runs r WHERE ").add("r.id = ?", runID).visible(p, "r", "session_id")
	total, err := one(ctx, db, "run", func(s scanner) (int64, error) {
		var n int64
		err := s.Scan(&n)
		return n, err
	}, q.String(), q.args...)
	if err != nil {
		return nil, 0, err
	}
	if p.Admin() && !p.Contents {
		return nil, 0, workbench.E(workbench.CodeForbidden, "this key may not read contents").
			WithHint("use the owner's key, or an admin key that was granted contents")
	}
	q = newQuery("SELECT "+entryColumns+" FROM run_log l JOIN runs r ON r.id = l.run_id WHERE ").
		add("l.run_id = ? AND l.stream = ? AND l.position < ? AND l.position + l.length > ?", runID, string(s), offset+limit, offset).
		visible(p, "r", "session_id").add(" ORDER BY l.position, l.seq")
	entries, err := all(ctx, db, scanEntry, q.String(), q.args...)
	return entries, total, err
}

// Contents reads a run's entries of output and results, in order. Data is nil
// for who may not read contents.
func (db *DB) Contents(ctx context.Context, p workbench.Principal, runID string) ([]workbench.LogEntry, error) {
	return db.contents(ctx, p, runID, "l.kind IN ('output', 'result')")
}

// Results is Contents without output.
func (db *DB) Results(ctx context.Context, p workbench.Principal, runID string) ([]workbench.LogEntry, error) {
	return db.contents(ctx, p, runID, "l.kind = 'result'")
}

func (db *DB) contents(ctx context.Context, p workbench.Principal, runID, which string) ([]workbench.LogEntry, error) {
	q := newQuery("SELECT "+entryColumns+" FROM run_log l JOIN runs r ON r.id = l.run_id WHERE "+which).
		add(" AND l.run_id = ?", runID).visible(p, "r", "session_id").add(" ORDER BY l.seq")
	entries, err := all(ctx, db, scanEntry, q.String(), q.args...)
	if p.Admin() && !p.Contents {
		for i := range entries {
			entries[i].Data = nil
		}
	}
	return entries, err
}

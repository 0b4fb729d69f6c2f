package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/workbenchdev/workbench"
)

// The run that is out is looked for among those that have not ended: asked for
// the largest id, SQLite would walk all that the session ever had.
const contextColumns = "c.id, c.session_id, c.handle, c.language, c.dir, c.sealed_env, c.state, c.memory, c.generation, c.cells, c.loss_reason, c.lost_at, " +
	"c.created_at, c.used_at, COALESCE((SELECT o.id FROM runs o WHERE o.session_id = c.session_id AND o.finished_at = 0 AND o.context_id = c.id " +
	"AND o.status NOT IN ('queued', 'awaiting_approval') ORDER BY o.lane DESC, o.number DESC LIMIT 1), '')"

func scanContext(r scanner) (workbench.Context, error) {
	var c workbench.Context
	var reason workbench.LossReason
	var lost, created, used int64
	err := r.Scan(&c.ID, &c.SessionID, &c.Handle, &c.Language, &c.Dir, &c.SealedEnv, &c.State, &c.Memory, &c.Generation, &c.Cells, &reason, &lost,
		&created, &used, &c.RunID)
	c.CreatedAt, c.LastUsedAt = fromMicros(created), fromMicros(used)
	if c.State == workbench.ContextLost {
		c.Lost = &workbench.ContextLoss{Reason: reason, At: fromMicros(lost)}
	}
	if c.RunID != "" && c.State == workbench.ContextIdle {
		c.State = workbench.ContextBusy
	}
	return c, err
}

// Contexts lists the contexts of a session, the first one made first. There
// are MaxContexts at most.
func (db *DB) Contexts(ctx context.Context, p workbench.Principal, sessionID string) ([]workbench.Context, error) {
	q := newQuery("SELECT "+contextColumns+" FROM contexts c JOIN sessions s ON s.id = c.session_id WHERE ").
		add("c.session_id = ?", sessionID).visible(p, "s", "id").add(" ORDER BY c.created_at, c.id")
	return all(ctx, db, scanContext, q.String(), q.args...)
}

// Context reads one context. Code: context_not_found.
func (db *DB) Context(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Context, error) {
	q := newQuery("SELECT "+contextColumns+" FROM contexts c JOIN sessions s ON s.id = c.session_id WHERE ").
		add("c.session_id = ? AND c.id = ?", sessionID, id).visible(p, "s", "id")
	c, err := one(ctx, db, "context", scanContext, q.String(), q.args...)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return c, workbench.ErrContextNotFound()
	}
	return c, err
}

// CreateContext keeps a new context of an open session. Where the session has
// one of that id, that one is returned, with made false: whether it is the same
// is the caller's to see.
//
// Errors: not_found, session_closed, session_expired, quota_exceeded (a session
// has MaxContexts at most).
func (db *DB) CreateContext(ctx context.Context, p workbench.Principal, c workbench.Context) (kept workbench.Context, made bool, err error) {
	err = db.write(ctx, "create_context", func(t *tx) error {
		kept, made = workbench.Context{}, false
		s, err := t.lockSession(p, c.SessionID)
		if err != nil {
			return err
		}
		if err := s.Open(c.CreatedAt); err != nil {
			return err
		}
		kept, err = t.readContext(s.ID, c.ID)
		if err == nil || !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if err := t.insertContext(c); err != nil {
			return err
		}
		made = true
		kept, err = t.readContext(s.ID, c.ID)
		return err
	})
	return kept, made, err
}

func (t *tx) readContext(sessionID, id string) (workbench.Context, error) {
	return scanContext(t.row("SELECT "+contextColumns+" FROM contexts c WHERE c.session_id = $1 AND c.id = $2", sessionID, id))
}

// insertContext adds a context to a locked session that has none of its id.
func (t *tx) insertContext(c workbench.Context) error {
	n, err := scanInt(t.row("SELECT COUNT(*) FROM contexts WHERE session_id = $1", c.SessionID))
	if err != nil {
		return err
	}
	if n >= workbench.MaxContexts {
		return workbench.E(workbench.CodeQuotaExceeded, "a session has at most %d contexts", workbench.MaxContexts).
			WithHint("delete one that is no longer needed")
	}
	t.notify(SessionTopic(c.SessionID))
	_, err = t.exec(`INSERT INTO contexts (session_id, id, handle, language, dir, sealed_env, state, created_at, used_at)
		VALUES ($1, $2, $3, $4, $5, $6, 'idle', $7, $7)`,
		c.SessionID, c.ID, c.Handle, string(c.Language), c.Dir, c.SealedEnv, micros(c.CreatedAt))
	return err
}

// lockContext reads a context that no unfinished cell names, and holds its
// session.
func (t *tx) lockContext(p workbench.Principal, sessionID, id string, at time.Time) (workbench.Context, error) {
	s, err := t.lockSession(p, sessionID)
	if err != nil {
		return workbench.Context{}, err
	}
	if err := s.Open(at); err != nil {
		return workbench.Context{}, err
	}
	c, err := t.readContext(sessionID, id)
	if errors.Is(err, sql.ErrNoRows) {
		return c, workbench.ErrContextNotFound()
	}
	if err != nil {
		return c, err
	}
	n, err := scanInt(t.row("SELECT COUNT(*) FROM runs WHERE session_id = $1 AND finished_at = 0 AND context_id = $2", sessionID, id))
	if err == nil && n > 0 {
		err = workbench.E(workbench.CodeRunsActive, "%d of the context's cells have not ended", n).
			WithHint("wait for them, cancel them, or interrupt the context, and try again")
	}
	return c, err
}

// DeleteContext forgets a context and returns it as it was. Errors: not_found,
// session_closed, session_expired, context_not_found, runs_active.
func (db *DB) DeleteContext(ctx context.Context, p workbench.Principal, sessionID, id string, at time.Time) (workbench.Context, error) {
	var c workbench.Context
	err := db.write(ctx, "delete_context", func(t *tx) error {
		var err error
		if c, err = t.lockContext(p, sessionID, id, at); err != nil {
			return err
		}
		t.notify(SessionTopic(sessionID))
		_, err = t.exec("DELETE FROM contexts WHERE session_id = $1 AND id = $2", sessionID, id)
		return err
	})
	return c, err
}

// RestartContext begins a context anew: without an interpreter, under another
// handle. Errors: those of DeleteContext.
func (db *DB) RestartContext(ctx context.Context, p workbench.Principal, sessionID, id, handle string, at time.Time) (workbench.Context, error) {
	var c workbench.Context
	err := db.write(ctx, "restart_context", func(t *tx) error {
		if _, err := t.lockContext(p, sessionID, id, at); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE contexts SET handle = $3, state = 'idle', memory = '', loss_reason = '', lost_at = 0, used_at = $4
			WHERE session_id = $1 AND id = $2`, sessionID, id, handle, micros(at)); err != nil {
			return err
		}
		t.notify(SessionTopic(sessionID))
		var err error
		c, err = t.readContext(sessionID, id)
		return err
	})
	return c, err
}

// LoseContexts marks every context of the session whose interpreter lived in
// that sandbox memory as lost; memory "" means any but what the session, being
// suspended, has kept. It needs no lease: a memory belongs to one engine, which
// knows that it is gone.
func (db *DB) LoseContexts(ctx context.Context, sessionID, memory string, why workbench.LossReason, at time.Time) error {
	return db.write(ctx, "lose_contexts", func(t *tx) error {
		but := ""
		if memory == "" {
			if err := t.row("SELECT id FROM sessions WHERE id = $1"+t.forUpdate(), sessionID).Scan(&sessionID); err != nil {
				return missing(err, "session")
			}
			kept, err := t.keptMemory(sessionID)
			if err != nil {
				return err
			}
			but = kept.Memory
		}
		return t.loseContexts(sessionID, memory, but, why, at)
	})
}

// loseContexts is LoseContexts; but names a memory that is not gone.
func (t *tx) loseContexts(sessionID, memory, but string, why workbench.LossReason, at time.Time) error {
	n, err := t.exec(`UPDATE contexts SET state = 'lost', memory = '', loss_reason = $3, lost_at = $4
		WHERE session_id = $1 AND state = 'idle' AND memory <> '' AND memory <> $5 AND ($2 = '' OR memory = $2)`, sessionID, memory, string(why), micros(at), but)
	if n > 0 {
		t.notify(SessionTopic(sessionID))
	}
	return err
}

// admitCell checks that the context a submission names can take it. The context
// named DefaultContext is made when it is not there.
func (t *tx) admitCell(sessionID string, use ContextUse) error {
	c, err := t.readContext(sessionID, use.Default.ID)
	switch {
	case errors.Is(err, sql.ErrNoRows) && use.Default.ID != workbench.DefaultContext:
		return workbench.ErrContextNotFound()
	case errors.Is(err, sql.ErrNoRows):
		made := use.Default
		made.SessionID = sessionID
		return t.insertContext(made)
	case err != nil:
		return err
	}
	return c.Usable(use.Default.Language, use.OnLost)
}

// enterContext records that a cell is about to reach a context, which from now
// on lives in that memory.
func (t *tx) enterContext(sessionID string, e ContextEntry, generation, at int64) error {
	n, err := t.exec(`UPDATE contexts SET state = 'idle', memory = $4, generation = $5, cells = cells + 1, used_at = $6, loss_reason = '', lost_at = 0
		WHERE session_id = $1 AND id = $2 AND handle = $3`, sessionID, e.ID, e.Handle, e.Memory, generation, at)
	if err == nil && n == 0 {
		return workbench.E(workbench.CodeConflict, "the context is not the one it was")
	}
	return err
}

// endContext records that a context's interpreter is gone after a cell.
func (t *tx) endContext(sessionID string, e ContextEnd, at int64) error {
	state, lost := workbench.ContextEnded, int64(0)
	switch {
	case e.Lost != "":
		state, lost = workbench.ContextLost, at
	case e.Unbegun:
		state = workbench.ContextIdle
	}
	_, err := t.exec(`UPDATE contexts SET state = $4, memory = '', loss_reason = $5, lost_at = $6 WHERE session_id = $1 AND id = $2 AND handle = $3`,
		sessionID, e.ID, e.Handle, string(state), string(e.Lost), lost)
	return err
}

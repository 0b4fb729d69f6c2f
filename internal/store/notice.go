package store

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// ClaimNotices takes calls that wait for a decision and whose deciders have to be
// told now, limit at most: nobody else gets them until again has passed, doubled
// with every try. Told ends it.
func (db *DB) ClaimNotices(ctx context.Context, now time.Time, again, most time.Duration, limit int) ([]workbench.ToolReceipt, error) {
	var claimed []workbench.ToolReceipt
	due, err := all(ctx, db, scanString, "SELECT c.id FROM tool_calls c WHERE c.notify_at > 0 AND c.notify_at <= $1 ORDER BY c.notify_at LIMIT $2", micros(now), limit)
	if err != nil || len(due) == 0 {
		return nil, err
	}
	err = db.write(ctx, "notice", func(t *tx) error {
		claimed = nil
		for _, id := range due {
			var tries int64
			if err := t.row("SELECT notify_tries FROM tool_calls WHERE id = $1", id).Scan(&tries); err != nil {
				return err
			}
			pause := min(again<<min(tries, 20), most)
			n, err := t.exec("UPDATE tool_calls SET notify_at = $2, notify_tries = notify_tries + 1 WHERE id = $1 AND notify_at > 0 AND notify_at <= $3",
				id, micros(now.Add(pause)), micros(now))
			if err != nil {
				return err
			}
			if n == 0 {
				continue // another server has it
			}
			r, err := scanCall(t.row("SELECT "+callColumns+" FROM tool_calls c WHERE c.id = $1", id))
			if err != nil {
				return err
			}
			claimed = append(claimed, r)
		}
		return nil
	})
	return claimed, err
}

// Told says that who decides has been told of a call.
func (db *DB) Told(ctx context.Context, id string) error {
	return db.write(ctx, "notice", func(t *tx) error {
		_, err := t.exec("UPDATE tool_calls SET notify_at = 0 WHERE id = $1", id)
		return err
	})
}

package store

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/workbenchdev/workbench"
)

// The history of a session's workspace is what its commits refer to. A blob
// counts with its size, once for each session that refers to it: a fork counts
// what it shares, too. A tenant's history is the sum of its sessions'.

// HistoryQuota bounds the histories of workspaces, in bytes; a bound of 0 is
// not checked.
type HistoryQuota struct {
	SessionBytes int64
	TenantBytes  int64
}

// HistoryUse is what the histories of a session and of its tenant hold.
type HistoryUse struct {
	SessionBytes int64
	TenantBytes  int64
}

// LimitHistory sets the bounds from now on; without it there are none. What is
// over a lower one stays, but does not grow.
func (db *DB) LimitHistory(q HistoryQuota) { db.history.Store(&q) }

// HistoryQuota reads the bounds.
func (db *DB) HistoryQuota() HistoryQuota {
	if q := db.history.Load(); q != nil {
		return *q
	}
	return HistoryQuota{}
}

// HistoryUse reads what a session and its tenant hold. Code: not_found.
func (db *DB) HistoryUse(ctx context.Context, sessionID string) (HistoryUse, error) {
	return one(ctx, db, "session", func(s scanner) (HistoryUse, error) {
		var u HistoryUse
		err := s.Scan(&u.SessionBytes, &u.TenantBytes)
		return u, err
	}, "SELECT s.history_bytes, t.history_bytes FROM sessions s JOIN tenants t ON t.id = s.tenant_id WHERE s.id = $1", sessionID)
}

// HistoryRoom is how many bytes a session's history may still grow by, below 0
// if it is over a bound; math.MaxInt64 without one.
type HistoryRoom struct {
	Bytes int64
	Full  error // what to say of a byte more, by whose bound it is
}

// HistoryRoom reads what room there is. Another session of the tenant may be
// faster. Code: not_found.
func (db *DB) HistoryRoom(ctx context.Context, sessionID string) (HistoryRoom, error) {
	q := db.HistoryQuota()
	room := HistoryRoom{Bytes: math.MaxInt64}
	if q == (HistoryQuota{}) {
		return room, nil
	}
	use, err := db.HistoryUse(ctx, sessionID)
	if err != nil {
		return room, err
	}
	if q.SessionBytes > 0 {
		room = HistoryRoom{q.SessionBytes - use.SessionBytes, sessionHistoryFull(q)}
	}
	if left := q.TenantBytes - use.TenantBytes; q.TenantBytes > 0 && left < room.Bytes {
		room = HistoryRoom{left, tenantHistoryFull(q)}
	}
	return room, nil
}

// errSessionBound tells a session's bound from its tenant's.
var errSessionBound = errors.New("the bound of a session")

func sessionHistoryFull(q HistoryQuota) *workbench.Error {
	return historyFull("the session's workspace", q.SessionBytes).
		WithHint("go on in a fork, which begins with the last files alone, and close this session, or have the operator raise --history-per-session; " +
			"the history of a session that has ended goes with its receipts").Caused(errSessionBound)
}

// forkHistoryFull is what a fork is told whose first commit alone is more than
// a session may have.
func forkHistoryFull(q HistoryQuota) *workbench.Error {
	return historyFull("the fork's workspace", q.SessionBytes).
		WithHint("fork a commit that holds less, or have the operator raise --history-per-session")
}

func tenantHistoryFull(q HistoryQuota) *workbench.Error {
	return historyFull("the tenant's workspaces", q.TenantBytes).
		WithHint("close sessions that are no longer needed, whose histories go with their receipts, or have the operator raise --history-per-tenant")
}

func historyFull(whose string, most int64) *workbench.Error {
	return workbench.E(workbench.CodeQuotaExceeded, "the history of %s would be more than %d bytes", whose, most).WithField("historyBytes")
}

// grow adds bytes to the history of a locked session and to its tenant's. Code:
// quota_exceeded. What adds nothing is never refused.
func (t *tx) grow(sessionID, tenantID string, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	q := t.db.HistoryQuota()
	n, err := t.exec("UPDATE sessions SET history_bytes = history_bytes + $2 WHERE id = $1 AND (CAST($3 AS BIGINT) = 0 OR history_bytes + $2 <= $3)",
		sessionID, bytes, q.SessionBytes)
	if err != nil {
		return err
	}
	if n == 0 {
		return sessionHistoryFull(q)
	}
	// The condition is judged on the newest row, under its lock: two sessions
	// of a tenant do not both pass.
	n, err = t.exec("UPDATE tenants SET history_bytes = history_bytes + $2 WHERE id = $1 AND (CAST($3 AS BIGINT) = 0 OR history_bytes + $2 <= $3)",
		tenantID, bytes, q.TenantBytes)
	if err == nil && n == 0 {
		return tenantHistoryFull(q)
	}
	return err
}

// shrink gives bytes of tenants' histories back, by tenant.
func (t *tx) shrink(bytes map[string]int64) error {
	for _, tenant := range slices.Sorted(maps.Keys(bytes)) { // one order for every writer: no deadlock
		if bytes[tenant] == 0 {
			continue
		}
		if _, err := t.exec("UPDATE tenants SET history_bytes = history_bytes - $2 WHERE id = $1", tenant, bytes[tenant]); err != nil {
			return err
		}
	}
	return nil
}

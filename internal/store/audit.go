package store

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"

	"github.com/workbenchdev/workbench"
)

// Audit appends a row to the audit trail and returns when it is durable. The
// database refuses to change or delete it afterwards, and its place in the
// chain shows a change that was made around that.
func (db *DB) Audit(ctx context.Context, e workbench.AuditEntry) error {
	if e.ID == "" {
		e.ID = workbench.NewID(workbench.KindAudit)
	}
	if e.At.IsZero() {
		e.At = db.clock()
	}
	return db.write(ctx, "audit", func(t *tx) error { t.audit(e); return nil })
}

// audit has the row written at the end of the transaction: the head of its
// project's chain is locked from then on until it is durable.
func (t *tx) audit(e workbench.AuditEntry) { t.trail = append(t.trail, e) }

// chain writes the transaction's rows of the trail, each with its link in the
// chain of its project.
func (t *tx) chain() error {
	slices.SortStableFunc(t.trail, func(a, b workbench.AuditEntry) int { return cmp.Compare(a.ProjectID, b.ProjectID) }) // one order of locks
	for len(t.trail) > 0 {
		project := t.trail[0].ProjectID
		n := 1
		for n < len(t.trail) && t.trail[n].ProjectID == project {
			n++
		}
		if err := t.link(project, t.trail[:n]); err != nil {
			return err
		}
		t.trail = t.trail[n:]
	}
	return nil
}

// head is the end of a project's chain: the newest row's number and hash.
type head struct {
	seq  int64
	hash string
}

func (t *tx) link(project string, rows []workbench.AuditEntry) error {
	h, err := t.head(project)
	if err != nil {
		return err
	}
	for _, e := range rows {
		e = stored(e)
		e.Seq = h.seq + 1
		h = head{seq: e.Seq, hash: e.ChainHash(h.hash)}
		if _, err := t.exec(`INSERT INTO audit (id, at, project_id, tenant_id, user_id, key_id, action, target, outcome, address, request_id, detail, seq, hash)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`,
			e.ID, micros(e.At), e.ProjectID, e.TenantID, e.UserID, e.KeyID, e.Action, e.Target, e.Outcome, e.Address, e.RequestID, string(e.Detail), e.Seq, h.hash); err != nil {
			return err
		}
	}
	if t.writer != nil { // written with those of the others that are committed with it
		t.heads[project] = h
		return nil
	}
	_, err = t.exec(updateHead, project, h.seq, h.hash)
	return err
}

const updateHead = "UPDATE audit_heads SET seq = $2, hash = $3 WHERE project_id = $1"

// head reads the end of a project's chain and locks it.
func (t *tx) head(project string) (head, error) {
	if t.writer != nil {
		if h, ok := t.writer.batch.heads[project]; ok {
			return h, nil
		}
	}
	var h head
	read := func() error {
		return t.row("SELECT seq, hash FROM audit_heads WHERE project_id = $1"+t.forUpdate(), project).Scan(&h.seq, &h.hash)
	}
	err := read()
	if errors.Is(err, sql.ErrNoRows) {
		if _, err := t.exec("INSERT INTO audit_heads (project_id, seq, hash) VALUES ($1, 0, '') ON CONFLICT (project_id) DO NOTHING", project); err != nil {
			return h, err
		}
		err = read()
	}
	return h, err
}

// stored is the row as it will be read again.
func stored(e workbench.AuditEntry) workbench.AuditEntry {
	e.Target, e.Address, e.RequestID = plain(e.Target), plain(e.Address), plain(e.RequestID)
	if len(e.Detail) > 0 {
		var compact, written bytes.Buffer
		if json.Compact(&compact, []byte(plain(string(e.Detail)))) == nil {
			json.HTMLEscape(&written, compact.Bytes()) // as encoding/json writes it when it is exported
			e.Detail = written.Bytes()
		} else {
			e.Detail = json.RawMessage(`{"note":"not representable"}`)
		}
	}
	return e
}

const auditColumns = "a.id, a.at, a.project_id, a.tenant_id, a.user_id, a.key_id, a.action, a.target, a.outcome, a.address, a.request_id, a.detail, a.seq, a.hash"

func scanAudit(s scanner) (workbench.AuditEntry, error) {
	var e workbench.AuditEntry
	var at int64
	var detail string
	err := s.Scan(&e.ID, &at, &e.ProjectID, &e.TenantID, &e.UserID, &e.KeyID, &e.Action, &e.Target, &e.Outcome, &e.Address, &e.RequestID, &detail, &e.Seq, &e.Hash)
	e.At = fromMicros(at)
	if detail != "" {
		e.Detail = json.RawMessage(detail)
	}
	return e, err
}

// ListAudit lists the rows p may see, newest first: an admin its project's, a
// user its own. A key narrowed to a session sees rows about that session.
func (db *DB) ListAudit(ctx context.Context, p workbench.Principal, f workbench.AuditFilter, pg workbench.Page) (workbench.List[workbench.AuditEntry], error) {
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

// auditPage is how many rows of the chain are read at once.
const auditPage = 1000

// AuditChain reads rows of a project's chain after a place in it, in order, a
// page at most.
func (db *DB) AuditChain(ctx context.Context, projectID string, after int64) ([]workbench.AuditEntry, error) {
	return all(ctx, db, scanAudit, "SELECT "+auditColumns+" FROM audit a WHERE a.project_id = $1 AND a.seq > $2 ORDER BY a.seq LIMIT $3", projectID, after, auditPage)
}

// VerifyAudit follows a project's whole chain. A row that was changed, removed or
// added around the store shows; so does a trail whose end was cut off.
func (db *DB) VerifyAudit(ctx context.Context, projectID string) (workbench.AuditCheck, error) {
	var check workbench.AuditCheck
	head, err := db.auditHead(ctx, projectID) // first: rows may be added meanwhile
	if err != nil {
		return check, err
	}
	var v workbench.AuditVerifier
	for {
		rows, err := db.AuditChain(ctx, projectID, check.Rows)
		if err != nil {
			return check, err
		}
		for _, e := range rows {
			if why := v.Next(e); why != "" {
				check.Broken, check.Why = check.Rows+1, why
				return check, nil
			}
			check.Rows, check.Head = v.Head()
			if check.Rows == head.Seq && check.Head != head.Hash {
				check.Broken, check.Why = check.Rows, "the last row is not the one that was written last"
				return check, nil
			}
		}
		if len(rows) < auditPage {
			break
		}
	}
	if check.Rows < head.Seq {
		check.Broken, check.Why = check.Rows+1, "the end of the trail is missing"
		return check, nil
	}
	var forged int64
	check.Unchained, forged, err = db.unchained(ctx, projectID)
	if forged > 0 {
		check.Why = "rows were added without a place in the chain"
	}
	check.Intact = err == nil && forged == 0
	return check, err
}

func (db *DB) auditHead(ctx context.Context, projectID string) (workbench.AuditEntry, error) {
	head, err := one(ctx, db, "audit head", func(s scanner) (workbench.AuditEntry, error) {
		var e workbench.AuditEntry
		err := s.Scan(&e.Seq, &e.Hash)
		return e, err
	}, "SELECT seq, hash FROM audit_heads WHERE project_id = $1", projectID)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return head, nil // nothing has been written yet
	}
	return head, err
}

// unchained counts a project's rows from before there was a chain, and those
// that have no place in it and are younger than its first row.
func (db *DB) unchained(ctx context.Context, projectID string) (old, forged int64, err error) {
	counts, err := one(ctx, db, "audit", func(s scanner) ([2]int64, error) {
		var n [2]int64
		err := s.Scan(&n[0], &n[1])
		return n, err
	}, `SELECT COUNT(*), COALESCE(SUM(CASE WHEN a.id > (SELECT f.id FROM audit f WHERE f.project_id = $1 AND f.seq = 1) THEN 1 ELSE 0 END), 0)
		FROM audit a WHERE a.project_id = $1 AND a.seq = 0`, projectID)
	return counts[0] - counts[1], counts[1], err
}

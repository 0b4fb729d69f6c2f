package store

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

// ActiveTime is active sandbox time of a run, with what it costs.
type ActiveTime struct {
	ID          string // of the row: what is there is not written again
	RunID       string
	Us          int64 // microseconds
	Rate        int64 // millionths a second
	RateVersion string
	At          time.Time // when it was written down
}

// Meter writes active time of runs of one session into the ledger. Errors: not_found,
// fenced.
func (db *DB) Meter(ctx context.Context, sessionID string, epoch int64, used []ActiveTime) error {
	return db.write(ctx, "meter", func(t *tx) error {
		h, err := t.lockFenced(sessionID, epoch, 0)
		if err != nil {
			return err
		}
		return t.meter(h.id, used)
	})
}

// meter writes active time of runs of a locked session.
func (t *tx) meter(sessionID string, used []ActiveTime) error {
	for _, u := range used {
		var charge, left int64
		if u.Rate > 0 {
			var carried int64
			if err := t.row("SELECT charge_rest FROM sessions WHERE id = $1", sessionID).Scan(&carried); err != nil {
				return err
			}
			charge, left = workbench.Charge(u.Us, u.Rate, carried)
		}
		// One that is there was written before it was known that it had been.
		n, err := t.exec(`INSERT INTO usage_ledger (id, at, project_id, tenant_id, user_id, session_id, run_id, key_id, kind, size, us, micros, rate, rate_version)
			SELECT CAST($2 AS TEXT), CAST($3 AS BIGINT), r.project_id, r.tenant_id, r.user_id, r.session_id, r.id, r.key_id, 'active', s.size,
			CAST($4 AS BIGINT), CAST($5 AS BIGINT), CAST($6 AS BIGINT), CAST($7 AS TEXT) FROM runs r JOIN sessions s ON s.id = r.session_id
			WHERE r.id = $1 AND NOT EXISTS (SELECT 1 FROM usage_ledger WHERE id = $2)`,
			u.RunID, u.ID, micros(u.At), u.Us, charge, u.Rate, u.RateVersion)
		if err != nil {
			return err
		}
		if n > 0 && u.Rate > 0 {
			if _, err := t.exec("UPDATE sessions SET charge_rest = $2 WHERE id = $1", sessionID, left); err != nil {
				return err
			}
		}
	}
	return nil
}

// meterTokens writes what a run's use of a language model took.
func (t *tx) meterTokens(runID string, input, output int64) error {
	if input == 0 && output == 0 {
		return nil
	}
	at, err := t.now()
	if err != nil {
		return err
	}
	_, err = t.exec(`INSERT INTO usage_ledger (id, at, project_id, tenant_id, user_id, session_id, run_id, key_id, kind, size, input_tokens, output_tokens)
		SELECT CAST($2 AS TEXT), CAST($3 AS BIGINT), r.project_id, r.tenant_id, r.user_id, r.session_id, r.id, r.key_id, 'tokens', s.size, CAST($4 AS BIGINT), CAST($5 AS BIGINT)
		FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.id = $1`, runID, workbench.NewID(workbench.KindUsage), at, input, output)
	return err
}

// meterRetained writes a file that is retained from now on.
func (t *tx) meterRetained(a workbench.Artifact) error {
	at, err := t.now()
	if err != nil {
		return err
	}
	_, err = t.exec(`INSERT INTO usage_ledger (id, at, project_id, tenant_id, user_id, session_id, run_id, key_id, kind, size, bytes)
		SELECT CAST($1 AS TEXT), CAST($2 AS BIGINT), s.project_id, s.tenant_id, s.user_id, s.id, CAST($4 AS TEXT),
		COALESCE((SELECT r.key_id FROM runs r WHERE r.id = $4), ''), 'retained', s.size, CAST($5 AS BIGINT) FROM sessions s WHERE s.id = $3`,
		workbench.NewID(workbench.KindUsage), at, a.SessionID, a.RunID, a.Size)
	return err
}

// microsOfDay is a day in microseconds.
const microsOfDay = 24 * 60 * 60 * 1_000_000

// usageColumns are what a group is of, by its name.
var usageColumns = map[workbench.UsageGroup]string{
	workbench.UsageBySes: "u.session_id", workbench.UsageByRun: "u.run_id", workbench.UsageByKey: "u.key_id", workbench.UsageByUser: "u.user_id",
	workbench.UsageByTenant: "u.tenant_id", workbench.UsageBySize: "u.size", workbench.UsageByDay: "CAST(u.at / " + strconv.Itoa(microsOfDay) + " AS BIGINT)",
}

const usageSums = "COALESCE(CAST(SUM(u.us) AS BIGINT), 0), COALESCE(CAST(SUM(u.micros) AS BIGINT), 0), COALESCE(CAST(SUM(u.input_tokens) AS BIGINT), 0), " +
	"COALESCE(CAST(SUM(u.output_tokens) AS BIGINT), 0), COALESCE(CAST(SUM(u.bytes) AS BIGINT), 0)"

// Usage sums the part of the ledger that p may see. A group of which nothing is known,
// such as the run of an upload, has no name.
func (db *DB) Usage(ctx context.Context, p workbench.Principal, q workbench.UsageQuery) (workbench.UsageReport, error) {
	report := workbench.UsageReport{GroupBy: q.GroupBy, Items: []workbench.Usage{}}
	l, err := newListing("usage-"+string(q.GroupBy), q.Page)
	if err != nil {
		return report, err
	}
	ask := func(columns string) *query {
		query := newQuery("SELECT "+columns+" FROM usage_ledger u WHERE 1 = 1").visible(p, "u", "session_id").between("u.at", q.Since, q.Until)
		if q.SessionID != "" {
			query.add(" AND u.session_id = ?", q.SessionID)
		}
		return query
	}
	sums := func(s scanner, u *workbench.Usage, first ...any) error {
		return s.Scan(append(first, &u.DurationUs, &u.ChargeMicros, &u.InputTokens, &u.OutputTokens, &u.RetainedBytes)...)
	}
	whole := ask(usageSums)
	report.Total, err = one(ctx, db, "usage", func(s scanner) (u workbench.Usage, err error) { return u, sums(s, &u) }, whole.String(), whole.args...)
	if err != nil || q.GroupBy == workbench.UsageInAll {
		return report, err
	}
	column, ok := usageColumns[q.GroupBy]
	if !ok {
		return report, workbench.E(workbench.CodeInvalidRequest, "there is no such group").WithField("groupBy")
	}
	byDay := q.GroupBy == workbench.UsageByDay
	groups := ask(column + ", " + usageSums)
	switch {
	case l.after != "" && byDay:
		day, err := time.Parse(time.DateOnly, l.after)
		if err != nil {
			return report, workbench.E(workbench.CodeInvalidRequest, "cursor is not one this list gave out").WithField("cursor").WithHint("leave it out to start again")
		}
		groups.add(" AND u.at >= ?", micros(day)+microsOfDay)
	case l.after != "":
		groups.add(" AND "+column+" > ?", l.after)
	}
	groups.add(fmt.Sprintf(" GROUP BY %s ORDER BY %s LIMIT ?", column, column), l.limit+1)
	items, err := all(ctx, db, func(s scanner) (u workbench.Usage, err error) {
		if !byDay {
			return u, sums(s, &u, &u.Group)
		}
		var day int64
		err = sums(s, &u, &day)
		u.Group = fromMicros(day * microsOfDay).UTC().Format(time.DateOnly)
		return u, err
	}, groups.String(), groups.args...)
	list := page(l, items, func(u workbench.Usage) string {
		if u.Group == "" {
			return " " // before every name, behind none
		}
		return u.Group
	})
	report.Items, report.Next = list.Items, list.NextCursor
	if report.Items == nil {
		report.Items = []workbench.Usage{}
	}
	return report, err
}

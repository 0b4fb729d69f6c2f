package api

import (
	"encoding/csv"
	"net/http"
	"strconv"

	"github.com/workbenchdev/workbench"
)

const csvType = "text/csv"

func usageRoutes() []Route {
	var groups []string
	for _, g := range workbench.UsageGroups() {
		groups = append(groups, string(g))
	}
	return []Route{{
		Method: http.MethodGet, Pattern: base + "/usage", ID: "getUsage", Tag: "usage", Summary: "Sum up usage",
		Description: "Active sandbox time, in which concurrent work in one sandbox counts once; its charge; tokens of language models; bytes of files that were retained. Queueing, start, commits and idle sandboxes are no active time. All of it is counted when it is written down: active time at the end of code, and every 30 s while code goes on. " +
			"Sums are exact: those of the groups are the total's. With Accept: text/csv all groups come as lines.",
		Scope: workbench.ScopeRead, Admin: AdminReads, handle: getUsage,
		Params: []Param{{Name: "groupBy", Doc: "what to sum up by; without it there is a total only", Kind: TextParam, Enum: groups},
			{Name: "session", Doc: "only of this session", Kind: TextParam}, sinceParam, untilParam, limitParam, cursorParam},
		Replies: []Reply{{Status: http.StatusOK, Doc: "A page of groups with the total of all of them; as CSV, all groups.", Body: workbench.UsageReport{}, Types: []string{csvType}}},
		Errors:  []workbench.Code{workbench.CodeNotAcceptable},
	}}
}

func getUsage(c *call) error {
	accept := c.r.Header.Values("Accept")
	asJSON, asText := quality(accept, "application/json"), quality(accept, csvType)
	if len(accept) > 0 && asJSON <= 0 && asText <= 0 {
		return workbench.E(workbench.CodeNotAcceptable, "usage comes as application/json or %s", csvType).WithField("Accept").
			WithHint("send Accept: application/json, or %s", csvType)
	}
	q := workbench.UsageQuery{GroupBy: workbench.UsageGroup(c.q.text("groupBy")), SessionID: c.q.text("session"), Since: c.q.time("since"), Until: c.q.time("until"), Page: c.q.page()}
	if c.q.has("session") {
		if err := workbench.ParseID(workbench.KindSession, q.SessionID); err != nil {
			return workbench.AsError(err).WithField("session")
		}
	}
	report, err := c.s.o.Engine.Usage(c.ctx, c.p, q)
	if err != nil {
		return err
	}
	if !q.Since.IsZero() {
		report.Since = &q.Since
	}
	if !q.Until.IsZero() {
		report.Until = &q.Until
	}
	if asText <= asJSON {
		return c.json(http.StatusOK, report)
	}
	return c.usageLines(q, report)
}

// usageLines writes all groups, or without groups the total, as CSV.
func (c *call) usageLines(q workbench.UsageQuery, report workbench.UsageReport) error {
	c.w.Header().Set("Content-Type", csvType+"; charset=utf-8")
	c.w.Header().Set("Cache-Control", "private, no-store")
	w := csv.NewWriter(c.w)
	write := func(u workbench.Usage) {
		line := []string{u.Group}
		for _, n := range []int64{u.DurationUs, u.ChargeMicros, u.InputTokens, u.OutputTokens, u.RetainedBytes} {
			line = append(line, strconv.FormatInt(n, 10))
		}
		_ = w.Write(line) // Flush tells
	}
	group := string(q.GroupBy)
	if group == "" {
		group = "group"
		report.Items = []workbench.Usage{report.Total}
	}
	_ = w.Write([]string{group, "durationUs", "chargeMicros", "inputTokens", "outputTokens", "retainedBytes"})
	for {
		for _, u := range report.Items {
			write(u)
		}
		if w.Flush(); w.Error() != nil {
			return c.w.cutOff(w.Error())
		}
		if q.Cursor = report.Next; q.Cursor == "" {
			return nil
		}
		var err error
		if report, err = c.s.o.Engine.Usage(c.ctx, c.p, q); err != nil {
			return c.w.cutOff(err)
		}
	}
}

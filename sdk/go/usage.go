package sdk

import (
	"context"
	"io"
	"net/url"
	"time"

	"github.com/workbenchdev/workbench"
)

// UsageFilter narrows usage. Zero fields do not filter.
type UsageFilter struct {
	GroupBy      workbench.UsageGroup // "": a total only
	SessionID    string
	Since, Until time.Time
}

func (f UsageFilter) query(page workbench.Page) url.Values {
	q := pageQuery(page)
	if f.GroupBy != "" {
		q.Set("groupBy", string(f.GroupBy))
	}
	if f.SessionID != "" {
		q.Set("session", f.SessionID)
	}
	setTimes(q, f.Since, f.Until)
	return q
}

// Usage sums up what was used: a page of groups, with the total of all of them.
func (c *Client) Usage(ctx context.Context, f UsageFilter, page workbench.Page) (workbench.UsageReport, error) {
	return get[workbench.UsageReport](ctx, c, "/usage", f.query(page))
}

// UsageCSV writes all groups as lines, with a heading.
func (c *Client) UsageCSV(ctx context.Context, f UsageFilter, w io.Writer) error {
	return c.text(ctx, "/usage", f.query(workbench.Page{}), "text/csv", w)
}

package sdk

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

// AuditFilter narrows a list of the audit trail. Zero fields do not filter.
type AuditFilter struct {
	Action       string // such as run.submit
	Target       string // an id
	TenantID     string
	UserID       string
	KeyID        string
	Since, Until time.Time
}

// ListAudit pages the project's audit trail, newest first. Needs an admin key.
func (c *Client) ListAudit(ctx context.Context, f AuditFilter, page workbench.Page) (workbench.List[workbench.AuditEntry], error) {
	q := pageQuery(page)
	for name, value := range map[string]string{"action": f.Action, "target": f.Target, "tenant": f.TenantID, "user": f.UserID, "key": f.KeyID} {
		if value != "" {
			q.Set(name, value)
		}
	}
	setTimes(q, f.Since, f.Until)
	return get[workbench.List[workbench.AuditEntry]](ctx, c, "/audit", q)
}

// VerifyAudit has the server follow its whole audit trail. That something was
// changed is no error. Needs an admin key.
func (c *Client) VerifyAudit(ctx context.Context) (workbench.AuditCheck, error) {
	return get[workbench.AuditCheck](ctx, c, "/audit/verify", nil)
}

// ExportAudit writes the audit trail to w, oldest first, one entry a line as the
// server sends it, behind a place in the chain (0: from the first). It returns
// the place of the last entry written. workbench.AuditVerifier verifies such a
// copy without the server. A connection that is lost is taken up again behind
// the last whole line. Needs an admin key.
func (c *Client) ExportAudit(ctx context.Context, w io.Writer, after int64) (int64, error) {
	for n := 1; ; n++ {
		last, readErr, writeErr := c.exportAudit(ctx, w, after)
		if last > after {
			after, n = last, 1
		}
		switch {
		case writeErr != nil:
			return after, writeErr
		case readErr == nil:
			return after, nil
		case n > c.o.Retries || !worthRepeating(readErr) || c.pause(ctx, n, 0) != nil:
			return after, readErr
		}
	}
}

// exportAudit copies the lines of one answer, and tells a broken connection from
// a broken destination.
func (c *Client) exportAudit(ctx context.Context, w io.Writer, after int64) (last int64, readErr, writeErr error) {
	q := url.Values{}
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	res, err := c.do(ctx, call{method: http.MethodGet, path: "/audit/export", query: q, header: http.Header{"Accept": {"application/x-ndjson"}}, once: true})
	if err != nil {
		return after, err, nil
	}
	defer res.Body.Close()
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	for {
		line, err := readLine(lines)
		switch {
		case err == io.EOF: //nolint:errorlint // readLine returns io.EOF itself
			return after, nil, nil
		case errors.Is(err, errEventTooLarge):
			return after, errAuditLine.Caused(err), nil
		case err != nil:
			return after, c.unreachable(ctx, err), nil
		}
		var e workbench.AuditEntry
		if err := json.Unmarshal(line, &e); err != nil || e.Seq <= after {
			return after, errAuditLine.Caused(err), nil
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return after, nil, err
		}
		after = e.Seq
	}
}

var errAuditLine = workbench.E(workbench.CodeInternal, "the server sent a line that is not the next entry of an audit trail").
	WithHint("check that the address is that of a Workbench server of this version")

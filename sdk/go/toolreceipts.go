package sdk

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

// ToolReceipt reads the receipt of a tool call. With wait > 0 the server answers
// when it is final or the wait (at most MaxPoll) is over. Codes: not_found.
func (c *Client) ToolReceipt(ctx context.Context, id string, wait time.Duration) (workbench.ToolReceipt, error) {
	return c.toolReceipt(ctx, id, wait, false)
}

func (c *Client) toolReceipt(ctx context.Context, id string, wait time.Duration, once bool) (workbench.ToolReceipt, error) {
	q := url.Values{}
	if wait > 0 {
		q.Set("waitMs", strconv.FormatInt(min(wait, MaxPoll).Milliseconds(), 10))
	}
	out, _, err := decode[workbench.ToolReceipt](ctx, c, call{method: http.MethodGet, path: receiptPath(id), query: q, once: once})
	return out, err
}

func receiptPath(id string) string { return "/receipts/" + seg(id) }

// WaitForToolReceipt returns the receipt of a tool call once it is final. It
// reads only; a call that failed, was denied or is unknown is a receipt, not an
// error. A call that waits for an approval is waited for. It ends early with
// ctx, or when the server stays away for longer than the client's patience.
func (c *Client) WaitForToolReceipt(ctx context.Context, id string) (workbench.ToolReceipt, error) {
	away := outage{c: c}
	for {
		receipt, err := c.toolReceipt(ctx, id, MaxPoll, true)
		if err != nil {
			if err := away.again(ctx, err); err != nil {
				return receipt, err
			}
			continue
		}
		away.over()
		if receipt.Status.Terminal() {
			return receipt, nil
		}
		// A server that answers early (it may be shutting down) is not asked
		// again without a breath.
		if err := c.pause(ctx, 1, 0); err != nil {
			return receipt, c.unreachable(ctx, err)
		}
	}
}

// ReceiptFilter narrows a list of receipts. Zero fields do not filter.
type ReceiptFilter struct {
	SessionID string
	RunID     string
	Tool      string // whole name
	Status    workbench.CallStatus
}

// ToolReceipts pages receipts of tool calls, newest first, without arguments and
// results.
func (c *Client) ToolReceipts(ctx context.Context, f ReceiptFilter, page workbench.Page) (workbench.List[workbench.ToolReceipt], error) {
	q := pageQuery(page)
	for name, value := range map[string]string{"session": f.SessionID, "run": f.RunID, "tool": f.Tool, "status": string(f.Status)} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return get[workbench.List[workbench.ToolReceipt]](ctx, c, "/receipts", q)
}

// Approvals pages the tool calls that wait for a decision, newest first, with
// their arguments: who decides has to know them. Needs the scope approve. The
// rules say who may decide which.
func (c *Client) Approvals(ctx context.Context, page workbench.Page) (workbench.List[workbench.ToolReceipt], error) {
	return get[workbench.List[workbench.ToolReceipt]](ctx, c, "/approvals", pageQuery(page))
}

// ApproveCall approves a tool call that waits, for a reason that its receipt
// will give; "" gives none. The call is made once, and may not have ended when
// this returns: WaitForToolReceipt waits for that. It is never repeated by
// itself: where the answer was lost, the receipt tells what was decided. Needs
// the scope approve. Codes: access_denied (the rules do not let this key decide,
// or no longer allow the call), approval_decided, approval_expired,
// tool_changed, tool_not_allowed, connection_not_found, connection_revoked,
// conflict, session_closed, session_expired, not_found.
func (c *Client) ApproveCall(ctx context.Context, id, reason string) (workbench.ToolReceipt, error) {
	return c.decideCall(ctx, id, "/approve", reason)
}

// DenyCall denies a tool call that waits: nothing is called. Otherwise as
// ApproveCall.
func (c *Client) DenyCall(ctx context.Context, id, reason string) (workbench.ToolReceipt, error) {
	return c.decideCall(ctx, id, "/deny", reason)
}

func (c *Client) decideCall(ctx context.Context, id, verdict, reason string) (workbench.ToolReceipt, error) {
	return post[workbench.ToolReceipt](ctx, c, receiptPath(id)+verdict, struct {
		Reason string `json:"reason,omitempty"`
	}{reason})
}

// HeldRun is a run that waits for a decision, with what it would execute.
type HeldRun struct {
	Run  workbench.Run      `json:"run"`
	Spec *workbench.RunSpec `json:"spec,omitempty"` // absent for an admin whom the rules do not let decide
}

// HeldRuns lists the runs that wait for a decision which the rules let this key
// make, newest first; for an admin key also the others. Needs the scope approve.
func (c *Client) HeldRuns(ctx context.Context, page workbench.Page) (workbench.List[HeldRun], error) {
	return get[workbench.List[HeldRun]](ctx, c, "/approvals/runs", pageQuery(page))
}

// ApproveRun lets a run that waits join its queue. Codes: not_found,
// access_denied, approval_decided, approval_expired, session_closed,
// session_expired.
func (c *Client) ApproveRun(ctx context.Context, id, reason string) (workbench.Run, error) {
	return c.decideRun(ctx, id, "approve", reason)
}

// DenyRun ends a run that waits as rejected. Codes: those of ApproveRun.
func (c *Client) DenyRun(ctx context.Context, id, reason string) (workbench.Run, error) {
	return c.decideRun(ctx, id, "deny", reason)
}

func (c *Client) decideRun(ctx context.Context, id, verdict, reason string) (workbench.Run, error) {
	return post[workbench.Run](ctx, c, "/runs/"+seg(id)+"/"+verdict, struct {
		Reason string `json:"reason,omitempty"`
	}{reason})
}

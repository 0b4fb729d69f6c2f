package govern

import (
	"context"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/store"
)

// Verdict is what somebody decides of a call that waits.
type Verdict struct {
	Approve bool
	Reason  string // for the receipt; at most 1000 bytes
}

// Decide decides a call that waits, once. An approved call is executed by this
// server, under rules that are asked again, and only if everything it was
// approved for is still so: arguments, version, connection, session. The receipt
// that comes back is executing then; Receipt waits for its end.
//
// Codes: forbidden (the key may not approve), not_found, access_denied (a rule
// does not let this person decide, or no longer allows the call),
// approval_decided, approval_expired, tool_changed, connection_not_found,
// conflict, session_closed, session_expired.
func (g *Governor) Decide(ctx context.Context, p workbench.Principal, id string, v Verdict) (workbench.ToolReceipt, error) {
	r, err := g.decide(ctx, p, id, v)
	if err != nil {
		g.refused(ctx, p, id, v, err)
	}
	return r, err
}

func (g *Governor) decide(ctx context.Context, p workbench.Principal, id string, v Verdict) (workbench.ToolReceipt, error) {
	if err := p.Require(workbench.ScopeApprove); err != nil {
		return workbench.ToolReceipt{}, err
	}
	if len(v.Reason) > 1000 {
		return workbench.ToolReceipt{}, workbench.E(workbench.CodeInvalidRequest, "reason has at most 1000 bytes").WithField("reason")
	}
	for attempt := 1; ; attempt++ {
		c, err := g.waiting(ctx, p, id)
		if err != nil {
			return workbench.ToolReceipt{}, err
		}
		d, err := c.verdict(ctx, p, v)
		if err != nil {
			return workbench.ToolReceipt{}, err
		}
		r, err := g.o.Store.DecideCall(ctx, d)
		if workbench.HasCode(err, workbench.CodeVersionMismatch) && attempt < decideAgain {
			continue
		}
		if err != nil {
			return workbench.ToolReceipt{}, err
		}
		c.r = r
		if r.Status == workbench.CallExecuting {
			g.work.Go(func() { // waited for by Stop
				if _, err := c.execute(g.ctx); err != nil {
					g.log.Error("the end of an approved call was not recorded", "receipt", id, "err", err)
				}
			})
		}
		return g.open(ctx, p, r)
	}
}

// refused records a decision that did not count.
func (g *Governor) refused(ctx context.Context, p workbench.Principal, id string, v Verdict, why error) {
	e := audit.Entry(p, g.now(), "approval.decide", id, why, map[string]any{"approve": v.Approve})
	if err := g.o.Store.Audit(context.WithoutCancel(ctx), e); err != nil {
		g.log.Error("audit row not written", "id", e.ID, "action", e.Action, "target", e.Target, "outcome", e.Outcome, "err", err)
	}
}

// waiting is a call that somebody is about to decide, as it was asked for.
func (g *Governor) waiting(ctx context.Context, p workbench.Principal, id string) (*call, error) {
	r, err := g.o.Store.ProjectCall(ctx, p.ProjectID, id)
	if err != nil {
		return nil, err
	}
	if !mayLook(p, r) {
		return nil, workbench.ErrNotFound("receipt")
	}
	if r.Status == workbench.CallExpired {
		s, err := g.o.Store.Session(ctx, workbench.SystemPrincipal(), r.SessionID)
		if err == nil {
			err = s.Open(g.now())
		}
		if err != nil {
			return nil, err
		}
		return nil, workbench.E(workbench.CodeApprovalExpired, "nobody decided in time").WithHint("the code has to call again")
	}
	if r.Status != workbench.CallPending {
		return nil, workbench.E(workbench.CodeApprovalDecided, "the call is %s", r.Status).WithHint("a call is decided once; read its receipt")
	}
	return g.asked(ctx, r)
}

// asked is a call that needs an approval, as it was asked for.
func (g *Governor) asked(ctx context.Context, r workbench.ToolReceipt) (*call, error) {
	s, err := g.o.Store.Session(ctx, workbench.SystemPrincipal(), r.SessionID)
	if err != nil {
		return nil, err
	}
	run, err := g.o.Store.Run(ctx, workbench.SystemPrincipal(), r.RunID)
	if err != nil {
		return nil, err
	}
	c := &call{g: g, from: Caller{Session: s, Run: run}, r: r}
	if c.args, err = g.o.Seal.OpenBytes(ctx, r.TenantID, sealedArguments, r.ID, r.SealedArgs); err != nil {
		return nil, err
	}
	c.tool, err = g.tool(ctx, r.ProjectID, workbench.ToolRef{Name: r.Tool, Version: r.Version})
	return c, err
}

// decider asks the rules whether p may decide the call. The connection is the
// one that it was asked for with, whatever its alias means now.
func (c *call) decider(ctx context.Context, p workbench.Principal) (policy.Decision, error) {
	g, s := c.g, c.from.Session
	set, _, err := g.current(ctx, c.r.ProjectID)
	if err != nil {
		return policy.Decision{}, err
	}
	by, err := g.who(ctx, p)
	if err != nil {
		return policy.Decision{}, err
	}
	requester, err := g.identityOf(ctx, s)
	if err != nil {
		return policy.Decision{}, err
	}
	req := policy.Request{Action: policy.ActionApprove, Principal: by, Requester: &requester, Tool: &c.tool, Session: &s, RunID: c.r.RunID,
		Language: c.from.Run.Language, Lane: c.from.Run.Lane, Args: c.args}
	if c.r.ConnectionID != "" {
		conn, err := g.o.Store.Connection(ctx, workbench.SystemPrincipal(), c.r.ConnectionID)
		if err != nil {
			return policy.Decision{}, err
		}
		req.Connection = &conn
	}
	return set.Decide(req), nil
}

// mayLook reports whether somebody who may decide can be told that the call is
// there: in their own tenant, or as an admin; never beyond a key's session.
func mayLook(p workbench.Principal, r workbench.ToolReceipt) bool {
	switch {
	case p.ProjectID != r.ProjectID, p.SessionID != "" && p.SessionID != r.SessionID:
		return false
	case p.Admin():
		return true
	}
	return p.TenantID == r.TenantID
}

// verdict is the decision as it is recorded, if this person may make it.
func (c *call) verdict(ctx context.Context, p workbench.Principal, v Verdict) (store.CallDecision, error) {
	g, s := c.g, c.from.Session
	set, version, err := g.current(ctx, c.r.ProjectID)
	if err != nil {
		return store.CallDecision{}, err
	}
	by, err := g.who(ctx, p)
	if err != nil {
		return store.CallDecision{}, err
	}
	may, err := c.decider(ctx, p)
	if err != nil {
		return store.CallDecision{}, err
	}
	if !may.Allowed {
		return store.CallDecision{}, workbench.E(workbench.CodeAccessDenied, "the rules do not let you decide this call: %s", may.Denied).
			WithHint(`a rule such as permit(principal, action == Action::"approve", resource) says who may`)
	}
	at := g.now().UTC().Truncate(time.Microsecond)
	d := store.CallDecision{ReceiptID: c.r.ID, State: workbench.ApprovalDenied, By: by.UserID, KeyID: p.KeyID, Reason: v.Reason, At: at,
		Trail: audit.Entry(p, at, "approval.decide", c.r.ID, nil, map[string]any{"approve": v.Approve, "tool": c.r.Tool, "version": c.r.Version,
			"session": c.r.SessionID, "arguments": c.r.ArgsDigest})}
	if !v.Approve {
		return d, nil
	}
	conn, err := c.sameConnection(ctx)
	if err != nil {
		return store.CallDecision{}, err
	}
	requester, err := g.identityOf(ctx, s)
	if err != nil {
		return store.CallDecision{}, err
	}
	if err := c.stillAllowed(ctx, set, requester, conn); err != nil {
		return store.CallDecision{}, err
	}
	d.State, d.EngineID, d.Revision, d.Decided = workbench.ApprovalApproved, g.o.EngineID, s.Revision, &store.Decided{RulesVersion: version}
	if conn != nil {
		d.Decided.ConnectionVersion = conn.Version
	}
	return d, nil
}

// who is who decides, in the words of the rules: a user, or a key that is
// nobody's.
func (g *Governor) who(ctx context.Context, p workbench.Principal) (policy.Identity, error) {
	if p.UserID != "" {
		return g.identity(ctx, p.ProjectID, p.TenantID, p.UserID, p.GroupID)
	}
	return policy.Identity{ProjectID: p.ProjectID, UserID: p.KeyID, UserName: p.KeyID}, nil
}

// sameConnection is the connection that the call was asked for with, if its
// alias still means it.
func (c *call) sameConnection(ctx context.Context) (*workbench.Connection, error) {
	if c.r.Alias == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	conn, err := c.g.o.Store.ConnectionFor(ctx, c.from.Session, c.r.Alias)
	if err != nil {
		return nil, err
	}
	if conn.ID != c.r.ConnectionID {
		return nil, workbench.E(workbench.CodeConflict, "the alias %s means another connection now", c.r.Alias).WithField("connection").
			WithHint("deny the call: the code has to call again")
	}
	c.conn = &conn
	return &conn, nil
}

// stillAllowed asks anew whatever a call is asked before it leaves.
func (c *call) stillAllowed(ctx context.Context, set *policy.Set, requester policy.Identity, conn *workbench.Connection) error {
	s := c.from.Session
	if err := s.Open(c.g.now()); err != nil {
		return err
	}
	ref := workbench.ToolRef{Name: c.r.Tool, Version: c.r.Version}
	if !slices.Contains(s.Tools, ref) || c.r.Alias != "" && !slices.Contains(s.Aliases, c.r.Alias) {
		return workbench.E(workbench.CodeToolNotAllowed, "the session does not allow this call any more").
			WithHint("it was configured since: deny the call")
	}
	var err error
	if c.app, err = c.g.app(ctx, s.ProjectID, c.tool.App); err != nil {
		return missingTool(err, ref)
	}
	if c.tool.Digest != c.r.ToolDigest || conn != nil && conn.Provider != c.app.Provider {
		return workbench.E(workbench.CodeToolChanged, "the tool is not what the call was asked for with")
	}
	req := policy.Request{Action: policy.ActionCall, Principal: requester, Tool: &c.tool, Connection: conn, Session: &s, RunID: c.r.RunID,
		Language: c.from.Run.Language, Lane: c.from.Run.Lane, Args: c.args}
	if may := set.Decide(req); !may.Allowed {
		return workbench.E(workbench.CodeAccessDenied, "the rules do not allow the call any more: %s", may.Denied).
			WithHint("deny it, or change the rules")
	}
	return nil
}

// Expire ends calls and runs that nobody decided in time. The server sweeps with
// it.
func (g *Governor) Expire(ctx context.Context) error {
	const batch = 100
	for {
		ended, err := g.o.Store.ExpireCalls(ctx, g.now(), batch)
		if err != nil {
			return err
		}
		runs, err := g.o.Store.ExpireRuns(ctx, g.now(), batch)
		if err != nil || len(ended) < batch && runs < batch {
			return err
		}
	}
}

package govern

import (
	"context"
	"encoding/json"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/store"
)

// Hold asks the rules whether a run has to be approved before it starts, and for
// what; nil if not. The number is that of the rules.
func (g *Governor) Hold(ctx context.Context, s workbench.Session, run workbench.Run) (*workbench.Approval, int64, error) {
	set, version, err := g.current(ctx, s.ProjectID)
	if err != nil {
		return nil, 0, err
	}
	who, err := g.identityOf(ctx, s)
	if err != nil {
		return nil, 0, err
	}
	hold := set.Decide(policy.Request{Action: policy.ActionHoldRun, Principal: who, Session: &s, RunID: run.ID, Language: run.Language, Lane: run.Lane})
	if !hold.Allowed {
		return nil, version, nil
	}
	return &workbench.Approval{State: workbench.ApprovalPending, Rules: hold.Rules, Why: hold.Why,
		ExpiresAt: g.now().UTC().Truncate(time.Microsecond).Add(hold.Expiry)}, version, nil
}

// HeldRun is a run that waits for a decision, with what it would execute: who
// decides has to know that.
type HeldRun struct {
	Run  workbench.Run      `json:"run"`
	Spec *workbench.RunSpec `json:"spec,omitempty"` // absent for an admin whom the rules do not let decide
}

// HeldRuns lists the runs that wait for a decision which the rules let p make,
// newest first; for an admin also the others, without what they would execute.
// A page may be shorter than asked for, and not the last.
func (g *Governor) HeldRuns(ctx context.Context, p workbench.Principal, page workbench.Page) (workbench.List[HeldRun], error) {
	out := workbench.List[HeldRun]{Items: []HeldRun{}}
	if err := p.Require(workbench.ScopeApprove); err != nil {
		return out, err
	}
	list, err := g.o.Store.HeldRuns(ctx, p, page)
	out.NextCursor = list.NextCursor
	for _, r := range list.Items {
		may, _, err := g.mayStart(ctx, p, r)
		if err != nil {
			return out, err
		}
		held := HeldRun{Run: r}
		switch {
		case may.Allowed:
			if held.Spec, err = g.spec(ctx, r); err != nil {
				return out, err
			}
		case !p.Admin():
			continue
		}
		held.Run.Sealed = nil
		out.Items = append(out.Items, held)
	}
	return out, err
}

func (g *Governor) spec(ctx context.Context, r workbench.Run) (*workbench.RunSpec, error) {
	plain, err := g.o.Seal.OpenBytes(ctx, r.TenantID, "spec", r.ID, r.Sealed)
	if err != nil {
		return nil, err
	}
	var spec workbench.RunSpec
	if err := json.Unmarshal(plain, &spec); err != nil {
		return nil, workbench.E(workbench.CodeCorrupt, "the stored submission is damaged").Caused(err)
	}
	return &spec, nil
}

// mayStart asks the rules whether p may decide about a run.
func (g *Governor) mayStart(ctx context.Context, p workbench.Principal, r workbench.Run) (policy.Decision, int64, error) {
	s, err := g.o.Store.Session(ctx, workbench.SystemPrincipal(), r.SessionID)
	if err != nil {
		return policy.Decision{}, 0, err
	}
	set, version, err := g.current(ctx, r.ProjectID)
	if err != nil {
		return policy.Decision{}, 0, err
	}
	by, err := g.who(ctx, p)
	if err != nil {
		return policy.Decision{}, 0, err
	}
	requester, err := g.identityOf(ctx, s)
	if err != nil {
		return policy.Decision{}, 0, err
	}
	return set.Decide(policy.Request{Action: policy.ActionApproveRun, Principal: by, Requester: &requester, Session: &s, RunID: r.ID,
		Language: r.Language, Lane: r.Lane}), version, nil
}

// DecideRun decides a run that waits, once: an approved one joins its queue,
// another one ends as rejected.
//
// Codes: forbidden (the key may not approve), not_found, access_denied (the rules
// do not let this person decide), approval_decided, approval_expired,
// session_closed, session_expired.
func (g *Governor) DecideRun(ctx context.Context, p workbench.Principal, id string, v Verdict) (workbench.Run, error) {
	r, err := g.decideRun(ctx, p, id, v)
	if err != nil {
		g.refused(ctx, p, id, v, err)
	}
	return r, err
}

func (g *Governor) decideRun(ctx context.Context, p workbench.Principal, id string, v Verdict) (workbench.Run, error) {
	if err := p.Require(workbench.ScopeApprove); err != nil {
		return workbench.Run{}, err
	}
	if len(v.Reason) > 1000 {
		return workbench.Run{}, workbench.E(workbench.CodeInvalidRequest, "reason has at most 1000 bytes").WithField("reason")
	}
	for attempt := 1; ; attempt++ {
		r, err := g.o.Store.Run(ctx, workbench.SystemPrincipal(), id)
		if err != nil {
			return workbench.Run{}, err
		}
		owned := workbench.ToolReceipt{ProjectID: r.ProjectID, TenantID: r.TenantID, SessionID: r.SessionID}
		if !mayLook(p, owned) || r.Approval == nil {
			return workbench.Run{}, workbench.ErrNotFound("run")
		}
		may, version, err := g.mayStart(ctx, p, r)
		if err != nil {
			return workbench.Run{}, err
		}
		if !may.Allowed {
			return workbench.Run{}, workbench.E(workbench.CodeAccessDenied, "the rules do not let you decide this run: %s", may.Denied).
				WithHint(`a rule such as permit(principal, action == Action::"approveRun", resource) says who may`)
		}
		by, err := g.who(ctx, p)
		if err != nil {
			return workbench.Run{}, err
		}
		at := g.now().UTC().Truncate(time.Microsecond)
		d := store.RunDecision{RunID: id, State: workbench.ApprovalDenied, By: by.UserID, KeyID: p.KeyID, Reason: v.Reason, At: at, Rules: version,
			Trail: audit.Entry(p, at, "approval.decide", id, nil, map[string]any{"approve": v.Approve, "run": id, "session": r.SessionID})}
		if v.Approve {
			d.State = workbench.ApprovalApproved
		}
		r, err = g.o.Store.DecideRun(ctx, d)
		if workbench.HasCode(err, workbench.CodeVersionMismatch) && attempt < decideAgain {
			continue
		}
		r.Sealed = nil
		return r, err
	}
}

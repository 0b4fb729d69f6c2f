package govern

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// MaxReceiptWait bounds how long a receipt is waited for.
const MaxReceiptWait = 60 * time.Second

// Receipt reads a receipt and, with a wait, reads it again until it is final,
// or the wait is over. Code: not_found.
func (g *Governor) Receipt(ctx context.Context, p workbench.Principal, id string, wait time.Duration) (workbench.ToolReceipt, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.ToolReceipt{}, err
	}
	sub := g.o.Store.Subscribe(store.CallTopic(id))
	defer sub.Close()
	until := time.After(min(wait, MaxReceiptWait))
	for {
		r, err := g.look(ctx, p, id)
		if err != nil || r.Status.Terminal() || wait <= 0 {
			return r, err
		}
		select {
		case <-sub.C:
		case <-until:
			return r, nil
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}

// look reads a receipt: the owner's, or one that p may have to decide.
func (g *Governor) look(ctx context.Context, p workbench.Principal, id string) (workbench.ToolReceipt, error) {
	r, err := g.o.Store.CallReceipt(ctx, p, id)
	if workbench.HasCode(err, workbench.CodeNotFound) && p.Has(workbench.ScopeApprove) {
		if r, err = g.o.Store.ProjectCall(ctx, p.ProjectID, id); err == nil {
			var may bool
			if may, err = g.mayDecide(ctx, p, r); err == nil && !may {
				err = workbench.ErrNotFound("receipt")
			}
		}
	}
	if err != nil {
		return workbench.ToolReceipt{}, err
	}
	return g.open(ctx, p, r)
}

// mayDecide reports whether the rules let p decide a call that needs, or needed,
// an approval.
func (g *Governor) mayDecide(ctx context.Context, p workbench.Principal, r workbench.ToolReceipt) (bool, error) {
	if !p.Has(workbench.ScopeApprove) || r.Approval == nil || !mayLook(p, r) {
		return false, nil
	}
	c, err := g.asked(ctx, r)
	if err != nil {
		return false, err
	}
	may, err := c.decider(ctx, p)
	return may.Allowed, err
}

// Receipts lists the receipts p may see, newest first, without contents.
func (g *Governor) Receipts(ctx context.Context, p workbench.Principal, f store.CallFilter, page workbench.Page) (workbench.List[workbench.ToolReceipt], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.ToolReceipt]{}, err
	}
	return g.o.Store.CallReceipts(ctx, p, f, page)
}

// Waiting lists the calls that wait for a decision which the rules let p make,
// newest first, with their arguments; for an admin also the others, without. A
// page may be shorter than asked for, and not the last.
func (g *Governor) Waiting(ctx context.Context, p workbench.Principal, page workbench.Page) (workbench.List[workbench.ToolReceipt], error) {
	if err := p.Require(workbench.ScopeApprove); err != nil {
		return workbench.List[workbench.ToolReceipt]{}, err
	}
	list, err := g.o.Store.PendingCalls(ctx, p, page)
	waiting := list.Items
	list.Items = []workbench.ToolReceipt{}
	for _, r := range waiting {
		may, err := g.mayDecide(ctx, p, r)
		if err != nil {
			return list, err
		}
		if !may && !p.Admin() { // whom the rules do not let decide has no use for what others ask
			continue
		}
		shown, err := g.open(ctx, p, r)
		if err != nil {
			return list, err
		}
		list.Items = append(list.Items, shown)
	}
	return list, err
}

// open shows the contents of a receipt to who may read them: the owner, who may
// still use what it came from; and, of a call that waits, who may have to decide:
// the arguments, if the owner may still read what those came from.
func (g *Governor) open(ctx context.Context, p workbench.Principal, r workbench.ToolReceipt) (workbench.ToolReceipt, error) {
	owner := p.MayReadContents(r.Owner())
	asked := owner
	if !owner {
		var err error
		if asked, err = g.mayDecide(ctx, p, r); err != nil {
			return r, err
		}
	}
	if !asked {
		return r, nil
	}
	// What it was called with may hold what its session had learned by then; so may the
	// answer, which came from the tool besides.
	on, err := g.o.Store.DependenciesBefore(ctx, r.SessionID, r.CreatedAt)
	if err != nil {
		return r, err
	}
	if withheld, err := g.withheld(ctx, p, r.SessionID, on); err != nil || withheld != nil {
		return hidden(r, withheld), err
	}
	if len(r.SealedArgs) > 0 {
		plain, err := g.o.Seal.OpenBytes(ctx, r.TenantID, sealedArguments, r.ID, r.SealedArgs)
		if err != nil {
			return r, err
		}
		r.Arguments = plain
	}
	if !owner || len(r.SealedResult) == 0 {
		return r, nil
	}
	own := []workbench.Dependency{{Tool: r.Tool, Version: r.Version, Alias: r.Alias, ConnectionID: r.ConnectionID}}
	if withheld, err := g.withheld(ctx, p, r.SessionID, own); err != nil || withheld != nil {
		return hidden(r, withheld), err
	}
	plain, err := g.o.Seal.OpenBytes(ctx, r.TenantID, sealedResult, r.ID, r.SealedResult)
	if err != nil {
		return r, err
	}
	var kept result
	if err := json.Unmarshal(plain, &kept); err != nil {
		return r, workbench.E(workbench.CodeCorrupt, "the stored result is damaged").Caused(err)
	}
	r.Result, r.Preview = kept.Result, kept.Preview
	return r, nil
}

// hidden is a receipt whose contents are withheld, what its tool says of a failure
// included.
func hidden(r workbench.ToolReceipt, why *workbench.CallError) workbench.ToolReceipt {
	r.Withheld = why
	if r.Error != nil && r.Error.Code == workbench.CodeToolFailed {
		r.Error = &workbench.CallError{Code: r.Error.Code, Detail: "the tool reports a failure; what it says is withheld"}
	}
	return r
}

// withheld is why MayRead refuses, if it does.
func (g *Governor) withheld(ctx context.Context, p workbench.Principal, sessionID string, on []workbench.Dependency) (*workbench.CallError, error) {
	err := g.MayRead(ctx, p, sessionID, on)
	if workbench.HasCode(err, workbench.CodeAccessDenied) {
		return callError(err), nil
	}
	return nil, err
}

// MayRead refuses who may not use, now, every tool and connection that something
// of a session depends on. It asks whether the rules would allow the session's
// owner the call with some arguments. Code: access_denied, naming the first.
func (g *Governor) MayRead(ctx context.Context, p workbench.Principal, sessionID string, on []workbench.Dependency) error {
	if len(on) == 0 || p.System() {
		return nil
	}
	s, err := g.o.Store.Session(ctx, workbench.SystemPrincipal(), sessionID)
	if err != nil {
		return err
	}
	set, _, err := g.current(ctx, s.ProjectID)
	if err != nil {
		return err
	}
	who, err := g.identityOf(ctx, s)
	if err != nil {
		return err
	}
	for _, d := range on {
		if err := g.mayUse(ctx, set, who, s, d); err != nil {
			return err
		}
	}
	return nil
}

func (g *Governor) mayUse(ctx context.Context, set *policy.Set, who policy.Identity, s workbench.Session, d workbench.Dependency) error {
	withheld := func(why string) error {
		return workbench.E(workbench.CodeAccessDenied, "this was made with %s, which may not be used any more: %s", d.Tool, why).
			WithHint("it can be read again once the rules, and the connection, allow the tool again")
	}
	req, err := g.reading(ctx, who, s, d)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return withheld("it is gone")
	}
	if err != nil {
		return err
	}
	if d.ConnectionID != "" {
		conn, err := g.o.Store.Connection(ctx, workbench.SystemPrincipal(), d.ConnectionID)
		switch {
		case workbench.HasCode(err, workbench.CodeNotFound) || err == nil && conn.RevokedAt != nil:
			return withheld("its connection was revoked")
		case err != nil:
			return err
		case !conn.Serves(s):
			return withheld("its connection is not this session's")
		}
		req.Connection = &conn
	}
	if may := set.Decide(req); !may.Allowed {
		return withheld(may.Denied)
	}
	return nil
}

// reading is what is asked of the rules about something that came from a tool, or
// from a host: whether what it came from might be asked for now.
func (g *Governor) reading(ctx context.Context, who policy.Identity, s workbench.Session, d workbench.Dependency) (policy.Request, error) {
	if place, ok := strings.CutPrefix(d.Tool, fetched); ok {
		u, err := url.Parse(place)
		if err != nil {
			return policy.Request{}, workbench.ErrNotFound("host")
		}
		method, path, _ := strings.Cut(d.Version, " ")
		u.Path = path
		req := fetchRequest(upstream.FetchRequest{URL: u, Method: method})
		req.Principal, req.Session = who, &s
		return req, nil
	}
	tool, err := g.tool(ctx, s.ProjectID, workbench.ToolRef{Name: d.Tool, Version: d.Version})
	return policy.Request{Action: policy.ActionCall, Principal: who, Tool: &tool, Session: &s, AnyArguments: true}, err
}

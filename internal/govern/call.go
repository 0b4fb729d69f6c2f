package govern

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/failpoint"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/store"
)

// Caller is the run that calls, as the engine knows it: nothing of it comes from
// the sandbox.
type Caller struct {
	Session workbench.Session // under the revision that the run was submitted under
	Run     workbench.Run
	Epoch   int64 // lease epoch under which the engine acts
	// Together is where the records of the run's calls meet; nil: each is made by itself.
	Together *store.Together
}

// CallRequest is what code asks for. All of it is hostile.
type CallRequest struct {
	Tool       string
	Version    string // empty: the one that the session allows, if it is one
	Connection string // alias; empty: none
	Arguments  json.RawMessage
}

// decideAgain bounds how often a decision is made again because rules, or
// credentials, changed between it and its record.
const decideAgain = 10

// call is one call on its way.
type call struct {
	g    *Governor
	from Caller
	tool workbench.Tool
	app  workbench.App
	conn *workbench.Connection
	args json.RawMessage
	r    workbench.ToolReceipt
	// fresh: rules and app are read anew. Else they are those that were last seen:
	// the transaction that records the call refuses a decision under older ones.
	fresh bool
	// decided is what the decision stands on; nil of one that depends on nothing
	// that may change.
	decided *store.Decided
}

// Call takes a call of code to its receipt. What the tool, a rule or a person
// says is the receipt's status; an error is the code's own mistake (it has a
// receipt too, which is returned), or the server's.
//
// Codes: tool_not_allowed, connection_not_allowed, connection_not_found,
// arguments_invalid, body_too_large, tool_calls_exhausted, conflict (the run has
// ended), fenced, unavailable.
func (g *Governor) Call(ctx context.Context, from Caller, req CallRequest) (workbench.ToolReceipt, error) {
	here := from.Together.Expect(0)
	defer here()
	for attempt := 1; ; attempt++ {
		c := &call{g: g, from: from, fresh: attempt > 1}
		mistake := c.prepare(ctx, req)
		if mistake != nil && !c.fresh {
			continue // it may have been mended
		}
		if mistake != nil && workbench.ClassOf(workbench.CodeOf(mistake)).HTTP >= 500 {
			return workbench.ToolReceipt{}, mistake
		}
		if mistake != nil {
			c.refuse(workbench.CallFailed, mistake, nil)
		} else if err := c.decide(ctx); err != nil {
			return workbench.ToolReceipt{}, err
		}
		here()
		err := c.begin(ctx)
		if workbench.HasCode(err, workbench.CodeVersionMismatch) && attempt < decideAgain {
			continue
		}
		if err != nil {
			return workbench.ToolReceipt{}, err
		}
		if c.r.Status == workbench.CallExecuting {
			return c.execute(ctx)
		}
		return c.r, mistake
	}
}

// prepare finds what the request names, and judges it without the rules.
func (c *call) prepare(ctx context.Context, req CallRequest) error {
	s, run := c.from.Session, c.from.Run
	now := c.g.now()
	c.r = workbench.ToolReceipt{ID: workbench.NewID(workbench.KindReceipt), ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, SessionID: s.ID,
		RunID: run.ID, Revision: run.Revision, Tool: bounded(req.Tool), Version: bounded(req.Version), Alias: bounded(req.Connection),
		Rules: []string{}, CreatedAt: now.UTC().Truncate(time.Microsecond), EngineID: c.g.o.EngineID}
	args, digest, err := canonical(req.Arguments)
	c.args, c.r.ArgsDigest = args, digest
	if err != nil {
		return err
	}
	ref, err := allowed(s, req)
	if err != nil {
		return err
	}
	c.r.Version = ref.Version
	if c.fresh {
		c.g.forgetTool(s.ProjectID, ref)
	}
	if c.tool, err = c.g.tool(ctx, s.ProjectID, ref); err != nil {
		return missingTool(err, ref)
	}
	if c.tool.State == workbench.ToolWithdrawn {
		return missingTool(workbench.ErrNotFound("tool"), ref)
	}
	c.r.ToolDigest = c.tool.Digest
	if c.app, err = c.g.seenApp(ctx, s.ProjectID, c.tool.App, c.fresh); err != nil {
		return missingTool(err, ref)
	}
	if err := c.connect(ctx, req.Connection); err != nil {
		return err
	}
	return c.g.arguments(c.tool, c.args)
}

// bounded keeps what code named on a receipt, without letting it fill one.
func bounded(s string) string {
	if len(s) > workbench.MaxToolName {
		s = s[:workbench.MaxToolName]
	}
	return s
}

// allowed is the tool's version that the session allows.
func allowed(s workbench.Session, req CallRequest) (workbench.ToolRef, error) {
	var versions []string
	for _, t := range s.Tools {
		if t.Name == req.Tool {
			if t.Version == req.Version {
				return t, nil
			}
			versions = append(versions, t.Version)
		}
	}
	switch {
	case len(versions) == 0:
		return workbench.ToolRef{}, workbench.E(workbench.CodeToolNotAllowed, "this session does not allow a tool of that name").WithField("tool").
			WithHint("tools.search lists the tools that it allows; a session is configured with more, by name and version, from outside")
	case req.Version == "" && len(versions) == 1:
		return workbench.ToolRef{Name: req.Tool, Version: versions[0]}, nil
	}
	return workbench.ToolRef{}, workbench.E(workbench.CodeToolNotAllowed, "this session does not allow the tool at that version").WithField("version").
		WithHint("it allows %s", quoted(versions))
}

func missingTool(err error, ref workbench.ToolRef) error {
	if !workbench.HasCode(err, workbench.CodeNotFound) {
		return err
	}
	return workbench.E(workbench.CodeToolNotFound, "%s at version %s is not there any more", ref.Name, ref.Version).WithField("tool").
		WithHint("its app was removed, or does not offer it any more: ask who manages the project's tools")
}

// connect finds the connection that an alias means in the session now.
func (c *call) connect(ctx context.Context, alias string) error {
	s := c.from.Session
	if alias == "" {
		if c.app.NeedsConnection {
			return workbench.E(workbench.CodeConnectionNotFound, "%s is called with a connection", c.tool.Name).WithField("connection").
				WithHint("name one of the session's: %s", quoted(s.Aliases))
		}
		return nil
	}
	if !slices.Contains(s.Aliases, alias) {
		return workbench.E(workbench.CodeConnectionRefused, "this session does not allow a connection of that alias").WithField("connection").
			WithHint("it allows %s; a session is configured with more from outside", quoted(s.Aliases))
	}
	conn, err := c.g.o.Store.ConnectionFor(ctx, s, alias)
	if err != nil {
		return err
	}
	if conn.Provider != c.app.Provider {
		return workbench.E(workbench.CodeConnectionRefused, "the connection %s is for %s, the tool needs one for %s", alias, conn.Provider, c.app.Provider).
			WithField("connection").WithHint("tools.search says which connections a tool can be called with")
	}
	c.conn, c.r.ConnectionID = &conn, conn.ID
	return nil
}

// decide asks the rules.
func (c *call) decide(ctx context.Context) error {
	set, version, err := c.g.seenRules(ctx, c.r.ProjectID, c.fresh)
	if err != nil {
		return err
	}
	who, err := c.g.identityOf(ctx, c.from.Session)
	if err != nil {
		return err
	}
	c.decided = &store.Decided{RulesVersion: version, AppVersion: c.app.Version}
	if c.conn != nil {
		c.decided.ConnectionVersion = c.conn.Version
	}
	req := policy.Request{Action: policy.ActionCall, Principal: who, Tool: &c.tool, Connection: c.conn, Session: &c.from.Session, RunID: c.r.RunID,
		Language: c.from.Run.Language, Lane: c.from.Run.Lane, Args: c.args}
	may := set.Decide(req)
	c.r.Rules = may.Rules
	if !may.Allowed {
		c.refuse(workbench.CallDenied, workbench.E(workbench.CodeAccessDenied, "the rules do not allow this call: %s", may.Denied).
			WithHint("workbench policy explain %s says why; who manages the project's rules can change them", c.r.ID), c.decided)
		return nil
	}
	req.Action = policy.ActionRequireApproval
	if hold := set.Decide(req); hold.Allowed {
		c.r.Status = workbench.CallPending
		c.r.Approval = &workbench.Approval{State: workbench.ApprovalPending, Rules: hold.Rules, Why: hold.Why, ExpiresAt: c.r.CreatedAt.Add(hold.Expiry)}
		return nil
	}
	c.leave()
	return nil
}

func (c *call) leave() {
	at := c.g.now().UTC().Truncate(time.Microsecond)
	c.r.Status, c.r.StartedAt = workbench.CallExecuting, &at
}

// refuse ends the call before anything leaves.
func (c *call) refuse(status workbench.CallStatus, why error, decided *store.Decided) {
	at := c.g.now().UTC().Truncate(time.Microsecond)
	c.r.Status, c.r.FinishedAt, c.r.Error, c.decided = status, &at, callError(why), decided
}

func callError(err error) *workbench.CallError {
	e := workbench.AsError(err)
	return &workbench.CallError{Code: e.Code, Detail: e.Detail, Hint: e.Hint, Field: e.Field}
}

// begin records the intent.
func (c *call) begin(ctx context.Context) error {
	var err error
	if c.args != nil {
		if c.r.SealedArgs, err = c.g.o.Seal.SealBytes(ctx, c.r.TenantID, sealedArguments, c.r.ID, c.args); err != nil {
			return err
		}
	}
	var outcome error
	if c.r.Error != nil {
		outcome = workbench.E(c.r.Error.Code, "refused")
	}
	in := store.CallIntent{Receipt: c.r, Epoch: c.from.Epoch, Limit: c.from.Session.Limits.ToolCalls, Decided: c.decided,
		Trail: c.trail("tool.call", outcome), Together: c.from.Together}
	if err := failpoint.Hit("govern.intent.before"); err != nil {
		return err
	}
	begun, err := c.g.o.Store.BeginCall(ctx, in)
	if err != nil {
		return err
	}
	c.r = begun
	return failpoint.Hit("govern.intent.after")
}

// trail is a row of the call: who, which tool, with what, and no contents.
func (c *call) trail(action string, outcome error) workbench.AuditEntry {
	return trailOf(c.r, c.g.now(), action, outcome)
}

func trailOf(r workbench.ToolReceipt, at time.Time, action string, outcome error) workbench.AuditEntry {
	p := workbench.Principal{ProjectID: r.ProjectID, TenantID: r.TenantID, UserID: r.UserID}
	notes := map[string]any{"tool": r.Tool, "version": r.Version, "run": r.RunID, "session": r.SessionID, "status": string(r.Status), "arguments": r.ArgsDigest}
	if r.Alias != "" {
		notes["connection"], notes["connectionId"] = r.Alias, r.ConnectionID
	}
	if len(r.Rules) > 0 {
		notes["rules"] = r.Rules
	}
	return audit.Entry(p, at, action, r.ID, outcome, notes)
}

const (
	sealedArguments   = "tool arguments"
	sealedResult      = "tool result"
	sealedCredentials = "credentials"
)

func quoted(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	out := ""
	for i, n := range names {
		if i > 0 {
			out += ", "
		}
		out += fmt.Sprintf("%q", n)
	}
	return out
}

package govern

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/store"
)

// Rules reads the project's rules with their number.
func (g *Governor) Rules(ctx context.Context, p workbench.Principal) (store.RuleSet, error) {
	if err := manages(p); err != nil {
		return store.RuleSet{}, err
	}
	return g.o.Store.Rules(ctx, p.ProjectID)
}

// ChangeRules puts and removes rules, all or none, after a look at all that the
// project has then. They count from the moment it returns. expected, when not 0,
// must be the number of the rules as they are. Warnings come with success.
//
// Codes: forbidden, invalid_request, rule_invalid (naming rule, line and
// column), version_mismatch, not_found, quota_exceeded.
func (g *Governor) ChangeRules(ctx context.Context, p workbench.Principal, expected int64, put []workbench.Rule, remove []string) (store.RuleSet, []policy.Problem, error) {
	if err := manages(p); err != nil {
		return store.RuleSet{}, nil, err
	}
	for _, r := range put {
		if err := ruleName(r.Name); err != nil {
			return store.RuleSet{}, nil, err
		}
		if len(r.Text) > workbench.MaxRuleText {
			return store.RuleSet{}, nil, workbench.E(workbench.CodeBodyTooLarge, "a rule has at most %d bytes", workbench.MaxRuleText).WithField("text")
		}
	}
	var warnings []policy.Problem
	check := func(all []workbench.Rule) error {
		set, problems := policy.Compile(all)
		warnings = problems
		if set == nil {
			return ruleError(problems)
		}
		return nil
	}
	var names []string
	for _, r := range put {
		names = append(names, r.Name)
	}
	now := g.now()
	set, err := g.o.Store.ChangeRules(ctx, p.ProjectID, expected, put, remove, now, p.KeyID, check,
		audit.Entry(p, now, "rules.change", p.ProjectID, nil, map[string]any{"put": names, "removed": remove}))
	return set, warnings, err
}

func ruleName(name string) error {
	if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		return workbench.E(workbench.CodeInvalidRequest, "a rule's name has 1 to 64 lower-case letters, digits, _ or -").WithField("name")
	}
	return nil
}

// ruleError is the first problem that makes rules invalid, with all of them in
// its detail.
func ruleError(problems []policy.Problem) error {
	var first *workbench.Error
	n := 0
	for _, p := range problems {
		if p.Warning {
			continue
		}
		if n++; first == nil {
			where := p.Rule
			if p.Line > 0 {
				where = fmt.Sprintf("%s, line %d, column %d", p.Rule, p.Line, p.Column)
			}
			first = workbench.E(workbench.CodeRuleInvalid, "%s: %s", where, p.Message).WithField("text").WithHint("%s", p.Hint)
		}
	}
	if first == nil {
		return errors.New("the rules do not compile")
	}
	if n > 1 {
		first.Detail += fmt.Sprintf(" (and %d more)", n-1)
	}
	return first
}

// Question is a call that might be made, for which the rules are asked what they
// would say. Or the receipt of one that was.
type Question struct {
	ReceiptID  string
	SessionID  string
	Tool       workbench.ToolRef
	Connection string
	Arguments  json.RawMessage
	run        *workbench.Run // that made the call; nil of one that was not made
	// Rules, when not nil, are asked in place of the project's.
	Rules []workbench.Rule
}

// Explanation is what the rules say to a call.
type Explanation struct {
	Outcome  string   `json:"outcome"` // allowed, needs_approval, denied
	Why      string   `json:"why"`
	Rules    []string `json:"rules"`              // that allow, or forbid
	Approval []string `json:"approval,omitempty"` // that ask for an approval
	Errors   []string `json:"errors,omitempty"`   // policies that could not be evaluated
	Version  int64    `json:"rulesVersion"`
}

// Explain asks the rules about a call without making it. Codes: forbidden,
// not_found, tool_not_found, connection_not_found, rule_invalid, and those that
// a call's mistakes have.
func (g *Governor) Explain(ctx context.Context, p workbench.Principal, q Question) (Explanation, error) {
	if err := manages(p); err != nil {
		return Explanation{}, err
	}
	if q.ReceiptID != "" {
		r, err := g.o.Store.ProjectCall(ctx, p.ProjectID, q.ReceiptID)
		if err != nil {
			return Explanation{}, err
		}
		q.SessionID, q.Tool, q.Connection = r.SessionID, workbench.ToolRef{Name: r.Tool, Version: r.Version}, r.Alias
		run, err := g.o.Store.Run(ctx, p, r.RunID)
		if err != nil {
			return Explanation{}, err
		}
		q.run = &run
		if len(r.SealedArgs) > 0 {
			if q.Arguments, err = g.o.Seal.OpenBytes(ctx, r.TenantID, sealedArguments, r.ID, r.SealedArgs); err != nil {
				return Explanation{}, err
			}
		}
	}
	s, err := g.o.Store.Session(ctx, p, q.SessionID)
	if err != nil {
		return Explanation{}, err
	}
	set, version, err := g.rulesOf(ctx, p, q.Rules)
	if err != nil {
		return Explanation{}, err
	}
	req, err := g.question(ctx, s, q)
	if err != nil {
		return Explanation{}, err
	}
	return explain(set, version, req), nil
}

func (g *Governor) rulesOf(ctx context.Context, p workbench.Principal, rules []workbench.Rule) (*policy.Set, int64, error) {
	if rules == nil {
		return g.current(ctx, p.ProjectID)
	}
	set, problems := policy.Compile(rules)
	if set == nil {
		return nil, 0, ruleError(problems)
	}
	return set, 0, nil
}

func (g *Governor) question(ctx context.Context, s workbench.Session, q Question) (policy.Request, error) {
	args, _, err := canonical(q.Arguments)
	if err != nil {
		return policy.Request{}, workbench.AsError(err).WithField("arguments")
	}
	tool, err := g.tool(ctx, s.ProjectID, q.Tool)
	if err != nil {
		return policy.Request{}, missingTool(err, q.Tool)
	}
	if q.ReceiptID == "" && len(q.Arguments) > 0 {
		if err := g.arguments(tool, args); err != nil { // such a call never gets to the rules
			e := workbench.AsError(err)
			return policy.Request{}, e.WithField("arguments" + strings.TrimPrefix(e.Field, "args"))
		}
	}
	who, err := g.identityOf(ctx, s)
	if err != nil {
		return policy.Request{}, err
	}
	req := policy.Request{Action: policy.ActionCall, Principal: who, Tool: &tool, Session: &s, Language: workbench.Python, Lane: workbench.LaneForeground, Args: args}
	if q.run != nil {
		req.RunID, req.Language, req.Lane = q.run.ID, q.run.Language, q.run.Lane
	}
	if q.Connection != "" {
		conn, err := g.o.Store.ConnectionFor(ctx, s, q.Connection)
		if err != nil {
			return policy.Request{}, err
		}
		req.Connection = &conn
	}
	return req, nil
}

func explain(set *policy.Set, version int64, req policy.Request) Explanation {
	may := set.Decide(req)
	e := Explanation{Outcome: "denied", Why: may.Denied, Rules: may.Rules, Errors: may.Errors, Version: version}
	if !may.Allowed {
		return e
	}
	e.Outcome, e.Why = "allowed", "allowed by "+strings.Join(may.Rules, ", ")
	req.Action = policy.ActionRequireApproval
	hold := set.Decide(req)
	e.Errors = append(e.Errors, hold.Errors...)
	if hold.Allowed {
		e.Outcome, e.Approval = "needs_approval", hold.Rules
		e.Why += "; an approval is asked for by " + strings.Join(hold.Rules, ", ")
	}
	return e
}

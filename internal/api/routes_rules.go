package api

import (
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/store"
)

// RuleInput is a named text of Cedar policies.
type RuleInput struct {
	Name string `json:"name" maxLength:"64" doc:"lower-case letters, digits, _ and -"`
	Text string `json:"text" maxLength:"262144" doc:"Cedar policies"`
}

// ChangeRulesRequest is the body of POST /v1/workbench/rules.
type ChangeRulesRequest struct {
	Put                    []RuleInput `json:"put,omitempty" maxItems:"100" doc:"rules to add, or to replace by their name"`
	Remove                 []string    `json:"remove,omitempty" maxItems:"100" doc:"names of rules to remove"`
	ExpectedCurrentVersion *int64      `json:"expectedCurrentVersion,omitempty" minimum:"0" doc:"the version of the rules that the caller believes to be current; another one answers 412"`
}

// CheckRulesRequest is the body of POST /v1/workbench/rules/check.
type CheckRulesRequest struct {
	Rules []RuleInput `json:"rules" maxItems:"1000" doc:"what to look at; nothing is kept"`
}

// RuleList is a project's rules.
type RuleList struct {
	Version  int64            `json:"version" doc:"grows with every change"`
	Items    []workbench.Rule `json:"items"`
	Warnings []RuleProblem    `json:"warnings" doc:"what is valid and probably not meant"`
}

// RuleProblem is something wrong with a rule.
type RuleProblem policy.Problem

func ruleProblems(problems []policy.Problem) []RuleProblem {
	out := make([]RuleProblem, len(problems))
	for i, p := range problems {
		out[i] = RuleProblem(p)
	}
	return out
}

// RuleCheck is what is wrong with rules.
type RuleCheck struct {
	Valid    bool          `json:"valid"`
	Problems []RuleProblem `json:"problems"`
}

// ExplainRequest is the body of POST /v1/workbench/rules/explain.
type ExplainRequest struct {
	ReceiptID  string       `json:"receipt,omitempty" maxLength:"64" doc:"a call that was made; instead of what follows"`
	SessionID  string       `json:"session,omitempty" maxLength:"64" doc:"for whom to ask"`
	Tool       *ToolInput   `json:"tool,omitempty" doc:"the tool at a version"`
	Connection string       `json:"connection,omitempty" maxLength:"64" doc:"alias"`
	Arguments  JSONObject   `json:"arguments,omitempty" doc:"of the call"`
	Rules      *[]RuleInput `json:"rules,omitempty" maxItems:"1000" doc:"rules to ask in place of the project's"`
}

// JSONObject is a JSON object as it was sent: none of its numbers is rounded.
type JSONObject json.RawMessage

// UnmarshalJSON keeps the text.
func (o *JSONObject) UnmarshalJSON(raw []byte) error {
	*o = append((*o)[:0], raw...)
	return nil
}

// Schema is that of any object.
func (JSONObject) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

func ruleRoutes() []Route {
	rule := func(r Route) Route {
		r.Tag, r.Scope, r.Admin = "tools", workbench.ScopeManage, AdminOnly
		return r
	}
	return []Route{
		rule(Route{
			Method: http.MethodGet, Pattern: base + "/rules", ID: "listRules", Summary: "Read the project's rules", handle: listRules,
			Replies: []Reply{ok("All of them.", RuleList{})},
		}),
		rule(Route{
			Method: http.MethodPost, Pattern: base + "/rules", ID: "changeRules", Summary: "Change the project's rules",
			Description: "All of the change or none. The rules are looked at as a whole first. They count for every call that is made after the answer.",
			Body:        ChangeRulesRequest{}, handle: changeRules, Replies: []Reply{ok("The rules as they are now.", RuleList{})},
			Errors: []workbench.Code{workbench.CodeRuleInvalid, workbench.CodeVersionMismatch, workbench.CodeNotFound, workbench.CodeQuotaExceeded},
		}),
		rule(Route{
			Method: http.MethodPost, Pattern: base + "/rules/check", ID: "checkRules", Summary: "Look at rules without keeping them",
			Body: CheckRulesRequest{}, handle: checkRules, Replies: []Reply{ok("What is wrong with them.", RuleCheck{})},
		}),
		rule(Route{
			Method: http.MethodPost, Pattern: base + "/rules/explain", ID: "explainRules", Summary: "Ask the rules about a call without making it",
			Body: ExplainRequest{}, handle: explainRules, Replies: []Reply{ok("What they say, and which of them.", govern.Explanation{})},
			Errors: []workbench.Code{workbench.CodeNotFound, workbench.CodeToolNotFound, workbench.CodeConnectionNotFound, workbench.CodeRuleInvalid, workbench.CodeArgumentsInvalid},
		}),
	}
}

func rulesOf(inputs []RuleInput) []workbench.Rule {
	out := make([]workbench.Rule, len(inputs))
	for i, r := range inputs {
		out[i] = workbench.Rule{Name: r.Name, Text: r.Text}
	}
	return out
}

func (c *call) rules(set store.RuleSet, warnings []policy.Problem, err error) error {
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, RuleList{Version: set.Version, Items: whole(set.Rules), Warnings: ruleProblems(warnings)})
}

func listRules(c *call) error {
	set, err := c.s.o.Tools.Rules(c.ctx, c.p)
	return c.rules(set, nil, err)
}

func changeRules(c *call) error {
	b := c.body.(*ChangeRulesRequest)
	if len(b.Put)+len(b.Remove) == 0 {
		return invalid("put", "the change is empty").WithHint("name rules to put, or to remove")
	}
	expected := int64(0)
	if b.ExpectedCurrentVersion != nil {
		expected = *b.ExpectedCurrentVersion
	}
	return c.rules(c.s.o.Tools.ChangeRules(c.ctx, c.who(), expected, rulesOf(b.Put), b.Remove))
}

func checkRules(c *call) error {
	set, problems := policy.Compile(rulesOf(c.body.(*CheckRulesRequest).Rules))
	return c.json(http.StatusOK, RuleCheck{Valid: set != nil, Problems: ruleProblems(problems)})
}

func explainRules(c *call) error {
	b := c.body.(*ExplainRequest)
	q := govern.Question{ReceiptID: b.ReceiptID, SessionID: b.SessionID, Connection: b.Connection, Arguments: json.RawMessage(b.Arguments)}
	if b.Tool != nil {
		q.Tool = workbench.ToolRef{Name: b.Tool.Name, Version: b.Tool.Version}
	}
	if b.ReceiptID == "" && (b.SessionID == "" || b.Tool == nil) {
		return invalid("receipt", "name a receipt, or a session and a tool").WithHint("a receipt's id asks about a call that was made")
	}
	if b.Rules != nil {
		q.Rules = rulesOf(*b.Rules)
	}
	e, err := c.s.o.Tools.Explain(c.ctx, c.p, q)
	if err != nil {
		return err
	}
	e.Rules = whole(e.Rules)
	return c.json(http.StatusOK, e)
}

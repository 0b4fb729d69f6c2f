package sdk

import (
	"context"
	"encoding/json"

	"github.com/workbenchdev/workbench"
)

// RuleText is a named text of Cedar policies.
type RuleText struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// RuleSet is all of a project's rules, as of one moment.
type RuleSet struct {
	Version  int64            `json:"version"` // grows with every change
	Items    []workbench.Rule `json:"items"`
	Warnings []RuleProblem    `json:"warnings"` // of a change: what is valid and probably not meant
}

// RuleProblem is something wrong with a rule.
type RuleProblem struct {
	Rule    string `json:"rule"`   // its name
	Policy  string `json:"policy"` // "" if it is not a policy's, or not known
	Line    int    `json:"line"`   // from 1, within the rule's text; 0: not known
	Column  int    `json:"column"` // from 1, in characters
	Message string `json:"message"`
	Hint    string `json:"hint"`    // what to do; may be empty
	Warning bool   `json:"warning"` // the rules can be used in spite of it
}

// RuleCheck is what is wrong with rules.
type RuleCheck struct {
	Valid    bool          `json:"valid"`
	Problems []RuleProblem `json:"problems"` // warnings too
}

// Rules reads the project's rules. Needs an admin key.
func (c *Client) Rules(ctx context.Context) (RuleSet, error) {
	return get[RuleSet](ctx, c, "/rules", nil)
}

// ChangeRules changes a project's rules: all of it, or nothing.
type ChangeRules struct {
	Put    []RuleText `json:"put,omitempty"`    // added, or in the place of those of the same name
	Remove []string   `json:"remove,omitempty"` // by name
	// ExpectedCurrentVersion is the version of the rules believed to be current;
	// another one answers version_mismatch.
	ExpectedCurrentVersion *int64 `json:"expectedCurrentVersion,omitempty"`
}

// ChangeRules changes the project's rules and returns all of them. They count
// for every call that is made after the answer. Needs an admin key. Codes:
// rule_invalid, version_mismatch, not_found (of Remove), quota_exceeded.
func (c *Client) ChangeRules(ctx context.Context, r ChangeRules) (RuleSet, error) {
	return post[RuleSet](ctx, c, "/rules", r)
}

// CheckRules says what is wrong with rules, and keeps nothing. That they are not
// valid is no error. Needs an admin key.
func (c *Client) CheckRules(ctx context.Context, rules []RuleText) (RuleCheck, error) {
	if rules == nil {
		rules = []RuleText{}
	}
	return post[RuleCheck](ctx, c, "/rules/check", struct {
		Rules []RuleText `json:"rules"`
	}{rules})
}

// ExplainCall asks about a call that was made, by its receipt, or about one that
// a session might make.
type ExplainCall struct {
	Receipt    string             `json:"receipt,omitempty"` // instead of what follows
	Session    string             `json:"session,omitempty"`
	Tool       *workbench.ToolRef `json:"tool,omitempty"`
	Connection string             `json:"connection,omitempty"` // alias
	Arguments  json.RawMessage    `json:"arguments,omitempty"`  // a JSON object
	Rules      *[]RuleText        `json:"rules,omitempty"`      // to ask in place of the project's
}

// Explanation is what the rules say to a call.
type Explanation struct {
	Outcome      string   `json:"outcome"` // allowed, needs_approval or denied
	Why          string   `json:"why"`
	Rules        []string `json:"rules"`              // that allow, or forbid
	Approval     []string `json:"approval,omitempty"` // that ask for an approval
	Errors       []string `json:"errors,omitempty"`   // policies that could not be evaluated
	RulesVersion int64    `json:"rulesVersion"`
}

// ExplainCall asks the rules about a call without making it. Needs an admin key.
// Codes: not_found, tool_not_found, connection_not_found, rule_invalid,
// arguments_invalid.
func (c *Client) ExplainCall(ctx context.Context, r ExplainCall) (Explanation, error) {
	return post[Explanation](ctx, c, "/rules/explain", r)
}

package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cedar-policy/cedar-go"
	publicast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"github.com/workbenchdev/workbench"
)

const (
	// maxProblems bounds what one Compile reports.
	maxProblems = 100
	maxID       = 128 // bytes of @id
	maxWhy      = 500 // bytes of @why
)

// policy is one Cedar policy, compiled.
type policy struct {
	id      string
	rule    string
	forbid  bool
	actions []Action      // that it counts for
	expiry  time.Duration // 0: not said
	why     string
	source  *ast.Policy

	line, column int

	// The three forms it is evaluated in. All have an open action scope, since the
	// index has looked at it; what a form does not know is resolved in it.
	forms [forms]*cedar.Policy
}

// form is what of a request is known.
type form int

const (
	exact   form = iota // everything
	anyArgs             // not the arguments
	anyCall             // neither the arguments nor the run
	forms   = 3
)

// compiler gathers the policies and problems of a project.
type compiler struct {
	vocabulary vocabulary
	policies   []*policy
	ids        map[string]*policy
	problems   []Problem
	failed     bool
}

func newCompiler() *compiler {
	return &compiler{vocabulary: schemaOnce(), ids: map[string]*policy{}}
}

// report keeps a problem. Those past maxProblems are dropped, but count.
func (c *compiler) report(p Problem) {
	c.failed = c.failed || !p.Warning
	switch {
	case len(c.problems) < maxProblems:
		c.problems = append(c.problems, p)
	case len(c.problems) == maxProblems:
		c.problems = append(c.problems, Problem{Message: "there are more problems", Hint: "solve these first", Warning: !c.failed})
	default:
		c.problems[maxProblems].Warning = !c.failed
	}
}

// rule compiles one text.
func (c *compiler) rule(r workbench.Rule) {
	if p := scan(r.Text); p != nil {
		p.Rule = r.Name
		c.report(*p)
		return
	}
	parsed, err := cedar.NewPolicyListFromBytes(r.Name, []byte(r.Text))
	if err != nil {
		c.report(unparsed(r.Name, err))
		return
	}
	if len(parsed) == 0 {
		c.report(Problem{Rule: r.Name, Message: "the text holds no policy", Warning: true})
	}
	for i, one := range parsed {
		c.policy(r.Name, i+1, (*ast.Policy)(one.AST()))
	}
}

// located is an error of the scanner, or one of the parser, which names the
// token after the one that it did not expect.
var located = regexp.MustCompile(`(?s)^(parse error at )?<input>:(\d+):(\d+):? ?(.*)$`)

func unparsed(rule string, err error) Problem {
	p := Problem{Rule: rule, Message: strings.TrimPrefix(err.Error(), "parser error: "),
		Hint: "the syntax is that of Cedar policies: https://docs.cedarpolicy.com/policies/syntax-policy.html"}
	if m := located.FindStringSubmatch(p.Message); m != nil {
		p.Line, _ = strconv.Atoi(m[2])
		p.Column, _ = strconv.Atoi(m[3])
		p.Message = m[4]
		if m[1] != "" {
			p.Message = "not a Cedar policy, just before " + m[4]
		}
	}
	return p
}

// policy compiles the n-th policy of a rule.
func (c *compiler) policy(rule string, n int, source *ast.Policy) {
	p := &policy{
		id: fmt.Sprintf("%s#%d", rule, n), rule: rule, source: source,
		forbid: source.Effect == ast.EffectForbid, line: source.Position.Line, column: source.Position.Column,
	}
	problems := p.annotate()
	if first, taken := c.ids[p.id]; taken {
		problems = append(problems, p.problem("give each policy an @id of its own",
			"the id %q is taken by the policy at line %d of rule %q", p.id, first.line, first.rule))
	} else {
		c.ids[p.id] = p
	}
	problems = append(problems, c.check(p)...)
	for _, problem := range problems {
		c.report(problem)
	}
	if c.failed {
		return // there will be no set: only problems are still wanted
	}
	p.compile()
	c.policies = append(c.policies, p)
}

// problem is one of this policy.
func (p *policy) problem(hint, format string, args ...any) Problem {
	return Problem{Rule: p.rule, Policy: p.id, Line: p.line, Column: p.column, Message: fmt.Sprintf(format, args...), Hint: hint}
}

func (p *policy) warning(hint, format string, args ...any) Problem {
	w := p.problem(hint, format, args...)
	w.Warning = true
	return w
}

// annotate takes what the annotations say.
func (p *policy) annotate() []Problem {
	var out []Problem
	for _, a := range p.source.Annotations { // the id first: problems name it
		if a.Key != "id" {
			continue
		}
		if id := string(a.Value); id == "" || len(id) > maxID || strings.ContainsFunc(id, unicode.IsControl) {
			out = append(out, p.problem(`such as @id("no-payments")`, "@id must be 1 to %d bytes of text", maxID))
		} else {
			p.id = id
		}
	}
	for _, a := range p.source.Annotations {
		switch value := string(a.Value); a.Key {
		case "id", "description": // the latter is prose for who reads the rule
		case "expiry":
			var ok bool
			if p.expiry, ok = parseExpiry(value); !ok {
				out = append(out, p.problem(`such as @expiry("30m"), @expiry("24h") or @expiry("7d")`,
					"@expiry must be a duration of more than 0 and at most %d days", workbench.MaxApprovalExpiry/(24*time.Hour)))
			}
		case "why":
			if p.why = strings.TrimSpace(value); p.why == "" || len(p.why) > maxWhy {
				out = append(out, p.problem(`such as @why("it moves money")`, "@why must be 1 to %d bytes of text", maxWhy))
			}
		default:
			out = append(out, p.warning("annotations are id, expiry, why and description", "@%s says nothing here", a.Key))
		}
	}
	return out
}

// parseExpiry reads a Go duration, or a whole number of days as "7d".
func parseExpiry(s string) (time.Duration, bool) {
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int64
		n, err = strconv.ParseInt(days, 10, 16) // more would overflow
		d = time.Duration(n) * 24 * time.Hour
	}
	return d, err == nil && d > 0 && d <= workbench.MaxApprovalExpiry
}

// compile makes the forms.
func (p *policy) compile() {
	for f := range p.forms {
		open := *p.source
		open.Action = ast.ScopeTypeAll{}
		switch form(f) {
		case exact:
		case anyArgs:
			open.Conditions = reading{[]cedar.String{"args", "ceil"}}.conditions(&open)
		case anyCall:
			open.Conditions = reading{[]cedar.String{"args", "ceil", "run"}}.conditions(&open)
		}
		if form(f) != exact && !slices.Contains(p.actions, ActionCall) {
			continue // only a call is asked about without its arguments
		}
		p.forms[f] = cedar.NewPolicyFromAST((*publicast.Policy)(&open))
	}
}

// undecidable warns of gates that nobody can open.
func (c *compiler) undecidable() {
	if c.failed {
		return // not every policy is known
	}
	for _, pair := range [][2]Action{{ActionRequireApproval, ActionApprove}, {ActionHoldRun, ActionApproveRun}} {
		gate, decides := pair[0], pair[1]
		asks := slices.IndexFunc(c.policies, func(p *policy) bool { return p.permits(gate) })
		if asks < 0 || slices.ContainsFunc(c.policies, func(p *policy) bool { return p.permits(decides) }) {
			continue
		}
		c.report(c.policies[asks].warning(fmt.Sprintf(`add a rule such as permit(principal, action == Action::%q, resource) when { principal.name == "…" };`, decides),
			"nobody can approve: no rule permits the action %s", decides))
	}
}

func (p *policy) permits(a Action) bool { return !p.forbid && slices.Contains(p.actions, a) }

// set builds the index.
func (c *compiler) set() *Set {
	s := &Set{policies: c.ids, byAction: map[Action]*index{}}
	for _, a := range Actions() {
		s.byAction[a] = newIndex(c.policies, a)
	}
	return s
}

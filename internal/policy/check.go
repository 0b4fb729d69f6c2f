package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"github.com/workbenchdev/workbench"
)

// maxDepth bounds the tree of a condition. A chain of n operators is n deep.
const maxDepth = 1000

// check says what is wrong with a policy, and finds out which actions it counts
// for.
func (c *compiler) check(p *policy) []Problem {
	for _, cond := range p.source.Conditions {
		if depth(cond.Body) > maxDepth {
			return []Problem{p.problem(`compare with a set, as in ["a", "b"].contains(…), or split the policy`, "a condition is more than %d operators deep", maxDepth)}
		}
	}
	wrong, unlikely := c.names(p)
	out := append(p.scope(), wrong...)
	if len(out) > 0 {
		return out // the validator would say the same again, with less help
	}
	out = append(append(out, p.idle()...), unlikely...)
	return append(out, c.types(p)...)
}

// scope takes the action scope.
func (p *policy) scope() []Problem {
	var named []cedar.EntityUID
	switch s := p.source.Action.(type) {
	case ast.ScopeTypeAll:
		if !p.forbid {
			return []Problem{p.problem(`write action == Action::"call", or action in [Action::"call", Action::"use"]; `+actionHint(),
				"a permit must name its actions: this one would also require approvals, and let everybody approve")}
		}
		p.actions = accessActions()
		return nil
	case ast.ScopeTypeEq:
		named = []cedar.EntityUID{s.Entity}
	case ast.ScopeTypeIn:
		named = []cedar.EntityUID{s.Entity}
	case ast.ScopeTypeInSet:
		named = s.Entities
	}
	if len(named) == 0 {
		return []Problem{p.problem(actionHint(), "the list of actions is empty")}
	}
	for _, uid := range named {
		switch a := Action(uid.ID); {
		case uid.Type != actionType:
			return []Problem{p.problem(`write Action::"call"; `+actionHint(), "%s is no action", uid)}
		case !slices.Contains(Actions(), a): // names reports it
		case !slices.Contains(p.actions, a):
			p.actions = append(p.actions, a)
		}
	}
	return nil
}

func actionHint() string {
	names := make([]string, 0, len(Actions()))
	for _, a := range Actions() {
		names = append(names, string(a))
	}
	slices.Sort(names)
	return "actions are " + strings.Join(names, ", ")
}

// idle warns of annotations that have no effect.
func (p *policy) idle() []Problem {
	if p.permits(ActionRequireApproval) || p.permits(ActionHoldRun) || (p.expiry == 0 && p.why == "") {
		return nil
	}
	return []Problem{p.warning(`they count in a permit of requireApproval or holdRun`, "@expiry and @why have no effect here")}
}

// names reports names that the schema does not have, and those that nothing can have.
func (c *compiler) names(p *policy) (wrong, unlikely []Problem) {
	r := reader{p: p, vocabulary: c.vocabulary}
	for _, scope := range []ast.IsScopeNode{p.source.Principal, p.source.Action, p.source.Resource} {
		switch s := scope.(type) {
		case ast.ScopeTypeEq:
			r.entity(s.Entity)
		case ast.ScopeTypeIn:
			r.entity(s.Entity)
		case ast.ScopeTypeInSet:
			for _, uid := range s.Entities {
				r.entity(uid)
			}
		case ast.ScopeTypeIs:
			r.entityType(s.Type)
		case ast.ScopeTypeIsIn:
			r.entityType(s.Type)
			r.entity(s.Entity)
		}
	}
	for _, cond := range p.source.Conditions {
		ast.Inspect(ast.NewNode(cond.Body), r.node)
	}
	return r.problems, r.unlikely
}

// reader reads a policy for names.
type reader struct {
	p          *policy
	vocabulary vocabulary
	problems   []Problem
	unlikely   []Problem // warnings
}

func (r *reader) report(hint, format string, args ...any) {
	if problem := r.p.problem(hint, format, args...); !slices.Contains(r.problems, problem) {
		r.problems = append(r.problems, problem)
	}
}

// node reads one node of a condition, and tells whether to go on below it.
func (r *reader) node(n ast.IsNode) bool {
	switch n := n.(type) {
	case ast.NodeValue:
		if uid, ok := n.Value.(cedar.EntityUID); ok {
			r.entity(uid)
		}
	case ast.NodeTypeIs:
		r.entityType(n.EntityType)
	case ast.NodeTypeIsIn:
		r.entityType(n.EntityType)
	case ast.NodeTypeAccess:
		return !isContext(n.Arg)
	case ast.NodeTypeHas:
		return !isContext(n.Arg)
	case ast.NodeTypeGetTag, ast.NodeTypeHasTag:
		r.report("entities have attributes", "there are no tags")
	case ast.NodeTypeVariable:
		if isContext(n) {
			r.report("such as context.session.agent", "context can only be used by its attributes")
		}
	}
	return true
}

func (r *reader) entityType(t cedar.EntityType) bool {
	_, known := r.vocabulary.schema.Entities[t]
	if !known {
		r.report("entity types are "+strings.Join(r.vocabulary.entityTypes(), ", "), "there is no entity type %s", t)
	}
	return known
}

func (r *reader) entity(uid cedar.EntityUID) {
	id := string(uid.ID)
	switch {
	case uid.Type == actionType:
		if !slices.Contains(Actions(), Action(id)) {
			r.report(actionHint(), "there is no action %q", id)
		}
	case !r.entityType(uid.Type):
	case uid.Type == serviceType && !slices.Contains(Services(), id):
		r.report("services are "+strings.Join(Services(), ", "), "there is no service %q", id)
	case uid.Type == hostType && id != hostName(id):
		r.report(fmt.Sprintf("write Host::%q", hostName(id)), "hosts are compared in lower case and without a final dot: %q is none", id)
	default:
		r.doubt(uid.Type, id)
	}
}

// doubt warns of an entity that nothing will ever be, as far as that can be seen of its
// name: a permit of it permits nothing, and a forbid forbids nothing.
func (r *reader) doubt(t cedar.EntityType, id string) {
	of := map[cedar.EntityType]struct{ prefixes, hint string }{
		tenantType:  {"ten_", `its id begins with ten_; a name is compared as principal.tenant == "…"`},
		groupType:   {"grp_", `its id begins with grp_; a name is compared as principal has group && principal.group == "…"`},
		userType:    {"usr_ key_", `its id begins with usr_ (key_: of a key that is nobody's); a name is compared as principal.name == "…"`},
		projectType: {"prj_", "its id begins with prj_"},
	}
	var hint string
	switch {
	case t == toolType && workbench.ToolName("", id) != nil:
		hint = `a tool is called app.tool, as in Tool::"crm.refund"`
	case t == appType && workbench.AppName("", id) != nil:
		hint = `an app is called as it was declared, as in App::"crm"`
	case t == hostType && (strings.Contains(id, "/") || strings.Count(id, ":") == 1):
		hint = `a host has neither scheme nor port nor path: when { resource.scheme == "https" && resource.port == 8443 && context.path like "/v1/*" }`
	case of[t].hint != "" && !slices.ContainsFunc(strings.Fields(of[t].prefixes), func(prefix string) bool { return strings.HasPrefix(id, prefix) }):
		hint = of[t].hint
	default:
		return
	}
	if w := r.p.warning(hint, "no %s is %q: this never counts", strings.ToLower(string(t)), id); !slices.Contains(r.unlikely, w) {
		r.unlikely = append(r.unlikely, w)
	}
}

// types has the validator look at the policy, for each action it counts for.
func (c *compiler) types(p *policy) []Problem {
	closed := *p.source
	uids := make([]cedar.EntityUID, len(p.actions))
	for i, a := range p.actions {
		uids[i] = a.uid()
	}
	closed.Action = ast.ScopeTypeInSet{Entities: uids}
	closed.Conditions = make([]ast.ConditionType, len(p.source.Conditions))
	for i, cond := range p.source.Conditions {
		closed.Conditions[i] = ast.ConditionType{Condition: cond.Condition, Body: enclose(cond.Body)}
	}
	err := c.vocabulary.validator.Policy("", &closed)
	if err == nil {
		return nil
	}
	messages := strings.Split(err.Error(), "\n")
	slices.Sort(messages) // the validator goes through maps
	var out []Problem
	for _, m := range slices.Compact(messages) {
		out = append(out, p.problem(c.vocabulary.hint(m, p.actions), "%s", m))
	}
	return out
}

// hint says what would be right, by what the validator says is wrong.
func (v vocabulary) hint(message string, actions []Action) string {
	switch {
	case strings.Contains(message, "unable to guarantee safety of access to optional attribute"):
		return "not every request has it: ask first, as in context has connection && context.connection.alias == \"…\""
	case strings.Contains(message, "unable to find an applicable action"):
		return "principal is a User, in a Group or a Tenant; resource is a Tool in an App (call, requireApproval, approve), a Run (holdRun, approveRun), a Service (use) or a Host (fetch)"
	case strings.Contains(message, "in context for"):
		for _, a := range actions {
			if strings.Contains(message, a.uid().String()) {
				return fmt.Sprintf("the context of %s has %s", a, v.context(a))
			}
		}
	case strings.Contains(message, "on entity type"):
		for _, t := range v.entityTypes() {
			if strings.Contains(message, "`"+t+"`") {
				return strings.TrimSuffix(fmt.Sprintf("%s has %s", t, v.attributes(cedar.EntityType(t))), " ")
			}
		}
	}
	return ""
}

// depth is how deep a tree is.
func depth(n ast.IsNode) int {
	d := 0
	for _, child := range children(n) {
		d = max(d, depth(child))
	}
	return d + 1
}

// children are the nodes right below n.
func children(n ast.IsNode) []ast.IsNode {
	var out []ast.IsNode
	top := true
	ast.Inspect(ast.NewNode(n), func(c ast.IsNode) bool {
		if top {
			top = false
			return true
		}
		out = append(out, c)
		return false
	})
	return out
}

func isContext(n ast.IsNode) bool {
	v, ok := n.(ast.NodeTypeVariable)
	return ok && v.Name == "context"
}

package policy

import (
	"slices"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// cedar-go's own partial evaluation (x/exp/batch with Ignore) would drop a whole
// condition that meets an ignored value, so that principal.name == "ann" &&
// context.args.n > 3 became: everybody. So the rewriting is done here, with
// three values in mind: true, false and not known.

// reading rewrites the conditions of a policy for a request whose context lacks
// some attributes.
type reading struct {
	unknown []cedar.String
}

// conditions are those that are left of p: in a permit those that hold for some
// value of what is unknown, in a forbid those that hold for every value.
func (r reading) conditions(p *ast.Policy) []ast.ConditionType {
	out := make([]ast.ConditionType, len(p.Conditions))
	for i, c := range p.Conditions {
		// unless negates: what must hold for some is then that its body does not
		// hold for every.
		when := c.Condition == ast.ConditionWhen
		some := when == (p.Effect == ast.EffectPermit)
		out[i] = c
		out[i].Body = r.rewrite(c.Body, some)
	}
	return out
}

// rewrite gives a condition without unknowns that is true if n can be (some), or
// if n has to be (not some).
func (r reading) rewrite(n ast.IsNode, some bool) ast.IsNode {
	if !mentions(n, r.isUnknown) {
		return n
	}
	switch n := n.(type) {
	case ast.NodeTypeAnd:
		return and(r.rewrite(n.Left, some), r.rewrite(n.Right, some))
	case ast.NodeTypeOr:
		return or(r.rewrite(n.Left, some), r.rewrite(n.Right, some))
	case ast.NodeTypeNot:
		return not(r.rewrite(n.Arg, !some))
	case ast.NodeTypeIfThenElse:
		return r.rewriteIf(n, some)
	case ast.NodeTypeHas:
		if isContext(n.Arg) {
			return literal(true) // whatever it is, every call has it
		}
	}
	return literal(some)
}

func (r reading) rewriteIf(n ast.NodeTypeIfThenElse, some bool) ast.IsNode {
	if mentions(n.If, isIf) {
		// An if that decides an if would double with every level: as closed as can
		// be, a permit that is not met, a forbid that is.
		return literal(!some)
	}
	then, otherwise := r.rewrite(n.Then, some), r.rewrite(n.Else, some)
	if !mentions(n.If, r.isUnknown) {
		return ast.NodeTypeIfThenElse{If: n.If, Then: then, Else: otherwise}
	}
	can, must := r.rewrite(n.If, true), r.rewrite(n.If, false)
	if some {
		return or(and(can, then), and(not(must), otherwise))
	}
	return and(or(not(can), then), or(must, otherwise))
}

// isUnknown reports whether n is an unknown attribute, or asks for one.
func (r reading) isUnknown(n ast.IsNode) bool {
	switch n := n.(type) {
	case ast.NodeTypeAccess:
		return isContext(n.Arg) && slices.Contains(r.unknown, n.Value)
	case ast.NodeTypeHas:
		return isContext(n.Arg) && slices.Contains(r.unknown, n.Value)
	}
	return false
}

func isIf(n ast.IsNode) bool {
	_, ok := n.(ast.NodeTypeIfThenElse)
	return ok
}

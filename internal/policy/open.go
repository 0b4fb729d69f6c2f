package policy

import (
	"slices"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// Cedar's validator knows only records whose every attribute is declared, and
// arguments, labels and details are not. enclose rewrites a condition for the
// validator: what depends on the inside of an open record becomes something of
// type Bool, of which only the parts that do not depend on it, and the record
// itself, are left to look at.

// enclose rewrites a condition, at a place where a Bool is expected.
func enclose(n ast.IsNode) ast.IsNode {
	if !mentions(n, openRecord) {
		return n
	}
	switch n := n.(type) {
	case ast.NodeTypeAnd:
		return and(enclose(n.Left), enclose(n.Right))
	case ast.NodeTypeOr:
		return or(enclose(n.Left), enclose(n.Right))
	case ast.NodeTypeNot:
		return not(enclose(n.Arg))
	case ast.NodeTypeIfThenElse:
		return ast.NodeTypeIfThenElse{If: enclose(n.If), Then: enclose(n.Then), Else: enclose(n.Else)}
	}
	out := someBool
	for _, part := range enclosed(n) {
		out = and(equal(part, part), out)
	}
	return out
}

// someBool is of type Bool under every action, and the validator cannot tell
// which.
var someBool = equal(
	ast.Principal().Access("name").AsIsNode(),
	ast.Principal().Access("tenant").AsIsNode(),
)

// enclosed gives the largest parts of n that can be validated.
func enclosed(n ast.IsNode) []ast.IsNode {
	if openRecord(n) {
		return []ast.IsNode{n}
	}
	if !mentions(n, openRecord) {
		switch n := n.(type) {
		case ast.NodeValue:
			return nil
		case ast.NodeTypeSet:
			if len(n.Elements) == 0 {
				return nil // has no type by itself
			}
		}
		return []ast.IsNode{n}
	}
	var out []ast.IsNode
	for _, child := range children(n) {
		out = append(out, enclosed(child)...)
	}
	return out
}

// openRecord reports whether n is one of the records that the schema leaves
// open.
func openRecord(n ast.IsNode) bool {
	a, ok := n.(ast.NodeTypeAccess)
	if !ok {
		return false
	}
	if isContext(a.Arg) {
		return slices.Contains([]cedar.String{"args", "ceil", "detail"}, a.Value)
	}
	outer, ok := a.Arg.(ast.NodeTypeAccess)
	return ok && a.Value == "labels" && outer.Value == "session" && isContext(outer.Arg)
}

// mentions reports whether n or something in it is what is looked for.
func mentions(n ast.IsNode, what func(ast.IsNode) bool) bool {
	found := false
	ast.Inspect(ast.NewNode(n), func(n ast.IsNode) bool {
		found = found || what(n)
		return !found
	})
	return found
}

func and(l, r ast.IsNode) ast.IsNode {
	return ast.NodeTypeAnd{BinaryNode: ast.BinaryNode{Left: l, Right: r}}
}

func or(l, r ast.IsNode) ast.IsNode {
	return ast.NodeTypeOr{BinaryNode: ast.BinaryNode{Left: l, Right: r}}
}

func not(n ast.IsNode) ast.IsNode { return ast.NodeTypeNot{UnaryNode: ast.UnaryNode{Arg: n}} }

func equal(l, r ast.IsNode) ast.IsNode {
	return ast.NodeTypeEquals{BinaryNode: ast.BinaryNode{Left: l, Right: r}}
}

func literal(b bool) ast.IsNode { return ast.NodeValue{Value: cedar.Boolean(b)} }

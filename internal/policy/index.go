package policy

import (
	"iter"
	"slices"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// index finds the policies of one action that may apply to a request. A policy
// whose scope names a resource, or else a principal, or a group of either, is
// found by that entity; every other is always looked at.
type index struct {
	always   []*policy
	byEntity map[cedar.EntityUID][]*policy
}

func newIndex(policies []*policy, a Action) *index {
	x := &index{byEntity: map[cedar.EntityUID][]*policy{}}
	for _, p := range policies {
		if !slices.Contains(p.actions, a) {
			continue
		}
		if key, ok := p.key(); ok {
			x.byEntity[key] = append(x.byEntity[key], p)
		} else {
			x.always = append(x.always, p)
		}
	}
	return x
}

// key is an entity that the resource or the principal of every request has to
// be, or be in, for the policy to apply.
func (p *policy) key() (cedar.EntityUID, bool) {
	if uid, ok := scopeEntity(p.source.Resource); ok {
		return uid, true
	}
	return scopeEntity(p.source.Principal)
}

func scopeEntity(scope ast.IsScopeNode) (cedar.EntityUID, bool) {
	switch s := scope.(type) {
	case ast.ScopeTypeEq:
		return s.Entity, true
	case ast.ScopeTypeIn:
		return s.Entity, true
	case ast.ScopeTypeIsIn:
		return s.Entity, true
	}
	return cedar.EntityUID{}, false
}

// candidates are the policies to evaluate for one request: those of the index
// for the request's entities, in one form.
type candidates struct {
	*index
	form     form
	entities []cedar.EntityUID // principal, resource and all they are in, each once
}

// All implements cedar.PolicyIterator.
func (c candidates) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, p := range c.always {
			if !yield(cedar.PolicyID(p.id), p.forms[c.form]) {
				return
			}
		}
		for _, uid := range c.entities {
			for _, p := range c.byEntity[uid] {
				if !yield(cedar.PolicyID(p.id), p.forms[c.form]) {
					return
				}
			}
		}
	}
}

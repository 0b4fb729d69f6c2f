package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"

	"github.com/workbenchdev/workbench"
)

const (
	// maxWhys bounds what several rules together say about why they ask, in bytes.
	maxWhys = 2000
	// maxErrors bounds the errors that a decision lists.
	maxErrors = 20
)

// outcome is what the policies came to for one request. Each list is in order of
// ids.
type outcome struct {
	permits []*policy // that apply; none is listed if a forbid applies
	forbids []*policy // that apply
	failed  []failure
}

// failure is a policy that could not be evaluated.
type failure struct {
	*policy
	message string
}

// Decide answers a request. Of a gate, Allowed means that the approval is
// required.
func (s *Set) Decide(r Request) Decision {
	out, err := s.evaluate(r)
	var d Decision
	switch {
	case err != nil && r.Action.gate():
		d = Decision{Allowed: true, Rules: []string{}, Expiry: workbench.DefaultApprovalExpiry}
	case err != nil:
		d = Decision{Rules: []string{}, Denied: "the rules could not be evaluated: " + err.Error()}
	case r.Action.gate():
		return out.gate()
	default:
		return out.access()
	}
	d.Errors = []string{err.Error()}
	return d
}

// evaluate fails if the request cannot be put to the policies at all.
func (s *Set) evaluate(r Request) (out outcome, err error) {
	if s == nil {
		return out, errors.New("there are none")
	}
	// A defect of the evaluator must not become an answer, nor end the server.
	defer func() {
		if recover() != nil {
			err = errors.New("the evaluation failed")
		}
	}()
	q, err := newQuestion(r)
	if err != nil {
		return out, err
	}
	_, diag := cedar.Authorize(candidates{s.byAction[r.Action], q.form, q.around}, q.entities, q.request)
	for _, reason := range diag.Reasons {
		if p := s.policies[string(reason.PolicyID)]; p.forbid {
			out.forbids = append(out.forbids, p)
		} else {
			out.permits = append(out.permits, p)
		}
	}
	for _, e := range diag.Errors {
		out.failed = append(out.failed, failure{s.policies[string(e.PolicyID)], public(e.Message)})
	}
	byID := func(a, b *policy) int { return strings.Compare(a.id, b.id) }
	slices.SortFunc(out.forbids, byID)
	slices.SortFunc(out.permits, byID)
	slices.SortFunc(out.failed, func(a, b failure) int { return byID(a.policy, b.policy) })
	return out, nil
}

// access: a forbid denies, also one that could not be evaluated; a permit that
// could not be permits nothing.
func (o outcome) access() Decision {
	d := Decision{Rules: []string{}, Errors: o.errors()}
	if len(o.forbids) > 0 {
		d.Rules, d.Denied = ids(o.forbids), fmt.Sprintf("rule %s forbids it", o.forbids[0].id)
		return d
	}
	for _, f := range o.failed {
		if f.forbid {
			if d.Denied == "" {
				d.Denied = fmt.Sprintf("rule %s could not be evaluated: %s", f.id, f.message)
			}
			d.Rules = append(d.Rules, f.id)
		}
	}
	switch {
	case d.Denied != "":
	case len(o.permits) == 0:
		d.Denied = "no rule allows it"
	default:
		d.Allowed, d.Rules = true, ids(o.permits)
	}
	return d
}

// gate: a permit asks, also one that could not be evaluated; a forbid exempts,
// but not one that could not be.
func (o outcome) gate() Decision {
	d := Decision{Rules: []string{}, Errors: o.errors()}
	if len(o.forbids) > 0 {
		d.Rules = ids(o.forbids)
		return d
	}
	asking := o.permits
	for _, f := range o.failed {
		if !f.forbid {
			asking = append(asking, f.policy)
		}
	}
	if len(asking) == 0 {
		return d
	}
	slices.SortFunc(asking, func(a, b *policy) int { return strings.Compare(a.id, b.id) })
	d.Allowed, d.Rules = true, ids(asking)
	var whys []string
	for _, p := range asking {
		if p.expiry > 0 && (d.Expiry == 0 || p.expiry < d.Expiry) {
			d.Expiry = p.expiry
		}
		if p.why != "" && !slices.Contains(whys, p.why) && len(strings.Join(whys, "; "))+len("; ")+len(p.why) <= maxWhys {
			whys = append(whys, p.why)
		}
	}
	if d.Expiry == 0 {
		d.Expiry = workbench.DefaultApprovalExpiry
	}
	d.Why = strings.Join(whys, "; ")
	return d
}

func (o outcome) errors() []string {
	var out []string
	for i, f := range o.failed {
		if i == maxErrors {
			return append(out, fmt.Sprintf("and %d more", len(o.failed)-i))
		}
		out = append(out, f.id+": "+f.message)
	}
	return out
}

func ids(policies []*policy) []string {
	out := make([]string, len(policies))
	for i, p := range policies {
		out[i] = p.id
	}
	return out
}

// public is a message of the evaluator without what may be an argument's value:
// receipts keep it in the clear, and arguments are sealed. Types, entities and
// attributes may stay, since they are the rule's own words.
func public(message string) string {
	message = strings.ReplaceAll(message, "\n", ": ")
	switch {
	case strings.HasPrefix(message, "error parsing"): // … of the very value
		what, _, _ := strings.Cut(message, ":")
		return what
	case strings.HasPrefix(message, "integer overflow"): // … of these numbers
		return "integer overflow"
	case strings.HasPrefix(message, "type error"), strings.Contains(message, "does not have the attribute"), strings.Contains(message, "does not exist"):
		return message
	}
	return "it has no value"
}

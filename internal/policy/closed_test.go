package policy_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/policy"
)

// errs is a condition that every action's validation accepts and that no request
// here can be evaluated under.
const errs = `context.session.labels.missing == "x"`

const noLabel = "record does not have the attribute `missing`"

func TestErrorsOfAccessFailClosed(t *testing.T) {
	for _, a := range []policy.Action{policy.ActionCall, policy.ActionApprove, policy.ActionApproveRun, policy.ActionUse, policy.ActionFetch} {
		t.Run(string(a)+": a forbid that errs denies", func(t *testing.T) {
			d := mustCompile(t, when("permit", a, "true"), when("forbid", a, errs)).Decide(request(a))
			wantDenied(t, d, "rule b#1 could not be evaluated: "+noLabel, "b#1")
			if !slices.Equal(d.Errors, []string{"b#1: " + noLabel}) {
				t.Errorf("errors are %q", d.Errors)
			}
		})
		t.Run(string(a)+": a forbid without an action that errs denies", func(t *testing.T) {
			d := mustCompile(t, when("permit", a, "true"), `forbid (principal, action, resource) when { `+errs+` };`).Decide(request(a))
			wantDenied(t, d, "rule b#1 could not be evaluated: "+noLabel, "b#1")
		})
		t.Run(string(a)+": a permit that errs permits nothing", func(t *testing.T) {
			d := mustCompile(t, when("permit", a, errs)).Decide(request(a))
			wantDenied(t, d, "no rule allows it")
			if !slices.Equal(d.Errors, []string{"a#1: " + noLabel}) {
				t.Errorf("errors are %q", d.Errors)
			}
		})
		t.Run(string(a)+": a permit that errs leaves the others", func(t *testing.T) {
			d := mustCompile(t, when("permit", a, errs), when("permit", a, "true")).Decide(request(a))
			wantAllowed(t, d, "b#1")
			if !slices.Equal(d.Errors, []string{"a#1: " + noLabel}) {
				t.Errorf("errors are %q", d.Errors)
			}
		})
	}
}

func TestErrorsOfGatesFailClosed(t *testing.T) {
	for _, a := range []policy.Action{policy.ActionRequireApproval, policy.ActionHoldRun} {
		t.Run(string(a)+": a permit that errs asks", func(t *testing.T) {
			d := mustCompile(t, `@expiry("1h") @why("careful") `+when("permit", a, errs)).Decide(request(a))
			if !d.Allowed || !slices.Equal(d.Rules, []string{"a#1"}) || !slices.Equal(d.Errors, []string{"a#1: " + noLabel}) || d.Expiry.String() != "1h0m0s" || d.Why != "careful" {
				t.Errorf("got %+v, want it required", d)
			}
		})
		t.Run(string(a)+": a forbid that errs exempts nobody", func(t *testing.T) {
			d := mustCompile(t, when("permit", a, "true"), when("forbid", a, errs)).Decide(request(a))
			if !d.Allowed || !slices.Equal(d.Rules, []string{"a#1"}) || !slices.Equal(d.Errors, []string{"b#1: " + noLabel}) {
				t.Errorf("got %+v, want it required", d)
			}
		})
		t.Run(string(a)+": a forbid that errs asks for nothing either", func(t *testing.T) {
			if d := mustCompile(t, when("forbid", a, errs)).Decide(request(a)); d.Allowed || len(d.Errors) != 1 {
				t.Errorf("got %+v, want it not required", d)
			}
		})
	}
}

func TestErrorsAreBounded(t *testing.T) {
	d := mustCompile(t, strings.Repeat(when("permit", policy.ActionCall, errs), 30)).Decide(request(policy.ActionCall))
	if len(d.Errors) != 21 || d.Errors[20] != "and 10 more" {
		t.Errorf("got %q", d.Errors)
	}
}

// TestEveryMixture goes through all sets of policies that apply, do not, or err.
func TestEveryMixture(t *testing.T) {
	kinds := []struct{ effect, condition string }{
		{"permit", "true"}, {"permit", "false"}, {"permit", errs},
		{"forbid", "true"}, {"forbid", "false"}, {"forbid", errs},
	}
	for _, a := range policy.Actions() {
		for mix := range 1 << len(kinds) {
			has := func(i int) bool { return mix&(1<<i) != 0 }
			var texts []string
			for i, k := range kinds {
				if has(i) {
					texts = append(texts, when(k.effect, a, k.condition))
				}
			}
			want := has(0) && !has(3) && !has(5)
			if a == policy.ActionRequireApproval || a == policy.ActionHoldRun {
				want = (has(0) || has(2)) && !has(3)
			}
			if d := mustCompile(t, texts...).Decide(request(a)); d.Allowed != want || d.Rules == nil {
				t.Errorf("%s of %q: %+v, want %v", a, texts, d, want)
			}
		}
	}
}

func TestRequestsThatCannotBeEvaluated(t *testing.T) {
	all := mustCompile(t, `permit (principal, action in [Action::"call", Action::"approve", Action::"approveRun", Action::"use", Action::"fetch"], resource);`)
	deep := strings.Repeat(`{"a":`, 64) + `1` + strings.Repeat(`}`, 64)
	for name, c := range map[string]struct {
		action policy.Action
		change func(*policy.Request)
		why    string
	}{
		"no tool":      {policy.ActionCall, func(r *policy.Request) { r.Tool = nil }, "it is not known which tool"},
		"no arguments": {policy.ActionCall, func(r *policy.Request) { r.Args = nil }, "the arguments are missing or not JSON"},
		"no JSON":      {policy.ActionCall, func(r *policy.Request) { r.Args = json.RawMessage(`{"a":`) }, "the arguments are missing or not JSON"},
		"two values":   {policy.ActionCall, func(r *policy.Request) { r.Args = json.RawMessage(`{} {}`) }, "the arguments are more than one JSON value"},
		"null":         {policy.ActionCall, func(r *policy.Request) { r.Args = json.RawMessage(`null`) }, "the arguments are not a JSON object"},
		"an array":     {policy.ActionCall, func(r *policy.Request) { r.Args = json.RawMessage(`[]`) }, "the arguments are not a JSON object"},
		"too deep":     {policy.ActionCall, func(r *policy.Request) { r.Args = json.RawMessage(`{"a":` + deep + `}`) }, "the arguments nest more than 64 objects and arrays"},
		"too deep arrays": {policy.ActionCall, func(r *policy.Request) {
			r.Args = json.RawMessage(`{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`)
		}, "the arguments nest more than 64 objects and arrays"},
		"nobody asks":      {policy.ActionApprove, func(r *policy.Request) { r.Requester = nil }, "it is not known who asks"},
		"nobody ran":       {policy.ActionApproveRun, func(r *policy.Request) { r.Requester = nil }, "it is not known who asks"},
		"unknown service":  {policy.ActionUse, func(r *policy.Request) { r.Service = "AI" }, `there is no service "AI"`},
		"no host":          {policy.ActionFetch, func(r *policy.Request) { r.Host = "." }, "it is not known which host"},
		"any arguments":    {policy.ActionApprove, func(r *policy.Request) { r.AnyArguments = true }, "approve depends on the arguments"},
		"action of a rule": {policy.ActionCall, func(r *policy.Request) { r.Action = "" }, `there is no action ""`},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(c.action)
			wantAllowed(t, all.Decide(r), "a#1")
			c.change(&r)
			d := all.Decide(r)
			wantDenied(t, d, "the rules could not be evaluated: "+c.why)
			if !slices.Equal(d.Errors, []string{c.why}) {
				t.Errorf("errors are %q", d.Errors)
			}
		})
	}
	t.Run("64 deep is not too deep", func(t *testing.T) {
		wantAllowed(t, all.Decide(call(deep)), "a#1")
	})
	t.Run("at a gate the approval is required", func(t *testing.T) {
		exempt := mustCompile(t, `forbid (principal, action == Action::"requireApproval", resource);`)
		r := request(policy.ActionRequireApproval)
		if d := exempt.Decide(r); d.Allowed {
			t.Fatalf("got %+v", d)
		}
		r.Args = json.RawMessage(`{`)
		if d := exempt.Decide(r); !d.Allowed || d.Rules == nil || d.Expiry != workbench.DefaultApprovalExpiry || len(d.Errors) != 1 {
			t.Errorf("got %+v, want it required", d)
		}
		r = request(policy.ActionRequireApproval)
		r.AnyArguments = true
		if d := exempt.Decide(r); !d.Allowed {
			t.Errorf("got %+v, want it required", d)
		}
	})
	t.Run("no set at all", func(t *testing.T) {
		var none *policy.Set
		wantDenied(t, none.Decide(request(policy.ActionCall)), "the rules could not be evaluated: there are none")
		if d := none.Decide(request(policy.ActionHoldRun)); !d.Allowed {
			t.Errorf("got %+v, want it held", d)
		}
	})
	t.Run("what a request lacks fails the rules that ask for it", func(t *testing.T) {
		set := mustCompile(t, when("permit", policy.ActionCall, "true"), when("forbid", policy.ActionCall, `context.run.language == "bash"`))
		r := request(policy.ActionCall)
		r.Language, r.Lane = "", ""
		wantDenied(t, set.Decide(r), "rule b#1 could not be evaluated: record does not have the attribute `run`", "b#1")
	})
}

// TestErrorsHoldNoValue: errors are kept in the clear, arguments are sealed.
func TestErrorsHoldNoValue(t *testing.T) {
	const secret = "canary does not have the attribute or does not exist"
	for condition, want := range map[string]string{
		`ip(context.args.s) == ip("10.0.0.1")`:               "error parsing ip value",
		`decimal(context.args.s) == decimal("1.0")`:          "error parsing decimal value",
		`datetime(context.args.s) == datetime("2026-01-01")`: "error parsing datetime value",
		`duration(context.args.s) == duration("1h")`:         "error parsing duration value",
		`context.args.n + context.args.n > 1`:                "integer overflow",
		`context.args.s > 1`:                                 "type error: expected comparable value, got string",
	} {
		t.Run(condition, func(t *testing.T) {
			d := mustCompile(t, when("permit", policy.ActionCall, condition)).Decide(call(fmt.Sprintf(`{"s":%q,"n":9223372036854775807}`, secret)))
			if !slices.Equal(d.Errors, []string{"a#1: " + want}) {
				t.Errorf("errors are %q, want %q", d.Errors, want)
			}
		})
	}
}

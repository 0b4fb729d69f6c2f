package policy_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/policy"
)

// mustCompile compiles each text as a rule of its own: a, b, c, …
func mustCompile(t testing.TB, texts ...string) *policy.Set {
	t.Helper()
	set, problems := policy.Compile(rules(texts...))
	for _, p := range problems {
		if !p.Warning {
			t.Fatalf("rule %s, policy %s, %d:%d: %s (%s)", p.Rule, p.Policy, p.Line, p.Column, p.Message, p.Hint)
		}
	}
	return set
}

func rules(texts ...string) []workbench.Rule {
	var out []workbench.Rule
	for i, text := range texts {
		out = append(out, workbench.Rule{Name: string(rune('a' + i)), Text: text})
	}
	return out
}

var (
	ann = policy.Identity{ProjectID: "prj_1", TenantID: "ten_1", TenantName: "acme", UserID: "usr_1", UserName: "ann", GroupID: "grp_1", GroupName: "ops"}
	bob = policy.Identity{ProjectID: "prj_1", TenantID: "ten_1", TenantName: "acme", UserID: "usr_2", UserName: "bob"}
	eve = policy.Identity{ProjectID: "prj_1", TenantID: "ten_2", TenantName: "blue", UserID: "usr_3", UserName: "eve"}
)

// request is one of ann's that has everything its action needs.
func request(a policy.Action) policy.Request {
	r := policy.Request{
		Action: a, Principal: ann,
		Session:  &workbench.Session{ID: "ses_1", Kind: workbench.SessionBusiness, Agent: "helper", Labels: map[string]string{"env": "prod"}},
		Language: workbench.Python, Lane: workbench.LaneForeground,
	}
	switch a {
	case policy.ActionCall, policy.ActionRequireApproval, policy.ActionApprove:
		r.Tool = &workbench.Tool{App: "bank", Name: "bank.pay", Version: "3", Digest: "d1", Annotations: workbench.ToolAnnotations{Destructive: true}}
		r.Args = json.RawMessage(`{"amount":1500,"to":"x"}`)
		r.Connection = &workbench.Connection{ID: "con_1", Alias: "main", Provider: "bank", TenantID: "ten_1"}
	case policy.ActionHoldRun, policy.ActionApproveRun:
		r.RunID = "run_1"
	case policy.ActionUse:
		r.Service, r.Detail = "ai", map[string]string{"model": "small"}
	case policy.ActionFetch:
		r.Host, r.Scheme, r.Port, r.Method, r.Path = "api.example.com", "https", 443, "GET", "/v1"
	}
	if a == policy.ActionApprove || a == policy.ActionApproveRun {
		r.Principal, r.Requester = bob, &ann
	}
	return r
}

func call(args string) policy.Request {
	r := request(policy.ActionCall)
	r.Args = json.RawMessage(args)
	return r
}

// when is a policy on one action under a condition.
func when(effect string, a policy.Action, condition string) string {
	return effect + ` (principal, action == Action::"` + string(a) + `", resource) when { ` + condition + ` };`
}

func wantAllowed(t *testing.T, d policy.Decision, rules ...string) {
	t.Helper()
	if !d.Allowed || d.Denied != "" || !slices.Equal(d.Rules, rules) {
		t.Errorf("got %+v, want it allowed by %q", d, rules)
	}
}

func wantDenied(t *testing.T, d policy.Decision, why string, rules ...string) {
	t.Helper()
	if d.Allowed || d.Denied != why || d.Rules == nil || !slices.Equal(d.Rules, rules) {
		t.Errorf("got %+v, want it denied by %q: %q", d, rules, why)
	}
}

func TestAccess(t *testing.T) {
	t.Run("without rules every action is denied and no gate is closed", func(t *testing.T) {
		set := mustCompile(t)
		for _, a := range []policy.Action{policy.ActionCall, policy.ActionApprove, policy.ActionApproveRun, policy.ActionUse, policy.ActionFetch} {
			wantDenied(t, set.Decide(request(a)), "no rule allows it")
		}
		for _, a := range []policy.Action{policy.ActionRequireApproval, policy.ActionHoldRun} {
			if d := set.Decide(request(a)); d.Allowed || d.Rules == nil || len(d.Errors) > 0 || d.Denied != "" {
				t.Errorf("%s: %+v, want it not required", a, d)
			}
		}
	})
	t.Run("a permit allows and is named", func(t *testing.T) {
		set := mustCompile(t, `permit (principal, action == Action::"call", resource);`)
		wantAllowed(t, set.Decide(request(policy.ActionCall)), "a#1")
	})
	t.Run("a permit of one action allows no other", func(t *testing.T) {
		set := mustCompile(t, `permit (principal, action == Action::"call", resource);`)
		wantDenied(t, set.Decide(request(policy.ActionFetch)), "no rule allows it")
	})
	t.Run("a forbid wins over permits and is named alone", func(t *testing.T) {
		set := mustCompile(t, `permit (principal, action == Action::"call", resource);`,
			`@id("no-payments") forbid (principal, action == Action::"call", resource == Tool::"bank.pay");`)
		wantDenied(t, set.Decide(request(policy.ActionCall)), "rule no-payments forbids it", "no-payments")
	})
	t.Run("all that decide are named, in order", func(t *testing.T) {
		set := mustCompile(t,
			`@id("z") permit (principal, action == Action::"call", resource); @id("c") permit (principal, action == Action::"call", resource);`,
			`permit (principal, action in [Action::"use", Action::"call"], resource);`)
		wantAllowed(t, set.Decide(request(policy.ActionCall)), "b#1", "c", "z")
	})
	t.Run("a forbid without an action denies all access", func(t *testing.T) {
		set := mustCompile(t, `permit (principal, action in [Action::"call", Action::"approve", Action::"approveRun", Action::"use", Action::"fetch"], resource);`,
			`forbid (principal, action, resource);`)
		for _, a := range []policy.Action{policy.ActionCall, policy.ActionApprove, policy.ActionApproveRun, policy.ActionUse, policy.ActionFetch} {
			wantDenied(t, set.Decide(request(a)), "rule b#1 forbids it", "b#1")
		}
	})
	t.Run("an action that does not exist is denied", func(t *testing.T) {
		set := mustCompile(t, `permit (principal, action == Action::"call", resource);`)
		r := request(policy.ActionCall)
		r.Action = "Call"
		wantDenied(t, set.Decide(r), `the rules could not be evaluated: there is no action "Call"`)
	})
}

// conditions are what a rule can say: each holds for the request of its action,
// or does not.
var conditions = []struct {
	action    policy.Action
	condition string
	holds     bool
}{
	{policy.ActionCall, `principal.name == "ann" && principal.tenant == "acme"`, true},
	{policy.ActionCall, `principal has group && principal.group == "ops"`, true},
	{policy.ActionCall, `principal == User::"usr_1"`, true},
	{policy.ActionCall, `principal in Group::"grp_1" && principal in Tenant::"ten_1" && principal in Project::"prj_1"`, true},
	{policy.ActionCall, `principal in Tenant::"ten_2"`, false},
	{policy.ActionCall, `resource in App::"bank" && resource == Tool::"bank.pay"`, true},
	{policy.ActionCall, `resource.name == "bank.pay" && resource.app == "bank" && resource.version == "3" && resource.digest == "d1"`, true},
	{policy.ActionCall, `resource.destructive && !resource.readOnly && !resource.idempotent && !resource.openWorld`, true},
	{policy.ActionCall, `context has connection && context.connection.alias == "main" && context.connection.provider == "bank"`, true},
	{policy.ActionCall, `context has connection && context.connection.id == "con_1" && context.connection.scope == "tenant"`, true},
	{policy.ActionCall, `context.session.id == "ses_1" && context.session.kind == "business" && context.session.agent == "helper"`, true},
	{policy.ActionCall, `context.session.labels has env && context.session.labels.env == "prod"`, true},
	{policy.ActionCall, `context.session.labels has other`, false},
	{policy.ActionCall, `context.run.language == "python" && context.run.lane == "foreground"`, true},
	{policy.ActionCall, `context.args.amount > 1000 && context.args.to == "x"`, true},
	{policy.ActionCall, `context.ceil.amount > 1500`, false},
	{policy.ActionApprove, `principal.name == "bob" && context.requester.name == "ann" && context.requester.id == "usr_1"`, true},
	{policy.ActionApprove, `context.requester has group && context.requester.group == "ops" && context.requester.tenant == principal.tenant`, true},
	{policy.ActionApprove, `principal has group`, false},
	{policy.ActionApprove, `resource == Tool::"bank.pay" && context.args.amount == 1500`, true},
	{policy.ActionApproveRun, `resource == Run::"run_1" && context.requester.name == "ann"`, true},
	{policy.ActionHoldRun, `resource.language == "python" && resource.lane == "foreground" && context.session.agent == "helper"`, true},
	{policy.ActionUse, `resource == Service::"ai" && resource.name == "ai" && context.detail has model && context.detail.model == "small"`, true},
	{policy.ActionUse, `context.detail has package`, false},
	{policy.ActionFetch, `resource == Host::"api.example.com" && resource.name == "api.example.com" && resource.scheme == "https" && resource.port == 443`, true},
	{policy.ActionFetch, `context.method == "GET" && context.path like "/v1*" && !(context has connection)`, true},
}

func TestWhatRulesCanSay(t *testing.T) {
	for _, c := range conditions {
		t.Run(string(c.action)+" "+c.condition, func(t *testing.T) {
			d := mustCompile(t, when("permit", c.action, c.condition)).Decide(request(c.action))
			if d.Allowed != c.holds || len(d.Errors) > 0 {
				t.Errorf("got %+v, want %v", d, c.holds)
			}
		})
	}
}

func TestScopes(t *testing.T) {
	for scope, allows := range map[string]bool{
		`principal == User::"usr_1", action == Action::"call", resource`:                          true,
		`principal == User::"usr_2", action == Action::"call", resource`:                          false,
		`principal in Tenant::"ten_1", action == Action::"call", resource`:                        true,
		`principal in Tenant::"ten_2", action == Action::"call", resource`:                        false,
		`principal is User in Group::"grp_1", action == Action::"call", resource`:                 true,
		`principal is User, action == Action::"call", resource is Tool`:                           true,
		`principal, action in Action::"call", resource in App::"bank"`:                            true,
		`principal, action in [Action::"use", Action::"call"], resource is Tool in App::"bank"`:   true,
		`principal, action == Action::"call", resource in App::"git"`:                             false,
		`principal, action == Action::"call", resource == Tool::"bank.pay"`:                       true,
		`principal, action == Action::"call", resource == Tool::"bank.read"`:                      false,
		`principal == User::"usr_2", action == Action::"call", resource == Tool::"bank.pay"`:      false,
		`principal in Project::"prj_1", action == Action::"call", resource in Tool::"bank.pay"`:   true,
		`principal in Tenant::"ten_1", action == Action::"call", resource == Tool::"bank.read"`:   false,
		`principal is User in Tenant::"ten_2", action == Action::"call", resource in App::"bank"`: false,
	} {
		t.Run(scope, func(t *testing.T) {
			if d := mustCompile(t, "permit ("+scope+");").Decide(request(policy.ActionCall)); d.Allowed != allows {
				t.Errorf("got %+v, want %v", d, allows)
			}
		})
	}
}

func TestHostsAreComparedWithoutCase(t *testing.T) {
	set := mustCompile(t, `permit (principal, action == Action::"fetch", resource);`,
		`forbid (principal, action == Action::"fetch", resource == Host::"evil.example.com");`)
	r := request(policy.ActionFetch)
	r.Host = "EVIL.Example.com."
	wantDenied(t, set.Decide(r), "rule b#1 forbids it", "b#1")
}

func TestApprovals(t *testing.T) {
	const gate = policy.ActionRequireApproval
	t.Run("it is required where a permit applies", func(t *testing.T) {
		set := mustCompile(t, when("permit", gate, "context.ceil.amount > 1000"))
		if d := set.Decide(request(gate)); !d.Allowed || !slices.Equal(d.Rules, []string{"a#1"}) || d.Expiry != workbench.DefaultApprovalExpiry || d.Why != "" {
			t.Errorf("got %+v", d)
		}
		r := request(gate)
		r.Args = json.RawMessage(`{"amount":1000}`)
		if d := set.Decide(r); d.Allowed || len(d.Rules) != 0 {
			t.Errorf("got %+v, want it not required", d)
		}
	})
	t.Run("the shortest expiry counts and reasons add up", func(t *testing.T) {
		set := mustCompile(t,
			`@id("2") @expiry("7d") @why("it moves money") permit (principal, action == Action::"requireApproval", resource);`,
			`@id("1") @expiry("90m") @why("it is large") permit (principal, action == Action::"requireApproval", resource);`,
			`@id("3") @why("it moves money") permit (principal, action == Action::"requireApproval", resource);`,
			`@id("4") @expiry("1m") permit (principal in Tenant::"ten_2", action == Action::"requireApproval", resource);`)
		d := set.Decide(request(gate))
		if d.Expiry.String() != "1h30m0s" || d.Why != "it is large; it moves money" || !slices.Equal(d.Rules, []string{"1", "2", "3"}) {
			t.Errorf("got %+v", d)
		}
	})
	t.Run("a forbid that names the gate exempts", func(t *testing.T) {
		set := mustCompile(t, `permit (principal, action == Action::"requireApproval", resource);`,
			`forbid (principal, action == Action::"requireApproval", resource) when { principal.name == "ann" };`)
		if d := set.Decide(request(gate)); d.Allowed || !slices.Equal(d.Rules, []string{"b#1"}) {
			t.Errorf("got %+v, want ann exempted", d)
		}
		r := request(gate)
		r.Principal = eve
		if d := set.Decide(r); !d.Allowed {
			t.Errorf("got %+v, want eve to ask", d)
		}
	})
	t.Run("a forbid without an action exempts nobody", func(t *testing.T) {
		set := mustCompile(t, `permit (principal, action in [Action::"requireApproval", Action::"holdRun"], resource);`, `forbid (principal, action, resource);`)
		for _, a := range []policy.Action{gate, policy.ActionHoldRun} {
			if d := set.Decide(request(a)); !d.Allowed || !slices.Equal(d.Rules, []string{"a#1"}) {
				t.Errorf("%s: got %+v, want it required", a, d)
			}
		}
	})
	t.Run("who asks may not decide, if a rule says so", func(t *testing.T) {
		set := mustCompile(t, when("permit", policy.ActionApprove, `principal.tenant == context.requester.tenant && principal.name != context.requester.name`))
		r := request(policy.ActionApprove)
		wantAllowed(t, set.Decide(r), "a#1")
		r.Principal = ann
		wantDenied(t, set.Decide(r), "no rule allows it")
		r.Principal = eve
		wantDenied(t, set.Decide(r), "no rule allows it")
	})
}

func TestADecisionIsTheSameEveryTime(t *testing.T) {
	set := mustCompile(t,
		`permit (principal, action == Action::"call", resource); permit (principal, action == Action::"call", resource in App::"bank");`,
		`permit (principal in Tenant::"ten_1", action == Action::"call", resource); permit (principal, action == Action::"call", resource) when { context.args.none };`)
	for range 50 {
		d := set.Decide(request(policy.ActionCall))
		wantAllowed(t, d, "a#1", "a#2", "b#1")
		if !slices.Equal(d.Errors, []string{"b#2: record does not have the attribute `none`"}) {
			t.Fatalf("got %+v", d)
		}
	}
}

package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cedar-policy/cedar-go/x/exp/schema"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/policy"
)

func TestSchema(t *testing.T) {
	var s schema.Schema
	if err := s.UnmarshalCedar([]byte(policy.Schema())); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for uid := range resolved.Actions {
		actions = append(actions, string(uid.ID))
	}
	slices.Sort(actions)
	if want := []string{"approve", "approveRun", "call", "fetch", "holdRun", "requireApproval", "use"}; !slices.Equal(actions, want) {
		t.Errorf("actions are %q, want %q", actions, want)
	}
}

func TestProblems(t *testing.T) {
	const callOnly = `permit (principal, action == Action::"call", resource) when { %s };`
	inCall := func(condition string) string { return fmt.Sprintf(callOnly, condition) }
	for name, c := range map[string]struct {
		text          string
		message, hint string // parts of them
		line, column  int
	}{
		"no Cedar":                {"\n  allow everything;", "not a Cedar policy", "docs.cedarpolicy.com", 2, 9},
		"an unfinished policy":    {`permit (principal, action == Action::"call", resource)`, "not a Cedar policy", "", 1, 55},
		"an unfinished string":    {`permit (principal, action == Action::"call`, "literal not terminated", "", 1, 38},
		"a template":              {"permit (principal == ?principal, action, resource);", "templates are not supported", "in the place of ?principal", 1, 22},
		"too many brackets":       {inCall(strings.Repeat("(", 64) + "true" + strings.Repeat(")", 64)), "nests more than 64", "", 1, 126},
		"too long a path":         {inCall("context has a" + strings.Repeat(".a", 65)), "path of attributes is longer than 64", "", 1, 204},
		"too deep":                {inCall("true" + strings.Repeat(" && true", 1000)), "more than 1000 operators deep", "set", 1, 1},
		"an unknown action":       {"// first\npermit (principal, action == Action::\"cal\", resource);", `there is no action "cal"`, "actions are approve, approveRun, call, fetch, holdRun, requireApproval, use", 2, 1},
		"one unknown of several":  {`permit (principal, action in [Action::"call", Action::"buy"], resource);`, `there is no action "buy"`, "actions are", 1, 1},
		"in a condition":          {inCall(`action == Action::"buy"`), `there is no action "buy"`, "actions are", 1, 1},
		"no action":               {`permit (principal, action in [], resource);`, "the list of actions is empty", "actions are", 1, 1},
		"an action of no type":    {`permit (principal, action == Tool::"call", resource);`, `Tool::"call" is no action`, `Action::"call"`, 1, 1},
		"a permit of everything":  {`permit (principal, action, resource);`, "a permit must name its actions", `action == Action::"call"`, 1, 1},
		"an unknown type":         {`permit (principal, action == Action::"call", resource == Tol::"x.y");`, "there is no entity type Tol", "entity types are App, Connection, Group, Host, Project, Run, Service, Session, Tenant, Tool, User", 1, 1},
		"is an unknown type":      {inCall(`principal is Person`), "there is no entity type Person", "entity types are", 1, 1},
		"in an unknown type":      {inCall(`principal is User in Team::"x"`), "there is no entity type Team", "entity types are", 1, 1},
		"an unknown service":      {`permit (principal, action == Action::"use", resource == Service::"gpt");`, `there is no service "gpt"`, "services are ai, packages, search", 1, 1},
		"a host in capitals":      {`permit (principal, action == Action::"fetch", resource == Host::"API.example.com");`, `"API.example.com" is none`, `Host::"api.example.com"`, 1, 1},
		"a principal's attribute": {inCall(`principal.nam == "ann"`), "attribute `nam` on entity type `User` not found", "User has group (optional), id, name, tenant", 1, 1},
		"a tool's attribute":      {inCall(`resource.readonly`), "attribute `readonly` on entity type `Tool` not found", "Tool has app, destructive, digest, idempotent, name, openWorld, readOnly, version", 1, 1},
		"context's attribute":     {inCall(`context.arguments.x == 1`), "attribute `arguments` in context", "the context of call has args.…, ceil.…, connection {alias, id, provider, scope} (optional), run {lane, language}, session {agent, id, kind, labels.…}", 1, 1},
		"a session's attribute":   {inCall(`context.session.user == "x"`), "attribute `user`", "session {agent, id, kind, labels.…}", 1, 1},
		"next to arguments":       {inCall(`context.args.x == context.session.user`), "attribute `user`", "session {agent, id, kind, labels.…}", 1, 1},
		"arguments of a fetch":    {`permit (principal, action == Action::"fetch", resource) when { context.args.x == 1 };`, "attribute `args` in context", "the context of fetch has", 1, 1},
		"an optional one":         {inCall(`context.connection.alias == "main"`), "access to optional attribute `connection`", "context has connection &&", 1, 1},
		"an optional group":       {inCall(`principal.group == "ops"`), "access to optional attribute `group`", "ask first", 1, 1},
		"the whole context":       {inCall(`context == {}`), "context can only be used by its attributes", "context.session.agent", 1, 1},
		"a tag":                   {inCall(`principal.getTag(context.args.s) == "x"`), "there are no tags", "attributes", 1, 1},
		"asked for a tag":         {inCall(`resource.hasTag("s")`), "there are no tags", "attributes", 1, 1},
		"types that differ":       {inCall(`principal.name == 3`), "the types Long and String are not compatible", "", 1, 1},
		"no condition":            {inCall(`context.session.agent`), "expected Bool but saw String", "", 1, 1},
		"a literal":               {inCall(`ip(context.args.host).isInRange(ip("10.0.0.0/80"))`), "failed to parse as IP address", "", 1, 1},
		"a scope nothing is in":   {`permit (principal, action == Action::"call", resource == App::"bank");`, "unable to find an applicable action", "resource is a Tool in an App", 1, 1},
		"no attribute everywhere": {`forbid (principal, action, resource) when { resource.destructive };`, "attribute `destructive` on entity type", "has", 1, 1},
		"an empty id":             {`@id permit (principal, action == Action::"call", resource);`, "@id must be 1 to 128 bytes", "no-payments", 1, 1},
		"an expiry of words":      {`@expiry("soon") permit (principal, action == Action::"requireApproval", resource);`, "@expiry must be a duration of more than 0 and at most 7 days", `@expiry("24h")`, 1, 1},
		"an expiry too long":      {`@expiry("8d") permit (principal, action == Action::"requireApproval", resource);`, "@expiry must be", "", 1, 1},
		"an expiry beyond time":   {`@expiry("9999999999d") permit (principal, action == Action::"requireApproval", resource);`, "@expiry must be", "", 1, 1},
		"an expiry of nothing":    {`@expiry("0s") permit (principal, action == Action::"requireApproval", resource);`, "@expiry must be", "", 1, 1},
		"an expiry before":        {`@expiry("-1d") permit (principal, action == Action::"requireApproval", resource);`, "@expiry must be", "", 1, 1},
		"no reason":               {`@why("") permit (principal, action == Action::"requireApproval", resource);`, "@why must be 1 to 500 bytes", "", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			set, problems := policy.Compile(rules(c.text))
			if set != nil {
				t.Error("there is a set")
			}
			at := slices.IndexFunc(problems, func(p policy.Problem) bool {
				return !p.Warning && p.Rule == "a" && strings.Contains(p.Message, c.message) && strings.Contains(p.Hint, c.hint)
			})
			if at < 0 {
				t.Fatalf("got %+v, want %q (%q)", problems, c.message, c.hint)
			}
			if p := problems[at]; p.Line != c.line || p.Column != c.column {
				t.Errorf("it is at %d:%d, want %d:%d", p.Line, p.Column, c.line, c.column)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	const gated = `permit (principal, action == Action::"requireApproval", resource);`
	const approved = `permit (principal, action == Action::"approve", resource);`
	for name, c := range map[string]struct {
		texts   []string
		message string // "": no warning
	}{
		"nobody can approve":                      {[]string{gated}, "nobody can approve: no rule permits the action approve"},
		"somebody can":                            {[]string{gated, approved}, ""},
		"a forbid does not make it possible":      {[]string{gated, `forbid (principal, action == Action::"approve", resource);`}, "nobody can approve"},
		"an exemption asks nobody":                {[]string{`forbid (principal, action == Action::"requireApproval", resource);`}, ""},
		"nobody can approve a run":                {[]string{`permit (principal, action == Action::"holdRun", resource);`, approved}, "no rule permits the action approveRun"},
		"a text without a policy":                 {[]string{"// later"}, "the text holds no policy"},
		"an annotation that is none":              {[]string{`@expire("1h") permit (principal, action == Action::"call", resource);`}, "@expire says nothing here"},
		"an expiry of a call":                     {[]string{`@expiry("1h") permit (principal, action == Action::"call", resource);`}, "@expiry and @why have no effect here"},
		"a reason of a forbid":                    {[]string{`@why("no") forbid (principal, action == Action::"requireApproval", resource);`}, "@expiry and @why have no effect here"},
		"a tenant by name":                        {[]string{`forbid (principal in Tenant::"acme", action == Action::"call", resource);`}, `no tenant is "acme": this never counts`},
		"a user by name":                          {[]string{`forbid (principal, action == Action::"call", resource) when { principal == User::"ada" };`}, `no user is "ada"`},
		"a group by name":                         {[]string{`forbid (principal in Group::"ops", action == Action::"call", resource);`}, `no group is "ops"`},
		"a host with a port":                      {[]string{`forbid (principal, action == Action::"fetch", resource == Host::"127.0.0.1:9904");`}, `no host is "127.0.0.1:9904"`},
		"a host as a URL":                         {[]string{`forbid (principal, action == Action::"fetch", resource == Host::"https://api.example.com/v1");`}, "no host is"},
		"a host that is an IPv6 address":          {[]string{`forbid (principal, action == Action::"fetch", resource == Host::"2606:4700::1111");`}, ""},
		"a tool without its app":                  {[]string{`forbid (principal, action == Action::"call", resource == Tool::"refund");`}, `no tool is "refund"`},
		"an app that is a tool":                   {[]string{`forbid (principal, action == Action::"call", resource in App::"crm.refund");`}, `no app is "crm.refund"`},
		"ids":                                     {[]string{`forbid (principal in Tenant::"ten_1", action == Action::"call", resource == Tool::"crm.refund") when { principal == User::"key_1" || principal in Group::"grp_1" };`}, ""},
		"a description, an id and nothing beside": {[]string{`@id("x") @description("d") permit (principal, action == Action::"call", resource);`}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			set, problems := policy.Compile(rules(c.texts...))
			if set == nil {
				t.Fatalf("there is no set: %+v", problems)
			}
			switch {
			case c.message == "" && len(problems) > 0:
				t.Errorf("got %+v, want none", problems)
			case c.message != "" && (len(problems) != 1 || !problems[0].Warning || !strings.Contains(problems[0].Message, c.message)):
				t.Errorf("got %+v, want a warning: %s", problems, c.message)
			}
		})
	}
}

func TestIDs(t *testing.T) {
	t.Run("a problem names the policy", func(t *testing.T) {
		_, problems := policy.Compile([]workbench.Rule{{Name: "payments", Text: "permit (principal, action == Action::\"call\", resource);\n\n  permit (principal, action, resource);"}})
		if len(problems) != 1 || problems[0].Rule != "payments" || problems[0].Policy != "payments#2" || problems[0].Line != 3 || problems[0].Column != 3 {
			t.Errorf("got %+v", problems)
		}
	})
	t.Run("an id is taken once in all rules", func(t *testing.T) {
		const text = `@id("x") permit (principal, action == Action::"call", resource);`
		set, problems := policy.Compile(rules(text, text))
		if set != nil || len(problems) != 1 || problems[0].Rule != "b" || problems[0].Policy != "x" || problems[0].Message != `the id "x" is taken by the policy at line 1 of rule "a"` {
			t.Errorf("got %+v", problems)
		}
	})
	t.Run("also one that is another's by its place", func(t *testing.T) {
		set, problems := policy.Compile(rules(`permit (principal, action == Action::"call", resource);`, `@id("a#1") permit (principal, action == Action::"call", resource);`))
		if set != nil || len(problems) != 1 || problems[0].Rule != "b" {
			t.Errorf("got %+v", problems)
		}
	})
	t.Run("every rule with a problem is reported", func(t *testing.T) {
		_, problems := policy.Compile(rules("x", `permit (principal, action == Action::"call", resource);`, `permit (principal, action, resource);`))
		if len(problems) != 2 || problems[0].Rule != "a" || problems[1].Rule != "c" {
			t.Errorf("got %+v", problems)
		}
	})
	t.Run("but no more than a hundred problems", func(t *testing.T) {
		set, problems := policy.Compile(rules(strings.Repeat("permit (principal, action, resource);\n", 500)))
		if set != nil || len(problems) != 101 || problems[100].Message != "there are more problems" || problems[100].Warning {
			t.Errorf("got %d problems, the last %+v", len(problems), problems[len(problems)-1])
		}
	})
}

// TestOpenRecords: what the schema cannot declare may be used in every way.
func TestOpenRecords(t *testing.T) {
	for _, condition := range []string{
		`context.args has a.b.c && context.args.a.b.c == 1`,
		`context.args["with space"] like "*x*"`,
		`context.args.tags.contains("a") || context.args.tags.containsAny(["b", "c"])`,
		`["a", "b"].contains(context.args.kind)`,
		`context.args.tags == []`,
		`if context.args has n then context.args.n > 3 else principal.name == "ann"`,
		`context.args.rate.greaterThan(decimal("1.5"))`,
		`context.args has host && ip(context.args.host).isInRange(ip("10.0.0.0/8"))`,
		`-context.args.n + 2 * context.ceil.n > 5`,
		`context has connection && context.connection.alias == context.args.alias`,
		`context.session.labels has env && context.session.labels["env"] != context.args.env`,
		`{"a": context.args.x} == {"a": 1}`,
		`context.args == {"a": 1}`,
		`(context.args.x) is User`,
	} {
		t.Run(condition, func(t *testing.T) {
			mustCompile(t, when("permit", policy.ActionCall, condition), when("forbid", policy.ActionApprove, condition))
		})
	}
}

// FuzzCompile: no text makes Compile panic, hang or return neither a set nor a
// problem.
func FuzzCompile(f *testing.F) {
	for _, c := range conditions {
		f.Add(when("permit", c.action, c.condition))
	}
	f.Add(`@id("x") @expiry("1h") permit (principal, action in [Action::"requireApproval"], resource is Tool in App::"x") unless { if context.args.x then !true else "\u{1F600}" like "*" };`)
	f.Add("/* x */ permit (principal == ?principal, action, resource) // y\n;")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		set, problems := policy.Compile(rules(text))
		if set == nil && !slices.ContainsFunc(problems, func(p policy.Problem) bool { return !p.Warning }) {
			t.Fatal("there is no set and no problem")
		}
		for _, a := range policy.Actions() {
			r := request(a)
			set.Decide(r)
			r.AnyArguments = true
			set.Decide(r)
		}
	})
}

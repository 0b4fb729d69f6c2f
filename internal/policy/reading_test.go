package policy_test

import (
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/policy"
)

const anyone = `permit (principal, action == Action::"call", resource);`

// TestReading asks whether ann would be allowed some call of bank.pay, in the
// run that the request has and in no run.
func TestReading(t *testing.T) {
	for name, c := range map[string]struct {
		rules         []string
		inRun, inNone bool
	}{
		"nothing permits":                                 {nil, false, false},
		"a permit of all":                                 {[]string{anyone}, true, true},
		"a permit of another action":                      {[]string{`permit (principal, action == Action::"approve", resource);`}, false, false},
		"a permit that depends on arguments":              {[]string{when("permit", "call", `context.args.to == "y"`)}, true, true},
		"and on whose they are":                           {[]string{when("permit", "call", `principal.name == "ann" && context.args.to == "y"`)}, true, true},
		"but not on another's":                            {[]string{when("permit", "call", `principal.name == "bob" && context.args.to == "y"`)}, false, false},
		"in the other order":                              {[]string{when("permit", "call", `context.args.to == "y" && principal.name == "bob"`)}, false, false},
		"one of two conditions":                           {[]string{`permit (principal, action == Action::"call", resource) when { context.args.n > 1 } when { principal.name == "bob" };`}, false, false},
		"either":                                          {[]string{when("permit", "call", `principal.name == "bob" || context.args.to == "y"`)}, true, true},
		"unless arguments":                                {[]string{`permit (principal, action == Action::"call", resource) unless { context.ceil.amount > 10 };`}, true, true},
		"unless a name or arguments":                      {[]string{`permit (principal, action == Action::"call", resource) unless { principal.name == "ann" || context.ceil.amount > 10 };`}, false, false},
		"unless a name and arguments":                     {[]string{`permit (principal, action == Action::"call", resource) unless { principal.name == "ann" && context.ceil.amount > 10 };`}, true, true},
		"not of a name or arguments":                      {[]string{when("permit", "call", `!(principal.name == "ann" || context.args has x)`)}, false, false},
		"if arguments then one name else another":         {[]string{when("permit", "call", `if context.args.x then principal.name == "bob" else principal.name == "ann"`)}, true, true},
		"if arguments then one name else a third":         {[]string{when("permit", "call", `if context.args.x then principal.name == "bob" else principal.name == "eve"`)}, false, false},
		"if a name then arguments else nobody":            {[]string{when("permit", "call", `if principal.name == "ann" then context.args.x else false`)}, true, true},
		"if another name then arguments else nobody":      {[]string{when("permit", "call", `if principal.name == "bob" then context.args.x else false`)}, false, false},
		"if a name and arguments":                         {[]string{when("permit", "call", `if principal.name == "bob" && context.args.x then true else false`)}, false, false},
		"an if that decides an if permits nothing":        {[]string{when("permit", "call", `if (if context.args.x then true else false) then true else true`)}, false, false},
		"that arguments are there is no condition":        {[]string{when("permit", "call", `context has args && context has ceil`)}, true, true},
		"a forbid of all":                                 {[]string{anyone, `forbid (principal, action == Action::"call", resource);`}, false, false},
		"a forbid without an action":                      {[]string{anyone, `forbid (principal, action, resource);`}, false, false},
		"a forbid that depends on arguments":              {[]string{anyone, when("forbid", "call", `context.ceil.amount > 10`)}, true, true},
		"a forbid of a name and arguments":                {[]string{anyone, when("forbid", "call", `principal.name == "ann" && context.ceil.amount > 10`)}, true, true},
		"a forbid of a name or arguments":                 {[]string{anyone, when("forbid", "call", `principal.name == "ann" || context.ceil.amount > 10`)}, false, false},
		"a forbid unless arguments":                       {[]string{anyone, `forbid (principal, action == Action::"call", resource) unless { context.args has reason };`}, true, true},
		"a forbid unless a name":                          {[]string{anyone, `forbid (principal, action == Action::"call", resource) unless { principal.name == "bob" };`}, false, false},
		"a forbid with an if that decides an if":          {[]string{anyone, when("forbid", "call", `if (if context.args.x then true else false) then true else true`)}, false, false},
		"a forbid if arguments then a name else the same": {[]string{anyone, when("forbid", "call", `if context.args.x then principal.name == "ann" else principal.name == "ann"`)}, false, false},
		"a forbid that errs":                              {[]string{anyone, when("forbid", "call", errs)}, false, false},
		"a forbid of a name and what errs":                {[]string{anyone, when("forbid", "call", `principal.name == "bob" && context.session.labels.missing == "x"`)}, true, true},
		"a forbid of a connection":                        {[]string{anyone, when("forbid", "call", `context has connection && context.connection.alias == "main"`)}, false, false},
		"a permit of the run's language":                  {[]string{when("permit", "call", `context.run.language == "python"`)}, true, true},
		"a permit of another language":                    {[]string{when("permit", "call", `context.run.language == "bash"`)}, false, true},
		"a permit of another language and another's name": {[]string{when("permit", "call", `context.run.language == "bash" && principal.name == "bob"`)}, false, false},
		"a forbid of the run's language":                  {[]string{anyone, when("forbid", "call", `context.run.language == "python"`)}, false, true},
		"that there is a run is no condition":             {[]string{when("permit", "call", `context has run && context.run.language == "python"`)}, true, true},
		"a forbid of the run's language or of who reads":  {[]string{anyone, when("forbid", "call", `context.run.language == "bash" || principal.name == "ann"`)}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			set := mustCompile(t, c.rules...)
			r := request(policy.ActionCall)
			r.AnyArguments, r.Args = true, nil
			if d := set.Decide(r); d.Allowed != c.inRun {
				t.Errorf("in a run: %+v, want %v", d, c.inRun)
			}
			r.Language, r.Lane = "", ""
			if d := set.Decide(r); d.Allowed != c.inNone {
				t.Errorf("in no run: %+v, want %v", d, c.inNone)
			}
		})
	}
}

func TestReadingNamesTheRules(t *testing.T) {
	set := mustCompile(t, when("permit", "call", `context.args.n > 1`), when("forbid", "call", `principal.name == "bob" || context.args.n > 5`))
	r := policy.Request{Action: policy.ActionCall, Principal: ann, AnyArguments: true, Tool: &workbench.Tool{App: "bank", Name: "bank.pay"}}
	wantAllowed(t, set.Decide(r), "a#1")
	r.Principal = bob
	wantDenied(t, set.Decide(r), "rule b#1 forbids it", "b#1")
}

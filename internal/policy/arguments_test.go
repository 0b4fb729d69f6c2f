package policy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench/internal/policy"
)

func TestArguments(t *testing.T) {
	for _, c := range []struct{ args, condition string }{
		{`{"n":1500}`, `context.args.n == 1500 && context.ceil.n == 1500`},
		{`{"n":1500.0}`, `context.args.n == 1500`},
		{`{"n":1.5e3}`, `context.args.n == 1500`},
		{`{"n":150000E-2}`, `context.args.n == 1500`},
		{`{"n":-0}`, `context.args.n == 0`},
		{`{"n":-0.0e999999999999999999999}`, `context.args.n == 0 && context.ceil.n == 0`},
		{`{"n":9223372036854775807}`, `context.args.n == 9223372036854775807`},
		{`{"n":-9223372036854775808}`, `context.args.n == -9223372036854775808`},
		{`{"n":1.5}`, `context.args.n == decimal("1.5") && context.ceil.n == 2`},
		{`{"n":-1.5}`, `context.args.n == decimal("-1.5") && context.ceil.n == -1`},
		{`{"n":0.1234}`, `context.args.n == decimal("0.1234") && context.ceil.n == 1`},
		{`{"n":0.12341}`, `context.args.n == decimal("0.1235")`},
		{`{"n":-0.12349}`, `context.args.n == decimal("-0.1234") && context.ceil.n == 0`},
		{`{"n":0.99999}`, `context.args.n == decimal("1.0") && context.ceil.n == 1`},
		{`{"n":1e-300}`, `context.args.n == decimal("0.0001") && context.ceil.n == 1`},
		{`{"n":-1e-300}`, `context.args.n == decimal("0.0") && context.ceil.n == 0`},
		{`{"n":922337203685477.5807}`, `context.args.n == decimal("922337203685477.5807") && context.ceil.n == 922337203685478`},
		{`{"n":-922337203685477.5808}`, `context.args.n == decimal("-922337203685477.5808") && context.ceil.n == -922337203685477`},
		{`{"n":1000.01}`, `context.ceil.n > 1000`},
		{`{"n":9223372036854775808}`, `context.ceil.n == 9223372036854775807 && context.args has n`},
		{`{"n":1e999999999999}`, `context.ceil.n == 9223372036854775807`},
		{`{"n":-1e400}`, `context.ceil.n == -9223372036854775808`},
		{`{"n":922337203685477.58071}`, `context.ceil.n == 922337203685478`},
		{`{"n":1e-999999999999}`, `context.ceil.n == 1`},
		{`{"s":"a","t":true,"f":false}`, `context.args.s == "a" && context.args.t && !context.args.f && context.ceil.s == "a" && context.ceil.t`},
		{`{"x":null}`, `!(context.args has x) && !(context.ceil has x)`},
		{`{"x":[1,null,1.0,2]}`, `context.args.x == [1, 2]`},
		{`{"x":[null]}`, `context.args.x.isEmpty()`},
		{`{"x":[0.5,1]}`, `context.args.x.contains(decimal("0.5")) && context.ceil.x == [1]`},
		{`{"x":{"y":{"z":[{"k":"v"}]}}}`, `context.args.x.y.z.contains({"k": "v"})`},
		{`{"x":{"__entity":{"type":"User","id":"usr_1"}}}`, `context.args.x has "__entity" && context.args.x != principal`},
		{`{"é":"ü","a b":1}`, `context.args["é"] == "ü" && context.args["a b"] == 1`},
		{` {} `, `context.args == {} && context.ceil == {}`},
	} {
		t.Run(c.args+" "+c.condition, func(t *testing.T) {
			d := mustCompile(t, when("permit", policy.ActionCall, c.condition)).Decide(call(c.args))
			wantAllowed(t, d, "a#1")
		})
	}
}

// TestWhatNoValueHolds: rules that compute with it fail closed, others do not
// care.
func TestWhatNoValueHolds(t *testing.T) {
	mixed := func(n int) string {
		values := []string{"0.5"}
		for i := 1; i < n; i++ {
			values = append(values, fmt.Sprint(i))
		}
		return `{"x":[` + strings.Join(values, ",") + `]}`
	}
	rows := func(n int) string { return `{"x":[` + strings.TrimSuffix(strings.Repeat("[1],", n), ",") + `]}` }
	for name, c := range map[string]struct {
		args, condition string
		errs            bool
	}{
		"a large number":                     {`{"x":1e30}`, `context.args.x > 1`, true},
		"a large number is no small one":     {`{"x":1e30}`, `context.args.x == 1`, false},
		"a negative one":                     {`{"x":-9223372036854775809}`, `context.args.x < 1`, true},
		"a large number with places":         {`{"x":922337203685477.58071}`, `context.args.x.lessThan(decimal("1.0"))`, true},
		"a mixed array":                      {mixed(256), `context.args.x.contains(7000)`, false},
		"a large mixed array":                {mixed(257), `context.args.x.contains(7000)`, true},
		"a large mixed array is numbers, up": {mixed(257), `context.ceil.x.contains(7000)`, false},
		"arrays of an array":                 {rows(256), `context.args.x.contains([2])`, false},
		"many arrays of an array":            {rows(257), `context.args.x.contains([2])`, true},
	} {
		t.Run(name, func(t *testing.T) {
			set := mustCompile(t, when("permit", policy.ActionCall, "true"), when("forbid", policy.ActionCall, c.condition))
			if d := set.Decide(call(c.args)); d.Allowed == c.errs || (len(d.Errors) == 1) != c.errs {
				t.Errorf("got %+v, want it to err: %v", d, c.errs)
			}
		})
	}
}

// TestHostileArraysAreCheap: the members of these hash to one another's places.
func TestHostileArraysAreCheap(t *testing.T) {
	set := mustCompile(t, anyone)
	numbers, sums := make([]string, 0, 40_000), make([]string, 0, 20_000)
	for i := range 15_000 {
		numbers = append(numbers, fmt.Sprint(i), fmt.Sprintf("%d.%04d", i/10_000, i%10_000))
		sums = append(sums, fmt.Sprintf("[%d,%d]", i, 100_000-i))
	}
	for name, values := range map[string][]string{"numbers": numbers, "sums": sums} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			wantAllowed(t, set.Decide(call(`{"x":[`+strings.Join(values, ",")+`]}`)), "a#1")
			if took := time.Since(start); took > 3*time.Second { // of some milliseconds
				t.Errorf("it took %v", took)
			}
		})
	}
}

// FuzzArguments: what is no JSON object of at most 64 levels is never allowed,
// and never exempted.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,2.5,null,{"b":"c"}]}`, `null`, `[]`, `{"a":1}{}`, `{"a":1e400,"b":-0.00001}`, `{"a":"` + "\xff" + `"}`,
		strings.Repeat(`{"a":`, 65) + `1` + strings.Repeat(`}`, 65), `{"a":[[[]],"]","\"["]}`, "", " ", `{"a":tru}`} {
		f.Add([]byte(s))
	}
	set := mustCompile(f, anyone, `forbid (principal, action == Action::"requireApproval", resource);`)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var object map[string]json.RawMessage
		want := json.Unmarshal(raw, &object) == nil && object != nil && levels(raw) <= 64
		r := request(policy.ActionCall)
		r.Args = raw
		if d := set.Decide(r); d.Allowed != want {
			t.Errorf("call: got %+v, want %v", d, want)
		}
		r = request(policy.ActionRequireApproval)
		r.Args = raw
		if d := set.Decide(r); d.Allowed == want {
			t.Errorf("requireApproval: got %+v, want %v", d, !want)
		}
	})
}

// levels counts how deeply valid JSON nests.
func levels(raw []byte) int {
	dec := json.NewDecoder(bytes.NewReader(raw))
	depth, deepest := 0, 0
	for {
		switch token, err := dec.Token(); token {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		default:
			if err != nil {
				return deepest
			}
		}
	}
}

// FuzzNumbers: ceil is above a whole number if, and only if, the number is, and
// the same for at most.
func FuzzNumbers(f *testing.F) {
	for _, s := range []string{"0", "1000", "1000.0001", "999.9999999", "-1e3", "1E+3", "10e2", "1.0001e3", "100000e-2", "1000000e-3", "1e30", "-1e30", "1e-30"} {
		f.Add(s)
	}
	set := mustCompile(f, anyone, when("forbid", policy.ActionCall, `context.ceil.n > 1000`), when("forbid", policy.ActionCall, `context.ceil.n <= -5`))
	f.Fuzz(func(t *testing.T, text string) {
		var n json.Number
		if len(text) > 40 || json.Unmarshal([]byte(text), &n) != nil || n == "" || strings.Contains(text, `"`) {
			return
		}
		if _, exponent, _ := strings.Cut(strings.ToLower(n.String()), "e"); len(exponent) > 4 {
			return // too large for big.Rat
		}
		x, ok := new(big.Rat).SetString(n.String())
		if !ok {
			return
		}
		want := x.Cmp(big.NewRat(1000, 1)) <= 0 && x.Cmp(big.NewRat(-5, 1)) > 0
		if d := set.Decide(call(`{"n":` + text + `}`)); d.Allowed != want {
			t.Errorf("%s: got %+v, want %v", text, d, want)
		}
	})
}

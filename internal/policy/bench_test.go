package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench/internal/policy"
)

// BenchmarkDecide1000 decides a call under 1,000 policies: of as many tools, of
// as many tenants, and such that every one has to be evaluated.
func BenchmarkDecide1000(b *testing.B) {
	for name, one := range map[string]string{
		"tools":      `permit (principal, action == Action::"call", resource == Tool::"bank.pay%d") when { context.ceil.amount < %d };`,
		"tenants":    `permit (principal in Tenant::"ten_%d", action == Action::"call", resource in App::"app%d");`,
		"principals": `permit (principal, action == Action::"call", resource) when { principal in Tenant::"ten_x%d" && context.ceil.amount < %d };`,
		"arguments":  `permit (principal, action == Action::"call", resource) when { context.args has amount && context.ceil.amount > 1 && context.args.to == "%d" && context.args.amount < %d };`,
		"errors":     `permit (principal, action == Action::"call", resource) when { context.args.missing%d > %d };`,
	} {
		var text strings.Builder
		for i := range 999 {
			fmt.Fprintf(&text, one+"\n", i, i)
		}
		set := mustCompile(b, text.String(), `permit (principal in Group::"grp_1", action == Action::"call", resource in App::"bank");`)
		r := request(policy.ActionCall)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := set.Decide(r); !d.Allowed {
					b.Fatal(d)
				}
			}
		})
	}
}

package verify_test

import (
	"os"
	"testing"
	"strings"

	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
	"github.com/workbenchdev/workbench/internal/verify"
)

func options(t *testing.T, kind oci.Kind) verify.Options {
	env := sandboxtest.MustEnv(t)
	o := verify.Options{Kind: kind, Binary: env.Runsc, Bare: env.Runc, Guest: env.Guest, Image: env.Image}
	if kind == oci.Runc {
		o.Binary = env.Runc
	}
	if rows := os.Getenv("WORKBENCH_VERIFY_ROWS"); rows != "" {
		o.Rows = strings.Split(rows, ",")
	}
	o.Each = func(r verify.Result) { t.Logf("%-4s %-14s %5d ms  %s: %s", r.ID, r.Outcome, r.TookMs, r.Case, r.Why) }
	return o
}

func TestAsShipped(t *testing.T) {
	for _, kind := range []oci.Kind{oci.Runsc, oci.Runc} {
		t.Run(string(kind), func(t *testing.T) {
			report, err := verify.Run(t.Context(), options(t, kind))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d proved, %d failed, %d warned, %d n/a in %d ms", report.Count(verify.Proved), report.Count(verify.Failed), report.Count(verify.Warned), report.Count(verify.NotApplicable), report.TookMs)
			if report.Count(verify.Failed) > 0 { t.Fail() }
		})
	}
}

package verify_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
	"github.com/workbenchdev/workbench/internal/verify"
)

// options are those of `workbench verify`, with what make setup built.
// WORKBENCH_VERIFY_ROWS=H01,H43 narrows a run while a row is worked on.
func options(t *testing.T, kind oci.Kind) verify.Options {
	t.Helper()
	env := sandboxtest.MustEnv(t)
	o := verify.Options{Kind: kind, Binary: env.Runsc, Bare: env.Runc, Guest: env.Guest, Image: env.Image}
	if kind == oci.Runc {
		o.Binary = env.Runc
	}
	o.Rows = onlyRows()
	return o
}

func onlyRows() []string {
	if rows := os.Getenv("WORKBENCH_VERIFY_ROWS"); rows != "" {
		return strings.Split(rows, ",")
	}
	return nil
}

func bothKinds(t *testing.T, f func(t *testing.T, kind oci.Kind)) {
	for _, kind := range []oci.Kind{oci.Runsc, oci.Runc} {
		t.Run(string(kind), func(t *testing.T) { f(t, kind) })
	}
}

// TestSandboxesAsShipped is what `workbench verify` does: no row fails, and at
// least 60 that are known to notice a broken sandbox are proved.
func TestSandboxesAsShipped(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		o := options(t, kind)
		o.Each = func(r verify.Result) {
			t.Logf("%-4s %-14s %5d ms  %s: %s", r.ID, r.Outcome, r.TookMs, r.Case, r.Why)
			if r.Outcome == verify.Failed {
				t.Errorf("%s %s: %s", r.ID, r.Case, r.Why)
			}
		}
		report, err := verify.Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d proved, %d of them counted; %d failed, %d warned, %d not applicable; %d ms", report.Count(verify.Proved), report.Proved(),
			report.Count(verify.Failed), report.Count(verify.Warned), report.Count(verify.NotApplicable), report.TookMs)
		if report.Proved() < 60 && o.Rows == nil {
			t.Errorf("%d counted rows are proved, want 60 or more", report.Proved())
		}
	})
}

// TestEveryRowIsAccountedFor: a row is in the table of broken profiles, or it is
// said why none makes it fail, or it is not tried here at all; and for no driver
// both.
func TestEveryRowIsAccountedFor(t *testing.T) {
	rows := verify.Rows()
	if sorted := slices.Sorted(slices.Values(rows)); len(slices.Compact(sorted)) != len(rows) {
		t.Errorf("the table has %d rows and %d ids", len(rows), len(slices.Compact(sorted)))
	}
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		bitten := map[string]bool{}
		for _, b := range verify.Bites() {
			if !slices.Contains(rows, b.Row) {
				t.Errorf("profile %q names row %s, which there is not", b.Profile, b.Row)
			}
			if b.Kind == kind {
				bitten[b.Row] = true
			}
		}
		for _, id := range rows {
			blind := verify.Blind(id, kind) != ""
			tried := verify.Tried(id)
			if tried && !blind && !bitten[id] {
				t.Errorf("row %s: no profile makes it fail, and nothing says why", id)
			}
			if bitten[id] && (blind || !tried) {
				t.Errorf("row %s is in the table of profiles, and said not to be", id)
			}
		}
	})
}

func TestAnUnknownRowIsRefused(t *testing.T) {
	_, err := verify.Run(t.Context(), verify.Options{Rows: []string{"H999"}})
	if err == nil || !strings.Contains(err.Error(), `there is no row "H999"`) {
		t.Errorf("got %v", err)
	}
}

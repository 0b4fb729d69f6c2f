package verify_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
	"github.com/workbenchdev/workbench/internal/verify"
)

// TestBrokenSandboxesAreNoticed runs each row of the table in a sandbox of its
// profile, where it must not be proved, and where it must be the sandbox and not
// the check that is at fault. What a row notices on the default runtime is tried
// on the other in the long form.
func TestBrokenSandboxesAreNoticed(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		rows, expect := map[string][]string{}, map[[2]string]verify.Outcome{}
		var profiles []string
		for _, b := range verify.Bites() {
			only := onlyRows()
			if b.Kind != kind || only != nil && !slices.Contains(only, b.Row) {
				continue
			}
			if kind != oci.Runsc && only == nil && !sandboxtest.Soak() && slices.ContainsFunc(verify.Bites(), func(o verify.Bite) bool { return o.Kind == oci.Runsc && o.Row == b.Row }) {
				continue
			}
			if rows[b.Profile] == nil {
				profiles = append(profiles, b.Profile)
			}
			rows[b.Profile] = append(rows[b.Profile], b.Row)
			expect[[2]string{b.Profile, b.Row}] = b.Expect
		}
		for _, name := range profiles {
			t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
				t.Parallel() // most of the time nothing runs here but a clock
				results, incomplete, err := verify.Broken(t.Context(), options(t, kind), name, rows[name])
				if err != nil {
					t.Fatal(err)
				}
				if len(results) != len(rows[name]) {
					t.Errorf("%d rows ran, want %d", len(results), len(rows[name]))
				}
				for _, r := range results {
					t.Logf("%-4s %-8s %5d ms  %s", r.ID, r.Outcome, r.TookMs, r.Why)
					if want := expect[[2]string{name, r.ID}]; r.Outcome != want || slices.Contains(incomplete, r.ID) {
						t.Errorf("%s in %q: %s, want %s: %s", r.ID, name, r.Outcome, want, r.Why)
					}
				}
			})
		}
	})
}

package guest_test

import (
	"slices"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// MustSessionOf binds a sandbox of the standard size with an image.
func MustSessionOf(t testing.TB, kind oci.Kind, image string) *session {
	t.Helper()
	d, env := MustDriver(t, kind)
	return &session{t: t, kind: kind, d: d, env: env, Session: sandboxtest.MustBind(t, d, sandboxtest.Standard(sandboxtest.MustImage(t, image)))}
}

// BenchmarkRun measures a run in a warm session from the guest's side of the
// product: exec to end, as an agent calls, which thinks in between (rested), and
// one straight after another's end and scan (at once).
func BenchmarkRun(b *testing.B) {
	for _, c := range []struct {
		name, image string
		lang        workbench.Language
		source      string
	}{
		{"python", "minimal", workbench.Python, "print('hello')"},
		{"node", "minimal", workbench.JavaScript, "console.log('hello')"},
		{"bash", "minimal", workbench.Bash, "echo hello"},
		{"standard python", "standard", workbench.Python, "print('hello')"},
		{"pandas", "standard", workbench.Python, "import pandas"},
	} {
		for pace, pause := range map[string]time.Duration{"rested": 300 * time.Millisecond, "at once": 0} {
			b.Run(c.name+" "+pace, func(b *testing.B) {
				s := MustSessionOf(b, oci.Runsc, c.image)
				s.code(b, c.lang, c.source)
				time.Sleep(2 * warm)
				var took []time.Duration
				for range b.N {
					r := request(c.lang, c.source)
					r.OutputBytes = 1 << 20
					took = append(took, s.do(b, r).took)
					if _, err := s.Client.Scan(b.Context(), guestwire.ScanRequest{}, &files{entries: map[string]guestwire.Entry{}, content: map[string][]byte{}}); err != nil {
						b.Fatal(err)
					}
					time.Sleep(pause)
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/median")
				b.ReportMetric(float64(took[len(took)*9/10].Microseconds()), "µs/p90")
			})
		}
	}
}

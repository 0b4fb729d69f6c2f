package guest_test

import (
	"fmt"
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

// BenchmarkCall measures the guest's side of calls, on a host that answers at once:
// one after another, and eight at once until the last is back: asynchronous ones, and
// those of eight threads.
func BenchmarkCall(b *testing.B) {
	for lang, source := range map[workbench.Language]string{
		workbench.Python: `
import threading, time
time.sleep(0.5)
call = lambda: workbench.call("your_app.lookup")
call()
took, all = [], []
for _ in range(50):
    began = time.perf_counter(); call(); took.append(time.perf_counter() - began)
for _ in range(20):
    start = threading.Barrier(9)
    def wait_and_call():
        start.wait(); call()
    threads = [threading.Thread(target=wait_and_call) for _ in range(8)]
    for t in threads: t.start()
    start.wait(); began = time.perf_counter()
    for t in threads: t.join()
    all.append(time.perf_counter() - began)
import asyncio
gathered = []
async def main():
    for _ in range(20):
        began = time.perf_counter(); await asyncio.gather(*[workbench.aio.call("your_app.lookup") for _ in range(8)])
        gathered.append(time.perf_counter() - began)
asyncio.run(main())
print(sorted(took)[25] * 1e6, sorted(gathered)[10] * 1e6, sorted(all)[10] * 1e6)
`, workbench.JavaScript: `
await new Promise((go) => setTimeout(go, 500));
const took = [], all = [];
const call = () => workbench.call('your_app.lookup');
const timed = async (into, work) => { const began = performance.now(); await work(); into.push(performance.now() - began); };
await call();
for (let i = 0; i < 50; i++) await timed(took, call);
for (let i = 0; i < 20; i++) await timed(all, () => Promise.all(Array.from({ length: 8 }, call)));
const median = (all) => all.sort((a, b) => a - b)[all.length >> 1] * 1e3;
console.log(median(took), median(all), 0);
`} {
		b.Run(string(lang), func(b *testing.B) {
			s := MustSessionOf(b, oci.Runsc, "minimal")
			var sum [3]float64
			for range b.N {
				o, _ := s.with(b, request(lang, source), standIn)
				var now [3]float64
				if _, err := fmt.Sscan(o.stdout, &now[0], &now[1], &now[2]); err != nil {
					b.Fatalf("%v: %q %s", err, o.stdout, o.stderr)
				}
				for i := range sum {
					sum[i] += now[i] / float64(b.N)
				}
			}
			b.ReportMetric(sum[0], "µs/call")
			b.ReportMetric(sum[1], "µs/8-at-once")
			if sum[2] > 0 {
				b.ReportMetric(sum[2], "µs/8-threads")
			}
		})
	}
}

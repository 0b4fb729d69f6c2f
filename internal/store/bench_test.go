package store_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/store/pgtest"
)

// bench is a database with one open session and its lease.
type bench struct {
	*store.DB
	p       workbench.Principal
	session string
	epoch   int64
}

func databases(b *testing.B, run func(b *testing.B, w *bench)) {
	b.Run("sqlite", func(b *testing.B) { run(b, mustBench(b, filepath.Join(b.TempDir(), "workbench.db"))) })
	b.Run("postgres", func(b *testing.B) { run(b, mustBench(b, pgtest.MustURL(b))) })
}

func mustBench(b testing.TB, dsn string) *bench {
	b.Helper()
	w := &bench{DB: mustOpen(b, dsn)}
	ctx := b.Context()
	project, err1 := w.EnsureProject(ctx, "p")
	tenant, err2 := w.EnsureTenant(ctx, project.ID, "t")
	user, err3 := w.EnsureUser(ctx, project.ID, tenant.ID, "u")
	w.p = workbench.Principal{ProjectID: project.ID, TenantID: tenant.ID, UserID: user.ID, KeyKind: workbench.KeyDirect}
	now := time.Now()
	s := workbench.Session{ID: workbench.NewID(workbench.KindSession), ProjectID: project.ID, TenantID: tenant.ID, UserID: user.ID,
		Kind: workbench.SessionPersonal, Generation: 1, Revision: 1, Size: "standard", Limits: workbench.DefaultLimits(), CreatedAt: now, ExpiresAt: now.Add(time.Hour)}
	err4 := w.CreateSession(ctx, w.p, s, workbench.Revision{Number: 1, Size: "standard", Limits: s.Limits, CreatedAt: now})
	w.session = s.ID
	var err5 error
	w.epoch, err5 = w.AcquireLease(ctx, s.ID, "eng", time.Hour)
	for _, err := range []error{err1, err2, err3, err4, err5} {
		if err != nil {
			b.Fatal(err)
		}
	}
	return w
}

func (w *bench) mustAdmit(b testing.TB, i int) workbench.Run {
	r, _, err := w.Admit(b.Context(), w.p, store.Admission{
		Run: workbench.Run{ID: workbench.NewID(workbench.KindRun), SessionID: w.session, Lane: workbench.LaneForeground, Language: workbench.Python,
			TimeoutMs: 30000, CreatedAt: time.Now(), Sealed: make([]byte, 2048)},
		IdempotencyKey: fmt.Sprint("key-", i), Fingerprint: "f", FingerprintVersion: 1,
	})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

func (w *bench) mustDispatch(b testing.TB, r workbench.Run) {
	if err := w.Dispatch(b.Context(), store.DispatchRecord{RunID: r.ID, Epoch: w.epoch, Generation: 1, SandboxID: "sbx", At: time.Now()}); err != nil {
		b.Fatal(err)
	}
}

func (w *bench) mustSettle(b *testing.B, r workbench.Run) {
	now := time.Now()
	err := w.Settle(b.Context(), store.Settlement{Run: workbench.Run{ID: r.ID, Status: workbench.StatusSucceeded, FinishedAt: &now}, Epoch: w.epoch, Generation: 1})
	if err != nil {
		b.Fatal(err)
	}
}

func (w *bench) mustAppend(b *testing.B, r workbench.Run) {
	running := workbench.StatusRunning
	err := w.AppendLog(b.Context(), r.ID, w.epoch, 1, &running, []workbench.LogEntry{
		{Seq: 3, Kind: workbench.LogOutput, Stream: workbench.Stdout, Length: 6, Data: make([]byte, 40), At: time.Now()}})
	if err != nil {
		b.Fatal(err)
	}
}

// life takes runs through their life, one after the other, and reports the
// median and the 95th percentile of one move: the mean is the disk's.
func life(b *testing.B, timed string) {
	databases(b, func(b *testing.B, w *bench) {
		var times []time.Duration
		move := func(name string, do func()) {
			start := time.Now()
			do()
			if name == timed {
				times = append(times, time.Since(start))
			}
		}
		b.ResetTimer()
		for i := range b.N {
			var r workbench.Run
			move("admit", func() { r = w.mustAdmit(b, i) })
			move("dispatch", func() { w.mustDispatch(b, r) })
			move("append", func() { w.mustAppend(b, r) })
			move("settle", func() { w.mustSettle(b, r) })
		}
		slices.Sort(times)
		b.ReportMetric(0, "ns/op") // of all four moves
		b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(times[len(times)*95/100].Microseconds()), "p95-µs")
	})
}

func BenchmarkAdmit(b *testing.B)     { life(b, "admit") }
func BenchmarkDispatch(b *testing.B)  { life(b, "dispatch") }
func BenchmarkAppendLog(b *testing.B) { life(b, "append") }
func BenchmarkSettle(b *testing.B)    { life(b, "settle") }

// BenchmarkToolCall records the beginning and the end of tool calls, one after the
// other and eight at once.
func BenchmarkToolCall(b *testing.B) {
	for _, atOnce := range []int{1, 8} {
		b.Run(fmt.Sprint(atOnce, " at once"), func(b *testing.B) {
			databases(b, func(b *testing.B, w *bench) {
				intent := w.mustTool(b)
				var all sync.WaitGroup
				b.ResetTimer()
				for range atOnce {
					all.Go(func() {
						for range b.N {
							w.call(b, intent)
						}
					})
				}
				all.Wait()
			})
		})
	}
}

// mustTool is what every call of a tool by one run begins with.
func (w *bench) mustTool(b testing.TB) store.CallIntent {
	r := w.mustAdmit(b, 0)
	w.mustDispatch(b, r)
	ctx, now := b.Context(), time.Now()
	row := workbench.AuditEntry{ID: workbench.NewID(workbench.KindAudit), At: now, ProjectID: w.p.ProjectID, Action: "x", Outcome: "ok"}
	_, err1 := w.PutApp(ctx, workbench.App{ProjectID: w.p.ProjectID, Name: "crm", Kind: workbench.AppHTTP, Provider: "crm", CreatedAt: now}, row)
	row.ID = workbench.NewID(workbench.KindAudit)
	tools, err2 := w.ImportTools(ctx, w.p.ProjectID, "crm", []workbench.Tool{{Name: "crm.look", InputSchema: []byte(`{}`), Digest: "d", Binding: []byte(`{}`)}}, now, row)
	rules, err3 := w.RulesVersion(ctx, w.p.ProjectID)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			b.Fatal(err)
		}
	}
	return store.CallIntent{Epoch: w.epoch, Limit: math.MaxInt, Decided: &store.Decided{RulesVersion: rules}, Trail: row,
		Receipt: workbench.ToolReceipt{RunID: r.ID, Tool: "crm.look", Version: tools[0].Version, ProjectID: w.p.ProjectID, ArgsDigest: "d",
			Status: workbench.CallExecuting, CreatedAt: now, EngineID: "eng", SealedArgs: make([]byte, 64)}}
}

func (w *bench) call(b testing.TB, in store.CallIntent) {
	b.Helper()
	in.Receipt.ID, in.Trail.ID = workbench.NewID(workbench.KindReceipt), workbench.NewID(workbench.KindAudit)
	r, err := w.BeginCall(b.Context(), in)
	in.Trail.ID = workbench.NewID(workbench.KindAudit)
	if err == nil {
		err = w.EndCall(b.Context(), store.CallEnd{ID: r.ID, EngineID: "eng", Status: workbench.CallSucceeded, SealedResult: make([]byte, 64), At: time.Now(), Trail: in.Trail})
	}
	if err != nil {
		b.Error(err)
	}
}

func BenchmarkReadRun(b *testing.B) {
	databases(b, func(b *testing.B, w *bench) {
		r := w.mustAdmit(b, 0)
		b.ResetTimer()
		for range b.N {
			if _, err := w.Run(b.Context(), w.p, r.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
}

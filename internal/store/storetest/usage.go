package storetest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func (w *world) active(runID string, us, rate int64, at time.Time) store.ActiveTime {
	return store.ActiveTime{ID: workbench.NewID(workbench.KindUsage), RunID: runID, Us: us, Rate: rate, RateVersion: "list-1", At: at}
}

func (w *world) usage(p workbench.Principal, q workbench.UsageQuery) workbench.UsageReport {
	w.t.Helper()
	r, err := w.Usage(ctx(w.t), p, q)
	want(w.t, err, "")
	return r
}

// add is the sum of two usages.
func add(a, b workbench.Usage) workbench.Usage {
	return workbench.Usage{DurationUs: a.DurationUs + b.DurationUs, ChargeMicros: a.ChargeMicros + b.ChargeMicros, InputTokens: a.InputTokens + b.InputTokens,
		OutputTokens: a.OutputTokens + b.OutputTokens, RetainedBytes: a.RetainedBytes + b.RetainedBytes}
}

func testUsage(t *testing.T, open Open) {
	t.Run("sums of groups, of pages and of times are the whole's", func(t *testing.T) {
		w := mustWorld(t, open)
		bob := w.mustDirect("acme", "bob")
		charged := map[string][2]int64{} // by session: time and what was charged
		var total workbench.Usage
		random := rand.New(rand.NewPCG(1, 2))
		for n := range 12 {
			p := []workbench.Principal{w.ann, bob}[n%2]
			s, r, epoch := w.mustOut(p)
			var all int64
			for range 5 {
				us := random.Int64N(40_000_000)
				all += us
				want(t, w.Meter(ctx(t), s.ID, epoch, []store.ActiveTime{w.active(r.ID, us, 333, w.now.Add(time.Duration(n)*6*time.Hour))}), "")
			}
			want(t, w.EndUse(ctx(t), r.ID, "ai", int64(n), 2*int64(n)), "")
			charge, _ := workbench.Charge(all, 333, 0)
			charged[s.ID] = [2]int64{all, charge}
			total = add(total, workbench.Usage{DurationUs: all, ChargeMicros: charge, InputTokens: int64(n), OutputTokens: 2 * int64(n)})
		}
		admin := w.admin()
		equal(t, "the total", w.usage(admin, workbench.UsageQuery{}).Total, total)
		for _, by := range workbench.UsageGroups() {
			var sum workbench.Usage
			seen := map[string]bool{}
			for page := (workbench.Page{Limit: 3}); ; {
				r := w.usage(admin, workbench.UsageQuery{GroupBy: by, Page: page})
				equal(t, "the total of every page by "+string(by), r.Total, total)
				for _, u := range r.Items {
					if seen[u.Group] {
						t.Errorf("%s %q is there twice", by, u.Group)
					}
					seen[u.Group] = true
					sum = add(sum, u)
					if by == workbench.UsageBySes {
						equal(t, "a session's time and charge", [2]int64{u.DurationUs, u.ChargeMicros}, charged[u.Group])
					}
				}
				if page.Cursor = r.Next; page.Cursor == "" {
					break
				}
			}
			equal(t, "the sum by "+string(by), sum, total)
		}
		var sum workbench.Usage
		for at := w.now.Add(-30 * 24 * time.Hour); at.Before(w.now.Add(30 * 24 * time.Hour)); at = at.Add(7 * time.Hour) {
			sum = add(sum, w.usage(admin, workbench.UsageQuery{Since: at, Until: at.Add(7 * time.Hour)}).Total)
		}
		equal(t, "the sum of times", sum.DurationUs, total.DurationUs)
		ann, other := w.usage(w.ann, workbench.UsageQuery{}).Total, w.usage(bob, workbench.UsageQuery{}).Total
		equal(t, "the sum of users", add(ann, other), total)
		equal(t, "a stranger's", w.usage(w.mustDirect("elsewhere", "eve"), workbench.UsageQuery{}).Total, workbench.Usage{})
	})
	t.Run("a row is written once, by who has the session", func(t *testing.T) {
		w := mustWorld(t, open)
		s, r, epoch := w.mustOut(w.ann)
		one := w.active(r.ID, 1_500_000, 3, w.now)
		want(t, w.Meter(ctx(t), s.ID, epoch+1, []store.ActiveTime{one}), workbench.CodeFenced)
		want(t, w.Meter(ctx(t), s.ID, epoch, []store.ActiveTime{one}), "")
		want(t, w.Meter(ctx(t), s.ID, epoch, []store.ActiveTime{one}), "")
		end := w.settlement(r, epoch, workbench.StatusSucceeded)
		end.Usage = []store.ActiveTime{one, w.active(r.ID, 500_000, 3, w.now)}
		want(t, w.Settle(ctx(t), end), "")
		want(t, w.Settle(ctx(t), end), workbench.CodeConflict)
		equal(t, "the total", w.usage(w.ann, workbench.UsageQuery{}).Total, workbench.Usage{DurationUs: 2_000_000, ChargeMicros: 6})
		key := w.usage(w.ann, workbench.UsageQuery{GroupBy: workbench.UsageByKey})
		equal(t, "the key that it was submitted with", key.Items[0].Group, w.ann.KeyID)
	})
	t.Run("retained files count when they are there", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		w.mustArtifact(w.ann, s, 7)
		r := w.usage(w.ann, workbench.UsageQuery{GroupBy: workbench.UsageByRun, Page: workbench.Page{Limit: 1}})
		equal(t, "bytes", r.Total.RetainedBytes, int64(7))
		equal(t, "an upload's run", r.Items[0].Group, "")
	})
}

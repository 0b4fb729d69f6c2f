package e2e_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// TestUsage: work at the same time in one sandbox counts once, in two sandboxes twice;
// what waits costs nothing.
func TestUsage(t *testing.T) {
	t.Parallel() // it waits more than it works
	w := mustWorld(t, func(o *server.Options) { o.Rates, o.RateVersion = map[string]int{"standard": 1000}, "test-1" })
	c := w.mustUser(t, "acme", "ada")
	s := mustSessionOf(t, c, sdk.CreateSession{})
	first := s.mustBash("true") // its sandbox is there, and idle for a while
	time.Sleep(1500 * time.Millisecond)
	began := time.Now()
	var runs []string
	for range 3 {
		runs = append(runs, s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 2", Background: true}))
	}
	var last workbench.Receipt
	for _, run := range runs {
		last = s.mustWait(run)
		wantEnd(t, last, workbench.StatusSucceeded, "")
	}
	took := time.Since(began)
	other := mustSessionOf(t, c, sdk.CreateSession{})
	other.mustBash("sleep 1")
	by := func(g workbench.UsageGroup) map[string]workbench.Usage {
		r, err := c.Usage(t.Context(), sdk.UsageFilter{GroupBy: g}, workbench.Page{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]workbench.Usage{}
		var sum workbench.Usage
		for _, u := range r.Items {
			out[u.Group] = u
			sum.DurationUs += u.DurationUs
			sum.ChargeMicros += u.ChargeMicros
		}
		if sum.DurationUs != r.Total.DurationUs || sum.ChargeMicros != r.Total.ChargeMicros {
			t.Errorf("by %s the sum is %+v, the total %+v", g, sum, r.Total)
		}
		return out
	}
	sessions := by(workbench.UsageBySes)
	at, firstTook := sessions[s.id], time.Duration(first.DurationMs)*time.Millisecond
	if got := time.Duration(at.DurationUs) * time.Microsecond; got < 2*time.Second || got > took+firstTook+time.Second {
		t.Errorf("three runs of 2 s at once were active for %v of %v", got, took)
	}
	if want, _ := workbench.Charge(at.DurationUs, 1000, 0); at.ChargeMicros != want {
		t.Errorf("%d µs cost %d, want %d", at.DurationUs, at.ChargeMicros, want)
	}
	if got := sessions[other.id].DurationUs; got < 1_000_000 || got > 60_000_000 {
		t.Errorf("another sandbox was active for %d µs", got)
	}
	by(workbench.UsageByRun)
	by(workbench.UsageByDay)
	if keys := by(workbench.UsageByKey); len(keys) != 1 || last.KeyID == "" || keys[last.KeyID].DurationUs == 0 {
		t.Errorf("by key: %+v, the run has %q", keys, last.KeyID)
	}
	var lines bytes.Buffer
	if err := c.UsageCSV(t.Context(), sdk.UsageFilter{GroupBy: workbench.UsageBySes}, &lines); err != nil {
		t.Fatal(err)
	}
	if got := lines.String(); strings.Count(got, "\n") != 3 || !strings.HasPrefix(got, "session,durationUs,chargeMicros,") {
		t.Errorf("the lines are %q", got)
	}
	none, err := c.Usage(t.Context(), sdk.UsageFilter{Until: began.Add(-time.Hour)}, workbench.Page{})
	if err != nil || none.Total != (workbench.Usage{}) {
		t.Errorf("before all that: %+v, %v", none, err)
	}
	tiers, err := c.RuntimeTiers(t.Context())
	if err != nil || tiers[0].RateMicros != 1000 || tiers[0].RateVersion != "test-1" {
		t.Errorf("the sizes say %+v, %v", tiers, err)
	}
}

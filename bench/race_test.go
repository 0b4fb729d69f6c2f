package main

import (
	"testing"
	"time"
)

func TestPercentileIsNearestRank(t *testing.T) {
	var d []time.Duration
	for i := 1; i <= 200; i++ {
		d = append(d, time.Duration(i)*time.Millisecond)
	}
	for p, want := range map[int]time.Duration{50: 100 * time.Millisecond, 95: 190 * time.Millisecond, 99: 198 * time.Millisecond, 100: 200 * time.Millisecond} {
		if got := percentile(d, p); got != want {
			t.Errorf("p%d is %v, want %v", p, got, want)
		}
	}
	if got := percentile(d[:1], 50); got != time.Millisecond {
		t.Errorf("p50 of one sample is %v, want 1ms", got)
	}
	if got := percentile(nil, 50); got != 0 {
		t.Errorf("p50 of nothing is %v, want 0", got)
	}
}

func TestSlowPeersAreSpreadOverTheWholeRun(t *testing.T) {
	count, first, last := 0, -1, -1
	for round := range 200 {
		if takesPart(round, 30, 200) {
			count++
			if first < 0 {
				first = round
			}
			last = round
		}
	}
	if count != 30 || first != 6 || last != 199 {
		t.Errorf("%d samples from round %d to %d, want 30 from 6 to 199", count, first, last)
	}
	for round := range 200 {
		if !takesPart(round, 200, 200) {
			t.Fatalf("round %d is left out", round)
		}
	}
}

// The goals compare medians of one run, and one that was not measured is open.
func TestGoals(t *testing.T) {
	r := result{Rows: []row{
		{Name: nameLive, Language: "python", Samples: 200, P50Ms: 99},
		{Name: nameLive, Language: "javascript", Samples: 200, P50Ms: 250},
		{Name: nameRunsc, Language: "python", Samples: 30, P50Ms: 200},
		{Name: nameRunsc, Language: "javascript", Samples: 30, P50Ms: 400},
		{Name: nameDocker, Language: "python", NotMeasured: "no docker"},
		{Name: nameDocker, Language: "javascript", Samples: 30, P50Ms: 1251},
	}}
	r.judge()
	got := map[string]string{}
	for _, g := range r.Goals {
		got[g.Peer+" "+g.Language] = g.Outcome
	}
	want := map[string]string{
		nameRunsc + " python": "met", nameRunsc + " javascript": "not met",
		nameDocker + " python": "open", nameDocker + " javascript": "met",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %q, want %q", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d goals, want %d", len(got), len(want))
	}
}

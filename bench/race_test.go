package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
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
	r := result{
		Rows: []row{
			{Name: nameLive, Language: "python", Samples: 200, P50Ms: 5},
			{Name: nameLive, Language: "javascript", Samples: 200, P50Ms: 5},
			{Name: nameBare, Language: "python", Samples: 200, P50Ms: 4.9},
			{Name: nameBare, Language: "javascript", Samples: 200, P50Ms: 75},
			{Name: nameDocker, Language: "python", NotMeasured: "no docker"},
			{Name: nameBurst, Language: "python", Samples: 50, P99Ms: 3001},
		},
		Figures: []figure{
			{Name: nameCellsFew, Value: 100}, {Name: nameCellsMany, Value: 89},
			{Name: nameIdlePlain, Value: 60}, {Name: nameSuspended, Value: 51},
			{Name: nameBurstFailed, Value: 0}, {Name: nameWorkPerCore, Value: 1000},
		},
	}
	r.judge()
	got := map[string]string{}
	for _, g := range r.Goals {
		if got[g.What+" "+g.Goal] != "" {
			t.Errorf("%s %s is judged twice", g.What, g.Goal)
		}
		got[g.What+" "+g.Goal] = g.Outcome
	}
	for k, v := range map[string]string{
		"run in a warm session, python, median ≤ 5 ms":                                                  "met",
		"run in a warm session, python ≤ 1 of bare interpreter (no slower than bare python3 -c)":        "not met",
		"run in a warm session, javascript ≤ 0.067 of bare interpreter (15 × faster than bare node -e)": "met",
		"run in a warm session, python ≤ 0.2 of docker run (a fifth of docker run)":                     "open",
		"cell in a context, python, median ≤ 3 ms":                                                      "open",
		"cells per second, many runs stored over few 1 ± 0.1":                                           "not met",
		"memory that an idle warm session adds, plain interpreters (PSS) ≤ 60 MB":                       "met",
		"memory that an idle warm session adds, imports loaded (PSS) ≤ 140 MB":                          "open",
		"server memory of a suspended session ≤ 50 KB":                                                  "not met",
		"burst of 50 creations, failures ≤ 0":                                                           "met",
		"burst of 50 creations, p99 ÷ (work ÷ cores) ≤ 3":                                               "not met",
	} {
		if got[k] != v {
			t.Errorf("%s: %q, want %q", k, got[k], v)
		}
	}
	if len(got) != 36 {
		t.Errorf("%d goals, want 36", len(got))
	}
}

// What is judged by its p99 takes part in every round, the others in so many that
// they are spread over the whole run.
func TestSamplesOfTails(t *testing.T) {
	took := func(context.Context) (time.Duration, error) { return time.Millisecond, nil }
	for _, o := range []options{{samples: 20, slowSamples: 5}, {samples: 20, slowSamples: 5, tailSamples: 100}} {
		rows, err := measure(t.Context(), o, []contender{{name: "tail", tail: true, run: took}, {name: "other", run: took}, {name: "few", few: true, run: took}})
		if err != nil {
			t.Fatal(err)
		}
		if rows[0].Samples != max(o.samples, o.tailSamples) || rows[1].Samples != 20 || rows[2].Samples != 5 {
			t.Errorf("%+v: %d, %d and %d samples", o, rows[0].Samples, rows[1].Samples, rows[2].Samples)
		}
	}
}

// A contender that fails is out, its row says why, and the others go on.
func TestOneThatFailsStopsNoOther(t *testing.T) {
	runs := 0
	rows, err := measure(t.Context(), options{samples: 20, slowSamples: 5}, []contender{
		{name: "good", run: func(context.Context) (time.Duration, error) { return time.Millisecond, nil }},
		{name: "bad", run: func(context.Context) (time.Duration, error) { return 0, errors.New("no luck") }},
		{name: "breaks", few: false, run: func(context.Context) (time.Duration, error) {
			if runs++; runs > 10 {
				return 0, errors.New("broke")
			}
			return time.Millisecond, nil
		}},
	})
	if err != nil || len(rows) != 3 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if r := rows[0]; r.Samples != 20 || r.NotMeasured != "" || r.P50Ms != 1 {
		t.Errorf("good: %+v", r)
	}
	if r := rows[1]; r.Samples != 0 || r.NotMeasured != "failed: no luck" {
		t.Errorf("bad: %+v", r)
	}
	if r := rows[2]; r.Samples != 7 || r.Failed != 4 || r.NotMeasured != "failed: broke" {
		t.Errorf("breaks: %+v", r)
	}
}

// TestSharesMemory: a process has its own memory, and nobody else's.
func TestSharesMemory(t *testing.T) {
	other := exec.CommandContext(t.Context(), "sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Wait() }()
	defer func() { _ = other.Process.Kill() }()
	if me := os.Getpid(); !sharesMemory(me, me) || sharesMemory(me, other.Process.Pid) {
		t.Error("the address spaces of two processes are not told apart")
	}
}

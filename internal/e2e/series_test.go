package e2e_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustReplay replays a version and waits for the verdict.
func (s *session) mustReplay(series string, r sdk.ReplaySeries) workbench.Replay {
	s.t.Helper()
	started, err := s.c.ReplaySeries(s.t.Context(), series, r)
	if err == nil {
		started, err = s.c.WaitForReplay(s.t.Context(), started.ID)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return started
}

func fact(t *testing.T, r workbench.Replay, name string) workbench.FactPair {
	t.Helper()
	i := slices.IndexFunc(r.Facts, func(p workbench.FactPair) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("the replay tells no %s: %+v", name, r)
	}
	return r.Facts[i]
}

func wantReuse(t *testing.T, r workbench.Receipt, state workbench.ReuseState, reason string, version int64) {
	t.Helper()
	if got := r.ReusableRun; got.State != state || got.Reason != reason || got.Version != version {
		t.Fatalf("the run's reuse is %+v, want %s %s, version %d", got, state, reason, version)
	}
}

// report is a table, a chart and a file from what an upload holds.
const report = `
import pandas as pd, matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
d = pd.read_csv("sales.csv").groupby("region").amount.sum()
print(d.to_string())
d.plot.bar(); plt.savefig("chart.png")
workbench.save("chart.png")
d.to_csv("sums.csv"); workbench.save("sums.csv")
workbench.result({"total": int(d.sum())})
`

// TestReusableRun: a successful run is a version, whose replay matches and which is
// published, run with other inputs, and rolled back to.
func TestReusableRun(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	sales := s.mustUpload("sales.csv", "region,amount\nnorth,10\nsouth,5\nnorth,1\n")
	first := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: report, Artifacts: []workbench.ArtifactSelect{{ID: sales.ID}}})
	wantEnd(t, first, workbench.StatusSucceeded, "")
	wantReuse(t, first, workbench.ReuseReady, "", 1)
	series := first.ReusableRun.SeriesID
	wantReuse(t, s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "rm sales.csv; echo other > sums.csv", ReusableRun: &workbench.ReuseRequest{Mode: workbench.ReuseOff}}), workbench.ReuseDeclined, "", 0)
	if _, err := s.c.PublishSeries(t.Context(), series, 1, 0); !workbench.HasCode(err, workbench.CodeReplayRequired) {
		t.Errorf("published without a replay: %v", err)
	}
	r := s.mustReplay(series, sdk.ReplaySeries{})
	if r.Verdict != workbench.VerdictMatches || len(r.Differs) != 0 || r.SessionID == s.id || r.RunID == first.ID {
		t.Fatalf("%+v", r)
	}
	repeated, err := s.c.GetRun(t.Context(), r.RunID, 0)
	if err != nil || repeated.InputRoot != first.InputRoot || repeated.OutputRoot == "" || repeated.Image != first.Image {
		t.Fatalf("the replay began with %s, not %s (%v)", repeated.InputRoot, first.InputRoot, err)
	}
	wantReuse(t, repeated, workbench.ReuseDeclined, "", 0)
	if of := repeated.ReusableRun.Of; of == nil || of.SeriesID != series || of.Version != 1 || repeated.ReusableRun.ReplayID != r.ID {
		t.Errorf("the replay's receipt says %+v", repeated.ReusableRun)
	}
	x, err := s.c.PublishSeries(t.Context(), series, 1, 0)
	if err != nil || x.PublishedVersion != 1 || len(x.Publications) != 1 || x.Publications[0].ReplayID != r.ID {
		t.Fatalf("%+v, %v", x, err)
	}

	second := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: "import sys\nprint(sys.argv[1:], open('sums.csv').read())", Args: []string{"a"},
		ReusableRun: &workbench.ReuseRequest{SeriesID: series}})
	wantReuse(t, second, workbench.ReuseReady, "", 2)
	if r := s.mustReplay(series, sdk.ReplaySeries{Version: 2}); r.Verdict != workbench.VerdictMatches {
		t.Fatalf("%+v", r)
	}
	_, err = s.c.PublishSeries(t.Context(), series, 2, 0)
	wantCode(t, err, workbench.CodeVersionMismatch)
	if x, err = s.c.PublishSeries(t.Context(), series, 2, 1); err != nil || x.PublishedVersion != 2 {
		t.Fatalf("%+v, %v", x, err)
	}
	args := []string{"b", "c"}
	run, err := s.c.RunSeries(t.Context(), series, sdk.RunSeries{Args: &args})
	if err != nil {
		t.Fatal(err)
	}
	other := s.mustWait(run.ID)
	wantOut(t, other, "['b', 'c'] other\n\n")
	if other.SessionID == s.id || other.ReusableRun.Of == nil || other.ReusableRun.Of.Version != 2 {
		t.Errorf("%+v", other.ReusableRun)
	}
	_, err = s.c.RollBackSeries(t.Context(), series, 0, 1)
	wantCode(t, err, workbench.CodeVersionMismatch)
	if x, err = s.c.RollBackSeries(t.Context(), series, 0, 2); err != nil || x.PublishedVersion != 1 || !x.Publications[0].Rollback {
		t.Fatalf("%+v, %v", x, err)
	}
	versions, err := s.c.SeriesVersions(t.Context(), series, workbench.Page{})
	if err != nil || len(versions.Items) != 2 || versions.Items[0].Version != 2 || !versions.Items[1].Published {
		t.Fatalf("%+v, %v", versions, err)
	}
	v, err := s.c.SeriesVersion(t.Context(), series, 2)
	if err != nil || v.Manifest.InputRoot != second.InputRoot || v.Manifest.CodeSHA256 == "" || !slices.Equal(v.Manifest.Args, []string{"a"}) || v.Manifest.Size != "standard" {
		t.Fatalf("%+v, %v", v, err)
	}
	stranger := mustShared(t).mustUser(t, "another tenant", "eve")
	_, err = stranger.Series(t.Context(), series)
	wantCode(t, err, workbench.CodeNotFound)
	_, err = stranger.ReplaySeries(t.Context(), series, sdk.ReplaySeries{})
	wantCode(t, err, workbench.CodeNotFound)
	_, err = stranger.Replay(t.Context(), r.ID, 0)
	wantCode(t, err, workbench.CodeNotFound)
}

// TestReplayThatDiffers says in what.
func TestReplayThatDiffers(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	first := s.mustPython("import time\nprint('the same')\nprint(time.time_ns())")
	r := s.mustReplay(first.ReusableRun.SeriesID, sdk.ReplaySeries{})
	if r.Verdict != workbench.VerdictDiffers || !slices.Equal(r.Differs, []string{workbench.FactStdout}) {
		t.Fatalf("%+v", r)
	}
	if d := fact(t, r, workbench.FactStdout); d.Same || !strings.Contains(d.Diff, "\n the same\n-") || !strings.Contains(d.Diff, "\n+") {
		t.Errorf("%+v", d)
	}
	if d := fact(t, r, workbench.FactStatus); !d.Same || d.Replay != "succeeded" {
		t.Errorf("%+v", d)
	}
	_, err := s.c.PublishSeries(t.Context(), first.ReusableRun.SeriesID, 1, 0)
	wantCode(t, err, workbench.CodeReplayRequired)
	// Bytes that look the same as text.
	bytes := s.mustPython("import os, sys\nsys.stdout.buffer.write(bytes(0x80 | b & 0x3f for b in os.urandom(32)))")
	if r := s.mustReplay(bytes.ReusableRun.SeriesID, sdk.ReplaySeries{}); r.Verdict != workbench.VerdictDiffers || !slices.Equal(r.Differs, []string{workbench.FactStdout}) {
		t.Errorf("%+v", r)
	}
	// What is shown, and kept.
	display := s.mustPython("import time\nworkbench.display({'text/plain': str(time.time_ns())})\nopen('f', 'w').write(str(time.time_ns())); workbench.save('f')")
	if r := s.mustReplay(display.ReusableRun.SeriesID, sdk.ReplaySeries{}); !slices.Equal(r.Differs, []string{workbench.FactOutputs, workbench.FactArtifacts}) {
		t.Errorf("%+v", r)
	}
	cell := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: "1", ContextID: "default"})
	wantReuse(t, cell, workbench.ReuseNotReusable, workbench.NotReusableCell, 0)
	wantReuse(t, s.mustBash("exit 1"), workbench.ReuseNotReusable, workbench.NotReusableOutcome, 0)
	if _, err := s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "true", ReusableRun: &workbench.ReuseRequest{SeriesID: workbench.NewID(workbench.KindSeries)}}); workbench.AsError(err).Field != "reusableRun.seriesId" {
		t.Errorf("a series that there is not: %v", err)
	}
}

// TestReplayCallsNoTools: what the original's calls gave is given back, and nothing
// is executed a second time.
func TestReplayCallsNoTools(t *testing.T) {
	t.Parallel() // it waits more than it works
	d := mustDesk(t, nil)
	s := d.mustSession(t)
	first := s.mustPython(`
for n in ("1", "2"):
    r = workbench.call("your_app.lookup", {"query": n}, connection_alias="support")
    print(r.status, r.result)
try:
    workbench.call("your_app.lookup", {"nothing": 1}, connection_alias="support")
except workbench.WorkbenchError as e:
    print(e.code)
`)
	wantOut(t, first, "succeeded {'name': 'Ada', 'plan': 'gold'}\nsucceeded {'name': 'Ada', 'plan': 'gold'}\narguments_invalid\n")
	series := first.ReusableRun.SeriesID
	_, err := s.c.ReplaySeries(t.Context(), series, sdk.ReplaySeries{})
	wantCode(t, err, workbench.CodeReplayTools)
	d.rules(t, "access", allowAll+"\n// nothing changes what it allows")
	r := s.mustReplay(series, sdk.ReplaySeries{Tools: workbench.ReplayRecorded})
	if r.Verdict != workbench.VerdictMatches || d.oracle.executed() != 2 {
		t.Fatalf("%d executed: %+v", d.oracle.executed(), r)
	}
	again, err := s.c.GetRun(t.Context(), r.RunID, 0)
	if err != nil || len(again.Dependencies) == 0 {
		t.Errorf("the replay depends on nothing: %+v, %v", again.Dependencies, err)
	}
	other := s.mustPython("import time\nprint(workbench.call('your_app.lookup', {'query': str(time.time_ns())}, connection_alias='support').status)")
	if r := s.mustReplay(other.ReusableRun.SeriesID, sdk.ReplaySeries{Tools: workbench.ReplayRecorded}); r.Verdict != workbench.VerdictDiffers || d.oracle.executed() != 3 {
		t.Errorf("a call that was not made: %d executed, %+v", d.oracle.executed(), r)
	}
}

// TestOneWinner: of publications at once that expect the same, one is made; of replays
// under one key, one.
func TestOneWinner(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	first := s.mustBash("echo one")
	series := first.ReusableRun.SeriesID
	second := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "echo two", ReusableRun: &workbench.ReuseRequest{SeriesID: series}})
	wantReuse(t, second, workbench.ReuseReady, "", 2)
	var mu sync.Mutex
	replays := map[string]int{}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			r, err := s.c.ReplaySeries(t.Context(), series, sdk.ReplaySeries{Version: 1, IdempotencyKey: "replay-" + series})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			replays[r.ID]++
		})
	}
	all.Wait()
	// A repeat that names no version means the one that it meant.
	again, err := s.c.ReplaySeries(t.Context(), series, sdk.ReplaySeries{IdempotencyKey: "last-" + series})
	if err != nil || again.Version != 2 {
		t.Fatalf("%+v, %v", again, err)
	}
	s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "echo three", ReusableRun: &workbench.ReuseRequest{SeriesID: series}})
	if repeat, err := s.c.ReplaySeries(t.Context(), series, sdk.ReplaySeries{IdempotencyKey: "last-" + series}); err != nil || repeat.ID != again.ID {
		t.Errorf("%+v, %v", repeat, err)
	}
	if len(replays) != 1 {
		t.Errorf("%v, want one replay", replays)
	}
	for id := range replays {
		if r, err := s.c.WaitForReplay(t.Context(), id); err != nil || r.Verdict != workbench.VerdictMatches {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	s.mustReplay(series, sdk.ReplaySeries{Version: 2})
	won := map[workbench.Code]int{}
	for i := range 100 {
		all.Go(func() {
			_, err := s.c.PublishSeries(t.Context(), series, int64(i%2)+1, 0)
			mu.Lock()
			defer mu.Unlock()
			won[workbench.CodeOf(err)]++
		})
	}
	all.Wait()
	if won[""] != 1 || won[workbench.CodeVersionMismatch] != 99 {
		t.Errorf("%v, want one winner", won)
	}
}

// TestReplayHasTheOriginalsPackages: those that it began with and those that it
// installed, though the registry has newer ones.
func TestReplayHasTheOriginalsPackages(t *testing.T) {
	t.Parallel() // it waits more than it works
	d, reg := mustShop(t)
	d.rules(t, "packages", allowPackages)
	reg.wheel(t, "greeting", "1.0", "py3-none-any", "VERSION = 1\n")
	reg.wheel(t, "parting", "1.0", "py3-none-any", "VERSION = 1\n")
	s := mustSessionOf(t, d.mustUser(t, "acme", "ada"), patient())
	installs := s.mustPython("workbench.packages.install('greeting')\nimport greeting\nprint(greeting.VERSION)")
	wantOut(t, installs, "1\n")
	began := s.mustPython("import greeting\nprint(greeting.VERSION)\ntry: import parting\nexcept ImportError: print('not there')")
	wantOut(t, began, "1\nnot there\n")
	s.mustPython("workbench.packages.install('parting')")
	reg.wheel(t, "greeting", "2.0", "py3-none-any", "VERSION = 2\n")
	asked := reg.asks()
	for _, run := range []workbench.Receipt{installs, began} {
		if r := s.mustReplay(run.ReusableRun.SeriesID, sdk.ReplaySeries{}); r.Verdict != workbench.VerdictMatches {
			t.Errorf("%+v", r)
		}
	}
	if reg.asks() != asked {
		t.Errorf("a replay asked the registry %d times", reg.asks()-asked)
	}
	v, err := s.c.SeriesVersion(t.Context(), began.ReusableRun.SeriesID, 1)
	if err != nil || len(v.Manifest.Packages) != 1 || v.Manifest.Packages[0].Requested[0] != "greeting" || v.Manifest.Packages[0].RunID != installs.ID {
		t.Errorf("%+v, %v", v.Manifest.Packages, err)
	}
	other := s.mustPython("import os\nname = 'greeting==2.0' if os.path.exists('first') else 'greeting==1.0'\nopen('first', 'w').close()\n" +
		"try: print(workbench.packages.install(name)['requested'])\nexcept workbench.WorkbenchError as e: print(e.code)")
	wantOut(t, other, "['greeting==1.0']\n")
	if r := s.mustReplay(other.ReusableRun.SeriesID, sdk.ReplaySeries{}); r.Verdict != workbench.VerdictMatches {
		t.Errorf("%+v", r)
	}
}

// TestDeletedSeries: its runs are versions no longer.
func TestDeletedSeries(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	run := s.mustBash("echo x")
	series := run.ReusableRun.SeriesID
	replay := s.mustReplay(series, sdk.ReplaySeries{})
	if _, err := s.c.PublishSeries(t.Context(), series, 1, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.c.DeleteSeries(t.Context(), series); err != nil {
		t.Fatal(err)
	}
	after, err := s.c.GetRun(t.Context(), run.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	wantReuse(t, after, workbench.ReuseNotReusable, workbench.NotReusableSeries, 0)
	_, err = s.c.Replay(t.Context(), replay.ID, 0)
	wantCode(t, err, workbench.CodeNotFound)
	_, err = s.c.RunSeries(t.Context(), series, sdk.RunSeries{Version: 1})
	wantCode(t, err, workbench.CodeNotFound)
	if _, err := s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "true", ReusableRun: &workbench.ReuseRequest{SeriesID: series}}); !workbench.HasCode(err, workbench.CodeNotFound) {
		t.Errorf("a series that was deleted is continued: %v", err)
	}
}

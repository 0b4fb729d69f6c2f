package e2e_test

import (
	"bufio"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// B10: there is no end before the program's own. B28: meanwhile a stream that
// has nothing to tell says that it is alive, by default more often than every
// 12 s, and ends with what was printed last.
func TestQuietProgram(t *testing.T) {
	t.Parallel() // it waits more than it works
	w := mustShared(t)
	secret := w.mustSecret(t)
	c, err := sdk.New(sdk.Options{BaseURL: w.url, Key: secret})
	if err != nil {
		t.Fatal(err)
	}
	s := mustSessionOf(t, c, sdk.CreateSession{})
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 12; echo late; exit 7"})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/workbench/runs/"+run+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var kinds []string
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		kind, isEvent := strings.CutPrefix(lines.Text(), "event: ")
		switch {
		case isEvent:
			kinds = append(kinds, kind)
		case lines.Text() == ": heartbeat" && kinds[len(kinds)-1] != "beats":
			kinds = append(kinds, "beats")
		}
	}
	n := len(kinds)
	if n < 4 || !slices.Equal(kinds[n-4:], []string{"status", "beats", "output", "terminal"}) {
		t.Errorf("the stream is %q", kinds)
	}
	r := s.mustWait(run)
	wantEnd(t, r, workbench.StatusFailed, workbench.ReasonExit)
	wantOut(t, r, "late\n")
	if r.ExitCode == nil || *r.ExitCode != 7 || r.FinishedAt.Sub(*r.StartedAt) < 12*time.Second {
		t.Errorf("exit code %v, from %v to %v", r.ExitCode, r.StartedAt, r.FinishedAt)
	}
}

// B8, B20, B21: a flood in one stream, a child in the background, children that
// do not want to end.
func TestProgramsThatLeaveThingsBehind(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	flood := s.mustPython("import sys\nsys.stderr.write(\"e\" * 2_000_000); print(\"done\")")
	wantEnd(t, flood, workbench.StatusSucceeded, "")
	wantOut(t, flood, "done\n")
	if e := flood.Outputs.Stderr; e.TotalBytes != 2_000_000 || !e.Truncated || e.CapturedBytes != 1<<20 || e.FileTruncated {
		t.Errorf("stderr: %+v", e)
	}
	began := time.Now()
	r := s.mustBash("sleep 300 & echo started")
	wantEnd(t, r, workbench.StatusSucceeded, "")
	wantOut(t, r, "started\n")
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("a child in the background held the run for %v", took)
	}
	wantOut(t, s.mustBash("pgrep -c sleep"), "0\n")
	r = s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "(trap '' TERM; sleep 61) & setsid sleep 62 & sleep 63", TimeoutMs: ptr(int64(1000))})
	wantEnd(t, r, workbench.StatusTimedOut, workbench.ReasonTimeout)
	wantOut(t, s.mustBash("pgrep -c sleep"), "0\n")
}

// B42: a full workspace is what the program sees and what its receipt says;
// once the file is deleted the next run succeeds.
func TestProgramThatFillsTheWorkspace(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustPython("print('before', flush=True)\nopen(\"f\",\"wb\").write(b\"0\"*100_000_000)")
	wantEnd(t, r, workbench.StatusFailed, workbench.ReasonWorkspaceFull)
	wantMessage(t, r, "the workspace was full, and the program ended with exit code 1")
	wantOut(t, r, "before\n")
	if !strings.Contains(text(r.Stderr), "OSError: [Errno 28]") || !slices.Contains(r.LimitsHit, workbench.LimitWorkspace) {
		t.Errorf("stderr %q, limits hit %v", text(r.Stderr), r.LimitsHit)
	}
	if _, err := s.c.DeleteWorkspaceFile(t.Context(), s.id, "f", false); err != nil {
		t.Fatal(err)
	}
	r = s.mustPython("open(\"f\",\"wb\").write(b\"0\"*50_000_000); print('fits')")
	wantEnd(t, r, workbench.StatusSucceeded, "")
	wantOut(t, r, "fits\n")
}

// B37: titles in Chinese and Korean are drawn, each character in its own way,
// and nothing warns of a glyph that is missing.
func TestChartsInAnyScript(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustPython(`import warnings
warnings.simplefilter("error")
import matplotlib.pyplot as plt, numpy as np
def drawn(title):
    figure = plt.figure()
    plt.title(title); figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba()).tobytes()
print(len({drawn(c) for c in "中文한국어"}))
plt.close("all")
plt.title("中文 한국어"); plt.plot([1, 2]); plt.show()
`)
	wantEnd(t, r, workbench.StatusSucceeded, "")
	wantOut(t, r, "5\n")
	if text(r.Stderr) != "" || len(r.Results) != 1 || r.Results[0].Data["image/png"] == nil {
		t.Errorf("stderr %q, %d results", text(r.Stderr), len(r.Results))
	}
}

// B38: the name is the same in the workspace, in code, in its commit and in
// downloads of both.
func TestOneNameEverywhere(t *testing.T) {
	const name = "résumé 報告 #1?%20.txt"
	w := mustShared(t)
	s := w.mustSession(t, sdk.CreateSession{})
	change := s.mustWrite(name, "in it")
	if change.Entry == nil || change.Entry.Path != name || change.Session.ID != s.id || change.Session.ExpiresAt.IsZero() {
		t.Errorf("the change: %+v of %+v", change.Entry, change.Session)
	}
	wantNames(t, s.mustNames(10), name)
	tree, err := s.c.CommitTree(t.Context(), change.Commit.ID, workbench.TreeQuery{})
	if err != nil || len(tree.Items) != 1 || tree.Items[0].Path != name || tree.Items[0].PathBase64 != "" {
		t.Errorf("the commit: %+v, %v", tree.Items, err)
	}
	if got := s.mustFile(name); got != "in it" {
		t.Errorf("the file holds %q", got)
	}
	if got, err := s.c.ReadCommitFile(t.Context(), change.Commit.ID, name); err != nil || string(got) != "in it" {
		t.Errorf("the commit's file holds %q, %v", got, err)
	}
	r := s.mustPython("import os; print(os.listdir('.')); open('" + name + "', 'a').write('!')")
	wantOut(t, r, "['"+name+"']\n")
	if len(r.Files.Items) != 1 || r.Files.Items[0].Path != name {
		t.Errorf("the receipt: %+v", r.Files.Items)
	}
	if got, err := s.c.ReadRunFile(t.Context(), r.ID, name); err != nil || string(got) != "in it!" {
		t.Errorf("the run's file holds %q, %v", got, err)
	}
}

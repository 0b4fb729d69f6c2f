package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustMetric reads one value at /metrics; name holds its labels.
func (w *world) mustMetric(t *testing.T, name string) float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	return 0
}

func (w *world) awaitWarm(t *testing.T, n float64) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); w.mustMetric(t, "workbench_warm_sandboxes") != n; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v sandboxes are warm, want %v", w.mustMetric(t, "workbench_warm_sandboxes"), n)
		}
	}
}

const interpreterAge = `
import os
started = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
print(float(open("/proc/uptime").read().split()[0]) - started > 0.5)`

// A session finds a sandbox and an interpreter that were there before it, and
// the next one another.
func TestWarmSandboxes(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.Warm = map[string]int{"standard": 1} })
	c := w.mustUser(t, "acme", "ada")
	// The interpreter that waits is replaced once modules are loaded: one that a
	// session finds at that very moment is young. How long the modules take
	// depends on who else wants the machine.
	old, sessions := 0, 0.0
	for wait := 2 * time.Second; old < 2 && sessions < 8; wait = min(2*wait, 30*time.Second) {
		w.awaitWarm(t, 1)
		time.Sleep(wait)
		s := mustSessionOf(t, c, sdk.CreateSession{})
		sessions++
		if text(s.mustPython(interpreterAge).Stdout) == "True\n" {
			old++
		}
		wantOut(t, s.mustBash("ls -A /mnt/files /tmp | grep -v home; echo $?"), "/mnt/files:\n\n/tmp:\n0\n")
	}
	if old < 2 {
		t.Errorf("%d of %v sessions found an interpreter that was there before them", old, sessions)
	}
	if hits := w.mustMetric(t, `workbench_warm_claims_total{outcome="hit"}`); hits != sessions {
		t.Errorf("%v claims were hits, want %v", hits, sessions)
	}
	if claimed := w.mustMetric(t, `workbench_sandbox_starts_total{outcome="claimed"}`); claimed != sessions {
		t.Errorf("%v sandboxes were claimed, want %v", claimed, sessions)
	}
}

// A session with limits of its own gets a sandbox of its own, also when the
// only place is taken by one that is warm.
func TestWarmSandboxesMakeRoom(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) {
		o.MaxRunning, o.MaxSandboxes, o.Warm = 1, 1, map[string]int{"standard": 2}
	})
	w.awaitWarm(t, 1)
	tasks := 32
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{Limits: &workbench.LimitsRequest{Tasks: &tasks}})
	wantOut(t, s.mustBash("echo made room"), "made room\n")
	if n := w.mustMetric(t, "workbench_warm_sandboxes"); n != 0 {
		t.Errorf("%v sandboxes are warm beside the only place", n)
	}
}

func TestWarmSizesAreChecked(t *testing.T) {
	for _, warm := range []map[string]int{{"huge": 1}, {"standard": -1}} {
		_, err := open(t.TempDir(), func(o *server.Options) { o.Warm = warm })
		wantCode(t, err, workbench.CodeInvalidRequest)
	}
}

// random prints what must differ between any two sessions.
const random = "import random, uuid; print(random.random(), hash('a'), uuid.uuid4())"

// firstResult is what a new session's first program prints.
func firstResult(ctx context.Context, c *sdk.Client, code string) (string, error) {
	s, err := c.CreateAgentSession(ctx, sdk.CreateSession{})
	if err != nil {
		return "", err
	}
	var r workbench.Receipt
	submitted, err := c.CreateSessionRun(ctx, s.ID, sdk.CreateRun{Language: workbench.Python, Code: code})
	if err == nil {
		r, err = c.WaitForSessionRun(ctx, submitted.ID)
	}
	if err == nil && r.Status != workbench.StatusSucceeded {
		err = fmt.Errorf("ended %s (%s) %s", r.Status, r.Reason, r.Message)
	}
	_, closeErr := c.CloseAgentSession(ctx, s.ID)
	return text(r.Stdout), errors.Join(err, closeErr)
}

// Many sessions at once: each gets its first result, and none shares what is
// random with another (ABUSE H113).
func TestWarmBurst(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.Warm = map[string]int{"standard": 2} })
	w.awaitWarm(t, 2)
	c := w.mustUser(t, "acme", "ada")
	const sessions = 12
	out := make([]string, sessions)
	var wg sync.WaitGroup
	for i := range sessions {
		wg.Go(func() {
			var err error
			if out[i], err = firstResult(t.Context(), c, random); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for part := range 3 {
		seen := make([]string, 0, sessions)
		for _, o := range out {
			if f := strings.Fields(o); len(f) >= 3 {
				seen = append(seen, f[part])
			}
		}
		slices.Sort(seen)
		if n := len(slices.Compact(seen)); n != sessions {
			t.Errorf("%d different values of part %d in %d sessions: %q", n, part, sessions, out)
		}
	}
}

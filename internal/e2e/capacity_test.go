package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// With room for one sandbox, sessions take turns; files stay, and the receipt
// says what did not.
func TestIdleSandboxesMakeRoom(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.MaxRunning, o.MaxSandboxes = 1, 1 })
	c := w.mustUser(t, "acme", "ada")
	one, two := mustSessionOf(t, c, sdk.CreateSession{}), mustSessionOf(t, c, sdk.CreateSession{})
	wantOut(t, one.mustBash("echo one > f; echo x > /tmp/t; cat f"), "one\n")
	wantOut(t, two.mustBash("echo two > f; cat f"), "two\n")
	r := one.mustBash("cat f; test -e /tmp/t || echo tmp is gone")
	wantOut(t, r, "one\ntmp is gone\n")
	if r.Generation != 2 || len(r.Notices) != 1 || r.Notices[0].Code != workbench.NoticeMemoryLost || !r.VariablesLost {
		t.Errorf("generation %d, notices %+v", r.Generation, r.Notices)
	}
	wantOut(t, two.mustBash("cat f"), "two\n")
}

// A run that was cancelled while it waited for its turn costs nobody a sandbox.
func TestCancelledWaiterTakesNoRoom(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.MaxRunning, o.MaxSandboxes = 1, 1 })
	c := w.mustUser(t, "acme", "ada")
	one, two := mustSessionOf(t, c, sdk.CreateSession{}), mustSessionOf(t, c, sdk.CreateSession{})
	first := one.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo x > /tmp/mark; echo begun; " + untilFile("stop"), TimeoutMs: ptr(int64(180_000))})
	mustSay(t, one, first, "begun")
	waiting := two.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "true"})
	time.Sleep(200 * time.Millisecond) // it stands in line
	if _, err := c.CancelRun(t.Context(), waiting); err != nil {
		t.Fatal(err)
	}
	one.mustWrite("stop", "")
	wantEnd(t, one.mustWait(first), workbench.StatusSucceeded, "")
	time.Sleep(time.Second)
	r := one.mustBash("cat /tmp/mark")
	wantOut(t, r, "x\n")
	if r.Generation != 1 {
		t.Errorf("generation %d: the sandbox made room for nothing", r.Generation)
	}
}

// A run that waits for its turn is work: its session keeps its sandbox for it,
// until the sandbox has to make room. Then the run has the session return.
func TestWaiterKeepsItsSandbox(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) {
		quick(o)
		o.MaxRunning, o.MaxSandboxes, o.DefaultImage = 1, 2, "minimal"
	})
	c := w.mustUser(t, "acme", "ada")
	busy, s, other := mustSessionOf(t, c, sdk.CreateSession{}), mustSessionOf(t, c, sdk.CreateSession{}), mustSessionOf(t, c, sdk.CreateSession{})
	first := busy.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; " + untilFile("stop"), TimeoutMs: ptr(int64(180_000))})
	mustSay(t, busy, first, "begun")
	waiting := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "cat f"})
	wantEnd(t, s.mustWait(s.mustSubmit(aside("echo t > f"))), workbench.StatusSucceeded, "")
	time.Sleep(1500 * time.Millisecond)
	got, err := s.c.AgentSession(t.Context(), s.id)
	if err != nil || got.Suspended != nil {
		t.Errorf("a session whose run waits is suspended: %+v, %v", got.Suspended, err)
	}
	wantEnd(t, other.mustWait(other.mustSubmit(aside("true"))), workbench.StatusSucceeded, "")
	s.mustSuspended()
	if _, err := c.WriteWorkspaceFile(t.Context(), busy.id, sdk.WriteFile{Path: "stop"}, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, busy.mustWait(first), workbench.StatusSucceeded, "")
	r := s.mustWait(waiting)
	wantOut(t, r, "t\n")
	if r.Generation != 2 || len(r.Notices) != 1 || r.Notices[0].Code != workbench.NoticeMemoryLost {
		t.Errorf("generation %d, notices %+v", r.Generation, r.Notices)
	}
	if all := w.log.tail(); strings.Contains(all, "msg=lane") {
		t.Errorf("a lane failed:\n%s", all)
	}
}

// A tenant that floods the server does not keep another from running.
func TestTenantsTakeTurns(t *testing.T) {
	t.Parallel() // it waits more than it works
	w := mustWorld(t, func(o *server.Options) { o.MaxRunning, o.MaxSandboxes = 1, 8 })
	flood, quiet := w.mustUser(t, "flood", "ada"), w.mustUser(t, "quiet", "ada")
	var last string
	var last1 *session
	for range 6 {
		s := mustSessionOf(t, flood, sdk.CreateSession{})
		last1, last = s, s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 1"})
	}
	q := mustSessionOf(t, quiet, sdk.CreateSession{})
	mine := q.mustWait(q.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo mine"}))
	wantOut(t, mine, "mine\n")
	theirs := last1.mustWait(last)
	if theirs.StartedAt == nil || mine.StartedAt == nil || !mine.StartedAt.Before(*theirs.StartedAt) {
		t.Errorf("the quiet tenant's run started at %v, after the flood's last at %v", mine.StartedAt, theirs.StartedAt)
	}
}

func TestQueueIsBounded(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 20"})
	var err error
	for i := 0; i < 120 && err == nil; i++ {
		_, err = s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "true"})
	}
	wantCode(t, err, workbench.CodeQueueFull)
}

// A sandbox that is killed from outside, by the kernel or by a person, ends its
// run as unknown; the session goes on with the last commit.
func TestSandboxKilledFromOutside(t *testing.T) {
	w := mustWorld(t, nil)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	wantOut(t, s.mustBash("echo committed > a; cat a"), "committed\n")
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; echo lost > b; sleep 30"})
	mustSay(t, s, run, "begun")
	killSandboxes(t, w)
	began := time.Now()
	r := s.mustWait(run)
	wantEnd(t, r, workbench.StatusUnknown, workbench.ReasonSandboxLost)
	wantOut(t, r, "begun\n")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s to notice", took)
	}
	next := s.mustBash("cat a; test -e b || echo b is gone")
	wantOut(t, next, "committed\nb is gone\n")
	if next.Generation != 2 {
		t.Errorf("generation %d", next.Generation)
	}
	if _, err := s.c.CloseAgentSession(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	events := mustFollowSession(t, s.c, s.id)
	if lost := mustEvent[workbench.GenerationEvent](t, events, workbench.EventSandboxLost); lost.Generation != 2 {
		t.Errorf("sandbox_lost: %+v", lost)
	}
}

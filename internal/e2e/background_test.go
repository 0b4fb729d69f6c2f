package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/engine"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// aside is a background run of Bash.
func aside(code string) sdk.CreateRun {
	return sdk.CreateRun{Language: workbench.Bash, Code: code, Background: true}
}

// untilFile is code that waits for a file of the workspace.
func untilFile(name string) string { return "while ! test -e " + name + "; do sleep 0.02; done; " }

// A background run goes on while foreground runs come and go: each sees what
// the other writes, its output so far can be read, and its end is its own.
func TestBackgroundRun(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	run := s.mustSubmit(aside("echo begun; echo $$ > mine; " + untilFile("stop") + "cat stop; exit 7"))
	mustSay(t, s, run, "begun")
	r := s.mustBash("echo one > front; test -s mine && echo seen")
	wantOut(t, r, "seen\n")
	if r.Files.Exclusive || r.Lane != workbench.LaneForeground {
		t.Errorf("a run beside another one: lane %s, exclusive %t", r.Lane, r.Files.Exclusive)
	}
	page, err := s.c.Output(t.Context(), run, workbench.OutputQuery{Offset: 3})
	if err != nil || page.Text != "un\n" || page.Complete {
		t.Errorf("output from 3 on: %+v, %v", page, err)
	}
	list, err := s.c.ListRuns(t.Context(), sdk.RunFilter{SessionID: s.id, Lane: workbench.LaneBackground}, workbench.Page{})
	if err != nil || len(list.Items) != 1 || list.Items[0].ID != run || list.Items[0].Status != workbench.StatusRunning || list.Items[0].TimeoutMs != 3_600_000 {
		t.Errorf("background runs: %+v, %v", list.Items, err)
	}
	_, err = s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Agent: ptr("other")})
	wantCode(t, err, workbench.CodeRunsActive)
	wantOut(t, s.mustPython("open('stop', 'w').write('over\\n'); print('told')"), "told\n")
	r = s.mustWait(run)
	wantEnd(t, r, workbench.StatusFailed, workbench.ReasonExit)
	wantOut(t, r, "begun\nover\n")
	if *r.ExitCode != 7 || r.Files.Exclusive || r.Lane != workbench.LaneBackground {
		t.Errorf("receipt %+v", r.Run)
	}
	var changed []string
	for _, f := range r.Files.Items {
		changed = append(changed, f.Path)
	}
	if !slices.Equal(changed, []string{"front", "mine", "stop"}) {
		t.Errorf("what changed while it ran: %q", changed)
	}
	if r = s.mustBash("ls"); !r.Files.Exclusive || len(r.Notices) != 0 {
		t.Errorf("alone again: exclusive %t, notices %+v", r.Files.Exclusive, r.Notices)
	}
}

func ptr[T any](v T) *T { return &v }

// Lanes are bounded: one run more than there are lanes waits for one of them.
func TestBackgroundLanesAreBounded(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	var runs []string
	for i := range engine.BackgroundLanes + 1 {
		runs = append(runs, s.mustSubmit(aside(fmt.Sprintf("echo begun; %secho %d", untilFile(fmt.Sprintf("stop%d", i)), i))))
	}
	for _, run := range runs[:engine.BackgroundLanes] {
		mustSay(t, s, run, "begun")
	}
	last := runs[engine.BackgroundLanes]
	wantOut(t, s.mustBash("echo front"), "front\n")
	if r, err := s.c.GetRun(t.Context(), last, 0); err != nil || r.Status != workbench.StatusQueued {
		t.Errorf("one more than there are lanes is %s, %v", r.Status, err)
	}
	s.mustBash("touch stop2")
	wantOut(t, s.mustWait(runs[2]), "begun\n2\n")
	mustSay(t, s, last, "begun")
	s.mustBash("touch stop0 stop1 stop3 stop4")
	for _, i := range []int{0, 1, 3, 4} {
		wantOut(t, s.mustWait(runs[i]), fmt.Sprintf("begun\n%d\n", i))
	}
}

// A cancel reaches the run it names and no other; a restart that cancels ends all.
func TestBackgroundRunsEnd(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	one, two := s.mustSubmit(aside("echo begun; sleep 600")), s.mustSubmit(aside("echo begun; "+untilFile("stop")+"echo over"))
	mustSay(t, s, one, "begun")
	mustSay(t, s, two, "begun")
	if _, err := s.c.CancelRun(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, s.mustWait(one), workbench.StatusCancelled, workbench.ReasonCancelled)
	wantMessage(t, s.mustWait(one), "cancelled while it ran, on request")
	s.mustBash("touch stop")
	wantOut(t, s.mustWait(two), "begun\nover\n")

	three := s.mustSubmit(aside("echo begun; sleep 600"))
	mustSay(t, s, three, "begun")
	_, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{})
	wantCode(t, err, workbench.CodeRunsActive)
	if _, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{CancelActive: true}); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, s.mustWait(three), workbench.StatusCancelled, workbench.ReasonRestart)
	wantMessage(t, s.mustWait(three), "cancelled while it ran, when its session was restarted")
	wantOut(t, s.mustBash("ls"), "")

	short := aside("echo begun; sleep 600")
	short.TimeoutMs = ptr(int64(6000))
	r := s.mustRun(short)
	wantEnd(t, r, workbench.StatusTimedOut, workbench.ReasonTimeout)
	wantOut(t, r, "begun\n")

	four := s.mustSubmit(aside("echo begun; sleep 600"))
	mustSay(t, s, four, "begun")
	if _, err := s.c.CloseAgentSession(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, s.mustWait(four), workbench.StatusCancelled, workbench.ReasonSessionClosed)
	wantMessage(t, s.mustWait(four), "cancelled while it ran, when its session was closed")
}

func TestBackgroundTimeLimits(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	for _, c := range []struct {
		ms   int64
		back bool
		want string
	}{
		{3_600_001, true, "timeoutMs must be between 100 and 3600000"},
		{99, true, "timeoutMs must be between 100 and 3600000"},
		{180_001, false, "timeoutMs must be between 100 and 180000"},
	} {
		run := sdk.CreateRun{Language: workbench.Bash, Code: "true", Background: c.back, TimeoutMs: &c.ms}
		_, err := s.c.CreateSessionRun(t.Context(), s.id, run)
		wantCode(t, err, workbench.CodeLimitOutOfRange)
		if !strings.Contains(err.Error(), c.want) || workbench.AsError(err).Field != "timeoutMs" {
			t.Errorf("%d ms: %v", c.ms, err)
		}
	}
	run := aside("echo ok")
	run.TimeoutMs = ptr(int64(3_600_000))
	wantOut(t, s.mustRun(run), "ok\n")
	run = aside("echo once")
	run.IdempotencyKey = "aside"
	first := s.mustRun(run)
	run.Background = false
	_, err := s.c.CreateSessionRun(t.Context(), s.id, run)
	wantCode(t, err, workbench.CodeIdempotencyReused)
	run.Background, run.TimeoutMs = true, ptr(int64(3_600_000)) // its default, written out
	if again, err := s.c.CreateSessionRun(t.Context(), s.id, run); err != nil || again.ID != first.ID {
		t.Errorf("the repeat is %s, %v; want %s", again.ID, err, first.ID)
	}
}

// A sandbox that dies takes all that ran in it: each run says so, in the
// generation it ran in, and the next one has a new sandbox.
func TestBackgroundRunsLoseTheirSandbox(t *testing.T) {
	w := mustWorld(t, nil)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	wantOut(t, s.mustBash("echo committed > a; cat a"), "committed\n")
	runs := []string{s.mustSubmit(aside("echo begun; sleep 600")), s.mustSubmit(aside("echo begun; sleep 600")),
		s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; sleep 30"})}
	for _, run := range runs {
		mustSay(t, s, run, "begun")
	}
	killSandboxes(t, w)
	next := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "cat a"})
	for _, run := range runs {
		r := s.mustWait(run)
		wantEnd(t, r, workbench.StatusUnknown, workbench.ReasonSandboxLost)
		if r.Generation != 1 {
			t.Errorf("it ran in generation %d", r.Generation)
		}
	}
	r := s.mustWait(next)
	wantOut(t, r, "committed\n")
	if r.Generation != 2 {
		t.Errorf("generation %d", r.Generation)
	}
}

// A sandbox in which a background run executes makes room for nobody.
func TestBackgroundRunKeepsItsSandbox(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.MaxRunning, o.MaxSandboxes = 1, 2 })
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	run := s.mustSubmit(aside("echo begun; echo t > /tmp/t; " + untilFile("stop") + "cat /tmp/t"))
	mustSay(t, s, run, "begun")
	for range 3 {
		other := mustSessionOf(t, w.mustUser(t, "acme", "bob"), sdk.CreateSession{})
		wantOut(t, other.mustBash("echo other"), "other\n")
	}
	wantOut(t, s.mustBash("touch stop"), "")
	wantOut(t, s.mustWait(run), "begun\nt\n")
}

// A background run that is held is in the stream of events from first to last.
func TestBackgroundEvents(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	run := s.mustSubmit(aside("for i in 1 2 3; do echo $i; sleep 0.1; done"))
	out, kinds := "", []workbench.LogKind{}
	for e, err := range s.c.Events(t.Context(), run, 0) {
		if err != nil {
			t.Fatal(err)
		}
		out += e.Text
		kinds = append(kinds, e.Kind)
	}
	if out != "1\n2\n3\n" || kinds[len(kinds)-1] != workbench.LogTerminal {
		t.Errorf("events %q, output %q", kinds, out)
	}
}

// A queued background run survives its server.
func TestBackgroundQueueOutlivesTheServer(t *testing.T) {
	dir := t.TempDir()
	w, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := w.mustOpenSession(t)
	var runs []string
	for i := range engine.BackgroundLanes {
		run := s.mustSubmit(aside("echo begun; sleep 600"))
		runs = append(runs, run)
		mustSay(t, s, runs[i], "begun")
	}
	waiting := s.mustSubmit(aside("echo late"))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
	defer cancel()
	w.http.CloseClientConnections()
	w.http.Close()
	_ = w.server.Close(ctx) // runs in flight are cut off
	again, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := again.close(); err != nil {
			t.Error(err)
		}
	})
	next := &session{t: t, c: again.mustUser(t, "acme", "ada"), id: s.id}
	wantOut(t, next.mustWait(waiting), "late\n")
	for _, run := range runs {
		wantEnd(t, next.mustWait(run), workbench.StatusUnknown, workbench.ReasonServerLost)
	}
}

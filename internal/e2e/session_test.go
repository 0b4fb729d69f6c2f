package e2e_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// The first seed's example.
func TestSeedExample(t *testing.T) {
	w := mustShared(t)
	s := w.mustSession(t, sdk.CreateSession{Agent: "Report helper"})
	file := s.mustUpload("input.txt", "hello")
	r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: `print(open("input.txt").read().upper())`,
		Artifacts: []workbench.ArtifactSelect{{ID: file.ID}}, IdempotencyKey: "your-stable-run-key"})
	wantEnd(t, r, workbench.StatusSucceeded, "")
	wantOut(t, r, "HELLO\n")
	if r.ExecutionID != r.ID || r.Session.ID != s.id || r.Session.Generation != 1 || r.Revision != 1 || r.Driver != "runsc" {
		t.Errorf("receipt %+v", r.Run)
	}
	if _, err := s.c.CloseAgentSession(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	if got := s.mustRead(file.ID); got != "hello" {
		t.Errorf("after closing, the file reads %q", got)
	}
}

func TestUploadEntersOnlyWhenSelected(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	file := s.mustUpload("input.txt", "hello")
	wantOut(t, s.mustBash("ls"), "")
	r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "cat data/renamed.txt; ls",
		Artifacts: []workbench.ArtifactSelect{{ID: file.ID, Path: "data/renamed.txt"}}})
	wantOut(t, r, "hellodata\n")
	if r.Files.Total != 0 {
		t.Errorf("what was placed is listed as changed by the run: %+v", r.Files)
	}
	_, err := s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "ls",
		Artifacts: []workbench.ArtifactSelect{{ID: file.ID, Path: "same"}, {ID: file.ID, Path: "same"}}})
	wantCode(t, err, workbench.CodePathConflict)
}

func TestIdempotency(t *testing.T) {
	w := mustShared(t)
	c := w.mustUser(t, "idem", "ada")
	one, two := mustSessionOf(t, c, sdk.CreateSession{}), mustSessionOf(t, c, sdk.CreateSession{})
	job := sdk.CreateRun{Language: workbench.Bash, Code: "echo once; echo x >> log; wc -l < log", IdempotencyKey: "key-1"}
	first := one.mustRun(job)
	wantOut(t, first, "once\n1\n")

	again, err := two.c.CreateSessionRun(t.Context(), two.id, job)
	if err != nil || !again.Replayed || again.ID != first.ID || again.SessionID != one.id {
		t.Fatalf("the repeat from another session gave %+v, replayed %v, %v", again.Run, again.Replayed, err)
	}
	spelled := job
	timeout := int64(30_000)
	spelled.TimeoutMs = &timeout
	if again, err = one.c.CreateSessionRun(t.Context(), one.id, spelled); err != nil || again.ID != first.ID {
		t.Errorf("a default that is written out made another job: %v", err)
	}
	changed := job
	changed.Code += " "
	_, err = one.c.CreateSessionRun(t.Context(), one.id, changed)
	wantCode(t, err, workbench.CodeIdempotencyReused)

	other := mustSessionOf(t, w.mustUser(t, "idem2", "ada"), sdk.CreateSession{})
	wantOut(t, other.mustRun(job), "once\n1\n") // another tenant: another key

	stranger := mustSessionOf(t, w.mustUser(t, "idem", "bob"), sdk.CreateSession{})
	_, err = stranger.c.CreateSessionRun(t.Context(), stranger.id, job)
	wantCode(t, err, workbench.CodeConflict) // not the reader's run: no detail
	if strings.Contains(err.Error(), first.ID) || strings.Contains(err.Error(), one.id) {
		t.Errorf("the refusal tells of the original: %v", err)
	}
	if _, err := one.c.CloseAgentSession(t.Context(), one.id); err != nil {
		t.Fatal(err)
	}
	if again, err = one.c.CreateSessionRun(t.Context(), one.id, job); err != nil || again.ID != first.ID {
		t.Errorf("after closing, the repeat gave %v, %v", again.ID, err)
	}
}

func TestRestartKeepsOnlyWhatIsNamed(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	keep := s.mustUpload("keep.txt", "kept")
	wantOut(t, s.mustBash("echo a > made.txt; echo t > /tmp/t; ls"), "made.txt\n")
	restarted, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{Artifacts: []workbench.ArtifactSelect{{ID: keep.ID, Path: "in/keep.txt"}}})
	if err != nil || restarted.Generation != 2 {
		t.Fatalf("%+v, %v", restarted, err)
	}
	r := s.mustBash("find . -type f; cat in/keep.txt; ls /tmp/t 2>/dev/null || echo gone")
	wantOut(t, r, "./in/keep.txt\nkeptgone\n")
	if r.Generation != 2 || len(r.Notices) != 1 || r.Notices[0].Code != workbench.NoticeSandboxReplaced {
		t.Errorf("generation %d, notices %+v", r.Generation, r.Notices)
	}
	if r = s.mustBash("true"); len(r.Notices) != 0 {
		t.Errorf("the second run in the new sandbox has notices %+v", r.Notices)
	}

	long := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 20"})
	_, err = s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{})
	wantCode(t, err, workbench.CodeRunsActive)
	if _, err = s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{CancelActive: true}); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, s.mustWait(long), workbench.StatusCancelled, workbench.ReasonRestart)
	wantOut(t, s.mustBash("ls"), "")
}

// A restart that cancels what runs is not refused because others go on
// submitting.
func TestRestartUnderSubmissions(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			for ctx.Err() == nil {
				_, err := s.c.CreateSessionRun(ctx, s.id, sdk.CreateRun{Language: workbench.Bash, Code: "sleep 5"})
				if err != nil && ctx.Err() == nil && !workbench.HasCode(err, workbench.CodeQueueFull) {
					t.Errorf("submit: %v", err)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	for want := int64(2); want <= 5; want++ {
		time.Sleep(100 * time.Millisecond)
		got, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{CancelActive: true})
		if err != nil || got.Generation != want {
			t.Errorf("restart: generation %d, want %d, %v", got.Generation, want, err)
		}
	}
	stop()
	clients.Wait()
	if _, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{CancelActive: true}); err != nil {
		t.Fatal(err)
	}
	wantOut(t, s.mustBash("echo on"), "on\n")
}

func TestConfigureMakesRevisions(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 1"})
	limit := int64(5000)
	_, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Limits: &workbench.LimitsRequest{TimeoutMs: &limit}})
	wantCode(t, err, workbench.CodeRunsActive)
	if r := s.mustWait(run); r.Revision != 1 || r.TimeoutMs != 30_000 {
		t.Errorf("revision %d, timeout %d", r.Revision, r.TimeoutMs)
	}
	configured, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Limits: &workbench.LimitsRequest{TimeoutMs: &limit}})
	if err != nil || configured.Revision != 2 {
		t.Fatalf("%+v, %v", configured, err)
	}
	if r := s.mustBash("true"); r.Revision != 2 || r.TimeoutMs != 5000 {
		t.Errorf("revision %d, timeout %d", r.Revision, r.TimeoutMs)
	}
	stale := int64(1)
	_, err = s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{ExpectedCurrentVersion: &stale})
	wantCode(t, err, workbench.CodeVersionMismatch)
}

func TestConfigureKeepsLimitsThatItDoesNotName(t *testing.T) {
	memory, longest, tasks := int64(64<<20), int64(5000), 32
	s := mustShared(t).mustSession(t, sdk.CreateSession{Limits: &workbench.LimitsRequest{MemoryBytes: &memory, MaxTimeoutMs: &longest}})
	got, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Limits: &workbench.LimitsRequest{Tasks: &tasks}})
	if err != nil || got.Limits.Tasks != 32 || got.Limits.MemoryBytes != 64<<20 || got.Limits.MaxTimeoutMs != 5000 || got.Limits.TimeoutMs != 5000 {
		t.Fatalf("%+v, %v", got.Limits, err)
	}
	long := int64(6000)
	_, err = s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "true", TimeoutMs: &long})
	wantCode(t, err, workbench.CodeLimitOutOfRange)
	if hint := workbench.AsError(err).Hint; !strings.Contains(hint, "limits.maxTimeoutMs") {
		t.Errorf("the hint does not name the limit: %q", hint)
	}
	full := int64(256 << 20)
	if got, err = s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Limits: &workbench.LimitsRequest{MemoryBytes: &full}}); err != nil ||
		got.Limits.MemoryBytes != 256<<20 || got.Limits.Tasks != 32 {
		t.Errorf("back up: %+v, %v", got.Limits, err)
	}
}

func TestClosedSession(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	file := s.mustUpload("a.txt", "a")
	done := s.mustBash("echo done")
	running := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 20"})
	queued := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo never"})
	if _, err := s.c.CloseAgentSession(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, s.mustWait(running), workbench.StatusCancelled, workbench.ReasonSessionClosed)
	wantEnd(t, s.mustWait(queued), workbench.StatusCancelled, workbench.ReasonSessionClosed)
	_, err := s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "true"})
	wantCode(t, err, workbench.CodeSessionClosed)
	_, err = s.c.UploadSessionArtifact(t.Context(), s.id, sdk.Upload{Name: "b.txt"}, strings.NewReader("b"))
	wantCode(t, err, workbench.CodeSessionClosed)
	if got, err := s.c.AgentSession(t.Context(), s.id); err != nil || got.State != workbench.SessionClosed {
		t.Errorf("%+v, %v", got.State, err)
	}
	if r := s.mustWait(done.ID); text(r.Stdout) != "done\n" {
		t.Errorf("receipt after closing: %q", text(r.Stdout))
	}
	if got := s.mustRead(file.ID); got != "a" {
		t.Errorf("file after closing: %q", got)
	}
	if _, err := s.c.DeleteSessionArtifact(t.Context(), file.ID); err != nil {
		t.Errorf("delete after closing: %v", err)
	}
	_, err = s.c.ReadSessionArtifact(t.Context(), file.ID)
	wantCode(t, err, workbench.CodeArtifactDeleted)
}

func TestExpiredSession(t *testing.T) {
	w := mustShared(t)
	c := w.mustUser(t, "expiry", "ada")
	ttl := int64(600_000)
	created, err := c.CreateAgentSession(t.Context(), sdk.CreateSession{TTLMs: &ttl})
	if err != nil || created.ExpiresAt.Sub(created.CreatedAt) != 10*time.Minute {
		t.Fatalf("made at %s, it expires at %s, %v", created.CreatedAt, created.ExpiresAt, err)
	}
	s := &session{t: t, c: c, id: created.ID}
	file := s.mustUpload("a.txt", "a")
	running := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; sleep 120", TimeoutMs: ptr(int64(150_000))})
	mustSay(t, s, running, "begun")
	w.mustTouch(t, "UPDATE sessions SET expires_at = 1 WHERE id = ?", s.id)
	r := s.mustWait(running)
	wantEnd(t, r, workbench.StatusCancelled, workbench.ReasonSessionExpired)
	wantOut(t, r, "begun\n")
	_, err = c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "true"})
	wantCode(t, err, workbench.CodeSessionExpired)
	if got := s.mustRead(file.ID); got != "a" {
		t.Errorf("file after expiry: %q", got)
	}
}

// A cancel interrupts the program, also one that waits for a child. Such a
// program has half a second before more than an interrupt comes: of three one
// says that it heard it.
func TestCancel(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	run, r := s.mustInterrupt()
	for range 2 {
		if text(r.Stdout) != "ready\n" {
			break
		}
		run, r = s.mustInterrupt()
	}
	wantOut(t, r, "ready\nKI\n")
	if got, err := s.c.CancelRun(t.Context(), run); err != nil || got.Status != workbench.StatusCancelled {
		t.Errorf("a second cancel: %+v, %v", got.Status, err)
	}
	wantOut(t, s.mustBash("ps -e | grep -c sleep; echo still here"), "0\nstill here\n")
}

// mustInterrupt cancels a program that waits for its child, and a run that waits
// for the program.
func (s *session) mustInterrupt() (run string, r workbench.Receipt) {
	t := s.t
	t.Helper()
	running := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, Code: "import subprocess\nprint('ready')\ntry: subprocess.run(['sleep', '30'])\nexcept KeyboardInterrupt: print('KI', flush=True)"})
	queued := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo never"})
	if got, err := s.c.CancelRun(t.Context(), queued); err != nil || got.Status != workbench.StatusCancelled {
		t.Fatalf("%+v, %v", got.Status, err)
	}
	mustSay(t, s, running, "ready")
	time.Sleep(500 * time.Millisecond) // the program is inside subprocess.run
	began := time.Now()
	if _, err := s.c.CancelRun(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	r = s.mustWait(running)
	wantEnd(t, r, workbench.StatusCancelled, workbench.ReasonCancelled)
	if took := time.Since(began); took > 15*time.Second { // the child sleeps for 30
		t.Errorf("the cancel took %s", took)
	}
	return running, r
}

// mustBe waits until the run has the status.
func mustBe(t *testing.T, s *session, run string, want workbench.Status) {
	t.Helper()
	for e, err := range s.c.Events(t.Context(), run, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == workbench.LogStatus && strings.Contains(string(e.Meta), `"`+string(want)+`"`) {
			return
		}
	}
	t.Fatalf("the run ended without having been %s", want)
}

// mustSay waits until the run's output holds the text.
func mustSay(t *testing.T, s *session, run, want string) {
	t.Helper()
	var out strings.Builder
	for e, err := range s.c.Events(t.Context(), run, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if out.WriteString(e.Text); strings.Contains(out.String(), want) {
			return
		}
	}
	t.Fatalf("the run ended without having said %q", want)
}

func TestRunsAreSerialisedInOrder(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	var ids []string
	for range 5 {
		ids = append(ids, s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "test ! -e busy || echo overlap; touch busy; sleep 0.1; rm busy; wc -l < log 2>/dev/null || echo 0; echo x >> log"}))
	}
	for i, id := range ids {
		wantOut(t, s.mustWait(id), string(rune('0'+i))+"\n")
	}
}

func TestSandboxSizes(t *testing.T) {
	w := mustShared(t)
	c := w.mustUser(t, "sizes", "ada")
	tiers, err := c.RuntimeTiers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(tiers))
	for i, size := range tiers {
		names[i] = size.Name
		if !size.Available && size.Reason == "" {
			t.Errorf("%s is not available and does not say why", size.Name)
		}
	}
	if !slices.Equal(names, []string{"standard", "medium", "large"}) {
		t.Errorf("sizes %v", names)
	}
	_, err = c.CreateAgentSession(t.Context(), sdk.CreateSession{Size: "huge"})
	wantCode(t, err, workbench.CodeInvalidRequest)
	_, err = c.CreateAgentSession(t.Context(), sdk.CreateSession{Image: "nowhere"})
	wantCode(t, err, workbench.CodeImageNotFound)
	_, err = c.CreateAgentSession(t.Context(), sdk.CreateSession{Tools: []workbench.ToolRef{{Name: "your_app.lookup", Version: "1"}}})
	wantCode(t, err, workbench.CodeToolNotFound)
}

// A configuration that says what is so already makes no revision.
func TestConfigureWithoutChange(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{Agent: "reporter", Labels: map[string]string{"team": "a"}})
	agent, labels := "reporter", map[string]string{"team": "a"}
	same, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Agent: &agent, Labels: &labels})
	if err != nil || same.Revision != 1 {
		t.Errorf("revision %d (%v), want 1", same.Revision, err)
	}
	labels = map[string]string{"team": "b"}
	other, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Agent: &agent, Labels: &labels})
	if err != nil || other.Revision != 2 {
		t.Errorf("revision %d (%v), want 2", other.Revision, err)
	}
}

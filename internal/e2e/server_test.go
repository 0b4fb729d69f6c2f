package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	"github.com/workbenchdev/workbench/internal/store/pgtest"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func TestRuncDriver(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.Driver = "runc" })
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	up := s.mustUpload("input.txt", "hello")
	r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: `print(open("input.txt").read().upper())`, Artifacts: []workbench.ArtifactSelect{{ID: up.ID}}})
	wantOut(t, r, "HELLO\n")
	if r.Driver != "runc" {
		t.Errorf("driver %q", r.Driver)
	}
	got, err := s.c.AgentSession(t.Context(), s.id)
	if err != nil || got.Driver != "runc" || got.Isolation != "shared" {
		t.Errorf("session says %q, %q, %v", got.Driver, got.Isolation, err)
	}
	_, err = s.c.CreateAgentSession(t.Context(), sdk.CreateSession{KeepMemory: true}) // runc writes no memory out
	wantCode(t, err, workbench.CodeNotBuilt)
	if e := workbench.AsError(err); e.Field != "keepMemory" || e.Hint == "" {
		t.Errorf("keepMemory on runc: field %q, hint %q", e.Field, e.Hint)
	}
}

// A session that keeps its memory can be forked where memory cannot be kept.
func TestForkOnAnotherDriver(t *testing.T) {
	dir := t.TempDir()
	w, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.mustUser(t, "acme", "ada").CreateAgentSession(t.Context(), sdk.CreateSession{KeepMemory: true})
	if err != nil || !made.KeepMemory {
		t.Fatalf("%+v, %v", made, err)
	}
	s := &session{t: t, c: w.mustUser(t, "acme", "ada"), id: made.ID}
	s.mustWrite("f", "here")
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	if w, err = open(dir, func(o *server.Options) { o.Driver = "runc" }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	fork, err := w.mustUser(t, "acme", "ada").ForkAgentSession(t.Context(), s.id, sdk.ForkSession{})
	if err != nil || fork.KeepMemory || fork.Driver != "runc" {
		t.Fatalf("the fork: %+v, %v", fork, err)
	}
	f := &session{t: t, c: w.mustUser(t, "acme", "ada"), id: fork.ID}
	if got := f.mustFile("f"); got != "here" {
		t.Errorf("the fork's file holds %q", got)
	}
}

// Two servers on one host, each with a sandbox: the end and the start of one
// leave the other's alone.
func TestTwoInstancesOnOneHost(t *testing.T) {
	one, err := open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	two := mustWorld(t, nil)
	a := one.mustOpenSession(t)
	b := mustSessionOf(t, two.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	wantOut(t, a.mustBash("echo a > /tmp/mark; echo a"), "a\n")
	wantOut(t, b.mustBash("echo b > /tmp/mark; echo b"), "b\n")
	if err := one.close(); err != nil {
		t.Fatal(err)
	}
	again, err := open(one.dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := b.mustBash("cat /tmp/mark")
	wantOut(t, r, "b\n") // its sandbox, with its /tmp, is still the same
	if len(r.Notices) != 0 || r.Generation != 1 {
		t.Errorf("generation %d, notices %v", r.Generation, r.Notices)
	}
	if err := again.close(); err != nil {
		t.Error(err)
	}
}

func TestSecondServerOnOneDataDirectoryIsRefused(t *testing.T) {
	w := mustWorld(t, nil)
	_, err := open(w.dir, nil)
	wantCode(t, err, workbench.CodeUnavailable)
}

// A process whose sandboxes would fail every program does not start. The limit
// cannot be raised again, so it is lowered in a process of its own.
func TestTooFewOpenFilesAreRefused(t *testing.T) {
	const child = "WORKBENCH_TEST_FEW_FILES"
	if os.Getenv(child) == "" {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		again.Env = append(os.Environ(), child+"=1")
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1000, Max: 1000}); err != nil {
		t.Fatal(err)
	}
	w, err := open(t.TempDir(), nil)
	if err == nil {
		_ = w.close()
	}
	wantCode(t, err, workbench.CodeRuntimeUnavailable)
	if !strings.Contains(workbench.AsError(err).Hint, "ulimit -n") {
		t.Errorf("the hint is %q", workbench.AsError(err).Hint)
	}
}

// A stop lets the run in flight end and leaves the queue for the next start.
func TestStopDrainsAndTheQueueGoesOn(t *testing.T) {
	dir := t.TempDir()
	w, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := w.mustOpenSession(t)
	inFlight := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 5; echo done > f; echo done"})
	queued := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "cat f; echo later"})
	mustBe(t, s, inFlight, workbench.StatusRunning)
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	next, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := next.close(); err != nil {
			t.Error(err)
		}
	}()
	s.c = next.mustUser(t, "acme", "ada")
	wantOut(t, s.mustWait(inFlight), "done\n")
	r := s.mustWait(queued)
	wantOut(t, r, "done\nlater\n")
	if r.Generation != 2 || len(r.Notices) != 1 || r.Notices[0].Code != workbench.NoticeSandboxReplaced {
		t.Errorf("generation %d, notices %+v", r.Generation, r.Notices)
	}
}

// A stop that does not wait settles the run in flight as unknown, for good.
func TestStopWithoutPatienceEndsUnknown(t *testing.T) {
	dir := t.TempDir()
	w, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := w.mustOpenSession(t)
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; sleep 60"})
	mustSay(t, s, run, "begun")
	w.http.CloseClientConnections()
	w.http.Close()
	now, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = w.server.Close(now) // it says that it was late
	next, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := next.close(); err != nil {
			t.Error(err)
		}
	}()
	s.c = next.mustUser(t, "acme", "ada")
	r := s.mustWait(run)
	wantEnd(t, r, workbench.StatusUnknown, workbench.ReasonServerLost)
	wantOut(t, r, "begun\n")
	wantOut(t, s.mustBash("echo again"), "again\n")
}

func TestPostgreSQL(t *testing.T) {
	dsn := pgtest.MustURL(t)
	key := filepath.Join(t.TempDir(), "master.key")
	if err := os.WriteFile(key, []byte("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	use := func(o *server.Options) { o.Database, o.MasterKey = dsn, key }
	one := mustWorld(t, use)
	c := one.mustUser(t, "acme", "ada")
	s := mustSessionOf(t, c, sdk.CreateSession{})
	up := s.mustUpload("input.txt", "hello")
	wantOut(t, s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: `print(open("input.txt").read().upper())`,
		Artifacts: []workbench.ArtifactSelect{{ID: up.ID}}}), "HELLO\n")

	// A second server on the same database: a client that waits there is woken
	// by what happens here.
	dir := t.TempDir()
	admin, err := os.ReadFile(filepath.Join(one.dir, "admin"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "admin"), admin, 0o600); err != nil {
		t.Fatal(err)
	}
	two, err := open(dir, use)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := two.close(); err != nil {
			t.Error(err)
		}
	}()
	there := two.mustUser(t, "acme", "ada")
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 1; echo woken"})
	began := time.Now()
	r, err := there.GetRun(t.Context(), run, 20*time.Second)
	if err != nil || text(r.Stdout) != "woken\n" {
		t.Fatalf("%q, %v", text(r.Stdout), err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the waiter on the other server was woken after %s", took)
	}
	var seen strings.Builder
	for e, err := range there.Events(t.Context(), run, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == workbench.LogOutput {
			b, err := e.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			seen.Write(b)
		}
	}
	if seen.String() != "woken\n" {
		t.Errorf("events there give %q", seen.String())
	}
}

// While a server drains, whoever waits for a run in flight still gets its end,
// and a new submission is told to go elsewhere.
func TestClientsCanReadWhileTheServerDrains(t *testing.T) {
	w := mustWorld(t, nil)
	s := w.mustOpenSession(t)
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "echo begun; sleep 1.5; echo done"})
	mustSay(t, s, run, "begun")
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		stopped <- w.server.Stop(ctx)
	}()
	refused := func() bool {
		once, err := sdk.New(sdk.Options{BaseURL: w.url, Key: mustKeyOf(t, w), Retries: -1})
		if err != nil {
			t.Fatal(err)
		}
		return once.Ready(t.Context()) != nil
	}
	for !refused() {
		time.Sleep(20 * time.Millisecond)
	}
	wantOut(t, s.mustWait(run), "begun\ndone\n")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// mustKeyOf reads the world's admin key.
func mustKeyOf(t *testing.T, w *world) string {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(w.dir, "admin"))
	if err != nil {
		t.Fatal(err)
	}
	return string(key)
}

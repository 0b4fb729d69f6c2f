package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustSuspended waits until the session is suspended.
func (s *session) mustSuspended() workbench.Suspension {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		got, err := s.c.AgentSession(s.t.Context(), s.id)
		if err != nil {
			s.t.Fatal(err)
		}
		if got.Suspended != nil {
			return *got.Suspended
		}
	}
	s.t.Fatal("the session is not suspended")
	return workbench.Suspension{}
}

func quick(o *server.Options) { o.SuspendAfter = 300 * time.Millisecond }

// An idle session gives its sandbox up and returns with exactly its files; the
// receipt of the run that has it return says what was lost, and no other does.
func TestIdleSessionReturnsWithItsFiles(t *testing.T) {
	w := mustWorld(t, quick)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	first := s.mustBash("mkdir -p d/e; echo a > d/e/f; ln -s d/e/f link; head -c 100000 /dev/urandom > big; chmod 600 big; touch 'ein Name\nmit Umbruch'; echo t > /tmp/t")
	wantEnd(t, first, workbench.StatusSucceeded, "")
	if at := s.mustSuspended(); at.MemoryKept || at.At.IsZero() {
		t.Errorf("suspended %+v", at)
	}
	if n := w.live(t); n != 0 {
		t.Errorf("%d sandboxes live while the only session is suspended", n)
	}
	back := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "cat link; stat -c %a big; test -e /tmp/t || echo no /tmp/t"})
	next := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "true"}) // at once: it does not idle in between
	r := s.mustWait(back)
	wantOut(t, r, "a\n600\nno /tmp/t\n")
	if r.InputRoot != first.OutputRoot || r.OutputRoot != first.OutputRoot {
		t.Errorf("it returned with %s, and was suspended with %s", r.InputRoot, first.OutputRoot)
	}
	if len(r.Notices) != 1 || r.Notices[0].Code != workbench.NoticeMemoryLost || !r.VariablesLost || r.Generation != 2 {
		t.Errorf("generation %d, variables lost: %t, notices %+v", r.Generation, r.VariablesLost, r.Notices)
	}
	r = s.mustWait(next)
	if len(r.Notices) != 0 || r.VariablesLost || r.Generation != 2 {
		t.Errorf("the next run: generation %d, variables lost: %t, notices %+v", r.Generation, r.VariablesLost, r.Notices)
	}
	s.mustSuspended()
	wantComings(t, s, "suspended false 1", "resumed false 2", "suspended false 2")
}

// wantComings closes the session and fails unless its events tell these
// suspensions and returns: memory kept, generation.
func wantComings(t *testing.T, s *session, want ...string) {
	t.Helper()
	if _, err := s.c.CloseAgentSession(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range mustFollowSession(t, s.c, s.id) {
		if e.Kind == workbench.EventSuspended || e.Kind == workbench.EventResumed {
			var meta workbench.SuspendedEvent // that of resumed has the same fields
			if err := e.Read(&meta); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(e.Kind, " ", meta.MemoryKept, " ", meta.Generation))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the session's events tell %q, want %q", got, want)
	}
}

// What works, or is on its way, keeps its sandbox.
func TestWorkKeepsASessionAwake(t *testing.T) {
	t.Parallel() // it waits more than it works
	w := mustWorld(t, quick)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	wantOut(t, s.mustBash("echo t > /tmp/t; sleep 2; cat /tmp/t"), "t\n")
	run := s.mustSubmit(aside("echo t > /tmp/t; echo begun; " + untilFile("stop")))
	mustSay(t, s, run, "begun")
	time.Sleep(2 * time.Second)
	got, err := s.c.AgentSession(t.Context(), s.id)
	if err != nil || got.Suspended != nil {
		t.Errorf("a session that works is suspended: %+v, %v", got.Suspended, err)
	}
	wantOut(t, s.mustBash("cat /tmp/t"), "t\n")
	from, to := io.Pipe()
	var uploaded sync.WaitGroup
	uploaded.Go(func() {
		if _, err := s.c.UploadSessionArtifact(t.Context(), s.id, sdk.Upload{Name: "slow"}, from); err != nil {
			t.Error(err)
		}
	})
	if _, err := to.Write([]byte("a")); err != nil { // the client reads it
		t.Fatal(err)
	}
	time.Sleep(time.Second) // and the server has heard of the upload
	s.mustBash("touch stop")
	s.mustWait(run)
	time.Sleep(2 * time.Second)
	r := s.mustBash("cat /tmp/t")
	wantOut(t, r, "t\n")
	if r.VariablesLost {
		t.Errorf("generation %d, notices %+v", r.Generation, r.Notices)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	uploaded.Wait()
	s.mustSuspended()
}

// heart counts in a file, from a thread of the context, while its cells run.
const heart = `
import threading, time
x = {"n": 41}
def beat():
    while True:
        with open("/tmp/beats", "a") as f: f.write(".")
        time.sleep(0.01)
threading.Thread(target=beat, daemon=True).start()
def beats():
    try: return len(open("/tmp/beats").read())
    except FileNotFoundError: return 0
def beating():
    n, end = beats(), time.monotonic() + 10
    while beats() == n and time.monotonic() < end: time.sleep(0.01)
    return beats() > n
beating()
`

// A session that keeps its memory returns with variables, threads, /tmp and
// files, in the same generation; its memory is sealed while it is away.
func TestSessionReturnsWithItsMemory(t *testing.T) {
	w := mustWorld(t, quick)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{KeepMemory: true})
	cell := func(code string) string {
		return s.mustSubmit(sdk.CreateRun{Language: workbench.Python, Code: code, ContextID: "default"})
	}
	wantEnd(t, s.mustWait(cell(heart+"secret = 'canary-'+'in-memory'; open('f', 'w').write('file')")), workbench.StatusSucceeded, "")
	for round := range 3 {
		at := s.mustSuspended()
		if !at.MemoryKept || at.Bytes == 0 {
			t.Fatalf("suspended %+v", at)
		}
		w.mustOnlyVessel(t)
		w.mustNowhere(t, "canary-in-memory")
		first := cell("x['n'] += 1; print(x['n'], secret, open('f').read(), beating())")
		second := cell("print(x['n'])")
		r := s.mustWait(first)
		wantOut(t, r, fmt.Sprintf("%d canary-in-memory file True\n", 42+round))
		if r.Generation != 1 || r.VariablesLost || len(r.Notices) != 1 || r.Notices[0].Code != workbench.NoticeResumed {
			t.Errorf("generation %d, variables lost: %t, notices %+v", r.Generation, r.VariablesLost, r.Notices)
		}
		wantOut(t, s.mustWait(second), fmt.Sprintf("%d\n", 42+round))
	}
	s.mustSuspended()
	if _, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{}); err != nil {
		t.Fatal(err)
	}
	_, err := s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Python, Code: "print(x['n'])", ContextID: "default"})
	wantCode(t, err, workbench.CodeContextLost)
	lost, err := s.c.GetContext(t.Context(), s.id, "default")
	if err != nil || lost.Lost == nil || lost.Lost.Reason != workbench.LossRestart {
		t.Errorf("after the restart of a suspended session its context is %+v, %v", lost, err)
	}
	wantComings(t, s, "suspended true 1", "resumed true 1", "suspended true 1", "resumed true 1", "suspended true 1", "resumed true 1", "suspended true 1")
}

// mustOnlyVessel waits until the one sandbox that lives is a vessel.
func (w *world) mustOnlyVessel(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); w.live(t) != 1 || w.mustMetric(t, "workbench_vessels") != 1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d sandboxes live while the only session is suspended, %v of them vessels", w.live(t), w.mustMetric(t, "workbench_vessels"))
		}
	}
}

// mustNowhere fails if the text is in a file of the data directory.
func (w *world) mustNowhere(t *testing.T, text string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(w.dir, "data"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if bytes.Contains(raw, []byte(text)) {
			t.Errorf("%s has it in the clear", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A stop in order keeps the memory of sessions that asked for it, and a
// checkpoint outlives the server; also one that has no place to give memory back,
// or to keep it.
func TestKeptMemoryOutlivesTheServer(t *testing.T) {
	dir := t.TempDir()
	w, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	next := func() *sdk.Client {
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		if w, err = open(dir, nil); err != nil {
			t.Fatal(err)
		}
		return w.mustUser(t, "acme", "ada")
	}
	c := w.mustUser(t, "acme", "ada")
	var both [2]*session
	for i := range both {
		made, err := c.CreateAgentSession(t.Context(), sdk.CreateSession{KeepMemory: true})
		if err != nil {
			t.Fatal(err)
		}
		both[i] = &session{t: t, c: c, id: made.ID}
	}
	s, second := both[0], both[1]
	cell := sdk.CreateRun{Language: workbench.Python, Code: "x = 41\nprint(x)", ContextID: "default"}
	wantOut(t, s.mustRun(cell), "41\n")
	place := filepath.Join(dir, "data", "memory")
	c = next()
	cell.Code = "print(x + 1)"
	s.c, second.c = c, c
	wantOut(t, s.mustRun(cell), "42\n")

	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(place, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if w, err = open(dir, nil); err != nil {
		t.Fatal(err)
	}
	c = w.mustUser(t, "acme", "ada")
	s.c, second.c = c, c
	wantEnd(t, s.mustRun(cell), workbench.StatusFailed, workbench.ReasonInfrastructure)
	if at := s.mustSuspended(); !at.MemoryKept {
		t.Errorf("suspended %+v", at)
	}
	wantOut(t, second.mustPython("print(1)"), "1\n") // its memory is not kept at the stop

	if err := os.Remove(place); err != nil {
		t.Fatal(err)
	}
	s.c = next()
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	cell.Code = "print(x + 2)"
	wantOut(t, s.mustRun(cell), "43\n")
}

// A session whose memory cannot be read at the moment is suspended still, and
// returns with it later.
func TestMemoryWaitsForRoom(t *testing.T) {
	w := mustWorld(t, quick)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{KeepMemory: true})
	cell := sdk.CreateRun{Language: workbench.Python, Code: "x = 41\nprint(x)", ContextID: "default"}
	wantOut(t, s.mustRun(cell), "41\n")
	s.mustSuspended()
	mustResize := func(size string) {
		t.Helper()
		if err := unix.Mount("workbench", filepath.Join(w.dir, "data", "memory"), "tmpfs", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size="+size); err != nil {
			t.Fatal(err)
		}
	}
	mustResize("64k")
	cell.Code = "print(x + 1)"
	run := s.mustSubmit(cell)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(w.log.tail(), "msg=lane"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody tried to have the session return")
		}
	}
	if at := s.mustSuspended(); !at.MemoryKept {
		t.Errorf("suspended %+v", at)
	}
	mustResize("50%")
	wantOut(t, s.mustWait(run), "42\n")
}

// Memory that cannot be read again is lost, and that is said; files are not.
func TestDamagedMemoryIsLost(t *testing.T) {
	w := mustWorld(t, quick)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{KeepMemory: true})
	wantOut(t, s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: "x = 41; open('f', 'w').write('file'); print(x)", ContextID: "default"}), "41\n")
	s.mustSuspended()
	blobs, err := filepath.Glob(filepath.Join(w.dir, "data", "blobs", "*", "*", "k_*"))
	if more, err2 := filepath.Glob(filepath.Join(w.dir, "data", "blobs", "*", "k_*")); err2 == nil {
		blobs = append(blobs, more...)
	}
	if err != nil || len(blobs) != 1 {
		t.Fatalf("%d checkpoints are stored: %v, %v", len(blobs), blobs, err)
	}
	raw, err := os.ReadFile(blobs[0])
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(blobs[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, Code: "print(open('f').read(), 'x' in globals())", ContextID: "default", OnLostContext: workbench.LostContextRestart})
	r := s.mustWait(run)
	wantOut(t, r, "file False\n")
	if !r.VariablesLost || r.Generation != 2 {
		t.Errorf("generation %d, variables lost: %t, notices %+v", r.Generation, r.VariablesLost, r.Notices)
	}
}

// Files that change while memory is kept change under it: nothing is lost.
func TestFilesChangeWhileMemoryIsKept(t *testing.T) {
	w := mustWorld(t, quick)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{KeepMemory: true})
	wantOut(t, s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: "x = 41; open('f', 'w').write('old'); print(x)", ContextID: "default"}), "41\n")
	if !s.mustSuspended().MemoryKept {
		t.Fatal("its memory is not kept")
	}
	if _, err := s.c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "f"}, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: "print(x, open('f').read())", ContextID: "default"})
	wantOut(t, r, "41 new\n")
	if r.Generation != 1 || r.VariablesLost {
		t.Errorf("generation %d, notices %+v", r.Generation, r.Notices)
	}
}

// A session whose return waits for a place, and a server that stops meanwhile:
// the memory is still there for the next one.
func TestReturnWithoutAPlaceKeepsTheMemory(t *testing.T) {
	t.Parallel() // it waits more than it works
	dir := t.TempDir()
	small := func(o *server.Options) { o.MaxRunning, o.MaxSandboxes = 1, 1 }
	w, err := open(dir, func(o *server.Options) { quick(o); small(o) })
	if err != nil {
		t.Fatal(err)
	}
	c := w.mustUser(t, "acme", "ada")
	mustOpen := func(keep bool) *session {
		made, err := c.CreateAgentSession(t.Context(), sdk.CreateSession{KeepMemory: keep})
		if err != nil {
			t.Fatal(err)
		}
		return &session{t: t, c: c, id: made.ID}
	}
	cell := sdk.CreateRun{Language: workbench.Python, Code: "x = 41\nprint(x)", ContextID: "default"}
	s, busy := mustOpen(true), mustOpen(false)
	wantOut(t, s.mustRun(cell), "41\n")
	s.mustSuspended()
	mustSay(t, busy, busy.mustSubmit(aside("echo begun; sleep 600")), "begun")
	cell.Code = "print(x + 1)"
	back := s.mustSubmit(cell)
	time.Sleep(500 * time.Millisecond) // its lane waits for the place that is taken
	if err := w.closeWithin(time.Second); err != nil {
		t.Log(err) // the run that sleeps is ended with the server
	}
	again, err := open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := again.close(); err != nil {
			t.Error(err)
		}
	})
	s.c = again.mustUser(t, "acme", "ada")
	wantEnd(t, s.mustWait(back), workbench.StatusSucceeded, "")
	cell.Code = "print(x + 2)"
	wantOut(t, s.mustRun(cell), "43\n")
}

package e2e_test

import (
	"io"
	"sync"
	"testing"
	"time"

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
}

// What works, or is on its way, keeps its sandbox.
func TestWorkKeepsASessionAwake(t *testing.T) {
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

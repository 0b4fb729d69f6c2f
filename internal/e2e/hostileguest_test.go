package e2e_test

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// A guest that has been taken over says what it likes, at every point of the
// protocol. Whatever it says: the run ends with a true status in bounded time,
// the liar's sandbox is ended, the next run of the session works in another one
// with the files of the last commit, and nobody else notices.
func TestHostileGuest(t *testing.T) {
	t.Parallel() // it waits more than it works
	const sessions = 12
	var crook *swindle
	w := mustWorld(t, func(o *server.Options) {
		o.Driver = "runc"
		o.MaxRunning = sessions + 1 // none waits for its turn
		o.WrapDriver = func(d sandbox.Driver) sandbox.Driver { crook = newSwindle(d); return crook }
	})
	bystander := w.mustSession(t, sdk.CreateSession{})
	wantOut(t, bystander.mustBash("echo mine > f; echo x > /tmp/f; cat f"), "mine\n")
	before := heap()

	lies := whatLiarsSay()
	work := make(chan string)
	var workers sync.WaitGroup
	for i := range sessions {
		tasks := 40 + i
		victim := w.mustSession(t, sdk.CreateSession{Limits: &workbench.LimitsRequest{Tasks: &tasks}})
		file := victim.mustUpload("in.txt", "in")
		// More than a window of the protocol, so that a restore has to wait.
		wantOut(t, victim.mustBash("echo kept > kept.txt; head -c 600000 /dev/zero > big; ls"), "big\nkept.txt\n")
		workers.Go(func() {
			for name := range work {
				t.Run(name, func(t *testing.T) {
					v := &session{t: t, c: victim.c, id: victim.id}
					v.sufferFrom(crook, tasks, lies[name], file)
				})
			}
		})
	}
	longestFirst := slices.SortedFunc(maps.Keys(lies), func(a, b string) int {
		return cmp.Or(cmp.Compare(lies[b].within, lies[a].within), cmp.Compare(a, b))
	})
	for _, name := range longestFirst {
		work <- name
	}
	close(work)
	workers.Wait()

	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("the server grew by %d MiB", grown>>20)
	}
	r := bystander.mustBash("cat f /tmp/f")
	wantOut(t, r, "mine\nx\n")
	if len(r.Notices) > 0 {
		t.Errorf("a session that met no liar was told %+v", r.Notices)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// sufferFrom puts a liar into the session's next sandbox, and submits a run.
func (s *session) sufferFrom(crook *swindle, tasks int, l lie, in workbench.Artifact) {
	t := s.t
	if err := crook.arm(t.Context(), tasks, l); err != nil {
		t.Fatal(err)
	}
	timeout := int64(10_000) // time to tell the lie, and to cancel
	if slices.Contains(l.want, workbench.StatusTimedOut) {
		timeout = 1500
	}
	job := sdk.CreateRun{Language: workbench.Bash, Code: "echo ran", Keep: l.keep, TimeoutMs: &timeout}
	if l.upload {
		job.Artifacts = []workbench.ArtifactSelect{{ID: in.ID}}
	}
	began := time.Now()
	run := s.mustSubmit(job)
	if l.cancel {
		s.mustTell(crook, tasks)
		began = time.Now()
		if _, err := s.c.CancelRun(t.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
	r := s.mustWait(run)
	if took := time.Since(began); took > l.within {
		t.Errorf("it took %s, at most %s are allowed", took, l.within)
	}
	if !slices.Contains(l.want, r.Status) {
		t.Errorf("the run ended %s (%s), want %v; message %q, notices %+v", r.Status, r.Reason, l.want, r.Message, r.Notices)
	}
	if strings.ContainsAny(r.Message, "\x1b\x00") {
		t.Errorf("the message is as hostile as the guest: %q", r.Message)
	}
	box := crook.liar(tasks)
	if box == nil {
		t.Fatal("no sandbox was started")
	}
	if l.believed {
		_ = box.Kill(t.Context())
	}
	next := s.mustBash("cat kept.txt; wc -c < big; rm -rf in.txt a")
	if text(next.Stdout) != "kept\n600000\n" {
		t.Errorf("the next run found %q; %s (%s) %q", text(next.Stdout), next.Status, next.Reason, next.Message)
	}
	if total := time.Since(began); total > l.within+10*time.Second {
		t.Errorf("the next run ended only after %s", total)
	}
	if !box.killed() {
		t.Error("the liar's sandbox has not been ended")
	}
}

// mustTell waits until the lie was told.
func (s *session) mustTell(crook *swindle, tasks int) {
	s.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for crook.liar(tasks) == nil {
		if time.Now().After(deadline) {
			s.t.Fatal("no sandbox was started")
		}
		time.Sleep(10 * time.Millisecond)
	}
	select {
	case <-crook.liar(tasks).guest.told:
	case <-time.After(time.Until(deadline)):
		s.t.Fatal("the liar was not asked")
	}
}

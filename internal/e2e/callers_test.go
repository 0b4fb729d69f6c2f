package e2e_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// heldKills is a driver whose sandboxes end only when they are let go.
type heldKills struct {
	sandbox.Driver
	mu    sync.Mutex
	asked chan struct{} // gets one for every kill; nil: nothing is held
	let   chan struct{}
}

func (d *heldKills) hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked, d.let = make(chan struct{}, 10), make(chan struct{})
}

// Start implements sandbox.Driver.
func (d *heldKills) Start(ctx context.Context, c sandbox.Class) (sandbox.Sandbox, error) {
	box, err := d.Driver.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return &heldBox{Sandbox: box, d: d}, nil
}

type heldBox struct {
	sandbox.Sandbox
	d *heldKills
}

// Kill implements sandbox.Sandbox.
func (b *heldBox) Kill(ctx context.Context) error {
	b.d.mu.Lock()
	asked, let := b.d.asked, b.d.let
	b.d.mu.Unlock()
	if asked != nil {
		asked <- struct{}{}
		<-let
	}
	return b.Sandbox.Kill(ctx)
}

func mustHeldWorld(t *testing.T) (*world, *heldKills) {
	held := &heldKills{}
	w := mustWorld(t, func(o *server.Options) {
		o.WrapDriver = func(d sandbox.Driver) sandbox.Driver { held.Driver = d; return held }
	})
	return w, held
}

// abandoned makes a call and leaves while it is in the middle: when a sandbox is
// being killed.
func (d *heldKills) abandoned(t *testing.T, call func(context.Context) error) {
	t.Helper()
	d.hold()
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	<-d.asked
	leave()
	if err := <-done; err == nil {
		t.Error("the call was answered, although its caller had left")
	}
	time.Sleep(100 * time.Millisecond) // the server hears of it
	close(d.let)
}

// A restart goes through whole, also when its caller leaves in the middle.
func TestRestartGoesOnWithoutItsCaller(t *testing.T) {
	w, held := mustHeldWorld(t)
	s := w.mustOpenSession(t)
	up := s.mustUpload("keep.txt", "kept")
	wantOut(t, s.mustBash("echo x > other.txt; ls"), "other.txt\n")
	held.abandoned(t, func(ctx context.Context) error {
		_, err := s.c.RestartAgentSession(ctx, s.id, sdk.RestartSession{Artifacts: []workbench.ArtifactSelect{{ID: up.ID}}})
		return err
	})
	r := s.mustBash("ls")
	wantOut(t, r, "keep.txt\n")
	if r.Generation != 2 || len(r.Notices) != 1 || r.Notices[0].Code != workbench.NoticeSandboxReplaced {
		t.Errorf("generation %d, notices %v", r.Generation, r.Notices)
	}
}

// So does a close: its compute is gone and its queue is empty.
func TestCloseGoesOnWithoutItsCaller(t *testing.T) {
	w, held := mustHeldWorld(t)
	s := w.mustOpenSession(t)
	wantOut(t, s.mustBash("echo one"), "one\n")
	held.abandoned(t, func(ctx context.Context) error {
		_, err := s.c.CloseAgentSession(ctx, s.id)
		return err
	})
	for end := time.Now().Add(time.Minute); w.live(t) != 0 || w.mustOwner(t, s.id) != ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d sandboxes are left, the lease is %q's", w.live(t), w.mustOwner(t, s.id))
		}
	}
	got, err := s.c.AgentSession(t.Context(), s.id)
	if err != nil || got.State != workbench.SessionClosed {
		t.Errorf("the session is %s, %v", got.State, err)
	}
}

// live counts the sandboxes of the world's instance by their control groups.
func (w *world) live(t *testing.T) int {
	t.Helper()
	instance := w.mustInstance(t)
	found := map[string]bool{}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, instance) && strings.Contains(d.Name(), "sbx_") {
			found[d.Name()] = true
		}
		return nil
	})
	return len(found)
}

// A restart that cannot restore what it was asked for gives nothing up.
func TestRestartThatCannotRestoreChangesNothing(t *testing.T) {
	w := mustWorld(t, nil)
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	up := s.mustUpload("lost.bin", strings.Repeat("lost", 100_000))
	wantOut(t, s.mustBash("echo x > f; echo y > /tmp/mark; cat f"), "x\n")
	w.mustLoseBlobs(t)
	_, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{Artifacts: []workbench.ArtifactSelect{{ID: up.ID}}})
	wantCode(t, err, workbench.CodeCorrupt)
	r := s.mustBash("cat f /tmp/mark")
	wantOut(t, r, "x\ny\n")
	if r.Generation != 1 || len(r.Notices) != 0 {
		t.Errorf("generation %d, notices %v", r.Generation, r.Notices)
	}
}

// mustLoseBlobs removes every stored content.
func (w *world) mustLoseBlobs(t *testing.T) {
	t.Helper()
	blobs, err := filepath.Glob(filepath.Join(w.dir, "data", "blobs", "??", "*"))
	if err != nil || len(blobs) == 0 {
		t.Fatalf("%d blobs, %v", len(blobs), err)
	}
	for _, b := range blobs {
		if err := os.Remove(b); err != nil {
			t.Fatal(err)
		}
	}
}

// Who names no revision is not told that it is another one: a submission and
// configurations that cross each other all have their way, or meet the run.
func TestSubmissionsCrossConfigurations(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{Image: "minimal"})
	for i := range 40 {
		var crossing sync.WaitGroup
		for n := range 3 {
			crossing.Go(func() {
				agent := strings.Repeat("a", 1+i+n)
				_, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Agent: &agent})
				if err != nil && !workbench.HasCode(err, workbench.CodeRunsActive) {
					t.Errorf("configure: %v", err)
				}
			})
		}
		run, err := s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "true"})
		crossing.Wait()
		if err != nil {
			t.Errorf("submit: %v", err)
			continue
		}
		s.mustWait(run.ID)
	}
}

package sandboxtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

func (s Suite) life(t *testing.T) {
	d, _ := s.MustOpen(t)
	t.Run("says what it is", func(t *testing.T) {
		info, err := d.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.Driver != d.Name() || info.Version == "" || info.Isolation == "" || info.Strength == "" || info.Warnings == nil {
			t.Errorf("incomplete: %+v", info)
		}
	})
	t.Run("start, bind, exec, kill", func(t *testing.T) {
		box := MustBind(t, d, Standard(s.Image))
		out := box.MustPython(t, "import sys; print('hello'); print('to you', file=sys.stderr); sys.exit(3)")
		if out.Stdout != "hello\n" || out.Stderr != "to you\n" || out.ExitCode != 3 {
			t.Errorf("got %+v", out)
		}
		if len(Leftovers(box.Sandbox.ID())) == 0 {
			t.Error("nothing carries the id of a sandbox that runs: the check below would pass vacuously")
		}
		if err := box.Sandbox.Kill(t.Context()); err != nil {
			t.Errorf("kill: %v", err)
		}
		MustNothingLeft(t, box.Sandbox.ID(), 0)
		if exit := box.Sandbox.Exit(); exit.Reason != sandbox.ExitKilled || exit.Last.CPU <= 0 {
			t.Errorf("exit %+v, want killed, with its CPU time", exit)
		}
	})
	t.Run("kill in the middle of a fork storm leaves nothing", func(t *testing.T) { s.killStorm(t, d) })
	t.Run("pause and resume", func(t *testing.T) { s.pause(t, d) })
	t.Run("a guest whose host is gone leaves by itself, with all code", func(t *testing.T) { s.abandoned(t, d) })
	t.Run("an unknown id", func(t *testing.T) {
		id := workbench.NewID(workbench.KindSandbox)
		if err := d.Kill(t.Context(), id); err != nil {
			t.Errorf("kill: %v, want nothing: it is idempotent", err)
		}
		if _, err := d.Attach(t.Context(), id); !workbench.HasCode(err, workbench.CodeNotFound) {
			t.Errorf("attach: %v, want not_found", err)
		}
	})
	t.Run("two instances do not touch each other, and a crashed owner's sandbox is reaped", s.instances)
}

const forkStorm = `
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
`

func (s Suite) killStorm(t *testing.T, d sandbox.Driver) {
	box := MustBind(t, d, Standard(s.Image))
	request := guestwire.ExecRequest{ID: "storm", Group: "storm", Language: workbench.Python, Source: []byte(forkStorm),
		Timeout: time.Minute, OutputBytes: 1 << 10}
	if _, err := box.Client.Exec(t.Context(), request, &capture{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	began := time.Now()
	if err := box.Sandbox.Kill(t.Context()); err != nil {
		t.Errorf("kill: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the kill took %v", took)
	}
	MustNothingLeft(t, box.Sandbox.ID(), 0)
}

func (s Suite) pause(t *testing.T, d sandbox.Driver) {
	info, err := d.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	box := MustBind(t, d, Standard(s.Image))
	err = box.Sandbox.Pause(t.Context())
	if !info.Capabilities.Pause {
		if !workbench.HasCode(err, workbench.CodeNotBuilt) {
			t.Errorf("got %v, want not_built: the driver says that it cannot pause", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := box.Client.Ping(ctx); err == nil {
		t.Error("a paused sandbox answered")
	}
	if err := box.Sandbox.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	box.MustStillWork(t)
}

// leaves is how long a guest may take to give up its host, in the suite.
const leaves = 20 * time.Second

func (s Suite) abandoned(t *testing.T, d sandbox.Driver) {
	box := MustBind(t, d, Standard(s.Image))
	request := guestwire.ExecRequest{ID: "sleeper", Group: "sleeper", Language: workbench.Python, OutputBytes: 1 << 10,
		Source: []byte("import os, signal, time\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nif os.fork() == 0: os.setsid()\ntime.sleep(300)")}
	if _, err := box.Client.Exec(t.Context(), request, &capture{}); err != nil {
		t.Fatal(err)
	}
	if err := box.Client.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-box.Sandbox.Done():
	case <-time.After(leaves):
		t.Fatalf("it is still there after %v", leaves)
	}
	if exit := box.Sandbox.Exit(); exit.Reason != sandbox.ExitGuestLeft {
		t.Errorf("exit %+v, want guest_left", exit)
	}
	for _, h := range mustList(t, d) {
		if h.ID == box.Sandbox.ID() && h.State != sandbox.StateEnded {
			t.Errorf("its processes are still there: %+v", h)
		}
	}
}

func mustList(t testing.TB, d sandbox.Driver) []sandbox.Handle {
	t.Helper()
	handles, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return handles
}

func (s Suite) instances(t *testing.T) {
	instance := NewInstance()
	left := s.Crash(t, instance)
	neighbour, _ := s.MustOpen(t)
	box := MustBind(t, neighbour, Standard(s.Image))

	handles, err := neighbour.List(t.Context())
	if err != nil || len(handles) != 1 || handles[0].ID != box.Sandbox.ID() {
		t.Errorf("the neighbour lists %+v, %v; want its own alone", handles, err)
	}
	if got, err := neighbour.Reap(t.Context()); err != nil || len(got.Killed)+len(got.Removed)+len(got.Left) != 0 {
		t.Errorf("the neighbour reaped %+v, %v; want nothing", got, err)
	}
	if len(Leftovers(left)) == 0 {
		t.Error("the crashed owner's sandbox is gone before its own instance looked")
	}
	d := s.MustReopen(t, instance)
	handles, err = d.List(t.Context())
	if err != nil || len(handles) != 1 || handles[0].ID != left || handles[0].Owned || handles[0].Instance != instance {
		t.Errorf("listed %+v, %v; want the crashed owner's", handles, err)
	}
	got, err := d.Reap(t.Context())
	if err != nil || len(got.Left) != 0 || !strings.Contains(strings.Join(append(got.Killed, got.Removed...), " "), left) {
		t.Errorf("reaped %+v, %v; want %s", got, err, left)
	}
	MustNothingLeft(t, left, 0)
	box.MustStillWork(t)
}

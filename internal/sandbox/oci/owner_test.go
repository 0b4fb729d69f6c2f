package oci_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// ownerEnv makes this test binary a server of its own: it opens a driver,
// starts a sandbox, tells its id and waits to be killed.
const ownerEnv = "WORKBENCH_TEST_OWNER"

// ownerOrder is what such a process is told.
type ownerOrder struct {
	Options struct {
		Kind                    oci.Kind
		Instance, Binary, Guest string
	}
	Class sandbox.Class
	// Standin: the guest is the stand-in, which says hello first. Stay: it does
	// not leave when its input ends.
	Standin, Stay bool
	// Checkpoint is where it writes the sandbox to, and then restores it from.
	Checkpoint string
}

func ownerProcess() {
	var order ownerOrder
	if err := json.Unmarshal([]byte(os.Getenv(ownerEnv)), &order); err != nil {
		panic(err)
	}
	o := order.Options
	d, err := oci.Open(oci.Options{Kind: o.Kind, Instance: o.Instance, Binary: o.Binary, Guest: o.Guest})
	if err != nil {
		panic(err)
	}
	fmt.Println("starting")
	s, err := d.Start(context.Background(), order.Class)
	if err != nil {
		panic(err)
	}
	r := bufio.NewReader(s.Stream())
	if order.Standin {
		if _, err := r.ReadString('\n'); err != nil {
			panic(err)
		}
	}
	if order.Stay {
		fmt.Fprintln(s.Stream(), "stay")
		if _, err := r.ReadString('\n'); err != nil {
			panic(err)
		}
	}
	if order.Checkpoint != "" {
		fmt.Println("checkpointing")
		if err := s.(sandbox.Checkpointer).Checkpoint(context.Background(), order.Checkpoint); err != nil {
			panic(err)
		}
		fmt.Println("restoring")
		if s, err = d.Restore(context.Background(), order.Class, order.Checkpoint, nil); err != nil {
			panic(err)
		}
	}
	fmt.Println(s.ID())
	select {}
}

// MustCrashedOwner starts a sandbox in a process that is then killed, and
// returns the sandbox's id.
func MustCrashedOwner(t testing.TB, o oci.Options, c sandbox.Class, stay bool) string {
	t.Helper()
	return crashedOwner(t, o, ownerOrder{Class: c, Standin: true, Stay: stay})
}

func crashedOwner(t testing.TB, o oci.Options, order ownerOrder) string {
	t.Helper()
	cmd := MustOwner(t, o, order)
	id, err := cmd.said.ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatalf("the owner told no id: %v", err)
	}
	return strings.TrimSpace(id)
}

// owner is a server process of the test's own.
type owner struct {
	*exec.Cmd
	said *bufio.Reader
}

// MustOwner starts such a process and returns when it begins to start its
// sandbox.
func MustOwner(t testing.TB, o oci.Options, order ownerOrder) owner {
	t.Helper()
	order.Options.Kind, order.Options.Instance, order.Options.Binary, order.Options.Guest = o.Kind, o.Instance, o.Binary, o.Guest
	raw, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ownerEnv+"="+string(raw))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	if line, err := said.ReadString('\n'); err != nil || line != "starting\n" {
		t.Fatalf("the owner said %q, %v", line, err)
	}
	return owner{Cmd: cmd, said: said}
}

// TestCrashedOwner is F05, F44 and F49 for the driver: the next process of the
// instance finds what a killed one left, and ends it completely.
func TestCrashedOwner(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		c := class(t)
		other := options(t, kind)
		neighbour := MustStart(t, MustOpen(t, other), c)

		t.Run("its sandboxes are listed and reaped", func(t *testing.T) {
			o := options(t, kind)
			id := MustCrashedOwner(t, o, c, true)
			d := MustOpen(t, o)
			h := MustHandle(t, d, id)
			if h.State != sandbox.StateRunning || h.Owned || h.Instance != o.Instance || h.Driver != string(kind) || h.Class != c || h.StartedAt.IsZero() {
				t.Errorf("listed as %+v, want running, not owned, of its class", h)
			}
			if _, err := d.Attach(t.Context(), id); !workbench.HasCode(err, workbench.CodeNotBuilt) {
				t.Errorf("attach: got %v, want not_built", err)
			}
			mine := MustStart(t, d, c)
			got, err := d.Reap(t.Context())
			if err != nil || len(got.Killed) != 1 || got.Killed[0] != id || len(got.Left) != 0 {
				t.Errorf("reaped %+v, %v; want %s alone", got, err, id)
			}
			sandboxtest.MustNothingLeft(t, id, 0)
			if mine.Ask("ping") != "pong" {
				t.Error("the reaper hurt a sandbox of its own process")
			}
		})
		t.Run("one of them can be killed by id", func(t *testing.T) {
			o := options(t, kind)
			id := MustCrashedOwner(t, o, c, true)
			d := MustOpen(t, o)
			if err := d.Kill(t.Context(), id); err != nil {
				t.Errorf("kill: %v", err)
			}
			sandboxtest.MustNothingLeft(t, id, 0)
		})
		t.Run("a guest whose host is gone leaves by itself", func(t *testing.T) {
			o := options(t, kind)
			id := MustCrashedOwner(t, o, c, false)
			d := MustOpen(t, o)
			deadline := time.Now().Add(30 * time.Second)
			for MustHandle(t, d, id).State != sandbox.StateEnded {
				if time.Now().After(deadline) {
					t.Fatal("it still runs 30 s after its host was killed")
				}
				time.Sleep(20 * time.Millisecond)
			}
			if got, err := d.Reap(t.Context()); err != nil || len(got.Removed) != 1 {
				t.Errorf("reaped %+v, %v; want what it left removed", got, err)
			}
			sandboxtest.MustNothingLeft(t, id, 0)
		})
		if neighbour.Ask("ping") != "pong" {
			t.Error("another instance's sandbox was hurt")
		}
	})
}

// TestChangedRuntime: an instance that now uses the other runtime reaps what the
// first one left, unless a process still uses that.
func TestChangedRuntime(t *testing.T) {
	c := class(t)
	before := options(t, oci.Runsc)
	id := MustCrashedOwner(t, before, c, true)
	after := before
	after.Kind, after.Binary = oci.Runc, runtimePath(t, oci.Runc)
	d := MustOpen(t, after)
	if got, err := d.Reap(t.Context()); err != nil || len(got.Killed) != 1 || got.Killed[0] != id {
		t.Errorf("reaped %+v, %v; want %s", got, err, id)
	}
	sandboxtest.MustNothingLeft(t, id, 0)

	other, err := oci.Open(before)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close(context.Background()) })
	g := MustStart(t, other, c)
	if got, err := d.Reap(t.Context()); err != nil || len(got.Killed)+len(got.Removed)+len(got.Left) != 0 {
		t.Errorf("reaped %+v, %v; want nothing: that driver is in use", got, err)
	}
	if g.Ask("ping") != "pong" {
		t.Error("the other driver's sandbox was hurt")
	}
}

// TestOwnerKilledWhileStarting is F04 and F05: whenever the server dies during a
// start, the next one finds all of what began.
func TestOwnerKilledWhileStarting(t *testing.T) {
	bothKinds(t, func(t *testing.T, kind oci.Kind) {
		c := class(t)
		o := options(t, kind)
		for after := 4 * time.Millisecond; after < 250*time.Millisecond; after = after * 3 / 2 {
			cmd := MustOwner(t, o, ownerOrder{Class: c, Standin: true, Stay: true})
			time.Sleep(after) // from the moment at which it begins to start the sandbox
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			d, err := oci.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := d.Reap(t.Context()); err != nil || len(got.Left) != 0 {
				t.Errorf("killed after %v: reaped %+v, %v", after, got, err)
			}
			if err := d.Close(t.Context()); err != nil {
				t.Errorf("close: %v", err)
			}
			sandboxtest.MustNothingLeft(t, o.Instance, 5*time.Second) // what the owner was running is killed with it, and may not be gone yet
		}
	})
}

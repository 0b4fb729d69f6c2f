package oci_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// MustScript makes a runtime of a shell script. $pidfile is where it should
// write a process id.
func MustScript(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runc")
	head := "#!/bin/bash\nif [ \"$1\" = --version ]; then echo 'runc version 1.5.3'; exit 0; fi\n" +
		"while [ $# -gt 1 ]; do if [ \"$1\" = --pid-file ]; then pidfile=$2; fi; shift; done\n"
	if err := os.WriteFile(path, []byte(head+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRuntimeFaults is F46: whatever the runtime does, a start fails in bounded
// time, with a typed error, and leaves nothing.
func TestRuntimeFaults(t *testing.T) {
	bystander := exec.Command("sleep", "300")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })

	cases := []struct {
		name, script string
		cause        string // found in the private cause
		hangs        bool
	}{
		{"crashes", "echo 'cannot do it' >&2; exit 3", "cannot do it", false},
		{"is killed", "kill -9 $$", "killed", false},
		{"prints garbage and succeeds", "head -c 10000 /dev/urandom; exit 0", "wrote no process id", false},
		{"succeeds without starting", "exit 0", "wrote no process id", false},
		{"writes no number", "echo nonsense > $pidfile; exit 0", "as the process id", false},
		{"names init", "echo 1 > $pidfile; exit 0", "as the process id", false},
		{"names a dead process", "sh -c 'echo $$' > $pidfile; exit 0", "process", false},
		{"names a process of somebody else", fmt.Sprintf("echo %d > $pidfile; exit 0", bystander.Process.Pid), "not in the sandbox's control group", false},
		{"hangs", "sleep 300", "did not end in time", true},
		{"hangs with children of its own", "sleep 300 & sleep 301 & wait", "did not end in time", true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := options(t, oci.Runc)
			o.Binary = MustScript(t, c.script)
			if c.hangs {
				o.StartTimeout = 700 * time.Millisecond
			}
			d := MustOpen(t, o)
			began := time.Now()
			s, err := d.Start(t.Context(), class(t))
			if s != nil || !workbench.HasCode(err, workbench.CodeSandboxStart) {
				t.Errorf("got %v, %v; want no sandbox and sandbox_start_failed", s, err)
			}
			if err != nil && !strings.Contains(err.Error(), c.cause) {
				t.Errorf("the cause of %q does not say %q", err, c.cause)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			if left, err := d.List(t.Context()); err != nil || len(left) != 0 {
				t.Errorf("listed %v, %v; want nothing", left, err)
			}
		})
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the bystander was killed: %v", err)
	}
}

func TestRuntimeUnusable(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		o := options(t, oci.Runsc)
		o.Binary = "/nonexistent/runsc"
		if _, err := oci.Open(o); !workbench.HasCode(err, workbench.CodeRuntimeUnavailable) {
			t.Errorf("got %v, want runtime_unavailable", err)
		}
	})
	t.Run("not a program", func(t *testing.T) {
		o := options(t, oci.Runc)
		o.Binary = filepath.Join(t.TempDir(), "runc")
		if err := os.WriteFile(o.Binary, []byte("\x7fELF garbage"), 0o755); err != nil {
			t.Fatal(err)
		}
		d := MustOpen(t, o)
		if _, err := d.Info(t.Context()); !workbench.HasCode(err, workbench.CodeRuntimeUnavailable) {
			t.Errorf("Info: got %v, want runtime_unavailable", err)
		}
		if _, err := d.Start(t.Context(), class(t)); !workbench.HasCode(err, workbench.CodeRuntimeUnavailable) {
			t.Errorf("Start: got %v, want runtime_unavailable", err)
		}
	})
	t.Run("another program", func(t *testing.T) {
		o := options(t, oci.Runsc)
		o.Binary = "/bin/true"
		if _, err := MustOpen(t, o).Info(t.Context()); !workbench.HasCode(err, workbench.CodeRuntimeUnavailable) {
			t.Errorf("got %v, want runtime_unavailable", err)
		}
	})
	t.Run("a version that hangs", func(t *testing.T) {
		o := options(t, oci.Runc)
		o.Binary = filepath.Join(t.TempDir(), "runc")
		if err := os.WriteFile(o.Binary, []byte("#!/bin/sh\nsleep 300\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		d := MustOpen(t, o)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := d.Info(ctx); !workbench.HasCode(err, workbench.CodeRuntimeUnavailable) {
			t.Errorf("got %v, want runtime_unavailable", err)
		}
	})
	t.Run("the instance is held already", func(t *testing.T) {
		o := options(t, oci.Runc)
		MustOpen(t, o)
		if _, err := oci.Open(o); !workbench.HasCode(err, workbench.CodeRuntimeUnavailable) {
			t.Errorf("got %v, want runtime_unavailable", err)
		}
	})
}

func TestGivenUp(t *testing.T) {
	o := options(t, oci.Runc)
	o.Binary = MustScript(t, "sleep 300")
	d := MustOpen(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := d.Start(ctx, class(t)); !workbench.HasCode(err, workbench.CodeCancelled) {
		t.Errorf("got %v, want request_cancelled", err)
	}
	if left, err := d.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("listed %v, %v; want nothing", left, err)
	}
}

// TestBusyLeftover is F47: what cannot be removed is reported, kept on record
// and tried again.
func TestBusyLeftover(t *testing.T) {
	o := options(t, oci.Runc)
	d := MustOpen(t, o)
	s := MustStart(t, d, class(t))
	pinned := filepath.Join("/run/workbench", o.Instance, "runc", s.ID(), "pinned")
	if err := os.WriteFile(pinned, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	MustRun(t, "chattr", "+i", pinned)
	t.Cleanup(func() { _ = exec.Command("chattr", "-i", pinned).Run() })

	if err := s.Kill(t.Context()); !workbench.HasCode(err, workbench.CodeUnavailable) {
		t.Errorf("Kill: got %v, want unavailable", err)
	}
	got, err := d.Reap(t.Context())
	if err != nil || len(got.Left) != 1 || got.Left[0].Kind != "directory" || got.Left[0].Sandbox != s.ID() {
		t.Errorf("Reap: got %+v, %v; want one directory of %s left", got, err, s.ID())
	}
	listed, err := d.List(t.Context())
	if err != nil || len(listed) != 1 || listed[0].State != sandbox.StateEnded {
		t.Errorf("List: got %+v, %v; want one that ended", listed, err)
	}
	MustRun(t, "chattr", "-i", pinned)
	if got, err = d.Reap(t.Context()); err != nil || len(got.Left) != 0 || len(got.Removed) != 1 {
		t.Errorf("Reap: got %+v, %v; want one removed and nothing left", got, err)
	}
	sandboxtest.MustNothingLeft(t, s.ID(), 0)
}

func MustRun(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// TestRefusedRoots is H68: a root with a planted link is not given to a runtime.
func TestRefusedRoots(t *testing.T) {
	d := MustOpen(t, options(t, oci.Runc))
	refused := func(name string, spoil func(t *testing.T, root string)) {
		t.Run(name, func(t *testing.T) {
			c := class(t)
			spoil(t, c.Image.Rootfs)
			if _, err := d.Start(t.Context(), c); !workbench.HasCode(err, workbench.CodeImageInvalid) {
				t.Errorf("got %v, want image_invalid", err)
			}
		})
	}
	for _, name := range []string{"dev", "proc", "run", "tmp", "mnt", "mnt/files", "opt", "opt/workbench", "opt/workbench/bin", "sys", "etc"} {
		refused("/"+name+" is a link", func(t *testing.T, root string) {
			if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
			MustSymlink(t, "/etc", filepath.Join(root, name))
		})
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "console", "pts", "shm", "mqueue"} {
		refused("/dev/"+name+" is a link", func(t *testing.T, root string) {
			MustSymlink(t, "/proc/sysrq-trigger", filepath.Join(root, "dev", name))
		})
	}
	refused("a place to mount on is missing", func(t *testing.T, root string) {
		if err := os.Remove(filepath.Join(root, "opt/workbench/packages")); err != nil {
			t.Fatal(err)
		}
	})
	refused("others may write to the root", func(t *testing.T, root string) {
		if err := os.Chmod(root, 0o777); err != nil {
			t.Fatal(err)
		}
	})
	refused("the root belongs to somebody else", func(t *testing.T, root string) {
		if err := os.Chown(root, 1000, 1000); err != nil {
			t.Fatal(err)
		}
	})
}

func MustSymlink(t testing.TB, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func TestRefusedClasses(t *testing.T) {
	d := MustOpen(t, options(t, oci.Runc))
	good := class(t)
	for name, spoil := range map[string]func(c *sandbox.Class){
		"no cpu":       func(c *sandbox.Class) { c.CPUs = 0 },
		"tiny memory":  func(c *sandbox.Class) { c.MemoryBytes = 1 << 20 },
		"no workspace": func(c *sandbox.Class) { c.WorkspaceBytes = 0 },
		"no inodes":    func(c *sandbox.Class) { c.WorkspaceInodes = 0 },
		"no tasks":     func(c *sandbox.Class) { c.Tasks = 0 },
		"image path":   func(c *sandbox.Class) { c.Image.ID = "../x" },
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			spoil(&c)
			if _, err := d.Start(t.Context(), c); !workbench.HasCode(err, workbench.CodeSizeUnavailable) {
				t.Errorf("got %v, want size_unavailable", err)
			}
		})
	}
}

package oci_test

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// With runc the kernel bounds user code's memory beside the guest's watchdog:
// code that is faster than that gets no further than the bound.
func TestCodeHasABoundOfItsOwn(t *testing.T) {
	env := sandboxtest.MustEnv(t)
	d := MustOpen(t, oci.Options{Kind: oci.Runc, Instance: sandboxtest.NewInstance(), Binary: env.Runc, Guest: env.Guest, Log: slog.New(slog.DiscardHandler)})
	class := sandboxtest.Standard(env.Image)
	box := sandboxtest.MustBind(t, d, class)

	t.Run("everything that code starts is in it", func(t *testing.T) {
		marker := "code-" + box.Sandbox.ID()
		done := make(chan sandboxtest.Outcome, 1)
		go func() {
			done <- box.MustPython(t, `
import os, subprocess, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        os.execv('/bin/sh', ['`+marker+`', '-c', 'sleep 50; true'])
end = time.monotonic() + 50
while not os.path.exists('seen') and time.monotonic() < end: time.sleep(0.02)
`)
		}()
		groups := map[string]int{}
		for end := time.Now().Add(30 * time.Second); groups["code"] < 6 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			groups = memoryGroups(marker)
		}
		box.MustPrint(t, "open('seen', 'w').close()")
		if out := <-done; out.ExitCode != 0 {
			t.Fatalf("the program ended with %d: %s", out.ExitCode, out.Stderr)
		}
		if groups["code"] < 6 || len(groups) != 1 {
			t.Errorf("processes by control group: %v, want all of them in code", groups)
		}
	})
	t.Run("it holds what outruns the watchdog", func(t *testing.T) {
		for range 4 {
			// What the one before has cost is not this one's.
			box.MustPrint(t, "import time\ntime.sleep(0.05)\nprint(1)")
			out := box.MustPython(t, "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = b'\\x01' * 400_000_000\n        time.sleep(9)\ntime.sleep(9)")
			if out.ExitCode == 0 && out.Signal == "" {
				t.Error("3 GB fit into the sandbox")
			}
		}
		stats, err := box.Sandbox.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The class's memory and workspace, 32 MiB for the kernel, 64 MiB for the guest.
		if most := class.MemoryBytes + class.WorkspaceBytes + 96<<20; stats.MemoryPeakBytes > most {
			t.Errorf("the sandbox has held %d MiB, at most %d are allowed", stats.MemoryPeakBytes>>20, most>>20)
		}
	})
	t.Run("scratch space counts as memory", func(t *testing.T) {
		out := box.MustPython(t, "open('/tmp/x', 'wb').write(b'\\x01' * (60 << 20))\nx = b'\\x01' * (215 << 20)\nimport time\ntime.sleep(3)")
		if out.Reason != workbench.ReasonOutOfMemory {
			t.Errorf("60 MiB in /tmp and 215 MiB of memory ended as %q, exit %d", out.Reason, out.ExitCode)
		}
		box.MustPrint(t, "import os\nos.unlink('/tmp/x')\nprint(1)")
	})
	t.Run("the workspace does not", func(t *testing.T) {
		got := box.MustPrint(t, "open('x', 'wb').write(b'\\x01' * (60 << 20))\nx = b'\\x01' * (200 << 20)\nimport time, os\ntime.sleep(0.3)\nos.unlink('x')\nprint('fits')")
		if got != "fits" {
			t.Errorf("printed %q", got)
		}
	})
	if exit := box.Sandbox.Exit(); exit.Reason != sandbox.ExitNone {
		t.Errorf("the sandbox has ended: %+v", exit)
	}
}

// memoryGroups counts the host's processes of that name by the last element of
// their memory control group.
func memoryGroups(argv0 string) map[string]int {
	groups := map[string]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if !strings.HasPrefix(string(cmdline), argv0+"\x00") {
			continue
		}
		raw, _ := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		for line := range strings.SplitSeq(strings.TrimSpace(string(raw)), "\n") {
			f := strings.SplitN(line, ":", 3)
			if len(f) == 3 && (f[1] == "memory" || f[0] == "0" && strings.Contains(f[2], "/code")) {
				groups[f[2][strings.LastIndexByte(f[2], '/')+1:]]++
			}
		}
	}
	return groups
}

func TestReleaseAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"6.18.44": true, "5.16.0-rc1": true, "5.16": true, "10.0": true, "5.15.200-generic": false, "4.19.0": false, "": false, "six": false, "5": false,
	} {
		if got := oci.ReleaseAtLeast(release, 5, 16); got != want {
			t.Errorf("%q: got %v", release, got)
		}
	}
}

package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// killSandboxes kills every runtime process of the world's instance, as the
// kernel's memory killer or an operator might.
func killSandboxes(t *testing.T, w *world) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, "data", "instance"))
	if err != nil {
		t.Fatal(err)
	}
	instance := []byte(strings.TrimSpace(string(raw)))
	killed := 0
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, proc := range procs {
		cmdline, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err != nil || !bytes.Contains(cmdline, instance) || !bytes.HasPrefix(cmdline, []byte("runsc-sandbox")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil {
			t.Fatal(err)
		}
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed == 0 {
		t.Fatal("no sandbox process was found")
	}
}

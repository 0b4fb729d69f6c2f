package faults_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustInstance is the id that everything of the world's servers carries on the
// host.
func (w *world) mustInstance() string {
	w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, "data", "instance"))
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// processes are those of the instance's sandboxes.
func processes(instance string) (pids []int) {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range procs {
		line, _ := os.ReadFile(path)
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && bytes.Contains(line, []byte(instance)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// reboot ends the server and everything it started, and takes away what a host
// does not keep over a restart: run-time directories and control groups.
func (w *world) reboot() {
	w.t.Helper()
	w.kill()
	instance := w.mustInstance()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := processes(instance)
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("processes %v do not end", left)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.Contains(fields[4], instance) {
			err = errors.Join(err, unix.Unmount(fields[4], unix.MNT_DETACH))
		}
	}
	err = errors.Join(err, os.RemoveAll(filepath.Join("/run/workbench", instance)))
	for range 4 { // a group goes once those in it have gone
		_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.Contains(path, instance) {
				_ = os.Remove(path)
			}
			return nil
		})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.mustStart("")
}

// sandboxesOf are the directories and the control groups of the instance's
// sandboxes.
func sandboxesOf(instance string) (paths []string) {
	for _, root := range []string{"/run/workbench", "/sys/fs/cgroup"} {
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "sbx_") && strings.Contains(path, instance) {
				paths = append(paths, path)
			}
			return nil
		})
	}
	return paths
}

// mustReplace puts the contents of a backup into the place of a data directory's.
func (w *world) mustReplace(data, backup string) {
	w.t.Helper()
	entries, err := os.ReadDir(data)
	for _, e := range entries {
		if e.Name() != "memory" { // where live memory is: a file system of its own, never a part of a backup
			err = errors.Join(err, os.RemoveAll(filepath.Join(data, e.Name())))
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.mustCopy(backup, data)
}

// mustCopy copies what is in a directory, with owners and modes.
func (w *world) mustCopy(from, to string) {
	w.t.Helper()
	if out, err := exec.Command("cp", "-a", "-T", from, to).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
}

// mustSession is a session, with a run in it that has succeeded.
func (w *world) mustSession(ctx context.Context, key, code string) (session, run string) {
	w.t.Helper()
	c := w.client(w.key)
	s, err := c.CreateAgentSession(ctx, sdk.CreateSession{})
	if err != nil {
		w.t.Fatal(err)
	}
	if run, err = w.submit(ctx, c, s.ID, key, code); err != nil {
		w.t.Fatal(err)
	}
	if r, err := w.wait(ctx, c, run); err != nil || r.Status != workbench.StatusSucceeded {
		w.t.Fatalf("%s is %s (%s), %v", key, r.Status, r.Reason, err)
	}
	return s.ID, run
}

// mustRunning submits a run and waits until it says something.
func (w *world) mustRunning(ctx context.Context, session, key string) string {
	w.t.Helper()
	c := w.client(w.key)
	run, err := w.submit(ctx, c, session, key, "echo begun; sleep 60")
	if err != nil {
		w.t.Fatal(err)
	}
	for e, err := range c.Events(ctx, run, 0) {
		if err != nil {
			w.t.Fatal(err)
		}
		if e.Kind == workbench.LogOutput {
			return run
		}
	}
	w.t.Fatal("the run says nothing")
	return ""
}

// wantFile finds "kept" in the file f of a session, from outside and in a run.
func (w *world) wantFile(ctx context.Context, session string) {
	w.t.Helper()
	const want = "kept\n"
	c := w.client(w.key)
	b, err := again(ctx, func() ([]byte, error) { return c.ReadWorkspaceFile(ctx, session, "f") })
	if err != nil || string(b) != want {
		w.t.Errorf("the file reads %q, %v; want %q", b, err, want)
	}
	run, err := w.submit(ctx, c, session, "after-"+session, "cat f")
	if err != nil {
		w.t.Fatal(err)
	}
	if r, err := w.wait(ctx, c, run); err != nil || r.Status != workbench.StatusSucceeded || r.Output() != want {
		w.t.Errorf("the next run is %s (%s) and says %q, %v; want %q", r.Status, r.Reason, r.Output(), err, want)
	}
}

// The host restarts: what was running is unknown, what was idle is there.
func TestReboot(t *testing.T) {
	t.Parallel()
	w := mustWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w.mustKey(ctx)
	idle, _ := w.mustSession(ctx, "idle", "echo kept > f")
	busy, _ := w.mustSession(ctx, "busy", "echo kept > f")
	run := w.mustRunning(ctx, busy, "lost")
	w.reboot()
	r, err := w.wait(ctx, w.client(w.key), run)
	if err != nil || r.Status != workbench.StatusUnknown || r.Reason != workbench.ReasonServerLost || r.Output() != "begun\n" {
		t.Errorf("what ran is %s (%s) and said %q, %v", r.Status, r.Reason, r.Output(), err)
	}
	w.wantFile(ctx, idle)
	w.wantFile(ctx, busy)
	w.check(ctx)
	w.closeAll(ctx)
	w.stop()
	w.checkNothingLeft()
	w.checkDirectories()
	w.mustStart("") // for the cleanup
}

// A backup is restored that is older than a session: the server does not know
// the session's run, ends its sandbox, and takes its key for a new run.
func TestRestoredBackup(t *testing.T) {
	t.Parallel()
	w := mustWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w.mustKey(ctx)
	old, before := w.mustSession(ctx, "before", "echo kept > f; echo old")
	w.stop()
	data, backup := filepath.Join(w.dir, "data"), filepath.Join(w.dir, "backup")
	w.mustCopy(data, backup)
	w.mustStart("")
	young, after := w.mustSession(ctx, "after", "echo young")
	lost := w.mustRunning(ctx, young, "lost")
	w.kill()
	left := sandboxesOf(w.mustInstance())
	if len(left) == 0 {
		t.Fatal("nothing of a sandbox has outlived the server: the check below would pass vacuously")
	}
	w.mustReplace(data, backup)
	w.mustStart("")
	for _, path := range left {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("P7: %s is left of a run that nobody knows", path)
			}
		}
	}
	c := w.client(w.key)
	for _, id := range []string{after, lost} {
		if _, err := c.GetRun(ctx, id, 0); !workbench.HasCode(err, workbench.CodeNotFound) {
			t.Errorf("a run after the backup: %v, want not_found", err)
		}
		delete(w.runs, id)
	}
	if _, err := c.AgentSession(ctx, young); !workbench.HasCode(err, workbench.CodeNotFound) {
		t.Errorf("a session after the backup: %v, want not_found", err)
	}
	if r, err := w.wait(ctx, c, before); err != nil || r.Status != workbench.StatusSucceeded || r.Output() != "old\n" {
		t.Errorf("the run before the backup is %s and said %q, %v", r.Status, r.Output(), err)
	}
	w.wantFile(ctx, old)
	got, err := c.CreateSessionRun(ctx, old, sdk.CreateRun{Language: workbench.Bash, Code: "echo again", IdempotencyKey: "after"})
	if err != nil || got.ID == after {
		t.Fatalf("the key of a run that is not known gives %q, %v", got.ID, err)
	}
	if r, err := c.WaitForSessionRun(ctx, got.ID); err != nil || r.Output() != "again\n" {
		t.Errorf("its run said %q, %v", r.Output(), err)
	}
	w.closeAll(ctx)
	w.stop()
	w.checkNothingLeft()
	w.checkDirectories()
	w.mustStart("") // for the cleanup
}

// Clients use up every descriptor of the server. Once they are gone it accepts
// again, and runs go on.
func TestDescriptorsUsedUp(t *testing.T) {
	t.Parallel()
	w := mustWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w.mustKey(ctx)
	session, _ := w.mustSession(ctx, "before", "echo kept > f")
	pid := w.proc.Process.Pid
	open := func() int {
		fds, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	limit := open() + 10
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	var held []net.Conn
	release := func() {
		for _, c := range held {
			_ = c.Close()
		}
		held = nil
	}
	defer release()
	for range 30 {
		c, err := net.DialTimeout("tcp", w.port, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	for deadline := time.Now().Add(20 * time.Second); open() < limit-1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the server has %d descriptors open, of %d that it may", open(), limit)
		}
	}
	short, stop := context.WithTimeout(ctx, 500*time.Millisecond)
	if err := w.client(w.key).Ready(short); err == nil {
		t.Error("it answers a new connection without a descriptor for it")
	}
	stop()
	release()
	if _, err := again(ctx, func() (workbench.Session, error) { return w.client(w.key).AgentSession(ctx, session) }); err != nil {
		t.Fatalf("it does not accept again: %v\n%s", err, w.log())
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	w.wantFile(ctx, session)
	if w.started() != 1 {
		t.Errorf("the server was started %d times", w.started())
	}
	w.check(ctx)
}

package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runtimeEnv is the whole environment of a runtime process: nothing of the
// server's own reaches it.
var runtimeEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}

// closeInherited marks every descriptor of this process close-on-exec, so that
// one which the server itself inherited does not end up inside a sandbox
// (CVE-2024-21626 and kin). Those passed to a child on purpose are duplicated
// by exec afterwards.
func closeInherited() error {
	return unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
}

// invocation is one run of the runtime's command.
type invocation struct {
	binary string
	args   []string
	dir    string
	// stdin, stdout and stderr become the sandbox's own when the command
	// starts one, so they are files and nothing copies from them.
	stdin, stdout, stderr *os.File
	// passed become the descriptors from 3 on.
	passed []*os.File
}

// run runs the command to its end, or kills it with everything in its process
// group when ctx ends. It does not outlive this process.
func (in invocation) run(ctx context.Context) error {
	if err := closeInherited(); err != nil {
		return fmt.Errorf("mark descriptors close-on-exec: %w", err)
	}
	// The death signal is sent when the thread that started the child ends, so
	// the goroutine keeps its thread until the child is gone.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.CommandContext(ctx, in.binary, in.args...)
	// The child is not collected before Wait returns, so its group id is still
	// its own.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = runtimeEnv
	cmd.Dir = in.dir
	if in.stdin != nil {
		cmd.Stdin = in.stdin
	}
	if in.stdout != nil {
		cmd.Stdout = in.stdout
	}
	if in.stderr != nil {
		cmd.Stderr = in.stderr
	}
	cmd.ExtraFiles = in.passed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	err := cmd.Wait()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s did not end in time: %w", filepath.Base(in.binary), context.Cause(ctx))
	}
	return err
}

// output runs a command that only prints, and returns at most 64 KiB of what
// it printed.
func output(ctx context.Context, binary string, args ...string) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Close() }()
	t := newTail(64 << 10)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		t.readFrom(r)
	}()
	err = invocation{binary: binary, args: args, stdout: w, stderr: w}.run(ctx)
	_ = w.Close()
	// A process that the command left behind may hold the pipe open.
	_ = r.SetReadDeadline(time.Now().Add(time.Second))
	<-drained
	return t.String(), err
}

// tail keeps the last bytes written to it.
type tail struct {
	mu      sync.Mutex
	buf     []byte
	max     int
	dropped bool
}

func newTail(limit int) *tail { return &tail{max: limit} }

// Write never fails and never blocks.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if n >= t.max {
		t.dropped = t.dropped || len(t.buf) > 0 || n > t.max
		t.buf = append(t.buf[:0], p[n-t.max:]...)
		return n, nil
	}
	if over := len(t.buf) + n - t.max; over > 0 {
		t.dropped = true
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

// readFrom copies until the file ends. A sandbox that prints without pause
// costs the reader's time and no memory.
func (t *tail) readFrom(f *os.File) {
	buf := make([]byte, 4096)
	for {
		n, err := f.Read(buf)
		_, _ = t.Write(buf[:n])
		if err != nil {
			return
		}
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := string(bytes.ToValidUTF8(t.buf, []byte("\uFFFD")))
	if t.dropped {
		return "…" + s
	}
	return s
}

// exitText says how a command ended, for a private cause.
func exitText(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.String()
	}
	return err.Error()
}

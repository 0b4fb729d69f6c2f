package oci

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

var _ sandbox.Sandbox = (*live)(nil)

// stderrTail bounds what is kept of a sandbox's log lines, in bytes.
const stderrTail = 16 << 10

// live is a sandbox that this process started.
type live struct {
	d        *Driver
	id       string
	class    sandbox.Class
	image    sandbox.Image // the class's, with its paths resolved
	idRange  uint32
	from     *image // what it is restored from as it starts; nil for another
	vessel   bool   // nothing runs in it yet; guarded by mu
	likeness string // see Driver.likeness
	group    *cgroup.Group
	init     *os.File // pidfd of the first process

	stream    *stream
	stderrEnd *os.File // the host's end of the sandbox's stderr
	stderr    *tail
	drained   chan struct{} // closed when stderr has ended

	started chan struct{} // closed when the first process was found
	done    chan struct{}

	checkpoints sync.Mutex // held by Checkpoint

	mu     sync.Mutex
	killed bool // Kill was called before it ended
	last   sandbox.Stats
	exit   sandbox.Exit
}

func newLive(d *Driver, id string, class sandbox.Class, idRange uint32) *live {
	return &live{
		d: d, id: id, class: class, idRange: idRange,
		stream: &stream{}, stderr: newTail(stderrTail),
		drained: make(chan struct{}), started: make(chan struct{}), done: make(chan struct{}),
	}
}

// stream is the guest protocol's two pipes.
type stream struct {
	in, out *os.File
}

func (s *stream) Read(p []byte) (int, error)  { return s.out.Read(p) }
func (s *stream) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close closes both directions. It may be called more than once.
func (s *stream) Close() error {
	var errs []error
	for _, f := range []*os.File{s.in, s.out} {
		if f == nil {
			continue
		}
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

var _ io.ReadWriteCloser = (*stream)(nil)

// sandboxEnds are the descriptors that the runtime hands to the sandbox.
type sandboxEnds struct{ stdin, stdout, stderr *os.File }

func (e *sandboxEnds) close() {
	for _, f := range []*os.File{e.stdin, e.stdout, e.stderr} {
		if f != nil {
			_ = f.Close() // a second close changes nothing
		}
	}
}

// pipeSize is what the guest protocol's pipes hold, if the host lets them: files
// pass through them, and each time one is full or empty costs two hand-overs.
const pipeSize = 256 << 10

// openPipes makes the sandbox's three pipes and begins to read its stderr.
func (l *live) openPipes() (*sandboxEnds, error) {
	ends := &sandboxEnds{}
	var err error
	if ends.stdin, l.stream.in, err = os.Pipe(); err != nil {
		return nil, err
	}
	if l.stream.out, ends.stdout, err = os.Pipe(); err != nil {
		ends.close()
		return nil, err
	}
	if l.stderrEnd, ends.stderr, err = os.Pipe(); err != nil {
		ends.close()
		return nil, err
	}
	for _, f := range []*os.File{l.stream.in, l.stream.out} {
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
		}
	}
	l.d.workers.Go(func() {
		defer close(l.drained)
		l.stderr.readFrom(l.stderrEnd)
		_ = l.stderrEnd.Close()
	})
	return ends, nil
}

// drainTimeout bounds the reading of what a sandbox said last. Whoever could
// still write is dead, so its end comes; a deadline that passes before loses what
// is in the pipe.
const drainTimeout = 5 * time.Second

// drainStderr waits for the end of stderr, at most for d, and ends it.
func (l *live) drainStderr(d time.Duration) {
	if l.stderrEnd == nil {
		return
	}
	_ = l.stderrEnd.SetReadDeadline(time.Now().Add(d))
	<-l.drained
}

// watch waits for the end of the first process, in a goroutine of the driver.
func (l *live) watch() {
	close(l.started)
	l.d.workers.Go(func() {
		_ = waitReadable(l.init)
		l.ended()
	})
}

// waitReadable waits for a pidfd to say that its process ended. The runtime's
// poller waits, so it costs no thread.
func waitReadable(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
}

// ended records how the sandbox ended and closes Done.
func (l *live) ended() {
	status := l.reap()
	// Others of the group outlive it for a moment: gVisor's file server, or what
	// a runtime failure left. Nothing of them is wanted any more.
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	if err := l.group.Kill(ctx); err != nil {
		l.d.o.Log.Error("a sandbox ended and left processes", "sandbox", l.id, "error", err)
	}
	stats := l.measure()
	atBound := stats.OOMKills - l.group.InnerOOMKills(codeGroup) // of what is not user code
	l.drainStderr(drainTimeout)
	panicked := strings.TrimSpace(tailOf(l.d.site.layout(l.id).panicLog()))

	l.mu.Lock()
	exit := sandbox.Exit{At: l.d.o.Clock().UTC(), Stderr: l.stderr.String(), Last: stats}
	switch {
	case atBound > 0 && (l.d.o.Kind == Runsc || !l.killed):
		exit.Reason, exit.Detail = sandbox.ExitOutOfMemory, "the sandbox met the host's bound on its memory"
	case l.killed:
		exit.Reason = sandbox.ExitKilled
	case panicked != "":
		exit.Reason, exit.Detail = sandbox.ExitRuntimeFailure, panicked
	case status.signalled:
		exit.Reason, exit.Detail = sandbox.ExitRuntimeFailure, "the first process was ended by "+status.text
	default:
		exit.Reason, exit.Detail = sandbox.ExitGuestLeft, status.text
	}
	l.exit = exit
	l.mu.Unlock()
	_ = l.init.Close()
	close(l.done)
}

// status is what could be learned of the first process's end.
type status struct {
	known, signalled bool
	text             string
}

// reap collects the first process if it has become this process's child, as in
// a container whose first process is the server. Elsewhere the host's init
// collects it, and how it ended is not told.
func (l *live) reap() status {
	var info unix.Siginfo
	var s status
	conn, err := l.init.SyscallConn()
	if err != nil {
		return s
	}
	_ = conn.Control(func(fd uintptr) {
		if unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG, nil) != nil {
			return
		}
		s.known = true
		const dumped, killed = 3, 2 // CLD_DUMPED, CLD_KILLED
		s.signalled = info.Code == killed || info.Code == dumped
	})
	return s
}

// abandon gives up a sandbox that never ran.
func (l *live) abandon() {
	_ = l.stream.Close()
	l.drainStderr(0)
	if l.init != nil {
		_ = l.init.Close()
	}
	l.mu.Lock()
	l.exit = sandbox.Exit{Reason: sandbox.ExitRuntimeFailure, At: l.d.o.Clock().UTC(), Stderr: l.stderr.String()}
	l.mu.Unlock()
	close(l.done)
}

// measure reads the group's counters and keeps them.
func (l *live) measure() sandbox.Stats {
	g := l.group.Stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.MemoryBytes < 0 && g.Tasks < 0 {
		return l.last // the group is gone
	}
	l.last = sandbox.Stats{
		CPU: g.CPU, MemoryBytes: g.MemoryBytes, MemoryPeakBytes: g.MemoryPeakBytes,
		MemoryLimit: g.MemoryLimit, OOMKills: g.OOMKills, Tasks: g.Tasks,
	}
	return l.last
}

// release lets go of the sandbox's pipes and ends its goroutines, also when a
// process of it could not be ended.
func (l *live) release() {
	_ = l.stream.Close()
	if l.stderrEnd != nil {
		_ = l.stderrEnd.SetReadDeadline(time.Now())
	}
	if l.init != nil {
		_ = l.init.SetReadDeadline(time.Now())
	}
}

// ID implements sandbox.Sandbox.
func (l *live) ID() string { return l.id }

// Class implements sandbox.Sandbox.
func (l *live) Class() sandbox.Class { return l.class }

// Stream implements sandbox.Sandbox.
func (l *live) Stream() io.ReadWriteCloser { return l.stream }

// Done implements sandbox.Sandbox.
func (l *live) Done() <-chan struct{} { return l.done }

// Exit implements sandbox.Sandbox.
func (l *live) Exit() sandbox.Exit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.exit
}

// Stats implements sandbox.Sandbox.
func (l *live) Stats(context.Context) (sandbox.Stats, error) { return l.measure(), nil }

// Pause implements sandbox.Sandbox. The host's freezer stops everything of the
// sandbox, also its kernel: nothing inside can resist or notice.
func (l *live) Pause(ctx context.Context) error {
	return l.freezing(ctx, l.group.Freeze, "the sandbox could not be paused")
}

// Resume implements sandbox.Sandbox.
func (l *live) Resume(ctx context.Context) error {
	return l.freezing(ctx, l.group.Thaw, "the sandbox could not be resumed")
}

func (l *live) freezing(ctx context.Context, do func(context.Context) error, failed string) error {
	lost := workbench.E(workbench.CodeSandboxLost, "the sandbox has ended")
	select {
	case <-l.done:
		return lost
	default:
	}
	if err := do(ctx); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return lost.Caused(err)
		}
		return workbench.E(workbench.CodeInternal, "%s", failed).Caused(err)
	}
	return nil
}

// Kill implements sandbox.Sandbox.
func (l *live) Kill(ctx context.Context) error { return l.d.Kill(ctx, l.id) }

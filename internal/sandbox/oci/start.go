package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// Start implements sandbox.Driver.
func (d *Driver) Start(ctx context.Context, class sandbox.Class) (sandbox.Sandbox, error) {
	return d.launch(ctx, class, nil, false)
}

// launch starts a sandbox, as a new one, as what a checkpoint holds, or as a
// vessel.
func (d *Driver) launch(ctx context.Context, class sandbox.Class, from *image, vessel bool) (sandbox.Sandbox, error) {
	if err := checkClass(class); err != nil {
		return nil, workbench.E(workbench.CodeSizeUnavailable, "this size cannot be started").Caused(err)
	}
	img, err := usableImage(class.Image)
	if d.o.Weaken != nil && d.o.Weaken.AnyImage {
		img, err = class.Image, nil
	}
	if err != nil {
		return nil, err
	}
	if d.o.Kind == Runc {
		if err := checkReachable(img.Rootfs); err != nil {
			return nil, err
		}
	}
	id := workbench.NewID(workbench.KindSandbox)
	d.mu.Lock()
	if err := d.isClosed(); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	idRange, err := d.takeRange(id)
	if err != nil {
		d.mu.Unlock()
		return nil, err
	}
	l := newLive(d, id, class, idRange)
	l.image, l.from, l.vessel = img, from, vessel
	d.live[id] = l // before anything exists, so that a Reap leaves it alone
	d.starts.Add(1)
	d.mu.Unlock()
	defer d.starts.Done()

	startCtx, cancel := context.WithTimeout(ctx, d.o.StartTimeout)
	defer cancel()
	if err := d.start(startCtx, l); err != nil {
		// What began is ended even when the caller no longer waits.
		left := d.site.end(context.WithoutCancel(ctx), id)
		l.abandon()
		d.forget(id, left)
		if ctx.Err() != nil {
			return nil, workbench.E(workbench.CodeCancelled, "the start of a sandbox was given up").Caused(errors.Join(ctx.Err(), err))
		}
		var known *workbench.Error
		if errors.As(err, &known) {
			return nil, known
		}
		return nil, workbench.E(workbench.CodeSandboxStart, "the sandbox did not start").
			WithHint("try again; the server's log says why").Caused(err)
	}
	return l, nil
}

// start brings up one sandbox. Its caller removes what a failure leaves.
func (d *Driver) start(ctx context.Context, l *live) error {
	at := d.site.layout(l.id)
	if err := at.make(record{ID: l.id, Class: l.class, StartedAt: d.o.Clock().UTC(), IDRange: l.idRange}); err != nil {
		return fmt.Errorf("make the sandbox's directory: %w", err)
	}
	group, err := d.site.groups.Create(l.id, d.limits(l.class))
	if err != nil {
		return workbench.E(workbench.CodeRuntimeUnavailable, "this host's control groups could not be set").
			WithHint("the server must be able to make control groups and turn on the cpu, memory and pids controllers; under systemd: Delegate=yes").Caused(err)
	}
	l.group = group
	code, err := d.boundCode(l)
	if err != nil {
		return fmt.Errorf("make the control group of user code: %w", err)
	}
	if code != nil {
		defer func() { _ = code.Close() }()
	}
	spec := d.buildSpec(l)
	l.likeness = d.likeness(spec)
	if l.from != nil && l.from.Likeness != l.likeness {
		return notLike("made for another kind of sandbox")
	}
	config, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(at.config(), config, 0o600); err != nil {
		return err
	}
	outside, err := l.openPipes()
	if err != nil {
		return err
	}
	defer outside.close()
	lent := l.from != nil && l.lend()
	err = invocation{
		binary: d.o.Binary, args: d.o.Weaken.args(d.startArgs(at, l)), dir: at.dir,
		stdin: outside.stdin, stdout: outside.stdout, stderr: outside.stderr, passed: passed(code),
	}.run(ctx)
	outside.close()
	if err != nil {
		return d.explain(l, at, err)
	}
	if err := l.findInit(at); err != nil {
		return d.explain(l, at, fmt.Errorf("the runtime reported success: %w", err))
	}
	if lent {
		if err := l.takeBack(); err != nil {
			return err
		}
	}
	l.watch()
	return nil
}

// restoreCPUs is what a sandbox may use while it is restored.
const restoreCPUs = 4

// lend gives a sandbox more processors while it is restored, and reports whether
// they are to be taken back. gVisor loads with several threads. With a share of
// one CPU it would stand still for half of every period, and somebody waits for it.
// A host that bounds the server itself to less (version 1) refuses: then it takes
// that long.
func (l *live) lend() bool {
	return l.group.SetCPUs(max(l.class.CPUs, restoreCPUs)) == nil
}

func (l *live) takeBack() error {
	if err := l.group.SetCPUs(l.class.CPUs); err != nil {
		return fmt.Errorf("take processors back: %w", err)
	}
	return nil
}

// sameLikeness goes before the command of every sandbox that is restored: what is
// compared is likeness. The host ids of the mapping, which gVisor would compare
// too, are another range each time.
const sameLikeness = "--restore-spec-validation=warning"

// startArgs is the runtime's command line: make, start and leave.
func (d *Driver) startArgs(at layout, l *live) []string {
	command := []string{"run", "--detach"}
	switch {
	case l.from != nil:
		command = []string{sameLikeness, "restore", "--image-path", l.from.dir, "--detach"}
	case l.vessel:
		command = []string{sameLikeness, "create"}
	}
	command = append(command, "--bundle", at.bundle(), "--pid-file", at.pidFile())
	if d.boundsCode() {
		command = append(command, "--preserve-fds", "3")
	}
	return append(append(d.flags(at), command...), containerID)
}

// flags are the runtime's options before its command.
func (d *Driver) flags(at layout) []string {
	if d.o.Kind == Runc {
		return []string{"--root", at.runtimeRoot(), "--log", at.runtimeLog(), "--log-format", "json"}
	}
	return append(d.runscFlags(),
		"--root="+at.runtimeRoot(),
		"--panic-log="+at.panicLog(),
		"--log="+at.runtimeLog(),
		"--log-format=json",
	)
}

// runscFlags make a sandbox what it is.
func (d *Driver) runscFlags() []string {
	flags := []string{
		"--platform=systrap", // never probed for: kvm hangs on some machines
		"--network=none",
		"--gofer-network-namespace=new",
		"--directfs=false",               // the sandbox's kernel opens no file by itself
		"--overlay2=root:memory",         // what is written to the root never reaches a disk
		"--file-access-mounts=exclusive", // nothing that is bound in changes
		"--host-uds=none",
		"--host-fifo=none",
		"--in-sandbox-cgroup=v2",
		"--host-settings=ignore",
	}
	if d.o.CoreScheduling {
		flags = append(flags, "--enable-core-tags")
	}
	return flags
}

// explain adds what the runtime said to a failed start. A runtime that could
// not be executed at all is unavailable; anything else is this start's failure.
func (d *Driver) explain(l *live, at layout, err error) error {
	l.drainStderr(time.Second)
	said := strings.TrimSpace(l.stderr.String() + "\n" + tailOf(at.runtimeLog()))
	cause := fmt.Errorf("%s: %w; it said: %q", exitText(err), err, said)
	var path *fs.PathError
	if errors.As(err, &path) && path.Op == "fork/exec" {
		return d.unavailable("cannot be run", cause)
	}
	return cause
}

// tailOf reads the last 2 KiB of a file that may not exist.
func tailOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	const limit = 2 << 10
	if info, err := f.Stat(); err == nil && info.Size() > limit {
		_, _ = f.Seek(-limit, 2)
	}
	buf := make([]byte, limit)
	n, _ := f.Read(buf)
	return string(buf[:n])
}

// findInit takes hold of the sandbox's first process through a pidfd. The
// number in the file counts only if that process is in the sandbox's group.
func (l *live) findInit(at layout) error {
	raw, err := os.ReadFile(at.pidFile())
	if err != nil {
		return fmt.Errorf("it wrote no process id: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		return fmt.Errorf("it wrote %q as the process id", raw)
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("process %d is gone: %w", pid, err)
	}
	if !l.group.Contains(pid) {
		_ = unix.Close(fd)
		return fmt.Errorf("process %d is not in the sandbox's control group", pid)
	}
	l.init = os.NewFile(uintptr(fd), "pidfd")
	return nil
}

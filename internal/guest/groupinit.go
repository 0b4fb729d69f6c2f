package guest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Descriptors the supervisor gives a group's first process.
const (
	initSocket = 3
	initTasks  = 4 // cgroup.procs of user code's cgroup, or /dev/null
)

// maskedFiles and readOnlyPaths are hidden or frozen in a group's /proc. Those
// that a kernel does not have are passed over.
var (
	maskedFiles   = []string{"/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/kallsyms", "/proc/kmsg", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/interrupts", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/modules", "/proc/config.gz", "/proc/cmdline"}
	maskedDirs    = []string{"/proc/acpi", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap", "/sys/kernel", "/sys/fs/cgroup"}
	readOnlyPaths = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/asound"}
)

// groupInit is the first process of a group: it prepares the namespaces,
// starts processes for the supervisor, reaps, and is what dies to take
// everything with it.
type groupInit struct {
	conn  packetConn
	tasks int // descriptor
	procs *reaper
	send  sync.Mutex
}

func runInit() error {
	lean()
	runtime.LockOSThread()
	g := &groupInit{conn: packetConn{initSocket}, tasks: initTasks}
	unix.CloseOnExec(initSocket)
	unix.CloseOnExec(initTasks)
	if err := prepareGroup(); err != nil {
		_ = g.conn.send(groupEvent{Error: err.Error()})
		return err
	}
	quietChildren()
	g.procs = newReaper()
	spaces, err := ownSpaces()
	if err != nil {
		_ = g.conn.send(groupEvent{Error: err.Error()})
		return err
	}
	if err := g.conn.send(groupEvent{Ready: true}, spaces...); err != nil {
		return err
	}
	for _, fd := range spaces {
		_ = unix.Close(fd)
	}
	for {
		var c groupCommand
		fds, err := g.conn.receive(&c)
		if err != nil {
			return nil //nolint:nilerr // the supervisor is gone, and with this process the group
		}
		e := g.answer(c, fds)
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		if e.Seq = c.Seq; e.Seq > 0 {
			g.reply(e)
		}
	}
}

// ownSpaces opens this process's PID, mount and IPC namespaces.
func ownSpaces() ([]int, error) {
	var fds []int
	for _, name := range []string{"pid", "mnt", "ipc"} {
		fd, err := unix.Open("/proc/self/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open the %s namespace: %w", name, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func (g *groupInit) reply(e groupEvent) {
	g.send.Lock()
	defer g.send.Unlock()
	_ = g.conn.send(e) // a supervisor that is gone ends the loop
}

// quietChildren has the kernel not tell of children that stop and go on, which a
// context does with every cell, and which would wake this process for nothing.
func quietChildren() {
	var act [4]uintptr // handler, flags, restorer, mask
	const maskSize = 8
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), 0, uintptr(unsafe.Pointer(&act)), maskSize, 0, 0)
	if errno == 0 {
		act[1] |= noChildStops
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&act)), 0, maskSize, 0, 0)
	}
}

// noChildStops is SA_NOCLDSTOP.
const noChildStops = 1

// prepareGroup makes what user code will see of the system.
func prepareGroup() error {
	if weak(weakNamespaces) {
		return dropBoundingSet()
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if weak(weakMasks) {
		return dropBoundingSet()
	}
	for _, path := range maskedFiles {
		if err := unix.Mount("/dev/null", path, "", unix.MS_BIND, ""); err != nil && !absent(err) {
			return fmt.Errorf("mask %s: %w", path, err)
		}
	}
	for _, path := range append(maskedDirs, cgroupDir) {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if err := unix.Mount("none", path, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=0,mode=0555"); err != nil && !absent(err) {
			return fmt.Errorf("mask %s: %w", path, err)
		}
	}
	for _, path := range readOnlyPaths {
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			if absent(err) {
				continue
			}
			return fmt.Errorf("freeze %s: %w", path, err)
		}
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("freeze %s: %w", path, err)
		}
	}
	return dropBoundingSet()
}

func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
}

// dropBoundingSet keeps every program that is executed from here on from
// gaining a capability. It acts on the calling thread, the only one of this
// process that starts programs.
func dropBoundingSet() error {
	if weak(weakPrivileges) {
		return nil
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}

func (g *groupInit) answer(c groupCommand, fds []int) groupEvent {
	switch c.Op {
	case "spawn":
		return g.spawn(fds, c.Admit)
	case "admit":
		if err := g.admit(c.PID); err != nil {
			return groupEvent{Error: err.Error()}
		}
		return groupEvent{}
	case "signal":
		// A negative number is a process group.
		if err := unix.Kill(c.PID, unix.Signal(c.Signal)); err != nil && err != unix.ESRCH {
			return groupEvent{Error: err.Error()}
		}
		return groupEvent{}
	case "pause":
		return sweep(unix.SIGSTOP, c.Within)
	case "resume":
		if err := unix.Kill(-1, unix.SIGCONT); err != nil && err != unix.ESRCH {
			return groupEvent{Error: err.Error()}
		}
		return groupEvent{}
	case "usage":
		return groupEvent{Tasks: usage()}
	}
	return groupEvent{Error: "unknown command"}
}

// spawn starts the stage that becomes user code. Its descriptors are those it
// was sent: 0, 1, 2, the specification, and what the program itself gets.
func (g *groupInit) spawn(fds []int, admit bool) groupEvent {
	if len(fds) < 4 {
		return groupEvent{Error: "missing descriptors"}
	}
	attr := &syscall.ProcAttr{Dir: "/", Env: []string{"GOMAXPROCS=1"}, Sys: &syscall.SysProcAttr{
		Setsid:     true,
		Credential: &syscall.Credential{Uid: userID, Gid: groupID},
	}}
	if weak(weakIdentity) {
		attr.Sys.Credential = nil
	}
	if weak(weakCaps) {
		attr.Sys.AmbientCaps = keptCaps()
	}
	for _, fd := range fds {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	pid, err := g.procs.start(guestBinary, stageArgs("launch"), attr, func(s exitStatus) {
		g.reply(groupEvent{PID: s.pid, Status: uint32(s.status), MaxRSS: s.maxRSS})
	})
	if err != nil {
		return groupEvent{Error: err.Error()}
	}
	if admit {
		if err := g.admit(pid); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			return groupEvent{Error: err.Error()}
		}
	}
	return groupEvent{PID: pid}
}

// admit puts a process, of which nothing of the user has run yet, under the
// limit of user code's tasks.
func (g *groupInit) admit(pid int) error {
	if _, err := unix.Write(g.tasks, []byte(strconv.Itoa(pid))); err != nil {
		return fmt.Errorf("limit tasks: %w", err)
	}
	return nil
}

// usage counts the processes of user code in the namespace.
func usage() (tasks int) {
	names, err := namesIn("/proc")
	if err != nil {
		return 0
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != 1 && processNow(name).tasks > 0 {
			tasks++
		}
	}
	return tasks
}

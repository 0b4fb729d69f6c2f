package guest_test

import (
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// probes call the kernel directly: name, what to do, and the errno names that
// count as refused. The numbers are amd64's.
const probes = `
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(nr, *args):
    r = libc.syscall(ctypes.c_long(nr), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return "ok" if r >= 0 else errno.errorcode[ctypes.get_errno()]
def sock(*a):
    try: socket.socket(*a).close(); return "ok"
    except OSError as e: return errno.errorcode.get(e.errno, str(e.errno))
NEW = {"ns": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "cgroup": 0x2000000, "time": 0x80}
for n, f in NEW.items(): print("unshare", n, call(272, f))
print("clone newuser", call(56, 0x10000000 | 17, 0, 0, 0, 0))
print("clone3", call(435, b"\0" * 88, 88))
print("setns", call(308, os.open("/proc/self/ns/net", os.O_RDONLY), 0))
for name, nr in dict(mount=165, umount2=166, pivot_root=155, chroot=161, fsopen=430, move_mount=429, open_tree=428, bpf=321, io_uring_setup=425, keyctl=250,
    add_key=248, request_key=249, userfaultfd=323, perf_event_open=298, init_module=175, finit_module=313, delete_module=176, kexec_load=246, reboot=169,
    swapon=167, acct=163, syslog=103, quotactl=179, settimeofday=164, clock_settime=227, adjtimex=159, open_by_handle_at=304, name_to_handle_at=303,
    process_vm_readv=310, pidfd_getfd=438, iopl=172, ioperm=173, sethostname=170, fanotify_init=300).items():
    print(name, call(nr, 0, 0, 0, 0, 0))
print("personality", call(135, 0x0400000))
print("timer_create", call(222, 1, 0, b"\0" * 8)); print("mq_notify", call(244, 0, 0))
print("clone SIGCONT", call(56, 18, 0, 0, 0, 0)); print("F_SETSIG SIGCONT", call(72, 0, 10, 18)); print("F_SETSIG SIGKILL", call(72, 0, 10, 9)); print("pidfd_send_signal", call(424, 0, 0, 0, 0)); print("PDEATHSIG SIGCONT", call(157, 1, 18, 0, 0, 0))
print("clone VFORK PARENT", call(56, 0x4000 | 0x8000 | 17, 0, 0, 0, 0)); print("clone VFORK THREAD", call(56, 0x4000 | 0x10000, 0, 0, 0, 0)); print("seccomp listener", call(317, 1, 8, 0))
print("F_SETSIG SIGIO", call(72, 0, 10, 29)); print("PDEATHSIG SIGTERM", call(157, 1, 15, 0, 0, 0))
for n, v in dict(TIOCSTI=0x5412, high_TIOCSTI=0x5412 | 1 << 32, TIOCLINUX=0x541c, high_TIOCLINUX=0x541c | 0xf << 32).items():
    print(n, call(16, 0, ctypes.c_ulong(v), b"x"))
print("AF_VSOCK", sock(40, socket.SOCK_STREAM)); print("AF_ALG", sock(38, socket.SOCK_SEQPACKET)); print("AF_PACKET", sock(17, socket.SOCK_RAW))
print("AF_NETLINK audit", sock(16, socket.SOCK_RAW, 9)); print("raw", sock(socket.AF_INET, socket.SOCK_RAW, 1)); print("raw6", sock(socket.AF_INET6, socket.SOCK_RAW, 58))
print("AF_BLUETOOTH", sock(31, 3))
print("tcp", sock(socket.AF_INET, socket.SOCK_STREAM)); print("unix", sock(socket.AF_UNIX, socket.SOCK_STREAM)); print("route", sock(16, socket.SOCK_RAW, 0))
print("ptrace init", call(101, 16, 1, 0, 0)); print("kill init", call(62, 1, 9))
`

func TestCallsThatAreRefused(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		o := s.code(t, workbench.Python, probes)
		if o.ExitCode != 0 {
			t.Fatalf("%+v %s %s", o.ExecResult, o.stdout, o.stderr)
		}
		allowed := map[string]bool{"tcp": true, "unix": true, "route": true, "F_SETSIG SIGIO": true, "PDEATHSIG SIGTERM": true}
		refused := map[string]bool{"EPERM": true, "ENOSYS": true, "EAFNOSUPPORT": true, "EPROTONOSUPPORT": true, "EACCES": true}
		lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
		if len(lines) != 74 {
			t.Errorf("%d lines", len(lines))
		}
		for _, line := range lines {
			i := strings.LastIndexByte(line, ' ')
			name, got := line[:i], line[i+1:]
			if allowed[name] != (got == "ok") || !allowed[name] && !refused[got] {
				t.Errorf("%s: %s", name, got)
			}
		}
	})
}

// TestShareOfInotify: Linux counts instances for the user who made the sandbox,
// over all sandboxes and the host's own.
func TestShareOfInotify(t *testing.T) {
	s := MustSession(t, oci.Runc)
	o := s.code(t, workbench.Python, `
import ctypes
libc, got = ctypes.CDLL(None), []
while len(got) < 200 and (not got or got[-1] >= 0): got.append(libc.inotify_init1(0))
print(len(got) - 1, libc.inotify_add_watch(got[0], b"/tmp", 2))
`)
	if o.stdout != "8 1\n" { // the guest has taken none yet
		t.Errorf("%q %s", o.stdout, o.stderr)
	}
}

func TestOtherABIs(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		// H59: refused or killed.
		o := s.code(t, workbench.Python, "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.syscall(ctypes.c_long(0x40000000 + 39)) == os.getpid())")
		if o.stdout != "False\n" && o.Signal != "SIGSYS" {
			t.Errorf("%+v %q", o.ExecResult, o.stdout)
		}
	})
}

func TestIdentityOfUserCode(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		for _, c := range []languageCase{
			{name: "no capability, no new privileges, filtered", source: "for l in open('/proc/self/status'):\n    if l.startswith(('Uid', 'Gid', 'Groups', 'Cap', 'NoNewPrivs', 'Seccomp:')): print(' '.join(l.split()))",
				stdout: "Uid: 1000 1000 1000 1000\nGid: 1000 1000 1000 1000\nGroups:\nCapInh: 0000000000000000\nCapPrm: 0000000000000000\nCapEff: 0000000000000000\nCapBnd: 0000000000000000\nCapAmb: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n"},
			{name: "sees its own processes only", source: "import os\nme = os.getpid()\nprint(sorted(int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) != me))\nfor n in ('environ', 'mem', 'maps', 'cwd', 'root', 'exe', 'fd'):\n    try:\n        p = f'/proc/1/{n}'; os.readlink(p) if n in ('cwd', 'root', 'exe') else os.listdir(p) if n == 'fd' else open(p).read(1)\n        print(n)\n    except PermissionError: pass",
				stdout: "[1]\n"},
			{name: "writes nowhere but in its places", source: "import os\nfor p in ('/', '/etc', '/usr', '/run', '/run/workbench', '/run/workbench/lib', '/run/workbench/bin', '/opt/workbench/bin', '/dev', '/proc/sys/kernel', '/sys', '/mnt', '/run/workbench/x'):\n    try: open(p + '/probe', 'w'); print(p)\n    except OSError: pass\nfor p in ('/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/run/workbench/lib/driver.py', '/opt/workbench/bin/guest'):\n    try: open(p, 'r+'); print(p)\n    except OSError as e: pass\nfor p in ('/mnt/files', '/tmp', '/dev/shm', '/tmp/home'): open(p + '/probe', 'w')", stdout: ""},
			{name: "hidden from view", source: "import os\nfor p in ('/proc/kcore', '/proc/kallsyms', '/proc/keys', '/proc/timer_list', '/proc/sched_debug'):\n    try: print(p, len(open(p, 'rb').read(100)))\n    except OSError: print(p, 0)\nfor p in ('/sys/firmware', '/sys/fs/cgroup', '/run/workbench/cgroup'):\n    print(p, len(os.listdir(p)) if os.path.isdir(p) and os.access(p, os.R_OK) else 0)\ntry: os.listdir('/run/workbench/x'); print('execs listed')\nexcept PermissionError: pass",
				stdout: "/proc/kcore 0\n/proc/kallsyms 0\n/proc/keys 0\n/proc/timer_list 0\n/proc/sched_debug 0\n/sys/firmware 0\n/sys/fs/cgroup 0\n/run/workbench/cgroup 0\n"},
			{name: "no elevation by a set-user-id copy", source: "import shutil, os, subprocess\nshutil.copy('/usr/bin/id', 'id'); os.chmod('id', 0o6755); print(subprocess.run(['./id', '-u'], capture_output=True, text=True).stdout.strip())", stdout: "1000\n"},
			{name: "no core, no network", source: "import resource, socket, errno\nprint(resource.getrlimit(resource.RLIMIT_CORE))\nfor a in (('1.1.1.1', 53), ('169.254.169.254', 80)):\n    s = socket.socket(); s.settimeout(2)\n    try: s.connect(a); print('connected')\n    except OSError as e: print(e.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES))", stdout: "(0, 0)\nTrue\nTrue\n"},
			{name: "its own child may be traced", source: "import ctypes, os, signal\nlibc = ctypes.CDLL(None, use_errno=True)\npid = os.fork()\nif pid == 0: signal.pause()\nprint(libc.ptrace(16, pid, 0, 0)); os.waitpid(pid, 0); libc.ptrace(17, pid, 0, 0); os.kill(pid, 9)", stdout: "0\n"},
		} {
			c.run(t, s, workbench.Python)
		}
		t.Run("runs do not see each other", func(t *testing.T) {
			h := newHost()
			other := s.begin(t, request(workbench.Bash, "echo up; sleep 60"), h)
			<-h.wrote
			s.code(t, workbench.Python, "import os, signal\nprint(sum(p.isdigit() for p in os.listdir('/proc')))\ntry: os.kill(-1, signal.SIGKILL)\nexcept ProcessLookupError: print('alone')").want(t, 0, "2\nalone\n")
			if g, err := s.Client.ListGroups(t.Context()); err != nil || len(g) != 1 {
				t.Errorf("%v %v", g, err)
			}
			if err := other.Cancel(t.Context()); err != nil {
				t.Fatal(err)
			}
			other.end()
		})
	})
}

// TestPlaceAheadIsShut: the directory and the socket that the next run will have
// are there before it, and no other code gets at them, also by their names.
func TestPlaceAheadIsShut(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Python, `
import os, socket, time
own = os.environ["WORKBENCH_SOCKET"]
place = os.path.dirname(os.path.dirname(own))
print(os.access(place, os.R_OK))
made, deadline = set(), time.time() + 30
while len(made) < 2 and time.time() < deadline: # the next is made while this one runs
    time.sleep(0.05)
    known = {l.split()[-1] for l in open("/proc/net/unix")}
    made = {p for p in known if p.startswith("/run/workbench/b/")} # where they were bound
print(len(made) >= 2, [p for p in known if p.startswith(place)])
for path in made:
    try: socket.socket(socket.AF_UNIX).connect(path); print("reached", path)
    except PermissionError: pass
s = socket.socket(socket.AF_UNIX); s.connect(own); print("own")
`).want(t, 0, "False\nTrue []\nown\n")
	})
}

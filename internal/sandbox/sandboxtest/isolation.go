package sandboxtest

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// isolation looks at SPEC A12 and A13 from where user code stands.
func (s Suite) isolation(t *testing.T) {
	const canary = "canary-3f9c27d1"
	t.Setenv("WORKBENCH_SECRET", canary)
	d, instance := s.MustOpen(t)
	box := MustBind(t, d, Standard(s.Image))

	t.Run("identity and privileges", func(t *testing.T) { identity(t, box) })
	t.Run("nothing but the workspace and scratch can be written", func(t *testing.T) { writable(t, box) })
	t.Run("no network", func(t *testing.T) { network(t, box) })
	t.Run("processes of its own group only", func(t *testing.T) { procView(t, box) })
	t.Run("descriptors and environment", func(t *testing.T) { inherited(t, box, canary) })
	t.Run("mounts name nothing of the server", func(t *testing.T) {
		info := box.MustPrint(t, "print(open('/proc/self/mountinfo').read())")
		for _, secret := range []string{box.Sandbox.ID(), canary} {
			if strings.Contains(info, secret) {
				t.Errorf("mountinfo has %q:\n%s", secret, info)
			}
		}
		_ = instance // names the directory of the guest binary, which is no secret
	})
	t.Run("devices", func(t *testing.T) { devices(t, box) })
	t.Run("calls that are refused", func(t *testing.T) { refused(t, box) })
	t.Run("kernel files", func(t *testing.T) { kernelFiles(t, box) })
	t.Run("a second run sees nothing of the first's processes", func(t *testing.T) {
		box.MustPrint(t, "import subprocess\nsubprocess.Popen(['sleep', '300'])\nprint(1)")
		got := box.MustPrint(t, "import os\nprint([p for p in os.listdir('/proc') if p.isdigit() and b'sleep' in open(f'/proc/{p}/cmdline','rb').read()])")
		if got != "[]" {
			t.Errorf("the next run sees %s", got)
		}
	})
}

func identity(t *testing.T, box *Session) {
	got := box.MustPrint(t, `
import os
wanted = {'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp'}
for line in open('/proc/self/status'):
    key, _, value = line.partition(':')
    if key in wanted:
        print(key, value.strip())
print('ids', os.getresuid(), os.getresgid(), os.getgroups())
print('cwd', os.getcwd())
print('leads', os.getpid() != 1)
`)
	const none = "0000000000000000"
	want := "CapInh " + none + "\nCapPrm " + none + "\nCapEff " + none + "\nCapBnd " + none + "\nCapAmb " + none +
		"\nNoNewPrivs 1\nSeccomp 2\nids (1000, 1000, 1000) (1000, 1000, 1000) []\ncwd /mnt/files\nleads True"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func writable(t *testing.T, box *Session) {
	got := box.MustPrint(t, `
import os
skip = ('/proc', '/sys', '/mnt/files', '/tmp', '/dev/shm')
found = []
for base, dirs, files in os.walk('/'):
    if base.startswith(skip):
        dirs[:] = []
        continue
    for path in [base] + [os.path.join(base, f) for f in files]:
        if not os.path.islink(path) and os.access(path, os.W_OK):
            found.append(path)
for path in ['/x', '/etc/x', '/usr/bin/x', '/opt/workbench/x', '/opt/workbench/bin/x', '/run/x', '/run/workbench/x', '/mnt/x', '/dev/x', '/proc/x', '/sys/x', '/var/tmp/x', '/run/lock/x', '/root/x', '/home/x']:
    try:
        open(path, 'w').close()
        found.append('created ' + path)
    except OSError:
        pass
for path in ['/usr/bin/python3', '/etc/passwd', '/opt/workbench/bin/guest']:
    try:
        os.chmod(path, 0o777)
        found.append('chmod ' + path)
    except OSError:
        pass
found = [f for f in found if f not in ('/dev/null', '/dev/zero', '/dev/full', '/dev/random', '/dev/urandom', '/dev/tty', '/dev/ptmx', '/dev/pts/ptmx')]
print(found)
`)
	if got != "[]" {
		t.Errorf("writable: %s", got)
	}
}

// network is ABUSE H100 to H107. The host listens on TCP and on an abstract
// socket while code inside tries to reach it.
func network(t *testing.T, box *Session) {
	var listen net.ListenConfig
	tcp, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tcp.Close() }()
	abstract, err := listen.Listen(t.Context(), "unix", "@workbench-"+NewInstance())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = abstract.Close() }()
	got := box.MustPrint(t, fmt.Sprintf(`
import errno, socket, time
reached, slow = [], []
def tries(what, f):
    for _ in range(2):  # one stall of the machine is no slow answer
        began = time.monotonic()
        try:
            f()
            reached.append(what)
        except OSError:
            pass
        if time.monotonic() - began < 4:
            return
    slow.append(what)
def tcp(family, *address):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.settimeout(5)
    s.connect(address)
for host in ['1.1.1.1', '10.0.0.1', '172.17.0.1', '192.168.0.1', '169.254.169.254']:
    tries('tcp ' + host, lambda: tcp(socket.AF_INET, host, 80))
for host in ['2606:4700::1111', 'fd00:ec2::254', '::ffff:10.0.0.1', 'fe80::1']:
    tries('tcp ' + host, lambda: tcp(socket.AF_INET6, host, 80))
tries('host loopback', lambda: tcp(socket.AF_INET, '127.0.0.1', %d))
tries('udp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53)))
tries('multicast', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('224.0.0.1', 53)))
tries('dns', lambda: socket.getaddrinfo('example.com', 80))
def unix(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(5)
    s.connect(path)
tries('abstract', lambda: unix('\0' + %q))
for path in ['/var/run/docker.sock', '/run/docker.sock', '/run/containerd/containerd.sock', '/run/podman/podman.sock', '/run/dbus/system_bus_socket']:
    tries(path, lambda: unix(path))
for name, family, kind in [('packet', 17, 3), ('raw', 2, 3), ('vsock', 40, 1), ('alg', 38, 5), ('bluetooth', 31, 3), ('rds', 21, 5), ('tipc', 30, 1), ('xdp', 44, 3), ('can', 29, 3)]:
    tries(name, lambda: socket.socket(family, kind))
print(reached, slow, [name for _, name in socket.if_nameindex()])
`, tcp.Addr().(*net.TCPAddr).Port, strings.TrimPrefix(abstract.Addr().String(), "@")))
	if got != "[] [] ['lo']" && got != "[] [] []" {
		t.Errorf("reached, not refused at once, and interfaces: %s", got)
	}
}

func procView(t *testing.T, box *Session) {
	got := box.MustPrint(t, `
import json, os
seen = []
for p in sorted(int(p) for p in os.listdir('/proc') if p.isdigit()):
    entry = {'pid': p, 'uid': os.stat(f'/proc/{p}').st_uid}
    for name in ['environ', 'maps', 'cwd', 'root', 'exe']:
        try:
            entry[name] = os.readlink(f'/proc/{p}/{name}') if name in ('cwd', 'root', 'exe') else len(open(f'/proc/{p}/{name}', 'rb').read())
        except OSError as e:
            entry[name] = None
    seen.append(entry)
    if p != os.getpid():
        for signal in [0, 19, 9]:
            try:
                os.kill(p, signal)
                entry['signalled'] = True
            except OSError:
                pass
print(json.dumps(seen))
`)
	var seen []struct {
		Pid, UID       int
		Environ, Maps  *int
		Cwd, Root, Exe *string
		Signalled      bool
	}
	if err := json.Unmarshal([]byte(got), &seen); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	if len(seen) < 1 || len(seen) > 3 {
		t.Errorf("sees %d processes, want its own and its group's init: %s", len(seen), got)
	}
	for _, p := range seen {
		if p.UID == 1000 {
			continue
		}
		if p.Environ != nil && *p.Environ > 0 || p.Maps != nil && *p.Maps > 0 || p.Cwd != nil || p.Root != nil || p.Signalled {
			t.Errorf("reaches into process %d of user %d: %s", p.Pid, p.UID, got)
		}
	}
}

func inherited(t *testing.T, box *Session, canary string) {
	got := box.MustPrint(t, `
import os
fds = sorted(int(f) for f in os.listdir('/proc/self/fd'))
print([os.readlink(f'/proc/self/fd/{f}') for f in fds if f > 2 and os.path.lexists(f'/proc/self/fd/{f}')])
print(*sorted(os.environ))
print(dict(os.environ))
`)
	lines := strings.SplitN(got, "\n", 3)
	if len(lines) != 3 {
		t.Fatalf("printed %q", got)
	}
	// One pipe is the guest's, on which the interpreter's driver tells the exit
	// code before the interpreter is torn down.
	if !regexp.MustCompile(`^\[('pipe:\[\d+\]')?\]$`).MatchString(lines[0]) {
		t.Errorf("has descriptors %s besides the standard three", lines[0])
	}
	allowed := []string{"HOME", "LANG", "LOGNAME", "MKL_NUM_THREADS", "MPLBACKEND", "NODE_PATH", "NUMEXPR_MAX_THREADS", "OMP_NUM_THREADS",
		"OPENBLAS_NUM_THREADS", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED", "SHELL", "TMPDIR", "USER", "WORKBENCH_SOCKET", "WORKBENCH_TOKEN"}
	for _, name := range strings.Fields(lines[1]) {
		if !slices.Contains(allowed, name) {
			t.Errorf("the environment has %s", name)
		}
	}
	if strings.Contains(lines[2], canary) {
		t.Error("the server's environment is inside")
	}
}

func devices(t *testing.T, box *Session) {
	got := strings.Fields(box.MustPrint(t, "import os\nprint(*sorted(os.listdir('/dev')))"))
	allowed := []string{"core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero", "char", "net", "mqueue"}
	for _, name := range got {
		if !slices.Contains(allowed, name) {
			t.Errorf("/dev/%s is there", name)
		}
	}
	if out := box.MustPrint(t, "import os\nprint([p for p in ['/dev/mem','/dev/kmsg','/dev/fuse','/dev/kvm','/dev/net/tun','/dev/uinput','/dev/loop0','/dev/vda','/dev/sda','/dev/port'] if os.path.exists(p)])"); out != "[]" {
		t.Errorf("dangerous devices: %s", out)
	}
}

// refused calls the kernel by number, so that no library stands between. Each
// row of ABUSE it serves is named with the call.
func refused(t *testing.T, box *Session) {
	if got := box.MustPrint(t, syscallProbe); got != "[]" {
		t.Errorf("succeeded: %s", got)
	}
}

const syscallProbe = `
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
x86 = platform.machine() == 'x86_64'
ok = []
def call(what, number, *args):
    if os.fork() == 0:   # a call that is answered by a kill ends the child alone
        r = libc.syscall(ctypes.c_long(number), *[a if isinstance(a, bytes) else ctypes.c_long(a) for a in args])
        os._exit(1 if r == -1 else 0)
    _, status = os.wait()
    if status == 0:
        ok.append(what)
NEWUSER, NEWNS, NEWNET, NEWPID = 0x10000000, 0x20000, 0x40000000, 0x20000000
buf = b'\0' * 256
n = {
    'mount': 165, 'umount2': 166, 'pivot_root': 155, 'chroot': 161, 'unshare': 272, 'setns': 308, 'bpf': 321,
    'io_uring_setup': 425, 'io_uring_register': 427, 'keyctl': 250, 'add_key': 248, 'request_key': 249, 'userfaultfd': 323,
    'perf_event_open': 298, 'open_by_handle_at': 304, 'name_to_handle_at': 303, 'init_module': 175, 'finit_module': 313,
    'delete_module': 176, 'reboot': 169, 'kexec_load': 246, 'swapon': 167, 'acct': 163, 'syslog': 103, 'quotactl': 179,
    'settimeofday': 164, 'clock_settime': 227, 'sethostname': 170, 'setdomainname': 171, 'iopl': 172, 'ioperm': 173,
    'ptrace': 101, 'process_vm_readv': 310, 'process_vm_writev': 311, 'kcmp': 312, 'setuid': 105, 'setgid': 106,
    'setgroups': 116, 'fsopen': 430, 'move_mount': 429, 'open_tree': 428, 'mount_setattr': 442, 'fsmount': 432,
    'memfd_secret': 447, 'fanotify_init': 300, 'lookup_dcookie': 212, 'vhangup': 153, 'mlock': 149, 'sched_setscheduler': 144,
} if x86 else {}
if x86:
    call('H43 mount', n['mount'], b'none\0', b'/tmp\0', b'tmpfs\0', 0, 0)
    call('H43 mount proc', n['mount'], b'none\0', b'/mnt/files\0', b'proc\0', 0, 0)
    call('H43 umount', n['umount2'], b'/proc\0', 2)
    call('H43 umount mask', n['umount2'], b'/proc/kcore\0', 2)
    call('H43 pivot_root', n['pivot_root'], b'/tmp\0', b'/tmp\0')
    call('H43 chroot', n['chroot'], b'/tmp\0')
    for name in ['fsopen', 'fsmount']:
        call('H43 ' + name, n[name], b'tmpfs\0', 0)
    call('H43 open_tree', n['open_tree'], -100, b'/\0', 1)
    call('H43 mount_setattr', n['mount_setattr'], -100, b'/\0', 0, buf, 32)
    for flag in [NEWUSER, NEWNS, NEWNET, NEWPID, 0x08000000, 0x04000000, 0x02000000]:
        call('H44 unshare %x' % flag, n['unshare'], flag)
        call('H44 clone %x' % flag, 56, flag | 17, 0, 0, 0, 0)
    for ns in ['user', 'mnt', 'net', 'pid', 'ipc', 'uts']:
        try:
            call('H45 setns ' + ns, n['setns'], os.open('/proc/1/ns/' + ns, os.O_RDONLY), 0)
        except OSError:
            pass
    call('H46 bpf', n['bpf'], 0, buf, 72)
    call('H47 io_uring_setup', n['io_uring_setup'], 8, buf)
    call('H47 io_uring_register', n['io_uring_register'], 0, 0, 0, 0)
    call('H48 keyctl', n['keyctl'], 0, -3, 1)
    call('H48 add_key', n['add_key'], b'user\0', b'k\0', b'secret\0', 6, -3)
    call('H48 request_key', n['request_key'], b'user\0', b'k\0', 0, -3)
    call('H50 userfaultfd', n['userfaultfd'], 0)
    call('perf_event_open', n['perf_event_open'], buf, 0, -1, -1, 0)
    call('H61 open_by_handle_at', n['open_by_handle_at'], -100, buf, 0)
    call('H55 init_module', n['init_module'], buf, 256, b'\0')
    call('H55 finit_module', n['finit_module'], 0, b'\0', 0)
    call('H55 delete_module', n['delete_module'], b'x\0', 0)
    call('H56 reboot', n['reboot'], 0xfee1dead, 672274793, 0, 0)
    call('H56 kexec_load', n['kexec_load'], 0, 0, 0, 0)
    call('H56 swapon', n['swapon'], b'/mnt/files\0', 0)
    call('H56 acct', n['acct'], 0)
    call('H56 syslog', n['syslog'], 10, buf, 0)
    call('H56 quotactl', n['quotactl'], 0x800001 << 8, b'/\0', 0, buf)
    call('H57 settimeofday', n['settimeofday'], b'\1' + b'\0' * 15, 0)
    call('H57 clock_settime', n['clock_settime'], 0, b'\1' + b'\0' * 15)
    call('sethostname', n['sethostname'], b'x', 1)
    call('iopl', n['iopl'], 3)
    call('H41 ptrace init', n['ptrace'], 16, 1, 0, 0)
    call('H41 read init', n['process_vm_readv'], 1, buf, 1, buf, 1, 0)
    call('setuid 0', n['setuid'], 0)
    call('setgid 0', n['setgid'], 0)
    call('setgroups', n['setgroups'], 1, b'\0' * 4)
    call('H08 mlock 1 GiB', n['mlock'], 0x10000, 1 << 30)
    call('H10 SCHED_FIFO', n['sched_setscheduler'], 0, 1, b'\1\0\0\0')
    call('fanotify_init', n['fanotify_init'], 0, 0)
print(ok)
`

func kernelFiles(t *testing.T, box *Session) {
	got := box.MustPrint(t, `
import os
bad = []
for path in ['/proc/kcore', '/proc/keys', '/proc/timer_list', '/proc/sched_debug', '/proc/kmsg', '/proc/kpagecount', '/proc/cmdline', '/dev/mem', '/proc/1/environ']:
    try:
        if open(path, 'rb').read(64):
            bad.append('read ' + path)
    except OSError:
        pass
for path in ['/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/vm/overcommit_memory',
             '/proc/sys/kernel/hostname', '/sys/kernel/uevent_helper', '/sys/power/state', '/sys/fs/cgroup/release_agent', '/sys/fs/cgroup/cgroup.procs']:
    try:
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, b'0')
        if os.fstat(fd).st_rdev != os.stat('/dev/null').st_rdev:   # a mask takes writes and does nothing
            bad.append('write ' + path)
    except OSError:
        pass
if os.path.exists('/sys/firmware') and os.listdir('/sys/firmware'):
    bad.append('/sys/firmware')
for line in open('/proc/self/mountinfo'):
    if ' - cgroup' in line and os.access(line.split()[4], os.W_OK):
        bad.append('writable cgroup ' + line.split()[4])
print(bad)
`)
	if got != "[]" {
		t.Errorf("reached: %s", got)
	}
	// H65: what happens to a core file is the host's setting, not the sandbox's.
	if raw, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err == nil && strings.HasPrefix(string(raw), "|") {
		t.Logf("this host pipes core files to a program: %s", raw)
	}
}

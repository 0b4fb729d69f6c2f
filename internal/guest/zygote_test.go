package guest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guest"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// asFork runs a program in a forked interpreter: it waits until runs are forks,
// which they are once their zygote has loaded.
func (s *session) asFork(t testing.TB, source string) outcome {
	t.Helper()
	const told = "\x00a fork\n" // only a fork's parent is outside of its group
	deadline := time.Now().Add(2 * time.Minute)
	for {
		o := s.code(t, workbench.Python, "import os, sys\nif __name__ == '__main__':\n    if os.getppid(): sys.exit(75)\n    os.write(1, b'\\0a fork\\n')\ndel os, sys\n"+source)
		if stdout, ok := strings.CutPrefix(o.stdout, told); ok {
			o.stdout = stdout
			return o
		}
		if time.Now().After(deadline) {
			t.Fatalf("no run is a fork: exit %d, %q %q", o.ExitCode, o.stdout, clip(o.stderr))
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// TestForkHasNoRights: what a fork is to the kernel is what any program is.
func TestForkHasNoRights(t *testing.T) {
	onPreloaded(t, []oci.Kind{oci.Runsc, oci.Runc}, func(t *testing.T, s *session) {
		s.asFork(t, "for l in open('/proc/self/status'):\n    if l.startswith(('Uid', 'Gid', 'Groups', 'Cap', 'NoNewPrivs', 'Seccomp:')): print(' '.join(l.split()))").want(t, 0,
			"Uid: 1000 1000 1000 1000\nGid: 1000 1000 1000 1000\nGroups:\nCapInh: 0000000000000000\nCapPrm: 0000000000000000\nCapEff: 0000000000000000\nCapBnd: 0000000000000000\nCapAmb: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n")
		s.asFork(t, `
import os, resource
print(sorted(n for n in os.listdir("/proc") if n.isdigit() and n != str(os.getpid())))
print([os.readlink("/proc/self/fd/%d" % n).partition(":")[0] for n in (0, 1, 2)], [n for n in map(int, os.listdir("/proc/self/fd")) if n > 2 and os.path.exists("/proc/self/fd/%d" % n) and not os.path.samefile("/proc/self/fd/%d" % n, "/proc/self/fd/5")])
print(os.getsid(0) == os.getpgid(0) == os.getpid(), os.getcwd(), oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE))
for call in (lambda: os.setuid(0), lambda: os.setns(os.open("/proc/self/ns/pid", os.O_RDONLY)), lambda: os.unshare(os.CLONE_NEWUSER)):
    try: call(); print("allowed")
    except PermissionError: pass
`).want(t, 0, "['1']\n['pipe', 'pipe', 'pipe'] []\nTrue /mnt/files 0o22 (0, 0) (256, 256)\n")
	})
}

// TestForksDiffer: what is drawn by chance is another in each fork (ABUSE H113).
func TestForksDiffer(t *testing.T) {
	s := MustSessionOf(t, oci.Runsc, "standard")
	const draw = `
import multiprocessing, os, random, secrets, ssl, tempfile, uuid
print(random.random(), secrets.token_hex(), uuid.uuid4(), uuid.uuid1().node, os.urandom(8), ssl.RAND_bytes(8), next(tempfile._get_candidate_names()), bytes(multiprocessing.current_process().authkey), sep="\n")`
	first, second := strings.Split(s.asFork(t, draw).stdout, "\n"), strings.Split(s.asFork(t, draw).stdout, "\n")
	if len(first) != 9 || len(second) != 9 {
		t.Fatalf("%q, %q", first, second)
	}
	for i, v := range first[:8] {
		if i != 3 && v == second[i] { // a node may be the machine's address
			t.Errorf("two forks drew %s", v)
		}
	}
}

// TestForksAreFresh: a program finds Python as it is when it has just started.
func TestForksAreFresh(t *testing.T) {
	s := MustSessionOf(t, oci.Runsc, "standard")
	for _, c := range []languageCase{
		{name: "arguments and names", source: "import sys\nprint(sys.argv, __name__, __file__, sys.path[0], sys.orig_argv[1:])", stdout: "['main.py'] __main__ /mnt/files/main.py /mnt/files ['/run/workbench/lib/driver.py']\n"},
		{name: "environment", source: "import os\nprint(os.environ['HOME'], os.environ['TMPDIR'], os.path.expanduser('~'), 'PYTHONUSERBASE' in os.environ)", stdout: "/tmp/home /tmp /tmp/home False\n"},
		{name: "children see it too", source: "import subprocess\nprint(subprocess.run(['sh', '-c', 'echo $HOME $TMPDIR'], capture_output=True, text=True).stdout, end='')", stdout: "/tmp/home /tmp\n"},
		{name: "warnings", source: "import warnings\nwarnings.warn('old', DeprecationWarning)", stderr: []string{"DeprecationWarning: old"}},
		{name: "logging", source: "import logging\nlogging.warning('heard'); logging.info('not')\nprint(logging.root.handlers[1:])", stdout: "[]\n", stderr: []string{"WARNING:root:heard\n"}},
		{name: "threads", source: "import threading\nt = threading.Thread(target=lambda: print(threading.current_thread().name)); t.start(); t.join()\nprint(threading.main_thread() is threading.current_thread(), threading.active_count())", stdout: "Thread-1 (<lambda>)\nTrue 1\n"},
		{name: "traces", source: "def f(): 1 / 0\nf()", exit: 1, stderr: []string{"Traceback (most recent call last):\n  File \"/mnt/files/main.py\", line"}},
		{name: "exit functions", source: "import atexit\natexit.register(print, 'bye')", stdout: "bye\n"},
		{name: "standard input", source: "import sys\nprint(repr(sys.stdin.read()), sys.stdin.seekable(), sys.stdout.seekable())", stdout: "'' False False\n"},
		{name: "processes that fork", source: "import multiprocessing as m\ndef f(x): return x * x\nprint(m.get_context('fork').Pool(2).map(f, range(4)))", stdout: "[0, 1, 4, 9]\n"},
		{name: "processes that spawn", source: "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(2) as p: print(p.map(f, range(4)))", stdout: "[0, 1, 4, 9]\n"},
		{name: "its own child may be traced", source: "import ctypes, os, signal\nlibc = ctypes.CDLL(None, use_errno=True)\npid = os.fork()\nif pid == 0: signal.pause()\nprint(libc.ptrace(16, pid, 0, 0)); os.waitpid(pid, 0); libc.ptrace(17, pid, 0, 0); os.kill(pid, 9)", stdout: "0\n"},
		{name: "signals", source: "import os, signal\nprint(signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, []))", stdout: "0 True set()\n"},
		{name: "an exit status", source: "import os\nos._exit(7)", exit: 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := s.asFork(t, c.source)
			o.want(t, c.exit, c.stdout)
			for _, part := range c.stderr {
				if !strings.Contains(o.stderr, part) {
					t.Errorf("stderr %q does not contain %q", clip(o.stderr), part)
				}
			}
		})
	}
	o := s.asFork(t, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
	if o.ExitCode != -1 || o.Signal != "SIGKILL" || o.Reason != "" {
		t.Errorf("killed by itself: %+v", o.ExecResult)
	}
	if o := s.asFork(t, "x = bytearray(b'x') * (100 << 20)\nimport time; time.sleep(1)\nimport os; os._exit(0)"); o.PeakBytes < 95<<20 || o.PeakBytes > 130<<20 {
		t.Errorf("peak of %d MiB, want 100", o.PeakBytes>>20)
	}
	if o := s.asFork(t, "x = bytearray(b'x') * (300 << 20)\nimport time; time.sleep(5)"); o.Reason != workbench.ReasonOutOfMemory {
		t.Errorf("300 MiB: %+v", o.ExecResult)
	}
}

// TestWorkspaceComesFirst: a module of the workspace is found before one that a
// fork has loaded, as by any Python.
func TestWorkspaceComesFirst(t *testing.T) {
	t.Parallel() // it waits more than it works
	onPreloaded(t, kinds(), func(t *testing.T, s *session) {
		s.asFork(t, "import random\nprint(random.__file__)").want(t, 0, "/usr/lib/python3.13/random.py\n")
		s.code(t, workbench.Bash, "echo 'print(\"mine\")' > random.py; mkdir -p csv json statistics; touch csv/__init__.py json/data.txt").want(t, 0, "")
		time.Sleep(warm)
		s.code(t, workbench.Python, "import random, csv, json\nprint(random.__file__, csv.__file__, json.dumps([1]))").want(t, 0, "mine\n/mnt/files/random.py /mnt/files/csv/__init__.py [1]\n")
		s.code(t, workbench.Bash, "rm -r random.py csv").want(t, 0, "")
		s.asFork(t, "import random\nprint(random.__file__)").want(t, 0, "/usr/lib/python3.13/random.py\n")
		r := request(workbench.Python, "import os, sys; print('statistics' in sys.modules, os.environ['HOME'])")
		r.Env = map[string]string{"HOME": "/mnt/files"}
		s.do(t, r).want(t, 0, "False /mnt/files\n") // of which libraries may have read the other value
	})
}

// TestZygoteIsOutOfReach: code finds nothing of the process that forked it.
func TestZygoteIsOutOfReach(t *testing.T) {
	onPreloaded(t, []oci.Kind{oci.Runsc, oci.Runc}, func(t *testing.T, s *session) {
		s.asFork(t, `
import os, signal
for pid in range(1, 400):
    if pid == os.getpid(): continue
    for s in (0, signal.SIGTERM):
        try: os.kill(pid, s); print("reached", pid)
        except OSError: pass
for place in ("/run/workbench/zygote", "/proc/1/fd", "/proc/1/environ"):
    try: (os.listdir if not place.endswith("environ") else open)(place); print("open", place)
    except OSError: pass
print(os.getpriority(os.PRIO_PROCESS, 0))
`).want(t, 0, s.code(t, workbench.Bash, "nice").stdout) // what the driver itself was started with
		s.asFork(t, "print('still there')").want(t, 0, "still there\n")
	})
}

// TestPreloaded: what the image lists is there at once, and as an import would
// have it.
func TestPreloaded(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := MustSessionOf(t, oci.Runsc, "standard")
	listed := s.do(t, guestwire.ExecRequest{Argv: []string{"cat", "/opt/workbench/preload"}}).stdout
	if names := strings.Fields(listed); !slices.Contains(names, "pandas") {
		t.Fatalf("the image lists %q: build it again (workbench image build standard --again)", names)
	}
	s.asFork(t, "import sys\nprint('pandas' in sys.modules, 'matplotlib.pyplot' in sys.modules)\nimport pandas, numpy\nprint(pandas.DataFrame({'a': [1, 2]}).a.sum(), numpy.random.rand() != 0)").want(t, 0, "True True\n3 True\n")
	a, b := s.asFork(t, "import numpy\nprint(numpy.random.rand(3))").stdout, s.asFork(t, "import numpy\nprint(numpy.random.rand(3))").stdout
	if a == b {
		t.Errorf("two forks drew %s", a)
	}
	s.asFork(t, "import matplotlib, matplotlib.pyplot as p, os\nprint(matplotlib.get_backend().lower(), matplotlib.get_cachedir(), matplotlib.get_configdir(), p.get_fignums())\np.plot([1, 2]); p.savefig('x.png'); print(os.path.getsize('x.png') > 1000)").want(t, 0,
		"agg /tmp/home/.cache/matplotlib /tmp/home/.config/matplotlib []\nTrue\n")
	s.code(t, workbench.Bash, "echo 'lines.linewidth: 7' > matplotlibrc").want(t, 0, "")
	time.Sleep(warm)
	s.code(t, workbench.Python, "import matplotlib\nprint(matplotlib.rcParams['lines.linewidth'])").want(t, 0, "7.0\n")
}

// mustStandIn starts a process in place of a zygote.
func mustStandIn(t *testing.T) (pid int, ended chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, "sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan struct{})
	go func() { // ends with the test
		defer close(ended)
		_ = c.Wait()
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return c.Process.Pid, ended
}

// state is the letter that the kernel has for what a process does.
func state(t *testing.T, pid int) string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	return after[:1]
}

// TestTakenForkKeepsItsZygote: a fork that a run has taken is not ended with its
// zygote, also before it has its program.
func TestTakenForkKeepsItsZygote(t *testing.T) {
	pid, ended := mustStandIn(t)
	z := guest.NewZygotes(pid, ended, false)
	z.Keep()
	if !z.Take() {
		t.Fatal("there is no fork")
	}
	z.GiveUp()
	select {
	case <-ended:
		t.Fatal("the zygote of a fork that a run has taken was ended")
	case <-time.After(100 * time.Millisecond):
	}
	z.End()
	z.GiveUp()
	<-ended
}

// TestZygoteGoesOn: one that a run held up at the moment it became ready is not
// left standing.
func TestZygoteGoesOn(t *testing.T) {
	pid, ended := mustStandIn(t)
	z := guest.NewZygotes(pid, ended, true)
	z.Begun()
	for state(t, pid) != "T" {
		time.Sleep(time.Millisecond)
	}
	go z.Follow() // ends with the process
	for deadline := time.Now().Add(10 * time.Second); state(t, pid) == "T"; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the zygote stands still for good")
		}
	}
}

// TestContextGivesItsForkBack: once an interpreter that lived on has gone, its
// zygote is given up as any other when a program needs the memory.
func TestContextGivesItsForkBack(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := MustSessionOf(t, oci.Runsc, "standard")
	s.asFork(t, "")
	r := request(workbench.Python, "import os; print(os.getppid())")
	r.Context, r.Group = "lived", "lived"
	s.do(t, r).want(t, 0, "0\n")
	if err := s.Client.EndGroup(t.Context(), "lived"); err != nil {
		t.Fatal(err)
	}
	s.code(t, workbench.Bash, "python3 -c 'import time; x = bytearray(b\"x\") * (225 << 20); time.sleep(1); print(len(x) >> 20)'").want(t, 0, "225\n")
	if o := s.code(t, workbench.Python, "import os; print(os.getppid())"); o.stdout == "0\n" {
		t.Error("the zygote stayed while a program needed its memory, though no program was its fork")
	}
}

// TestSlowZygote: one that does not answer in time takes none of its forks with
// it, and programs start without it until it does.
func TestSlowZygote(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := MustSessionOf(t, oci.Runc, "standard")
	s.asFork(t, "")
	long := request(workbench.Python, "import os, time\nprint(os.getppid(), flush=True); time.sleep(9); print('done')")
	h := newHost()
	r := s.begin(t, long, h)
	<-h.wrote
	pid := mustZygote(t, s)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 2 { // with the interpreter that may wait already, and without
		s.code(t, workbench.Python, "print(6 * 7)").want(t, 0, "42\n")
		time.Sleep(500 * time.Millisecond)
	}
	r.end().want(t, 0, "0\ndone\n")
	_ = syscall.Kill(pid, syscall.SIGCONT) // it may be gone: no program is its fork
	s.asFork(t, "print(6 * 7)").want(t, 0, "42\n")
}

// mustZygote finds the process on the host, which sees a container's: of those of
// its name, for its forks have it too, the one that is no child of another.
func mustZygote(t *testing.T, s *session) int {
	t.Helper()
	parents := map[int]int{}
	all, _ := os.ReadDir("/proc")
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		group, _ := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		stat, _ := os.ReadFile("/proc/" + e.Name() + "/stat")
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, parent, …
		if err == nil && len(fields) > 1 && strings.Contains(string(line), "/zygote.py") && strings.Contains(string(group), s.Sandbox.ID()) {
			parents[pid], _ = strconv.Atoi(fields[1])
		}
	}
	found := 0
	for pid, parent := range parents {
		if _, isFork := parents[parent]; !isFork {
			found = pid
		}
	}
	if found == 0 {
		t.Fatal("no zygote")
	}
	return found
}

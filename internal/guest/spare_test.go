package guest_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// age prints for how many seconds the process has existed.
var age = map[workbench.Language]string{
	workbench.Python: `
import os
started = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
print(float(open("/proc/uptime").read().split()[0]) - started)`,
	workbench.JavaScript: `console.log(process.uptime())`,
	workbench.TypeScript: `const age: number = process.uptime(); console.log(age)`,
}

// waited runs a program and says by how much its interpreter is older than the
// run. One that was started for it is not, give or take the sandbox's clock, at
// any speed.
func (s *session) waited(t testing.TB, lang workbench.Language) time.Duration {
	t.Helper()
	o := s.code(t, lang, age[lang])
	seconds, err := strconv.ParseFloat(strings.TrimSpace(o.stdout), 64)
	if err != nil || o.ExitCode != 0 {
		t.Fatalf("%s: exit %d, stdout %q, stderr %s", lang, o.ExitCode, o.stdout, o.stderr)
	}
	return time.Duration(seconds*float64(time.Second)) - o.took
}

// warm waits until spares that can be started have been.
const warm = 5 * time.Second

// tryWarm tries something that needs spares which have started, with more time
// for that when there was too little. What is tried says what is wrong, or "".
func tryWarm(t testing.TB, try func(wait time.Duration) string) {
	t.Helper()
	var wrong string
	for _, wait := range []time.Duration{warm, 2 * warm, 4 * warm} {
		if wrong = try(wait); wrong == "" {
			return
		}
	}
	t.Error(wrong)
}

// TestInterpretersWait: a run finds an interpreter that started before it, of
// each language that is used.
func TestInterpretersWait(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := MustSession(t, oci.Runsc)
	for range 3 {
		tryWarm(t, func(wait time.Duration) string {
			time.Sleep(wait)
			for _, lang := range []workbench.Language{workbench.Python, workbench.TypeScript} {
				if got := s.waited(t, lang); got < time.Second {
					return fmt.Sprintf("the interpreter of %s is %v older than its run, though it could start %v before", lang, got, wait)
				}
			}
			return ""
		})
	}
}

// collections prints what V8 collected of its own accord while a program that
// allocates next to nothing waits for a moment: 4 and 8 are full collections.
const collections = `
import { PerformanceObserver } from "node:perf_hooks";
const full = [];
const observer = new PerformanceObserver((l) => full.push(...l.getEntries().map((e) => e.detail.kind).filter((k) => k >= 4)));
observer.observe({ entryTypes: ["gc"] });
await new Promise((wake) => setTimeout(wake, 300));
observer.disconnect();
process.stdout.write(full.join(" "));`

// TestIdleNodeCollectsNothing: V8 takes eight seconds without work for a chance
// to collect garbage. For a program that comes to a waiting interpreter, and a
// cell to a stopped context, that is when it should run.
func TestIdleNodeCollectsNothing(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := MustSession(t, oci.Runsc)
	s.code(t, workbench.JavaScript, "0").want(t, 0, "")
	s.cell(t, "c", workbench.JavaScript, "0")
	time.Sleep(2 * warm)
	s.code(t, workbench.JavaScript, collections).want(t, 0, "")
	s.cell(t, "c", workbench.JavaScript, collections).want(t, 0, "")
}

// TestUnusedInterpretersGo: one that nobody uses does not wait for ever.
func TestUnusedInterpretersGo(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := MustSession(t, oci.Runsc)
	for range 4 {
		s.code(t, workbench.Python, "0").want(t, 0, "")
	}
	time.Sleep(warm)
	if got := s.waited(t, workbench.JavaScript); got > time.Second {
		t.Errorf("the interpreter of JavaScript waited for %v, through four runs of Python", got)
	}
}

// TestInterpretersWaitDuringRuns: what runs and what waits do not reach each
// other, and the next run need not wait.
func TestInterpretersWaitDuringRuns(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := MustSession(t, oci.Runsc)
	time.Sleep(warm)
	tryWarm(t, func(wait time.Duration) string {
		s.code(t, workbench.Python, fmt.Sprintf(`
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCONT, signal.SIG_IGN)
time.sleep(%g)
print(sorted(n for n in os.listdir("/proc") if n.isdigit()) == ["1", str(os.getpid())])
for s in (signal.SIGTERM, signal.SIGCONT):
    try:
        os.kill(-1, s)
    except OSError as e:
        print(e)
`, (wait-time.Second).Seconds())).want(t, 0, "True\n[Errno 3] No such process\n[Errno 3] No such process\n")
		if got := s.waited(t, workbench.Python); got < time.Second { // older than the end of the run before
			return fmt.Sprintf("the interpreter is %v older than its run: it could start beside the one before", got)
		}
		return ""
	})
	s.code(t, workbench.Python, `
import os, time
time.sleep(3)
children = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
        children += 1
except BlockingIOError:
    print(children)
`).want(t, 0, "63\n")
}

// TestWaitingInterpreterCountsOnceUsed: the threads of an interpreter that
// waited count against its own run's tasks, and no other's.
func TestWaitingInterpreterCountsOnceUsed(t *testing.T) {
	t.Parallel() // it waits more than it works
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.JavaScript, "0").want(t, 0, "")
		time.Sleep(warm)
		o := s.code(t, workbench.JavaScript, `
import { spawn } from 'node:child_process';
import { readdirSync } from 'node:fs';
const own = readdirSync('/proc/self/task').length;
let children = 0;
for (; children < 100; children++) {
  const c = spawn('/bin/sleep', ['60'], { stdio: 'ignore' });
  c.on('error', () => {});
  if (c.pid === undefined) break;
}
console.log(own + children);
process.exit(0);
`)
		o.want(t, 0, "64\n")
	})
}

// TestInterpretersMakeRoom: a program has its memory for itself, whatever
// waits, and waiting interpreters come back when it has ended.
func TestInterpretersMakeRoom(t *testing.T) {
	s := MustSession(t, oci.Runsc)
	s.code(t, workbench.JavaScript, "0").want(t, 0, "")
	time.Sleep(warm)
	tryWarm(t, func(wait time.Duration) string {
		o := s.code(t, workbench.Python, `
import time
x = bytearray(b"x") * (225 << 20)
time.sleep(1)
print(len(x) >> 20)
`)
		o.want(t, 0, "225\n")
		// What a fork has from the beginning is not the program's.
		if least := int64(220 << 20); o.PeakBytes < least || o.PeakBytes > 256<<20 {
			t.Errorf("peak of %d MiB, want between %d and 256", o.PeakBytes>>20, least>>20)
		}
		time.Sleep(wait)
		for _, lang := range []workbench.Language{workbench.Python, workbench.JavaScript} {
			if got := s.waited(t, lang); got < time.Second {
				return fmt.Sprintf("the interpreter of %s is %v older than its run: it did not come back", lang, got)
			}
		}
		return ""
	})
	if o := s.code(t, workbench.Python, "x = bytearray(b'x') * (300 << 20)\nimport time; time.sleep(5)"); o.Reason != workbench.ReasonOutOfMemory {
		t.Errorf("300 MiB ended as exit %d, reason %q; want out_of_memory", o.ExitCode, o.Reason)
	}
}

// TestStartVariables: what an interpreter reads when it starts has its effect,
// also where others wait.
func TestStartVariables(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		r := request(workbench.Python, "import sys; print(hash('a') == hash('a'), sys.flags.hash_randomization, '/opt/x' in sys.path)")
		r.Env = map[string]string{"PYTHONHASHSEED": "0", "PYTHONPATH": "/opt/x"}
		s.do(t, r).want(t, 0, "True 0 True\n")
		r = request(workbench.JavaScript, "console.log(process.execArgv.length, new Date(0).getHours(), typeof gc)")
		r.Env = map[string]string{"NODE_OPTIONS": "--expose-gc", "TZ": "Asia/Tokyo"}
		s.do(t, r).want(t, 0, "0 9 function\n")
	})
}

// TestPrepared: a sandbox made ready for any session starts its interpreters
// before it has one, and runs nothing until then.
func TestPrepared(t *testing.T) {
	t.Parallel() // it waits more than it works
	tryWarm(t, func(wait time.Duration) string { return prepared(t, wait) })
}

// prepared binds a sandbox that has been ready for some time.
func prepared(t *testing.T, wait time.Duration) string {
	d, env := MustDriver(t, oci.Runsc)
	class := sandboxtest.Standard(env.Image)
	box, err := d.Start(t.Context(), class)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = box.Kill(context.Background()) })
	client, err := guestwire.Dial(t.Context(), box.Stream(), guestwire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	limits := guestwire.SandboxLimits{MemoryBytes: class.MemoryBytes, WorkspaceBytes: class.WorkspaceBytes, WorkspaceInodes: class.WorkspaceInodes,
		ScratchBytes: class.ScratchBytes, Tasks: class.Tasks, OpenFiles: sandboxtest.OpenFiles, CPUs: class.CPUs}
	if err := client.Prepare(t.Context(), limits); err != nil {
		t.Fatal(err)
	}
	if err := client.Prepare(t.Context(), limits); !workbench.HasCode(err, workbench.CodeConflict) {
		t.Errorf("prepared twice: %v, want conflict", err)
	}
	early := request(workbench.Python, "print(1)")
	early.ID, early.Group, early.OutputBytes = "early", "early", 1<<20
	if _, err := client.Exec(t.Context(), early, newHost()); !workbench.HasCode(err, workbench.CodeConflict) {
		t.Errorf("a run before there is a session: %v, want conflict", err)
	}
	time.Sleep(wait)
	bind := guestwire.BindRequest{SessionNonce: "s", Seed: make([]byte, 32), Limits: limits, Env: map[string]string{"OWN": "session"}}
	other := bind
	other.Limits.Tasks++
	if _, err := client.Bind(t.Context(), other); !workbench.HasCode(err, workbench.CodeConflict) {
		t.Errorf("bound with other limits: %v, want conflict", err)
	}
	bound, err := client.Bind(t.Context(), bind)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, kind: oci.Runsc, d: d, env: env, Session: &sandboxtest.Session{Sandbox: box, Client: client, Bound: bound}}
	waited := s.waited(t, workbench.Python)
	s.code(t, workbench.Python, "import os; print(os.environ['OWN'])").want(t, 0, "session\n")
	s.code(t, workbench.Bash, "echo $OWN").want(t, 0, "session\n")
	if waited < time.Second {
		return fmt.Sprintf("the interpreter is %v older than its run: it could start %v before the session", waited, wait)
	}
	return ""
}

// TestNothingRunsBetweenRuns: what a run leaves where an interpreter looks when
// it starts does not run before another run does, and then has its effect.
func TestNothingRunsBetweenRuns(t *testing.T) {
	t.Parallel() // it waits more than it works
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Python, `
import os, site
d = site.getusersitepackages()
os.makedirs(d)
beat = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        with open('/mnt/files/beats', 'a') as f: f.write('x')
        time.sleep(0.05)
"""
with open(d + "/usercustomize.py", "w") as f: f.write(beat)
with open(d + "/planted.pth", "w") as f: f.write("import os; os.environ['PLANTED'] = '1'\n")
with open(d + "/own.py", "w") as f: f.write("name = 'mine'\n")
`).want(t, 0, "")
		_, res := s.scan(t, "")
		time.Sleep(warm)
		found, _ := s.scan(t, res.Token)
		if len(found.order) != 0 {
			t.Errorf("between two runs the workspace changed: %q", found.order)
		}
		s.code(t, workbench.Bash, "ls /mnt/files").want(t, 0, "")
		s.code(t, workbench.Python, "import os, own, sys, site; print(own.name, os.environ['PLANTED'], 'PYTHONUSERBASE' in os.environ, sys.flags.no_user_site)").want(t, 0, "mine 1 False 0\n")
	})
}

// TestOpenFilesEndAProgram: a program that dies of too many open files says so,
// however fast.
func TestOpenFilesEndAProgram(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		for lang, code := range map[workbench.Language]string{
			workbench.Python:     "f = []\nwhile True: f.append(open('/dev/null'))",
			workbench.JavaScript: "import fs from 'node:fs'; while (true) fs.openSync('/dev/null')",
		} {
			if o := s.code(t, lang, code); o.ExitCode != 1 || !slices.Contains(o.LimitsHit, workbench.LimitOpenFiles) {
				t.Errorf("%s: exit %d, limits %q; want 1 and open_files", lang, o.ExitCode, o.LimitsHit)
			}
		}
	})
}

// TestMemoryOfAShortProgram: a program that uses too much and ends at once has
// used too much all the same.
func TestMemoryOfAShortProgram(t *testing.T) {
	t.Parallel() // it waits more than it works
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.JavaScript, "0").want(t, 0, "")
		time.Sleep(warm)
		o := s.code(t, workbench.JavaScript, "const held = []; for (let i = 0; i < 320; i++) held.push(Buffer.alloc(1 << 20, 1)); process.exit(0);")
		if o.Reason != workbench.ReasonOutOfMemory && o.Signal != "SIGKILL" {
			t.Errorf("320 MiB at once ended with exit %d, reason %q", o.ExitCode, o.Reason)
		}
		s.code(t, workbench.Python, "print(len(bytearray(b'x') * (150 << 20)) >> 20)").want(t, 0, "150\n")
	})
}

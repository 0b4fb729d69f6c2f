package guest_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// The reports of other systems' users, each with the value it should have.
func TestFieldOutputAndInput(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		for _, c := range []struct {
			name   string
			lang   workbench.Language
			source string
			stdin  string
			exit   int
			stdout string
			stderr string // contained
		}{
			{name: "B1 character split between two reads", lang: workbench.Python, source: "import sys, time\nfor b in \"añ☕漢\".encode():\n    sys.stdout.buffer.write(bytes([b])); sys.stdout.flush(); time.sleep(0.02)\n", stdout: "añ☕漢"},
			{name: "B2 bytes that are not UTF-8", lang: workbench.Python, source: `import sys; sys.stdout.buffer.write(b"ok\xff\xfeend\n")`, stdout: "ok\xff\xfeend\n"},
			{name: "B4 last line without newline", lang: workbench.Bash, source: `printf 'one\ntwo'`, stdout: "one\ntwo"},
			{name: "B5 blank lines and CR", lang: workbench.Bash, source: `printf 'a\n\nb\r\n\n\nc\n'`, stdout: "a\n\nb\r\n\n\nc\n"},
			{name: "B7 large stdout", lang: workbench.Python, source: `print("x" * 3_000_000)`, stdout: strings.Repeat("x", 3_000_000) + "\n"},
			{name: "B8 one pipe floods", lang: workbench.Python, source: "import sys\nsys.stderr.write(\"e\" * 2_000_000); print(\"done\")", stdout: "done\n", stderr: strings.Repeat("e", 2_000_000)},
			{name: "B13 stdin is at its end", lang: workbench.Bash, source: "cat; echo after", stdout: "after\n"},
			{name: "B13 input()", lang: workbench.Python, source: "input()", exit: 1, stderr: "EOFError"},
			{name: "stdin is given", lang: workbench.Python, source: "import sys; print(len(sys.stdin.buffer.read())); print(repr(sys.stdin.read()))", stdin: strings.Repeat("\x00\xffline\n", 50_000), stdout: "350000\n''\n"},
			{name: "stdin that nobody reads", lang: workbench.Bash, source: "echo hi", stdin: strings.Repeat("x", 1<<20), stdout: "hi\n"},
			{name: "B15 heredoc", lang: workbench.Bash, source: "cat <<'EOF'\nhi\nEOF\necho done\n", stdout: "hi\ndone\n"},
			{name: "B15 heredoc whose end is the last line", lang: workbench.Bash, source: "cat <<'EOF'\nhi\nEOF", stdout: "hi\n"},
			{name: "B16 long source, Python", lang: workbench.Python, source: strings.Repeat("#", 300_000) + "\nprint(\"long ok\")", stdout: "long ok\n"},
			{name: "B16 long source, Bash", lang: workbench.Bash, source: strings.Repeat("#", 1_000_000) + "\necho long ok", stdout: "long ok\n"},
			{name: "B16 long source, JavaScript", lang: workbench.JavaScript, source: "//" + strings.Repeat("#", 1_000_000) + "\nconsole.log('long ok')", stdout: "long ok\n"},
			{name: "B33 module and top-level await", lang: workbench.JavaScript, source: "import { basename } from \"node:path\";\nconst v = await Promise.resolve(basename(\"/x/y.txt\"));\nconsole.log(v);", stdout: "y.txt\n"},
			{name: "B33 in TypeScript", lang: workbench.TypeScript, source: "import { basename } from \"node:path\";\nconst v: string = await Promise.resolve(basename(\"/x/y.txt\"));\nconsole.log(v);", stdout: "y.txt\n"},
			{name: "B34 asyncio.run", lang: workbench.Python, source: "import asyncio\nasync def main():\n    await asyncio.sleep(0); print('ok')\nasyncio.run(main())", stdout: "ok\n"},
			{name: "B34 bare await", lang: workbench.Python, source: "import asyncio\nawait asyncio.sleep(0); print('ok')", stdout: "ok\n"},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := request(c.lang, c.source)
				r.Stdin = []byte(c.stdin)
				o := s.do(t, r)
				o.want(t, c.exit, c.stdout)
				if !strings.Contains(o.stderr, c.stderr) {
					t.Errorf("stderr %q does not contain %q", clip(o.stderr), clip(c.stderr))
				}
				if o.Total.Stdout != int64(len(c.stdout)) || o.Reason != "" || len(o.LimitsHit) != 0 {
					t.Errorf("%+v", o.ExecResult)
				}
				if o.took > 40*time.Second {
					t.Errorf("took %v", o.took)
				}
			})
		}
	})
}

func TestFieldProcesses(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		t.Run("B10 no end before the process has ended", func(t *testing.T) {
			o := s.code(t, workbench.Bash, "sleep 1.5; echo late; exit 7")
			o.want(t, 7, "late\n")
			if o.took < 1500*time.Millisecond {
				t.Errorf("ended after %v", o.took)
			}
		})
		t.Run("B12 text before the timeout is kept", func(t *testing.T) {
			r := request(workbench.Python, "import time\nprint(\"before\"); time.sleep(60)")
			o := s.doWithin(t, r, printed, time.Second, time.Second, time.Second, time.Second)
			if o.Reason != workbench.ReasonTimeout || o.stdout != "before\n" || !slices.Equal(o.LimitsHit, []string{workbench.LimitTime}) || o.took > 30*time.Second {
				t.Errorf("%+v %q after %v", o.ExecResult, o.stdout, o.took)
			}
		})
		t.Run("B20 a background child does not hold the end", func(t *testing.T) {
			o := s.code(t, workbench.Bash, "sleep 300 & echo started")
			o.want(t, 0, "started\n")
			if o.took > 30*time.Second {
				t.Errorf("took %v", o.took)
			}
			s.nothingRuns(t)
		})
		t.Run("B20 with Python and a detached grandchild", func(t *testing.T) {
			o := s.code(t, workbench.Python, "import subprocess\nsubprocess.Popen(['setsid', 'sh', '-c', 'sleep 300 & sleep 301'])\nprint('started')")
			o.want(t, 0, "started\n")
			s.nothingRuns(t)
		})
		t.Run("B21 a timeout kills everything", func(t *testing.T) {
			r := request(workbench.Bash, "(trap '' TERM; sleep 61) & setsid sleep 62 & sleep 63")
			r.Timeout = time.Second
			o := s.do(t, r)
			if o.Reason != workbench.ReasonTimeout || o.took > 30*time.Second {
				t.Errorf("%+v after %v", o.ExecResult, o.took)
			}
			s.nothingRuns(t)
		})
		t.Run("B25 an interrupt reaches a child", func(t *testing.T) {
			r := request(workbench.Python, "import subprocess, sys\ntry:\n    print('up', flush=True)\n    subprocess.run([\"sleep\", \"30\"])\nexcept KeyboardInterrupt: print(\"KI\", flush=True)")
			r.Grace = 20 * time.Second // it ends by the interrupt
			o := s.cancel(t, r, 500*time.Millisecond)
			if o.Reason != workbench.ReasonCancelled || o.stdout != "up\nKI\n" {
				t.Errorf("%+v %q %q", o.ExecResult, o.stdout, o.stderr)
			}
			s.nothingRuns(t)
		})
		t.Run("H25 a program that ignores TERM and stops itself", func(t *testing.T) {
			o := s.cancel(t, request(workbench.Python, "import os, signal\nfor n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(n, signal.SIG_IGN)\nprint('up', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass"), 0)
			if o.Reason != workbench.ReasonCancelled || o.Signal != "SIGKILL" || o.stdout != "up\n" {
				t.Errorf("%+v %q", o.ExecResult, o.stdout)
			}
		})
		t.Run("B29 a killed interpreter", func(t *testing.T) {
			o := s.code(t, workbench.Python, "import os, signal; print('x'); os.kill(os.getpid(), signal.SIGKILL)")
			if o.ExitCode != -1 || o.Signal != "SIGKILL" || o.Reason != "" || o.stdout != "x\n" || o.took > 30*time.Second {
				t.Errorf("%+v %q after %v", o.ExecResult, o.stdout, o.took)
			}
		})
		t.Run("H27 zombies are reaped", func(t *testing.T) {
			s.code(t, workbench.Python, `
import os, time
for i in range(100):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.wait()
def zombie(p):
    try: return open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError: return False  # it has gone
end = time.monotonic() + 20
while (left := sum(zombie(p) for p in os.listdir("/proc") if p.isdigit())) and time.monotonic() < end: time.sleep(0.02)
print(left)
`).want(t, 0, "0\n")
		})
		t.Run("argv", func(t *testing.T) {
			o := s.do(t, guestwire.ExecRequest{Argv: []string{"printf", "%s.%s", "a b", "\xff"}})
			o.want(t, 0, "a b.\xff")
			s.do(t, guestwire.ExecRequest{Argv: []string{"no-such-command"}}).want(t, 127, "")
			s.do(t, guestwire.ExecRequest{Argv: []string{"sh", "-c", "kill -TERM $$"}}).want(t, -1, "")
		})
		t.Run("several at once", func(t *testing.T) {
			var runs []*run
			for range 6 {
				runs = append(runs, s.begin(t, request(workbench.Bash, "for i in $(seq 200); do echo $i; done"), newHost()))
			}
			var want bytes.Buffer
			for i := range 200 {
				want.WriteString(itoa(i+1) + "\n")
			}
			for _, r := range runs {
				r.end().want(t, 0, want.String())
			}
		})
	})
}

// nothingRuns checks from a new run, and at the guest, that no process of an
// earlier one is left.
func (s *session) nothingRuns(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for ; ; time.Sleep(5 * time.Millisecond) {
		g, err := s.Client.ListGroups(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(g) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("groups left: %+v", g)
		}
	}
}

// cancel cancels a run some time after it printed.
func (s *session) cancel(t testing.TB, x guestwire.ExecRequest, after time.Duration) outcome {
	t.Helper()
	h := newHost()
	r := s.begin(t, x, h)
	<-h.wrote
	time.Sleep(after)
	began := time.Now()
	if err := r.Cancel(t.Context()); err != nil {
		t.Fatalf("cancel: %v", err)
	}
	o := r.end()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("ended %v after the cancel", took)
	}
	return o
}

func TestFieldLimits(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		t.Run("B42 memory", func(t *testing.T) {
			o := s.code(t, workbench.Python, "print('first'); x = bytearray(2_000_000_000); print('never')")
			if o.Reason != workbench.ReasonOutOfMemory || o.stdout != "first\n" || !slices.Contains(o.LimitsHit, workbench.LimitMemory) || o.PeakBytes < 200<<20 {
				t.Errorf("%+v %q %q", o.ExecResult, o.stdout, o.stderr)
			}
			s.code(t, workbench.Python, "print('alive')").want(t, 0, "alive\n")
		})
		t.Run("H04 many small eaters", func(t *testing.T) {
			o := s.code(t, workbench.Python, "import os, time\nfor i in range(50):\n    if os.fork() == 0:\n        x = bytearray(10_000_000)\n        for j in range(0, len(x), 4096): x[j] = 1\n        time.sleep(60)\ntime.sleep(60)")
			if o.Reason != workbench.ReasonOutOfMemory || o.PeakBytes < 200<<20 {
				t.Errorf("%+v %q", o.ExecResult, clip(o.stderr))
			}
		})
		t.Run("B42 full workspace", func(t *testing.T) {
			o := s.code(t, workbench.Python, "print('before', flush=True)\nopen(\"f\",\"wb\").write(b\"0\"*100_000_000)")
			if o.ExitCode != 1 || o.stdout != "before\n" || !strings.Contains(o.stderr, "OSError: [Errno 28]") || !slices.Contains(o.LimitsHit, workbench.LimitWorkspace) {
				t.Errorf("%+v %q %q", o.ExecResult, o.stdout, o.stderr)
			}
			s.code(t, workbench.Python, "import os; os.unlink('f'); open('g', 'w').write('fits'); print('ok')").want(t, 0, "ok\n")
		})
		t.Run("scratch", func(t *testing.T) {
			o := s.code(t, workbench.Python, "import os\ntry: open('/tmp/f','wb').write(b'0'*100_000_000)\nexcept OSError as e: print(e.errno)\nos.unlink('/tmp/f')")
			o.want(t, 0, "28\n")
			s.code(t, workbench.Bash, "df -k --output=size /tmp /dev/shm | tail -n 2 | sort -u | wc -l").want(t, 0, "1\n")
		})
		t.Run("H01 fork bomb", func(t *testing.T) {
			r := request(workbench.Python, "import os, errno\nn = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            import time; time.sleep(60); os._exit(0)\n        n += 1\nexcept OSError as e: print(e.errno == errno.EAGAIN, n)")
			o := s.do(t, r)
			o.want(t, 0, "True 63\n")
			if !slices.Contains(o.LimitsHit, workbench.LimitTasks) {
				t.Errorf("limits hit: %v", o.LimitsHit)
			}
			s.nothingRuns(t)
			s.code(t, workbench.Python, "print('alive')").want(t, 0, "alive\n")
		})
		t.Run("threads count", func(t *testing.T) {
			o := s.code(t, workbench.Python, "import threading, time\nn = 0\ntry:\n    while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\nexcept RuntimeError as e: print(n, e)")
			o.want(t, 0, "63 can't start new thread\n")
		})
		t.Run("H15 descriptors", func(t *testing.T) {
			s.code(t, workbench.Python, "import errno\nf = []\ntry:\n    while True: f.append(open('/dev/null'))\nexcept OSError as e: print(e.errno == errno.EMFILE, 200 < len(f) < 256)").want(t, 0, "True True\n")
		})
		t.Run("H19 output flood", func(t *testing.T) {
			r := request(workbench.Bash, "yes 0123456789")
			r.OutputBytes = 1000
			o := s.doWithin(t, r, func(o outcome) bool { return o.Total.Stdout >= 1_000_000 }, 2*time.Second, 4*time.Second, 8*time.Second)
			if o.Reason != workbench.ReasonTimeout || len(o.stdout) != 1000 || o.Forwarded.Stdout != 1000 || o.Total.Stdout < 1_000_000 {
				t.Errorf("%+v, %d bytes", o.ExecResult, len(o.stdout))
			}
		})
	})
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

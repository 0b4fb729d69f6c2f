package guest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// TestContextsStandStillBetweenCells: a heartbeat of a thread and one of a
// detached child stop with the cell and go on with the next.
func TestContextsStandStillBetweenCells(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.cell(t, "beat", workbench.Python, `
import subprocess, threading, time
subprocess.Popen(["setsid", "sh", "-c", "while :; do echo x >> child; sleep 0.02; done"])
def beat():
    while True:
        with open("thread", "a") as f: f.write("x")
        print("tick", flush=True)
        time.sleep(0.02)
threading.Thread(target=beat, daemon=True).start()
import os
while not (os.path.exists("child") and os.path.exists("thread")): time.sleep(0.01)
`)
		sizes := func() [2]int64 {
			f, _ := s.scan(t, "")
			return [2]int64{f.entries["child"].Size, f.entries["thread"].Size}
		}
		first := sizes()
		time.Sleep(500 * time.Millisecond)
		if again := sizes(); again != first || first[0] == 0 || first[1] == 0 {
			t.Errorf("between cells the heartbeats went from %v to %v", first, again)
		}
		s.code(t, workbench.Bash, "sleep 0.5; wc -c < child").want(t, 0, fmt.Sprintf("%d\n", first[0]))
		s.cell(t, "other", workbench.Python, "import time; time.sleep(0.3)").want(t, 0, "")
		if again := sizes(); again != first {
			t.Errorf("beside another context the heartbeats went from %v to %v", first, again)
		}
		o := s.cell(t, "beat", workbench.Python, "n = os.path.getsize('child'), os.path.getsize('thread')\nwhile os.path.getsize('child') < n[0] + 4 or os.path.getsize('thread') < n[1] + 4: time.sleep(0.01)\nprint('done')")
		if !strings.Contains(o.stdout, "done\n") || strings.Count(o.stdout, "tick\n") < 3 {
			t.Errorf("in the next cell: %q", o.stdout)
		}
		if err := s.Client.EndGroup(t.Context(), "beat"); err != nil {
			t.Fatal(err)
		}
		s.cell(t, "beat", workbench.Python, "'os' in dir()").wantShown(t, "result False")
	})
}

func TestHostileCells(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		alive := func(t *testing.T) {
			t.Helper()
			s.cell(t, "h", workbench.Python, "print('fine')").want(t, 0, "fine\n")
		}
		for name, source := range map[string]string{
			"closes every descriptor":     "import os; os.closerange(0, 256)",
			"closes standard output":      "import os, sys; os.close(1); os.close(2)",
			"closes sys.stdout":           "import sys; sys.stdout.close(); sys.stderr.close()",
			"replaces sys.stdout":         "import sys\nclass W:\n    def write(self, s): raise ValueError('no')\n    def flush(self): raise ValueError('no')\nsys.stdout = W(); sys.stdout = sys.__stdout__",
			"writes on every descriptor":  "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'=1 0\\nready\\nbegan\\n\\xff\\xff garbage that is longer than any line may be')\n    except OSError: pass",
			"forks away":                  "import os\nif os.fork(): os._exit(0)\nimport time; time.sleep(60)",
			"double forks":                "import os, time\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)\nos.wait()",
			"kills process 1":             "import os, signal\nos.kill(1, signal.SIGKILL)",
			"kills everything":            "import os, signal\nos.kill(-1, signal.SIGKILL)",
			"stops itself":                "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
			"handles continuing":          "import signal\nsignal.signal(signal.SIGCONT, lambda *a: print('continued'))\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
			"replaces the kernel's parts": "import os, builtins, json\nos.write = None\njson.dumps = None\nbuiltins.print = None\nbuiltins.open = None",
		} {
			t.Run(name, func(t *testing.T) {
				if o := s.cell(t, "h", workbench.Python, "1"); o.ExitCode != 0 {
					t.Fatalf("%+v", o)
				}
				r := inContext("h", workbench.Python, source)
				r.Timeout, r.Grace = 3*time.Second, 500*time.Millisecond
				o := s.do(t, r)
				if o.Context == nil || o.took > 20*time.Second {
					t.Errorf("%+v after %v", o.ExecResult, o.took)
				}
				if err := s.Client.EndGroup(t.Context(), "h"); err != nil {
					t.Fatal(err)
				}
				alive(t)
			})
		}
		t.Run("64 tasks", func(t *testing.T) {
			o := s.cell(t, "tasks", workbench.Python, "import threading, time\nn = 0\ntry:\n    while True: threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); n += 1\nexcept RuntimeError as e: print(e)")
			o.want(t, 0, "can't start new thread\n")
			if !slices.Contains(o.LimitsHit, workbench.LimitTasks) {
				t.Errorf("limits: %v", o.LimitsHit)
			}
			if err := s.Client.EndGroup(t.Context(), "tasks"); err != nil {
				t.Fatal(err)
			}
			alive(t)
		})
		t.Run("memory", func(t *testing.T) {
			o := s.cell(t, "big", workbench.Python, "print('first'); x = bytearray(2_000_000_000)")
			if o.Reason != workbench.ReasonOutOfMemory || o.stdout != "first\n" || o.Context.Alive {
				t.Errorf("%+v %q %q", o.ExecResult, o.stdout, o.stderr)
			}
			s.cell(t, "big", workbench.Python, "1").wantContext(t, guestwire.ContextState{Fresh: true, Alive: true, Cell: 1})
		})
		t.Run("a flood of displays is counted", func(t *testing.T) {
			o := s.cell(t, "h", workbench.Python, "for i in range(120): workbench.display(i)")
			if len(o.shown) != 100 || o.Displays != 120 || o.DisplaysDropped != 20 || o.ExitCode != 0 {
				t.Errorf("%d shown, %+v %s", len(o.shown), o.ExecResult, clip(o.stderr))
			}
			o = s.cell(t, "h", workbench.Python, "for i in range(3): workbench.display({'text/plain': 'x' * 7_000_000})")
			if len(o.shown) != 2 || o.Displays != 3 || o.DisplaysDropped != 1 {
				t.Errorf("%d shown, %+v %s", len(o.shown), o.ExecResult, clip(o.stderr))
			}
		})
		t.Run("a display of a child process", func(t *testing.T) {
			o := s.cell(t, "h", workbench.Python, "import os\nif os.fork() == 0:\n    workbench.display('child'); os._exit(0)\nos.wait()\n'parent'")
			o.wantShown(t, "display 'child'", "result 'parent'")
		})
		t.Run("another cell's token", func(t *testing.T) {
			s.cell(t, "h", workbench.Python, "import os; old = os.environ['WORKBENCH_TOKEN']")
			s.cell(t, "h", workbench.Python, "os.environ['WORKBENCH_TOKEN'] = old\ntry: workbench.result(1)\nexcept Exception as e: print(e.code)").want(t, 0, "forbidden\n")
		})
		t.Run("B31 two cells at once", func(t *testing.T) {
			s.cell(t, "h", workbench.Python, "count = 0").want(t, 0, "")
			a := s.begin(t, inContext("h", workbench.Python, "count += 1; c = count\nfor i in range(50): print('A', i, flush=True)"), newHost())
			b := s.begin(t, inContext("h", workbench.Python, "count += 1\nfor i in range(50): print('B', i, flush=True)"), newHost())
			var wantA, wantB strings.Builder
			for i := range 50 {
				fmt.Fprintf(&wantA, "A %d\n", i)
				fmt.Fprintf(&wantB, "B %d\n", i)
			}
			a.end().want(t, 0, wantA.String())
			b.end().want(t, 0, wantB.String())
			s.cell(t, "h", workbench.Python, "print(count - c)").want(t, 0, "1\n")
		})
		t.Run("too many", func(t *testing.T) {
			var err error
			for i := range 9 {
				r := inContext(fmt.Sprintf("many%d", i), workbench.Bash, "true")
				r.ID, r.OutputBytes = r.Context, 1
				var e *guestwire.Exec
				if e, err = s.Client.Exec(t.Context(), r, newHost()); err != nil {
					break
				}
				if _, err := e.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if workbench.AsError(err).Code != workbench.CodeCapacity {
				t.Errorf("%v", err)
			}
		})
	})
}

// TestFiguresOfACell is FIELD B35 and N3.
func TestFiguresOfACell(t *testing.T) {
	s := MustIPython(t, oci.Runsc)
	const png = "iVBORw0KGgo"
	o := s.cell(t, "py", workbench.Python, "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()\nplt.bar(['a'], [3]); plt.show()\nprint('x')")
	o.want(t, 0, "x\n")
	if len(o.shown) != 2 || !strings.HasPrefix(o.shown[0].data["image/png"], png) || !strings.HasPrefix(o.shown[1].data["image/png"], png) || o.shown[0].data["image/png"] == o.shown[1].data["image/png"] {
		t.Errorf("%q %s", o.kinds(), o.stderr)
	}
	o = s.cell(t, "py", workbench.Python, "plt.plot([1, 2])\n1/0")
	if o.ExitCode != 1 || len(o.shown) != 2 || !strings.HasPrefix(o.shown[0].data["image/png"], png) || o.shown[1].Kind != guestwire.DisplayError {
		t.Errorf("a figure before an error: %d %q %s", o.ExitCode, o.kinds(), o.stderr)
	}
	if o = s.cell(t, "py", workbench.Python, "2"); len(o.shown) != 1 {
		t.Errorf("the next cell shows %q", o.kinds())
	}
	o = s.cell(t, "py", workbench.Python, "import pandas as pd\npd.DataFrame({'a': [1, 2]})")
	if len(o.shown) != 1 || !strings.Contains(o.shown[0].data["text/html"], "<table") || !strings.Contains(o.shown[0].data["text/plain"], "0  1") {
		t.Errorf("a table: %q %s", o.kinds(), o.stderr)
	}
	for _, magic := range []string{"%matplotlib inline", "%matplotlib notebook", "%matplotlib", "%gui"} {
		if o := s.cell(t, "py", workbench.Python, magic); o.ExitCode != 0 {
			t.Errorf("%s: exit %d, stderr %s", magic, o.ExitCode, clip(o.stderr))
		}
	}
	o = s.cell(t, "py", workbench.Python, "%%bash\necho one\nfalse || echo two")
	o.want(t, 0, "one\ntwo\n")
	o = s.cell(t, "py", workbench.Python, "!echo three; sleep 0.01; echo four >&2")
	o.want(t, 0, "three\n")
	if o.stderr != "four\n" {
		t.Errorf("stderr %q", o.stderr)
	}
	o = s.code(t, workbench.Python, "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()")
	if len(o.shown) != 1 || !strings.HasPrefix(o.shown[0].data["image/png"], png) {
		t.Errorf("of a plain run: %q %s", o.kinds(), o.stderr)
	}
	f, _ := s.scan(t, "")
	if len(f.entries) != 0 {
		t.Errorf("in the workspace: %v", f.order)
	}
}

// BenchmarkCell measures a cell over the wire, without a scan, and beside it a
// round trip to the guest that does nothing.
func BenchmarkCell(b *testing.B) {
	for _, kind := range []oci.Kind{oci.Runsc, oci.Runc} {
		for _, c := range []struct {
			lang   workbench.Language
			source string
		}{{workbench.Python, "x = 1"}, {workbench.Python, "1"}, {workbench.JavaScript, "const x = 1"}, {workbench.JavaScript, "1"}, {workbench.Bash, "x=1"}} {
			b.Run(string(kind)+" "+string(c.lang)+" "+c.source, func(b *testing.B) {
				s := MustSession(b, kind)
				s.cell(b, "c", c.lang, c.source)
				var cells, pings []time.Duration
				for b.Loop() {
					began := time.Now()
					s.cell(b, "c", c.lang, c.source)
					cells = append(cells, time.Since(began))
					ping, err := s.Client.Ping(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					pings = append(pings, ping)
				}
				for name, all := range map[string][]time.Duration{"cell": cells, "ping": pings} {
					slices.Sort(all)
					b.ReportMetric(float64(all[len(all)/2].Microseconds()), name+"-median-µs")
					b.ReportMetric(float64(all[len(all)/10].Microseconds()), name+"-p10-µs")
				}
			})
		}
	}
}

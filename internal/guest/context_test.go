package guest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// inContext is a request for a cell.
func inContext(name string, lang workbench.Language, source string) guestwire.ExecRequest {
	r := request(lang, source)
	r.Context, r.Group = name, name
	return r
}

// cell runs a cell to its end.
func (s *session) cell(t testing.TB, name string, lang workbench.Language, source string) outcome {
	t.Helper()
	return s.do(t, inContext(name, lang, source))
}

// wantContext compares what became of the interpreter.
func (o outcome) wantContext(t testing.TB, want guestwire.ContextState) {
	t.Helper()
	if o.Context == nil || *o.Context != want {
		t.Errorf("context %+v, want %+v; exit %d %s %s\nstderr: %s", o.Context, want, o.ExitCode, o.Signal, o.Reason, clip(o.stderr))
	}
}

// kinds are what was displayed, in order, and the plain text of each.
func (o outcome) kinds() (all []string) {
	for _, d := range o.shown {
		all = append(all, d.Kind+" "+d.data["text/plain"])
	}
	return all
}

func (o outcome) wantShown(t testing.TB, want ...string) {
	t.Helper()
	if got := o.kinds(); !slices.Equal(got, want) {
		t.Errorf("displayed %q, want %q\nstderr: %s", got, want, clip(o.stderr))
	}
}

// onBoth runs a test with plain Python and with IPython.
func onBoth(t *testing.T, f func(t *testing.T, s *session)) {
	t.Run("plain on runc", func(t *testing.T) { f(t, MustSession(t, oci.Runc)) })
	if sandboxtest.Soak() {
		t.Run("plain on runsc", func(t *testing.T) { f(t, MustSession(t, oci.Runsc)) })
	}
	t.Run("IPython on runsc", func(t *testing.T) { f(t, MustIPython(t, oci.Runsc)) })
}

func TestPythonContext(t *testing.T) {
	onBoth(t, func(t *testing.T, s *session) {
		for i, c := range []struct {
			source string
			exit   int
			stdout string
			stderr string // contained
			shown  []string
		}{
			{source: "x = 20\nx + 1", shown: []string{"result 21"}},
			{source: "print(x); x += 1; x", stdout: "20\n", shown: []string{"result 21"}},
			{source: "x;"},
			{source: "None"},
			{source: "1/0", exit: 1, stderr: "File \"cell-5.py\", line 1", shown: []string{"error ZeroDivisionError: division by zero"}},
			{source: "x = 1\nif x", exit: 1, stderr: "    if x\n", shown: []string{"error SyntaxError: expected ':' (cell-6.py, line 2)"}},
			{source: "import asyncio\nawait asyncio.sleep(0); print('ok')", stdout: "ok\n"},
			{source: "async def main():\n    await asyncio.sleep(0); print('B34')\nasyncio.run(main())", stdout: "B34\n"},
			{source: "input()", exit: 1, stderr: "EOFError", shown: []string{"error EOFError: EOF when reading a line"}},
			{source: "def f():\n    raise ValueError('é')"},
			{source: "f()", exit: 1, stderr: "File \"cell-10.py\", line 2, in f", shown: []string{"error ValueError: é"}},
			{source: "print('a'); workbench.display({'text/plain': 'b'}); print('c'); 'd'", stdout: "a\nc\n", shown: []string{"display b", "result 'd'"}},
			{source: "display(5)", shown: []string{"display 5"}},
			{source: "import os\nif os.fork() == 0: print('child', flush=True)\nelse: os.wait(); print('parent')", stdout: "child\nparent\n"},
			{source: "print('x' * 300_000)", stdout: strings.Repeat("x", 300_000) + "\n"},
			{source: "#" + strings.Repeat("#", 900_000) + "\nprint('long ok')", stdout: "long ok\n"},
			{source: "__name__, __builtins__.__name__, os.getcwd()", shown: []string{"result ('__main__', 'builtins', '/mnt/files')"}},
		} {
			o := s.cell(t, "py", workbench.Python, c.source)
			o.want(t, c.exit, c.stdout)
			o.wantShown(t, c.shown...)
			o.wantContext(t, guestwire.ContextState{Fresh: i == 0, Alive: true, Cell: int64(i + 1)})
			if !strings.Contains(o.stderr, c.stderr) || c.stderr == "" && o.stderr != "" {
				t.Errorf("%q: stderr %q, want %q in it", clip(c.source), clip(o.stderr), c.stderr)
			}
		}
		t.Run("B24 after a timeout the next cell works", func(t *testing.T) {
			s.cell(t, "b24", workbench.Python, "x = 1").want(t, 0, "")
			r := inContext("b24", workbench.Python, "while True: pass")
			r.Timeout, r.Grace = time.Second, 20*time.Second
			o := s.do(t, r)
			if o.Reason != workbench.ReasonTimeout || !o.Context.Alive || o.ExitCode != 130 {
				t.Errorf("%+v %+v %s", o.ExecResult, o.Context, o.stderr)
			}
			if !strings.HasSuffix(o.stderr, "KeyboardInterrupt\n") || strings.Contains(o.stderr, "kernel.py") {
				t.Errorf("the trace is not the cell's: %s", o.stderr)
			}
			s.cell(t, "b24", workbench.Python, "print(x)").want(t, 0, "1\n")
			r = inContext("b24", workbench.Python, "import asyncio\nawait asyncio.sleep(60)")
			r.Timeout, r.Grace = time.Second, 20*time.Second
			if o := s.do(t, r); o.Reason != workbench.ReasonTimeout || !o.Context.Alive {
				t.Errorf("%+v %+v %s", o.ExecResult, o.Context, o.stderr)
			}
			s.cell(t, "b24", workbench.Python, "await asyncio.sleep(0); print(x)").want(t, 0, "1\n")
			r = inContext("b24", workbench.Python, "while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass")
			r.Timeout = time.Second
			o = s.do(t, r)
			if o.Reason != workbench.ReasonTimeout || o.Signal != "SIGKILL" || o.Context.Alive {
				t.Errorf("%+v %+v %s", o.ExecResult, o.Context, o.stderr)
			}
			s.cell(t, "b24", workbench.Python, "x").wantContext(t, guestwire.ContextState{Fresh: true, Alive: true, Cell: 1})
		})
		t.Run("B25 an interrupt reaches a child", func(t *testing.T) {
			h := newHost()
			x := inContext("py", workbench.Python, "import subprocess\ntry:\n    print('up', flush=True)\n    subprocess.run([\"sleep\", \"30\"])\nexcept KeyboardInterrupt: print(\"KI\", flush=True)")
			x.Grace = 20 * time.Second // it ends by the interrupt
			r := s.begin(t, x, h)
			<-h.wrote
			time.Sleep(500 * time.Millisecond)
			if err := r.Cancel(t.Context()); err != nil {
				t.Fatal(err)
			}
			o := r.end()
			o.want(t, 0, "up\nKI\n")
			if o.Reason != workbench.ReasonCancelled || !o.Context.Alive {
				t.Errorf("%+v %+v", o.ExecResult, o.Context)
			}
			s.cell(t, "py", workbench.Python, "print([p for p in os.listdir('/proc') if p.isdigit() and b'sleep' in open(f'/proc/{p}/cmdline','rb').read()], x)").want(t, 0, "[] 21\n")
		})
		t.Run("B29 a killed interpreter", func(t *testing.T) {
			o := s.cell(t, "py", workbench.Python, "import os, signal; print('x'); os.kill(os.getpid(), signal.SIGKILL)")
			if o.Signal != "SIGKILL" || o.stdout != "x\n" || o.Context.Alive {
				t.Errorf("%+v %q", o.ExecResult, o.stdout)
			}
			o = s.cell(t, "py", workbench.Python, "print('new', 'x' in dir())")
			o.want(t, 0, "new False\n")
			o.wantContext(t, guestwire.ContextState{Fresh: true, Alive: true, Cell: 1})
		})
		t.Run("exit", func(t *testing.T) {
			for source, code := range map[string]int{"import sys; sys.exit(3)": 3, "exit()": 0, "import os; os._exit(7)": 7, "raise SystemExit('words')": 1} {
				o := s.cell(t, "exits", workbench.Python, "import atexit; atexit.register(lambda: print('bye'))\n"+source)
				o.wantContext(t, guestwire.ContextState{Fresh: true, Cell: 1})
				want := "bye\n"
				if code == 7 {
					want = ""
				}
				o.want(t, code, want)
			}
		})
	})
}

func TestJavaScriptContext(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		const js, ts = workbench.JavaScript, workbench.TypeScript
		for i, c := range []struct {
			lang   workbench.Language
			source string
			exit   int
			stdout string
			stderr string // contained
			shown  []string
		}{
			{lang: js, source: "let x = 20; x + 1", shown: []string{"result 21"}},
			{lang: js, source: "console.log(x); const x = 1, [y, {z = 5}] = [2, {}]; x", stdout: "20\n", shown: []string{"result 1"}},
			{lang: js, source: "const x = 1, [y, {z = 5}] = [2, {}]\nclass C { m() { return x } }\nx + y + z", shown: []string{"result 8"}},
			{lang: js, source: "function f() { return new C().m() + y }\nf()", shown: []string{"result 3"}},
			{lang: js, source: "import { basename } from \"node:path\";\nconst v = await Promise.resolve(basename(\"/x/y.txt\"));\nconsole.log(v);", stdout: "y.txt\n"},
			{lang: js, source: "import { basename } from \"node:path\";\nconst v = await Promise.resolve(basename(\"/x/z.txt\"));\nconsole.log(v);", stdout: "z.txt\n"},
			{lang: js, source: "for (var i = 0; i < 3; i++) {}\nif (true) { var q = 7 }\n({ i, q })", shown: []string{"result { i: 3, q: 7 }"}},
			{lang: js, source: "require('fs').writeFileSync('lib.mjs', 'export const n = 42; export default \"d\"')"},
			{lang: js, source: "import d, { n as m } from './lib.mjs'; [d, m, (await import('./lib.mjs')).n]", shown: []string{"result [ 'd', 42, 42 ]"}},
			{lang: js, source: "import { nope } from './lib.mjs'", exit: 1, stderr: "does not provide an export named 'nope'", shown: []string{"error SyntaxError: The requested module './lib.mjs' does not provide an export named 'nope'"}},
			{lang: js, source: "\nnull.x", exit: 1, stderr: "cell-11.mjs:2", shown: []string{"error TypeError: Cannot read properties of null (reading 'x')"}},
			{lang: js, source: "let a = 1;\nlet b = = 2", exit: 1, stderr: "let b = = 2\n        ^"},
			{lang: js, source: "Promise.reject(new RangeError('lost')); 5", exit: 1, stderr: "RangeError: lost", shown: []string{"result 5", "error RangeError: lost"}},
			{lang: js, source: "console.log('a'); workbench.display({ 'text/plain': 'b' }); await workbench.display(6); console.log('c')", stdout: "a\nc\n", shown: []string{"display b", "display 6"}},
			{lang: ts, source: "interface P { n: number }\nconst p: P = { n: 3 };\nenum E { A = 4 }\np.n + E.A", shown: []string{"result 7"}},
			{lang: ts, source: "import { join } from 'node:path';"},
			{lang: ts, source: "join('a', 'b') as string", shown: []string{"result 'a/b'"}},
			{lang: ts, source: "const q: number = ;", exit: 1, stderr: "cell-18.ts:1:19\nconst q: number = ;\n                  ^\n\nSyntaxError: Unexpected \";\"\n",
				shown: []string{"error SyntaxError: Unexpected \";\" (cell-18.ts:1:19)"}},
			{lang: js, source: "p.n", shown: []string{"result 3"}},
			{lang: ts, source: "// one\n// two\ninterface A { n: number }\n\nthrow new Error('at five')", exit: 1, stderr: "cell-20.ts:5:"},
			{lang: ts, source: "import { readFileSync } from 'node:fs'\ntype T =\n  string\n\nreadFileSync('nope')", exit: 1, stderr: "cell-21.ts:5:"},
			{lang: ts, source: "enum D {\n  A,\n  B,\n}\nconst u = 1\nthrow new Error('at six')", exit: 1, stderr: "cell-22.ts:6:"},
			{lang: ts, source: "interface B { n: number }\n\nconst t = `a;\n  ${[1,\n  2]}\n;b {`\nt", shown: []string{"result 'a;\\n  1,2\\n;b {'"}},
			{lang: js, source: "workbench.display(7)", shown: []string{"display 7"}},
			{lang: js, source: "await workbench.display(8)", shown: []string{"display 8"}},
			{lang: js, source: "Promise.resolve(9)", shown: []string{"result Promise { 9 }"}},
			{lang: js, source: "workbench.save('nope')", exit: 1, stderr: "WorkbenchError: "},
		} {
			o := s.cell(t, "js", c.lang, c.source)
			o.want(t, c.exit, c.stdout)
			if c.exit == 0 || c.shown != nil {
				o.wantShown(t, c.shown...)
			}
			o.wantContext(t, guestwire.ContextState{Fresh: i == 0, Alive: true, Cell: int64(i + 1)})
			if !strings.Contains(o.stderr, c.stderr) || c.stderr == "" && o.stderr != "" {
				t.Errorf("%q: stderr %q, want %q in it", clip(c.source), clip(o.stderr), c.stderr)
			}
		}
		t.Run("another language", func(t *testing.T) {
			r := inContext("js", workbench.Python, "1")
			r.ID = "other"
			if _, err := s.Client.Exec(t.Context(), r, newHost()); workbench.AsError(err).Code != workbench.CodeConflict {
				t.Errorf("%v", err)
			}
		})
		t.Run("an interrupt ends the cell alone", func(t *testing.T) {
			for _, source := range []string{"while (true) {}", "await null; while (true) {}", "await new Promise(() => {})", "setTimeout(() => { while (true) {} }, 10); await new Promise(() => {})"} {
				r := inContext("js", js, source)
				r.Timeout, r.Grace = time.Second, 20*time.Second
				o := s.do(t, r)
				if o.Reason != workbench.ReasonTimeout || o.ExitCode != 130 || !o.Context.Alive {
					t.Errorf("%q: %+v %+v %s", source, o.ExecResult, o.Context, o.stderr)
				}
				s.cell(t, "js", js, "p.n").wantShown(t, "result 3")
			}
		})
		t.Run("what does not want to be shown", func(t *testing.T) {
			for source, shown := range map[string]string{
				"throw undefined": "error Error: undefined",
				"throw new Proxy(() => {}, { get() { throw new Error('g') }, getPrototypeOf() { throw 1 } })":                                                    "error Error: [Function (anonymous)]",
				"throw Object.defineProperties(new Error('x'), Object.fromEntries(['stack', 'name', 'message', 'code'].map((n) => [n, { get() { throw 1 } }])))": "error Error: ",
				"const c = {}; c.c = c; c":          "result <ref *1> { c: [Circular *1] }",
				`const h = ["\ud800", "\u00e9"]; h`: `result [ '\ud800', 'é' ]`,
			} {
				r := inContext("js", js, source)
				r.Timeout = 20 * time.Second
				o := s.do(t, r)
				if o.Reason != "" || o.ExitCode != 0 && !strings.HasPrefix(shown, "error") || !o.Context.Alive {
					t.Errorf("%q: %+v %s", source, o.ExecResult, o.stderr)
				}
				o.wantShown(t, shown)
			}
		})
		t.Run("exit", func(t *testing.T) {
			o := s.cell(t, "js", js, "process.on('exit', () => console.log('bye')); process.exit(42)")
			o.want(t, 42, "bye\n")
			if o.Context.Alive {
				t.Error("the context lives on")
			}
			s.cell(t, "js", js, "typeof p").wantShown(t, "result 'undefined'")
		})
	})
}

func TestBashContext(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		for i, c := range []struct {
			source string
			exit   int
			stdout string
		}{
			{"x=5; f() { echo f $1; }; cd /tmp; set -o pipefail; declare -A m; m[a]=1", 0, ""},
			{"echo $x ${m[a]}; f 3; pwd; set -o | grep pipefail", 0, "5 1\nf 3\n/tmp\npipefail       \ton\n"},
			{"cat <<'EOF'\nhi\nEOF\necho done\n", 0, "hi\ndone\n"},
			{"cat <<'EOF'\nhi\nEOF", 0, "hi\n"},
			{"printf 'one\\ntwo'", 0, "one\ntwo"},
			{"cat; echo after", 0, "after\n"},
			{"false", 1, ""},
			{"echo $?; nosuchcommand", 127, "1\n"},
			{"echo 'unfinished", 2, ""},
			{"ls /proc/self/fd | wc -l; exec 9>&1; return 3", 3, "4\n"},
			{"sleep 300 & echo started", 0, "started\n"},
			{"kill %1 && echo killed", 0, "killed\n"},
		} {
			o := s.cell(t, "sh", workbench.Bash, c.source)
			o.want(t, c.exit, c.stdout)
			o.wantContext(t, guestwire.ContextState{Fresh: i == 0, Alive: true, Cell: int64(i + 1)})
		}
		t.Run("B23 exit ends the context", func(t *testing.T) {
			o := s.cell(t, "sh", workbench.Bash, "echo bye; exit 42")
			o.want(t, 42, "bye\n")
			o.wantContext(t, guestwire.ContextState{Cell: 13})
			o = s.cell(t, "sh", workbench.Bash, "echo ${x-unset}")
			o.want(t, 0, "unset\n")
			o.wantContext(t, guestwire.ContextState{Fresh: true, Alive: true, Cell: 1})
		})
		t.Run("an interrupt ends the cell alone", func(t *testing.T) {
			for _, source := range []string{"sleep 60; echo bad", "f() { while :; do :; done; echo bad; }; f; echo bad", "bash -c 'sleep 60'; echo bad"} {
				r := inContext("sh", workbench.Bash, source)
				r.Timeout, r.Grace = time.Second, 20*time.Second
				o := s.do(t, r)
				o.want(t, 130, "")
				if o.Reason != workbench.ReasonTimeout || !o.Context.Alive {
					t.Errorf("%q: %+v %+v %s", source, o.ExecResult, o.Context, o.stderr)
				}
			}
			s.cell(t, "sh", workbench.Bash, "echo alive; shopt -q extdebug; echo $?").want(t, 0, "alive\n1\n")
		})
	})
}

// A cell that counts on what earlier ones left does not run where their
// interpreter is gone; any other begins a new one.
func TestCellThatNeedsALivingInterpreter(t *testing.T) {
	s := MustSession(t, oci.Runsc)
	r := inContext("kept", workbench.Bash, "touch ran; echo $v")
	r.ID, r.Living, r.Timeout = "needs-1", true, 30*time.Second
	_, err := s.Client.Exec(t.Context(), r, newHost())
	if !workbench.HasCode(err, workbench.CodeContextLost) {
		t.Fatalf("error %v, want context_lost", err)
	}
	s.cell(t, "kept", workbench.Bash, "v=1").wantContext(t, guestwire.ContextState{Fresh: true, Alive: true, Cell: 1})
	r.Source = []byte("ls; echo $v")
	if o := s.do(t, r); o.stdout != "1\n" {
		t.Fatalf("stdout %q, want what the earlier cell left and no file", o.stdout)
	}
	s.cell(t, "kept", workbench.Bash, "exit 3").wantContext(t, guestwire.ContextState{Cell: 3})
	r.ID = "needs-2"
	if _, err := s.Client.Exec(t.Context(), r, newHost()); !workbench.HasCode(err, workbench.CodeContextLost) {
		t.Fatalf("error %v, want context_lost", err)
	}
}

// TestNothingWakesAContext: code that would have the kernel continue it between
// two cells stands still all the same.
func TestNothingWakesAContext(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.cell(t, "waker", workbench.Python, `
import ctypes, fcntl, os, signal, threading, time
libc = ctypes.CDLL(None, use_errno=True)
event = (ctypes.c_int * 16)()
event[2] = signal.SIGCONT
timer = ctypes.c_void_p()
every = (ctypes.c_long * 4)(0, 1_000_000, 0, 1_000_000)
if libc.timer_create(1, event, ctypes.byref(timer)) == 0:
    libc.timer_settime(timer, 0, every, None)
def beat():
    n = 0
    while True:
        n += 1
        with open("beat.new", "w") as f: f.write(str(n))
        os.rename("beat.new", "beat")
        time.sleep(0.002)
threading.Thread(target=beat, daemon=True).start()
while not os.path.exists("beat"): time.sleep(0.01)
`).want(t, 0, "")
		s.code(t, workbench.Python, `
import time
def read(): return open("beat").read()
first = read()
time.sleep(0.5)
print(read() == first)
`).want(t, 0, "True\n")
	})
}

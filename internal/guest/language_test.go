package guest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

type languageCase struct {
	name   string
	source string
	args   []string
	env    map[string]string
	exit   int
	stdout string
	stderr []string // contained, in order
	not    []string // contained in neither stream
}

func (c languageCase) run(t *testing.T, s *session, lang workbench.Language) {
	t.Run(c.name, func(t *testing.T) {
		r := request(lang, c.source)
		r.Args, r.Env = c.args, c.env
		o := s.do(t, r)
		o.want(t, c.exit, c.stdout)
		rest := o.stderr
		for _, want := range c.stderr {
			i := strings.Index(rest, want)
			if i < 0 {
				t.Errorf("stderr lacks %q in\n%s", want, clip(o.stderr))
				break
			}
			rest = rest[i+len(want):]
		}
		for _, not := range append(c.not, "driver.py", "driver.cjs") {
			if strings.Contains(o.stderr, not) || strings.Contains(o.stdout, not) {
				t.Errorf("output has %q:\n%s\n%s", not, clip(o.stdout), clip(o.stderr))
			}
		}
	})
}

// mustWorkspace lays out local modules for imports.
func (s *session) mustModules(t testing.TB) {
	t.Helper()
	s.code(t, workbench.Bash, `
mkdir -p lib
echo 'VALUE = "py"' > local.py
echo 'export let count = 0; export const up = () => { count++ }; export const where = import.meta.url;' > lib/m.mjs
echo 'module.exports = { value: "cjs", dir: __dirname }' > lib/c.cjs
printf 'export interface A { n: number }\nexport const twice = (a: A): number => a.n * 2;\nexport function boom(): never {\n  throw new Error("in lib");\n}\n' > lib/t.ts
echo '{"name": "x"}' > data.json
`).want(t, 0, "")
}

func TestPython(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		s.mustModules(t)
		for _, c := range []languageCase{
			{name: "main module", source: "import __main__, sys, os\nprint(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), __main__.__name__, __doc__ is None, '__spec__' in globals())", args: []string{"a b", "ü"},
				stdout: "__main__ /mnt/files/main.py ['main.py', 'a b', 'ü'] /mnt/files /mnt/files __main__ True True\n"},
			{name: "traceback", source: "def f(x):\n    return 1 / x\n\nprint('a')\nf(0)\n", exit: 1, stdout: "a\n",
				stderr: []string{"Traceback (most recent call last):\n  File \"/mnt/files/main.py\", line 5, in <module>\n    f(0)\n", "File \"/mnt/files/main.py\", line 2, in f\n    return 1 / x\n", "ZeroDivisionError: division by zero\n"}},
			{name: "chained exceptions", source: "try:\n    1/0\nexcept Exception as e:\n    raise ValueError('v') from e", exit: 1, stderr: []string{"ZeroDivisionError", "direct cause", "line 4, in <module>\n    raise ValueError('v') from e", "ValueError: v"}},
			{name: "traceback of an await", source: "import asyncio\nawait asyncio.sleep(0)\nraise KeyError('k')", exit: 1, stderr: []string{"line 3, in <module>\n    raise KeyError('k')\n", "KeyError: 'k'"}},
			{name: "syntax error", source: "print('x')\nif True\n    pass", exit: 1, stderr: []string{"File \"/mnt/files/main.py\", line 2\n    if True\n", "SyntaxError: expected ':'"}, not: []string{"Traceback"}},
			{name: "local import", source: "import local; print(local.VALUE)", stdout: "py\n"},
			{name: "exit code", source: "import sys; print('x'); sys.exit(42)", exit: 42, stdout: "x\n"},
			{name: "exit with a text", source: "raise SystemExit('message')", exit: 1, stderr: []string{"message\n"}, not: []string{"Traceback"}},
			{name: "exit with None", source: "raise SystemExit"},
			{name: "exit beyond a byte", source: "import sys; sys.exit(300)", exit: 44},
			{name: "exit inside a function called at exit", source: "import atexit\natexit.register(print, 'bye')\nprint('hi')\nexit(3)", exit: 3, stdout: "hi\nbye\n"},
			{name: "os._exit", source: "import os; print('x', flush=True); os._exit(5)", exit: 5, stdout: "x\n"},
			{name: "threads are joined", source: "import threading, time\ndef f():\n    time.sleep(0.3); print('late')\nthreading.Thread(target=f).start()\nprint('early')", stdout: "early\nlate\n"},
			{name: "files left open are written out", source: "f = open('open.txt', 'w'); f.write('kept')\nclass C: pass\nc = C(); c.c = c; c.f = open('cycle.txt', 'w'); c.f.write('kept too')\nimport builtins; builtins.g = open('builtin.txt', 'w'); builtins.g.write('and this'); del f"},
			{name: "they were", source: "print(open('open.txt').read(), open('cycle.txt').read(), open('builtin.txt').read())", stdout: "kept kept too and this\n"},
			{name: "destructors run", source: "class C:\n    def __del__(self): print('deleted')\nc = C()", stdout: "deleted\n"},
			{name: "environment", source: "import os; print(os.environ['A'], os.environ['HOME'], os.environ['TMPDIR'], os.environ['OMP_NUM_THREADS'], 'WORKBENCH_TOKEN' in os.environ)", env: map[string]string{"A": "1=2\n3"}, stdout: "1=2\n3 /tmp/home /tmp 1 True\n"},
			{name: "multiprocessing, fork", source: "import multiprocessing as mp\ndef f(x): return x * x\nif __name__ == '__main__':\n    with mp.get_context('fork').Pool(2) as p: print(p.map(f, range(5)))", stdout: "[0, 1, 4, 9, 16]\n"},
			{name: "multiprocessing, spawn", source: "import multiprocessing as mp\ndef f(x): return x * x\nif __name__ == '__main__':\n    with mp.get_context('spawn').Pool(2) as p: print(p.map(f, range(5)))", stdout: "[0, 1, 4, 9, 16]\n"},
			{name: "multiprocessing, forkserver", source: "import multiprocessing as mp\ndef f(x): return x * x\nif __name__ == '__main__':\n    with mp.get_context('forkserver').Pool(2) as p: print(p.map(f, range(5)))", stdout: "[0, 1, 4, 9, 16]\n"},
			{name: "process pool", source: "from concurrent.futures import ProcessPoolExecutor\ndef f(x): return x + 1\nif __name__ == '__main__':\n    with ProcessPoolExecutor(2) as p: print(list(p.map(f, range(3))))", stdout: "[1, 2, 3]\n"},
			{name: "a forked child that returns", source: "import os, sys\npid = os.fork()\nif pid: os.waitpid(pid, 0); print('parent'); sys.exit(4)\nprint('child')", exit: 4, stdout: "child\nparent\n"},
			{name: "pickling of main's classes", source: "import pickle\nclass P: pass\nprint(type(pickle.loads(pickle.dumps(P()))).__name__)", stdout: "P\n"},
			{name: "inspect and dataclasses", source: "import inspect, dataclasses, typing\n@dataclasses.dataclass\nclass A:\n    x: int = 1\ndef f():\n    return 'source'\nprint(inspect.getsource(f), typing.get_type_hints(A))", stdout: "def f():\n    return 'source'\n {'x': <class 'int'>}\n"},
			{name: "threads that go on at the end", source: "import threading, time\nx = [0]\nclass Slow:\n    def __del__(self, wait=time.sleep): wait(0.3)\ndef f():\n    while True: len(x)\nslow = Slow()\nthreading.Thread(target=f, daemon=True).start()\nprint('end')", stdout: "end\n", not: []string{"Traceback"}},
			{name: "threads that fail before", source: "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", stderr: []string{"ZeroDivisionError"}},
			{name: "own excepthook", source: "import sys\nsys.excepthook = lambda t, v, tb: print('hook', t.__name__, tb.tb_lineno)\nraise KeyError", exit: 1, stdout: "hook KeyError 3\n"},
			{name: "a module named like the helper's parts", source: "import json, socket; print(json.__file__.startswith('/usr/lib'))", stdout: "True\n"},
			{name: "UTF-8 with a mark, and a declared encoding", source: "\ufeff# -*- coding: utf-8 -*-\nprint('é')", stdout: "é\n"},
			{name: "no source in the workspace or the command line", source: "import os\nprint(os.path.exists('main.py'), b'CANARY' in open('/proc/self/cmdline','rb').read()) # CANARY", stdout: "False False\n"},
			{name: "subprocess", source: "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, text=True).stdout)", stdout: "1\n\n"},
			{name: "recursion", source: "def f(): f()\nf()", exit: 1, stderr: []string{"RecursionError"}},
			{name: "descriptors", source: "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:5])", stdout: "[0, 1, 2, 3, 5]\n"},
		} {
			c.run(t, s, workbench.Python)
		}
	})
}

func TestJavaScript(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		s.mustModules(t)
		for _, c := range []languageCase{
			{name: "relative import with live bindings", source: "import { count, up, where } from './lib/m.mjs';\nup(); up(); console.log(count, where);", stdout: "2 file:///mnt/files/lib/m.mjs\n"},
			{name: "dynamic import and import.meta", source: "const m = await import('./lib/m.mjs'); console.log(m.where, import.meta.url, import.meta.resolve('./x.mjs'));", stdout: "file:///mnt/files/lib/m.mjs file:///mnt/files/main.mjs file:///mnt/files/x.mjs\n"},
			{name: "CommonJS", source: "const { value, dir } = require('./lib/c.cjs'); const fs = require('fs');\nconsole.log(value, dir, __filename, __dirname, require.main === module, typeof exports, this === module.exports, require('./data.json').name);", stdout: "cjs /mnt/files/lib /mnt/files/main.mjs /mnt/files true object true x\n"},
			{name: "both styles", source: "import fs from 'node:fs';\nconst { value } = require('./lib/c.cjs');\nconsole.log(value, typeof fs.readFileSync, __dirname, await 1);", stdout: "cjs function /mnt/files 1\n"},
			{name: "import of CommonJS", source: "import c from './lib/c.cjs'; console.log(c.value)", stdout: "cjs\n"},
			{name: "arguments", source: "console.log(process.argv.slice(1).join('|'), process.cwd(), process.env.A)", args: []string{"a b", "ü"}, env: map[string]string{"A": "1"}, stdout: "/mnt/files/main.mjs|a b|ü /mnt/files 1\n"},
			{name: "uncaught error", source: "console.log('a');\nfunction f() {\n  throw new TypeError('bad');\n}\nf();", exit: 1, stdout: "a\n", stderr: []string{"file:///mnt/files/main.mjs:3\n  throw new TypeError('bad');", "TypeError: bad\n    at f (file:///mnt/files/main.mjs:3:9)\n    at file:///mnt/files/main.mjs:5:1"}},
			{name: "uncaught error, CommonJS", source: "const fs = require('fs');\nthrow new Error('bad');", exit: 1, stderr: []string{"/mnt/files/main.mjs:2\nthrow new Error('bad');", "Error: bad\n    at Object.<anonymous> (/mnt/files/main.mjs:2:7)"}},
			{name: "thrown later", source: "setTimeout(() => { throw new Error('late') }, 10)", exit: 1, stderr: []string{"Error: late"}},
			{name: "thrown value that is no error", source: "throw 'text'", exit: 1, stderr: []string{"text"}},
			{name: "unhandled rejection", source: "Promise.reject(new Error('nobody'))", exit: 1, stderr: []string{"Error: nobody"}},
			{name: "unhandled rejection in the top level", source: "await Promise.reject(new Error('nobody'))", exit: 1, stderr: []string{"Error: nobody"}},
			{name: "syntax error", source: "console.log('x')\nlet a = ;\n", exit: 1, stderr: []string{"file:///mnt/files/main.mjs:2\nlet a = ;", "SyntaxError: Unexpected token ';'"}},
			{name: "missing module", source: "import 'nothing-like-this'", exit: 1, stderr: []string{"Cannot find package 'nothing-like-this'"}},
			{name: "exit code", source: "process.on('exit', (c) => console.log('exit', c)); process.exit(42)", exit: 42, stdout: "exit 42\n"},
			{name: "process.exitCode", source: "process.exitCode = 7; process.on('exit', () => console.log('last'))", exit: 7, stdout: "last\n"},
			{name: "exit code set in the handler", source: "process.on('exit', () => { process.exitCode = 9 })", exit: 9},
			{name: "beforeExit", source: "let n = 0; process.on('beforeExit', () => { if (n++ < 2) setTimeout(() => console.log(n), 1) })", stdout: "1\n2\n"},
			{name: "handled uncaught exception", source: "process.on('uncaughtException', (e) => console.log('caught', e.message)); setTimeout(() => { throw new Error('x') }, 1)", stdout: "caught x\n"},
			{name: "an await that never ends", source: "console.log('a'); await new Promise(() => {})", exit: 13, stdout: "a\n", stderr: []string{"top-level await"}},
			{name: "event loop runs out", source: "setTimeout(() => console.log('timer'), 50); console.log('first')", stdout: "first\ntimer\n"},
			{name: "stdin at its end", source: "let n = 0; for await (const c of process.stdin) n += c.length; console.log(n)", stdout: "0\n"},
			{name: "large output", source: "process.stdout.write('x'.repeat(1000000)); process.exit(0)", stdout: strings.Repeat("x", 1_000_000)},
			{name: "worker threads and children", source: "import { Worker } from 'node:worker_threads'; import { execFileSync } from 'node:child_process';\nnew Worker('console.log(\"worker\")', { eval: true }).on('exit', () => console.log(execFileSync(process.execPath, ['-p', '1+1']).toString().trim(), process.execArgv.length))", stdout: "worker\n2 0\n"},
			{name: "hashbang", source: "#!/usr/bin/env node\nconsole.log('ok')", stdout: "ok\n"},
			{name: "network interfaces", source: "import os from 'node:os'; console.log(typeof os.networkInterfaces())", stdout: "object\n"},
			{name: "source is in no file of the workspace", source: "import fs from 'node:fs'; console.log(fs.existsSync('main.mjs'), fs.readFileSync('/proc/self/cmdline', 'utf8').includes('CANARY'))", stdout: "false false\n"},
		} {
			c.run(t, s, workbench.JavaScript)
		}
	})
}

func TestTypeScript(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		s.mustModules(t)
		for _, c := range []languageCase{
			{name: "types, enums and await", source: "enum E { A = 1, B }\ninterface P { name: string }\nconst p: P = { name: await Promise.resolve('x') };\nconsole.log(p.name satisfies string, E.B, E[1]);", stdout: "x 2 A\n"},
			{name: "local TypeScript", source: "import { twice, type A } from './lib/t';\nconst a: A = { n: 21 };\nconsole.log(twice(a));", stdout: "42\n"},
			{name: "local TypeScript with endings", source: "import { twice } from './lib/t.ts';\nimport { twice as again } from './lib/t.js';\nconsole.log(twice({n: 1}), again({n: 2}));", stdout: "2 4\n"},
			{name: "local JavaScript", source: "import { up, where } from './lib/m.mjs';\nimport c from './lib/c.cjs';\nup(); console.log(where, c.value);", stdout: "file:///mnt/files/lib/m.mjs cjs\n"},
			{name: "trace with the source's lines", source: "interface Unused {\n  a: string;\n  b: number;\n}\n\nfunction f(x: number): never {\n  throw new Error('at seven');\n}\nf(1);\n", exit: 1, stderr: []string{"main.ts:7", "throw new Error('at seven');", "Error: at seven\n    at f (/mnt/files/main.ts:7:9)"}},
			{name: "trace into a local module", source: "import { boom } from './lib/t';\nboom();", exit: 1, stderr: []string{"Error: in lib", "/mnt/files/lib/t.ts:4:9)", "/mnt/files/main.ts:2:1"}},
			{name: "missing local module", source: "import { x } from './lib/none'; console.log(x);", exit: 1, stderr: []string{"Cannot find module '/mnt/files/lib/none'"}},
			{name: "arguments", source: "console.log(process.argv.slice(2))", args: []string{"a"}, stdout: "[ 'a' ]\n"},
			{name: "exit code", source: "const n: number = 3; process.exit(n)", exit: 3},
		} {
			c.run(t, s, workbench.TypeScript)
		}
		t.Run("syntax error", func(t *testing.T) {
			o := s.code(t, workbench.TypeScript, "const a: number = ;\n")
			if o.ExitCode != 1 || o.Reason != workbench.ReasonCompile || !strings.Contains(o.stderr, "main.ts:1:19\nconst a: number = ;\n                  ^") || !strings.Contains(o.stderr, "const a: number = ;") {
				t.Errorf("%+v %q", o.ExecResult, o.stderr)
			}
		})
	})
}

func TestBash(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		for _, c := range []languageCase{
			{name: "arguments", source: `echo "$0|$1|$#|$PWD"`, args: []string{"a b", "c"}, stdout: "main.sh|a b|2|/mnt/files\n"},
			{name: "exit code", source: "echo x; exit 42", exit: 42, stdout: "x\n"},
			{name: "line numbers", source: "true\nnosuchthing\n", exit: 127, stderr: []string{"main.sh: line 2: nosuchthing: command not found"}},
			{name: "syntax error", source: "if true; then", exit: 2, stderr: []string{"main.sh: line"}},
			{name: "hashbang and set -e", source: "#!/bin/bash\nset -euo pipefail\nfalse\necho never", exit: 1},
			{name: "reading stdin", source: "read x; echo \"got $x $?\"", stdout: "got  1\n"},
			{name: "functions, arrays, process substitution", source: "a=(1 2 3); f() { cat <(echo \"${a[@]}\"); }; f", stdout: "1 2 3\n"},
			{name: "a broken pipe ends the writer", source: "yes | head -n 2; echo ${PIPESTATUS[0]}", stdout: "y\ny\n141\n"},
			{name: "umask and identity", source: "umask; id -u; id -g; touch f; stat -c '%a %u' f; rm f", stdout: "0022\n1000\n1000\n644 1000\n"},
		} {
			c.run(t, s, workbench.Bash)
		}
	})
}

func TestHelper(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		wantFiles := func(t *testing.T, o outcome, want ...string) {
			t.Helper()
			var got []string
			for _, f := range o.files {
				got = append(got, f.path+"="+string(f.content))
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("kept %q, want %q; stderr %s", got, want, clip(o.stderr))
			}
		}
		t.Run("Python as the seed prints it", func(t *testing.T) {
			o := s.code(t, workbench.Python, "r = arc0.save(\"summary.txt\", \"Reviewed output\")\nprint(r.status, r[\"id\"], r.size)\nimport workbench, arc0 as other\nprint(other is workbench)")
			o.want(t, 0, "saved art_1 15\nTrue\n")
			wantFiles(t, o, "summary.txt=Reviewed output")
		})
		t.Run("Python, what can be saved", func(t *testing.T) {
			o := s.code(t, workbench.Python, "import io, pathlib, workbench\nopen('e','w').write('exists')\nworkbench.save('e')\nworkbench.save('d/sub/b', bytearray(b'bytes'))\nworkbench.save('p', pathlib.Path('e'))\nworkbench.save('io', io.StringIO('text'))\nworkbench.save('/mnt/files/abs', memoryview(b'view'))\nworkbench.save(pathlib.Path('été'), '')")
			o.want(t, 0, "")
			wantFiles(t, o, "abs=view", "d/sub/b=bytes", "e=exists", "io=text", "p=exists", "été=")
		})
		t.Run("result", func(t *testing.T) {
			o := s.code(t, workbench.Python, "workbench.result(1); workbench.result({'rows': [1, 2.5, None, 'é']})")
			if o.want(t, 0, ""); o.result != `{"rows":[1,2.5,null,"é"]}` {
				t.Errorf("result %s", o.result)
			}
			o = s.code(t, workbench.Python, "try: workbench.result('x' * 300_000)\nexcept workbench.WorkbenchError as e: print(e.code, e.hint)")
			o.want(t, 0, "body_too_large save it as a file instead\n")
			const html = 50_000 // of them have 250 KB, and more than 1 MB where each < is escaped
			want := `{"html":"` + strings.Repeat("<td>&", html) + `"}`
			o = s.code(t, workbench.Python, fmt.Sprintf("workbench.result({'html': '<td>&' * %d})", html))
			if o.want(t, 0, ""); o.result != want {
				t.Errorf("a table of %d bytes came with %d: %s", len(want), len(o.result), clip(o.result))
			}
			o = s.code(t, workbench.Bash, fmt.Sprintf(`{ printf '{"html":"'; yes '<td>&' | head -n %d | tr -d '\n'; printf '"}'; } | workbench result -`, html))
			if o.want(t, 0, ""); o.result != want {
				t.Errorf("of a shell %d bytes came: %s", len(o.result), clip(o.result))
			}
		})
		t.Run("H86 H91 H92 what is not saved", func(t *testing.T) {
			o := s.code(t, workbench.Python, `
import os, socket
os.symlink("/etc/passwd", "l1"); os.symlink("/proc/self/environ", "l2"); os.symlink("/", "root"); os.mkfifo("ff"); os.mkdir("dd")
s = socket.socket(socket.AF_UNIX); s.bind("ss")
open("inner", "w").write("x"); os.symlink("inner", "l3")
for p in ("l1", "l2", "l3", "root/etc/passwd", "ff", "dd", "ss", "none", "/etc/passwd", "../../etc/passwd", "/dev/zero"):
    try: print(p, workbench.save(p))
    except workbench.WorkbenchError as e: print(p, e.code)
`)
			o.want(t, 0, "l1 path_conflict\nl2 path_conflict\nl3 path_conflict\nroot/etc/passwd path_conflict\nff path_conflict\ndd path_conflict\nss path_conflict\nnone not_found\n/etc/passwd path_invalid\n../../etc/passwd path_invalid\n/dev/zero path_invalid\n")
			wantFiles(t, o)
		})
		t.Run("the host refuses", func(t *testing.T) {
			h := newHost()
			h.refuse = workbench.E(workbench.CodeFileTooLarge, "the file has 9 bytes, 8 are allowed").WithHint("split it")
			o := s.begin(t, request(workbench.Python, "try: workbench.save('x', 'y' * 2_000_000)\nexcept workbench.WorkbenchError as e: print(e.code, e.hint)"), h).end()
			o.want(t, 0, "file_too_large split it\n")
		})
		t.Run("JavaScript", func(t *testing.T) {
			o := s.code(t, workbench.JavaScript, "import helper, { save } from 'workbench'; import arc from 'arc0';\nconst r = await workbench.save('a.txt', 'one'); console.log(r.id, arc === helper, arc0.save === save);\narc0.save('b.txt', new Uint8Array([65, 66])); workbench.save('a.txt'); workbench.save('c/d.txt', new Blob(['blob'])); workbench.result({ n: 1 });")
			o.want(t, 0, "art_1 true true\n")
			wantFiles(t, o, "a.txt=one", "a.txt=one", "b.txt=AB", "c/d.txt=blob")
			if o.result != `{"n":1}` {
				t.Errorf("result %s", o.result)
			}
			s.code(t, workbench.JavaScript, "const { save, WorkbenchError } = require('workbench'); save('none').catch(e => console.log(e instanceof WorkbenchError, e.code))").want(t, 0, "true not_found\n")
			s.code(t, workbench.JavaScript, "workbench.save('none')").want(t, 1, "")
		})
		t.Run("TypeScript", func(t *testing.T) {
			o := s.code(t, workbench.TypeScript, "import { save } from 'workbench';\nconst r: { id: string } = await save('t.txt', 'ts'); console.log(r.id);")
			o.want(t, 0, "art_1\n")
			wantFiles(t, o, "t.txt=ts")
		})
		t.Run("shell", func(t *testing.T) {
			o := s.code(t, workbench.Bash, "mkdir -p sh; cd sh; printf sh > a; printf b > b; workbench save a b && echo '{\"ok\": true}' | workbench result -\nworkbench save none; echo $?\nworkbench result nope; echo $?")
			o.want(t, 0, "art_1\tsh/a\nart_2\tsh/b\n1\n2\n")
			wantFiles(t, o, "sh/a=sh", "sh/b=b")
			if o.result != `{"ok":true}` {
				t.Errorf("result %s", o.result)
			}
		})
		t.Run("H84 another run's token is refused", func(t *testing.T) {
			s.code(t, workbench.Bash, "echo $WORKBENCH_TOKEN > token; echo $WORKBENCH_SOCKET > socket").want(t, 0, "")
			s.code(t, workbench.Python, `
import os
old, sock = open("token").read().strip(), open("socket").read().strip()
mine = os.environ["WORKBENCH_TOKEN"]
for token, path in ((old, os.environ["WORKBENCH_SOCKET"]), (mine, sock), ("", os.environ["WORKBENCH_SOCKET"])):
    os.environ["WORKBENCH_TOKEN"] = token
    keep, os.environ["WORKBENCH_SOCKET"] = os.environ["WORKBENCH_SOCKET"], path
    try: workbench.save("token"); print("kept")
    except workbench.WorkbenchError as e: print(e.code)
    os.environ["WORKBENCH_SOCKET"] = keep
`).want(t, 0, "forbidden\nunavailable\nforbidden\n")
		})
		t.Run("H85 a thousand calls at once", func(t *testing.T) {
			o := s.code(t, workbench.JavaScript, "let ok = 0; await Promise.all(Array.from({ length: 1000 }, () => workbench.result(1).then(() => ok++))); console.log(ok)")
			o.want(t, 0, "1000\n")
		})
		t.Run("slow and broken callers", func(t *testing.T) {
			o := s.code(t, workbench.Python, `
import os, socket
path = os.environ["WORKBENCH_SOCKET"]
held = []
for i in range(60):
    c = socket.socket(socket.AF_UNIX); c.connect(path); held.append(c)
for raw in (b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\5hello", b"\0\0\0\0"):
    c = socket.socket(socket.AF_UNIX); c.connect(path); c.sendall(raw)
    print(c.recv(1000)[4:].decode().split('"')[5])
print(workbench.save("x", "y").status)
`)
			o.want(t, 0, "body_too_large\nforbidden\ninvalid_request\ninvalid_request\nsaved\n")
		})
	})
}

// TestPrint: the print of this place is the built-in one to every program.
func TestPrint(t *testing.T) {
	s := MustSession(t, oci.Runsc)
	o := s.code(t, workbench.Python, `
import contextlib, io, pickle, sys
print(1, "a", None, sep="-", end="!\n", flush=True)
print(pickle.loads(pickle.dumps(print)) is print, print.__name__, print.__module__)
with contextlib.redirect_stdout(io.StringIO()) as held: print("held", 2)
print(repr(held.getvalue()))
print("to stderr", file=sys.stderr)
for wrong in ({"sep": 3}, {"end": 3}, {"nosuch": 3}):
    try: print(1, **wrong)
    except TypeError as e: print(e)
class Broken:
    def __str__(self): raise ValueError("no text")
print(Broken())
`)
	o.want(t, 1, "1-a-None!\nTrue print builtins\n'held 2\\n'\nsep must be None or a string, not int\nend must be None or a string, not int\nprint() got an unexpected keyword argument 'nosuch'\n")
	want := "to stderr\nTraceback (most recent call last):\n  File \"/mnt/files/main.py\", line 13, in <module>\n    print(Broken())\n    ~~~~~^^^^^^^^^^\n  File \"/mnt/files/main.py\", line 12, in __str__\n    def __str__(self): raise ValueError(\"no text\")\n                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^\nValueError: no text\n"
	if o.stderr != want {
		t.Errorf("stderr %q\nwant   %q", o.stderr, want)
	}
}

// TestManyPrints: a pipe that is read in between loses and repeats nothing.
func TestManyPrints(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		o := s.code(t, workbench.Python, "import sys\nfor i in range(20000): print(i, 'é' * (i % 7)); i % 100 or print(i, file=sys.stderr)")
		var out, err strings.Builder
		for i := range 20000 {
			fmt.Fprintln(&out, i, strings.Repeat("é", i%7))
			if i%100 == 0 {
				fmt.Fprintln(&err, i)
			}
		}
		o.want(t, 0, out.String())
		if o.stderr != err.String() {
			t.Errorf("stderr has %d bytes, want %d", len(o.stderr), err.Len())
		}
	})
}

// TestBashNames: messages name the script, not where it is kept.
func TestBashNames(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		o := s.code(t, workbench.Bash, "nosuch\necho $0 $PWD ${OLDPWD-none} ${BASH_SOURCE[0]} $LINENO $#\nexit 3")
		o.want(t, 3, "main.sh /mnt/files none main.sh 2 0\n")
		if want := "main.sh: line 1: nosuch: command not found\n"; o.stderr != want {
			t.Errorf("stderr %q, want %q", o.stderr, want)
		}
		o = s.code(t, workbench.Bash, "echo a\nif then")
		o.want(t, 2, "a\n")
		if want := "main.sh: line 2: syntax error near unexpected token `then'\nmain.sh: line 2: `if then'\n"; o.stderr != want {
			t.Errorf("stderr %q, want %q", o.stderr, want)
		}
	})
}

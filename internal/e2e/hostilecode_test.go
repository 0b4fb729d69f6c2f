package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// attack is a program that does what it should not.
type attack struct {
	name    string
	lang    workbench.Language
	code    string
	timeout int64 // ms; 0: 20 s
	cancel  bool  // once it has said "go"
	status  workbench.Status
	reason  workbench.Reason
	notice  string // of the receipt; "" for any
}

const (
	py, sh, js = workbench.Python, workbench.Bash, workbench.JavaScript
	succeeded  = workbench.StatusSucceeded
	stopped    = workbench.StatusCancelled
	late       = workbench.StatusTimedOut
	hasFailed  = workbench.StatusFailed
	oom        = workbench.ReasonOutOfMemory
)

// asks speaks to the helper's socket without the helper.
const asks = `
import base64, json, os, socket, struct, threading, time
def conn():
    c = socket.socket(socket.AF_UNIX); c.settimeout(20); c.connect(os.environ['WORKBENCH_SOCKET']); return c
def ask(token=os.environ['WORKBENCH_TOKEN'], **o):
    c = conn(); b = json.dumps({'token': token, **o}).encode(); c.sendall(struct.pack('>I', len(b)) + b)
    f = c.makefile('rb'); n = struct.unpack('>I', f.read(4))[0]; a = json.loads(f.read(n)); c.close()
    return a.get('error', {}).get('code', 'ok')
def save(path): return ask(op='save', path=base64.b64encode(os.fsencode(path)).decode())
`

var attacks = []attack{
	{name: "floods both streams", lang: py, code: "import os, threading\ndef f(fd):\n  for _ in range(100): os.write(fd, os.urandom(100_000))\nfor i in (1, 2): threading.Thread(target=f, args=(i,)).start()", status: succeeded},
	{name: "forks and detaches", lang: py, code: "import os\nwhile True:\n  try:\n    if os.fork() == 0: os.setsid()\n  except OSError: pass", timeout: 1500, status: late, reason: workbench.ReasonTimeout},
	{name: "stops everything, itself too", lang: py, code: "import os, signal\nprint('go', flush=True)\nfor _ in range(5):\n  if os.fork() == 0:\n    while True: os.kill(-1, signal.SIGSTOP)\nos.kill(os.getpid(), signal.SIGSTOP)", cancel: true, status: stopped, reason: workbench.ReasonCancelled},
	{name: "is deaf", lang: py, code: "import signal, time\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nprint('go', flush=True)\nwhile True: time.sleep(1)", cancel: true, status: stopped, reason: workbench.ReasonCancelled},
	{name: "wakes what is paused", lang: py, code: "import os, signal\nfor _ in range(20):\n  if os.fork() == 0:\n    os.setsid()\n    while True:\n      try: os.kill(-1, signal.SIGCONT)\n      except OSError: pass", status: succeeded},
	{name: "leaves a holder of its output", lang: sh, code: "setsid sleep 100 & echo", status: succeeded},
	{name: "eats memory", lang: py, code: "x = b'x' * 2_000_000_000", status: hasFailed, reason: oom},
	{name: "eats memory in many places", lang: py, code: "import os, time\nfor _ in range(50):\n  if os.fork() == 0:\n    x = b'y' * (20 << 20); time.sleep(10); os._exit(0)\ntime.sleep(10)", status: hasFailed, reason: oom},
	{name: "fails after another was killed for memory", lang: sh, code: "exit 3", status: hasFailed, reason: workbench.ReasonExit},
	{name: "eats memory that is no process's", lang: py, code: "import os, time\nf = os.memfd_create('x')\nfor _ in range(300): os.write(f, b'x' * (1 << 20)); time.sleep(0.002)\ntime.sleep(3)", status: hasFailed, reason: oom},
	{name: "eats memory in WebAssembly", lang: js, code: "for (const m = [];;) { const x = new WebAssembly.Memory({initial: 1024}); new Uint8Array(x.buffer).fill(1); m.push(x) }", status: hasFailed, reason: oom},
	{name: "makes files with holes", lang: py, code: "for i, size in enumerate((10 << 40, 60 << 30, 1 << 62)): open('hole%d' % i, 'wb').truncate(size)", status: succeeded, notice: workbench.NoticeFilesSkipped},
	{name: "takes the workspace's mode away", lang: sh, code: "rm -f hole*; mkdir -p d; echo x > d/f; chmod 0 d/f d /mnt/files", status: succeeded},
	{name: "changes files during the scan", lang: py, code: "import os\nfor k in range(8):\n  if os.fork() == 0:\n    os.setsid()\n    i = 0\n    while True:\n      i += 1; n = 'c%d_%d' % (k, i % 20)\n      try: os.makedirs(n, exist_ok=True); open(n + '/f', 'w').write('x' * i); os.rename(n, n + 'r'); os.rmdir(n)\n      except OSError: pass\nimport time; time.sleep(0.5)", status: succeeded},
	{name: "cleans up", lang: sh, code: "chmod 700 d; find . -mindepth 1 ! -name base.txt -delete", status: succeeded},
	{name: "floods its socket", lang: py, code: asks + "cs = []\ntry:\n  for _ in range(900): c = socket.socket(socket.AF_UNIX); c.setblocking(False); c.connect(os.environ['WORKBENCH_SOCKET']); cs.append(c)\nexcept OSError: pass\nfor c in cs: c.close()\nopen('a', 'w').write('a')\nassert save('a') == 'ok'", status: succeeded},
	{name: "says nonsense to its socket", lang: py, code: asks + "for b in (b'\\xff' * 4, b'\\0' * 4, b'\\0\\0\\0\\4null', struct.pack('>I', 393216) + b'[' * 393216):\n  c = conn(); c.sendall(b)\n  try: c.shutdown(1); c.recv(100)\n  except OSError: pass\nassert ask('0' * 32, op='save', path='YQ==') == 'forbidden'\nassert ask(op='no') == 'invalid_request'", status: succeeded},
	{name: "saves what is no file", lang: py, code: asks + "os.mkfifo('p'); os.symlink('/etc/passwd', 'l'); os.symlink('/etc', 'e'); socket.socket(socket.AF_UNIX).bind('s')\nfor path in ('p', 'l', 's', 'e/passwd', '../etc/passwd', '/etc/passwd', '/proc/self/environ', '', 'x' * 300):\n  t = time.time(); a = save(path)\n  assert a != 'ok' and time.time() - t < 5, (path, a)\nos.unlink('p'); os.unlink('s')", status: succeeded},
	{name: "saves what changes meanwhile", lang: py, code: asks + "open('m', 'wb').write(b'a' * 2_000_000)\nstop = False\ndef w():\n  i = 0\n  while not stop:\n    i += 1; f = os.open('m', os.O_RDWR); os.ftruncate(f, i * 7919 % 2_000_000); os.ftruncate(f, 2_000_000); os.close(f)\nt = threading.Thread(target=w); t.start()\ngot = {save('m') for _ in range(5)}\nstop = True; t.join()\nassert got <= {'ok', 'conflict'}, got", status: succeeded},
	{name: "sets traps for the next", lang: sh, code: "cd ~; for f in .bashrc .profile .bash_profile; do echo 'echo TRAPPED' > $f; done\nmkdir -p node_modules/fs; echo 'console.log(\"TRAPPED\")' > node_modules/fs/index.js\ncd /mnt/files; for m in random json os site encodings socket; do echo 'print(\"TRAPPED\")' > $m.py; done\nprintf '#!/bin/sh\\necho TRAPPED\\n' > ls; chmod +x ls; cp ls python3; cp ls node; (setsid sleep 1000 &)", status: succeeded},
}

// TestHostileCode: each attack ends as it should, the next run of the session
// works and sees nothing of it but its files, and another session is unharmed.
// On the other runtime, whose limits verify tries too, in the long form alone.
func TestHostileCode(t *testing.T) {
	drivers := []string{"runsc"}
	if sandboxtest.Soak() {
		drivers = append(drivers, "runc")
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			w := mustWorld(t, func(o *server.Options) { o.Driver = driver })
			bystander := w.mustSession(t, sdk.CreateSession{})
			wantOut(t, bystander.mustBash("echo mine > f; echo x > /tmp/f; cat f"), "mine\n")
			victim := w.mustSession(t, sdk.CreateSession{})
			wantOut(t, victim.mustBash("echo base > base.txt; cat base.txt"), "base\n")
			for _, a := range attacks {
				t.Run(a.name, func(t *testing.T) {
					s := &session{t: t, c: victim.c, id: victim.id}
					s.attacked(a)
				})
			}
			for lang, code := range map[workbench.Language]string{py: "print(1)", sh: "echo 1", js: "console.log(1)"} {
				wantOut(t, victim.mustRun(sdk.CreateRun{Language: lang, Code: code}), "1\n") // trapped by nothing
			}
			r := bystander.mustBash("cat f /tmp/f; ps -e --no-headers > /tmp/ps; wc -l < /tmp/ps")
			wantOut(t, r, "mine\nx\n3\n")
			if len(r.Notices) > 0 {
				t.Errorf("a session that was not attacked was told %+v", r.Notices)
			}
		})
	}
}

func (s *session) attacked(a attack) {
	t := s.t
	if a.timeout == 0 {
		a.timeout = 20_000
	}
	began := time.Now()
	run := s.mustSubmit(sdk.CreateRun{Language: a.lang, Code: a.code, TimeoutMs: &a.timeout})
	if a.cancel {
		mustSay(t, s, run, "go")
		if _, err := s.c.CancelRun(t.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
	r := s.mustWait(run)
	wantEnd(t, r, a.status, a.reason)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	noticed := a.notice == ""
	for _, n := range r.Notices {
		noticed = noticed || n.Code == a.notice
	}
	if !noticed {
		t.Errorf("notices %+v, want %s", r.Notices, a.notice)
	}
	next := s.mustBash("cat base.txt; ps -e --no-headers > /tmp/ps; wc -l < /tmp/ps")
	if out := text(next.Stdout); !strings.HasPrefix(out, "base\n") || strings.TrimSpace(out[5:]) != "3" {
		t.Errorf("the next run printed %q; %s (%s)", out, next.Status, next.Reason)
	}
}

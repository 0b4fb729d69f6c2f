package sandboxtest

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// checkpoint holds a driver that says so to keeping live memory, and one that
// does not to saying that it cannot.
func (s Suite) checkpoint(t *testing.T) {
	d, _ := s.MustOpen(t)
	info, err := d.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !info.Capabilities.Checkpoint || !info.Capabilities.Restore {
		t.Run("is refused", func(t *testing.T) { s.noCheckpoint(t, d) })
		return
	}
	t.Run("variables, files and sockets survive", func(t *testing.T) { s.survives(t, d) })
	t.Run("a scan knows what it knew", func(t *testing.T) { s.scansOn(t, d) })
	t.Run("time that passed meanwhile is no program's", func(t *testing.T) { s.timeStands(t, d) })
	t.Run("limits, numbers and kill work again", func(t *testing.T) { s.heldAgain(t, d) })
	t.Run("while code is busy", func(t *testing.T) { s.busyCode(t, d) })
	t.Run("in a vessel", func(t *testing.T) { s.inVessel(t, d) })
	t.Run("many times in a row", func(t *testing.T) { s.manyCycles(t, d) })
}

func (s Suite) noCheckpoint(t *testing.T, d sandbox.Driver) {
	box := MustBind(t, d, Standard(s.Image))
	if c, ok := box.Sandbox.(sandbox.Checkpointer); ok {
		if err := c.Checkpoint(t.Context(), MustMemoryDir(t)); !workbench.HasCode(err, workbench.CodeNotBuilt) {
			t.Errorf("checkpoint: %v, want not_built", err)
		}
	}
	if r, ok := d.(sandbox.Restorer); ok {
		if _, err := r.Vessel(t.Context(), box.Sandbox.Class()); !workbench.HasCode(err, workbench.CodeNotBuilt) {
			t.Errorf("vessel: %v, want not_built", err)
		}
		if _, err := r.Restore(t.Context(), box.Sandbox.Class(), MustMemoryDir(t), nil); !workbench.HasCode(err, workbench.CodeNotBuilt) {
			t.Errorf("restore: %v, want not_built", err)
		}
	}
	box.MustStillWork(t)
}

// MustMemoryDir makes a directory in memory that goes with the test.
func MustMemoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "workbench-checkpoint-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// MustCheckpoint settles a session's sandbox and writes it into a directory of
// its own, which it returns.
func (s *Session) MustCheckpoint(t testing.TB) string {
	t.Helper()
	dir := MustMemoryDir(t)
	if err := s.Client.Settle(t.Context()); err != nil {
		t.Fatalf("settle: %v", err)
	}
	if err := s.Sandbox.(sandbox.Checkpointer).Checkpoint(t.Context(), dir); err != nil {
		t.Fatalf("checkpoint: %v\n%s", err, stderrOf(s.Sandbox))
	}
	MustNothingLeft(t, s.Sandbox.ID(), 0)
	if exit := s.Sandbox.Exit(); exit.Reason != sandbox.ExitKilled {
		t.Errorf("a checkpointed sandbox ended as %+v, want killed", exit)
	}
	_ = s.Client.Close()
	return dir
}

// MustRestore makes the session that a checkpoint of s holds. Its groups are
// paused.
func (s *Session) MustRestore(t testing.TB, d sandbox.Driver, dir string) *Session {
	t.Helper()
	return s.mustRestore(t, d, dir, nil)
}

func (s *Session) mustRestore(t testing.TB, d sandbox.Driver, dir string, vessel sandbox.Sandbox) *Session {
	t.Helper()
	box, err := d.(sandbox.Restorer).Restore(t.Context(), s.Sandbox.Class(), dir, vessel)
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	t.Cleanup(func() {
		if err := box.Kill(background(t)); err != nil {
			t.Errorf("kill: %v", err)
		}
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	client, err := guestwire.Dial(t.Context(), box.Stream(), guestwire.Options{})
	if err != nil {
		t.Fatalf("handshake: %v\n%s", err, stderrOf(box))
	}
	t.Cleanup(func() { _ = client.Close() })
	if was, is := s.Client.Hello(), client.Hello(); was.Boot != is.Boot || is.Bound == "" {
		t.Errorf("the restored guest says %+v, was %+v", is, was)
	}
	if err := client.Wake(t.Context()); err != nil {
		t.Fatalf("wake: %v", err)
	}
	back := &Session{Sandbox: box, Client: client, Bound: s.Bound}
	back.execs.Store(s.execs.Load())
	return back
}

// MustSuspend is MustCheckpoint and MustRestore, with all groups going on.
func (s *Session) MustSuspend(t testing.TB, d sandbox.Driver) *Session {
	t.Helper()
	return s.MustReturn(t, d, s.MustCheckpoint(t))
}

// MustReturn is MustRestore, with all groups going on.
func (s *Session) MustReturn(t testing.TB, d sandbox.Driver, dir string) *Session {
	t.Helper()
	back := s.MustRestore(t, d, dir)
	if err := back.Client.ResumeAll(t.Context()); err != nil {
		t.Fatalf("resume: %v", err)
	}
	return back
}

// answering is the end of a program that answers, in its own variables, what it
// is asked over a socket, one question at a time.
const answering = `
import socket as _s
_l = _s.socket(_s.AF_UNIX)
_l.bind('/tmp/live.' + NAME)
_l.listen(8)
print('ready', flush=True)
while True:
    _c, _ = _l.accept()
    _q = _c.recv(65536).decode()
    try:
        _a = repr(eval(_q))
    except Exception as e:
        _a = 'failed: ' + repr(e)
    _c.sendall(_a.encode())
    _c.close()
`

// MustLive starts a program in a group of its own that goes on, and waits until
// it answers questions.
func (s *Session) MustLive(t testing.TB, name, source string, timeout time.Duration) *guestwire.Exec {
	t.Helper()
	request := guestwire.ExecRequest{ID: name, Group: name, Language: workbench.Python, OutputBytes: 1 << 20, KeepGroup: true,
		Timeout: timeout, Source: []byte(fmt.Sprintf("NAME = %q\n", name) + source + answering)}
	h := &capture{}
	x, err := s.Client.Exec(t.Context(), request, h)
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	for end := time.Now().Add(30 * time.Second); !strings.Contains(h.text(workbench.Stdout), "ready\n"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the program is not ready: %s%s", h.text(workbench.Stdout), h.text(workbench.Stderr))
		}
	}
	return x
}

// MustAsk asks a live program for the value of an expression.
func (s *Session) MustAsk(t testing.TB, name, expression string) string {
	t.Helper()
	return s.MustPrint(t, fmt.Sprintf(`
import socket
c = socket.socket(socket.AF_UNIX)
c.settimeout(30)
c.connect('/tmp/live.%s')
c.sendall(%q.encode())
print(c.makefile().read())`, name, expression))
}

func (s Suite) survives(t *testing.T, d sandbox.Driver) {
	box := MustBind(t, d, Standard(s.Image))
	box.MustLive(t, "ctx", `
import hashlib, os, socket, threading
heap = bytearray(os.urandom(30 << 20))
n = 41
a, b = socket.socketpair()
a.sendall(b'under way')
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
client.sendall(b'over tcp')
held = open('/mnt/files/held', 'w+')
held.write('not flushed')
gone = open('/tmp/gone', 'w+b'); gone.write(b'without a name'); gone.flush(); os.unlink('/tmp/gone')
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        threading.Event().wait(0.01)
threading.Thread(target=tick, daemon=True).start()
sha = hashlib.sha256(heap).hexdigest()
pid = os.getpid()
`, 0)
	box.MustPrint(t, `
import os, random
for root in ('/mnt/files', '/tmp'):
    os.makedirs(root + '/d/é ü', exist_ok=True)
    with open(root + '/d/é ü/f', 'wb') as f: f.write(random.Random(7).randbytes(3_000_000))
    os.chmod(root + '/d/é ü/f', 0o640); os.utime(root + '/d/é ü/f', ns=(1_600_000_000_123_456_789,) * 2)
    os.symlink('f', root + '/d/é ü/l'); os.mkfifo(root + '/d/p')
    with open(root + '/hole', 'wb') as f: f.seek(9_000_000); f.write(b'x')`)
	const tree = `
import hashlib, os
h = hashlib.sha256()
for root in ('/mnt/files', '/tmp'):
    for path, dirs, files in os.walk(root):
        dirs.sort()
        for name in sorted(files):
            p = os.path.join(path, name); st = os.lstat(p)
            if st.st_mode & 0o170000 == 0o140000 or path.startswith('/tmp/home'): continue
            h.update(repr((p, st.st_mode, st.st_size, st.st_mtime_ns, st.st_uid)).encode())
            if st.st_mode & 0o170000 == 0o100000: h.update(open(p, 'rb').read())
print(h.hexdigest())`
	pid, sha := box.MustAsk(t, "ctx", "pid"), box.MustAsk(t, "ctx", "sha")
	files := box.MustPrint(t, tree)

	dir := box.MustCheckpoint(t)
	back := box.MustRestore(t, d, dir)
	groups, err := back.Client.ListGroups(t.Context())
	if err != nil || len(groups) != 1 || groups[0].Name != "ctx" || !groups[0].Paused {
		t.Errorf("groups %+v, %v; want ctx, paused", groups, err)
	}
	execs, err := back.Client.ListExecs(t.Context())
	if err != nil || len(execs) != 1 || execs[0].ID != "ctx" || execs[0].Ended {
		t.Errorf("execs %+v, %v; want ctx, running", execs, err)
	}
	if err := back.Client.ResumeAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := &capture{}
	if _, err := back.Client.Attach(t.Context(), "ctx", guestwire.Offsets{}, h); err != nil {
		t.Errorf("attach: %v", err)
	}
	if got := back.MustPrint(t, tree); got != files {
		t.Errorf("the files have digest %s, had %s", got, files)
	}
	for expression, want := range map[string]string{
		"n + 1":                            "42",
		"pid":                              pid,
		"hashlib.sha256(heap).hexdigest()": sha,
		"b.recv(100)":                      "b'under way'",
		"peer.recv(100)":                   "b'over tcp'",
		"(peer.sendall(b'back'), client.recv(100))[1]": "b'back'",
		"(gone.seek(0), gone.read())[1]":               "b'without a name'",
		"(held.flush(), held.seek(0), held.read())[2]": "'not flushed'",
	} {
		if got := back.MustAsk(t, "ctx", expression); got != want {
			t.Errorf("%s is %s, want %s", expression, got, want)
		}
	}
	if was, is := back.MustAsk(t, "ctx", "ticks"), back.MustAsk(t, "ctx", "(threading.Event().wait(0.1), ticks)[1]"); was == is {
		t.Errorf("its thread stands still at %s", is)
	}
	if got := back.MustAsk(t, "ctx", "print('said after', flush=True)"); got != "None" {
		t.Errorf("print gave %s", got)
	}
	mustSay(t, h, "ready\nsaid after\n")
	back.MustStillWork(t)
}

// changedFiles is what a scan said, as "change path".
type changedFiles []string

func (c *changedFiles) Entry(e guestwire.Entry, content io.Reader) error {
	*c = append(*c, string(e.Change)+" "+string(e.Path))
	if content == nil {
		return nil
	}
	_, err := io.Copy(io.Discard, content)
	return err
}

// scansOn: a scan after the return begins where the last one before it ended.
func (s Suite) scansOn(t *testing.T, d sandbox.Driver) {
	box := MustBind(t, d, Standard(s.Image))
	box.MustLive(t, "ctx", "import mmap\nf = open('/mnt/files/mapped', 'w+b'); f.write(bytes(8192)); f.flush(); m = mmap.mmap(f.fileno(), 8192)\n", 0)
	box.MustPrint(t, "for n in ('same', 'changed', 'gone'): open('/mnt/files/' + n, 'w').write(n)")
	var first, second changedFiles
	base, err := box.Client.Scan(t.Context(), guestwire.ScanRequest{}, &first)
	if err != nil || len(first) != 4 {
		t.Fatalf("the first scan said %q, %v", first, err)
	}
	back := box.MustSuspend(t, d)
	back.MustPrint(t, "import os; open('/mnt/files/changed', 'a').write('!'); open('/mnt/files/new', 'w').write('n'); os.remove('/mnt/files/gone')")
	back.MustAsk(t, "ctx", "m.__setitem__(slice(0, 4), b'memo')")
	result, err := back.Client.Scan(t.Context(), guestwire.ScanRequest{Base: base.Token}, &second)
	slices.Sort(second)
	want := changedFiles{"added new", "modified changed", "modified mapped", "removed gone"}
	if err != nil || result.Complete || !slices.Equal(second, want) {
		t.Errorf("the next scan said %q (complete: %v), %v; want %q", second, result.Complete, err, want)
	}
}

// mustSay waits until a program has written exactly that.
func mustSay(t testing.TB, h *capture, want string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); h.text(workbench.Stdout) != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("the program wrote %q, want %q", h.text(workbench.Stdout), want)
			return
		}
	}
}

// The clocks of a restored sandbox leap by the time that it was away, also the
// monotonic one.
func (s Suite) timeStands(t *testing.T, d sandbox.Driver) {
	const limit, away = 12 * time.Second, 13 * time.Second
	box := MustBind(t, d, Standard(s.Image))
	box.MustLive(t, "limited", "import time\nwall, mono = time.time(), time.monotonic()\n", limit)
	dir := box.MustCheckpoint(t)
	time.Sleep(away)
	back := box.MustReturn(t, d, dir)
	execs, err := back.Client.ListExecs(t.Context())
	if err != nil || len(execs) != 1 || execs[0].Ended {
		t.Fatalf("execs %+v, %v; want one that runs: most of its time is left", execs, err)
	}
	if got := back.MustAsk(t, "limited", fmt.Sprintf("time.time() - wall > %g", away.Seconds())); got != "True" {
		t.Error("the wall clock stood still")
	}
	x, err := back.Client.Attach(t.Context(), "limited", guestwire.Offsets{}, &capture{})
	if err != nil {
		t.Fatal(err)
	}
	result, err := x.Wait(t.Context())
	if err != nil || result.Reason != workbench.ReasonTimeout || result.Duration < limit-time.Second || result.Duration > limit+away {
		t.Errorf("it ended as %+v, %v; want a timeout after about %v of its own time", result, err, limit)
	}
	back.MustStillWork(t)
}

// Every limit of a sandbox, and what a driver can do with one, is there after a
// restore too.
func (s Suite) heldAgain(t *testing.T, d sandbox.Driver) {
	box := MustBind(t, d, Standard(s.Image))
	box.MustLive(t, "ctx", "kept = 'still here'\n", 0)
	before, err := box.Sandbox.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	vessel := mustVessel(t, d, box.Sandbox.Class())
	back := box.mustRestore(t, d, box.MustCheckpoint(t), vessel)
	if err := back.Client.ResumeAll(t.Context()); err != nil {
		t.Fatalf("resume: %v", err)
	}
	if back.Sandbox.ID() != vessel.ID() {
		t.Errorf("restored as %s, not in the vessel %s", back.Sandbox.ID(), vessel.ID())
	}
	after, err := back.Sandbox.Stats(t.Context())
	if err != nil || after.MemoryLimit != before.MemoryLimit || after.MemoryBytes <= 0 || after.CPU <= 0 || after.Tasks <= 0 {
		t.Errorf("stats %+v, %v; want the limit %d and what it uses", after, err, before.MemoryLimit)
	}
	for name, test := range map[string]func(t *testing.T, box *Session){
		"memory of one process": oneEater, "processes": processes, "workspace bytes": workspaceBytes,
		"scratch": scratch, "descriptors": descriptors, "a CPU hog on 16 threads gets one CPU": hog,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, back)
			if got := back.MustAsk(t, "ctx", "kept"); got != "'still here'" {
				t.Errorf("the variable is %s", got)
			}
		})
	}
	if got := back.MustAsk(t, "ctx", "kept"); got != "'still here'" {
		t.Errorf("the variable is %s", got)
	}
	if err := back.Sandbox.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	if err := back.Sandbox.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	back.MustStillWork(t)
	if len(Leftovers(back.Sandbox.ID())) == 0 {
		t.Error("nothing carries the id of a restored sandbox: the check below would pass vacuously")
	}
	if err := back.Sandbox.Kill(t.Context()); err != nil {
		t.Errorf("kill: %v", err)
	}
	MustNothingLeft(t, back.Sandbox.ID(), 0)
}

// However busy the code inside is, it is checkpointed and goes on.
func (s Suite) busyCode(t *testing.T, d sandbox.Driver) {
	for _, c := range []struct{ name, source string }{
		{"spinning", "import threading\nspun = 0\ndef spin():\n    global spun\n    while True: spun += 1\nthreading.Thread(target=spin, daemon=True).start()\n"},
		{"forking without pause", `
import os, threading
spun = 0
def storm():
    global spun
    while True:
        try:
            pid = os.fork()
        except OSError:
            continue
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        spun += 1
threading.Thread(target=storm, daemon=True).start()
`},
		{"with 50 tasks", `
import os, threading, time
spun, children = 0, []
for _ in range(24):
    pid = os.fork()
    if pid == 0:
        while True: time.sleep(0.01)
    children.append(pid)
def work():
    global spun
    while True:
        time.sleep(0.01); spun += 1
for _ in range(25): threading.Thread(target=work, daemon=True).start()
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			box := MustBind(t, d, Standard(s.Image))
			box.MustLive(t, "busy", c.source, 0)
			back := box.MustSuspend(t, d)
			was := back.MustAsk(t, "busy", "spun")
			if is := back.MustAsk(t, "busy", "(__import__('time').sleep(0.5), spun)[1]"); was == is {
				t.Errorf("it stands still at %s", is)
			}
			if err := back.Client.EndGroup(t.Context(), "busy"); err != nil {
				t.Error(err)
			}
			back.MustStillWork(t)
		})
	}
}

// cycles is how often one session goes and comes.
func cycles() int {
	if Soak() {
		return 20
	}
	return 6
}

func (s Suite) manyCycles(t *testing.T, d sandbox.Driver) {
	box := MustBind(t, d, Standard(s.Image))
	box.MustLive(t, "ctx", "n = 0\ndef more():\n    global n\n    n += 1\n    return n\n", 0)
	descriptors := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	open, size := 0, int64(0)
	last := cycles() - 1
	for i := range last + 1 {
		dir := box.MustCheckpoint(t)
		bytes := sizeOf(t, dir)
		box = box.MustReturn(t, d, dir)
		if got, want := box.MustAsk(t, "ctx", "more()"), fmt.Sprint(i+1); got != want {
			t.Fatalf("after cycle %d the program counts %s", i+1, got)
		}
		if i == 1 {
			open, size = descriptors(), bytes
		}
		if i == last {
			if bytes > size+size/2 {
				t.Errorf("its checkpoint grew from %d to %d bytes", size, bytes)
			}
			if n := descriptors(); n > open+4 {
				t.Errorf("%d descriptors are open, %d were", n, open)
			}
		}
	}
	if handles := mustList(t, d); len(handles) != 1 || handles[0].ID != box.Sandbox.ID() {
		t.Errorf("listed %+v, want the last alone", handles)
	}
}

func sizeOf(t testing.TB, dir string) int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	return sum
}

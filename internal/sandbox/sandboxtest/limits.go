package sandboxtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// limits meets every limit of SPEC A10 in one session, which stays usable.
func (s Suite) limits(t *testing.T) {
	d, _ := s.MustOpen(t)
	box := MustBind(t, d, Standard(s.Image))
	if out := box.MustPython(t, "open('kept.txt', 'w').write('still here')"); out.ExitCode != 0 {
		t.Fatalf("could not write a file: %+v", out)
	}
	for _, c := range []struct {
		name string
		test func(t *testing.T, box *Session)
	}{
		{"memory of one process", oneEater},
		{"memory, while workspace and scratch are full", eaterWithFullDisks},
		{"memory of many small processes is summed", manyEaters},
		{"memory that one program took ends no other", eaterBesideAnother},
		{"memory of files without a name", namelessEater},
		{"processes", processes},
		{"threads", threads},
		{"workspace bytes", workspaceBytes},
		{"workspace inodes", workspaceInodes},
		{"scratch is shared by /tmp and /dev/shm", scratch},
		{"descriptors", descriptors},
		{"output is cut and counted", flood},
		{"a CPU hog on 16 threads gets one CPU", hog},
		{"wall time", wallTime},
		{"what detached ends with its group", detached},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, box)
			box.MustStillWork(t)
		})
	}
	if got := box.MustPrint(t, "print(open('kept.txt').read())"); got != "still here" {
		t.Errorf("after all limits the file holds %q", got)
	}
	// The kernel charges in batches of pages and may count some beyond the bound.
	if stats, err := box.Sandbox.Stats(t.Context()); err != nil || stats.MemoryPeakBytes > stats.MemoryLimit+1<<20 {
		t.Errorf("the sandbox's peak %d is above its bound %d (%v)", stats.MemoryPeakBytes, stats.MemoryLimit, err)
	}
}

// kernelMemory is H06: what code makes the kernel hold for it is charged to the
// sandbox. If that is more than the guest can see, the host ends the sandbox and
// says why.
func (s Suite) kernelMemory(t *testing.T) {
	d, _ := s.MustOpen(t)
	box := MustBind(t, d, Standard(s.Image))
	request := guestwire.ExecRequest{ID: "pipes", Group: "pipes", Language: workbench.Python, Timeout: 20 * time.Second, OutputBytes: 1 << 10, Source: []byte(`
import os, socket, time
for _ in range(50):
    if os.fork() == 0:
        held = []
        try:
            while True:
                a, b = socket.socketpair()
                a.setblocking(False)
                held.append((a, b))
                while True:
                    try:
                        a.send(b'\x01' * 65536)
                    except BlockingIOError:
                        break
        except OSError:
            pass
        time.sleep(20)
        os._exit(0)
time.sleep(20)
`)}
	x, err := box.Client.Exec(t.Context(), request, &capture{})
	if err != nil {
		t.Fatal(err)
	}
	result, err := x.Wait(t.Context())
	stats, statsErr := box.Sandbox.Stats(t.Context())
	if statsErr != nil || stats.MemoryPeakBytes > stats.MemoryLimit+1<<20 {
		t.Errorf("peak %d above the bound %d (%v)", stats.MemoryPeakBytes, stats.MemoryLimit, statsErr)
	}
	if err == nil {
		t.Logf("the run ended: %q after %v, peak %d MiB of %d", result.Reason, result.Duration, stats.MemoryPeakBytes>>20, stats.MemoryLimit>>20)
		box.MustStillWork(t)
		return
	}
	select {
	case <-box.Sandbox.Done():
	case <-time.After(10 * time.Second):
		t.Fatalf("the connection ended (%v) and the sandbox has not", err)
	}
	if exit := box.Sandbox.Exit(); exit.Reason != sandbox.ExitOutOfMemory {
		t.Errorf("the sandbox ended as %+v, want out_of_memory", exit)
	}
	t.Logf("the sandbox ended as out_of_memory, peak %d MiB", stats.MemoryPeakBytes>>20)
}

// mustRunOut fails unless the run failed for want of memory, and says so.
func mustRunOut(t *testing.T, out Outcome) {
	t.Helper()
	reason, limit := workbench.ReasonOutOfMemory, workbench.LimitMemory
	if out.Reason != reason || !slices.Contains(out.LimitsHit, limit) || (out.ExitCode == 0 && out.Signal == "") {
		t.Errorf("ended with %d %q, reason %q, limits %v; want reason %q and limit %q\n%s%s",
			out.ExitCode, out.Signal, out.Reason, out.LimitsHit, reason, limit, out.Stdout, tailText(out.Stderr))
	}
}

// eaterBesideAnother: the memory of a program that is ended is in use a moment
// longer than its group is there.
func eaterBesideAnother(t *testing.T, box *Session) {
	x := box.MustLive(t, "other", "", 0)
	for range 3 {
		mustRunOut(t, box.MustPython(t, "x = b'\\x01' * 2_000_000_000"))
	}
	select {
	case <-x.Done():
		result, err := x.Wait(t.Context())
		t.Errorf("the other program ended: %+v, %v", result, err)
	default:
	}
	if err := box.Client.EndGroup(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	if _, err := x.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func tailText(s string) string { return s[max(0, len(s)-500):] }

func oneEater(t *testing.T, box *Session) {
	out := box.MustPython(t, "print('before', flush=True)\nx = b'\\x01' * 2_000_000_000\nprint('after')")
	mustRunOut(t, out)
	if out.Stdout != "before\n" {
		t.Errorf("printed %q, want what came before the limit", out.Stdout)
	}
}

// eaterWithFullDisks leaves the host's bound no slack but the runtime's own: the
// guest must still come first.
func eaterWithFullDisks(t *testing.T, box *Session) {
	box.MustPrint(t, fill+"print(fill('big'), fill('/tmp/big'))")
	out := box.MustPython(t, "x = b'\\x01' * 2_000_000_000")
	mustRunOut(t, out)
	box.MustPrint(t, "import os\nos.unlink('big'); os.unlink('/tmp/big'); print(1)")
}

func manyEaters(t *testing.T, box *Session) {
	out := box.MustPython(t, `
import os, time
for _ in range(60):
    if os.fork() == 0:
        held = b'\x01' * (10 << 20)
        time.sleep(20)
        os._exit(0)
time.sleep(20)
print('all fit')
`)
	mustRunOut(t, out)
}

// namelessEater holds memory through a descriptor alone.
func namelessEater(t *testing.T, box *Session) {
	out := box.MustPython(t, `
import os, time
f = os.memfd_create('x')
for _ in range(100):
    for _ in range(4):
        os.write(f, b'\x01' * (1 << 20))
    time.sleep(0.03)
time.sleep(5)
print('all fit')
`)
	mustRunOut(t, out)
}

func processes(t *testing.T, box *Session) {
	got := box.MustPrint(t, `
import errno, os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        n += 1
    print('no limit', n)
except OSError as e:
    print(errno.errorcode[e.errno], n)
`)
	mustCount(t, got, "EAGAIN", 32, 64)
}

func threads(t *testing.T, box *Session) {
	got := box.MustPrint(t, `
import os, threading, time
n = 0
try:
    while n < 500:
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        n += 1
    print('unlimited', n)
except RuntimeError as e:
    print('refused', n, flush=True)
os._exit(0)
`)
	mustCount(t, got, "refused", 32, 64)
}

// mustCount reads "word n" and fails unless n lies between two bounds.
func mustCount(t *testing.T, got, word string, least, most int) {
	t.Helper()
	var w string
	var n int
	if _, err := fmt.Sscan(got, &w, &n); err != nil || w != word || n < least || n > most {
		t.Errorf("printed %q, want %s after %d to %d", got, word, least, most)
	}
}

// fill writes files below a directory until it is refused, and says why, after
// how many MiB.
const fill = `
import errno, os
def fill(path, stop=1 << 12):
    n = 0
    try:
        with open(path, 'wb', buffering=0) as f:
            while n < stop:
                left = 1 << 20
                while left > 0:
                    left -= f.write(b'\x01' * left)
                n += 1
    except OSError as e:
        return errno.errorcode[e.errno], n
    return 'full', n
`

func workspaceBytes(t *testing.T, box *Session) {
	got := box.MustPrint(t, fill+`
print(*fill('big'))
os.unlink('big')
`)
	mustCount(t, got, "ENOSPC", 60, 64)
}

func workspaceInodes(t *testing.T, box *Session) {
	got := box.MustPrint(t, `
import errno, os, shutil
os.mkdir('many')
n = 0
try:
    while n < 100_000:
        os.close(os.open('many/%d' % n, os.O_CREAT | os.O_WRONLY))
        n += 1
    print('no limit', n)
except OSError as e:
    print(errno.errorcode[e.errno], n)
shutil.rmtree('many')
`)
	mustCount(t, got, "ENOSPC", 16000, 16384)
}

func scratch(t *testing.T, box *Session) {
	got := box.MustPrint(t, fill+`
print(*fill('/tmp/half', 32), *fill('/dev/shm/rest'))
os.unlink('/tmp/half'); os.unlink('/dev/shm/rest')
`)
	rest, ok := strings.CutPrefix(got, "full 32 ")
	if !ok {
		t.Errorf("printed %q, want the first 32 MiB to fit into /tmp", got)
	}
	mustCount(t, rest, "ENOSPC", 16, 32)
}

func descriptors(t *testing.T, box *Session) {
	got := box.MustPrint(t, `
import errno, os
n = 0
try:
    while n < 5000:
        os.open('/dev/null', os.O_RDONLY)
        n += 1
    print('no limit', n)
except OSError as e:
    print(errno.errorcode[e.errno], n)
`)
	mustCount(t, got, "EMFILE", OpenFiles/2, OpenFiles)
}

func flood(t *testing.T, box *Session) {
	out := box.MustExec(t, guestwire.ExecRequest{Language: workbench.Python, OutputBytes: 1 << 20,
		Source: []byte("import sys\nfor _ in range(8):\n  sys.stdout.write('x' * 1_000_000)\n  sys.stderr.write('y' * 500_000)")})
	want := guestwire.Offsets{Stdout: 8_000_000, Stderr: 4_000_000}
	if out.ExitCode != 0 || out.Total != want {
		t.Errorf("ended with %d, total %+v; want 0 and %+v", out.ExitCode, out.Total, want)
	}
	if len(out.Stdout) != 1<<20 || len(out.Stderr) != 1<<20 {
		t.Errorf("forwarded %d and %d bytes, want 1 MiB each", len(out.Stdout), len(out.Stderr))
	}
}

func hog(t *testing.T, box *Session) {
	before, err := box.Sandbox.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out := box.MustPython(t, `
import os, time
end = time.time() + 2
for _ in range(15):
    if os.fork() == 0:
        break
while time.time() < end:
    pass
`)
	after, err := box.Sandbox.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	used, wall := after.CPU-before.CPU, time.Since(began)
	if share := used.Seconds() / wall.Seconds(); share > 1.1 || out.ExitCode != 0 {
		t.Errorf("used %v of CPU in %v (%.2f CPUs), exit %d; want at most one CPU", used, wall, share, out.ExitCode)
	}
}

func wallTime(t *testing.T, box *Session) {
	var out Outcome
	// It counts from the start of the interpreter, which may take longer.
	for limit := time.Second; out.Stdout == "" && limit <= 16*time.Second; limit *= 2 {
		out = box.MustExec(t, guestwire.ExecRequest{Language: workbench.Python, Timeout: limit, Grace: 200 * time.Millisecond,
			Source: []byte("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\nwhile True: pass")})
		if out.Reason != workbench.ReasonTimeout || out.Duration > limit+20*time.Second {
			t.Errorf("got %+v, want a timeout after %v although it ignores SIGTERM", out, limit)
		}
	}
	if out.Stdout != "up\n" {
		t.Errorf("printed %q, want up", out.Stdout)
	}
}

func detached(t *testing.T, box *Session) {
	began := time.Now()
	out := box.MustPython(t, `
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)   # holds stdout
    os._exit(0)
os.wait()
print('done')
`)
	if out.Stdout != "done\n" || time.Since(began) > 10*time.Second {
		t.Errorf("printed %q after %v, want done at once", out.Stdout, time.Since(began))
	}
	groups, err := box.Client.ListGroups(t.Context())
	if err != nil || len(groups) != 0 {
		t.Errorf("groups %+v, %v; want none", groups, err)
	}
	if stats, err := box.Client.Stats(t.Context()); err != nil || stats.Tasks != 0 {
		t.Errorf("guest counts %d tasks, %v; want none", stats.Tasks, err)
	}
}

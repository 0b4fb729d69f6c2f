package guest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// vforked is a Python program whose process waits for its child as vfork does,
// uninterruptibly, until the file go is there; what makes it comes behind.
const vforked = `
import ctypes, os, platform, time
libc = ctypes.CDLL(None)
def clone(flags):
    return libc.syscall(220 if platform.machine() == "aarch64" else 56, ctypes.c_long(flags | 17), 0, 0, 0, 0)
VFORK = 0x4000
def child():
    open("f", "w").write("x")
    os.write(1, b"child\n")
    while not os.path.exists("go"): time.sleep(0.01)
    os._exit(0)
`

// TestScanOfAProcessThatWaitsForItsChild: what starts others spends much of its
// time in vfork, where no signal stops it.
func TestScanOfAProcessThatWaitsForItsChild(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		t.Run("the child has stopped", func(t *testing.T) {
			x := s.beginVforked(t, "if clone(VFORK) == 0:\n    if clone(VFORK) == 0: child()\n    os._exit(0)")
			for range 3 {
				if f, _ := s.scan(t, ""); string(f.content["f"]) != "x" {
					t.Errorf("the scan tells %q", f.content["f"])
				}
			}
			s.code(t, workbench.Bash, "touch go").want(t, 0, "")
			x.end().want(t, 0, "child\non\n")
		})
	})
}

func (s *session) beginVforked(t *testing.T, source string) *run {
	t.Helper()
	h := newHost()
	x := s.begin(t, request(workbench.Python, vforked+source+"\nprint('on')"), h)
	for h.text(workbench.Stdout) == "" {
		select {
		case <-h.wrote:
		case <-time.After(30 * time.Second):
			t.Fatalf("no child: %s", h.text(workbench.Stderr))
		}
	}
	return x
}

// TestOutputThatAnotherGroupHolds: a program sends its output's descriptor to
// another, which holds it beyond the program's end.
func TestOutputThatAnotherGroupHolds(t *testing.T) {
	const send = `
import os, signal, socket, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
with socket.socket(socket.AF_UNIX) as c:
    c.connect("/tmp/holder")
    socket.send_fds(c, [b"x"], [1])
    c.recv(1)
`
	onEach(t, func(t *testing.T, s *session) {
		h := newHost()
		r := request(workbench.Python, `
import os, socket, time
l = socket.socket(socket.AF_UNIX)
l.bind("/tmp/holder"); l.listen(); print("up", flush=True)
held = []
while True:
    c, _ = l.accept()
    given = socket.recv_fds(c, 1, 1)[1]
    held += given
    try:
        for fd in given: os.write(fd, b"held\n"); c.send(b"x")
    except OSError: pass  # a program whose time was over before
    c.close()
`)
		r.Group = "holder"
		holder := s.begin(t, r, h)
		for h.text(workbench.Stdout) == "" {
			<-h.wrote
		}
		over := request(workbench.Python, send+"print('mine')\ntime.sleep(60)")
		ends := over
		ends.Source = []byte(send + "print('mine')")
		cell := inContext("c", workbench.Python, send+"print('mine')\ntime.sleep(60)")
		cell.Grace = 100 * time.Millisecond
		s.do(t, ends).want(t, 0, "held\nmine\n")
		for name, r := range map[string]guestwire.ExecRequest{"program": over, "cell": cell} {
			mine := func(o outcome) bool { return strings.Contains(o.stdout, "mine") }
			if o := s.doWithin(t, r, mine, 1500*time.Millisecond, 4*time.Second, 8*time.Second, 16*time.Second); o.Reason != workbench.ReasonTimeout || o.stdout != "held\nmine\n" {
				t.Errorf("%s: %+v %q %s", name, o.ExecResult, o.stdout, o.stderr)
			}
		}
		if err := s.Client.EndGroup(t.Context(), "holder"); err != nil {
			t.Fatal(err)
		}
		holder.end()
	})
}

// TestScanStopsWhatWasWoken: a context hands the other end of its terminal to a
// run, which closes it while the context stands still.
func TestScanStopsWhatWasWoken(t *testing.T) {
	s := MustSession(t, oci.Runsc) // the runtime that has terminals
	h := newHost()
	r := request(workbench.Python, `
import os, socket, time
l = socket.socket(socket.AF_UNIX)
l.bind("/tmp/holder"); l.listen(); print("up", flush=True)
c, _ = l.accept()
fd = socket.recv_fds(c, 1, 1)[1][0]; c.close()
while not os.path.exists("go"): time.sleep(0.01)
os.close(fd)
`)
	r.Group = "holder"
	holder := s.begin(t, r, h)
	for h.text(workbench.Stdout) == "" {
		<-h.wrote
	}
	s.cell(t, "woken", workbench.Python, `
import os, pty, signal, socket, time
master, terminal = pty.openpty()
name = os.ttyname(terminal)
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.close(master); os.close(terminal)
    own = os.open(name, os.O_RDWR)
    n = 0
    while True:
        n += 1
        with open("beat.new", "w") as f: f.write(str(n))
        os.rename("beat.new", "beat")
        time.sleep(0.002)
while not os.path.exists("beat"): time.sleep(0.01)
with socket.socket(socket.AF_UNIX) as c:
    c.connect("/tmp/holder"); socket.send_fds(c, [b"x"], [master])
os.close(master); os.close(terminal)
`).want(t, 0, "")
	s.code(t, workbench.Bash, "touch go").want(t, 0, "")
	holder.end().want(t, 0, "up\n")
	first, _ := s.scan(t, "")
	time.Sleep(200 * time.Millisecond)
	if again, _ := s.scan(t, ""); string(again.content["beat"]) != string(first.content["beat"]) {
		t.Errorf("between two scans the beat went from %s to %s", first.content["beat"], again.content["beat"])
	}
}

package guest_test

import (
	"strconv"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// eat is Python that takes memory until it is ended.
const eat = "x = []\nwhile True: x.append(b'x' * (1 << 20))\n"

// TestMemoryIsItsOwn: memory costs whoever has it, however it is hidden, and
// nobody else.
func TestMemoryIsItsOwn(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.cell(t, "n", workbench.Python, "kept = 42").want(t, 0, "")
		neighbour := func(t *testing.T) {
			t.Helper()
			s.cell(t, "n", workbench.Python, "print(kept)").want(t, 0, "42\n")
		}
		eaten := func(t *testing.T, source string) {
			t.Helper()
			if o := s.code(t, workbench.Python, source); o.Reason != workbench.ReasonOutOfMemory {
				t.Errorf("%+v %q", o.ExecResult, clip(o.stderr))
			}
			neighbour(t)
		}
		t.Run("a process whose first thread has left", func(t *testing.T) {
			eaten(t, "import ctypes, os, threading\ndef run():\n    exec("+strconv.Quote(eat)+")\nthreading.Thread(target=run).start()\n"+
				"ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)")
		})
		t.Run("what is left behind while a call is under way", func(t *testing.T) {
			eaten(t, "import os, socket\ns = socket.socket(socket.AF_UNIX); s.connect(os.environ['WORKBENCH_SOCKET'])\nif os.fork(): os._exit(0)\n"+eat)
		})
		t.Run("what no process maps", func(t *testing.T) {
			if s.kind == oci.Runc {
				return // there the kernel chooses
			}
			h := newHost()
			r := s.begin(t, request(workbench.Python, "x = b'x' * (32 << 20)\nprint('has', flush=True)\nimport os, time\nwhile not os.path.exists('end'): time.sleep(0.05)"), h)
			<-h.wrote
			eaten(t, "import os\nf = os.memfd_create('x')\nfor _ in range(400): os.write(f, b'x' * (1 << 20))\nimport time; time.sleep(20)")
			s.code(t, workbench.Bash, "touch end").want(t, 0, "")
			r.end().want(t, 0, "has\n")
		})
		t.Run("a cell that ends beside one that has more", func(t *testing.T) {
			h := newHost()
			r := s.begin(t, request(workbench.Python, "x = b'x' * (200 << 20)\nprint('has', flush=True)\nimport time; time.sleep(60)"), h)
			<-h.wrote
			o := s.cell(t, "n", workbench.Python, "y = b'y' * (90 << 20)")
			if o.Reason != "" || !o.Context.Alive {
				t.Errorf("the smaller: %+v %q", o.ExecResult, clip(o.stderr))
			}
			if o := r.end(); o.Reason != workbench.ReasonOutOfMemory {
				t.Errorf("the larger: %+v %q", o.ExecResult, clip(o.stderr))
			}
			neighbour(t)
		})
	})
}

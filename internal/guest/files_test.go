package guest_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

func file(path, content string, mode uint32) guestwire.Entry {
	sum := sha256.Sum256([]byte(content))
	return guestwire.Entry{Path: guestwire.Path(path), Type: guestwire.TypeFile, Mode: mode, Size: int64(len(content)), SHA256: sum[:], MtimeNs: 1_700_000_000_123_456_789}
}

func TestScan(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Python, `
import os, socket
os.mkdir("d"); os.mkdir("d/e")
open("d/e/a.txt", "w").write("hello")
open("b.bin", "wb").write(bytes(range(256)) * 1000)
open(b"\xff\xfe name", "w").write("odd")
os.symlink("/etc/passwd", "link"); os.symlink("nowhere", "d/dangling")
os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("sock")
open("secret", "w").write("locked"); os.chmod("secret", 0)
os.mkdir("closed"); open("closed/in", "w").write("inside"); os.chmod("closed", 0)
`).want(t, 0, "")
		first, res := s.scan(t, "")
		if !res.Complete || res.SkippedN != 2 {
			t.Errorf("complete %v, skipped %v", res.Complete, res.Skipped)
		}
		want := []string{"added \xff\xfe name", "added b.bin", "added closed", "added closed/in", "added d", "added d/dangling", "added d/e", "added d/e/a.txt", "added link", "added secret"}
		got := slices.Sorted(slices.Values(first.order))
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("entries %q, want %q", got, want)
		}
		for path, content := range map[string]string{"d/e/a.txt": "hello", "\xff\xfe name": "odd", "secret": "locked", "closed/in": "inside"} {
			sum := sha256.Sum256([]byte(content))
			if e := first.entries[path]; string(first.content[path]) != content || !bytes.Equal(e.SHA256, sum[:]) {
				t.Errorf("%q: %+v %q", path, e, first.content[path])
			}
		}
		if e := first.entries["link"]; e.Type != guestwire.TypeSymlink || e.Target != "/etc/passwd" {
			t.Errorf("link: %+v", e)
		}
		if first.entries["secret"].Mode != 0 || first.entries["closed"].Mode != 0 {
			t.Errorf("modes: %o %o, want 0", first.entries["secret"].Mode, first.entries["closed"].Mode)
		}
		s.code(t, workbench.Bash, "stat -c %a secret closed").want(t, 0, "0\n0\n")

		t.Run("nothing changed", func(t *testing.T) {
			f, r := s.scan(t, res.Token)
			if len(f.order) != 0 || r.Complete || r.Entries != 10 {
				t.Errorf("%q %+v", f.order, r)
			}
			res = r
		})
		t.Run("changes", func(t *testing.T) {
			s.code(t, workbench.Python, `
import os, shutil, mmap
shutil.rmtree("d")
st = os.stat("b.bin")
with open("b.bin", "r+b") as f:
    m = mmap.mmap(f.fileno(), 0); m[1000:1003] = b"new"; m.close()
os.utime("b.bin", ns=(st.st_mtime_ns, st.st_mtime_ns))
os.chmod("secret", 0o600)
open("new", "w").close()
`).want(t, 0, "")
			f, r := s.scan(t, res.Token)
			want := []string{"removed d/e/a.txt", "removed d/dangling", "removed d/e", "removed d", "modified b.bin", "added new", "modified secret"}
			if !slices.Equal(f.order, want) {
				t.Errorf("%q, want %q", f.order, want)
			}
			if string(f.content["b.bin"][1000:1003]) != "new" || f.entries["secret"].Content {
				t.Errorf("content: %q %v", f.content["b.bin"][1000:1003], f.entries["secret"].Content)
			}
			again, r2 := s.scan(t, res.Token) // the host may not have stored the last one
			if !slices.Equal(again.order, want) || r2.Complete {
				t.Errorf("repeated: %q", again.order)
			}
			if _, r3 := s.scan(t, r.Token); !r3.Complete {
				t.Error("a base that was replaced is still known")
			}
		})
	})
}

func TestRestoreThenScanSeesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		src := &source{entries: []guestwire.Entry{
			{Path: "d", Type: guestwire.TypeDir, Mode: 0o555, MtimeNs: 1_600_000_000_000_000_000},
			file("d/x", "one", 0o644), file("run.sh", "#!/bin/sh\necho ran\n", 0o755), file("\xff", "", 0),
			{Path: "l", Type: guestwire.TypeSymlink, Mode: 0o777, Target: "d/x", MtimeNs: 1_700_000_000_000_000_000},
		}, content: map[string][]byte{"d/x": []byte("one"), "run.sh": []byte("#!/bin/sh\necho ran\n")}}
		res, err := s.Client.Restore(t.Context(), src)
		if err != nil || res.Token == "" {
			t.Fatalf("%+v, %v", res, err)
		}
		if f, r := s.scan(t, res.Token); len(f.order) != 0 || r.Complete {
			t.Errorf("scan after restore: %q %+v", f.order, r)
		}
		s.code(t, workbench.Bash, `./run.sh; cat l; stat -c '%a %Y %u' d run.sh`).want(t, 0, "ran\none555 1600000000 1000\n755 1700000000 1000\n")
		if _, err := s.Client.Restore(t.Context(), &source{}); !workbench.HasCode(err, workbench.CodeConflict) {
			t.Errorf("restore into a workspace that is not empty: %v", err)
		}
	})
}

func TestWriteFilesIsAtomicAndFollowsNoLink(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		// FIELD B40
		s.code(t, workbench.Bash, "ln -s /etc/hostname out.txt; ln -s / rootdir; ln -s ../nope_new dangling; mkdir dir; echo old > f").want(t, 0, "")
		write := func(e guestwire.Entry, content string) error {
			_, err := s.Client.WriteFiles(t.Context(), &source{entries: []guestwire.Entry{e}, content: map[string][]byte{string(e.Path): []byte(content)}})
			return err
		}
		with := func(e guestwire.Entry, replace, parents bool) guestwire.Entry {
			e.Replace, e.Parents = replace, parents
			return e
		}
		for _, c := range []struct {
			name    string
			e       guestwire.Entry
			content string
			code    workbench.Code
		}{
			{"through a link to a directory", file("rootdir/tmp/x", "x", 0o644), "x", workbench.CodePathConflict},
			{"onto a dangling link", file("dangling", "x", 0o644), "x", workbench.CodePathConflict},
			{"onto a file", file("f", "x", 0o644), "x", workbench.CodePathConflict},
			{"onto a directory", with(file("dir", "x", 0o644), true, false), "x", workbench.CodePathConflict},
			{"into nothing", file("a/b", "x", 0o644), "x", workbench.CodeNotFound},
			{"another content", file("f2", "x", 0o644), "y", workbench.CodeCorrupt},
			{"too large", file("f3", strings.Repeat("0", 70<<20), 0o644), strings.Repeat("0", 70<<20), workbench.CodeWorkspaceFull},
			{"with parents", with(file("a/b/c", "x", 0o644), false, true), "x", ""},
			{"replacing a file", with(file("f", "new", 0o600), true, false), "new", ""},
			{"replacing a link", with(file("out.txt", "mine", 0o644), true, false), "mine", ""},
		} {
			if err := write(c.e, c.content); workbench.CodeOf(err) != c.code {
				t.Errorf("%s: %v, want %q", c.name, err, c.code)
			}
		}
		s.code(t, workbench.Bash, "cat f out.txt; test ! -e /tmp/x && test ! -e ../nope_new && ls -A").want(t, 0, "newminea\ndangling\ndir\nf\nout.txt\nrootdir\n")

		var b bytes.Buffer
		for path, code := range map[guestwire.Path]workbench.Code{"dangling": workbench.CodePathConflict, "rootdir/etc/passwd": workbench.CodePathConflict, "dir": workbench.CodePathConflict, "none": workbench.CodeNotFound, "../etc/passwd": workbench.CodePathInvalid} {
			if _, err := s.Client.ReadFile(t.Context(), path, &b); !workbench.HasCode(err, code) || b.Len() > 0 {
				t.Errorf("read %s: %v (%d bytes), want %s", path, err, b.Len(), code)
			}
		}
		if e, err := s.Client.ReadFile(t.Context(), "a/b/c", &b); err != nil || b.String() != "x" || e.Size != 1 {
			t.Errorf("%+v %v %q", e, err, b.String())
		}
	})
}

func TestScanPausesWhatRuns(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		h := newHost()
		r := request(workbench.Python, `
import multiprocessing, time, os
def spin(n):
    i = 0
    while True:
        i += 1
        with open(f"w{n}", "w") as f: f.write(str(i) * 1000)
if __name__ == "__main__":
    for n in range(4): multiprocessing.Process(target=spin, args=(n,), daemon=True).start()
    while not all(os.path.exists(f"w{n}") for n in range(4)): time.sleep(0.01)
    print("up", flush=True)
    time.sleep(300)
`)
		x := s.begin(t, r, h)
		for h.text(workbench.Stdout) == "" {
			<-h.wrote
		}
		for range 20 {
			f, res := s.scan(t, "")
			for p, e := range f.entries {
				if sum := sha256.Sum256(f.content[p]); !bytes.Equal(sum[:], e.SHA256) {
					t.Fatalf("%s changed while it was read", p)
				}
			}
			if res.Entries == 0 {
				t.Fatal("nothing seen")
			}
		}
		if err := s.Client.EndGroup(t.Context(), "r1"); err != nil {
			t.Fatal(err)
		}
		if o := x.end(); o.Signal != "SIGKILL" {
			t.Errorf("%+v", o.ExecResult)
		}
		if g, err := s.Client.ListGroups(t.Context()); err != nil || len(g) != 0 {
			t.Errorf("groups %v, %v", g, err)
		}
	})
}

// slowSink stops a scan in the middle: of the first entry with content, which is
// larger than what may be under way, it takes nothing until it may.
type slowSink struct {
	files
	under, on chan struct{}
}

func (f *slowSink) Entry(e guestwire.Entry, content io.Reader) error {
	if content != nil && f.under != nil {
		close(f.under)
		<-f.on
		f.under = nil
	}
	return f.files.Entry(e, content)
}

func TestNothingBeginsDuringAScan(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		cell := inContext("sh", workbench.Bash, "echo new > b")
		for name, r := range map[string]guestwire.ExecRequest{
			"python": request(workbench.Python, "open('b', 'w').write('new')"),
			"bash":   request(workbench.Bash, "echo new > b"),
			"cell":   cell,
		} {
			t.Run(name, func(t *testing.T) {
				s.code(t, workbench.Bash, "head -c 1000000 /dev/zero > a; echo old > b").want(t, 0, "")
				sink := &slowSink{files: files{entries: map[string]guestwire.Entry{}, content: map[string][]byte{}}, under: make(chan struct{}), on: make(chan struct{})}
				under := sink.under
				scanned := make(chan error, 1)
				var res guestwire.ScanResult
				go func() {
					var err error
					res, err = s.Client.Scan(t.Context(), guestwire.ScanRequest{}, sink)
					scanned <- err
				}()
				<-under
				began := make(chan *run, 1)
				go func() { began <- s.begin(t, r, newHost()) }()
				select {
				case x := <-began:
					t.Error("a program began while the workspace was read")
					began <- x
				case err := <-scanned:
					t.Errorf("the scan ended: %v", err)
				case <-time.After(400 * time.Millisecond):
				}
				close(sink.on)
				if err := <-scanned; err != nil {
					t.Fatal(err)
				}
				(<-began).end().want(t, 0, "")
				if got := string(sink.content["b"]); got != "old\n" {
					t.Errorf("b was %q", got)
				}
				if f, _ := s.scan(t, res.Token); !slices.Equal(f.order, []string{"modified b"}) {
					t.Errorf("afterwards %q", f.order)
				}
			})
		}
	})
}

func TestScanOfAWideAndADeepTree(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		o := s.code(t, workbench.Python, `
import os
try:
    for i in range(100_000): open(f"f{i:05}", "w").close()
except OSError as e: print(e.errno, i)
for i in range(1000): os.unlink(f"f{i:05}")
try:
    for i in range(1000): os.mkdir("d"); os.chdir("d")
except OSError as e: print(e.errno)
`)
		var n int
		if _, err := fmt.Sscanf(o.stdout, "28 %d\n", &n); err != nil || n < 16000 || n > 16384 || !slices.Contains(o.LimitsHit, workbench.LimitWorkspace) {
			t.Errorf("%+v %q %q", o.ExecResult, o.stdout, o.stderr)
		}
		began := time.Now()
		f, res := s.scan(t, "")
		t.Logf("%d entries in %v, %d skipped", len(f.order), time.Since(began), res.SkippedN)
		if res.SkippedN == 0 || res.Skipped[0].Why != "depth" || len(f.order) < 15000 {
			t.Errorf("skipped %v of %d", res.Skipped, len(f.order))
		}
	})
}

func TestScanOfANearlyEmptyWorkspaceIsFast(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Bash, "echo hi > a").want(t, 0, "")
		_, res := s.scan(t, "")
		took := make([]time.Duration, 50)
		for i := range took {
			began := time.Now()
			_, res = s.scan(t, res.Token)
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		t.Logf("median %v", took[25])
		if took[5] > 10*time.Millisecond { // a scan that became slow always is
			t.Errorf("the sixth fastest of %d took %v, median %v", len(took), took[5], took[25])
		}
	})
}

// TestScanWithFullScratch: what code fills up is not what the guest needs.
func TestScanWithFullScratch(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		restored, err := s.Client.Restore(t.Context(), &source{})
		if err != nil {
			t.Fatal(err)
		}
		o := s.code(t, workbench.Bash, "dd if=/dev/zero of=/tmp/full bs=1M 2>/dev/null; dd if=/dev/zero of=/dev/shm/full bs=1M 2>/dev/null; echo a > w.txt; cat w.txt")
		o.want(t, 0, "a\n")
		found, _ := s.scan(t, restored.Token)
		if string(found.content["w.txt"]) != "a\n" {
			t.Errorf("the scan found %q", found.order)
		}
	})
}

package guest_test

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

//go:embed testdata/churn.py
var churn string

// mirror is the workspace as a host knows it that believes every scan.
type mirror map[string]string

// take applies a scan. Every content must be what its entry says.
func (m mirror) take(t *testing.T, f *files, complete bool) {
	t.Helper()
	if complete {
		clear(m)
	}
	for _, line := range f.order {
		change, path, _ := strings.Cut(line, " ")
		e := f.entries[path]
		content, sent := f.content[path]
		if sum := sha256.Sum256(content); sent && (!bytes.Equal(sum[:], e.SHA256) || int64(len(content)) != e.Size) {
			t.Fatalf("%q is told as %x and comes as %x", path, e.SHA256, sum)
		}
		switch {
		case change == string(workbench.ChangeRemoved):
			if _, ok := m[path]; !ok {
				t.Fatalf("%q is removed and was never there", path)
			}
			delete(m, path)
		case e.Type == guestwire.TypeDir:
			m[path] = fmt.Sprintf("d %o", e.Mode)
		case e.Type == guestwire.TypeSymlink:
			m[path] = "l " + string(e.Target)
		default:
			m[path] = fmt.Sprintf("f %o %d %s", e.Mode, e.Size, hex.EncodeToString(e.SHA256))
		}
	}
}

// want compares with what the program says must be there.
func (m mirror) want(t *testing.T, at string, tree map[string]string) {
	t.Helper()
	paths := maps.Clone(tree)
	maps.Copy(paths, m)
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		if m[p] != tree[p] {
			t.Errorf("%s: %q is %q for the host, %q in the workspace", at, p, m[p], tree[p])
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// said is one line of the program.
type said struct {
	Tree   map[string]string `json:"tree"`
	Failed map[string]int    `json:"failed"`
}

// next waits for the n-th line of a run, from 0.
func (h *host) next(t *testing.T, n int) said {
	t.Helper()
	for {
		lines := strings.Split(h.text(workbench.Stdout), "\n")
		if len(lines) > n+1 {
			var s said
			if err := json.Unmarshal([]byte(lines[n]), &s); err != nil {
				t.Fatal(err)
			}
			return s
		}
		select {
		case <-h.wrote:
		case <-time.After(time.Minute):
			t.Fatalf("no line %d: %s", n, h.text(workbench.Stderr))
		}
	}
}

// TestScansMissNothing changes the workspace in every way there is, by a
// program that lives on between the scans with files open and mapped, and by
// programs that end, and compares what the host knows with what must be there.
func TestScansMissNothing(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		m := mirror{}
		base, operations, told := "", 0, 0
		tell := func(ch *guestwire.Changes) { // at the end of every other program: what it told is a scan
			if ch == nil || ch.Base != base {
				return
			}
			told++
			f := newFiles()
			if err := ch.Feed(0, 0, f); err != nil {
				t.Fatal(err)
			}
			m.take(t, f, false)
			base = ch.Scan.Token
		}
		step := func(at string, want said) {
			f, res := s.scan(t, base)
			if res.Complete != (base == "") {
				t.Errorf("%s: complete %v", at, res.Complete)
			}
			m.take(t, f, res.Complete)
			m.want(t, at, want.Tree)
			if int64(len(want.Tree)) != res.Entries {
				t.Errorf("%s: %d entries, want %d", at, res.Entries, len(want.Tree))
			}
			base = res.Token
		}
		for seed := range 20 {
			steps, each := 1, 40
			switch {
			case seed%2 == 1 && seed < 10:
				steps, each = 60, 12
			case seed >= 10:
				each = 3 // few enough to come with the end
			}
			r := request(workbench.Python, churn)
			r.Args = []string{strconv.Itoa(seed), strconv.Itoa(steps), strconv.Itoa(each), "/tmp/state"}
			h := newHost()
			run := s.begin(t, r, h)
			var last said
			for i := range steps {
				if last = h.next(t, i); i < steps-1 {
					step(fmt.Sprintf("seed %d, step %d", seed, i), last)
				}
			}
			if o := run.end(); o.ExitCode != 0 {
				t.Fatalf("seed %d: %+v %s", seed, o.ExecResult, o.stderr)
			} else if seed%2 == 0 {
				tell(o.Changes)
			}
			step(fmt.Sprintf("seed %d, at its end", seed), last)
			operations += steps * each / 2
			if seed == 9 {
				t.Logf("about %d operations, refused: %v", operations, last.Failed)
			}
		}
		t.Logf("%d ends told of changes", told)
		// What a host that knows nothing is told is the same.
		f, res := s.scan(t, "")
		again := mirror{}
		again.take(t, f, res.Complete)
		again.want(t, "everything", m)
	})
}

// A file is written through a name that it does not have any more.
func TestScanOfAFileThatLostTheNameItWasOpenedBy(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Bash, "echo old > a; ln a b; mkdir d; ln a d/c; echo same > other").want(t, 0, "")
		_, res := s.scan(t, "")
		s.code(t, workbench.Python, `
import os
fd = os.open("a", os.O_WRONLY)
os.unlink("a")
os.pwrite(fd, b"new", 0)
`).want(t, 0, "")
		f, _ := s.scan(t, res.Token)
		if want := []string{"removed a", "modified b", "modified d/c"}; !slices.Equal(f.order, want) {
			t.Errorf("%q, want %q", f.order, want)
		}
		if string(f.content["b"]) != "new\n" || string(f.content["d/c"]) != "new\n" {
			t.Errorf("%q", f.content)
		}
	})
}

// A file is written through a name that comes and goes between two scans: in a
// directory that is watched and in one that is new, by write and through memory.
func TestScanOfAFileWrittenThroughAPassingName(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Bash, "for f in a b c d; do echo old > $f; done; echo shut > e; chmod 200 e").want(t, 0, "")
		_, res := s.scan(t, "")
		write := func(file, through string, mapped bool) string {
			how := "f.write(os.urandom(4))"
			if mapped {
				how = "mmap.mmap(f.fileno(), 4)[0:3] = os.urandom(3)"
			}
			return fmt.Sprintf("os.link(%[1]q, %[2]q)\nwith open(%[2]q, 'r+b', 0) as f: %[3]s\nos.unlink(%[2]q)\n", file, through, how)
		}
		look := func(code string, want ...string) {
			t.Helper()
			s.code(t, workbench.Python, "import mmap, os\n"+code).want(t, 0, "")
			var f *files
			f, res = s.scan(t, res.Token)
			if !slices.Equal(f.order, want) {
				t.Errorf("%q, want %q", f.order, want)
			}
		}
		look(write("a", "t", false), "modified a")
		look("os.mkdir('n')\n"+write("b", "n/t", true), "modified b", "added n")
		look(write("a", "t", false)+"os.rename('c', 't')\nos.utime('b')\n", "removed c", "modified a", "modified b", "added t")
		look("os.rename('t', 'c')\nos.chmod('e', 0o600)", "removed t", "added c", "modified e")
		look(write("c", "t", true)+"os.rename('d', 'x')\n", "removed d", "modified c", "added x")
		look(write("x", "t", true), "modified x")
		look("os.mkdir('m')\n"+write("x", "m/t", false)+"os.rmdir('m')\n", "modified x")
	})
}

// TestUntouched: an exec's end says that nothing has changed only where a scan
// would say so, too; and it does where that is so.
func TestUntouched(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Bash, "mkdir d; echo one > d/f; echo two > g; ln g h; ln -s g l").want(t, 0, "")
		_, last := s.scan(t, "")
		// What an end tells of the changes is what a scan from there would.
		told := func(name string, o outcome, f *files) {
			t.Helper()
			if o.Changes == nil || o.Changes.Base != last.Token {
				return
			}
			with := newFiles()
			if err := o.Changes.Feed(0, 0, with); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !slices.Equal(with.order, f.order) || !maps.EqualFunc(with.content, f.content, bytes.Equal) {
				t.Errorf("%s: the end told %q %q, a scan %q %q", name, with.order, with.content, f.order, f.content)
			}
		}
		for name, c := range map[string]struct {
			lang   workbench.Language
			source string
		}{
			"write":            {workbench.Bash, "echo three > d/f"},
			"append":           {workbench.Python, "open('g', 'a').write('x')"},
			"new file":         {workbench.Bash, ": > new"},
			"remove":           {workbench.Bash, "rm new || rm -f d/f; : > again"},
			"new directory":    {workbench.Bash, "mkdir d/e"},
			"mode":             {workbench.Bash, "chmod 700 d; chmod 600 d/f || chmod 600 g; chmod 755 d"},
			"rename":           {workbench.Bash, "mv h i || mv i h"},
			"directory moved":  {workbench.Bash, "mv d dd && mv dd d; echo x > d/z"},
			"other name":       {workbench.Python, "import os; os.link('g', 'k'); open('k', 'a').write('y'); os.unlink('k')"},
			"mapped":           {workbench.Python, "import mmap\nwith open('g', 'r+b') as f: m = mmap.mmap(f.fileno(), 0); m[0] = (m[0] + 1) % 256"},
			"a child at work":  {workbench.Bash, "(sleep 0.05; echo late > late) & disown; sleep 0.2"},
			"what cannot be":   {workbench.Bash, "mkfifo pipe || rm pipe"},
			"workspace hidden": {workbench.Bash, "echo x > hidden; chmod 000 ."},
		} {
			o := s.code(t, c.lang, c.source)
			if o.Untouched != "" {
				t.Errorf("%s: untouched, said the end", name)
			}
			f, now := s.scan(t, last.Token)
			told(name, o, f)
			last = now
			if last.SkippedN > 0 { // from here on a scan has to tell of that
				s.code(t, workbench.Bash, "rm -f pipe")
				_, last = s.scan(t, last.Token)
			}
		}
		said := false
		for i := 0; i < 100 && !said; i++ { // its processes, or those before the scan, may not be gone in time
			o := s.code(t, workbench.Python, "print('nothing')")
			if o.Untouched != "" && o.Untouched != last.Token {
				t.Fatalf("token %q, want %q", o.Untouched, last.Token)
			}
			if said = o.Untouched != ""; !said {
				_, last = s.scan(t, last.Token)
			}
		}
		if !said {
			t.Error("no end of 100 said that nothing has changed")
		}
		said = false
		for i := 0; i < 100 && !said; i++ {
			o := s.code(t, workbench.Bash, "echo again >> g; mkdir -p d/e/f; echo x > d/e/f/"+strconv.Itoa(i)+"; rm -rf d/e/f/"+strconv.Itoa(i-1))
			f, now := s.scan(t, last.Token)
			told("several", o, f)
			said = o.Changes != nil && len(f.order) >= 3
			last = now
		}
		if !said {
			t.Error("no end of 100 told what had changed")
		}
		if o := s.code(t, workbench.Python, "open('large', 'wb').write(b'x' * 100_000)"); o.Changes != nil {
			t.Errorf("an end told of %d bytes", len(o.Changes.Records))
		}
		_, last = s.scan(t, last.Token)
		said = false
		for i := 0; i < 100 && !said; i++ { // larger than an end may tell, and only read
			o := s.code(t, workbench.Python, "open('large', 'rb').read()")
			f, now := s.scan(t, last.Token)
			told("read", o, f)
			said, last = o.Changes != nil || o.Untouched != "", now
		}
		if !said {
			t.Error("no end of 100 told that a large file was only read")
		}
		o := s.code(t, workbench.Python, "import mmap\nwith open('large', 'r+b') as f: m = mmap.mmap(f.fileno(), 0); m[99_999] = 1")
		f, now := s.scan(t, last.Token)
		if o.Changes != nil || o.Untouched != "" || !slices.Equal(f.order, []string{"modified large"}) {
			t.Errorf("a large file that was mapped and written: the end told %+v %q, a scan %q", o.Changes, o.Untouched, f.order)
		}
		last = now
		f, after := s.scan(t, last.Token)
		if len(f.order) > 0 || after.Complete {
			t.Errorf("%q, complete %v after nothing", f.order, after.Complete)
		}
		cell := request(workbench.Python, "x = 1")
		cell.Context = "c"
		cell.Group = "c"
		said = false
		for i := 0; i < 100 && !said; i++ {
			if said = s.do(t, cell).Untouched == after.Token; !said {
				_, after = s.scan(t, after.Token)
			}
		}
		if !said {
			t.Error("no cell of 100 said that nothing has changed")
		}
		cell.Source = []byte("f = open('held', 'w')")
		if o := s.do(t, cell); o.Untouched != "" {
			t.Error("a cell that opens a file: untouched")
		}
		_, after = s.scan(t, after.Token)
		cell.Source = []byte("f.write('x'); f.flush()")
		if o := s.do(t, cell); o.Untouched != "" {
			t.Error("a cell that writes to a file that is open: untouched")
		}
		if f, _ := s.scan(t, after.Token); len(f.order) != 1 || f.order[0] != "modified held" {
			t.Errorf("%q", f.order)
		}
		if o := s.code(t, workbench.Bash, "echo beside"); o.Untouched != "" {
			t.Error("a run beside a context that has a file open: untouched")
		}
	})
}

// A file with thousands of names, all of which change: each leads to the others.
func TestScanOfAFileWithManyNames(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Python, "import os\nopen('a', 'w').write('x')\nfor i in range(8000): os.link('a', f'l{i}')").want(t, 0, "")
		_, res := s.scan(t, "")
		if res.Entries != 8001 {
			t.Fatalf("%d entries", res.Entries)
		}
		s.code(t, workbench.Python, "import os\nopen('a', 'w').write('y')\nfor i in range(4000): os.unlink(f'l{i}')").want(t, 0, "")
		f, res := s.scan(t, res.Token)
		if res.Complete || len(f.order) != 8001 || string(f.content["l7999"]) != "y" {
			t.Errorf("%d changes, complete %v, l7999 is %q", len(f.order), res.Complete, f.content["l7999"])
		}
	})
}

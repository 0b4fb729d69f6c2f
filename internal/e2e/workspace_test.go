package e2e_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (s *session) mustWrite(path, content string) workbench.WorkspaceChange {
	s.t.Helper()
	change, err := s.c.WriteWorkspaceFile(s.t.Context(), s.id, sdk.WriteFile{Path: path}, strings.NewReader(content))
	if err != nil {
		s.t.Fatalf("writing %q: %v", path, err)
	}
	return change
}

func (s *session) mustFile(path string) string {
	s.t.Helper()
	b, err := s.c.ReadWorkspaceFile(s.t.Context(), s.id, path)
	if err != nil {
		s.t.Fatalf("reading %q: %v", path, err)
	}
	return string(b)
}

// mustNames lists everything in the workspace by its exact names, a directory
// with a slash behind it.
func (s *session) mustNames(page int) []string {
	s.t.Helper()
	names := []string{}
	q := workbench.TreeQuery{Recursive: true, Page: workbench.Page{Limit: page}}
	for {
		list, err := s.c.ListWorkspace(s.t.Context(), s.id, q)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, e := range list.Items {
			name := e.Name()
			if e.Type == "dir" {
				name += "/"
			}
			names = append(names, name)
		}
		if q.Cursor = list.NextCursor; q.Cursor == "" {
			return names
		}
	}
}

func (s *session) mustCommits() []workbench.Commit {
	s.t.Helper()
	list, err := s.c.ListCommits(s.t.Context(), s.id, workbench.Page{Limit: 200})
	if err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

func wantNames(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("the workspace holds %q, want %q", got, want)
	}
}

// scripts are names that a careless program mangles.
func scripts() []string {
	return []string{
		" leading and trailing ", "new\nline", "tab\there", `quo"te's`, `back\slash`, "-rf", "%2e%2e", "a?b#c&d=e+f", "semi;colon|pipe$(x)`y`", "~", "..dots", "...",
		"résumé-composed", "re\u0301sume\u0301-decomposed", "Ω-ohm-Ω", "報告書.txt", "отчёт", "εκθεση", "تقرير", "דוח", "รายงาน", "रिपोर्ट", "보고서", "𐍈𐌰𐌿", "😀👩\u200d👧",
		"\u202ertl-override", "\ufeffbom", "zero\u200bwidth", strings.Repeat("x", 255), strings.Repeat("é", 127), "\x01\x7f\u0085",
	}
}

// TestNamesInAnyScript writes, lists, reads, moves and deletes with exact names:
// once in a workspace without a sandbox, once in one that is live, and code sees
// the same.
func TestNamesInAnyScript(t *testing.T) {
	for name, live := range map[string]bool{"without a sandbox": false, "in a live sandbox": true} {
		t.Run(name, func(t *testing.T) {
			s := mustShared(t).mustSession(t, sdk.CreateSession{})
			if live {
				wantEnd(t, s.mustBash("true"), workbench.StatusSucceeded, "")
			}
			want := []string{}
			for _, n := range append(scripts(), "not \xff\xfe text") {
				s.mustWrite("d/"+n, "in "+n)
				want = append(want, "d/"+n)
			}
			slices.Sort(want)
			wantNames(t, s.mustNames(7), append([]string{"d/"}, want...)...)
			for _, n := range want {
				if got := s.mustFile(n); got != "in "+strings.TrimPrefix(n, "d/") {
					t.Errorf("%q holds %q", n, got)
				}
			}
			r := s.mustPython("import os, sys\nfor n in sorted(os.listdir(b'd')): sys.stdout.buffer.write(n + b'\\0' + open(b'd/' + n, 'rb').read() + b'\\0')")
			seen := ""
			for _, n := range want {
				n = strings.TrimPrefix(n, "d/")
				seen += n + "\x00in " + n + "\x00"
			}
			page, err := s.c.Output(t.Context(), r.ID, workbench.OutputQuery{Limit: workbench.MaxOutputPage})
			if err != nil || page.Text != workbench.TextOf([]byte(seen)) {
				t.Errorf("code sees %q (%v), want %q", page.Text, err, workbench.TextOf([]byte(seen)))
			}
			for i, n := range want {
				to := "moved/" + strings.TrimPrefix(n, "d/")
				if _, err := s.c.MoveWorkspaceFile(t.Context(), s.id, workbench.MoveFile{From: n, To: to}); err != nil {
					t.Errorf("moving %q: %v", n, err)
				}
				if i%2 == 0 {
					if _, err := s.c.DeleteWorkspaceFile(t.Context(), s.id, to, false); err != nil {
						t.Errorf("deleting %q: %v", to, err)
					}
				}
			}
			if n := len(s.mustNames(200)); n != 2+len(want)/2 {
				t.Errorf("%d names are left", n)
			}
		})
	}
}

// TestChangesOfAWorkspace: what a change may and may not do is the same with and
// without a sandbox.
func TestChangesOfAWorkspace(t *testing.T) {
	for name, live := range map[string]bool{"without a sandbox": false, "in a live sandbox": true} {
		t.Run(name, func(t *testing.T) {
			s := mustShared(t).mustSession(t, sdk.CreateSession{})
			first := s.mustBash("mkdir -p d/e; echo one > d/e/f; ln -s d/e/f link; ln -s /etc etc; ln -s .. up; chmod 750 d/e/f")
			wantEnd(t, first, workbench.StatusSucceeded, "")
			if !live {
				restartKeeping(t, s, first)
			}
			refusals(t, s)
			before := len(s.mustCommits())
			change := s.mustWrite("d/e/f", "two")
			if change.Entry == nil || change.Entry.Mode != "0750" || change.Entry.Size != 3 || len(s.mustCommits()) != before+1 {
				t.Errorf("%+v", change)
			}
			if got := s.mustCommits()[0]; got.ID != change.Commit.ID || len(got.RunIDs) != 0 || !got.Exclusive {
				t.Errorf("the change is commit %+v", got)
			}
			mode := uint32(0o755)
			_, err := s.c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "d/e/f", IfMatch: change.Entry.SHA256, Mode: &mode}, strings.NewReader("three"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.c.MoveWorkspaceFile(t.Context(), s.id, workbench.MoveFile{From: "d", To: "new/place"}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.c.MoveWorkspaceFile(t.Context(), s.id, workbench.MoveFile{From: "link", To: "new/place/e/f", Overwrite: true}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.c.MakeWorkspaceDirectory(t.Context(), s.id, "x/y"); err != nil {
				t.Fatal(err)
			}
			if again, err := s.c.MakeWorkspaceDirectory(t.Context(), s.id, "x/y"); err != nil || again.Commit.ID != s.mustCommits()[0].ID {
				t.Errorf("a directory that is there: %+v, %v", again, err)
			}
			wantNames(t, s.mustNames(3), "etc", "new/", "new/place/", "new/place/e/", "new/place/e/f", "up", "x/", "x/y/")
			out := s.mustBash("readlink new/place/e/f; find . | sort | tr '\\n' ' '")
			wantOut(t, out, "d/e/f\n. ./etc ./new ./new/place ./new/place/e ./new/place/e/f ./up ./x ./x/y ")
			if out.Files.Total != 0 {
				t.Errorf("a run that reads changed %+v", out.Files)
			}
		})
	}
}

// restartKeeping gives the sandbox of a session up and goes back to what a run
// left.
func restartKeeping(t *testing.T, s *session, r workbench.Receipt) {
	t.Helper()
	if _, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{}); err != nil {
		t.Fatal(err)
	}
	back, err := s.c.RollBackSession(t.Context(), s.id, sdk.RollBack{Run: r.ID})
	if err != nil || back.Memory != workbench.MemoryNone {
		t.Fatalf("%+v, %v", back, err)
	}
}

// refusals are changes that must change nothing.
func refusals(t *testing.T, s *session) {
	t.Helper()
	head := s.mustCommits()[0].ID
	write := func(f sdk.WriteFile) error {
		_, err := s.c.WriteWorkspaceFile(t.Context(), s.id, f, strings.NewReader("x"))
		return err
	}
	move := func(from, to string, overwrite bool) error {
		_, err := s.c.MoveWorkspaceFile(t.Context(), s.id, workbench.MoveFile{From: from, To: to, Overwrite: overwrite})
		return err
	}
	remove := func(path string, recursive bool) error {
		_, err := s.c.DeleteWorkspaceFile(t.Context(), s.id, path, recursive)
		return err
	}
	read := func(path string) error {
		_, err := s.c.ReadWorkspaceFile(t.Context(), s.id, path)
		return err
	}
	mkdir := func(path string) error {
		_, err := s.c.MakeWorkspaceDirectory(t.Context(), s.id, path)
		return err
	}
	list := func(path string) error {
		_, err := s.c.ListWorkspace(t.Context(), s.id, workbench.TreeQuery{Path: path})
		return err
	}
	for what, c := range map[string]struct {
		err  error
		code workbench.Code
	}{
		"a write above":                      {write(sdk.WriteFile{Path: "../x"}), workbench.CodePathInvalid},
		"a write to an absolute path":        {write(sdk.WriteFile{Path: "/etc/x"}), workbench.CodePathInvalid},
		"a write to a link":                  {write(sdk.WriteFile{Path: "link"}), workbench.CodePathConflict},
		"a write through a link out":         {write(sdk.WriteFile{Path: "etc/x"}), workbench.CodePathConflict},
		"a write through a link up":          {write(sdk.WriteFile{Path: "up/x"}), workbench.CodePathConflict},
		"a write to a directory":             {write(sdk.WriteFile{Path: "d"}), workbench.CodePathConflict},
		"a write below a file":               {write(sdk.WriteFile{Path: "d/e/f/g"}), workbench.CodePathConflict},
		"a write that expects other bytes":   {write(sdk.WriteFile{Path: "d/e/f", IfMatch: strings.Repeat("0", 64)}), workbench.CodeVersionMismatch},
		"a write that expects a file":        {write(sdk.WriteFile{Path: "none", IfMatch: "*"}), workbench.CodeVersionMismatch},
		"a write that expects none":          {write(sdk.WriteFile{Path: "d/e/f", IfAbsent: true}), workbench.CodeVersionMismatch},
		"a move of nothing":                  {move("none", "b", false), workbench.CodeNotFound},
		"a move onto a file":                 {move("link", "d/e/f", false), workbench.CodePathConflict},
		"a move onto a directory":            {move("link", "d", true), workbench.CodePathConflict},
		"a move of a directory onto a file":  {move("d", "link", true), workbench.CodePathConflict},
		"a move below itself":                {move("d", "d/e/d", false), workbench.CodePathInvalid},
		"a move out":                         {move("d", "../d", false), workbench.CodePathInvalid},
		"a move through a link":              {move("d", "etc/d", false), workbench.CodePathConflict},
		"a move from behind a link":          {move("etc/passwd", "passwd", false), workbench.CodePathConflict},
		"a delete of nothing":                {remove("none", true), workbench.CodeNotFound},
		"a delete behind a link":             {remove("etc/passwd", false), workbench.CodePathConflict},
		"a delete of a directory with files": {remove("d", false), workbench.CodePathConflict},
		"a delete of the workspace":          {remove("", true), workbench.CodePathInvalid},
		"a read of a link":                   {read("link"), workbench.CodePathConflict},
		"a read behind a link":               {read("etc/passwd"), workbench.CodePathConflict},
		"a read of a directory":              {read("d"), workbench.CodePathConflict},
		"a read of nothing":                  {read("d/none"), workbench.CodeNotFound},
		"a directory on a file":              {mkdir("d/e/f"), workbench.CodePathConflict},
		"a directory behind a link":          {mkdir("etc/d"), workbench.CodePathConflict},
		"a list behind a link":               {list("etc/ssl"), workbench.CodePathConflict},
		"a list of nothing":                  {list("none"), workbench.CodeNotFound},
	} {
		if workbench.CodeOf(c.err) != c.code {
			t.Errorf("%s: %v, want code %s", what, c.err, c.code)
		}
	}
	if got := s.mustCommits()[0].ID; got != head {
		t.Errorf("refused changes made a commit")
	}
}

// TestWorkspaceIsFull: what does not fit is refused with numbers, and nothing of
// it is there, also where only the pages of small files are too many.
func TestWorkspaceIsFull(t *testing.T) {
	small := int64(1 << 20)
	for name, live := range map[string]bool{"without a sandbox": false, "in a live sandbox": true} {
		t.Run(name, func(t *testing.T) {
			s := mustShared(t).mustSession(t, sdk.CreateSession{Limits: &workbench.LimitsRequest{WorkspaceBytes: &small}})
			if live {
				wantEnd(t, s.mustBash("true"), workbench.StatusSucceeded, "")
			}
			s.mustWrite("half", strings.Repeat("x", 600<<10))
			_, err := s.c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "other half"}, strings.NewReader(strings.Repeat("x", 600<<10)))
			wantCode(t, err, workbench.CodeWorkspaceFull)
			_, err = s.c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "too large"}, strings.NewReader(strings.Repeat("x", 2<<20)))
			wantCode(t, err, workbench.CodeWorkspaceFull)
			wantNames(t, s.mustNames(10), "half")
			wantOut(t, s.mustBash("ls; stat -c %s half"), "half\n614400\n")
		})
	}
}

// TestWorkspaceWhileCodeRuns: a list and a read see what the code has made so
// far, a write is seen by the code, and its commit is shared.
func TestWorkspaceWhileCodeRuns(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, TimeoutMs: ptr(int64(180_000)), Code: `mkdir out; printf 0123456789 > out/made; mkfifo pipe; ln -s out/made link; echo ready
while [ ! -e go ]; do sleep 0.05; done
cat go; mv moved.txt back.txt; ls`})
	deadline := time.Now().Add(time.Minute)
	for {
		page, err := s.c.Output(t.Context(), run, workbench.OutputQuery{})
		if err != nil {
			t.Fatal(err)
		}
		if page.Text == "ready\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the code does not come to run")
		}
		time.Sleep(20 * time.Millisecond)
	}
	list, err := s.c.ListWorkspace(t.Context(), s.id, workbench.TreeQuery{Recursive: true})
	if err != nil || !list.Live || len(list.Items) != 3 || list.Items[0].Path != "link" || list.Items[0].Target != "out/made" || list.Items[2].Size != 10 || list.Items[2].SHA256 != "" {
		t.Fatalf("%+v, %v", list, err)
	}
	wantNames(t, s.mustNames(1), "link", "out/", "out/made")
	if got := s.mustFile("out/made"); got != "0123456789" {
		t.Errorf("live it is %q", got)
	}
	_, err = s.c.ReadWorkspaceFile(t.Context(), s.id, "link")
	wantCode(t, err, workbench.CodePathConflict)
	if got := tarNames(t, func(w io.Writer) error { _, err := s.c.DownloadWorkspace(t.Context(), s.id, w); return err }); !slices.Equal(got, []string{"link -> out/made", "out/", "out/made=0123456789"}) {
		t.Errorf("the archive holds %q", got)
	}
	if _, err := s.c.MoveWorkspaceFile(t.Context(), s.id, workbench.MoveFile{From: "out/made", To: "moved.txt"}); err != nil {
		t.Fatal(err)
	}
	if got := s.mustFile("moved.txt"); got != "0123456789" {
		t.Errorf("moved it is %q", got)
	}
	change := s.mustWrite("go", "from outside\n")
	if change.Commit.Exclusive || !slices.Equal(change.Commit.RunIDs, []string{run}) {
		t.Errorf("a change while code runs is commit %+v", change.Commit)
	}
	_, err = s.c.RollBackSession(t.Context(), s.id, sdk.RollBack{Commit: change.Commit.ID})
	wantCode(t, err, workbench.CodeRunsActive)
	r := s.mustWait(run)
	wantOut(t, r, "ready\nfrom outside\nback.txt\ngo\nlink\nout\npipe\n")
	if r.Files.Exclusive {
		t.Error("the run's changes are told as its own alone")
	}
	wantNames(t, s.mustNames(10), "back.txt", "go", "link", "out/")
	diff, err := s.c.CompareRun(t.Context(), run, workbench.Page{})
	if err != nil || diff.Exclusive || diff.Total != 4 {
		t.Errorf("%+v, %v", diff, err)
	}
}

// tarNames tells the entries of an archive, in order.
func tarNames(t *testing.T, download func(io.Writer) error) []string {
	t.Helper()
	var archive bytes.Buffer
	if err := download(&archive); err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for r := tar.NewReader(&archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		switch h.Typeflag {
		case tar.TypeSymlink:
			names = append(names, h.Name+" -> "+h.Linkname)
		case tar.TypeDir:
			names = append(names, h.Name)
		default:
			names = append(names, h.Name+"="+string(content))
		}
	}
}

// TestLiveFileThatCodeMayNotRead: it is refused like any other request, before
// a part of an answer is out; without a sandbox it can be read.
func TestLiveFileThatCodeMayNotRead(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	wantEnd(t, s.mustBash("echo x > shut; chmod 000 shut; seq 20000 > open"), workbench.StatusSucceeded, "")
	run := s.mustSubmit(aside("echo begun; " + untilFile("stop")))
	mustSay(t, s, run, "begun")
	_, err := s.c.ReadWorkspaceFile(t.Context(), s.id, "shut")
	if !workbench.HasCode(err, workbench.CodeForbidden) {
		t.Errorf("a live file without rights: %v", err)
	}
	if got, err := s.c.ReadWorkspaceFile(t.Context(), s.id, "open"); err != nil || len(got) != 108894 || !bytes.HasSuffix(got, []byte("\n20000\n")) {
		t.Errorf("a live file of several blocks: %d bytes, %v", len(got), err)
	}
	wantEnd(t, s.mustBash("touch stop"), workbench.StatusSucceeded, "")
	s.mustWait(run)
	if got, err := s.c.ReadWorkspaceFile(t.Context(), s.id, "shut"); err != nil || string(got) != "x\n" {
		t.Errorf("as committed it is %q, %v", got, err)
	}
}

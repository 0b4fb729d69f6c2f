package e2e_test

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// TestRollBack: files go back and memory stays; the history goes on; without a
// sandbox it is the same but for the memory.
func TestRollBack(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	one := s.mustBash("mkdir -p d/e; echo one > d/e/f; echo keep > same; ln -s same link; echo in memory > /tmp/note; chmod 700 d; touch was-a-file")
	two := s.mustBash("echo two > d/e/f; rm link same was-a-file; mkdir was-a-file link; echo x > was-a-file/x; echo y > 'd/new file'; chmod 755 d; mv d/e d/moved; echo z > d.txt")
	wantEnd(t, two, workbench.StatusSucceeded, "")
	commits := s.mustCommits()
	if len(commits) != 2 || !slices.Equal(commits[0].RunIDs, []string{two.ID}) || commits[0].ID != two.CommitID || commits[1].ID != one.CommitID || commits[0].ParentID != one.CommitID {
		t.Fatalf("%+v", commits)
	}
	back, err := s.c.RollBackSession(t.Context(), s.id, sdk.RollBack{Run: one.ID, ExpectedHead: two.CommitID})
	if err != nil {
		t.Fatal(err)
	}
	if back.Memory != workbench.MemoryKept || back.Commit.Root != commits[1].Root || back.Commit.ParentID != two.CommitID || back.Commit.Number != 3 ||
		back.Commit.RestoredFrom != one.CommitID || back.Session.HeadCommit != back.Commit.ID {
		t.Errorf("%+v", back)
	}
	const look = `cat /tmp/note d/e/f same link; stat -c '%a %F' d was-a-file; find . | sort | tr '\n' ' '`
	const was = "one\nkeep\nkeep\n700 directory\n644 regular empty file\n. ./d ./d/e ./d/e/f ./link ./same ./was-a-file "
	r := s.mustBash(look)
	wantOut(t, r, "in memory\n"+was)
	if r.Files.Total != 0 || r.InputRoot != commits[1].Root {
		t.Errorf("the run after it changed %+v", r.Files)
	}
	_, err = s.c.RollBackSession(t.Context(), s.id, sdk.RollBack{Commit: two.CommitID, ExpectedHead: two.CommitID})
	wantCode(t, err, workbench.CodeVersionMismatch)
	_, err = s.c.RollBackSession(t.Context(), s.id, sdk.RollBack{Commit: workbench.NewID(workbench.KindCommit)})
	wantCode(t, err, workbench.CodeNotFound)
	other := mustSessionOf(t, s.c, sdk.CreateSession{})
	_, err = other.c.RollBackSession(t.Context(), other.id, sdk.RollBack{Commit: two.CommitID})
	wantCode(t, err, workbench.CodeNotFound)
	again, err := s.c.RollBackSession(t.Context(), s.id, sdk.RollBack{Run: one.ID})
	if err != nil || again.Commit.ID != back.Commit.ID {
		t.Errorf("going back to where it is: %+v, %v", again, err)
	}
	if _, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{}); err != nil {
		t.Fatal(err)
	}
	if back, err = s.c.RollBackSession(t.Context(), s.id, sdk.RollBack{Commit: one.CommitID}); err != nil || back.Memory != workbench.MemoryNone {
		t.Fatalf("%+v, %v", back, err)
	}
	wantOut(t, s.mustBash(strings.Replace(look, "/tmp/note ", "", 1)), was)
	if n := len(s.mustCommits()); n != 5 {
		t.Errorf("%d commits, want 5: nothing of the history is lost", n)
	}
}

// TestFork: a fork has the files and nothing else, goes its own way, and outlives
// the session it comes from.
func TestFork(t *testing.T) {
	w := mustShared(t)
	c := w.mustUser(t, "fork", "ada")
	made, err := c.CreateAgentSession(t.Context(), sdk.CreateSession{Agent: "origin", Labels: map[string]string{"team": "blue"}})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, c: c, id: made.ID}
	_, err = c.ForkAgentSession(t.Context(), s.id, sdk.ForkSession{})
	wantCode(t, err, workbench.CodeConflict) // it has no commit
	one := s.mustPython("open('big', 'w').write('0123456789' * 100_000); open('f', 'w').write('one'); open('/tmp/note', 'w').write('x')")
	s.mustBash("echo two > f")
	failed := s.mustBash("exit 3")
	fork, err := c.ForkAgentSession(t.Context(), s.id, sdk.ForkSession{Run: one.ID})
	if err != nil {
		t.Fatal(err)
	}
	if read, err := c.AgentSession(t.Context(), fork.ID); err != nil || fork.HistoryBytes == 0 || read.HistoryBytes != fork.HistoryBytes {
		t.Errorf("a fork is told that its history takes %d bytes, and then %d (%v)", fork.HistoryBytes, read.HistoryBytes, err)
	}
	if fork.Agent != "origin" || fork.Labels["team"] != "blue" || fork.ForkedFrom == nil || *fork.ForkedFrom != (workbench.Lineage{SessionID: s.id, RunID: one.ID, CommitID: one.CommitID}) {
		t.Errorf("%+v from %+v", fork, fork.ForkedFrom)
	}
	if _, err := c.CloseAgentSession(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	f := &session{t: t, c: c, id: fork.ID}
	t.Cleanup(func() { _, _ = c.CloseAgentSession(t.Context(), fork.ID) })
	wantOut(t, f.mustBash("cat f; stat -c ' %s' big; ls /tmp/note 2>/dev/null; echo mine > f"), "one 1000000\n")
	if got := s.mustFile("f"); got != "two\n" {
		t.Errorf("the session it comes from has %q", got)
	}
	late, err := c.ForkAgentSession(t.Context(), s.id, sdk.ForkSession{Run: failed.ID}) // closed, and a program that failed leaves a tree too
	if err != nil {
		t.Fatal(err)
	}
	l := &session{t: t, c: c, id: late.ID}
	t.Cleanup(func() { _, _ = c.CloseAgentSession(t.Context(), late.ID) })
	if got := l.mustFile("f"); got != "two\n" || len(l.mustCommits()) != 1 {
		t.Errorf("the late fork has %q", got)
	}
	small := workbench.MiB
	_, err = c.ForkAgentSession(t.Context(), f.id, sdk.ForkSession{Limits: &workbench.LimitsRequest{WorkspaceBytes: &small}})
	if err != nil {
		t.Errorf("a tree that fits: %v", err)
	}
	wantEnd(t, f.mustPython("open('more', 'w').write('x' * 100_000)"), workbench.StatusSucceeded, "")
	_, err = c.ForkAgentSession(t.Context(), f.id, sdk.ForkSession{Limits: &workbench.LimitsRequest{WorkspaceBytes: &small}})
	wantCode(t, err, workbench.CodeWorkspaceFull)
	_, err = c.ForkAgentSession(t.Context(), f.id, sdk.ForkSession{Run: one.ID}) // of another session
	wantCode(t, err, workbench.CodeNotFound)
	_, err = w.mustUser(t, "fork", "bob").ForkAgentSession(t.Context(), f.id, sdk.ForkSession{})
	wantCode(t, err, workbench.CodeNotFound)
}

// TestDiff: what a run changed, as a patch for text, with sizes and digests for
// the rest.
func TestDiff(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	s.mustBash("seq 1 9 > lines; printf 'no end' > open; printf 'a\\0b' > binary; echo gone > 'to go'; printf 'caf\\351\\n' > latin1; ln -s lines link; touch x; seq 1 200000 > large")
	r := s.mustBash(`sed -i s/5/five/ lines; printf 'no end\nbut more' > open; printf 'a\0c' > binary; rm 'to go'; ln -sf open link; chmod +x x; printf 'new\n' > $'na\tme'; seq 1 200001 > large; mkdir dir`)
	wantEnd(t, r, workbench.StatusSucceeded, "")
	diff, err := s.c.CompareRun(t.Context(), r.ID, workbench.Page{})
	if err != nil || !diff.Exclusive || diff.Total != 9 || !slices.Equal(diff.RunIDs, []string{r.ID}) {
		t.Fatalf("%+v, %v", diff, err)
	}
	for i, want := range []struct {
		path, diff          string
		change              workbench.Change
		plus, minus         int
		binary, large, both bool
	}{
		{"binary", "diff --git a/binary b/binary\nBinary files a/binary and b/binary differ\n", "modified", 0, 0, true, false, true},
		{"dir", "", "added", 0, 0, false, false, false},
		{"large", "diff --git a/large b/large\nBinary files a/large and b/large differ\n", "modified", 0, 0, false, true, true},
		{"lines", "diff --git a/lines b/lines\n--- a/lines\n+++ b/lines\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n", "modified", 1, 1, false, false, true},
		{"link", "diff --git a/link b/link\n--- a/link\n+++ b/link\n@@ -1 +1 @@\n-lines\n\\ No newline at end of file\n+open\n\\ No newline at end of file\n", "modified", 1, 1, false, false, true},
		{"na\tme", "diff --git \"a/na\\tme\" \"b/na\\tme\"\nnew file mode 100644\n--- /dev/null\n+++ \"b/na\\tme\"\n@@ -0,0 +1 @@\n+new\n", "added", 1, 0, false, false, false},
		{"open", "diff --git a/open b/open\n--- a/open\n+++ b/open\n@@ -1 +1,2 @@\n-no end\n\\ No newline at end of file\n+no end\n+but more\n\\ No newline at end of file\n", "modified", 2, 1, false, false, true},
		{"to go", "diff --git a/to go b/to go\ndeleted file mode 100644\n--- a/to go\t\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n", "removed", 0, 1, false, false, false},
		{"x", "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "modified", 0, 0, false, false, true},
	} {
		got := diff.Items[i]
		if got.Path != want.path || got.Diff != want.diff || got.Change != want.change || got.Additions != want.plus || got.Deletions != want.minus || got.Binary != want.binary ||
			got.Truncated != want.large || (got.Old != nil && got.New != nil) != want.both {
			t.Errorf("%q: %+v\n%q", want.path, got, got.Diff)
		}
	}
	var whole, paged bytes.Buffer
	if err := s.c.RunPatch(t.Context(), r.ID, &whole); err != nil {
		t.Fatal(err)
	}
	for page := (workbench.Page{Limit: 2}); ; {
		part, err := s.c.CompareCommits(t.Context(), "", r.CommitID, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range part.Items {
			paged.WriteString(d.Diff)
		}
		if page.Cursor = part.Next; page.Cursor == "" {
			break
		}
	}
	if whole.String() != paged.String() || whole.Len() == 0 {
		t.Errorf("the patch is %q, by pages %q", whole.String(), paged.String())
	}
	same, err := s.c.CompareCommits(t.Context(), r.CommitID, r.CommitID, workbench.Page{})
	if err != nil || same.Total != 0 {
		t.Errorf("a commit with itself: %+v, %v", same, err)
	}
	running := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "sleep 60"})
	_, err = s.c.CompareRun(t.Context(), running, workbench.Page{})
	wantCode(t, err, workbench.CodeConflict)
	if _, err := s.c.CancelRun(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	s.mustWait(running)
}

// TestCommitsKeepEverything: an earlier commit's files are all there, exactly.
func TestCommitsKeepEverything(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	one := s.mustBash(`mkdir d; printf one > d/f; printf 'not text' > $'d/\xff'; ln -s f d/l`)
	s.mustBash("rm -r d; echo other > d")
	tree, err := s.c.CommitTree(t.Context(), one.CommitID, workbench.TreeQuery{Path: "d"})
	if err != nil || len(tree.Items) != 3 || tree.Items[0].Path != "d/f" || tree.Items[1].Target != "f" || tree.Items[2].Name() != "d/\xff" || tree.Items[2].Path != "d/\uFFFD" {
		t.Fatalf("%+v, %v", tree, err)
	}
	for path, want := range map[string]string{"d/f": "one", "d/\xff": "not text"} {
		if got, err := s.c.ReadCommitFile(t.Context(), one.CommitID, path); err != nil || string(got) != want {
			t.Errorf("%q holds %q, %v", path, got, err)
		}
		if got, err := s.c.ReadRunFile(t.Context(), one.ID, path); err != nil || string(got) != want {
			t.Errorf("%q of the run holds %q, %v", path, got, err)
		}
	}
	_, err = s.c.ReadCommitFile(t.Context(), one.CommitID, "d/l")
	wantCode(t, err, workbench.CodePathConflict)
	got := tarNames(t, func(w io.Writer) error { _, err := s.c.DownloadCommit(t.Context(), one.CommitID, w); return err })
	if !slices.Equal(got, []string{"d/", "d/f=one", "d/l -> f", "d/\xff=not text"}) {
		t.Errorf("the archive holds %q", got)
	}
	files, err := s.c.RunFiles(t.Context(), one.ID, workbench.Page{})
	if err != nil || files.Items[len(files.Items)-1].Name() != "d/\xff" {
		t.Errorf("%+v, %v", files, err)
	}
}

package e2e_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustReach waits until a run has written what is wanted.
func (s *session) mustReach(run, want string) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		page, err := s.c.Output(s.t.Context(), run, workbench.OutputQuery{})
		if err != nil {
			s.t.Fatal(err)
		}
		if page.Text == want {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the code has written %q, not %q", page.Text, want)
		}
	}
}

// wantRefused checks that an error is about a path, and says what to do.
func wantRefused(t *testing.T, what string, err error, code workbench.Code, detail, hint string) {
	t.Helper()
	var e *workbench.Error
	if !errors.As(err, &e) || e.Code != code || e.Field != "path" || !strings.Contains(e.Detail, detail) || !strings.Contains(e.Hint, hint) {
		t.Errorf("%s: %+v, want %s with the field path, %q and %q", what, e, code, detail, hint)
	}
}

// TestPlacesInAWorkspace: every usual way to write the top of the workspace and
// a directory lists it, and what is not there or is something else is told with
// the field and the tree to look at: without a sandbox, live, and of a commit.
func TestPlacesInAWorkspace(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustBash("mkdir d; echo one > d/f")
	wantEnd(t, r, workbench.StatusSucceeded, "")
	now := func(q workbench.TreeQuery) ([]workbench.TreeEntry, error) {
		list, err := s.c.ListWorkspace(t.Context(), s.id, q)
		return list.Items, err
	}
	check := func(where, hint string, list func(workbench.TreeQuery) ([]workbench.TreeEntry, error), read func(path string) error) {
		names := func(dir string) []string {
			got := []string{}
			items, err := list(workbench.TreeQuery{Path: dir})
			if err != nil {
				t.Errorf("%s, %q: %v", where, dir, err)
			}
			for _, e := range items {
				got = append(got, e.Path)
			}
			return got
		}
		for _, top := range []string{"", ".", "./", "/", "/mnt/files", "/mnt/files/"} {
			if got := names(top); !slices.Equal(got, []string{"d"}) {
				t.Errorf("%s, %q lists %q", where, top, got)
			}
		}
		for _, dir := range []string{"d", "d/", "./d", "./d/", "/mnt/files/d", "/mnt/files/d/"} {
			if got := names(dir); !slices.Equal(got, []string{"d/f"}) {
				t.Errorf("%s, %q lists %q", where, dir, got)
			}
		}
		_, err := list(workbench.TreeQuery{Path: "none"})
		wantRefused(t, where+", a list", err, workbench.CodeNotFound, "no such directory", hint)
		_, err = list(workbench.TreeQuery{Path: "/etc"})
		wantRefused(t, where+", a list from elsewhere", err, workbench.CodePathInvalid, "absolute", "leave path out")
		wantRefused(t, where+", a file", read("none"), workbench.CodeNotFound, "no such file", hint)
		wantRefused(t, where+", a directory as a file", read("d"), workbench.CodePathConflict, "a directory", "list it")
	}
	file := func(path string) error {
		_, err := s.c.ReadWorkspaceFile(t.Context(), s.id, path)
		return err
	}
	changes := func(where string) {
		_, err := s.c.DeleteWorkspaceFile(t.Context(), s.id, "none", false)
		wantRefused(t, where+", deleting", err, workbench.CodeNotFound, "no such file", "list the workspace")
		_, err = s.c.DeleteWorkspaceFile(t.Context(), s.id, "d", false)
		wantRefused(t, where+", deleting a directory", err, workbench.CodePathConflict, "not empty", "recursive")
		_, err = s.c.MakeWorkspaceDirectory(t.Context(), s.id, "d/f")
		wantRefused(t, where+", a directory over a file", err, workbench.CodePathConflict, "something else", "")
		if _, err := s.c.MakeWorkspaceDirectory(t.Context(), s.id, "./d/"); err != nil {
			t.Errorf("%s, a directory that is there: %v", where, err)
		}
	}
	check("at rest", "list the workspace", now, file)
	changes("at rest")
	check("of a commit", "the tree of the commit "+r.CommitID, func(q workbench.TreeQuery) ([]workbench.TreeEntry, error) {
		list, err := s.c.CommitTree(t.Context(), r.CommitID, q)
		return list.Items, err
	}, func(path string) error {
		_, err := s.c.DownloadCommitFile(t.Context(), r.CommitID, path, io.Discard)
		return err
	})
	_, err := s.c.ReadRunFile(t.Context(), r.ID, "none")
	wantRefused(t, "of a run", err, workbench.CodeNotFound, "no such file", "the tree of the commit "+r.CommitID)
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, TimeoutMs: ptr(int64(180_000)), Code: "echo ready; while [ ! -e d/go ]; do sleep 0.05; done"})
	s.mustReach(run, "ready\n")
	check("live", "list the workspace", now, file)
	changes("live")
	s.mustWrite("./d/go", "")
	wantEnd(t, s.mustWait(run), workbench.StatusSucceeded, "")
}

// TestGlobsAreOfTheWorkspace: what may stand before a path may stand before a
// glob, and one that cannot be used is told why.
func TestGlobsAreOfTheWorkspace(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "mkdir o; echo a > o/a.csv; echo b > o/b.txt", Keep: []string{"./o/*.csv", "/mnt/files/o/*.txt"}})
	wantEnd(t, r, workbench.StatusSucceeded, "")
	if len(r.Artifacts) != 2 || len(r.Notices) != 0 {
		t.Errorf("kept %+v, notices %+v", r.Artifacts, r.Notices)
	}
	for glob, why := range map[string]string{"": "is empty", "/mnt/files/": "is empty", "/etc/*": "is absolute", "a/../b": `has a ".." element`, "a[b": "not closed", "{a,b": "not closed",
		strings.Repeat("x", 5000): "is longer than"} {
		_, err := s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "true", Keep: []string{"*", glob}})
		var e *workbench.Error
		if !errors.As(err, &e) || e.Code != workbench.CodeInvalidRequest || e.Field != "keep[1]" || !strings.HasPrefix(e.Detail, "keep[1] ") || !strings.Contains(e.Detail, why) || e.Hint == "" {
			t.Errorf("%.20q: %+v", glob, e)
		}
	}
}

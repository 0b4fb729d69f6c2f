package e2e_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// TestContextWhereNoDirectoryIs: a cwd in the workspace that is not there is
// refused when the context is made.
func TestContextWhereNoDirectoryIs(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	s.mustWrite("data/may.csv", "1")
	create := func(id, dir string) error {
		_, err := s.c.CreateContext(t.Context(), s.id, sdk.CreateContext{ID: id, Language: workbench.Python, Dir: dir})
		return err
	}
	for dir, detail := range map[string]string{
		"none":                     "there is no directory none in the workspace",
		"data/none":                "there is no directory data/none in the workspace",
		"/mnt/files/data/may.csv":  "data/may.csv in the workspace is no directory",
		"/mnt/files/data/may.csv/": "data/may.csv in the workspace is no directory",
	} {
		err := create("c", dir)
		wantCode(t, err, workbench.CodePathInvalid)
		if e := workbench.AsError(err); e.Field != "cwd" || e.Detail != "cwd must be a directory that is there: "+detail {
			t.Errorf("%s: %q of field %q", dir, e.Detail, e.Field)
		}
	}
	if err := create("c", "data"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.DeleteWorkspaceFile(t.Context(), s.id, "data", true); err != nil {
		t.Fatal(err)
	}
	if err := create("c", "data"); err != nil {
		t.Errorf("the same once more: %v", err)
	}
}

// TestContextThatCannotStart: a cwd that only the sandbox knows fails the first
// cell with a message that names it, and with no word on variables; once it is
// there the context is as new.
func TestContextThatCannotStart(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	for language, code := range map[workbench.Language]string{
		workbench.Python: "import os; print(os.getcwd())", workbench.JavaScript: "console.log(process.cwd())", workbench.Bash: "pwd",
	} {
		t.Run(string(language), func(t *testing.T) {
			dir := "/tmp/" + string(language)
			if _, err := s.c.CreateContext(t.Context(), s.id, sdk.CreateContext{ID: string(language), Language: language, Dir: dir}); err != nil {
				t.Fatal(err)
			}
			cell := sdk.CreateRun{Language: language, Code: code, ContextID: string(language)}
			r := s.mustRun(cell)
			wantEnd(t, r, workbench.StatusFailed, workbench.ReasonContextStart)
			if !strings.Contains(r.Message, "cannot start in its cwd "+dir+": there is no such directory; nothing ran") || r.ExitCode != nil {
				t.Errorf("message %q, exit code %v", r.Message, r.ExitCode)
			}
			for _, n := range r.Notices {
				if n.Code == workbench.NoticeContextLost {
					t.Errorf("notice %+v", n)
				}
			}
			wantEnd(t, s.mustBash("mkdir "+dir), workbench.StatusSucceeded, "")
			r = s.mustRun(cell)
			wantOut(t, r, dir+"\n")
			if len(r.Notices) > 0 || r.Generation != 1 {
				t.Errorf("generation %d, notices %+v", r.Generation, r.Notices)
			}
		})
	}
}

// TestContextWhoseStartEndsIt: what an interpreter reads when it starts is code,
// whatever status it ends with: something has run.
func TestContextWhoseStartEndsIt(t *testing.T) {
	for name, script := range map[string]string{"ends": "touch began; exit 126", "without its directory": "touch began; cd /; rmdir /mnt/files/d; exit 126"} {
		t.Run(name, func(t *testing.T) {
			s := mustShared(t).mustSession(t, sdk.CreateSession{})
			wantEnd(t, s.mustBash("mkdir d"), workbench.StatusSucceeded, "")
			s.mustWrite("start.sh", "cd /mnt/files; "+script)
			if _, err := s.c.CreateContext(t.Context(), s.id, sdk.CreateContext{ID: "c", Language: workbench.Bash, Dir: "d", Env: map[string]string{"BASH_ENV": "/mnt/files/start.sh"}}); err != nil {
				t.Fatal(err)
			}
			r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "echo never", ContextID: "c"})
			if r.Status != workbench.StatusFailed || r.Reason == workbench.ReasonContextStart || strings.Contains(r.Message, "nothing ran") {
				t.Errorf("%s %s, message %q", r.Status, r.Reason, r.Message)
			}
			if !slices.ContainsFunc(r.Files.Items, func(f workbench.ChangedFile) bool { return f.Path == "began" }) {
				t.Errorf("files %+v, want what it wrote", r.Files)
			}
		})
	}
}

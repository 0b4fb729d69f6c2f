package e2e_test

import (
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (s *session) configure(workspaceBytes int64) (workbench.Session, error) {
	s.t.Helper()
	return s.c.ConfigureAgentSession(s.t.Context(), s.id, sdk.ConfigureSession{Limits: &workbench.LimitsRequest{WorkspaceBytes: &workspaceBytes}})
}

// TestLimitBelowTheWorkspace: a limit of the workspace below what it holds is
// refused by name and number, with and without a sandbox, and the session goes
// on as it was.
func TestLimitBelowTheWorkspace(t *testing.T) {
	for name, live := range map[string]bool{"without a sandbox": false, "in a live sandbox": true} {
		t.Run(name, func(t *testing.T) {
			s := mustShared(t).mustSession(t, sdk.CreateSession{})
			if live {
				wantOut(t, s.py("x = 41; open('big', 'w').write('x' * 3_000_000); print('made')"), "made\n")
			} else {
				s.mustWrite("big", strings.Repeat("x", 3_000_000))
			}
			_, err := s.configure(2 << 20)
			wantCode(t, err, workbench.CodeLimitOutOfRange)
			if e := workbench.AsError(err); e.Field != "limits.workspaceBytes" || !strings.Contains(e.Detail, "at least 3002368") || !strings.Contains(e.Hint, "delete files") {
				t.Errorf("error is %q of field %q, hint %q", e.Detail, e.Field, e.Hint)
			}
			if live {
				wantOut(t, s.py("print(x + 1)"), "42\n")
			}
			if made, err := s.configure(3002368); err != nil || made.Revision != 2 || made.Limits.WorkspaceBytes != 3002368 {
				t.Fatalf("a limit that is just enough: %+v, %v", made, err)
			}
			wantOut(t, s.mustBash("stat -c %s big; mkdir d"), "3000000\n")
		})
	}
}

// TestWorkspaceOutgrewItsLimit: where the limit came to be below the workspace
// all the same, a run says so and what to do; files can be deleted, and a limit
// that is high enough again finds the session's memory.
func TestWorkspaceOutgrewItsLimit(t *testing.T) {
	w := mustShared(t)
	for name, live := range map[string]bool{"without a sandbox": false, "in a live sandbox": true} {
		t.Run(name, func(t *testing.T) {
			s := w.mustSession(t, sdk.CreateSession{})
			s.mustWrite("big", strings.Repeat("x", 3_000_000))
			s.mustWrite("more", strings.Repeat("x", 1_500_000))
			s.mustWrite("small", "x")
			if live {
				wantEnd(t, s.py("x = 41"), workbench.StatusSucceeded, "")
			}
			w.mustTouch(t, "UPDATE sessions SET limits = json_set(limits, '$.workspaceBytes', 1048576) WHERE id = ?", s.id)
			r := s.mustBash("true")
			wantEnd(t, r, workbench.StatusFailed, workbench.ReasonWorkspaceFull)
			for _, part := range []string{"4509696 bytes", "may hold 16384 and 1048576", "nothing ran", "delete files from the workspace, or configure the session with a higher limits.workspaceBytes"} {
				if !strings.Contains(r.Message, part) {
					t.Errorf("message %q lacks %q", r.Message, part)
				}
			}
			if live {
				if _, err := s.configure(64 << 20); err != nil {
					t.Fatal(err)
				}
				wantOut(t, s.py("print(x + 1)"), "42\n")
				w.mustTouch(t, "UPDATE sessions SET limits = json_set(limits, '$.workspaceBytes', 1048576) WHERE id = ?", s.id)
			}
			for _, path := range []string{"more", "big"} { // the first does not make it small enough
				if _, err := s.c.DeleteWorkspaceFile(t.Context(), s.id, path, false); err != nil {
					t.Fatalf("deleting %s: %v", path, err)
				}
			}
			wantOut(t, s.mustBash("ls"), "small\n")
		})
	}
}

// TestSelectedFilesDoNotFit: a run whose files do not fit says so and what to
// do, and the session goes on.
func TestSelectedFilesDoNotFit(t *testing.T) {
	small := workbench.MiB
	s := mustShared(t).mustSession(t, sdk.CreateSession{Limits: &workbench.LimitsRequest{WorkspaceBytes: &small}})
	large := s.mustUpload("large", strings.Repeat("x", 2<<20))
	r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "true", Artifacts: []workbench.ArtifactSelect{{ID: large.ID}}})
	wantEnd(t, r, workbench.StatusFailed, workbench.ReasonSelection)
	if want := "the selected files do not fit into the workspace; nothing ran: delete files from the workspace, or configure the session with a higher limits.workspaceBytes"; r.Message != want {
		t.Errorf("message %q", r.Message)
	}
	wantOut(t, s.mustBash("ls"), "")
}

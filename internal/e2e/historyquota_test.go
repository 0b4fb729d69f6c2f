package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// noise is n bytes that repeat nowhere.
func noise(n int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), n) }

// writes is a program that writes n random bytes into a file.
func writes(name string, n int64) string {
	return fmt.Sprintf("import os; open(%q, 'wb').write(os.urandom(%d)); print('wrote', %q)", name, n, name)
}

func (s *session) mustHistoryBytes() int64 {
	s.t.Helper()
	got, err := s.c.AgentSession(s.t.Context(), s.id)
	if err != nil {
		s.t.Fatal(err)
	}
	return got.HistoryBytes
}

// wantRefusedCommit fails unless the run ended as it ended, with its output, and
// only its files are not kept.
func wantRefusedCommit(t *testing.T, r workbench.Receipt, out string) {
	t.Helper()
	wantEnd(t, r, workbench.StatusSucceeded, "")
	wantOut(t, r, out)
	if r.CommitID != "" || r.OutputRoot != "" || r.Files.Total != 0 {
		t.Errorf("a run whose commit was refused has commit %q, root %q and %d files", r.CommitID, r.OutputRoot, r.Files.Total)
	}
	for _, n := range r.Notices {
		if n.Code == workbench.NoticeCommitFailed && strings.Contains(n.Detail, "history") && strings.Contains(n.Detail, "--history-per-session") {
			return
		}
	}
	t.Errorf("notices %+v, want one that the history is full and what to do", r.Notices)
}

// TestFullHistory: at the bound of its history a session keeps what it has, runs
// go on, and every change that does not fit is refused whole.
func TestFullHistory(t *testing.T) {
	const most = 3 * workbench.MiB
	w := mustWorld(t, func(o *server.Options) { o.SessionHistory, o.TenantHistory = most, 5*workbench.MiB })
	c := w.mustUser(t, "acme", "ada")
	s := mustSessionOf(t, c, sdk.CreateSession{})
	wantEnd(t, s.mustPython(writes("one", 2*workbench.MiB)), workbench.StatusSucceeded, "")
	used := s.mustHistoryBytes()
	if used < 2*workbench.MiB || used > 2*workbench.MiB+64*workbench.KiB {
		t.Fatalf("the history takes %d bytes, want 2 MiB and a manifest", used)
	}

	wantRefusedCommit(t, s.mustPython(writes("two", 2*workbench.MiB)), "wrote two\n") // before it is stored
	wantOut(t, s.mustBash("ls; echo in memory > /tmp/note"), "one\n")

	_, err := c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "up"}, noise(2*workbench.MiB))
	wantCode(t, err, workbench.CodeQuotaExceeded)
	if e := workbench.AsError(err); e.Field != "historyBytes" || e.Hint == "" {
		t.Errorf("the refusal has field %q and hint %q", e.Field, e.Hint)
	}
	wantOut(t, s.mustBash("ls; cat /tmp/note"), "one\nin memory\n") // taken back, and the sandbox is the same

	fill := most - s.mustHistoryBytes() - 40*workbench.KiB
	wantEnd(t, s.mustPython(writes("fill", fill)), workbench.StatusSucceeded, "")
	small := s.mustPython(writes("small", 50*workbench.KiB))
	wantRefusedCommit(t, small, "wrote small\n") // by the transaction that records it
	seq := int64(0)
	for e, err := range c.Events(t.Context(), small.ID, 0) {
		if seq++; err != nil || e.Seq != seq || e.Kind == workbench.LogFiles {
			t.Fatalf("event %+v, want number %d and no files (%v)", e, seq, err)
		}
	}
	wantOut(t, s.mustBash("ls"), "fill\none\n")
	if got := s.mustHistoryBytes(); got > most {
		t.Errorf("the history takes %d bytes and may take %d", got, most)
	}

	_, err = c.ForkAgentSession(t.Context(), s.id, sdk.ForkSession{})
	wantCode(t, err, workbench.CodeQuotaExceeded)
	if hint := workbench.AsError(err).Hint; !strings.Contains(hint, "--history-per-tenant") || strings.Contains(hint, "fork") {
		t.Errorf("a fork that the tenant has no room for is told %q", hint)
	}
	list, err := c.ListAgentSessions(t.Context(), sdk.SessionFilter{}, workbench.Page{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d sessions (%v), want 1: nothing of the fork is left", len(list.Items), err)
	}
}

// blobs counts the stored contents.
func (w *world) blobs(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(w.dir, "data", "blobs", "??", "*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("%d blobs, %v", len(all), err)
	}
	return len(all)
}

// TestRollBackOfAFullHistory: what goes back and forth stores nothing, however
// often, and keeps its memory where there is no room for anything else.
func TestRollBackOfAFullHistory(t *testing.T) {
	const most = 2 * workbench.MiB
	w := mustWorld(t, func(o *server.Options) { o.SessionHistory = most })
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	wantEnd(t, s.py("x = 41"), workbench.StatusSucceeded, "")
	many := s.mustPython("import os\nfor i in range(8): open(f'part{i}', 'wb').write(os.urandom(100_000))")
	wantEnd(t, many, workbench.StatusSucceeded, "")
	wantEnd(t, s.mustBash("rm part*"), workbench.StatusSucceeded, "")
	full := s.mustPython(writes("fill", most-s.mustHistoryBytes()-40*workbench.KiB))
	wantEnd(t, full, workbench.StatusSucceeded, "")
	stored, used := w.blobs(t), s.mustHistoryBytes()
	for range 2 {
		for _, to := range []string{many.ID, full.ID} {
			back, err := s.c.RollBackSession(t.Context(), s.id, sdk.RollBack{Run: to})
			if err != nil || back.Memory != workbench.MemoryKept {
				t.Fatalf("%+v, %v", back, err)
			}
		}
	}
	if n := w.blobs(t); n > stored || s.mustHistoryBytes() != used {
		t.Errorf("%d contents and %d bytes of history became %d and %d", stored, used, n, s.mustHistoryBytes())
	}

	up := s.mustUpload("up", string(mustAll(t, noise(100*workbench.KiB))))
	r := s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "true", Artifacts: []workbench.ArtifactSelect{{ID: up.ID}}})
	wantEnd(t, r, workbench.StatusFailed, workbench.ReasonSelection)
	for _, part := range []string{"the selected files cannot be committed", "more than 2097152 bytes", "nothing ran", "--history-per-session"} {
		if !strings.Contains(r.Message, part) {
			t.Errorf("message %q lacks %q", r.Message, part)
		}
	}
	wantOut(t, s.mustBash("ls"), "fill\n")
	wantOut(t, s.py("print(x + 1)"), "42\n")
}

func mustAll(t *testing.T, r io.Reader) []byte {
	t.Helper()
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestFullHistoryBesideABackgroundRun: a change that the history has no room for
// takes nothing from a run that is in the sandbox.
func TestFullHistoryBesideABackgroundRun(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.SessionHistory = workbench.MiB })
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	run := s.mustSubmit(aside("echo begun; " + untilFile("stop") + "echo over"))
	mustSay(t, s, run, "begun")

	r := s.mustPython(writes("big", 2*workbench.MiB))
	wantRefusedCommit(t, r, "wrote big\n")
	if !slices.ContainsFunc(r.Notices, func(n workbench.Notice) bool { return strings.Contains(n.Detail, "stays there until they have ended") }) {
		t.Errorf("notices %+v, want one that says where the files are", r.Notices)
	}
	r = s.mustBash("ls; echo in memory > /tmp/note") // it stayed, and is still too much, whichever bound it meets now
	wantEnd(t, r, workbench.StatusSucceeded, "")
	wantOut(t, r, "big\n")
	wantNotice(t, r, workbench.NoticeCommitFailed)
	if r.CommitID != "" {
		t.Errorf("it has commit %s", r.CommitID)
	}

	_, err := s.c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "up"}, noise(2*workbench.MiB))
	wantCode(t, err, workbench.CodeQuotaExceeded)
	_, err = s.c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "up", IfMatch: "*"}, noise(2*workbench.MiB))
	wantCode(t, err, workbench.CodeVersionMismatch) // as without a run beside it
	up := s.mustUpload("select", string(mustAll(t, noise(2*workbench.MiB))))
	r = s.mustRun(sdk.CreateRun{Language: workbench.Bash, Code: "true", Artifacts: []workbench.ArtifactSelect{{ID: up.ID}}})
	wantEnd(t, r, workbench.StatusFailed, workbench.ReasonSelection)
	if !strings.Contains(r.Message, "stay in the sandbox") {
		t.Errorf("message %q", r.Message)
	}

	r = s.mustBash("ls; rm big select; cat /tmp/note; touch small")
	wantEnd(t, r, workbench.StatusSucceeded, "")
	wantOut(t, r, "big\nselect\nin memory\n")
	if r.CommitID == "" {
		t.Errorf("a change that there is room for was not committed: %+v", r.Notices)
	}
	s.mustBash("touch stop")
	end := s.mustWait(run)
	wantEnd(t, end, workbench.StatusSucceeded, "")
	wantOut(t, end, "begun\nover\n")
	wantOut(t, s.mustBash("ls"), "small\nstop\n")
}

// TestStoredOnceBesideABackgroundRun: of a content that is there already little is
// stored, so that it is not refused, and what there is no room for is, also while
// code runs.
func TestStoredOnceBesideABackgroundRun(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.SessionHistory = 3 * workbench.MiB })
	s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{})
	run := s.mustSubmit(aside("echo begun; " + untilFile("stop") + "echo over"))
	mustSay(t, s, run, "begun")
	once := mustAll(t, noise(1600*workbench.KiB))
	for _, path := range []string{"once", "twice", "once"} {
		if _, err := s.c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: path}, bytes.NewReader(once)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	_, err := s.c.WriteWorkspaceFile(t.Context(), s.id, sdk.WriteFile{Path: "other"}, io.MultiReader(strings.NewReader("other"), bytes.NewReader(once)))
	wantCode(t, err, workbench.CodeQuotaExceeded)
	wantOut(t, s.mustBash("ls; touch stop"), "once\ntwice\n")
	wantEnd(t, s.mustWait(run), workbench.StatusSucceeded, "")
}

package e2e_test

import (
	"fmt"
	"io"
	"math/rand/v2"
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

	if _, err := c.ForkAgentSession(t.Context(), s.id, sdk.ForkSession{}); err == nil || !workbench.HasCode(err, workbench.CodeQuotaExceeded) {
		t.Errorf("a fork that the tenant has no room for: %v", err)
	}
	list, err := c.ListAgentSessions(t.Context(), sdk.SessionFilter{}, workbench.Page{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d sessions (%v), want 1: nothing of the fork is left", len(list.Items), err)
	}
}

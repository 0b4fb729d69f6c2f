package store_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// state is what a reopened database shows of storetest/crash's run.
type state struct {
	session, lease, run, log, artifact, commit, queued string
}

// crashStates are the moves of storetest/crash in order, each with what the
// database shows once it has been committed.
var crashStates = []struct {
	point string
	hit   string // which hit of the point
	after state
}{
	{"", "", state{}},
	{"create_session", "1", state{session: "active"}},
	{"lease", "1", state{session: "active", lease: "eng"}},
	{"admit", "1", state{session: "active", lease: "eng", run: "queued", log: "1"}},
	{"dispatch", "1", state{session: "active", lease: "eng", run: "dispatching", log: "12"}},
	{"append_log", "1", state{session: "active", lease: "eng", run: "running", log: "123"}},
	{"reserve_artifact", "1", state{session: "active", lease: "eng", run: "running", log: "123", artifact: "reserved"}},
	{"commit_artifact", "1", state{session: "active", lease: "eng", run: "running", log: "123", artifact: "ready"}},
	{"settle", "1", state{session: "active", lease: "eng", run: "succeeded", log: "1234", artifact: "ready", commit: "cmt_1"}},
	{"create_commit", "1", state{session: "active", lease: "eng", run: "succeeded", log: "1234", artifact: "ready", commit: "cmt_2"}},
	{"start_over", "1", state{session: "active", lease: "eng", run: "succeeded", log: "1234", artifact: "ready", commit: "cmt_3"}},
	{"admit", "2", state{session: "active", lease: "eng", run: "succeeded", log: "1234", artifact: "ready", commit: "cmt_3", queued: "queued"}},
	{"cancel", "1", state{session: "active", lease: "eng", run: "succeeded", log: "1234", artifact: "ready", commit: "cmt_3", queued: "cancelled"}},
	{"end_session", "1", state{session: "closed", lease: "eng", run: "succeeded", log: "1234", artifact: "ready", commit: "cmt_3", queued: "cancelled"}},
}

// A process killed at any write has done it whole or not at all, and what was
// answered is there.
func TestKilledAtEveryWrite(t *testing.T) {
	program := filepath.Join(t.TempDir(), "crash")
	build := exec.Command("go", "build", "-tags", "failpoint", "-o", program, "./storetest/crash")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building storetest/crash: %v\n%s", err, out)
	}
	for i, c := range crashStates[1:] {
		for _, at := range []struct {
			point string
			want  state
		}{{".before_commit", crashStates[i].after}, {".after_commit", c.after}} {
			t.Run(c.point+at.point+"@"+c.hit, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "workbench.db")
				cmd := exec.Command(program, path)
				cmd.Env = append(os.Environ(), "WORKBENCH_FAILPOINTS=store."+c.point+at.point+"=exit@"+c.hit)
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the process was not killed at the point: %v\n%s", err, out)
				}
				if answers := strings.Count(string(out), "\n"); answers != i {
					t.Fatalf("%d moves were answered, want %d:\n%s", answers, i, out)
				}
				if got := mustState(t, path); got != at.want {
					t.Fatalf("the database shows %+v, want %+v", got, at.want)
				}
			})
		}
	}
}

func mustState(t *testing.T, path string) state {
	t.Helper()
	db, p := mustOpen(t, path), workbench.SystemPrincipal()
	var s state
	check := func(err error) bool {
		if err != nil && !workbench.HasCode(err, workbench.CodeNotFound) {
			t.Fatal(err)
		}
		return err == nil
	}
	if session, err := db.Session(t.Context(), p, "ses_crash"); check(err) {
		s.session, s.lease, s.commit = string(session.State), session.LeaseOwner, session.HeadCommit
	}
	if run, err := db.Run(t.Context(), p, "run_crash"); check(err) {
		s.run = string(run.Status)
		if (len(run.Files.Items) == 1) != (run.Status == workbench.StatusSucceeded) {
			t.Fatalf("a %s run lists %d changed files", run.Status, len(run.Files.Items))
		}
	}
	if log, err := db.Log(t.Context(), p, "run_crash", 0, 0); check(err) {
		for _, e := range log {
			s.log += string(rune('0' + e.Seq))
		}
	}
	if run, err := db.Run(t.Context(), p, "run_queued"); check(err) {
		s.queued = string(run.Status)
	}
	pending, err := db.PendingArtifacts(t.Context(), time.Now().Add(time.Hour), 10)
	if check(err) && len(pending) > 0 {
		s.artifact = "reserved"
	}
	if a, err := db.Artifact(t.Context(), p, "art_crash"); check(err) {
		s.artifact = "ready"
		if a.Size != 4 {
			t.Fatalf("the file has %d bytes, want 4", a.Size)
		}
	}
	if s.session != "" {
		use, err := db.QuotaUse(t.Context(), "ses_crash")
		want := map[string]store.QuotaUse{"": {}, "reserved": {SessionBytes: 5, SessionFiles: 1, TenantBytes: 5}, "ready": {SessionBytes: 4, SessionFiles: 1, TenantBytes: 4}}[s.artifact]
		if check(err) && use != want {
			t.Fatalf("with the file %q the quota shows %+v, want %+v", s.artifact, use, want)
		}
	}
	return s
}

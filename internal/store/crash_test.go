package store_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	key, context, memory, fork, packages               string
	second                                             string // file
	used                                               int64  // µs in the ledger, which stay
	needed                                             bool   // a blob that nothing needs at first
	released                                           bool   // that blob, for the sweep
	revision, generation                               int64  // 0: the first
}

// with is the state after a change.
func (s state) with(change func(*state)) state {
	change(&s)
	return s
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
	{"packages", "1", state{session: "active", lease: "eng", run: "running", packages: "set_crash", log: "123"}},
	{"meter", "1", state{session: "active", lease: "eng", run: "running", packages: "set_crash", log: "123", used: 7}},
	{"reserve_artifact", "1", state{session: "active", lease: "eng", run: "running", packages: "set_crash", used: 7, log: "123", artifact: "reserved"}},
	{"commit_artifact", "1", state{session: "active", lease: "eng", run: "running", packages: "set_crash", used: 7, log: "123", artifact: "ready"}},
	{"settle", "1", state{session: "active", lease: "eng", run: "succeeded", packages: "set_crash", used: 7, log: "1234", artifact: "ready", commit: "cmt_1"}},
	{"create_commit", "1", state{session: "active", lease: "eng", run: "succeeded", packages: "set_crash", used: 7, log: "1234", artifact: "ready", commit: "cmt_2"}},
	{"start_over", "1", state{session: "active", lease: "eng", run: "succeeded", packages: "set_crash", used: 7, log: "1234", artifact: "ready", commit: "cmt_3", generation: 2}},
	{"admit", "2", state{session: "active", lease: "eng", run: "succeeded", packages: "set_crash", used: 7, log: "1234", artifact: "ready", commit: "cmt_3", queued: "queued", generation: 2}},
	{"cancel", "1", state{session: "active", lease: "eng", run: "succeeded", packages: "set_crash", used: 7, log: "1234", artifact: "ready", commit: "cmt_3", queued: "cancelled", generation: 2}},
	{"create_key", "1", ran.with(func(s *state) { s.key = "live" })},
	{"revoke_key", "1", ran.with(func(s *state) { s.key = "revoked" })},
	{"add_revision", "1", configured},
	{"create_context", "1", configured.with(func(s *state) { s.context = "one" })},
	{"restart_context", "1", configured.with(func(s *state) { s.context = "two" })},
	{"delete_context", "1", configured},
	{"suspend", "1", configured.with(func(s *state) { s.lease, s.memory = "", "kept" })},
	{"lease", "2", configured.with(func(s *state) { s.memory = "kept" })},
	{"resume", "1", configured},
	{"suspend", "2", configured.with(func(s *state) { s.lease, s.memory = "", "gone" })},
	{"lease", "3", configured.with(func(s *state) { s.memory = "gone" })},
	{"return_without_memory", "1", returned},
	{"fork", "1", forked},
	{"delete_artifact", "1", forked.with(func(s *state) { s.artifact = "deleted" })},
	{"reserve_artifact", "2", swept.with(func(s *state) { s.second = "reserved" })},
	{"describe_artifact", "1", swept.with(func(s *state) { s.second = "described" })},
	{"abandon_artifact", "1", swept},
	{"reserve_artifact", "3", swept.with(func(s *state) { s.second = "reserved" })},
	{"commit_artifact", "2", swept.with(func(s *state) { s.second = "ready" })},
	{"expire_artifact", "1", swept.with(func(s *state) { s.second = "expired" })},
	{"release_blobs", "1", swept.with(func(s *state) { s.second, s.released = "expired", true })},
	{"blob_refs", "1", swept.with(func(s *state) { s.second, s.needed = "expired", true })},
	{"end_session", "1", swept.with(func(s *state) { s.second, s.needed, s.session = "expired", true, "closed" })},
	{"purge", "1", state{key: "revoked", fork: "cmt_fork", needed: true, used: 7}},
}

// What later moves begin with.
var (
	ran        = state{session: "active", lease: "eng", run: "succeeded", packages: "set_crash", used: 7, log: "1234", artifact: "ready", commit: "cmt_3", queued: "cancelled", generation: 2}
	configured = ran.with(func(s *state) { s.key, s.revision = "revoked", 2 })
	returned   = configured.with(func(s *state) { s.generation = 3 })
	forked     = returned.with(func(s *state) { s.fork = "cmt_fork" })
	swept      = forked.with(func(s *state) { s.artifact = "deleted" })
)

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
	if report, err := db.Usage(t.Context(), p, workbench.UsageQuery{}); check(err) {
		s.used = report.Total.DurationUs
	}
	if session, err := db.Session(t.Context(), p, "ses_crash"); check(err) {
		s.session, s.lease, s.commit = string(session.State), session.LeaseOwner, session.HeadCommit
		if session.Generation > 1 {
			s.generation = session.Generation
		}
		if session.Revision > 1 {
			s.revision = session.Revision
		}
		if session.Suspended != nil {
			s.memory = map[bool]string{true: "kept", false: "gone"}[session.Suspended.MemoryKept]
		}
	}
	if session, err := db.Session(t.Context(), p, "ses_fork"); check(err) {
		s.fork = session.HeadCommit
	}
	if key, err := db.KeyByHash(t.Context(), []byte("hash")); check(err) {
		s.key = map[bool]string{true: "live", false: "revoked"}[key.RevokedAt == nil]
	}
	if contexts, err := db.Contexts(t.Context(), p, "ses_crash"); check(err) {
		for _, c := range contexts {
			s.context += c.Handle
		}
	}
	if run, err := db.Run(t.Context(), p, "run_crash"); check(err) {
		s.run = string(run.Status)
		for _, set := range run.Packages {
			s.packages += set.Name
		}
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
	if check(err) && len(pending) > 0 && pending[0].ID == "art_crash" {
		s.artifact = "reserved"
	} else if len(pending) > 0 {
		s.second = map[string]string{"": "reserved", "text/plain": "described"}[pending[0].MimeType]
	}
	due, err := db.ExpiredArtifacts(t.Context(), time.Now().Add(24*time.Hour), 10)
	check(err)
	if _, err := db.Artifact(t.Context(), p, "art_second"); check(err) {
		s.second = map[bool]string{true: "ready", false: "expired"}[slices.ContainsFunc(due, func(a workbench.Artifact) bool { return a.ID == "art_second" })]
	}
	old, err := db.UnreferencedBlobs(t.Context(), time.Now().Add(-time.Hour), 10)
	s.released = check(err) && slices.Contains(old, "other")
	unneeded, err := db.UnreferencedBlobs(t.Context(), time.Now().Add(time.Hour), 10)
	s.needed = check(err) && s.fork != "" && !slices.Contains(unneeded, "other")
	if a, err := db.Artifact(t.Context(), p, "art_crash"); check(err) {
		s.artifact = "ready"
		if a.DeletedAt != nil {
			s.artifact = "deleted"
		}
		if a.Size != 4 {
			t.Fatalf("the file has %d bytes, want 4", a.Size)
		}
	}
	if s.session != "" {
		use, err := db.QuotaUse(t.Context(), "ses_crash")
		want := map[string]store.QuotaUse{"": {}, "deleted": {}, "reserved": {SessionBytes: 5, SessionFiles: 1, TenantBytes: 5}, "ready": {SessionBytes: 4, SessionFiles: 1, TenantBytes: 4}}
		want["described"] = want["reserved"]
		held := s.artifact
		if held == "" || held == "deleted" {
			held = s.second
		}
		if check(err) && use != want[held] {
			t.Fatalf("with the files %q and %q the quota shows %+v, want %+v", s.artifact, s.second, use, want[held])
		}
	}
	return s
}

package artifact_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// TestCrashScenario is what TestCrashes runs in a process of its own, to end it
// at every failpoint. By itself it is an ordinary test.
func TestCrashScenario(t *testing.T) {
	dir := os.Getenv("WORKBENCH_TEST_CRASH_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	w := mustWorldAt(t, dir, nil)
	say := func(format string, args ...any) { fmt.Fprintf(os.Stdout, "ACK "+format+"\n", args...) }

	say("made %s", w.mustUpload("first", "first").ID)
	doomed := w.mustUpload("doomed", "doomed")
	say("made %s", doomed.ID)
	big := strings.Repeat("big ", 200_000)
	a, err := w.files.Keep(t.Context(), w.keepRequest("kept"), strings.NewReader(big))
	w.must(err)
	say("made %s", a.ID)

	trees := workspace.New(w.disk, w.sealer, w.db)
	tree, head := workspace.Empty(), ""
	for i, content := range []string{"small", big + "x", strings.Repeat("medium ", 20_000)} {
		build := trees.Begin(t.Context(), w.session.TenantID, tree)
		w.must(build.File(t.Context(), workspace.Entry{Path: fmt.Sprint(i), Size: int64(len(content)), Mode: 0o644}, strings.NewReader(content)))
		made, err := build.Commit(t.Context())
		w.must(err)
		c, err := w.db.CreateCommit(t.Context(), made.Describe(workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: w.session.ID, ParentID: head,
			Generation: 1, CreatedAt: w.clock.Now()}), w.epoch, made.Refs)
		w.must(err)
		tree, head = made.Tree, c.ID
		say("commit %s", c.ID)
	}
	say("deleting %s", doomed.ID)
	_, err = w.files.Delete(t.Context(), w.ann, doomed.ID)
	w.must(err)
	w.must(w.files.Sweep(t.Context(), w.clock.Now().Add(2*time.Hour)))
	say("made %s", w.mustUpload("last", "doomed").ID) // the bytes that were just swept
}

// TestCrashes kills the scenario at every failpoint it passes, each time it
// passes it, and looks at what the next start finds: files are whole or not
// there, quotas count what is listed, what was acknowledged is there, and after
// a sweep no byte is left that nothing refers to.
func TestCrashes(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "crash.test")
	if out, err := exec.Command("go", "test", "-c", "-tags", "failpoint", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("building with failpoints: %v\n%s", err, out)
	}
	hitLog := filepath.Join(t.TempDir(), "hits")
	acks, killed := runScenario(t, binary, t.TempDir(), "WORKBENCH_FAILPOINT_LOG="+hitLog)
	if killed || len(acks) != 8 {
		t.Fatalf("the scenario does not work: killed %v, %q", killed, acks)
	}
	raw, err := os.ReadFile(hitLog)
	if err != nil {
		t.Fatal(err)
	}
	nth := map[string]int{}
	for name := range strings.Lines(string(raw)) {
		name = strings.TrimSpace(name)
		nth[name]++
		hit := nth[name]
		if hit > 2 || !ours(name) {
			continue // more of the same, or another room's
		}
		t.Run(fmt.Sprintf("%s hit %d", name, hit), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			acks, killed := runScenario(t, binary, dir, fmt.Sprintf("WORKBENCH_FAILPOINTS=%s=exit@%d", name, hit))
			if !killed {
				t.Fatal("it was not killed")
			}
			inspect(t, dir, acks)
		})
	}
	for _, name := range []string{"blob.put.before_rename", "blob.put.after_rename", "artifact.after_blob", "workspace.after_blobs", "artifact.sweep.after_delete", "blob.delete.before", "store.forget_blob.before_commit", "store.forget_blob.after_commit",
		"store.reserve_artifact.before_commit", "store.commit_artifact.after_commit", "store.create_commit.before_commit"} {
		if nth[name] == 0 {
			t.Errorf("the scenario does not pass %s", name)
		}
	}
}

// ours reports whether a failpoint lies on the way of contents.
func ours(name string) bool {
	for _, prefix := range []string{"blob.", "artifact.", "workspace.", "store.reserve_artifact.", "store.commit_artifact.", "store.create_commit.",
		"store.note_blob.", "store.delete_artifact.", "store.claim_blobs.", "store.forget_blob.", "store.tenant_key."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// runScenario returns what it acknowledged, and whether it was killed.
func runScenario(t *testing.T, binary, dir, env string) (acks []string, killed bool) {
	t.Helper()
	cmd := exec.Command(binary, "-test.run", "^TestCrashScenario$", "-test.count=1")
	cmd.Env = append(os.Environ(), "WORKBENCH_TEST_CRASH_DIR="+dir, env)
	out, err := cmd.CombinedOutput()
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		if ack, ok := strings.CutPrefix(lines.Text(), "ACK "); ok {
			acks = append(acks, ack)
		}
	}
	if err != nil && !strings.Contains(err.Error(), "killed") {
		t.Fatalf("%v\n%s", err, out)
	}
	return acks, err != nil
}

// inspect opens what a crash left and checks it.
func inspect(t *testing.T, dir string, acks []string) {
	t.Helper()
	w := mustWorldAt(t, dir, nil)
	later := w.clock.Now().Add(3 * time.Hour)
	w.must(w.files.Sweep(t.Context(), later))
	sessions, err := w.db.ListSessions(t.Context(), w.ann, workbench.SessionFilter{}, workbench.Page{})
	w.must(err)
	listed, referred := map[string]bool{}, map[string]bool{}
	for _, s := range sessions.Items {
		w.session = s
		var bytes int64
		files := w.mustList()
		for _, a := range files {
			content := w.mustRead(a.ID)
			sum := sha256.Sum256([]byte(content))
			if int64(len(content)) != a.Size || hex.EncodeToString(sum[:]) != a.SHA256 {
				t.Errorf("%s is listed and not whole", a.Name)
			}
			bytes += a.Size
			listed[a.ID], referred[a.BlobID] = true, true
		}
		if use := w.mustUse(); use.SessionBytes != bytes || use.SessionFiles != len(files) {
			t.Errorf("%d files of %d bytes are listed, the quota counts %+v", len(files), bytes, use)
		}
		w.inspectCommits(s, listed, referred)
	}
	deleting := ""
	for _, ack := range acks {
		verb, id, _ := strings.Cut(ack, " ")
		switch verb {
		case "deleting":
			deleting = id
		default:
			defer func() {
				if !listed[id] && id != deleting {
					t.Errorf("%s was acknowledged and is not there", ack)
				}
			}()
		}
	}
	for _, path := range w.mustBlobFiles() {
		if id := filepath.Base(path); !referred[id] {
			t.Errorf("blob %s is left and nothing refers to it", id)
		}
	}
}

func (w *world) inspectCommits(s workbench.Session, listed, referred map[string]bool) {
	w.t.Helper()
	trees := workspace.New(w.disk, w.sealer, w.db)
	commits, err := w.db.ListCommits(w.t.Context(), w.ann, s.ID, workbench.Page{})
	w.must(err)
	for _, c := range commits.Items {
		listed[c.ID], referred[c.ManifestID] = true, true
		tree, err := trees.Load(w.t.Context(), s.TenantID, c.ManifestID)
		w.must(err)
		if tree.Root() != c.Root {
			w.t.Errorf("commit %d loads as another tree", c.Number)
		}
		restored := trees.Restore(w.t.Context(), s.TenantID, tree)
		for {
			e, content, err := restored.Next()
			if err == io.EOF { //nolint:errorlint // returned bare by contract
				break
			}
			w.must(err)
			hash := sha256.New()
			if _, err := io.Copy(hash, content); err != nil || hex.EncodeToString(hash.Sum(nil)) != e.SHA256 {
				w.t.Errorf("commit %d: %s is not whole: %v", c.Number, e.Path, err)
			}
			var sum [32]byte
			copy(sum[:], hash.Sum(nil))
			id, err := w.sealer.ContentID(w.t.Context(), s.TenantID, sum)
			w.must(err)
			referred[id] = true
		}
	}
}

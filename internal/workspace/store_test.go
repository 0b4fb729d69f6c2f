package workspace_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

func noise(seed byte, n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return string(b)
}

func TestCommitsComeBackByteForByte(t *testing.T) {
	w := mustWorld(t)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	contents := map[string]string{
		"a.txt": "hello", "empty": "", "d/\xff\xfe": "not text", "d/é": "composed", "d/e\u0301": "decomposed",
		"medium": noise(1, 200<<10), "large": noise(2, 3<<20+7), "same as a": "hello",
	}
	for path, content := range contents {
		put(b, path, content)(t)
	}
	want(t, "link", b.Put(link("l", "../../etc/passwd")), "")
	want(t, "dir", b.Put(dir("empty dir")), "")
	made := w.mustCommit(b)
	commit := w.mustRecord(made, "")
	if commit.Files != int64(len(contents)) || commit.Root != made.Tree.Root() {
		t.Errorf("%+v", commit)
	}
	tree := w.mustLoad(commit.ManifestID)
	if tree.Root() != commit.Root || !slices.Equal(list(tree), list(made.Tree)) {
		t.Fatal("another tree came back")
	}
	for path, content := range contents {
		if got := w.mustReadFile(tree, path); got != content {
			t.Errorf("%q came back with %d bytes of %d", path, len(got), len(content))
		}
	}
	restored := w.trees.Restore(t.Context(), w.session.TenantID, tree)
	var entries []workspace.Entry
	for {
		e, content, err := restored.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		w.must(err)
		entries = append(entries, e)
		if e.Type != workspace.File {
			continue
		}
		got, err := io.ReadAll(content)
		if err != nil || string(got) != contents[e.Path] {
			t.Errorf("%q restored with %d bytes: %v", e.Path, len(got), err)
		}
	}
	if !slices.Equal(entries, list(tree)) {
		t.Error("other entries were restored")
	}
	w.must(restored.Close())
}

func TestReadersSeek(t *testing.T) {
	w := mustWorld(t)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "a", "0123456789")(t)
	put(b, "b", "abcdefghij")(t)
	made := w.mustCommit(b)
	w.mustRecord(made, "")
	_, r, err := w.trees.Open(t.Context(), w.session.TenantID, made.Tree, "b")
	w.must(err)
	defer r.Close()
	if n, err := r.Seek(-3, io.SeekEnd); n != 7 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if got, err := io.ReadAll(r); string(got) != "hij" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for path, code := range map[string]workbench.Code{"none": workbench.CodeNotFound, "a/b": workbench.CodeNotFound} {
		_, _, err := w.trees.Open(t.Context(), w.session.TenantID, made.Tree, path)
		want(t, path, err, code)
	}
}

func TestSmallCommitsTouchNoBlob(t *testing.T) {
	w := mustWorld(t)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "a.txt", "hello")(t)
	made := w.mustCommit(b)
	commit := w.mustRecord(made, "")
	if files := w.mustBlobFiles(); len(files) != 0 || w.syncs.Load() != 0 {
		t.Errorf("%d fsyncs, files %v", w.syncs.Load(), files)
	}
	unchanged := w.trees.Begin(t.Context(), w.session.TenantID, made.Tree)
	again := w.mustCommit(unchanged)
	if len(again.Refs) != 0 || len(again.Changes) != 0 || again.Tree.ManifestID() != commit.ManifestID ||
		again.Describe(workbench.Commit{}).Inline != nil {
		t.Errorf("an unchanged tree writes %+v", again)
	}
	same := w.trees.Begin(t.Context(), w.session.TenantID, made.Tree)
	put(same, "a.txt", "hello")(t)
	if again := w.mustCommit(same); len(again.Refs) != 0 {
		t.Errorf("the same bytes again write %v", again.Refs)
	}
}

func TestEmptyTreesAreNotStored(t *testing.T) {
	w := mustWorld(t)
	made := w.mustCommit(w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty()))
	commit := w.mustRecord(made, "")
	if tree := w.mustLoad(commit.ManifestID); tree.Root() != workspace.Empty().Root() {
		t.Errorf("%s", tree.Root())
	}
}

// Large contents are stored once per tenant, and never twice for two tenants
// to be compared.
func TestLargeContentsAreStoredOnce(t *testing.T) {
	w := mustWorld(t)
	big := noise(3, 1<<20)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "one", big)(t)
	put(b, "two", big)(t)
	w.mustRecord(w.mustCommit(b), "")
	chunks := func() []string { // a content's last may be in a pack, as where the tenant's secret has it cut
		return slices.DeleteFunc(w.mustBlobFiles(), func(file string) bool { return !strings.HasPrefix(filepath.Base(file), "c_") })
	}
	one := chunks()
	w.session = w.mustSession("acme")
	b = w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "x", big)(t)
	made := w.mustCommit(b)
	w.mustRecord(made, "")
	if files := chunks(); len(files) == 0 || !slices.Equal(files, one) {
		t.Errorf("files %v, after %v", files, one)
	}
	if got := w.mustReadFile(made.Tree, "x"); got != big {
		t.Error("other bytes")
	}
	w.session = w.mustSession("blue")
	b = w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "x", big)(t)
	theirs := w.mustCommit(b)
	w.mustRecord(theirs, "")
	for _, file := range one {
		if slices.Contains(theirs.Refs, filepath.Base(file)) {
			t.Errorf("two tenants share %s", file)
		}
	}
}

func TestNothingIsInTheClear(t *testing.T) {
	w := mustWorld(t)
	const canary = "canary-0c93a1"
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "small", canary)(t)
	put(b, "medium", strings.Repeat(canary, 10_000))(t)
	put(b, "large", strings.Repeat(canary, 100_000))(t)
	want(t, "link", b.Put(link("l", canary)), "")
	made := w.mustCommit(b)
	w.mustRecord(made, "")
	w.mustNotHold(canary)
	w.must(w.db.Close())
	w.mustNotHold(canary)
}

// A long history of small changes to a large tree stays cheap to write, and
// every commit of it can be loaded.
func TestHistories(t *testing.T) {
	w := mustWorld(t)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	for i := range 500 {
		put(b, fmt.Sprintf("d%d/f%d", i%7, i), fmt.Sprintf("content %d", i))(t)
	}
	made := w.mustCommit(b)
	commit := w.mustRecord(made, "")
	tree, head := made.Tree, commit.ID
	commits := []workbench.Commit{commit}
	for i := range 80 {
		if i == 40 { // as after a restart
			tree = w.mustLoad(commit.ManifestID)
		}
		b := w.trees.Begin(t.Context(), w.session.TenantID, tree)
		put(b, fmt.Sprintf("d%d/new%d", i%7, i), fmt.Sprintf("new %d", i))(t)
		put(b, "changing", fmt.Sprint(i))(t)
		if i%3 == 0 {
			want(t, "remove", b.Remove(fmt.Sprintf("d%d/f%d", i%7, i)), "")
		}
		made := w.mustCommit(b)
		described := made.Describe(workbench.Commit{})
		if len(described.Inline) == 0 || len(made.Refs) != 1 {
			t.Fatalf("commit %d: %d bytes inline, refs %v", i, len(described.Inline), made.Refs)
		}
		commit = w.mustRecord(made, head)
		tree, head = made.Tree, commit.ID
		commits = append(commits, commit)
	}
	for i, c := range commits {
		loaded := w.mustLoad(c.ManifestID)
		if loaded.Root() != c.Root {
			t.Fatalf("commit %d loads as %s, not %s", i, loaded.Root(), c.Root)
		}
		if i > 0 {
			if got := w.mustReadFile(loaded, "changing"); got != fmt.Sprint(i-1) {
				t.Errorf("commit %d has %q", i, got)
			}
		}
	}
	if got := w.mustReadFile(tree, "d1/f8"); got != "content 8" {
		t.Errorf("%q", got)
	}
}

func TestManySmallFilesAreFewBlobs(t *testing.T) {
	w := mustWorld(t)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	started := time.Now()
	for i := range 3000 {
		put(b, fmt.Sprintf("many/%d", i), noise(byte(i), 2000)+fmt.Sprint(i))(t)
	}
	made := w.mustCommit(b)
	w.mustRecord(made, "")
	t.Logf("3000 files of 2 kB in %v", time.Since(started))
	if files := w.mustBlobFiles(); len(files) > 3 {
		t.Errorf("%d blobs", len(files))
	}
	tree := w.mustLoad(made.Tree.ManifestID())
	for _, i := range []int{0, 1, 1500, 2999} {
		if got := w.mustReadFile(tree, fmt.Sprintf("many/%d", i)); got != noise(byte(i), 2000)+fmt.Sprint(i) {
			t.Errorf("file %d is another", i)
		}
	}
}

func TestGuestsThatLieAboutContent(t *testing.T) {
	w := mustWorld(t)
	for name, c := range map[string]struct {
		size    int64
		content io.Reader
		code    workbench.Code
	}{
		"less than it says":       {10, strings.NewReader("short"), workbench.CodeGuestProtocol},
		"more than it says":       {3, strings.NewReader("longer"), workbench.CodeGuestProtocol},
		"much more than it says":  {3, endless{}, workbench.CodeGuestProtocol},
		"large, less":             {1 << 20, bytes.NewReader(make([]byte, 1<<20-1)), workbench.CodeGuestProtocol},
		"large, more":             {1 << 20, endless{}, workbench.CodeGuestProtocol},
		"larger than a workspace": {1 << 40, endless{}, workbench.CodeWorkspaceFull},
	} {
		b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
		err := b.File(t.Context(), workspace.Entry{Path: "f", Size: c.size, SHA256: digest("a claim")}, c.content)
		want(t, name, err, c.code)
	}
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	cause := errors.New("stream cut")
	if err := b.File(t.Context(), workspace.Entry{Path: "f", Size: 1 << 20}, io.MultiReader(strings.NewReader("x"), broken{cause})); !errors.Is(err, cause) {
		t.Errorf("the stream's error is lost: %v", err)
	}
	if files := w.mustBlobFiles(); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
	b = w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	want(t, "the digest is a claim", b.File(t.Context(), workspace.Entry{Path: "f", Size: 4, SHA256: digest("other")}, strings.NewReader("mine")), "")
	if e, _ := w.mustCommit(b).Tree.Get("f"); e.SHA256 != digest("mine") {
		t.Errorf("%+v", e)
	}
	want(t, "file without content", b.Touch(workspace.Entry{Path: "other", Mode: 0o644}), workbench.CodeGuestProtocol)
	want(t, "file as a directory", b.Put(workspace.Entry{Path: "other", Type: workspace.File}), workbench.CodeGuestProtocol)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestLimits(t *testing.T) {
	w := mustWorld(t)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	b.Limit(2, 10)
	put(b, "a", "12345")(t)
	put(b, "b", "12345")(t)
	want(t, "bytes", b.File(t.Context(), workspace.Entry{Path: "c", Size: 1}, strings.NewReader("1")), workbench.CodeWorkspaceFull)
	made := w.mustCommit(b)
	b = w.trees.Begin(t.Context(), w.session.TenantID, made.Tree)
	b.Limit(2, 10)
	want(t, "dir", b.Put(dir("d")), "")
	_, err := b.Commit(t.Context())
	want(t, "entries", err, workbench.CodeWorkspaceFull)
	b = w.trees.Begin(t.Context(), w.session.TenantID, made.Tree)
	b.Limit(9, 10)
	put(b, "c", "1")(t)
	_, err = b.Commit(t.Context())
	want(t, "bytes of the tree", err, workbench.CodeWorkspaceFull)
}

func TestTouchAndDropUnseen(t *testing.T) {
	w := mustWorld(t)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "a", "1")(t)
	put(b, "d/b", "2")(t)
	put(b, "d/c", "3")(t)
	put(b, "e/f/g", "4")(t)
	made := w.mustCommit(b)
	w.mustRecord(made, "")

	b = w.trees.Begin(t.Context(), w.session.TenantID, made.Tree)
	want(t, "mode", b.Touch(workspace.Entry{Path: "a", Mode: 0o755}), "")
	want(t, "moved", b.Touch(workspace.Entry{Path: "moved", Mode: 0o600, SHA256: digest("3")}), "")
	want(t, "seen", b.Touch(workspace.Entry{Path: "d/b", Mode: 0o644, MtimeNs: 42}), "")
	b.DropUnseen()
	after := w.mustCommit(b)
	var got []string
	for _, c := range after.Changes {
		got = append(got, fmt.Sprintf("%s %s", c.Change, c.Path))
	}
	wantChanges := []string{"modified a", "removed d/c", "removed e", "removed e/f", "removed e/f/g", "added moved"}
	if !slices.Equal(got, wantChanges) {
		t.Errorf("%q, want %q", got, wantChanges)
	}
	if c := after.Describe(workbench.Commit{}); bytes.Contains(c.Inline, []byte("3")) && len(after.Refs) != 1 {
		t.Errorf("refs %v", after.Refs)
	}
	if got := w.mustReadFile(after.Tree, "moved"); got != "3" {
		t.Errorf("%q", got)
	}
}

func TestDamageIsNoticed(t *testing.T) {
	w := mustWorld(t)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "large", noise(9, 1<<20))(t)
	made := w.mustCommit(b)
	w.mustRecord(made, "")
	file := w.mustBlobFiles()[0]
	whole, err := os.ReadFile(file)
	w.must(err)
	read := func() error {
		_, r, err := w.trees.Open(t.Context(), w.session.TenantID, made.Tree, "large")
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(io.Discard, r)
		return err
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, content := range map[string][]byte{"flipped": flipped, "cut": whole[:len(whole)*2/3], "empty": {}} {
		w.must(os.WriteFile(file, content, 0o600))
		want(t, name, read(), workbench.CodeCorrupt)
	}
	w.must(os.Remove(file))
	want(t, "missing", read(), workbench.CodeCorrupt)
	w.must(os.WriteFile(file, whole, 0o600))
	want(t, "whole", read(), "")

	other := w.mustSession("blue")
	_, err = w.trees.Load(t.Context(), other.TenantID, made.Tree.ManifestID())
	want(t, "another tenant's manifest", err, workbench.CodeCorrupt)
	_, err = w.trees.Load(t.Context(), w.session.TenantID, "i_none")
	want(t, "no manifest", err, workbench.CodeCorrupt)
}

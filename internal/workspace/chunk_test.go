package workspace_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// sizeOf is the bytes in files.
func sizeOf(t testing.TB, files []string) (n int64) {
	t.Helper()
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

func TestASmallChangeOfALargeFileStoresItsChunk(t *testing.T) {
	w := mustWorld(t)
	content := []byte(noise(1, 32<<20))
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "large", string(content))(t)
	first := w.mustCommit(b)
	head := w.mustRecord(first, "").ID
	before := sizeOf(t, w.mustBlobFiles())
	tree := w.mustLoad(first.Tree.ManifestID())
	const most = 4<<20 + 64<<10 // of one chunk, sealed
	for name, change := range map[string]func([]byte) []byte{
		"a byte":     func(b []byte) []byte { b[20_000_000] ^= 1; return b },
		"an insert":  func(b []byte) []byte { return slices.Insert(b, 10_000_000, 'x') },
		"at its end": func(b []byte) []byte { return append(b, "more"...) },
	} {
		content = change(content)
		b := w.trees.Begin(t.Context(), w.session.TenantID, tree)
		put(b, "large", string(content))(t)
		made := w.mustCommit(b)
		head = w.mustRecord(made, head).ID
		after := sizeOf(t, w.mustBlobFiles())
		if len(made.Refs) > 3 || after-before > 2*most {
			t.Errorf("%s: %d new blobs of %d bytes", name, len(made.Refs), after-before)
		}
		before = after
		tree = w.mustLoad(made.Tree.ManifestID())
		if got := w.mustReadFile(tree, "large"); got != string(content) {
			t.Errorf("%s: other bytes", name)
		}
		if e, _ := tree.Get("large"); e.SHA256 != digest(string(content)) || e.Size != int64(len(content)) {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func TestReadingPartOfALargeFileOpensItsChunksAlone(t *testing.T) {
	w := mustWorld(t)
	content := noise(2, 16<<20)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "large", content)(t)
	made := w.mustCommit(b)
	w.mustRecord(made, "")
	tree := w.mustLoad(made.Tree.ManifestID())
	e, r, err := w.trees.Open(t.Context(), w.session.TenantID, tree, "large")
	w.must(err)
	defer r.Close()
	if e.Size != 16<<20 {
		t.Errorf("%+v", e)
	}
	for _, at := range []int64{15 << 20, 0, 7<<20 + 123} {
		_, err := r.Seek(at, io.SeekStart)
		w.must(err)
		got := make([]byte, 1<<20)
		_, err = io.ReadFull(r, got)
		w.must(err)
		if string(got) != content[at:at+1<<20] {
			t.Errorf("other bytes at %d", at)
		}
	}
	chunks := w.mustBlobFiles()
	if len(chunks) < 5 {
		t.Fatalf("%d chunks", len(chunks))
	}
	// All but the first chunk go: the beginning is still there to read.
	first := []byte(content[:200_000])
	for _, c := range chunks {
		w.must(os.Rename(c, c+".away"))
		_, again, err := w.trees.Open(t.Context(), w.session.TenantID, tree, "large")
		if err != nil { // that was the first
			want(t, "without its first chunk", err, workbench.CodeCorrupt)
		} else {
			got := make([]byte, len(first))
			_, err := io.ReadFull(again, got)
			if err != nil || !bytes.Equal(got, first) {
				t.Errorf("without %s: %v", filepath.Base(c), err)
			}
			_, err = io.Copy(io.Discard, again)
			want(t, "the rest without a chunk", err, workbench.CodeCorrupt)
			w.must(again.Close())
		}
		w.must(os.Rename(c+".away", c))
	}
}

// mustSweep removes what nothing has referred to for a day.
func (w *world) mustSweep() {
	w.t.Helper()
	ids, err := w.db.UnreferencedBlobs(w.t.Context(), time.Now().Add(24*time.Hour), 1000)
	w.must(err)
	for _, id := range ids {
		w.must(w.blobs.Delete(w.t.Context(), id))
		w.must(w.db.ForgetBlob(w.t.Context(), id))
	}
}

func TestAForkKeepsATreeAndNothingElse(t *testing.T) {
	w := mustWorld(t)
	tenant := w.session.TenantID
	contents := map[string]string{}
	tree, head := workspace.Empty(), ""
	step := func(i int, files map[string]string) {
		b := w.trees.Begin(t.Context(), tenant, tree)
		for path, content := range files {
			put(b, path, content)(t)
			contents[path] = content
		}
		made := w.mustCommit(b)
		head = w.mustRecord(made, head).ID
		tree = made.Tree
		if i == 1 {
			tree = w.mustLoad(tree.ManifestID()) // as after a restart
		}
	}
	many := map[string]string{"large": noise(1, 6<<20), "gone": noise(2, 3<<20), "medium": noise(3, 200<<10)}
	for i := range 200 {
		many[fmt.Sprintf("d/%d", i)] = noise(byte(i), 100+i)
	}
	step(0, many)
	step(1, map[string]string{"new": "small"})
	step(2, map[string]string{"gone": "replaced", "other": noise(4, 1<<20)})

	refs, err := w.trees.Refs(t.Context(), tenant, tree)
	w.must(err)
	original := w.session
	fork := w.mustSession("acme")
	w.must(w.db.PutBlobRefs(t.Context(), store.SessionBlobOwner(fork.ID), tenant, refs))
	w.mustSweep()
	all := len(w.mustBlobFiles())
	w.must(w.db.DropBlobRefs(t.Context(), store.SessionBlobOwner(original.ID)))
	w.mustSweep()
	if left := len(w.mustBlobFiles()); left >= all {
		t.Errorf("%d blobs of %d are left: what the fork does not need went too late", left, all)
	}
	forked := w.mustLoad(tree.ManifestID())
	if forked.Root() != tree.Root() {
		t.Fatal("another tree")
	}
	for path, content := range contents {
		if got := w.mustReadFile(forked, path); got != content {
			t.Errorf("%s: %d other bytes", path, len(got))
		}
	}
	w.must(w.db.DropBlobRefs(t.Context(), store.SessionBlobOwner(fork.ID)))
	w.mustSweep()
	if left := w.mustBlobFiles(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	for _, id := range refs {
		_, err := w.db.InlineBlob(t.Context(), tenant, id)
		want(t, id, err, workbench.CodeNotFound)
	}
	want(t, "a fork that comes too late", w.db.PutBlobRefs(t.Context(), "session:late", tenant, refs), workbench.CodeConflict)
}

func TestRefsOfTreesThatAreNotStored(t *testing.T) {
	w := mustWorld(t)
	refs, err := w.trees.Refs(t.Context(), w.session.TenantID, workspace.Empty())
	if err != nil || refs == nil || len(refs) != 0 {
		t.Errorf("%v, %v", refs, err)
	}
	loose, _, err := workspace.Empty().Apply(workspace.Delta{Put: []workspace.Entry{dir("d")}})
	w.must(err)
	_, err = w.trees.Refs(t.Context(), w.session.TenantID, loose)
	want(t, "a tree that was never stored", err, workbench.CodeInternal)
}

// TestManifestsOfVersion1 reads one that an older version wrote: a file "a" of
// one byte at offset 7 of the object p_x.
func TestManifestsOfVersion1(t *testing.T) {
	tree, _, err := workspace.Empty().Apply(workspace.Delta{Put: []workspace.Entry{{Path: "a", Type: workspace.File, Mode: 0o644, Size: 1, SHA256: digest("x")}}})
	if err != nil {
		t.Fatal(err)
	}
	root, err := hex.DecodeString(tree.Root())
	if err != nil {
		t.Fatal(err)
	}
	sum, err := hex.DecodeString(digest("x"))
	if err != nil {
		t.Fatal(err)
	}
	old := slices.Concat([]byte{1}, root, []byte{0, 1, 3}, []byte("p_x"), []byte{1, 0, 1}, []byte("af"), []byte{0xa4, 0x03, 0, 1}, sum, []byte{0, 7})
	got, err := workspace.Decode(old)
	if err != nil || got.Root() != tree.Root() {
		t.Errorf("%v, %v", got, err)
	}
	old[0] = 3
	_, err = workspace.Decode(old)
	want(t, "a version to come", err, workbench.CodeCorrupt)
}

package workspace_test

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

func TestManifestsEncodeEveryTree(t *testing.T) {
	for name, tree := range map[string]workspace.Tree{
		"empty": workspace.Empty(),
		"big":   mustBigTree(t, 5000),
		"odd": mustApply(t, workspace.Empty(), workspace.Delta{Put: []workspace.Entry{file("\xff", "1"), file("a-b", "2"), file("a/b", "3"), file("a.b", "4"),
			dir("empty"), link("l", "\xfe/../x"), file(strings.Repeat("d/", 200)+"deep", "5")}}),
	} {
		back, err := workspace.Decode(workspace.Encode(tree))
		if err != nil || back.Root() != tree.Root() || !slices.Equal(list(back), list(tree)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestManifestsOfAnotherTreeAreRefused(t *testing.T) {
	encoded := workspace.Encode(mustApply(t, workspace.Empty(), workspace.Delta{Put: []workspace.Entry{file("a", "1"), dir("d"), file("d/b", "2"), link("l", "x")}}))
	for i := range encoded {
		for _, bit := range []byte{1, 0x80} {
			flipped := bytes.Clone(encoded)
			flipped[i] ^= bit
			tree, err := workspace.Decode(flipped)
			if err == nil && tree.Root() != mustDecode(t, encoded).Root() {
				t.Errorf("byte %d: another tree is accepted", i)
			}
			if err != nil {
				want(t, fmt.Sprintf("byte %d", i), err, workbench.CodeCorrupt)
			}
		}
		_, err := workspace.Decode(encoded[:i])
		want(t, fmt.Sprintf("cut at %d", i), err, workbench.CodeCorrupt)
	}
	_, err := workspace.Decode(append(bytes.Clone(encoded), 0))
	want(t, "longer", err, workbench.CodeCorrupt)
}

func mustDecode(t testing.TB, b []byte) workspace.Tree {
	t.Helper()
	tree, err := workspace.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func FuzzDecode(f *testing.F) {
	f.Add(workspace.Encode(workspace.Empty()))
	f.Add(workspace.Encode(mustApply(f, workspace.Empty(), workspace.Delta{Put: []workspace.Entry{file("a", "1"), dir("d"), file("d/b", "2"), link("l", "x")}})))
	f.Add(workspace.Encode(mustBigTree(f, 50)))
	f.Fuzz(func(t *testing.T, b []byte) {
		tree, err := workspace.Decode(b)
		if err != nil {
			if !workbench.HasCode(err, workbench.CodeCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again, err := workspace.Decode(workspace.Encode(tree))
		if err != nil || again.Root() != tree.Root() {
			t.Fatalf("what was decoded does not encode: %v", err)
		}
	})
}

func BenchmarkCommitOneSmallFile(b *testing.B) {
	for _, files := range []int{10, 16384} {
		b.Run(fmt.Sprintf("of %d", files), func(b *testing.B) {
			w := mustWorld(b)
			build := w.trees.Begin(b.Context(), w.session.TenantID, workspace.Empty())
			for i := range files {
				put(build, fmt.Sprintf("d/%d", i), fmt.Sprint(i))(b)
			}
			tree, n := w.mustCommit(build).Tree, 0
			for b.Loop() {
				n++
				build := w.trees.Begin(b.Context(), w.session.TenantID, tree)
				put(build, "out.txt", fmt.Sprint(n))(b)
				tree = w.mustCommit(build).Tree
			}
		})
	}
}

func BenchmarkCommitUnchanged(b *testing.B) {
	w := mustWorld(b)
	build := w.trees.Begin(b.Context(), w.session.TenantID, workspace.Empty())
	put(build, "out.txt", "x")(b)
	tree := w.mustCommit(build).Tree
	for b.Loop() {
		w.mustCommit(w.trees.Begin(b.Context(), w.session.TenantID, tree))
	}
}

func BenchmarkCommit8MiB(b *testing.B) {
	w := mustWorld(b)
	content := []byte(noise(1, 8<<20))
	b.SetBytes(8 << 20)
	for b.Loop() {
		content[0]++
		build := w.trees.Begin(b.Context(), w.session.TenantID, workspace.Empty())
		w.must(build.File(b.Context(), workspace.Entry{Path: "f", Mode: 0o644, Size: int64(len(content))}, bytes.NewReader(content)))
		w.mustCommit(build)
	}
}

func BenchmarkRestore16kFiles(b *testing.B) {
	w := mustWorld(b)
	build := w.trees.Begin(b.Context(), w.session.TenantID, workspace.Empty())
	for i := range 16384 {
		put(build, fmt.Sprintf("d%d/%d", i%100, i), fmt.Sprint(i))(b)
	}
	made := w.mustCommit(build)
	for b.Loop() {
		tree, err := w.trees.Load(b.Context(), w.session.TenantID, made.Tree.ManifestID())
		w.must(err)
		r := w.trees.Restore(b.Context(), w.session.TenantID, tree)
		for {
			_, content, err := r.Next()
			if err != nil {
				break
			}
			if content != nil {
				_, err = io.Copy(io.Discard, content)
				w.must(err)
			}
		}
	}
}

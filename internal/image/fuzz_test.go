package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
)

// FuzzImport: whatever the archive, nothing outside the store changes, and what
// is accepted can be given to a runtime.
func FuzzImport(f *testing.F) {
	outside := f.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o644); err != nil {
		f.Fatal(err)
	}
	for _, entries := range [][]entry{
		smallRoot(),
		smallRoot(symlink("l", outside), file("l/victim", "x"), hardlink("h", "l/victim")),
		smallRoot(file("../x", ""), symlink("dev", "/"), file("dev/null", "")),
		smallRoot(file("a/.wh.b", ""), file("a/.wh..wh..opq", ""), file("twice", "1"), folder("twice/")),
		{file("index.json", `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:00","size":1}]}`)},
		{file("manifest.json", `[{"Layers":["../a","b"]}]`), file("b", "")},
	} {
		f.Add(MustTar(f, entries...))
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		s := MustOpen(t, t.TempDir())
		s.Limits = image.Limits{Bytes: 1 << 20, Entries: 100}
		m, err := s.Import(t.Context(), MustWrite(t, archive), "test", nil)
		switch {
		case err == nil:
			if err := image.CheckRoot(m.Root); err != nil {
				t.Error(err)
			}
			if err := s.Verify(t.Context(), m); err != nil {
				t.Error(err)
			}
		case workbench.HasCode(err, workbench.CodeInternal):
			t.Errorf("an error without a code: %v", err)
		default:
			MustBeEmpty(t, s)
		}
		content, err := os.ReadFile(victim)
		entries, dirErr := os.ReadDir(outside)
		if err != nil || dirErr != nil || string(content) != "untouched" || len(entries) != 1 {
			t.Fatalf("outside was touched: %q %v %v %v", content, entries, err, dirErr)
		}
	})
}

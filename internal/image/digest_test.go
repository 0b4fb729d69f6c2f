package image_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
)

// MustTree makes a small tree; the steps change it.
func MustTree(t *testing.T, steps ...func(dir string) error) string {
	t.Helper()
	dir := t.TempDir()
	steps = append([]func(string) error{
		func(d string) error { return os.Chmod(d, 0o755) },
		func(d string) error { return os.Mkdir(filepath.Join(d, "folder"), 0o755) },
		func(d string) error {
			return os.WriteFile(filepath.Join(d, "folder", "file"), []byte("content"), 0o644)
		},
		func(d string) error { return os.Symlink("target", filepath.Join(d, "link")) },
	}, steps...)
	for _, step := range steps {
		if err := step(dir); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func MustDigest(t *testing.T, dir string) image.RootDigest {
	t.Helper()
	d, err := image.DigestRoot(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDigestRoot(t *testing.T) {
	plain := MustDigest(t, MustTree(t))

	t.Run("counts", func(t *testing.T) {
		if plain.Entries != 4 || plain.Bytes != 7 {
			t.Fatalf("%+v, want 4 entries and 7 bytes", plain)
		}
	})

	t.Run("is of the format that ids are made of", func(t *testing.T) {
		// Changes only with digestFormat: stored ids must stay true.
		const want = "8e0dd166879f7b0f2d20aea446dcb6d1fcd158270e9f6da4f619a6f5f4d5d1a1"
		if plain.Hex != want {
			t.Fatalf("%s, want %s", plain.Hex, want)
		}
	})

	old := time.Unix(1, 0)
	same := map[string]func(d string) error{
		"times":              func(d string) error { return os.Chtimes(filepath.Join(d, "folder", "file"), old, old) },
		"the order of names": func(d string) error { return os.Rename(filepath.Join(d, "folder"), filepath.Join(d, "x")) },
	}
	back := map[string]func(d string) error{
		"the order of names": func(d string) error { return os.Rename(filepath.Join(d, "x"), filepath.Join(d, "folder")) },
	}
	for name, step := range same {
		t.Run("does not change with "+name, func(t *testing.T) {
			steps := []func(string) error{step}
			if undo, ok := back[name]; ok {
				steps = append(steps, undo)
			}
			if got := MustDigest(t, MustTree(t, steps...)); got != plain {
				t.Fatalf("%+v, want %+v", got, plain)
			}
		})
	}

	t.Run("does not change when two names share a file", func(t *testing.T) {
		linked := MustTree(t, func(d string) error { return os.Link(filepath.Join(d, "folder", "file"), filepath.Join(d, "x")) })
		copied := MustTree(t, func(d string) error { return os.WriteFile(filepath.Join(d, "x"), []byte("content"), 0o644) })
		if a, b := MustDigest(t, linked), MustDigest(t, copied); a != b {
			t.Fatalf("%+v and %+v", a, b)
		}
	})

	for name, step := range map[string]func(d string) error{
		"content": func(d string) error {
			return os.WriteFile(filepath.Join(d, "folder", "file"), []byte("CONTENT"), 0o644)
		},
		"a mode":        func(d string) error { return os.Chmod(filepath.Join(d, "folder", "file"), 0o755) },
		"a sticky bit":  func(d string) error { return os.Chmod(filepath.Join(d, "folder"), 0o755|os.ModeSticky) },
		"a folder mode": func(d string) error { return os.Chmod(filepath.Join(d, "folder"), 0o700) },
		"an owner":      func(d string) error { return os.Chown(filepath.Join(d, "folder", "file"), 1000, 0) },
		"a group":       func(d string) error { return os.Chown(filepath.Join(d, "folder", "file"), 0, 1000) },
		"a name": func(d string) error {
			return os.Rename(filepath.Join(d, "folder", "file"), filepath.Join(d, "folder", "file2"))
		},
		"a new folder":   func(d string) error { return os.Mkdir(filepath.Join(d, "empty"), 0o755) },
		"a missing file": func(d string) error { return os.Remove(filepath.Join(d, "folder", "file")) },
		"a link target": func(d string) error {
			if err := os.Remove(filepath.Join(d, "link")); err != nil {
				return err
			}
			return os.Symlink("target2", filepath.Join(d, "link"))
		},
		"a link in place of its target": func(d string) error {
			if err := os.Remove(filepath.Join(d, "link")); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(d, "link"), []byte("target"), 0o777)
		},
	} {
		t.Run("changes with "+name, func(t *testing.T) {
			if got := MustDigest(t, MustTree(t, step)); got.Hex == plain.Hex {
				t.Fatal("did not change")
			}
		})
	}

	t.Run("refuses what is no file, folder or link", func(t *testing.T) {
		dir := MustTree(t, func(d string) error { return mkfifo(filepath.Join(d, "pipe")) })
		if _, err := image.DigestRoot(t.Context(), dir); !workbench.HasCode(err, workbench.CodeImageInvalid) {
			t.Fatalf("%v, want image_invalid", err)
		}
	})
}

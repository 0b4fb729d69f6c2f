package blob_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/blob/blobtest"
)

func mustOpen(t testing.TB, dir string, options ...blob.Option) *blob.Disk {
	t.Helper()
	d, err := blob.OpenDisk(dir, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestDisk(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store { return mustOpen(t, filepath.Join(t.TempDir(), "blobs")) })
}

func TestDiskIsClosedToOthersAndSweepsWhatWasCutOff(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blobs")
	d := mustOpen(t, dir)
	if _, err := blob.Put(t.Context(), d, "a", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	w, err := d.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("never committed")); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 2 {
		t.Fatalf("files %v", left)
	}
	mustOpen(t, dir) // as after a crash: w's owner is gone
	left := files(t, dir)
	if len(left) != 1 || !strings.HasSuffix(left[0], "/a") {
		t.Errorf("files %v", left)
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is open to others: %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A link, directory or FIFO where a blob should be neither leads out of the
// directory nor hangs a reader.
func TestDiskFollowsNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blobs")
	d := mustOpen(t, dir)
	if _, err := blob.Put(t.Context(), d, "a", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	place := files(t, dir)[0]
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func() error{
		"link":      func() error { return os.Symlink(outside, place) },
		"directory": func() error { return os.Mkdir(place, 0o700) },
		"fifo":      func() error { return syscall.Mkfifo(place, 0o600) },
	} {
		if err := os.Remove(place); err != nil {
			t.Fatal(err)
		}
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Open(t.Context(), "a"); !workbench.HasCode(err, workbench.CodeUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a power loss leaves is what was synced: a blob's bytes before its name,
// and its removal.
func TestDiskSyncsBytesBeforeNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blobs")
	var synced []string
	d := mustOpen(t, dir, blob.OnSync(func(path string, real func() error) error {
		synced = append(synced, path)
		return real()
	}))
	synced = nil
	if _, err := blob.Put(t.Context(), d, "a", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	place, err := filepath.Rel(dir, files(t, dir)[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(synced) != 2 || !strings.HasPrefix(synced[0], "tmp/") || synced[1] != filepath.Dir(place) {
		t.Errorf("synced %v, the blob is %s", synced, place)
	}
	for _, what := range []string{"a blob", "one that has gone, perhaps not for good"} {
		synced = nil
		if err := d.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if len(synced) != 1 || synced[0] != filepath.Dir(place) {
			t.Errorf("after the removal of %s: synced %v, it was %s", what, synced, place)
		}
	}
}

func TestDiskFull(t *testing.T) {
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatalf("this test needs root, to mount a small disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(mount, syscall.MNT_DETACH) })
	d, err := blob.OpenDisk(mount)
	if err != nil {
		t.Fatal(err)
	}
	_, err = blob.Put(t.Context(), d, "big", bytes.NewReader(make([]byte, 1<<20)))
	var e *workbench.Error
	if !errors.As(err, &e) || e.Code != workbench.CodeUnavailable || !strings.Contains(e.Detail, "full") || e.Hint == "" {
		t.Errorf("a full disk is %v", err)
	}
	if left := files(t, mount); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := blob.Put(t.Context(), d, "small", strings.NewReader("fits")); err != nil {
		t.Errorf("after the failure: %v", err)
	}
	_ = d.Close()
}

func TestCommitOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blobs")
	d := mustOpen(t, dir)
	commit := func(content, want string) {
		t.Helper()
		w, err := d.Create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
		if err := blob.CommitOnce(t.Context(), d, w, "a", 5); err != nil {
			t.Fatal(err)
		}
		if got := string(blobtest.MustRead(t, d, "a")); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if left := files(t, dir); len(left) != 1 {
			t.Errorf("left behind: %v", left)
		}
	}
	age := func() {
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(files(t, dir)[0], old, old); err != nil {
			t.Fatal(err)
		}
	}
	commit("cut", "cut")
	age()
	commit("first", "first") // one of another size does not count as there
	commit("again", "again") // nor one that may not be durable yet
	age()
	commit("other", "again")
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func BenchmarkPut8MiB(b *testing.B) {
	d := mustOpen(b, filepath.Join(b.TempDir(), "blobs"))
	content := make([]byte, 8<<20)
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		if _, err := blob.Put(b.Context(), d, "a", bytes.NewReader(content)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPutSmall(b *testing.B) {
	d := mustOpen(b, filepath.Join(b.TempDir(), "blobs"))
	for b.Loop() {
		if _, err := blob.Put(b.Context(), d, "a", strings.NewReader("small")); err != nil {
			b.Fatal(err)
		}
	}
}

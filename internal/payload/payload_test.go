package payload_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/payload"
)

// "hello\n" repeated 4096 times.
const contentDigest = "e9154629e7772312868608e59e215e79"

func MustPack(t *testing.T) payload.Set {
	t.Helper()
	source := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(source, bytes.Repeat([]byte("hello\n"), 4096), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := payload.Pack(dir, payload.Guest, "v1.2.3", source); err != nil {
		t.Fatal(err)
	}
	return payload.Open(os.DirFS(dir))
}

func MustExtract(t *testing.T, set payload.Set, dir string) string {
	t.Helper()
	path, digest, err := set.Extract(dir, payload.Guest)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(digest, contentDigest) {
		t.Fatalf("digest %s, want prefix %s", digest, contentDigest)
	}
	return path
}

func MustHold(t *testing.T, path string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.Repeat([]byte("hello\n"), 4096)) {
		t.Fatalf("%s does not hold the packed bytes (%d bytes)", path, len(got))
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o755 {
		t.Fatalf("mode %v, want 0755", st.Mode().Perm())
	}
}

func TestExtract(t *testing.T) {
	set := MustPack(t)

	t.Run("writes the executable under its digest", func(t *testing.T) {
		dir := t.TempDir()
		path := MustExtract(t, set, dir)
		if want := filepath.Join(dir, "guest-"+contentDigest[:16], "guest"); path != want {
			t.Fatalf("path %s, want %s", path, want)
		}
		MustHold(t, path)
	})

	t.Run("leaves a good file alone", func(t *testing.T) {
		dir := t.TempDir()
		path := MustExtract(t, set, dir)
		before, _ := os.Stat(path)
		MustExtract(t, set, dir)
		after, _ := os.Stat(path)
		if !os.SameFile(before, after) {
			t.Fatal("the file was replaced")
		}
	})

	t.Run("replaces a truncated file", func(t *testing.T) {
		dir := t.TempDir()
		path := MustExtract(t, set, dir)
		if err := os.Truncate(path, 100); err != nil {
			t.Fatal(err)
		}
		MustHold(t, MustExtract(t, set, dir))
	})

	t.Run("replaces a file of the right size whose bytes changed", func(t *testing.T) {
		dir := t.TempDir()
		path := MustExtract(t, set, dir)
		if err := os.WriteFile(path, bytes.Repeat([]byte("HELLO\n"), 4096), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		MustHold(t, MustExtract(t, set, dir))
	})

	t.Run("replaces a symbolic link instead of following it", func(t *testing.T) {
		dir := t.TempDir()
		path := MustExtract(t, set, dir)
		victim := filepath.Join(t.TempDir(), "victim")
		if err := os.WriteFile(victim, []byte("victim"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(victim, path); err != nil {
			t.Fatal(err)
		}
		MustHold(t, MustExtract(t, set, dir))
		if got, _ := os.ReadFile(victim); string(got) != "victim" {
			t.Fatalf("the link's target was written: %q", got)
		}
	})

	t.Run("is safe for many at once and leaves no temporary files", func(t *testing.T) {
		dir := t.TempDir()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, _, err := set.Extract(dir, payload.Guest); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		MustHold(t, MustExtract(t, set, dir))
		entries, err := os.ReadDir(filepath.Join(dir, "guest-"+contentDigest[:16]))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if got := strings.Join(names, " "); got != "guest guest.stamp.json" {
			t.Fatalf("files: %s", got)
		}
	})

	t.Run("says what to do when the executable was not packed", func(t *testing.T) {
		_, _, err := set.Extract(t.TempDir(), payload.Runsc)
		e := workbench.AsError(err)
		if e.Code != workbench.CodeRuntimeUnavailable || !strings.Contains(e.Hint, "make build") {
			t.Fatalf("error %v, hint %q", err, e.Hint)
		}
	})
}

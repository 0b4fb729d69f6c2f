package outdir_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/outdir"
)

func MustOpen(t *testing.T) (*outdir.Dir, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "out")
	d, err := outdir.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, name
}

func write(d *outdir.Dir, at, content string) error {
	return d.Write(at, func(w io.Writer) error { _, err := io.WriteString(w, content); return err })
}

func MustRead(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestWriteMakesDirectoriesAndReplaces(t *testing.T) {
	d, name := MustOpen(t)
	for _, content := range []string{"first", "second"} {
		if err := write(d, "reports/résumé 報告 #1?%20.txt", content); err != nil {
			t.Fatal(err)
		}
		if got := MustRead(t, filepath.Join(name, "reports", "résumé 報告 #1?%20.txt")); got != content {
			t.Errorf("file holds %q, want %q", got, content)
		}
	}
}

func TestWriteRefusesPathsThatLeave(t *testing.T) {
	d, _ := MustOpen(t)
	for _, at := range []string{"", "../x", "a/../../x", "/etc/x", "a//b", "a/./b", "a\x00b", "a\nb", strings.Repeat("a", 256)} {
		if err := write(d, at, "x"); !workbench.HasCode(err, workbench.CodePathInvalid) {
			t.Errorf("Write(%q) = %v, want path_invalid", at, err)
		}
	}
}

func TestWriteNeverGoesThroughLinks(t *testing.T) {
	d, name := MustOpen(t)
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim.txt")
	if err := os.WriteFile(victim, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(name, "inside")
	for _, link := range [][2]string{{outside, "dir"}, {victim, "file.txt"}, {"inside", "alias"}} {
		if err := os.Symlink(link[0], filepath.Join(name, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"dir/victim.txt", "dir/new.txt", "alias/new.txt"} {
		if err := write(d, at, "changed"); !workbench.HasCode(err, workbench.CodePathConflict) {
			t.Errorf("Write(%q) = %v, want path_conflict", at, err)
		}
	}
	if err := write(d, "file.txt", "changed"); err != nil {
		t.Fatal(err)
	}
	if got := MustRead(t, victim); got != "untouched" {
		t.Errorf("the file behind the link now holds %q", got)
	}
	if info, err := os.Lstat(filepath.Join(name, "file.txt")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the link was not replaced by a file: %v %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "new.txt")); err == nil {
		t.Error("a file was made outside")
	}
}

func TestWriteThatFailsLeavesWhatWasThere(t *testing.T) {
	d, name := MustOpen(t)
	if err := write(d, "a.txt", "before"); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("connection lost")
	err := d.Write("a.txt", func(w io.Writer) error { _, _ = io.WriteString(w, "half"); return broken })
	if !errors.Is(err, broken) {
		t.Fatalf("Write = %v, want the cause", err)
	}
	if got := MustRead(t, filepath.Join(name, "a.txt")); got != "before" {
		t.Errorf("file holds %q, want %q", got, "before")
	}
	if entries, _ := os.ReadDir(name); len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
}

func TestDirectoriesThatNothingWasWrittenToDoNotStay(t *testing.T) {
	base := t.TempDir()
	there := filepath.Join(base, "there")
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("connection lost")
	for _, tc := range []struct {
		name  string
		write func(d *outdir.Dir) error
		stays bool
	}{
		{"a/b", func(*outdir.Dir) error { return nil }, false},
		{"c", func(d *outdir.Dir) error { return d.Write("x/y/z.txt", func(io.Writer) error { return broken }) }, false},
		{"d/e", func(d *outdir.Dir) error { return write(d, "x/y.txt", "x") }, true},
		{"there", func(*outdir.Dir) error { return nil }, true},
	} {
		name := filepath.Join(base, filepath.FromSlash(tc.name))
		d, err := outdir.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := tc.write(d); err != nil && !errors.Is(err, broken) {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(name); (err == nil) != tc.stays {
			t.Errorf("%s: stays %v, want %v", tc.name, err == nil, tc.stays)
		}
	}
	if entries, _ := os.ReadDir(base); len(entries) != 2 {
		t.Errorf("left over: %v", entries)
	}
	file := filepath.Join(there, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := outdir.Open(filepath.Join(file, "x")); err == nil {
		t.Error("a directory below a file was opened")
	}
}

func TestAFailedWriteRemovesTheDirectoriesItMade(t *testing.T) {
	d, name := MustOpen(t)
	if err := write(d, "kept/a.txt", "a"); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"kept/new/b.txt", "new/deep/b.txt"} {
		if err := d.Write(at, func(io.Writer) error { return io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	var left []string
	_ = filepath.WalkDir(name, func(p string, _ os.DirEntry, _ error) error {
		left = append(left, strings.TrimPrefix(p, name))
		return nil
	})
	if got := strings.Join(left, " "); got != " /kept /kept/a.txt" {
		t.Errorf("left: %q", got)
	}
}

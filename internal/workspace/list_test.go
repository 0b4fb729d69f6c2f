package workspace_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/workspace"
)

func TestList(t *testing.T) {
	w := mustWorld(t)
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	put(b, "z.txt", "1")(t)
	put(b, "d/b", "22")(t)
	put(b, "d/sub/deep", "333")(t)
	put(b, "d/\xff", "")(t)
	want(t, "link", b.Put(link("to d", "d")), "")
	want(t, "dir", b.Put(dir("empty")), "")
	tree := w.mustCommit(b).Tree
	for at, names := range map[string][]string{
		"":      {"d d", "d empty", "l to d", "f z.txt"},
		"d":     {"f d/b", "d d/sub", "f d/\xff"},
		"d/sub": {"f d/sub/deep"},
		"empty": {},
	} {
		entries, err := tree.List(at)
		w.must(err)
		got := []string{}
		for _, e := range entries {
			got = append(got, fmt.Sprintf("%c %s", e.Type, e.Path))
		}
		if !slices.Equal(got, names) {
			t.Errorf("%q: %q, want %q", at, got, names)
		}
	}
	for at, code := range map[string]workbench.Code{"none": workbench.CodeNotFound, "z.txt": workbench.CodePathInvalid, "to d": workbench.CodePathInvalid,
		"z.txt/x": workbench.CodeNotFound, "to d/b": workbench.CodeNotFound, "../d": workbench.CodePathInvalid, "d/": workbench.CodePathInvalid} {
		_, err := tree.List(at)
		want(t, at, err, code)
	}
	if entries, err := workspace.Empty().List(""); err != nil || entries == nil || len(entries) != 0 {
		t.Errorf("empty: %v, %v", entries, err)
	}
}

func TestTarOfATree(t *testing.T) {
	w := mustWorld(t)
	long := strings.Repeat("long name/", 30) + strings.Repeat("x", 200)
	contents := map[string]string{"a.txt": "hello", "empty": "", "d/\xff\xfe": "odd", "d/é": "text", long: "deep", "large": noise(1, 1<<20+3)}
	b := w.trees.Begin(t.Context(), w.session.TenantID, workspace.Empty())
	want(t, "dir", b.Put(workspace.Entry{Path: "d", Type: workspace.Dir, Mode: 0o1751, MtimeNs: 1_600_000_000_000_000_001}), "")
	want(t, "dir", b.Put(workspace.Entry{Path: "none", Type: workspace.Dir, Mode: 0, MtimeNs: -5}), "")
	for path, content := range contents {
		e := workspace.Entry{Path: path, Mode: 0o640, Size: int64(len(content)), MtimeNs: 1_700_000_000_123_456_789}
		want(t, path, b.File(t.Context(), e, strings.NewReader(content)), "")
	}
	want(t, "link", b.Put(link("l", "../\xffnowhere")), "")
	made := w.mustCommit(b)
	w.mustRecord(made, "")
	tree := made.Tree

	var raw bytes.Buffer
	w.must(w.trees.WriteTar(t.Context(), w.session.TenantID, tree, &raw))
	var again bytes.Buffer
	w.must(w.trees.WriteTar(t.Context(), w.session.TenantID, tree, &again))
	if !bytes.Equal(raw.Bytes(), again.Bytes()) {
		t.Error("the same tree makes two archives")
	}
	var got []workspace.Entry
	r := tar.NewReader(bytes.NewReader(raw.Bytes()))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		w.must(err)
		e := workspace.Entry{Path: strings.TrimSuffix(h.Name, "/"), Mode: uint32(h.Mode), MtimeNs: h.ModTime.UnixNano(), Size: h.Size, Target: h.Linkname}
		switch h.Typeflag {
		case tar.TypeDir:
			e.Type = workspace.Dir
		case tar.TypeSymlink:
			e.Type = workspace.Symlink
		case tar.TypeReg:
			e.Type = workspace.File
			content, err := io.ReadAll(r)
			w.must(err)
			e.SHA256 = digest(string(content))
			if string(content) != contents[e.Path] {
				t.Errorf("%q has %d other bytes", e.Path, len(content))
			}
		}
		got = append(got, e)
	}
	if !slices.Equal(got, list(tree)) {
		t.Errorf("%+v\nwant %+v", got, list(tree))
	}
	t.Run("for the usual tar", func(t *testing.T) {
		into := t.TempDir()
		cmd := exec.Command("tar", "-x", "-C", into)
		cmd.Stdin = &raw
		if out, err := cmd.CombinedOutput(); err != nil { // it may warn of times before 1970
			t.Fatalf("%v: %s", err, out)
		}
		if content, err := os.ReadFile(filepath.Join(into, "d/\xff\xfe")); err != nil || string(content) != "odd" {
			t.Errorf("%q, %v", content, err)
		}
		if info, err := os.Stat(filepath.Join(into, "d/é")); err != nil || info.ModTime().UnixNano() != 1_700_000_000_123_456_789 || info.Mode().Perm() != 0o640 {
			t.Errorf("%+v, %v", info, err)
		}
		if target, err := os.Readlink(filepath.Join(into, "l")); err != nil || target != "../\xffnowhere" {
			t.Errorf("%q, %v", target, err)
		}
	})
	t.Run("nobody waits any more", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		want(t, "cancelled", w.trees.WriteTar(ctx, w.session.TenantID, tree, io.Discard), workbench.CodeCancelled)
		if err := w.trees.WriteTar(t.Context(), w.session.TenantID, tree, closed{}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%v", err)
		}
	})
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

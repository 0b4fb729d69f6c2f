package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/image"
)

// entry is one entry of a test archive.
type entry struct {
	name string
	kind byte // tar.TypeReg if 0
	mode int64
	body string
	link string
	uid  int
	size int64 // stated size if not the body's; the archive then ends there
}

func file(name, body string) entry { return entry{name: name, mode: 0o644, body: body} }
func folder(name string) entry     { return entry{name: name, kind: tar.TypeDir, mode: 0o755} }
func symlink(name, to string) entry {
	return entry{name: name, kind: tar.TypeSymlink, mode: 0o777, link: to}
}
func hardlink(name, to string) entry { return entry{name: name, kind: tar.TypeLink, link: to} }
func program(name string) entry      { return entry{name: name, mode: 0o755, body: "#!program " + name} }

// smallRoot is the least that is an image, then more.
func smallRoot(more ...entry) []entry {
	return append([]entry{
		folder("etc/"), folder("usr/"), folder("usr/bin/"),
		program("usr/bin/python3.13"), symlink("usr/bin/python3", "python3.13"),
	}, more...)
}

func MustTar(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.name, Typeflag: e.kind, Mode: e.mode, Linkname: e.link, Uid: e.uid, Gid: e.uid,
			Size: int64(len(e.body)), ModTime: time.Unix(1_700_000_000, 0),
		}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if e.kind == tar.TypeChar || e.kind == tar.TypeBlock {
			h.Devmajor, h.Devminor = 1, 3
		}
		if e.size != 0 {
			h.Size = e.size
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.size != 0 {
			return b.Bytes()
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func MustWrite(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func MustOpen(t *testing.T, dir string) *image.Store {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests need root: images keep the owners of their files")
	}
	s, err := image.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// MustImport imports an archive of the entries under the name "test".
func MustImport(t *testing.T, s *image.Store, entries ...entry) image.Image {
	t.Helper()
	m, err := s.Import(t.Context(), MustWrite(t, MustTar(t, entries...)), "test", nil)
	if err != nil {
		t.Fatalf("import: %v", err)
	}
	return m
}

// MustRefuse checks that an import fails with the code and leaves nothing.
func MustRefuse(t *testing.T, archive []byte, code workbench.Code) *workbench.Error {
	t.Helper()
	dir := t.TempDir()
	s := MustOpen(t, dir)
	m, err := s.Import(t.Context(), MustWrite(t, archive), "test", nil)
	if err == nil {
		t.Fatalf("imported as %s; want %s", m.ID, code)
	}
	if got := workbench.CodeOf(err); got != code {
		t.Fatalf("code %s, want %s: %v", got, code, err)
	}
	MustBeEmpty(t, s)
	return workbench.AsError(err)
}

// MustBeEmpty checks that a store holds no image, no name and no leftovers.
func MustBeEmpty(t *testing.T, s *image.Store) {
	t.Helper()
	var left []string
	err := filepath.WalkDir(s.Dir(), func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(s.Dir(), path)
		switch rel {
		case ".", "names", "tmp", "build.lock", "names.lock":
		default:
			left = append(left, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Fatalf("left behind: %s", strings.Join(left, " "))
	}
}

func MustRead(t *testing.T, m image.Image, name, want string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(m.Root, name))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Fatalf("%s holds %q, want %q", name, got, want)
	}
}

func MustLack(t *testing.T, m image.Image, name string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(m.Root, name)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s is there (%v)", name, err)
	}
}

// layout writes OCI image layouts.
type layout struct {
	t   *testing.T
	dir string
}

func MustLayout(t *testing.T) layout {
	t.Helper()
	l := layout{t, t.TempDir()}
	if err := os.MkdirAll(filepath.Join(l.dir, "blobs", "sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return l
}

func (l layout) write(name string, content []byte) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, name), content, 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// blob stores content and returns a descriptor of it.
func (l layout) blob(mediaType string, content []byte) map[string]any {
	l.t.Helper()
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	l.write(filepath.Join("blobs", "sha256", digest), content)
	return map[string]any{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(content)}
}

func (l layout) json(v any) []byte {
	l.t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		l.t.Fatal(err)
	}
	return raw
}

// image stores a manifest over the layers and returns its descriptor.
func (l layout) image(layers ...[]byte) map[string]any {
	l.t.Helper()
	descriptors := []any{}
	for _, content := range layers {
		descriptors = append(descriptors, l.blob("application/vnd.oci.image.layer.v1.tar", content))
	}
	return l.blob("application/vnd.oci.image.manifest.v1+json", l.json(map[string]any{
		"schemaVersion": 2, "config": l.blob("application/vnd.oci.image.config.v1+json", []byte("{}")), "layers": descriptors,
	}))
}

// index makes the descriptors the layout's images.
func (l layout) index(descriptors ...map[string]any) {
	l.t.Helper()
	l.write("index.json", l.json(map[string]any{"schemaVersion": 2, "manifests": descriptors}))
}

// tar packs the layout's folder.
func (l layout) tar() []byte {
	l.t.Helper()
	var entries []entry
	err := filepath.WalkDir(l.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(l.dir, path)
		entries = append(entries, file(rel, string(raw)))
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return MustTar(l.t, entries...)
}

package image_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
)

func TestImportLayout(t *testing.T) {
	base := smallRoot(
		folder("data/"), file("data/old", "old"), file("data/kept", "kept"),
		folder("gone/"), file("gone/a", "a"), file("gone/deep/b", "b"), file("single", "x"),
		symlink("through", "/data"), folder("mixed/"), file("mixed/lower", "lower"),
	)

	t.Run("applies layers in order, with whiteouts", func(t *testing.T) {
		l := MustLayout(t)
		l.index(l.image(
			MustTar(t, base...),
			MustTar(t,
				file("data/.wh.old", ""), file(".wh.single", ""), file("through/new", "new"),
				// In one layer, an opaque mark spares what the layer itself brings,
				// whichever comes first.
				file("gone/mine", "mine"), file("gone/.wh..wh..opq", ""), file("gone/later", "later"),
				// A whiteout hides the lower mixed, not the one of this layer.
				file("mixed/upper", "upper"), file(".wh.mixed", ""),
			),
		))
		s := MustOpen(t, t.TempDir())
		m, err := s.Import(t.Context(), l.dir, "test", nil)
		if err != nil {
			t.Fatal(err)
		}
		MustLack(t, m, "data/old")
		MustLack(t, m, "single")
		MustLack(t, m, "gone/a")
		MustLack(t, m, "gone/deep")
		MustLack(t, m, "gone/.wh..wh..opq")
		MustLack(t, m, "mixed/lower")
		MustRead(t, m, "data/kept", "kept")
		MustRead(t, m, "data/new", "new")
		MustRead(t, m, "gone/mine", "mine")
		MustRead(t, m, "gone/later", "later")
		MustRead(t, m, "mixed/upper", "upper")
		if m.Source.Kind != "oci" {
			t.Errorf("source %q, want oci", m.Source.Kind)
		}
	})

	t.Run("a layout in an archive gives the same image as the folder", func(t *testing.T) {
		l := MustLayout(t)
		l.index(l.image(MustTar(t, base...)))
		s := MustOpen(t, t.TempDir())
		folder, err := s.Import(t.Context(), l.dir, "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		archive, err := s.Import(t.Context(), MustWrite(t, l.tar()), "b", nil)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := s.Import(t.Context(), MustWrite(t, MustTar(t, base...)), "c", nil)
		if err != nil {
			t.Fatal(err)
		}
		if folder.ID != archive.ID || folder.ID != plain.ID {
			t.Fatalf("ids differ: %s %s %s", folder.ID, archive.ID, plain.ID)
		}
	})

	t.Run("chooses this machine's image and ignores attestations", func(t *testing.T) {
		l := MustLayout(t)
		mine := l.image(MustTar(t, base...))
		mine["platform"] = map[string]any{"os": "linux", "architecture": runtime.GOARCH}
		other := l.image(MustTar(t, smallRoot(file("other", ""))...))
		other["platform"] = map[string]any{"os": "linux", "architecture": "mips"}
		attestation := l.image(MustTar(t, file("x", "")))
		attestation["platform"] = map[string]any{"os": "unknown", "architecture": "unknown"}
		inner := l.blob("application/vnd.oci.image.index.v1+json",
			l.json(map[string]any{"schemaVersion": 2, "manifests": []any{other, mine, attestation}}))
		l.index(inner)
		m, err := MustOpen(t, t.TempDir()).Import(t.Context(), l.dir, "test", nil)
		if err != nil {
			t.Fatal(err)
		}
		MustRead(t, m, "data/kept", "kept")
		MustLack(t, m, "other")
	})

	t.Run("reads docker save archives, compressed", func(t *testing.T) {
		archive := MustTar(t,
			file("manifest.json", `[{"Config":"c.json","Layers":["a/layer.tar","b/layer.tar"]}]`), file("c.json", "{}"),
			file("a/layer.tar", string(MustTar(t, base...))), file("b/layer.tar", string(MustTar(t, file("data/.wh.old", "")))),
		)
		var gz bytes.Buffer
		w := gzip.NewWriter(&gz)
		w.Write(archive)
		w.Close()
		m, err := MustOpen(t, t.TempDir()).Import(t.Context(), MustWrite(t, gz.Bytes()), "test", nil)
		if err != nil {
			t.Fatal(err)
		}
		MustLack(t, m, "data/old")
		MustRead(t, m, "data/kept", "kept")
	})

	refuse := func(name, say string, make func(l layout)) {
		t.Run("refuses "+name, func(t *testing.T) {
			l := MustLayout(t)
			make(l)
			s := MustOpen(t, t.TempDir())
			_, err := s.Import(t.Context(), l.dir, "test", nil)
			if !workbench.HasCode(err, workbench.CodeImageInvalid) || !strings.Contains(workbench.AsError(err).Detail, say) {
				t.Fatalf("%v, want image_invalid with %q", err, say)
			}
			MustBeEmpty(t, s)
		})
	}
	refuse("a layer with other bytes", "digest", func(l layout) {
		content := MustTar(t, base...)
		d := l.blob("application/vnd.oci.image.layer.v1.tar", content)
		l.index(l.image(content))
		tampered := bytes.Replace(content, []byte("#!program"), []byte("#!PROGRAM"), 1)
		l.write(filepath.Join("blobs", "sha256", strings.TrimPrefix(d["digest"].(string), "sha256:")), tampered)
	})
	refuse("a layer of another size", "size", func(l layout) {
		content := MustTar(t, base...)
		d := l.blob("application/vnd.oci.image.layer.v1.tar", content)
		l.index(l.image(content))
		l.write(filepath.Join("blobs", "sha256", strings.TrimPrefix(d["digest"].(string), "sha256:")), append(content, 0))
	})
	refuse("a digest that is a path", "digest", func(l layout) {
		l.index(map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:../../../../etc/passwd", "size": 1})
	})
	refuse("another machine's image", "no image for linux/", func(l layout) {
		other := l.image(MustTar(t, base...))
		other["platform"] = map[string]any{"os": "linux", "architecture": "mips"}
		l.index(other)
	})
	refuse("two images", "2 images", func(l layout) {
		l.index(l.image(MustTar(t, base...)), l.image(MustTar(t, smallRoot()...)))
	})
	refuse("a folder that is no layout", "manifest.json", func(layout) {})
	refuse("a blob that links out of the layout", "layout", func(l layout) {
		d := l.image(MustTar(t, base...))
		l.index(d)
		at := filepath.Join(l.dir, "blobs", "sha256", strings.TrimPrefix(d["digest"].(string), "sha256:"))
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/etc/passwd", at); err != nil {
			t.Fatal(err)
		}
	})
}

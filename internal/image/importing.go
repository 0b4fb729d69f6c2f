package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/workbenchdev/workbench"
)

// Import makes an image from what is at path and lets name point at it:
//
//   - a tar archive of a root file system (docker export, debootstrap),
//   - an OCI image layout, as a folder or as a tar archive,
//   - a docker save archive.
//
// Archives may be plain or compressed with gzip or zstd. The content is
// hostile: nothing outside the new root is touched, devices, set-id bits and
// extended attributes are left out. Commands, users and variables that an OCI
// image declares are not used. Errors: invalid_request for the path or name,
// image_invalid for the content, unavailable for the disk.
func (s *Store) Import(ctx context.Context, path, name string, progress ProgressFunc) (Image, error) {
	if err := CheckName(name); err != nil {
		return Image{}, err
	}
	if os.Geteuid() != 0 {
		return Image{}, workbench.E(workbench.CodeUnavailable, "importing an image needs root: files keep their owners").
			WithHint("run workbench image import as root")
	}
	progress = progress.serialized()
	work, discard, err := s.workspace(ctx, progress)
	if err != nil {
		return Image{}, err
	}
	defer discard()
	home := filepath.Join(work, "image")
	root := filepath.Join(home, "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return Image{}, diskError("make the new root", err)
	}
	progress.tell(StagePrepare, "looking at what is to be imported")
	u, err := newUnpacker(root, s.Limits, progress)
	if err != nil {
		return Image{}, err
	}
	kind, err := s.unpackAny(ctx, path, work, u)
	if finishErr := u.finish(); err == nil {
		err = finishErr
	}
	if err != nil {
		return Image{}, err
	}
	return s.admit(ctx, home, name, Image{
		Source: Source{Kind: kind},
		Notes:  u.dropped.notes(),
	}, progress)
}

// unpackAny writes the root that is at place, whatever its form, and returns
// the kind of source.
func (s *Store) unpackAny(ctx context.Context, place, work string, u *unpacker) (kind string, err error) {
	st, err := os.Stat(place)
	if err != nil {
		return "", workbench.E(workbench.CodeInvalidRequest, "what is to be imported cannot be read").
			WithField("path").WithHint("name a tar archive of a root file system, or an OCI image layout").Caused(err)
	}
	if st.IsDir() {
		return "oci", unpackLayout(ctx, place, u)
	}
	if !st.Mode().IsRegular() {
		return "", workbench.E(workbench.CodeInvalidRequest, "what is to be imported is neither a file nor a folder").WithField("path")
	}
	form, err := archiveForm(place)
	if err != nil {
		return "", err
	}
	if form == rootArchive {
		return "tar", withArchive(place, func(r io.Reader) error { return u.layer(ctx, r, false) })
	}
	// A layout in an archive is unpacked first: its parts come in any order.
	layout := filepath.Join(work, "layout")
	if err := os.Mkdir(layout, 0o700); err != nil {
		return "", diskError("make an image work folder", err)
	}
	outer, err := newUnpacker(layout, s.Limits, u.progress)
	if err != nil {
		return "", err
	}
	err = withArchive(place, func(r io.Reader) error { return outer.layer(ctx, r, false) })
	if finishErr := outer.finish(); err == nil {
		err = finishErr
	}
	if err != nil {
		return "", err
	}
	return "oci", unpackLayout(ctx, layout, u)
}

// withArchive opens a file, takes off its compression and gives use the rest.
func withArchive(place string, use func(io.Reader) error) error {
	f, err := os.Open(place)
	if err != nil {
		return diskError("open the archive", err)
	}
	defer f.Close()
	r, end, err := decompress(f)
	if err != nil {
		return err
	}
	defer end()
	return use(r)
}

// maxWindow bounds the memory that a zstd stream can ask for.
const maxWindow = 128 << 20

// decompress recognises gzip and zstd by their first bytes; anything else is
// returned as it is.
func decompress(r io.Reader) (io.Reader, func(), error) {
	begin := bufio.NewReaderSize(r, 256<<10)
	magic, err := begin.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, archiveError(err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(begin)
		if err != nil {
			return nil, nil, archiveError(err)
		}
		return z, func() { z.Close() }, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(begin, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, archiveError(err)
		}
		return z, z.Close, nil
	}
	return begin, func() {}, nil
}

type form int

const (
	rootArchive form = iota
	layoutArchive
)

// formEntries is how many entries are looked at to tell the forms apart.
const formEntries = 100_000

// archiveForm tells an archive of a root from one of an OCI layout or of docker
// save, by the names at its top: the first that belongs to either decides.
func archiveForm(place string) (form, error) {
	found := rootArchive
	err := withArchive(place, func(r io.Reader) error {
		archive := tar.NewReader(r)
		for range formEntries {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return archiveError(err)
			}
			switch path.Clean("/" + h.Name) {
			case "/oci-layout", "/index.json", "/manifest.json":
				found = layoutArchive
				return nil
			case "/etc", "/usr", "/bin", "/lib", "/etc/passwd", "/usr/bin":
				return nil
			}
		}
		return nil
	})
	return found, err
}

// unpackLayout applies the layers of the image in a layout folder.
func unpackLayout(ctx context.Context, dir string, u *unpacker) error {
	blobs, err := os.OpenRoot(dir)
	if err != nil {
		return diskError("open the image layout", err)
	}
	defer blobs.Close()
	layers, err := findLayers(blobs)
	if err != nil {
		return err
	}
	for n, l := range layers {
		u.progress.count(StageUnpack, "layer", n+1, len(layers))
		if err := l.apply(ctx, blobs, u); err != nil {
			return fmt.Errorf("layer %d of %d: %w", n+1, len(layers), err)
		}
	}
	return nil
}

// openBlob opens a file of a layout, which must be a regular one.
func openBlob(blobs *os.Root, name string) (*os.File, error) {
	f, err := blobs.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, invalid("the image layout is incomplete: it has no %.200q", name).
			WithHint("export the image again; a layout holds every blob its index names")
	}
	if err != nil {
		return nil, invalid("the image layout cannot be read: %.200q", name).Caused(err)
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, invalid("%.200q in the image layout is not a file", name)
	}
	return f, nil
}

package workspace

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"time"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
)

// WriteTar writes a tree as a tar archive (PAX), in the order of Walk: a
// directory before what is in it. Names, targets, modes and times are exact;
// the owner is 0. Names that are not UTF-8 stand there byte for byte, marked as
// POSIX says (hdrcharset=BINARY). The same tree makes the same archive. An
// archive that was cut off has no end mark. Codes: those of Open, and what w
// returns.
func (s *Store) WriteTar(ctx context.Context, tenantID string, t Tree, w io.Writer) error {
	from := s.Restore(ctx, tenantID, t)
	defer func() { _ = from.Close() }() // only read
	return WriteTarOf(ctx, from.Next, w)
}

// WriteTarOf is WriteTar of entries that next gives, until io.EOF. The content
// of a file must have the size that its entry says.
func WriteTarOf(ctx context.Context, next func() (Entry, io.Reader, error), w io.Writer) error {
	archive := tar.NewWriter(w)
	for {
		if err := ctx.Err(); err != nil {
			return workbench.E(workbench.CodeCancelled, "the request was given up before the archive was complete").Caused(err)
		}
		e, content, err := next()
		if errors.Is(err, io.EOF) {
			return archive.Close()
		}
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(tarHeader(e)); err != nil {
			return err
		}
		if content == nil {
			continue
		}
		if _, err := io.Copy(archive, content); err != nil {
			return err
		}
	}
}

// tarHeader is an entry in an archive.
func tarHeader(e Entry) *tar.Header {
	h := &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: e.Path, Mode: int64(e.Mode), Size: e.Size, ModTime: time.Unix(0, e.MtimeNs)}
	switch e.Type {
	case Dir:
		h.Typeflag, h.Name = tar.TypeDir, e.Path+"/"
	case Symlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	case File:
	}
	if !utf8.ValidString(h.Name) || !utf8.ValidString(h.Linkname) {
		h.PAXRecords = map[string]string{"hdrcharset": "BINARY"}
	}
	return h
}

package checkpoint

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/workbenchdev/workbench"
)

// Bounds of what is packed and unpacked.
const (
	magic    = "WBCK\x02"
	maxFiles = 16
	maxBytes = 64 << 30
	piece    = 256 << 10
)

// writeRecords writes a directory's files, in order of their names.
func writeRecords(ctx context.Context, to io.Writer, dir string) (int64, error) {
	failed := func(err error) error {
		return workbench.E(workbench.CodeUnavailable, "the checkpoint could not be read").Caused(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, failed(err)
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return 0, failed(err)
	}
	if len(entries) == 0 || len(entries) > maxFiles {
		return 0, workbench.E(workbench.CodeInternal, "a checkpoint of %d files", len(entries))
	}
	if _, err := io.WriteString(to, magic); err != nil {
		return 0, err
	}
	sum, buf := int64(0), make([]byte, piece)
	for _, e := range entries {
		if !validName(e.Name()) || !e.Type().IsRegular() {
			return 0, workbench.E(workbench.CodeInternal, "a checkpoint with %q in it", e.Name())
		}
		n, err := writeRecord(ctx, to, root, e.Name(), buf)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	_, err = to.Write([]byte{0})
	return sum, err
}

func writeRecord(ctx context.Context, to io.Writer, root *os.Root, name string, buf []byte) (int64, error) {
	f, err := root.Open(name)
	if err != nil {
		return 0, workbench.E(workbench.CodeUnavailable, "the checkpoint could not be read").Caused(err)
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return 0, workbench.E(workbench.CodeUnavailable, "the checkpoint could not be read").Caused(err)
	}
	size := info.Size()
	head := append([]byte{byte(len(name))}, name...)
	if _, err := to.Write(binary.BigEndian.AppendUint64(head, uint64(size))); err != nil {
		return 0, err
	}
	n, err := copyPieces(ctx, to, io.LimitReader(f, size), buf)
	if err == nil && n != size {
		err = workbench.E(workbench.CodeInternal, "the checkpoint changed while it was read")
	}
	return n, err
}

// readRecords makes the files. What it reads was sealed here, and is held to its
// bounds all the same.
func readRecords(ctx context.Context, from io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return notWritten(err)
	}
	defer func() { _ = root.Close() }()
	r := bufio.NewReaderSize(from, piece)
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(r, head); err != nil {
		return own(err)
	}
	if string(head) != magic {
		return damaged("it has another format", nil)
	}
	left, buf := int64(maxBytes), make([]byte, piece)
	for range maxFiles + 1 {
		n, err := r.ReadByte()
		if err != nil {
			return own(err)
		}
		if n == 0 {
			if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
				return damaged("something follows it", err)
			}
			return nil
		}
		size, err := readRecord(ctx, r, int(n), left, root, buf)
		if err != nil {
			return err
		}
		left -= size
	}
	return damaged("it has too many files", nil)
}

func readRecord(ctx context.Context, r io.Reader, nameLen int, left int64, root *os.Root, buf []byte) (int64, error) {
	head := make([]byte, nameLen+8)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, own(err)
	}
	name, size := string(head[:nameLen]), binary.BigEndian.Uint64(head[nameLen:])
	if !validName(name) || size > uint64(left) {
		return 0, damaged("a file that cannot be", fmt.Errorf("%q of %d bytes", name, size))
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, notWritten(err)
	}
	n, err := copyPieces(ctx, writeFile{f}, io.LimitReader(r, int64(size)), buf)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = notWritten(closeErr)
	}
	switch {
	case err != nil:
		return n, own(err)
	case n != int64(size):
		return n, damaged("it ends early", nil)
	}
	return n, nil
}

// writeFile gives failures to write a code of their own.
type writeFile struct{ f *os.File }

func (w writeFile) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if err != nil {
		return n, notWritten(err)
	}
	return n, nil
}

func notWritten(err error) error {
	e := workbench.E(workbench.CodeUnavailable, "the checkpoint could not be unpacked")
	if errors.Is(err, syscall.ENOSPC) {
		e = e.WithHint("the file system in memory for checkpoints is full; wait until another session has returned")
	}
	return e.Caused(err)
}

// copyPieces copies until the end, and looks at ctx between pieces.
func copyPieces(ctx context.Context, to io.Writer, from io.Reader, buf []byte) (int64, error) {
	sum := int64(0)
	for {
		if err := ctx.Err(); err != nil {
			return sum, workbench.E(workbench.CodeCancelled, "the checkpoint was given up").Caused(err)
		}
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return sum, err
			}
			sum += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}

// validName reports whether a name is one that drivers give: letters, digits,
// "_", "-" and dots inside.
func validName(name string) bool {
	if name == "" || len(name) > 64 || name[0] == '.' {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

package workspace

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/workbenchdev/workbench"
)

// Type is what an entry is.
type Type byte

// The types of entry.
const (
	File    Type = 'f'
	Dir     Type = 'd'
	Symlink Type = 'l'
)

// String is the type's name in receipts.
func (t Type) String() string {
	switch t {
	case File:
		return "file"
	case Dir:
		return "dir"
	case Symlink:
		return "symlink"
	}
	return "unknown"
}

// Entry is one file, directory or symbolic link of a tree.
type Entry struct {
	Path    string // relative to the workspace; any bytes but NUL, "/" between elements
	Type    Type
	Mode    uint32 // permission bits, at most 0o7777
	Size    int64  // of a file's content
	MtimeNs int64  // beside the root
	SHA256  string // hex, of a file's content
	Target  string // of a link: any bytes but NUL; never resolved
}

// Bounds of an entry, in bytes, and of a path's elements.
const (
	MaxPathBytes   = 4096
	MaxNameBytes   = 255
	MaxPathDepth   = 256
	MaxTargetBytes = 4096
)

// CheckPath refuses, with path_invalid, whatever is no path in a tree. Case,
// normal forms and invalid UTF-8 are names like any other.
func CheckPath(path string) error {
	bad := func(why string) error {
		return workbench.E(workbench.CodePathInvalid, "a path of the workspace %s", why)
	}
	switch {
	case path == "":
		return bad("is empty")
	case len(path) > MaxPathBytes:
		return bad("is longer than 4096 bytes")
	case strings.IndexByte(path, 0) >= 0:
		return bad("has a NUL byte")
	}
	depth := 0
	for element := range strings.SplitSeq(path, "/") {
		depth++
		switch {
		case element == "" || element == "." || element == "..":
			return bad(`has an empty, "." or ".." element`)
		case len(element) > MaxNameBytes:
			return bad("has an element longer than 255 bytes")
		case depth > MaxPathDepth:
			return bad("has more than 256 elements")
		}
	}
	return nil
}

// check refuses an entry that no tree can hold.
func (e Entry) check() error {
	if err := CheckPath(e.Path); err != nil {
		return err
	}
	switch {
	case e.Mode > 0o7777:
		return violation("an entry has an impossible mode")
	case e.Type != File && e.Type != Dir && e.Type != Symlink:
		return violation("an entry has no known type")
	case e.Type == File && e.Size < 0:
		return violation("a file has a negative size")
	case e.Type == Symlink && (e.Target == "" || len(e.Target) > MaxTargetBytes || strings.IndexByte(e.Target, 0) >= 0):
		return violation("a link has an impossible target")
	}
	return nil
}

// violation is the error for what an honest guest never says.
func violation(detail string) *workbench.Error {
	return workbench.E(workbench.CodeGuestProtocol, "%s", detail)
}

// item is an entry as a node holds it; it never changes.
type item struct {
	name   string
	kind   Type
	mode   uint32
	mtime  int64
	size   int64             // of a file
	sum    [sha256.Size]byte // of a file's content
	at     *object           // where a file's content is; nil where that is not known
	offset int64             // of the content in at
	parts  []part            // of a content in several; then at and offset are the first's
	target string            // of a link
	dir    *node             // of a directory; nil when it is empty
}

// object is a stored object that contents lie in. Its id is set before a tree
// that refers to it is shown to anyone.
type object struct{ id string }

func (it *item) entry(path string) Entry {
	e := Entry{Path: path, Type: it.kind, Mode: it.mode, MtimeNs: it.mtime}
	switch it.kind {
	case File:
		e.Size, e.SHA256 = it.size, hex.EncodeToString(it.sum[:])
	case Symlink:
		e.Target = it.target
	case Dir:
	}
	return e
}

// same reports whether two items are equal in what the root counts, leaving
// out what directories hold.
func (it *item) same(other *item) bool {
	return it.kind == other.kind && it.mode == other.mode && it.size == other.size && it.sum == other.sum && it.target == other.target
}

func (it *item) change(path string, c workbench.Change) workbench.ChangedFile {
	f := workbench.ChangedFile{Path: path, Change: c, Type: it.kind.String(), Mode: fmt.Sprintf("%04o", it.mode)}
	if it.kind == File {
		f.Size, f.SHA256 = it.size, hex.EncodeToString(it.sum[:])
	}
	return f
}

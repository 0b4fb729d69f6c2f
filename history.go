package workbench

import (
	"context"
	"encoding/base64"
	"strings"
	"time"
	"unicode/utf8"
)

// TreeEntry is one file, directory or symbolic link of a workspace.
type TreeEntry struct {
	Path         string    `json:"path"`                 // as text: one U+FFFD for each byte that belongs to no character
	PathBase64   string    `json:"pathBase64,omitempty"` // its bytes, where they are not UTF-8
	Type         string    `json:"type"`                 // file, dir, symlink
	Size         int64     `json:"size"`
	SHA256       string    `json:"sha256,omitempty"` // of a file; absent in a live view
	Mode         string    `json:"mode"`
	ModifiedAt   time.Time `json:"modifiedAt"`
	Target       string    `json:"target,omitempty"` // of a link; never resolved
	TargetBase64 string    `json:"targetBase64,omitempty"`
}

// Name is the exact path of the entry.
func (e TreeEntry) Name() string { return exactName(e.Path, e.PathBase64) }

// Name is the exact path of the file.
func (f ChangedFile) Name() string { return exactName(f.Path, f.PathBase64) }

func exactName(text, encoded string) string {
	if encoded == "" {
		return text
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return text
	}
	return string(raw)
}

// NameText is a name, which is bytes, as text and, where it is not UTF-8, as
// base64 too.
func NameText(name string) (text, encoded string) {
	if utf8.ValidString(name) {
		return name, ""
	}
	return TextOf([]byte(name)), base64.StdEncoding.EncodeToString([]byte(name))
}

// Bounds of a path in a workspace.
const (
	MaxTreePathBytes    = 4096
	MaxTreePathElements = 256
)

// WorkspacePath is the exact path that a client names in a workspace, as text
// or as base64 of its bytes. Any bytes but NUL are a name; a leading
// "/mnt/files/" or "./" is left out. Code: path_invalid, with the field's name
// (encoded: with "Base64" behind it).
func WorkspacePath(field, text, encoded string) (string, error) {
	path := text
	if encoded != "" {
		if text != "" {
			return "", E(CodeInvalidRequest, "%s and %sBase64 name a path twice", field, field).WithField(field).WithHint("send one of them")
		}
		raw, err := base64.StdEncoding.DecodeString(encoded)
		field += "Base64"
		if err != nil {
			return "", E(CodePathInvalid, "%s is not base64", field).WithField(field).
				WithHint("send it as the list gave it: standard base64 with padding, percent-encoded in a query")
		}
		path = string(raw)
	}
	path = WithoutWorkspace(path)
	if why := notAPath(path); why != "" {
		return "", E(CodePathInvalid, "%s %s", field, why).WithField(field).
			WithHint("send a relative path inside the workspace, such as reports/may.csv")
	}
	return path, nil
}

// WorkspaceDirectory is WorkspacePath of a directory whose entries are asked
// for: a "/" behind it is left out, and what names the workspace itself, such as
// "", ".", "/" and "/mnt/files", is "".
func WorkspaceDirectory(field, text, encoded string) (string, error) {
	if encoded == "" {
		switch text = strings.TrimSuffix(text, "/"); text {
		case "", ".", WorkspaceDir, WorkspaceDir + "/.":
			return "", nil
		}
	}
	path, err := WorkspacePath(field, text, encoded)
	if HasCode(err, CodePathInvalid) && encoded == "" {
		return "", AsError(err).WithHint("send a relative path inside the workspace, such as reports, or leave %s out for the whole workspace's list", field)
	}
	return path, err
}

// WithoutWorkspace is a path or pattern without what may stand before one that
// is relative to the workspace: "/mnt/files/" and "./".
func WithoutWorkspace(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, WorkspaceDir+"/"), "./")
}

// notAPath says what keeps a string from being a path, "" if nothing does.
func notAPath(path string) string {
	switch {
	case path == "":
		return "is empty"
	case len(path) > MaxTreePathBytes:
		return "is longer than 4096 bytes"
	case strings.HasPrefix(path, "/"):
		return "is absolute"
	case strings.IndexByte(path, 0) >= 0:
		return "has a NUL byte"
	case strings.Count(path, "/") >= MaxTreePathElements:
		return "has more than 256 elements"
	}
	for element := range strings.SplitSeq(path, "/") {
		switch {
		case element == "" || element == "." || element == "..":
			return `has an empty, "." or ".." element`
		case len(element) > MaxNameBytes:
			return "has an element longer than 255 bytes"
		}
	}
	return ""
}

// TreeQuery asks for a page of a tree's entries: those of one directory in
// order of their names' bytes, or with Recursive all below it, a directory
// before what is in it.
type TreeQuery struct {
	Path      string // exact; "" is the workspace itself
	Recursive bool
	Page
}

// WorkspaceView is a page of a session's workspace as it is now.
type WorkspaceView struct {
	Commit string // the commit shown, or the last one before a live view; "" before the first
	Live   bool   // code runs, and this is what it has made of the workspace so far
	List[TreeEntry]
}

// FileVersion is what a path is on one side of a comparison.
type FileVersion struct {
	Type   string `json:"type"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	Mode   string `json:"mode"`
}

// FileDiff is one path at which two trees differ.
type FileDiff struct {
	Path       string       `json:"path"`
	PathBase64 string       `json:"pathBase64,omitempty"`
	Change     Change       `json:"change"`
	Old        *FileVersion `json:"old,omitempty"`
	New        *FileVersion `json:"new,omitempty"`
	Additions  int          `json:"additions"` // lines
	Deletions  int          `json:"deletions"`
	Diff       string       `json:"diff,omitempty"` // a patch as git writes it, of text and links
	Binary     bool         `json:"binary"`         // not UTF-8 text: sizes and digests tell the difference
	Truncated  bool         `json:"truncated"`      // text that is too large to be compared
}

// Comparison is a page of what differs between two trees, in order of path.
type Comparison struct {
	From      string     `json:"from,omitempty"` // commit; absent for the empty workspace before the first
	To        string     `json:"to"`             // commit
	RunIDs    []string   `json:"runs"`           // whose changes these are, as far as it is known
	Exclusive bool       `json:"exclusive"`      // nothing else changed the workspace meanwhile
	Total     int        `json:"total"`          // paths that differ
	Items     []FileDiff `json:"items"`
	Next      string     `json:"nextCursor,omitempty"`
}

// Compared pages what differs between two trees, which are loaded once for all
// of its pages.
type Compared func(ctx context.Context, page Page) (Comparison, error)

// Lineage says what a session was forked from.
type Lineage struct {
	SessionID string `json:"session"`
	RunID     string `json:"run,omitempty"`
	CommitID  string `json:"commit"`
}

// RollBack asks for the workspace of an earlier commit of the session: Commit,
// or the one that Run made.
type RollBack struct {
	CommitID     string
	RunID        string
	ExpectedHead string // "": any; otherwise version_mismatch unless it is the last commit
}

// Memory says what became of the memory of a session's processes.
type Memory string

// What can become of it.
const (
	MemoryKept Memory = "kept" // contexts and /tmp are as they were
	MemoryLost Memory = "lost" // the sandbox was given up; the next run gets another
	MemoryNone Memory = "none" // there was no sandbox
)

// RolledBack is the outcome of a RollBack.
type RolledBack struct {
	Session Session
	Commit  Commit // the head now, with the old tree
	Memory  Memory
}

// ForkSession asks for a new session that begins with the workspace of a
// commit: that of RunID, CommitID, or the last one. What is left out is as in
// the session it comes from.
type ForkSession struct {
	CommitID string
	RunID    string
	Agent    *string
	Labels   map[string]string // nil: as they are
	Limits   *LimitsRequest    // lowers what the size allows, or the source's where Size is ""
	Size     string
	Image    string
	TTL      time.Duration // 0: DefaultSessionTTL
}

// WriteFile asks for a file in the workspace.
type WriteFile struct {
	Path     string // exact
	Mode     *uint32
	IfMatch  string // "": any; "*": it exists; otherwise the SHA-256 it has
	IfAbsent bool   // it does not exist
	MaxBytes int64  // 0: the session's workspace
}

// MoveFile asks for a file, directory or link under another name.
type MoveFile struct {
	From, To  string // exact
	Overwrite bool   // replace a file or link at To
}

// WorkspaceChange is the outcome of a change that a caller made to a workspace.
type WorkspaceChange struct {
	Entry   *TreeEntry `json:"entry,omitempty"` // what is there now
	Commit  Commit     `json:"commit"`          // the head, with the change in it
	Session SessionRef `json:"session"`
}

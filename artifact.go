package workbench

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// ArtifactOrigin says how a retained file came to be.
type ArtifactOrigin string

// The origins of a retained file.
const (
	OriginUpload   ArtifactOrigin = "upload"
	OriginSave     ArtifactOrigin = "save"     // the code called save
	OriginKeep     ArtifactOrigin = "keep"     // the submission's keep globs
	OriginOverflow ArtifactOrigin = "overflow" // output beyond the cap
	OriginResult   ArtifactOrigin = "result"   // a form of a rich result that is too large for the receipt
	OriginExpiry   ArtifactOrigin = "expiry"   // the session's keepAtExpiry globs
	OriginTool     ArtifactOrigin = "tool"     // what a tool gave, where it is large
)

// Artifact is a retained file: metadata. Its contents are sealed in the blob
// store.
type Artifact struct {
	ID           string         `json:"id"`
	ProjectID    string         `json:"project"`
	TenantID     string         `json:"tenant"`
	UserID       string         `json:"user"`
	SessionID    string         `json:"sessionId"`
	RunID        string         `json:"runId,omitempty"`
	Revision     int64          `json:"revision"`
	Generation   int64          `json:"-"`
	Name         string         `json:"name"`         // display and download name: the last element of Path
	Path         string         `json:"path"`         // where it was, or goes by default, in the workspace
	MimeType     string         `json:"mimeType"`     // as declared or guessed; never trusted
	Size         int64          `json:"size"`         // bytes
	SHA256       string         `json:"sha256"`       // hex, of the contents
	Origin       ArtifactOrigin `json:"origin"`       //
	DerivedFrom  []string       `json:"derivedFrom"`  // artifact ids; never null
	Dependencies []Dependency   `json:"dependencies"` // on tools that its contents may come from; never null
	CreatedAt    time.Time      `json:"createdAt"`    //
	ExpiresAt    time.Time      `json:"expiresAt"`    //
	DeletedAt    *time.Time     `json:"deletedAt,omitempty"`
	Preview      string         `json:"preview,omitempty"` // the first characters of a text file
	DownloadPath string         `json:"downloadPath"`      // authenticated path of the contents
	Session      *SessionRef    `json:"session,omitempty"` // in replies about this one; lists and receipts name it once

	BlobID        string `json:"-"`
	SealedPreview []byte `json:"-"` // Preview as the store keeps it; Preview itself is never stored
}

// Owner is whom the file belongs to.
func (a Artifact) Owner() Owner {
	return Owner{ProjectID: a.ProjectID, TenantID: a.TenantID, UserID: a.UserID, SessionID: a.SessionID}
}

// Readable returns 410 if the file was deleted or its deadline has passed.
func (a Artifact) Readable(now time.Time) error {
	if a.DeletedAt != nil {
		return E(CodeArtifactDeleted, "artifact %s was deleted%s", a.ID, at(a.DeletedAt)).WithHint(uploadAgain)
	}
	if !now.Before(a.ExpiresAt) {
		return E(CodeArtifactExpired, "artifact %s reached its deadline at %s", a.ID, a.ExpiresAt.UTC().Format(time.RFC3339)).WithHint(uploadAgain)
	}
	return nil
}

// uploadAgain is what to do about a file whose bytes are gone.
const uploadAgain = "use another file, or upload this one again: the list of the session's retained files shows which are there"

// Bounds of names and paths.
const (
	MaxPathBytes    = 1024
	MaxNameBytes    = 255
	MaxPathElements = 32
)

// CleanPath checks a workspace-relative path given by a client and returns it
// without a leading "/mnt/files/" or "./". It refuses, with path_invalid and
// the field's name: empty, absolute elsewhere, "..", "." or empty elements,
// NUL and control characters, invalid UTF-8, and anything over the bounds. It
// changes nothing else: names stay byte for byte as they came.
func CleanPath(field, p string) (string, error) {
	bad := func(why string) error {
		return E(CodePathInvalid, "%s %s", field, why).WithField(field).
			WithHint("send a relative path inside the workspace, such as reports/may.csv")
	}
	p = strings.TrimPrefix(p, WorkspaceDir+"/")
	p = strings.TrimPrefix(p, "./")
	switch {
	case p == "":
		return "", bad("is empty")
	case len(p) > MaxPathBytes:
		return "", bad("is longer than 1024 bytes")
	case !utf8.ValidString(p):
		return "", bad("is not valid UTF-8")
	case strings.HasPrefix(p, "/"):
		return "", bad("is absolute")
	}
	elements := strings.Split(p, "/")
	if len(elements) > MaxPathElements {
		return "", bad("has more than 32 elements")
	}
	for _, e := range elements {
		switch {
		case e == "" || e == "." || e == "..":
			return "", bad(`has an empty, "." or ".." element`)
		case len(e) > MaxNameBytes:
			return "", bad("has an element longer than 255 bytes")
		case strings.ContainsFunc(e, func(r rune) bool { return r < 0x20 || r == 0x7f }):
			return "", bad("has a control character")
		}
	}
	return p, nil
}

// WorkspaceDir is where the workspace is inside a sandbox.
const WorkspaceDir = "/mnt/files"

// Commit is one committed state of a session's workspace.
type Commit struct {
	ID         string   `json:"id"`
	SessionID  string   `json:"sessionId"`
	TenantID   string   `json:"-"`
	ParentID   string   `json:"parent,omitempty"`
	Number     int64    `json:"number"` // from 1, within the session
	Root       string   `json:"root"`   // Merkle root: names the exact tree
	Generation int64    `json:"generation"`
	RunIDs     []string `json:"runs"` // active since the parent
	Exclusive  bool     `json:"exclusive"`
	Files      int64    `json:"files"`
	Bytes      int64    `json:"bytes"`
	// RestoredFrom is the commit whose tree a rollback or a fork took.
	RestoredFrom string    `json:"restoredFrom,omitempty"`
	ManifestID   string    `json:"-"` // blob of the sealed manifest
	Inline       []byte    `json:"-"` // that blob itself, if it is new and small: stored with the commit, never read with it
	CreatedAt    time.Time `json:"createdAt"`
}

// LogKind is the kind of an entry in a run's log.
type LogKind string

// The kinds of entry.
const (
	LogStatus   LogKind = "status"
	LogOutput   LogKind = "output"
	LogResult   LogKind = "result"
	LogFile     LogKind = "file"  // a file was retained
	LogFiles    LogKind = "files" // what the run changed in its workspace: FilesEntry; none if it changed nothing
	LogCall     LogKind = "call"  // the code called a tool: CallEntry
	LogTerminal LogKind = "terminal"
)

// Stream names an output stream.
type Stream string

// The output streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// LogEntry is one entry of a run's append-only log. Seq is the event id.
type LogEntry struct {
	RunID  string          `json:"-"`
	Seq    int64           `json:"seq"` // from 1, no gaps
	Kind   LogKind         `json:"kind"`
	Stream Stream          `json:"stream,omitempty"`
	Offset int64           `json:"offset"` // of Data in its stream, raw bytes
	Length int64           `json:"length"` // of Data before sealing
	Data   []byte          `json:"-"`      // output bytes; sealed in the store
	Meta   json.RawMessage `json:"meta,omitempty"`
	At     time.Time       `json:"at"`
}

// AuditEntry is one row of the append-only audit trail.
type AuditEntry struct {
	ID        string          `json:"id"`
	At        time.Time       `json:"at"`
	ProjectID string          `json:"project"`
	TenantID  string          `json:"tenant,omitempty"`
	UserID    string          `json:"user,omitempty"`
	KeyID     string          `json:"key,omitempty"`
	Action    string          `json:"action"`  // e.g. session.create, run.submit, artifact.download
	Target    string          `json:"target"`  // an id
	Outcome   string          `json:"outcome"` // ok, or an error code
	Address   string          `json:"address,omitempty"`
	RequestID string          `json:"requestId,omitempty"`
	Detail    json.RawMessage `json:"detail,omitempty"`
	// Seq and Hash are the row's place in the chain; 0 and "" of rows from before
	// there was one.
	Seq  int64  `json:"seq,omitempty"`
	Hash string `json:"hash,omitempty"`
}

// Page asks for part of a list.
type Page struct {
	Limit  int    // 1 to MaxPageLimit; 0 means DefaultPageLimit
	Cursor string // opaque; empty for the first page
}

// Bounds of a page.
const (
	DefaultPageLimit = 50
	MaxPageLimit     = 200
)

// List is one page of items.
type List[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"nextCursor,omitempty"`
}

package api

import (
	"encoding/json"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
)

// SessionList is a page of things that belong to one session.
type SessionList[T any] struct {
	Session    workbench.SessionRef `json:"session"`
	Items      []T                  `json:"items"`
	NextCursor string               `json:"nextCursor,omitempty"`
}

// WorkspaceList is a page of a session's workspace.
type WorkspaceList struct {
	Session    workbench.SessionRef  `json:"session"`
	Commit     string                `json:"commit,omitempty" doc:"the commit that is shown, or the last one before a live view; absent before the first"`
	Live       bool                  `json:"live" doc:"code runs, and this is what it has made of the workspace so far"`
	Items      []workbench.TreeEntry `json:"items"`
	NextCursor string                `json:"nextCursor,omitempty"`
}

// RolledBack is the outcome of a rollback.
type RolledBack struct {
	Session workbench.Session `json:"session"`
	Commit  workbench.Commit  `json:"commit" doc:"the new commit, with the old tree; the last one where the workspace was there already"`
	Memory  workbench.Memory  `json:"memory" enum:"kept,lost,none" doc:"kept: contexts and /tmp are as they were; lost: the next run gets another sandbox; none: there was no sandbox"`
}

// CreatedKey is a new key with its secret, which cannot be shown again.
type CreatedKey struct {
	workbench.Key
	Secret string `json:"secret" doc:"shown once"`
}

// Health is the answer of the probes.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// Problem is the body of every error (RFC 9457).
type Problem struct {
	Type      string         `json:"type" doc:"a URI reference that names the code"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Code      workbench.Code `json:"code" doc:"for programs; a closed list"`
	Detail    string         `json:"detail" doc:"what is wrong, for people"`
	Hint      string         `json:"hint,omitempty" doc:"what to do next"`
	Field     string         `json:"field,omitempty" doc:"the field, parameter or header at fault"`
	RequestID string         `json:"requestId"`
	Retryable bool           `json:"retryable" doc:"whether the same request may succeed later, unchanged"`
}

// Event is one event of a run's log. Seq is the event id: a client that
// reconnects with the last one it saw loses nothing and sees nothing twice.
//
// Output is lossless: the event says which raw bytes of which stream it
// carries (offset, length) and gives them as text. Text never ends inside a
// character: the beginning of one waits for the stream's next event. Where the
// bytes are not valid UTF-8, text shows one U+FFFD per byte and base64 holds
// the bytes.
type Event struct {
	Seq    int64             `json:"seq"`
	Kind   workbench.LogKind `json:"kind"`
	RunID  string            `json:"runId"`
	At     time.Time         `json:"at"`
	Stream workbench.Stream  `json:"stream,omitempty"`
	Offset *int64            `json:"offset,omitempty" doc:"of the first byte, in raw bytes of the stream"`
	Length *int64            `json:"length,omitempty" doc:"in raw bytes; may be 0"`
	Text   *string           `json:"text,omitempty"`
	Base64 string            `json:"base64,omitempty" doc:"the bytes, when they are not valid UTF-8"`
	Result *workbench.Result `json:"result,omitempty"`
	Meta   json.RawMessage   `json:"meta,omitempty" doc:"status, reason and the like; depends on kind"`
	Tail   []Chunk           `json:"tail,omitempty" doc:"terminal events: last bytes of streams that end inside a character"`
}

// Chunk is a piece of a stream.
type Chunk struct {
	Stream workbench.Stream `json:"stream"`
	Offset int64            `json:"offset"`
	Length int64            `json:"length"`
	Text   string           `json:"text"`
	Base64 string           `json:"base64,omitempty"`
}

// The replies never hold null where a list or an object is promised.

func whole[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func wholeSession(s workbench.Session) workbench.Session {
	s.Tools, s.Aliases, s.KeepAtExpiry = whole(s.Tools), whole(s.Aliases), whole(s.KeepAtExpiry)
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	return s
}

func wholeRevision(r workbench.Revision) workbench.Revision {
	r.Tools, r.Aliases, r.KeepAtExpiry = whole(r.Tools), whole(r.Aliases), whole(r.KeepAtExpiry)
	return r
}

func wholeRun(r workbench.Run) workbench.Run {
	r.LimitsHit, r.Notices, r.Dependencies = whole(r.LimitsHit), whole(r.Notices), whole(r.Dependencies)
	files := make([]workbench.ChangedFile, len(r.Files.Items))
	for i, f := range r.Files.Items {
		files[i] = wholeChange(f)
	}
	r.Files.Items = files
	artifacts := make([]workbench.Artifact, len(r.Artifacts))
	for i, a := range r.Artifacts {
		artifacts[i] = wholeArtifact(a)
	}
	r.Artifacts = artifacts
	return r
}

// wholeChange tells a name that is not UTF-8 in two ways.
func wholeChange(f workbench.ChangedFile) workbench.ChangedFile {
	if f.PathBase64 == "" {
		f.Path, f.PathBase64 = workbench.NameText(f.Path)
	}
	return f
}

func wholeCommit(c workbench.Commit) workbench.Commit {
	c.RunIDs = whole(c.RunIDs)
	return c
}

func wholeArtifact(a workbench.Artifact) workbench.Artifact {
	a.DerivedFrom, a.Dependencies = whole(a.DerivedFrom), whole(a.Dependencies)
	a.DownloadPath = artifact.DownloadPath(a.ID)
	return a
}

func wholeKey(k workbench.Key) workbench.Key {
	k.Scopes = whole(k.Scopes)
	return k
}

func wholeList[T any](l workbench.List[T], each func(T) T) workbench.List[T] {
	items := make([]T, len(l.Items))
	for i, item := range l.Items {
		items[i] = each(item)
	}
	l.Items = items
	return l
}

// receiptFor leaves out what p may not read: an admin key without contents
// sees metadata only.
func receiptFor(p workbench.Principal, r workbench.Receipt) workbench.Receipt {
	r.Run = runFor(p, r.Run)
	if !p.MayReadContents(r.Owner()) {
		r.Stdout, r.Stderr, r.Results, r.Error = nil, nil, nil, nil
	}
	return r
}

func runFor(p workbench.Principal, r workbench.Run) workbench.Run {
	r = wholeRun(r)
	if !p.MayReadContents(r.Owner()) {
		r.Result = nil
		for i := range r.Artifacts {
			r.Artifacts[i].Preview = ""
		}
	}
	return r
}

func artifactFor(p workbench.Principal, a workbench.Artifact) workbench.Artifact {
	a = wholeArtifact(a)
	if !p.MayReadContents(a.Owner()) {
		a.Preview = ""
	}
	return a
}

package workbench

import (
	"encoding/json"
	"time"
)

// SessionEventKind is the kind of an event of a session.
type SessionEventKind string

// The kinds of event. Closed and expired are terminal: a session has one of
// them, and it is its last event.
const (
	EventCreated     SessionEventKind = "created"
	EventRun         SessionEventKind = "run"   // a run was queued, or ended
	EventFiles       SessionEventKind = "files" // the workspace has a new commit
	EventConfigured  SessionEventKind = "configured"
	EventSuspended   SessionEventKind = "suspended"
	EventResumed     SessionEventKind = "resumed"
	EventRestarted   SessionEventKind = "restarted"
	EventSandboxLost SessionEventKind = "sandbox_lost" // memory and /tmp went; files are those of the last commit
	EventExpiring    SessionEventKind = "expiring"     // the deadline is near
	EventApproval    SessionEventKind = "approval"     // a tool call waits for somebody to decide, or was decided
	EventKept        SessionEventKind = "kept"         // what was kept at expiry, and what was not
	EventClosed      SessionEventKind = "closed"
	EventExpired     SessionEventKind = "expired"
)

// SessionEventKinds lists every kind.
func SessionEventKinds() []SessionEventKind {
	return []SessionEventKind{EventCreated, EventRun, EventFiles, EventConfigured, EventSuspended, EventResumed, EventRestarted,
		EventSandboxLost, EventExpiring, EventApproval, EventKept, EventClosed, EventExpired}
}

// Terminal reports whether no event follows one of this kind.
func (k SessionEventKind) Terminal() bool { return k == EventClosed || k == EventExpired }

// SessionEvent is one entry of a session's append-only log. Seq is the event
// id. It holds no contents: ids, names, counts and times.
type SessionEvent struct {
	SessionID string           `json:"sessionId"`
	Seq       int64            `json:"seq"` // from 1, no gaps
	Kind      SessionEventKind `json:"kind"`
	Meta      json.RawMessage  `json:"meta,omitempty"` // one of the types below, by kind
	At        time.Time        `json:"at"`
}

// CreatedEvent is the Meta of created.
type CreatedEvent struct {
	Generation int64     `json:"generation"`
	Revision   int64     `json:"revision"`
	Size       string    `json:"size"`
	ExpiresAt  time.Time `json:"expiresAt"`
	KeyID      string    `json:"byKey,omitempty"`
}

// RunEvent is the Meta of run: a run that was queued, or that ended.
type RunEvent struct {
	RunID        string `json:"runId"`
	Number       int64  `json:"number"`
	Lane         Lane   `json:"lane"`
	Status       Status `json:"status"` // queued, or terminal
	Reason       Reason `json:"reason,omitempty"`
	FilesChanged int    `json:"filesChanged,omitempty"`
	SeriesID     string `json:"seriesId,omitempty"` // of the version that it became
	Version      int64  `json:"version,omitempty"`
}

// ApprovalEvent is the Meta of approval: a call that waits, or what was decided.
type ApprovalEvent struct {
	ReceiptID string        `json:"receiptId"`
	RunID     string        `json:"runId"`
	Tool      string        `json:"tool"`
	Version   string        `json:"version"`
	Alias     string        `json:"connection,omitempty"`
	Status    CallStatus    `json:"status"` // pending_approval; executing once it was approved; denied, expired
	State     ApprovalState `json:"state"`
	ExpiresAt time.Time     `json:"expiresAt"`
	DecidedBy string        `json:"decidedBy,omitempty"`
}

// FilesEvent is the Meta of files.
type FilesEvent struct {
	CommitID   string   `json:"commit"`
	Number     int64    `json:"number"`
	Root       string   `json:"root"`
	Generation int64    `json:"generation"`
	RunIDs     []string `json:"runs"`      // active since the commit before
	Exclusive  bool     `json:"exclusive"` // one run alone made the changes
	Files      int64    `json:"files"`     // of the tree, directories not counted
	Bytes      int64    `json:"bytes"`
}

// ConfiguredEvent is the Meta of configured.
type ConfiguredEvent struct {
	Revision int64  `json:"revision"`
	KeyID    string `json:"byKey,omitempty"`
}

// GenerationEvent is the Meta of restarted and sandbox_lost: the compute
// incarnation that begins.
type GenerationEvent struct {
	Generation int64 `json:"generation"`
}

// SuspendedEvent is the Meta of suspended.
type SuspendedEvent struct {
	MemoryKept bool  `json:"memoryKept"` // variables and processes will return
	Generation int64 `json:"generation"`
}

// ResumedEvent is the Meta of resumed.
type ResumedEvent struct {
	MemoryKept bool  `json:"memoryKept"` // variables and processes are as they were
	Generation int64 `json:"generation"`
}

// ExpiringEvent is the Meta of expiring.
type ExpiringEvent struct {
	Deadline time.Time `json:"deadline"`
	MsLeft   int64     `json:"msLeft"`
	Keep     []string  `json:"keepAtExpiry"` // what was asked to be kept
	// Matching is what these globs match in the last commit; nil when nothing
	// was asked to be kept, or the commit cannot be read now.
	Matching *MatchingFiles `json:"matching,omitempty"`
}

// MatchingFiles counts files of a commit.
type MatchingFiles struct {
	CommitID string   `json:"commit,omitempty"`
	Files    int64    `json:"files"`
	Bytes    int64    `json:"bytes"`
	First    []string `json:"first"` // paths, MaxEventItems at most
}

// KeptEvent is the Meta of kept: what the session had asked to be kept at its
// deadline.
type KeptEvent struct {
	CommitID    string       `json:"commit,omitempty"`
	Files       int          `json:"files"`
	Bytes       int64        `json:"bytes"`
	Items       []KeptFile   `json:"items"` // MaxEventItems at most; GET …/artifacts lists all
	Missed      int          `json:"missed"`
	MissedItems []MissedFile `json:"missedItems"` // MaxEventItems at most
	Unmatched   []string     `json:"unmatched"`   // globs that matched no file
}

// KeptFile is a retained file made at expiry.
type KeptFile struct {
	ArtifactID string `json:"artifactId"`
	Path       string `json:"path"`
	Size       int64  `json:"size"`
}

// MissedFile is a file that could not be kept.
type MissedFile struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Code   Code   `json:"code"` // quota_exceeded and the like
	Detail string `json:"detail"`
}

// MaxEventItems bounds the items that one event names.
const MaxEventItems = 20

// EndedEvent is the Meta of closed and expired.
type EndedEvent struct {
	EndedAt    time.Time `json:"endedAt"`
	Reason     Reason    `json:"reason"`
	Generation int64     `json:"generation"`
	Runs       int64     `json:"runs"` // ever admitted
	HeadCommit string    `json:"headCommit,omitempty"`
}

package workbench

import "time"

// SessionKind says whom a session acts as.
type SessionKind string

// A personal session acts as its owner. A business session binds one end user
// and an optional group.
const (
	SessionPersonal SessionKind = "personal"
	SessionBusiness SessionKind = "business"
)

// SessionState is where a session is in its life.
type SessionState string

// The states of a session. Closed and expired are final.
const (
	SessionActive  SessionState = "active"
	SessionClosed  SessionState = "closed"
	SessionExpired SessionState = "expired"
)

// ToolRef names a tool at an exact version.
type ToolRef struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Session is a computer for one identity. The identity never changes.
type Session struct {
	ID         string            `json:"id"`
	ProjectID  string            `json:"project"`
	TenantID   string            `json:"tenant"`
	Kind       SessionKind       `json:"kind"`
	UserID     string            `json:"user"`
	GroupID    string            `json:"group,omitempty"`
	KeyID      string            `json:"createdByKey,omitempty"`
	Agent      string            `json:"agent"` // descriptive; grants nothing
	Labels     map[string]string `json:"labels"`
	State      SessionState      `json:"state"`
	Generation int64             `json:"generation"` // compute incarnations
	Revision   int64             `json:"revision"`   // configurations
	Size       string            `json:"size"`
	Limits     Limits            `json:"limits"`
	Tools      []ToolRef         `json:"tools"`
	Aliases    []string          `json:"connections"`
	Image      string            `json:"image"` // image id
	Driver     string            `json:"driver"`
	Isolation  string            `json:"isolation"` // what the driver promises, in a word
	HeadCommit string            `json:"headCommit,omitempty"`
	// HistoryBytes is what the blobs of its commits take, each counted once.
	HistoryBytes int64    `json:"historyBytes"`
	ForkedFrom   *Lineage `json:"forkedFrom,omitempty"`
	// KeepAtExpiry are globs of workspace files that become retained files when
	// the session reaches its deadline.
	KeepAtExpiry []string     `json:"keepAtExpiry"`
	CreatedAt    time.Time    `json:"createdAt"`
	ExpiresAt    time.Time    `json:"expiresAt"`
	EndedAt      *time.Time   `json:"endedAt,omitempty"`
	ActiveAt     time.Time    `json:"lastActiveAt"`
	KeepMemory   bool         `json:"keepMemory"`          // also while it is suspended
	Packages     []PackageSet `json:"packages,omitempty"`  // that its code installed, without their locks
	Suspended    *Suspension  `json:"suspended,omitempty"` // nil while it has a sandbox, or had none yet

	LeaseEpoch int64  `json:"-"` // fences writers; grows at every takeover
	LeaseOwner string `json:"-"`
}

// Owner is whom the session belongs to.
func (s Session) Owner() Owner {
	return Owner{ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, SessionID: s.ID}
}

// ended is what to do after a session's end.
const ended = "create a new session; retained files and receipts of this one stay readable, and GET /v1/workbench/sessions/%s/events tells how it ended"

// Open returns the session's 410 if it has ended or its deadline has passed.
func (s Session) Open(now time.Time) error {
	switch {
	case s.State == SessionClosed:
		return E(CodeSessionClosed, "session %s was closed%s", s.ID, at(s.EndedAt)).
			WithHint(ended, s.ID)
	case s.State == SessionExpired || !now.Before(s.ExpiresAt):
		return E(CodeSessionExpired, "session %s expired at %s", s.ID, s.ExpiresAt.UTC().Format(time.RFC3339)).
			WithHint(ended, s.ID)
	}
	return nil
}

func at(t *time.Time) string {
	if t == nil {
		return ""
	}
	return " at " + t.UTC().Format(time.RFC3339)
}

// Revision is one immutable configuration of a session.
type Revision struct {
	SessionID string    `json:"sessionId"`
	Number    int64     `json:"revision"`
	Agent     string    `json:"agent"`
	Tools     []ToolRef `json:"tools"`
	Aliases   []string  `json:"connections"`
	Limits    Limits    `json:"limits"`
	Size      string    `json:"size"`
	CreatedAt time.Time `json:"createdAt"`
	KeyID     string    `json:"createdByKey,omitempty"`

	KeepAtExpiry []string `json:"keepAtExpiry"`
}

// SessionTransition reports whether a session may go from one state to another.
func SessionTransition(from, to SessionState) bool {
	return from == SessionActive && (to == SessionClosed || to == SessionExpired)
}

// SandboxState is where a sandbox is in its life.
type SandboxState string

// The states of a sandbox. It serves one session, ever.
const (
	SandboxStarting SandboxState = "starting"
	SandboxUnbound  SandboxState = "unbound"
	SandboxBound    SandboxState = "bound"
	SandboxPaused   SandboxState = "paused"
	SandboxEnded    SandboxState = "ended"
)

// SandboxTransition reports whether a sandbox may go from one state to another.
func SandboxTransition(from, to SandboxState) bool {
	if to == SandboxEnded {
		return from != SandboxEnded
	}
	switch from {
	case SandboxStarting:
		return to == SandboxUnbound
	case SandboxUnbound:
		return to == SandboxBound
	case SandboxBound:
		return to == SandboxPaused
	case SandboxPaused:
		return to == SandboxBound
	case SandboxEnded:
	}
	return false
}

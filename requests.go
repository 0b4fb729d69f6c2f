package workbench

import "time"

// CreateSession asks for a session.
type CreateSession struct {
	Kind    SessionKind       // empty: personal for direct keys, business for embedded ones
	Agent   string            // at most 200 bytes
	Labels  map[string]string // at most 32, keys and values at most 128 bytes
	Tools   []ToolRef
	Aliases []string
	Limits  *LimitsRequest
	Size    string        // empty: standard
	Image   string        // empty: the server's default; a name or an id
	TTL     time.Duration // 0: DefaultSessionTTL
	// KeepMemory has a suspended session keep its memory. Code: not_built where
	// the server's driver cannot.
	KeepMemory bool
	// KeepAtExpiry are globs of files to retain when the session reaches its
	// deadline; at most 20.
	KeepAtExpiry []string
}

// ConfigureSession makes a new revision; nil fields keep what they were.
type ConfigureSession struct {
	Agent            *string
	Tools            *[]ToolRef
	Aliases          *[]string
	Limits           *LimitsRequest
	Labels           *map[string]string
	KeepAtExpiry     *[]string
	ExpectedRevision int64 // 0: any; otherwise version_mismatch unless it is the current one
}

// RestartSession replaces the compute generation.
type RestartSession struct {
	Artifacts    []ArtifactSelect // what to restore; nothing else is
	CancelActive bool
}

// SubmitRun asks for a run.
type SubmitRun struct {
	SessionID      string
	Spec           RunSpec
	IdempotencyKey string
	// Replay, when not nil, is recorded with the run that it is of.
	Replay *Replay
	// Dependencies are those of what the run is given besides its files.
	Dependencies []Dependency
	// Trail is the audit row of the submission, without its target, to be written
	// with the admission; nil: the caller writes one.
	Trail *AuditEntry
}

// Submitted is the answer to SubmitRun.
type Submitted struct {
	Run      Run
	Replayed bool // the key named an earlier identical job, which Run is
	Recorded bool // the row of SubmitRun.Trail is written: the run was admitted now
}

// RunFilter narrows a list of runs. Zero fields do not filter.
type RunFilter struct {
	SessionID string
	Status    Status
	Lane      Lane
	Since     time.Time
	Until     time.Time
}

// SessionFilter narrows a list of sessions. Zero fields do not filter.
type SessionFilter struct {
	State SessionState
	Label map[string]string
	Since time.Time
	Until time.Time
}

// AuditFilter narrows a list of audit rows. Zero fields do not filter.
type AuditFilter struct {
	TenantID string
	UserID   string
	KeyID    string
	Action   string
	Target   string
	Since    time.Time
	Until    time.Time
}

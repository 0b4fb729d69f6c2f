package store

import (
	"time"

	"github.com/workbenchdev/workbench"
)

// Admission is one submission, checked and sealed by the engine.
type Admission struct {
	// Run gives ID, SessionID, Lane, Language, TimeoutMs, CreatedAt, Reuse and Sealed.
	// Owner, Number, Status and (when it is 0) Revision are set by the store. A
	// Revision other than 0 must still be the session's current one, else
	// version_mismatch: limits computed under an older configuration are then
	// not admitted, and the caller computes them again.
	Run                workbench.Run
	IdempotencyKey     string // empty: every submission is a new job
	Fingerprint        string
	FingerprintVersion int
	QueueLimit         int // most queued runs in the session's lane; 0: no limit
	// Trail, when not nil, is appended to the audit trail with the run. Its ID,
	// At and Target must be set.
	Trail *workbench.AuditEntry
	// Check, when not nil, is asked inside the transaction once the key is known
	// to be new (or absent): what must hold for a new job but not for a repeat
	// of an old one. Its error is returned and nothing is admitted. It must not
	// call the store: on SQLite this transaction holds the one writer.
	Check func() error
	// Context, when not nil, makes the run a cell. Like Check it is looked at
	// for new jobs only; its errors are context_not_found, context_language and
	// context_lost.
	Context *ContextUse
	// Hold, when not nil, keeps the run from its queue until it is approved, and
	// Decided is the number of the rules that were asked whether it has to be.
	Hold    *workbench.Approval
	Decided *int64
	// Dependencies are those of the files that the run is given: the session
	// depends on them from then on.
	Dependencies []workbench.Dependency
	// Replay, when not nil, is recorded with the run.
	Replay *workbench.Replay
	// Lease, when not nil, is taken with the admission where the session's is
	// free: whoever admits a run is about to work on it.
	Lease *LeaseWish
}

// LeaseWish asks for a session's lease, if nobody has it. See AcquireLease.
type LeaseWish struct {
	EngineID string
	TTL      time.Duration
	Epoch    int64 // set by Admit: of the lease that it took; 0 if it took none
}

// ContextUse is what a cell asks of its context.
type ContextUse struct {
	// Default is the context as it is made if it is not there, which only the
	// one named DefaultContext may be. Its language is the cell's.
	Default workbench.Context
	OnLost  workbench.LostContextPolicy
}

// ContextEntry names the interpreter that a cell runs in.
type ContextEntry struct {
	ID     string
	Handle string
	Memory string // the sandbox memory it lives in
}

// DispatchRecord is written before a byte of code leaves for a sandbox.
type DispatchRecord struct {
	RunID      string
	StepIndex  int
	Epoch      int64 // lease epoch under which the engine acts
	Generation int64 // of the session's compute
	SandboxID  string
	InputRoot  string
	Image      string
	Driver     string
	At         time.Time
	// Context, when not nil, is the one that the cell runs in: in the same
	// transaction it counts the cell and lives in its Memory from then on. Code:
	// conflict if it is not there under that handle.
	Context *ContextEntry
	// Entry is the log entry of the move. Its zero value lets the store make
	// it (StatusEntry with the next seq).
	Entry workbench.LogEntry
}

// Settlement ends a step and with it its run.
type Settlement struct {
	// Run carries ID and every receipt field: Status (terminal), Reason,
	// Message, ExitCode, Signal, Outputs, LimitsHit, Notices, Files.Exclusive,
	// InputRoot, OutputRoot, StartedAt, FinishedAt (required), DurationMs,
	// PeakMemoryBytes, Dependencies, ReceiptEnds. Files.Total is counted from
	// Changes. Result and Artifacts are not stored here: a result is a sealed
	// log entry, artifacts have rows of their own.
	Run        workbench.Run
	StepIndex  int
	Epoch      int64
	Generation int64
	// Entries continue the log and hold exactly one terminal entry, the last.
	// If they hold none, the store adds it (TerminalEntry with the next seq).
	Entries []workbench.LogEntry
	// Commit, when there is one, becomes the session's head. Its ParentID must
	// be the head, else conflict; Number is set by the store.
	Commit  *workbench.Commit
	Changes []workbench.ChangedFile
	// ManifestRefs are the blobs the commit's session must keep: at least those
	// new to the session (the manifest and new contents). They are kept under
	// SessionBlobOwner(session); repeating one is harmless.
	ManifestRefs []string
	// Usage is active time of runs of the session that is not in the ledger yet.
	Usage []ActiveTime
	// Context, when not nil, has no interpreter after this cell.
	Context *ContextEnd
}

// ContextEnd says that a context's interpreter is gone. If the receipt of the
// cell tells so (Lost is ""), the context has ended; else it is lost. Unbegun
// says that none was started for the cell: the context is as if it were new.
type ContextEnd struct {
	ID      string
	Handle  string
	Lost    workbench.LossReason
	Unbegun bool
}

// Quota bounds retained files; a bound of 0 is not checked.
type Quota struct {
	SessionBytes int64
	SessionFiles int
	TenantBytes  int64
	// Epoch, when not 0, fences a save made by an engine for a run: the
	// session's lease epoch and generation must be this and the artifact's, when
	// reserving and when finishing. An upload leaves it 0.
	Epoch int64
	// CallID, when not empty, fences what a tool gave: the call must be under way
	// still, and executed by this engine, when reserving.
	CallID, EngineID string
}

// QuotaUse is what a session and its tenant hold now, reservations included.
type QuotaUse struct {
	SessionBytes int64
	SessionFiles int
	TenantBytes  int64
}

// Engine is one server process that may own sessions.
type Engine struct {
	ID         string
	Instance   string // of its data directory: survives restarts
	Registered time.Time
	Seen       time.Time // last heartbeat, by the database's clock
}

// AuditFilter narrows a list of audit rows.
type AuditFilter = workbench.AuditFilter

// SessionBlobOwner is the owner of the blob references of a session's commits.
func SessionBlobOwner(sessionID string) string { return "session:" + sessionID }

// ArtifactBlobOwner is the owner of the blob references of a retained file.
func ArtifactBlobOwner(artifactID string) string { return "artifact:" + artifactID }

// RunTopic wakes at every log entry and status change of a run.
func RunTopic(runID string) string { return "run:" + runID }

// EndTopic is woken once, when the run is terminal: for those who wait for
// nothing else, and whom every line of output would wake in vain.
func EndTopic(runID string) string { return "end:" + runID }

// SessionTopic wakes when a session's state, queue or lease changes.
func SessionTopic(sessionID string) string { return "session:" + sessionID }

// QueueTopic wakes when any session has new work.
const QueueTopic = "queue"

package workbench

import (
	"encoding/json"
	"time"
)

// Language is what a run is written in.
type Language string

// The languages.
const (
	Python     Language = "python"
	JavaScript Language = "javascript"
	TypeScript Language = "typescript"
	Bash       Language = "bash"
)

// Languages lists every language.
func Languages() []Language { return []Language{Python, JavaScript, TypeScript, Bash} }

// Lane is the queue of a session that a run waits in.
type Lane string

// Foreground runs are serialised within a session; background runs execute
// beside them, a few at once.
const (
	LaneForeground Lane = "foreground"
	LaneBackground Lane = "background"
)

// Run is one submission of code and its receipt.
type Run struct {
	ID          string   `json:"id"`
	ExecutionID string   `json:"executionId"` // the same id
	ProjectID   string   `json:"project"`
	TenantID    string   `json:"tenant"`
	UserID      string   `json:"user"`
	KeyID       string   `json:"createdByKey,omitempty"` // that it was submitted with
	SessionID   string   `json:"sessionId"`
	Revision    int64    `json:"revision"`
	Generation  int64    `json:"generation"` // of the sandbox it ran in; 0 until dispatched
	Number      int64    `json:"number"`     // order of admission within the session, from 1
	Lane        Lane     `json:"lane"`
	Language    Language `json:"language"`
	ContextID   string   `json:"contextId,omitempty"` // of the context whose cell it is
	Cell        int64    `json:"cell,omitempty"`      // its number in the interpreter, from 1
	Status      Status   `json:"status"`
	Reason      Reason   `json:"reason,omitempty"`
	Message     string   `json:"message,omitempty"` // one sentence for a person
	ExitCode    *int     `json:"exitCode"`
	Signal      string   `json:"signal,omitempty"`

	TimeoutMs int64    `json:"timeoutMs"` // effective
	Outputs   Outputs  `json:"output"`
	LimitsHit []string `json:"limitsHit"`
	Notices   []Notice `json:"notices"`

	// VariablesLost says that what earlier runs had in memory, or in /tmp, is
	// gone: a notice says why.
	VariablesLost bool `json:"variablesLost"`

	Files     FilesChanged `json:"filesChanged"`
	Artifacts []Artifact   `json:"artifacts"`

	Result json.RawMessage `json:"result,omitempty"` // structured result, if the code set one

	InputRoot  string `json:"inputRoot,omitempty"`
	OutputRoot string `json:"outputRoot,omitempty"`
	CommitID   string `json:"commit,omitempty"`
	Image      string `json:"image,omitempty"`
	Driver     string `json:"driver,omitempty"`

	PeakMemoryBytes int64      `json:"peakMemoryBytes,omitempty"`
	CreatedAt       time.Time  `json:"createdAt"`
	StartedAt       *time.Time `json:"startedAt,omitempty"`
	FinishedAt      *time.Time `json:"finishedAt,omitempty"`
	QueuedMs        int64      `json:"queuedMs"`
	DurationMs      int64      `json:"durationMs"` // of user code, monotonic
	CancelRequested bool       `json:"cancelRequested,omitempty"`

	IdempotencyKey string       `json:"idempotencyKey,omitempty"`
	Dependencies   []Dependency `json:"dependencies"` // on tools that its outputs may come from; never null
	ToolCalls      int64        `json:"toolCalls"`    // that it made, refused ones included

	Services map[string]ServiceUse `json:"services,omitempty"` // that its code used: ai, search
	Packages []PackageSet          `json:"packages,omitempty"` // that its code could use, with their locks; not in lists of runs
	Approval *Approval             `json:"approval,omitempty"` // of a run that had to be approved before it started

	ReusableRun ReusableRun `json:"reusableRun"` // whether, and as what, it can be run again

	Fingerprint string     `json:"-"`
	Sealed      []byte     `json:"-"` // the sealed RunSpec
	ReceiptEnds *time.Time `json:"-"`
}

// Owner is whom the run belongs to.
func (r Run) Owner() Owner {
	return Owner{ProjectID: r.ProjectID, TenantID: r.TenantID, UserID: r.UserID, SessionID: r.SessionID}
}

// ServiceUse counts what a run used of a service.
type ServiceUse struct {
	Calls        int64 `json:"calls"`
	InputTokens  int64 `json:"inputTokens,omitempty"` // of ai
	OutputTokens int64 `json:"outputTokens,omitempty"`
}

// Outputs are the two streams of a run.
type Outputs struct {
	Stdout StreamInfo `json:"stdout"`
	Stderr StreamInfo `json:"stderr"`
}

// StreamInfo counts one output stream. All numbers are raw bytes.
type StreamInfo struct {
	TotalBytes    int64  `json:"totalBytes"`    // what the program wrote
	CapturedBytes int64  `json:"capturedBytes"` // what the log holds
	Truncated     bool   `json:"truncated"`     // totalBytes > capturedBytes
	FileID        string `json:"fileArtifactId,omitempty"`
	FileTruncated bool   `json:"fileTruncated"` // the overflow file does not hold everything either
	SHA256        string `json:"sha256,omitempty"`
}

// Notice tells the caller something about the run that is no failure.
type Notice struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// The notice codes.
const (
	NoticeSandboxReplaced = "sandbox_replaced" // memory and /tmp were lost; files are those of the last commit
	NoticeMemoryLost      = "memory_lost"      // the session was suspended, or made room: its variables, memory and /tmp were lost
	NoticeResumed         = "resumed"          // the session was suspended: it returned with its memory
	NoticeFilesSkipped    = "files_skipped"    // the workspace held sockets, devices or FIFOs, which are not committed
	NoticeKeepFailed      = "keep_failed"      // a file matched keep and could not be kept
	NoticeKeepNothing     = "keep_nothing"     // a glob of keep matched no file
	NoticeOverflowLost    = "overflow_not_kept"
	NoticeContextLost     = "context_lost"      // the interpreter ended with this cell: its variables are gone
	NoticeContextRestart  = "context_restarted" // the cell ran in a fresh interpreter: variables of earlier cells were gone
	NoticeResultsLost     = "results_not_kept"  // the code showed more than is kept
	NoticeSessionExpiring = "session_expiring"  // the session's deadline is near
	NoticeCommitFailed    = "commit_failed"     // the workspace could not be committed; the last commit stands
)

// TellsLoss reports whether one of the notices says that memory was lost.
func TellsLoss(notices []Notice) bool {
	for _, n := range notices {
		switch n.Code {
		case NoticeSandboxReplaced, NoticeMemoryLost, NoticeContextLost, NoticeContextRestart:
			return true
		}
	}
	return false
}

// FilesChanged is what a run changed in its workspace.
type FilesChanged struct {
	Total     int           `json:"total"`
	Items     []ChangedFile `json:"items"` // the first ones; GET …/runs/{id}/files pages all
	Exclusive bool          `json:"exclusive"`
}

// FilesEntry is the Meta of a log entry of kind files.
type FilesEntry struct {
	CommitID  string        `json:"commit"` // that holds the tree
	Root      string        `json:"root"`
	Total     int           `json:"total"`
	Exclusive bool          `json:"exclusive"`
	Items     []ChangedFile `json:"items"` // the first ones, in order of path: MaxEventItems at most
}

// ChangedFile is one path a run added, changed or removed.
type ChangedFile struct {
	Path       string `json:"path"`
	PathBase64 string `json:"pathBase64,omitempty"` // its bytes, where they are not UTF-8
	Change     Change `json:"change"`
	Type       string `json:"type"` // file, dir, symlink
	Size       int64  `json:"size"`
	SHA256     string `json:"sha256,omitempty"`
	Mode       string `json:"mode,omitempty"`
}

// Change is the kind of a change.
type Change string

// The kinds of change.
const (
	ChangeAdded    Change = "added"
	ChangeModified Change = "modified"
	ChangeRemoved  Change = "removed"
)

// Step is one dispatch of a run to a sandbox. Start-at-most-once is its.
type Step struct {
	RunID        string
	Index        int
	Status       Status
	Generation   int64
	LeaseEpoch   int64
	SandboxID    string
	ExitCode     *int
	DispatchedAt *time.Time
	FinishedAt   *time.Time
}

// Lane is the queue that the run waits in.
func (s RunSpec) Lane() Lane {
	if s.Background {
		return LaneBackground
	}
	return LaneForeground
}

// ArtifactSelect puts a retained file into the workspace before a run.
type ArtifactSelect struct {
	ID   string `json:"id"`
	Path string `json:"path,omitempty"` // default: the artifact's name
}

// RunSpec is what was submitted: sealed at rest, because it may hold secrets.
type RunSpec struct {
	Language    Language          `json:"language"`
	Code        string            `json:"code"`
	Args        []string          `json:"args,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Stdin       string            `json:"stdin,omitempty"`
	TimeoutMs   int64             `json:"timeoutMs,omitempty"` // 0: the session's default
	OutputBytes int64             `json:"outputBytes,omitempty"`
	Background  bool              `json:"background,omitempty"`
	Artifacts   []ArtifactSelect  `json:"artifacts,omitempty"`
	Keep        []string          `json:"keep,omitempty"`
	ContextID   string            `json:"contextId,omitempty"` // makes it a cell
	OnLost      LostContextPolicy `json:"onLostContext,omitempty"`
	ReusableRun ReuseRequest      `json:"reusableRun,omitzero"`
	// Of and Replay are not the client's to set: the version that it executes, and
	// the run that it repeats.
	Of     *VersionRef `json:"of,omitempty"`
	Replay *ReplayOf   `json:"replay,omitempty"`
}

// ReplayOf is what a replay repeats.
type ReplayOf struct {
	RunID string      `json:"runId"`
	Tools ReplayTools `json:"tools"`
}

// Status is where a run, or a step of it, is.
type Status string

// The statuses. Waits are declared and not built: no run enters them yet.
const (
	StatusAwaitingApproval Status = "awaiting_approval"
	StatusQueued           Status = "queued"
	StatusDispatching      Status = "dispatching"
	StatusRunning          Status = "running"
	StatusCheckpointing    Status = "checkpointing"
	StatusWaitingSaved     Status = "waiting_saved"
	StatusWaitingReady     Status = "waiting_ready"
	StatusResuming         Status = "resuming"
	StatusSucceeded        Status = "succeeded"
	StatusFailed           Status = "failed"
	StatusTimedOut         Status = "timed_out"
	StatusCancelled        Status = "cancelled"
	StatusRejected         Status = "rejected"
	StatusUnknown          Status = "unknown"
)

// Statuses lists every status.
func Statuses() []Status {
	return []Status{StatusAwaitingApproval, StatusQueued, StatusDispatching, StatusRunning, StatusCheckpointing,
		StatusWaitingSaved, StatusWaitingReady, StatusResuming, StatusSucceeded, StatusFailed, StatusTimedOut,
		StatusCancelled, StatusRejected, StatusUnknown}
}

// Terminal reports whether the status is final. A terminal status never
// changes.
func (s Status) Terminal() bool {
	switch s {
	case StatusSucceeded, StatusFailed, StatusTimedOut, StatusCancelled, StatusRejected, StatusUnknown:
		return true
	default:
		return false
	}
}

// Waiting reports whether nothing of the run has begun: it is queued, or has to be
// approved first.
func (s Status) Waiting() bool { return s == StatusQueued || s == StatusAwaitingApproval }

// transitions lists where each status may go. A failed step that never sent a
// byte goes from dispatching to failed; after a crash it goes to unknown.
var transitions = map[Status][]Status{
	StatusAwaitingApproval: {StatusQueued, StatusCancelled, StatusRejected},
	StatusQueued:           {StatusDispatching, StatusCancelled, StatusRejected, StatusFailed},
	StatusDispatching:      {StatusRunning, StatusSucceeded, StatusFailed, StatusTimedOut, StatusCancelled, StatusUnknown, StatusCheckpointing},
	StatusRunning:          {StatusSucceeded, StatusFailed, StatusTimedOut, StatusCancelled, StatusUnknown, StatusCheckpointing},
	StatusCheckpointing:    {StatusWaitingSaved, StatusWaitingReady, StatusFailed, StatusCancelled, StatusUnknown},
	StatusWaitingSaved:     {StatusResuming, StatusCancelled, StatusFailed, StatusTimedOut},
	StatusWaitingReady:     {StatusResuming, StatusWaitingSaved, StatusCancelled, StatusFailed, StatusTimedOut},
	StatusResuming:         {StatusDispatching, StatusWaitingSaved, StatusCancelled, StatusFailed},
}

// Transition reports whether a run may go from one status to another.
func Transition(from, to Status) bool {
	for _, s := range transitions[from] {
		if s == to {
			return true
		}
	}
	return false
}

// StepTransition reports whether a step may go from one status to another: a
// step knows no waits, it ends.
func StepTransition(from, to Status) bool {
	switch from {
	case StatusQueued:
		return to == StatusDispatching || to == StatusCancelled || to == StatusFailed
	case StatusDispatching, StatusRunning:
		return Transition(from, to) && to != StatusCheckpointing
	default:
		return false
	}
}

// Reason says why a run ended as it did.
type Reason string

// The reasons: a closed list.
const (
	ReasonNone            Reason = ""
	ReasonExit            Reason = "nonzero_exit"        // failed: the program ended with another code than 0
	ReasonSignal          Reason = "signal"              // failed: a signal ended the program
	ReasonOutOfMemory     Reason = "out_of_memory"       // failed: the memory limit ended the run
	ReasonWorkspaceFull   Reason = "workspace_full"      // failed: after the workspace was full; or it holds more than the limits allow, and nothing ran
	ReasonScratchFull     Reason = "scratch_full"        // failed: after /tmp and /dev/shm were full
	ReasonProcessLimit    Reason = "process_limit"       // failed: after a task was refused
	ReasonOpenFiles       Reason = "open_files_limit"    // failed: after a descriptor was refused
	ReasonToolCalls       Reason = "tool_calls_limit"    // failed: after a tool call was refused
	ReasonInfrastructure  Reason = "infrastructure"      // failed: no byte of code had left; safe to submit again
	ReasonSelection       Reason = "selection_failed"    // failed: a selected file could not be placed; nothing ran
	ReasonTimeout         Reason = "timeout"             // timed_out: the wall time was used up
	ReasonCancelled       Reason = "cancelled_by_user"   // cancelled on request
	ReasonSessionClosed   Reason = "session_closed"      // cancelled with its session
	ReasonSessionExpired  Reason = "session_expired"     // cancelled with its session
	ReasonRestart         Reason = "session_restarted"   // cancelled by restart {cancelActive: true}
	ReasonServerLost      Reason = "server_lost"         // unknown: the server died while the step was out
	ReasonSandboxLost     Reason = "sandbox_lost"        // unknown: the sandbox died and the end was not seen
	ReasonBudgetExceeded  Reason = "budget_exceeded"     // rejected; not built
	ReasonApprovalDenied  Reason = "approval_denied"     // rejected: who decided did not approve it; nothing ran
	ReasonApprovalExpired Reason = "approval_expired"    // rejected: nobody decided in time; nothing ran
	ReasonInterpreterDied Reason = "kernel_died"         // failed: the interpreter was killed
	ReasonCompile         Reason = "compile_error"       // failed: TypeScript or module syntax
	ReasonContextLost     Reason = "context_lost"        // failed: the context's variables were gone; nothing ran
	ReasonContextStart    Reason = "context_not_started" // failed: the context's interpreter could not start in its cwd; nothing ran
)

// Reasons lists every reason.
func Reasons() []Reason {
	return []Reason{ReasonExit, ReasonSignal, ReasonOutOfMemory, ReasonWorkspaceFull, ReasonScratchFull, ReasonProcessLimit,
		ReasonOpenFiles, ReasonToolCalls, ReasonInfrastructure, ReasonSelection, ReasonTimeout, ReasonCancelled,
		ReasonSessionClosed, ReasonSessionExpired, ReasonRestart, ReasonServerLost, ReasonSandboxLost,
		ReasonBudgetExceeded, ReasonApprovalDenied, ReasonApprovalExpired, ReasonInterpreterDied, ReasonCompile, ReasonContextLost, ReasonContextStart}
}

// CancelMessage says in a sentence how a run was cancelled that had begun, or
// had not.
func CancelMessage(why Reason, begun bool) string {
	when := "cancelled before it started"
	if begun {
		when = "cancelled while it ran"
	}
	since, ok := map[Reason]string{
		ReasonSessionClosed:  ", when its session was closed",
		ReasonSessionExpired: ", when its session came to its deadline",
		ReasonRestart:        ", when its session was restarted",
	}[why]
	if !ok {
		since = ", on request"
	}
	return when + since
}

// The names in limitsHit.
const (
	LimitMemory    = "memory"
	LimitTime      = "time"
	LimitTasks     = "tasks"
	LimitOpenFiles = "open_files"
	LimitWorkspace = "workspace"
	LimitScratch   = "scratch"
	LimitOutput    = "output"
	LimitToolCalls = "tool_calls"
	LimitFiles     = "retained_files"
)

package workbench

import (
	"encoding/json"
	"time"
)

// CallStatus is where a tool call is.
type CallStatus string

// The statuses of a call. All but executing and pending_approval are final.
const (
	CallExecuting CallStatus = "executing"        // it is on its way
	CallPending   CallStatus = "pending_approval" // nothing has left; somebody has to decide
	CallSucceeded CallStatus = "succeeded"
	CallFailed    CallStatus = "failed"  // the tool said so, or nothing reached it
	CallDenied    CallStatus = "denied"  // by a rule, or by who decided; nothing left
	CallExpired   CallStatus = "expired" // nobody decided in time; nothing left
	CallUnknown   CallStatus = "unknown" // it may have been executed; it is not repeated
)

// CallStatuses lists every status.
func CallStatuses() []CallStatus {
	return []CallStatus{CallExecuting, CallPending, CallSucceeded, CallFailed, CallDenied, CallExpired, CallUnknown}
}

// Terminal reports whether the status is final.
func (s CallStatus) Terminal() bool { return s != CallExecuting && s != CallPending }

// CallTransition reports whether a call may go from one status to another.
func CallTransition(from, to CallStatus) bool {
	if from == CallPending {
		return to == CallExecuting || to == CallDenied || to == CallExpired || to == CallFailed
	}
	return from == CallExecuting && (to == CallSucceeded || to == CallFailed || to == CallUnknown)
}

// CallError is why a call has no result.
type CallError struct {
	Code   Code   `json:"code"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
	Field  string `json:"field,omitempty"`
}

// ToolReceipt is what became of one call. Every call leaves one.
type ToolReceipt struct {
	ID           string     `json:"id"`
	ProjectID    string     `json:"project"`
	TenantID     string     `json:"tenant"`
	UserID       string     `json:"user"`
	SessionID    string     `json:"sessionId"`
	RunID        string     `json:"runId"`
	Revision     int64      `json:"revision"` // that the run was submitted under
	Number       int64      `json:"number"`   // of the run's calls, from 1
	Tool         string     `json:"tool"`
	Version      string     `json:"version"`
	ToolDigest   string     `json:"toolDigest,omitempty"`
	Alias        string     `json:"connection,omitempty"`
	ConnectionID string     `json:"connectionId,omitempty"`
	ArgsDigest   string     `json:"argumentsDigest"` // SHA-256, hex, of the canonical JSON
	Status       CallStatus `json:"status"`
	Rules        []string   `json:"rules"` // that decided

	// Result is what the tool gave, as JSON, where it is small; a large one is a
	// retained file, and Preview its beginning. Contents: nil and "" where the
	// caller may not read them.
	Result      json.RawMessage `json:"result,omitempty"`
	Preview     string          `json:"preview,omitempty"`
	ArtifactID  string          `json:"artifactId,omitempty"`
	ResultBytes int64           `json:"resultBytes"`
	Error       *CallError      `json:"error,omitempty"`
	Withheld    *CallError      `json:"withheld,omitempty"` // why arguments and result are not shown to who could read them before

	Approval *Approval `json:"approval,omitempty"` // of a call that needs, or needed, one

	CreatedAt  time.Time  `json:"createdAt"`
	StartedAt  *time.Time `json:"startedAt,omitempty"` // when it left
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	DurationMs int64      `json:"durationMs"` // from its leaving to the answer

	Arguments    json.RawMessage `json:"arguments,omitempty"` // for who may read them: the owner, and who decides
	SealedArgs   []byte          `json:"-"`
	SealedResult []byte          `json:"-"` // Result and Preview
	EngineID     string          `json:"-"` // who executes it
}

// Owner is whom the receipt belongs to.
func (r ToolReceipt) Owner() Owner {
	return Owner{ProjectID: r.ProjectID, TenantID: r.TenantID, UserID: r.UserID, SessionID: r.SessionID}
}

// CallEntry is the Meta of a log entry of kind call.
type CallEntry struct {
	ReceiptID string     `json:"receiptId"`
	Number    int64      `json:"number"`
	Tool      string     `json:"tool"`
	Version   string     `json:"version"`
	Alias     string     `json:"connection,omitempty"`
	Status    CallStatus `json:"status"`
}

// ApprovalState is what was decided.
type ApprovalState string

// The states of an approval. All but pending are final; revoked is one that was
// approved and taken back before the call left.
const (
	ApprovalPending  ApprovalState = "pending"
	ApprovalApproved ApprovalState = "approved"
	ApprovalDenied   ApprovalState = "denied"
	ApprovalExpired  ApprovalState = "expired"
	ApprovalRevoked  ApprovalState = "revoked" // withdrawn: by its requester, or with the session
)

// Approval is bound to one call: the exact arguments, the tool's version, the
// connection and the session. It is decided once.
type Approval struct {
	State     ApprovalState `json:"state"`
	Rules     []string      `json:"rules"` // that ask for it
	Why       string        `json:"why,omitempty"`
	ExpiresAt time.Time     `json:"expiresAt"`
	DecidedAt *time.Time    `json:"decidedAt,omitempty"`
	DecidedBy string        `json:"decidedBy,omitempty"` // user, or key of one that is nobody's
	KeyID     string        `json:"decidedByKey,omitempty"`
	Reason    string        `json:"reason,omitempty"` // as who decided gave it
}

// Dependency is what may have gone into something: a tool and the connection it
// was called with. Who reads what depends on it must be allowed the tool now.
type Dependency struct {
	Tool         string `json:"tool"`
	Version      string `json:"version"`
	Alias        string `json:"connection,omitempty"`
	ConnectionID string `json:"connectionId,omitempty"`
}

// Rule is one named text of Cedar policies of a project.
type Rule struct {
	ProjectID string    `json:"project"`
	Name      string    `json:"name"`
	Text      string    `json:"text"`
	Version   int64     `json:"version"` // grows with every change
	UpdatedAt time.Time `json:"updatedAt"`
	UpdatedBy string    `json:"updatedByKey,omitempty"`
}

// MaxRuleText bounds one text, MaxRules those of a project.
const (
	MaxRuleText = 256 * 1024
	MaxRules    = 1000
)

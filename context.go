package workbench

import (
	"fmt"
	"time"
)

// Context is a living interpreter of a session: what a cell defines is there
// for the next one. It has an id that its client chooses, and lives as long as
// the memory of the session's sandbox does.
type Context struct {
	ID         string       `json:"id"`
	SessionID  string       `json:"sessionId"`
	Language   Language     `json:"language"`
	Dir        string       `json:"cwd"` // where its interpreter starts
	State      ContextState `json:"state"`
	Generation int64        `json:"generation"`      // of the compute its interpreter lives in, or last lived in; 0: none has started
	Cells      int64        `json:"cells"`           // that were ever dispatched to it
	RunID      string       `json:"runId,omitempty"` // the cell that runs in it
	Lost       *ContextLoss `json:"lost,omitempty"`  // state lost: when and why
	CreatedAt  time.Time    `json:"createdAt"`
	LastUsedAt time.Time    `json:"lastUsedAt"`
	Session    *SessionRef  `json:"session,omitempty"` // in replies about this one; a list names it once

	Handle    string `json:"-"` // names its interpreter in a sandbox; another one after a restart
	Memory    string `json:"-"` // the sandbox memory its interpreter lives in; "" while there is none
	SealedEnv []byte `json:"-"`
}

// ContextLoss says what took a context's variables away.
type ContextLoss struct {
	Reason LossReason `json:"reason"`
	At     time.Time  `json:"at"`
}

// Detail says in words what happened.
func (l ContextLoss) Detail() string {
	return fmt.Sprintf("%s at %s", lossTexts[l.Reason], l.At.UTC().Format(time.RFC3339))
}

// ContextState is where a context is in its life.
type ContextState string

// The states of a context. An ended one has lost its variables with a cell
// whose receipt says so: its next cell starts a fresh interpreter. A lost one
// has lost them between two cells: a cell is refused until somebody restarts it.
const (
	ContextIdle  ContextState = "idle"
	ContextBusy  ContextState = "busy" // a cell runs in it
	ContextEnded ContextState = "ended"
	ContextLost  ContextState = "lost"
)

// ContextStates lists every state.
func ContextStates() []ContextState {
	return []ContextState{ContextIdle, ContextBusy, ContextEnded, ContextLost}
}

// ContextTransition reports whether a context may go from one state to another.
// A lost one becomes busy only with a cell that asks for it.
func ContextTransition(from, to ContextState) bool {
	switch from {
	case ContextIdle:
		return to != ContextIdle
	case ContextBusy:
		return to != ContextBusy
	case ContextEnded:
		return to == ContextIdle || to == ContextBusy
	case ContextLost:
		return to != ContextLost
	}
	return false
}

// LossReason says what took the memory of a session's sandbox.
type LossReason string

// The reasons: a closed list.
const (
	LossSandbox   LossReason = "sandbox_lost"      // it died, or had to be killed
	LossRoom      LossReason = "sandbox_evicted"   // another session needed the room
	LossSuspended LossReason = "session_suspended" // it idled
	LossServer    LossReason = "server_lost"       // the server stopped, or died
	LossRestart   LossReason = "session_restarted"
	LossLimits    LossReason = "session_configured" // other limits need another sandbox
	LossProcess   LossReason = "interpreter_lost"   // the interpreter alone ended between two cells
)

// LossReasons lists every reason.
func LossReasons() []LossReason {
	return []LossReason{LossSandbox, LossRoom, LossSuspended, LossServer, LossRestart, LossLimits, LossProcess}
}

var lossTexts = map[LossReason]string{
	LossSandbox:   "the session's sandbox was lost",
	LossRoom:      "the session's idle sandbox made room for another session's",
	LossSuspended: "the idle session was suspended",
	LossServer:    "the server stopped or was restarted",
	LossRestart:   "the session was restarted",
	LossLimits:    "the session got other limits, and with them another sandbox",
	LossProcess:   "its interpreter ended between two cells",
}

// LostContextPolicy is what a cell wants when the variables of its context are
// gone and nobody has told.
type LostContextPolicy string

// The policies. By default nothing runs on missing variables.
const (
	LostContextFail    LostContextPolicy = "fail"
	LostContextRestart LostContextPolicy = "restart" // run in a fresh interpreter, with a notice
)

// Bounds of contexts.
const (
	// DefaultContext is the id of the context that a cell may name without
	// creating it: it has the language of its first cell.
	DefaultContext = "default"
	MaxContexts    = 8 // of a session
	MaxContextID   = 64
	MaxContextDir  = MaxPathBytes
)

// CheckContextID refuses, with invalid_request and the field's name, what is
// no id of a context: 1 to 64 letters, digits and _.-, beginning with a letter,
// a digit or _.
func CheckContextID(field, id string) error {
	good := id != "" && len(id) <= MaxContextID && id[0] != '.' && id[0] != '-'
	for i := 0; good && i < len(id); i++ {
		c := id[i]
		letter, digit := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z', c >= '0' && c <= '9'
		good = letter || digit || c == '_' || c == '.' || c == '-'
	}
	if good {
		return nil
	}
	return E(CodeInvalidRequest, "%s must be 1 to %d letters, digits and _.-, and must not begin with . or -", field, MaxContextID).
		WithField(field).WithHint("send such as %q, or %q for one that needs no creating", "analysis", DefaultContext)
}

// Speaks reports whether a cell in the language can run in the context:
// TypeScript and JavaScript share an interpreter.
func (c Context) Speaks(l Language) bool {
	return l == c.Language || kernelOf(l) == kernelOf(c.Language)
}

func kernelOf(l Language) Language {
	if l == TypeScript {
		return JavaScript
	}
	return l
}

// Usable refuses a cell that the context cannot take. Codes: context_language,
// context_lost unless the cell asks for a restart.
func (c Context) Usable(l Language, onLost LostContextPolicy) error {
	if !c.Speaks(l) {
		return E(CodeContextLanguage, "the context speaks %s, and the cell is %s", c.Language, l).WithField("language").
			WithHint("send the cell to a context of its language: POST …/contexts makes one")
	}
	if c.State == ContextLost && onLost != LostContextRestart {
		return c.lostError()
	}
	return nil
}

func (c Context) lostError() error {
	loss := ContextLoss{Reason: LossSandbox, At: c.LastUsedAt}
	if c.Lost != nil {
		loss = *c.Lost
	}
	return E(CodeContextLost, "the variables of this context are gone: %s", loss.Detail()).WithField("contextId").
		WithHint("POST …/contexts/%s/restart begins it anew, and so does a cell with \"onLostContext\": \"restart\"; then define again what it needs", c.ID)
}

// ErrContextNotFound is the answer to a cell that names a context there is not.
func ErrContextNotFound() *Error {
	return E(CodeContextNotFound, "this session has no such context").WithField("contextId").
		WithHint("create it with POST …/sessions/{id}/contexts, or use %q, which needs no creating", DefaultContext)
}

// ErrContextExists is the answer to the creation of a context whose id another
// one has.
func ErrContextExists() *Error {
	return E(CodeContextExists, "this session has a context of that id with another language, directory or environment").WithField("id").
		WithHint("use it as it is, delete it first, or choose another id")
}

// CreateContext asks for a context.
type CreateContext struct {
	ID       string // empty: generated
	Language Language
	Env      map[string]string // of its interpreter
	Dir      string            // absolute, or relative to the workspace; empty: WorkspaceDir
}

// Interrupted is the answer to an interrupt.
type Interrupted struct {
	Context     Context `json:"context"`
	Interrupted bool    `json:"interrupted"`     // false: nothing ran in it
	RunID       string  `json:"runId,omitempty"` // the cell that was asked to end
}

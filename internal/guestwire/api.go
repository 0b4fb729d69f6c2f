package guestwire

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/workbenchdev/workbench"
)

// Version is the protocol's version. A guest of another version is refused.
const Version = 1

// Bounds of the protocol. Both ends hold them.
const (
	MaxControl   = 640 << 10 // JSON payload of a control frame
	MaxData      = 32 << 10  // bytes of one data frame
	Window       = 256 << 10 // bytes under way in one stream
	MaxSource    = 1 << 20   // source of one exec
	MaxStdin     = 16 << 20  // stdin of one exec
	MaxArgs      = 256 << 10 // argv, args and environment of one exec, together
	MaxResult    = 256 << 10 // structured result, and the reply to any call
	MaxCallArgs  = 320 << 10 // arguments of a call from code
	MaxExecs     = 64        // execs a guest keeps, ended ones included
	MaxGroups    = 64
	MaxCalls     = 16 // calls from code under way, per sandbox: so many that the host answers at once, and so many for which it waits itself
	MaxRequests  = 64 // requests of the host under way
	MaxPath      = 4096
	MaxDepth     = 256      // elements of a path
	MaxEntryJSON = 16 << 10 // one entry of a scan or restore
	MaxEntries   = 4 << 20  // entries of one scan or restore
	MaxTreeBytes = 64 << 30 // content of one scan or restore
	MaxSkipped   = 1000     // skipped entries that are named; the rest is counted
	maxID        = 64

	MaxContexts     = 8        // living interpreters of one sandbox
	MaxDisplay      = 16 << 20 // content of one display
	MaxDisplays     = 100      // displays of one exec; what follows is only counted
	MaxDisplayBytes = 16 << 20 // of all displays of one exec; likewise
)

// CodeGroupEnv names, in the environment of a guest, the first of three
// descriptors that its host opened of a control group for user code: to join it,
// its memory by kind, and how many processes its bound has cost. Where it is not
// set, there is no such group.
const CodeGroupEnv = "WORKBENCH_CODE_GROUP"

// Path is a file's path relative to the workspace: any bytes but NUL, no
// leading slash, no empty, "." or ".." element. In JSON it is base64, because
// names need not be text.
type Path string

// word is an argument or a variable of a program: any bytes but NUL. In JSON it
// is base64, like a path; only their sum is bounded (MaxArgs).
type word string

// MarshalJSON implements json.Marshaler.
func (w word) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(w)) }

// UnmarshalJSON implements json.Unmarshaler.
func (w *word) UnmarshalJSON(raw []byte) error {
	var b []byte
	err := json.Unmarshal(raw, &b)
	*w = word(b)
	return err
}

// MarshalJSON implements json.Marshaler.
func (p Path) MarshalJSON() ([]byte, error) {
	return json.Marshal(base64.StdEncoding.EncodeToString([]byte(p)))
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Path) UnmarshalJSON(raw []byte) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return err
	}
	if len(b) > MaxPath {
		return fmt.Errorf("path of %d bytes", len(b))
	}
	*p = Path(b)
	return nil
}

// Hello is what a guest says of itself. Its values are claims.
type Hello struct {
	Version      int      `json:"version"`
	Nonce        string   `json:"nonce"` // the host's, echoed
	Boot         string   `json:"boot"`  // random, one per guest process: a restarted guest differs, one restored from a checkpoint is the same
	Bound        string   `json:"bound"` // the session nonce it is bound to, "" when unbound
	Capabilities []string `json:"capabilities"`
	Build        string   `json:"build"`
}

// BindRequest makes an unbound sandbox one session's. It works once. One that
// was prepared is bound with the limits it was prepared for.
type BindRequest struct {
	SessionNonce string            `json:"sessionNonce"` // names the binding; random, chosen by the host
	Seed         []byte            `json:"seed"`         // at least 16 random bytes, for a guest copied from another; no guest is yet, and none uses them
	Limits       SandboxLimits     `json:"limits"`
	Env          map[string]string `json:"env,omitempty"` // of every exec; WORKBENCH_* is refused
}

// SandboxLimits bound user code in one sandbox. Every field is required.
type SandboxLimits struct {
	MemoryBytes     int64   `json:"memoryBytes"`
	WorkspaceBytes  int64   `json:"workspaceBytes"`
	WorkspaceInodes int64   `json:"workspaceInodes"`
	ScratchBytes    int64   `json:"scratchBytes"` // /tmp and /dev/shm together
	Tasks           int     `json:"tasks"`        // processes and threads
	OpenFiles       int     `json:"openFiles"`    // per process
	CPUs            float64 `json:"cpus"`
}

// BindReply says what the bound sandbox offers.
type BindReply struct {
	Languages []workbench.Language `json:"languages"` // with an interpreter in the image
	// Enforced names how each limit is held: e.g. tasks: "cgroup" or "rlimit".
	Enforced map[string]string `json:"enforced"`
	// Token is that of a scan of the workspace, which is empty: base of the next.
	Token string `json:"token"`
}

// ExecRequest starts one program in a group, or has a cell run by a living
// interpreter. Either Argv or Language with Source is set.
type ExecRequest struct {
	ID    string // [A-Za-z0-9_.-], at most 64 bytes; unique in the sandbox
	Group string // same alphabet; made when it does not exist

	// Context, when set, makes the exec a cell of the interpreter that lives
	// under this name, and Group must be the same. Where none lives, one of the
	// language is started, with Env and Dir, which later cells do not change.
	// JavaScript and TypeScript are one interpreter's. Cells of one context run
	// one after another; between them everything in it is stopped. EndGroup ends
	// it. Argv, Args and Stdin must be empty.
	//
	// At its time limit, or cancelled, a cell is interrupted as from a keyboard.
	// If it does not end within Grace, the whole context ends.
	Context string
	// Living is of a cell that counts on what earlier ones left: where no
	// interpreter lives under the context's name, the exec is refused with
	// context_lost, and nothing runs.
	Living bool

	Argv     []string
	Language workbench.Language
	Source   []byte   // at most MaxSource
	Name     string   // file name shown in tracebacks, and argv[0]; default main.py, main.mjs, main.ts, main.sh
	Args     []string // after Name

	Env map[string]string // may not set WORKBENCH_*
	Dir string            // absolute inside the sandbox; default /mnt/files
	// Packages are the places of sets of packages that code finds without being
	// told, separated by colons, the most important first.
	Packages string
	Stdin    []byte // then end of file; at most MaxStdin

	Timeout time.Duration // wall time; 0: none
	Grace   time.Duration // from asking a program to end until it is killed; 0: 1 s
	// OutputBytes is forwarded of each stream; what follows is only counted.
	OutputBytes int64
	// KeepGroup leaves the group alive when the main process ends.
	KeepGroup bool
}

// Offsets count bytes of the two output streams.
type Offsets struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// ExecHandler receives what an exec says while it runs. Methods for different
// streams and calls run at the same time.
type ExecHandler interface {
	// Output takes bytes of one stream, in order, without gaps: offset is that
	// of data[0]. The data is valid during the call only. While it blocks, that
	// stream alone is held back, in the end to the program's write. An error
	// stops the delivery of that stream; the program does not notice. Bytes for
	// which Output has returned may be forgotten by the guest.
	Output(stream workbench.Stream, offset int64, data []byte) error

	// Call answers code that reaches out, with at most MaxResult bytes. The
	// content, when there is one, must be read before Call returns, or is thrown
	// away. A *workbench.Error reaches the code with code, detail, hint and field.
	// ctx ends with the exec or the connection.
	Call(ctx context.Context, call BrokerCall) (json.RawMessage, error)
}

// The operations that the guest has a part in. A host answers those that it does
// not know with not_built.
const (
	OpSave   = "save"   // args: {"path": base64 of the workspace path, "mode": …}; the content is the file's
	OpResult = "result" // args: {"value": any JSON, at most MaxResult}
	// OpDisplay shows something: args are DisplayArgs, the content is one JSON
	// object of at most MaxDisplay bytes that maps MIME types to strings: text as
	// it is, binary types (image/png, image/jpeg and others that are not text) as
	// base64. The host gets it after the output that was printed before it.
	OpDisplay = "display"
	// OpRefused is the guest's own: something asked with a token that is not the
	// exec's. It is told once, and code cannot ask for it.
	OpRefused = "refused"
)

// The kinds of display.
const (
	DisplayResult = "result"  // the value of a cell's last expression
	DisplayShow   = "display" // what code shows
	DisplayUpdate = "update"  // replaces what was shown under the same id
	DisplayError  = "error"   // what ended the cell; application/json has ename, evalue and traceback, a list of lines
	DisplayClear  = "clear"   // what was shown before is obsolete; the content is {}
)

// DisplayArgs are the arguments of OpDisplay.
type DisplayArgs struct {
	Kind     string          `json:"kind"`
	ID       string          `json:"id,omitempty"`       // of a display that may be updated; at most 128 bytes of any text
	Metadata json.RawMessage `json:"metadata,omitempty"` // a JSON object: by MIME type, or of the whole
	// At is how much the program had printed: the client calls the handler after
	// it has had this output.
	At Offsets `json:"at"`
}

// BrokerCall is one call of code to the outside. Everything in it is hostile.
type BrokerCall struct {
	Exec    string
	Op      string          // [a-z0-9_.], at most 64 bytes
	Args    json.RawMessage // valid JSON, at most MaxCallArgs
	Size    int64           // bytes of Content, checked while it is read; -1 when there is none
	Content io.Reader       // nil when there is none
}

// SaveArgs are the arguments of OpSave.
type SaveArgs struct {
	Path Path `json:"path"`
}

// ResultArgs are the arguments of OpResult.
type ResultArgs struct {
	Value json.RawMessage `json:"value"`
}

// ExecResult says how an exec ended. Reason is one of "", timeout,
// cancelled_by_user (any Cancel), out_of_memory, compile_error, infrastructure
// (its first byte never ran); the host refines it.
type ExecResult struct {
	ExitCode  int              `json:"exitCode"` // -1 when a signal ended it
	Signal    string           `json:"signal,omitempty"`
	Reason    workbench.Reason `json:"reason,omitempty"`
	Message   string           `json:"message,omitempty"` // for reasons infrastructure and compile_error
	LimitsHit []string         `json:"limitsHit"`         // workbench.Limit… names
	Total     Offsets          `json:"total"`             // bytes the program wrote
	Forwarded Offsets          `json:"forwarded"`         // bytes the host was given
	PeakBytes int64            `json:"peakMemoryBytes"`
	Duration  time.Duration    `json:"durationNs"` // monotonic, of the program

	// Context is of a cell: the interpreter after it. nil for any other exec.
	Context *ContextState `json:"context,omitempty"`
	// Displays counts them, those beyond the bounds included; the host was given
	// all but Dropped.
	Displays        int64 `json:"displays,omitempty"`
	DisplaysDropped int64 `json:"displaysDropped,omitempty"`
	// Untouched is the token of the last scan or restore where nothing of the
	// workspace has changed since, for certain: a scan from there would name no
	// entry. "" says that one has to tell.
	Untouched string `json:"untouched,omitempty"`
	// Changes are those of a workspace in which little has changed since the last
	// scan or restore: what a scan from there would give.
	Changes *Changes `json:"changes,omitempty"`
}

// Changes are a scan of few and small entries that needs no request of its own.
type Changes struct {
	Base    string     `json:"base"`    // token of the scan or restore that it is relative to
	Scan    ScanResult `json:"scan"`    // never complete
	Records []byte     `json:"records"` // the entries as a scan's stream has them; at most MaxChanges
}

// MaxChanges bounds the bytes of entries, with contents, that come with an end.
const MaxChanges = 64 << 10

// ContextState is what became of the interpreter that ran a cell.
type ContextState struct {
	Fresh bool  `json:"fresh"` // the cell began a new interpreter
	Alive bool  `json:"alive"` // it lives after the cell
	Cell  int64 `json:"cell"`  // number of the cell in it, from 1
}

// ExecInfo is one exec a guest keeps.
type ExecInfo struct {
	ID    string  `json:"id"`
	Group string  `json:"group"`
	Ended bool    `json:"ended"`
	Acked Offsets `json:"acknowledged"` // attach from here or later
}

// GroupInfo is one live group.
type GroupInfo struct {
	Name   string `json:"name"`
	Tasks  int    `json:"tasks"` // processes of user code
	Paused bool   `json:"paused"`
}

// EntryType is what a workspace entry is.
type EntryType string

// The types of entry that are committed.
const (
	TypeFile    EntryType = "file"
	TypeDir     EntryType = "dir"
	TypeSymlink EntryType = "symlink"
)

// Entry is one file, directory or symbolic link of the workspace.
type Entry struct {
	Path    Path             `json:"path"`
	Change  workbench.Change `json:"change,omitempty"` // in scans: added, modified, removed
	Type    EntryType        `json:"type"`
	Mode    uint32           `json:"mode"`    // permission bits
	Size    int64            `json:"size"`    // of a file's content
	MtimeNs int64            `json:"mtimeNs"` //
	SHA256  []byte           `json:"sha256"`  // of a file's content; 32 bytes; a claim
	Target  Path             `json:"target"`  // of a link: any bytes, never resolved
	Content bool             `json:"content"` // Size bytes of content follow
	Replace bool             `json:"replace"` // in writes: replace what is at the path
	Parents bool             `json:"parents"` // in writes: make missing parent directories
}

// ScanRequest asks for the workspace as it is, relative to a base.
type ScanRequest struct {
	// Base is the token of an earlier scan or restore of this sandbox whose
	// outcome the host has stored. If the guest does not know it, the scan is
	// complete.
	Base string `json:"base"`

	// MaxEntries and MaxBytes end a scan that sends more, with guest_protocol.
	// They are checked on the host; 0 means the protocol's own bounds.
	MaxEntries int64 `json:"-"`
	MaxBytes   int64 `json:"-"`
}

// ScanSink takes the entries of a scan: parents before children, removed ones
// first. The content, for files whose bytes the base did not have, must be read
// before Entry returns or is thrown away; it ends early with an error if the
// guest sends less than Size. An error ends the scan with that error.
type ScanSink interface {
	Entry(e Entry, content io.Reader) error
}

// ScanResult ends a scan.
type ScanResult struct {
	Token    string    `json:"token"` // base of the next scan
	Complete bool      `json:"complete"`
	Entries  int64     `json:"entries"` // in the whole tree
	Bytes    int64     `json:"bytes"`   // of files in the whole tree
	Skipped  []Skipped `json:"skipped"` // never nil; at most MaxSkipped
	SkippedN int64     `json:"skippedTotal"`
}

// Skipped is an entry that is not committed.
type Skipped struct {
	Path Path   `json:"path"`
	Why  string `json:"why"` // fifo, socket, device, depth, unreadable, too_large, too_many
}

// FileSource gives the entries of a write or restore, in order: parents before
// children. It returns io.EOF after the last one. content must give exactly
// Size bytes for a file and is nil otherwise.
type FileSource interface {
	Next() (e Entry, content io.Reader, err error)
}

// WriteResult ends a write or restore.
type WriteResult struct {
	Token   string `json:"token"` // base of the next scan; "" when the write was partial
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes"`
}

// GuestStats is what the guest sees of its sandbox.
type GuestStats struct {
	MemoryBytes    int64 `json:"memoryBytes"` // of user code
	WorkspaceBytes int64 `json:"workspaceBytes"`
	WorkspaceFiles int64 `json:"workspaceFiles"`
	ScratchBytes   int64 `json:"scratchBytes"`
	Tasks          int   `json:"tasks"`
	Execs          int   `json:"execs"`
}

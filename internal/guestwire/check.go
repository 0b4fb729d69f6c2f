package guestwire

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
)

// Bounds that only checks use.
const (
	maxElement   = 255
	maxTimeout   = 24 * time.Hour
	maxGrace     = time.Minute
	maxDetail    = 2 << 10
	maxHint      = 1 << 10
	maxShortText = 128
)

// wireError is a *workbench.Error under way. The private cause stays behind.
type wireError struct {
	Code   workbench.Code `json:"code"`
	Detail string         `json:"detail"`
	Hint   string         `json:"hint,omitempty"`
	Field  string         `json:"field,omitempty"`
}

func toWire(err error) wireError {
	e := workbench.AsError(err)
	return wireError{Code: e.Code, Detail: cleanText(e.Detail, maxDetail), Hint: cleanText(e.Hint, maxHint), Field: cleanText(e.Field, maxShortText)}
}

// toError makes an error of what the peer says, which may be anything.
func (w wireError) toError() *workbench.Error {
	code := w.Code
	if workbench.ClassOf(code).Code != code {
		code = workbench.CodeGuestProtocol
	}
	return &workbench.Error{Code: code, Detail: cleanText(w.Detail, maxDetail), Hint: cleanText(w.Hint, maxHint), Field: cleanText(w.Field, maxShortText)}
}

// cleanText bounds a text and takes out what a terminal or a log would obey.
func cleanText(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError:
			return '\uFFFD'
		}
		return r
	}, s)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// validID reports whether s names an exec, a group or a binding.
func validID(s string) bool {
	if s == "" || len(s) > maxID || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-', c == '.':
		default:
			return false
		}
	}
	return true
}

// validOp reports whether s names an operation code may call.
func validOp(s string) bool {
	if s == "" || len(s) > maxID {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// Check refuses, with path_invalid, whatever is not a path below the
// workspace. Any other bytes are a name like another.
func (p Path) Check() error {
	bad := func(why string) error {
		return workbench.E(workbench.CodePathInvalid, "the path %s", why).
			WithHint("use a relative path inside %s", workbench.WorkspaceDir)
	}
	switch {
	case p == "":
		return bad("is empty")
	case len(p) > MaxPath:
		return bad("is longer than 4096 bytes")
	case strings.IndexByte(string(p), 0) >= 0:
		return bad("has a NUL byte")
	}
	depth := 0
	for e := range strings.SplitSeq(string(p), "/") {
		if e == "" || e == "." || e == ".." {
			return bad(`has an empty, "." or ".." element`)
		}
		if len(e) > maxElement {
			return bad("has an element longer than 255 bytes")
		}
		depth++
	}
	if depth > MaxDepth {
		return bad("has more than 256 elements")
	}
	return nil
}

// check refuses an entry that no tree can hold.
func (e Entry) check() error {
	if err := e.Path.Check(); err != nil {
		return err
	}
	bad := func(why string) error {
		return workbench.E(workbench.CodeInvalidRequest, "the entry %s", why)
	}
	if e.Mode > 0o7777 || e.Size < 0 || e.Size > MaxTreeBytes {
		return bad("has an impossible mode or size")
	}
	switch e.Type {
	case TypeFile:
		if e.Change != workbench.ChangeRemoved && len(e.SHA256) != 32 || e.Target != "" {
			return bad("is a file without a digest")
		}
	case TypeDir:
		if e.Size != 0 || e.Content || e.Target != "" || len(e.SHA256) != 0 {
			return bad("is a directory with content")
		}
	case TypeSymlink:
		if e.Size != 0 || e.Content || len(e.SHA256) != 0 || e.Change != workbench.ChangeRemoved && e.Target == "" ||
			strings.IndexByte(string(e.Target), 0) >= 0 {
			return bad("is a link without a target")
		}
	default:
		return bad("has an unknown type")
	}
	switch e.Change {
	case "", workbench.ChangeAdded, workbench.ChangeModified:
	case workbench.ChangeRemoved:
		if e.Content {
			return bad("is removed and has content")
		}
	default:
		return bad("has an unknown change")
	}
	return nil
}

// Check refuses a request that no guest could carry out.
func (r ExecRequest) Check() error {
	bad := func(field, format string, args ...any) error {
		return workbench.E(workbench.CodeInvalidRequest, format, args...).WithField(field)
	}
	size := len(r.Dir) + len(r.Name) + len(r.Packages)
	for _, a := range append(append([]string{r.Dir, r.Name, r.Packages}, r.Argv...), r.Args...) {
		if strings.IndexByte(a, 0) >= 0 {
			return bad("args", "an argument has a NUL byte")
		}
		size += len(a) + 1
	}
	for k, v := range r.Env {
		if err := checkEnv(k, v); err != nil {
			return err
		}
		size += len(k) + len(v) + 2
	}
	switch {
	case !validID(r.ID):
		return bad("id", "the exec id is not well formed")
	case !validID(r.Group):
		return bad("group", "the group's name is not well formed")
	case (len(r.Argv) > 0) == (r.Language != ""):
		return bad("language", "either a command or a language is needed")
	case len(r.Source) > MaxSource:
		return bad("code", "the code has %d bytes, %d are allowed", len(r.Source), MaxSource)
	case len(r.Stdin) > MaxStdin:
		return bad("stdin", "the input has %d bytes, %d are allowed", len(r.Stdin), MaxStdin)
	case size > MaxArgs:
		return bad("args", "arguments and environment have %d bytes, %d are allowed", size, MaxArgs)
	case r.Dir != "" && !strings.HasPrefix(r.Dir, "/"):
		return bad("dir", "the working directory is not absolute")
	case strings.Contains(r.Name, "/"):
		return bad("name", "the program's name has a slash")
	case r.Timeout < 0 || r.Timeout > maxTimeout:
		return bad("timeoutMs", "the time limit is out of range")
	case r.Grace < 0 || r.Grace > maxGrace:
		return bad("grace", "the grace is out of range")
	case r.OutputBytes < 0:
		return bad("outputBytes", "the output limit is out of range")
	}
	if err := r.checkCell(); err != nil {
		return err
	}
	switch r.Language {
	case "", workbench.Python, workbench.JavaScript, workbench.TypeScript, workbench.Bash:
		return nil
	}
	return workbench.E(workbench.CodeLanguageUnknown, "no such language").WithField("language")
}

// checkCell refuses what only a program can have.
func (r ExecRequest) checkCell() error {
	bad := func(field, why string) error {
		return workbench.E(workbench.CodeInvalidRequest, "%s", why).WithField(field)
	}
	switch {
	case r.Context == "" && r.Living:
		return bad("context", "only a cell can count on an interpreter")
	case r.Context == "":
		return nil
	case !validID(r.Context):
		return bad("contextId", "the context's name is not well formed")
	case r.Group != r.Context:
		return bad("group", "a cell's group is its context")
	case r.Language == "":
		return bad("language", "a cell needs a language")
	case len(r.Args) > 0:
		return bad("args", "a cell takes no arguments")
	case len(r.Stdin) > 0:
		return bad("stdin", "a cell takes no input")
	}
	return nil
}

func checkEnv(k, v string) error {
	if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
		return workbench.E(workbench.CodeInvalidRequest, "a variable of the environment is not well formed").WithField("env")
	}
	if strings.HasPrefix(k, "WORKBENCH_") {
		return workbench.E(workbench.CodeInvalidRequest, "variables named WORKBENCH_… cannot be set").WithField("env")
	}
	return nil
}

// Check refuses a binding that leaves something unbounded.
func (r BindRequest) Check() error {
	if !validID(r.SessionNonce) || len(r.Seed) < 16 || len(r.Seed) > 4096 {
		return workbench.E(workbench.CodeInvalidRequest, "the binding needs a nonce and a seed")
	}
	if err := r.Limits.Check(); err != nil {
		return err
	}
	for k, v := range r.Env {
		if err := checkEnv(k, v); err != nil {
			return err
		}
	}
	return nil
}

// Check refuses limits that leave something unbounded.
func (l SandboxLimits) Check() error {
	if l.MemoryBytes <= 0 || l.WorkspaceBytes <= 0 || l.WorkspaceInodes <= 0 || l.ScratchBytes <= 0 || l.Tasks <= 0 || l.OpenFiles <= 0 || l.CPUs <= 0 {
		return workbench.E(workbench.CodeInvalidRequest, "every limit of the sandbox must be set")
	}
	return nil
}

// knownLimits are what a guest may name in LimitsHit.
var knownLimits = map[string]bool{
	workbench.LimitMemory: true, workbench.LimitTime: true, workbench.LimitTasks: true, workbench.LimitOpenFiles: true,
	workbench.LimitWorkspace: true, workbench.LimitScratch: true,
}

// maxToken bounds the bytes of a scan's token.
const maxToken = 64

// check refuses an end that cannot be.
func (r ExecResult) check(received Offsets) error {
	switch {
	case r.Forwarded != received:
		return violation("forwarded %+v, received %+v", r.Forwarded, received)
	case r.Total.Stdout < received.Stdout || r.Total.Stderr < received.Stderr:
		return violation("total %+v below what was received", r.Total)
	case r.ExitCode < -1 || r.ExitCode > 255 || (r.ExitCode == -1) == (r.Signal == "" && r.Reason != workbench.ReasonInfrastructure):
		return violation("exit code %d with signal %.20q", r.ExitCode, r.Signal)
	case len(r.Signal) > 20 || r.Signal != "" && !validID(r.Signal):
		return violation("signal")
	case r.Duration < 0 || r.PeakBytes < 0 || len(r.LimitsHit) > len(knownLimits):
		return violation("end out of range")
	case r.Context != nil && r.Context.Cell < 0 || r.DisplaysDropped < 0 || r.Displays < r.DisplaysDropped:
		return violation("context or displays out of range")
	}
	if len(r.Untouched) > maxToken {
		return violation("token of %d bytes", len(r.Untouched))
	}
	for _, l := range r.LimitsHit {
		if !knownLimits[l] {
			return violation("limit %.40q", l)
		}
	}
	if ch := r.Changes; ch != nil {
		if !validID(ch.Base) || ch.Scan.Complete || len(ch.Records) > MaxChanges || r.Untouched != "" {
			return violation("changes out of bounds")
		}
		if err := ch.Scan.check(); err != nil {
			return err
		}
	}
	switch r.Reason {
	case "", workbench.ReasonTimeout, workbench.ReasonCancelled, workbench.ReasonOutOfMemory, workbench.ReasonCompile, workbench.ReasonInfrastructure:
		return nil
	default: // what only the host can know
		return violation("reason %.40q", r.Reason)
	}
}

// check refuses what no scan can come to, and makes its texts harmless.
func (r *ScanResult) check() error {
	if !validID(r.Token) || len(r.Skipped) > MaxSkipped || r.Entries < 0 || r.Bytes < 0 || r.SkippedN < int64(len(r.Skipped)) {
		return violation("scan result out of bounds")
	}
	for i, s := range r.Skipped {
		if s.Path.Check() != nil {
			return violation("skipped path")
		}
		r.Skipped[i].Why = cleanText(s.Why, maxShortText)
	}
	if r.Skipped == nil {
		r.Skipped = []Skipped{}
	}
	return nil
}

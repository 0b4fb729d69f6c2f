package workbench

import (
	"errors"
	"fmt"
)

// Code names an error for programs. The set is closed: see ErrorTable.
type Code string

// The error codes.
const (
	CodeInvalidRequest     Code = "invalid_request"
	CodeUnknownField       Code = "unknown_field"
	CodeLimitOutOfRange    Code = "limit_out_of_range"
	CodeUnauthenticated    Code = "unauthenticated"
	CodeForbidden          Code = "forbidden"
	CodeNotFound           Code = "not_found"
	CodeMethodNotAllowed   Code = "method_not_allowed"
	CodeNotAcceptable      Code = "not_acceptable"
	CodeUnsupportedMedia   Code = "unsupported_media_type"
	CodeConflict           Code = "conflict"
	CodeIdempotencyReused  Code = "idempotency_key_reused"
	CodeIdempotencyHeader  Code = "idempotency_key_mismatch"
	CodeRunsActive         Code = "runs_active"
	CodeContextNotFound    Code = "context_not_found"
	CodeContextExists      Code = "context_exists"
	CodeContextLanguage    Code = "context_language"
	CodeContextLost        Code = "context_lost"
	CodeVersionMismatch    Code = "version_mismatch"
	CodeReplayRequired     Code = "replay_required"
	CodeReplayTools        Code = "replay_called_tools"
	CodeSessionClosed      Code = "session_closed"
	CodeSessionExpired     Code = "session_expired"
	CodeArtifactDeleted    Code = "artifact_deleted"
	CodeArtifactExpired    Code = "artifact_expired"
	CodeCommitGone         Code = "commit_gone"
	CodePathConflict       Code = "path_conflict"
	CodePathInvalid        Code = "path_invalid"
	CodeFileTooLarge       Code = "file_too_large"
	CodeQuotaExceeded      Code = "quota_exceeded"
	CodeBodyTooLarge       Code = "body_too_large"
	CodeRangeInvalid       Code = "range_not_satisfiable"
	CodeOffsetInvalid      Code = "offset_invalid"
	CodeToolNotFound       Code = "tool_not_found"
	CodeToolNotAllowed     Code = "tool_not_allowed"
	CodeToolChanged        Code = "tool_changed"
	CodeToolUnavailable    Code = "tool_unavailable"
	CodeToolTimeout        Code = "tool_timeout"
	CodeToolFailed         Code = "tool_failed"
	CodeToolCallLimit      Code = "tool_calls_exhausted"
	CodePackages           Code = "packages_refused"
	CodeArgumentsInvalid   Code = "arguments_invalid"
	CodeSchemaInvalid      Code = "schema_invalid"
	CodeResultTooLarge     Code = "result_too_large"
	CodeAccessDenied       Code = "access_denied"
	CodeRuleInvalid        Code = "rule_invalid"
	CodeApprovalDecided    Code = "approval_decided"
	CodeApprovalExpired    Code = "approval_expired"
	CodeConnectionRevoked  Code = "connection_revoked"
	CodeConnectionRefused  Code = "connection_not_allowed"
	CodeConnectionNotFound Code = "connection_not_found"
	CodeLanguageUnknown    Code = "language_not_available"
	CodeSizeUnavailable    Code = "size_unavailable"
	CodeImageNotFound      Code = "image_not_found"
	CodeImageInvalid       Code = "image_invalid"
	CodeImageInUse         Code = "image_in_use"
	CodeQueueFull          Code = "queue_full"
	CodeRateLimited        Code = "rate_limited"
	CodeCapacity           Code = "capacity_exhausted"
	CodeNotBuilt           Code = "not_built"
	CodeUnavailable        Code = "unavailable"
	CodeRuntimeUnavailable Code = "runtime_unavailable"
	CodeSandboxStart       Code = "sandbox_start_failed"
	CodeSandboxLost        Code = "sandbox_lost"
	CodeGuestProtocol      Code = "guest_protocol"
	CodeWorkspaceFull      Code = "workspace_full"
	CodeFenced             Code = "fenced"
	CodeKeyUnavailable     Code = "encryption_key_unavailable"
	CodeCorrupt            Code = "content_corrupt"
	CodeCancelled          Code = "request_cancelled"
	CodeInternal           Code = "internal"
)

// ErrorClass is how one code shows at each edge.
type ErrorClass struct {
	Code      Code
	HTTP      int  // status of the problem+json answer
	Exit      int  // exit status of the command line
	Retryable bool // whether the same request may succeed later, unchanged
	Title     string
}

// Exit statuses of the command line. 0 is success; a run that ended as failed
// exits with ExitRunFailed unless its own exit code is passed on.
const (
	ExitFailure     = 1 // anything without a better number
	ExitUsage       = 2 // wrong flags, wrong input
	ExitAuth        = 3 // no key, wrong key, not allowed
	ExitNotFound    = 4
	ExitConflict    = 5
	ExitGone        = 6 // closed, expired, deleted
	ExitLimit       = 7 // quota, size, rate
	ExitUnavailable = 8 // server, runtime or host not able right now
	ExitRunFailed   = 9 // the program failed, timed out or was cancelled
	ExitRunUnknown  = 10
)

// errorTable is the one mapping from code to HTTP status and exit status.
var errorTable = []ErrorClass{
	{CodeInvalidRequest, 400, ExitUsage, false, "Invalid request"},
	{CodeUnknownField, 400, ExitUsage, false, "Unknown field"},
	{CodeLimitOutOfRange, 400, ExitUsage, false, "Limit out of range"},
	{CodePathInvalid, 400, ExitUsage, false, "Invalid path"},
	{CodeOffsetInvalid, 400, ExitUsage, false, "Invalid offset"},
	{CodeIdempotencyHeader, 400, ExitUsage, false, "Idempotency keys differ"},
	{CodeLanguageUnknown, 400, ExitUsage, false, "Language not available"},
	{CodeToolNotFound, 400, ExitUsage, false, "Tool not found"},
	{CodeConnectionNotFound, 400, ExitUsage, false, "Connection not found"},
	{CodeImageNotFound, 400, ExitUsage, false, "Image not found"},
	{CodeImageInvalid, 400, ExitUsage, false, "Image invalid"},
	{CodeSizeUnavailable, 400, ExitUsage, false, "Size not available"},
	{CodeArgumentsInvalid, 400, ExitUsage, false, "Arguments invalid"},
	{CodeSchemaInvalid, 400, ExitUsage, false, "Schema invalid"},
	{CodeRuleInvalid, 400, ExitUsage, false, "Rule invalid"},
	{CodeUnauthenticated, 401, ExitAuth, false, "Not authenticated"},
	{CodeForbidden, 403, ExitAuth, false, "Not allowed"},
	{CodeAccessDenied, 403, ExitAuth, false, "Denied by the rules"},
	{CodeToolNotAllowed, 403, ExitAuth, false, "Tool not allowed here"},
	{CodeConnectionRefused, 403, ExitAuth, false, "Connection not allowed here"},
	{CodeNotFound, 404, ExitNotFound, false, "Not found"},
	{CodeContextNotFound, 404, ExitNotFound, false, "Context not found"},
	{CodeMethodNotAllowed, 405, ExitUsage, false, "Method not allowed"},
	{CodeNotAcceptable, 406, ExitUsage, false, "Not acceptable"},
	{CodeConflict, 409, ExitConflict, false, "Conflict"},
	{CodeIdempotencyReused, 409, ExitConflict, false, "Idempotency key reused"},
	{CodeRunsActive, 409, ExitConflict, true, "Runs are active"},
	{CodeContextExists, 409, ExitConflict, false, "Context exists"},
	{CodeContextLanguage, 409, ExitConflict, false, "Context of another language"},
	{CodeContextLost, 409, ExitConflict, false, "Context lost"},
	{CodeToolChanged, 409, ExitConflict, false, "Tool has changed"},
	{CodeApprovalDecided, 409, ExitConflict, false, "Decided already"},
	{CodePathConflict, 409, ExitConflict, false, "Path conflict"},
	{CodeImageInUse, 409, ExitConflict, false, "Image in use"},
	{CodeFenced, 409, ExitConflict, true, "Superseded"},
	{CodeSessionClosed, 410, ExitGone, false, "Session closed"},
	{CodeSessionExpired, 410, ExitGone, false, "Session expired"},
	{CodeArtifactDeleted, 410, ExitGone, false, "Artifact deleted"},
	{CodeArtifactExpired, 410, ExitGone, false, "Artifact expired"},
	{CodeCommitGone, 410, ExitGone, false, "Commit gone"},
	{CodeApprovalExpired, 410, ExitGone, false, "Approval expired"},
	{CodeConnectionRevoked, 410, ExitGone, false, "Connection revoked"},
	{CodeVersionMismatch, 412, ExitConflict, false, "Version mismatch"},
	{CodeReplayRequired, 409, ExitConflict, false, "Replay required"},
	{CodeReplayTools, 409, ExitConflict, false, "Replay would call tools"},
	{CodeFileTooLarge, 413, ExitLimit, false, "File too large"},
	{CodeBodyTooLarge, 413, ExitLimit, false, "Body too large"},
	{CodeUnsupportedMedia, 415, ExitUsage, false, "Unsupported media type"},
	{CodeRangeInvalid, 416, ExitUsage, false, "Range not satisfiable"},
	{CodeQuotaExceeded, 422, ExitLimit, false, "Quota exceeded"},
	{CodeWorkspaceFull, 422, ExitLimit, false, "Workspace full"},
	{CodeToolCallLimit, 422, ExitLimit, false, "Tool calls used up"},
	{CodePackages, 422, ExitUsage, false, "Packages cannot be installed"},
	{CodeQueueFull, 429, ExitLimit, true, "Queue full"},
	{CodeRateLimited, 429, ExitLimit, true, "Too many requests"},
	{CodeCancelled, 499, ExitFailure, true, "Request cancelled"},
	{CodeInternal, 500, ExitFailure, true, "Internal error"},
	{CodeCorrupt, 500, ExitFailure, false, "Stored content is damaged"},
	{CodeKeyUnavailable, 500, ExitUnavailable, false, "Encryption key not available"},
	{CodeNotBuilt, 501, ExitUnavailable, false, "Not built yet"},
	{CodeToolFailed, 502, ExitFailure, false, "Tool failed"},
	{CodeResultTooLarge, 502, ExitFailure, false, "Result too large"},
	{CodeToolUnavailable, 503, ExitUnavailable, true, "Tool not available"},
	{CodeToolTimeout, 504, ExitUnavailable, false, "Tool did not answer in time"},
	{CodeSandboxStart, 503, ExitUnavailable, true, "Sandbox did not start"},
	{CodeSandboxLost, 503, ExitUnavailable, true, "Sandbox lost"},
	{CodeGuestProtocol, 503, ExitUnavailable, true, "Sandbox misbehaved"},
	{CodeRuntimeUnavailable, 503, ExitUnavailable, true, "Runtime not available"},
	{CodeCapacity, 503, ExitUnavailable, true, "No capacity"},
	{CodeUnavailable, 503, ExitUnavailable, true, "Not available"},
}

// ErrorTable returns a copy of the table: every code once.
func ErrorTable() []ErrorClass { return append([]ErrorClass(nil), errorTable...) }

// ClassOf returns the class of a code; an unknown code is internal's.
func ClassOf(code Code) ErrorClass {
	for _, c := range errorTable {
		if c.Code == code {
			return c
		}
	}
	return ClassOf(CodeInternal)
}

// Error is the one error type that crosses rooms: a code for programs, a
// detail and a hint that are safe to show to the caller, and a private cause
// that only logs see.
type Error struct {
	Code   Code
	Detail string // what is wrong, without secrets and without echoing bad values
	Hint   string // what to do next; may be empty
	Field  string // the request field or parameter at fault; may be empty
	cause  error
}

// E makes an error with a formatted, public detail.
func E(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// WithHint returns a copy that says what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithField returns a copy that names the field at fault.
func (e *Error) WithField(field string) *Error {
	c := *e
	c.Field = field
	return &c
}

// Caused returns a copy with a private cause, for logs and errors.Is.
func (e *Error) Caused(err error) *Error {
	c := *e
	c.cause = err
	return &c
}

// Error is for logs: it includes the private cause.
func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Detail
	if e.Field != "" {
		s += " (field " + e.Field + ")"
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap gives the private cause.
func (e *Error) Unwrap() error { return e.cause }

// AsError finds the *Error in err's chain; any other error becomes internal
// with err as its private cause. nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return E(CodeInternal, "something went wrong on the server").
		WithHint("try again; if it persists, quote the request id to the operator").Caused(err)
}

// CodeOf is the code of err, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}

// HasCode reports whether err carries the code.
func HasCode(err error, code Code) bool { return err != nil && CodeOf(err) == code }

// ErrStopping is the cause of what is refused or cut short because the server
// stops: nothing is wrong then.
var ErrStopping = errors.New("the server is stopping")

// ErrNotFound is the answer for what does not exist and for what the caller
// may not see: the two are not told apart.
func ErrNotFound(what string) *Error {
	return E(CodeNotFound, "no such %s", what).
		WithHint("check the id, and that this key may see it")
}

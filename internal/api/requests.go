package api

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/workbenchdev/workbench"
)

// The request bodies. Field tags are the schema that a body is checked
// against before it is decoded; what depends on the session's limits is
// checked by the engine.

// CreateSessionRequest is the body of POST /v1/workbench/sessions.
type CreateSessionRequest struct {
	Kind        workbench.SessionKind `json:"kind,omitempty" doc:"personal acts as its owner, business binds one end user; default by the kind of key"`
	Agent       string                `json:"agent,omitempty" maxLength:"200" doc:"descriptive label; grants nothing"`
	Labels      map[string]string     `json:"labels,omitempty" maxProperties:"32" doc:"free labels to find sessions by; keys and values of at most 128 bytes"`
	Tools       []ToolInput           `json:"tools,omitempty" maxItems:"200" doc:"tools the code may call, at exact versions"`
	Connections []string              `json:"connections,omitempty" maxItems:"50" doc:"connection aliases the code may use"`
	Limits      *LimitsInput          `json:"limits,omitempty" doc:"lowers limits of the size; never raises them"`
	Size        string                `json:"size,omitempty" maxLength:"64" doc:"a size of GET /v1/workbench/runtime-tiers; default standard"`
	SandboxSize string                `json:"sandboxSize,omitempty" maxLength:"64" doc:"another name of size"`
	Image       string                `json:"image,omitempty" maxLength:"128" doc:"name or id of an image; default the server's"`
	TTLMs       *int64                `json:"ttlMs,omitempty" doc:"how long the session lives; default 24 h, at most 8 days"`
	KeepMemory  bool                  `json:"keepMemory,omitempty" doc:"when the session is suspended for want of work, keep its variables and processes too, and have them back with the next run; gVisor only"`

	KeepAtExpiry []string `json:"keepAtExpiry,omitempty" maxItems:"20" doc:"globs of files of the last commit to retain when the session reaches its deadline, within the quota; not when it is closed"`
}

// LimitsInput lowers limits of a session. What is left out stays as it is: the
// size's in a new session, the session's own when it is configured.
type LimitsInput struct {
	MemoryBytes       *int64 `json:"memoryBytes,omitempty"`
	WorkspaceBytes    *int64 `json:"workspaceBytes,omitempty"`
	Tasks             *int   `json:"tasks,omitempty" doc:"processes and threads of user code"`
	TimeoutMs         *int64 `json:"timeoutMs,omitempty" doc:"wall time of a run that names none; maxTimeoutMs is the longest one may name"`
	MaxTimeoutMs      *int64 `json:"maxTimeoutMs,omitempty" doc:"longest wall time a run may ask for; lowers timeoutMs with it"`
	OutputBytes       *int64 `json:"outputBytes,omitempty" doc:"captured per stream"`
	FileBytes         *int64 `json:"fileBytes,omitempty" doc:"per retained file"`
	SessionFilesBytes *int64 `json:"sessionFilesBytes,omitempty"`
	SessionFiles      *int   `json:"sessionFiles,omitempty"`
	ToolCalls         *int   `json:"toolCalls,omitempty" doc:"governed tool calls per run"`
}

func (l *LimitsInput) request() *workbench.LimitsRequest {
	if l == nil {
		return nil
	}
	r := workbench.LimitsRequest(*l)
	return &r
}

// ConfigureRequest is the body of POST …/configure: a new revision. What is
// left out stays as it is.
type ConfigureRequest struct {
	Agent                  *string            `json:"agent,omitempty" maxLength:"200"`
	Labels                 *map[string]string `json:"labels,omitempty" maxProperties:"32" doc:"replaces all labels"`
	Tools                  *[]ToolInput       `json:"tools,omitempty" maxItems:"200" doc:"replaces the allowlist"`
	Connections            *[]string          `json:"connections,omitempty" maxItems:"50" doc:"replaces the aliases"`
	Limits                 *LimitsInput       `json:"limits,omitempty" doc:"changes the limits that are named, up to the size's; the others stay as they are. To undo a lower one, name the size's value (GET /v1/workbench/runtime-tiers)"`
	KeepAtExpiry           *[]string          `json:"keepAtExpiry,omitempty" maxItems:"20" doc:"replaces the globs"`
	ExpectedCurrentVersion *int64             `json:"expectedCurrentVersion,omitempty" minimum:"1" doc:"the revision the caller believes to be current; another one answers 412. If-Match says the same"`
}

// RestartRequest is the body of POST …/restart.
type RestartRequest struct {
	ArtifactIDs  []SelectInput `json:"artifactIds,omitempty" maxItems:"100" doc:"retained files to restore into the new workspace; nothing else is"`
	CancelActive bool          `json:"cancelActive,omitempty" doc:"cancel runs that are not terminal first, instead of answering 409"`
}

// RollbackRequest is the body of POST …/rollback.
type RollbackRequest struct {
	Commit       string `json:"commit,omitempty" maxLength:"64" doc:"the commit of this session to go back to"`
	Run          string `json:"run,omitempty" maxLength:"64" doc:"the run of this session whose outcome to go back to, instead of commit"`
	ExpectedHead string `json:"expectedHead,omitempty" maxLength:"64" doc:"the commit the caller believes to be the last; another one answers 412"`
}

// ForkRequest is the body of POST …/fork. What is left out is as in the session
// that is forked.
type ForkRequest struct {
	Commit string            `json:"commit,omitempty" maxLength:"64" doc:"the commit of this session to begin with; default its last"`
	Run    string            `json:"run,omitempty" maxLength:"64" doc:"the run of this session whose outcome to begin with, instead of commit"`
	Agent  *string           `json:"agent,omitempty" maxLength:"200" doc:"descriptive label; grants nothing"`
	Labels map[string]string `json:"labels,omitempty" maxProperties:"32" doc:"replaces all labels"`
	Limits *LimitsInput      `json:"limits,omitempty" doc:"changes the limits that are named, up to the size's"`
	Size   string            `json:"size,omitempty" maxLength:"64" doc:"a size of GET /v1/workbench/runtime-tiers; with it the limits are the size's"`
	Image  string            `json:"image,omitempty" maxLength:"128" doc:"name or id of an image"`
	TTLMs  *int64            `json:"ttlMs,omitempty" doc:"how long the new session lives; default 24 h, at most 8 days"`
}

// MoveRequest is the body of POST …/workspace/move.
type MoveRequest struct {
	From       string `json:"from,omitempty" maxLength:"4096" doc:"exact path of what is there"`
	FromBase64 string `json:"fromBase64,omitempty" maxLength:"6144" doc:"its bytes, for a name that is not UTF-8"`
	To         string `json:"to,omitempty" maxLength:"4096" doc:"exact path that it gets; directories above it are made"`
	ToBase64   string `json:"toBase64,omitempty" maxLength:"6144" doc:"its bytes, for a name that is not UTF-8"`
	Overwrite  bool   `json:"overwrite,omitempty" doc:"replace a file or link that is there; a directory never is"`
}

// DirectoryRequest is the body of POST …/workspace/directories.
type DirectoryRequest struct {
	Path       string `json:"path,omitempty" maxLength:"4096" doc:"exact path of the directory"`
	PathBase64 string `json:"pathBase64,omitempty" maxLength:"6144" doc:"its bytes, for a name that is not UTF-8"`
}

// EmptyRequest is the body of an action without settings. It may be left out.
type EmptyRequest struct{}

// RunOptions are the settings that every way to submit code shares.
type RunOptions struct {
	Args           []string          `json:"args,omitempty" maxItems:"64" doc:"arguments of the program"`
	Env            map[string]string `json:"env,omitempty" maxProperties:"64" doc:"environment variables; sealed like the code, never logged"`
	Stdin          string            `json:"stdin,omitempty" doc:"standard input; at its end without it"`
	TimeoutMs      *int64            `json:"timeoutMs,omitempty" doc:"wall time; the default is limits.timeoutMs of the session, the longest its limits.maxTimeoutMs; of a background run both are 3600000"`
	OutputBytes    *int64            `json:"outputBytes,omitempty" doc:"captured per stream; the rest goes to a retained file"`
	ArtifactIDs    []SelectInput     `json:"artifactIds,omitempty" maxItems:"100" doc:"retained files to put into the workspace first"`
	Keep           []string          `json:"keep,omitempty" maxItems:"20" doc:"globs of files to retain after the run"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty" minLength:"1" maxLength:"255" doc:"the same key and request give the same run; the header Idempotency-Key says the same"`

	ContextID     *string                     `json:"contextId,omitempty" maxLength:"64" doc:"makes it a cell of that context; \"default\" needs no creating"`
	OnLostContext workbench.LostContextPolicy `json:"onLostContext,omitempty" doc:"cells: what to do when the context's variables are gone and nobody was told; default fail, and restart runs in a fresh interpreter with a notice"`

	Background     *bool          `json:"background,omitempty" doc:"execute beside the foreground queue, for up to 60 minutes; a few at once"`
	AfterExecution map[string]any `json:"afterExecution,omitempty" doc:"not built yet: saved waits"`
	ReusableRun    *ReusableInput `json:"reusableRun,omitempty" doc:"whether the run becomes a version that can be run again; by default, of a series of its own"`
}

// ReusableInput says what becomes of a successful run.
type ReusableInput struct {
	Mode     workbench.ReuseMode `json:"mode,omitempty" doc:"auto, the default, or off: it becomes no version"`
	SeriesID string              `json:"seriesId,omitempty" maxLength:"64" doc:"the series whose next version it becomes; without it a new one"`
}

// ReplayRequest is the body of POST …/series/{id}/replays.
type ReplayRequest struct {
	Version        *int64                `json:"version,omitempty" minimum:"1" doc:"default the last"`
	Tools          workbench.ReplayTools `json:"tools,omitempty" doc:"what becomes of tool calls: refuse, the default, replays no version that made any; recorded gives what its calls gave. No tool is called either way"`
	IdempotencyKey string                `json:"idempotencyKey,omitempty" minLength:"1" maxLength:"255" doc:"the same key and request give the same replay; the header Idempotency-Key says the same"`
}

// PublishRequest is the body of POST …/series/{id}/publish.
type PublishRequest struct {
	Version  int64 `json:"version" minimum:"1" doc:"the version to publish; one of its replays must have matched"`
	Expected int64 `json:"expectedPublishedVersion" minimum:"0" doc:"the version that the caller believes to be published; 0: none. Another one answers 412"`
}

// RollbackSeriesRequest is the body of POST …/series/{id}/rollback.
type RollbackSeriesRequest struct {
	Version  *int64 `json:"version,omitempty" minimum:"1" doc:"a version that was published; default the one before"`
	Expected int64  `json:"expectedPublishedVersion" minimum:"0" doc:"the version that the caller believes to be published. Another one answers 412"`
}

// RunSeriesRequest is the body of POST …/series/{id}/runs. What is left out is as
// the version has it.
type RunSeriesRequest struct {
	Version        *int64            `json:"version,omitempty" minimum:"1" doc:"default the published one"`
	Args           *[]string         `json:"args,omitempty" maxItems:"64" doc:"replaces the version's arguments"`
	Env            map[string]string `json:"env,omitempty" maxProperties:"64" doc:"environment variables beside the version's; the same name counts here"`
	Stdin          *string           `json:"stdin,omitempty" doc:"replaces the version's standard input"`
	TimeoutMs      *int64            `json:"timeoutMs,omitempty" doc:"wall time; default the version's"`
	ArtifactIDs    []SelectInput     `json:"artifactIds,omitempty" maxItems:"100" doc:"retained files to put into the version's workspace first"`
	Keep           *[]string         `json:"keep,omitempty" maxItems:"20" doc:"replaces the version's globs of files to retain"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty" minLength:"1" maxLength:"255" doc:"the same key and request give the same run; the header Idempotency-Key says the same"`
}

// SubmitRunRequest is the body of POST …/sessions/{id}/runs.
type SubmitRunRequest struct {
	Language workbench.Language `json:"language,omitempty" doc:"what the code is written in; a cell (contextId) that leaves it out is in its context's"`
	Code     string             `json:"code" minLength:"1" doc:"the source"`
	RunOptions
}

// RunCodeRequest is the body of POST /v1/workbench/run_code.
type RunCodeRequest struct {
	SessionID string             `json:"sessionId"`
	Language  workbench.Language `json:"language,omitempty" doc:"what the code is written in; a cell (contextId) that leaves it out is in its context's"`
	Code      string             `json:"code" minLength:"1" doc:"the source"`
	RunOptions
}

// BashRequest is the body of POST /v1/workbench/bash. It equals run_code with
// the language bash.
type BashRequest struct {
	SessionID string `json:"sessionId"`
	Command   string `json:"command" minLength:"1" doc:"a Bash script"`
	RunOptions
}

// CreateKeyRequest is the body of POST /v1/workbench/keys.
type CreateKeyRequest struct {
	Kind      workbench.KeyKind `json:"kind" doc:"direct binds one tenant and user, embedded acts for whom the client names, admin manages"`
	Name      string            `json:"name,omitempty" maxLength:"128" doc:"for people"`
	Tenant    string            `json:"tenant,omitempty" maxLength:"128" doc:"direct keys: the tenant's name; a new one is created"`
	User      string            `json:"user,omitempty" maxLength:"128" doc:"direct keys: the user's name; a new one is created"`
	Tenants   []string          `json:"tenants,omitempty" maxItems:"256" doc:"embedded keys: the tenant names the key is limited to; empty means any"`
	Scopes    []workbench.Scope `json:"scopes,omitempty" maxItems:"4" doc:"default execute and read; admin keys manage and read"`
	SessionID string            `json:"sessionId,omitempty" doc:"narrows the key to one session"`
	Contents  bool              `json:"contents,omitempty" doc:"admin keys: may also read code, output and files"`
	ExpiresAt *time.Time        `json:"expiresAt,omitempty"`
}

// ToolInput is a tool at an exact version: {"name", "version"} or
// "name@version".
type ToolInput struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// toolObject is ToolInput as an object: it has no methods.
type toolObject struct {
	Name    string `json:"name" minLength:"1" maxLength:"128"`
	Version string `json:"version" minLength:"1" maxLength:"64"`
}

// UnmarshalJSON takes either form; the schema was checked before.
func (t *ToolInput) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		t.Name, t.Version, _ = strings.Cut(s, "@")
		return nil
	}
	return json.Unmarshal(b, (*toolObject)(t))
}

// Schema describes both forms.
func (ToolInput) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, Pattern: `^[^@\s]{1,128}@[^@\s]{1,64}$`, Description: "name@version"},
		refTo[toolObject](r, "ToolSelection"),
	}}
}

// SelectInput is a retained file to put into a workspace: its id, or
// {"id", "path"}.
type SelectInput struct {
	ID   string `json:"id"`
	Path string `json:"path,omitempty"`
}

type selectObject struct {
	ID   string `json:"id" maxLength:"64"`
	Path string `json:"path,omitempty" maxLength:"1024" doc:"where it goes in the workspace; default the file's name"`
}

// UnmarshalJSON takes either form; the schema was checked before.
func (s *SelectInput) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &s.ID)
	}
	return json.Unmarshal(b, (*selectObject)(s))
}

// Schema describes both forms.
func (SelectInput) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, MaxLength: ptr(64), Description: "artifact id"},
		refTo[selectObject](r, "ArtifactSelection"),
	}}
}

func ptr[T any](v T) *T { return &v }

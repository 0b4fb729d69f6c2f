package workbench

import (
	"fmt"
	"time"
)

// Limits are the bounds of a session and of each of its runs, as they are in
// effect. Zero never means "no limit" here: every field is set.
type Limits struct {
	CPUs               float64 `json:"cpus"`
	MemoryBytes        int64   `json:"memoryBytes"`
	WorkspaceBytes     int64   `json:"workspaceBytes"`
	WorkspaceFiles     int64   `json:"workspaceFiles"` // inodes: files, directories and links
	ScratchBytes       int64   `json:"scratchBytes"`   // /tmp and /dev/shm together
	Tasks              int     `json:"tasks"`          // processes and threads of user code
	OpenFiles          int     `json:"openFiles"`      // per process
	TimeoutMs          int64   `json:"timeoutMs"`      // default wall time of a run
	MaxTimeoutMs       int64   `json:"maxTimeoutMs"`   // longest wall time a foreground run may ask for
	OutputBytes        int64   `json:"outputBytes"`    // captured per stream
	FileBytes          int64   `json:"fileBytes"`      // per retained file
	SessionFilesBytes  int64   `json:"sessionFilesBytes"`
	SessionFiles       int     `json:"sessionFiles"`
	ToolCalls          int     `json:"toolCalls"` // governed tool calls per run
	QueuedRuns         int     `json:"queuedRuns"`
	CodeBytes          int64   `json:"codeBytes"`
	StdinBytes         int64   `json:"stdinBytes"`
	TenantFilesBytes   int64   `json:"tenantFilesBytes"`
	RetentionMs        int64   `json:"retentionMs"` // of a retained file
	StructuredResult   int64   `json:"resultBytes"`
	ChangedFilesListed int     `json:"changedFilesListed"` // entries of one receipt page
}

// LimitsRequest lowers limits of a session. A nil field keeps what is in
// effect: the size's in a new session, the session's own when it is configured.
type LimitsRequest struct {
	MemoryBytes       *int64 `json:"memoryBytes,omitempty"`
	WorkspaceBytes    *int64 `json:"workspaceBytes,omitempty"`
	Tasks             *int   `json:"tasks,omitempty"`
	TimeoutMs         *int64 `json:"timeoutMs,omitempty"`
	MaxTimeoutMs      *int64 `json:"maxTimeoutMs,omitempty"`
	OutputBytes       *int64 `json:"outputBytes,omitempty"`
	FileBytes         *int64 `json:"fileBytes,omitempty"`
	SessionFilesBytes *int64 `json:"sessionFilesBytes,omitempty"`
	SessionFiles      *int   `json:"sessionFiles,omitempty"`
	ToolCalls         *int   `json:"toolCalls,omitempty"`
}

// Byte units.
const (
	KiB = int64(1) << 10
	MiB = int64(1) << 20
	GiB = int64(1) << 30
)

// Ceilings no operator setting passes.
const (
	MaxForegroundTimeout = 180 * time.Second
	MaxBackgroundTimeout = 60 * time.Minute // also a background run's time if it names none
	MaxOutputBytes       = 2 * MiB
	MinTimeoutMs         = 100
	MinMemoryBytes       = 32 * MiB
	MinWorkspaceBytes    = 1 * MiB
	MinTasks             = 4
	DefaultSessionTTL    = 24 * time.Hour
	MaxSessionTTL        = 8 * 24 * time.Hour
	MinSessionTTL        = time.Second
	DefaultRetention     = 7 * 24 * time.Hour
	// What the histories of workspaces may take, where the operator sets nothing
	// else.
	DefaultSessionHistoryBytes = 10 * GiB
	DefaultTenantHistoryBytes  = 100 * GiB
	// ReceiptGrace is how long a receipt stays after its session ended and its
	// last retained file went.
	ReceiptGrace = 7 * 24 * time.Hour
)

// DefaultWarnings are the times before a session's deadline at which it is
// warned.
func DefaultWarnings() []time.Duration { return []time.Duration{10 * time.Minute, time.Minute} }

// Size is a sandbox size: what GET /v1/workbench/runtime-tiers lists.
type Size struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Limits      Limits `json:"limits"`
	Available   bool   `json:"available"`
	Reason      string `json:"reason,omitempty"` // why it is not available
	RateMicros  int64  `json:"rateMicrosPerSecond"`
	RateVersion string `json:"rateVersion"`
	Default     bool   `json:"default"`
	Driver      string `json:"driver,omitempty"`
	Isolation   string `json:"isolation,omitempty"`
}

// DefaultSize is the size of a session that names none.
const DefaultSize = "standard"

// DefaultLimits are the limits of the standard size.
func DefaultLimits() Limits {
	return Limits{
		CPUs: 1, MemoryBytes: 256 * MiB, WorkspaceBytes: 64 * MiB, WorkspaceFiles: 16384, ScratchBytes: 64 * MiB,
		Tasks: 64, OpenFiles: 1024,
		TimeoutMs: 30_000, MaxTimeoutMs: MaxForegroundTimeout.Milliseconds(),
		OutputBytes: 1 * MiB, FileBytes: 8 * MiB, SessionFilesBytes: 64 * MiB, SessionFiles: 100,
		ToolCalls: 25, QueuedRuns: 100, CodeBytes: 1 * MiB, StdinBytes: 1 * MiB,
		TenantFilesBytes: 256 * MiB, RetentionMs: DefaultRetention.Milliseconds(),
		StructuredResult: 256 * KiB, ChangedFilesListed: 1000,
	}
}

// StandardSizes are the published sizes, before the host is asked what it can
// hold.
func StandardSizes() []Size {
	standard := DefaultLimits()
	medium, large := standard, standard
	medium.CPUs, medium.MemoryBytes, medium.WorkspaceBytes, medium.WorkspaceFiles = 2, GiB, 512*MiB, 65536
	large.CPUs, large.MemoryBytes, large.WorkspaceBytes, large.WorkspaceFiles = 4, 4*GiB, 2*GiB, 262144
	return []Size{
		{Name: "standard", Description: "scripts, file generation and light data work", Limits: standard, Available: true, Default: true, RateVersion: "free-1"},
		{Name: "medium", Description: "bigger data sets and memory-hungry libraries", Limits: medium, Available: true, RateVersion: "free-1"},
		{Name: "large", Description: "the most demanding transforms and parallel work", Limits: large, Available: true, RateVersion: "free-1"},
	}
}

// Lower applies a session's request to the limits of its size. A request may
// only lower; anything else is limit_out_of_range naming the field, never
// clamped.
func (l Limits) Lower(r *LimitsRequest) (Limits, error) { return l.Within(l, r) }

// Within applies a request to limits that are in effect, in a session whose
// size has the limits size. What the request does not name stays as it is; what
// it names may go up again, to the size's value and no further.
func (l Limits) Within(size Limits, r *LimitsRequest) (Limits, error) {
	if r == nil {
		return l, nil
	}
	longest := size.MaxTimeoutMs
	if r.MaxTimeoutMs == nil {
		longest = l.MaxTimeoutMs
	}
	checks := []struct {
		field    string
		want     *int64
		min, max int64
		set      func(int64)
	}{
		{"memoryBytes", r.MemoryBytes, MinMemoryBytes, size.MemoryBytes, func(v int64) { l.MemoryBytes = v }},
		{"workspaceBytes", r.WorkspaceBytes, MinWorkspaceBytes, size.WorkspaceBytes, func(v int64) { l.WorkspaceBytes = v }},
		{"tasks", widen(r.Tasks), MinTasks, int64(size.Tasks), func(v int64) { l.Tasks = int(v) }},
		{"maxTimeoutMs", r.MaxTimeoutMs, MinTimeoutMs, size.MaxTimeoutMs, func(v int64) { l.MaxTimeoutMs = v }},
		{"timeoutMs", r.TimeoutMs, MinTimeoutMs, longest, func(v int64) { l.TimeoutMs = v }},
		{"outputBytes", r.OutputBytes, 1, MaxOutputBytes, func(v int64) { l.OutputBytes = v }},
		{"fileBytes", r.FileBytes, 1, size.FileBytes, func(v int64) { l.FileBytes = v }},
		{"sessionFilesBytes", r.SessionFilesBytes, 1, size.SessionFilesBytes, func(v int64) { l.SessionFilesBytes = v }},
		{"sessionFiles", widen(r.SessionFiles), 1, int64(size.SessionFiles), func(v int64) { l.SessionFiles = int(v) }},
		{"toolCalls", widen(r.ToolCalls), 0, int64(size.ToolCalls), func(v int64) { l.ToolCalls = int(v) }},
	}
	for _, c := range checks {
		if c.want == nil {
			continue
		}
		if err := InRange("limits."+c.field, *c.want, c.min, c.max); err != nil {
			if c.field == "timeoutMs" && c.max < size.MaxTimeoutMs {
				return Limits{}, AsError(err).WithHint("send a value in that range, or raise limits.maxTimeoutMs with it")
			}
			return Limits{}, err
		}
		c.set(*c.want)
	}
	if l.TimeoutMs > l.MaxTimeoutMs {
		if r.TimeoutMs != nil {
			return Limits{}, InRange("limits.timeoutMs", l.TimeoutMs, MinTimeoutMs, l.MaxTimeoutMs)
		}
		l.TimeoutMs = l.MaxTimeoutMs
	}
	return l, nil
}

// InRange returns limit_out_of_range, naming the field and its range, unless
// low <= v <= high.
func InRange(field string, v, low, high int64) error {
	if v >= low && v <= high {
		return nil
	}
	return E(CodeLimitOutOfRange, "%s must be between %d and %d", field, low, high).
		WithField(field).WithHint("%s", fmt.Sprintf("send a value in that range, or leave %s out for the default", field))
}

// TimeoutInRange returns limit_out_of_range unless a run of the lane may ask for
// the wall time. longest is what a foreground run may ask for.
func TimeoutInRange(ms int64, background bool, longest int64) error {
	const most = int64(MaxBackgroundTimeout / time.Millisecond)
	if background {
		longest = most
	}
	err := InRange("timeoutMs", ms, MinTimeoutMs, longest)
	switch {
	case err == nil:
		return nil
	case background:
		return AsError(err).WithHint("send a value in that range, or leave timeoutMs out: a background run then has the longest")
	case ms > longest && ms <= most:
		return AsError(err).WithHint("send a value in that range, or background: true for a run of up to %d ms; limits.maxTimeoutMs of the session is a foreground run's longest", most)
	}
	return AsError(err).WithHint("send a value in that range, or leave timeoutMs out for limits.timeoutMs of the session; its limits.maxTimeoutMs is the longest")
}

func widen(v *int) *int64 {
	if v == nil {
		return nil
	}
	w := int64(*v)
	return &w
}

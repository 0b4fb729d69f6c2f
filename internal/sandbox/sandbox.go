// Package sandbox is the seam between the engine and whatever isolates user
// code: the Driver and Sandbox interfaces, the plain data that crosses them,
// and what a driver must say honestly about itself.
//
// A driver starts unbound sandboxes of a class (an image and a size). It does
// not know sessions, runs or languages; binding a sandbox to a session and all
// work inside it happen over the sandbox's stream, in the guest protocol.
// Everything that crosses the seam is plain data, so that the seam may become
// a process boundary: the process with the database and the keys need not be
// the process with root.
//
// The package must not know any runtime. Drivers live in packages below it,
// and package sandboxtest holds the suite that each of them must pass.
package sandbox

import (
	"context"
	"io"
	"time"
)

// A Driver starts, finds and ends the sandboxes of one instance (one data
// directory) on one host. Its methods may be called at the same time from
// several goroutines. No method ever touches a sandbox, cgroup, mount or
// directory of another instance.
//
// Errors are *workbench.Error. The codes a method returns are named with it;
// every method may also return internal and
// request_cancelled.
type Driver interface {
	// Name is the driver's configured name: "runsc", "runc", "docker", …
	Name() string

	// Info says what the driver is made of and what it promises on this host.
	// It is cheap after the first call.
	//
	// Codes: runtime_unavailable.
	Info(ctx context.Context) (Info, error)

	// Start starts an unbound sandbox and returns once its first process runs.
	// A Start that fails, or whose context ends, leaves nothing behind.
	//
	// Codes: runtime_unavailable (the runtime is missing or does not work on
	// this host), image_invalid (the image's root may not be used),
	// sandbox_start_failed (this start failed; another may succeed),
	// size_unavailable (a class that this driver or host cannot give).
	Start(ctx context.Context, class Class) (Sandbox, error)

	// List returns every sandbox of this instance, also those that an earlier
	// process of the instance left, oldest first.
	List(ctx context.Context) ([]Handle, error)

	// Attach returns the sandbox with that id. A driver without the Attach
	// capability can only return sandboxes that this process started.
	//
	// Codes: not_found, not_built (found, but this driver cannot attach).
	Attach(ctx context.Context, id string) (Sandbox, error)

	// Kill ends the sandbox with that id and removes everything it had on the
	// host. It is idempotent: killing an unknown id succeeds. It takes a
	// bounded time also when the runtime hangs.
	//
	// Codes: unavailable (something of it stayed busy; Reap tries again).
	Kill(ctx context.Context, id string) error

	// Reap kills every sandbox of this instance that this process did not
	// start, and removes what else is left of ended ones. It reports what it
	// removed and what stayed busy; it returns an error only when it could not
	// look.
	Reap(ctx context.Context) (Reaped, error)

	// Close kills the sandboxes this process started and waits for the
	// driver's goroutines. Start fails afterwards.
	Close(ctx context.Context) error
}

// A Sandbox is one started isolation unit. It serves one session, ever.
type Sandbox interface {
	// ID is the sandbox id, "sbx_…".
	ID() string

	// Class is what it was started as.
	Class() Class

	// Stream is the guest protocol: the stdin and stdout of the sandbox's
	// first process. It is the same value at each call, with one reader and
	// one writer at a time. Reads end with io.EOF when the sandbox has ended.
	// Closing the stream does not end the sandbox at once; the guest leaves by
	// itself some seconds after its stdin ended. What comes from it is hostile.
	Stream() io.ReadWriteCloser

	// Stats measures the whole sandbox from outside, also after it ended
	// (then: the last values seen).
	Stats(ctx context.Context) (Stats, error)

	// Pause stops everything inside until Resume. Both are idempotent.
	//
	// Codes: sandbox_lost (it has ended), not_built.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error

	// Kill is Driver.Kill for this sandbox. After it returned nil nothing of
	// the sandbox is left on the host.
	Kill(ctx context.Context) error

	// Done is closed when the sandbox has ended, for whatever reason, and no
	// process of it runs. What else it has on the host stays until Kill.
	Done() <-chan struct{}

	// Exit says how it ended. Zero (ExitNone) before Done is closed.
	Exit() Exit
}

// Class is what a sandbox is started as. Sandboxes of one class are
// interchangeable until one is bound.
type Class struct {
	Image Image  `json:"image"`
	Tier  string `json:"tier"` // "standard", "medium", "large"; a label only

	CPUs float64 `json:"cpus"` // CPU time per wall time, at most

	// MemoryBytes bounds the memory of user code. WorkspaceBytes and
	// ScratchBytes bound the two memory file systems that the guest mounts at
	// bind: /mnt/files, and /tmp with /dev/shm. The driver's own bound on the
	// whole sandbox is their sum and what the runtime itself needs.
	MemoryBytes     int64 `json:"memoryBytes"`
	WorkspaceBytes  int64 `json:"workspaceBytes"`
	ScratchBytes    int64 `json:"scratchBytes"`
	WorkspaceInodes int64 `json:"workspaceInodes"`

	// Tasks bounds processes and threads of user code. The guest enforces it;
	// the driver's own bound on the whole sandbox lies above.
	Tasks int `json:"tasks"`
}

// Image is a built root file system, as the image store hands it out. The
// paths are on the driver's host.
type Image struct {
	ID     string `json:"id"`              // digest of the built root
	Rootfs string `json:"rootfs"`          // absolute path of the root directory
	Erofs  string `json:"erofs,omitempty"` // absolute path of the same root as an EROFS image; "" when there is none
}

// Handle names a sandbox that a driver found.
type Handle struct {
	ID        string    `json:"id"`
	Instance  string    `json:"instance"`
	Driver    string    `json:"driver"`
	Class     Class     `json:"class"` // zero when its record could not be read
	StartedAt time.Time `json:"startedAt"`
	State     State     `json:"state"`
	Owned     bool      `json:"owned"` // started by this process
}

// State is a found sandbox's state.
type State string

// The states of a found sandbox.
const (
	StateRunning State = "running"
	StatePaused  State = "paused"
	StateEnded   State = "ended" // no process; something of it is still on the host
)

// Stats measures a sandbox from outside. A value the host cannot measure is -1.
type Stats struct {
	CPU             time.Duration `json:"cpuNs"` // CPU time used since start, all processes
	MemoryBytes     int64         `json:"memoryBytes"`
	MemoryPeakBytes int64         `json:"memoryPeakBytes"`
	MemoryLimit     int64         `json:"memoryLimitBytes"` // the host's bound on the whole sandbox
	OOMKills        int64         `json:"oomKills"`         // processes the host killed at that bound
	Tasks           int64         `json:"tasks"`            // host tasks, the runtime's own included
}

// ExitReason says why a sandbox ended.
type ExitReason string

// The reasons a sandbox ends for.
const (
	ExitNone           ExitReason = ""                // it has not ended
	ExitKilled         ExitReason = "killed"          // Kill or Close
	ExitOutOfMemory    ExitReason = "out_of_memory"   // the host ended it at its memory bound
	ExitGuestLeft      ExitReason = "guest_left"      // its first process ended by itself
	ExitRuntimeFailure ExitReason = "runtime_failure" // the runtime died under it
)

// Exit says how a sandbox ended.
type Exit struct {
	Reason ExitReason `json:"reason"`
	Detail string     `json:"detail"` // for the operator; may name host paths
	// Stderr is the bounded tail of the guest's and the runtime's log lines.
	// Hostile text: for the operator's log, never for a client.
	Stderr string    `json:"stderr"`
	At     time.Time `json:"at"`
	Last   Stats     `json:"last"` // measured last before the end
}

// Reaped is what a Reap did.
type Reaped struct {
	Killed  []string   `json:"killed"`  // sandbox ids ended
	Removed []string   `json:"removed"` // cgroups, mounts and directories removed besides
	Left    []Leftover `json:"left"`    // what stayed busy; the next Reap tries again
}

// Leftover is something on the host that could not be removed.
type Leftover struct {
	Sandbox string `json:"sandbox"`
	Kind    string `json:"kind"` // process, cgroup, mount, directory
	Name    string `json:"name"`
	Why     string `json:"why"`
}

package sandbox

import "context"

// Info is what a driver says about itself on this host.
type Info struct {
	Driver   string `json:"driver"`
	Runtime  string `json:"runtime"` // program or server behind it, as a path or an address
	Version  string `json:"version"` // as the runtime prints it
	Platform string `json:"platform,omitempty"`
	Cgroups  string `json:"cgroups"` // v1, hybrid, v2

	// Isolation is one honest paragraph: what stands between hostile code and
	// the host, and what does not.
	Isolation    string       `json:"isolation"`
	Strength     Strength     `json:"strength"`
	Capabilities Capabilities `json:"capabilities"`
	Warnings     []Warning    `json:"warnings"` // empty, never nil
}

// Strength orders drivers by what code they are made for.
type Strength string

// The strengths of an isolation.
const (
	StrengthHostile Strength = "hostile" // code whose author is an attacker: a kernel of its own
	StrengthShared  Strength = "shared"  // code that may be wrong: the host's kernel is shared
)

// Capabilities says what of the seam a driver can do on this host. What is
// false is answered not_built, never silently skipped.
type Capabilities struct {
	Pause         bool `json:"pause"`
	Attach        bool `json:"attach"`        // sandboxes of an earlier process can be attached to
	Checkpoint    bool `json:"checkpoint"`    // it is a Checkpointer
	Restore       bool `json:"restore"`       // it is a Restorer
	InsideCgroups bool `json:"insideCgroups"` // the guest may mount a cgroup2 with a working pids.max
	HostWorkspace bool `json:"hostWorkspace"` // the workspace can be a directory of the host
	SwapBounded   bool `json:"swapBounded"`   // no page of a sandbox reaches the host's swap
}

// Warning is something an operator should know or change.
type Warning struct {
	Code   string `json:"code"` // old_runtime, swap_unbounded, …
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

// A Checkpointer is a Sandbox whose memory can be written out. Declared for
// the drivers that will; see Capabilities.
type Checkpointer interface {
	// Checkpoint writes the sandbox's whole state into the directory and ends
	// the sandbox. The directory's contents are as secret as its memory.
	Checkpoint(ctx context.Context, dir string) error
}

// A Restorer is a Driver that can start a sandbox from a checkpoint.
type Restorer interface {
	Restore(ctx context.Context, class Class, dir string) (Sandbox, error)
}

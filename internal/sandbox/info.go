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

// A Checkpointer is a Sandbox whose memory can be written out; see Capabilities.
// Where the capability is missing, or on a driver without it, the answer is
// not_built.
type Checkpointer interface {
	// Checkpoint writes the sandbox's whole state (memory, processes, both memory
	// file systems, open files and sockets inside) into the directory and ends
	// the sandbox as Kill does. The directory must be empty and open to nobody
	// else. What is in it afterwards is as secret as the sandbox's memory and
	// about as large: it belongs into a file system in memory that is never
	// swapped out, and is to be sealed, or restored, and removed soon.
	//
	// The stream must be open until it returns, and the guest settled
	// (guestwire.Client.Settle); what the sandbox does until it is ended is lost.
	// Once begun a checkpoint is carried out, in bounded time, also when ctx
	// ends.
	//
	// Codes: unavailable (it failed, and the sandbox goes on), sandbox_lost (it
	// failed or the sandbox had ended; the sandbox is gone), conflict (it is
	// paused), not_built. After an error nothing is in the directory.
	Checkpoint(ctx context.Context, dir string) error
}

// A Restorer is a Driver that can start a sandbox from a checkpoint.
type Restorer interface {
	// Restore starts a sandbox, with an id of its own, as what the checkpoint in
	// the directory holds, of the class that was checkpointed. Its stream is a new
	// one: it is dialed anew and the guest woken (guestwire.Client.Wake). The
	// directory may be removed once Restore returned. A Restore that fails, or
	// whose context ends, leaves nothing behind but the directory.
	//
	// A checkpoint may be restored once at most: twice, two sandboxes would have
	// the same tokens and the same random state, and do the same work again. The
	// caller sees to that.
	//
	// vessel is one of the class, which this call uses up whatever comes of it; nil
	// makes all of it now.
	//
	// Codes: as Start, and content_corrupt (the checkpoint is damaged). A
	// checkpoint of another class, of another version of the runtime or the guest,
	// or of a sandbox made differently is sandbox_start_failed, and stays so.
	Restore(ctx context.Context, class Class, dir string, vessel Sandbox) (Sandbox, error)

	// Vessel begins a sandbox of the class in which nothing runs until a checkpoint
	// is restored into it: that part of a Restore which can be done before anybody
	// knows of what. Until then all that can be done with it is to Kill it.
	//
	// Codes: as Start, and not_built.
	Vessel(ctx context.Context, class Class) (Sandbox, error)
}

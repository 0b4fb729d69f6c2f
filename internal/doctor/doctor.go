// Package doctor says what a host can and cannot do for Workbench, and what to
// change. It looks and never changes anything; it starts nothing but the
// runtimes' --version.
package doctor

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// Outcome is what a check found.
type Outcome string

// The outcomes. A failed check is required: without it no sandbox starts. A
// warned one costs safety or comfort. An optional one is not there, and its detail says
// what is lost with it.
const (
	OK       Outcome = "ok"
	Warned   Outcome = "warned"
	Optional Outcome = "optional"
	Failed   Outcome = "failed"
)

// Finding is the result of one check.
type Finding struct {
	ID      string  `json:"id"`
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	Detail  string  `json:"detail"`
	Remedy  string  `json:"remedy,omitempty"`
}

// Image is an image of this host, as far as doctor needs to know.
type Image struct {
	Names     []string
	Languages []string
	EROFS     bool
}

// Host is where doctor looks. Tests put another root before the paths and
// another way to run programs.
type Host struct {
	Root     string // before every path of /proc, /sys and /etc; "" on a real host
	EUID     int
	Caps     uint64 // effective capabilities
	Kernel   string // release, as uname -r prints it
	DataDir  string
	ImageDir string
	Sizes    []workbench.Size
	Images   []Image
	ImageErr error

	// Runtimes are the programs to use: a path, or "" for one that is only
	// looked for in PATH.
	Runtimes map[string]string
	// Embedded are the versions of what this build carries: guest, runsc, runc.
	Embedded map[string]string

	// Look finds a program in PATH; Version runs it with --version.
	Look    func(name string) (string, error)
	Version func(ctx context.Context, path string) (string, error)
	// Free is the number of bytes available below a path.
	Free func(path string) (uint64, error)
	// UserNamespace tries to make one.
	UserNamespace func(ctx context.Context) error
}

// versionTimeout bounds one call of a runtime.
const versionTimeout = 5 * time.Second

// Examine runs every check, in the order a person reads them.
func Examine(ctx context.Context, h Host) []Finding {
	var all []Finding
	for _, check := range []func(context.Context, Host) []Finding{
		system, kernelFlaws, privileges, userNamespaces, systemCallFilter, controlGroups, swap, memory,
		runtimes, images, buildTools, disk, coreDumps, database,
	} {
		all = append(all, check(ctx, h)...)
	}
	return all
}

// Healthy reports whether no finding is failed.
func Healthy(all []Finding) bool {
	for _, f := range all {
		if f.Outcome == Failed {
			return false
		}
	}
	return true
}

// one makes a finding; remedy is shown unless it is ok.
func one(id, name string, outcome Outcome, detail, remedy string) []Finding {
	if outcome == OK {
		remedy = ""
	}
	return []Finding{{ID: id, Name: name, Outcome: outcome, Detail: detail, Remedy: remedy}}
}

package oci

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

// Weakening breaks sandboxes on purpose. It is for package verify, which shows
// with it that its checks notice a broken sandbox, and for the crash tests,
// whose programs leave marks on the host; no setting of the command line leads
// here.
type Weakening struct {
	// Bound holds all sandboxes of the driver together, so that a broken one
	// does the host no harm. It is required.
	Bound cgroup.Limits
	// Spec has the last word on a bundle's configuration.
	Spec func(*specs.Spec)
	// Args has the last word on the runtime's command line.
	Args func([]string) []string
	// Guest is appended to the guest's command line.
	Guest []string
	// AnyImage starts images that would be refused.
	AnyImage bool
}

func (w *Weakening) spec(s *specs.Spec) {
	if w == nil {
		return
	}
	s.Process.Args = append(s.Process.Args, w.Guest...)
	if w.Spec != nil {
		w.Spec(s)
	}
}

func (w *Weakening) args(args []string) []string {
	if w == nil || w.Args == nil {
		return args
	}
	return w.Args(args)
}

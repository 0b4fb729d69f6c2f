package main

import (
	"runtime"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// marksInside is where programs see the folder of marks: an empty directory of
// every image.
const marksInside = "/opt/workbench/packages"

// mountMarks binds the folder into every sandbox, writable. gVisor must not
// keep to itself what is written there, since the host reads it.
func mountMarks(folder string) *oci.Weakening {
	return &oci.Weakening{
		Bound: cgroup.Limits{MemoryBytes: 64 << 30, CPUs: float64(runtime.NumCPU()), Tasks: 200_000}, // none in effect
		Spec: func(s *specs.Spec) {
			s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == marksInside })
			s.Mounts = append(s.Mounts, specs.Mount{Destination: marksInside, Type: "bind", Source: folder,
				Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"}})
		},
		Args: func(args []string) []string {
			if i := slices.Index(args, "--file-access-mounts=exclusive"); i >= 0 {
				args = slices.Clone(args)
				args[i] = "--file-access-mounts=shared"
			}
			return args
		},
	}
}

package oci

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

// With runc, user code has a control group of its own inside the sandbox's,
// with a bound on its memory: the host's kernel holds it, however fast code is
// and however busy the guest. The guest puts every program into it through a
// descriptor that the host opened; code cannot leave it, since no control group
// is mounted inside.

const (
	codeGroup = "code"  // of user code
	restGroup = "guest" // version 2: of everything else
)

// boundsCode reports whether user code gets a control group of its own. Before
// Linux 5.16 the kernel looked at who writes to the descriptor, not at who
// opened it.
func (d *Driver) boundsCode() bool {
	return d.o.Kind == Runc && kernelAtLeast(5, 16)
}

// restOf is where in the sandbox's group the runtime puts the first process.
func (d *Driver) restOf() string {
	if d.site.groups.Mode() == cgroup.ModeV2 {
		return "/" + restGroup
	}
	return ""
}

// codeMemory bounds what user code makes the kernel hold: its own memory and
// scratch space, the workspace, whose pages are charged to whoever writes them,
// and what the kernel itself needs for its tasks and files.
func codeMemory(c sandbox.Class) int64 {
	return c.MemoryBytes + c.WorkspaceBytes + c.WorkspaceInodes*perInode + int64(c.Tasks)*runcPerTask
}

// boundCode makes the group and opens what the guest needs of it; nil where
// there is none.
func (d *Driver) boundCode(l *live) (*cgroup.Inner, error) {
	if !d.boundsCode() {
		return nil, nil
	}
	if err := l.group.CreateInner(codeGroup, codeMemory(l.class)); err != nil {
		return nil, err
	}
	return l.group.OpenInner(codeGroup)
}

// passed are the descriptors that the sandbox's first process gets.
func passed(code *cgroup.Inner) []*os.File {
	if code == nil {
		return nil
	}
	return []*os.File{code.Procs, code.Stat, code.Kills}
}

// kernelAtLeast reports whether the host's kernel is of that version or newer.
func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	return releaseAtLeast(unix.ByteSliceToString(u.Release[:]), major, minor)
}

func releaseAtLeast(release string, major, minor int) bool {
	var have [2]int
	for i := range have {
		n := 0
		for n < len(release) && release[n] >= '0' && release[n] <= '9' {
			have[i] = have[i]*10 + int(release[n]-'0')
			n++
		}
		if n == 0 {
			return false
		}
		release = release[n:]
		if len(release) > 0 && release[0] == '.' {
			release = release[1:]
		}
	}
	return have[0] > major || have[0] == major && have[1] >= minor
}

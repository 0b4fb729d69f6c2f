package doctor

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

// path is where a file of the host is.
func (h Host) path(p string) string { return filepath.Join(h.Root, p) }

// read is a small file of the host, trimmed; "" if there is none.
func (h Host) read(p string) string {
	raw, err := os.ReadFile(h.path(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// neededCaps are those without which root cannot start a sandbox.
var neededCaps = []struct {
	name string
	bit  uint
}{
	{"CHOWN", unix.CAP_CHOWN}, {"DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE}, {"FOWNER", unix.CAP_FOWNER}, {"KILL", unix.CAP_KILL},
	{"SETGID", unix.CAP_SETGID}, {"SETUID", unix.CAP_SETUID}, {"SETPCAP", unix.CAP_SETPCAP}, {"SYS_ADMIN", unix.CAP_SYS_ADMIN},
	{"SYS_CHROOT", unix.CAP_SYS_CHROOT},
}

func privileges(_ context.Context, h Host) []Finding {
	const id, name = "root", "privileges"
	if h.EUID != 0 {
		return one(id, name, Failed, fmt.Sprintf("this process runs as user %d; starting sandboxes needs root", h.EUID),
			"run workbench as root (sudo); code in sandboxes runs unprivileged")
	}
	var lacks []string
	for _, c := range neededCaps {
		if h.Caps&(1<<c.bit) == 0 {
			lacks = append(lacks, "CAP_"+c.name)
		}
	}
	if len(lacks) > 0 {
		return one(id, name, Failed, "root here lacks "+strings.Join(lacks, ", "), "give the container or service these capabilities, or run on the host itself")
	}
	return one(id, name, OK, "root, with the capabilities needed", "")
}

func userNamespaces(ctx context.Context, h Host) []Finding {
	const id, name = "user-namespaces", "user namespaces"
	if h.read("/proc/sys/user/max_user_namespaces") == "0" {
		return one(id, name, Failed, "user namespaces are turned off (user.max_user_namespaces is 0)", "sysctl -w user.max_user_namespaces=15000")
	}
	if err := h.UserNamespace(ctx); err != nil {
		return one(id, name, Failed, "a user namespace with mapped ids could not be made: "+err.Error(),
			"run as root on the host, and allow user namespaces (kernel option CONFIG_USER_NS; a security module may deny them)")
	}
	return one(id, name, OK, "sandboxes can be mapped to unprivileged ids", "")
}

func systemCallFilter(_ context.Context, h Host) []Finding {
	const id, name = "seccomp", "system call filter"
	actions := strings.Fields(h.read("/proc/sys/kernel/seccomp/actions_avail"))
	for _, a := range actions {
		if a == "errno" {
			return one(id, name, OK, "seccomp filters with errno", "")
		}
	}
	return one(id, name, Failed, "the kernel has no seccomp filters", "use a kernel with CONFIG_SECCOMP_FILTER")
}

func controlGroups(_ context.Context, h Host) []Finding {
	const id, name = "cgroups", "control groups"
	g, err := cgroup.Open(h.path(cgroup.DefaultRoot), "workbench-doctor")
	if err != nil {
		return one(id, name, Failed, strings.TrimPrefix(err.Error(), "cgroup: "),
			"mount control groups with the controllers cpu, memory and pids; inside a container, run it with a writable control group name space of its own")
	}
	if h.EUID == 0 && unix.Access(h.path(cgroup.DefaultRoot), unix.W_OK) != nil && g.Mode() == cgroup.ModeV2 {
		return one(id, name, Failed, "control groups ("+string(g.Mode())+") are read-only", "mount /sys/fs/cgroup writable")
	}
	return one(id, name, OK, fmt.Sprintf("%s, with cpu, memory and pids", g.Mode()), "")
}

func swap(_ context.Context, h Host) []Finding {
	const id, name = "swap", "swap"
	if strings.Count(h.read("/proc/swaps"), "\n") == 0 {
		return one(id, name, OK, "the host has none, so no sandbox's memory reaches a disk", "")
	}
	g, err := cgroup.Open(h.path(cgroup.DefaultRoot), "workbench-doctor")
	if err == nil && g.SwapAccounted() {
		return one(id, name, OK, "the host has swap, and sandboxes are kept out of it", "")
	}
	return one(id, name, Warned, "the host has swap that is not accounted to control groups: a sandbox's memory may be written to it", "boot with swapaccount=1, or swapoff -a")
}

// overheadBytes is what a sandbox takes on the host beside what its limits
// name: the gVisor kernel's own state, at the most.
const overheadBytes = 224 << 20

func memory(_ context.Context, h Host) []Finding {
	const id, name = "memory", "sandbox sizes"
	total := h.memTotal()
	if total == 0 {
		return one(id, name, Warned, "the host's memory cannot be read", "")
	}
	var fits, not []string
	standard := false
	for _, s := range h.Sizes {
		need := s.Limits.MemoryBytes + s.Limits.WorkspaceBytes + s.Limits.ScratchBytes + overheadBytes
		switch {
		case need > total:
			not = append(not, fmt.Sprintf("%s needs %d MiB of memory", s.Name, need>>20))
			continue
		case int(s.Limits.CPUs) > runtime.NumCPU():
			not = append(not, fmt.Sprintf("%s needs %s", s.Name, cpus(s.Limits.CPUs)))
			continue
		}
		standard = standard || s.Name == workbench.DefaultSize
		fits = append(fits, s.Name)
	}
	detail := fmt.Sprintf("%d MiB of memory and %s are enough for %s", total>>20, cpus(float64(runtime.NumCPU())), strings.Join(fits, ", "))
	switch {
	case !standard:
		return one(id, name, Failed, fmt.Sprintf("%d MiB of memory are not enough for one sandbox of the size %s", total>>20, workbench.DefaultSize), "use a host with more memory")
	case len(not) > 0:
		return one(id, "bigger sizes", Optional, strings.Join(not, ", ")+", and sessions that ask for that are refused here; "+detail, "use a bigger host for the bigger sizes")
	}
	return one(id, name, OK, detail, "")
}

func cpus(n float64) string {
	if n == 1 {
		return "1 CPU"
	}
	return fmt.Sprintf("%g CPUs", n)
}

func (h Host) memTotal() int64 {
	s := bufio.NewScanner(strings.NewReader(h.read("/proc/meminfo")))
	for s.Scan() {
		if rest, ok := strings.CutPrefix(s.Text(), "MemTotal:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				return kb << 10
			}
		}
	}
	return 0
}

func coreDumps(_ context.Context, h Host) []Finding {
	const id, name = "core-dumps", "core dumps"
	pattern := h.read("/proc/sys/kernel/core_pattern")
	if strings.HasPrefix(pattern, "|") {
		program, _, _ := strings.Cut(strings.TrimPrefix(pattern, "|"), " ")
		return one(id, name, Warned, "crashes of this host are piped to "+program+", which ignores the size limit of 0 that code in a runc sandbox has: its memory may reach the host's disk",
			"sysctl -w kernel.core_pattern=core, or use runsc only")
	}
	return one(id, name, OK, "not piped to a program; code in sandboxes may not write any", "")
}

const (
	leastDisk = 512 << 20
	goodDisk  = 4 << 30
)

func disk(_ context.Context, h Host) []Finding {
	var all []Finding
	for _, d := range []struct{ id, name, dir string }{{"disk-data", "disk for data", h.DataDir}, {"disk-images", "disk for images", h.ImageDir}} {
		free, err := h.Free(d.dir)
		switch {
		case err != nil:
			all = append(all, one(d.id, d.name, Warned, "the free space cannot be read: "+err.Error(), "check the path "+d.dir)...)
		case free < leastDisk:
			all = append(all, one(d.id, d.name, Failed, fmt.Sprintf("%d MiB free at %s", free>>20, d.dir), "free at least 512 MiB, or name another place")...)
		case free < goodDisk:
			all = append(all, one(d.id, d.name, Warned, fmt.Sprintf("%d MiB free at %s", free>>20, d.dir), "the standard image takes about 1 GiB to keep and 3 GiB to build")...)
		default:
			all = append(all, one(d.id, d.name, OK, fmt.Sprintf("%d GiB free at %s", free>>30, d.dir), "")...)
		}
	}
	return all
}

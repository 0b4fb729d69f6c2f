package oci

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// containerID names the one container below a sandbox's own runtime root.
const containerID = "sandbox"

// guestDir is where the guest binary is seen inside, alone in its directory.
const guestDir = "/opt/workbench/bin"

// guestCapabilities are what the supervisor inside needs in its own user
// namespace: to end processes of the code's user, to become that user, to make
// name spaces and mounts for groups, and to empty the bounding set before a
// user byte runs; to have an interpreter forked into a group, it must enter a
// mount name space, which takes the right to change the root as well.
var guestCapabilities = []string{"CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT"}

// buildSpec is the bundle's configuration of one sandbox.
func (d *Driver) buildSpec(l *live) *specs.Spec {
	s := &specs.Spec{
		Version:  "1.0.2", // what every supported runtime reads
		Hostname: "workbench",
		Root:     &specs.Root{Path: l.image.Rootfs, Readonly: true},
		Process: &specs.Process{
			User: specs.User{UID: 0, GID: 0},
			Args: []string{guestDir + "/guest", "supervise"},
			// The guest's own environment; user code never inherits it.
			Env:             []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"},
			Cwd:             "/",
			NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{
				Bounding:  guestCapabilities,
				Effective: guestCapabilities,
				Permitted: guestCapabilities,
				// Neither inheritable nor ambient: an exec keeps none by itself.
			},
			Rlimits:     rlimits(),
			OOMScoreAdj: new(500), // the host gives up a sandbox before the server
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=64k"}},
			{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=755", "size=16m"}},
			{Destination: guestDir, Type: "bind", Source: d.guestDir, Options: []string{"bind", "ro", "nosuid", "nodev"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: d.site.groups.Path(l.id),
			UIDMappings: d.mapping(l.idRange),
			GIDMappings: d.mapping(l.idRange),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.UserNamespace},
			},
		},
	}
	if d.o.Packages != "" {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/opt/workbench/packages", Type: "bind", Source: d.o.Packages,
			Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
	if d.o.Kind == Runsc {
		runscSpec(s, l.image)
	} else {
		d.runcSpec(s, l)
	}
	d.o.Weaken.spec(s)
	return s
}

func (d *Driver) mapping(idRange uint32) []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: d.o.IDBase + idRange*idsPerRange, Size: idsPerRange}}
}

// runscSpec adds what gVisor needs. It keeps what is written to the root in
// its own memory, and offers /dev and /sys of its own kernel.
func runscSpec(s *specs.Spec, img sandbox.Image) {
	s.Mounts[1] = specs.Mount{Destination: "/dev", Type: "devtmpfs", Source: "devtmpfs", Options: []string{"nosuid", "noexec"}}
	// gVisor adds one in any case; this makes it read-only.
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}})
	if img.Erofs == "" {
		return
	}
	s.Annotations = map[string]string{
		"dev.gvisor.spec.rootfs.source":  img.Erofs,
		"dev.gvisor.spec.rootfs.type":    "erofs",
		"dev.gvisor.spec.rootfs.overlay": "memory",
	}
}

// runcSpec adds what stands in for a kernel of its own: a system call filter, a
// control group name space, and limits that the kernel itself holds.
func (d *Driver) runcSpec(s *specs.Spec, l *live) {
	class, limits := l.class, d.limits(l.class)
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	s.Linux.Seccomp = seccompProfile()
	s.Linux.RootfsPropagation = "private"
	s.Linux.Sysctl = ownShare()
	if d.boundsCode() {
		s.Process.Env = append(s.Process.Env, guestwire.CodeGroupEnv+"=3")
		s.Linux.CgroupsPath = d.site.groups.Path(l.id) + d.restOf()
	}
	// The group already has these values. They are repeated because runc
	// writes what its configuration says, also where it says nothing.
	s.Linux.Resources = &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		Memory:  &specs.LinuxMemory{Limit: &limits.MemoryBytes},
		CPU:     &specs.LinuxCPU{Quota: new(int64(class.CPUs * cpuPeriod)), Period: new(uint64(cpuPeriod))},
		Pids:    &specs.LinuxPids{Limit: &limits.Tasks},
	}
	if d.swapAccounted {
		s.Linux.Resources.Memory.Swap = &limits.MemoryBytes
	}
}

const cpuPeriod = 100_000 // µs, as in package cgroup

// ownShare bounds what the kernel counts by user over all name spaces: a sandbox
// could else use up what the host's root and every other sandbox have of it, 128
// instances of inotify by default. The guest takes one, with as many watches as
// it follows directories and files.
func ownShare() map[string]string {
	if _, err := os.Stat("/proc/sys/user/max_inotify_instances"); err != nil {
		return nil // Linux before 4.13
	}
	return map[string]string{"user.max_inotify_instances": "8", "user.max_inotify_watches": "32768"}
}

// rlimits are the guest's; it lowers them further for user code. None is above
// what this process has itself, since raising one needs a privilege that a
// server in a container may lack.
func rlimits() []specs.POSIXRlimit {
	want := []struct {
		name     string
		resource int
		value    uint64
	}{
		{"RLIMIT_CORE", unix.RLIMIT_CORE, 0},
		{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, 4096},
		{"RLIMIT_MEMLOCK", unix.RLIMIT_MEMLOCK, 64 << 10},
		{"RLIMIT_MSGQUEUE", unix.RLIMIT_MSGQUEUE, 819_200},
		{"RLIMIT_RTPRIO", unix.RLIMIT_RTPRIO, 0},
		{"RLIMIT_NICE", unix.RLIMIT_NICE, 0},
	}
	var out []specs.POSIXRlimit
	for _, w := range want {
		var own unix.Rlimit
		if err := unix.Getrlimit(w.resource, &own); err != nil {
			own.Max = math.MaxUint64
		}
		v := min(w.value, own.Max)
		out = append(out, specs.POSIXRlimit{Type: w.name, Hard: v, Soft: v})
	}
	return out
}

// checkClass refuses sizes that make no sandbox.
func checkClass(c sandbox.Class) error {
	switch {
	case !(c.CPUs >= 0.1 && c.CPUs <= 1024):
		return fmt.Errorf("cpus %v is not between 0.1 and 1024", c.CPUs)
	case c.MemoryBytes < 32<<20:
		return fmt.Errorf("memory of %d bytes is below 32 MiB", c.MemoryBytes)
	case c.WorkspaceBytes < 1<<20 || c.ScratchBytes < 1<<20:
		return fmt.Errorf("workspace of %d and scratch of %d bytes: at least 1 MiB each", c.WorkspaceBytes, c.ScratchBytes)
	case c.WorkspaceInodes < 16:
		return fmt.Errorf("%d workspace inodes are below 16", c.WorkspaceInodes)
	case c.Tasks < 4 || c.Tasks > 4096:
		return fmt.Errorf("%d tasks are not between 4 and 4096", c.Tasks)
	case c.Image.ID == "" || filepath.Base(c.Image.ID) != c.Image.ID:
		return fmt.Errorf("image id %q is not a name", c.Image.ID)
	}
	return nil
}

package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/sandbox/oci"
)

// The profiles. Each breaks what its name says, and what must be out of the way
// for that to show.

var noLimits = &profile{
	name: "no limits", breaks: "memory, CPU, tasks, files, workspace, wall time and output are bounded far above what is promised",
	wide: true, endless: true, output: 60 << 20,
}

var openLocks = &profile{
	name: "locked memory", breaks: "code may lock memory",
	spec: func(_ *scene, _ oci.Kind, spec *specs.Spec) {
		for i, l := range spec.Process.Rlimits {
			if l.Type == "RLIMIT_MEMLOCK" {
				spec.Process.Rlimits[i].Hard, spec.Process.Rlimits[i].Soft = ownLimit(unix.RLIMIT_MEMLOCK), ownLimit(unix.RLIMIT_MEMLOCK)
			}
		}
	},
}

func ownLimit(resource int) uint64 {
	var l unix.Rlimit
	_ = unix.Getrlimit(resource, &l)
	return l.Max
}

var swapAllowed = &profile{
	name: "swap", breaks: "the group may use more memory and swap than memory",
	started: func(s *scene, b *session) error {
		parent := s.groups.Path(b.box.ID())
		v2 := os.WriteFile(filepath.Join("/sys/fs/cgroup", parent, "memory.swap.max"), []byte("1073741824"), 0)
		v1 := os.WriteFile(filepath.Join("/sys/fs/cgroup/memory", parent, "memory.memsw.limit_in_bytes"), []byte("2147483648"), 0)
		if v1 != nil && v2 != nil {
			return errors.Join(v1, v2)
		}
		return nil
	},
}

var outputLost = &profile{name: "lost output", breaks: "output beyond 100 kB is lost", output: 100_000}

// noReaper puts a first process over code that inherits orphans and never waits.
var noReaper = &profile{
	name: "no reaper", breaks: "nobody collects processes whose parents are gone",
	wrap: func(argv []string) []string {
		return append([]string{"/usr/bin/python3", "-I", "-S", "-c", `
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)   # PR_SET_CHILD_SUBREAPER
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
os.waitpid(pid, 0)
`}, argv...)
	},
}

var waitsForOutput = &profile{
	name: "waits for output", breaks: "a run ends when nobody holds its output any more",
	wrap: func(argv []string) []string {
		return append([]string{"/bin/bash", "-c", `"$@" | cat`, "wait"}, argv...)
	},
}

// asRoot makes user code uid 0 of the sandbox's user namespace, with every
// capability there, and no filter.
func asRoot(_ *scene, _ oci.Kind, spec *specs.Spec) {
	keepCapabilities(spec)
	spec.Linux.Seccomp = nil
}

var rootUser = &profile{
	name: "root inside", breaks: "code is uid 0 of the sandbox with its capabilities and no filter",
	guest: []string{weakFilter, weakPrivileges, weakIdentity}, spec: asRoot,
}

// The names that the guest's --weaken knows.
const (
	weakFilter      = "filter"
	weakPrivileges  = "privileges"
	weakCaps        = "caps"
	weakIdentity    = "identity"
	weakNamespaces  = "namespaces"
	weakMasks       = "masks"
	weakCores       = "cores"
	weakDescriptors = "descriptors"
	weakEnvironment = "environment"
)

var sharedProcesses = &profile{
	name: "shared process space", breaks: "runs share one process, mount and IPC namespace with the supervisor, as its user",
	guest: []string{weakFilter, weakPrivileges, weakIdentity, weakNamespaces}, spec: asRoot,
}

// sharedDirectory mounts a directory of the host with what should not be there.
var sharedDirectory = &profile{
	name: "host directory", breaks: "a writable directory of the host is mounted, with sockets, secrets and schedulers",
	flags: []string{"--host-uds=all", "--file-access-mounts=shared"},
	prepare: func(ctx context.Context, s *scene) (prepared, error) {
		dir := filepath.Join(s.dir, "host")
		for _, d := range []string{dir, filepath.Join(dir, secretWord), filepath.Join(dir, "bin")} {
			if err := os.Mkdir(d, 0o777); err != nil {
				return prepared{}, err
			}
			if err := os.Chmod(d, 0o777); err != nil {
				return prepared{}, err
			}
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(dir, "docker.sock"))
		if err != nil {
			return prepared{}, err
		}
		err = errors.Join(
			os.Chmod(filepath.Join(dir, "docker.sock"), 0o666),
			os.WriteFile(filepath.Join(dir, "id_rsa"), []byte("-----BEGIN OPENSSH PRIVATE KEY-----\n"), 0o644),
			os.WriteFile(filepath.Join(dir, "bin", "crontab"), []byte("#!/bin/sh\n"), 0o755),
		)
		return prepared{dir: dir, end: l.Close}, err
	},
	spec: func(s *scene, _ oci.Kind, spec *specs.Spec) {
		bind(spec, s.prepared.dir, "/var/tmp", "rw")
		bind(spec, s.prepared.dir, "/run/"+secretWord, "ro")
		bind(spec, filepath.Join(s.prepared.dir, "bin"), "/usr/local/bin", "ro")
	},
}

var noFilter = &profile{
	name: "no filter", breaks: "no system call filter, neither the runtime's nor the guest's",
	guest: []string{weakFilter}, flags: []string{"--iouring"},
	spec: func(_ *scene, _ oci.Kind, spec *specs.Spec) { spec.Linux.Seccomp = nil },
}

// bareKernel is the runsc driver without gVisor.
var bareKernel = &profile{
	name: "bare kernel", breaks: "the runtime is not gVisor: system calls meet the host's kernel, without a filter",
	bare: true, guest: []string{weakFilter},
	spec: func(_ *scene, _ oci.Kind, spec *specs.Spec) { spec.Linux.Seccomp = nil },
}

var sharedKeys = &profile{
	name: "shared keys", breaks: "sessions are the same user of the host, and meet its kernel without a filter",
	bare: true, guest: []string{weakFilter, weakPrivileges},
	spec: func(_ *scene, _ oci.Kind, spec *specs.Spec) {
		withoutNamespace(spec, specs.UserNamespace)
		keepCapabilities(spec)
		spec.Linux.Seccomp = nil
	},
}

// privileged is a container as --privileged makes it: the host's root, all
// capabilities, no filter, /proc, /sys, devices and control groups writable, on
// a root that can be written. Probes are made so that they cannot use it.
var privileged = &profile{
	name: "privileged", breaks: "code is root of the host with all capabilities, and sees its kernel's files, processes and devices",
	bare: true, guest: []string{weakFilter, weakPrivileges, weakIdentity, weakNamespaces, weakMasks},
	prepare: writableRoot,
	spec: func(s *scene, _ oci.Kind, spec *specs.Spec) {
		withoutNamespace(spec, specs.UserNamespace, specs.PIDNamespace, specs.CgroupNamespace)
		keepCapabilities(spec)
		spec.Linux.Seccomp = nil
		spec.Root.Readonly = false
		spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"rw"}})
		bind(spec, "/sys/fs/cgroup", "/sys/fs/cgroup", "rbind", "rw")
		bind(spec, "/dev", "/dev", "rbind", "rw")
	},
}

// writableRoot is a root of its own over the image's: what is written lands in
// memory.
func writableRoot(_ context.Context, s *scene) (prepared, error) {
	base := filepath.Join(s.dir, "overlay")
	if err := os.Mkdir(base, 0o711); err != nil {
		return prepared{}, err
	}
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, "size=256m,mode=0711"); err != nil {
		return prepared{}, fmt.Errorf("tmpfs for a writable root: %w", err)
	}
	end := func() error { return unix.Unmount(base, unix.MNT_DETACH) }
	root := filepath.Join(base, "root")
	for _, d := range []string{root, filepath.Join(base, "upper"), filepath.Join(base, "work")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return prepared{}, errors.Join(err, end())
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", s.o.Image.Rootfs, filepath.Join(base, "upper"), filepath.Join(base, "work"))
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return prepared{}, errors.Join(fmt.Errorf("overlay for a writable root: %w", err), end())
	}
	return prepared{rootfs: root, end: func() error { return errors.Join(unix.Unmount(root, unix.MNT_DETACH), end()) }}, nil
}

var netPrivileges = &profile{
	name: "network privileges", breaks: "code is root inside with network capabilities and no filter",
	guest: []string{weakFilter, weakPrivileges, weakIdentity}, spec: asRoot, flags: []string{"--net-raw"},
}

// setuidFiles puts a set-user-id program of the sandbox's root into the sandbox
// and lets it work.
var setuidFiles = &profile{
	name: "setuid files", breaks: "set-user-id programs are there and gain what they say",
	guest: []string{weakFilter, weakPrivileges}, flags: []string{"--allow-suid"},
	prepare: func(_ context.Context, s *scene) (prepared, error) {
		dir := filepath.Join(s.dir, "setuid")
		return prepared{dir: dir}, os.Mkdir(dir, 0o755)
	},
	spec: func(s *scene, _ oci.Kind, spec *specs.Spec) {
		keepCapabilities(spec)
		spec.Linux.Seccomp = nil
		// Owned by whoever is root inside, which is another for each sandbox.
		root := int(spec.Linux.UIDMappings[0].HostID)
		file := filepath.Join(s.prepared.dir, fmt.Sprintf("env-%d", root))
		if copyFile(filepath.Join(s.rootfs(), "usr/bin/env"), file) == nil && os.Chown(file, root, root) == nil {
			_ = unix.Chmod(file, 0o6755) // a failure shows as a row that holds
		}
		bind(spec, s.prepared.dir, "/opt/workbench/packages", "ro")
	},
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

var coreFilesAllowed = &profile{
	name: "core files", breaks: "code may write core files",
	guest: []string{weakCores},
	spec: func(_ *scene, _ oci.Kind, spec *specs.Spec) {
		for i, l := range spec.Process.Rlimits {
			if l.Type == "RLIMIT_CORE" {
				spec.Process.Rlimits[i].Hard, spec.Process.Rlimits[i].Soft = ownLimit(unix.RLIMIT_CORE), 0
			}
		}
	},
}

var anyRoot = &profile{name: "any root", breaks: "roots with links at mount points are given to the runtime", anyImage: true}

var leakedDescriptor = &profile{
	name: "leaked descriptor", breaks: "code inherits an open directory", guest: []string{weakDescriptors},
}

// terminal puts a terminal around code, as a server would that runs it on one.
var terminal = &profile{
	name: "terminal", breaks: "code has a controlling terminal",
	spec: func(_ *scene, kind oci.Kind, spec *specs.Spec) {
		if kind == oci.Runc {
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}})
		}
	},
	wrap: func(argv []string) []string {
		return append([]string{"/usr/bin/python3", "-I", "-c", "import pty, sys\npty.spawn(sys.argv[1:])"}, argv...)
	},
}

var hostNetwork = &profile{
	name: "host network", breaks: "the sandbox is in the host's network namespace",
	flags: []string{"--network=host", "--gofer-network-namespace=host"},
	spec:  func(_ *scene, _ oci.Kind, spec *specs.Spec) { withoutNamespace(spec, specs.NetworkNamespace) },
}

// bareNetwork is the runsc driver without gVisor, in the host's network: gVisor's
// own abstract sockets are never the host's.
var bareNetwork = &profile{
	name: "bare network", breaks: "the runtime is not gVisor, and the sandbox is in the host's network namespace",
	bare: true, spec: func(_ *scene, _ oci.Kind, spec *specs.Spec) { withoutNamespace(spec, specs.NetworkNamespace) },
}

var routedNetwork = &profile{
	name: "routed network", breaks: "every address leads to a listener",
	flags:   []string{"--network=host"},
	prepare: everyAddress,
	spec: func(s *scene, _ oci.Kind, spec *specs.Spec) {
		for i, n := range spec.Linux.Namespaces {
			if n.Type == specs.NetworkNamespace {
				spec.Linux.Namespaces[i].Path = s.prepared.dir
			}
		}
	},
}

var secretEnvironment = &profile{
	name: "server's environment", breaks: "the server's environment reaches the guest, and the guest's reaches code",
	guest: []string{weakEnvironment},
	spec: func(_ *scene, _ oci.Kind, spec *specs.Spec) {
		spec.Process.Env = append(spec.Process.Env, os.Environ()...)
	},
}

var cloned = &profile{name: "cloned state", breaks: "interpreters of all sessions start from one seed", env: map[string]string{"PYTHONHASHSEED": "0"}}

var hijackedPath = &profile{
	name: "workspace in PATH", breaks: "commands are looked for in the workspace first",
	env: map[string]string{"PATH": "/mnt/files:/usr/bin:/bin"},
}

var preloaded = &profile{
	name: "preloaded library", breaks: "programs load a library of the workspace",
	env: map[string]string{"LD_PRELOAD": "/mnt/files/evil.so"},
}

// oldRuntime says of itself that it is of years ago.
var oldRuntime = &profile{
	name: "old runtime", breaks: "the runtime is older than the fixes",
	prepare: func(_ context.Context, s *scene) (prepared, error) {
		path := filepath.Join(s.dir, "runtime")
		script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = --version ] && { echo '%s version %s'; exit; }\nexec '%s' \"$@\"\n",
			s.o.Kind, map[oci.Kind]string{oci.Runsc: "release-20231218.0", oci.Runc: "1.1.5"}[s.o.Kind], strings.ReplaceAll(s.o.Binary, "'", ""))
		return prepared{binary: path}, os.WriteFile(path, []byte(script), 0o755)
	},
}

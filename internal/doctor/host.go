package doctor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ThisHost is the host this process runs on. The caller fills in what it knows
// of Workbench: directories, images, sizes, runtimes.
func ThisHost() Host {
	h := Host{
		EUID: os.Geteuid(), Caps: effectiveCaps(), Kernel: kernelRelease(),
		Look:          exec.LookPath,
		Version:       askVersion,
		Free:          freeBelow,
		UserNamespace: tryUserNamespace,
	}
	return h
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func effectiveCaps() uint64 {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return n
		}
	}
	return 0
}

// askVersion runs a program with --version and returns what it prints.
func askVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C"}
	cmd.WaitDelay = versionTimeout
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	if len(out) > 4096 {
		out = out[:4096]
	}
	return string(out), nil
}

// freeBelow is the space available at path, or at the nearest folder above it
// that exists.
func freeBelow(path string) (uint64, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		if err == nil {
			return st.Bavail * uint64(st.Bsize), nil
		}
		if up := filepath.Dir(path); up != path {
			path = up
			continue
		}
		return 0, err
	}
}

// tryUserNamespace starts this program's loader-free equivalent of `true` in a
// user namespace with a range of ids mapped, as sandboxes are.
func tryUserNamespace(ctx context.Context) error {
	program := "/bin/true"
	if _, err := os.Stat(program); err != nil {
		program = "/usr/bin/true"
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = []string{}
	base := 1_879_048_192
	if os.Geteuid() != 0 {
		base = os.Geteuid()
	}
	n := 1
	if os.Geteuid() == 0 {
		n = 65_536
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: n}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: n}},
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("this is %s", runtime.GOOS)
	}
	return cmd.Run()
}

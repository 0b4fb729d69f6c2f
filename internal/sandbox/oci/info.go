package oci

import (
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/cgroup"
)

const (
	isolationRunsc = "Each sandbox has a kernel of its own, gVisor's, which runs as an unprivileged user in its own name spaces behind a system call filter. " +
		"User code's system calls are answered there and never reach the host's kernel; it has no network interface but its own loopback and no file of the host but the read-only image. " +
		"Made for hostile code. Not covered: side channels of the CPU, and a defect in gVisor together with one in the host's kernel."
	isolationRunc = "Each sandbox is a set of name spaces of the host's kernel: user ids mapped to an unprivileged range, a read-only root, no network interface but its own loopback, " +
		"no capability for user code, and an allowlist of system calls. The host's kernel is shared, so a defect in it is enough to get out. " +
		"Made for code that may be wrong, not for code whose author is an attacker: use runsc for that."
)

// Info implements sandbox.Driver.
func (d *Driver) Info(ctx context.Context) (sandbox.Info, error) {
	d.infoMu.Lock()
	defer d.infoMu.Unlock()
	if d.info != nil {
		return *d.info, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	text, err := output(ctx, d.o.Binary, "--version")
	if err != nil {
		return sandbox.Info{}, d.unavailable("does not tell its version", fmt.Errorf("%s: %q", exitText(err), text))
	}
	name, version, ok := parseVersion(text)
	if !ok || name != string(d.o.Kind) {
		return sandbox.Info{}, d.unavailable("is not what it should be", fmt.Errorf("%s --version printed %q", d.o.Binary, text))
	}
	info := sandbox.Info{
		Driver: string(d.o.Kind), Runtime: d.o.Binary, Version: version,
		Cgroups: string(d.site.groups.Mode()), Warnings: []sandbox.Warning{},
		Capabilities: sandbox.Capabilities{Pause: true, SwapBounded: d.swapAccounted || !hostHasSwap()},
	}
	if d.o.Kind == Runsc {
		info.Platform, info.Isolation, info.Strength = "systrap", isolationRunsc, sandbox.StrengthHostile
		info.Capabilities.InsideCgroups = true
		info.Version = runscVersion(d.o.Binary, version)
		if w, old := oldRunsc(info.Version); old {
			info.Warnings = append(info.Warnings, w)
		}
		ok := checkpoints(info.Version)
		info.Capabilities.Checkpoint, info.Capabilities.Restore = ok, ok
	} else {
		info.Isolation, info.Strength = isolationRunc, sandbox.StrengthShared
		if w, old := oldRunc(version); old {
			info.Warnings = append(info.Warnings, w)
		}
	}
	if !info.Capabilities.SwapBounded {
		info.Warnings = append(info.Warnings, sandbox.Warning{
			Code:   "swap_unbounded",
			Detail: "the host has swap, and its kernel does not account swap to control groups: a sandbox's memory may be written to it",
			Hint:   "boot with swapaccount=1, or swapoff -a",
		})
	}
	if os.Getpid() == 1 {
		info.Warnings = append(info.Warnings, sandbox.Warning{
			Code:   "no_init",
			Detail: "this server is the first process of its container, so runtime processes that ended stay as zombies until it ends",
			Hint:   "run the container with an init, for example docker run --init",
		})
	}
	d.info = &info
	return info, nil
}

func (d *Driver) unavailable(what string, cause error) error {
	return workbench.E(workbench.CodeRuntimeUnavailable, "the runtime %s %s", d.o.Kind, what).
		WithHint("workbench doctor says what this host lacks").Caused(cause)
}

var versionLine = regexp.MustCompile(`^(runsc|runc) version (\S+)`)

// parseVersion reads the first line that names a version.
func parseVersion(text string) (name, version string, ok bool) {
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		if m := versionLine.FindStringSubmatch(s.Text()); m != nil {
			return m[1], m[2], true
		}
	}
	return "", "", false
}

// runscVersion is what runsc prints or, for one built from its Go module, which
// cannot know its release, the module's version.
func runscVersion(binary, printed string) string {
	if printed != "VERSION_MISSING" {
		return printed
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "unknown"
	}
	const module = "gvisor.dev/gvisor"
	if info.Main.Path == module {
		return info.Main.Version + " (module)"
	}
	for _, dep := range info.Deps {
		if dep.Path == module {
			return dep.Version + " (module)"
		}
	}
	return "unknown"
}

// runscMeasured is the date of the version this driver was built and tested
// with.
const runscMeasured = "20260905"

var runscDate = regexp.MustCompile(`^(?:release-|v0\.0\.0-)(\d{8})`)

// oldRunsc warns of a runsc older than the one this driver is tested with, or
// of unknown age. Older ones may hand character devices of the host to a
// sandbox (CVE-2026-96812); this driver passes none.
func oldRunsc(version string) (sandbox.Warning, bool) {
	w := sandbox.Warning{
		Code:   "old_runtime",
		Detail: "runsc " + version + " is older than " + runscMeasured + ", or of unknown age, and may have known holes (CVE-2026-96812)",
		Hint:   "make setup builds a newer one",
	}
	m := runscDate.FindStringSubmatch(version)
	return w, m == nil || m[1] < runscMeasured
}

var semverPattern = regexp.MustCompile(`^v?(\d+)\.(\d+)\.(\d+)(?:-(rc)\.?(\d+))?`)

// oldRunc warns of a runc without the fixes of November 2025 (CVE-2025-31133,
// CVE-2025-52565, CVE-2025-52881): 1.2.8, 1.3.3 and 1.4.0-rc.3 have them. A
// distribution may have them in an older number; that cannot be told from here.
func oldRunc(version string) (sandbox.Warning, bool) {
	w := sandbox.Warning{
		Code:   "old_runtime",
		Detail: "runc " + version + " does not have the fixes of November 2025 (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881) by its version number",
		Hint:   "use runc 1.2.8, 1.3.3, 1.4.0 or newer; make setup builds one",
	}
	m := semverPattern.FindStringSubmatch(version)
	if m == nil {
		return w, true
	}
	num := func(i int) int { n, _ := strconv.Atoi(m[i]); return n }
	major, minor, patch := num(1), num(2), num(3)
	switch {
	case major != 1:
		return w, major < 1
	case minor < 2:
		return w, true
	case minor == 2:
		return w, patch < 8
	case minor == 3:
		return w, patch < 3
	case minor == 4 && patch == 0 && m[4] == "rc":
		return w, num(5) < 3
	}
	return w, false
}

// hostHasSwap reports whether any swap is on.
func hostHasSwap() bool {
	raw, err := os.ReadFile("/proc/swaps")
	return err == nil && bytes.Count(bytes.TrimSpace(raw), []byte("\n")) > 0
}

// limits are what the host holds the whole sandbox to. Beyond what the class
// gives to user code it leaves what the runtime and the guest need themselves,
// so that the guest, which ends one run, comes before the host, which would end
// the sandbox.
func (d *Driver) limits(c sandbox.Class) cgroup.Limits {
	l := cgroup.Limits{
		MemoryBytes: c.MemoryBytes + c.WorkspaceBytes + c.ScratchBytes + c.WorkspaceInodes*perInode,
		CPUs:        c.CPUs,
	}
	if d.o.Kind == Runsc {
		l.MemoryBytes += runscOverhead + int64(c.Tasks)*runscPerTask
		// Its threads count as tasks too, about two and a half for each of user
		// code, and a gVisor that cannot make one dies.
		l.Tasks = 1024 + 64*int64(c.Tasks)
		l.KillTogether = true
		return l
	}
	l.MemoryBytes += runcOverhead + int64(c.Tasks)*runcPerTask
	l.Tasks = int64(c.Tasks) + 128 // the guest's threads, its inits, interpreters that wait
	return l
}

// Measured on the project's kind of machine, in bytes: an idle gVisor sandbox
// takes 15 MiB, the pages of the image that Python reads 45 MiB, the guest up
// to 20 MiB; 63 forked Pythons 130 MiB more than they have themselves, 16384
// empty files 15 MiB. With runc the same is 1, 0, 20, 15 and 10 MiB.
const (
	runscOverhead = 160 << 20
	runscPerTask  = 2 << 20
	runcOverhead  = 64 << 20
	runcPerTask   = 256 << 10
	perInode      = 1 << 10
)

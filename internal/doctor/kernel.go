package doctor

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// version is a kernel's or a program's: three numbers.
type version [3]int

var versionPattern = regexp.MustCompile(`(\d+)\.(\d+)(?:\.(\d+))?`)

func parseVersion(s string) (version, bool) {
	m := versionPattern.FindStringSubmatch(s)
	if m == nil {
		return version{}, false
	}
	var v version
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // digits, or empty for 0
	}
	return v, true
}

func (v version) before(w version) bool {
	for i := range v {
		if v[i] != w[i] {
			return v[i] < w[i]
		}
	}
	return false
}

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// oldestKernel is what the sandboxes' system calls need (clone3, pidfd,
// openat2) and what this project is tested near.
var oldestKernel = version{5, 10, 0}

func system(_ context.Context, h Host) []Finding {
	v, ok := parseVersion(h.Kernel)
	name := "kernel"
	switch {
	case runtime.GOOS != "linux":
		return one("kernel", name, Failed, "sandboxes need Linux; this is "+runtime.GOOS, "use a Linux host or virtual machine")
	case !ok:
		return one("kernel", name, Warned, "the kernel's version cannot be read", "")
	case v.before(oldestKernel):
		return one("kernel", name, Failed, "Linux "+h.Kernel+" is older than 5.10", "use a distribution with Linux 5.10 or newer")
	}
	return one("kernel", name, OK, "Linux "+h.Kernel+" on "+runtime.GOARCH, "")
}

// flaw is a defect of the kernel that lets code out of a sandbox which shares
// it.
type flaw struct {
	cve, name   string
	since       version        // first release with it
	fixed       map[[2]int]int // series → first release of it with the fix
	mainline    version        // first mainline release with the fix
	incomplete  bool           // series that are not in fixed may have the fix
	consequence string
}

// flaws are those with which attackers have left containers. Numbers are of
// kernel.org; distributions carry fixes under older numbers, so a match is a
// warning and never a failure.
var flaws = []flaw{
	{
		cve: "CVE-2022-0847", name: "Dirty Pipe", since: version{5, 8, 0}, mainline: version{5, 17, 0},
		fixed:       map[[2]int]int{{5, 10}: 102, {5, 15}: 25, {5, 16}: 11},
		consequence: "code can write to files it may only read, also to those of the image that other sandboxes share",
	},
	{
		cve: "CVE-2024-1086", name: "nf_tables use after free", since: version{3, 15, 0}, mainline: version{6, 8, 0},
		fixed:       map[[2]int]int{{5, 10}: 210, {5, 15}: 149, {6, 1}: 76, {6, 6}: 15, {6, 7}: 3},
		consequence: "code that can make a user namespace can become root of the host",
	},
	{
		cve: "CVE-2026-31431", name: "Copy Fail", since: version{4, 14, 0}, mainline: version{7, 0, 0},
		fixed: map[[2]int]int{{6, 18}: 22, {6, 19}: 12}, incomplete: true,
		consequence: "code that can open an AF_ALG socket can write to files it may only read",
	},
}

// affected reports whether the version is one with the flaw; sure is false for
// a series whose fix this table does not know.
func (f flaw) affected(v version) (affected, sure bool) {
	if v.before(f.since) || !v.before(f.mainline) {
		return false, true
	}
	if patch, ok := f.fixed[[2]int{v[0], v[1]}]; ok {
		return v[2] < patch, true
	}
	return true, !f.incomplete
}

func kernelFlaws(_ context.Context, h Host) []Finding {
	v, ok := parseVersion(h.Kernel)
	if !ok {
		return nil
	}
	var found []string
	for _, f := range flaws {
		affected, sure := f.affected(v)
		if !affected {
			continue
		}
		text := fmt.Sprintf("%s (%s): %s", f.cve, f.name, f.consequence)
		if !sure {
			text += " (whether this series was fixed is not known here)"
		}
		found = append(found, text)
	}
	if len(found) == 0 {
		return one("kernel-flaws", "known flaws", OK, "none of those doctor knows, by the kernel's version", "")
	}
	return one("kernel-flaws", "known flaws", Warned,
		"by its version this kernel may have "+strings.Join(found, "; "),
		"update the kernel, or make sure that the distribution's has the fixes. gVisor (--driver runsc) does not pass these calls on; runc shares the kernel and blocks them by its system call filter")
}

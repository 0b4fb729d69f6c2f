package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// host is what a reader needs to judge the numbers, without naming the machine.
type host struct {
	Kind       string  `json:"kind"` // such as linux-amd64-2cpu
	CPUs       int     `json:"cpus"`
	MemoryGiB  int     `json:"memoryGiB"`
	System     string  `json:"system"` // distribution
	Kernel     string  `json:"kernel"`
	Cgroups    string  `json:"cgroups"`
	DataOn     string  `json:"dataOn"` // file system of the server's data
	LoadBefore float64 `json:"loadAverageBefore"`
	LoadAfter  float64 `json:"loadAverageAfter"`
}

func (h host) text() string {
	return fmt.Sprintf("%d CPUs, %d GiB, %s, Linux %s, %s, data on %s. One-minute load average %.1f before and %.1f after.",
		h.CPUs, h.MemoryGiB, h.System, h.Kernel, h.Cgroups, h.DataOn, h.LoadBefore, h.LoadAfter)
}

func describeHost(dir string) host {
	h := host{CPUs: runtime.NumCPU(), Kind: fmt.Sprintf("%s-%s-%dcpu", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()),
		System: "unknown", LoadBefore: loadAverage(), DataOn: fileSystem(dir), Cgroups: cgroups()}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.MemoryGiB = int((info.Totalram*uint64(info.Unit) + 1<<29) >> 30)
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		release := string(bytes.TrimRight(name.Release[:], "\x00"))
		h.Kernel, _, _ = strings.Cut(release, "-") // what follows names the build
	}
	if raw, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				h.System = strings.Trim(strings.TrimSpace(v), `"`)
			}
		}
	}
	return h
}

// loadAverage is that of the last minute; -1 if the host does not tell.
func loadAverage() float64 {
	raw, err := os.ReadFile("/proc/loadavg")
	load := -1.0
	if err == nil {
		_, _ = fmt.Sscanf(string(raw), "%f", &load) // stays -1
	}
	return load
}

// Times of a wait for the processors: they are idle once hardly one of them was in
// use for quietFor.
const (
	quietFor    = 100 * time.Millisecond
	quietWithin = 10 * time.Second
)

// awaitQuiet waits until the processors are idle, so that what one sample leaves to
// be done is not at the cost of the next, whosever that is. A host that does not
// become quiet is taken as it is.
func awaitQuiet(ctx context.Context) error {
	for end := time.Now().Add(quietWithin); ; {
		before, err := processorTime()
		if err != nil {
			return err
		}
		select {
		case <-time.After(quietFor):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := processorTime()
		if err != nil || after-before <= quietFor/5 || time.Now().After(end) {
			return err
		}
	}
}

func cgroups() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "cgroup v2"
	}
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		return "hybrid cgroups"
	}
	return "cgroup v1"
}

func fileSystem(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return "unknown"
	}
	names := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs"}
	if name := names[st.Type]; name != "" {
		return name
	}
	return fmt.Sprintf("%#x", st.Type)
}

// versionOrder lists what versions holds.
var versionOrder = []string{"image", "image python", "image node", "python3", "node", "bwrap", "runc", "runsc", "docker"}

func versions(ctx context.Context, w *world, p *peers) map[string]string {
	v := map[string]string{"image": w.image.ID}
	for _, l := range w.image.Languages {
		switch l.Name {
		case "python":
			v["image python"] = l.Version
		case "javascript":
			v["image node"] = l.Version
		default: // Bash is the image's own; TypeScript is Node.js
		}
	}
	for name, args := range p.versionOf {
		v[name] = firstLine(ctx, args)
	}
	return v
}

// firstLine is the first line that a command prints.
func firstLine(ctx context.Context, args []string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = peerEnv
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}

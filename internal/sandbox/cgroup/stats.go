package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stats measures a group. A value the host does not offer is -1.
type Stats struct {
	CPU             time.Duration
	MemoryBytes     int64
	MemoryPeakBytes int64
	MemoryLimit     int64
	OOMKills        int64 // of the group's processes, also of inner groups
	Tasks           int64
}

// Stats reads the group's counters. A group that does not exist gives -1s.
func (g *Group) Stats() Stats {
	if g.h.mode == ModeV2 {
		dir := g.dir("memory")
		usec := keyed(filepath.Join(dir, "cpu.stat"), "usage_usec")
		s := Stats{
			CPU:             -1,
			MemoryBytes:     number(filepath.Join(dir, "memory.current")),
			MemoryPeakBytes: number(filepath.Join(dir, "memory.peak")), // since Linux 5.19
			MemoryLimit:     number(filepath.Join(dir, "memory.max")),
			OOMKills:        keyed(filepath.Join(dir, "memory.events"), "oom_kill"),
			Tasks:           number(filepath.Join(dir, "pids.current")),
		}
		if usec >= 0 {
			s.CPU = time.Duration(usec) * time.Microsecond
		}
		return s
	}
	memory := g.dir("memory")
	return Stats{
		CPU:             time.Duration(number(filepath.Join(g.dir("cpuacct"), "cpuacct.usage"))),
		MemoryBytes:     number(filepath.Join(memory, "memory.usage_in_bytes")),
		MemoryPeakBytes: number(filepath.Join(memory, "memory.max_usage_in_bytes")),
		MemoryLimit:     number(filepath.Join(memory, "memory.limit_in_bytes")),
		OOMKills:        oomKillsV1(memory),
		Tasks:           number(filepath.Join(g.dir("pids"), "pids.current")),
	}
}

// oomKillsV1 sums over a group and those below it: on version 1 each counts its
// own kills alone.
func oomKillsV1(dir string) int64 {
	sum := keyed(filepath.Join(dir, "memory.oom_control"), "oom_kill")
	if sum < 0 {
		return sum
	}
	for _, inner := range below([]string{dir}) {
		if inner != dir {
			sum += max(0, keyed(filepath.Join(inner, "memory.oom_control"), "oom_kill"))
		}
	}
	return sum
}

// OwnOOMKills is how many processes of the group itself the kernel has killed
// for memory: less to read than Stats, for who looks often. On version 2 it has
// those of inner groups too. It is -1 where the host does not tell.
func (g *Group) OwnOOMKills() int64 {
	return keyed(filepath.Join(g.dir("memory"), g.h.killsFile()), "oom_kill")
}

// killsFile is where the kernel counts what it killed for memory.
func (h *Hierarchy) killsFile() string {
	if h.mode == ModeV2 {
		return "memory.events"
	}
	return "memory.oom_control"
}

// InnerOOMKills is how many processes of an inner group the kernel has killed
// for memory: 0 where there is no such group.
func (g *Group) InnerOOMKills(name string) int64 {
	return max(0, keyed(filepath.Join(g.dir("memory"), name, g.h.killsFile()), "oom_kill"))
}

func number(path string) int64 {
	raw, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return -1 // "max", or not a number
	}
	return n
}

// keyed reads one value of a file of "key value" lines.
func keyed(path, key string) int64 {
	raw, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if rest, ok := strings.CutPrefix(line, key+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			if err != nil {
				return -1
			}
			return n
		}
	}
	return -1
}

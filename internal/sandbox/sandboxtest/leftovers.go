package sandboxtest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Leftovers looks everywhere on this host for something that carries the name,
// an instance id or a sandbox id: processes by control group and command line,
// control groups, mounts, and files below the places drivers use.
func Leftovers(name string) []string {
	var found []string
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() || isZombie(pid) {
			continue
		}
		for _, file := range []string{"cgroup", "cmdline"} {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err == nil && strings.Contains(string(raw), name) {
				found = append(found, fmt.Sprintf("process %d by its %s: %s", pid, file, strings.ReplaceAll(string(raw), "\x00", " ")))
				break
			}
		}
	}
	if raw, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for line := range strings.SplitSeq(string(raw), "\n") {
			if strings.Contains(line, name) {
				found = append(found, "mount "+line)
			}
		}
	}
	for _, root := range []string{"/sys/fs/cgroup", "/run", "/var/run", "/dev/shm"} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.Contains(d.Name(), name) {
				found = append(found, "file "+path)
			}
			return nil
		})
	}
	return found
}

// isZombie reports whether a process has ended and waits for the host's init to
// collect it.
func isZombie(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	state := string(raw[strings.LastIndexByte(string(raw), ')')+1:])
	return strings.HasPrefix(state, " Z") || strings.HasPrefix(state, " X")
}

// MustNothingLeft fails if anything with that name is on the host after d.
func MustNothingLeft(t testing.TB, name string, d time.Duration) {
	t.Helper()
	end := time.Now().Add(d)
	for {
		late := time.Now().After(end) // a look takes a while, in which what it saw may go
		found := Leftovers(name)
		if len(found) == 0 {
			return
		}
		if late {
			t.Errorf("%s left on the host:\n  %s", name, strings.Join(found, "\n  "))
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

// What a row looks at on the host.

// hostFile reads a file of /proc or /sys, "" when there is none.
func hostFile(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(raw)
}

// availableMemory is the host's, in bytes; 0 when it does not say.
func availableMemory() int64 {
	for line := range strings.SplitSeq(hostFile("/proc/meminfo"), "\n") {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

// ownMemory is what this process's heap holds after a collection.
func ownMemory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// diskUse is the space that files below a directory take. What vanishes
// meanwhile is passed over.
func diskUse(dir string) int64 {
	var total int64
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it vanished
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			total += st.Blocks * 512
		}
		return nil
	})
	return total
}

// hashes are the digests of files below a root, "" for one that is not there.
func hashes(root string, names []string) map[string]string {
	out := map[string]string{}
	for _, name := range names {
		out[name] = fileDigest(filepath.Join(root, name))
	}
	return out
}

func fileDigest(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// changed names what differs between two looks.
func changed(before, after map[string]string) []string {
	var out []string
	for name, was := range before {
		if after[name] != was {
			out = append(out, name)
		}
	}
	return out
}

// favoured are the threads of a sandbox on the host that have a real-time
// policy or a better priority than they began with.
func (s *scene) favoured(b *session) (threads int, found []string, err error) {
	pids, err := s.groups.Group(b.box.ID()).Procs()
	if err != nil {
		return 0, nil, err
	}
	for _, pid := range pids {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			continue // it ended
		}
		for _, t := range tasks {
			stat := hostFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, t.Name()))
			rest, ok := afterLast(stat, ")")
			f := strings.Fields(rest)
			if !ok || len(f) < 39 {
				continue
			}
			threads++
			// man 5 proc: fields 19 (nice) and 41 (policy); f begins with field 3.
			nice, _ := strconv.Atoi(f[16])
			policy, _ := strconv.Atoi(f[38])
			class, _, _ := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(atoi(t.Name())), 0)
			switch {
			case nice < 0:
				found = append(found, fmt.Sprintf("thread %s has nice %d", t.Name(), nice))
			case policy == 1 || policy == 2 || policy == 6:
				found = append(found, fmt.Sprintf("thread %s has scheduling policy %d", t.Name(), policy))
			case class>>13 == 1:
				found = append(found, fmt.Sprintf("thread %s has real-time I/O", t.Name()))
			}
		}
	}
	return threads, found, nil
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// groupFile reads a file of a sandbox's control group, of a version 1
// controller or of version 2.
func (s *scene) groupFile(b *session, controller, v1, v2 string) (string, bool) {
	parent := s.groups.Path(b.box.ID())
	for _, path := range []string{
		filepath.Join("/sys/fs/cgroup", controller, parent, v1),
		filepath.Join("/sys/fs/cgroup", parent, v2),
	} {
		if raw, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(raw)), true
		}
	}
	return "", false
}

// throttled is how often the kernel held the sandbox back at its bound on CPU
// time.
func (s *scene) throttled(b *session) int64 {
	text, _ := s.groupFile(b, "cpu", "cpu.stat", "cpu.stat")
	for line := range strings.SplitSeq(text, "\n") {
		if rest, ok := strings.CutPrefix(line, "nr_throttled "); ok {
			n, _ := strconv.ParseInt(rest, 10, 64)
			return n
		}
	}
	return -1
}

// countingSink takes a scan and forgets it.
type countingSink struct{ entries []guestwire.Entry }

func (c *countingSink) Entry(e guestwire.Entry, content io.Reader) error {
	if len(c.entries) < 1000 {
		c.entries = append(c.entries, e)
	}
	if content != nil {
		_, err := io.Copy(io.Discard, content)
		return err
	}
	return nil
}

// hashingSink compares each file's content with the digest that the guest
// claims for it.
type hashingSink struct {
	files int
	wrong []string
}

func (h *hashingSink) Entry(e guestwire.Entry, content io.Reader) error {
	if content == nil {
		return nil
	}
	sum := sha256.New()
	n, err := io.Copy(sum, content)
	if err != nil {
		return err
	}
	h.files++
	if n != e.Size || !strings.EqualFold(hex.EncodeToString(sum.Sum(nil)), hex.EncodeToString(e.SHA256)) {
		h.wrong = append(h.wrong, string(e.Path))
	}
	return nil
}

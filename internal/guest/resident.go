package guest

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// resident is what a user's processes hold, as far as this process sees them.
type resident struct {
	bytes int64 // anonymous memory, also where processes share it
	tasks int   // threads
}

// processesOf are a user's processes that have not ended, by their numbers.
func processesOf(uid uint32) map[int]processSeen {
	names, err := namesIn("/proc")
	if err != nil {
		return nil
	}
	seen := map[int]processSeen{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		var st unix.Stat_t
		if err != nil || unix.Stat("/proc/"+name, &st) != nil || st.Uid != uid {
			continue
		}
		if p := processNow(name); p.tasks > 0 {
			seen[pid] = p
		}
	}
	return seen
}

// residentOf sums over a user's processes. Memory that processes share after a fork
// counts once, where the kernel tells.
func residentOf(uid uint32) resident {
	var r resident
	seen := processesOf(uid)
	shared := int64(0)
	for _, p := range seen {
		r.bytes += p.bytes
		r.tasks += p.tasks
		shared += sharedOf(p.dir)
	}
	if len(seen) > 1 {
		once, sharedOnce := int64(0), int64(0)
		err := asUser(func() error {
			for _, p := range seen {
				anon, shmem := proportional(p.dir)
				once += anon
				sharedOnce += shmem
			}
			return nil
		})
		if err == nil && once > 0 {
			r.bytes, shared = once, sharedOnce
		}
	}
	// Mapped files of the two memory file systems look the same and have bounds
	// of their own.
	files, _ := usedIn(workspaceDir)
	scratch, _ := usedIn(scratchDir)
	r.bytes += max(0, shared-files-scratch)
	return r
}

// sharedOf is a process's resident memory that it may share with others: shared
// anonymous mappings, SysV segments, and mapped files of a memory file system.
func sharedOf(dir string) int64 {
	raw, err := os.ReadFile(dir + "/status")
	if err != nil {
		return 0
	}
	return kilobytes(string(raw), "RssShmem:")
}

// kilobytes reads one value of a file of "Name: 123 kB" lines, in bytes.
func kilobytes(text, name string) int64 {
	for line := range strings.SplitSeq(text, "\n") {
		if v, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// ofProcess is a process's resident memory that is no file's; 0 when it has ended.
func ofProcess(pid string) int64 { return processNow(pid).bytes }

// processSeen is a process as a look at it found it.
type processSeen struct {
	parent int
	bytes  int64  // resident memory that is no file's
	tasks  int    // threads; 0 when it has ended
	dir    string // below /proc, where its memory is to be seen
	hidden bool   // it is nowhere to be seen
}

// processNow looks at a process. One whose first thread has left, while others go
// on, looks ended by its number; its memory is to be seen with one of those, but
// for gVisor, which does not list them.
func processNow(pid string) processSeen {
	p := processSeen{dir: "/proc/" + pid}
	f := statOf(p.dir)
	if len(f) < 18 {
		return p
	}
	p.parent, _ = strconv.Atoi(f[1])
	tasks, _ := strconv.Atoi(f[17])
	if isOver(f[0]) {
		live, err := liveThread(p.dir)
		if live == "" {
			if p.hidden = err != nil && tasks > 1; p.hidden {
				p.tasks = tasks
			}
			return p
		}
		p.dir = live
	}
	p.tasks = max(1, tasks)
	raw, err := os.ReadFile(p.dir + "/statm")
	if err != nil {
		return p
	}
	f = strings.Fields(string(raw))
	if len(f) < 3 {
		return p
	}
	all, _ := strconv.ParseInt(f[1], 10, 64)
	shared, _ := strconv.ParseInt(f[2], 10, 64)
	p.bytes = max(0, all-shared) * int64(os.Getpagesize())
	return p
}

// liveThread is the place below /proc of a thread that has not ended, of a process
// whose first one has; "" if there is none. It fails where threads are not listed.
func liveThread(dir string) (string, error) {
	names, err := namesIn(dir + "/task")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if f := statOf(dir + "/task/" + name); len(f) > 0 && !isOver(f[0]) {
			return dir + "/task/" + name, nil
		}
	}
	return "", nil
}

// statOf are the fields of a stat file from the state on; none when it has gone.
func statOf(dir string) []string {
	raw, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return nil
	}
	// The command's name is in parentheses and may hold anything.
	return strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
}

func isOver(state string) bool { return state == "Z" || state == "X" }

func namesIn(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// proportional is a process's share of the anonymous and of the shared memory it
// maps. It is called with user code's identity, which alone may look.
func proportional(dir string) (anon, shared int64) {
	raw, err := os.ReadFile(dir + "/smaps_rollup")
	if err != nil {
		return 0, 0
	}
	return kilobytes(string(raw), "Pss_Anon:"), kilobytes(string(raw), "Pss_Shmem:")
}

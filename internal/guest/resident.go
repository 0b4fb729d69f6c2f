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

// residentOf sums over a user's processes. exact counts memory that processes
// share after a fork once, where the kernel tells.
func residentOf(uid uint32, exact bool) resident {
	var r resident
	dir, err := os.Open("/proc")
	if err != nil {
		return r
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var pids []string
	shared := int64(0)
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		var st unix.Stat_t
		if unix.Stat("/proc/"+name, &st) != nil || st.Uid != uid {
			continue
		}
		bytes, tasks := ofProcess(name)
		if tasks > 0 {
			r.bytes += bytes
			r.tasks += tasks
			if exact {
				shared += sharedOf(name)
			}
			pids = append(pids, name)
		}
	}
	if !exact {
		return r
	}
	if len(pids) > 1 {
		once, sharedOnce := int64(0), int64(0)
		err = asUser(func() error {
			for _, name := range pids {
				anon, shmem := proportional(name)
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
func sharedOf(pid string) int64 {
	raw, err := os.ReadFile("/proc/" + pid + "/status")
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

// ofProcess reads a process's resident memory that is no file's, and its
// threads: 0 when it has ended.
func ofProcess(pid string) (bytes int64, tasks int) {
	raw, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, 0
	}
	// The command's name is in parentheses and may hold anything.
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(f) < 18 || f[0] == "Z" || f[0] == "X" {
		return 0, 0
	}
	tasks, _ = strconv.Atoi(f[17])
	raw, err = os.ReadFile("/proc/" + pid + "/statm")
	if err != nil {
		return 0, tasks
	}
	f = strings.Fields(string(raw))
	if len(f) < 3 {
		return 0, tasks
	}
	all, _ := strconv.ParseInt(f[1], 10, 64)
	shared, _ := strconv.ParseInt(f[2], 10, 64)
	return max(0, all-shared) * int64(os.Getpagesize()), tasks
}

// proportional is a process's share of the anonymous and of the shared memory it
// maps. It is called with user code's identity, which alone may look.
func proportional(pid string) (anon, shared int64) {
	raw, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
	if err != nil {
		return 0, 0
	}
	return kilobytes(string(raw), "Pss_Anon:"), kilobytes(string(raw), "Pss_Shmem:")
}

package guest

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// resident is what a user's processes hold, as far as this process sees them.
type resident struct {
	bytes int64 // anonymous memory
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
			pids = append(pids, name)
		}
	}
	if !exact || len(pids) < 2 {
		return r
	}
	once := int64(0)
	err = asUser(func() error {
		for _, name := range pids {
			once += proportional(name)
		}
		return nil
	})
	if err == nil && once > 0 {
		r.bytes = once
	}
	return r
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

// proportional is a process's share of the anonymous memory it maps. It is
// called with user code's identity, which alone may look.
func proportional(pid string) int64 {
	raw, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if v, ok := strings.CutPrefix(line, "Pss_Anon:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

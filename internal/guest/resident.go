package guest

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// residentOf sums the memory of a user's processes that this process sees.
// Memory that processes share after a fork is counted once as soon as the plain
// sum looks large.
func residentOf(uid uint32) int64 {
	var pids []string
	sum := int64(0)
	dir, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		var st unix.Stat_t
		if unix.Stat("/proc/"+name, &st) != nil || st.Uid != uid {
			continue
		}
		if n := statm(name); n > 0 {
			sum += n
			pids = append(pids, name)
		}
	}
	if len(pids) < 2 {
		return sum
	}
	exact := int64(0)
	err = asUser(func() error {
		for _, name := range pids {
			exact += proportional(name)
		}
		return nil
	})
	if err != nil || exact == 0 {
		return sum
	}
	return exact
}

// statm is a process's resident memory that is not a file's.
func statm(pid string) int64 {
	raw, err := os.ReadFile("/proc/" + pid + "/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(raw))
	if len(f) < 3 {
		return 0
	}
	resident, _ := strconv.ParseInt(f[1], 10, 64)
	shared, _ := strconv.ParseInt(f[2], 10, 64)
	return max(0, resident-shared) * int64(os.Getpagesize())
}

// proportional is a process's share of the anonymous memory it maps.
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

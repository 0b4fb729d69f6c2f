package guest

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// crowd is how close user code's processes are to limits that no kernel reports.
// It sees a moment: what was met and left between two looks stays unseen, what
// it sees was met.
type crowd struct {
	tasks int // threads of all processes, and processes that nobody has collected
	files int // descriptors of the process that has most
}

// crowdOf looks at the processes of user code, at most so many, from the one
// after turn on. It is called with user code's identity, which alone may look
// into them.
func crowdOf(most, turn int) crowd {
	var c crowd
	names, err := namesIn("/proc")
	if err != nil {
		return c
	}
	var pids []string
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		var st unix.Stat_t
		if unix.Stat("/proc/"+name, &st) == nil && st.Uid == userID {
			pids = append(pids, name)
		}
	}
	for i := range min(most, len(pids)) {
		pid := pids[(turn+i)%len(pids)]
		c.tasks += threadsOf(pid)
		c.files = max(c.files, descriptorsOf(pid))
	}
	return c
}

// threadsOf counts the threads of a process; one that has ended and was not
// collected still takes a place.
func threadsOf(pid string) int {
	f := statOf("/proc/" + pid)
	if len(f) < 18 {
		return 0
	}
	n, _ := strconv.Atoi(f[17])
	return max(1, n)
}

// descriptorsOf counts a process's descriptors.
func descriptorsOf(pid string) int {
	path := "/proc/" + pid + "/fd"
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && st.Size > 0 {
		return int(st.Size) // since Linux 6.2
	}
	names, _ := namesIn(path)
	return len(names)
}

package guest

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// gauges are what is read at every run's begin and end and while it runs. They
// stay open for the life of the process: in gVisor, opening takes many times as
// long as reading. -1 is one that there is not.
type gauges struct {
	tasks, refusals    int // of the control group that counts code's tasks
	memoryFile         int // /proc/meminfo
	workspace, scratch int // directories of the two file systems that code fills
}

func openGauges(b *binding) gauges {
	g := gauges{tasks: -1, refusals: -1}
	if b.tasksDir != "" {
		g.tasks, g.refusals = openGauge(b.tasksDir+"/pids.current", 0), openGauge(b.tasksDir+"/pids.events", 0)
	}
	g.memoryFile = openGauge("/proc/meminfo", 0)
	g.workspace, g.scratch = openGauge(workspaceDir, unix.O_DIRECTORY), openGauge(scratchDir, unix.O_DIRECTORY)
	return g
}

func openGauge(path string, flags int) int {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return -1
	}
	return fd
}

// gauge reads one anew, "" where it is not to be had.
func gauge(fd int) string {
	var buf [4 << 10]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// tasksNow is how many tasks of user code there are, where the kernel tells.
func (g gauges) tasksNow() (n int64, known bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(gauge(g.tasks)), 10, 64)
	return n, err == nil
}

// refused is how often the kernel refused user code a task.
func (g gauges) refused() int64 {
	return max(0, keyValue(gauge(g.refusals), "max"))
}

// space is what a file system has, and whether all of it is used up.
func space(fd int) (used int64, full bool) {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return 0, false
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, st.Bavail == 0 || st.Files > 0 && st.Ffree == 0
}

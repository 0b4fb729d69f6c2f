package guest

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench/internal/guestwire"
)

// codeGroup is a control group of the host for user code, through descriptors
// that the host opened. nil where there is none.
type codeGroup struct{ procs, stat, kills int }

// givenCodeGroup takes over what the host passed, before anything is started.
func givenCodeGroup() *codeGroup {
	first, err := strconv.Atoi(os.Getenv(guestwire.CodeGroupEnv))
	if err != nil || first < 3 {
		return nil
	}
	_ = os.Unsetenv(guestwire.CodeGroupEnv) // cannot fail: the name is well formed
	for fd := first; fd < first+3; fd++ {
		unix.CloseOnExec(fd)
	}
	return &codeGroup{procs: first, stat: first + 1, kills: first + 2}
}

// memory is what user code holds, each page once: its own, and what it shares or
// has in memory file systems.
func (c *codeGroup) memory() (own, shared int64) {
	var buf [8 << 10]byte
	n, err := unix.Pread(c.stat, buf[:], 0)
	if err != nil {
		return 0, 0
	}
	text := string(buf[:n])
	// Version 2 says anon and shmem, version 1 has sums of its own for them.
	if own = keyValue(text, "anon"); own < 0 {
		own, shared = keyValue(text, "total_rss"), keyValue(text, "total_shmem")
	} else {
		shared = keyValue(text, "shmem")
	}
	return max(0, own), max(0, shared)
}

// killed is how many processes the group's bound has cost so far.
func (c *codeGroup) killed() int64 {
	var buf [1 << 10]byte
	n, err := unix.Pread(c.kills, buf[:], 0)
	if err != nil {
		return 0
	}
	return max(0, keyValue(string(buf[:n]), "oom_kill"))
}

// keyValue reads one number of lines of "key value"; -1 when it is not there.
func keyValue(text, key string) int64 {
	for line := range strings.SplitSeq(text, "\n") {
		if v, ok := strings.CutPrefix(line, key+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			if err != nil {
				return -1
			}
			return n
		}
	}
	return -1
}

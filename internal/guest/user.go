package guest

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// asUser runs f with the file system identity of user code: what f opens, makes
// and reads, code could have. f runs on a thread of its own, which is thrown
// away.
func asUser(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := becomeUser(); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// becomeUser changes this thread's user and group, for good.
func becomeUser() error {
	for _, c := range []struct {
		name     string
		nr, a, b uintptr
	}{
		{"setgroups", unix.SYS_SETGROUPS, 0, 0},
		{"setresgid", unix.SYS_SETRESGID, groupID, groupID},
		{"setresuid", unix.SYS_SETRESUID, userID, userID},
	} {
		// Raw: package syscall's own would change every thread.
		if _, _, e := unix.RawSyscall(c.nr, c.a, c.b, c.a); e != 0 && (c.nr != unix.SYS_SETGROUPS) {
			return fmt.Errorf("%s: %w", c.name, e)
		}
	}
	return nil
}

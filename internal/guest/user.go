package guest

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// asUser runs f with the effective identity of user code: what f opens, makes
// and reads, code could have. f runs on the calling goroutine and may start no
// other that needs the identity.
//
// Only the effective ids change, so that the thread can come back, and is not
// counted as one of user code's tasks.
func asUser(f func() error) error { return as(false, f) }

// asUserToLook runs f with the real identity of user code too, which gVisor asks
// of who looks into its processes. It is for there alone: elsewhere the thread
// would count as one of the tasks.
func asUserToLook(f func() error) error { return as(true, f) }

func as(really bool, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := switchTo(really, userID, groupID); err != nil {
			result <- err // the thread ends with this goroutine
			return
		}
		err := f()
		if switchTo(really, 0, 0) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// switchTo changes this thread's effective ids, and its real ones if it is to be
// really so. The calls are raw: package syscall's own change every thread.
func switchTo(really bool, uid, gid int) error {
	const keep = ^uintptr(0)
	set := func(nr uintptr, id int) error {
		first := keep
		if really {
			first = uintptr(id)
		}
		if _, _, e := unix.RawSyscall(nr, first, uintptr(id), keep); e != 0 {
			return fmt.Errorf("change identity: %w", e)
		}
		return nil
	}
	if uid == 0 { // the user first, for it carries the right to change the group
		if err := set(unix.SYS_SETRESUID, uid); err != nil {
			return err
		}
		return set(unix.SYS_SETRESGID, gid)
	}
	if err := set(unix.SYS_SETRESGID, gid); err != nil {
		return err
	}
	return set(unix.SYS_SETRESUID, uid)
}

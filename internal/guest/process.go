package guest

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// exitStatus says how a child ended.
type exitStatus struct {
	pid    int
	status unix.WaitStatus
	maxRSS int64 // bytes
}

// reaper is the one place of a process that waits for children, its own and
// those that it inherits as the first process of a namespace. It lives as long
// as the process.
type reaper struct {
	mu      sync.Mutex
	waiters map[int]func(exitStatus)
	started *sync.Cond
	live    int // children that were started here and not yet reaped
}

func newReaper() *reaper {
	r := &reaper{waiters: map[int]func(exitStatus){}}
	r.started = sync.NewCond(&r.mu)
	go r.loop() // ends with the process
	return r
}

// start forks and executes. ended is called once, from the reaper, and must not
// wait.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr, ended func(exitStatus)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, os.NewSyscallError("fork/exec "+path, err)
	}
	r.waiters[pid] = ended
	r.live++
	r.started.Signal()
	return pid, nil
}

func (r *reaper) loop() {
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, 0, &usage)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECHILD:
			r.mu.Lock()
			for r.live == 0 {
				r.started.Wait()
			}
			r.mu.Unlock()
			continue
		case err != nil || !status.Exited() && !status.Signaled():
			continue
		}
		r.mu.Lock()
		ended := r.waiters[pid]
		if ended != nil {
			delete(r.waiters, pid)
			r.live--
		}
		r.mu.Unlock()
		if ended != nil {
			ended(exitStatus{pid: pid, status: status, maxRSS: usage.Maxrss << 10})
		}
	}
}

package guest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Times of stopping a group: the first look comes at once, and the next ones in
// growing distances.
const (
	sweepWithin = 2 * time.Second
	sweepFirst  = 20 * time.Microsecond
	sweepMost   = time.Millisecond
)

// sweep sends a stopping signal to everything in the namespace until nothing
// new appears and nothing runs. A context is stopped after every cell, so it makes
// few system calls.
func sweep(sig unix.Signal) groupEvent {
	deadline := time.Now().Add(sweepWithin)
	proc, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return groupEvent{Error: err.Error()}
	}
	defer unix.Close(proc)
	for wait := sweepFirst; ; wait = min(2*wait, sweepMost) {
		if err := unix.Kill(-1, sig); err == unix.ESRCH {
			return groupEvent{}
		} else if err != nil {
			return groupEvent{Error: err.Error()}
		}
		pids, err := processesIn(proc)
		if err != nil {
			return groupEvent{Error: err.Error()}
		}
		running := slices.ContainsFunc(pids, runs)
		if !running {
			// Whoever could start another has stopped; it may have before that.
			now, err := processesIn(proc)
			if err != nil {
				return groupEvent{Error: err.Error()}
			}
			if slices.Equal(now, pids) {
				return groupEvent{Tasks: len(pids)}
			}
			continue
		}
		if time.Now().After(deadline) {
			return groupEvent{Error: fmt.Sprintf("some of %d processes do not stop", len(pids))}
		}
		ts := unix.NsecToTimespec(int64(wait))
		_ = unix.Nanosleep(&ts, nil) // an early look does no harm
	}
}

// processesIn lists the processes of an open /proc but this one, the first of its
// namespace.
func processesIn(proc int) ([]int, error) {
	if _, err := unix.Seek(proc, 0, 0); err != nil {
		return nil, err
	}
	var pids []int
	var buf [8 << 10]byte
	names := make([]string, 0, 128)
	for {
		n, err := unix.ReadDirent(proc, buf[:])
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if name[0] < '1' || name[0] > '9' {
				continue
			}
			if pid, err := strconv.Atoi(name); err == nil && pid != 1 {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// runs reports whether any thread of a process is neither stopped nor over.
func runs(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	state, threads := threadState(dir + "/stat")
	if state {
		return true
	}
	if threads < 2 {
		return false
	}
	tasks, err := unix.Open(dir+"/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // it has gone
	}
	defer unix.Close(tasks)
	tids, err := processesIn(tasks)
	return err != nil || slices.ContainsFunc(tids, func(tid int) bool {
		state, _ := threadState(dir + "/task/" + strconv.Itoa(tid) + "/stat")
		return state
	})
}

// threadState reads a stat file: whether what it is of runs, and how many threads
// its process has.
func threadState(path string) (runs bool, threads int) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, 0 // it has gone
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return false, 0
	}
	// The command's name is in parentheses and may hold anything.
	f := bytes.Fields(buf[bytes.LastIndexByte(buf[:n], ')')+1 : n])
	if len(f) < 18 {
		return true, 0
	}
	threads, err = strconv.Atoi(string(f[17]))
	if err != nil {
		return true, 0
	}
	return !bytes.Contains([]byte("TtZX"), f[0]), threads
}

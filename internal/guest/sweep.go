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
	sweepFirst = 20 * time.Microsecond
	sweepMost  = time.Millisecond
	sweepLooks = 100 // at least: on a busy host time passes without any
)

// sweep sends a stopping signal to everything in the namespace until nothing
// new appears and nothing runs. A context is stopped after every cell, so it makes
// few system calls.
func sweep(sig unix.Signal, within time.Duration) groupEvent {
	deadline := time.Now().Add(within)
	proc, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return groupEvent{Error: err.Error()}
	}
	defer unix.Close(proc)
	var before sight
	looks := 0
	for wait := sweepFirst; ; wait = min(2*wait, sweepMost) {
		looks++
		if err := unix.Kill(-1, sig); err == unix.ESRCH {
			return groupEvent{}
		} else if err != nil {
			return groupEvent{Error: err.Error()}
		}
		pids, err := processesIn(proc)
		if err != nil {
			return groupEvent{Error: err.Error()}
		}
		seen := look(pids)
		if seen.still(before) {
			// Whoever could start another has stopped; it may have before that.
			now, err := processesIn(proc)
			if err != nil {
				return groupEvent{Error: err.Error()}
			}
			if slices.Equal(now, pids) {
				return groupEvent{Tasks: len(pids)}
			}
		}
		before = seen
		if looks >= sweepLooks && time.Now().After(deadline) {
			return groupEvent{Error: fmt.Sprintf("some of %d processes do not stop", len(pids))}
		}
		ts := unix.NsecToTimespec(int64(wait))
		_ = unix.Nanosleep(&ts, nil) // an early look does no harm
	}
}

// sight is what one look at a list of processes saw.
type sight struct {
	runs  bool
	over  []int     // have ended
	waits []kinship // their threads have stopped, or wait for a stopped child
}

type kinship struct{ pid, parent int }

// still reports whether nothing of it runs, by this look and the one before.
//
// Who has ended since then may have woken others that were seen before it: the
// kernel continues stopped processes that an end has left alone. And a thread in
// an uninterruptible wait takes no signal until that is over; if its process has
// a child that has stopped, it is vfork's wait, which that child would have to
// end, and is there at the next look, too.
func (s sight) still(before sight) bool {
	return !s.runs && slices.Equal(s.over, before.over) && (len(s.waits) == 0 || slices.Equal(s.waits, before.waits))
}

// look looks at each process once.
func look(pids []int) sight {
	var s sight
	parents := map[int]bool{} // of processes that stand still
	for _, pid := range pids {
		switch p := stateOf(pid); p.state {
		case taskRuns:
			return sight{runs: true}
		case taskOver:
			s.over = append(s.over, pid)
		case taskWaits:
			s.waits = append(s.waits, kinship{pid, p.parent})
		case taskStopped:
			parents[p.parent] = true
		}
	}
	for range s.waits { // a child may wait for one of its own
		for _, p := range s.waits {
			if parents[p.pid] {
				parents[p.parent] = true
			}
		}
	}
	s.runs = slices.ContainsFunc(s.waits, func(p kinship) bool { return !parents[p.pid] })
	return s
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

// taskState is how far a thread, or a whole process, is from running code.
type taskState int

const (
	taskOver    taskState = iota // has ended
	taskStopped                  // stands still
	taskWaits                    // waits for something, and nothing interrupts that
	taskRuns
)

// task is what a stat file says.
type task struct {
	state   taskState
	plainly bool // it is stopped, by a signal and nothing else
	parent  int  // process
	threads int  // of its process
}

// stateOf is the state of a process: that of its most lively thread.
func stateOf(pid int) task {
	dir := "/proc/" + strconv.Itoa(pid)
	p := readTask(dir + "/stat")
	if p.threads < 2 || p.state == taskRuns {
		return p
	}
	tasks, err := unix.Open(dir+"/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return task{} // it has gone
	}
	defer unix.Close(tasks)
	tids, err := processesIn(tasks)
	if err != nil {
		return task{state: taskRuns}
	}
	for _, tid := range tids {
		if tid != pid {
			p.state = max(p.state, readTask(dir+"/task/"+strconv.Itoa(tid)+"/stat").state)
		}
	}
	return p
}

// readTask reads a stat file. What has gone is over; what cannot be read runs.
func readTask(path string) task {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return task{}
	}
	defer unix.Close(fd)
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return task{}
	}
	// The command's name is in parentheses and may hold anything.
	f := bytes.Fields(buf[bytes.LastIndexByte(buf[:n], ')')+1 : n])
	if len(f) < 18 {
		return task{state: taskRuns}
	}
	t := task{state: taskRuns}
	var errs [2]error
	t.parent, errs[0] = strconv.Atoi(string(f[1]))
	t.threads, errs[1] = strconv.Atoi(string(f[17]))
	if errs[0] != nil || errs[1] != nil {
		return t
	}
	switch f[0][0] {
	case 'T', 't':
		t.state, t.plainly = taskStopped, f[0][0] == 'T'
	case 'Z', 'X':
		t.state = taskOver
	case 'D':
		t.state = taskWaits
	}
	return t
}

// standing is how many threads a process has, if each of them is stopped by a
// signal and none has ended; 0 otherwise.
func standing(pid int) int {
	dir := "/proc/" + strconv.Itoa(pid)
	p := readTask(dir + "/stat")
	if !p.plainly {
		return 0
	}
	if p.threads < 2 {
		return p.threads
	}
	tasks, err := unix.Open(dir+"/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(tasks)
	tids, err := processesIn(tasks)
	if err != nil || len(tids) != p.threads {
		return 0
	}
	for _, tid := range tids {
		if tid != pid && !readTask(dir+"/task/"+strconv.Itoa(tid)+"/stat").plainly {
			return 0
		}
	}
	return len(tids)
}

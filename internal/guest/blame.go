package guest

import (
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stays reports whether too much memory is in use still, where it may be that of
// an exec which has just been ended for it: a killed process goes a moment after
// its group. More than there was is of one that lives.
func (w *watch) stays(mark, used int64) bool {
	for range ebbLooks {
		if !w.ebbs(ebbTime) {
			return true
		}
		time.Sleep(glanceEvery)
		now := w.usedAbove(mark)
		if now <= w.b.limits.MemoryBytes {
			return false
		}
		if now > used+rises {
			return true
		}
		used = min(used, now)
	}
	return true
}

// ebbs reports whether an exec was ended for its memory so long ago at most.
func (w *watch) ebbs(within time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.ebb) < within
}

// For how long after an exec was ended for its memory other looks are taken
// before one more is, how many, and what two of them differ by where nobody takes
// any.
const (
	ebbTime  = 500 * time.Millisecond
	ebbLooks = 100
	rises    = 4 << 20
)

// filesEbb is for how long after that the pages of files which nobody has any more may be
// in use still: a kernel of the sandbox's own gives them back late, on a busy host by
// seconds. Nobody who lives is ended for them.
const filesEbb = 10 * time.Second

// leavingTime is for how long the processes of what has ended may be on their way
// out.
const leavingTime = 30 * time.Second

// largest ends the exec whose group uses most, of those that there were when it
// was measured. While one is on its way out, for its memory or otherwise, the
// memory may be that one's: another look tells. So is what no group that lives
// has, unless the kernel has taken a process from one: it goes with processes
// that were killed.
func (w *watch) largest(execs []*execution, killed bool) {
	if slices.ContainsFunc(execs, (*execution).leaves) {
		return
	}
	used := map[*group]int64{}
	if w.crowded() {
		var sum int64
		used, sum = w.usedByGroups()
		if !killed && sum <= w.b.limits.MemoryBytes {
			return
		}
		if !killed && w.own && w.ownedBytes(used) <= w.b.limits.MemoryBytes && (w.ebbs(filesEbb) || slices.ContainsFunc(execs, (*execution).condemned)) {
			return // files of memory go a moment after whoever had them open
		}
	}
	var worst *execution
	most := int64(-1)
	for _, e := range execs {
		g := e.groupNow()
		if isEnded(g) {
			continue
		}
		if bytes := used[g]; bytes > most {
			worst, most = e, bytes
		}
	}
	if worst != nil && !slices.ContainsFunc(execs, (*execution).leaves) {
		worst.oom.Do(func() { close(worst.outOfMem) })
	}
}

// ownedBytes is what groups have, with what is in files that have a name.
func (w *watch) ownedBytes(used map[*group]int64) int64 {
	sum, _ := space(w.scratch)
	for _, bytes := range used {
		sum += bytes
	}
	return sum
}

// crowded reports whether memory may be something else's than the only exec's:
// another group's, or that of one or of a spare that has just ended.
func (w *watch) crowded() bool {
	if len(w.s.live()) > 1 || w.s.spares.wereGivenUp(leavingTime) {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.gone) < leavingTime
}

// usedByGroups is what the processes of each group have that is not on its way
// out, and the sum with what code has in files: as much as the truth, or more,
// because what processes share counts in each. Processes are looked at from
// outside of their groups: what keeps a group busy does not hide it.
func (w *watch) usedByGroups() (used map[*group]int64, sum int64) {
	home, forks := map[int]*group{}, w.s.spares.forkHomes()
	for _, g := range w.s.live() {
		if !g.ends() {
			home[g.pid] = g
		}
	}
	for pid, g := range forks {
		if !g.ends() {
			home[pid] = g
		}
	}
	seen, hidden := w.processes()
	used = map[*group]int64{}
	for pid, p := range seen {
		g := homeOf(pid, seen, home)
		if g == nil {
			continue // goes with its group, or waits in one that is nobody's yet
		}
		if forks[pid] != nil {
			p.bytes -= min(p.bytes, w.s.spares.forkShare()) // it has that with its zygote
		}
		used[g] += p.bytes
		sum += p.bytes
	}
	files := w.inFiles()
	sum += files
	if w.own && files >= manyBytes {
		addHeld(used, seen, home)
	}
	if hidden {
		sum += w.share(used, sum, seen, home)
	}
	return used, sum
}

// share gives what is in use beyond what was seen to the groups of processes that
// hide what they have, and returns it.
func (w *watch) share(used map[*group]int64, seenBytes int64, seen map[int]processSeen, home map[int]*group) int64 {
	spares, _ := w.s.spares.bytes()
	rest := max(0, w.used()-w.baseline-spares-seenBytes)
	given := map[*group]bool{}
	for pid, p := range seen {
		if g := homeOf(pid, seen, home); p.hidden && g != nil && !given[g] {
			given[g] = true
			used[g] += rest
		}
	}
	if len(given) == 0 {
		return 0
	}
	return rest
}

// hiddenFor is for how long a process may be on its way out, with what it has not
// to be seen, until it counts as one that hides it.
const hiddenFor = 50 * time.Millisecond

// processes are those of user code, and whether some hide what they have.
func (w *watch) processes() (seen map[int]processSeen, hidden bool) {
	seen = processesOf(userID)
	w.mu.Lock()
	defer w.mu.Unlock()
	before, now := w.hiding, time.Now()
	w.hiding = nil
	for pid, p := range seen {
		if !p.hidden {
			continue
		}
		since, ok := before[pid]
		if !ok {
			since = now
		}
		if w.hiding == nil {
			w.hiding = map[int]time.Time{}
		}
		w.hiding[pid] = since
		if now.Sub(since) < hiddenFor {
			p.hidden = false
			seen[pid] = p
		} else {
			hidden = true
		}
	}
	return seen, hidden
}

// inFiles is what code has in memory without a process that maps it, but in the
// workspace, which has a bound of its own.
func (w *watch) inFiles() int64 {
	if w.code != nil {
		_, shared := w.code.memory()
		files, _ := space(w.workspace)
		return max(0, shared-files)
	}
	scratch, _ := space(w.scratch)
	return scratch + w.unmapped(scratch)
}

// manyBytes in files are worth a look at who has them open, at so many descriptors
// in all: memory must not have grown much meanwhile.
const (
	manyBytes = 16 << 20
	mostHeld  = 2048
)

// addHeld adds what each group has in files of memory alone, which need not be
// mapped to be there: each file once, and twice what is mapped as well. One that
// is nowhere but in a socket's queue is nobody's. It works where the sandbox has a
// kernel of its own: elsewhere the kernel chooses.
func addHeld(used map[*group]int64, seen map[int]processSeen, home map[int]*group) {
	counted, left := map[*group]map[uint64]bool{}, mostHeld
	_ = asUserToLook(func() error { // without it nobody is seen to have any
		for pid, p := range seen {
			g := homeOf(pid, seen, home)
			if g == nil {
				continue
			}
			if counted[g] == nil {
				counted[g] = map[uint64]bool{}
			}
			used[g] += heldIn(p.dir+"/fd", counted[g], &left)
		}
		return nil
	})
}

// heldIn is what a directory of descriptors shows of files of memory alone that
// have not been counted. left is how many may still be looked at.
func heldIn(dir string, counted map[uint64]bool, left *int) (bytes int64) {
	names, err := namesIn(dir)
	if err != nil {
		return 0
	}
	for _, name := range names {
		if *left--; *left < 0 {
			return bytes
		}
		var st unix.Stat_t
		at := dir + "/" + name
		target, err := os.Readlink(at)
		if err != nil || !strings.HasPrefix(target, "/memfd:") || unix.Stat(at, &st) != nil || counted[st.Ino] {
			continue
		}
		counted[st.Ino] = true
		bytes += st.Blocks * 512
	}
	return bytes
}

// homeOf is the group of a process: its own, that of whoever it comes from, or nil.
func homeOf(pid int, seen map[int]processSeen, home map[int]*group) *group {
	for range len(seen) + 1 {
		if g := home[pid]; g != nil {
			return g
		}
		p, ok := seen[pid]
		if !ok {
			return nil
		}
		pid = p.parent
	}
	return nil
}

// hadWithin is how long the end of a process is waited for that has said its end.
const hadWithin = 300 * time.Millisecond

// had is the most that the exec's main process had, if it takes it along when it
// goes; 0 while it has not gone.
func (e *execution) had() int64 {
	e.mu.Lock()
	p := e.proc
	e.mu.Unlock()
	if p == nil {
		return 0
	}
	wait := time.NewTimer(hadWithin)
	defer wait.Stop()
	select {
	case <-p.gone:
	case <-wait.C:
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peak
}

// groupNow is the exec's group at this moment.
func (e *execution) groupNow() *group {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.group
}

// isEnding reports whether the main process has ended, or is about to be ended
// for its memory.
func (e *execution) isEnding() bool { return e.over() || e.condemned() }

// condemned reports whether it is to end for its memory.
func (e *execution) condemned() bool {
	select {
	case <-e.outOfMem:
		return true
	default:
		return false
	}
}

// leaves reports whether what the exec has is about to go, and has not gone. What
// its main process has left behind goes on.
func (e *execution) leaves() bool {
	g := e.groupNow()
	return !isEnded(g) && (e.condemned() || g.ends())
}

// chosen follows that the kernel has ended a process for memory, until it is known
// whose.
type chosen struct {
	since time.Time
	looks int
}

// While it is not, an exec from which it took the main process may go on unnoticed
// for victimTime, and for victimLooks at least: on a busy host time passes without
// any.
const (
	victimTime  = time.Second
	victimLooks = 100
)

// unknown reports whether it may show by itself whose process it was: what was
// killed uses nothing any more, so that measuring would find another.
func (c *chosen) unknown(killed bool) bool {
	if !killed {
		*c = chosen{}
		return false
	}
	if c.looks++; c.looks == 1 {
		c.since = time.Now()
	}
	return c.looks < victimLooks || time.Since(c.since) < victimTime
}

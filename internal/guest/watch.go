package guest

import (
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// watchEvery is how often limits that no kernel reports are looked at while
// something runs, glanceEvery how often at memory where that costs next to
// nothing.
const (
	watchEvery  = 20 * time.Millisecond
	glanceEvery = 4 * time.Millisecond
	growing     = 8 << 20 // bytes more than at the last look: a program takes memory fast
)

// watch follows what user code uses while execs run: it ends what has used up
// its memory, and notes limits that were met.
type watch struct {
	s *supervisor
	b *binding

	mu       sync.Mutex
	execs    map[*execution]*watched
	tasks    int
	memory   int64
	baseline int64 // memory in use before any code ran; only where the sandbox has its own meminfo
	shmem    int64 // what memory file systems held then, with the guest's own files
	own      bool  // /proc/meminfo is the sandbox's own
	code     *codeGroup
	gauges                     // valid once it has begun
	rounds   int               // so far; the loop's
	chosen   chosen            // the loop's
	grows    atomic.Bool       // by the last two looks
	gone     time.Time         // when the last exec was gone
	ebb      time.Time         // when the last one that was ended for its memory was
	hiding   map[int]time.Time // since when processes hide what they have
	wake     chan struct{}
}

// watched is what there was before an exec began, and what it has used.
type watched struct {
	peak    int64    // bytes
	refused int64    // task creations that had failed
	started int64    // processes of code that the kernel had ended for memory
	killed  int64    // the same, with those since then whose end is settled
	full    []string // limits of space that had been met, and are since
}

func newWatch(s *supervisor) *watch {
	return &watch{s: s, execs: map[*execution]*watched{}, wake: make(chan struct{}, 1), code: givenCodeGroup()}
}

// begin starts watching for the life of the process.
func (w *watch) begin(b *binding) {
	w.b, w.gauges = b, openGauges(b)
	w.own = ownKernel()
	w.baseline = w.used()
	if w.own {
		w.shmem = kilobytes(gauge(w.memoryFile), "Shmem:")
	}
	if w.code != nil && b.nproc > 0 {
		// Every program joins where it would have joined a group that counts
		// tasks; there is none of those.
		_ = unix.Close(b.tasksFD)
		b.tasksFD = w.code.procs
	}
	go w.loop()
}

// ownKernel reports whether the sandbox has a kernel of its own, whose
// /proc/meminfo shows the sandbox alone.
func ownKernel() bool {
	raw, err := os.ReadFile("/proc/version")
	// "4.4.0" was gVisor's name for itself for years, "4.19.0-gvisor" is.
	return err == nil && (strings.Contains(string(raw), "-gvisor ") || strings.HasPrefix(string(raw), "Linux version 4.4.0 "))
}

func (w *watch) add(e *execution) {
	killed := w.killed()
	x := &watched{refused: w.refused(), started: killed, killed: killed, full: w.full()}
	w.mu.Lock()
	w.execs[e] = x
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watch) remove(e *execution) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.execs, e)
	w.gone = time.Now()
	select {
	case <-e.outOfMem:
		w.ebb = w.gone
	default:
	}
}

func (w *watch) peak(e *execution) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.execs[e]; x != nil {
		return x.peak
	}
	return 0 // it never began
}

// nothingElse reports whether an exec whose main process has just said its end has
// left nothing behind but that, for certain.
func (w *watch) nothingElse(p *process) bool {
	if !w.own {
		return false
	}
	tasks, known := w.tasksNow()
	return known && (tasks == 0 || tasks == 1 && p.alive())
}

func (w *watch) last() (tasks int, memory int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tasks, w.memory
}

func (w *watch) loop() {
	for range w.wake {
		for {
			w.rest() // a program needs longer to use up anything
			w.s.tree.changes.drain()
			w.mu.Lock()
			n := len(w.execs)
			w.mu.Unlock()
			if n == 0 {
				if w.s.contexts.any() {
					w.round() // short cells add up what they keep
				}
				w.grows.Store(false)
				break
			}
			w.round()
		}
	}
}

// rest waits for the next round. Where the kernel counts code's memory by itself
// it looks at that meanwhile, and does not wait once there is too much of it.
func (w *watch) rest() {
	if w.code == nil {
		if _, memory := w.last(); w.grows.Load() || memory > w.b.limits.MemoryBytes/4*3 {
			time.Sleep(glanceEvery) // a program passes the rest in milliseconds
		} else {
			time.Sleep(watchEvery)
		}
		return
	}
	for range watchEvery / glanceEvery {
		time.Sleep(glanceEvery)
		if w.used() > w.b.limits.MemoryBytes || w.kernelKilled() {
			return
		}
	}
}

// killed is how many processes of code the kernel has ended for memory.
func (w *watch) killed() int64 {
	if w.code == nil {
		return 0
	}
	return w.code.killed()
}

// kernelKilled reports whether the kernel has ended a process for memory since
// the execs began. While a group of an earlier program is on its way out, it may
// have been one of those.
func (w *watch) kernelKilled() bool {
	n := w.killed()
	if n == 0 {
		return false
	}
	leaving := false
	for _, g := range w.s.live() {
		g.mu.Lock()
		leaving = leaving || g.ending
		g.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	more := false
	for e, x := range w.execs {
		if leaving && !e.isEnding() {
			x.killed = n
		}
		more = more || n > x.killed
	}
	return more
}

// round looks at everything once.
func (w *watch) round() {
	w.mu.Lock()
	lowest := int64(1 << 62)
	execs := make([]*execution, 0, len(w.execs))
	for e, x := range w.execs {
		execs = append(execs, e)
		lowest = min(lowest, x.peak)
	}
	w.mu.Unlock()
	used := w.usedAbove(lowest)
	w.mu.Lock()
	w.grows.Store(used > w.memory+growing)
	w.memory = max(used, 0)
	for _, x := range w.execs {
		x.peak = max(x.peak, used)
	}
	w.mu.Unlock()
	killed := w.kernelKilled()
	much := used > w.b.limits.MemoryBytes/4*3
	if much {
		w.s.spares.giveUp()
	}
	over := used > w.b.limits.MemoryBytes+w.margin()
	switch {
	case w.chosen.unknown(killed) && len(execs) > 1:
		// The kernel has ended one, and whose may still show by itself.
	case killed && len(execs) > 1 && !over:
		w.accept() // it was a child of one of them, and its memory is free
	case killed || over && w.stays(lowest, used):
		w.largest(execs, killed)
	}
	for _, e := range execs {
		e.keepSource()
		w.note(e)
	}
	w.countInTurn(execs, much)
}

// countInTurn counts what no kernel reports. In a kernel of the sandbox's own a
// look costs more: a few processes in some rounds, none while memory is near its
// limit, which must not wait.
func (w *watch) countInTurn(execs []*execution, much bool) {
	w.rounds++
	if !w.own {
		for _, e := range execs {
			w.count(e, maxProcesses, 0, 0)
		}
		return
	}
	if much || w.rounds%roundsACount != 0 {
		return
	}
	for _, e := range execs {
		w.count(e, processesATurn, w.rounds/roundsACount*processesATurn, 0)
	}
}

// spareAtMost is more than an interpreter has that starts.
const spareAtMost = 64 << 20

// margin is what of the memory in use may not be code's: while a spare is there of
// which nobody knows what it uses, some is that one's.
func (w *watch) margin() int64 {
	if _, known := w.s.spares.bytes(); known || w.code != nil {
		return 0
	}
	return spareAtMost
}

// usedAbove is the memory in use, exact only when it is above the mark. A
// kernel of the sandbox's own counts everything at once, but gives freed memory
// back late; the processes' own sum counts shared memory more than once. The
// truth is not above either.
func (w *watch) usedAbove(mark int64) int64 {
	spares, _ := w.s.spares.bytes()
	used := w.used() - w.baseline - spares
	if !w.own || used <= mark {
		return used
	}
	seen, hidden := w.processes()
	if hidden {
		return used
	}
	sum := w.inFiles() - w.s.spares.resident()
	for _, p := range seen {
		sum += p.bytes
	}
	return min(used, sum)
}

// unmapped is memory of files that no file system shows, where the sandbox has a
// kernel of its own: code holds them through descriptors alone.
func (w *watch) unmapped(scratch int64) int64 {
	files, _ := space(w.workspace)
	return max(0, kilobytes(gauge(w.memoryFile), "Shmem:")-files-scratch-w.shmem)
}

// How many processes are counted, in all or in one round of so many.
const (
	maxProcesses   = 512
	processesATurn = 8
	roundsACount   = 3
)

// full are the limits of space that are met at this moment.
func (g gauges) full() []string {
	var hits []string
	look := func(fd int, name string) {
		if _, full := space(fd); full {
			hits = append(hits, name)
		}
	}
	look(g.workspace, workbench.LimitWorkspace)
	look(g.scratch, workbench.LimitScratch)
	return hits
}

// note notes the limits that an exec has met since it began. One of space that
// was met before it began counts only once there had been room again.
func (w *watch) note(e *execution) {
	now := w.full()
	w.mu.Lock()
	x := w.execs[e]
	if x == nil {
		w.mu.Unlock()
		return
	}
	x.full = slices.DeleteFunc(x.full, func(name string) bool { return !slices.Contains(now, name) })
	hits := slices.DeleteFunc(now, func(name string) bool { return slices.Contains(x.full, name) })
	refused := x.refused
	w.mu.Unlock()
	if w.refused() > refused {
		hits = append(hits, workbench.LimitTasks)
	}
	for _, h := range hits {
		e.hit(h)
	}
}

// count notes limits that no kernel reports, if they are met at this moment, or
// were with so many tasks that have just gone.
func (w *watch) count(e *execution, most, turn, gone int) {
	var c crowd
	if asUser(func() error { c = crowdOf(most, turn); return nil }) != nil {
		return
	}
	if c.files >= w.b.limits.OpenFiles {
		e.hit(workbench.LimitOpenFiles)
	}
	// Without a counter of refusals, being at the limit has to do.
	if w.b.nproc > 0 && c.tasks+gone >= w.b.nproc {
		e.hit(workbench.LimitTasks)
	}
}

// over reports whether a program that has just ended by itself had used more
// than its memory: it was faster than the rounds. What others have is not its, nor
// what those have had that have ended shortly before.
func (w *watch) over(e *execution) bool {
	w.mu.Lock()
	near := w.memory > w.b.limits.MemoryBytes/2
	w.mu.Unlock()
	if !w.own && w.code == nil || !near || w.usedAbove(w.b.limits.MemoryBytes) <= w.b.limits.MemoryBytes+w.margin() {
		return false
	}
	if !w.crowded() {
		return true
	}
	used, sum := w.usedByGroups()
	if sum <= w.b.limits.MemoryBytes { // a program takes what it had along; an interpreter that lives on does not
		return e.r.Context == "" && e.had() > w.b.limits.MemoryBytes
	}
	own := used[e.groupNow()]
	for _, bytes := range used {
		if bytes > own {
			return false
		}
	}
	return true
}

// left is told when the main process has ended by itself, before anything ends
// what it left: the limits it met may still be seen there.
func (w *watch) left(e *execution) {
	if e.status != 0 || w.b.nproc > 0 {
		w.count(e, maxProcesses, 0, 1)
	}
}

// look notes the limits that an exec has met when it ends.
func (w *watch) look(e *execution) {
	w.note(e)
	killed := w.kernelKilled()
	w.mu.Lock()
	x := w.execs[e]
	if killed && x != nil && w.killed() > x.killed && (len(w.execs) == 1 || e.over() && e.status.Signal() == unix.SIGKILL) {
		e.hit(workbench.LimitMemory)
	}
	w.mu.Unlock()
	select {
	case <-e.ended:
	default:
		return // it never began, or does not end
	}
	if x == nil {
		return
	}
	e.mu.Lock()
	met := len(e.limits) > 0
	e.mu.Unlock()
	if e.status != 0 && !e.status.Signaled() && !met && e.noRoom.Load() {
		for _, name := range x.full { // a program that found no room, says so, and left none
			e.hit(name)
		}
	}
}

// victim reports whether the kernel ended the main process of an exec for
// memory, now that it has ended. What the kernel has ended since the exec began
// is then its own, and nobody else's.
func (w *watch) victim(e *execution) bool {
	n := w.killed()
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.execs[e]
	if x == nil || n <= x.started {
		return false
	}
	if e.status.Signal() != unix.SIGKILL { // -1 if no signal ended it
		if n > x.killed && len(w.execs) == 1 {
			e.hit(workbench.LimitMemory)
		}
		return false
	}
	e.hit(workbench.LimitMemory)
	for _, other := range w.execs {
		other.killed, other.started = n, n
	}
	return true
}

// accept takes what the kernel has ended so far for settled.
func (w *watch) accept() {
	n := w.killed()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.execs {
		x.killed = n
	}
}

// used is the memory that user code uses, as far as the guest can see.
func (w *watch) used() int64 {
	if w.code != nil {
		own, shared := w.code.memory()
		files, _ := space(w.workspace) // have a bound of their own
		return own + max(0, shared-files)
	}
	if !w.own {
		return residentOf(userID).bytes
	}
	text := gauge(w.memoryFile)
	total, free := kilobytes(text, "MemTotal:"), kilobytes(text, "MemFree:")
	files, _ := space(w.workspace)
	tasks, _ := w.tasksNow()
	return total - free - files - tasks*forkedPages
}

// forkedPages is what gVisor itself uses up for each task of user code: it
// copies a forked process's pages in pieces of 2 MiB, of which a forked Python
// touches two or three, where it has 1.3 MiB of its own on Linux. The
// host's bound on the sandbox has room for it.
const forkedPages = 4 << 20

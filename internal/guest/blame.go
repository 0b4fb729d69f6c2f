package guest

import (
	"slices"
	"sync"
	"time"
)

// stays reports whether too much memory is in use still, where it may be that of
// an exec which has just been ended for it: a killed process goes a moment after
// its group.
func (w *watch) stays(mark int64) bool {
	for range ebbLooks {
		w.mu.Lock()
		ebbs := time.Since(w.ebb) < ebbTime
		w.mu.Unlock()
		if !ebbs {
			return true
		}
		time.Sleep(glanceEvery)
		if w.usedAbove(mark) <= w.b.limits.MemoryBytes {
			return false
		}
	}
	return true
}

// For how long after an exec was ended for its memory other looks are taken
// before one more is, and how many.
const (
	ebbTime  = 500 * time.Millisecond
	ebbLooks = 100
)

// leavingTime is for how long the processes of what has ended may be on their way
// out, usageWithin how long a group may take to say what it uses, and silentLooks
// after how many looks without an answer it is taken for the one that has it all.
const (
	leavingTime = 30 * time.Second
	usageWithin = 60 * time.Millisecond
	loneWithin  = 10 * time.Millisecond
	silentLooks = 2
)

// largest ends the exec whose group uses most, of those that there were when it
// was measured. If one of them has ended since, or is about to, the memory was
// that one's: another look tells. So is what no group that lives has: it goes with
// processes that were killed.
func (w *watch) largest(execs []*execution) {
	if slices.ContainsFunc(execs, (*execution).isEnding) {
		return
	}
	used := map[*group]int64{}
	if w.crowded() {
		var sum int64
		var all bool
		lone := len(w.s.live()) <= 1
		used, sum, all = w.usedByGroups(lone)
		if w.silent++; !all && !lone && w.silent < silentLooks {
			return
		}
		w.silent = 0
		if w.own && all && sum <= w.b.limits.MemoryBytes {
			return
		}
	}
	var worst *execution
	most := int64(-1)
	for _, e := range execs {
		e.mu.Lock()
		g := e.group
		e.mu.Unlock()
		if bytes := used[g]; bytes > most {
			worst, most = e, bytes
		}
	}
	if worst != nil && !slices.ContainsFunc(execs, (*execution).isEnding) {
		worst.oom.Do(func() { close(worst.outOfMem) })
	}
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
// out, and the sum with what code has in files: as much as the truth, or more. all
// is false if a group did not say so at once, which may have everything: one that
// is alone has hardly the time, for what eats memory keeps it from answering.
func (w *watch) usedByGroups(lone bool) (used map[*group]int64, sum int64, all bool) {
	within := usageWithin
	if lone {
		within = loneWithin
	}
	var mu sync.Mutex
	used, all = map[*group]int64{}, true
	var asked sync.WaitGroup
	for _, g := range w.s.live() {
		if g.ends() {
			continue
		}
		asked.Go(func() {
			ev, err := g.askWithin(within, groupCommand{Op: "usage"})
			if err != nil && g.ends() {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if used[g] = ev.RSS; err != nil {
				used[g], all = w.b.limits.MemoryBytes+1, false
			}
			sum += used[g]
		})
	}
	asked.Wait()
	scratch, _ := space(w.scratch)
	return used, sum + scratch + w.unmapped(scratch) - w.s.spares.inherited(), all
}

// isEnding reports whether the main process has ended, or is about to be ended
// for its memory.
func (e *execution) isEnding() bool {
	select {
	case <-e.outOfMem:
		return true
	case <-e.ended:
		return true
	default:
		return false
	}
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

package guest

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workbenchdev/workbench"
)

// zygoteCosts are what spares know of their zygote's memory.
type zygoteCosts struct {
	zygoteBytes int64 // of memory that it uses, and its forks with it; 0 without one
	forkBytes   int64 // what a fork has as a process from the beginning
	loading     bool  // it is not ready yet
	following   bool  // one is not gone yet
	refused     bool  // this image or runtime has none
	preloads    bool  // the image names what to load
}

// usualFork is the memory of a fork that waits, while none was measured.
const usualFork = 3 << 20

// mayFork reports whether a zygote can be: the image must name something to load
// ahead, or a plain interpreter costs less; its memory must be told from code's;
// and a guest that is broken on purpose shows its stages instead.
func (p *spares) mayFork() bool {
	return len(weakened) == 0 && p.preloads && !p.refused && slices.Contains(p.b.languages, workbench.Python) && (p.s.watch.own || p.s.watch.code != nil)
}

// load starts the zygote if it is missing and nothing runs, and lets one that
// was held up go on.
func (p *spares) load() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.zygote != nil && p.loading {
		p.zygote.signal(unix.SIGCONT)
	}
	if p.following || p.active > 0 || p.givenUp || p.settled || !p.mayFork() || !p.wants(workbench.Python) {
		return
	}
	z, err := p.s.startZygote(p.b)
	if err != nil {
		fmt.Fprintln(p.s.log, "guest: zygote:", err)
		p.refused = true
		return
	}
	p.zygote, p.loading, p.following = z, true, true
	go p.follow(z, p.s.watch.used(), p.s.runs.Load()) // ends with the zygote
}

// measureGrowing takes what a zygote has as a process for its memory while it
// loads: a little too much, because the pages of its files count as well. What a
// zygote had when it was given up counts until it is gone. Where code's memory
// is counted apart, a zygote's is no part of it. The caller holds mu.
func (p *spares) measureGrowing() {
	if p.zygote == nil || !p.loading || !p.s.watch.own {
		return
	}
	bytes := ofProcess(strconv.Itoa(p.zygote.pid))
	p.zygoteBytes = max(p.zygoteBytes, bytes)
}

// zygoteOf is what a fork has as a process before it runs anything; 0 where that
// is not known. The caller holds mu.
func (p *spares) zygoteOf(pr *process) int64 {
	if p.zygote == nil || !p.s.watch.own {
		return 0
	}
	p.zygote.mu.Lock()
	defer p.zygote.mu.Unlock()
	for number, child := range p.zygote.children {
		if child == pr {
			bytes := ofProcess(strconv.FormatUint(number, 10))
			return bytes
		}
	}
	return 0
}

// zygoteNow is what the zygote has as a process; 0 without one.
func (p *spares) zygoteNow() int64 {
	p.mu.Lock()
	z := p.zygote
	p.mu.Unlock()
	if z == nil || !p.s.watch.own {
		return 0
	}
	bytes := ofProcess(strconv.Itoa(z.pid))
	return bytes
}

// holdUp keeps a zygote that is still loading from taking a run's time.
func (p *spares) holdUp() {
	if p.zygote != nil && p.loading {
		p.zygote.signal(unix.SIGSTOP)
	}
}

// follow puts the zygote to use once it is ready, and notes when it is gone.
func (p *spares) follow(z *zygote, before, runs int64) {
	select {
	case <-z.ready:
	case <-time.After(zygoteLoads):
		z.kill()
	}
	<-z.ready
	p.mu.Lock()
	p.loading = false
	z.signal(unix.SIGCONT) // a run that began just now held it up, and load would not let it go on any more
	if z.usable() {
		p.forkBytes = z.bytes
		if own := ofProcess(strconv.Itoa(z.pid)); p.s.watch.own && own > 0 {
			p.forkBytes = min(p.forkBytes, own) // without the pages of its files
		}
		p.zygoteBytes = z.bytes
		if p.s.watch.own { // where a process's number has its files' pages as well
			p.zygoteBytes = z.bytes / 2
		}
		if p.active == 0 && runs == p.s.runs.Load() {
			p.zygoteBytes = max(0, p.s.watch.used()-before)
			if own := ofProcess(strconv.Itoa(z.pid)); p.s.watch.own && own > 0 {
				p.zygoteBytes = min(p.zygoteBytes, own) // the kernel gives back late what loading took for a moment
			}
		}
		delete(p.cost, workbench.Python) // of one that has loaded everything itself
		p.leave(workbench.Python)
	} else if p.zygote == z {
		p.refused = true // it could not begin
	}
	p.mu.Unlock()
	p.renewIn(0)
	<-z.ended
	p.mu.Lock()
	if p.zygote == z {
		p.zygote, p.loading = nil, false
	}
	p.zygoteBytes, p.forkBytes, p.following = 0, 0, false
	delete(p.cost, workbench.Python)
	p.mu.Unlock()
}

// giveZygoteUp ends it, unless a program is its fork: then most of its memory is
// the program's too. The caller holds mu.
func (p *spares) giveZygoteUp() {
	if p.zygote != nil && p.forks == 0 {
		p.zygote.kill()
		p.zygote, p.loading = nil, false
	}
}

// fork returns a Python forked into a group in which nothing of a user has run,
// in place of the stage there, if there is one. It returns nil where there is no
// zygote, and where none came of it: then the group may be about to end.
func (p *spares) fork(g *group, stage *process, admitted bool) *process {
	p.mu.Lock()
	z := p.zygote
	p.mu.Unlock()
	if z == nil || !z.usable() {
		return nil
	}
	pr, err := z.start(g, admitted)
	if err != nil {
		fmt.Fprintln(p.s.log, "guest: zygote:", err)
		p.mu.Lock()
		p.giveSilentUp()
		p.mu.Unlock()
		return nil
	}
	if stage != nil {
		gone := make(chan struct{})
		stage.onExit(func(groupEvent) { close(gone) })
		stage.closeAll() // without its specification it ends
		<-gone
	}
	return pr
}

// fork is the exec's process from the zygote, nil if it is to start otherwise.
func (e *execution) fork(cmd *command, stage *process) *process {
	if cmd.control == nil || e.r.Language != workbench.Python || e.special() || stage == nil && !e.fresh {
		return nil
	}
	e.s.spares.forkBegun() // before it is one, or its zygote might be given up
	e.forked = true
	p := e.s.spares.fork(e.group, stage, true)
	if p == nil {
		e.giveForkBack()
	}
	return p
}

// forkBegun notes that a fork is about to run a program.
func (p *spares) forkBegun() {
	p.mu.Lock()
	p.forks++
	p.mu.Unlock()
}

// forkEnded notes that its program is over.
func (p *spares) forkEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forks--
	p.giveSilentUp()
}

// giveSilentUp ends a zygote that has not answered in time and still does not,
// once no program is its fork. The caller holds mu.
func (p *spares) giveSilentUp() {
	if p.zygote != nil && !p.loading && !p.zygote.usable() {
		p.giveZygoteUp()
	}
}

// forkHomes are the groups of the zygote's processes, by the processes' numbers.
func (p *spares) forkHomes() map[int]*group {
	p.mu.Lock()
	z := p.zygote
	p.mu.Unlock()
	homes := map[int]*group{}
	if z == nil {
		return homes
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	for number, child := range z.children {
		homes[int(number)] = child.group
	}
	return homes
}

// forkShare is what a process of the zygote has with it.
func (p *spares) forkShare() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.forkBytes
}

// resident is what spares, and what programs have of the zygote, add to the sum
// of user code's processes.
func (p *spares) resident() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := int64(0)
	for _, sp := range p.kept {
		sum += sp.bytes
	}
	for sp := range p.leaving {
		sum += sp.bytes
	}
	if p.zygote != nil {
		sum += int64(p.zygote.forks()) * p.forkBytes
	}
	return sum
}

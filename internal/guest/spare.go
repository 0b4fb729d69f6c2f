package guest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
)

// A spare is a group made ahead of the run that will use it, with one process
// that waits in it: an interpreter that has started and waits for its code, or
// a stage that has not been told yet what it becomes. Nothing of a user has run
// in it, and what runs in another group cannot reach it.
type spare struct {
	lang    workbench.Language // python or javascript; "" is a stage
	ready   chan struct{}      // closed once group and process are valid
	group   *group             // nil when the start failed
	process *process           // likewise
	forked  bool               // by a zygote
	bytes   int64              // memory that it uses
	known   bool               // bytes was measured, of it or of one like it
}

// spares are those of a sandbox: a stage, and an interpreter of each language of
// the image that was used lately, or may be the first to be. A spare that is taken is replaced once its run has ended, or
// while it runs when that takes longer.
type spares struct {
	s *supervisor
	b *binding

	mu       sync.Mutex
	kept     map[workbench.Language]*spare
	wanted   []want                       // interpreters, the last used first
	cost     map[workbench.Language]int64 // memory of one, as last measured
	active   int                          // execs under way
	givenUp  bool                         // under pressure: none until nothing runs
	upAt     time.Time                    // when some were last
	settled  bool                         // none until something runs, or Wake
	leaving  map[*spare]bool              // given up, and not gone yet
	timer    *time.Timer
	renewing sync.Mutex

	left   []func() // take away what ended execs had
	place  *place   // for the next exec or context; nil while there is none
	zygote *zygote  // nil until it has started, and once it has been given up
	forks  int      // of it that run a program, or are about to
	zygoteCosts
}

// want is an interpreter to have waiting.
type want struct {
	lang   workbench.Language
	unused int // runs in other languages since it was last used
}

const (
	// unusedRuns is after how many runs in other languages an interpreter is not
	// wanted any more.
	unusedRuns = 4
	// replaceDuring is how long a program runs before its spare is replaced
	// beside it: a short one has the processor for itself.
	replaceDuring = 50 * time.Millisecond
	// replaceAfter is when a spare is replaced after a run whose end needs a scan,
	// if none comes.
	replaceAfter = 30 * time.Millisecond
	// spareReady bounds how long an interpreter may take to start.
	spareReady = 10 * time.Second
	// renewAfterAnswer is when spares are replaced after a scan, or after an end that
	// needs none: the answer, for which a client waits, comes first.
	renewAfterAnswer = 2 * time.Millisecond
	// mostLeft is how many execs may leave something to be taken away later.
	mostLeft = 16
)

func newSpares(s *supervisor) *spares {
	return &spares{s: s, kept: map[workbench.Language]*spare{}, cost: map[workbench.Language]int64{}, leaving: map[*spare]bool{}}
}

// begin has the first spares started: nobody knows yet which language comes
// first. It is called once.
func (p *spares) begin(b *binding) {
	p.mu.Lock()
	p.b, p.preloads = b, len(imports()) > 0
	for _, lang := range []workbench.Language{workbench.Python, workbench.JavaScript} {
		if slices.Contains(b.languages, lang) {
			p.wanted = append(p.wanted, want{lang: lang})
		}
	}
	p.mu.Unlock()
	p.renewIn(0)
}

// begun notes that an exec is about to use a spare or something else.
func (p *spares) begun() {
	p.mu.Lock()
	p.active++
	p.settled = false
	p.holdUp()
	lacks := p.lacks()
	p.mu.Unlock()
	if lacks {
		p.renewIn(replaceDuring)
	}
}

// ended notes that it is over. noScan says that no scan comes, after which
// spares would be replaced.
func (p *spares) ended(noScan bool) {
	p.mu.Lock()
	p.active--
	lacks := p.lacks()
	p.mu.Unlock()
	switch {
	case !lacks: // a cell takes nothing, and a timer costs it more than it looks
	case noScan:
		p.renewIn(renewAfterAnswer)
	default:
		p.renewIn(replaceAfter)
	}
}

// lacks reports whether renew would do anything. The caller holds mu.
func (p *spares) lacks() bool {
	if len(p.left) > 0 || p.place == nil || p.givenUp || p.loading || p.zygote == nil && !p.following && p.wants(workbench.Python) && p.mayFork() {
		return true
	}
	for _, w := range p.wanted {
		if p.kept[w.lang] == nil {
			return true
		}
	}
	return p.kept[""] == nil
}

// driverOf is the language whose interpreter runs a language, "" for none.
func driverOf(lang workbench.Language) workbench.Language {
	switch lang {
	case workbench.Python:
		return workbench.Python
	case workbench.JavaScript, workbench.TypeScript:
		return workbench.JavaScript
	default:
		return ""
	}
}

// take returns a spare for a program of the language, which is no longer kept:
// the language's interpreter or a stage. It returns nil when there is none, and
// waits for one that is about to be ready. One that is forked counts as a fork
// that runs a program from here on.
func (p *spares) take(lang workbench.Language) *spare {
	driver := driverOf(lang)
	p.mu.Lock()
	p.used(driver)
	sp := p.kept[driver]
	delete(p.kept, driver)
	if sp == nil {
		sp = p.kept[""]
		delete(p.kept, "")
	}
	var others []*spare
	if p.b.nproc > 0 { // they would count against the run's tasks
		for lang, other := range p.kept {
			others = append(others, other)
			delete(p.kept, lang)
		}
	}
	p.forks++ // it may be one: its zygote stays from now on
	p.mu.Unlock()
	p.renewIn(replaceDuring)
	for _, other := range others {
		other.end()
	}
	taken := false
	if sp != nil {
		<-sp.ready
		taken = sp.group != nil && sp.process.alive() && !isEnded(sp.group)
	}
	if !taken || !sp.forked {
		p.forkEnded()
	}
	if !taken {
		sp.end()
		return nil
	}
	return sp
}

// used notes a run of a driver's language and gives up spares of languages that
// are not wanted any more. The caller holds mu.
func (p *spares) used(driver workbench.Language) {
	kept := []want{}
	if driver != "" {
		kept = append(kept, want{lang: driver})
	}
	for _, w := range p.wanted {
		if w.lang == driver {
			continue
		}
		if w.unused++; w.unused < unusedRuns {
			kept = append(kept, w)
		} else {
			p.leave(w.lang)
		}
	}
	p.wanted = kept
}

// wants reports whether a spare of the language is to be there. The caller holds mu.
func (p *spares) wants(lang workbench.Language) bool {
	return lang == "" || slices.ContainsFunc(p.wanted, func(w want) bool { return w.lang == lang })
}

// end gives a spare up, if it is one, and waits until it is gone.
func (sp *spare) end() {
	if sp == nil {
		return
	}
	<-sp.ready
	if sp.group == nil {
		return
	}
	sp.group.kill()
	<-sp.group.ended
	sp.process.closeAll()
}

// giveUp has every spare end, and lets none be started until nothing runs: a
// program needs the memory. It does not wait.
func (p *spares) giveUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.kept) > 0 || p.zygote != nil && p.forks == 0 {
		p.upAt = time.Now()
	}
	p.givenUp = true
	for lang := range p.kept {
		p.leave(lang)
	}
	p.giveZygoteUp()
}

// wereGivenUp reports whether spares were given up within some time: their memory
// goes a moment after them.
func (p *spares) wereGivenUp(within time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.upAt) < within
}

// leave gives the spare of a language up, if there is one: its memory is not
// the program's until it is gone. The caller holds mu.
func (p *spares) leave(lang workbench.Language) {
	sp := p.kept[lang]
	if sp == nil {
		return
	}
	delete(p.kept, lang)
	p.leaving[sp] = true
	go func() { // ends with it
		sp.end()
		p.mu.Lock()
		delete(p.leaving, sp)
		p.mu.Unlock()
	}()
}

// bytes is the memory of the spares that are there, and whether it is known of
// all of them.
func (p *spares) bytes() (sum int64, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known = true
	add := func(sp *spare) {
		sum += sp.bytes
		known = known && sp.known
	}
	for _, sp := range p.kept {
		add(sp)
	}
	for sp := range p.leaving {
		add(sp)
	}
	p.measureGrowing()
	return sum + p.zygoteBytes, known
}

// renewIn has missing spares started after some time; a later call replaces an
// earlier one that has not come to it.
func (p *spares) renewIn(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.b == nil:
	case p.timer == nil:
		p.timer = time.AfterFunc(d, p.renew)
	default:
		p.timer.Reset(d)
	}
}

// discard has what an ended exec had taken away when nobody waits for that, or
// beside what runs where many end without a pause between them.
func (p *spares) discard(takeAway func()) {
	p.mu.Lock()
	p.left = append(p.left, takeAway)
	many := len(p.left) >= mostLeft
	p.mu.Unlock()
	if many {
		go func() { // ends with what is taken away
			p.renewing.Lock() // as a checkpoint waits for it
			defer p.renewing.Unlock()
			p.takeAway()
		}()
	}
}

func (p *spares) takeAway() {
	p.mu.Lock()
	left := p.left
	p.left = nil
	p.mu.Unlock()
	for _, f := range left {
		f()
	}
}

// renew takes away what ended execs left and starts the spares that are missing,
// one after another: the language used last first, then a stage.
func (p *spares) renew() {
	p.renewing.Lock()
	defer p.renewing.Unlock()
	p.takeAway()
	p.mu.Lock()
	wanted := append(slices.Clone(p.wanted), want{})
	p.mu.Unlock()
	if err := p.renewPlace(); err != nil {
		fmt.Fprintln(p.s.log, "guest: place:", err) // whoever needs one makes it
	}
	for _, w := range wanted {
		if p.s.watch.grows.Load() { // who watches that needs the processor more
			p.renewIn(replaceDuring)
			return
		}
		if err := p.start(w.lang); err != nil {
			fmt.Fprintln(p.s.log, "guest: spare:", err)
			return
		}
	}
	p.load()
}

// start starts one spare, unless it is there or may not be.
func (p *spares) start(lang workbench.Language) error {
	p.mu.Lock()
	running := p.active
	if running == 0 {
		p.givenUp = false
	}
	if p.kept[lang] != nil || !p.wants(lang) || p.givenUp || p.settled || p.b.nproc > 0 && (running > 0 || p.s.contexts.any()) {
		p.mu.Unlock()
		return nil
	}
	sp := &spare{lang: lang, ready: make(chan struct{})}
	if cost, ok := p.cost[lang]; ok {
		sp.bytes, sp.known = cost, true
	}
	stage := p.kept[""]
	if lang != "" {
		delete(p.kept, "") // it becomes the interpreter
	}
	p.kept[lang] = sp
	p.mu.Unlock()

	before, runs, grown := p.s.watch.used(), p.s.runs.Load(), p.zygoteNow()
	err := sp.start(p, stage)
	if err != nil {
		p.mu.Lock()
		if p.kept[lang] == sp {
			delete(p.kept, lang)
		}
		p.mu.Unlock()
		return err
	}
	if lang != "" {
		sp.process.awaitReady(spareReady)
	}
	if sp.forked {
		p.mu.Lock()
		if own := p.zygoteOf(sp.process); own > 0 {
			p.forkBytes = own
		}
		if !sp.known {
			sp.bytes, sp.known = usualFork, true
		}
		p.mu.Unlock()
	}
	if runs == p.s.runs.Load() && running == 0 { // nothing else used memory meanwhile
		cost := max(0, p.s.watch.used()-before-max(0, p.zygoteNow()-grown)) // a zygote that loads meanwhile is not its
		p.mu.Lock()
		if stage != nil {
			cost += stage.bytes
		}
		p.cost[lang], sp.bytes, sp.known = cost, cost, true
		p.mu.Unlock()
	}
	return nil
}

// start makes group and process, or takes a stage's.
func (sp *spare) start(p *spares, stage *spare) error {
	defer close(sp.ready)
	if stage != nil && sp.lang != "" {
		if <-stage.ready; stage.group != nil && stage.process.alive() {
			sp.group, sp.process = stage.group, stage.process
		}
	}
	if sp.group != nil && sp.lang == workbench.Python {
		if pr := p.fork(sp.group, sp.process, false); pr != nil {
			sp.process, sp.forked = pr, true
			return nil
		}
		if sp.group.ends() {
			sp.process.closeAll()
			sp.group, sp.process = nil, nil
		}
	}
	if sp.group == nil {
		if err := sp.startNew(p); err != nil || sp.forked {
			return err
		}
	}
	if sp.lang != "" {
		sp.process.launch(interpreter(p.b, sp.lang))
	}
	return nil
}

// startNew makes group and process: a fork, or a stage.
func (sp *spare) startNew(p *spares) error {
	g, err := p.s.startGroup("", p.b)
	if err != nil {
		return err
	}
	var pr *process
	if sp.lang == workbench.Python {
		pr = p.fork(g, nil, false)
		if pr == nil && g.ends() {
			if g, err = p.s.startGroup("", p.b); err != nil {
				return err
			}
		}
	}
	sp.forked = pr != nil
	if pr == nil {
		if pr, err = startProcess(g, false); err != nil {
			g.kill()
			return err
		}
		pr.findOuter()
	}
	sp.group, sp.process = g, pr
	return nil
}

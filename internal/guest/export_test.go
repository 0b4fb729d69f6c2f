package guest

import (
	"io"

	"github.com/workbenchdev/workbench"
)

// Zygotes is what decides how long a zygote lives and whether it runs, around a
// process that stands for one: ended is closed once that has ended.
type Zygotes struct {
	p *spares
	z *zygote
}

// NewZygotes has a zygote that is ready and, unless it loads, in use.
func NewZygotes(pid int, ended chan struct{}, loading bool) Zygotes {
	z := &zygote{pid: pid, ended: ended, ready: make(chan struct{}), works: true}
	close(z.ready)
	p := newSpares(&supervisor{watch: &watch{}, log: io.Discard})
	p.zygote, p.loading = z, loading
	return Zygotes{p: p, z: z}
}

// Keep has a fork of it wait, and nothing more started.
func (t Zygotes) Keep() {
	t.p.b, t.p.settled = &binding{}, true
	sp := &spare{lang: workbench.Python, ready: make(chan struct{}), forked: true,
		group: &group{ended: make(chan struct{})}, process: &process{}}
	close(sp.ready)
	t.p.kept[workbench.Python] = sp
}

// Take is what a run does that finds the fork, GiveUp what a lack of memory
// does, End the end of the run.
func (t Zygotes) Take() bool { return t.p.take(workbench.Python) != nil }
func (t Zygotes) GiveUp()    { t.p.giveUp() }
func (t Zygotes) End()       { t.p.forkEnded() }

// Begun is what a run's begin does; Follow is called once the zygote is ready,
// and returns when it has ended.
func (t Zygotes) Begun()  { t.p.begun() }
func (t Zygotes) Follow() { t.p.follow(t.z, 0, 0) }

package guest

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// kernel is an interpreter that lives from cell to cell, in a group of its own
// that stands still between them.
type kernel struct {
	s    *supervisor
	b    *binding
	name string
	kind workbench.Language // python, javascript or bash
	turn chan struct{}      // full while a cell has the interpreter

	// Valid for the cell that has the turn; set by the first.
	dir    string // of its own, below execsDir: its socket, cells of a shell
	socket *brokerSocket
	group  *group
	p      *process
	cells  int64
	wrote  chan struct{} // closed once the cell's message is written
	began  chan struct{} // closed once it is ready for a cell
	once   sync.Once     // closes began
	ending sync.Once
	forked bool // its process is a zygote's, which stays for it

	mu     sync.Mutex
	cell   *execution // under way; nil between cells
	number int64      // of that cell
	dead   bool       // its process has ended, or says so
}

// contexts are the interpreters of a sandbox that live, by name.
type contexts struct {
	s      *supervisor
	mu     sync.Mutex
	living map[string]*kernel
}

// kernelStart bounds the start of an interpreter: importing takes its time, and
// more of it on a busy machine.
const kernelStart = 60 * time.Second

// silenceWait is for the end of a process to be known whose report has ended.
const silenceWait = 3 * time.Second

func newContexts(s *supervisor) *contexts {
	return &contexts{s: s, living: map[string]*kernel{}}
}

// kindOf is the language of the interpreter that runs cells of a language.
func kindOf(lang workbench.Language) workbench.Language {
	if lang == workbench.TypeScript {
		return workbench.JavaScript
	}
	return lang
}

// take gives a cell the interpreter of its context, in turn, or a new one that
// has not been started. Codes: conflict, context_lost, capacity_exhausted.
func (c *contexts) take(ctx context.Context, e *execution) (k *kernel, fresh bool, err error) {
	name, kind := e.r.Context, kindOf(e.r.Language)
	for {
		c.mu.Lock()
		k := c.living[name]
		if k == nil && e.r.Living {
			c.mu.Unlock()
			return nil, false, workbench.E(workbench.CodeContextLost, "no interpreter lives under this name any more").WithField("contextId")
		}
		if k == nil {
			k, err := c.reserve(name, kind, e.b)
			c.mu.Unlock()
			return k, true, err
		}
		c.mu.Unlock()
		if k.kind != kind {
			return nil, false, workbench.E(workbench.CodeConflict, "the context %q is a %s interpreter, the cell is %s", name, k.kind, e.r.Language).
				WithField("language").WithHint("use another context for %s, or delete this one first", e.r.Language)
		}
		select {
		case k.turn <- struct{}{}:
		case <-e.cancelled:
			return nil, false, workbench.E(workbench.CodeCancelled, "the cell was cancelled while it waited for an earlier one")
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
		c.mu.Lock()
		same := c.living[name] == k
		c.mu.Unlock()
		if same && k.lives() {
			return k, false, nil
		}
		k.end()
		<-k.turn
	}
}

// reserve makes room for a new interpreter, whose turn the caller has. The
// caller holds mu.
func (c *contexts) reserve(name string, kind workbench.Language, b *binding) (*kernel, error) {
	if len(c.living) >= guestwire.MaxContexts {
		return nil, workbench.E(workbench.CodeCapacity, "%d contexts live in this session, which is the most", len(c.living)).
			WithField("contextId").WithHint("delete one that is not needed any more")
	}
	if !c.s.groupEnds(name) {
		return nil, workbench.E(workbench.CodeConflict, "a run in this session uses the name %q", name).WithField("contextId")
	}
	k := &kernel{s: c.s, b: b, name: name, kind: kind, turn: make(chan struct{}, 1), began: make(chan struct{})}
	k.turn <- struct{}{}
	c.living[name] = k
	return k, nil
}

// groupEnds reports whether there is no group of the name, or none that stays.
func (s *supervisor) groupEnds(name string) bool {
	s.mu.Lock()
	g := s.groups[name]
	s.mu.Unlock()
	if g == nil {
		return true
	}
	return g.ends()
}

func (c *contexts) forget(k *kernel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.living[k.name] == k {
		delete(c.living, k.name)
	}
}

// start starts the interpreter for its first cell, whose execution takes its
// place in the group.
func (k *kernel) start(e *execution) error {
	pl, err := k.s.spares.takePlace()
	if err != nil {
		return err
	}
	k.dir, k.socket = pl.dir, pl.socket
	if e.broker, err = newBroker(e, k.socket, false); err != nil {
		return err
	}
	if err := e.enter(); err != nil {
		return err
	}
	cmd := k.command(e)
	k.p, err = e.process(cmd)
	k.group, k.forked = e.group, e.forked // from here on the context's
	if err != nil {
		return err
	}
	k.group.resident.Store(k.p)
	k.p.stdin.Close() // input() is at its end
	k.p.mu.Lock()
	k.p.said, k.p.silent = k.hear, k.silence
	k.p.mu.Unlock()
	k.p.turn(e)
	k.p.outputs.Go(k.p.pump)
	k.p.onExit(k.exited)
	if len(cmd.control) == 0 {
		return nil
	}
	return k.p.control.writeWithin(cmd.control, kernelStart) // no code has run, but it may start slowly
}

// command says what the stage or the waiting interpreter becomes.
func (k *kernel) command(e *execution) *command {
	dir := workspaceDir
	if e.r.Dir != "" {
		dir = e.r.Dir
	}
	own := maps.Clone(e.b.session)
	if own == nil {
		own = map[string]string{}
	}
	own["WORKBENCH_SOCKET"], own["WORKBENCH_TOKEN"] = k.socket.path, e.broker.token
	maps.Copy(own, e.r.Env)
	findHelper(own)
	findPackages(own, e.r)
	if k.kind == workbench.Bash {
		return &command{program: program{Dir: []byte(dir), Files: e.b.limits.OpenFiles, Tasks: e.b.nproc, Keep: []int{controlFD, reportFD},
			Argv: toBytes([]string{e.b.interpreters[workbench.Bash], "--noprofile", "--norc", libDir + "/kernel.sh", k.dir}), Env: e.b.environment(own)}}
	}
	c := &command{program: interpreter(e.b, k.kind)}
	if e.special() {
		c.Env = e.b.environment(own)
	}
	c.control = kernelMessage(dir, own)
	return c
}

// becomeKernel is, in the place of a program's name, what makes a driver that
// waits for a program live on for cells.
const becomeKernel = 0xffffffff

// kernelMessage is what a driver reads to become a kernel: the mark, then a
// frame with the directory and the environment.
func kernelMessage(dir string, env map[string]string) []byte {
	var b []byte
	b = appendString(b, dir)
	b = binary.BigEndian.AppendUint32(b, uint32(len(env)))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		b = appendString(appendString(b, name), env[name])
	}
	return append(binary.BigEndian.AppendUint32(nil, becomeKernel), appendString(nil, string(b))...)
}

// cellMessage is a frame that begins a cell: its number, the token of its calls,
// its name, whether it was translated, and the source.
func (k *kernel) cellMessage(e *execution, name string, source []byte) []byte {
	var b []byte
	b = binary.BigEndian.AppendUint32(b, uint32(k.number))
	b = appendString(b, e.broker.token)
	b = appendString(b, name)
	b = appendString(b, string(e.r.Language))
	b = appendString(b, string(source))
	return appendString(nil, string(b))
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// shellCell lays a cell out where the shell reads it whole, and returns what
// tells it to. The token comes on the first line, so that lines have the numbers
// that they have in the cell.
func (k *kernel) shellCell(e *execution, name string, source []byte) ([]byte, error) {
	text := append([]byte("__workbench_begin "+e.broker.token+"; "), source...)
	if err := os.WriteFile(filepath.Join(k.dir, name), text, 0o444); err != nil {
		return nil, err
	}
	line := strconv.FormatInt(k.number, 10)
	if name != "cell-"+line+".sh" { // the shell reads byte by byte
		line += " " + name
	}
	return []byte(line + "\n"), nil
}

// write gives the interpreter something to read; it fails once the cell is over
// and it was not read.
func (k *kernel) write(message []byte) error {
	if _, err := k.p.control.Write(message); err != nil {
		return fmt.Errorf("the interpreter does not listen: %w", err)
	}
	return nil
}

// hear takes a line from the interpreter: that it began, or how a cell ended.
func (k *kernel) hear(line string) bool {
	if line == "began" {
		k.once.Do(func() { close(k.began) })
		return true
	}
	rest, ok := strings.CutPrefix(line, "=")
	if !ok { // the code it exits with, or what a cell wrote there
		_, err := strconv.ParseUint(line, 10, 8)
		return err != nil
	}
	first, second, _ := strings.Cut(rest, " ")
	number, err1 := strconv.ParseInt(first, 10, 64)
	code, err2 := strconv.ParseUint(second, 10, 8)
	k.mu.Lock()
	e := k.cell
	if number != k.number {
		e = nil // of no cell that runs
	}
	k.mu.Unlock()
	if e != nil && err1 == nil && err2 == nil {
		e.end(exitedWith(int(code)), 0)
	}
	return true
}

// exited is called once, when the interpreter has ended or says that it will.
func (k *kernel) exited(ev groupEvent) {
	k.mu.Lock()
	k.dead = true
	e := k.cell
	k.mu.Unlock()
	if e != nil {
		e.end(waitStatus(ev), ev.MaxRSS)
		return
	}
	go k.endInTurn() // ends with the context
}

// endInTurn ends an interpreter that no cell has.
func (k *kernel) endInTurn() {
	k.turn <- struct{}{}
	k.end()
	<-k.turn
}

// silence is called when the interpreter cannot say anything any more: it has
// ended, which is about to be known, or a cell has closed what it speaks through.
func (k *kernel) silence() {
	time.AfterFunc(silenceWait, func() {
		if k.lives() {
			k.group.kill()
		}
	})
}

func (k *kernel) lives() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.dead && k.group != nil && !k.group.ends()
}

// end takes the interpreter away with everything in its group. The caller has
// the turn.
func (k *kernel) end() { k.ending.Do(k.takeAway) }

func (k *kernel) takeAway() {
	k.s.contexts.forget(k)
	if k.forked {
		defer k.s.spares.forkEnded() // once its memory is gone
	}
	if k.group != nil {
		k.group.kill()
		wait := time.NewTimer(groupEndWait)
		defer wait.Stop()
		select {
		case <-k.group.ended:
		case <-wait.C:
			fmt.Fprintln(k.s.log, "guest: a killed context does not end")
		}
	}
	if k.p != nil {
		k.p.haltOutput()
		for _, f := range k.p.out {
			f.shutDown()
		}
		k.p.outputs.Wait()
		k.p.closeAll()
	}
	if k.socket != nil {
		k.socket.close()
	}
	if k.dir != "" {
		if err := os.RemoveAll(k.dir); err != nil {
			fmt.Fprintln(k.s.log, "guest: remove a context's directory:", err)
		}
	}
}

// any reports whether an interpreter lives.
func (c *contexts) any() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.living) > 0
}

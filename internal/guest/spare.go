package guest

import (
	"fmt"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// A spare is a group with an interpreter that has started and waits for its
// code. At most one is kept, of the language used last, and only while nothing
// runs: a program has its limits, and the machine, for itself.

// spare is one, from when its start begins.
type spare struct {
	lang    workbench.Language // python or javascript
	ready   chan struct{}
	group   *group   // valid once ready; nil when the start failed
	process *process // likewise
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

// prepareSpare starts a spare for the next exec when nothing runs.
func (s *supervisor) prepareSpare(b *binding, lang workbench.Language) {
	lang = driverOf(lang)
	s.mu.Lock()
	defer s.mu.Unlock()
	if lang == "" || s.spare != nil || len(s.execs) > 0 {
		return
	}
	sp := &spare{lang: lang, ready: make(chan struct{})}
	s.spare = sp
	go func() { // waited for by whoever takes the spare
		defer close(sp.ready)
		if err := sp.start(s, b); err != nil {
			fmt.Fprintln(s.log, "guest: spare interpreter:", err)
		}
	}()
}

func (sp *spare) start(s *supervisor, b *binding) error {
	g, err := s.startGroup("", b)
	if err != nil {
		return err
	}
	p, err := startProcess(g, true)
	if err != nil {
		g.kill()
		return err
	}
	p.launch(interpreter(b, sp.lang))
	sp.group, sp.process = g, p
	return nil
}

// takeSpare returns the spare if it is of the language; any other is ended.
func (s *supervisor) takeSpare(lang workbench.Language) *spare {
	s.mu.Lock()
	sp := s.spare
	s.spare = nil
	s.mu.Unlock()
	if sp == nil {
		return nil
	}
	<-sp.ready
	if sp.group == nil {
		return nil
	}
	if sp.lang == driverOf(lang) && sp.process.alive() && !isEnded(sp.group) {
		return sp
	}
	sp.group.kill()
	<-sp.group.ended
	sp.process.closeAll()
	return nil
}

// enter puts the exec into its group: a spare's, an existing one, or a new one.
func (e *execution) enter() error {
	sp := e.s.takeSpare(e.r.Language)
	e.s.mu.Lock()
	g, full := e.s.groups[e.r.Group], len(e.s.groups) >= guestwire.MaxGroups
	if g == nil && !full && sp != nil {
		sp.group.name = e.r.Group
		e.s.groups[e.r.Group] = sp.group
		e.s.mu.Unlock()
		e.group, e.spare = sp.group, sp.process
		go e.s.forgetEnded(sp.group) // ends with the group
		return nil
	}
	e.s.mu.Unlock()
	if sp != nil {
		sp.group.kill()
		sp.process.closeAll()
	}
	var err error
	e.group, err = e.s.group(e.r.Group, e.b)
	return err
}

// process returns the exec's process, about to run what the command says.
func (e *execution) process(cmd *command) (*process, error) {
	if e.spare != nil && cmd.control != nil && e.spare.alive() {
		return e.spare, nil
	}
	e.dropSpare()
	p, err := startProcess(e.group, cmd.control != nil)
	if err != nil {
		return nil, err
	}
	p.launch(cmd.program)
	return p, nil
}

// dropSpare closes what leads to an interpreter that is not used; it ends with
// the group.
func (e *execution) dropSpare() {
	if e.spare != nil {
		e.spare.closeAll()
		e.spare = nil
	}
}

package guest

import "github.com/workbenchdev/workbench/internal/guestwire"

// enter puts the exec into its group: an existing one, a spare's, or a new one.
func (e *execution) enter() error {
	e.s.mu.Lock()
	g, full := e.s.groups[e.r.Group], len(e.s.groups) >= guestwire.MaxGroups
	e.s.mu.Unlock()
	if g == nil && !full {
		lang := e.r.Language
		if e.special() {
			lang = "" // a stage will do
		}
		if sp := e.s.spares.take(lang); sp != nil {
			return e.enterSpare(sp)
		}
	}
	var err error
	e.group, e.fresh, err = e.s.group(e.r.Group, e.b)
	return err
}

// enterSpare makes the spare's group the exec's.
func (e *execution) enterSpare(sp *spare) error {
	e.s.mu.Lock()
	if e.s.groups[e.r.Group] != nil { // another exec made it meanwhile
		e.s.mu.Unlock()
		if sp.forked {
			e.s.spares.forkEnded()
		}
		sp.end()
		var err error
		e.group, e.fresh, err = e.s.group(e.r.Group, e.b)
		return err
	}
	sp.group.name = e.r.Group
	e.s.groups[e.r.Group] = sp.group
	e.s.mu.Unlock()
	e.group, e.spare, e.forked, e.admitted = sp.group, sp, sp.forked, make(chan error, 1)
	go e.s.forgetEnded(sp.group) // ends with the group
	if sp.process.outer > 0 {
		e.admitted <- sp.process.admit(e.b)
		return nil
	}
	go func() { e.admitted <- sp.process.admit(e.b) }() // the process waits for it before it gets its code; ends with the group
	return nil
}

// process returns the exec's process, about to run what the command says. While
// the workspace is read, it waits: who reads has stopped the processes that there
// were. From here on, whoever stops the group stops this one, too.
func (e *execution) process(cmd *command) (*process, error) {
	e.s.beginning.RLock()
	defer e.s.beginning.RUnlock()
	sp := e.spare
	fits := sp != nil && (sp.lang == "" || cmd.control != nil && sp.lang == driverOf(e.r.Language))
	if fits && <-e.admitted == nil && sp.process.alive() {
		if sp.lang != "" {
			return sp.process, nil
		}
		if p := e.fork(cmd, sp.process); p != nil {
			return p, nil
		}
		if sp.process.alive() && !e.group.ends() {
			sp.process.launch(cmd.program)
			return sp.process, nil
		}
	}
	waited := sp != nil
	e.dropSpare()
	if p := e.fork(cmd, nil); p != nil {
		return p, nil
	}
	if waited || e.fresh {
		if err := e.leaveEnded(); err != nil {
			return nil, err
		}
	}
	p, err := startProcess(e.group, true)
	if err != nil {
		return nil, err
	}
	p.launch(cmd.program)
	return p, nil
}

// leaveEnded has an exec that has not begun go on in a new group where the one
// that was made for it has ended: with the zygote of the process that waited
// there, or because a fork did not come.
func (e *execution) leaveEnded() error {
	if !e.group.ends() {
		return nil
	}
	g, _, err := e.s.group(e.r.Group, e.b)
	if err == nil {
		e.mu.Lock()
		e.group = g
		e.mu.Unlock()
	}
	return err
}

// dropSpare closes what leads to a process that is not used; it ends with the
// group.
func (e *execution) dropSpare() {
	if e.spare != nil {
		e.spare.process.closeAll()
		e.spare = nil
	}
	e.giveForkBack()
}

// giveForkBack notes that the exec has no fork of the zygote any more, if it had
// one.
func (e *execution) giveForkBack() {
	if e.forked {
		e.forked = false
		e.s.spares.forkEnded()
	}
}

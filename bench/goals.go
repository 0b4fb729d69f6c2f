package main

import (
	"fmt"
	"strings"
)

// goal is what was asked of one measurement, and what came of it.
type goal struct {
	What     string  `json:"what"`
	Goal     string  `json:"goal"`
	Measured string  `json:"measured"`
	Value    float64 `json:"value,omitempty"` // in the goal's unit, or the ratio
	Samples  int     `json:"samples,omitempty"`
	Outcome  string  `json:"outcome"` // met, not met, open (not measured)
}

const (
	met    = "met"
	notMet = "not met"
	open   = "open"
)

// judge holds the goals against what was measured.
func (r *result) judge() {
	r.Goals = nil
	for _, l := range []string{"python", "javascript"} {
		most, over, times := 5.0, 1.0, "no slower than bare python3 -c"
		if l == "javascript" {
			most, over, times = 8, 1.0/15, "15 × faster than bare node -e"
		}
		r.atMost("run in a warm session, "+l+", median", most, nameLive, l, median)
		r.ratioAtMost("run in a warm session, "+l, over, times, nameLive, nameBare, l)
		r.ratioAtMost("run in a warm session, "+l, 0.5, "half of cold runsc run", nameLive, nameRunsc, l)
		r.ratioAtMost("run in a warm session, "+l, 0.2, "a fifth of docker run", nameLive, nameDocker, l)
		r.atMost("cell in a context, "+l+", median", 3, nameCell, l, median)
		r.atMost("session from the pool and its first result, "+l+", median", 15, nameNew, l, median)
		r.atMost("session from the pool and its first result, "+l+", p99", 60, nameNew, l, p99)
		r.ratioAtMost("session from the pool and its first result, "+l, 0.1, "10 × faster than cold runsc run", nameNew, nameRunsc, l)
		r.ratioAtMost("session from the pool and its first result, "+l, 0.05, "20 × faster than docker run", nameNew, nameDocker, l)
	}
	r.ratioAtMost("import pandas as a run's first line", 0.2, "0.2 × bare Python's", nameLive, nameChroot, string(pandas))
	r.atMost("commit, nearly empty workspace, median", 1, nameCommitLittle, "python", median)
	r.atMost("commit, unchanged 64 MiB in 1,000 files, median", 10, nameCommitSame, "python", median)
	r.atMost("commit, one changed 1 MiB file among them, median", 30, nameCommitOne, "python", median)
	r.atMost("return from suspension, 1 MiB of files, from the pool, median", 30, nameReturnFiles, "python", median)
	r.ratioAtMost("return from suspension, 30 MiB of live memory", 1.5, "1.5 × bare runsc restore", nameReturnMemory, nameRestore, "python")
	for _, l := range []string{"python", "javascript"} {
		one := nameCall
		if l == "python" { // the one, as the eight
			one = nameAwaited
		}
		r.atMost("call of a no-op tool from inside and back, "+l+", median", 5, nameCall, l, median)
		r.ratioAtMost("8 calls at once, "+l, 3, "3 × one", nameCalls, one, l)
	}
	r.atMost("cached set of packages, what it adds to a session's first run, median", 50, namePackages, "python", median)
	r.figureAtMost("policy evaluation with 1,000 policies, median", 1, nameDecision)
	r.equalCells()
	r.figureAtMost("memory that an idle warm session adds, plain interpreters (PSS)", 60, nameIdlePlain)
	r.figureAtMost("memory that an idle warm session adds, imports loaded (PSS)", 140, nameIdleLoaded)
	r.figureAtMost("server memory of a suspended session", 50, nameSuspended)
	r.figureAtMost("burst of 50 creations, failures", 0, nameBurstFailed)
	r.burstGoal()
}

// add judges a value against the most that it may be.
func (r *result) add(g goal, value, most float64) {
	g.Value, g.Outcome = value, notMet
	if value <= most {
		g.Outcome = met
	}
	r.Goals = append(r.Goals, g)
}

func (r *result) open(what, goalText string) {
	r.Goals = append(r.Goals, goal{What: what, Goal: goalText, Measured: "not measured", Outcome: open})
}

func median(r row) float64 { return r.P50Ms }
func p99(r row) float64    { return r.P99Ms }

func (r *result) atMost(what string, most float64, name, language string, of func(row) float64) {
	text := fmt.Sprintf("≤ %g ms", most)
	row, ok := r.row(name, language)
	if !ok {
		r.open(what, text)
		return
	}
	r.add(goal{What: what, Goal: text, Measured: number(of(row)) + " ms", Samples: row.Samples}, of(row), most)
}

// ratioAtMost judges the ratio of two medians of the same run.
func (r *result) ratioAtMost(what string, most float64, text, ours, peer, language string) {
	text = fmt.Sprintf("≤ %.2g of %s (%s)", most, peer, text)
	us, ok := r.row(ours, language)
	them, peerOK := r.row(peer, language)
	if !ok || !peerOK || them.P50Ms == 0 {
		r.open(what, text)
		return
	}
	ratio := us.P50Ms / them.P50Ms
	r.add(goal{What: what, Goal: text, Measured: fmt.Sprintf("%.3f (%s ÷ %s ms)", ratio, number(us.P50Ms), number(them.P50Ms)), Samples: min(us.Samples, them.Samples)}, ratio, most)
}

func (r *result) figureAtMost(what string, most float64, name string) {
	f, ok := r.figure(name)
	unit := map[string]string{nameSuspended: "KB", nameBurstFailed: "", nameDecision: "ms"}
	u, known := unit[name]
	if !known {
		u = "MB"
	}
	text := strings.TrimSpace(fmt.Sprintf("≤ %g %s", most, u))
	if !ok {
		r.open(what, text)
		return
	}
	r.add(goal{What: what, Goal: text, Measured: strings.TrimSpace(number(f.Value) + " " + u), Samples: f.Samples}, f.Value, most)
}

// equalCells judges that stored runs do not slow cells down.
func (r *result) equalCells() {
	const what, text = "cells per second, many runs stored over few", "1 ± 0.1"
	few, ok := r.figure(nameCellsFew)
	many, alsoOK := r.figure(nameCellsMany)
	if !ok || !alsoOK || few.Value == 0 {
		r.open(what, text)
		return
	}
	ratio := many.Value / few.Value
	g := goal{What: what, Goal: text, Samples: few.Samples, Measured: fmt.Sprintf("%.2f (%s ÷ %s a second)", ratio, number(many.Value), number(few.Value))}
	g.Value, g.Outcome = ratio, notMet
	if ratio >= 0.9 && ratio <= 1.1 {
		g.Outcome = met
	}
	r.Goals = append(r.Goals, g)
}

// burstGoal judges the slowest of a burst against the work that all of it is.
func (r *result) burstGoal() {
	const what, text = "burst of 50 creations, p99 ÷ (work ÷ cores)", "≤ 3"
	row, ok := r.row(nameBurst, "python")
	work, alsoOK := r.figure(nameWorkPerCore)
	if !ok || !alsoOK || work.Value == 0 {
		r.open(what, text)
		return
	}
	ratio := row.P99Ms / work.Value
	r.add(goal{What: what, Goal: text, Measured: fmt.Sprintf("%.2f (%s ÷ %s ms)", ratio, number(row.P99Ms), number(work.Value)), Samples: row.Samples}, ratio, 3)
}

// row is a row that was measured.
func (r *result) row(name, language string) (row, bool) {
	for _, row := range r.Rows {
		if row.Name == name && row.Language == language {
			return row, row.NotMeasured == "" && row.Samples > 0
		}
	}
	return row{}, false
}

func (r *result) figure(name string) (figure, bool) {
	for _, f := range r.Figures {
		if f.Name == name {
			return f, f.NotMeasured == ""
		}
	}
	return figure{}, false
}

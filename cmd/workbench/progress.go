package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/workbenchdev/workbench/internal/terminal"
)

// progress tells on stderr how long work goes on: one line that is rewritten
// on a terminal; otherwise a line for each stage and one now and then within.
type progress struct {
	a     *app
	stage string
	last  time.Time
	shown int // cells of the line on the terminal
}

func (a *app) progress() *progress { return &progress{a: a} }

// plainEvery spaces the lines of one stage where no terminal rewrites them.
const plainEvery = 10 * time.Second

func (p *progress) show(stage, detail string, done, total int) {
	now := time.Now()
	line := stage
	if total > 0 {
		line += fmt.Sprintf(" %d/%d", done, total)
	} else if done > 0 {
		line += fmt.Sprintf(" %d", done)
	}
	line = terminal.Line(strings.TrimSpace(line + "  " + detail))
	fresh := stage != p.stage
	p.stage = stage
	if !p.a.errTTY {
		if fresh || now.Sub(p.last) >= plainEvery {
			p.last = now
			fmt.Fprintln(p.a.err, line)
		}
		return
	}
	if !fresh && now.Sub(p.last) < 50*time.Millisecond {
		return
	}
	p.last = now
	if runes := []rune(line); len(runes) > 100 {
		line = string(runes[:99]) + "…"
	}
	fmt.Fprintf(p.a.err, "\r%s%s", line, strings.Repeat(" ", max(0, p.shown-cells(line))))
	p.shown = cells(line)
}

// done takes the line off the terminal.
func (p *progress) done() {
	if p.a.errTTY && p.shown > 0 {
		fmt.Fprintf(p.a.err, "\r%s\r", strings.Repeat(" ", p.shown))
	}
}

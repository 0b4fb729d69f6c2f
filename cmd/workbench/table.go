package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/terminal"
)

// table shows rows: in columns below a heading on a terminal, else one line a
// row with tabs between and no heading. Fields may be hostile text.
func (a *app) table(heading []string, rows [][]string) error {
	clean := make([][]string, 0, len(rows)+1)
	if a.outTTY {
		if len(rows) == 0 {
			_, err := fmt.Fprintln(a.out, "none")
			return err
		}
		clean = append(clean, heading)
	}
	for _, row := range rows {
		fields := make([]string, len(row))
		for i, f := range row {
			fields[i] = terminal.Line(f)
		}
		clean = append(clean, fields)
	}
	if a.outTTY {
		return a.columns(clean)
	}
	for _, row := range clean {
		if _, err := fmt.Fprintln(a.out, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) columns(rows [][]string) error {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, f := range row {
			widths[i] = max(widths[i], cells(f))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, f := range row {
			line.WriteString(f)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-cells(f)+2))
			}
		}
		if _, err := fmt.Fprintln(a.out, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// cells is how many columns of a terminal s takes.
func cells(s string) int { return runewidth.StringWidth(s) }

// fields shows one thing: a name and a value a line.
func (a *app) fields(pairs ...string) error {
	longest := 0
	for i := 0; i < len(pairs); i += 2 {
		longest = max(longest, len(pairs[i]))
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		format := "%s\t%s\n"
		if a.outTTY {
			format = "%-" + fmt.Sprint(longest) + "s  %s\n"
		}
		if _, err := fmt.Fprintf(a.out, format, pairs[i], terminal.Line(pairs[i+1])); err != nil {
			return err
		}
	}
	return nil
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 0:
		return "-"
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// when is a time for people on a terminal, for programs otherwise.
func (a *app) when(t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case a.outTTY:
		return t.Local().Format("2006-01-02 15:04:05")
	}
	return t.UTC().Format(time.RFC3339)
}

func (a *app) whenever(t *time.Time) string {
	if t == nil {
		return ""
	}
	return a.when(*t)
}

func millis(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.String()
}

// took is how long a run's program ran; "" where that is not known: it has not
// ended, never started, or its end was not seen.
func took(r workbench.Run) string {
	if r.StartedAt == nil || r.FinishedAt == nil || r.Status == workbench.StatusUnknown {
		return ""
	}
	return millis(r.DurationMs)
}

// counted is a number of things: 1 file, 2 files.
func counted[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func themOrIt(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// bytes is a number of bytes: rounded for people, exact for programs.
func (a *app) bytes(n int64) string {
	if a.outTTY {
		return size(n)
	}
	return fmt.Sprint(n)
}

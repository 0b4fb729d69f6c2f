package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/workbenchdev/workbench"
)

// schema numbers the form of a result file.
const schema = 2

// pandas stands for the language of rows whose program begins with its import.
const pandas workbench.Language = "python, import pandas"

// Names of contenders and figures that goals or the report speak of.
const (
	nameLive         = "workbench, warm session"
	nameCell         = "workbench, cell in a context"
	nameNext         = "workbench, at once after a run"
	nameNew          = "workbench, new session from the pool"
	nameAdmit        = "workbench, admission"
	nameBare         = "bare interpreter"
	nameChroot       = "bare interpreter of the standard image, in a chroot"
	nameBwrap        = "bwrap"
	nameRunc         = "runc run"
	nameRunsc        = "runsc run, cold"
	nameDocker       = "docker run"
	nameCommitLittle = "commit of a run, nearly empty workspace"
	nameCommitSame   = "commit of a run, unchanged 64 MiB in 1,000 files"
	nameCommitOne    = "commit of a run, one changed 1 MiB file among them"
	nameReturnFiles  = "return from suspension, 1 MiB of files, from the pool"
	nameReturnMemory = "return from suspension, 30 MiB of live memory"
	nameRestore      = "bare runsc restore, 30 MiB of live memory"
	nameBurst        = "session and first result, 50 at once"
	nameCall         = "call of a tool that does nothing, from inside and back"
	nameAwaited      = "such a call of workbench.aio, awaited alone"
	nameCalls        = "8 such calls at once, until the last is back"
	nameFirstCalls   = "a run's first 8 such calls at once, until the last is back"
	nameThreads      = "8 such calls of 8 threads at once, until the last is back"
	namePackages     = "cached set of packages in a session's first run, what it adds"

	nameSuspended   = "server memory of a suspended session"
	nameCellsFew    = "cells per second, few runs stored"
	nameCellsMany   = "cells per second, many runs stored"
	nameIdlePlain   = "memory of an idle warm session, plain interpreters"
	nameIdleLoaded  = "memory of an idle warm session, imports loaded"
	nameWork        = "processor time of one creation"
	nameWorkPerCore = "work of a burst ÷ cores"
	nameBurstFailed = "failed creations of the burst"
	nameDecision    = "decision under 1,000 policies, median"
)

// result is one run of the bench. It names no path and no host.
type result struct {
	Schema   int               `json:"schema"`
	Date     time.Time         `json:"date"`
	Host     host              `json:"host"`
	Versions map[string]string `json:"versions"`
	Rows     []row             `json:"rows"`
	Figures  []figure          `json:"figures,omitempty"`
	Goals    []goal            `json:"goals"`
	Split    []split           `json:"split"`
	Sessions []rate            `json:"sessions,omitempty"`
	Idle     []idle            `json:"idleSessions,omitempty"`
	Files    []transfer        `json:"files,omitempty"`
	Failed   []string          `json:"failed,omitempty"` // parts without a result, and why
}

// row is one contender's times from request to result.
type row struct {
	Name        string  `json:"name"`
	Language    string  `json:"language"`
	Samples     int     `json:"samples"`
	Failed      int     `json:"failed,omitempty"` // samples besides those
	P50Ms       float64 `json:"p50Ms"`
	P95Ms       float64 `json:"p95Ms"`
	P99Ms       float64 `json:"p99Ms"`
	MinMs       float64 `json:"minMs"`
	NotMeasured string  `json:"notMeasured,omitempty"` // why

	raw []time.Duration // every sample, in order
}

// figure is a measurement that is no time from request to result.
type figure struct {
	Name        string    `json:"name"`
	Value       float64   `json:"value"`
	Unit        string    `json:"unit,omitempty"`
	Samples     int       `json:"samples"`
	Note        string    `json:"note,omitempty"`
	NotMeasured string    `json:"notMeasured,omitempty"` // why
	Raw         []float64 `json:"raw,omitempty"`         // what Value is the median of
}

// middle is the median.
func middle(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func rowOf(name, language string, took []time.Duration) row {
	s := sorted(took)
	return row{Name: name, Language: language, Samples: len(s), raw: took, MinMs: ms(percentile(s, 0)),
		P50Ms: ms(percentile(s, 50)), P95Ms: ms(percentile(s, 95)), P99Ms: ms(percentile(s, 99))}
}

// ms is a duration in milliseconds, to the microsecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (r *result) median(name, language string) float64 {
	for _, row := range r.Rows {
		if row.Name == name && row.Language == language && row.NotMeasured == "" {
			return row.P50Ms
		}
	}
	return 0
}

// explanation says what the rows are.
const explanation = `Hello world, request to result over HTTP, all in one run, taking turns. Whoever is next waits until the processors are
idle: what one leaves to be done, such as starting the interpreter of the next run, is not at the cost of another. The rows "at once" have
no such pause. New sessions find a warm sandbox.
"vs warm" is the row's median over that of a warm session's run in the same language. Commits are timed by the server
(workbench_commit_seconds): from the end of the program until what changed is stored, without the settlement that every run has.

`

// text is the report as Markdown, which is also what a terminal shows.
func (r *result) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n# Workbench bench, %s\n\n%s\n\n", r.Date.Format("2006-01-02 15:04 UTC"), r.Host.text())
	b.WriteString(explanation)
	t := newTable(&b, "contender", "language", "n", "p50 ms", "p95 ms", "p99 ms", "vs warm")
	for _, row := range r.Rows {
		if row.NotMeasured != "" {
			t.row(row.Name, row.Language, "0", "not measured", "", "", firstOf(row.NotMeasured))
			continue
		}
		against := ""
		if live := r.median(nameLive, row.Language); live > 0 {
			against = fmt.Sprintf("%.2f×", row.P50Ms/live)
		}
		samples := fmt.Sprint(row.Samples)
		if row.Failed > 0 {
			samples += fmt.Sprintf(" (%d failed)", row.Failed)
		}
		t.row(row.Name, row.Language, samples, number(row.P50Ms), number(row.P95Ms), number(row.P99Ms), against)
	}
	t.end()

	b.WriteString("\n## Goals\n\nRatios are of medians of this run, taken in turns.\n\n")
	t = newTable(&b, "what", "goal", "measured", "n", "outcome")
	for _, g := range r.Goals {
		t.row(g.What, g.Goal, g.Measured, fmt.Sprint(g.Samples), g.Outcome)
	}
	t.end()
	if len(r.Figures) > 0 {
		b.WriteString("\n## Beyond times\n\n")
		t = newTable(&b, "what", "value", "n", "note")
		for _, f := range r.Figures {
			t.row(f.Name, strings.TrimSpace(number(f.Value)+" "+f.Unit), fmt.Sprint(f.Samples), f.Note)
		}
		t.end()
	}
	if len(r.Failed) > 0 {
		b.WriteString("\n## Without a result\n\n")
		for _, f := range r.Failed {
			fmt.Fprintf(&b, "- %s\n", f)
		}
	}
	r.rest(&b)
	return b.String()
}

// rest is everything that is no race.
func (r *result) rest(b *strings.Builder) {
	if len(r.Split) > 0 {
		b.WriteString("\n## Where the time of a live run goes\n\nMeans, by the receipts' times.\n\n")
		t := newTable(b, "language", "total ms", "admitted to dispatched", "sandbox, program, commit", "of it the program", "request, admission, settlement, reply")
		for _, s := range r.Split {
			t.row(s.Language, number(s.TotalMs), number(s.DispatchMs), number(s.SandboxMs), number(s.ProgramMs), number(s.RestMs))
		}
		t.end()
	}
	if len(r.Sessions) > 0 {
		b.WriteString("\n## Sessions created and closed\n\n")
		t := newTable(b, "what", "clients", "sessions", "per second")
		for _, s := range r.Sessions {
			t.row(s.What, fmt.Sprint(s.Clients), fmt.Sprint(s.Sessions), number(s.PerSecond))
		}
		t.end()
	}
	if len(r.Idle) > 0 {
		fmt.Fprintf(b, "\n## Memory of an idle session\n\nAll its processes on the host, %d s after the last run of any. A page that several sandboxes share counts for each with its share.\n\n", int(idleAfter.Seconds()))
		t := newTable(b, "session", "processes", "PSS MiB", "control group MiB")
		for _, m := range r.Idle {
			t.row(m.What, fmt.Sprint(m.Processes), number(m.PSSMiB), number(m.CgroupMiB))
		}
		t.end()
	}
	if len(r.Files) > 0 {
		b.WriteString("\n## Files of 8 MiB\n\n")
		t := newTable(b, "what", "n", "p50 ms", "MB/s")
		for _, f := range r.Files {
			t.row(f.What, fmt.Sprint(f.Samples), number(f.P50Ms), number(f.MBPerSecond))
		}
		t.end()
	}
	b.WriteString("\n## Versions\n\n")
	t := newTable(b, "program", "version")
	for _, name := range versionOrder {
		if v := r.Versions[name]; v != "" {
			t.row(name, v)
		}
	}
	t.end()
}

// firstOf is the first line of an explanation, for a table.
func firstOf(why string) string {
	line, _, _ := strings.Cut(why, "\n")
	return strings.ReplaceAll(line, "|", "¦")
}

func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// table writes an aligned Markdown table.
type table struct {
	w       *tabwriter.Writer
	columns int
}

func newTable(b *strings.Builder, head ...string) *table {
	t := &table{w: tabwriter.NewWriter(b, 0, 0, 1, ' ', 0), columns: len(head)}
	t.row(head...)
	rule := make([]string, len(head))
	for i := range rule {
		rule[i] = "---"
	}
	t.row(rule...)
	return t
}

func (t *table) row(cells ...string) {
	_, _ = fmt.Fprintln(t.w, "| "+strings.Join(cells, "\t| ")+"\t|") // to memory
}

func (t *table) end() { _ = t.w.Flush() }

// raw is every sample of every row, one a line, in the order it was taken.
func (r *result) raw() []byte {
	b := bytes.NewBufferString("name,language,ms\n")
	for _, row := range r.Rows {
		for _, d := range row.raw {
			fmt.Fprintf(b, "%q,%q,%.3f\n", row.Name, row.Language, ms(d))
		}
	}
	return b.Bytes()
}

// write keeps the result as <date>-<host kind>.json, .md and .csv.
func (r *result) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	base := filepath.Join(dir, r.Date.Format("2006-01-02")+"-"+r.Host.Kind)
	if err := os.WriteFile(base+".json", append(raw, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(base+".md", []byte(strings.TrimLeft(r.text(), "\n")), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(base+".csv", r.raw(), 0o644); err != nil {
		return err
	}
	fmt.Printf("\nwritten to %s.json, .md and, sample by sample, .csv\n", base)
	return nil
}

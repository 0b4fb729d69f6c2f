package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// schema numbers the form of a result file.
const schema = 1

// Names of contenders that goals or the report speak of.
const (
	nameLive   = "workbench, live session"
	nameNext   = "workbench, at once after a run"
	nameNew    = "workbench, new session"
	nameAdmit  = "workbench, admission"
	nameBare   = "bare interpreter"
	nameBwrap  = "bwrap"
	nameRunc   = "runc run"
	nameRunsc  = "runsc run, cold"
	nameDocker = "docker run"
)

// result is one run of the bench. It names no path and no host.
type result struct {
	Schema   int               `json:"schema"`
	Date     time.Time         `json:"date"`
	Host     host              `json:"host"`
	Versions map[string]string `json:"versions"`
	Rows     []row             `json:"rows"`
	Goals    []goal            `json:"goals"`
	Split    []split           `json:"split"`
	Sessions []rate            `json:"sessions,omitempty"`
	Idle     []idle            `json:"idleSessions,omitempty"`
	Files    []transfer        `json:"files,omitempty"`
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
}

func rowOf(name, language string, took []time.Duration) row {
	s := sorted(took)
	return row{Name: name, Language: language, Samples: len(s), MinMs: ms(percentile(s, 0)),
		P50Ms: ms(percentile(s, 50)), P95Ms: ms(percentile(s, 95)), P99Ms: ms(percentile(s, 99))}
}

// ms is a duration in milliseconds, to the microsecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// goal is a bound on the ratio of two medians.
type goal struct {
	Language string  `json:"language"`
	Peer     string  `json:"peer"`
	Bound    float64 `json:"bound"`           // median of a live session's run over the peer's, below
	Ratio    float64 `json:"ratio,omitempty"` // what it was
	Outcome  string  `json:"outcome"`         // met, not met, open (not measured)
}

// judge holds the goals against the rows.
func (r *result) judge() {
	r.Goals = nil
	for _, language := range []string{"python", "javascript"} {
		for _, bound := range []struct {
			peer  string
			below float64
		}{{nameRunsc, 0.5}, {nameDocker, 0.2}} {
			g := goal{Language: language, Peer: bound.peer, Bound: bound.below, Outcome: "open"}
			if ratio := r.ratio(language, bound.peer); ratio > 0 {
				g.Ratio, g.Outcome = ratio, "not met"
				if ratio < bound.below {
					g.Outcome = "met"
				}
			}
			r.Goals = append(r.Goals, g)
		}
	}
}

// ratio is the median of a live session's run over a peer's; 0 if one of them
// was not measured.
func (r *result) ratio(language, peer string) float64 {
	ours, theirs := r.median(nameLive, language), r.median(peer, language)
	if ours == 0 || theirs == 0 {
		return 0
	}
	return ours / theirs
}

func (r *result) median(name, language string) float64 {
	for _, row := range r.Rows {
		if row.Name == name && row.Language == language && row.NotMeasured == "" {
			return row.P50Ms
		}
	}
	return 0
}

// text is the report as Markdown, which is also what a terminal shows.
func (r *result) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n# Workbench bench, %s\n\n%s\n\n", r.Date.Format("2006-01-02 15:04 UTC"), r.Host.text())
	b.WriteString("Hello world, request to result, all in one run, taking turns: a live session has a pause between its runs, in which\nthe interpreter of the next one starts. The rows \"at once\" have none.\n\"vs live\" is the row's median over that of a Workbench live session in the same language.\n\n")
	t := newTable(&b, "contender", "language", "n", "p50 ms", "p95 ms", "p99 ms", "vs live")
	for _, row := range r.Rows {
		if row.NotMeasured != "" {
			t.row(row.Name, row.Language, "0", "not measured", "", "", row.NotMeasured)
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

	b.WriteString("\n## Goals\n\n")
	t = newTable(&b, "median of a run in a live session", "language", "goal", "measured", "outcome")
	for _, g := range r.Goals {
		measured := "not measured"
		if g.Ratio > 0 {
			measured = fmt.Sprintf("%.2f", g.Ratio)
		}
		t.row("over "+g.Peer, g.Language, fmt.Sprintf("< %.1f", g.Bound), measured, g.Outcome)
	}
	t.end()
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
		fmt.Fprintf(b, "\n## Memory of an idle session\n\nAll its processes on the host, %d s after the last run.\n\n", int(idleAfter.Seconds()))
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

// write keeps the result as <date>-<host kind>.json and .md.
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
	fmt.Printf("\nwritten to %s.json and .md\n", base)
	return nil
}

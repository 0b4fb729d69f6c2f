package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// check holds the properties over the history and the final state.
func (w *world) check(ctx context.Context) {
	w.t.Helper()
	w.checkRuns(ctx)
	w.checkHistory()
}

// checkRuns is what is true of every accepted run, in whatever order they ran.
func (w *world) checkRuns(ctx context.Context) {
	w.t.Helper()
	c := w.client(w.key)
	w.mu.Lock()
	ids := slices.Collect(maps.Keys(w.runs))
	w.mu.Unlock()
	for _, id := range ids {
		r, err := again(ctx, func() (workbench.Receipt, error) { return c.GetRun(ctx, id, 0) })
		if err != nil {
			w.t.Errorf("P1: run %s was accepted and is gone: %v", id, err)
			continue
		}
		w.saw(r)
		if !r.Status.Terminal() {
			w.t.Errorf("P14: run %s is still %s after the drain", id, r.Status)
		}
		if known := w.runs[id]; !known.checked { // once: what follows never changes
			known.checked = true
			w.checkFiles(ctx, c, r.Artifacts)
			w.checkEvents(ctx, c, id, known.stdout)
		}
	}
	for id, want := range w.files {
		got, err := c.ReadSessionArtifact(ctx, id)
		if err != nil || digest(got) != want {
			w.t.Errorf("P9: artifact %s: %v, digest %s, want %s", id, err, digest(got), want)
		}
	}
	for _, problem := range w.startedTwice() {
		w.t.Error(problem)
	}
}

func (w *world) checkFiles(ctx context.Context, c *sdk.Client, files []workbench.Artifact) {
	for _, a := range files {
		got, err := c.ReadSessionArtifact(ctx, a.ID)
		if err != nil || digest(got) != a.SHA256 || int64(len(got)) != a.Size {
			w.t.Errorf("P9: listed file %s is not whole: %v", a.ID, err)
		}
	}
}

// startedTwice holds both oracles against what the server says of its runs:
// no step's code left twice (P3), and none of a run that was never started.
func (w *world) startedTwice() []string {
	var found []string
	handed, marked := map[string]int{}, map[string]int{}
	for _, h := range w.mustOracle() {
		handed[h.run]++
	}
	for _, key := range w.mustMarks() {
		marked[key]++
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, r := range w.runs {
		// In a run that failed before a byte left, the step may have been on
		// its way to the runtime; its code did not begin.
		least, mostHanded, mostBegun := 0, 1, 1
		switch {
		case r.last.Status == workbench.StatusSucceeded:
			least = 1
		case stageOf(r.last) == withdraw:
			mostHanded, mostBegun = 0, 0
		case r.last.Reason == workbench.ReasonInfrastructure:
			mostBegun = 0
		}
		say := func(oracle string, n, most int) {
			if n < least || n > most {
				found = append(found, fmt.Sprintf("P3: %s (%s) is %s %s and was %s %d times", id, r.key, r.last.Status, r.last.Reason, oracle, n))
			}
		}
		say("handed to a runtime", handed[id], mostHanded)
		say("begun by its own account", marked[r.key], mostBegun)
		if r.last.ExitCode != nil && *r.last.ExitCode == noMark {
			found = append(found, fmt.Sprintf("P3: %s (%s) could not leave its mark", id, r.key))
		}
	}
	return found
}

// handed is a step that the first oracle saw leave.
type handed struct {
	run string
	at  int64 // unix nanoseconds
}

func (w *world) mustOracle() []handed {
	w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, "oracle"))
	if err != nil {
		w.t.Fatalf("the oracle has nothing: %v", err)
	}
	var all []handed
	for line := range strings.Lines(string(raw)) {
		var h handed
		if _, err := fmt.Sscanf(line, "%s %d\n", &h.run, &h.at); err != nil {
			w.t.Fatalf("the oracle says %q: %v", line, err)
		}
		all = append(all, h)
	}
	return all
}

// mustMarks are the keys that programs left, one for each start.
func (w *world) mustMarks() []string {
	w.t.Helper()
	files, err := filepath.Glob(filepath.Join(w.dir, "marks", "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	var keys []string
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			w.t.Fatal(err)
		}
		keys = append(keys, strings.Fields(string(raw))...)
	}
	return keys
}

// checkHistory holds what clients were told, and when steps left, against the
// models of the keys and of the queues.
func (w *world) checkHistory() {
	w.t.Helper()
	oracle := w.mustOracle()
	w.mu.Lock()
	for _, h := range oracle[w.noted:] {
		if r, ok := w.runs[h.run]; ok {
			w.history.look(r.session, r.key, started, h.at, h.at)
		} else {
			w.t.Errorf("P2: %s was handed to a runtime and no client was told of it", h.run)
		}
	}
	w.noted = len(oracle)
	w.mu.Unlock()
	for _, problem := range w.history.violations() {
		w.t.Error(problem)
	}
}

// checkEvents: the log of a run has no gap, its output is the receipt's, and
// it has one terminal entry, the last.
func (w *world) checkEvents(ctx context.Context, c *sdk.Client, id, stdout string) {
	var out []byte
	last, terminals := int64(0), 0
	for e, err := range c.Events(ctx, id, 0) {
		if err != nil {
			w.t.Errorf("events of %s: %v", id, err)
			break
		}
		if e.Seq != last+1 {
			w.t.Errorf("P8: %s: event %d follows %d", id, e.Seq, last)
		}
		last = e.Seq
		if e.Kind == workbench.LogTerminal {
			terminals++
		}
		if e.Kind == workbench.LogOutput && e.Stream == workbench.Stdout {
			b, err := e.Bytes()
			if err != nil || e.Offset != int64(len(out)) {
				w.t.Errorf("P8: %s: output at %d after %d bytes (%v)", id, e.Offset, len(out), err)
			}
			out = append(out, b...)
		}
	}
	if terminals != 1 {
		w.t.Errorf("%s has %d terminal events", id, terminals)
	}
	if stdout != string(out) {
		w.t.Errorf("P8: %s: receipt says %q, events %q", id, stdout, out)
	}
}

// checkNothingLeft: once the server stopped, nothing of its instance is there.
func (w *world) checkNothingLeft() {
	w.t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.dir, "data", "instance"))
	if err != nil {
		w.t.Fatal(err)
	}
	instance := strings.TrimSpace(string(raw))
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		if cmdline, err := os.ReadFile(p); err == nil && bytes.Contains(cmdline, []byte(instance)) {
			w.t.Errorf("P7: process left: %s", bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}))
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), "sbx_") && strings.Contains(path, instance) {
			w.t.Errorf("P7: cgroup left: %s", path)
		}
		return nil
	})
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil && bytes.Contains(mounts, []byte(instance)) {
		w.t.Error("P7: a mount is left")
	}
}

package faults_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// A server that starts every step twice is caught by both oracles. On a busy machine
// the second sandbox may not follow what it is told, and then nothing is started
// twice: the next server is looked at.
func TestOraclesCatchASecondStart(t *testing.T) {
	t.Parallel()
	for range 4 {
		w := mustWorldAt(t, "", "-twice")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w.mustKey(ctx)
		run := w.mustRun(ctx, "double")
		for late := time.Now().Add(20 * time.Second); len(w.mustMarks()) < 2 && time.Now().Before(late); { // the second start is nobody's to wait for
			time.Sleep(10 * time.Millisecond)
		}
		if len(w.mustMarks()) < 2 {
			continue
		}
		found := w.startedTwice()
		slices.Sort(found)
		want := []string{
			fmt.Sprintf("P3: %s (double) is succeeded  and was begun by its own account 2 times", run),
			fmt.Sprintf("P3: %s (double) is succeeded  and was handed to a runtime 2 times", run),
		}
		if !slices.Equal(found, want) {
			t.Errorf("the oracles say %q, want %q", found, want)
		}
		return
	}
	t.Error("no server started its run twice")
}

// A mark that a program leaves is seen on the host when the run has ended, and
// a run that did not start left none.
func TestOraclesAgreeOnWhatStarted(t *testing.T) {
	t.Parallel()
	w := mustWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.mustKey(ctx)
	w.mustRun(ctx, "once")
	if marks := w.mustMarks(); !slices.Equal(marks, []string{"once"}) {
		t.Errorf("the marks are %q", marks)
	}
	if found := w.startedTwice(); found != nil {
		t.Errorf("the oracles object: %q", found)
	}
	w.runs["run_lost"] = &known{key: "lost"}
	w.runs["run_lost"].last.Status = "succeeded"
	if found := w.startedTwice(); len(found) != 2 {
		t.Errorf("a run that neither oracle saw succeeds: %q", found)
	}
	delete(w.runs, "run_lost")
	for _, r := range w.runs { // as if the server said that it never started
		r.last.Status, r.last.StartedAt = "cancelled", nil
	}
	if found := w.startedTwice(); len(found) != 2 {
		t.Errorf("a cancelled run that both oracles saw start: %q", found)
	}
}

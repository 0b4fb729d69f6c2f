package faults_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// gatherSession follows a session to its end, over as many servers as that
// takes: every event once, in order.
func gatherSession(ctx context.Context, t *testing.T, c *sdk.Client, id string) (events []sdk.SessionEvent) {
	t.Helper()
	for ctx.Err() == nil {
		for e, err := range c.SessionEvents(ctx, id, int64(len(events))) {
			var answer *sdk.Error
			if errors.As(err, &answer) && !answer.Retryable {
				t.Fatal(err)
			}
			if err != nil {
				break // the server is away
			}
			if e.Seq != int64(len(events)+1) {
				t.Fatalf("event %d follows %d", e.Seq, len(events))
			}
			if events = append(events, e); e.Kind.Terminal() {
				return events
			}
		}
	}
	t.Fatalf("no end after %d events", len(events))
	return nil
}

// The server is killed between two files that it keeps at a session's deadline:
// the next one keeps the rest, none twice, and a client that follows sees one
// warning and one end.
func TestKeepingAtExpiryAcrossAKill(t *testing.T) {
	t.Parallel()
	w := mustWorldAt(t, "engine.expiry.kept=exit@2")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w.mustKey(ctx)
	c := w.client(w.key)
	ttl := int64(45_000)
	s, err := c.CreateAgentSession(ctx, sdk.CreateSession{TTLMs: &ttl, KeepAtExpiry: []string{"out/**"}})
	if err != nil {
		t.Fatal(err)
	}
	run, err := w.submit(ctx, c, s.ID, "files", `mkdir out; for i in 1 2 3 4; do echo $i > out/$i; done`)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.wait(ctx, c, run); err != nil || r.Status != workbench.StatusSucceeded {
		t.Fatalf("run %s, %v", r.Status, err)
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() { defer close(watched); w.supervise(watching) }()
	defer func() { stop(); <-watched }()
	events := gatherSession(ctx, t, c, s.ID)
	counts := map[workbench.SessionEventKind]int{}
	var kept workbench.KeptEvent
	for _, e := range events {
		if counts[e.Kind]++; e.Kind == workbench.EventKept {
			if err := e.Read(&kept); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !w.awaitDeath(ctx, 1) || counts[workbench.EventExpiring] != 1 || counts[workbench.EventKept] != 1 || counts[workbench.EventExpired] != 1 {
		t.Errorf("the server was started %d times, events: %v", w.started(), counts)
	}
	if kept.Files != 4 || kept.Missed != 0 || len(kept.Items) != 4 {
		t.Errorf("kept: %+v", kept)
	}
	list, err := again(ctx, func() (sdk.SessionList[workbench.Artifact], error) {
		return c.ListSessionArtifacts(ctx, s.ID, workbench.Page{})
	})
	if err != nil || len(list.Items) != 4 {
		t.Fatalf("%d files are kept, %v", len(list.Items), err)
	}
	paths := map[string]bool{}
	for _, a := range list.Items {
		paths[a.Path] = true
		b, err := again(ctx, func() ([]byte, error) { return c.ReadSessionArtifact(ctx, a.ID) })
		if err != nil || a.Origin != workbench.OriginExpiry || string(b) != a.Name+"\n" {
			t.Errorf("%s of origin %s reads %q, %v", a.Path, a.Origin, b, err)
		}
	}
	if len(paths) != 4 {
		t.Errorf("paths: %v", paths)
	}
}

// The server is killed once a run is settled, before anybody was told: a client
// that resumes sees what the run changed, and its end, once each.
func TestFilesEventAcrossAKill(t *testing.T) {
	t.Parallel()
	w := mustWorldAt(t, "engine.settle.after=exit")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w.mustKey(ctx)
	c := w.client(w.key)
	s, err := c.CreateAgentSession(ctx, sdk.CreateSession{})
	if err != nil {
		t.Fatal(err)
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() { defer close(watched); w.supervise(watching) }()
	defer func() { stop(); <-watched }()
	run, err := w.submit(ctx, c, s.ID, "files", `echo one > a; sleep 1`)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []workbench.LogKind
	var changed workbench.FilesEntry
	for after := int64(0); ctx.Err() == nil && (len(kinds) == 0 || kinds[len(kinds)-1] != workbench.LogTerminal); {
		for e, err := range c.Events(ctx, run, after) {
			if err != nil {
				break // the server is away
			}
			if e.Seq != after+1 {
				t.Fatalf("event %d follows %d", e.Seq, after)
			}
			after, kinds = e.Seq, append(kinds, e.Kind)
			if f, ok := e.Files(); ok {
				changed = f
			}
		}
	}
	r, err := w.wait(ctx, c, run)
	if err != nil || r.Status != workbench.StatusSucceeded || !w.awaitDeath(ctx, 1) {
		t.Fatalf("run %s, started %d times, %v", r.Status, w.started(), err)
	}
	if n := len(kinds); n < 2 || kinds[n-2] != workbench.LogFiles || changed.Total != 1 || changed.CommitID != r.CommitID ||
		changed.Root != r.OutputRoot || changed.Items[0].Path != "a" {
		t.Errorf("events %v, changed %+v", kinds, changed)
	}
}

package faults_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// A client follows a run's events while the server is killed under it, and goes
// on after the restart from the last event it has: what it gathers is, byte for
// byte, what the receipt holds, and a prefix of what the program wrote.
func TestEventStreamResumedAcrossAKill(t *testing.T) {
	t.Parallel()
	w := mustWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.mustKey(ctx)
	c := w.client(w.key)
	s, err := c.CreateAgentSession(ctx, sdk.CreateSession{})
	if err != nil {
		t.Fatal(err)
	}
	run, err := w.submit(ctx, c, s.ID, "stream", `for i in $(seq 1 400); do printf 'añ☕漢 %d\n' $i; sleep 0.01; done`)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	after, killed, terminal := int64(0), false, false
	for !terminal && ctx.Err() == nil {
		for e, err := range c.Events(ctx, run, after) {
			var answer *sdk.Error
			if errors.As(err, &answer) && !answer.Retryable {
				t.Fatal(err)
			}
			if err != nil {
				break // the server is away
			}
			if e.Seq != after+1 {
				t.Fatalf("event %d follows %d", e.Seq, after)
			}
			after = e.Seq
			if e.Kind == workbench.LogOutput {
				b, err := e.Bytes()
				if err != nil || e.Offset != int64(len(out)) {
					t.Fatalf("output at %d after %d bytes, %v", e.Offset, len(out), err)
				}
				out = append(out, b...)
			}
			for _, tail := range e.Tail {
				b, err := tail.Bytes()
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, b...)
			}
			terminal = e.Kind == workbench.LogTerminal
			if len(out) > 1000 && !killed {
				killed = true
				w.kill()
				w.mustStart("")
			}
		}
	}
	r, err := w.wait(ctx, c, run)
	if err != nil || !killed || r.Status != workbench.StatusUnknown {
		t.Fatalf("killed %v, run %s, %v", killed, r.Status, err)
	}
	if r.Stdout == nil || *r.Stdout != string(out) {
		t.Errorf("events give %d bytes, the receipt %d", len(out), len(*r.Stdout))
	}
	var whole strings.Builder
	for i := 1; i <= 400; i++ {
		whole.WriteString("añ☕漢 " + strconv.Itoa(i) + "\n")
	}
	if !strings.HasPrefix(whole.String(), string(out)) || len(out) < 1000 {
		t.Errorf("what was kept is no prefix of what was written: %d bytes", len(out))
	}
}

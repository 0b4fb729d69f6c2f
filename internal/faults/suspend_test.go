package faults_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// The memory of a session outlives a server that is told to stop while it is
// being sealed, and one that dies as soon as the suspension is recorded.
func TestKeptMemoryAcrossAStopAndAKill(t *testing.T) {
	t.Parallel()
	w := mustWorldAt(t, "checkpoint.seal.after_put=sleep:2s", "-suspend-after=300ms")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w.mustKey(ctx)
	made, err := w.client(w.key).CreateAgentSession(ctx, sdk.CreateSession{KeepMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	mustSubmit := func(code string) string {
		t.Helper()
		c := w.client(w.key)
		got, err := again(ctx, func() (sdk.Submitted, error) {
			return c.CreateSessionRun(ctx, made.ID, sdk.CreateRun{Language: workbench.Python, Code: code, ContextID: "default"})
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, w.log())
		}
		return got.ID
	}
	mustSay := func(run, want string) {
		t.Helper()
		r, err := w.client(w.key).WaitForSessionRun(ctx, run)
		if err != nil || r.Output() != want {
			t.Fatalf("the cell is %s (%s %s) and said %q, %v, want %q\n%s", r.Status, r.Reason, r.Message, r.Output(), err, want, w.log())
		}
	}
	mustSay(mustSubmit("x = 41\nprint(x)"), "41\n")
	for {
		sealed, err := filepath.Glob(filepath.Join(w.dir, "data", "blobs", "*", "k_*"))
		if err != nil || ctx.Err() != nil {
			t.Fatalf("nothing is sealed: %v, %v", err, ctx.Err())
		}
		if len(sealed) > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.stop()
	w.mustStart("store.suspend.after_commit=exit")
	run := mustSubmit("print(x + 1)")
	select {
	case <-w.exited:
	case <-ctx.Done():
		t.Fatal("the server did not die at the next suspension")
	}
	w.mustStart("")
	mustSay(run, "42\n") // it was over before
	mustSay(mustSubmit("print(x + 2)"), "43\n")
}

package store_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// long is a wait that no test outlives.
const long = time.Hour

// togetherWorld is a database whose writes wait so long for those expected, and the
// intent of a run's calls.
func togetherWorld(t *testing.T, wait time.Duration) (w *bench, path string, g *store.Together, intent store.CallIntent) {
	path, g = filepath.Join(t.TempDir(), "workbench.db"), new(store.Together)
	w = mustBench(t, path)
	w.WaitTogether(wait)
	intent = w.mustTool(t)
	intent.Together = g
	return w, path, g, intent
}

// begin records a call in the background.
func (w *bench) begin(t *testing.T, intent store.CallIntent) <-chan error {
	intent.Receipt.ID, intent.Trail.ID = workbench.NewID(workbench.KindReceipt), workbench.NewID(workbench.KindAudit)
	done := make(chan error, 1)
	go func() {
		_, err := w.BeginCall(t.Context(), intent)
		done <- err
	}()
	return done
}

// wantCalls checks what is durable: what another connection reads.
func (w *bench) wantCalls(t *testing.T, intent store.CallIntent, want int) {
	t.Helper()
	calls, err := w.CallReceipts(t.Context(), w.p, store.CallFilter{RunID: intent.Receipt.RunID}, workbench.Page{})
	wantCode(t, err, "")
	if len(calls.Items) != want {
		t.Errorf("%d calls are recorded, want %d", len(calls.Items), want)
	}
}

// wantParked checks that a write waits for others: by then it would be done.
func wantParked(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("it ended (%v) without waiting for who was expected", err)
	case <-time.After(50 * time.Millisecond):
	}
}

func wantSoon(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		wantCode(t, err, "")
	case <-time.After(20 * time.Second):
		t.Fatal("it waits on")
	}
}

// A record waits for those that come with it, and is durable with them.
func TestTogether(t *testing.T) {
	w, _, g, intent := togetherWorld(t, long)
	here := g.Expect(0)
	first := w.begin(t, intent)
	wantParked(t, first)
	w.wantCalls(t, intent, 0)
	here()
	here() // once more takes nothing from another's
	wantSoon(t, w.begin(t, intent))
	wantSoon(t, first)
	w.wantCalls(t, intent, 2)
	w.call(t, intent) // nobody is expected: no wait
}

// Other writes do not wait for who is expected, and take along those that do.
func TestTogetherDelaysNoOther(t *testing.T) {
	w, _, g, intent := togetherWorld(t, long)
	defer g.Expect(0)()
	first := w.begin(t, intent)
	wantParked(t, first)
	other := make(chan error, 1)
	go func() {
		_, err := w.EnsureTenant(t.Context(), w.p.ProjectID, "another")
		other <- err
	}()
	wantSoon(t, other)
	wantSoon(t, first)
	second := w.begin(t, intent)
	wantParked(t, second)
	refused := intent
	refused.Epoch, refused.Together = refused.Epoch+1, nil
	if err := <-w.begin(t, refused); !workbench.HasCode(err, workbench.CodeFenced) {
		t.Errorf("a call of another epoch: %v, want fenced", err)
	}
	wantSoon(t, second)
	w.wantCalls(t, intent, 2)
}

// A call that is expected and does not come is not waited for longer than is said.
func TestTogetherIsBounded(t *testing.T) {
	w, _, g, intent := togetherWorld(t, 30*time.Millisecond)
	here := g.Expect(0)
	began := time.Now()
	wantSoon(t, w.begin(t, intent))
	if took := time.Since(began); took < 30*time.Millisecond {
		t.Errorf("it took %v, which is less than the wait", took)
	}
	w.wantCalls(t, intent, 1)
	here()
	w.WaitTogether(long)
	defer g.Expect(time.Nanosecond)()
	for deadline := time.Now().Add(20 * time.Second); g.Expected() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	wantSoon(t, w.begin(t, intent)) // expected no longer
}

// A database that is closed keeps what waits.
func TestTogetherAndClose(t *testing.T) {
	w, path, g, intent := togetherWorld(t, long)
	defer g.Expect(0)()
	first := w.begin(t, intent)
	wantParked(t, first)
	wantCode(t, w.Close(), "")
	wantSoon(t, first)
	(&bench{DB: mustOpen(t, path), p: w.p}).wantCalls(t, intent, 1)
}

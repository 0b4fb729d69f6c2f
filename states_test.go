package workbench_test

import (
	"testing"

	"github.com/workbenchdev/workbench"
)

// The whole table, written out: every pair that is not here is refused.
var runMoves = map[string]bool{
	"awaiting_approval>queued": true, "awaiting_approval>cancelled": true, "awaiting_approval>rejected": true,
	"queued>dispatching": true, "queued>cancelled": true, "queued>rejected": true, "queued>failed": true,
	"dispatching>running": true, "dispatching>checkpointing": true, "dispatching>succeeded": true, "dispatching>failed": true,
	"dispatching>timed_out": true, "dispatching>cancelled": true, "dispatching>unknown": true,
	"running>checkpointing": true, "running>succeeded": true, "running>failed": true, "running>timed_out": true,
	"running>cancelled": true, "running>unknown": true,
	"checkpointing>waiting_saved": true, "checkpointing>waiting_ready": true, "checkpointing>failed": true,
	"checkpointing>cancelled": true, "checkpointing>unknown": true,
	"waiting_saved>resuming": true, "waiting_saved>cancelled": true, "waiting_saved>failed": true, "waiting_saved>timed_out": true,
	"waiting_ready>resuming": true, "waiting_ready>waiting_saved": true, "waiting_ready>cancelled": true,
	"waiting_ready>failed": true, "waiting_ready>timed_out": true,
	"resuming>dispatching": true, "resuming>waiting_saved": true, "resuming>cancelled": true, "resuming>failed": true,
}

func TestRunTransitionsEveryPair(t *testing.T) {
	for _, from := range workbench.Statuses() {
		for _, to := range workbench.Statuses() {
			want := runMoves[string(from)+">"+string(to)]
			if got := workbench.Transition(from, to); got != want {
				t.Errorf("Transition(%s, %s) = %v, want %v", from, to, got, want)
			}
			if from.Terminal() && workbench.Transition(from, to) {
				t.Errorf("terminal %s may change to %s", from, to)
			}
		}
	}
}

func TestStepTransitionsEveryPair(t *testing.T) {
	allowed := map[string]bool{"queued>dispatching": true, "queued>cancelled": true, "queued>failed": true,
		"dispatching>running": true, "dispatching>succeeded": true, "dispatching>failed": true, "dispatching>timed_out": true,
		"dispatching>cancelled": true, "dispatching>unknown": true, "running>succeeded": true, "running>failed": true,
		"running>timed_out": true, "running>cancelled": true, "running>unknown": true}
	for _, from := range workbench.Statuses() {
		for _, to := range workbench.Statuses() {
			want := allowed[string(from)+">"+string(to)]
			if got := workbench.StepTransition(from, to); got != want {
				t.Errorf("StepTransition(%s, %s) = %v, want %v", from, to, got, want)
			}
		}
	}
}

func TestTerminalStatuses(t *testing.T) {
	terminal := map[workbench.Status]bool{"succeeded": true, "failed": true, "timed_out": true, "cancelled": true, "rejected": true, "unknown": true}
	for _, s := range workbench.Statuses() {
		if s.Terminal() != terminal[s] {
			t.Errorf("%s.Terminal() = %v", s, s.Terminal())
		}
	}
}

func TestSessionTransitionsEveryPair(t *testing.T) {
	states := []workbench.SessionState{"active", "closed", "expired"}
	allowed := map[string]bool{"active>closed": true, "active>expired": true}
	for _, from := range states {
		for _, to := range states {
			if got, want := workbench.SessionTransition(from, to), allowed[string(from)+">"+string(to)]; got != want {
				t.Errorf("SessionTransition(%s, %s) = %v, want %v", from, to, got, want)
			}
		}
	}
}

func TestSandboxTransitionsEveryPair(t *testing.T) {
	states := []workbench.SandboxState{"starting", "unbound", "bound", "paused", "ended"}
	allowed := map[string]bool{"starting>unbound": true, "unbound>bound": true, "bound>paused": true, "paused>bound": true,
		"starting>ended": true, "unbound>ended": true, "bound>ended": true, "paused>ended": true}
	for _, from := range states {
		for _, to := range states {
			if got, want := workbench.SandboxTransition(from, to), allowed[string(from)+">"+string(to)]; got != want {
				t.Errorf("SandboxTransition(%s, %s) = %v, want %v", from, to, got, want)
			}
		}
	}
}

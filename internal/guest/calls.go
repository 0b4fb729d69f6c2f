package guest

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// Times for calls that are under way when a program has ended.
const (
	callsGrace = 5 * time.Second        // for a connection to say what it wants
	callsCut   = time.Second            // of a run that was ended
	callsStop  = 200 * time.Millisecond // of a cell, when whoever made them stands still
)

// awaitCalls waits for the calls that are under way when a program has ended by
// itself: what was called completes, also where nobody waits for the answer. They
// have the time that is left of the run's. It returns why they are cut short, ""
// if they are not.
func (e *execution) awaitCalls(ctx context.Context, timeout <-chan time.Time) workbench.Reason {
	if e.broker.stop(); e.broker.idle() {
		return ""
	}
	select {
	case <-e.broker.rest(callsGrace):
		return ""
	case <-timeout:
		e.hit(workbench.LimitTime)
		return workbench.ReasonTimeout
	case <-e.outOfMem:
		e.hit(workbench.LimitMemory)
		return workbench.ReasonOutOfMemory
	case <-ctx.Done():
	case <-e.cancelled:
	}
	return workbench.ReasonCancelled
}

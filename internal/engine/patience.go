package engine

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

// scanRate is how many bytes of a workspace a guest is sure to look at in a
// second, also on a busy host.
const scanRate = 64 << 20

// within bounds what is asked of the guest while its answer is the only thing a
// run waits for: to d, and once the run is asked to end to what an honest guest
// needs for an answer. The reason is then in x.stopped, after the returned
// function was called, which must be.
func (x *execution) within(ctx context.Context, d time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, d)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if x.stopped == workbench.ReasonNone { // the first reason counts
			select {
			case <-ctx.Done():
				return
			case x.stopped = <-x.stop:
			}
		}
		patience := time.NewTimer(answerGrace + time.Duration(x.s.Limits.WorkspaceBytes/scanRate)*time.Second)
		defer patience.Stop()
		select {
		case <-ctx.Done():
		case <-patience.C:
			cancel()
		}
	}()
	return ctx, func() {
		cancel()
		<-over
	}
}

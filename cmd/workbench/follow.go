package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/workbenchdev/workbench"
)

// follow prints a run's output as it comes and returns its receipt. If ctx
// ends, or what the server sends cannot be followed, the run is cancelled and
// its end is waited for. Output that cannot be printed does not end a run: it
// goes on unseen. unshown is then why, unless a reader just had enough.
func (a *app) follow(ctx context.Context, client *client, runID string) (r workbench.Receipt, unshown, err error) {
	over := context.WithoutCancel(ctx)
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		a.note("cancelling the run; press Ctrl-C again to leave at once")
		a.cancelRun(over, client, runID)
	})
	if !a.json {
		p := a.printer()
		p.lost = func(stream workbench.Stream, err error) {
			if errors.Is(err, syscall.EPIPE) {
				a.note("nobody reads %s any more; the run goes on. To see all of it: workbench runs output %s --stream %s%s", stream, runID, stream, client.again)
				return
			}
			unshown = workbench.E(workbench.CodeInternal, "the program's %s could not be written; the run went on to its end", stream).
				WithHint("workbench runs output %s --stream %s%s", runID, stream, client.again).Caused(err)
		}
		err = errors.Join(p.events(client.Events(over, runID, 0)), p.close())
		switch {
		case workbench.HasCode(err, workbench.CodeUnavailable): // its patience is over
			if !stop() {
				<-cancelled
			}
			return r, unshown, gaveUp(err, runID, client.again)
		case workbench.HasCode(err, workbench.CodeAccessDenied): // the output is withheld, and the receipt says why
			err = nil
		case err != nil:
			a.cancelRun(over, client, runID)
		}
	}
	r, waitErr := client.WaitForSessionRun(over, runID)
	if !stop() {
		<-cancelled
	}
	return r, unshown, gaveUp(errors.Join(err, waitErr), runID, client.again)
}

// gaveUp adds to the error of a server that stays away how to get at the run
// later.
func gaveUp(err error, runID, again string) error {
	if !workbench.HasCode(err, workbench.CodeUnavailable) {
		return err
	}
	return workbench.AsError(err).WithHint("the run goes on without this command, or is settled when the server starts again: workbench runs show %s --wait%s", runID, again)
}

func (a *app) cancelRun(ctx context.Context, client *client, runID string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := client.CancelRun(ctx, runID); err != nil {
		a.note("the run could not be cancelled: %v", err)
	}
}

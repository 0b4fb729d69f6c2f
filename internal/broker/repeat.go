package broker

import (
	"context"
	"encoding/json"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Repeat answers a request of code in the replay of a run: its calls with what that
// run's gave, and what only looks as ever. Nothing leaves. Codes: those of Serve, and
// replay_called_tools.
func (b *Broker) Repeat(ctx context.Context, from govern.Caller, of *govern.Recorded, op string, args json.RawMessage) (json.RawMessage, *workbench.ToolReceipt, error) {
	switch op {
	case guestwire.OpToolSearch, guestwire.OpToolSchema:
		return b.Serve(ctx, from, op, args)
	case guestwire.OpPackages:
		answer, err := b.packages(ctx, from, of, args)
		return answer, nil, err
	case guestwire.OpReceipt:
		var asked guestwire.ReceiptArgs
		if err := read(args, &asked); err != nil {
			return nil, nil, err
		}
		if err := workbench.ParseID(workbench.KindReceipt, asked.ID); err != nil {
			return nil, nil, workbench.AsError(err).WithField("id")
		}
		r, err := of.Receipt(ctx, asked.ID)
		if err != nil {
			return nil, nil, err
		}
		answer, err := write(inside(r))
		return answer, nil, err
	case guestwire.OpCall:
		var asked guestwire.CallArgs
		if err := read(args, &asked); err != nil {
			return nil, nil, err
		}
		r, err := of.Call(ctx, govern.CallRequest{Tool: asked.Tool, Version: asked.Version, Connection: asked.Connection, Arguments: asked.Args})
		if err != nil {
			return nil, nil, err
		}
		answer, err := write(inside(r))
		return answer, &r, err
	}
	return nil, nil, workbench.E(workbench.CodeReplayTools, "this is a replay, which uses no service and reaches no host").WithField("op").
		WithHint("what a language model, a search or a host answered is not recorded")
}

package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) receiptsCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{
		Use: "receipts", Aliases: []string{"receipt"}, Short: "List and read the receipts of tool calls",
		Long: "Every call of a tool leaves a receipt: what was called, which rules decided, and what became of it. (What became of a run is in workbench runs show.)",
	})
	l.flags(c.PersistentFlags(), localData())
	c.AddCommand(a.receiptsList(&l), a.receiptsShow(&l))
	return c
}

func (a *app) receiptsList(l *local) *cobra.Command {
	var p paging
	var f sdk.ReceiptFilter
	var status string
	c := &cobra.Command{
		Use: "list", Short: "List receipts of tool calls, newest first", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			f.Status = workbench.CallStatus(status)
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.ToolReceipts(ctx, f, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"RECEIPT", "STATUS", "TOOL", "VERSION", "CONNECTION", "TOOK", "CREATED", "RUN", "NUMBER", "SESSION", "ERROR"}, func(r workbench.ToolReceipt) []string {
					return []string{r.ID, string(r.Status), r.Tool, r.Version, r.Alias, tookCall(r), a.when(r.CreatedAt), r.RunID, strconv.FormatInt(r.Number, 10), r.SessionID, callErrorCode(r)}
				})
			})
		},
	}
	p.flags(c.Flags())
	c.Flags().StringVar(&f.SessionID, "session", "", "only those of one session")
	c.Flags().StringVar(&f.RunID, "run", "", "only those of one run")
	c.Flags().StringVar(&f.Tool, "tool", "", "only those of one tool, by its whole name")
	c.Flags().StringVar(&status, "status", "", "only those in this status: executing, pending_approval, succeeded, failed, denied, expired or unknown")
	return c
}

// tookCall is how long a call took from its leaving to the answer.
func tookCall(r workbench.ToolReceipt) string {
	if r.StartedAt == nil || r.FinishedAt == nil || r.Status == workbench.CallUnknown {
		return ""
	}
	return millis(r.DurationMs)
}

func callErrorCode(r workbench.ToolReceipt) string {
	if r.Error == nil {
		return ""
	}
	return string(r.Error.Code)
}

func (a *app) receiptsShow(l *local) *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "show RECEIPT", Short: "Show the receipt of a tool call", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				read := func(ctx context.Context, id string) (workbench.ToolReceipt, error) {
					return client.ToolReceipt(ctx, id, 0)
				}
				if wait {
					read = client.WaitForToolReceipt
				}
				r, err := read(ctx, args[0])
				if err != nil {
					return err
				}
				if err := a.print(r, func() error { return a.showReceipt(r) }); err != nil {
					return err
				}
				if status := exitOfCall(r); wait && status != 0 {
					return exitError(status)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait until it is final, also for a decision, and exit as workbench approve does")
	return c
}

// exitOfCall is the exit status for what became of a call.
func exitOfCall(r workbench.ToolReceipt) int {
	switch r.Status {
	case workbench.CallSucceeded:
		return 0
	case workbench.CallUnknown:
		return workbench.ExitRunUnknown
	case workbench.CallExecuting, workbench.CallPending:
		return workbench.ExitUnavailable
	case workbench.CallFailed, workbench.CallDenied, workbench.CallExpired:
	}
	return workbench.ExitRunFailed
}

// showReceipt shows what became of a call; what it was called with and what it
// gave come last.
func (a *app) showReceipt(r workbench.ToolReceipt) error {
	err := a.fields("receipt", r.ID, "status", string(r.Status), "tool", r.Tool, "version", r.Version, "connection", r.Alias, "connection id", r.ConnectionID,
		"session", r.SessionID, "run", r.RunID, "number", strconv.FormatInt(r.Number, 10), "revision", strconv.FormatInt(r.Revision, 10), "user", r.UserID, "tenant", r.TenantID,
		"rules", strings.Join(r.Rules, ", "), "error", a.callError(r.Error), "withheld", a.callError(r.Withheld),
		"took", tookCall(r), "created", a.when(r.CreatedAt), "started", a.whenever(r.StartedAt), "finished", a.whenever(r.FinishedAt))
	if err != nil {
		return err
	}
	if k := r.Approval; k != nil {
		err := a.fields("approval", string(k.State), "asked by", strings.Join(k.Rules, ", "), "asked why", k.Why, "until", a.when(k.ExpiresAt),
			"decided", a.whenever(k.DecidedAt), "decided by", k.DecidedBy, "with key", k.KeyID, "reason", k.Reason)
		if err != nil {
			return err
		}
	}
	if r.ArtifactID != "" {
		if err := a.fields("result in", r.ArtifactID+" ("+size(r.ResultBytes)+")", "begins", r.Preview); err != nil {
			return err
		}
	}
	if err := a.value("arguments", r.Arguments); err != nil {
		return err
	}
	return a.value("result", r.Result)
}

// callError is why a call has no result, or why it is not shown, in one line.
func (a *app) callError(e *workbench.CallError) string {
	if e == nil {
		return ""
	}
	line := string(e.Code) + ": " + a.words(e.Detail)
	if e.Hint != "" {
		line += " (" + a.words(e.Hint) + ")"
	}
	return line
}

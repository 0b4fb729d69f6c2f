package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) approvalsCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "approvals", Aliases: []string{"approval"}, Short: "List what waits for a decision: tool calls and runs",
		Long: "A rule may ask that somebody decides about a call before it is made, or about a run before it starts: workbench approve and workbench deny decide. " + asApprover,
	})
	c.AddCommand(a.approvalsList(), a.approvalsRuns())
	return c
}

// asApprover is who decides about calls.
const asApprover = "It takes a key with the scope approve (workbench key create --scope read,approve), and a rule that lets its user decide. Calls wait at a server: name it with --server."

// atServer runs f at the server that is named: an engine of this process has no
// calls that wait.
func (a *app) atServer(c *cobra.Command, f func(ctx context.Context, client *client) error) error {
	if !a.connection.remote() {
		return workbench.E(workbench.CodeInvalidRequest, "%s is for a server, and none is named", c.CommandPath()).WithHint("name it with --server or WORKBENCH_SERVER")
	}
	client, err := a.connectRemote()
	if err != nil {
		return err
	}
	client.again = flagsAgain(a.connection.set, "server", "key-file", "tenant", "end-user", "group")
	return f(c.Context(), client)
}

func (a *app) approvalsList() *cobra.Command {
	var p paging
	c := &cobra.Command{
		Use: "list", Short: "List the tool calls that wait for a decision, newest first", Args: exactly(0),
		Long: "The arguments are told in short on a terminal: workbench receipts show RECEIPT tells all of them. " + asApprover,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.atServer(c, func(ctx context.Context, client *client) error {
				list, err := client.Approvals(ctx, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"RECEIPT", "TOOL", "VERSION", "CONNECTION", "USER", "CREATED", "EXPIRES", "WHY", "ARGUMENTS", "RUN", "SESSION"}, func(r workbench.ToolReceipt) []string {
					why, expires := "", ""
					if r.Approval != nil {
						why, expires = r.Approval.Why, a.when(r.Approval.ExpiresAt)
					}
					return []string{r.ID, r.Tool, r.Version, r.Alias, r.UserID, a.when(r.CreatedAt), expires, why, a.inShort(string(r.Arguments)), r.RunID, r.SessionID}
				})
			})
		},
	}
	p.flags(c.Flags())
	return c
}

func (a *app) approvalsRuns() *cobra.Command {
	var p paging
	c := &cobra.Command{
		Use: "runs", Short: "List the runs that wait for a decision, newest first", Args: exactly(0),
		Long: "The code is told in short on a terminal; --json has all of it, with arguments and variables. " + asApprover,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.atServer(c, func(ctx context.Context, client *client) error {
				list, err := client.HeldRuns(ctx, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"RUN", "LANGUAGE", "LANE", "USER", "CREATED", "EXPIRES", "WHY", "CODE", "SESSION"}, func(h sdk.HeldRun) []string {
					why, expires, code := "", "", ""
					if h.Run.Approval != nil {
						why, expires = h.Run.Approval.Why, a.when(h.Run.Approval.ExpiresAt)
					}
					if h.Spec != nil {
						code = h.Spec.Code
					}
					return []string{h.Run.ID, string(h.Run.Language), string(h.Run.Lane), h.Run.UserID, a.when(h.Run.CreatedAt), expires, why, a.inShort(code), h.Run.SessionID}
				})
			})
		},
	}
	p.flags(c.Flags())
	return c
}

// isRun reports whether an id is a run's.
func isRun(id string) bool { return strings.HasPrefix(id, string(workbench.KindRun)+"_") }

// decided says what became of a run that waited.
func (a *app) decided(r workbench.Run, err error) error {
	if err != nil {
		return err
	}
	return a.print(r, func() error {
		a.note("%s is %s", r.ID, r.Status)
		return nil
	})
}

// defaultCallWait is longer than a call may take.
const defaultCallWait = (workbench.MaxToolTimeoutMs + 20_000) * time.Millisecond

func (a *app) approveCommand() *cobra.Command {
	var reason string
	var wait time.Duration
	c := &cobra.Command{
		Use: "approve RECEIPT|RUN", Short: "Approve a tool call that waits, and show what became of it; or a run", Args: exactly(1),
		Long: "A run joins its queue, at the place that it was submitted at. A call is made once, as it was asked for: its arguments, the tool's version, the connection and the session must still be the same, and the rules are asked again.\n\n" +
			"Exit status 0 if the call succeeded, 9 if it failed or was denied, 10 if its outcome cannot be known, 8 if it had not ended after --wait. With --wait 0, and with a key that may not read receipts, it is not waited for, and 0 says that it was approved. " + asApprover,
		Example: "  workbench approvals list\n  workbench approve rcp_06h2gtscb9wff1kekzj2wj8e70 --reason 'invoice 1234'",
		RunE: func(c *cobra.Command, args []string) error {
			if wait < 0 {
				return workbench.E(workbench.CodeInvalidRequest, "--wait must not be negative").WithHint("leave it out for the default, or give 0 not to wait")
			}
			return a.atServer(c, func(ctx context.Context, client *client) error {
				if isRun(args[0]) {
					return a.decided(client.ApproveRun(ctx, args[0], reason))
				}
				r, err := client.ApproveCall(ctx, args[0], reason)
				if err != nil {
					return err
				}
				return a.approved(ctx, client, r, wait)
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the receipt")
	c.Flags().DurationVar(&wait, "wait", defaultCallWait, "how long to wait for the call's end; 0: not at all")
	return c
}

// approved waits for the end of a call that was approved, and shows its receipt.
func (a *app) approved(ctx context.Context, client *client, r workbench.ToolReceipt, wait time.Duration) error {
	if !r.Status.Terminal() && wait > 0 {
		a.note("approved; waiting for the call's end")
		waiting, stop := context.WithTimeout(ctx, wait)
		ended, err := client.WaitForToolReceipt(waiting, r.ID)
		over := err != nil && waiting.Err() != nil && ctx.Err() == nil
		stop()
		if over { // as it is now
			ended, err = client.ToolReceipt(ctx, r.ID, 0)
		}
		if workbench.HasCode(err, workbench.CodeForbidden) || workbench.HasCode(err, workbench.CodeNotFound) {
			return a.approvedUnread(r, err)
		}
		if err != nil {
			a.note("the call goes on without this command: workbench receipts show %s --wait%s", r.ID, client.again)
			return err
		}
		r = ended
	}
	if err := a.print(r, func() error { return a.showReceipt(r) }); err != nil {
		return err
	}
	if !r.Status.Terminal() {
		a.note("the call has not ended: workbench receipts show %s --wait%s", r.ID, client.again)
		if wait == 0 {
			return nil
		}
	}
	if status := exitOfCall(r); status != 0 {
		return exitError(status)
	}
	return nil
}

// approvedUnread shows a decision that counts, to who may not read what comes
// of it.
func (a *app) approvedUnread(r workbench.ToolReceipt, why error) error {
	a.note("%s is approved, and its call is made. This key may not read what comes of it (%s); its owner can", r.ID, workbench.AsError(why).Detail)
	return a.print(r, func() error { return a.showReceipt(r) })
}

func (a *app) denyCommand() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "deny RECEIPT|RUN --reason REASON", Short: "Deny a tool call that waits, or a run: nothing is called, nothing runs", Args: exactly(1),
		Long: "The code that asked is told the reason. " + asApprover,
		RunE: func(c *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usageError(c, "say why with --reason: who asked reads it on the receipt")
			}
			return a.atServer(c, func(ctx context.Context, client *client) error {
				if isRun(args[0]) {
					return a.decided(client.DenyRun(ctx, args[0], reason))
				}
				r, err := client.DenyCall(ctx, args[0], reason)
				if err != nil {
					return err
				}
				return a.print(r, func() error { return a.showReceipt(r) })
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the receipt")
	return c
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/terminal"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) runsCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{Use: "runs", Short: "List, read, follow and cancel runs"})
	l.flags(c.PersistentFlags(), localData())
	c.AddCommand(a.runsList(&l), a.runsShow(&l), a.runsCancel(&l), a.runsOutput(&l), a.runsEvents(&l), a.runsFiles(&l), a.runsDownload(&l))
	return c
}

func (a *app) runsList(l *local) *cobra.Command {
	var p paging
	var status, lane string
	c := &cobra.Command{
		Use: "list SESSION", Short: "List a session's runs, newest first", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.ListRuns(ctx, sdk.RunFilter{SessionID: args[0], Status: workbench.Status(status), Lane: workbench.Lane(lane)}, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"RUN", "NUMBER", "STATUS", "REASON", "LANGUAGE", "EXIT", "TOOK", "CREATED", "LANE"}, func(r workbench.Run) []string {
					return []string{r.ID, strconv.FormatInt(r.Number, 10), string(r.Status), string(r.Reason), string(r.Language), exitCode(r), took(r), a.when(r.CreatedAt), string(r.Lane)}
				})
			})
		},
	}
	p.flags(c.Flags())
	c.Flags().StringVar(&status, "status", "", "only runs in this status")
	c.Flags().StringVar(&lane, "lane", "", "only runs of this lane: foreground or background")
	return c
}

func exitCode(r workbench.Run) string {
	if r.ExitCode == nil {
		return ""
	}
	return strconv.Itoa(*r.ExitCode)
}

func (a *app) runsShow(l *local) *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "show RUN", Short: "Show a run's receipt", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				if !wait {
					r, err := client.GetRun(ctx, args[0], 0)
					if err != nil {
						return err
					}
					return a.print(r, func() error { return a.showRun(r) })
				}
				r, err := client.WaitForSessionRun(ctx, args[0])
				if err == nil {
					err = a.print(r, func() error { return a.showRun(r) })
				}
				if status := exitOf(r.Run); err == nil && status != 0 {
					return exitError(status)
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait for the run's end, and exit as workbench run does")
	return c
}

// cameFrom names the tools and hosts that something may come from, each with its
// connection.
func cameFrom(on []workbench.Dependency) string {
	var all []string
	for _, d := range on {
		name := d.Tool + "@" + d.Version
		if strings.Contains(d.Tool, " ") { // a host, and what was asked of it
			name = d.Tool + " " + d.Version
		}
		if d.Alias != "" {
			name += " (" + d.Alias + ")"
		}
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return strings.Join(all, ", ")
}

// inSeries says which version a run is, or executes.
func inSeries(r workbench.ReusableRun) string {
	switch {
	case r.Of != nil && r.ReplayID != "":
		return fmt.Sprintf("a replay of version %d of %s", r.Of.Version, r.Of.SeriesID)
	case r.Of != nil:
		return fmt.Sprintf("executes version %d of %s", r.Of.Version, r.Of.SeriesID)
	case r.State == workbench.ReuseReady:
		return fmt.Sprintf("version %d of %s", r.Version, r.SeriesID)
	}
	return ""
}

func (a *app) showRun(r workbench.Receipt) error {
	err := a.fields("run", r.ID, "session", r.SessionID, "status", string(r.Status), "reason", string(r.Reason), "message", a.words(r.Message), "withheld", a.callError(r.Withheld),
		"error", errorName(r), "lane", string(r.Lane), "language", string(r.Language), "context", r.ContextID, "cell", cellNumber(r.Run), "exit code", exitCode(r.Run), "signal", r.Signal, "took", took(r.Run), "queued for", millis(r.QueuedMs),
		"stdout", a.bytes(r.Outputs.Stdout.TotalBytes), "stderr", a.bytes(r.Outputs.Stderr.TotalBytes),
		"came from", a.words(cameFrom(r.Dependencies)), "series", inSeries(r.ReusableRun), "commit", r.CommitID, "shared", sharedChanges(r.Run), "driver", r.Driver, "image", r.Image, "revision", fmt.Sprint(r.Revision), "generation", fmt.Sprint(r.Generation),
		"created", a.when(r.CreatedAt), "started", a.whenever(r.StartedAt), "finished", a.whenever(r.FinishedAt))
	if err != nil {
		return err
	}
	for _, limit := range r.LimitsHit {
		if err := a.fields("limit met", limit); err != nil {
			return err
		}
	}
	for _, n := range r.Notices {
		if err := a.fields("notice", n.Code+": "+a.words(n.Detail)); err != nil {
			return err
		}
	}
	for _, shown := range r.Results {
		if forms := formsOf(shown); forms != "" {
			if err := a.fields("showed", fmt.Sprintf("%d  %s  %s", shown.Index, shown.Type, forms)); err != nil {
				return err
			}
		}
	}
	for _, f := range r.Artifacts {
		if err := a.fields("retained", fmt.Sprintf("%s  %s  %s", f.ID, f.Path, a.bytes(f.Size))); err != nil {
			return err
		}
	}
	for _, f := range r.Files.Items {
		if err := a.fields(string(f.Change), fmt.Sprintf("%s  %s", f.Path, a.bytes(f.Size))); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) runsCancel(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "cancel RUN", Short: "Ask for a run's end", Args: exactly(1),
		RunE: onOne(a, l, func(ctx context.Context, client *client, id string) (workbench.Run, error) {
			return client.CancelRun(ctx, id)
		}, func(r workbench.Run) error {
			if r.Status.Terminal() && r.Status != workbench.StatusCancelled {
				a.note("it had ended before")
			}
			return a.fields("run", r.ID, "status", string(r.Status), "reason", string(r.Reason))
		}),
	}
}

func (a *app) runsEvents(l *local) *cobra.Command {
	var after int64
	var full bool
	c := &cobra.Command{
		Use: "events RUN", Short: "Follow a run's log until its end", Args: exactly(1),
		Long: "Prints the events of a run as they come, until its end. On a terminal what the run showed is told by type and size; piped, as JSON, or with --full it is printed whole.",
		RunE: func(c *cobra.Command, args []string) error {
			if after < 0 {
				return workbench.E(workbench.CodeInvalidRequest, "after must not be negative").WithField("after").WithHint("leave after out to begin with the first")
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				for e, err := range client.Events(ctx, args[0], after) {
					if err != nil {
						return err
					}
					if err := a.event(e, full || !a.outTTY); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().Int64Var(&after, "after", 0, "only events behind this number")
	c.Flags().BoolVar(&full, "full", false, "print results whole on a terminal, too")
	return c
}

// event prints one event of a run; results whole, or by type and size.
func (a *app) event(e sdk.Event, full bool) error {
	what := string(e.Meta)
	if e.Result != nil {
		raw, err := json.Marshal(e.Result)
		if err != nil {
			return err
		}
		what = string(raw)
		if !full {
			what = fmt.Sprintf("%d %s  %s", e.Result.Index, e.Result.Type, formsOf(*e.Result))
		}
	}
	if e.Kind == workbench.LogOutput {
		what = fmt.Sprintf("%s@%d %s", e.Stream, e.Offset, e.Text)
	}
	return a.eventLine(e, e.Seq, e.At, string(e.Kind), what)
}

// eventLine prints one event: a JSON object a line, or a line for people.
func (a *app) eventLine(e any, seq int64, at time.Time, kind, what string) error {
	if a.json {
		raw, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = a.out.Write(append(terminal.JSON(raw), '\n'))
		return err
	}
	_, err := fmt.Fprintf(a.out, "%d\t%s\t%s\t%s\n", seq, a.when(at), kind, terminal.Line(what))
	return err
}

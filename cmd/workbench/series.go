package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/terminal"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) seriesCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{
		Use: "series", Short: "List, show, run and roll back series: programs that can be run again",
		Long: "A run that succeeded is a version of a series: the first of a new one, or the next of the one that workbench run --series named. " +
			"workbench replay runs a version again and compares; workbench publish makes one the series' published version.",
	})
	l.flags(c.PersistentFlags(), localData())
	c.AddCommand(a.seriesList(&l), a.seriesShow(&l), a.seriesVersions(&l), a.seriesVersion(&l), a.seriesReplays(&l), a.seriesRun(&l), a.seriesRollback(&l), a.seriesDelete(&l))
	return c
}

func (a *app) seriesList(l *local) *cobra.Command {
	var p paging
	c := &cobra.Command{
		Use: "list", Short: "List series, newest first", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.ListSeries(ctx, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"SERIES", "VERSIONS", "PUBLISHED", "CREATED", "SESSION"}, func(x workbench.Series) []string {
					return []string{x.ID, decimal(x.Versions), versionNumber(x.PublishedVersion), a.when(x.CreatedAt), x.SessionID}
				})
			})
		},
	}
	p.flags(c.Flags())
	return c
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// versionNumber is a version, or "" for none.
func versionNumber(n int64) string {
	if n == 0 {
		return ""
	}
	return decimal(n)
}

func (a *app) showSeries(x workbench.Series) error {
	if err := a.fields("series", x.ID, "versions", decimal(x.Versions), "published", versionNumber(x.PublishedVersion), "session", x.SessionID, "created", a.when(x.CreatedAt)); err != nil {
		return err
	}
	if len(x.Publications) == 0 {
		return nil
	}
	rows := [][]string{}
	for _, p := range x.Publications {
		how := "published"
		if p.Rollback {
			how = "rolled back"
		}
		rows = append(rows, []string{how, decimal(p.Version), versionNumber(p.PreviousVersion), a.when(p.At), p.ReplayID, p.By})
	}
	return a.table([]string{"WHAT", "VERSION", "BEFORE", "WHEN", "REPLAY", "USER"}, rows)
}

func (a *app) seriesShow(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "show SERIES", Short: "Show a series and what was published of it", Args: exactly(1),
		RunE: onOne(a, l, func(ctx context.Context, client *client, id string) (workbench.Series, error) {
			return client.Series(ctx, id)
		}, a.showSeries),
	}
}

func (a *app) seriesVersions(l *local) *cobra.Command {
	var p paging
	c := &cobra.Command{
		Use: "versions SERIES", Short: "List the versions of a series, newest first", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.SeriesVersions(ctx, args[0], p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"VERSION", "PUBLISHED", "LANGUAGE", "RUN", "CREATED"}, func(v workbench.SeriesVersion) []string {
					return []string{decimal(v.Version), a.publishedWhen(v), string(v.Manifest.Language), v.RunID, a.when(v.CreatedAt)}
				})
			})
		},
	}
	p.flags(c.Flags())
	return c
}

func (a *app) publishedWhen(v workbench.SeriesVersion) string {
	switch {
	case v.Published:
		return "now"
	case v.PublishedAt != nil:
		return "before"
	}
	return ""
}

func (a *app) seriesVersion(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "version SERIES VERSION", Short: "Show a version and its manifest: what its run began with", Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			version, err := versionArgument(args[1])
			if err != nil {
				return err
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				v, err := client.SeriesVersion(ctx, args[0], version)
				if err != nil {
					return err
				}
				m := v.Manifest
				var packages []string
				for _, set := range m.Packages {
					packages = append(packages, string(set.Manager)+" "+strings.Join(set.Requested, " "))
				}
				return a.print(v, func() error {
					return a.fields("series", v.SeriesID, "version", decimal(v.Version), "published", a.publishedWhen(v), "run", v.RunID, "session", v.SessionID, "created", a.when(v.CreatedAt),
						"language", string(m.Language), "lane", string(m.Lane), "size", m.Size, "image", m.Image, "revision", decimal(m.Revision), "time limit", millis(m.TimeoutMs), "workspace", m.InputRoot,
						"packages", a.words(strings.Join(packages, ", ")), "code", m.CodeSHA256, "arguments", a.words(strings.Join(m.Args, " ")), "variables", a.words(strings.Join(m.EnvNames, " ")), "stdin", m.StdinSHA256)
				})
			})
		},
	}
}

// versionArgument is a version as the command line names it.
func versionArgument(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, workbench.E(workbench.CodeInvalidRequest, "VERSION must be a number from 1").WithHint("workbench series versions SERIES lists those that there are")
	}
	return n, nil
}

func (a *app) seriesReplays(l *local) *cobra.Command {
	var p paging
	var version int64
	c := &cobra.Command{
		Use: "replays SERIES", Short: "List replays of a series, newest first", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.Replays(ctx, args[0], version, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"REPLAY", "VERSION", "VERDICT", "DIFFERS", "TOOLS", "CREATED", "RUN"}, func(r workbench.Replay) []string {
					return []string{r.ID, decimal(r.Version), string(r.Verdict), strings.Join(r.Differs, " "), string(r.Tools), a.when(r.CreatedAt), r.RunID}
				})
			})
		},
	}
	p.flags(c.Flags())
	c.Flags().Int64Var(&version, "version", 0, "only of this version")
	return c
}

func (a *app) seriesRollback(l *local) *cobra.Command {
	var expected int64
	c := &cobra.Command{
		Use: "rollback SERIES [VERSION]", Short: "Publish a version again that was published before", Args: between(1, 2),
		Long: "Without VERSION it is the one that was published before the current one. --expected says which version is published now: where it is another one, nothing changes.",
		RunE: func(c *cobra.Command, args []string) error {
			var version int64
			var err error
			if len(args) > 1 {
				if version, err = versionArgument(args[1]); err != nil {
					return err
				}
			}
			if err := expectedFlag(c); err != nil {
				return err
			}
			return onOne(a, l, func(ctx context.Context, client *client, id string) (workbench.Series, error) {
				return client.RollBackSeries(ctx, id, version, expected)
			}, a.showSeries)(c, args)
		},
	}
	expectedPublished(c, &expected)
	return c
}

func (a *app) seriesDelete(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "delete SERIES", Short: "Delete a series, with its publications and replays", Args: exactly(1),
		Long: "Its runs stay as long as other runs do, published ones too, and are versions no longer.",
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error { return client.DeleteSeries(ctx, args[0]) })
		},
	}
}

func expectedPublished(c *cobra.Command, n *int64) {
	c.Flags().Int64Var(n, "expected", 0, "the version that is published now; 0: none. Another one is an error, and nothing changes")
}

// expectedFlag refuses a command line that leaves the expectation out: a default would
// make a comparison of nothing.
func expectedFlag(c *cobra.Command) error {
	if c.Flags().Changed("expected") {
		return nil
	}
	return workbench.E(workbench.CodeInvalidRequest, "--expected is required: the version that is published now, 0 for none").
		WithHint("workbench series show SERIES tells it")
}

func (a *app) publishCommand() *cobra.Command {
	var l local
	var expected int64
	c := &cobra.Command{
		Use: "publish SERIES VERSION", Short: "Publish a version of a series", Args: exactly(2),
		Long:    "A replay of the version must have matched: see workbench replay. --expected says which version is published now: where it is another one, nothing changes.",
		Example: "  workbench replay SERIES 2 && workbench publish SERIES 2 --expected 1",
		RunE: func(c *cobra.Command, args []string) error {
			version, err := versionArgument(args[1])
			if err != nil {
				return err
			}
			if err := expectedFlag(c); err != nil {
				return err
			}
			return onOne(a, &l, func(ctx context.Context, client *client, id string) (workbench.Series, error) {
				return client.PublishSeries(ctx, id, version, expected)
			}, a.showSeries)(c, args)
		},
	}
	expectedPublished(c, &expected)
	l.flags(c.Flags(), localData())
	return c
}

func (a *app) replayCommand() *cobra.Command {
	var l local
	var tools string
	c := &cobra.Command{
		Use: "replay SERIES [VERSION]", Short: "Run a version of a series again, and compare", Args: between(1, 2),
		Long: "The version (by default the last) runs again in a fresh sandbox, with the workspace, packages, image, size and configuration that it began with. Compared are status, exit code, what was shown, " +
			"stdout, stderr, the structured result, bytes written and retained files, and nothing else. No tool is called. The exit status is 0 where all of it is the same, and 1 where something differs.",
		RunE: func(c *cobra.Command, args []string) error {
			r := sdk.ReplaySeries{Tools: workbench.ReplayTools(tools), IdempotencyKey: "cli-" + rand.Text()}
			var err error
			if len(args) > 1 {
				if r.Version, err = versionArgument(args[1]); err != nil {
					return err
				}
			}
			return a.withClient(c, &l, func(ctx context.Context, client *client) error {
				started, err := client.ReplaySeries(ctx, args[0], r)
				if err != nil {
					return err
				}
				judged, err := client.WaitForReplay(ctx, started.ID)
				if err != nil {
					return err
				}
				if err := a.print(judged, func() error { return a.showReplay(judged) }); err != nil {
					return err
				}
				if judged.Verdict != workbench.VerdictMatches {
					return exitError(1)
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&tools, "tools", "", "what becomes of tool calls: refuse, the default, replays no version that made any; recorded gives what its calls gave")
	l.flags(c.Flags(), localData())
	return c
}

func (a *app) showReplay(r workbench.Replay) error {
	if err := a.fields("replay", r.ID, "version", decimal(r.Version), "verdict", string(r.Verdict), "differs", strings.Join(r.Differs, ", "), "run", r.RunID, "tools", string(r.Tools)); err != nil {
		return err
	}
	for _, f := range r.Facts {
		if f.Same {
			continue
		}
		if _, err := fmt.Fprintf(a.out, "\n%s\n", f.Name); err != nil {
			return err
		}
		text := f.Diff
		if text == "" {
			text = "- " + strings.ReplaceAll(f.Original, "\n", "\n- ") + "\n+ " + strings.ReplaceAll(f.Replay, "\n", "\n+ ") + "\n"
		}
		if a.outTTY {
			text = terminal.Text(text)
		}
		if _, err := io.WriteString(a.out, text); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) seriesRun(l *local) *cobra.Command {
	var version int64
	var env []string
	var timeout time.Duration
	c := &cobra.Command{
		Use: "run SERIES [flags] [-- ARGUMENTS…]", Short: "Run a version with other inputs",
		Long: "In a new session that begins as the version did: with its workspace, packages, image, size and configuration. By default it is the published version. ARGUMENTS, where there are some, replace the version's.",
		Args: func(c *cobra.Command, args []string) error {
			if dash := c.ArgsLenAtDash(); dash >= 0 && dash != 1 || dash < 0 && len(args) != 1 {
				return usageError(c, "name one series; arguments of its program come after --")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			r := sdk.RunSeries{Version: version, IdempotencyKey: "cli-" + rand.Text()}
			if rest := args[1:]; c.ArgsLenAtDash() >= 0 {
				r.Args = &rest
			}
			var err error
			if r.Env, err = environment(env); err != nil {
				return err
			}
			if c.Flags().Changed("timeout") {
				ms := timeout.Milliseconds()
				r.TimeoutMs = &ms
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error { return a.runVersion(ctx, client, args[0], r) })
		},
	}
	c.Flags().Int64Var(&version, "version", 0, "the version; default the published one")
	c.Flags().StringArrayVar(&env, "env", nil, "environment variable NAME=VALUE beside the version's, or NAME to pass on this process's; may be repeated")
	c.Flags().DurationVar(&timeout, "timeout", 0, "longest time the program may run; default the version's")
	return c
}

func (a *app) runVersion(ctx context.Context, client *client, seriesID string, r sdk.RunSeries) error {
	run, err := client.RunSeries(ctx, seriesID, r)
	if err != nil {
		return err
	}
	receipt, unshown, err := a.follow(ctx, client, run.ID)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.encode(a.out, receipt); err != nil {
			return err
		}
	} else {
		a.summary(receipt, nil, "", client.again)
	}
	if unshown != nil {
		return unshown
	}
	if status := exitOf(receipt.Run); status != 0 {
		return exitError(status)
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) usageCommand() *cobra.Command {
	var l local
	var f sdk.UsageFilter
	var p paging
	var by, since, until string
	var csv bool
	c := &cobra.Command{
		Use: "usage", Short: "Sum up what was used, and what it costs", Args: exactly(0),
		Long: "Active time is the time in which code runs in a sandbox: work at the same time in one sandbox counts once; queueing, starting and idle sandboxes do not. Charges are in millionths of the currency of the operator's rates.",
		RunE: func(c *cobra.Command, _ []string) error {
			f.GroupBy = workbench.UsageGroup(by)
			var err error
			now := time.Now()
			if f.Since, err = moment("since", since, now); err != nil {
				return err
			}
			if f.Until, err = moment("until", until, now); err != nil {
				return err
			}
			return a.withClient(c, &l, func(ctx context.Context, client *client) error {
				if csv {
					return client.UsageCSV(ctx, f, a.out)
				}
				report, err := client.Usage(ctx, f, p.page())
				if err != nil {
					return err
				}
				return a.showUsage(report)
			})
		},
	}
	fl := c.Flags()
	fl.StringVar(&by, "by", "", "session, run, key, user, tenant, size or day; without it a total")
	fl.StringVar(&f.SessionID, "session", "", "only of this session")
	fl.StringVar(&since, "since", "", "from this time on, such as 2026-12-01T08:00:00Z, or 24h for so long ago")
	fl.StringVar(&until, "until", "", "before this time, likewise")
	fl.BoolVar(&csv, "csv", false, "print all groups as CSV")
	p.flags(fl)
	l.flags(fl, localData())
	return c
}

func (a *app) showUsage(r workbench.UsageReport) error {
	row := func(u workbench.Usage) []string {
		return []string{u.Group, seconds(u.DurationUs), decimal(u.ChargeMicros), decimal(u.InputTokens), decimal(u.OutputTokens), a.bytes(u.RetainedBytes)}
	}
	if r.GroupBy == workbench.UsageInAll {
		u := row(r.Total)
		return a.print(r, func() error {
			return a.fields("active time", u[1], "charge in millionths", u[2], "input tokens", u[3], "output tokens", u[4], "retained", u[5])
		})
	}
	return showPage(a, r, r.Items, r.Next, []string{"GROUP", "ACTIVE", "MILLIONTHS", "INPUT TOKENS", "OUTPUT TOKENS", "RETAINED"}, row)
}

// seconds is a time in seconds, to the microsecond.
func seconds(us int64) string { return fmt.Sprintf("%d.%06ds", us/1_000_000, us%1_000_000) }

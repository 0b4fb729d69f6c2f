package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) auditCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{
		Use: "audit", Short: "List, export and verify the audit trail",
		Long: "The trail says who did what and how it ended, without contents. Each row is linked to the one before it: a change that was made around the server shows.\n\n" + asAdmin,
	})
	l.flags(c.PersistentFlags(), home())
	databaseFlag(c.PersistentFlags(), &l.options)
	c.AddCommand(a.auditList(&l), a.auditExport(&l), a.auditVerify(&l))
	return c
}

func (a *app) auditList(l *local) *cobra.Command {
	var p paging
	var f sdk.AuditFilter
	var since, until string
	c := &cobra.Command{
		Use: "list", Short: "List the audit trail, newest first", Args: exactly(0),
		Example: "  workbench audit list --action approval.decide --since 24h",
		RunE: func(c *cobra.Command, _ []string) (err error) {
			now := time.Now()
			if f.Since, err = moment("since", since, now); err != nil {
				return err
			}
			if f.Until, err = moment("until", until, now); err != nil {
				return err
			}
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				list, err := client.ListAudit(ctx, f, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"SEQ", "AT", "ACTION", "TARGET", "OUTCOME", "KEY", "TENANT", "USER", "ADDRESS", "REQUEST", "DETAIL"}, func(e workbench.AuditEntry) []string {
					return []string{place(e.Seq), a.when(e.At), e.Action, e.Target, e.Outcome, e.KeyID, e.TenantID, e.UserID, e.Address, e.RequestID, a.inShort(string(e.Detail))}
				})
			})
		},
	}
	p.flags(c.Flags())
	fl := c.Flags()
	fl.StringVar(&f.Action, "action", "", "only this action, such as run.submit or approval.decide")
	fl.StringVar(&f.Target, "target", "", "only what was done to this: an id, or an app's name")
	fl.StringVar(&f.TenantID, "tenant", "", "only this tenant's, by id")
	fl.StringVar(&f.UserID, "user", "", "only this user's, by id")
	fl.StringVar(&f.KeyID, "key", "", "only what this key did, by id")
	fl.StringVar(&since, "since", "", "only at or after a time, such as 2026-01-31T08:00:00Z, or for so long, such as 24h")
	fl.StringVar(&until, "until", "", "only before a time, or up to so long ago")
	return c
}

// place is a row's place in the chain; "" from before there was one.
func place(seq int64) string {
	if seq == 0 {
		return ""
	}
	return fmt.Sprint(seq)
}

// moment reads a time, or a duration as so long before now; none for "".
func moment(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, workbench.E(workbench.CodeInvalidRequest, "--%s takes a time or a duration", flag).WithField(flag).WithHint("such as 2026-01-31T08:00:00Z, or 24h for so long ago")
}

func (a *app) auditExport(l *local) *cobra.Command {
	var after int64
	c := &cobra.Command{
		Use: "export [FILE]", Short: "Export the audit trail, oldest first, as JSON lines", Args: between(0, 1),
		Long: "To FILE, which is written whole or not at all, or to standard output. workbench audit verify FILE verifies such a copy without the server. " +
			"An export in parts (--after) is verified by all of its files, in order. " + asAdmin,
		RunE: func(c *cobra.Command, args []string) error {
			if after < 0 {
				return workbench.E(workbench.CodeInvalidRequest, "--after must not be negative").WithHint("leave --after out to begin with the first")
			}
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				fill := func(w io.Writer) error {
					buffered := bufio.NewWriterSize(w, 64<<10)
					last, err := client.ExportAudit(ctx, buffered, after)
					if err := errors.Join(err, buffered.Flush()); err != nil {
						return err
					}
					a.note("exported %s; the last is number %d", counted(last-after, "row"), last)
					return nil
				}
				if to := optional(args, 0); to != "" && to != "-" {
					return a.download(to, fill)
				}
				return a.toStdout(fill)
			})
		},
	}
	c.Flags().Int64Var(&after, "after", 0, "only rows behind this number")
	return c
}

func (a *app) auditVerify(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "verify [FILE]…", Short: "Verify the audit trail, or an exported copy of it",
		Long: "Without FILE the server follows its whole trail. With FILE, which workbench audit export wrote (several files of an export in parts, in order; - for standard input), it is followed here, and no server is asked.\n\n" +
			"Tells the number of rows and the hash of the last one: note that elsewhere, and a trail whose end was cut off shows, too. Exit status 1 if something was changed, removed or added. " + asAdmin,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return a.verifyCopy(args)
			}
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				check, err := client.VerifyAudit(ctx)
				if err != nil {
					return err
				}
				return a.showCheck(check, "")
			})
		},
	}
}

// showCheck tells what a look at the trail found; where is the line of a file
// at which it broke.
func (a *app) showCheck(check workbench.AuditCheck, where string) error {
	intact := yesNo(check.Intact)
	err := a.print(check, func() error {
		return a.fields("intact", intact, "rows", fmt.Sprint(check.Rows), "head", check.Head, "without a place", place(check.Unchained), "broken at", place(check.Broken), "in", where, "why", check.Why)
	})
	if err == nil && !check.Intact {
		return exitError(workbench.ExitFailure)
	}
	return err
}

// verifyCopy follows an exported trail over its files.
func (a *app) verifyCopy(files []string) error {
	for _, name := range []string{"server", "key-file", "tenant", "end-user", "group"} {
		if a.connection.set.Changed(name) {
			return workbench.E(workbench.CodeInvalidRequest, "--%s is for a server, and a copy is verified without one", name).WithHint("leave --%s out, or FILE to verify the server's trail", name)
		}
	}
	var v workbench.AuditVerifier
	for _, file := range files {
		line, why, err := a.followCopy(&v, file)
		if err != nil {
			return err
		}
		if why != "" {
			rows, head := v.Head()
			return a.showCheck(workbench.AuditCheck{Rows: rows, Head: head, Broken: rows + 1, Why: why}, fmt.Sprintf("%s:%d", file, line))
		}
	}
	rows, head := v.Head()
	if rows == 0 {
		return workbench.E(workbench.CodeInvalidRequest, "the copy has no row of an audit trail").WithHint("name a file that workbench audit export wrote; every trail begins with the server's first key")
	}
	return a.showCheck(workbench.AuditCheck{Intact: true, Rows: rows, Head: head}, "")
}

// maxAuditLine bounds a line of an exported trail, in bytes.
const maxAuditLine = 8 << 20

// followCopy follows the rows of one file, and says what is wrong with which
// line.
func (a *app) followCopy(v *workbench.AuditVerifier, file string) (line int, why string, err error) {
	from := a.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return 0, "", workbench.E(workbench.CodeInvalidRequest, "the copy cannot be read: %s", file).WithHint("name a file that workbench audit export wrote").Caused(err)
		}
		defer f.Close()
		from = f
	}
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 64<<10), maxAuditLine)
	for lines.Scan() {
		line++
		var e workbench.AuditEntry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return line, "the line is not a row of an audit trail", nil
		}
		if why := v.Next(e); why != "" {
			return line, why, nil
		}
		// What the hash does not cover must not be there: a reader would take it for
		// what was verified.
		if written, err := json.Marshal(e); err != nil || !bytes.Equal(written, lines.Bytes()) {
			return line, "the line holds more than the row that it is about, or was written anew", nil
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return line + 1, "the line is not a row of an audit trail", nil
	}
	if lines.Err() != nil {
		return line, "", workbench.E(workbench.CodeInvalidRequest, "the copy cannot be read to its end: %s", file).Caused(lines.Err())
	}
	return line, "", nil
}

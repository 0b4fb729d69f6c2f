package main

import (
	"context"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) commitsCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{Use: "commits", Aliases: []string{"commit"}, Short: "List, show, compare and download earlier states of a session's workspace"})
	l.flags(c.PersistentFlags(), localData())
	c.AddCommand(a.commitsList(&l), a.commitsShow(&l), a.commitsFiles(&l), a.commitsDownload(&l), a.commitsDiff(&l), a.commitsTar(&l))
	return c
}

func (a *app) commitsList(l *local) *cobra.Command {
	var p paging
	c := &cobra.Command{
		Use: "list SESSION", Short: "List a session's commits, newest first", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.ListCommits(ctx, args[0], p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"COMMIT", "NUMBER", "FILES", "SIZE", "EXCLUSIVE", "CREATED", "RUNS", "RESTORED"}, func(c workbench.Commit) []string {
					return []string{c.ID, strconv.FormatInt(c.Number, 10), strconv.FormatInt(c.Files, 10), a.bytes(c.Bytes), yesNo(c.Exclusive), a.when(c.CreatedAt),
						strings.Join(c.RunIDs, " "), c.RestoredFrom}
				})
			})
		},
	}
	p.flags(c.Flags())
	return c
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *app) showCommit(c workbench.Commit) error {
	return a.fields("commit", c.ID, "session", c.SessionID, "number", strconv.FormatInt(c.Number, 10), "parent", c.ParentID, "runs", strings.Join(c.RunIDs, " "),
		"exclusive", yesNo(c.Exclusive), "restored from", c.RestoredFrom, "files", strconv.FormatInt(c.Files, 10), "size", a.bytes(c.Bytes), "root", c.Root,
		"generation", strconv.FormatInt(c.Generation, 10), "created", a.when(c.CreatedAt))
}

func (a *app) commitsShow(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "show COMMIT", Short: "Show a commit", Args: exactly(1),
		RunE: onOne(a, l, func(ctx context.Context, client *client, id string) (workbench.Commit, error) {
			return client.Commit(ctx, id)
		}, a.showCommit),
	}
}

func (a *app) commitsFiles(l *local) *cobra.Command {
	var p paging
	var recursive bool
	c := &cobra.Command{
		Use: "files COMMIT [DIRECTORY]", Short: "List the files of a commit", Args: between(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.CommitTree(ctx, args[0], workbench.TreeQuery{Path: optional(args, 1), Recursive: recursive, Page: p.page()})
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, entryHeading, a.entryRow)
			})
		},
	}
	p.flags(c.Flags())
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "also what is in directories below")
	return c
}

func (a *app) commitsDownload(l *local) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "download COMMIT PATH", Short: "Download a file of a commit", Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				return a.fetchOne(to, path.Base(args[1]), func(w io.Writer) error {
					_, err := client.DownloadCommitFile(ctx, args[0], args[1], w)
					return err
				})
			})
		},
	}
	c.Flags().StringVarP(&to, "output", "o", "", "file to write, or - for standard output")
	return c
}

func (a *app) commitsTar(l *local) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "tar COMMIT", Short: "Download all files of a commit as a tar archive", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				return a.fetchOne(to, args[0]+".tar", func(w io.Writer) error {
					_, err := client.DownloadCommit(ctx, args[0], w)
					return err
				})
			})
		},
	}
	c.Flags().StringVarP(&to, "output", "o", "", "file to write, or - for standard output; default COMMIT.tar")
	return c
}

func (a *app) commitsDiff(l *local) *cobra.Command {
	var from string
	var list bool
	c := &cobra.Command{
		Use: "diff COMMIT|RUN", Short: "See what a commit, or a run, changed", Args: exactly(1),
		Long: "Prints a patch that git applies, from the commit before it (or --from) to the commit; of a run, from the workspace it began with to the one it left. " +
			"Of files that are binary or larger than 1 MiB it says only that they differ: --list tells sizes and digests.",
		RunE: func(c *cobra.Command, args []string) error {
			ofRun := strings.HasPrefix(args[0], string(workbench.KindRun)+"_")
			if ofRun && from != "" {
				return usageError(c, "--from does not go with a run, which began with a workspace of its own")
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				if list || a.json {
					return a.listDiff(ctx, client, ofRun, from, args[0])
				}
				return a.toStdout(func(w io.Writer) error {
					if ofRun {
						return client.RunPatch(ctx, args[0], w)
					}
					return client.CommitPatch(ctx, from, args[0], w)
				})
			})
		},
	}
	c.Flags().StringVar(&from, "from", "", "the commit to compare with; default the one before it")
	c.Flags().BoolVar(&list, "list", false, "list what differs, with sizes and digests")
	return c
}

// listDiff lists all that differs.
func (a *app) listDiff(ctx context.Context, client *client, ofRun bool, from, id string) error {
	var all workbench.Comparison
	for page := (workbench.Page{Limit: workbench.MaxPageLimit}); ; {
		part, err := compared(ctx, client, ofRun, from, id, page)
		if err != nil {
			return err
		}
		part.Items = append(all.Items, part.Items...)
		all = part
		if page.Cursor = part.Next; page.Cursor == "" {
			break
		}
	}
	return a.print(all, func() error {
		if !all.Exclusive && len(all.RunIDs) > 0 {
			a.note(othersHadAPart)
		}
		rows := [][]string{}
		for _, d := range all.Items {
			rows = append(rows, []string{string(d.Change), strconv.Itoa(d.Additions), strconv.Itoa(d.Deletions), a.side(d.Old), a.side(d.New), d.Path})
		}
		return a.table([]string{"CHANGE", "LINES+", "LINES-", "OLD", "NEW", "PATH"}, rows)
	})
}

func compared(ctx context.Context, client *client, ofRun bool, from, id string, page workbench.Page) (workbench.Comparison, error) {
	if ofRun {
		return client.CompareRun(ctx, id, page)
	}
	return client.CompareCommits(ctx, from, id, page)
}

// side is one side of a difference in a word.
func (a *app) side(v *workbench.FileVersion) string {
	switch {
	case v == nil:
		return ""
	case v.Type != "file":
		return v.Type
	}
	return a.bytes(v.Size) + " " + v.SHA256[:min(12, len(v.SHA256))]
}

func (a *app) sessionRollback(l *local) *cobra.Command {
	var expected string
	c := &cobra.Command{
		Use: "rollback SESSION COMMIT|RUN", Short: "Go back to an earlier workspace of a session", Args: exactly(2),
		Long: "Makes a new commit with the files of an earlier one, or of what a run left. Nothing of the history is lost, and files alone go back. Refused while a run has not ended.",
		RunE: func(c *cobra.Command, args []string) error {
			r := sdk.RollBack{Commit: args[1], ExpectedHead: expected}
			if strings.HasPrefix(args[1], string(workbench.KindRun)+"_") {
				r.Commit, r.Run = "", args[1]
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				back, err := client.RollBackSession(ctx, args[0], r)
				if err != nil {
					return err
				}
				if back.Memory == workbench.MemoryLost {
					a.note("the sandbox had to be given up: variables and /tmp were lost")
				}
				return a.print(back, func() error { return a.created(back.Commit.ID, func() error { return a.showCommit(back.Commit) }) })
			})
		},
	}
	c.Flags().StringVar(&expected, "expected-head", "", "fail unless this is the last commit")
	return c
}

func (a *app) sessionFork(l *local) *cobra.Command {
	var r sdk.ForkSession
	var agent string
	c := &cobra.Command{
		Use: "fork SESSION [COMMIT|RUN]", Short: "Make a new session with the files of this one, and print its id", Args: between(1, 2),
		Long: "The new session begins with the files of the commit, of what the run left, or of the last commit. Runs, variables and retained files stay behind. The session may have ended.",
		RunE: func(c *cobra.Command, args []string) error {
			r.Commit = optional(args, 1)
			if strings.HasPrefix(r.Commit, string(workbench.KindRun)+"_") {
				r.Commit, r.Run = "", r.Commit
			}
			if c.Flags().Changed("agent") {
				r.Agent = &agent
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				s, err := client.ForkAgentSession(ctx, args[0], r)
				if err != nil {
					return err
				}
				return a.print(s, func() error { return a.created(s.ID, func() error { return a.showSession(s) }) })
			})
		},
	}
	c.Flags().StringVar(&agent, "agent", "", "descriptive label; default as in SESSION")
	c.Flags().StringVar(&r.Size, "size", "", "sandbox size; default as in SESSION")
	c.Flags().StringVar(&r.Image, "image", "", "sandbox image; default as in SESSION")
	return c
}

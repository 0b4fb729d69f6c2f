package main

import (
	"context"
	"io"
	"path"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
)

func (a *app) runsFiles(l *local) *cobra.Command {
	var p paging
	var out string
	c := &cobra.Command{
		Use: "files RUN", Short: "List or fetch the files a run changed", Args: exactly(1),
		Long:    "Lists the files a run changed. With --out it writes them into a directory instead, and those the run saved, as `workbench run --out` does.",
		Example: "  workbench runs files RUN\n  workbench runs files RUN --out results/",
		RunE: func(c *cobra.Command, args []string) error {
			if out != "" {
				if c.Flags().Changed("limit") || c.Flags().Changed("cursor") {
					return workbench.E(workbench.CodeInvalidRequest, "--out fetches every file, and --limit and --cursor do not go with it").WithHint("leave them out, or fetch one: workbench runs download RUN PATH")
				}
				return a.fetchFiles(c, l, args[0], out)
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.RunFiles(ctx, args[0], p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"CHANGE", "TYPE", "SIZE", "PATH", "SHA256"}, func(f workbench.ChangedFile) []string {
					return []string{string(f.Change), f.Type, a.bytes(f.Size), f.Path, f.SHA256}
				})
			})
		},
	}
	p.flags(c.Flags())
	c.Flags().StringVar(&out, "out", "", "directory to write the files into")
	return c
}

// fetchFiles writes what a run kept and changed into a directory, and says
// where. A run that goes on is refused: what it changed is known at its end.
func (a *app) fetchFiles(c *cobra.Command, l *local, runID, out string) (err error) {
	dir, err := openOut(out)
	if err != nil {
		return err
	}
	defer func() { a.also(dir.Close(), &err) }()
	return a.withClient(c, l, func(ctx context.Context, client *client) error {
		run, err := client.GetRun(ctx, runID, 0)
		if err != nil {
			return err
		}
		if !run.Status.Terminal() {
			return workbench.E(workbench.CodeConflict, "the run has not ended, and its files are known then").WithHint("workbench runs show %s --wait waits for its end", run.ID)
		}
		saved, err := a.collect(ctx, client, run, dir)
		if err != nil {
			return err
		}
		return a.fetched(saved)
	})
}

// fetched prints where files were written, one a line, and says on stderr what
// was not. Files that could not be had are an error at the end.
func (a *app) fetched(saved []savedFile) error {
	written := []map[string]string{}
	rows := [][]string{}
	missing := 0
	for _, s := range saved {
		if s.at == "" {
			a.note("%s", s.line())
			if s.bytes >= 0 {
				missing++
			}
			continue
		}
		written = append(written, map[string]string{"path": s.path, "origin": s.origin, "file": s.at})
		rows = append(rows, []string{s.at, a.bytes(s.bytes), s.origin})
	}
	err := a.print(map[string]any{"items": written}, func() error { return a.table([]string{"FILE", "SIZE", "ORIGIN"}, rows) })
	if err == nil && missing > 0 {
		return exitError(workbench.ExitFailure)
	}
	return err
}

func (a *app) runsDownload(l *local) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "download RUN PATH", Short: "Download a file as a run left it", Args: exactly(2),
		Long: "Fetches a file that the run added or changed, also one that was not saved: workbench runs files lists them. It is written to --output, or to standard output for --output -. " +
			"Without it the file goes into the current directory under its own name, unless something there has that name already.",
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				place := to
				if place == "" {
					var err error
					if place, err = freeName(path.Base(args[1])); err != nil {
						return err
					}
				}
				return a.download(place, func(w io.Writer) error {
					_, err := client.DownloadRunFile(ctx, args[0], args[1], w)
					return err
				})
			})
		},
	}
	c.Flags().StringVarP(&to, "output", "o", "", "file to write, or - for standard output")
	return c
}

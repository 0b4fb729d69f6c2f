package main

import (
	"context"
	"io"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) filesCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{Use: "files", Aliases: []string{"file"}, Short: "List, fetch and change the files of a session's workspace",
		Long: "The workspace is what programs find in their working directory: as it is now while one runs, else as last committed. Every change is a commit (workbench commits). " +
			"Retained files are something else: workbench artifact."})
	l.flags(c.PersistentFlags(), localData())
	c.AddCommand(a.filesList(&l), a.filesGet(&l), a.filesPut(&l), a.filesMove(&l), a.filesDelete(&l), a.filesMkdir(&l), a.filesTar(&l))
	return c
}

var entryHeading = []string{"TYPE", "MODE", "SIZE", "MODIFIED", "PATH", "SHA256"}

func (a *app) entryRow(e workbench.TreeEntry) []string {
	name := e.Path
	if e.Type == "symlink" {
		name += " -> " + e.Target
	}
	return []string{e.Type, e.Mode, a.bytes(e.Size), a.when(e.ModifiedAt), name, e.SHA256}
}

func (a *app) filesList(l *local) *cobra.Command {
	var p paging
	var recursive bool
	c := &cobra.Command{
		Use: "list SESSION [DIRECTORY]", Short: "List what is in a session's workspace", Args: between(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.ListWorkspace(ctx, args[0], workbench.TreeQuery{Path: optional(args, 1), Recursive: recursive, Page: p.page()})
				if err != nil {
					return err
				}
				if list.Live && !a.json {
					a.note("a program runs: this is what it has made of the workspace so far")
				}
				return showPage(a, list, list.Items, list.NextCursor, entryHeading, a.entryRow)
			})
		},
	}
	p.flags(c.Flags())
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "also what is in directories below")
	return c
}

// optional is an argument that may be left out.
func optional(args []string, n int) string {
	if n < len(args) {
		return args[n]
	}
	return ""
}

func (a *app) filesGet(l *local) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "get SESSION PATH", Short: "Download a file of a session's workspace", Args: exactly(2),
		Long: "It is written to --output, or to standard output for --output -. Without it the file goes into the current directory under its own name, unless something there has that name already.",
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				return a.fetchOne(to, path.Base(args[1]), func(w io.Writer) error {
					_, err := client.DownloadWorkspaceFile(ctx, args[0], args[1], w)
					return err
				})
			})
		},
	}
	c.Flags().StringVarP(&to, "output", "o", "", "file to write, or - for standard output")
	return c
}

// fetchOne writes what fill gives to a place, by default to a free name here.
func (a *app) fetchOne(place, name string, fill func(io.Writer) error) error {
	if place == "" {
		var err error
		if place, err = freeName(name); err != nil {
			return err
		}
	}
	return a.download(place, fill)
}

func (a *app) filesPut(l *local) *cobra.Command {
	var mode, match string
	var absent bool
	c := &cobra.Command{
		Use: "put SESSION FILE [PATH]", Short: "Put a file into a session's workspace", Args: between(2, 3),
		Long: "FILE goes to PATH in the workspace, by default under its own name; directories above it are made. It is there whole or not at all. FILE - is standard input, which has no name: it needs PATH.",
		RunE: func(c *cobra.Command, args []string) error {
			w := sdk.WriteFile{Path: optional(args, 2), IfMatch: match, IfAbsent: absent}
			var content io.Reader = a.in
			if args[1] == "-" {
				if w.Path == "" {
					return usageError(c, "standard input has no name: give PATH, too")
				}
			} else {
				f, length, err := openInput(args[1])
				if err != nil {
					return err
				}
				defer f.Close()
				content, w.Size = f, length
				if length == 0 {
					content = strings.NewReader("") // its length is known
				}
				if w.Path == "" {
					w.Path = filepath.Base(args[1])
				}
			}
			if mode != "" {
				bits, err := strconv.ParseUint(mode, 8, 32)
				if err != nil {
					return usageError(c, "--mode takes permissions in octal, such as 0755")
				}
				m := uint32(bits)
				w.Mode = &m
			}
			if match != "" && absent {
				return usageError(c, "--if-match and --if-absent exclude each other")
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				change, err := client.WriteWorkspaceFile(ctx, args[0], w, content)
				return a.showChange(change, err)
			})
		},
	}
	c.Flags().StringVar(&mode, "mode", "", "permissions in octal; default those it has, or 0644")
	c.Flags().StringVar(&match, "if-match", "", "fail unless the file there has this SHA-256; *: unless there is one")
	c.Flags().BoolVar(&absent, "if-absent", false, "fail if there is a file already")
	return c
}

// showChange tells the commit that a change made.
func (a *app) showChange(change workbench.WorkspaceChange, err error) error {
	if err != nil {
		return err
	}
	return a.print(change, func() error { return a.created(change.Commit.ID, func() error { return a.showCommit(change.Commit) }) })
}

func (a *app) filesMove(l *local) *cobra.Command {
	var overwrite bool
	c := &cobra.Command{
		Use: "move SESSION FROM TO", Short: "Give a file or directory of a session's workspace another name", Args: exactly(3),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				return a.showChange(client.MoveWorkspaceFile(ctx, args[0], workbench.MoveFile{From: args[1], To: args[2], Overwrite: overwrite}))
			})
		},
	}
	c.Flags().BoolVar(&overwrite, "overwrite", false, "replace a file or link at TO; a directory never is")
	return c
}

func (a *app) filesDelete(l *local) *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use: "delete SESSION PATH", Short: "Delete a file or directory of a session's workspace", Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				return a.showChange(client.DeleteWorkspaceFile(ctx, args[0], args[1], recursive))
			})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "also a directory that is not empty")
	return c
}

func (a *app) filesMkdir(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "mkdir SESSION PATH", Short: "Make a directory in a session's workspace, and those above it", Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				return a.showChange(client.MakeWorkspaceDirectory(ctx, args[0], args[1]))
			})
		},
	}
}

func (a *app) filesTar(l *local) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "tar SESSION", Short: "Download a session's workspace as a tar archive", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				return a.fetchOne(to, args[0]+".tar", func(w io.Writer) error {
					_, err := client.DownloadWorkspace(ctx, args[0], w)
					return err
				})
			})
		},
	}
	c.Flags().StringVarP(&to, "output", "o", "", "file to write, or - for standard output; default SESSION.tar")
	return c
}

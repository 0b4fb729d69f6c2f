package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) contextsCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{
		Use: "contexts", Aliases: []string{"context"}, Short: "Create, list, restart and end a session's living interpreters",
		Long: "A context is an interpreter of a session that lives from cell to cell: what one defines is there for the next one. `workbench run --session SESSION --context ID FILE` runs a cell in it.\n\n" +
			"Contexts live in the memory of a server. Without --server they end with the command.",
	})
	l.flags(c.PersistentFlags(), localData())
	c.AddCommand(a.contextsCreate(&l), a.contextsList(&l), a.contextsShow(&l), a.contextsRestart(&l), a.contextsInterrupt(&l), a.contextsDelete(&l))
	return c
}

func (a *app) contextsCreate(l *local) *cobra.Command {
	var r sdk.CreateContext
	var language string
	var env []string
	c := &cobra.Command{
		Use: "create SESSION", Short: "Create a context and print its id", Args: exactly(1),
		Example: "  workbench contexts create SESSION --id analysis --language python",
		RunE: func(c *cobra.Command, args []string) (err error) {
			r.Language = workbench.Language(language)
			if r.Env, err = environment(env); err != nil {
				return err
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				made, err := client.CreateContext(ctx, args[0], r)
				if err != nil {
					return err
				}
				return a.print(made, func() error { return a.created(made.ID, func() error { return a.showContext(made) }) })
			})
		},
	}
	f := c.Flags()
	f.StringVar(&r.ID, "id", "", "what to call it; default generated")
	f.StringVar(&language, "language", "", "python, javascript, typescript or bash")
	f.StringArrayVar(&env, "env", nil, "environment variable NAME=VALUE, or NAME to pass on this process's; may be repeated")
	f.StringVar(&r.Dir, "cwd", "", "where its interpreter starts; default the workspace")
	return c
}

func (a *app) contextsList(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "list SESSION", Short: "List a session's contexts", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.ListContexts(ctx, args[0])
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, "", []string{"CONTEXT", "LANGUAGE", "STATE", "CELLS", "CREATED", "LAST USED"}, func(c workbench.Context) []string {
					return []string{c.ID, string(c.Language), string(c.State), strconv.FormatInt(c.Cells, 10), a.when(c.CreatedAt), a.when(c.LastUsedAt)}
				})
			})
		},
	}
}

// onContext is a command on one context of a session.
func (a *app) onContext(l *local, use, short string, call func(ctx context.Context, client *client, session, id string) (workbench.Context, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " SESSION CONTEXT", Short: short, Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				k, err := call(ctx, client, args[0], args[1])
				if err != nil {
					return err
				}
				return a.print(k, func() error { return a.showContext(k) })
			})
		},
	}
}

func (a *app) contextsShow(l *local) *cobra.Command {
	return a.onContext(l, "show", "Show a context", func(ctx context.Context, client *client, session, id string) (workbench.Context, error) {
		return client.GetContext(ctx, session, id)
	})
}

func (a *app) contextsDelete(l *local) *cobra.Command {
	return a.onContext(l, "delete", "End a context's interpreter and forget it", func(ctx context.Context, client *client, session, id string) (workbench.Context, error) {
		return client.DeleteContext(ctx, session, id)
	})
}

func (a *app) contextsRestart(l *local) *cobra.Command {
	var cancelActive bool
	c := a.onContext(l, "restart", "Begin a context anew: without its variables", func(ctx context.Context, client *client, session, id string) (workbench.Context, error) {
		return client.RestartContext(ctx, session, id, cancelActive)
	})
	c.Flags().BoolVar(&cancelActive, "cancel-active", false, "cancel cells that have not ended first")
	return c
}

func (a *app) contextsInterrupt(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "interrupt SESSION CONTEXT", Short: "Cancel the cell that runs in a context", Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				done, err := client.InterruptContext(ctx, args[0], args[1])
				if err != nil {
					return err
				}
				return a.print(done, func() error {
					if !done.Interrupted {
						a.note("nothing runs in it")
					}
					return a.fields("context", done.Context.ID, "state", string(done.Context.State), "run", done.RunID)
				})
			})
		},
	}
}

func (a *app) showContext(c workbench.Context) error {
	lost := ""
	if c.Lost != nil {
		lost = c.Lost.Detail()
	}
	return a.fields("context", c.ID, "session", c.SessionID, "language", string(c.Language), "state", string(c.State), "lost", lost, "cell", c.RunID,
		"cells", strconv.FormatInt(c.Cells, 10), "cwd", c.Dir, "generation", strconv.FormatInt(c.Generation, 10), "created", a.when(c.CreatedAt), "last used", a.when(c.LastUsedAt))
}

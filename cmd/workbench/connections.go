package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) connectionCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{
		Use: "connection", Aliases: []string{"connections"}, Short: "Keep, rotate and revoke the credentials that tools are called with",
		Long: "A connection is the right to act at a provider. The server alone uses its credentials, and never shows them again; sessions and code name it by its alias.\n\n" + asManager,
	})
	l.flags(c.PersistentFlags(), home())
	databaseFlag(c.PersistentFlags(), &l.options)
	c.AddCommand(a.connectionAdd(&l), a.connectionList(&l), a.connectionShow(&l), a.connectionRotate(&l), a.connectionRevoke(&l))
	return c
}

// asManager is what commands about connections work on.
const asManager = asAdmin + " A user's key with the scope manage has that user's own."

// secretsAre says how secrets are given.
const secretsAre = "No secret is the value of a flag: others on the machine can read command lines. Each is read from a file (--…-file), from standard input (--…-file -) or from an environment variable (--…-env); an end of line behind it does not count.\n\n" +
	"A bearer token: --bearer-file. A user and a password: --username and --password-file. A header of its own: --header and --value-file. " +
	"OAuth 2 client credentials: --token-url, --client-id and --client-secret-file; with --refresh-token-file, a refresh token."

func (a *app) connectionAdd(l *local) *cobra.Command {
	var r sdk.CreateConnection
	var f secretFlags
	c := &cobra.Command{
		Use: "add ALIAS --provider PROVIDER --bearer-file FILE", Short: "Make a connection and print its id", Args: exactly(1),
		Long: secretsAre + "\n\nIt serves every session of the project, or those of the --tenant, of its --group or of its --user; one that a user's own key makes serves that user. " + asManager,
		Example: "  workbench connection add github --provider github --bearer-file github.token\n" +
			"  workbench connection add crm --provider crm --token-url https://id.example.com/token --client-id workbench --client-secret-env CRM_SECRET --tenant acme",
		RunE: func(c *cobra.Command, args []string) (err error) {
			r.Alias = args[0]
			if r.Auth, r.Credentials, err = a.secrets(c, f); err != nil {
				return err
			}
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				made, err := client.CreateConnection(ctx, r)
				if err != nil {
					return err
				}
				return a.print(made, func() error { return a.created(made.ID, func() error { return a.showConnection(made) }) })
			})
		},
	}
	fl := c.Flags()
	fl.StringVar(&r.Provider, "provider", "", "the provider of the apps that it serves; by default an app's provider is its name")
	fl.StringArrayVar(&r.Hosts, "host", nil, "host that the credentials may go to, with a port if it has one; default that of each app; may be repeated")
	fl.StringVar(&r.Tenant, "tenant", "", "the tenant whose it is; default the whole project's")
	fl.StringVar(&r.Group, "group", "", "the group of the tenant whose it is")
	fl.StringVar(&r.User, "user", "", "the user of the tenant whose it is")
	f.flags(fl)
	return c
}

func (a *app) connectionList(l *local) *cobra.Command {
	var p paging
	var alias string
	c := &cobra.Command{
		Use: "list", Short: "List connections, newest first, without their credentials", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				list, err := client.Connections(ctx, alias, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"CONNECTION", "ALIAS", "PROVIDER", "AUTH", "STATE", "SCOPE", "OWNER", "VERSION", "LAST USED", "CREATED", "HOSTS"}, func(k workbench.Connection) []string {
					return []string{k.ID, k.Alias, k.Provider, string(k.Auth), connectionState(k), k.Scope(), connectionOwner(k), fmt.Sprint(k.Version), a.whenever(k.LastUsedAt), a.when(k.CreatedAt), strings.Join(k.Hosts, ",")}
				})
			})
		},
	}
	p.flags(c.Flags())
	c.Flags().StringVar(&alias, "alias", "", "only those of this alias")
	return c
}

func connectionState(k workbench.Connection) string {
	if k.RevokedAt != nil {
		return "revoked"
	}
	return "valid"
}

// connectionOwner is the id of whom a connection is for; "" of the project.
func connectionOwner(k workbench.Connection) string {
	switch k.Scope() {
	case "user":
		return k.UserID
	case "group":
		return k.GroupID
	}
	return k.TenantID
}

func (a *app) showConnection(k workbench.Connection) error {
	return a.fields("connection", k.ID, "alias", k.Alias, "provider", k.Provider, "auth", string(k.Auth), "state", connectionState(k), "scope", k.Scope(),
		"tenant", k.TenantID, "group", k.GroupID, "user", k.UserID, "hosts", strings.Join(k.Hosts, ", "), "version", fmt.Sprint(k.Version),
		"created", a.when(k.CreatedAt), "by key", k.CreatedBy, "rotated", a.whenever(k.RotatedAt), "revoked", a.whenever(k.RevokedAt), "last used", a.whenever(k.LastUsedAt))
}

// onConnection runs f on the connection that an argument names: by its id, or by
// an alias that only one has.
func (a *app) onConnection(c *cobra.Command, l *local, arg string, f func(ctx context.Context, client *client, id string) (workbench.Connection, error)) error {
	return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
		id, err := findConnection(ctx, client, arg)
		if err != nil {
			return err
		}
		k, err := f(ctx, client, id)
		if err != nil {
			return err
		}
		return a.print(k, func() error { return a.showConnection(k) })
	})
}

func findConnection(ctx context.Context, client *client, arg string) (string, error) {
	if strings.HasPrefix(arg, string(workbench.KindConnect)+"_") {
		return arg, nil
	}
	list, err := client.Connections(ctx, arg, workbench.Page{Limit: workbench.MaxPageLimit})
	if err != nil {
		return "", err
	}
	var live []string
	for _, k := range list.Items {
		if k.RevokedAt == nil {
			live = append(live, k.ID)
		}
	}
	switch {
	case len(live) == 1 && list.NextCursor == "":
		return live[0], nil
	case len(live) == 0 && list.NextCursor == "":
		return "", workbench.E(workbench.CodeNotFound, "there is no connection of that alias that is valid: %s", arg).WithHint("workbench connection list shows the connections")
	}
	return "", workbench.E(workbench.CodeConflict, "several connections have that alias: %s", arg).
		WithHint("name one by its id: workbench connection list --alias %s shows them", shellWord(arg))
}

func (a *app) connectionShow(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "show CONNECTION|ALIAS", Short: "Show a connection, without its credentials", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.onConnection(c, l, args[0], func(ctx context.Context, client *client, id string) (workbench.Connection, error) {
				return client.Connection(ctx, id)
			})
		},
	}
}

func (a *app) connectionRotate(l *local) *cobra.Command {
	var f secretFlags
	var expected int64
	c := &cobra.Command{
		Use: "rotate CONNECTION|ALIAS --bearer-file FILE", Short: "Replace a connection's credentials", Args: exactly(1),
		Long: "All of them, by others of the same kind. What uses the old ones ends at once.\n\n" + secretsAre + "\n\n" + asAdmin,
		RunE: func(c *cobra.Command, args []string) error {
			_, credentials, err := a.secrets(c, f)
			if err != nil {
				return err
			}
			r := sdk.RotateConnection{Credentials: credentials}
			if c.Flags().Changed("expected-version") {
				r.ExpectedCurrentVersion = &expected
			}
			return a.onConnection(c, l, args[0], func(ctx context.Context, client *client, id string) (workbench.Connection, error) {
				return client.RotateConnection(ctx, id, r)
			})
		},
	}
	f.flags(c.Flags())
	c.Flags().Int64Var(&expected, "expected-version", 0, "fail unless this is the current version")
	return c
}

func (a *app) connectionRevoke(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "revoke CONNECTION|ALIAS", Short: "End a connection: no call uses it from then on", Args: exactly(1),
		Long: "Its credentials are gone with that, and its alias is free again. " + asAdmin,
		RunE: func(c *cobra.Command, args []string) error {
			return a.onConnection(c, l, args[0], func(ctx context.Context, client *client, id string) (workbench.Connection, error) {
				return client.RevokeConnection(ctx, id)
			})
		},
	}
}

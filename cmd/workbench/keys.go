package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) keyCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{
		Use: "key", Aliases: []string{"keys"}, Short: "Create, list and revoke API keys",
		Long: "Works on the server named by --server, with an admin key; or, where none is named, directly on the data directory of a server that is not running.",
	})
	l.flags(c.PersistentFlags(), home())
	databaseFlag(c.PersistentFlags(), &l.options)
	c.AddCommand(a.keyCreate(&l), a.keyList(&l), a.keyRevoke(&l))
	return c
}

func databaseFlag(f *pflag.FlagSet, o *serverOptions) {
	f.StringVar(&o.Database, "database", os.Getenv("WORKBENCH_DATABASE"), "postgres://… instead of SQLite in the data directory [WORKBENCH_DATABASE]")
}

// withAdmin runs f as an administrator: with the admin key for the named
// server, or with one made for this process alone.
func (a *app) withAdmin(ctx context.Context, l *local, f func(ctx context.Context, client *client) error) (err error) {
	if a.connection.remote() {
		if err := l.unused(); err != nil {
			return err
		}
		// An admin key acts for nobody.
		a.connection.tenant, a.connection.endUser, a.connection.group = "", "", ""
		client, err := a.connectRemote()
		if err != nil {
			return err
		}
		return f(ctx, client)
	}
	s, err := l.open(ctx)
	if err != nil {
		return err
	}
	if first := s.AdminKey(); first != "" {
		// This start was the data directory's first. The next one prints no key.
		a.note("first start: this admin key is shown once: %s", first)
	}
	secret, err := s.ProcessAdminKey(ctx)
	if err != nil {
		return errors.Join(err, s.Close(ctx))
	}
	client, err := embed(s, secret)
	if err != nil {
		return errors.Join(err, s.Close(ctx))
	}
	defer a.closing(client, &err)
	return f(ctx, client)
}

func (a *app) keyCreate(l *local) *cobra.Command {
	var r sdk.CreateKey
	var kind, secretFile string
	var scopes []string
	var ttl time.Duration
	c := &cobra.Command{
		Use: "create", Short: "Create a key and print its secret, once", Args: exactly(0),
		Example: "  workbench key create --tenant acme --user ada > key\n  workbench key create --kind embedded --tenants acme\n  workbench key create --kind admin --contents",
		RunE: func(c *cobra.Command, _ []string) error {
			r.Kind = workbench.KeyKind(kind)
			for _, s := range scopes {
				r.Scopes = append(r.Scopes, workbench.Scope(s))
			}
			if ttl != 0 {
				until := time.Now().Add(ttl)
				r.ExpiresAt = &until
			}
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) (err error) {
				var place *os.File
				if secretFile != "" { // before there is a secret that could be lost
					if place, err = newSecretFile(secretFile); err != nil {
						return err
					}
					defer func() {
						if err != nil {
							_ = place.Close() // empty
							a.also(os.Remove(secretFile), &err)
						}
					}()
				}
				k, err := client.CreateKey(ctx, r)
				if err != nil {
					return err
				}
				if place != nil {
					if err := keepSecret(place, k.Secret); err != nil {
						return err
					}
					k.Secret = ""
					a.note("the secret of %s is in %s", k.ID, secretFile)
				}
				return a.print(k, func() error { return a.showNewKey(k) })
			})
		},
	}
	f := c.Flags()
	f.StringVar(&kind, "kind", string(workbench.KeyDirect), "direct (one tenant and user), embedded (acts for whom the client names) or admin")
	f.StringVar(&r.Name, "name", "", "name, for people")
	f.StringVar(&r.Tenant, "tenant", "", "direct: the tenant; a new one is created")
	f.StringVar(&r.User, "user", "", "direct: the user; a new one is created")
	f.StringSliceVar(&r.Tenants, "tenants", nil, "embedded: a tenant it is limited to; may be repeated")
	f.StringSliceVar(&scopes, "scope", nil, "execute, read, approve or manage; may be repeated; default by kind")
	f.StringVar(&r.SessionID, "session", "", "narrow the key to one session")
	f.BoolVar(&r.Contents, "contents", false, "admin: may also read code, output and files")
	f.DurationVar(&ttl, "ttl", 0, "how long the key is valid; default for ever")
	f.StringVar(&secretFile, "secret-file", "", "write the secret to this new file (mode 0600) instead of printing it")
	return c
}

// newSecretFile makes the file for a secret, which must not exist.
func newSecretFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the file for the secret cannot be made: %s", name).
			WithHint("name a file that does not exist yet, in a directory that does; no key was created").Caused(err)
	}
	return f, nil
}

// keepSecret writes a secret to its file and closes that.
func keepSecret(f *os.File, secret string) error {
	_, err := fmt.Fprintln(f, secret)
	return errors.Join(err, f.Sync(), f.Close())
}

// showNewKey prints the secret alone where a program reads.
func (a *app) showNewKey(k sdk.CreatedKey) error {
	if !a.outTTY {
		if k.Secret == "" {
			_, err := fmt.Fprintln(a.out, k.ID)
			return err
		}
		_, err := fmt.Fprintln(a.out, k.Secret)
		return err
	}
	if err := a.showKey(k.Key); err != nil {
		return err
	}
	return a.fields("secret", k.Secret, "", "it is shown this once")
}

func (a *app) showKey(k workbench.Key) error {
	return a.fields("key", k.ID, "kind", string(k.Kind), "name", k.Name, "scopes", scopeList(k), "tenant", named(k.TenantName, k.TenantID), "user", named(k.UserName, k.UserID),
		"tenants", strings.Join(k.Tenants, ", "), "session", k.SessionID, "created", a.when(k.CreatedAt),
		"expires", a.whenever(k.ExpiresAt), "revoked", a.whenever(k.RevokedAt), "last used", a.whenever(k.LastUsedAt))
}

func scopeList(k workbench.Key) string {
	names := make([]string, 0, len(k.Scopes)+1)
	for _, s := range k.Scopes {
		names = append(names, string(s))
	}
	if k.Contents {
		names = append(names, "(contents)")
	}
	return strings.Join(names, " ")
}

func (a *app) keyList(l *local) *cobra.Command {
	var p paging
	c := &cobra.Command{
		Use: "list", Short: "List keys, without their secrets", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				list, err := client.ListKeys(ctx, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"KEY", "KIND", "STATE", "SCOPES", "LAST USED", "CREATED", "NAME", "TENANT", "USER"}, func(k workbench.Key) []string {
					return []string{k.ID, string(k.Kind), keyState(k, time.Now()), scopeList(k), a.whenever(k.LastUsedAt), a.when(k.CreatedAt), k.Name, tenantsOf(k), k.UserName}
				})
			})
		},
	}
	p.flags(c.Flags())
	return c
}

// tenantsOf are the names of the tenants that a key may act for; "" for any.
func tenantsOf(k workbench.Key) string {
	if k.TenantName != "" {
		return k.TenantName
	}
	return strings.Join(k.Tenants, ",")
}

// named is a name with its id; the id alone from a server that tells no names.
func named(name, id string) string {
	if name == "" || id == "" {
		return name + id
	}
	return name + " (" + id + ")"
}

func keyState(k workbench.Key, now time.Time) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case k.ExpiresAt != nil && !now.Before(*k.ExpiresAt):
		return "expired"
	}
	return "valid"
}

func (a *app) keyRevoke(l *local) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "revoke KEY", Short: "End a key: the next request with it is refused", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				revoke := client.RevokeKey
				if force {
					revoke = client.ForceRevokeKey
				}
				k, err := revoke(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(k, func() error { return a.showKey(k) })
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also if it is the last admin key")
	return c
}

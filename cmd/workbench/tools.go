package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/terminal"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) toolsCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{
		Use: "tools", Aliases: []string{"tool"}, Short: "Declare apps, and list the tools that they offer",
		Long: "An app is where tools come from: an MCP server, an OpenAPI document, declared HTTP endpoints. What it offers becomes versions of tools, and no version is ever altered. " +
			"Sessions name the versions that their code may call, and rules (workbench policy) say who may.\n\n" + asAdmin,
	})
	// Whoever may start an engine here may run programs here.
	l.options.ToolPrograms = true
	l.flags(c.PersistentFlags(), home())
	databaseFlag(c.PersistentFlags(), &l.options)
	c.AddCommand(a.toolsAdd(&l), a.toolsList(&l), a.toolsShow(&l), a.toolsImport(&l), a.toolsRemove(&l), a.toolsApps(&l))
	return c
}

// asAdmin is what commands that manage a project work on.
const asAdmin = "Works on the server named by --server, with an admin key; or, where none is named, directly on the data directory of a server that is not running."

// withProject runs f with the key for the named server, as whom the flags say;
// or, where none is named, as an administrator of the data directory.
func (a *app) withProject(c *cobra.Command, l *local, f func(ctx context.Context, client *client) error) error {
	if a.connection.remote() {
		return a.withClient(c, l, f)
	}
	if err := a.connection.forNobody(); err != nil {
		return err
	}
	return a.withAdmin(c.Context(), l, f)
}

func (a *app) toolsAdd(l *local) *cobra.Command {
	var f appFlags
	c := &cobra.Command{
		Use: "add NAME {--mcp-stdio -- COMMAND ARGUMENTS… | --mcp-http URL | --openapi FILE|URL | --http FILE}", Short: "Declare an app, or change one, and import its tools",
		Long: "NAME begins the names of the tools: those of github are github.list_issues and so on.\n\n" +
			"--mcp-stdio is a program that the server starts on its own host, outside of any sandbox: a server takes it only where it was started with --tool-programs. " +
			"--openapi takes a document as JSON or YAML, from a file or from a URL that this command fetches, without credentials. " +
			"--http takes a file with {\"url\": …, \"endpoints\": [{\"name\", \"description\", \"method\", \"path\", \"inputSchema\"}, …]}, as JSON or YAML. A FILE of - is standard input.\n\n" +
			"No secret belongs here: workbench connection add takes them. " + asAdmin,
		Example: "  workbench tools add github --mcp-http https://api.githubcopilot.com/mcp/ --needs-connection --connection github\n" +
			"  workbench tools add pets --openapi petstore.yaml --url https://pets.example.com/v1\n" +
			"  workbench tools add files --mcp-stdio -- npx -y @modelcontextprotocol/server-filesystem /srv/shared",
		Args: func(c *cobra.Command, args []string) error {
			if dash := c.ArgsLenAtDash(); dash >= 0 && dash != 1 || dash < 0 && len(args) != 1 {
				return usageError(c, "name one app; the command of --mcp-stdio comes after --")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.declared(c, f, args[1:])
			if err != nil {
				return err
			}
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				made, err := client.PutApp(ctx, args[0], r)
				if err != nil {
					return err
				}
				return a.showImport(made)
			})
		},
	}
	f.flags(c.Flags())
	return c
}

func (a *app) toolsImport(l *local) *cobra.Command {
	var connection string
	c := &cobra.Command{
		Use: "import NAME", Short: "Ask an app anew what it offers", Args: exactly(1),
		Long: "A tool whose form has changed gets a further version; sessions keep the version that they name. " + asAdmin,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				made, err := client.ImportApp(ctx, args[0], connection)
				if err != nil {
					return err
				}
				return a.showImport(made)
			})
		},
	}
	c.Flags().StringVar(&connection, "connection", "", "alias of a connection of the project to ask the app with")
	return c
}

// showImport tells what an app offers: the versions that are new, where a
// program reads.
func (a *app) showImport(made sdk.ImportedApp) error {
	for _, why := range made.Skipped {
		a.note("left out %s", why)
	}
	return a.print(made, func() error {
		a.note("%s offers %s, %d of them new or changed", made.App.Name, counted(len(made.Tools), "tool"), len(made.Added))
		for _, t := range made.Added {
			if _, err := fmt.Fprintln(a.out, terminal.Line(t.Name+"@"+t.Version)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *app) toolsRemove(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Withdraw an app and its tools", Args: exactly(1),
		Long: "Calls of its tools are refused from then on. The versions keep their labels: if the app comes back, so do they. " + asAdmin,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				if err := client.RemoveApp(ctx, args[0]); err != nil {
					return err
				}
				return a.print(map[string]string{"removed": args[0]}, func() error { a.note("removed %s", args[0]); return nil })
			})
		},
	}
}

func (a *app) toolsApps(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "apps", Short: "List the apps", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				apps, err := client.Apps(ctx)
				if err != nil {
					return err
				}
				return showPage(a, workbench.List[workbench.App]{Items: apps}, apps, "", []string{"APP", "KIND", "PROVIDER", "NEEDS CONNECTION", "VERSION", "IMPORTED", "WHERE", "ERROR"}, func(p workbench.App) []string {
					return []string{p.Name, string(p.Kind), p.Provider, yesNo(p.NeedsConnection), fmt.Sprint(p.Version), a.whenever(p.ImportedAt), whereOf(p.Config), p.Error}
				})
			})
		},
	}
}

// whereOf is where an app is, in short.
func whereOf(c workbench.AppConfig) string {
	if c.Command == "" {
		return c.URL
	}
	words := []string{shellWord(c.Command)}
	for _, arg := range c.Args {
		words = append(words, shellWord(arg))
	}
	return strings.Join(words, " ")
}

func (a *app) toolsList(l *local) *cobra.Command {
	var f sdk.ToolFilter
	c := &cobra.Command{
		Use: "list [QUERY]…", Short: "List tools at their current versions, by name",
		Long: "With QUERY, those with all of these words in the name or the description.",
		RunE: func(c *cobra.Command, args []string) error {
			f.Query = strings.Join(args, " ")
			return a.withProject(c, l, func(ctx context.Context, client *client) error {
				tools, err := client.Tools(ctx, f)
				if err != nil {
					return err
				}
				return showPage(a, workbench.List[workbench.Tool]{Items: tools}, tools, "", []string{"TOOL", "VERSION", "STATE", "EFFECT", "CREATED", "DESCRIPTION"}, func(t workbench.Tool) []string {
					return []string{t.Name, t.Version, string(t.State), effect(t.Annotations), a.when(t.CreatedAt), a.inShort(t.Description)}
				})
			})
		},
	}
	c.Flags().StringVar(&f.App, "app", "", "only those of one app")
	c.Flags().BoolVar(&f.All, "all", false, "versions that are not current, too")
	return c
}

// effect says what a tool does to the world, as its source claims.
func effect(t workbench.ToolAnnotations) string {
	switch {
	case t.ReadOnly:
		return "reads"
	case t.Destructive:
		return "destroys"
	}
	return "changes"
}

// maxInShort is how many characters of a long text a table on a terminal shows.
const maxInShort = 60

// inShort is a text for a table: its beginning on a terminal, else all of it.
func (a *app) inShort(s string) string {
	if !a.outTTY {
		return s
	}
	line, _, more := strings.Cut(strings.TrimSpace(s), "\n")
	if runes := []rune(line); len(runes) > maxInShort {
		return string(runes[:maxInShort-1]) + "…"
	}
	if more {
		line += " …"
	}
	return line
}

func (a *app) toolsShow(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME[@VERSION]", Short: "Show a tool: what it takes and what it gives", Args: exactly(1),
		Long: "Without VERSION, the one that its app offers now.",
		RunE: func(c *cobra.Command, args []string) error {
			return a.withProject(c, l, func(ctx context.Context, client *client) error {
				t, err := findTool(ctx, client, args[0])
				if err != nil {
					return err
				}
				return a.print(t, func() error { return a.showTool(t) })
			})
		},
	}
}

// findTool finds app.tool@version, or app.tool as it is offered now.
func findTool(ctx context.Context, client *client, arg string) (workbench.Tool, error) {
	name, version, exact := strings.Cut(arg, "@")
	tools, err := client.Tools(ctx, sdk.ToolFilter{Name: name, All: exact})
	if err != nil {
		return workbench.Tool{}, err
	}
	for _, t := range tools {
		if !exact || t.Version == version {
			return t, nil
		}
	}
	if exact {
		return workbench.Tool{}, workbench.E(workbench.CodeToolNotFound, "there is no tool %s at that version: %s", name, arg).WithHint("workbench tools list --all shows every version")
	}
	return workbench.Tool{}, workbench.E(workbench.CodeToolNotFound, "no app offers a tool of that name: %s", name).
		WithHint("workbench tools list shows those that are offered; with --all, those that were")
}

// toolRefs finds the tools that a flag names, at their exact versions.
func toolRefs(ctx context.Context, client *client, given []string) ([]workbench.ToolRef, error) {
	refs := make([]workbench.ToolRef, 0, len(given))
	for _, arg := range given {
		name, version, exact := strings.Cut(arg, "@")
		if !exact {
			t, err := findTool(ctx, client, arg)
			if err != nil {
				return nil, err
			}
			name, version = t.Name, t.Version
		}
		refs = append(refs, workbench.ToolRef{Name: name, Version: version})
	}
	return refs, nil
}

func (a *app) showTool(t workbench.Tool) error {
	err := a.fields("tool", t.Name, "version", t.Version, "state", string(t.State), "app", t.App, "title", t.Annotations.Title, "effect", effect(t.Annotations),
		"idempotent", ifSo(t.Annotations.Idempotent), "open world", ifSo(t.Annotations.OpenWorld), "digest", t.Digest, "created", a.when(t.CreatedAt), "description", t.Description)
	if err != nil {
		return err
	}
	if err := a.value("takes", t.InputSchema); err != nil {
		return err
	}
	return a.value("gives", t.OutputSchema)
}

// value shows a JSON value below a name: indented on a terminal, else on one
// line.
func (a *app) value(name string, raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	if !a.outTTY {
		return a.fields(name, string(raw))
	}
	if _, err := fmt.Fprintf(a.out, "\n%s\n", name); err != nil {
		return err
	}
	return a.encode(a.out, raw)
}

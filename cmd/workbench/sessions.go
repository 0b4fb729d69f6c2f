package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// withClient runs f on an open client and closes it afterwards.
func (a *app) withClient(c *cobra.Command, l *local, f func(ctx context.Context, client *client) error) (err error) {
	client, err := a.connect(c.Context(), l)
	if err != nil {
		return err
	}
	defer a.closing(client, &err)
	return f(c.Context(), client)
}

// onOne is what a command on one thing does: call asks the server about the
// thing that the first argument names, show tells a person what came back.
func onOne[T any](a *app, l *local, call func(ctx context.Context, client *client, id string) (T, error), show func(T) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		return a.withClient(c, l, func(ctx context.Context, client *client) error {
			thing, err := call(ctx, client, args[0])
			if err != nil {
				return err
			}
			return a.print(thing, func() error { return show(thing) })
		})
	}
}

// showPage shows a page of a list, a row for each of its items, and says how to
// get the next one. answer is what the server sent.
func showPage[T any](a *app, answer any, items []T, next string, heading []string, row func(T) []string) error {
	a.more(next)
	return a.print(answer, func() error {
		rows := make([][]string, 0, len(items))
		for _, item := range items {
			rows = append(rows, row(item))
		}
		return a.table(heading, rows)
	})
}

// paging is how much of a list is shown.
type paging struct {
	limit  pageLimit
	cursor string
}

// pageLimit is a number of items. None, for which a server would take its
// default, is refused like every number out of range.
type pageLimit int

func (l *pageLimit) String() string { return strconv.Itoa(int(*l)) }
func (*pageLimit) Type() string     { return "int" }
func (l *pageLimit) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > workbench.MaxPageLimit {
		return fmt.Errorf("it must be between 1 and %d", workbench.MaxPageLimit)
	}
	*l = pageLimit(n)
	return nil
}

func (p *paging) flags(f *pflag.FlagSet) {
	p.limit = 50
	f.Var(&p.limit, "limit", "items to show, 1 to 200")
	f.StringVar(&p.cursor, "cursor", "", "nextCursor of the page before")
}

func (p paging) page() workbench.Page { return workbench.Page{Limit: int(p.limit), Cursor: p.cursor} }

// more says on stderr how to get the next page.
func (a *app) more(next string) {
	if next != "" && !a.json {
		a.note("there is more: --cursor %s", next)
	}
}

func (a *app) sessionCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{Use: "session", Aliases: []string{"sessions"}, Short: "Create, list, change and end sessions"})
	l.flags(c.PersistentFlags(), localData())
	c.AddCommand(a.sessionCreate(&l), a.sessionList(&l), a.sessionShow(&l), a.sessionConfigure(&l), a.sessionRestart(&l), a.sessionRollback(&l), a.sessionFork(&l),
		a.sessionClose(&l), a.sessionEvents(&l))
	return c
}

func (a *app) sessionCreate(l *local) *cobra.Command {
	var r sdk.CreateSession
	var kind string
	var labels, limits, tools []string
	var ttl time.Duration
	c := &cobra.Command{
		Use: "create", Short: "Create a session and print its id", Args: exactly(0),
		Example: "  workbench session create --agent 'Report helper' --size standard --set-limit memoryBytes=128MiB",
		RunE: func(c *cobra.Command, _ []string) (err error) {
			r.Kind = workbench.SessionKind(kind)
			if r.Labels, err = pairs("label", labels); err != nil {
				return err
			}
			if r.Limits, err = limitsOf(limits); err != nil {
				return err
			}
			if ttl != 0 {
				ms := ttl.Milliseconds()
				r.TTLMs = &ms
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				if r.Tools, err = toolRefs(ctx, client, tools); err != nil {
					return err
				}
				s, err := client.CreateAgentSession(ctx, r)
				if err != nil {
					return err
				}
				return a.print(s, func() error { return a.created(s.ID, func() error { return a.showSession(s) }) })
			})
		},
	}
	f := c.Flags()
	f.StringVar(&kind, "kind", "", "personal or business; default by the kind of key")
	f.StringVar(&r.Agent, "agent", "", "descriptive label; grants nothing")
	f.StringArrayVar(&labels, "label", nil, "label NAME=VALUE; may be repeated")
	f.StringArrayVar(&limits, "set-limit", nil, "lower a limit, as NAME=VALUE, such as memoryBytes=128MiB or timeoutMs=5000; may be repeated")
	f.StringVar(&r.Size, "size", "", "sandbox size; workbench sizes lists them")
	f.StringVar(&r.Image, "image", "", "sandbox image, by name or id")
	f.StringArrayVar(&r.KeepAtExpiry, "keep-at-expiry", nil, "glob of files to retain when the session reaches its deadline, such as 'out/**'; may be repeated")
	f.BoolVar(&r.KeepMemory, "keep-memory", false, "keep variables and processes too while the session is suspended for want of work")
	f.DurationVar(&ttl, "ttl", 0, "how long the session lives; default 24h, at most 192h")
	f.StringArrayVar(&tools, "tool", nil, "tool that its code may call, as NAME@VERSION; without a version, the one that is offered now; may be repeated")
	f.StringArrayVar(&r.Connections, "connection", nil, "alias of a connection that its code may call tools with; may be repeated")
	return c
}

// created prints a new thing: only its id where a program reads.
func (a *app) created(id string, human func() error) error {
	if a.outTTY {
		return human()
	}
	_, err := fmt.Fprintln(a.out, id)
	return err
}

func (a *app) sessionList(l *local) *cobra.Command {
	var p paging
	var state string
	var labels []string
	c := &cobra.Command{
		Use: "list", Short: "List sessions, newest first", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			want, err := pairs("label", labels)
			if err != nil {
				return err
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				list, err := client.ListAgentSessions(ctx, sdk.SessionFilter{State: workbench.SessionState(state), Labels: want}, p.page())
				if err != nil {
					return err
				}
				return showPage(a, list, list.Items, list.NextCursor, []string{"SESSION", "STATE", "SIZE", "DRIVER", "CREATED", "EXPIRES", "AGENT"}, func(s workbench.Session) []string {
					return []string{s.ID, string(s.State), s.Size, s.Driver, a.when(s.CreatedAt), a.when(s.ExpiresAt), s.Agent}
				})
			})
		},
	}
	p.flags(c.Flags())
	c.Flags().StringVar(&state, "state", "", "only active, closed or expired ones")
	c.Flags().StringArrayVar(&labels, "label", nil, "only those with the label NAME=VALUE; may be repeated")
	return c
}

func (a *app) sessionShow(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "show SESSION", Short: "Show a session", Args: exactly(1),
		RunE: onOne(a, l, func(ctx context.Context, client *client, id string) (workbench.Session, error) {
			return client.AgentSession(ctx, id)
		}, a.showSession),
	}
}

func (a *app) showSession(s workbench.Session) error {
	tools := make([]string, 0, len(s.Tools))
	for _, t := range s.Tools {
		tools = append(tools, t.Name+"@"+t.Version)
	}
	labels := make([]string, 0, len(s.Labels))
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		labels = append(labels, name+"="+s.Labels[name])
	}
	var since *time.Time
	kept := ""
	if s.Suspended != nil {
		since = &s.Suspended.At
		if s.Suspended.MemoryKept {
			kept = a.bytes(s.Suspended.Bytes)
		}
	}
	var from []string
	if f := s.ForkedFrom; f != nil {
		from = slices.DeleteFunc([]string{f.SessionID, f.RunID, f.CommitID}, func(id string) bool { return id == "" })
	}
	return a.fields("session", s.ID, "forked from", strings.Join(from, ", "), "state", string(s.State), "kind", string(s.Kind), "agent", s.Agent, "labels", strings.Join(labels, ", "),
		"tools", strings.Join(tools, ", "), "connections", strings.Join(s.Aliases, ", "),
		"size", s.Size, "memory", a.bytes(s.Limits.MemoryBytes), "workspace", a.bytes(s.Limits.WorkspaceBytes), "timeout", millis(s.Limits.TimeoutMs),
		"driver", s.Driver, "isolation", s.Isolation, "image", s.Image,
		"generation", fmt.Sprint(s.Generation), "revision", fmt.Sprint(s.Revision), "history", a.bytes(s.HistoryBytes),
		"created", a.when(s.CreatedAt), "expires", a.when(s.ExpiresAt), "ended", a.whenever(s.EndedAt),
		"kept at expiry", strings.Join(s.KeepAtExpiry, ", "), "keeps memory", ifSo(s.KeepMemory), "suspended", a.whenever(since), "memory kept", kept)
}

func ifSo(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func (a *app) sessionConfigure(l *local) *cobra.Command {
	var agent string
	var labels, limits, keep, tools, connections []string
	var expected int64
	c := &cobra.Command{
		Use: "configure SESSION", Short: "Make a new revision of a session's configuration", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			var r sdk.ConfigureSession
			if c.Flags().Changed("agent") {
				r.Agent = &agent
			}
			if c.Flags().Changed("label") {
				all, err := pairs("label", labels)
				if err != nil {
					return err
				}
				r.Labels = &all
			}
			if r.Limits, err = limitsOf(limits); err != nil {
				return err
			}
			if c.Flags().Changed("keep-at-expiry") {
				r.KeepAtExpiry = &keep
			}
			if c.Flags().Changed("connection") {
				some := withoutEmpty(connections)
				r.Connections = &some
			}
			retool := c.Flags().Changed("tool")
			if r.Agent == nil && r.Labels == nil && r.Limits == nil && r.KeepAtExpiry == nil && r.Connections == nil && !retool {
				return usageError(c, "nothing to change: give --agent, --label, --set-limit, --keep-at-expiry, --tool or --connection")
			}
			if expected != 0 {
				r.ExpectedCurrentVersion = &expected
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				if retool {
					refs, err := toolRefs(ctx, client, withoutEmpty(tools))
					if err != nil {
						return err
					}
					r.Tools = &refs
				}
				s, err := client.ConfigureAgentSession(ctx, args[0], r)
				if err != nil {
					return err
				}
				return a.print(s, func() error { return a.showSession(s) })
			})
		},
	}
	f := c.Flags()
	f.StringVar(&agent, "agent", "", "descriptive label")
	f.StringArrayVar(&labels, "label", nil, "label NAME=VALUE; replaces all labels; may be repeated")
	f.StringArrayVar(&limits, "set-limit", nil, "lower a limit, as NAME=VALUE; may be repeated")
	f.StringSliceVar(&keep, "keep-at-expiry", nil, "glob of files to retain at the deadline; replaces all globs, an empty one removes them; may be repeated")
	f.StringArrayVar(&tools, "tool", nil, "tool that its code may call, as NAME@VERSION; replaces all tools, an empty one removes them; may be repeated")
	f.StringArrayVar(&connections, "connection", nil, "alias of a connection that its code may call tools with; replaces all, an empty one removes them; may be repeated")
	f.Int64Var(&expected, "expected-revision", 0, "fail unless this is the current revision")
	return c
}

// withoutEmpty are the values of a flag of which an empty one stands for none.
func withoutEmpty(values []string) []string {
	out := []string{}
	for _, v := range values {
		if v != "" {
			out = append(out, v)
		}
	}
	return out
}

func (a *app) sessionRestart(l *local) *cobra.Command {
	var files []string
	var r sdk.RestartSession
	c := &cobra.Command{
		Use: "restart SESSION", Short: "Replace a session's compute and empty its workspace", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			for _, f := range files {
				id, path, _ := strings.Cut(f, "=")
				r.Artifacts = append(r.Artifacts, workbench.ArtifactSelect{ID: id, Path: path})
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				s, err := client.RestartAgentSession(ctx, args[0], r)
				if err != nil {
					return err
				}
				return a.print(s, func() error { return a.showSession(s) })
			})
		},
	}
	c.Flags().StringArrayVar(&files, "artifact", nil, "retained file to restore, as ID or ID=PATH; may be repeated")
	c.Flags().BoolVar(&r.CancelActive, "cancel-active", false, "cancel runs that have not ended first")
	return c
}

func (a *app) sessionClose(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "close SESSION", Short: "End a session's compute; retained files and receipts stay", Args: exactly(1),
		RunE: onOne(a, l, func(ctx context.Context, client *client, id string) (workbench.Session, error) {
			return client.CloseAgentSession(ctx, id)
		}, a.showSession),
	}
}

func (a *app) sessionEvents(l *local) *cobra.Command {
	var after int64
	c := &cobra.Command{
		Use: "events SESSION", Short: "Follow what happens to a session until its end", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			if after < 0 {
				return workbench.E(workbench.CodeInvalidRequest, "after must not be negative").WithField("after").WithHint("leave after out to begin with the first")
			}
			return a.withClient(c, l, func(ctx context.Context, client *client) error {
				for e, err := range client.SessionEvents(ctx, args[0], after) {
					if err != nil {
						return err
					}
					if err := a.eventLine(e, e.Seq, e.At, string(e.Kind), string(e.Meta)); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().Int64Var(&after, "after", 0, "only events behind this number")
	return c
}

func (a *app) sizesCommand() *cobra.Command {
	var l local
	c := &cobra.Command{
		Use: "sizes", Short: "List the sandbox sizes and what this server can hold", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withClient(c, &l, func(ctx context.Context, client *client) error {
				sizes, err := client.RuntimeTiers(ctx)
				if err != nil {
					return err
				}
				return a.print(workbench.List[workbench.Size]{Items: sizes}, func() error {
					rows := make([][]string, 0, len(sizes))
					for _, s := range sizes {
						available := "yes"
						if !s.Available {
							available = "no: " + s.Reason
						}
						rows = append(rows, []string{s.Name, strconv.FormatFloat(s.Limits.CPUs, 'g', -1, 64), a.bytes(s.Limits.MemoryBytes), a.bytes(s.Limits.WorkspaceBytes), available, s.Description})
					}
					return a.table([]string{"SIZE", "CPUS", "MEMORY", "WORKSPACE", "AVAILABLE", "FOR"}, rows)
				})
			})
		},
	}
	l.flags(c.Flags(), localData())
	return c
}

// pairs reads NAME=VALUE arguments.
func pairs(flag string, args []string) (map[string]string, error) {
	all := make(map[string]string, len(args))
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, workbench.E(workbench.CodeInvalidRequest, "--%s takes NAME=VALUE", flag).WithField(flag).WithHint("such as --%s %s", flag, map[string]string{"label": "team=sales", "set-limit": "memoryBytes=128MiB"}[flag])
		}
		all[name] = value
	}
	return all, nil
}

// limitsOf reads NAME=VALUE arguments into a request; nil for none.
func limitsOf(args []string) (*workbench.LimitsRequest, error) {
	if len(args) == 0 {
		return nil, nil
	}
	given, err := pairs("set-limit", args)
	if err != nil {
		return nil, err
	}
	numbers := make(map[string]int64, len(given))
	for name, value := range given {
		if numbers[name], err = parseBytes(value); err != nil {
			return nil, workbench.E(workbench.CodeInvalidRequest, "--set-limit %s takes a whole number, or one with KiB, MiB or GiB", name).WithField("set-limit").
				WithHint("such as --set-limit memoryBytes=128MiB")
		}
	}
	raw, err := json.Marshal(numbers)
	if err != nil {
		return nil, err
	}
	var r workbench.LimitsRequest
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, noSuchLimit(numbers)
	}
	return &r, nil
}

// noSuchLimit names the first of the names given that is no limit's.
func noSuchLimit(given map[string]int64) error {
	limits := []string{"memoryBytes", "workspaceBytes", "tasks", "timeoutMs", "maxTimeoutMs", "outputBytes", "fileBytes", "sessionFilesBytes", "sessionFiles", "toolCalls"}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if slices.Contains(limits, name) {
			continue
		}
		if near := api.Nearest(name, limits); near != "" {
			return workbench.E(workbench.CodeInvalidRequest, "--set-limit knows no limit %q", name).WithField("set-limit").WithHint("did you mean %s?", near)
		}
		return workbench.E(workbench.CodeInvalidRequest, "--set-limit knows no limit %q", name).WithField("set-limit").WithHint("limits are %s", strings.Join(limits, ", "))
	}
	return workbench.E(workbench.CodeLimitOutOfRange, "a value of --set-limit does not fit").WithField("set-limit").WithHint("give a smaller number")
}

func parseBytes(s string) (int64, error) {
	unit := int64(1)
	for suffix, n := range map[string]int64{"KiB": workbench.KiB, "MiB": workbench.MiB, "GiB": workbench.GiB} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = rest, n
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/unit {
		return 0, strconv.ErrRange
	}
	return n * unit, nil
}

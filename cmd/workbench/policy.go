package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/terminal"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

func (a *app) policyCommand() *cobra.Command {
	var l local
	c := group(&cobra.Command{
		Use: "policy", Aliases: []string{"policies"}, Short: "Check, change and ask the rules that say who may call which tool",
		Long: "Rules are named texts of Cedar policies. Without one that permits it nothing is called; one with the action requireApproval has somebody decide first (workbench approvals).\n\n" + asAdmin,
		Example: "  workbench policy check rules/*.cedar && workbench policy put rules/*.cedar\n" +
			"  workbench policy explain RECEIPT",
	})
	l.flags(c.PersistentFlags(), home())
	databaseFlag(c.PersistentFlags(), &l.options)
	c.AddCommand(a.policyCheck(&l), a.policyList(&l), a.policyShow(&l), a.policyPut(&l), a.policyRemove(&l), a.policyExplain(&l))
	return c
}

// ruleFile is a rule with the file it was read from.
type ruleFile struct {
	sdk.RuleText
	file string
}

// ruleFiles reads rules from files. Each is called as its file without .cedar,
// or, if it is the only one, by name.
func (a *app) ruleFiles(files []string, name string) ([]ruleFile, error) {
	if name != "" && len(files) != 1 {
		return nil, workbench.E(workbench.CodeInvalidRequest, "--name names one rule, and there are %d files", len(files)).WithHint("leave it out: each rule is called as its file, without .cedar")
	}
	var all []ruleFile
	for _, file := range files {
		r := ruleFile{file: file, RuleText: sdk.RuleText{Name: name}}
		if r.Name == "" {
			if file == "-" {
				return nil, workbench.E(workbench.CodeInvalidRequest, "standard input has no name").WithHint("name the rule with --name")
			}
			r.Name = strings.TrimSuffix(filepath.Base(file), ".cedar")
		}
		for _, other := range all {
			if other.Name == r.Name {
				return nil, workbench.E(workbench.CodeInvalidRequest, "%s and %s are both called %s", other.file, file, r.Name).WithHint("give each file another name: a rule is called as its file, without .cedar")
			}
		}
		var err error
		if r.Text, err = a.ruleText(file); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func (a *app) ruleText(file string) (string, error) {
	var from io.Reader = a.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", workbench.E(workbench.CodeInvalidRequest, "the rule cannot be read: %s", file).WithHint("name a file with Cedar policies, or - for standard input").Caused(err)
		}
		defer f.Close()
		from = f
	}
	raw, err := io.ReadAll(io.LimitReader(from, workbench.MaxRuleText+1))
	switch {
	case err != nil:
		return "", workbench.E(workbench.CodeInvalidRequest, "the rule cannot be read: %s", file).Caused(err)
	case len(raw) > workbench.MaxRuleText:
		return "", workbench.E(workbench.CodeBodyTooLarge, "%s is too large: a rule has at most %s", file, size(workbench.MaxRuleText)).WithHint("divide it into several files")
	}
	return string(raw), nil
}

func texts(files []ruleFile) []sdk.RuleText {
	out := make([]sdk.RuleText, len(files))
	for i, f := range files {
		out[i] = f.RuleText
	}
	return out
}

func (a *app) policyCheck(l *local) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "check FILE…", Short: "Say what is wrong with rules, and keep nothing",
		Long: "Prints a line for each problem, as FILE:LINE:COLUMN: what is wrong, and what to do below it. Exit status 2 if the rules cannot be used; warnings alone do not count.\n\n" +
			"Asks the server named by --server; where none is named, the rules are looked at in this process, which needs no data directory and no rights.",
		Args: atLeastOne("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			files, err := a.ruleFiles(args, name)
			if err != nil {
				return err
			}
			check, err := a.checked(c, l, texts(files))
			if err != nil {
				return err
			}
			err = a.print(check, func() error {
				if len(check.Problems) == 0 {
					a.note("nothing is wrong with %s", counted(len(files), "rule"))
				}
				return a.problems(a.out, files, check.Problems)
			})
			if err == nil && !check.Valid {
				return exitError(workbench.ExitUsage)
			}
			return err
		},
	}
	c.Flags().StringVar(&name, "name", "", "what the rule of a single FILE is called; default as its file, without .cedar")
	return c
}

// atLeastOne is the argument check of a command with one argument or more.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError(c, "name at least one %s: %s", what, c.UseLine())
		}
		return nil
	}
}

// checked has rules looked at: by the named server, or here.
func (a *app) checked(c *cobra.Command, l *local, rules []sdk.RuleText) (check sdk.RuleCheck, err error) {
	if a.connection.remote() {
		err = a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
			check, err = client.CheckRules(ctx, rules)
			return err
		})
		return check, err
	}
	all := make([]workbench.Rule, len(rules))
	for i, r := range rules {
		all[i] = workbench.Rule{Name: r.Name, Text: r.Text}
	}
	set, problems := policy.Compile(all)
	check = sdk.RuleCheck{Valid: set != nil, Problems: []sdk.RuleProblem{}}
	for _, p := range problems {
		check.Problems = append(check.Problems, sdk.RuleProblem{Rule: p.Rule, Policy: p.Policy, Line: p.Line, Column: p.Column, Message: p.Message, Hint: p.Hint, Warning: p.Warning})
	}
	return check, nil
}

// problems prints what is wrong with rules, as compilers do.
func (a *app) problems(w io.Writer, files []ruleFile, all []sdk.RuleProblem) error {
	for _, p := range all {
		where := p.Rule
		for _, f := range files {
			if f.Name == p.Rule {
				where = f.file
			}
		}
		if p.Line > 0 {
			where += fmt.Sprintf(":%d:%d", p.Line, p.Column)
		}
		line := p.Message
		if p.Warning {
			line = "warning: " + line
		}
		if where != "" {
			line = where + ": " + line
		}
		if _, err := fmt.Fprintln(w, terminal.Line(line)); err != nil {
			return err
		}
		if p.Hint == "" {
			continue
		}
		if _, err := fmt.Fprintln(w, "  hint: "+terminal.Line(p.Hint)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) policyList(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the project's rules", Args: exactly(0),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				set, err := client.Rules(ctx)
				if err != nil {
					return err
				}
				if !a.json {
					a.note("the rules are at version %d", set.Version)
				}
				return showPage(a, set, set.Items, "", []string{"RULE", "VERSION", "SIZE", "UPDATED", "BY KEY"}, func(r workbench.Rule) []string {
					return []string{r.Name, fmt.Sprint(r.Version), a.bytes(int64(len(r.Text))), a.when(r.UpdatedAt), r.UpdatedBy}
				})
			})
		},
	}
}

func (a *app) policyShow(l *local) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Print a rule", Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				set, err := client.Rules(ctx)
				if err != nil {
					return err
				}
				for _, r := range set.Items {
					if r.Name != args[0] {
						continue
					}
					return a.print(r, func() error {
						return a.toStdout(func(w io.Writer) error {
							_, err := io.WriteString(w, strings.TrimSuffix(r.Text, "\n")+"\n")
							return err
						})
					})
				}
				return workbench.E(workbench.CodeNotFound, "there is no rule of that name: %s", args[0]).WithHint("workbench policy list shows the rules")
			})
		},
	}
}

func (a *app) policyPut(l *local) *cobra.Command {
	var name string
	var expected int64
	c := &cobra.Command{
		Use: "put FILE…", Short: "Add rules, or replace those of the same names", Args: atLeastOne("FILE"),
		Long: "Each rule is called as its file, without .cedar. All of them are taken or none: the project's rules are looked at as a whole first. They count for every call that is made afterwards. " + asAdmin,
		RunE: func(c *cobra.Command, args []string) error {
			files, err := a.ruleFiles(args, name)
			if err != nil {
				return err
			}
			return a.changeRules(c, l, sdk.ChangeRules{Put: texts(files)}, expected, files)
		},
	}
	c.Flags().StringVar(&name, "name", "", "what the rule of a single FILE is called; default as its file, without .cedar")
	expectedVersion(c, &expected)
	return c
}

func (a *app) policyRemove(l *local) *cobra.Command {
	var expected int64
	c := &cobra.Command{
		Use: "remove NAME…", Short: "Remove rules", Args: atLeastOne("NAME"),
		Long: "All of them or none. What only they permitted is refused from then on. " + asAdmin,
		RunE: func(c *cobra.Command, args []string) error {
			return a.changeRules(c, l, sdk.ChangeRules{Remove: args}, expected, nil)
		},
	}
	expectedVersion(c, &expected)
	return c
}

func expectedVersion(c *cobra.Command, to *int64) {
	c.Flags().Int64Var(to, "expected-version", 0, "fail unless the rules are at this version")
}

func (a *app) changeRules(c *cobra.Command, l *local, r sdk.ChangeRules, expected int64, files []ruleFile) error {
	if c.Flags().Changed("expected-version") {
		r.ExpectedCurrentVersion = &expected
	}
	return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
		set, err := client.ChangeRules(ctx, r)
		if err != nil {
			return err
		}
		return a.print(set, func() error {
			a.note("the rules are at version %d now: %s", set.Version, counted(len(set.Items), "rule"))
			return a.problems(a.err, files, set.Warnings)
		})
	})
}

// explainFlags are what `workbench policy explain` is told.
type explainFlags struct {
	session, tool, connection, args string
	rules                           []string
}

func (a *app) policyExplain(l *local) *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use: "explain [RECEIPT]", Short: "Ask the rules about a call, without making it", Args: between(0, 1),
		Long: "About a call that was made, by its receipt; or about one that a session might make, with --session and --tool. With --rules, the rules in these files are asked in place of the project's. " + asAdmin,
		Example: "  workbench policy explain rcp_06h2gtscb9wff1kekzj2wj8e70 --rules rules/payments.cedar\n" +
			"  workbench policy explain --session SESSION --tool github.create_issue@2 --connection github --args '{\"repo\": \"go\"}'",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.question(c, f, optional(args, 0))
			if err != nil {
				return err
			}
			return a.withAdmin(c.Context(), l, func(ctx context.Context, client *client) error {
				if f.tool != "" {
					refs, err := toolRefs(ctx, client, []string{f.tool})
					if err != nil {
						return err
					}
					r.Tool = &refs[0]
				}
				e, err := client.ExplainCall(ctx, r)
				if err != nil {
					return err
				}
				return a.print(e, func() error {
					return a.fields("outcome", e.Outcome, "why", a.words(e.Why), "rules", strings.Join(e.Rules, ", "), "approval", strings.Join(e.Approval, ", "),
						"not evaluated", strings.Join(e.Errors, "; "), "rules version", rulesVersion(e.RulesVersion))
				})
			})
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.session, "session", "", "the session for which to ask")
	fl.StringVar(&f.tool, "tool", "", "the tool, as NAME@VERSION; without a version, the one that is offered now")
	fl.StringVar(&f.connection, "connection", "", "alias of the connection to call it with")
	fl.StringVar(&f.args, "args", "", "the arguments, a JSON object, or - for standard input; default {}")
	fl.StringArrayVar(&f.rules, "rules", nil, "file with rules to ask in place of the project's; may be repeated")
	return c
}

// rulesVersion is the version of the project's rules; those of files have none.
func rulesVersion(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func (a *app) question(c *cobra.Command, f explainFlags, receipt string) (sdk.ExplainCall, error) {
	r := sdk.ExplainCall{Receipt: receipt, Session: f.session, Connection: f.connection}
	switch one := f.session != "" || f.tool != "" || f.connection != "" || f.args != ""; {
	case receipt != "" && one:
		return r, usageError(c, "a receipt says which session, tool, connection and arguments: leave the flags for these out")
	case receipt == "" && (f.session == "" || f.tool == ""):
		return r, usageError(c, "name a receipt, or a session and a tool with --session and --tool")
	}
	if f.args != "" {
		raw := []byte(f.args)
		if f.args == "-" {
			var err error
			if raw, err = io.ReadAll(io.LimitReader(a.in, workbench.MaxToolArguments+1)); err != nil {
				return r, workbench.E(workbench.CodeInvalidRequest, "--args: standard input cannot be read").Caused(err)
			}
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil || object == nil {
			return r, workbench.E(workbench.CodeInvalidRequest, "--args must be a JSON object of at most %s", size(workbench.MaxToolArguments)).WithHint(`such as --args '{"query": "1234"}'`)
		}
		r.Arguments = raw
	}
	if len(f.rules) > 0 {
		files, err := a.ruleFiles(f.rules, "")
		if err != nil {
			return r, err
		}
		rules := texts(files)
		r.Rules = &rules
	}
	return r, nil
}

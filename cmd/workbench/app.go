package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/terminal"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// app is one invocation: its streams and the settings every command shares.
type app struct {
	in       *os.File
	out, err io.Writer
	outTTY   bool
	errTTY   bool

	connection connection
	json       bool
	command    *cobra.Command // that runs; nil before
}

func newApp(in, out, errOut *os.File) *app {
	a := &app{
		in: in, out: out, err: errOut,
		outTTY: term.IsTerminal(int(out.Fd())), errTTY: term.IsTerminal(int(errOut.Fd())),
	}
	a.shareScreen()
	return a
}

// shareScreen lets the streams that are terminals know of each other.
func (a *app) shareScreen() {
	var s screen
	if a.outTTY {
		a.out = onScreen{s: &s, to: a.out}
	}
	if a.errTTY {
		a.err = onScreen{s: &s, to: a.err}
	}
}

// run executes one command line and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.err)
	return a.report(root.ExecuteContextC(ctx))
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "workbench",
		Short: "Run code for an agent, or for yourself, in a sandbox",
		Long: "Workbench runs Python, JavaScript, TypeScript and Bash in sandboxes, keeps the files they save, and serves a REST API that does the same.\n\n" +
			"Commands speak to the server named by --server or WORKBENCH_SERVER. Where none is named they start an engine of their own in this process.",
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	group(root)
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		a.command = c
		return a.fitsCommand(c)
	}
	a.connection.flags(root.PersistentFlags())
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON")
	root.AddCommand(a.serveCommand(), a.runCommand(), a.sessionCommand(), a.artifactCommand(), a.runsCommand(), a.contextsCommand(), a.filesCommand(), a.commitsCommand(), a.seriesCommand(), a.replayCommand(), a.publishCommand(), a.usageCommand(), a.sizesCommand(),
		a.toolsCommand(), a.connectionCommand(), a.policyCommand(), a.approvalsCommand(), a.approveCommand(), a.denyCommand(), a.receiptsCommand(),
		a.keyCommand(), a.auditCommand(), a.imageCommand(), a.doctorCommand(), a.verifyCommand(), a.versionCommand())
	return root
}

// group makes c a command that only holds others.
func group(c *cobra.Command) *cobra.Command {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			err := workbench.E(workbench.CodeInvalidRequest, "there is no command %q", c.CommandPath()+" "+terminal.Line(args[0])).WithHint("%s --help", c.CommandPath())
			c.SuggestionsMinimumDistance = 2
			if near := c.SuggestionsFor(args[0]); len(near) > 0 {
				err = err.WithHint("did you mean %q?", c.CommandPath()+" "+near[0])
			}
			return err
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// exactly is the argument check of a command with n arguments.
func exactly(n int) cobra.PositionalArgs { return between(n, n) }

func between(low, high int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < low || len(args) > high {
			return usageError(c, "it is used as: %s", c.UseLine())
		}
		return nil
	}
}

// usageError is a command line that cannot be understood.
func usageError(c *cobra.Command, format string, args ...any) error {
	return workbench.E(workbench.CodeInvalidRequest, format, args...).WithHint("%s --help", c.CommandPath())
}

// flagError is a flag that cannot be read.
func flagError(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.GetFlag().Value.Type() == "duration" {
		name, value := invalid.GetFlag().Name, invalid.GetValue()
		told := workbench.E(workbench.CodeInvalidRequest, "--%s takes a duration with its unit, such as 30s", name)
		if d, err := time.ParseDuration(value + "s"); err == nil && d > 0 {
			return told.WithHint("did you mean --%s %ss?", name, value)
		}
		return told.WithHint("units are ms, s, m and h, as in 1m30s")
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		if near := api.Nearest(unknown.GetSpecifiedName(), flagNames(c)); near != "" {
			return workbench.E(workbench.CodeInvalidRequest, "%v", err).WithHint("did you mean --%s?", near)
		}
	}
	return usageError(c, "%v", err)
}

// flagNames are the flags that c takes.
func flagNames(c *cobra.Command) []string {
	var all []string
	add := func(f *pflag.Flag) {
		if !f.Hidden {
			all = append(all, f.Name)
		}
	}
	c.Flags().VisitAll(add)
	c.InheritedFlags().VisitAll(add)
	return all
}

// hereOnly are the commands that never speak to a server.
var hereOnly = []string{"serve", "image", "doctor", "verify", "version"}

// fitsCommand refuses flags that say which server to speak to and as whom where
// a command speaks to none. In the environment they are for other commands.
func (a *app) fitsCommand(c *cobra.Command) error {
	top := c
	for top.HasParent() && top.Parent().HasParent() {
		top = top.Parent()
	}
	if !slices.Contains(hereOnly, top.Name()) {
		return nil
	}
	for _, name := range []string{"server", "key-file", "tenant", "end-user", "group"} {
		if a.connection.set.Changed(name) {
			return workbench.E(workbench.CodeInvalidRequest, "--%s is for commands that speak to a server, and %s does not", name, top.CommandPath()).WithHint("leave --%s out", name)
		}
	}
	return nil
}

// exitError ends the process with a status and without a message: what there
// is to say has been said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// report tells the person what went wrong, in the words of the command c, and
// returns the exit status.
func (a *app) report(c *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	var exit exitError
	if errors.As(err, &exit) {
		return int(exit)
	}
	var coded *workbench.Error
	if !errors.As(err, &coded) {
		if errors.Is(err, syscall.EPIPE) {
			a.note("whoever read the output has gone; what was left of it is not shown")
			return workbench.ExitFailure
		}
		tell(a.err, "workbench: "+terminal.Line(err.Error())+"\n")
		return workbench.ExitFailure
	}
	coded = translate(c, coded)
	var answer *sdk.Error
	requestID := ""
	if errors.As(err, &answer) {
		requestID = answer.RequestID
	}
	if a.json {
		class := workbench.ClassOf(coded.Code)
		_ = a.encode(a.err, map[string]any{"error": map[string]any{
			"code": coded.Code, "detail": coded.Detail, "hint": coded.Hint, "field": coded.Field, "requestId": requestID, "retryable": class.Retryable, "exit": class.Exit,
		}})
		return class.Exit
	}
	tell(a.err, "workbench: "+terminal.Line(coded.Detail)+"\n")
	if cause := localCause(coded, answer); cause != "" {
		fmt.Fprintf(a.err, "  because: %s\n", terminal.Line(cause))
	}
	if coded.Hint != "" {
		fmt.Fprintf(a.err, "hint: %s\n", terminal.Line(coded.Hint))
	}
	tag := string(coded.Code)
	if requestID != "" {
		tag += ", request " + requestID
	}
	fmt.Fprintf(a.err, "(%s)\n", terminal.Line(tag))
	return workbench.ClassOf(coded.Code).Exit
}

// localCause is the private cause of an error that arose in this process,
// where the person at the terminal is the operator.
func localCause(e *workbench.Error, answer *sdk.Error) string {
	if answer != nil || e.Unwrap() == nil {
		return ""
	}
	return strings.ReplaceAll(strings.TrimSpace(e.Unwrap().Error()), "\n", "; ") // one cause a line, where there are several
}

// encode prints v as indented JSON that no terminal acts on.
func (a *app) encode(w io.Writer, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(terminal.JSON(raw), '\n'))
	return err
}

// print shows v as JSON where that was asked for, else as human says.
func (a *app) print(v any, human func() error) error {
	if a.json {
		return a.encode(a.out, v)
	}
	return human()
}

// note tells the person something that is not the command's result.
func (a *app) note(format string, args ...any) {
	tell(a.err, "workbench: "+terminal.Line(fmt.Sprintf(format, args...))+"\n")
}

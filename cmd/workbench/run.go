package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// runFlags are what `workbench run` is told.
type runFlags struct {
	files    []string
	out      string
	language string
	size     string
	image    string
	timeout  time.Duration
	timed    bool // --timeout was given: 0 is refused, not taken for the default
	env      []string
	stdin    string
	keep     []string
	session  string
	aside    bool
	context  string
	onLost   string
	quiet    bool
	series   string
	scratch  bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	l := local{shared: true}
	c := &cobra.Command{
		Use:   "run FILE [flags] [-- ARGUMENTS…]",
		Short: "Run a program in a sandbox",
		Long: "Runs FILE (or, for -, what comes from standard input) in a fresh sandbox, or in the session named by --session. What it prints comes out here as it is printed.\n\n" +
			"The program's own exit code is passed on. Where it did not come to an end of its own, the exit code says why: see the table in docs/cli.md.",
		Example: "  workbench run report.py --file data.csv --out results/\n  workbench run --language bash - <<< 'ls -l'\n  workbench run job.py -- --month may",
		Args: func(c *cobra.Command, args []string) error {
			if dash := c.ArgsLenAtDash(); dash >= 0 && dash != 1 || dash < 0 && len(args) != 1 {
				return usageError(c, "name one file to run; arguments for it come after --")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			f.timed = c.Flags().Changed("timeout")
			return a.runProgram(c.Context(), &l, f, args[0], args[1:])
		},
	}
	fl := c.Flags()
	fl.StringArrayVar(&f.files, "file", nil, "file or directory to put into the workspace, as FILE or FILE=PATH; may be repeated")
	fl.StringVar(&f.out, "out", "", "directory for the files the program saved or changed")
	fl.StringVar(&f.language, "language", "", "python, javascript, typescript or bash; default by the file's name; without one that of --context")
	fl.StringVar(&f.size, "size", "", "sandbox size: standard, medium or large")
	fl.StringVar(&f.image, "image", "", "sandbox image, by name or id")
	fl.DurationVar(&f.timeout, "timeout", 0, "longest time the program may run, such as 30s; default 30s, at most 3m; with --background default and at most 60m")
	fl.StringArrayVar(&f.env, "env", nil, "environment variable NAME=VALUE, or NAME to pass on this process's; may be repeated")
	fl.StringVar(&f.stdin, "stdin", "", "file for the program's standard input, - for this process's")
	fl.StringArrayVar(&f.keep, "keep", nil, "glob of files to retain after the run, such as '*.csv'; may be repeated")
	fl.StringVar(&f.session, "session", "", "session to run in; it stays open")
	fl.StringVar(&f.context, "context", "", "context of that session to run in, as a cell: variables stay for the next one; default is one that needs no creating")
	fl.StringVar(&f.onLost, "on-lost", "", "with --context: what to do when its variables are gone and nobody was told, fail or restart; default fail")
	fl.BoolVar(&f.aside, "background", false, "in the session named by --session: print the run's id and return; it may take up to 60 minutes")
	fl.StringVar(&f.series, "series", "", "series whose next version the run becomes, if it succeeds; without it a new one")
	fl.BoolVar(&f.scratch, "scratch", false, "the run becomes no version")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no summary")
	l.flags(fl, localData())
	return c
}

// languageByName is the language a file's name ends on.
var languageByName = map[string]workbench.Language{
	".py": workbench.Python, ".js": workbench.JavaScript, ".mjs": workbench.JavaScript, ".ts": workbench.TypeScript, ".mts": workbench.TypeScript,
	".sh": workbench.Bash, ".bash": workbench.Bash,
}

func (f runFlags) languageOf(file string) (workbench.Language, error) {
	if f.language != "" {
		return workbench.Language(f.language), nil
	}
	if l, ok := languageByName[strings.ToLower(filepath.Ext(file))]; ok || f.context != "" {
		return l, nil
	}
	return "", workbench.E(workbench.CodeInvalidRequest, "the file's name does not tell its language").WithField("language").
		WithHint("name it with --language python, javascript, typescript or bash")
}

// submission reads everything the run is made of, before anything is started.
func (a *app) submission(f runFlags, file string, args []string) (sdk.CreateRun, error) {
	r := sdk.CreateRun{Args: args, Keep: f.keep, IdempotencyKey: "cli-" + rand.Text(), ContextID: f.context, OnLostContext: workbench.LostContextPolicy(f.onLost)}
	if file == "-" && f.stdin == "-" {
		return r, workbench.E(workbench.CodeInvalidRequest, "the program and its input cannot both come from standard input")
	}
	var err error
	if r.Language, err = f.languageOf(file); err != nil {
		return r, err
	}
	if r.Code, err = a.readText(file, "the program", "FILE"); err != nil {
		return r, err
	}
	if strings.TrimSpace(r.Code) == "" {
		what := file
		if file == "-" {
			what = "the program on standard input"
		}
		return r, workbench.E(workbench.CodeInvalidRequest, "%s is empty", what).WithHint("give a program to run; a comment is one")
	}
	if f.stdin != "" {
		if r.Stdin, err = a.readText(f.stdin, "the program's input", "--stdin"); err != nil {
			return r, err
		}
	}
	r.Background = f.aside
	if f.series != "" {
		r.ReusableRun = &workbench.ReuseRequest{SeriesID: f.series}
	}
	if f.scratch {
		r.ReusableRun = &workbench.ReuseRequest{Mode: workbench.ReuseOff, SeriesID: f.series}
	}
	if f.timed {
		ms := f.timeout.Milliseconds()
		r.TimeoutMs = &ms
	}
	if r.Env, err = environment(f.env); err != nil {
		return r, err
	}
	return r, fits(r)
}

// environment reads what --env says: NAME=VALUE, or the NAME of a variable of
// this process.
func environment(given []string) (map[string]string, error) {
	env := map[string]string{}
	for _, pair := range given {
		name, value, given := strings.Cut(pair, "=")
		if !given {
			value, given = os.LookupEnv(name)
		}
		switch {
		case name == "":
			return nil, workbench.E(workbench.CodeInvalidRequest, "--env takes NAME=VALUE, or the NAME of a variable that is set").WithField("env")
		case !given:
			return nil, workbench.E(workbench.CodeInvalidRequest, "--env %s: no variable of that name is set", name).WithField("env").
				WithHint("set and export it, or give its value: --env %s=VALUE", name)
		}
		env[name] = value
	}
	return env, nil
}

// fits refuses a submission that is larger than a server takes once it is
// written as JSON, where a NUL and some other characters take six bytes.
func fits(r sdk.CreateRun) error {
	raw, err := json.Marshal(r)
	if err == nil && len(raw) > api.MaxJSONBody {
		err = workbench.E(workbench.CodeBodyTooLarge, "the program and its input take %s to send, and a server takes at most %s: a NUL and some other characters take six bytes each", size(int64(len(raw))), size(api.MaxJSONBody)).
			WithHint("give the input with --file instead of --stdin, and open it in the program")
	}
	return err
}

// maxText bounds a program and its input, each: the most that a server takes.
const maxText = 1 << 20

// readText reads a program or its input. argument is what names the file on
// the command line.
func (a *app) readText(file, what, argument string) (string, error) {
	asFile := "give it with --file and "
	if argument == "FILE" {
		asFile += "run a short program that starts it"
	} else {
		asFile += "open it in the program"
	}
	var from io.Reader = a.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", workbench.E(workbench.CodeInvalidRequest, "%s cannot be read: %s", what, file).Caused(err)
		}
		defer f.Close()
		from = f
	}
	raw, err := io.ReadAll(io.LimitReader(from, maxText+1))
	switch {
	case err != nil:
		return "", workbench.E(workbench.CodeInvalidRequest, "%s cannot be read: %s", what, file).Caused(err)
	case len(raw) > maxText:
		return "", workbench.E(workbench.CodeBodyTooLarge, "%s is too large for %s: it takes at most %s", what, argument, size(maxText)).WithHint("%s", asFile)
	case !utf8.Valid(raw):
		return "", workbench.E(workbench.CodeInvalidRequest, "%s is binary, and %s takes text in UTF-8", what, argument).WithHint("%s", asFile)
	}
	return string(raw), nil
}

// goTogether refuses flags that exclude each other.
func (f runFlags) goTogether() error {
	if f.session != "" && (f.size != "" || f.image != "") {
		return workbench.E(workbench.CodeInvalidRequest, "--size and --image belong to a new session, and --session names one that is there").
			WithHint("leave --session out, or them")
	}
	if f.session == "" && f.context != "" {
		return workbench.E(workbench.CodeInvalidRequest, "--context names a context of a session, and --session names none").WithField("sessionId").
			WithHint("workbench session create makes a session: name it with --session")
	}
	if f.aside && (f.session == "" || f.out != "") {
		return workbench.E(workbench.CodeInvalidRequest, "--background runs in a session that goes on, and does not wait for files").WithField("background").
			WithHint("name the session with --session, and fetch the files later: workbench runs files RUN --out DIR")
	}
	return nil
}

// runProgram is `workbench run`.
func (a *app) runProgram(ctx context.Context, l *local, f runFlags, file string, args []string) (err error) {
	if err := f.goTogether(); err != nil {
		return err
	}
	submission, err := a.submission(f, file, args)
	if err != nil {
		return err
	}
	inputs, err := a.inputs(f.files)
	if err != nil {
		return err
	}
	dir, err := openOut(f.out)
	if err != nil {
		return err
	}
	if dir != nil {
		defer func() { a.also(dir.Close(), &err) }()
	}
	client, err := a.connect(ctx, l)
	if err != nil {
		return err
	}
	defer a.closing(client, &err)
	if f.aside && client.image != nil {
		return workbench.E(workbench.CodeInvalidRequest, "a background run needs a server that outlives this command").WithField("background").
			WithHint("start one with workbench serve, and name it with --server")
	}
	session := f.session
	if session == "" && f.image == "" && client.image != nil {
		if err := client.image(ctx); err != nil {
			return err
		}
	}
	if session == "" {
		ttl := time.Hour.Milliseconds()
		s, err := client.CreateAgentSession(ctx, sdk.CreateSession{Agent: "workbench run", Size: f.size, Image: f.image, TTLMs: &ttl})
		if err != nil {
			return err
		}
		session = s.ID
		defer a.closeSession(client, session, &err)
	}
	if submission.Artifacts, err = uploadAll(ctx, client, session, inputs); err != nil {
		return err
	}
	run, err := client.CreateSessionRun(ctx, session, submission)
	if err != nil {
		return err
	}
	if run.Status == workbench.StatusAwaitingApproval {
		a.note("%s waits for an approval: workbench approve %s%s, with a key that may", run.ID, run.ID, client.again)
	}
	if f.aside {
		return a.leaveAside(run, client.again)
	}
	receipt, unshown, err := a.follow(ctx, client, run.ID)
	if err != nil {
		return err
	}
	defer func() { a.also(unshown, &err) }() // the run and its files come first
	// From here on the run has ended; a person who interrupted it still gets
	// its files.
	ctx = context.WithoutCancel(ctx)
	saved, err := a.collect(ctx, client, receipt, dir)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.encode(a.out, receipt); err != nil {
			return err
		}
	} else if f.quiet {
		a.withheld(receipt)
		a.cut(workbench.Stdout, receipt.Outputs.Stdout, client.again) // what is missing is said all the same
		a.cut(workbench.Stderr, receipt.Outputs.Stderr, client.again)
	} else {
		a.summary(receipt, saved, f.out, client.again)
		a.callsOf(ctx, client, receipt.Run)
	}
	if status := exitOf(receipt.Run); status != 0 {
		return exitError(status)
	}
	return nil
}

// leaveAside prints a background run, which nobody waits for.
func (a *app) leaveAside(run sdk.Submitted, again string) error {
	a.note("follow it: workbench runs events %s%s", run.ID, again)
	return a.print(run, func() error {
		_, err := fmt.Fprintln(a.out, run.ID)
		return err
	})
}

// closeSession ends a session that this command made, whatever happened.
func (a *app) closeSession(client *client, id string, err *error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, closeErr := client.CloseAgentSession(ctx, id)
	a.also(closeErr, err)
}

// exitOf is the exit status for a run's end: the program's own code where it
// came to an end of its own, else the documented one.
func exitOf(r workbench.Run) int {
	own := r.ExitCode != nil && *r.ExitCode > 0 && *r.ExitCode < 256 && r.Signal == ""
	switch {
	case r.Status == workbench.StatusSucceeded:
		return 0
	case r.Status == workbench.StatusUnknown:
		return workbench.ExitRunUnknown
	case r.Status == workbench.StatusFailed && r.Reason == workbench.ReasonInfrastructure:
		return workbench.ExitUnavailable
	case r.Status == workbench.StatusFailed && own:
		return *r.ExitCode
	}
	return workbench.ExitRunFailed
}

// withheld says of a run whose output is not shown why that is so.
func (a *app) withheld(r workbench.Receipt) {
	if r.Withheld != nil {
		a.note("what it printed is withheld: %s", a.callError(r.Withheld))
	}
}

// summary says on stderr how the run ended and where its files are.
// again is what makes a later command speak to the same server.
func (a *app) summary(r workbench.Receipt, saved []savedFile, out, again string) {
	a.note("%s", a.words(ending(r.Run)))
	a.withheld(r)
	if len(r.LimitsHit) > 0 {
		a.note("limits met: %s", strings.Join(r.LimitsHit, ", "))
	}
	for _, n := range r.Notices {
		a.note("%s: %s", n.Code, a.words(n.Detail))
	}
	a.cut(workbench.Stdout, r.Outputs.Stdout, again)
	a.cut(workbench.Stderr, r.Outputs.Stderr, again)
	for _, s := range saved {
		a.note("%s", s.line())
	}
	if n, types := unprinted(r.Results); out == "" && n > 0 {
		a.note("the run showed %s (%s): workbench runs files %s --out DIR%s brings %s here", counted(n, "result"), strings.Join(types, ", "), r.ID, again, themOrIt(n))
	}
	if shared := sharedChanges(r.Run); shared != "" {
		a.note("what changed in the workspace is shared: %s", shared)
	}
	if n := toFetch(r); out == "" && n > 0 {
		a.note("the run changed %s: workbench runs files %s --out DIR%s brings %s here", counted(n, "file"), r.ID, again, themOrIt(n))
	}
}

// callsOf says which of a run's tool calls have not succeeded: the program may
// not have looked.
func (a *app) callsOf(ctx context.Context, client *client, r workbench.Run) {
	if r.ToolCalls == 0 {
		return
	}
	list, err := client.ToolReceipts(ctx, sdk.ReceiptFilter{RunID: r.ID}, workbench.Page{Limit: 100})
	if err != nil {
		a.note("its tool calls cannot be read: %v", err)
		return
	}
	for _, call := range slices.Backward(list.Items) { // the first first
		switch {
		case call.Status == workbench.CallSucceeded:
		case call.Error != nil:
			a.note("call      %s %s: %s", call.Tool, call.Status, a.callError(call.Error))
		default:
			a.note("call      %s %s  %s", call.Tool, call.Status, call.ID)
		}
	}
}

// toFetch is how many files of a run can be had: not what it removed, and not
// the directories, as far as the receipt lists what was changed.
func toFetch(r workbench.Receipt) int {
	n := r.Files.Total
	for _, f := range r.Files.Items {
		if f.Change == workbench.ChangeRemoved || f.Type != "file" {
			n--
		}
	}
	return n
}

// ending is one line about how a run ended.
func ending(r workbench.Run) string {
	if r.Status == workbench.StatusSucceeded {
		return r.ID + " succeeded in " + took(r)
	}
	line := fmt.Sprintf("%s %s", r.ID, r.Status)
	if r.Reason != "" {
		line += " (" + string(r.Reason) + ")"
	}
	switch after := took(r); {
	case r.StartedAt == nil:
		line += " before it started"
	case after != "":
		line += " after " + after
	}
	if r.Message != "" {
		line += ": " + r.Message
	}
	return line
}

// cut says what of a stream was not captured.
func (a *app) cut(stream workbench.Stream, info workbench.StreamInfo, again string) {
	if !info.Truncated {
		return
	}
	rest := "the rest was only counted"
	if info.FileID != "" {
		rest = "the rest is in " + info.FileID
		if info.FileTruncated {
			rest = "a part of the rest is in " + info.FileID
		}
		rest += ": workbench artifact download " + info.FileID + again
	}
	a.note("%s shows %s of %s; %s", stream, size(info.CapturedBytes), size(info.TotalBytes), rest)
}

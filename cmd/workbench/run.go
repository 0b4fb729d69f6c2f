package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	quiet    bool
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
	fl.StringArrayVar(&f.files, "file", nil, "file to put into the workspace, as FILE or FILE=PATH; may be repeated")
	fl.StringVar(&f.out, "out", "", "directory for the files the program saved or changed")
	fl.StringVar(&f.language, "language", "", "python, javascript, typescript or bash; default by the file's name")
	fl.StringVar(&f.size, "size", "", "sandbox size: standard, medium or large")
	fl.StringVar(&f.image, "image", "", "sandbox image, by name or id")
	fl.DurationVar(&f.timeout, "timeout", 0, "longest time the program may run, such as 30s; default 30s, at most 3m")
	fl.StringArrayVar(&f.env, "env", nil, "environment variable NAME=VALUE, or NAME to pass on this process's; may be repeated")
	fl.StringVar(&f.stdin, "stdin", "", "file for the program's standard input, - for this process's")
	fl.StringArrayVar(&f.keep, "keep", nil, "glob of files to retain after the run, such as '*.csv'; may be repeated")
	fl.StringVar(&f.session, "session", "", "session to run in; it stays open")
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
	if l, ok := languageByName[strings.ToLower(filepath.Ext(file))]; ok {
		return l, nil
	}
	return "", workbench.E(workbench.CodeInvalidRequest, "the file's name does not tell its language").WithField("language").
		WithHint("name it with --language python, javascript, typescript or bash")
}

// submission reads everything the run is made of, before anything is started.
func (a *app) submission(f runFlags, file string, args []string) (sdk.CreateRun, error) {
	r := sdk.CreateRun{Args: args, Keep: f.keep, IdempotencyKey: "cli-" + rand.Text()}
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
	if f.stdin != "" {
		if r.Stdin, err = a.readText(f.stdin, "the program's input", "--stdin"); err != nil {
			return r, err
		}
	}
	if f.timed {
		ms := f.timeout.Milliseconds()
		r.TimeoutMs = &ms
	}
	r.Env = map[string]string{}
	for _, pair := range f.env {
		name, value, given := strings.Cut(pair, "=")
		if !given {
			value, given = os.LookupEnv(name)
		}
		if name == "" || !given {
			return r, workbench.E(workbench.CodeInvalidRequest, "--env takes NAME=VALUE, or the NAME of a variable that is set").WithField("env")
		}
		r.Env[name] = value
	}
	return r, fits(r)
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

// input is a local file for the workspace.
type input struct {
	arg        string // as it was given
	file, path string
}

func (f runFlags) inputs() ([]input, error) {
	var all []input
	for _, arg := range f.files {
		in := input{arg: arg, file: arg, path: filepath.Base(arg)}
		if _, err := os.Stat(arg); err != nil {
			if i := strings.LastIndex(arg, "="); i > 0 {
				in = input{arg: arg, file: arg[:i], path: arg[i+1:]}
			}
		}
		opened, _, err := openInput(in.file) // before anything is sent
		if err != nil {
			return nil, err
		}
		_ = opened.Close() // nothing was read
		if in.path, err = workbench.CleanPath("file", in.path); err != nil {
			return nil, err
		}
		for _, other := range all {
			if other.path == in.path {
				return nil, workbench.E(workbench.CodePathConflict, "--file %s and --file %s would be at the same path: %s", other.arg, arg, in.path).WithField("file").
					WithHint("give one of them another path: --file %s=PATH", in.file)
			}
		}
		all = append(all, in)
	}
	return all, nil
}

// openInput opens a local file that is to be uploaded, and tells its length. It
// waits for nobody: a FIFO is refused, not read.
func openInput(name string) (*os.File, int64, error) {
	st, err := os.Stat(name)
	if err == nil && !st.Mode().IsRegular() {
		return nil, 0, workbench.E(workbench.CodeInvalidRequest, "not a regular file: %s", name).WithField("file").WithHint("name files one by one, or pack them")
	}
	var f *os.File
	if err == nil {
		if f, err = os.Open(name); err == nil {
			return f, st.Size(), nil
		}
	}
	return nil, 0, workbench.E(workbench.CodeInvalidRequest, "the file cannot be read: %s", name).WithField("file").WithHint("check its name and its permissions").Caused(err)
}

// runProgram is `workbench run`.
func (a *app) runProgram(ctx context.Context, l *local, f runFlags, file string, args []string) (err error) {
	if f.session != "" && (f.size != "" || f.image != "") {
		return workbench.E(workbench.CodeInvalidRequest, "--size and --image belong to a new session, and --session names one that is there").
			WithHint("leave --session out, or them")
	}
	submission, err := a.submission(f, file, args)
	if err != nil {
		return err
	}
	inputs, err := f.inputs()
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
	session := f.session
	if session == "" {
		ttl := time.Hour.Milliseconds()
		s, err := client.CreateAgentSession(ctx, sdk.CreateSession{Agent: "workbench run", Size: f.size, Image: f.image, TTLMs: &ttl})
		if err != nil {
			return err
		}
		session = s.ID
		defer a.closeSession(client, session, &err)
	}
	for _, in := range inputs {
		kept, err := upload(ctx, client, session, in)
		if err != nil {
			return err
		}
		submission.Artifacts = append(submission.Artifacts, workbench.ArtifactSelect{ID: kept.ID, Path: in.path})
	}
	run, err := client.CreateSessionRun(ctx, session, submission)
	if err != nil {
		return err
	}
	receipt, err := a.follow(ctx, client, run.ID)
	if err != nil {
		return err
	}
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
		a.cut("stdout", receipt.Outputs.Stdout) // what is missing is said all the same
		a.cut("stderr", receipt.Outputs.Stderr)
	} else {
		a.summary(receipt, saved, f.out)
	}
	if status := exitOf(receipt.Run); status != 0 {
		return exitError(status)
	}
	return nil
}

// closeSession ends a session that this command made, whatever happened.
func (a *app) closeSession(client *client, id string, err *error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, closeErr := client.CloseAgentSession(ctx, id)
	a.also(closeErr, err)
}

func upload(ctx context.Context, client *client, session string, in input) (workbench.Artifact, error) {
	f, length, err := openInput(in.file)
	if err != nil {
		return workbench.Artifact{}, err
	}
	defer f.Close()
	return client.UploadSessionArtifact(ctx, session, sdk.Upload{Name: filepath.Base(in.path), Path: in.path, Size: length}, f)
}

// follow prints a run's output as it comes and returns its receipt. If ctx
// ends, or the output cannot be printed, the run is cancelled and its end is
// waited for.
func (a *app) follow(ctx context.Context, client *client, runID string) (workbench.Receipt, error) {
	over := context.WithoutCancel(ctx)
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		a.note("cancelling the run; press Ctrl-C again to leave at once")
		a.cancelRun(over, client, runID)
	})
	var err error
	if !a.json {
		p := a.printer()
		err = errors.Join(p.events(client.Events(over, runID, 0)), p.close())
		switch {
		case workbench.HasCode(err, workbench.CodeUnavailable): // its patience is over
			if !stop() {
				<-cancelled
			}
			return workbench.Receipt{}, gaveUp(err, runID)
		case err != nil:
			a.cancelRun(over, client, runID)
		}
	}
	receipt, waitErr := client.WaitForSessionRun(over, runID)
	if !stop() {
		<-cancelled
	}
	return receipt, gaveUp(errors.Join(err, waitErr), runID)
}

// gaveUp adds to the error of a server that stays away how to get at the run
// later.
func gaveUp(err error, runID string) error {
	if !workbench.HasCode(err, workbench.CodeUnavailable) {
		return err
	}
	return workbench.AsError(err).WithHint("the run goes on without this command, or is settled when the server starts again: workbench runs show %s --wait", runID)
}

func (a *app) cancelRun(ctx context.Context, client *client, runID string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := client.CancelRun(ctx, runID); err != nil {
		a.note("the run could not be cancelled: %v", err)
	}
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

// summary says on stderr how the run ended and where its files are.
func (a *app) summary(r workbench.Receipt, saved []savedFile, out string) {
	a.note("%s", ending(r.Run))
	if len(r.LimitsHit) > 0 {
		a.note("limits met: %s", strings.Join(r.LimitsHit, ", "))
	}
	for _, n := range r.Notices {
		a.note("%s: %s", n.Code, n.Detail)
	}
	a.cut("stdout", r.Outputs.Stdout)
	a.cut("stderr", r.Outputs.Stderr)
	for _, s := range saved {
		a.note("%s", s.line())
	}
	if out == "" && r.Files.Total > 0 {
		a.note("the run changed %s; --out DIR brings %s here", counted(r.Files.Total, "file"), themOrIt(r.Files.Total))
	}
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
func (a *app) cut(stream string, info workbench.StreamInfo) {
	if !info.Truncated {
		return
	}
	rest := "the rest was only counted"
	if info.FileID != "" {
		rest = "the rest is in " + info.FileID
		if info.FileTruncated {
			rest = "a part of the rest is in " + info.FileID
		}
	}
	a.note("%s shows %s of %s; %s", stream, size(info.CapturedBytes), size(info.TotalBytes), rest)
}

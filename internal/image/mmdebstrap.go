package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/workbenchdev/workbench"
)

// sourceEpoch is the newest time any file of a built root has (SOURCE_DATE_EPOCH,
// see reproducible-builds.org), so that times say nothing about the build.
const sourceEpoch = "1767225600" // 2026-01-01

// buildRoot runs mmdebstrap for the recipe and gives consume the root as a tar
// stream. work is a folder for its files. mmdebstrap makes the root in a mount
// namespace of its own and leaves nothing behind.
func buildRoot(ctx context.Context, r Recipe, work string, progress ProgressFunc, consume func(io.Reader) error) error {
	tool, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return workbench.E(workbench.CodeUnavailable, "mmdebstrap, which builds images, is not installed").
			WithHint("on Debian or Ubuntu: apt-get install mmdebstrap; elsewhere import a root archive: workbench image import PATH NAME")
	}
	if os.Geteuid() != 0 {
		return workbench.E(workbench.CodeUnavailable, "building an image needs root").
			WithHint("run workbench image build as root")
	}
	args, sources, err := mmdebstrapArguments(ctx, r, work)
	if err != nil {
		return diskError("prepare the build", err)
	}
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Stdin = strings.NewReader(sources)
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LC_ALL=C.UTF-8", "TMPDIR=" + work, "SOURCE_DATE_EPOCH=" + sourceEpoch,
		"DEBIAN_FRONTEND=noninteractive", "PYTHONHASHSEED=0",
	}
	// The whole family ends with the context, and the parent with this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return runBuilder(ctx, cmd, progress, consume)
}

func mmdebstrapArguments(ctx context.Context, r Recipe, work string) (args []string, sources string, err error) {
	// A file, not an argument: a proxy's address may hold a password.
	options := filepath.Join(work, "apt.conf")
	if err := os.WriteFile(options, []byte(findAptOptions(ctx)), 0o600); err != nil {
		return nil, "", err
	}
	args = []string{
		"--verbose", "--format=tar", "--variant=essential",
		"--components=" + strings.Join(r.Components, ","),
		"--include=" + strings.Join(r.Packages, ","),
		"--aptopt=" + options,
	}
	for _, p := range r.Exclude {
		args = append(args, "--dpkgopt=path-exclude="+p)
	}
	for _, p := range r.Include {
		args = append(args, "--dpkgopt=path-include="+p)
	}
	args = append(args, `--customize-hook=mkdir -p "$1/opt/workbench/skel"`)
	for _, script := range r.Setup {
		file := filepath.Join(work, script)
		if err := os.WriteFile(file, r.scripts[script], 0o644); err != nil {
			return nil, "", err
		}
		interpreter, err := interpreterOf(script)
		if err != nil {
			return nil, "", err
		}
		args = append(args, fmt.Sprintf(
			`--customize-hook=echo "I: setup %s" >&2; env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 SOURCE_DATE_EPOCH=%s chroot "$1" %s < %s`,
			script, sourceEpoch, interpreter, shellQuote(file)))
	}
	args = append(args, r.Suite, "-")
	if sources = findAptSources(ctx).list(r); sources != "" {
		args = append(args, "-") // the list is on standard input
	}
	return args, sources, nil
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// runBuilder runs the command, follows what it says and feeds consume.
func runBuilder(ctx context.Context, cmd *exec.Cmd, progress ProgressFunc, consume func(io.Reader) error) error {
	// Pdeathsig comes when the thread that started the command ends: it stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	report := newBuildReport(progress)
	stream, out := io.Pipe()
	cmd.Stdout, cmd.Stderr = out, report
	if err := cmd.Start(); err != nil {
		return workbench.E(workbench.CodeUnavailable, "mmdebstrap could not be started").Caused(err)
	}
	ended := make(chan error, 1)
	go func() { // ends with the command, at most WaitDelay after its context
		err := cmd.Wait()
		out.Close()
		ended <- err
	}()
	consumeErr := consume(stream)
	if consumeErr == nil {
		_, consumeErr = io.Copy(io.Discard, stream) // the padding after the archive
	}
	if consumeErr != nil {
		stream.CloseWithError(consumeErr)
		_ = cmd.Cancel() // it may have ended already
	}
	waitErr := <-ended
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case waitErr == nil:
		return consumeErr
	case consumeErr != nil && !workbench.HasCode(consumeErr, workbench.CodeImageInvalid):
		return consumeErr // the disk's: the command was stopped because of it
	}
	return report.failure(errors.Join(waitErr, consumeErr))
}

// buildReport turns what mmdebstrap, apt and dpkg print into progress and, at
// the end, into an error.
type buildReport struct {
	progress ProgressFunc

	partial            []byte // of the line that is being received
	total              int
	fetched, installed int
	script             string   // of the recipe, running or run last
	spoke              string   // its last line
	tail               []string // the last lines
	errors             []string // the first lines that begin with E:
}

const (
	reportTail   = 30
	reportErrors = 5
	reportLine   = 4 << 10
)

func newBuildReport(p ProgressFunc) *buildReport { return &buildReport{progress: p} }

var newlyInstalled = regexp.MustCompile(`^\d+ upgraded, (\d+) newly installed`)

// Write takes standard error in pieces of any size. A line that is too long is
// cut.
func (b *buildReport) Write(p []byte) (int, error) {
	for _, c := range p {
		switch {
		case c == '\n' || c == '\r':
			b.line(string(b.partial))
			b.partial = b.partial[:0]
		case len(b.partial) < reportLine:
			b.partial = append(b.partial, c)
		}
	}
	return len(p), nil
}

// stages of mmdebstrap's own announcements.
var announcements = map[string]Stage{
	"running apt-get update":       StagePrepare,
	"downloading packages":         StageDownload,
	"extracting archives":          StageInstall,
	"installing essential":         StageInstall,
	"installing remaining":         StageInstall,
	"setup ":                       StageConfigure,
	"creating tarball":             StageUnpack,
	"installing packages directly": StageInstall,
}

func (b *buildReport) line(s string) {
	if len(b.tail) == reportTail {
		b.tail = b.tail[1:]
	}
	b.tail = append(b.tail, s)
	switch {
	case strings.HasPrefix(s, "E: "):
		if len(b.errors) < reportErrors {
			b.errors = append(b.errors, strings.TrimPrefix(s, "E: "))
		}
	case strings.HasPrefix(s, "I: "):
		said := strings.TrimPrefix(s, "I: ")
		if name, ok := strings.CutPrefix(said, "setup "); ok {
			b.script, b.spoke = name, ""
		}
		for beginning, stage := range announcements {
			if strings.HasPrefix(said, beginning) {
				b.progress.tell(stage, strings.TrimSuffix(said, "..."))
			}
		}
	case strings.HasPrefix(s, "Get:"):
		if b.total > 0 && b.fetched < b.total {
			b.fetched++
			b.progress.count(StageDownload, fetchedPackage(s), b.fetched, b.total)
		}
	case strings.HasPrefix(s, "Setting up "):
		b.installed++
		name, _, _ := strings.Cut(strings.TrimPrefix(s, "Setting up "), " ")
		b.progress.count(StageInstall, name, min(b.installed, b.total), b.total)
	default:
		if strings.TrimSpace(s) != "" {
			b.spoke = s
		}
		if m := newlyInstalled.FindStringSubmatch(s); m != nil {
			b.total, _ = strconv.Atoi(m[1]) // digits by the pattern
			b.fetched, b.installed = 0, 0
		}
	}
}

// fetchedPackage is the package of apt's line
// "Get:1 <uri> <suite>/<component> <arch> <package> <arch> <version> [<size>]".
func fetchedPackage(line string) string {
	if f := strings.Fields(line); len(f) > 4 {
		return f[4]
	}
	return ""
}

// failure explains why the build ended.
func (b *buildReport) failure(cause error) error {
	all := strings.Join(b.tail, "\n")
	cause = fmt.Errorf("%w; last output:\n%s", cause, all)
	switch {
	case strings.Contains(all, "No space left on device"):
		return diskFull("build the image").Caused(cause)
	case strings.Contains(all, "Could not resolve"), strings.Contains(all, "Unable to connect"),
		strings.Contains(all, "Could not connect"), strings.Contains(all, "Failed to fetch"):
		return workbench.E(workbench.CodeUnavailable, "the package archive of this machine's apt cannot be reached: %s", b.said()).
			WithHint("check the network, and that apt-get update works on this machine (its archive and proxy are used)").Caused(cause)
	case strings.Contains(all, "NO_PUBKEY"), strings.Contains(all, "signature"):
		return workbench.E(workbench.CodeUnavailable, "the package archive's signature could not be checked: %s", b.said()).
			WithHint("install a current debian-archive-keyring").Caused(cause)
	case strings.Contains(all, "Unable to locate package"):
		return workbench.E(workbench.CodeUnavailable, "the package archive does not have what the recipe needs: %s", b.said()).
			WithHint("check that this machine's apt archive is a complete Debian mirror").Caused(cause)
	}
	if b.script != "" && strings.Contains(all, "E: command failed") {
		return workbench.E(workbench.CodeUnavailable, "the recipe's script %s failed: %.300s", b.script, b.spoke).
			WithHint("the last lines it printed are in the log").Caused(cause)
	}
	return workbench.E(workbench.CodeUnavailable, "mmdebstrap could not build the image: %s", b.said()).
		WithHint("the last lines it printed are in the log").Caused(cause)
}

func (b *buildReport) said() string {
	if len(b.errors) == 0 {
		return "it printed no error"
	}
	return fmt.Sprintf("%.600s", strings.Join(b.errors, "; "))
}

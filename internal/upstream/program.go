package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/redact"
)

const (
	// programEnd is how long a program may take to end once its stdin is closed,
	// and again once it was told to.
	programEnd = time.Second
	// maxStderr bounds, in bytes, what of a program's stderr is logged, and
	// maxStderrLine one line of it. All of it is read.
	maxStderr     = 256 * 1024
	maxStderrLine = 2 * 1024
	// leakGrace is how long the pipes of a program that has ended are read on,
	// should a process that left its group hold them, and greetGrace how long the
	// end of a program is waited for whose output has ended.
	leakGrace  = 2 * time.Second
	greetGrace = time.Second
)

// program is an MCP server that runs on this host, in a process group and a
// directory of its own, with a clean environment. It is an mcp.Transport over
// its stdin and stdout.
type program struct {
	cmd    *exec.Cmd
	conn   *lineConn
	dir    string
	exited chan struct{} // closed when it has ended and its group with it
	wg     sync.WaitGroup
	log    *slog.Logger
}

var _ mcp.Transport = (*program)(nil)

// startProgram starts an app's program. Its error means that nothing was done.
func startProgram(app workbench.App, secret string, changed func(), red *redact.Redactor, log *slog.Logger) (*program, error) {
	log = log.With("app", app.Name, "project", app.ProjectID)
	p := &program{exited: make(chan struct{}), log: log}
	path, err := exec.LookPath(app.Config.Command)
	if err != nil {
		return nil, errStart("is not there", err)
	}
	if err := closeInherited(); err != nil {
		return nil, errStart("cannot be kept from the server's open files", err)
	}
	if p.dir, err = os.MkdirTemp("", "workbench-app-"); err != nil {
		return nil, errStart("has no directory to work in", err)
	}
	var files []*os.File
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
			files = append(files, r, w)
		}
		return r, w
	}
	stdin, toProgram := pipe()
	fromProgram, stdout := pipe()
	said, stderr := pipe()
	fail := func(what string, err error) (*program, error) {
		for _, f := range files {
			_ = f.Close()
		}
		_ = os.RemoveAll(p.dir)
		return nil, errStart(what, err)
	}
	if err != nil {
		return fail("has no pipes", err)
	}
	p.cmd = &exec.Cmd{
		Path: path, Args: append([]string{app.Config.Command}, app.Config.Args...), Dir: p.dir,
		Env: environment(app, p.dir, secret), Stdin: stdin, Stdout: stdout, Stderr: stderr,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	if err := p.cmd.Start(); err != nil {
		return fail("does not start", err)
	}
	for _, f := range []*os.File{stdin, stdout, stderr} {
		_ = f.Close()
	}
	p.conn = newLineConn(fromProgram, toProgram, p.kill, changed, red, log)
	heard := make(chan struct{})
	p.wg.Go(func() {
		defer close(heard)
		p.read(said, red)
	})
	p.wg.Go(func() { p.wait(said, heard) })
	return p, nil
}

// closeInherited keeps what this process was started with, beyond stdin, stdout
// and stderr, from the programs that it starts. What Go opens is kept from them
// already.
var closeInherited = sync.OnceValue(func() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
})

func errStart(what string, err error) error {
	return certain(workbench.E(workbench.CodeToolUnavailable, "the app's program %s", what).
		WithHint("nothing was done; look at the app's config.command"), err)
}

// environment is what a program sees: nothing of the server's own but where
// programs are, who it is and how it writes text.
func environment(app workbench.App, dir, secret string) []string {
	env := []string{"TMPDIR=" + dir}
	for _, name := range []string{"PATH", "HOME", "LANG"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	for name, v := range app.Config.Env {
		env = append(env, name+"="+v)
	}
	if secret != "" {
		env = append(env, app.Config.CredentialEnv+"="+secret)
	}
	return env
}

// Connect is for the MCP client.
func (p *program) Connect(context.Context) (mcp.Connection, error) { return p.conn, nil }

// trouble is why the program could not be greeted, if it ended.
func (p *program) trouble() error {
	select {
	case <-p.exited:
	case <-time.After(greetGrace):
		return nil
	}
	return workbench.E(workbench.CodeToolUnavailable, "the app's program ended at once, with %s", p.cmd.ProcessState).
		WithHint("nothing was done; the server's log has what it said, at debug level")
}

// wait reaps the program, ends what it leaves in its group, and closes the pipes
// once they are read, or if a process that left the group holds them.
func (p *program) wait(said *os.File, heard <-chan struct{}) {
	_ = p.cmd.Wait()
	p.signal(syscall.SIGKILL)
	close(p.exited)
	leaked := time.NewTimer(leakGrace)
	defer leaked.Stop()
	for _, read := range []<-chan struct{}{p.conn.over, heard} {
		select {
		case <-read:
		case <-leaked.C:
			leaked.Reset(0)
		}
	}
	_ = p.conn.Close()
	_ = said.Close()
}

// signal signals the group, which has the program's id.
func (p *program) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// kill ends the program at once.
func (p *program) kill() {
	select {
	case <-p.exited: // its id may be another's by now
	default:
		p.signal(syscall.SIGKILL)
	}
}

// end ends the program, politely first, and waits for that.
func (p *program) end() {
	_ = p.conn.Close()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-p.exited:
		case <-time.After(programEnd):
			p.signal(s)
		}
	}
	p.wg.Wait()
	_ = os.RemoveAll(p.dir)
}

// read reads what the program says on stderr, and logs the beginning of it.
func (p *program) read(said *os.File, red *redact.Redactor) {
	lines := &lineLog{log: p.log}
	w := red.Writer(lines)
	if n, err := io.Copy(w, io.LimitReader(said, maxStderr)); err == nil && n < maxStderr {
		_ = w.Close()
	} // else what w holds back may be half a secret
	lines.flush()
	_, _ = io.Copy(io.Discard, said)
}

// lineLog logs lines at debug level.
type lineLog struct {
	log  *slog.Logger
	line []byte
}

func (l *lineLog) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		l.line = append(l.line, line[:min(len(line), maxStderrLine-len(l.line))]...)
		if whole {
			l.flush()
		}
		p = rest
	}
	return n, nil
}

func (l *lineLog) flush() {
	if len(l.line) > 0 {
		l.log.Debug("the app's program says", "stderr", bounded(string(l.line), maxStderrLine))
	}
	l.line = l.line[:0]
}

// readLine reads a line into buf, which has room for limit bytes. A longer one
// is read to its end and not kept: long then has seen all of it.
func readLine(r *bufio.Reader, limit int, long func(part []byte)) (line []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		switch {
		case tooLong:
			long(part)
		case len(line)+len(part) > limit:
			long(line)
			long(part)
			line, tooLong = nil, true
		default:
			line = append(line, part...)
		}
		if err == nil || !errors.Is(err, bufio.ErrBufferFull) {
			if err != nil && len(line) == 0 && !tooLong {
				return nil, false, err
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, tooLong, fmt.Errorf("reading from the program: %w", err)
			}
			return line, tooLong, nil
		}
	}
}

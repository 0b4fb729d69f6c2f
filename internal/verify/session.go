package verify

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// session is a bound sandbox.
type session struct {
	box    sandbox.Sandbox
	client *guestwire.Client
	bound  guestwire.BindReply
	scene  *scene
	name   string
	execs  int
}

func randomID() string {
	raw := make([]byte, 8)
	_, _ = rand.Read(raw)
	return hex.EncodeToString(raw)
}

// start starts and binds a sandbox of a class, as a session gets one from the
// warm pool: prepared, with interpreters that wait, before it is bound.
func (s *scene) start(ctx context.Context, class sandbox.Class) (*session, error) {
	box, err := s.driver.Start(ctx, class)
	if err != nil {
		return nil, err
	}
	b := &session{box: box, scene: s}
	if s.profile.started != nil {
		err = s.profile.started(s, b)
	}
	if err == nil {
		err = b.bind(ctx, class)
	}
	if err != nil {
		_ = box.Kill(context.WithoutCancel(ctx))
		exit := box.Exit()
		return nil, fmt.Errorf("%w (the sandbox: %s %s %s)", err, exit.Reason, exit.Detail, exit.Stderr)
	}
	return b, nil
}

func (b *session) bind(ctx context.Context, class sandbox.Class) (err error) {
	if b.client, err = guestwire.Dial(ctx, b.box.Stream(), guestwire.Options{}); err != nil {
		return err
	}
	limits := guestwire.SandboxLimits{
		MemoryBytes: class.MemoryBytes, WorkspaceBytes: class.WorkspaceBytes, WorkspaceInodes: class.WorkspaceInodes,
		ScratchBytes: class.ScratchBytes, Tasks: class.Tasks, OpenFiles: b.scene.openFiles(), CPUs: class.CPUs,
	}
	if err := b.client.Prepare(ctx, limits); err != nil {
		return err
	}
	seed := make([]byte, 32)
	_, _ = rand.Read(seed)
	b.bound, err = b.client.Bind(ctx, guestwire.BindRequest{SessionNonce: randomID(), Seed: seed, Env: b.scene.profile.env, Limits: limits})
	return err
}

// end kills the sandbox.
func (b *session) end(ctx context.Context) error {
	err := b.box.Kill(ctx)
	if b.client != nil {
		err = errors.Join(err, b.client.Close())
	}
	return err
}

// discard kills the sandbox of a row that has its finding or cannot have one. The
// driver removes what is left when the scene ends, and says so if it cannot.
func (b *session) discard(ctx context.Context) { _ = b.end(context.WithoutCancel(ctx)) }

// alive reports whether the guest still answers.
func (b *session) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := b.client.Ping(ctx); err != nil {
		return fmt.Errorf("the guest does not answer: %w", err)
	}
	return nil
}

// running is an exec under way.
type running struct {
	b     *session
	exec  *guestwire.Exec
	heard *capture
	began time.Time
	limit time.Duration
}

// ended is what an exec did.
type ended struct {
	guestwire.ExecResult
	stdout, stderr string
	took           time.Duration // seen from the host
}

// begin starts an exec, in a group of its own unless one is named. What the
// profile wraps around programs is put around argv here.
func (b *session) begin(ctx context.Context, r guestwire.ExecRequest) (*running, error) {
	b.execs++
	r.ID = fmt.Sprintf("x%d", b.execs)
	if r.Group == "" {
		r.Group = r.ID
	}
	limit := r.Timeout
	switch {
	case b.scene.profile.endless:
		r.Timeout = 0
		limit = time.Minute
	case r.Timeout == 0:
		r.Timeout = time.Minute
		limit = r.Timeout
	}
	if r.OutputBytes == 0 {
		r.OutputBytes = 1 << 20
	}
	if b.scene.profile.output != 0 {
		r.OutputBytes = b.scene.profile.output
	}
	if len(r.Argv) > 0 && b.scene.profile.wrap != nil {
		r.Argv = b.scene.profile.wrap(r.Argv)
	}
	run := &running{b: b, heard: &capture{limit: 96 << 20}, began: time.Now(), limit: limit}
	var err error
	run.exec, err = b.client.Exec(ctx, r, run.heard)
	return run, err
}

// wait waits for the end of the exec.
func (r *running) wait(ctx context.Context) (ended, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limit+15*time.Second)
	defer cancel()
	result, err := r.exec.Wait(ctx)
	out := ended{ExecResult: result, stdout: r.heard.stdout.String(), stderr: r.heard.stderr.String(), took: time.Since(r.began)}
	if err != nil {
		return out, err
	}
	return out, r.b.client.Release(ctx, r.exec.ID)
}

// stop cancels an exec that is no longer needed. One that has ended is as good,
// and one that goes on ends with its sandbox.
func (r *running) stop(ctx context.Context) { _ = r.exec.Cancel(context.WithoutCancel(ctx)) }

// exec runs one program to its end.
func (b *session) exec(ctx context.Context, r guestwire.ExecRequest) (ended, error) {
	run, err := b.begin(ctx, r)
	if err != nil {
		return ended{}, err
	}
	return run.wait(ctx)
}

// language runs source as a client's run does, by the language's own driver.
func (b *session) language(ctx context.Context, l workbench.Language, source string) (ended, error) {
	return b.exec(ctx, guestwire.ExecRequest{Language: l, Source: []byte(source)})
}

// verdict is what a probe said of what it tried.
type verdict struct {
	OK      bool            `json:"ok"`
	Untried bool            `json:"untried"` // there is nothing to try here
	Why     string          `json:"why"`
	Data    json.RawMessage `json:"data"`
}

// probe runs a probe to its end and returns its verdict.
func (b *session) probe(ctx context.Context, name string, params any) (verdict, ended, error) {
	r, err := b.probeRequest(name, params)
	if err != nil {
		return verdict{}, ended{}, err
	}
	out, err := b.exec(ctx, r)
	if err != nil {
		return verdict{}, out, err
	}
	v, err := out.verdict()
	return v, out, err
}

// memoryEnded reports whether the memory limit ended the run: the guest did, or
// the host's kernel was faster and the guest says which limit it was. The engine
// calls both out_of_memory.
func (e ended) memoryEnded() bool {
	return e.Reason == workbench.ReasonOutOfMemory || e.Signal == "SIGKILL" && slices.Contains(e.LimitsHit, workbench.LimitMemory)
}

// verdict finds the probe's verdict in what it printed: the last such line.
func (e ended) verdict() (verdict, error) {
	var v verdict
	last, found := afterLast(e.stdout, verdictMark)
	if !found {
		return v, fmt.Errorf("the probe gave no verdict: exit %d %s %s: %s %s", e.ExitCode, e.Signal, e.Reason, lastBytes(e.stdout, 300), lastBytes(e.stderr, 600))
	}
	line, _, _ := strings.Cut(last, "\n")
	if err := json.Unmarshal([]byte(strings.TrimSpace(line)), &v); err != nil {
		return v, fmt.Errorf("the probe's verdict cannot be read: %w", err)
	}
	v.Why = lastBytes(printable(v.Why), 2000)
	return v, nil
}

// afterLast is what follows the last sep.
func afterLast(s, sep string) (after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[i+len(sep):], true
	}
	return "", false
}

func lastBytes(s string, n int) string { return strings.TrimSpace(s[max(0, len(s)-n):]) }

// printable keeps what a probe says from acting on a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// capture keeps what a program writes, up to a bound, and what it asks for.
type capture struct {
	limit int

	mu             sync.Mutex
	stdout, stderr bytes.Buffer
	calls          []guestwire.BrokerCall
	saved          [][]byte
}

func (c *capture) Output(stream workbench.Stream, offset int64, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf := &c.stdout
	if stream == workbench.Stderr {
		buf = &c.stderr
	}
	if int64(buf.Len()) != offset || buf.Len()+len(data) > c.limit {
		return fmt.Errorf("output at %d follows %d bytes", offset, buf.Len())
	}
	buf.Write(data)
	return nil
}

// Call records a call and takes up to 1 MiB of its content.
func (c *capture) Call(_ context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
	var content []byte
	if call.Content != nil {
		var kept bytes.Buffer
		buf := make([]byte, 32<<10)
		for {
			n, err := call.Content.Read(buf)
			if kept.Len() < 1<<20 {
				kept.Write(buf[:n])
			}
			if err != nil {
				break
			}
		}
		content = kept.Bytes()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) < 1000 {
		call.Content = nil
		c.calls = append(c.calls, call)
		c.saved = append(c.saved, content)
	}
	return json.RawMessage(`{}`), nil
}

// said is what the program wrote to stdout so far.
func (c *capture) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stdout.String()
}

// hears waits until the program has written a line with the text.
func (r *running) hears(ctx context.Context, text string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(r.heard.said(), text) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.exec.Done():
			if strings.Contains(r.heard.said(), text) {
				return nil
			}
			out, err := r.wait(ctx)
			return errors.Join(fmt.Errorf("the program ended without saying %q: exit %d %s: %s", text, out.ExitCode, out.Reason, lastBytes(out.stderr, 600)), err)
		case <-tick.C:
		}
	}
	return nil
}

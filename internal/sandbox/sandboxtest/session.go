package sandboxtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// OpenFiles is the limit on descriptors that sessions of the suite have.
const OpenFiles = 256

// Session is a sandbox that is bound and talked to.
type Session struct {
	Sandbox sandbox.Sandbox
	Client  *guestwire.Client
	Bound   guestwire.BindReply
	execs   atomic.Int64
}

// MustBind starts a sandbox of the class and binds it. It is killed when the
// test ends.
func MustBind(t testing.TB, d sandbox.Driver, c sandbox.Class) *Session {
	t.Helper()
	box, err := d.Start(t.Context(), c)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := box.Kill(background(t)); err != nil {
			t.Errorf("kill: %v", err)
		}
	})
	client, err := guestwire.Dial(t.Context(), box.Stream(), guestwire.Options{})
	if err != nil {
		t.Fatalf("handshake: %v\n%s", err, stderrOf(box))
	}
	t.Cleanup(func() { _ = client.Close() })
	seed := make([]byte, 32)
	_, _ = rand.Read(seed)
	bound, err := client.Bind(t.Context(), guestwire.BindRequest{
		SessionNonce: NewInstance(), Seed: seed,
		Limits: guestwire.SandboxLimits{
			MemoryBytes: c.MemoryBytes, WorkspaceBytes: c.WorkspaceBytes, WorkspaceInodes: c.WorkspaceInodes,
			ScratchBytes: c.ScratchBytes, Tasks: c.Tasks, OpenFiles: OpenFiles, CPUs: c.CPUs,
		},
	})
	if err != nil {
		t.Fatalf("bind: %v\n%s", err, stderrOf(box))
	}
	return &Session{Sandbox: box, Client: client, Bound: bound}
}

// stderrOf kills a sandbox to learn what it logged.
func stderrOf(box sandbox.Sandbox) string {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	_ = box.Kill(ctx)
	exit := box.Exit()
	return fmt.Sprintf("%s %s\n%s", exit.Reason, exit.Detail, exit.Stderr)
}

// Outcome is what a program did.
type Outcome struct {
	guestwire.ExecResult
	Stdout, Stderr string
}

// MustPython runs a program in a group of its own to its end.
func (s *Session) MustPython(t testing.TB, source string) Outcome {
	t.Helper()
	return s.MustExec(t, guestwire.ExecRequest{Language: workbench.Python, Source: []byte(source)})
}

// MustExec runs one exec to its end. Its id and group are set here; a timeout
// is, when it has none.
func (s *Session) MustExec(t testing.TB, r guestwire.ExecRequest) Outcome {
	t.Helper()
	r.ID = fmt.Sprintf("exec%d", s.execs.Add(1))
	r.Group = r.ID
	if r.Timeout == 0 {
		r.Timeout = 60 * time.Second
	}
	if r.OutputBytes == 0 {
		r.OutputBytes = 1 << 20
	}
	var h capture
	x, err := s.Client.Exec(t.Context(), r, &h)
	if err != nil {
		t.Fatalf("exec: %v\n%s", err, stderrOf(s.Sandbox))
	}
	ctx, cancel := context.WithTimeout(t.Context(), r.Timeout+10*time.Second)
	defer cancel()
	result, err := x.Wait(ctx)
	if err != nil {
		t.Fatalf("wait: %v\n%s", err, stderrOf(s.Sandbox))
	}
	if err := s.Client.Release(t.Context(), r.ID); err != nil {
		t.Errorf("release: %v", err)
	}
	return Outcome{ExecResult: result, Stdout: h.text(workbench.Stdout), Stderr: h.text(workbench.Stderr)}
}

// MustPrint runs a program that must succeed and returns what it printed.
func (s *Session) MustPrint(t testing.TB, source string) string {
	t.Helper()
	out := s.MustPython(t, source)
	if out.ExitCode != 0 {
		t.Fatalf("the program ended with %d (%s): %s%s", out.ExitCode, out.Reason, out.Stdout, out.Stderr)
	}
	return strings.TrimSpace(out.Stdout)
}

// MustStillWork fails unless the session can run a program and has its files.
func (s *Session) MustStillWork(t testing.TB) {
	t.Helper()
	if got := s.MustPrint(t, "print(6 * 7)"); got != "42" {
		t.Errorf("the next run printed %q, want 42", got)
	}
}

// capture keeps what a program writes. It answers no call.
type capture struct {
	mu             sync.Mutex
	stdout, stderr bytes.Buffer
}

func (c *capture) Output(stream workbench.Stream, offset int64, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf := &c.stdout
	if stream == workbench.Stderr {
		buf = &c.stderr
	}
	if int64(buf.Len()) != offset {
		return fmt.Errorf("output at %d follows %d bytes", offset, buf.Len())
	}
	buf.Write(data)
	return nil
}

func (c *capture) Call(context.Context, guestwire.BrokerCall) (json.RawMessage, error) {
	return nil, workbench.E(workbench.CodeNotBuilt, "the suite answers no calls")
}

func (c *capture) text(stream workbench.Stream) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stream == workbench.Stderr {
		return c.stderr.String()
	}
	return c.stdout.String()
}

// background is a context for clean-up, after the test's own has ended.
func background(t testing.TB) context.Context { return context.WithoutCancel(t.Context()) }

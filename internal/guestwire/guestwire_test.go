package guestwire_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scriptedGuest is a guest whose programs are Go functions.
type scriptedGuest struct {
	program func(ctx context.Context, r guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult
	tree    []guestwire.Entry
	content map[guestwire.Path][]byte
	wrote   []guestwire.Entry
	cancels chan string
}

func (g *scriptedGuest) Prepare(context.Context, guestwire.SandboxLimits) error { return nil }

func (g *scriptedGuest) Bind(context.Context, guestwire.BindRequest) (guestwire.BindReply, error) {
	return guestwire.BindReply{Languages: []workbench.Language{workbench.Python}}, nil
}

func (g *scriptedGuest) Exec(ctx context.Context, r guestwire.ExecRequest, x *guestwire.Running) (guestwire.ExecResult, error) {
	if r.Name == "refused" {
		return guestwire.ExecResult{}, workbench.E(workbench.CodeLanguageUnknown, "no such interpreter")
	}
	x.Started()
	return g.program(ctx, r, x), nil
}

func (g *scriptedGuest) Signal(string, int) error { return workbench.ErrNotFound("exec") }
func (g *scriptedGuest) Cancel(exec string) error { g.cancels <- exec; return nil }

func (g *scriptedGuest) EndGroup(context.Context, string) error { return nil }
func (g *scriptedGuest) Groups(context.Context) ([]guestwire.GroupInfo, error) {
	return []guestwire.GroupInfo{{Name: "g", Tasks: 1}}, nil
}
func (g *scriptedGuest) PauseAll(context.Context) error  { return nil }
func (g *scriptedGuest) Settle(context.Context) error    { return nil }
func (g *scriptedGuest) Wake(context.Context) error      { return nil }
func (g *scriptedGuest) ResumeAll(context.Context) error { return nil }

func (g *scriptedGuest) Scan(_ context.Context, _ guestwire.ScanRequest, yield func(guestwire.Entry, io.Reader) error) (guestwire.ScanResult, error) {
	for _, e := range g.tree {
		if err := yield(e, bytes.NewReader(g.content[e.Path])); err != nil {
			return guestwire.ScanResult{}, err
		}
	}
	return guestwire.ScanResult{Token: "t1", Complete: true, Entries: int64(len(g.tree))}, nil
}

func (g *scriptedGuest) Read(_ context.Context, p guestwire.Path, send func(io.Reader) error) (guestwire.Entry, error) {
	b, ok := g.content[p]
	if !ok {
		return guestwire.Entry{}, workbench.ErrNotFound("file")
	}
	if err := send(bytes.NewReader(b)); err != nil {
		return guestwire.Entry{}, err
	}
	return guestwire.Entry{Path: p, Type: guestwire.TypeFile, Mode: 0o644, Size: int64(len(b)), SHA256: make([]byte, 32)}, nil
}

func (g *scriptedGuest) Write(_ context.Context, _ bool, src guestwire.FileSource) (guestwire.WriteResult, error) {
	g.content = map[guestwire.Path][]byte{}
	for {
		e, content, err := src.Next()
		if errors.Is(err, io.EOF) {
			return guestwire.WriteResult{Token: "t2", Entries: int64(len(g.wrote))}, nil
		}
		if err != nil {
			return guestwire.WriteResult{}, err
		}
		if e.Path == "full" {
			return guestwire.WriteResult{}, workbench.E(workbench.CodeWorkspaceFull, "no space")
		}
		if content != nil {
			if g.content[e.Path], err = io.ReadAll(content); err != nil {
				return guestwire.WriteResult{}, err
			}
		}
		g.wrote = append(g.wrote, e)
	}
}

func (g *scriptedGuest) Stats(context.Context) (guestwire.GuestStats, error) {
	return guestwire.GuestStats{Tasks: 3}, nil
}

// pipes is one end of a pair of pipes.
type pipes struct {
	io.ReadCloser
	io.WriteCloser
}

func (p pipes) Close() error {
	p.ReadCloser.Close()
	return p.WriteCloser.Close()
}

func MustPipes(t *testing.T) (host, guest io.ReadWriteCloser) {
	t.Helper()
	r1, w1, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return pipes{r1, w2}, pipes{r2, w1}
}

// MustServe starts a server; the returned dial connects a new client to it.
func MustServe(t *testing.T, g guestwire.Guest) (dial func() *guestwire.Client) {
	t.Helper()
	s := guestwire.NewServer(g, "boot", "test", []string{"exec"})
	var serving sync.WaitGroup
	t.Cleanup(func() { s.Close(); serving.Wait() })
	return func() *guestwire.Client {
		host, guest := MustPipes(t)
		serving.Go(func() { _ = s.Serve(guest); guest.Close() })
		c, err := guestwire.Dial(t.Context(), host, guestwire.Options{})
		if err != nil {
			t.Fatalf("dial: %v", err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func MustBind(t *testing.T, c *guestwire.Client) {
	t.Helper()
	_, err := c.Bind(t.Context(), guestwire.BindRequest{SessionNonce: "s1", Seed: make([]byte, 32), Limits: guestwire.SandboxLimits{
		MemoryBytes: 1, WorkspaceBytes: 1, WorkspaceInodes: 1, ScratchBytes: 1, Tasks: 1, OpenFiles: 1, CPUs: 1}})
	if err != nil {
		t.Fatalf("bind: %v", err)
	}
}

// recorder keeps output and answers calls.
type recorder struct {
	mu     sync.Mutex
	out    map[workbench.Stream]*bytes.Buffer
	hold   chan struct{} // when set, stdout waits for it
	onCall func(context.Context, guestwire.BrokerCall) (json.RawMessage, error)
	got    chan int
}

func newRecorder() *recorder {
	return &recorder{out: map[workbench.Stream]*bytes.Buffer{workbench.Stdout: {}, workbench.Stderr: {}}, got: make(chan int, 10000)}
}

func (r *recorder) Output(s workbench.Stream, _ int64, data []byte) error {
	if r.hold != nil && s == workbench.Stdout {
		<-r.hold
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out[s].Write(data)
	select {
	case r.got <- len(data):
	default:
	}
	return nil
}

func (r *recorder) Call(ctx context.Context, c guestwire.BrokerCall) (json.RawMessage, error) {
	return r.onCall(ctx, c)
}

func (r *recorder) text(s workbench.Stream) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out[s].String()
}

func request(id string) guestwire.ExecRequest {
	return guestwire.ExecRequest{ID: id, Group: "g", Language: workbench.Python, OutputBytes: 1 << 30}
}

func TestExecCarriesSourceOutputAndEnd(t *testing.T) {
	source := strings.Repeat("# a comment\n", 30000) // beyond one window
	c := MustServe(t, &scriptedGuest{program: func(_ context.Context, r guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		_, _ = x.Stdout.Write(r.Source)
		_, _ = x.Stderr.Write(append([]byte(r.Args[0]), r.Stdin...))
		return guestwire.ExecResult{ExitCode: 7, Duration: time.Second, LimitsHit: []string{"tasks"}}
	}})()
	MustBind(t, c)
	r := request("e1")
	r.Source, r.Args, r.Stdin = []byte(source), []string{"\xff "}, []byte("in")
	h := newRecorder()
	e, err := c.Exec(t.Context(), r, h)
	if err != nil {
		t.Fatal(err)
	}
	res, err := e.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := h.text(workbench.Stdout); got != source {
		t.Errorf("stdout: %d bytes, want %d", len(got), len(source))
	}
	if got := h.text(workbench.Stderr); got != "\xff in" {
		t.Errorf("stderr: %q", got)
	}
	if res.ExitCode != 7 || res.Total != (guestwire.Offsets{Stdout: 360000, Stderr: 4}) || res.LimitsHit[0] != "tasks" {
		t.Errorf("result: %+v", res)
	}
}

func TestLongArgumentsArriveWhole(t *testing.T) {
	long := strings.Repeat("x", 100_000) // longer than any path may be
	c := MustServe(t, &scriptedGuest{program: func(_ context.Context, r guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		_, _ = x.Stdout.Write([]byte(r.Argv[1] + r.Env["LONG"]))
		return guestwire.ExecResult{}
	}})()
	MustBind(t, c)
	h := newRecorder()
	e, err := c.Exec(t.Context(), guestwire.ExecRequest{
		ID: "e1", Group: "g", Argv: []string{"/bin/sh", long}, Env: map[string]string{"LONG": long}, OutputBytes: 1 << 30,
	}, h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := h.text(workbench.Stdout); got != long+long {
		t.Errorf("%d bytes arrived, want 200000", len(got))
	}
}

func TestOutputBeyondTheLimitIsCounted(t *testing.T) {
	c := MustServe(t, &scriptedGuest{program: func(_ context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		for range 1000 {
			_, _ = x.Stdout.Write(make([]byte, 1000))
		}
		return guestwire.ExecResult{}
	}})()
	MustBind(t, c)
	r := request("e1")
	r.OutputBytes = 1500
	h := newRecorder()
	e, err := c.Exec(t.Context(), r, h)
	if err != nil {
		t.Fatal(err)
	}
	res, err := e.Wait(t.Context())
	if err != nil || res.Total.Stdout != 1_000_000 || res.Forwarded.Stdout != 1500 || len(h.text(workbench.Stdout)) != 1500 {
		t.Fatalf("%+v, %v, received %d", res, err, len(h.text(workbench.Stdout)))
	}
}

func TestCancelAndPingPassAFloodNobodyReads(t *testing.T) {
	g := &scriptedGuest{cancels: make(chan string, 1)}
	stopped := make(chan struct{})
	g.program = func(ctx context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		flood := make(chan struct{})
		go func() {
			defer close(flood)
			for {
				select {
				case <-stopped:
					return
				default:
					_, _ = x.Stdout.Write(make([]byte, 100_000))
				}
			}
		}()
		<-g.cancels
		close(stopped)
		<-flood
		return guestwire.ExecResult{Reason: workbench.ReasonCancelled, ExitCode: -1, Signal: "KILL"}
	}
	c := MustServe(t, g)()
	MustBind(t, c)
	h := newRecorder()
	h.hold = make(chan struct{})
	e, err := c.Exec(t.Context(), request("e1"), h)
	if err != nil {
		t.Fatal(err)
	}
	late := 0
	for range 50 {
		d, err := c.Ping(t.Context())
		if err != nil {
			t.Fatalf("ping: %v, %v", d, err)
		}
		if d > 500*time.Millisecond {
			late++
		}
	}
	if late > 5 {
		t.Fatalf("%d of 50 pings took more than 500 ms", late)
	}
	if err := e.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(h.hold)
	res, err := e.Wait(t.Context())
	if err != nil || res.Reason != workbench.ReasonCancelled || res.Total.Stdout != int64(len(h.text(workbench.Stdout))) {
		t.Fatalf("%+v, %v", res, err)
	}
}

func TestAnotherHostTakesTheExecUpByteForByte(t *testing.T) {
	want := bytes.Buffer{}
	for i := range 400_000 {
		want.WriteByte(byte(i * 7))
	}
	proceed := make(chan struct{})
	g := &scriptedGuest{program: func(_ context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		_, _ = x.Stdout.Write(want.Bytes()[:100_000])
		<-proceed
		_, _ = x.Stdout.Write(want.Bytes()[100_000:])
		_, _ = x.Stderr.Write([]byte("done"))
		return guestwire.ExecResult{ExitCode: 3}
	}}
	dial := MustServe(t, g)
	first := dial()
	MustBind(t, first)
	h := newRecorder()
	if _, err := first.Exec(t.Context(), request("e1"), h); err != nil {
		t.Fatal(err)
	}
	for len(h.text(workbench.Stdout)) < 100_000 {
		<-h.got
	}
	first.Close()
	received := h.text(workbench.Stdout)
	close(proceed)

	second := dial()
	if second.Hello().Bound != "s1" || second.Hello().Boot != "boot" {
		t.Fatalf("hello: %+v", second.Hello())
	}
	execs, err := second.ListExecs(t.Context())
	if err != nil || len(execs) != 1 || execs[0].ID != "e1" {
		t.Fatalf("%+v, %v", execs, err)
	}
	acked := execs[0].Acked
	if acked.Stdout > int64(len(received)) {
		t.Fatalf("acknowledged %d of %d received", acked.Stdout, len(received))
	}
	h2 := newRecorder()
	e, err := second.Attach(t.Context(), "e1", acked, h2)
	if err != nil {
		t.Fatal(err)
	}
	res, err := e.Wait(t.Context())
	if err != nil || res.ExitCode != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := received[:acked.Stdout] + h2.text(workbench.Stdout); got != want.String() || h2.text(workbench.Stderr) != "done" {
		t.Fatalf("%d bytes, want %d; stderr %q", len(got), want.Len(), h2.text(workbench.Stderr))
	}
	if _, err := second.Attach(t.Context(), "e1", guestwire.Offsets{}, h2); !workbench.HasCode(err, workbench.CodeOffsetInvalid) {
		t.Errorf("attach before what is kept: %v", err)
	}
	if err := second.Release(t.Context(), "e1"); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Attach(t.Context(), "e1", guestwire.Offsets{}, h2); !workbench.HasCode(err, workbench.CodeNotFound) {
		t.Errorf("attach after release: %v", err)
	}
}

func TestCallsOfCode(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	g := &scriptedGuest{program: func(ctx context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		reply, err := x.Call(ctx, "save", json.RawMessage(`{"path":"YQ=="}`), int64(len(content)), bytes.NewReader(content))
		_, _ = x.Stdout.Write(reply)
		if err != nil {
			_, _ = x.Stderr.Write([]byte(err.Error()))
		}
		_, err = x.Call(ctx, "nope", json.RawMessage(`{}`), -1, nil)
		_, _ = x.Stderr.Write([]byte(workbench.AsError(err).Hint))
		return guestwire.ExecResult{}
	}}
	c := MustServe(t, g)()
	MustBind(t, c)
	h := newRecorder()
	h.onCall = func(_ context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
		if call.Op != "save" {
			return nil, workbench.E(workbench.CodeNotBuilt, "no").WithHint("use save")
		}
		var args guestwire.SaveArgs
		if err := json.Unmarshal(call.Args, &args); err != nil || args.Path != "a" {
			t.Errorf("args: %v %q", err, args.Path)
		}
		got, err := io.ReadAll(call.Content)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("content: %d bytes, %v", len(got), err)
		}
		return json.RawMessage(`{"id":"art_1"}`), nil
	}
	e, err := c.Exec(t.Context(), request("e1"), h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.text(workbench.Stdout) != `{"id":"art_1"}` || h.text(workbench.Stderr) != "use save" {
		t.Errorf("%q %q", h.text(workbench.Stdout), h.text(workbench.Stderr))
	}
}

// What a call says arrives as it was said, and a bound counts that.
func TestCallsAsLargeAsTheyMayBe(t *testing.T) {
	html := json.RawMessage(`{"value":"` + strings.Repeat("<td>&", 60_000) + `"}`)
	errs := make(chan error, 3)
	c := MustServe(t, &scriptedGuest{program: func(ctx context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		for _, args := range []json.RawMessage{html, json.RawMessage(`"` + strings.Repeat("x", guestwire.MaxCallArgs) + `"`), json.RawMessage(`"after"`)} {
			_, err := x.Call(ctx, "result", args, -1, nil)
			errs <- err
		}
		return guestwire.ExecResult{}
	}})()
	MustBind(t, c)
	h := newRecorder()
	var got []string
	h.onCall = func(_ context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
		got = append(got, string(call.Args))
		return nil, nil
	}
	e, err := c.Exec(t.Context(), request("e1"), h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first, second, third := <-errs, <-errs, <-errs; first != nil || !workbench.HasCode(second, workbench.CodeBodyTooLarge) || third != nil {
		t.Errorf("%v, %v, %v", first, second, third)
	}
	if len(got) != 2 || got[0] != string(html) || got[1] != `"after"` {
		t.Errorf("%d calls arrived", len(got))
	}
}

// The host's handlers of calls that were given up may take their time: whoever
// comes next is no violation.
func TestCallsAfterOthersWereGivenUp(t *testing.T) {
	under, release := make(chan struct{}, guestwire.MaxCalls), make(chan struct{})
	var last error
	c := MustServe(t, &scriptedGuest{program: func(ctx context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		short, giveUp := context.WithCancel(ctx)
		var calls sync.WaitGroup
		for range guestwire.MaxCalls {
			calls.Go(func() { _, _ = x.Call(short, "slow", json.RawMessage(`{}`), -1, nil) })
		}
		for range guestwire.MaxCalls {
			<-under
		}
		giveUp()
		calls.Wait()
		_, last = x.Call(ctx, "quick", json.RawMessage(`{}`), -1, nil)
		return guestwire.ExecResult{}
	}})()
	MustBind(t, c)
	h := newRecorder()
	h.onCall = func(_ context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
		if call.Op == "slow" {
			under <- struct{}{}
			<-release
		}
		return nil, nil
	}
	e, err := c.Exec(t.Context(), request("e1"), h)
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Wait(t.Context())
	close(release)
	if err != nil || last != nil {
		t.Errorf("%v, %v", err, last)
	}
}

// Calls for which the host waits itself hold up no others.
func TestCallsThatTakeLongHoldUpNoOthers(t *testing.T) {
	under, release := make(chan struct{}, guestwire.MaxCalls), make(chan struct{})
	var quick error
	c := MustServe(t, &scriptedGuest{program: func(ctx context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		var calls sync.WaitGroup
		for range 3 * guestwire.MaxCalls {
			calls.Go(func() { _, _ = x.Call(ctx, guestwire.OpCall, json.RawMessage(`{}`), -1, nil) })
		}
		for range guestwire.MaxCalls {
			<-under
		}
		_, quick = x.Call(ctx, guestwire.OpResult, json.RawMessage(`{"value":1}`), -1, nil)
		close(release)
		calls.Wait()
		return guestwire.ExecResult{}
	}})()
	MustBind(t, c)
	h := newRecorder()
	var most, now atomic.Int64
	h.onCall = func(_ context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
		if call.Op == guestwire.OpCall {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			select {
			case under <- struct{}{}:
			default:
			}
			<-release
		}
		return nil, nil
	}
	e, err := c.Exec(t.Context(), request("e1"), h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = e.Wait(t.Context()); err != nil || quick != nil {
		t.Errorf("%v, %v", err, quick)
	}
	if most.Load() > guestwire.MaxCalls {
		t.Errorf("%d calls at once", most.Load())
	}
}

// An error reaches the code with its field, and an answer that is too large as one.
func TestAnswersOfCalls(t *testing.T) {
	var got []*workbench.Error
	var reply json.RawMessage
	c := MustServe(t, &scriptedGuest{program: func(ctx context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		for _, op := range []string{guestwire.OpCall, guestwire.OpToolSchema} {
			_, err := x.Call(ctx, op, json.RawMessage(`{}`), -1, nil)
			got = append(got, workbench.AsError(err))
		}
		reply, _ = x.Call(ctx, guestwire.OpWebSearch, json.RawMessage(`{}`), -1, nil)
		return guestwire.ExecResult{}
	}})()
	MustBind(t, c)
	h := newRecorder()
	whole := json.RawMessage(`"` + strings.Repeat("<", guestwire.MaxResult-2) + `"`)
	h.onCall = func(_ context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
		switch call.Op {
		case guestwire.OpCall:
			return nil, workbench.E(workbench.CodeArgumentsInvalid, "no").WithHint("look").WithField("args.query")
		case guestwire.OpToolSchema:
			return json.RawMessage(`"` + strings.Repeat("<", guestwire.MaxResult) + `"`), nil
		}
		return whole, nil
	}
	e, err := c.Exec(t.Context(), request("e1"), h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first := got[0]; first.Code != workbench.CodeArgumentsInvalid || first.Hint != "look" || first.Field != "args.query" {
		t.Errorf("error %+v", first)
	}
	if !workbench.HasCode(got[1], workbench.CodeResultTooLarge) {
		t.Errorf("error %v, want result_too_large", got[1])
	}
	if string(reply) != string(whole) {
		t.Errorf("%d bytes of %d came", len(reply), len(whole))
	}
}

func TestRefusedBeforeItStarted(t *testing.T) {
	c := MustServe(t, &scriptedGuest{})()
	r := request("e1")
	if _, err := c.Exec(t.Context(), r, newRecorder()); !workbench.HasCode(err, workbench.CodeConflict) {
		t.Errorf("unbound: %v", err)
	}
	MustBind(t, c)
	r.Name = "refused"
	if _, err := c.Exec(t.Context(), r, newRecorder()); !workbench.HasCode(err, workbench.CodeLanguageUnknown) {
		t.Errorf("refused: %v", err)
	}
	r.Env = map[string]string{"WORKBENCH_TOKEN": "x"}
	if _, err := c.Exec(t.Context(), r, newRecorder()); !workbench.HasCode(err, workbench.CodeInvalidRequest) {
		t.Errorf("env: %v", err)
	}
}

func TestDialRefusesSilenceAndOtherVersions(t *testing.T) {
	t.Run("silence", func(t *testing.T) {
		host, guest := net.Pipe()
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = io.Copy(io.Discard, guest) })
		_, err := guestwire.Dial(t.Context(), host, guestwire.Options{HelloTimeout: 50 * time.Millisecond})
		if !workbench.HasCode(err, workbench.CodeSandboxLost) {
			t.Errorf("%v", err)
		}
		guest.Close()
		reading.Wait()
	})
	t.Run("another version", func(t *testing.T) {
		host, guest := net.Pipe()
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = io.Copy(io.Discard, guest) })
		reading.Go(func() {
			_, _ = guest.Write([]byte("noise before it\xffWORKBENCH-WIRE\n\x00\x00\x00\x0d\x01\x00\x00\x00\x00\x00\x00\x00{\"version\":9}"))
		})
		_, err := guestwire.Dial(t.Context(), host, guestwire.Options{})
		if !workbench.HasCode(err, workbench.CodeGuestProtocol) || !strings.Contains(err.Error(), "version 9") {
			t.Errorf("%v", err)
		}
		guest.Close()
		reading.Wait()
	})
}

type ctxt = context.Context

// tree is a source of entries.
type tree struct {
	entries []guestwire.Entry
	content map[guestwire.Path][]byte
}

func (s *tree) Next() (guestwire.Entry, io.Reader, error) {
	if len(s.entries) == 0 {
		return guestwire.Entry{}, nil, io.EOF
	}
	e := s.entries[0]
	s.entries = s.entries[1:]
	if b, ok := s.content[e.Path]; ok {
		return e, bytes.NewReader(b), nil
	}
	return e, nil, nil
}

type collected struct {
	entries []guestwire.Entry
	content map[guestwire.Path][]byte
	fail    error
}

func (c *collected) Entry(e guestwire.Entry, content io.Reader) error {
	c.entries = append(c.entries, e)
	if content != nil && len(c.entries)%2 == 0 { // every other content is left unread
		b, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		c.content[e.Path] = b
	}
	return c.fail
}

func TestTreesTravelWhole(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	sum := make([]byte, 32)
	g := &scriptedGuest{content: map[guestwire.Path][]byte{"big": big, "\xff\xfe": []byte("odd")}}
	g.tree = []guestwire.Entry{
		{Path: "gone", Change: workbench.ChangeRemoved, Type: guestwire.TypeFile},
		{Path: "big", Change: workbench.ChangeAdded, Type: guestwire.TypeFile, Size: int64(len(big)), SHA256: sum, Content: true},
		{Path: "link", Change: workbench.ChangeAdded, Type: guestwire.TypeSymlink, Target: "\xff/../.."},
		{Path: "\xff\xfe", Change: workbench.ChangeAdded, Type: guestwire.TypeFile, Size: 3, SHA256: sum, Content: true},
		{Path: "big", Change: workbench.ChangeModified, Type: guestwire.TypeFile, Size: int64(len(big)), SHA256: sum, Content: true},
		{Path: "d", Change: workbench.ChangeModified, Type: guestwire.TypeDir, Mode: 0o700},
	}
	c := MustServe(t, g)()
	got := &collected{content: map[guestwire.Path][]byte{}}
	res, err := c.Scan(t.Context(), guestwire.ScanRequest{}, got)
	if err != nil || res.Entries != 6 || len(got.entries) != 6 {
		t.Fatalf("%+v, %v, %d entries", res, err, len(got.entries))
	}
	if !bytes.Equal(got.content["big"], big) || string(got.content["\xff\xfe"]) != "odd" || got.entries[2].Target != "\xff/../.." {
		t.Errorf("content differs")
	}
	t.Run("the sink's error ends the scan", func(t *testing.T) {
		mine := workbench.E(workbench.CodeUnavailable, "disk")
		if _, err := c.Scan(t.Context(), guestwire.ScanRequest{}, &collected{content: map[guestwire.Path][]byte{}, fail: mine}); !workbench.HasCode(err, workbench.CodeUnavailable) {
			t.Errorf("%v", err)
		}
		if _, err := c.Ping(t.Context()); err != nil {
			t.Errorf("the connection is lost: %v", err)
		}
	})
	t.Run("read", func(t *testing.T) {
		g.content = map[guestwire.Path][]byte{"big": big}
		var b bytes.Buffer
		if e, err := c.ReadFile(t.Context(), "big", &b); err != nil || !bytes.Equal(b.Bytes(), big) || e.Size != int64(len(big)) {
			t.Errorf("%+v %v", e, err)
		}
		if _, err := c.ReadFile(t.Context(), "none", &b); !workbench.HasCode(err, workbench.CodeNotFound) {
			t.Errorf("%v", err)
		}
	})
	t.Run("write", func(t *testing.T) {
		g.wrote = nil
		src := &tree{entries: []guestwire.Entry{{Path: "d", Type: guestwire.TypeDir}, {Path: "big", Type: guestwire.TypeFile, Size: int64(len(big)), SHA256: sum, Content: true}}, content: map[guestwire.Path][]byte{"big": big}}
		if res, err := c.Restore(t.Context(), src); err != nil || res.Token != "t2" || !bytes.Equal(g.content["big"], big) {
			t.Errorf("%+v %v", res, err)
		}
	})
	t.Run("the guest's error ends a write", func(t *testing.T) {
		src := &tree{entries: []guestwire.Entry{{Path: "full", Type: guestwire.TypeFile, SHA256: sum}, {Path: "big", Type: guestwire.TypeFile, Size: int64(len(big)), SHA256: sum, Content: true}}, content: map[guestwire.Path][]byte{"big": big}}
		if _, err := c.WriteFiles(t.Context(), src); !workbench.HasCode(err, workbench.CodeWorkspaceFull) {
			t.Errorf("%v", err)
		}
	})
	t.Run("a source that gives too little", func(t *testing.T) {
		src := &tree{entries: []guestwire.Entry{{Path: "x", Type: guestwire.TypeFile, Size: 100, SHA256: sum, Content: true}}, content: map[guestwire.Path][]byte{"x": []byte("short")}}
		if _, err := c.WriteFiles(t.Context(), src); !workbench.HasCode(err, workbench.CodeConflict) {
			t.Errorf("%v", err)
		}
	})
}

func TestManyExecsInterleave(t *testing.T) {
	c := MustServe(t, &scriptedGuest{program: func(_ context.Context, r guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		for range 100 {
			_, _ = x.Stdout.Write(bytes.Repeat(r.Source, 1000))
		}
		return guestwire.ExecResult{}
	}})()
	MustBind(t, c)
	var wg sync.WaitGroup
	for i := range 26 {
		wg.Go(func() {
			r, h := request("e"+string(rune('a'+i))), newRecorder()
			r.Source = []byte{byte('a' + i)}
			e, err := c.Exec(t.Context(), r, h)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := e.Wait(t.Context()); err != nil || h.text(workbench.Stdout) != strings.Repeat(string(r.Source), 100_000) {
				t.Errorf("%v, %d bytes", err, len(h.text(workbench.Stdout)))
			}
		})
	}
	wg.Wait()
}

func TestAnExecOutlivesItsConnectionAndKeepsABoundedTail(t *testing.T) {
	wrote := make(chan int, 10_000)
	g := &scriptedGuest{program: func(_ context.Context, _ guestwire.ExecRequest, x *guestwire.Running) guestwire.ExecResult {
		for i := range 100 {
			_, _ = x.Stdout.Write(bytes.Repeat([]byte{byte(i)}, 10_000))
			wrote <- i
		}
		return guestwire.ExecResult{}
	}}
	dial := MustServe(t, g)
	first := dial()
	MustBind(t, first)
	h := newRecorder()
	h.hold = make(chan struct{})
	if _, err := first.Exec(t.Context(), request("e1"), h); err != nil {
		t.Fatal(err)
	}
	close(h.hold)
	first.Close()
	time.Sleep(50 * time.Millisecond)
	held := len(wrote)
	second := dial()
	execs, err := second.ListExecs(t.Context())
	if err != nil || len(execs) != 1 {
		t.Fatalf("%v %v", execs, err)
	}
	if kept := int64(held)*10_000 - execs[0].Acked.Stdout; !execs[0].Ended && kept > guestwire.Window {
		t.Errorf("%d bytes kept", kept)
	}
	h2 := newRecorder()
	e, err := second.Attach(t.Context(), "e1", execs[0].Acked, h2)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := e.Wait(t.Context()); err != nil || res.Total.Stdout != 1_000_000 {
		t.Errorf("%+v %v", res, err)
	}
	if got := execs[0].Acked.Stdout + int64(len(h2.text(workbench.Stdout))); got != 1_000_000 {
		t.Errorf("%d bytes", got)
	}
}

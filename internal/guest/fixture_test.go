package guest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/sandbox/sandboxtest"
)

// onEach runs a test in a fresh session on each runtime.
func onEach(t *testing.T, f func(t *testing.T, s *session)) {
	for _, kind := range []oci.Kind{oci.Runsc, oci.Runc} {
		t.Run(string(kind), func(t *testing.T) { f(t, MustSession(t, kind)) })
	}
}

// kinds are the runtimes for what the guest does alike on both: the default one,
// and in the long form the other too.
func kinds() []oci.Kind {
	if sandboxtest.Soak() {
		return []oci.Kind{oci.Runsc, oci.Runc}
	}
	return []oci.Kind{oci.Runsc}
}

// onDefault runs a test in a fresh session on each of kinds.
func onDefault(t *testing.T, f func(t *testing.T, s *session)) {
	t.Helper()
	for _, kind := range kinds() {
		t.Run(string(kind), func(t *testing.T) { f(t, MustSession(t, kind)) })
	}
}

func MustDriver(t testing.TB, kind oci.Kind) (sandbox.Driver, sandboxtest.Env) {
	t.Helper()
	env := sandboxtest.MustEnv(t)
	binary := env.Runsc
	if kind == oci.Runc {
		binary = env.Runc
	}
	d, err := oci.Open(oci.Options{Kind: kind, Instance: sandboxtest.NewInstance(), Binary: binary, Guest: env.Guest, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d, env
}

// onPreloaded runs a test in a fresh session on each of the runtimes, of an image
// that names what is loaded ahead.
func onPreloaded(t *testing.T, kinds []oci.Kind, f func(t *testing.T, s *session)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) { f(t, MustSessionOf(t, kind, "standard")) })
	}
}

// MustSession binds a sandbox of the standard size.
func MustSession(t testing.TB, kind oci.Kind) *session {
	t.Helper()
	d, env := MustDriver(t, kind)
	return &session{t: t, kind: kind, d: d, env: env, Session: sandboxtest.MustBind(t, d, sandboxtest.Standard(env.Image))}
}

// MustIPython binds a sandbox of the standard size and image.
func MustIPython(t testing.TB, kind oci.Kind) *session {
	t.Helper()
	d, env := MustDriver(t, kind)
	return &session{t: t, kind: kind, d: d, env: env, Session: sandboxtest.MustBind(t, d, sandboxtest.Standard(sandboxtest.MustImage(t, "standard")))}
}

type session struct {
	*sandboxtest.Session
	t    testing.TB
	kind oci.Kind
	d    sandbox.Driver
	env  sandboxtest.Env
	ids  atomic.Int64
}

// saved is a file that code kept.
type saved struct {
	path    string
	content []byte
}

// shown is something that code displayed.
type shown struct {
	guestwire.DisplayArgs
	data map[string]string // by MIME type
}

// host is the other side of a run: it keeps the output, files, displays and result.
type host struct {
	refusals atomic.Int64 // of tokens, that the guest told of

	mu     sync.Mutex
	out    map[workbench.Stream][]byte
	files  []saved
	shown  []shown
	result json.RawMessage
	wrote  chan struct{} // one for each piece of output
	refuse error         // the answer to save

	asked  []asked                                                                // what the host alone understands
	answer func(ctx context.Context, op string, args map[string]any) (any, error) // answers that; nil: nothing does
}

// asked is a call that the guest only passes on.
type asked struct {
	op   string
	args string
}

func newHost() *host {
	return &host{out: map[workbench.Stream][]byte{}, wrote: make(chan struct{}, 1<<16)}
}

func (h *host) Output(s workbench.Stream, offset int64, data []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if offset != int64(len(h.out[s])) {
		return fmt.Errorf("%s at %d, expected %d", s, offset, len(h.out[s]))
	}
	h.out[s] = append(h.out[s], data...)
	select {
	case h.wrote <- struct{}{}:
	default:
	}
	return nil
}

func (h *host) Call(ctx context.Context, c guestwire.BrokerCall) (json.RawMessage, error) {
	switch c.Op {
	case guestwire.OpSave:
		if h.refuse != nil {
			return nil, h.refuse
		}
		var args guestwire.SaveArgs
		if err := json.Unmarshal(c.Args, &args); err != nil {
			return nil, err
		}
		content, err := io.ReadAll(c.Content)
		if err != nil {
			return nil, err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.files = append(h.files, saved{string(args.Path), content})
		return json.Marshal(map[string]any{"id": fmt.Sprintf("art_%d", len(h.files)), "name": string(args.Path), "size": len(content), "status": "saved", "mimeType": "text/plain"})
	case guestwire.OpDisplay:
		var d shown
		if err := json.Unmarshal(c.Args, &d.DisplayArgs); err != nil {
			return nil, err
		}
		if err := json.NewDecoder(c.Content).Decode(&d.data); err != nil {
			return nil, err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.shown = append(h.shown, d)
		return nil, nil
	case guestwire.OpResult:
		var args guestwire.ResultArgs
		if err := json.Unmarshal(c.Args, &args); err != nil {
			return nil, err
		}
		h.mu.Lock()
		h.result = args.Value
		h.mu.Unlock()
		return nil, nil
	case guestwire.OpRefused:
		h.refusals.Add(1)
		return nil, nil
	}
	return h.passedOn(ctx, c)
}

func (h *host) passedOn(ctx context.Context, c guestwire.BrokerCall) (json.RawMessage, error) {
	var args map[string]any
	if err := json.Unmarshal(c.Args, &args); err != nil || c.Content != nil || !guestwire.PassedOn(c.Op) {
		return nil, fmt.Errorf("%s with content %v: %w", c.Op, c.Content, err)
	}
	h.mu.Lock()
	h.asked = append(h.asked, asked{c.Op, string(c.Args)})
	h.mu.Unlock()
	if h.answer == nil {
		return nil, workbench.E(workbench.CodeNotBuilt, "unknown operation")
	}
	answer, err := h.answer(ctx, c.Op, args)
	if err != nil {
		return nil, err
	}
	return guestwire.Marshal(answer)
}

// wantAsked compares what was passed on, in order.
func (h *host) wantAsked(t testing.TB, want ...asked) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.asked, want) {
		t.Errorf("asked %q, want %q", h.asked, want)
	}
}

func (h *host) text(s workbench.Stream) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.out[s])
}

// run is one exec under way.
type run struct {
	t testing.TB
	*guestwire.Exec
	h     *host
	began time.Time
}

// outcome is how one ended.
type outcome struct {
	guestwire.ExecResult
	stdout, stderr string
	files          []saved
	shown          []shown
	result         string
	took           time.Duration
}

func request(lang workbench.Language, source string) guestwire.ExecRequest {
	return guestwire.ExecRequest{Language: lang, Source: []byte(source)}
}

// begin starts a run in a group of its own.
func (s *session) begin(t testing.TB, r guestwire.ExecRequest, h *host) *run {
	t.Helper()
	r.ID = fmt.Sprintf("r%d", s.ids.Add(1))
	if r.Group == "" {
		r.Group = r.ID
	}
	if r.OutputBytes == 0 {
		r.OutputBytes = 9 << 20
	}
	if r.Timeout == 0 {
		r.Timeout = 60 * time.Second
	}
	began := time.Now()
	e, err := s.Client.Exec(t.Context(), r, h)
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	return &run{t: t, Exec: e, h: h, began: began}
}

// end waits for the end.
func (r *run) end() outcome {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	res, err := r.Wait(ctx)
	if err != nil {
		r.t.Fatalf("wait: %v", err)
	}
	return outcome{ExecResult: res, stdout: r.h.text(workbench.Stdout), stderr: r.h.text(workbench.Stderr),
		files: r.h.files, shown: r.h.shown, result: string(r.h.result), took: time.Since(r.began)}
}

// do runs to the end.
func (s *session) do(t testing.TB, r guestwire.ExecRequest) outcome {
	t.Helper()
	return s.begin(t, r, newHost()).end()
}

// doWithin runs something to the time limit that it has. A limit counts from the
// start of an interpreter, which may take longer than that: what had not come
// far enough runs again, a little later, under the next one.
func (s *session) doWithin(t testing.TB, r guestwire.ExecRequest, came func(outcome) bool, limits ...time.Duration) (o outcome) {
	t.Helper()
	for i, limit := range limits {
		if i > 0 {
			time.Sleep(limit)
		}
		r.Timeout = limit
		if o = s.do(t, r); came(o) {
			break
		}
	}
	return o
}

// printed says that a program came to its first output.
func printed(o outcome) bool { return o.stdout != "" }

// code runs a program.
func (s *session) code(t testing.TB, lang workbench.Language, source string) outcome {
	t.Helper()
	return s.do(t, request(lang, source))
}

// want compares what usually matters.
func (o outcome) want(t testing.TB, exit int, stdout string) {
	t.Helper()
	if o.ExitCode != exit || o.stdout != stdout {
		t.Errorf("exit %d %s %s, stdout %q; want exit %d, stdout %q\nstderr: %s", o.ExitCode, o.Signal, o.Reason, clip(o.stdout), exit, clip(stdout), clip(o.stderr))
	}
}

func clip(s string) string {
	if len(s) > 2000 {
		return s[:1000] + " … " + s[len(s)-1000:]
	}
	return s
}

// files collects a scan.
type files struct {
	entries map[string]guestwire.Entry
	content map[string][]byte
	order   []string
}

func newFiles() *files {
	return &files{entries: map[string]guestwire.Entry{}, content: map[string][]byte{}}
}

func (f *files) Entry(e guestwire.Entry, content io.Reader) error {
	p := string(e.Path)
	f.order = append(f.order, string(e.Change)+" "+p)
	f.entries[p] = e
	if content != nil {
		b, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		f.content[p] = b
	}
	return nil
}

func (s *session) scan(t testing.TB, base string) (*files, guestwire.ScanResult) {
	t.Helper()
	f := newFiles()
	res, err := s.Client.Scan(t.Context(), guestwire.ScanRequest{Base: base}, f)
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	return f, res
}

// source gives entries to a write.
type source struct {
	entries []guestwire.Entry
	content map[string][]byte
}

func (s *source) Next() (guestwire.Entry, io.Reader, error) {
	if len(s.entries) == 0 {
		return guestwire.Entry{}, nil, io.EOF
	}
	e := s.entries[0]
	s.entries = s.entries[1:]
	if e.Type != guestwire.TypeFile {
		return e, nil, nil
	}
	b := s.content[string(e.Path)]
	e.Content, e.Size = true, int64(len(b))
	return e, bytes.NewReader(b), nil
}

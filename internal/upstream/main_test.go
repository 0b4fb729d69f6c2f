package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// programEnv makes the test binary the MCP program that a test talks to.
const programEnv = "WORKBENCH_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if mode := os.Getenv(programEnv); mode != "" {
		program(mode)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// canary is a secret that must never be seen.
const canary = "cnry-S3cret/Value+42"

// world is clients and what they log.
type world struct {
	*upstream.Clients
	t   *testing.T
	log *safeBuffer
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func mustWorld(t *testing.T, o upstream.Options) *world {
	t.Helper()
	log := &safeBuffer{}
	o.Log = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o.StdioAllowed = true
	w := &world{Clients: upstream.New(o), t: t, log: log}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
		w.mustHide("the log", log.String())
	})
	return w
}

// mustHide fails if the canary can be seen in a text.
func (w *world) mustHide(what, text string) {
	w.t.Helper()
	if strings.Contains(text, canary) || strings.Contains(text, "cnry-S3cret") {
		w.t.Errorf("%s holds the secret: %s", what, text)
	}
}

// mustTools imports an app and gives its tools, by name within the app.
func (w *world) mustTools(app workbench.App, g *upstream.Grant) map[string]workbench.Tool {
	w.t.Helper()
	got, err := w.Import(w.t.Context(), app, g)
	if err != nil {
		w.t.Fatalf("importing %s: %v", app.Name, err)
	}
	tools := map[string]workbench.Tool{}
	for _, s := range got.Tools {
		tools[s.Name] = toolOf(app, s)
	}
	return tools
}

func toolOf(app workbench.App, s workbench.ToolSpec) workbench.Tool {
	return workbench.Tool{
		ProjectID: app.ProjectID, App: app.Name, Name: app.Name + "." + s.Name, Version: "1", State: workbench.ToolCurrent,
		Description: s.Description, InputSchema: s.InputSchema, OutputSchema: s.OutputSchema, Annotations: s.Annotations,
		Digest: upstream.Digest(app.Name, s), Binding: s.Binding,
	}
}

// ask calls a tool.
func (w *world) ask(ctx context.Context, app workbench.App, tool workbench.Tool, args string, g *upstream.Grant) (upstream.Answer, error) {
	w.t.Helper()
	if tool.Name == "" {
		w.t.Fatal("there is no such tool")
	}
	a, err := w.Call(ctx, app, tool, json.RawMessage(args), g)
	if err != nil {
		w.mustHide("the error", err.Error())
		e := workbench.AsError(err)
		w.mustHide("the error's public text", e.Detail+e.Hint+e.Field)
	}
	w.mustHide("the result", string(a.Result)+a.Detail+string(a.Binary)+a.MimeType)
	return a, err
}

// mustFail checks an error's code and whether the call may have been executed.
func (w *world) mustFail(err error, code workbench.Code, uncertain bool) *workbench.Error {
	w.t.Helper()
	if !workbench.HasCode(err, code) || upstream.Uncertain(err) != uncertain {
		w.t.Fatalf("got %v (uncertain: %t), want %s (uncertain: %t)", err, upstream.Uncertain(err), code, uncertain)
	}
	return workbench.AsError(err)
}

func bearer() *upstream.Grant {
	return &upstream.Grant{ConnectionID: "con_1", Version: 1, Auth: workbench.AuthBearer, Credentials: workbench.Credentials{Token: canary}}
}

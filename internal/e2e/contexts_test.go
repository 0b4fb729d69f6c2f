package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"image"
	_ "image/png"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// cell submits a cell to the default context and waits.
func (s *session) cell(l workbench.Language, code string) workbench.Receipt {
	s.t.Helper()
	return s.mustRun(sdk.CreateRun{Language: l, Code: code, ContextID: workbench.DefaultContext})
}

func (s *session) py(code string) workbench.Receipt {
	s.t.Helper()
	return s.cell(workbench.Python, code)
}

// value is the plain text of the receipt's values, one a line.
func value(r workbench.Receipt) string {
	var all []string
	for _, shown := range r.Results {
		if text, ok := shown.Text("text/plain"); ok && shown.Type == workbench.ResultValue {
			all = append(all, text)
		}
	}
	return strings.Join(all, "\n")
}

func wantNotice(t *testing.T, r workbench.Receipt, code string) {
	t.Helper()
	for _, n := range r.Notices {
		if n.Code == code {
			return
		}
	}
	t.Fatalf("no notice %s: %+v", code, r.Notices)
}

func (s *session) wantContext(state workbench.ContextState) workbench.Context {
	s.t.Helper()
	c, err := s.c.GetContext(s.t.Context(), s.id, workbench.DefaultContext)
	if err != nil || c.State != state {
		s.t.Fatalf("the context is %s, want %s (%v)", c.State, state, err)
	}
	return c
}

// Cells keep what earlier ones defined; the value of a last expression is a
// result; each receipt carries the session, and none a result of another cell.
func TestCellsKeepState(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	first := s.py("x = 41\nprint('añ☕漢')")
	wantEnd(t, first, workbench.StatusSucceeded, "")
	wantOut(t, first, "añ☕漢\n")
	if first.ContextID != "default" || first.Cell != 1 || len(first.Results) != 0 || first.Session.ID != s.id || first.Session.ExpiresAt.IsZero() {
		t.Fatalf("the first cell: context %q, cell %d, results %v, session %+v", first.ContextID, first.Cell, first.Results, first.Session)
	}
	second := s.py("import math\nx + 1")
	if value(second) != "42" || second.Cell != 2 || len(second.Results) != 1 {
		t.Fatalf("the second cell: value %q, cell %d: %+v", value(second), second.Cell, second.Results)
	}
	if v := value(s.py("await __import__('asyncio').sleep(0)\nmath.floor(2.5)")); v != "2" {
		t.Fatalf("top-level await and an import of an earlier cell: %q", v)
	}
	wantOut(t, s.mustPython("print('x' in globals())"), "False\n") // a run of its own
	c := s.wantContext(workbench.ContextIdle)
	if c.Cells != 3 || c.Generation != first.Generation || c.Language != workbench.Python {
		t.Fatalf("the context: %+v", c)
	}
	if last := s.py("x"); value(last) != "41" || last.VariablesLost {
		t.Fatalf("after a run of its own x is %q, variables lost: %t", value(last), last.VariablesLost)
	}
}

// A cell that names no language is in its context's. The first one of the default
// context must name it; a repeat under a key stays one when the context has gone.
func TestCellsSpeakTheirContextsLanguage(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	cell := func(context, code, key string) (sdk.Submitted, error) {
		return s.c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Code: code, ContextID: context, IdempotencyKey: key})
	}
	_, err := cell(workbench.DefaultContext, "1", "")
	wantCode(t, err, workbench.CodeInvalidRequest)
	if e := workbench.AsError(err); e.Field != "language" || !strings.Contains(e.Detail, "first cell makes it") || e.Hint == "" {
		t.Errorf("the first cell: %+v", e)
	}
	_, err = cell("none", "1", "")
	wantCode(t, err, workbench.CodeContextNotFound)
	_, err = cell("", "1", "")
	wantCode(t, err, workbench.CodeInvalidRequest)
	s.py("x = 41")
	run, err := cell(workbench.DefaultContext, "x + 1", "cell-of-"+s.id)
	if err != nil {
		t.Fatal(err)
	}
	if r := s.mustWait(run.ID); value(r) != "42" || r.Language != workbench.Python {
		t.Errorf("in the default context: %q, %s", value(r), r.Language)
	}
	for _, language := range []workbench.Language{workbench.TypeScript, workbench.Bash} {
		if _, err := s.c.CreateContext(t.Context(), s.id, sdk.CreateContext{ID: "in-" + string(language), Language: language}); err != nil {
			t.Fatal(err)
		}
		run, err := cell("in-"+string(language), "echo='b' // x", "")
		if err != nil || run.Language != language {
			t.Errorf("%s: %+v, %v", language, run.Language, err)
		}
		s.mustWait(run.ID)
	}
	if _, err := s.c.DeleteContext(t.Context(), s.id, workbench.DefaultContext); err != nil {
		t.Fatal(err)
	}
	again, err := cell(workbench.DefaultContext, "x + 1", "cell-of-"+s.id)
	if err != nil || again.ID != run.ID || !again.Replayed {
		t.Errorf("a repeat: %+v, %v", again, err)
	}
}

// A context whose cell runs says how it is restarted or deleted all the same.
func TestBusyContextSaysTheWay(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Bash, ContextID: workbench.DefaultContext, Code: "echo begun; sleep 600"})
	s.mustReach(run, "begun\n")
	_, err := s.c.RestartContext(t.Context(), s.id, workbench.DefaultContext, false)
	wantCode(t, err, workbench.CodeRunsActive)
	if hint := workbench.AsError(err).Hint; !strings.Contains(hint, "cancelActive: true") {
		t.Errorf("a restart: hint %q", hint)
	}
	_, err = s.c.DeleteContext(t.Context(), s.id, workbench.DefaultContext)
	wantCode(t, err, workbench.CodeRunsActive)
	if hint := workbench.AsError(err).Hint; !strings.Contains(hint, "interrupt the context") {
		t.Errorf("a delete: hint %q", hint)
	}
	if _, err := s.c.RestartContext(t.Context(), s.id, workbench.DefaultContext, true); err != nil {
		t.Fatal(err)
	}
	r := s.mustWait(run)
	wantEnd(t, r, workbench.StatusCancelled, workbench.ReasonCancelled)
	wantMessage(t, r, "cancelled while it ran, on request")
}

// B23: exit ends the interpreter, its receipt and the state say so, and the
// next cell says that it began anew.
func TestExitEndsTheContext(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	wantOut(t, s.cell(workbench.Bash, "v=7; cd /tmp; echo $v"), "7\n")
	wantOut(t, s.cell(workbench.Bash, "echo $v $PWD"), "7 /tmp\n")
	r := s.cell(workbench.Bash, "exit 42")
	wantEnd(t, r, workbench.StatusFailed, workbench.ReasonExit)
	if r.ExitCode == nil || *r.ExitCode != 42 {
		t.Fatalf("exit code %v", r.ExitCode)
	}
	wantNotice(t, r, workbench.NoticeContextLost)
	if !r.VariablesLost {
		t.Fatal("the receipt does not say that variables were lost")
	}
	s.wantContext(workbench.ContextEnded)
	next := s.cell(workbench.Bash, "echo \"[$v]\" $PWD")
	wantOut(t, next, "[] /mnt/files\n")
	wantNotice(t, next, workbench.NoticeContextRestart)
	if next.Cell != 1 || !next.VariablesLost {
		t.Fatalf("the next cell is number %d of its interpreter, variables lost: %t", next.Cell, next.VariablesLost)
	}
	s.wantContext(workbench.ContextIdle)
}

// B24: after a time limit the next cell finds the variables. Within the limit the
// cell comes to print something, of three one for certain.
func TestTimeLimitOfACell(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	s.py("x = 1")
	limit := int64(1000)
	for try := 1; ; try++ {
		r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: "print('before')\nwhile True: pass", ContextID: "default", TimeoutMs: &limit})
		wantEnd(t, r, workbench.StatusTimedOut, workbench.ReasonTimeout)
		wantOut(t, s.py("print(x)"), "1\n")
		if try == 3 || text(r.Stdout) != "" {
			wantOut(t, r, "before\n")
			return
		}
	}
}

// B25: an interrupt reaches a child, and the interpreter lives on. A cell that
// has not ended a second later loses it: of three one hears the interrupt.
func TestInterruptOfACell(t *testing.T) {
	w := mustShared(t)
	s := w.mustSession(t, sdk.CreateSession{})
	r := s.mustInterruptCell()
	for range 2 {
		if text(r.Stdout) != "in\n" {
			break
		}
		s = w.mustSession(t, sdk.CreateSession{})
		r = s.mustInterruptCell()
	}
	wantOut(t, r, "in\nKI\n")
	wantOut(t, s.py(`
import time
for _ in range(200): # Python reaps an interrupted child with one of the next that it starts
    left = subprocess.run(['pgrep', '-c', 'sleep'], capture_output=True, text=True).stdout.strip()
    if left == '0': break
    time.sleep(0.05)
print(y, left)`), "5 0\n")
}

// mustInterruptCell interrupts a cell that waits for its child.
func (s *session) mustInterruptCell() workbench.Receipt {
	t := s.t
	t.Helper()
	s.py("y = 5")
	idle, err := s.c.InterruptContext(t.Context(), s.id, "default")
	if err != nil || idle.Interrupted {
		t.Fatalf("an interrupt of what is idle: %+v (%v)", idle, err)
	}
	// The child says that it is there: Python forgets one that it was about to
	// start when the interrupt came.
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, ContextID: "default", Code: "import subprocess\n" +
		"try: subprocess.run(['sh', '-c', 'echo in; exec sleep 30'])\nexcept KeyboardInterrupt: print('KI', flush=True)"})
	awaitOutput(t, s.c, run, "in\n")
	done, err := s.c.InterruptContext(t.Context(), s.id, "default")
	if err != nil || !done.Interrupted || done.RunID != run || done.Context.State != workbench.ContextBusy {
		t.Fatalf("the interrupt: %+v (%v)", done, err)
	}
	r := s.mustWait(run)
	wantEnd(t, r, workbench.StatusCancelled, workbench.ReasonCancelled)
	return r
}

// awaitOutput waits until a run has printed text.
func awaitOutput(t *testing.T, c *sdk.Client, run, text string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		page, err := c.Output(t.Context(), run, workbench.OutputQuery{})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(page.Text, text) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the run printed %q", page.Text)
		}
	}
}

// B29: a killed interpreter is one terminal event, and the next cell works.
func TestKilledInterpreter(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	s.py("z = 1")
	run := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, ContextID: "default", Code: "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"})
	terminal := 0
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for e, err := range s.c.Events(ctx, run, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == workbench.LogTerminal {
			terminal++
		}
	}
	r := s.mustWait(run)
	wantEnd(t, r, workbench.StatusFailed, workbench.ReasonInterpreterDied)
	wantNotice(t, r, workbench.NoticeContextLost)
	if terminal != 1 {
		t.Fatalf("%d terminal events", terminal)
	}
	next := s.py("'z' in globals()")
	wantNotice(t, next, workbench.NoticeContextRestart)
	if value(next) != "False" {
		t.Fatalf("the next cell: %+v", next.Results)
	}
}

// Row 16: the memory limit is no random crash, and the next cell says that
// variables are gone.
func TestMemoryLimitOfACell(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	s.py("w = 1")
	r := s.py("print('so far', flush=True)\nx = bytearray(2_000_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1")
	if r.Status != workbench.StatusFailed {
		t.Fatalf("it ended %s (%s)", r.Status, r.Reason)
	}
	wantOut(t, r, "so far\n")
	if r.Reason != workbench.ReasonOutOfMemory || r.PeakMemoryBytes == 0 {
		t.Fatalf("reason %s, peak %d", r.Reason, r.PeakMemoryBytes)
	}
	wantNotice(t, r, workbench.NoticeContextLost)
	next := s.py("'w' in globals()")
	wantNotice(t, next, workbench.NoticeContextRestart)
	if value(next) != "False" {
		t.Fatalf("the next cell: %+v", next.Results)
	}
}

// B31: of two cells at once each has its own output, and their numbers follow
// each other in the order of acceptance.
func TestTwoCellsAtOnce(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	code := func(name string) string { return fmt.Sprintf("for i in range(50): print(%q, i)", name) }
	a := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, ContextID: "default", Code: code("A")})
	b := s.mustSubmit(sdk.CreateRun{Language: workbench.Python, ContextID: "default", Code: code("B")})
	ra, rb := s.mustWait(a), s.mustWait(b)
	for name, r := range map[string]workbench.Receipt{"A": ra, "B": rb} {
		want := ""
		for i := range 50 {
			want += fmt.Sprintf("%s %d\n", name, i)
		}
		wantOut(t, r, want)
	}
	if ra.Cell != 1 || rb.Cell != 2 || ra.Number+1 != rb.Number {
		t.Fatalf("A is cell %d of run %d, B cell %d of run %d", ra.Cell, ra.Number, rb.Cell, rb.Number)
	}
}

// B35 and row 18: every chart, in order, also the one that was drawn before an
// exception.
func TestCharts(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.py("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()\nprint('between')\nplt.bar(['a'], [3]); plt.show()")
	wantEnd(t, r, workbench.StatusSucceeded, "")
	var sizes []string
	for _, shown := range r.Results {
		if shown.Data["image/png"] == nil {
			continue
		}
		raw, err := s.c.ReadResult(t.Context(), r.ID, shown.Index, "image/png")
		if err != nil {
			t.Fatal(err)
		}
		config, format, err := image.DecodeConfig(bytes.NewReader(raw))
		if err != nil || format != "png" || config.Width < 100 || config.Height < 100 {
			t.Fatalf("result %d is a %s of %dx%d (%v)", shown.Index, format, config.Width, config.Height, err)
		}
		sizes = append(sizes, format)
	}
	if len(sizes) != 2 {
		t.Fatalf("%d images: %+v", len(sizes), r.Results)
	}
	var order []string
	for e, err := range s.c.Events(t.Context(), r.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Kind == workbench.LogOutput && e.Stream == workbench.Stdout:
			order = append(order, strings.TrimSpace(e.Text))
		case e.Result != nil && e.Result.Data["image/png"] != nil:
			order = append(order, "image")
		}
	}
	if got := strings.Join(order, " "); got != "image between image" {
		t.Fatalf("events come as %q", got)
	}
	failed := s.py("plt.plot([3, 1])\nraise ValueError('añ')")
	wantEnd(t, failed, workbench.StatusFailed, workbench.ReasonExit)
	types := ""
	for _, shown := range failed.Results {
		if shown.Data["image/png"] != nil {
			types += "image "
		}
		if shown.Type == workbench.ResultError {
			types += "error "
			if !strings.Contains(string(shown.Data["application/json"]), "ValueError") {
				t.Fatalf("the error is %s", shown.Data["application/json"])
			}
		}
	}
	if !strings.Contains(types, "image") || !strings.Contains(types, "error") {
		t.Fatalf("a figure before an exception: %q: %+v", types, failed.Results)
	}
	wantError(t, failed, "ValueError", "añ", "Traceback (most recent call last):\n", "ValueError: añ")
}

// wantError fails unless the receipt tells the error that ended a cell.
func wantError(t *testing.T, r workbench.Receipt, name, value string, inTrace ...string) {
	t.Helper()
	if r.Error == nil || r.Error.Name != name || r.Error.Value != value {
		t.Fatalf("the receipt's error is %+v", r.Error)
	}
	for _, part := range inTrace {
		if !strings.Contains(r.Error.Traceback, part) || !strings.Contains(text(r.Stderr), part) {
			t.Errorf("%q is not in the traceback %q, or not in stderr %q", part, r.Error.Traceback, text(r.Stderr))
		}
	}
}

// Row N3: each form of what a cell shows comes as it was given, from Python and
// from JavaScript.
func TestFormsOfResults(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	const svg = `<svg xmlns="http://www.w3.org/2000/svg"><text>é</text></svg>`
	python := s.py(`from IPython.display import display, HTML, JSON, Latex, Markdown, SVG
import pandas as pd
display(Latex(r"$\frac{1}{2}$"), Markdown("**é**"), SVG('` + svg + `'), JSON({"a": [1, None, "ñ"]}), HTML("<b>&amp;</b>"))
pd.DataFrame({"n": [7]})`)
	wantEnd(t, python, workbench.StatusSucceeded, "")
	if len(python.Results) != 6 || python.Error != nil {
		t.Fatalf("%d results, error %+v", len(python.Results), python.Error)
	}
	script, err := s.c.CreateContext(t.Context(), s.id, sdk.CreateContext{Language: workbench.JavaScript})
	if err != nil || script.Session == nil || script.Session.ID != s.id {
		t.Fatalf("%+v, %v", script, err)
	}
	js := func(code string) workbench.Receipt {
		return s.mustRun(sdk.CreateRun{Language: workbench.JavaScript, Code: code, ContextID: script.ID})
	}
	javascript := js(`await workbench.display({"text/latex": "$\\frac{1}{2}$"}); await workbench.display({"text/markdown": "**é**"});
await workbench.display({"image/svg+xml": '` + svg + `'}); await workbench.display({"application/json": {"a": [1, null, "ñ"]}});
await workbench.display({"text/html": "<b>&amp;</b>"});
({ n: [7] })`)
	wantEnd(t, javascript, workbench.StatusSucceeded, "")
	if len(javascript.Results) != 6 {
		t.Fatalf("%d results: %+v", len(javascript.Results), javascript.Results)
	}
	for language, r := range map[string]workbench.Receipt{"Python": python, "JavaScript": javascript} {
		for i, form := range []struct{ mime, text string }{{"text/latex", `$\frac{1}{2}$`}, {"text/markdown", "**é**"}, {"image/svg+xml", svg}, {}, {"text/html", "<b>&amp;</b>"}} {
			got, ok := r.Results[i].Text(form.mime)
			if form.mime != "" && (!ok || strings.TrimSpace(got) != form.text) {
				t.Errorf("%s: %s is %s", language, form.mime, r.Results[i].Data)
			}
		}
		if got := strings.ReplaceAll(string(r.Results[3].Data["application/json"]), `\u00f1`, "ñ"); got != `{"a":[1,null,"ñ"]}` {
			t.Errorf("%s: JSON is %s", language, got)
		}
		if got, err := s.c.ReadResult(t.Context(), r.ID, 2, "image/svg+xml"); err != nil || strings.TrimSpace(string(got)) != svg {
			t.Errorf("%s: the SVG's bytes are %q, %v", language, got, err)
		}
	}
	if table, _ := python.Results[5].Text("text/html"); python.Results[5].Type != workbench.ResultValue || !strings.Contains(table, "<td>7</td>") {
		t.Errorf("the table is %s", python.Results[5].Data)
	}
	if last := javascript.Results[5]; last.Type != workbench.ResultValue || string(last.Data["application/json"]) != `{"n":[7]}` {
		t.Errorf("the object is %s", last.Data)
	}
	failed := js("null.x")
	wantEnd(t, failed, workbench.StatusFailed, workbench.ReasonExit)
	wantError(t, failed, "TypeError", "Cannot read properties of null (reading 'x')", "TypeError: ")
	if r := s.mustPython("raise ValueError('x')"); r.Error != nil || len(r.Results) != 0 {
		t.Errorf("a program has the error %+v, and shows %+v", r.Error, r.Results)
	}
}

// A program without a context shows in the same way.
func TestResultsOfAProgram(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.mustPython("import matplotlib.pyplot as plt\nplt.plot([1, 2]); workbench.display(plt.gcf())\nworkbench.result({'n': 3})")
	wantEnd(t, r, workbench.StatusSucceeded, "")
	if len(r.Results) != 2 || r.Results[0].Data["image/png"] == nil || r.Results[1].Type != workbench.ResultStructured || string(r.Result) != `{"n":3}` {
		t.Fatalf("results %+v, result %s", r.Results, r.Result)
	}
	for range 3 { // in order, whether they are awaited or not
		r := s.mustRun(sdk.CreateRun{Language: workbench.JavaScript, Code: "workbench.display({a: 1}); workbench.result({rows: 3}); workbench.display({b: 1})"})
		wantEnd(t, r, workbench.StatusSucceeded, "")
		if len(r.Results) != 3 || r.Results[1].Type != workbench.ResultStructured || string(r.Results[2].Data["application/json"]) != `{"b":1}` {
			t.Errorf("results %+v", r.Results)
		}
	}
}

// A form that is too large for the receipt is a retained file; the same route
// gives it. Beyond the bounds results are left out, and the run does not fail.
func TestLargeResults(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	r := s.py("from IPython.display import display\ndisplay({'text/plain': 'x' * 3_000_000, 'text/html': '<b>é</b>'}, raw=True)")
	wantEnd(t, r, workbench.StatusSucceeded, "")
	if len(r.Results) != 1 || r.Results[0].Artifacts["text/plain"] == "" || r.Results[0].Truncated {
		t.Fatalf("results: %.300v", r.Results)
	}
	if html, ok := r.Results[0].Text("text/html"); !ok || html != "<b>é</b>" {
		t.Fatalf("the small form: %q", html)
	}
	raw, err := s.c.ReadResult(t.Context(), r.ID, 0, "text/plain")
	if err != nil || string(raw) != strings.Repeat("x", 3_000_000) {
		t.Fatalf("%d bytes (%v)", len(raw), err)
	}
	if len(r.Artifacts) != 1 || r.Artifacts[0].Origin != workbench.OriginResult {
		t.Fatalf("retained: %+v", r.Artifacts)
	}
	many := s.py("for i in range(150): display({'text/plain': str(i)}, raw=True)")
	wantEnd(t, many, workbench.StatusSucceeded, "")
	if len(many.Results) == 0 || len(many.Results) > workbench.MaxResults {
		t.Fatalf("%d results", len(many.Results))
	}
	for i, shown := range many.Results {
		if text, _ := shown.Text("text/plain"); text != fmt.Sprint(i) || shown.Index != i {
			t.Fatalf("result %d is %q with index %d", i, text, shown.Index)
		}
	}
	wantNotice(t, many, workbench.NoticeResultsLost)
}

// Whatever took the memory of a sandbox: a cell is refused until somebody
// begins anew.
func TestLostContexts(t *testing.T) {
	t.Parallel() // it waits more than it works
	w := mustWorld(t, func(o *server.Options) { o.MaxRunning, o.MaxSandboxes = 1, 1 })
	s := w.mustSession(t, sdk.CreateSession{})
	refused := func(why workbench.LossReason) {
		t.Helper()
		_, err := s.c.RunCell(t.Context(), s.id, "", workbench.Python, "print(x)")
		wantCode(t, err, workbench.CodeContextLost)
		c := s.wantContext(workbench.ContextLost)
		if c.Lost == nil || c.Lost.Reason != why || c.Lost.At.IsZero() {
			t.Fatalf("lost: %+v, want %s", c.Lost, why)
		}
	}
	anew := func() {
		t.Helper()
		r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: "print('x' in globals()); x = 1", ContextID: "default", OnLostContext: workbench.LostContextRestart})
		wantOut(t, r, "False\n")
		wantNotice(t, r, workbench.NoticeContextRestart)
		wantOut(t, s.py("print(x)"), "1\n")
	}
	s.py("x = 1")
	wantOut(t, w.mustSession(t, sdk.CreateSession{}).mustBash("echo needs the room"), "needs the room\n")
	refused(workbench.LossRoom)
	anew()
	if _, err := s.c.RestartAgentSession(t.Context(), s.id, sdk.RestartSession{}); err != nil {
		t.Fatal(err)
	}
	refused(workbench.LossRestart)
	if _, err := s.c.RestartContext(t.Context(), s.id, "default", false); err != nil {
		t.Fatal(err)
	}
	s.wantContext(workbench.ContextIdle)
	wantOut(t, s.py("print('x' in globals()); x = 1"), "False\n")
	tasks := 32
	if _, err := s.c.ConfigureAgentSession(t.Context(), s.id, sdk.ConfigureSession{Limits: &workbench.LimitsRequest{Tasks: &tasks}}); err != nil {
		t.Fatal(err)
	}
	// Admitted before anybody knew: it ends without having run.
	r := s.py("open('ran', 'w').close(); print(x)")
	wantEnd(t, r, workbench.StatusFailed, workbench.ReasonContextLost)
	if r.Files.Total != 0 || text(r.Stdout) != "" {
		t.Fatalf("something of it ran: %+v, %q", r.Files, text(r.Stdout))
	}
	refused(workbench.LossLimits)
	anew()
	killSandboxes(t, w)
	for deadline := time.Now().Add(time.Minute); s.mustBash("true").Status != workbench.StatusSucceeded; { // the first may find it dying
		if time.Now().After(deadline) {
			t.Fatal("the session does not recover")
		}
	}
	refused(workbench.LossSandbox)
	wantOut(t, s.mustBash("ls"), "")
}

// Row 9: a suspended session's files are there, and that its variables are not
// is said before anything runs.
func TestSuspendedContext(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.SuspendAfter = 300 * time.Millisecond })
	s := w.mustSession(t, sdk.CreateSession{})
	s.py("x = 1\nopen('kept', 'w').write('here')")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		c, err := s.c.GetContext(t.Context(), s.id, "default")
		if err != nil {
			t.Fatal(err)
		}
		if c.State == workbench.ContextLost {
			if c.Lost.Reason != workbench.LossSuspended {
				t.Fatalf("lost: %+v", c.Lost)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the context is %s", c.State)
		}
	}
	_, err := s.c.RunCell(t.Context(), s.id, "", workbench.Python, "print(x)")
	wantCode(t, err, workbench.CodeContextLost)
	r := s.mustRun(sdk.CreateRun{Language: workbench.Python, Code: "print(open('kept').read(), 'x' in globals())", ContextID: "default", OnLostContext: workbench.LostContextRestart})
	wantOut(t, r, "here False\n")
}

// Several contexts of a session, each with its language, environment and
// directory; a deleted one's interpreter is gone.
func TestManyContexts(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	s.mustBash("mkdir data")
	made, err := s.c.CreateContext(t.Context(), s.id, sdk.CreateContext{ID: "analysis", Language: workbench.Python, Env: map[string]string{"MODE": "démo"}, Dir: "data"})
	if err != nil || made.Dir != "/mnt/files/data" {
		t.Fatalf("made %+v (%v)", made, err)
	}
	again, err := s.c.CreateContext(t.Context(), s.id, sdk.CreateContext{ID: "analysis", Language: workbench.Python, Env: map[string]string{"MODE": "démo"}, Dir: "/mnt/files/data/"})
	if err != nil || again.CreatedAt != made.CreatedAt {
		t.Fatalf("the same once more: %+v (%v)", again, err)
	}
	_, err = s.c.CreateContext(t.Context(), s.id, sdk.CreateContext{ID: "analysis", Language: workbench.Python, Env: map[string]string{"MODE": "other"}, Dir: "data"})
	wantCode(t, err, workbench.CodeContextExists)
	r, err := s.c.RunCell(t.Context(), s.id, "analysis", workbench.Python, "import os\nprint(os.environ['MODE'], os.getcwd())")
	if err != nil {
		t.Fatal(err)
	}
	wantOut(t, r, "démo /mnt/files/data\n")
	wantOut(t, s.cell(workbench.Bash, "a=1; echo $a"), "1\n")
	_, err = s.c.RunCell(t.Context(), s.id, "analysis", workbench.Bash, "ls")
	wantCode(t, err, workbench.CodeContextLanguage)
	if _, err := s.c.DeleteContext(t.Context(), s.id, "analysis"); err != nil {
		t.Fatal(err)
	}
	_, err = s.c.RunCell(t.Context(), s.id, "analysis", workbench.Python, "1")
	wantCode(t, err, workbench.CodeContextNotFound)
	wantOut(t, s.cell(workbench.Bash, "echo $a"), "1\n")
	for field, r := range map[string]sdk.CreateRun{
		"args": {Args: []string{"a"}}, "stdin": {Stdin: "x"}, "env": {Env: map[string]string{"A": "b"}}, "background": {Background: true},
	} {
		r.Language, r.Code, r.ContextID = workbench.Bash, "ls", "default"
		_, err := s.c.CreateSessionRun(t.Context(), s.id, r)
		wantCode(t, err, workbench.CodeInvalidRequest)
		if e := workbench.AsError(err); e.Field != field {
			t.Errorf("%s of a cell: field %q", field, e.Field)
		}
	}
}

// Row 13 and B33: JavaScript and TypeScript share an interpreter; imports and
// top-level await work in any cell, and a cell may be run again.
func TestJavaScriptCells(t *testing.T) {
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	const code = "import { basename } from \"node:path\";\nconst v = await Promise.resolve(basename(\"/x/y.txt\"));\nconsole.log(v);"
	for range 2 {
		r := s.cell(workbench.JavaScript, code)
		wantEnd(t, r, workbench.StatusSucceeded, "")
		wantOut(t, r, "y.txt\n")
	}
	wantOut(t, s.cell(workbench.TypeScript, "const n: number = v.length; console.log(n)"), "5\n")
	if r := s.cell(workbench.JavaScript, "n + 1"); value(r) != "6" || r.Cell != 4 {
		t.Fatalf("value %q, cell %d; stderr %q", value(r), r.Cell, text(r.Stderr))
	}
}

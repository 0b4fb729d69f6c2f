package upstream_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// program is what the test binary does as an MCP program: "sdk" serves with the
// SDK, everything else by hand and badly.
func program(mode string) {
	if mode == "sdk" {
		_ = sdkServer(nil).Run(context.Background(), &mcp.StdioTransport{})
		return
	}
	if mode == "exit" {
		fmt.Fprintln(os.Stderr, "cannot start with", os.Getenv("TOKEN"))
		os.Exit(3)
	}
	note(os.Getenv("STARTS"), fmt.Sprint(os.Getpid()))
	s := &badServer{out: bufio.NewWriter(os.Stdout), version: 1}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		s.take(in.Bytes())
		_ = s.out.Flush()
	}
}

// note appends a line to a file.
func note(file, line string) {
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, _ = fmt.Fprintln(f, line)
		_ = f.Close()
	}
}

// sdkServer is a server with a few honest tools. done hears of what is done.
func sdkServer(done func(string)) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	object := json.RawMessage(`{"type":"object"}`)
	add := func(t *mcp.Tool, result func(args string) *mcp.CallToolResult) {
		if t.InputSchema == nil {
			t.InputSchema = object
		}
		s.AddTool(t, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if done != nil {
				done(t.Name)
			}
			return result(string(req.Params.Arguments)), nil
		})
	}
	text := func(lines ...string) *mcp.CallToolResult {
		r := &mcp.CallToolResult{}
		for _, l := range lines {
			r.Content = append(r.Content, &mcp.TextContent{Text: l})
		}
		return r
	}
	yes, no := true, false
	add(&mcp.Tool{Name: "text", Title: "Text", Description: "says text"}, func(string) *mcp.CallToolResult { return text("one", "two <&>") })
	add(&mcp.Tool{Name: "echo", InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"number","maximum":12345678901234567890}}}`),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: &no, OpenWorldHint: &no, Title: "Echo"}},
		func(args string) *mcp.CallToolResult {
			return &mcp.CallToolResult{StructuredContent: json.RawMessage(args)}
		})
	add(&mcp.Tool{Name: "picture", Annotations: &mcp.ToolAnnotations{DestructiveHint: &yes}}, func(string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "see"}, &mcp.ImageContent{Data: []byte{1, 2, 3}, MIMEType: "image/png"}}}
	})
	add(&mcp.Tool{Name: "fail"}, func(string) *mcp.CallToolResult {
		r := text("no luck: " + strings.Repeat("é", 3000))
		r.IsError = true
		return r
	})
	add(&mcp.Tool{Name: "nothing"}, func(string) *mcp.CallToolResult { return &mcp.CallToolResult{Content: []mcp.Content{}} })
	return s
}

// badServer is a server by hand.
type badServer struct {
	out     *bufio.Writer
	version int
	late    json.RawMessage // the id of a call that is answered with the next one
	told    string
}

func (s *badServer) take(line []byte) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name string `json:"name"`
		} `json:"params"`
	}
	if json.Unmarshal(line, &m) != nil || len(m.ID) == 0 {
		return
	}
	switch m.Method {
	case "initialize":
		s.result(m.ID, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"bad","version":"1"}}`)
	case "tools/list":
		s.list(m.ID)
	case "tools/call":
		note(os.Getenv("DONE"), m.Params.Name)
		s.call(m.ID, m.Params.Name)
	default:
		fmt.Fprintf(s.out, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`+"\n", m.ID)
	}
}

func (s *badServer) result(id json.RawMessage, result string) {
	fmt.Fprintf(s.out, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", id, result)
}

func (s *badServer) list(id json.RawMessage) {
	var tools []string
	for _, name := range []string{"env", "say", "twice", "big", "big-first", "die", "die-after", "hang", "inside", "refuse", "junk", "strange", "change", "leak", "wants", "late", "flood", "wide", "folder/say", "set", "get"} {
		tools = append(tools, fmt.Sprintf(`{"name":%q,"description":"version %d","inputSchema":{"type":"object"}}`, name, s.version))
	}
	tools = append(tools, `{"name":"bad name","inputSchema":{"type":"object"}}`, `{"name":"remote","inputSchema":{"type":"object","properties":{"a":{"$ref":"http://evil.example/x"}}}}`,
		`{"name":"say","inputSchema":{"type":"object"}}`, `{"name":"no-object","inputSchema":{"type":"string"}}`, `{"name":"told","description":"`+os.Getenv("TOKEN")+`","inputSchema":{"type":"object"}}`)
	s.result(id, `{"tools":[`+strings.Join(tools, ",")+`]}`)
}

const said = `{"content":[{"type":"text","text":"done"}]}`

func (s *badServer) call(id json.RawMessage, name string) {
	if s.late != nil {
		s.result(s.late, `{"content":[{"type":"text","text":"late"}]}`)
		s.late = nil
	}
	big := func() {
		part := strings.Repeat("x", 1<<20)
		for range 100 {
			_, _ = s.out.WriteString(part)
		}
	}
	switch name {
	case "env":
		env, _ := json.Marshal(os.Environ())
		cwd, _ := os.Getwd()
		fds, _ := filepath.Glob("/proc/self/fd/*")
		var open []string
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil {
				open = append(open, to)
			}
		}
		all, _ := json.Marshal(map[string]any{"env": json.RawMessage(env), "cwd": cwd, "open": open, "group": syscall.Getpgrp() == os.Getpid()})
		s.result(id, `{"content":[],"structuredContent":`+string(all)+`}`)
	case "twice":
		s.result(json.RawMessage(`99999`), said)
		s.result(id, `{"content":[{"type":"text","text":"first"}]}`)
		s.result(id, `{"content":[{"type":"text","text":"second"}]}`)
	case "big":
		fmt.Fprintf(s.out, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"`, id)
		big()
		_, _ = s.out.WriteString("\"}]}}\n")
	case "big-first":
		_, _ = s.out.WriteString(`{"result":{"content":[{"id":1,"type":"text","text":"\"`)
		big()
		fmt.Fprintf(s.out, `"}]},"jsonrpc":"2.0","id": %s }`+"\n", id)
	case "die":
		os.Exit(1)
	case "die-after":
		s.result(id, said)
		_ = s.out.Flush()
		os.Exit(0)
	case "hang":
	case "flood": // asks for ever, and reads no answer
		s.result(id, said)
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(s.out, `{"jsonrpc":"2.0","id":"p%d","method":"ping"}`+"\n", i); err != nil {
				os.Exit(0)
			}
		}
	case "wide":
		s.result(id, `{"content":[],"structuredContent":{"a":[{}`+strings.Repeat(",{}", 2_000_000)+`]}}`)
	case "set":
		s.told = "a secret"
		s.result(id, said)
	case "get":
		s.result(id, `{"content":[{"type":"text","text":"`+s.told+`"}]}`)
	case "late":
		s.late = id
	case "inside":
		fmt.Fprintf(s.out, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"broke with %s"}}`+"\n", id, os.Getenv("TOKEN"))
	case "refuse":
		fmt.Fprintf(s.out, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"bad arguments"}}`+"\n", id)
	case "junk":
		_, _ = s.out.WriteString("npm warn something\n\n{\"half\":\n[1,2]\n" + os.Getenv("TOKEN") + "\n")
		s.result(id, said)
	case "strange":
		s.result(id, `{"content":[{"type":"hologram","beam":1}],"structuredContent":null}`)
	case "change":
		s.version++
		_, _ = s.out.WriteString(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` + "\n")
		s.result(id, said)
	case "leak":
		fmt.Fprintln(os.Stderr, "token is", os.Getenv("TOKEN"))
		s.result(id, `{"content":[{"type":"text","text":"token is `+os.Getenv("TOKEN")+`"}]}`)
	case "wants":
		s.result(id, `{"resultType":"input_required","content":[],"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object"}}}}}`)
	default:
		s.result(id, said)
	}
}

// programApp is the test binary as an app.
func programApp(t *testing.T, mode string) (app workbench.App, starts, done func() []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	lines := func(name string) func() []string {
		return func() []string {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return nil
			}
			return strings.Fields(string(b))
		}
	}
	return workbench.App{ProjectID: "prj_1", Name: "local", Kind: workbench.AppMCPStdio, Config: workbench.AppConfig{
		Command: self, CredentialEnv: "TOKEN", TimeoutMs: 120_000,
		Env: map[string]string{programEnv: mode, "STARTS": filepath.Join(dir, "starts"), "DONE": filepath.Join(dir, "done")},
	}}, lines("starts"), lines("done")
}

func TestAProgramOfTheSDK(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, _, _ := programApp(t, "sdk")
	checkHonestTools(t, w, app)
}

// checkHonestTools asks the tools of sdkServer.
func checkHonestTools(t *testing.T, w *world, app workbench.App) {
	t.Helper()
	tools := w.mustTools(app, nil)
	for name, want := range map[string]workbench.ToolAnnotations{
		"text":    {Title: "Text", Destructive: true, OpenWorld: true},
		"echo":    {Title: "Echo", ReadOnly: true, Idempotent: true},
		"picture": {Destructive: true, OpenWorld: true},
	} {
		if got := tools[name].Annotations; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if got := string(tools["echo"].InputSchema); !strings.Contains(got, "12345678901234567890") {
		t.Errorf("the schema lost a number: %s", got)
	}
	for _, c := range []struct {
		tool, args, result, detail string
		failed                     bool
	}{
		{"text", ``, `"one\ntwo <&>"`, "", false},
		{"echo", `{"n":12345678901234567890,"b":[1.50,null]}`, `{"n":12345678901234567890,"b":[1.50,null]}`, "", false},
		{"picture", `{}`, `[{"type":"text","text":"see"},{"type":"image","mimeType":"image/png","data":"AQID"}]`, "", false},
		{"nothing", `null`, `null`, "", false},
		{"fail", `{}`, ``, "no luck: é", true},
	} {
		a, err := w.ask(t.Context(), app, tools[c.tool], c.args, nil)
		if err != nil {
			t.Errorf("%s: %v", c.tool, err)
			continue
		}
		if c.result != "" && string(a.Result) != c.result || a.Failed != c.failed || !strings.HasPrefix(a.Detail, c.detail) || len(a.Detail) > 2048 {
			t.Errorf("%s: %s, failed %t, %q", c.tool, a.Result, a.Failed, a.Detail)
		}
	}
}

func TestABadProgram(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, starts, done := programApp(t, "bad")
	tools := w.mustTools(app, bearer())
	for _, c := range []struct {
		tool, result string
		code         workbench.Code
		uncertain    bool
	}{
		{"say", `"done"`, "", false},
		{"twice", `"first"`, "", false},
		{"say", `"done"`, "", false},
		{"junk", `"done"`, "", false},
		{"strange", `[{"type":"hologram","beam":1}]`, "", false},
		{"big", "", workbench.CodeResultTooLarge, true},
		{"big-first", "", workbench.CodeResultTooLarge, true},
		{"inside", "", workbench.CodeToolFailed, true},
		{"refuse", "", workbench.CodeToolFailed, false},
		{"wants", "", workbench.CodeToolFailed, false},
		{"leak", `"token is [redacted]"`, "", false},
		{"told", `"done"`, "", false},
	} {
		before := len(done())
		a, err := w.ask(t.Context(), app, tools[c.tool], `{}`, bearer())
		if c.code == "" && (err != nil || string(a.Result) != c.result) {
			t.Errorf("%s: %s (%v), want %s", c.tool, a.Result, err, c.result)
		}
		if c.code != "" {
			w.mustFail(err, c.code, c.uncertain)
		}
		if got := len(done()) - before; got != 1 {
			t.Errorf("%s was done %d times", c.tool, got)
		}
	}
	if got := len(starts()); got != 1 {
		t.Errorf("%d programs, want one for all calls", got)
	}
	if tools["told"].Description != "[redacted]" {
		t.Errorf("a description tells the secret: %q", tools["told"].Description)
	}
}

func TestAProgramThatEnds(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, starts, done := programApp(t, "bad")
	tools := w.mustTools(app, nil)
	_, err := w.ask(t.Context(), app, tools["die"], `{}`, nil)
	w.mustFail(err, workbench.CodeToolUnavailable, true)
	// Its end is what the call was told: the next one goes to another at once.
	if _, err := w.ask(t.Context(), app, tools["die-after"], `{}`, nil); err != nil {
		t.Fatal(err)
	}
	// What is written to a program that is ending may have been read: only once
	// its end is seen is the next call certain to go to another.
	waitFor(t, func() bool { return w.Sessions() == 0 })
	if _, err := w.ask(t.Context(), app, tools["say"], `{}`, nil); err != nil {
		t.Fatal(err)
	}
	if got := len(starts()); got != 3 {
		t.Errorf("%d programs were started, want 3", got)
	}
	if got := done(); len(got) != 3 {
		t.Errorf("done: %q", got)
	}
}

func TestAProgramThatDoesNotAnswerInTime(t *testing.T) {
	for _, name := range []string{"hang", "late"} {
		w := mustWorld(t, upstream.Options{})
		app, _, done := programApp(t, "bad")
		tools := w.mustTools(app, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := w.ask(ctx, app, tools[name], `{}`, nil)
		cancel()
		w.mustFail(err, workbench.CodeToolTimeout, true)
		if got := done(); len(got) != 1 {
			t.Errorf("%s: done: %q", name, got)
		}
		for range 2 {
			if a, err := w.ask(t.Context(), app, tools["say"], `{}`, nil); err != nil || string(a.Result) != `"done"` {
				t.Errorf("%s: the next call: %s, %v", name, a.Result, err)
			}
		}
	}
}

func TestAToolThatChanges(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, _, done := programApp(t, "bad")
	tools := w.mustTools(app, nil)
	if _, err := w.ask(t.Context(), app, tools["change"], `{}`, nil); err != nil {
		t.Fatal(err)
	}
	_, err := w.ask(t.Context(), app, tools["say"], `{}`, nil)
	if e := w.mustFail(err, workbench.CodeToolChanged, false); !strings.Contains(e.Hint, "import") {
		t.Errorf("hint %q", e.Hint)
	}
	if slices.Contains(done(), "say") {
		t.Error("the changed tool was asked")
	}
	if _, err := w.ask(t.Context(), app, w.mustTools(app, nil)["say"], `{}`, nil); err != nil {
		t.Errorf("after importing again: %v", err)
	}
	gone := tools["say"]
	gone.Name = "local.gone"
	_, err = w.ask(t.Context(), app, gone, `{}`, nil)
	w.mustFail(err, workbench.CodeToolChanged, false)
}

func TestWhatIsSkipped(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, _, _ := programApp(t, "bad")
	got, err := w.Import(t.Context(), app, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`"bad name": its name has other characters than letters, digits, _, -, . and /`,
		`"remote": its input schema cannot be used: the schema refers to something outside of it; nothing is fetched`,
		`"say": another tool has its name`,
		`"no-object": its input schema cannot be used: the schema must say "type": "object" at its root`,
	}
	if !slices.Equal(got.Skipped, want) {
		t.Errorf("skipped %q", got.Skipped)
	}
}

func TestWhatAProgramSees(t *testing.T) {
	t.Setenv("SERVER_SECRET", canary)
	w := mustWorld(t, upstream.Options{})
	app, starts, _ := programApp(t, "bad")
	g := bearer()
	g.Credentials.Token = "tok-for-the-program"
	a, err := w.ask(t.Context(), app, w.mustTools(app, g)["env"], `{}`, g)
	if err != nil {
		t.Fatal(err)
	}
	var seen struct {
		Env   []string
		Cwd   string
		Open  []string
		Group bool
	}
	if err := json.Unmarshal(a.Result, &seen); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range seen.Env {
		name, _, _ := strings.Cut(v, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"DONE", "HOME", "PATH", "STARTS", "TMPDIR", "TOKEN", programEnv}
	if _, ok := os.LookupEnv("LANG"); ok {
		want = append(want, "LANG")
	}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("variables %q, want %q", names, want)
	}
	if !slices.Contains(seen.Env, "TOKEN=[redacted]") {
		t.Errorf("the token is not in its variable: %q", seen.Env)
	}
	if !strings.Contains(seen.Cwd, "workbench-app-") {
		t.Errorf("it works in %s", seen.Cwd)
	}
	inherited := slices.DeleteFunc(seen.Open, func(to string) bool { // what Go itself opens
		return strings.HasPrefix(to, "anon_inode:") || strings.HasPrefix(to, "/sys/fs/cgroup/") || strings.HasPrefix(to, "/proc/")
	})
	if len(inherited) != 3 || slices.ContainsFunc(inherited, func(to string) bool { return !strings.HasPrefix(to, "pipe:") }) {
		t.Errorf("it has the descriptors %q", inherited)
	}
	if !seen.Group {
		t.Error("it is in the server's process group")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range starts() {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			t.Errorf("the program %s is still there", pid)
		}
	}
	if _, err := os.Stat(seen.Cwd); err == nil {
		t.Errorf("%s is still there", seen.Cwd)
	}
}

func TestOneProgramForEachCredential(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, starts, _ := programApp(t, "bad")
	ann, ann2, bob := bearer(), bearer(), bearer()
	ann2.Version, ann2.Credentials.Token = 2, "another token"
	bob.ConnectionID = "con_2"
	tools := w.mustTools(app, ann)
	for _, g := range []*upstream.Grant{ann, ann2, bob, nil, ann, ann2, bob, nil} {
		if _, err := w.ask(t.Context(), app, tools["say"], `{}`, g); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(starts()); got != 4 {
		t.Errorf("%d programs, want 4", got)
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.Call(t.Context(), app, tools["hang"], nil, ann)
		done <- err
	}()
	waitFor(t, func() bool { return w.Uses("con_1", 1) == 1 })
	w.Forget("con_1")
	if err := <-done; !upstream.Uncertain(err) && !workbench.HasCode(err, workbench.CodeToolUnavailable) {
		t.Errorf("the call under way: %v", err)
	}
	pids := starts()
	waitFor(t, func() bool { return !running(pids[0]) && !running(pids[1]) })
	if !running(pids[2]) || !running(pids[3]) {
		t.Error("programs of other connections ended too")
	}
	w.ForgetApp("prj_1", "local")
	waitFor(t, func() bool { return !running(pids[2]) && !running(pids[3]) })
}

func running(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func waitFor(t *testing.T, what func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come to that")
		}
	}
}

func TestAProgramThatCannotBeStarted(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	missing := workbench.App{ProjectID: "prj_1", Name: "local", Kind: workbench.AppMCPStdio, Config: workbench.AppConfig{Command: "no-such-program-here"}}
	_, err := w.Import(t.Context(), missing, nil)
	w.mustFail(err, workbench.CodeToolUnavailable, false)
	ends, _, _ := programApp(t, "exit")
	_, err = w.Import(t.Context(), ends, bearer())
	if e := w.mustFail(err, workbench.CodeToolUnavailable, false); !strings.Contains(e.Detail, "exit status 3") {
		t.Errorf("detail %q", e.Detail)
	}
	forbidden := upstream.New(upstream.Options{})
	defer forbidden.Close()
	_, err = forbidden.Import(t.Context(), ends, nil)
	w.mustFail(err, workbench.CodeInvalidRequest, false)
	hosts := bearer()
	hosts.Hosts = []string{"api.example.com"}
	_, err = w.Import(t.Context(), ends, hosts)
	w.mustFail(err, workbench.CodeConnectionRefused, false)
}

func TestWhatAProgramSaysIsLoggedWithoutSecrets(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, _, _ := programApp(t, "bad")
	if _, err := w.ask(t.Context(), app, w.mustTools(app, bearer())["leak"], `{}`, bearer()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(w.log.String(), "token is [redacted]") {
		t.Errorf("the log: %s", w.log.String())
	}
}

func TestAProgramIsStartedOnceForFirstCalls(t *testing.T) {
	w := mustWorld(t, upstream.Options{IdleAfter: time.Hour})
	app, starts, done := programApp(t, "bad")
	spec := workbench.ToolSpec{Name: "say", Description: "version 1", InputSchema: json.RawMessage(`{"type":"object"}`),
		Annotations: workbench.ToolAnnotations{Destructive: true, OpenWorld: true}, Binding: json.RawMessage(`{"kind":"mcp"}`)}
	errs := make(chan error, 20)
	for range 20 {
		go func() {
			_, err := w.Call(t.Context(), app, toolOf(app, spec), nil, nil)
			errs <- err
		}()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if len(starts()) != 1 || len(done()) != 20 {
		t.Errorf("%d programs, %d calls done", len(starts()), len(done()))
	}
}

func TestAnIdleProgramEnds(t *testing.T) {
	w := mustWorld(t, upstream.Options{IdleAfter: 20 * time.Millisecond})
	app, starts, _ := programApp(t, "bad")
	w.mustTools(app, nil)
	waitFor(t, func() bool { pids := starts(); return len(pids) == 1 && !running(pids[0]) })
}

// The reference server of the MCP project, from the npm registry.
func TestTheReferenceServer(t *testing.T) {
	npx, err := exec.LookPath("npx")
	if err != nil {
		t.Skip("npx is not installed")
	}
	if os.Getenv("WORKBENCH_SOAK") == "" {
		t.Skip("part of make soak: it installs @modelcontextprotocol/server-everything")
	}
	w := mustWorld(t, upstream.Options{})
	app := workbench.App{ProjectID: "prj_1", Name: "everything", Kind: workbench.AppMCPStdio, Config: workbench.AppConfig{
		Command: npx, Args: []string{"-y", "@modelcontextprotocol/server-everything"}, TimeoutMs: 120_000,
	}}
	tools := w.mustTools(app, nil)
	a, err := w.ask(t.Context(), app, tools["echo"], `{"message":"hi"}`, nil)
	if err != nil || !strings.Contains(string(a.Result), "hi") {
		t.Errorf("echo: %s, %v", a.Result, err)
	}
}

// A program that asks and does not read what it is answered is ended; the next call has
// another one.
func TestAProgramThatAsksForEver(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, starts, _ := programApp(t, "bad")
	tools := w.mustTools(app, nil)
	if _, err := w.ask(t.Context(), app, tools["flood"], `{}`, nil); err != nil {
		t.Logf("the call itself: %v", err) // it was answered; that may not have been read before the end
	}
	for end := time.Now().Add(20 * time.Second); w.Sessions() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program is still there")
		}
	}
	if _, err := w.ask(t.Context(), app, tools["say"], `{}`, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(starts()); n != 2 {
		t.Errorf("%d programs were started", n)
	}
}

// One call that hangs does not take the app from others.
func TestAProgramThatHangsIsReplaced(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, starts, _ := programApp(t, "bad")
	tools := w.mustTools(app, nil)
	app.Config.TimeoutMs = 2000
	_, err := w.ask(t.Context(), app, tools["hang"], `{}`, nil)
	w.mustFail(err, workbench.CodeToolTimeout, true)
	if _, err := w.ask(t.Context(), app, tools["say"], `{}`, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(starts()); n != 3 { // one of the import, with another timeout; the one that hung; another
		t.Errorf("%d programs were started", n)
	}
	for end := time.Now().Add(20 * time.Second); w.Sessions() > 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program that hung is still there")
		}
	}
}

// Tenants have no program in common: it may keep what it was told.
func TestAProgramIsOneTenants(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, _, _ := programApp(t, "bad")
	tools := w.mustTools(app, nil)
	acme, evil := upstream.WithTenant(t.Context(), "ten_1"), upstream.WithTenant(t.Context(), "ten_2")
	if _, err := w.ask(acme, app, tools["set"], `{}`, nil); err != nil {
		t.Fatal(err)
	}
	for who, want := range map[string]string{"ten_1": `"a secret"`, "ten_2": `""`} {
		ctx := map[string]context.Context{"ten_1": acme, "ten_2": evil}[who]
		if a, err := w.ask(ctx, app, tools["get"], `{}`, nil); err != nil || string(a.Result) != want {
			t.Errorf("%s reads %s (%v), want %s", who, a.Result, err, want)
		}
	}
}

// What a server calls folder/say is local.folder.say here, and is asked by its own name.
func TestAToolInAFolder(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, _, done := programApp(t, "bad")
	tool := w.mustTools(app, nil)["folder/say"]
	tool.Name = app.Name + ".folder.say"
	if _, err := w.ask(t.Context(), app, tool, `{}`, nil); err != nil {
		t.Fatal(err)
	}
	if got := done(); !slices.Equal(got, []string{"folder/say"}) {
		t.Errorf("asked for %q", got)
	}
}

// A result is not decoded on its way: two million empty objects are eight megabytes.
func TestAWideResultTakesLittleMemory(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app, _, _ := programApp(t, "bad")
	tools := w.mustTools(app, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a, err := w.ask(t.Context(), app, tools["wide"], `{}`, nil)
	runtime.ReadMemStats(&after)
	if err != nil || len(a.Result) < 6_000_000 {
		t.Fatalf("%d bytes, %v", len(a.Result), err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 30*uint64(len(a.Result)) {
		t.Errorf("%d MB were allocated for %d MB", took>>20, len(a.Result)>>20)
	}
}

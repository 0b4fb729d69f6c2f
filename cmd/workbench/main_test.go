package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/terminal"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

var update = flag.Bool("update", false, "write docs/cli.md's table of exit statuses")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"workbench": func() { os.Exit(Main()) }, "echo-mcp": echoMCP})
}

// hermetic takes this host's settings out of a test's environment.
func hermetic(t *testing.T) {
	t.Helper()
	for _, name := range []string{"SERVER", "KEY", "KEY_FILE", "TENANT", "END_USER", "GROUP", "DATA", "IMAGES", "DRIVER", "DATABASE", "LISTEN"} {
		t.Setenv("WORKBENCH_"+name, "")
	}
}

// invoke runs one command line in this process.
func invoke(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut bytes.Buffer
	a := &app{in: os.Stdin, out: &out, err: &errOut}
	status = a.run(t.Context(), args)
	return out.String(), errOut.String(), status
}

func TestExitTableIsTheDocumentedOne(t *testing.T) {
	const page = "../../docs/cli.md"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(raw), "|---:|---|---|\n")
	if !ok {
		t.Fatal("docs/cli.md has no table of exit statuses")
	}
	want := head + "|---:|---|---|\n" + exitTable()
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(raw) != want {
		t.Errorf("docs/cli.md does not have the table of the code; go test ./cmd/workbench -run ExitTable -update writes it\n%s", exitTable())
	}
	for _, c := range workbench.ErrorTable() {
		if !strings.Contains(want, "`"+string(c.Code)+"`") {
			t.Errorf("the table does not tell the exit status of %s", c.Code)
		}
	}
}

func TestUsageErrorsExitWithTwo(t *testing.T) {
	hermetic(t)
	for _, args := range [][]string{
		{"frob"}, {"session", "frob"}, {"run"}, {"run", "a.py", "b.py"}, {"run", "--frob", "a.py"}, {"session", "show"},
		{"run", "testdata/none.py"}, {"run", "main_test.go"}, {"run", "-", "--stdin", "-", "--language", "bash"},
		{"run", "testdata/hello.py", "--file", "testdata/none.csv"}, {"run", "testdata/hello.py", "--file", "testdata/hello.py=../x"},
		{"run", "testdata/hello.py", "--env", "UNSET_VARIABLE_OF_THIS_TEST"}, {"run", "testdata/hello.py", "--end-user", "ada"},
		{"session", "create", "--set-limit", "frob=1"}, {"session", "create", "--set-limit", "memoryBytes=lots"}, {"session", "create", "--label", "x"}, {"session", "configure", "ses_x"}, {"session", "configure", "ses_x", "--expected-revision", "3"},
		{"artifact", "upload", "ses_x", "testdata"}, {"session", "list", "--server", "127.0.0.1:8080", "--key-file", "testdata/key"},
	} {
		stdout, stderr, status := invoke(t, args...)
		if status != workbench.ExitUsage || stdout != "" || !strings.HasPrefix(stderr, "workbench: ") {
			t.Errorf("workbench %s: status %d, stdout %q, stderr %q", strings.Join(args, " "), status, stdout, stderr)
		}
	}
}

func TestKeys(t *testing.T) {
	hermetic(t)
	_, stderr, status := invoke(t, "session", "list", "--server", "http://127.0.0.1:1")
	if status != workbench.ExitAuth || !strings.Contains(stderr, "hint: put it into a file and name that with --key-file, or set WORKBENCH_KEY") {
		t.Errorf("without a key: status %d, %q", status, stderr)
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("  wbk_d_file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WORKBENCH_KEY", "wbk_d_environment")
	for _, tc := range []struct{ file, want string }{{"", "wbk_d_environment"}, {file, "wbk_d_file"}} {
		c := connection{keyFile: tc.file}
		if got, err := c.key(); got != tc.want || err != nil {
			t.Errorf("key file %q: %q, %v, want %q", tc.file, got, err, tc.want)
		}
	}
	c := connection{keyFile: "main.go"}
	if _, err := c.key(); !workbench.HasCode(err, workbench.CodeUnauthenticated) {
		t.Errorf("a file that holds no key: %v", err)
	}
}

func TestErrorsAreTold(t *testing.T) {
	served := &sdk.Error{Err: workbench.E(workbench.CodeQuotaExceeded, "64 MiB of 64 MiB are used\x1b[2J").WithHint("delete a file"), Status: 422, RequestID: "req_1"}
	for _, tc := range []struct {
		name   string
		err    error
		stderr string
		status int
	}{
		{"a server's error", served, "workbench: 64 MiB of 64 MiB are used\\x1b[2J\nhint: delete a file\n(quota_exceeded, request req_1)\n", 7},
		{"this host's error", workbench.E(workbench.CodeUnavailable, "cannot listen").Caused(errors.New("address in use")), "workbench: cannot listen\n  because: address in use\n(unavailable)\n", 8},
		{"an error with several causes", workbench.E(workbench.CodeUnavailable, "cannot make it").Caused(errors.Join(errors.New("no room"), errors.New("no right"))), "workbench: cannot make it\n  because: no room; no right\n(unavailable)\n", 8},
		{"an error without a code", errors.New("disk on fire"), "workbench: disk on fire\n", 1},
		{"a reader that went away", &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}, "workbench: whoever read the output has gone; what was left of it is not shown\n", 1},
		{"a program's own code", exitError(42), "", 42},
		{"none", nil, "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stderr bytes.Buffer
			a := &app{err: &stderr}
			if status := a.report(nil, tc.err); status != tc.status || stderr.String() != tc.stderr {
				t.Errorf("status %d, want %d; stderr %q, want %q", status, tc.status, stderr.String(), tc.stderr)
			}
		})
	}
	var stderr bytes.Buffer
	a := &app{err: &stderr, json: true}
	a.report(nil, served)
	var told struct {
		Error struct {
			Code, RequestID string
			Exit            int
		}
	}
	if err := json.Unmarshal(stderr.Bytes(), &told); err != nil || told.Error.Code != "quota_exceeded" || told.Error.RequestID != "req_1" || told.Error.Exit != 7 {
		t.Errorf("as JSON: %s (%v)", stderr.String(), err)
	}
}

func TestExitOf(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, tc := range []struct {
		name string
		run  workbench.Run
		want int
	}{
		{"success", workbench.Run{Status: workbench.StatusSucceeded, ExitCode: code(0)}, 0},
		{"the program's own code", workbench.Run{Status: workbench.StatusFailed, Reason: workbench.ReasonExit, ExitCode: code(42)}, 42},
		{"a signal", workbench.Run{Status: workbench.StatusFailed, Reason: workbench.ReasonSignal, Signal: "SIGSEGV"}, 9},
		{"a limit", workbench.Run{Status: workbench.StatusFailed, Reason: workbench.ReasonOutOfMemory}, 9},
		{"a limit the program met with an error", workbench.Run{Status: workbench.StatusFailed, Reason: workbench.ReasonWorkspaceFull, ExitCode: code(1)}, 1},
		{"the platform", workbench.Run{Status: workbench.StatusFailed, Reason: workbench.ReasonInfrastructure}, 8},
		{"time", workbench.Run{Status: workbench.StatusTimedOut, Reason: workbench.ReasonTimeout}, 9},
		{"cancelled", workbench.Run{Status: workbench.StatusCancelled}, 9},
		{"unknown", workbench.Run{Status: workbench.StatusUnknown}, 10},
	} {
		if got := exitOf(tc.run); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestTablesOnATerminalAndPiped(t *testing.T) {
	rows := [][]string{{"報告.csv", "12"}, {"evil\x1b]0;x\x07\tname", "3"}}
	var out bytes.Buffer
	a := &app{out: &out, outTTY: true}
	if err := a.table([]string{"PATH", "SIZE"}, rows); err != nil {
		t.Fatal(err)
	}
	want := "PATH                    SIZE\n報告.csv                12\nevil\\x1b]0;x\\x07\\tname  3\n"
	if out.String() != want {
		t.Errorf("on a terminal:\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	a.outTTY = false
	if err := a.table([]string{"PATH", "SIZE"}, rows); err != nil {
		t.Fatal(err)
	}
	if want := "報告.csv\t12\nevil\\x1b]0;x\\x07\\tname\t3\n"; out.String() != want {
		t.Errorf("piped: %q, want %q", out.String(), want)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestPrinter(t *testing.T) {
	t.Run("piped: exact bytes", func(t *testing.T) {
		var out, errOut bytes.Buffer
		p := (&app{out: &out, err: &errOut}).printer()
		for _, c := range []sdk.Chunk{
			{Stream: workbench.Stdout, Offset: 0, Length: 4, Text: "\x1b[0m"},
			{Stream: workbench.Stderr, Offset: 0, Length: 1, Text: "e"},
			{Stream: workbench.Stdout, Offset: 4, Length: 2, Text: "\ufffd\ufffd", Base64: "//4="},
		} {
			if err := p.chunk(c); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != "\x1b[0m\xff\xfe" || errOut.String() != "e" {
			t.Errorf("stdout %q, stderr %q", out.String(), errOut.String())
		}
	})
	t.Run("a terminal: harmless text", func(t *testing.T) {
		var out bytes.Buffer
		p := (&app{out: &out, err: &out, outTTY: true, errTTY: true}).printer()
		if err := p.chunk(sdk.Chunk{Stream: workbench.Stdout, Length: 8, Text: "\x1b[2Jok\r\n"}); err != nil {
			t.Fatal(err)
		}
		if err := p.close(); err != nil || out.String() != "\\x1b[2Jok\n" {
			t.Errorf("shown %q, %v", out.String(), err)
		}
	})
	t.Run("who lost a stream is told once, and the rest is passed over", func(t *testing.T) {
		var errOut bytes.Buffer
		p := (&app{out: brokenPipe{}, err: &errOut}).printer()
		var lost []workbench.Stream
		p.lost = func(s workbench.Stream, _ error) { lost = append(lost, s) }
		for i := range 3 {
			if err := p.chunk(sdk.Chunk{Stream: workbench.Stdout, Offset: int64(i), Length: 1, Text: "x"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.chunk(sdk.Chunk{Stream: workbench.Stderr, Length: 1, Text: "e"}); err != nil || errOut.String() != "e" {
			t.Errorf("stderr %q, %v", errOut.String(), err)
		}
		if err := p.close(); err != nil || len(lost) != 1 || lost[0] != workbench.Stdout {
			t.Errorf("lost %v, %v", lost, err)
		}
	})
	t.Run("a gap is an error", func(t *testing.T) {
		p := (&app{out: &bytes.Buffer{}, err: &bytes.Buffer{}}).printer()
		if err := p.chunk(sdk.Chunk{Stream: workbench.Stdout, Offset: 1, Length: 1, Text: "x"}); !workbench.HasCode(err, workbench.CodeInternal) {
			t.Errorf("error %v", err)
		}
	})
}

func TestRowsOfVerifyAreListed(t *testing.T) {
	stdout, _, status := invoke(t, "verify", "--list")
	if status != 0 || !strings.HasPrefix(stdout, "H01\tfork bomb\nH03\tmemory bomb\n") {
		t.Errorf("status %d, %q", status, stdout)
	}
}

func TestWordsOfAShell(t *testing.T) {
	for word, want := range map[string]string{"/var/lib/a-1": "/var/lib/a-1", "a b": "'a b'", "": "''", "it's": `'it'\''s'`, "$x": "'$x'"} {
		if got := shellWord(word); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
}

// TestACommandToTypeNextFindsTheSameServer: flags are repeated, the environment
// is not.
func TestACommandToTypeNextFindsTheSameServer(t *testing.T) {
	hermetic(t)
	for _, tc := range []struct {
		line []string
		want string
	}{
		{[]string{"run", "a.py", "--server", "http://x", "--key-file", "my key"}, " --server http://x --key-file 'my key'"},
		{[]string{"runs", "show", "run_x", "--server", "http://x", "--group", "g"}, " --server http://x --group g"},
		{[]string{"run", "a.py"}, ""},
	} {
		a := &app{out: &bytes.Buffer{}, err: &bytes.Buffer{}}
		c, rest, err := a.rootCommand().Find(tc.line)
		if err == nil {
			err = c.ParseFlags(rest)
		}
		if got := flagsAgain(a.connection.set, "server", "key-file", "tenant", "end-user", "group"); err != nil || got != tc.want {
			t.Errorf("%v: %q, %v, want %q", tc.line, got, err, tc.want)
		}
	}
}

func TestProgressIsPlainWhenPiped(t *testing.T) {
	var out bytes.Buffer
	p := (&app{err: &out}).progress()
	p.show("download", "python3", 1, 2)
	p.show("download", "nodejs", 2, 2)
	p.show("install", "evil\x1b[2J", 0, 0)
	p.done()
	if want := "download 1/2  python3\ninstall  evil\\x1b[2J\n"; out.String() != want {
		t.Errorf("progress %q, want %q", out.String(), want)
	}
}

func TestLimits(t *testing.T) {
	r, err := limitsOf([]string{"memoryBytes=128MiB", "timeoutMs=5000", "tasks=8"})
	if err != nil || *r.MemoryBytes != 134217728 || *r.TimeoutMs != 5000 || *r.Tasks != 8 || r.FileBytes != nil {
		t.Errorf("limits %+v, %v", r, err)
	}
}

func TestVersion(t *testing.T) {
	stdout, _, status := invoke(t, "version", "--json")
	var v struct {
		Version, Go string
		Embedded    map[string]string
	}
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || status != 0 || v.Go == "" || len(v.Embedded) != 3 {
		t.Errorf("version %q, status %d, %v", stdout, status, err)
	}
	if terminal.Text(stdout) != stdout {
		t.Errorf("version is not plain text: %q", stdout)
	}
}

func TestInputThatIsNoTextIsRefusedWithAWayOut(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	nul, big := write("nul.bin", make([]byte, 1<<20)), write("big.bin", make([]byte, 2<<20))
	binary, program := write("binary.py", []byte("\xff\xfe")), write("big.py", bytes.Repeat([]byte("#\n"), 1<<20))
	for _, tc := range []struct {
		args         []string
		detail, hint string
		status       int
	}{
		{[]string{"testdata/hello.py", "--stdin", nul}, "the program and its input take 6.0 MiB to send, and a server takes at most 4.0 MiB: a NUL and some other characters take six bytes each", "give the input with --file instead of --stdin, and open it in the program", 7},
		{[]string{"testdata/hello.py", "--stdin", big}, "the program's input is too large for --stdin: it takes at most 1.0 MiB", "give it with --file and open it in the program", 7},
		{[]string{binary}, "the program is binary, and FILE takes text in UTF-8", "give it with --file and run a short program that starts it", 2},
		{[]string{program}, "the program is too large for FILE: it takes at most 1.0 MiB", "give it with --file and run a short program that starts it", 7},
	} {
		_, stderr, status := invoke(t, append([]string{"run"}, tc.args...)...)
		if status != tc.status || !strings.HasPrefix(stderr, "workbench: "+tc.detail+"\nhint: "+tc.hint+"\n") {
			t.Errorf("workbench run %s: status %d, stderr %q", strings.Join(tc.args, " "), status, stderr)
		}
	}
}

func TestNearMissesOnTheCommandLine(t *testing.T) {
	hermetic(t)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"sesion", "list"}, "workbench: there is no command \"workbench sesion\"\nhint: did you mean \"workbench session\"?\n"},
		{[]string{"session", "lst"}, "workbench: there is no command \"workbench session lst\"\nhint: did you mean \"workbench session list\"?\n"},
		{[]string{"session", "frobnicate"}, "workbench: there is no command \"workbench session frobnicate\"\nhint: workbench session --help\n"},
		{[]string{"session", "create", "--set-limit", "memory=1MiB"}, "workbench: --set-limit knows no limit \"memory\"\nhint: did you mean memoryBytes?\n"},
		{[]string{"session", "create", "--set-limit", "frob=1"}, "workbench: --set-limit knows no limit \"frob\"\nhint: limits are memoryBytes, "},
		{[]string{"session", "create", "--label", "x"}, "workbench: --label takes NAME=VALUE\nhint: such as --label team=sales\n"},
		{[]string{"run", "testdata/hello.py", "--timeout", "2"}, "workbench: --timeout takes a duration with its unit, such as 30s\nhint: did you mean --timeout 2s?\n"},
		{[]string{"run", "testdata/hello.py", "--timeout", "soon"}, "workbench: --timeout takes a duration with its unit, such as 30s\nhint: units are ms, s, m and h, as in 1m30s\n"},
		{[]string{"run", "testdata/hello.py", "--env", "UNSET_VARIABLE_OF_THIS_TEST"}, "workbench: --env UNSET_VARIABLE_OF_THIS_TEST: no variable of that name is set\nhint: set and export it, or give its value: --env UNSET_VARIABLE_OF_THIS_TEST=VALUE\n"},
		{[]string{"run", "testdata/empty.py"}, "workbench: testdata/empty.py is empty\nhint: give a program to run; a comment is one\n"},
		{[]string{"serve", "--server", "http://x"}, "workbench: --server is for commands that speak to a server, and workbench serve does not\nhint: leave --server out\n"},
		{[]string{"image", "list", "--tenant", "acme"}, "workbench: --tenant is for commands that speak to a server, and workbench image does not\nhint: leave --tenant out\n"},
		{[]string{"verify", "--row", "H999"}, "workbench: --row: there is no row \"H999\"\nhint: workbench verify --list lists them\n"},
		{[]string{"runs", "files", "run_x", "--out", "x", "--limit", "3"}, "workbench: --out fetches every file, and --limit and --cursor do not go with it\n"},
		{[]string{"key", "list", "--limit", "0"}, "workbench: invalid argument \"0\" for \"--limit\" flag: it must be between 1 and 200\n"},
	} {
		if _, stderr, status := invoke(t, tc.args...); status != workbench.ExitUsage || !strings.HasPrefix(stderr, tc.want) {
			t.Errorf("workbench %s: status %d, stderr %q, want %q", strings.Join(tc.args, " "), status, stderr, tc.want)
		}
	}
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
)

// command is the command of a line, with its flags read and nothing run.
func command(t *testing.T, line ...string) *cobra.Command {
	t.Helper()
	hermetic(t)
	root := (&app{out: &bytes.Buffer{}, err: &bytes.Buffer{}}).rootCommand()
	c, rest, err := root.Find(line)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ParseFlags(rest); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestErrorsSpeakOfFlags(t *testing.T) {
	for _, tc := range []struct {
		name         string
		line         []string
		err          *workbench.Error
		detail, hint string
	}{
		{"a duration", []string{"run", "a.py"}, workbench.AsError(workbench.InRange("timeoutMs", 1, 100, 180000)),
			"--timeout must be between 100ms and 3m", "give a value in that range, or leave --timeout out for the default"},
		{"a longer one", []string{"session", "create"}, workbench.AsError(workbench.InRange("ttlMs", 1, 60000, 691200000)),
			"--ttl must be between 1m and 192h", "give a value in that range, or leave --ttl out for the default"},
		{"a limit of a session", []string{"session", "create"}, workbench.AsError(workbench.InRange("limits.timeoutMs", 1, 100, 30000)),
			"--set-limit timeoutMs must be between 100 and 30000", "give a value in that range, or leave --set-limit timeoutMs out for the default"},
		{"a limit in bytes", []string{"session", "create"}, workbench.AsError(workbench.InRange("limits.memoryBytes", 1, 33554432, 268435457)),
			"--set-limit memoryBytes must be between 32MiB and 268435457", "give a value in that range, or leave --set-limit memoryBytes out for the default"},
		{"a size", []string{"run", "a.py", "--size", "giant"}, workbench.E(workbench.CodeInvalidRequest, "size must be one of standard, medium, large").WithField("size").WithHint("GET /v1/workbench/runtime-tiers lists the sizes"),
			"--size must be one of standard, medium, large", "workbench sizes lists the sizes"},
		{"one of several files", []string{"run", "a.py", "--file", "may.csv", "--file", "old/may.csv"},
			workbench.E(workbench.CodePathConflict, "artifactIds[0] and artifactIds[1] would be at the same path").WithField("artifactIds[1]").WithHint(`give one of them another path: {"id": …, "path": …}`),
			"--file may.csv and --file old/may.csv would be at the same path", "give one of them another path: --file NAME=PATH"},
		{"a file to restore", []string{"session", "restart", "ses_x", "--artifact", "art_1"}, workbench.E(workbench.CodeInvalidRequest, "not a well-formed art id").WithField("artifactIds[0]").WithHint("correct artifactIds[0] and send the request again"),
			"not a well-formed art id", "correct --artifact art_1 and try again"},
		{"a flag that is not named yet", []string{"key", "create"}, workbench.E(workbench.CodeInvalidRequest, "a direct key needs a tenant").WithField("tenant").WithHint("name one tenant and one user; new ones are created"),
			"a direct key needs a tenant (--tenant)", "name one tenant and one user; new ones are created"},
		{"the default of a flag", []string{"run", "a.py"}, workbench.E(workbench.CodeImageNotFound, "there is no sandbox image in /images").WithField("image").WithHint("build one: workbench image build standard"),
			"there is no sandbox image in /images", "build one: workbench image build standard"},
		{"an address with a path too many", []string{"session", "list"}, workbench.E(workbench.CodeNotFound, "no such route").WithHint("see /openapi.json"),
			"no such route", "check the address that --server or WORKBENCH_SERVER gives: it is the server's own, without a path of the API"},
		{"a command without root", []string{"session", "list"}, workbench.E(workbench.CodeRuntimeUnavailable, "the runsc driver needs root").WithHint(rootless),
			"the runsc driver needs root", "run this command as root (code in sandboxes runs unprivileged), or name a server with --server or WORKBENCH_SERVER"},
		{"a server without root", []string{"serve"}, workbench.E(workbench.CodeRuntimeUnavailable, "the runsc driver needs root").WithHint(rootless),
			"the runsc driver needs root", rootless},
		{"a cursor", []string{"key", "list"}, workbench.E(workbench.CodeInvalidRequest, "cursor is not one this list gave out").WithField("cursor").WithHint("send nextCursor of the previous page unchanged, or leave cursor out to start again"),
			"--cursor is not one this list gave out", "give --cursor as the page before printed it, or leave it out to start again"},
		{"runs in the way", []string{"session", "configure", "ses_x"}, workbench.E(workbench.CodeRunsActive, "1 run has not ended").WithHint("wait for them, cancel them, or restart with cancelActive: true"),
			"1 run has not ended", "wait for them, cancel them, or use workbench session restart --cancel-active"},
		{"an identity", []string{"session", "list"}, workbench.E(workbench.CodeInvalidRequest, "an embedded key needs the header Workbench-Tenant").WithField("Workbench-Tenant").WithHint("name the tenant in Workbench-Tenant and the end user in Workbench-End-User"),
			"an embedded key needs --tenant", "name the tenant in --tenant and the end user in --end-user"},
		{"a key", []string{"session", "list"}, workbench.E(workbench.CodeUnauthenticated, "a valid API key is required").WithHint("send Authorization: Bearer wbk_… with a key that is neither revoked nor expired"),
			"a valid API key is required", "check the key in the file that --key-file names, or in WORKBENCH_KEY: it must be whole, and neither revoked nor expired"},
		{"an admin key", []string{"session", "create"}, workbench.E(workbench.CodeForbidden, "an admin key acts for nobody and cannot do this").WithHint("use a direct or an embedded key; POST /v1/workbench/keys makes one"),
			"an admin key acts for nobody and cannot do this", "use a direct or an embedded key; workbench key create makes one"},
		{"a program that is too long", []string{"run", "a.py"}, workbench.E(workbench.CodeLimitOutOfRange, "code is longer than 1048576 bytes").WithField("code").WithHint("upload it as a file, select it, and run a short program that starts it"),
			"the program is longer than 1048576 bytes", "give it with --file, and run a short program that starts it"},
		{"a tool of a session", []string{"session", "create", "--tool", "github"}, workbench.AsError(workbench.ToolName("tools[0].name", "github")),
			"--tool github must name a tool as app.tool", "such as github.list_issues; workbench tools list shows them"},
		{"a secret that is missing", []string{"connection", "add", "crm", "--username", "ada"}, workbench.E(workbench.CodeInvalidRequest, "credentials.password is missing").WithField("credentials.password"),
			"--password-file is missing", ""},
		{"a host", []string{"connection", "add", "crm", "--host", "https://x"}, workbench.E(workbench.CodeInvalidRequest, "hosts[0] must be a host's name, with a port if it has one").WithField("hosts").WithHint("such as api.example.com"),
			"--host https://x must be a host's name, with a port if it has one", "such as api.example.com"},
		{"a timeout of an app", []string{"tools", "add", "x"}, workbench.AsError(workbench.InRange("config.timeoutMs", 1, 100, 180000)),
			"--timeout must be between 100ms and 3m", "give a value in that range, or leave --timeout out for the default"},
		{"a part of an app", []string{"tools", "add", "x"}, workbench.E(workbench.CodeInvalidRequest, "config.url must be an http or https URL").WithField("config.url"),
			"the app's URL must be an http or https URL", ""},
		{"a part of a part of an app", []string{"tools", "add", "x"}, workbench.E(workbench.CodeInvalidRequest, "config.endpoints[0].name must be letters").WithField("config.endpoints[0].name"),
			"endpoints[0].name must be letters", ""},
		{"programs that are not allowed", []string{"tools", "add", "x"}, workbench.E(workbench.CodeInvalidRequest, "kind mcp_stdio is not allowed on this server").WithField("kind").WithHint("the operator has to start the server with --tool-programs; or use an MCP server over HTTP"),
			"an app of kind mcp_stdio is not allowed on this server", "the operator has to start the server with --tool-programs; or use an MCP server over HTTP"},
		{"a call that was decided", []string{"approve", "rcp_x"}, workbench.E(workbench.CodeApprovalDecided, "the call is denied").WithHint("a call is decided once; read its receipt"),
			"the call is denied", "a call is decided once: workbench receipts show tells how"},
		{"rules that changed", []string{"policy", "put", "a.cedar"}, workbench.E(workbench.CodeVersionMismatch, "the rules are at version 8, not 7").WithHint("read the rules again and decide anew"),
			"the rules are at version 8, not 7", "workbench policy list tells the current version"},
		{"ordinary words stay", []string{"run", "a.py"}, workbench.E(workbench.CodeSessionClosed, "the code, the size and the name of this session").WithHint("create a new session; retained files and receipts of this one stay readable"),
			"the code, the size and the name of this session", "create a new session; retained files and receipts of this one stay readable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := translate(command(t, tc.line...), tc.err)
			if got.Detail != tc.detail || got.Hint != tc.hint {
				t.Errorf("detail %q, want %q\nhint %q, want %q", got.Detail, tc.detail, got.Hint, tc.hint)
			}
		})
	}
}

var hintLiteral = regexp.MustCompile("(?:WithHint|workbench\\.E|Message = )[^\"`\n]*(\"(?:[^\"\\\\\n]|\\\\.)*\"|`[^`]*`)")

var restWords = regexp.MustCompile(`/v1/workbench|…/|\b(?:GET|POST|PUT|DELETE) |\blimits\.[a-z]|\b(?:keep|artifactIds)\[|: true\b`)

// TestNoRouteReachesTheCommandLine: nothing that the engine says of a request or
// a run is left in the words of the REST API.
func TestNoRouteReachesTheCommandLine(t *testing.T) {
	c := command(t, "run", "a.py", "--keep", "*.csv", "--file", "may.csv", "--file", "june.csv")
	said := 0
	for _, pattern := range []string{"../../*.go", "../../internal/engine/*.go", "../../internal/store/*.go", "../../internal/artifact/*.go", "../../internal/govern/*.go", "../../internal/upstream/*.go", "../../internal/policy/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, found := range hintLiteral.FindAllStringSubmatch(string(source), -1) {
				text, err := strconv.Unquote(found[1])
				if err != nil {
					t.Fatalf("%s: %s: %v", file, found[1], err)
				}
				said++
				text = strings.NewReplacer("[%d]", "[0]", "up to %d ms", "up to 3600000 ms").Replace(text)
				if got := translatorOf(c).text(text); restWords.MatchString(got) {
					t.Errorf("%s: %q is told as %q", file, text, got)
				}
			}
		}
	}
	if said < 200 {
		t.Errorf("only %d texts were found", said)
	}
}

// TestVocabulariesNameFlags: every flag that is named exists, and every field
// that a command can send has a name.
func TestVocabulariesNameFlags(t *testing.T) {
	for path, words := range vocabularies {
		c := command(t, strings.Fields(path)[1:]...)
		if c.CommandPath() != path {
			t.Errorf("there is no command %q", path)
			continue
		}
		for field, flag := range words {
			if name, ok := strings.CutPrefix(flag, "--"); ok && c.Flags().Lookup(name) == nil && c.InheritedFlags().Lookup(name) == nil {
				t.Errorf("%s: %s stands for %s, which the command does not have", path, flag, field)
			}
		}
	}
	notOffered := []string{"sandboxSize", "outputBytes", "idempotencyKey", "background", "afterExecution", "reusableRun"}
	for path, body := range map[string]any{
		"workbench run": api.SubmitRunRequest{}, "workbench session create": api.CreateSessionRequest{}, "workbench session configure": api.ConfigureRequest{},
		"workbench session restart": api.RestartRequest{}, "workbench contexts create": api.CreateContextRequest{}, "workbench key create": api.CreateKeyRequest{},
		"workbench tools add": api.PutAppRequest{}, "workbench tools import": api.ImportAppRequest{}, "workbench connection add": api.CreateConnectionRequest{},
		"workbench connection rotate": api.RotateConnectionRequest{}, "workbench policy check": api.CheckRulesRequest{}, "workbench policy explain": api.ExplainRequest{},
		"workbench approve": api.DecideRequest{}, "workbench deny": api.DecideRequest{},
	} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(body)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" && vocabularies[path][name] == "" && !strings.Contains(strings.Join(notOffered, " "), name) {
				t.Errorf("%s: the field %s has no name on the command line", path, name)
			}
		}
	}
}

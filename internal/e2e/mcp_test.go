package e2e_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/server"
	"github.com/workbenchdev/workbench/internal/store/pgtest"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustMCP is the program of a public MCP server, which make test installs from
// its pinned packages.
func mustMCP(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../tools/mcp/node_modules/@modelcontextprotocol", name, "dist", "index.js"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the MCP server %s is missing: run make mcp-servers (%v)", name, err)
	}
	return path
}

// mustTools declares an app and returns its tools' names.
func (w *world) mustTools(t *testing.T, name string, app map[string]any) []string {
	t.Helper()
	made := w.rest(t, http.MethodPut, "/v1/workbench/apps/"+name, app, http.StatusOK)
	var names []string
	for _, tool := range made["tools"].([]any) {
		names = append(names, tool.(map[string]any)["name"].(string))
	}
	return names
}

func refs(names ...string) []workbench.ToolRef {
	var out []workbench.ToolRef
	for _, n := range names {
		out = append(out, workbench.ToolRef{Name: n, Version: "1"})
	}
	return out
}

// The public MCP servers, as their packages are: over stdio, and over HTTP.
func TestPublicMCPServers(t *testing.T) {
	w := mustWorld(t, func(o *server.Options) { o.ToolPrograms = true })
	w.rules(t, "access", allowAll)
	stdio := func(program string, env map[string]string, args ...string) map[string]any {
		if env == nil {
			env = map[string]string{}
		}
		return map[string]any{"kind": "mcp_stdio", "config": map[string]any{"command": "node", "args": append([]string{program}, args...), "env": env}}
	}
	t.Run("everything over stdio", func(t *testing.T) {
		names := w.mustTools(t, "everything", stdio(mustMCP(t, "server-everything"), nil, "stdio"))
		if !slices.Contains(names, "everything.echo") {
			t.Fatalf("its tools are %v", names)
		}
		s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{Tools: refs(names...)})
		r := s.mustRun(sdk.CreateRun{Language: workbench.JavaScript, Code: `
const r = await workbench.call("everything.echo", { message: "hello from inside" });
console.log(r.status, r.result);
console.log((await workbench.tools.search("echo")).map((t) => t.name + "@" + t.version).join());
console.log(Object.keys((await workbench.tools.schema("everything.echo")).inputSchema.properties).join());
`})
		wantOut(t, r, "succeeded Echo: hello from inside\neverything.echo@1\nmessage\n")
	})
	t.Run("everything over HTTP", func(t *testing.T) {
		port, err := pgtest.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "node", mustMCP(t, "server-everything"), "streamableHttp")
		cmd.Env = append(os.Environ(), fmt.Sprintf("PORT=%d", port))
		var log logBuffer
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		address := fmt.Sprintf("127.0.0.1:%d", port)
		for deadline := time.Now().Add(20 * time.Second); ; {
			c, err := net.Dial("tcp", address)
			if err == nil {
				_ = c.Close()
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the server does not listen: %s", log.whole())
			}
			time.Sleep(50 * time.Millisecond)
		}
		names := w.mustTools(t, "remote", map[string]any{"kind": "mcp_http", "config": map[string]any{"url": "http://" + address + "/mcp"}})
		if !slices.Contains(names, "remote.echo") {
			t.Fatalf("its tools are %v", names)
		}
		s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{Tools: refs("remote.echo")})
		wantOut(t, s.mustBash(`workbench call remote.echo '{"message": "over HTTP"}' | jq -r .result || true`), "Echo: over HTTP\n")
	})
	t.Run("filesystem", func(t *testing.T) {
		dir := t.TempDir()
		names := w.mustTools(t, "files", stdio(mustMCP(t, "server-filesystem"), nil, dir))
		if !slices.Contains(names, "files.write_file") {
			t.Fatalf("its tools are %v", names)
		}
		w.rules(t, "files", `forbid(principal, action == Action::"call", resource in App::"files") unless { resource.readOnly || context.args.path like "*/notes.txt" };`)
		s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{Tools: refs("files.write_file", "files.read_text_file")})
		r := s.mustPython(fmt.Sprintf(`
dir = %q
print(workbench.call("files.write_file", {"path": dir + "/notes.txt", "content": "written by a tool"}).status)
print(workbench.call("files.write_file", {"path": dir + "/other.txt", "content": "x"}).status)
print(workbench.call("files.read_text_file", {"path": dir + "/notes.txt"}).result)
print(workbench.call("files.read_text_file", {"path": "/etc/passwd"}).status)
`, dir))
		out := strings.Split(text(r.Stdout), "\n")
		if len(out) < 4 || out[0] != "succeeded" || out[1] != "denied" || !strings.Contains(out[2], "written by a tool") || out[3] != "failed" {
			t.Fatalf("the calls give %q (%s)", text(r.Stdout), text(r.Stderr))
		}
		if b, err := os.ReadFile(filepath.Join(dir, "notes.txt")); err != nil || string(b) != "written by a tool" {
			t.Errorf("the file holds %q (%v)", b, err)
		}
	})
	t.Run("memory", func(t *testing.T) {
		names := w.mustTools(t, "memory", stdio(mustMCP(t, "server-memory"), map[string]string{"MEMORY_FILE_PATH": filepath.Join(t.TempDir(), "memory.jsonl")}))
		s := mustSessionOf(t, w.mustUser(t, "acme", "ada"), sdk.CreateSession{Tools: refs(names...)})
		r := s.mustPython(`
import json
made = workbench.call("memory.create_entities", {"entities": [{"name": "Ada", "entityType": "person", "observations": ["likes engines"]}]})
graph = workbench.call("memory.read_graph")
print(made.status, "likes engines" in json.dumps(graph.result))
`)
		wantOut(t, r, "succeeded True\n")
	})
}

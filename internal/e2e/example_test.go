package e2e_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench/internal/server"
)

// What examples/session/session.sh prints, but for numbers that are never the
// same: each # of it stands for some digits.
const scriptedSession = `1. Two sessions: one keeps its memory while nothing happens, one does not
2. A variable
16
16
3. A chart of it
OUT/chart.png: # bytes
4. Nobody calls until both sandboxes are gone
with keepMemory: # bytes of sealed memory
5. With keepMemory the variable is there
29
  resumed: RESUMED
6. What the last cell changed
diff --git a/notes.txt b/notes.txt
--- a/notes.txt
+++ b/notes.txt
@@ -1 +1 @@
-May to July
+May to August
7. Back to what the chart's cell left; the variables stay
memory: kept
May to July
29
8. A fork of what that cell left, which goes its own way
added forecast.txt
modified notes.txt
9. Without keepMemory the cell is refused, for it needs what is gone
  context_lost: LOST
The files are there, and it goes on when it is told to begin anew
False May to July
  memory_lost: GONE
  context_restarted: ANEW
`

// The scripted session of the README does on a server what it says.
func TestScriptedSession(t *testing.T) {
	t.Parallel() // it waits more than it works
	// Long enough that the session does not idle between two calls of a slow
	// machine.
	w := mustWorld(t, func(o *server.Options) { o.SuspendAfter = 8 * time.Second })
	out := t.TempDir()
	script := exec.CommandContext(t.Context(), "../../examples/session/session.sh", out)
	script.Env = append(os.Environ(), "WORKBENCH_SERVER="+w.url, "WORKBENCH_KEY="+w.mustSecret(t))
	var errs bytes.Buffer
	script.Stderr = &errs
	said, err := script.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, said, &errs)
	}
	got := strings.ReplaceAll(string(said), out, "OUT")
	for mark, detail := range map[string]string{"RESUMED": "resumed", "LOST": "context_lost", "GONE": "memory_lost", "ANEW": "context_restarted"} {
		got = regexp.MustCompile(`(?m)^  `+detail+`: .+$`).ReplaceAllString(got, "  "+detail+": "+mark)
	}
	got = regexp.MustCompile(`\b\d+ bytes`).ReplaceAllString(got, "# bytes")
	if got != scriptedSession {
		t.Errorf("it printed\n%s\nand not\n%s", got, scriptedSession)
	}
	chart, err := os.ReadFile(filepath.Join(out, "chart.png"))
	if err != nil || !bytes.HasPrefix(chart, []byte("\x89PNG\r\n\x1a\n")) {
		t.Errorf("the chart is no PNG: %v", err)
	}
}

// readmeBlocks are the blocks of the README that a reader pastes into a shell
// beside a running server, by their first words.
func readmeBlocks(t *testing.T, begins ...string) (blocks []string) {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	for _, begin := range begins {
		i := slices.IndexFunc(all, func(block []string) bool { return strings.HasPrefix(block[1], begin) })
		if i < 0 {
			t.Fatalf("the README has no block that begins with %q", begin)
		}
		blocks = append(blocks, all[i][1])
	}
	return blocks
}

// What the README has its reader paste does what it says there, and so does
// examples/hello/hello.sh.
func TestReadme(t *testing.T) {
	t.Parallel() // it waits more than it works
	w := mustWorld(t, func(o *server.Options) { o.SuspendAfter = 8 * time.Second })
	admin, err := os.ReadFile(filepath.Join(w.dir, "admin"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := readmeBlocks(t, "export ADMIN=", "SES=")
	const ends = "\necho\necho --\n"
	script := "set -euo pipefail\n" + blocks[0] + ends + blocks[1] + ends + "WORKBENCH_KEY=$KEY " + mustAbsolute(t, "../../examples/hello/hello.sh") + "\n"
	for _, change := range [][2]string{
		{"ADMIN=wbk_…", "ADMIN=" + string(admin)},
		{"sleep 35", `until api "localhost:8080/v1/workbench/sessions/$SES" | jq -e .suspended >/dev/null; do sleep 0.2; done`},
		{"localhost:8080", strings.TrimPrefix(w.url, "http://")},
	} {
		if !strings.Contains(script, change[0]) {
			t.Fatalf("the README has no %q any more", change[0])
		}
		script = strings.ReplaceAll(script, change[0], change[1])
	}
	dir := t.TempDir()
	shell := exec.CommandContext(t.Context(), "bash", "-c", script)
	shell.Dir, shell.Env = dir, append(os.Environ(), "WORKBENCH_SERVER="+w.url)
	var errs bytes.Buffer
	shell.Stderr = &errs
	said, err := shell.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, said, &errs)
	}
	const want = `HELLO

hello
--
8
resumed
diff --git a/notes.txt b/notes.txt
--- a/notes.txt
+++ b/notes.txt
@@ -1 +1,2 @@
 May
+July
kept

--
HELLO

hello
`
	if string(said) != want {
		t.Errorf("it printed\n%s\nand not\n%s\n%s", said, want, &errs)
	}
	chart, err := os.ReadFile(filepath.Join(dir, "chart.png"))
	if err != nil || !bytes.HasPrefix(chart, []byte("\x89PNG\r\n\x1a\n")) {
		t.Errorf("the chart is no PNG: %v", err)
	}
}

func mustAbsolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

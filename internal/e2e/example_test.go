package e2e_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

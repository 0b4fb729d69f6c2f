package guest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// TestAsDeepAsAPathMayBe: what a path can name is scanned and listed, and what
// lies deeper is neither, without an error.
func TestAsDeepAsAPathMayBe(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		s.code(t, workbench.Python, `
import os
for i in range(255): os.mkdir("d"); os.chdir("d")
os.mkdir("e"); open("f", "w").close(); os.chdir("e")
os.mkdir("g"); open("h", "w").close()
`).want(t, 0, "")
		parent := guestwire.Path(strings.Repeat("d/", 254) + "d")
		f, res := s.scan(t, "")
		if res.Entries != 257 || res.SkippedN != 2 || len(res.Skipped) != 1 || res.Skipped[0] != (guestwire.Skipped{Path: parent + "/e", Why: "depth"}) || !slices.Contains(f.order, "added "+string(parent)+"/f") {
			t.Errorf("%d entries, skipped %v", res.Entries, res.Skipped)
		}
		for p, want := range map[guestwire.Path]int{parent: 2, parent + "/e": 0, "": 200} {
			l, err := s.Client.ListFiles(t.Context(), guestwire.ListRequest{Path: p, Recursive: true, Limit: 200})
			if err != nil || len(l.Entries) != want {
				t.Errorf("%.3q: %d entries, %v", p, len(l.Entries), err)
			}
		}
	})
}

// TestListWhileNamesMove: a name that moves on while a directory is read comes
// twice from the kernel, and the host takes an entry that comes twice for a broken
// guest.
func TestListWhileNamesMove(t *testing.T) {
	onDefault(t, func(t *testing.T, s *session) {
		h := newHost()
		x := s.begin(t, request(workbench.Python, `
import os
for i in range(40): open(f"f{i}", "w").close()
print("up", flush=True)
while not os.path.exists("go"):
    for a, b in "fg", "gf":
        for i in range(40): os.rename(f"{a}{i}", f"{b}{i}")
`), h)
		for h.text(workbench.Stdout) == "" {
			select {
			case <-h.wrote:
			case <-time.After(30 * time.Second):
				t.Fatalf("it does not begin: %s", h.text(workbench.Stderr))
			}
		}
		for i := range 300 {
			if _, err := s.Client.ListFiles(t.Context(), guestwire.ListRequest{Recursive: true, Limit: 200}); err != nil {
				t.Fatalf("list %d: %v", i, err)
			}
		}
		s.code(t, workbench.Bash, "touch go").want(t, 0, "")
		x.end().want(t, 0, "up\n")
	})
}

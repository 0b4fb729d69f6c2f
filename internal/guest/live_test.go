package guest_test

import (
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

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

package guest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
)

// forked waits until runs of Python are forks, and fails if they never are.
func (s *session) forked(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		o := s.code(t, workbench.Python, "import os, sys; print(os.getppid() == 0, len(sys.modules))")
		if strings.HasPrefix(o.stdout, "True") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no run is a fork: %q %q", o.stdout, clip(o.stderr))
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func TestForkedInterpreters(t *testing.T) {
	onEach(t, func(t *testing.T, s *session) {
		s.forked(t)
	})
}

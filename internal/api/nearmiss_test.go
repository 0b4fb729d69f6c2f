package api_test

import (
	"strings"
	"testing"

	"github.com/workbenchdev/workbench/internal/api"
)

func TestNearest(t *testing.T) {
	fields := []string{"args", "artifactIds", "code", "env", "keep", "language", "stdin", "timeoutMs"}
	for given, want := range map[string]string{
		"Language": "language", "artifact_ids": "artifactIds", "artifact-ids": "artifactIds", "artifacts": "artifactIds", "artifactId": "artifactIds",
		"langauge": "language", "lanuage": "language", "tiemoutMs": "timeoutMs", "timeout": "timeoutMs", "stdn": "stdin", "cdoe": "code",
		"script": "code", "environment": "env", "argv": "args",
		"id": "", "x": "", "": "", "user": "", "network": "", strings.Repeat("l", 65): "",
	} {
		if got := api.Nearest(given, fields); got != want {
			t.Errorf("%q is taken for %q, want %q", given, got, want)
		}
	}
}

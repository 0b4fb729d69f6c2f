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
		"lnaguage": "language", "lanuage": "language", "tiemoutMs": "timeoutMs", "timeout": "timeoutMs", "stdn": "stdin", "cdoe": "code",
		"script": "code", "environment": "env", "argv": "args",
		"id": "", "x": "", "": "", "user": "", "network": "", strings.Repeat("l", 65): "",
	} {
		if got := api.Nearest(given, fields); got != want {
			t.Errorf("%q is taken for %q, want %q", given, got, want)
		}
	}
}

func TestNearestRoute(t *testing.T) {
	for given, want := range map[string]string{
		"/v1/workbench/session":           "/v1/workbench/sessions",
		"/v1/workbench/run-code":          "/v1/workbench/run_code",
		"/v1/workbench/runs/run_1/event":  "/v1/workbench/runs/{id}/events",
		"/v1/workbench/sesions/ses_1/run": "/v1/workbench/sessions/{id}/runs",
		"/healtz":                         "/healthz",
		"/v1/workbench/frobnicate":        "",
		"/":                               "",
		"/a/b/c/d/e/f":                    "",
	} {
		if got := api.NearestRoute(given); got != want {
			t.Errorf("%s is taken for %q, want %q", given, got, want)
		}
	}
}

package telemetry_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench/internal/telemetry"
)

const secret = "wbk_d_0123456789abcdefghjkmnpqrstvwxyz0123456789abcdefghjk"

func TestSecretsAreRedacted(t *testing.T) {
	for _, format := range []telemetry.LogFormat{telemetry.LogText, telemetry.LogJSON} {
		var out bytes.Buffer
		log := telemetry.NewLogger(&out, format, slog.LevelInfo)
		log.Info("using "+secret, "authorization", "Bearer canary", "Stdin", "canary", "raw", []byte("canary"),
			"err", fmt.Errorf("open postgres://user:canary@db/x: %w", errors.New("refused "+secret)), slog.Group("g", "token", "canary"), "kept", "value")
		log.Debug("below the level canary")
		text := out.String()
		for _, bad := range []string{"canary", secret, secret[6:]} {
			if strings.Contains(text, bad) {
				t.Errorf("%s: the log holds %q: %s", format, bad, text)
			}
		}
		for _, good := range []string{"refused", "value", "postgres://user:", "@db/x"} {
			if !strings.Contains(text, good) {
				t.Errorf("%s: the log lost %q: %s", format, good, text)
			}
		}
	}
}

func TestTerminalEscapesAreQuoted(t *testing.T) {
	for _, format := range []telemetry.LogFormat{telemetry.LogText, telemetry.LogJSON} {
		var out bytes.Buffer
		telemetry.NewLogger(&out, format, slog.LevelInfo).Info("a\x1b[31mb", "name\x1b", "x\x1b]0;title\x07", "err", errors.New("e\x1b\nforged line"))
		if text := out.String(); strings.ContainsAny(text, "\x1b\x07") || strings.Count(text, "\n") != 1 {
			t.Errorf("%s: %q", format, text)
		}
	}
}

func TestMetrics(t *testing.T) {
	m := telemetry.NewMetrics()
	m.Request("/v1/workbench/runs/{id}", "GET", 200, 3*time.Millisecond, 10, 2000)
	m.Streams(2)
	m.Streams(-1)
	m.RunEnded("python", "succeeded", 4*time.Millisecond, time.Second)
	m.RunEnded("python", "timed_out", time.Millisecond, 30*time.Second)
	m.Committed(250 * time.Millisecond)
	m.SandboxStarted("ok", 200*time.Millisecond)
	m.Live(3, 2)
	rec := httptest.NewRecorder()
	m.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := rec.Body.String()
	for _, line := range []string{
		`workbench_http_requests_total{method="GET",route="/v1/workbench/runs/{id}",status="200"} 1`,
		`workbench_http_received_bytes_total 10`, `workbench_http_sent_bytes_total 2000`, `workbench_http_held_requests 1`,
		`workbench_runs_total{language="python",status="succeeded"} 1`, `workbench_runs_total{language="python",status="timed_out"} 1`,
		`workbench_run_seconds_sum{language="python"} 31`, `workbench_run_queue_seconds_count 2`,
		`workbench_commit_seconds_sum 0.25`, `workbench_commit_seconds_count 1`,
		`workbench_sandbox_starts_total{outcome="ok"} 1`, `workbench_sandboxes 3`, `workbench_runs_running 2`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	if rec.Code != 200 || !strings.HasPrefix(rec.Header().Get("Content-Type"), "text/plain") {
		t.Errorf("%d %s", rec.Code, rec.Header())
	}
}

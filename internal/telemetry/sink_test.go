package telemetry_test

import (
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench/internal/telemetry"
)

// A log that nobody reads holds nobody up; read again, it says what it left
// out.
func TestLogThatNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sink := telemetry.NewSink(w)
	log := telemetry.NewLogger(sink, telemetry.LogText, slog.LevelInfo)
	began := time.Now()
	for range 5000 {
		log.Info("line", "text", strings.Repeat("x", 1000))
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("5000 lines took %s", took)
	}
	read := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(r)
		read <- string(all)
	}()
	time.Sleep(100 * time.Millisecond)
	log.Info("the end")
	sink.Close()
	_ = w.Close()
	all := <-read
	if !strings.Contains(all, "log lines were lost") || !strings.HasSuffix(all, "msg=\"the end\"\n") {
		t.Errorf("the log ends with %q", all[max(0, len(all)-200):])
	}
	for _, line := range strings.Split(strings.TrimSpace(all), "\n") {
		if !strings.HasPrefix(line, "time=") && !strings.Contains(line, "lost") {
			t.Fatalf("half a line: %.80q", line)
		}
	}
}

// Nor does a reader that never comes back hold up the end.
func TestSinkClosesInTime(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	sink := telemetry.NewSink(w)
	_, _ = sink.Write(make([]byte, 200_000))
	began := time.Now()
	sink.Close()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %s", took)
	}
	_ = r.Close() // ends the write that hangs
}

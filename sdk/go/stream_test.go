package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// gather follows a run and joins the bytes of its streams, checking that
// offsets leave no gap.
func gather(ctx context.Context, c *sdk.Client, runID string) (map[workbench.Stream]string, []int64, error) {
	out := map[workbench.Stream]string{}
	var seqs []int64
	add := func(c sdk.Chunk) error {
		b, err := c.Bytes()
		if err != nil {
			return err
		}
		if c.Offset != int64(len(out[c.Stream])) || c.Length != int64(len(b)) {
			return errors.New("a gap")
		}
		out[c.Stream] += string(b)
		return nil
	}
	for e, err := range c.Events(ctx, runID, 0) {
		if err != nil {
			return out, seqs, err
		}
		seqs = append(seqs, e.Seq)
		if e.Kind == workbench.LogOutput {
			if err := add(sdk.Chunk{Stream: e.Stream, Offset: e.Offset, Length: e.Length, Text: e.Text, Base64: e.Base64}); err != nil {
				return out, seqs, err
			}
		}
		for _, c := range e.Tail {
			if err := add(c); err != nil {
				return out, seqs, err
			}
		}
	}
	return out, seqs, nil
}

func TestEventsAreByteExactAcrossBrokenConnections(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w)
	want := "añ☕漢\xff\xfe\r\n\n end\xe6\xbc"
	w.between = func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		if w.requests() < 8 {
			serveCut(rw, r, next, 700) // a few events
			return
		}
		next.ServeHTTP(rw, r)
	}
	for _, b := range []byte(want) {
		w.write(workbench.Stdout, []byte{b})
	}
	w.write(workbench.Stderr, []byte("oops"))
	w.end(workbench.StatusSucceeded)
	out, seqs, err := gather(t.Context(), c, w.run.ID)
	if err != nil {
		t.Fatal(err)
	}
	if out[workbench.Stdout] != want || out[workbench.Stderr] != "oops" {
		t.Errorf("stdout %q, stderr %q", out[workbench.Stdout], out[workbench.Stderr])
	}
	for i, seq := range seqs {
		if seq != int64(i+1) {
			t.Fatalf("event %d has the number %d", i+1, seq)
		}
	}
	if w.requests() < 4 {
		t.Errorf("only %d connections: nothing was resumed", w.requests())
	}
	for i, r := range w.seen[1:] {
		if r.Header.Get("Last-Event-ID") == "" {
			t.Errorf("connection %d did not resume", i+2)
		}
	}
}

func TestEventsArriveWhileTheRunGoesOn(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w)
	go w.write(workbench.Stdout, []byte("early"))
	for e, err := range c.Events(t.Context(), w.run.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == workbench.LogOutput {
			if e.Text != "early" {
				t.Errorf("text %q", e.Text)
			}
			w.end(workbench.StatusFailed) // only now: the first event came through alone
		}
		if s, ok := e.Status(); ok && s.Status != workbench.StatusFailed {
			t.Errorf("status %q", s.Status)
		}
	}
}

func TestEventsBehindTheEndAreNone(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w)
	w.end(workbench.StatusSucceeded)
	for e, err := range c.Events(t.Context(), w.run.ID, 1) {
		t.Errorf("event %+v, %v", e, err)
	}
}

func TestEventsEndWithTheContext(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, _, err := gather(ctx, c, w.run.ID)
	if !workbench.HasCode(err, workbench.CodeCancelled) {
		t.Errorf("error %v, want request_cancelled", err)
	}
}

func TestAServerThatStaysAwayIsAnError(t *testing.T) {
	w := newWorld()
	c := MustServe(t, w)
	w.between = func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }
	_, _, err := gather(t.Context(), c, w.run.ID)
	if !workbench.HasCode(err, workbench.CodeUnavailable) {
		t.Errorf("error %v, want unavailable", err)
	}
}

func TestOutagesAreToldAndBounded(t *testing.T) {
	w := newWorld()
	w.end(workbench.StatusSucceeded)
	// away says when the server is away, by the number of the request.
	follow := func(away func(n int) bool, patience time.Duration) (told []string, ended error) {
		w.seen = nil
		w.between = func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
			if away(w.requests()) {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(rw, r)
		}
		s := httptest.NewServer(w.face())
		defer s.Close()
		c := MustClient(t, sdk.Options{BaseURL: s.URL, Key: testKey, Backoff: time.Millisecond, Patience: patience, OnOutage: func(err error) {
			if err != nil {
				told = append(told, "away")
			} else {
				told = append(told, "back")
			}
		}})
		_, _, ended = gather(t.Context(), c, w.run.ID)
		if receipt, err := c.WaitForSessionRun(t.Context(), w.run.ID); (err == nil) != (ended == nil) || err == nil && receipt.Status != workbench.StatusSucceeded {
			t.Errorf("waiting ends with %v, following with %v", err, ended)
		}
		return told, ended
	}
	for _, tc := range []struct {
		name string
		away func(n int) bool
		want string
	}{
		{"one broken connection is not worth a word", func(n int) bool { return n == 1 }, ""},
		{"a server that comes back", func(n int) bool { return n <= 4 }, "away back"},
	} {
		told, err := follow(tc.away, time.Minute)
		if err != nil || strings.Join(told, " ") != tc.want {
			t.Errorf("%s: told %q, %v", tc.name, told, err)
		}
	}
	start := time.Now()
	told, err := follow(func(int) bool { return true }, 200*time.Millisecond)
	if !workbench.HasCode(err, workbench.CodeUnavailable) || !strings.Contains(err.Error(), "has not come back") || strings.Join(told, " ") != "away away" {
		t.Errorf("a server that stays away: told %q, %v", told, err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("giving up took %s", took)
	}
}

func MustInProcess(t *testing.T, h http.Handler) *sdk.Client {
	t.Helper()
	transport := sdk.NewInProcess(h)
	t.Cleanup(transport.Wait)
	return MustClient(t, sdk.Options{BaseURL: "http://in-process", Key: testKey, Backoff: time.Millisecond, HTTP: &http.Client{Transport: transport}})
}

func TestInProcessStreams(t *testing.T) {
	w := newWorld()
	c := MustInProcess(t, w.face())
	go w.write(workbench.Stdout, []byte("early"))
	var text string
	for e, err := range c.Events(t.Context(), w.run.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == workbench.LogOutput {
			text += e.Text
			w.end(workbench.StatusSucceeded)
		}
	}
	if text != "early" {
		t.Errorf("text %q", text)
	}
}

func TestInProcessUploadsAndDownloads(t *testing.T) {
	w := newWorld()
	c := MustInProcess(t, w.face())
	content := bytes.Repeat([]byte("x"), 3<<20)
	if _, err := c.UploadSessionArtifact(t.Context(), w.session.ID, sdk.Upload{Name: "x.bin"}, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	got, err := c.ReadSessionArtifact(t.Context(), workbench.NewID(workbench.KindArtifact))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestInProcessHandlerThatPanics(t *testing.T) {
	c := MustInProcess(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") }))
	if _, err := c.AgentSession(t.Context(), "ses_x"); !workbench.HasCode(err, workbench.CodeUnavailable) {
		t.Errorf("error %v, want unavailable", err)
	}
}

func TestInProcessClosingABodyEndsTheHandler(t *testing.T) {
	ended := make(chan error, 1)
	transport := sdk.NewInProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
				ended <- r.Context().Err()
				return
			}
		}
	}))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://in-process/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(res.Body, make([]byte, 5000)); err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	transport.Wait()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context says %v", err)
	}
}

func TestInProcessCancelledBeforeAnAnswer(t *testing.T) {
	c := MustInProcess(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.AgentSession(ctx, "ses_x"); !workbench.HasCode(err, workbench.CodeCancelled) {
		t.Errorf("error %v, want request_cancelled", err)
	}
}

// TestSessionEventsAreTakenUpAgain: a connection that breaks after every event
// costs no event and shows none twice, and the stream ends with the session.
func TestSessionEventsAreTakenUpAgain(t *testing.T) {
	log := []string{"created", "run", "files", "run", "expiring", "kept", "expired"}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		after, _ := strconv.Atoi(r.Header.Get("Last-Event-ID"))
		if r.URL.Path != "/v1/workbench/sessions/ses_1/events" || after >= len(log) {
			t.Errorf("%s is asked for behind %d", r.URL.Path, after)
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		// The last event again, as a server may after a crash, and one more.
		for seq := max(1, after); seq <= min(after+1, len(log)); seq++ {
			fmt.Fprintf(rw, "id: %d\nevent: %s\ndata: {\"seq\":%d,\"kind\":%q,\"sessionId\":\"ses_1\",\"at\":\"2026-11-29T12:00:00Z\",\"meta\":{\"status\":\"queued\"}}\n\n: heartbeat\n\n", seq, log[seq-1], seq, log[seq-1])
		}
	}))
	defer server.Close()
	c, err := sdk.New(sdk.Options{BaseURL: server.URL, Key: "wbk_d_x"})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for e, err := range c.SessionEvents(t.Context(), "ses_1", 0) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, string(e.Kind))
		var run workbench.RunEvent
		if err := e.Read(&run); err != nil || run.Status != workbench.StatusQueued {
			t.Errorf("meta %s reads as %+v, %v", e.Meta, run, err)
		}
	}
	if got := strings.Join(kinds, " "); got != strings.Join(log, " ") {
		t.Errorf("events: %s", got)
	}
}

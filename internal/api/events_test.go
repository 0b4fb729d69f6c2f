package api_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/identity"
)

// sseEvent is one server-sent event as a client sees it.
type sseEvent struct {
	ID, Name string
	Data     api.Event
	Raw      string
}

// sseClient reads an event stream.
type sseClient struct {
	t     testing.TB
	res   *http.Response
	lines *bufio.Reader
	beats int
	stop  context.CancelFunc
}

// MustFollow opens a run's event stream.
func (w *world) MustFollow(t testing.TB, secret, run string, headers ...string) *sseClient {
	t.Helper()
	return w.mustFollowPath(t, secret, "/v1/workbench/runs/"+run+"/events", headers...)
}

func (w *world) mustFollowPath(t testing.TB, secret, path string, headers ...string) *sseClient {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL+path, nil)
	if err != nil {
		t.Fatalf("request: %v", err)
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := w.server.Client().Do(req)
	if err != nil {
		t.Fatalf("following: %v", err)
	}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("following: %d %s", res.StatusCode, res.Header)
	}
	return &sseClient{t: t, res: res, lines: bufio.NewReader(res.Body), stop: stop}
}

func (c *sseClient) Close() { c.stop(); _ = c.res.Body.Close() }

// Next reads one event, counting heartbeats; ok is false at the end.
func (c *sseClient) Next() (e sseEvent, ok bool) {
	c.t.Helper()
	for {
		line, err := c.lines.ReadString('\n')
		if err != nil {
			return e, false
		}
		line = strings.TrimSuffix(line, "\n")
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "" && e.Raw != "":
			if err := json.Unmarshal([]byte(e.Raw), &e.Data); err != nil {
				c.t.Fatalf("event is not JSON: %s", e.Raw)
			}
			return e, true
		case line == "":
		case strings.HasPrefix(line, ":"):
			c.beats++
		case name == "id":
			e.ID = value
		case name == "event":
			e.Name = value
		case name == "data":
			e.Raw = value
		default:
			c.t.Fatalf("not an event line: %q", line)
		}
	}
}

// MustBeat reads until so many further heartbeats have come; no event may.
func (c *sseClient) MustBeat(n int) {
	c.t.Helper()
	late := time.AfterFunc(30*time.Second, c.stop)
	defer late.Stop()
	for want := c.beats + n; c.beats < want; {
		line, err := c.lines.ReadString('\n')
		if err != nil || line != "\n" && !strings.HasPrefix(line, ":") {
			c.t.Fatalf("after %d heartbeats: %q, %v", c.beats, line, err)
		}
		if line != "\n" {
			c.beats++
		}
	}
}

// joined is what a client that saw the events has of each stream.
type joined struct{ text, raw map[workbench.Stream]string }

func join(t testing.TB, events []sseEvent) joined {
	t.Helper()
	j := joined{map[workbench.Stream]string{}, map[workbench.Stream]string{}}
	add := func(stream workbench.Stream, offset, length int64, text, b64 string) {
		raw := text
		if b64 != "" {
			b, err := base64.StdEncoding.DecodeString(b64)
			if err != nil {
				t.Fatalf("base64: %v", err)
			}
			raw = string(b)
		}
		if offset != int64(len(j.raw[stream])) || length != int64(len(raw)) {
			t.Errorf("%s: a chunk says offset %d length %d at %d with %d bytes", stream, offset, length, len(j.raw[stream]), len(raw))
		}
		j.text[stream] += text
		j.raw[stream] += raw
	}
	for _, e := range events {
		if e.Data.Kind == workbench.LogOutput {
			add(e.Data.Stream, *e.Data.Offset, *e.Data.Length, *e.Data.Text, e.Data.Base64)
		}
		for _, c := range e.Data.Tail {
			add(c.Stream, c.Offset, c.Length, c.Text, c.Base64)
		}
	}
	return j
}

// hard is output that is cut everywhere a character can be cut, on two streams
// in turns, with bytes that are no characters, and an end inside one.
var hard = []struct {
	stream workbench.Stream
	data   string
}{
	{"stdout", "a"}, {"stdout", "\xc3"}, {"stderr", "\xe2\x98"}, {"stdout", "\xb1"}, {"stderr", "\x95"}, {"stdout", "☕\xe6"}, {"stdout", "\xbc"},
	{"stdout", "\xa2"}, {"stdout", "\xf0"}, {"stdout", "\x9f"}, {"stdout", "\x99"}, {"stdout", "\x82!"}, {"stdout", "ok\xff\xfeend\n"},
	{"stderr", "\xe2\x98"}, {"stderr", "x"}, {"stdout", "\r\n\n\n"}, {"stdout", "\xe6\xbc"}, {"stderr", "\xf0\x9f"},
}

const (
	hardOut    = "a\xc3\xb1☕漢🙂!ok\xff\xfeend\n\r\n\n\n\xe6\xbc"
	hardOutTxt = "añ☕漢🙂!ok\uFFFD\uFFFDend\n\r\n\n\n\uFFFD\uFFFD"
	hardErr    = "\xe2\x98\x95\xe2\x98x\xf0\x9f"
	hardErrTxt = "☕\uFFFD\uFFFDx\uFFFD\uFFFD"
)

func hardRun(t *testing.T) (w *world, key, run string, last int64) {
	t.Helper()
	w = MustWorld(t)
	key = w.Direct("", "acme", "ada")
	run = w.MustSubmit(key, w.MustSession(key))
	r := w.engine.MustStart(t, run)
	for _, c := range hard {
		r.Write(c.stream, c.data)
	}
	r.End()
	return w, key, run, r.seq + 1
}

// TestEventsAreLossless: every way to cut the stream and resume gives the same
// events with the same ids, whole characters, and every byte once.
func TestEventsAreLossless(t *testing.T) {
	w, key, run, last := hardRun(t)
	all := func(headers ...string) []sseEvent {
		c := w.MustFollow(t, key, run, headers...)
		defer c.Close()
		var events []sseEvent
		for e, ok := c.Next(); ok; e, ok = c.Next() {
			events = append(events, e)
		}
		return events
	}
	whole := all()
	if int64(len(whole)) != last {
		t.Fatalf("%d events, want %d", len(whole), last)
	}
	for i, e := range whole {
		if e.ID != strconv.Itoa(i+1) || e.Data.Seq != int64(i+1) || e.Name != string(e.Data.Kind) || e.Data.RunID != run {
			t.Errorf("event %d: id %s, name %s: %s", i+1, e.ID, e.Name, e.Raw)
		}
		if terminal := e.Data.Kind == workbench.LogTerminal; terminal != (i == len(whole)-1) {
			t.Errorf("event %d: kind %s", i+1, e.Data.Kind)
		}
	}
	got := join(t, whole)
	if got.raw["stdout"] != hardOut || got.raw["stderr"] != hardErr {
		t.Errorf("bytes: stdout %q, stderr %q", got.raw["stdout"], got.raw["stderr"])
	}
	if got.text["stdout"] != hardOutTxt || got.text["stderr"] != hardErrTxt {
		t.Errorf("text: stdout %q, stderr %q", got.text["stdout"], got.text["stderr"])
	}
	for cut := range whole[:len(whole)-1] {
		rest := all("Last-Event-ID", whole[cut].ID)
		if len(rest) != len(whole)-cut-1 {
			t.Fatalf("resumed behind %d: %d events", cut+1, len(rest))
		}
		for i, e := range rest {
			if e.Raw != whole[cut+1+i].Raw {
				t.Errorf("resumed behind %d, event %s:\n got %s\nwant %s", cut+1, e.ID, e.Raw, whole[cut+1+i].Raw)
			}
		}
	}
	if x := w.Do("GET", "/v1/workbench/runs/"+run+"/events?after="+strconv.FormatInt(last, 10), key, ""); x.Status != 204 {
		t.Errorf("behind the terminal event: %d, want 204", x.Status)
	}
}

// TestNDJSON: the same events, one a line, when Accept prefers them.
func TestNDJSON(t *testing.T) {
	w, key, run, last := hardRun(t)
	for accept, ndjson := range map[string]bool{
		"application/x-ndjson": true, "application/x-ndjson, text/event-stream;q=0.5": true, "application/*": true,
		"*/*": false, "text/event-stream": false, "application/x-ndjson;q=0.1, text/*": false, "application/x-ndjson;q=0, */*": false,
	} {
		x := w.Do("GET", "/v1/workbench/runs/"+run+"/events", key, "", "Accept", accept).Want(200)
		if got := x.Header.Get("Content-Type") == "application/x-ndjson"; got != ndjson {
			t.Errorf("Accept %q gives %s", accept, x.Header.Get("Content-Type"))
		}
	}
	x := w.Do("GET", "/v1/workbench/runs/"+run+"/events?after=0", key, "", "Accept", "application/x-ndjson")
	var events []sseEvent
	for _, line := range strings.Split(strings.TrimSpace(string(x.Body)), "\n") {
		var e sseEvent
		if err := json.Unmarshal([]byte(line), &e.Data); err != nil {
			t.Fatalf("line is not JSON: %s", line)
		}
		if e.Data.Kind != "heartbeat" {
			events = append(events, e)
		}
	}
	if got := join(t, events); int64(len(events)) != last || got.raw["stdout"] != hardOut {
		t.Errorf("%d events, stdout %q", len(events), got.raw["stdout"])
	}
}

// TestLiveEvents: events come as they happen, heartbeats in between, and the
// stream ends after the terminal one.
func TestLiveEvents(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	run := w.MustSubmit(key, w.MustSession(key))
	c := w.MustFollow(t, key, run)
	defer c.Close()
	if e, ok := c.Next(); !ok || e.Data.Kind != workbench.LogStatus || string(e.Data.Meta) != `{"status":"queued"}` {
		t.Fatalf("first event: %+v", e)
	}
	r := w.engine.MustStart(t, run)
	if e, ok := c.Next(); !ok || string(e.Data.Meta) != `{"status":"dispatching"}` {
		t.Fatalf("second event: %+v", e)
	}
	r.Write(workbench.Stdout, "x")
	if e, ok := c.Next(); !ok || *e.Data.Text != "x" {
		t.Fatalf("third event: %+v", e)
	}
	c.MustBeat(3)
	r.End()
	e, ok := c.Next()
	if !ok || e.Data.Kind != workbench.LogTerminal {
		t.Fatalf("last event: %+v", e)
	}
	if e, ok := c.Next(); ok {
		t.Errorf("an event after the terminal one: %+v", e)
	}
}

// TestResumeShowsItIsOpen: a stream without news answers soon, not with the
// first event.
func TestResumeShowsItIsOpen(t *testing.T) {
	w := MustWorld(t, func(o *api.Options) { o.Heartbeat = 15 * time.Second })
	key := w.Direct("", "acme", "ada")
	run := w.MustSubmit(key, w.MustSession(key))
	start := time.Now()
	c := w.MustFollow(t, key, run, "Last-Event-ID", "1")
	defer c.Close()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the answer began after %s", took)
	}
}

// TestHeadOfEvents: HEAD answers with headers and ends.
func TestHeadOfEvents(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	run := w.MustSubmit(key, w.MustSession(key))
	x := w.Do("HEAD", "/v1/workbench/runs/"+run+"/events", key, "").Want(200)
	if len(x.Body) != 0 || x.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("HEAD gives %q %s", x.Body, x.Header)
	}
}

// TestHeldRequestsAreBounded: a caller holds so many long polls and streams,
// gets 429 beyond, and its places back; an embedded key's users do not share.
func TestHeldRequestsAreBounded(t *testing.T) {
	w := MustWorld(t, func(o *api.Options) { o.StreamsPerUser = 2 })
	key, other := w.Direct("", "acme", "ada"), w.Direct("", "acme", "ada")
	run := w.MustSubmit(key, w.MustSession(key))
	one, two := w.MustFollow(t, key, run), w.MustFollow(t, key, run)
	defer two.Close()
	for _, path := range []string{"/events", "?waitMs=10"} {
		if x := w.Do("GET", "/v1/workbench/runs/"+run+path, key, ""); x.Status != 429 || x.Text("code") != "rate_limited" || x.Header.Get("Retry-After") == "" {
			t.Errorf("a third held request: %d %s", x.Status, x.Body)
		}
	}
	w.Do("GET", "/v1/workbench/runs/"+run+"?waitMs=0", key, "").Want(200)
	w.Do("GET", "/v1/workbench/runs/"+run+"?waitMs=10", other, "").Want(200)
	_, embedded := w.MustKey(identity.KeyRequest{Kind: workbench.KeyEmbedded})
	theirs := w.MustSubmit(embedded, w.MustSession(embedded, asZoe...), asZoe...)
	for range 2 {
		defer w.MustFollow(t, embedded, theirs, asZoe...).Close()
	}
	w.Do("GET", "/v1/workbench/runs/"+theirs+"?waitMs=10", embedded, "", asZoe...).Want(429)
	w.Do("GET", "/v1/workbench/runs/"+run+"?waitMs=10", embedded, "", asAda...).Want(200)
	one.Close()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if x := w.Do("GET", "/v1/workbench/runs/"+run+"?waitMs=1", key, ""); x.Status == 200 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a place did not come back")
		}
	}
}

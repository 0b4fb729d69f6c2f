package api_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
)

// mustFollowSession opens a session's event stream.
func (w *world) mustFollowSession(t testing.TB, secret, session string, headers ...string) *sseClient {
	t.Helper()
	return w.mustFollowPath(t, secret, "/v1/workbench/sessions/"+session+"/events", headers...)
}

// TestSessionEvents: a session's life in one stream, resumed behind every event
// of it, as server-sent events and as lines.
func TestSessionEvents(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	base := "/v1/workbench/sessions/" + session
	w.engine.MustStart(t, w.MustSubmit(key, session)).End()
	w.Do("POST", base+"/configure", key, `{"keepAtExpiry":["out/**"]}`).Want(200)
	w.Do("POST", base+"/restart", key, "").Want(200)
	w.MustSubmit(key, session)
	w.Do("POST", base+"/close", key, "").Want(200)
	all := func(headers ...string) []sseEvent {
		c := w.mustFollowSession(t, key, session, headers...)
		defer c.Close()
		var events []sseEvent
		for e, ok := c.Next(); ok; e, ok = c.Next() {
			events = append(events, e)
		}
		return events
	}
	whole := all()
	var kinds []string
	for i, e := range whole {
		var event workbench.SessionEvent
		if err := json.Unmarshal([]byte(e.Raw), &event); err != nil || event.SessionID != session || event.Seq != int64(i+1) ||
			e.ID != strconv.Itoa(i+1) || e.Name != string(event.Kind) || event.At.IsZero() {
			t.Errorf("event %d: id %s, name %s: %s, %v", i+1, e.ID, e.Name, e.Raw, err)
		}
		kinds = append(kinds, e.Name)
	}
	if got := strings.Join(kinds, " "); got != "created run files run configured restarted run run closed" {
		t.Fatalf("events: %s", got)
	}
	for cut := range whole[:len(whole)-1] {
		rest := all("Last-Event-ID", whole[cut].ID)
		if len(rest) != len(whole)-cut-1 || rest[0].Raw != whole[cut+1].Raw {
			t.Errorf("resumed behind %d: %d events, the first %s", cut+1, len(rest), rest[0].Raw)
		}
	}
	if x := w.Do("GET", base+"/events?after=9", key, ""); x.Status != 204 {
		t.Errorf("behind the terminal event: %d, want 204", x.Status)
	}
	if x := w.Do("GET", base+"/events?after=10", key, ""); x.Status != 400 || x.Text("code") != "offset_invalid" || x.Text("field") != "after" {
		t.Errorf("beyond the terminal event: %d %s", x.Status, x.Body)
	}
	x := w.Do("GET", base+"/events", key, "", "Accept", "application/x-ndjson").Want(200)
	for i, line := range strings.Split(strings.TrimSpace(string(x.Body)), "\n") {
		if line != whole[i].Raw {
			t.Errorf("line %d is %s, want %s", i+1, line, whole[i].Raw)
		}
	}
	w.Do("GET", base+"/events", key, "", "Accept", "text/html").Want(406)
	w.Do("GET", base+"/events?after=1", key, "", "Last-Event-ID", "2").Want(400)
	if x := w.Do("HEAD", base+"/events", key, "").Want(200); len(x.Body) != 0 {
		t.Errorf("HEAD gives %q", x.Body)
	}
}

// TestQuietStreamsBeat: heartbeats come while a run waits in the queue, and
// while nothing happens to a session.
func TestQuietStreamsBeat(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	run := w.MustSubmit(key, session)
	for name, c := range map[string]*sseClient{"run": w.MustFollow(t, key, run, "Last-Event-ID", "1"),
		"session": w.mustFollowSession(t, key, session, "Last-Event-ID", "2")} {
		c.lines.Reset(c.res.Body)
		for c.beats < 3 {
			line, err := c.lines.ReadString('\n')
			if err != nil || line != "\n" && line != ": heartbeat\n" {
				t.Fatalf("%s: %q, %v", name, line, err)
			}
			if line != "\n" {
				c.beats++
			}
		}
		c.Close()
	}
}

// TestSessionStreamsAreHeld: they share the places of runs' streams.
func TestSessionStreamsAreHeld(t *testing.T) {
	w := MustWorld(t, func(o *api.Options) { o.StreamsPerUser = 1; o.Heartbeat = 15 * time.Second })
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	run := w.MustSubmit(key, session)
	c := w.mustFollowSession(t, key, session)
	defer c.Close()
	w.Do("GET", "/v1/workbench/runs/"+run+"/events", key, "").Want(429)
}

// TestKeepAtExpiryIsShown: in the session, and in the revisions that set it.
func TestKeepAtExpiryIsShown(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	x := w.Do("POST", "/v1/workbench/sessions", key, `{"keepAtExpiry":["out/**","*.csv"]}`).Want(201)
	base := "/v1/workbench/sessions/" + x.Text("id")
	if got := string(x.Body); !strings.Contains(got, `"keepAtExpiry":["out/**","*.csv"]`) {
		t.Errorf("created: %s", got)
	}
	if got := string(w.Do("POST", base+"/configure", key, `{"keepAtExpiry":[]}`).Want(200).Body); !strings.Contains(got, `"keepAtExpiry":[]`) {
		t.Errorf("configured: %s", got)
	}
	if got := string(w.Do("GET", base+"/revisions", key, "").Want(200).Body); !strings.Contains(got, `"keepAtExpiry":["out/**","*.csv"]`) || !strings.Contains(got, `"keepAtExpiry":[]`) {
		t.Errorf("revisions: %s", got)
	}
	many := strings.TrimSuffix(strings.Repeat(`"a",`, 21), ",")
	w.Do("POST", "/v1/workbench/sessions", key, `{"keepAtExpiry":[`+many+`]}`).Want(400)
}

// TestNobodyWaitsBeyondTheLastEvent: a number that no event has yet is refused,
// and does not swallow what comes.
func TestNobodyWaitsBeyondTheLastEvent(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	run := w.MustSubmit(key, session)
	for path, last := range map[string]int{"/v1/workbench/sessions/" + session: 2, "/v1/workbench/runs/" + run: 1} {
		for _, x := range []exchange{w.Do("GET", fmt.Sprintf("%s/events?after=%d", path, last+1), key, ""),
			w.Do("GET", path+"/events", key, "", "Last-Event-ID", "999")} {
			want := "Last-Event-ID"
			if x.Text("field") != want {
				want = "after"
			}
			if x.Status != 400 || x.Text("code") != "offset_invalid" || x.Text("field") != want || !strings.Contains(x.Text("detail"), fmt.Sprintf("number %d", last)) {
				t.Errorf("%s: %d %s", path, x.Status, x.Body)
			}
		}
		w.mustFollowPath(t, key, path+"/events", "Last-Event-ID", strconv.Itoa(last)).Close()
	}
}

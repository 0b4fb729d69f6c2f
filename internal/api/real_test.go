package api_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	"github.com/workbenchdev/workbench/internal/broker"
	"github.com/workbenchdev/workbench/internal/engine"
	"github.com/workbenchdev/workbench/internal/image"
	"github.com/workbenchdev/workbench/internal/sandbox/oci"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// mustRealWorld is a world whose engine runs code in gVisor.
func mustRealWorld(t *testing.T) *world {
	t.Helper()
	w := mustParts(t, &clock{real: true})
	images := os.Getenv("WORKBENCH_IMAGES")
	if images == "" {
		images = "/var/lib/workbench/images"
	}
	store, err := image.Open(mustAbs(t, images))
	if err != nil {
		t.Fatalf("no images in %s: run make setup (%v)", images, err)
	}
	instance := strings.ToLower(rand.Text()[:12])
	d, err := oci.Open(oci.Options{Kind: oci.Runsc, Instance: instance, Binary: mustAbs(t, "../../bin/runsc"), Guest: mustAbs(t, "../../bin/guest")})
	if err != nil {
		t.Fatalf("no gVisor driver: run make setup (%v)", err)
	}
	e := engine.New(engine.Options{
		Store: w.db, Seal: w.parts.sealer, Workspace: workspace.New(w.parts.blobs, w.parts.sealer, w.db), Artifacts: w.parts.files,
		Tools: w.parts.tools, Broker: broker.New(w.parts.tools, broker.Options{}),
		Images: store, Driver: d, Instance: instance, DefaultImage: "minimal", Log: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := e.Start(ctx); err != nil {
		t.Fatalf("the engine does not start: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := e.Stop(ctx); err != nil {
			t.Errorf("the engine does not stop well: %v", err)
		}
	})
	w.serve(e)
	return w
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(abs); err != nil {
		t.Fatalf("%s is missing: run make setup", abs)
	}
	return abs
}

// runForReal runs code of ada's that prints and leaves the file asked for.
func (s *stage) runForReal(t *testing.T) string {
	t.Helper()
	x := s.w.Do("POST", "/v1/workbench/sessions/"+s.session+"/runs?waitMs=60000", s.secrets["owner"],
		fmt.Sprintf(`{"language":"bash","code":"workbench call no.tool 2>/dev/null; mkdir out && printf 'made by the run\\n' > out/made.txt && workbench result 1 && printf %s"}`, s.contentOfRun)).Want(200)
	if x.Text("status") != string(workbench.StatusSucceeded) {
		t.Fatalf("the run did not succeed: %s", x.Body)
	}
	return x.Text("id")
}

// TestWhoMaySeeWhatForReal is the same table over the real engine. Sandboxes
// are slow beside a table, so the things are set once: routes that change them
// are asked by those who are refused only, and so is the stream of the session.
func TestWhoMaySeeWhatForReal(t *testing.T) {
	s := newStage(t, mustRealWorld(t))
	s.set(t)
	for _, r := range api.Routes() {
		if r.Public {
			continue
		}
		for i, caller := range callers {
			want := expected[r.ID][i]
			if want < 400 && (r.Method != http.MethodGet || r.ID == "streamSessionEvents") {
				continue // the stream would end with the session
			}
			x := s.ask(r, s.secrets[caller], s.headers[caller])
			if x.Status != want {
				t.Errorf("%s by %s: %d, want %d: %.200s", r.ID, caller, x.Status, want, x.Body)
			}
			if r.ID != "listAudit" && r.ID != "exportAudit" { // an admin's trail holds the ids that its own refused requests named
				s.mustNotTell(t, r, caller, x)
			}
		}
	}
	owner := s.secrets["owner"]
	x := s.w.Do("GET", "/v1/workbench/runs/"+s.run, owner, "").Want(200)
	if x.Text("status") != "succeeded" || x.Text("stdout") != s.contentOfRun || x.Text("session.state") != "active" {
		t.Errorf("after all the refusals the receipt is %s", x.Body)
	}
	admin := s.w.Do("GET", "/v1/workbench/runs/"+s.run, s.secrets["admin"], "").Want(200)
	if strings.Contains(string(admin.Body), `"stdout":"`) {
		t.Errorf("an admin reads output: %s", admin.Body)
	}
	for _, path := range []string{"/v1/workbench/runs/" + s.run + "/files/content?path=out/made.txt", "/v1/workbench/artifacts/" + s.file + "/content"} {
		want := map[bool]string{true: runFile, false: s.contentOfFile}[strings.Contains(path, "made.txt")]
		if x := s.w.Do("GET", path, owner, "").Want(200); string(x.Body) != want {
			t.Errorf("%s is %q", path, x.Body)
		}
		if x := s.w.Do("GET", path, owner, "", "Range", "bytes=2-4").Want(206); string(x.Body) != want[2:5] {
			t.Errorf("bytes 2 to 4 of %s are %q", path, x.Body)
		}
	}
}

// TestBadInputForReal: the real engine answers every wrong request as the
// table says.
func TestBadInputForReal(t *testing.T) {
	w := mustRealWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	file := w.MustUpload(key, session, "input.txt", "hello")
	run := w.Do("POST", "/v1/workbench/sessions/"+session+"/runs?waitMs=60000", key, `{"language":"bash","code":"mkdir out && echo > out/made.txt && printf é"}`).Want(200).Text("id")
	before := census(t, w, key, session)
	for _, b := range badRequests(session, run, file) {
		x := w.Do(b.method, b.path, key, b.body, b.headers...)
		if x.Status != b.status || x.Text("code") != string(b.code) || x.Text("field") != b.field {
			t.Errorf("%s: got %d, code %q, field %q; want %d, %q, %q: %s", b.name, x.Status, x.Text("code"), x.Text("field"), b.status, b.code, b.field, x.Body)
		}
	}
	if after := census(t, w, key, session); after != before {
		t.Errorf("bad requests left something behind: %s, before: %s", after, before)
	}
}

// TestLiveEventsForReal follows B1 of the field reports: characters that come
// byte by byte are never cut, and the stream ends by itself.
func TestLiveEventsForReal(t *testing.T) {
	w := mustRealWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	run := w.Do("POST", "/v1/workbench/sessions/"+session+"/runs", key,
		`{"language":"bash","code":"for b in a '\\303' '\\261' '\\342' '\\230' '\\225' '\\346' '\\274' '\\242'; do printf \"$b\"; sleep 0.03; done; printf 'ok\\377\\376end\\n'; printf '\\342' >&2"}`).Want(202).Text("id")
	c := w.MustFollow(t, key, run)
	defer c.Close()
	var events []sseEvent
	for e, ok := c.Next(); ok; e, ok = c.Next() {
		events = append(events, e)
	}
	got := join(t, events)
	if got.text["stdout"] != "añ☕漢ok\uFFFD\uFFFDend\n" || got.raw["stdout"] != "añ☕漢ok\xff\xfeend\n" || got.raw["stderr"] != "\xe2" {
		t.Errorf("stdout %q, stderr %q", got.raw["stdout"], got.raw["stderr"])
	}
	if last := events[len(events)-1]; last.Data.Kind != workbench.LogTerminal || len(last.Data.Tail) != 1 {
		t.Errorf("the last event is %s", last.Raw)
	}
	for cut := range events[:len(events)-1] {
		resumed := w.MustFollow(t, key, run, "Last-Event-ID", events[cut].ID)
		for i := cut + 1; i < len(events); i++ {
			if e, ok := resumed.Next(); !ok || e.Raw != events[i].Raw {
				t.Errorf("resumed behind %s: %s, want %s", events[cut].ID, e.Raw, events[i].Raw)
			}
		}
		resumed.Close()
	}
	receipt := w.Do("GET", "/v1/workbench/runs/"+run, key, "").Want(200)
	if receipt.Text("stdout") != got.text["stdout"] || receipt.Text("stderr") != "\uFFFD" {
		t.Errorf("the receipt is %s", receipt.Body)
	}
}

// TestCommitThatIsGone: what names a commit that went with its session is told
// so, when and why, for 30 days; who could not see it, and whoever asks later,
// gets what a commit gets that never was.
func TestCommitThatIsGone(t *testing.T) {
	w := mustRealWorld(t)
	key, other := w.Direct("", "acme", "ada"), w.Direct("", "acme", "bob")
	sessions := "/v1/workbench/sessions/"
	session, another := w.MustSession(key), w.MustSession(key)
	commit := w.Do("PUT", sessions+session+"/workspace/content?path=f", key, "x").Want(200).Text("commit.id")
	w.Do("PUT", sessions+another+"/workspace/content?path=f", key, "y").Want(200)
	w.Do("POST", sessions+session+"/close", key, "").Want(200)
	week := time.Now().Add(workbench.ReceiptGrace + time.Hour)
	if _, err := w.db.PurgeReceipts(t.Context(), week, 100); err != nil {
		t.Fatalf("purging: %v", err)
	}
	base, body := "/v1/workbench/commits/"+commit, `{"commit":"`+commit+`"}`
	requests := [][3]string{
		{"GET", base}, {"GET", base + "/tree"}, {"GET", base + "/content?path=f"}, {"GET", base + "/tar"}, {"GET", base + "/diff"},
		{"POST", sessions + session + "/fork", body}, {"POST", sessions + another + "/fork", body}, {"POST", sessions + another + "/rollback", body},
	}
	for _, r := range requests {
		x := w.Do(r[0], r[1], key, r[2]).Want(410)
		detail := "the commit was deleted at " + week.UTC().Format(time.RFC3339) + ": its session ended more than 7 days ago, and so did the life of its last retained file"
		if x.Text("code") != "commit_gone" || x.Text("detail") != detail || x.Text("hint") == "" || x.Text("retryable") != "false" {
			t.Errorf("%s %s: %s", r[0], r[1], x.Body)
		}
		if x := w.Do(r[0], r[1], other, r[2]).Want(404); strings.Contains(string(x.Body), commit) {
			t.Errorf("%s %s by another user: %s", r[0], r[1], x.Body)
		}
	}
	if x := w.Do("GET", sessions+another+"/workspace/content?path=f", key, "").Want(200); string(x.Body) != "y" {
		t.Errorf("after all the refusals the file is %q", x.Body)
	}
	if _, err := w.db.PurgeReceipts(t.Context(), week.Add(31*24*time.Hour), 100); err != nil {
		t.Fatalf("purging: %v", err)
	}
	for _, r := range requests {
		w.Do(r[0], r[1], key, r[2]).Want(404)
	}
}

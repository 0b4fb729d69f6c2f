package e2e_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
	"github.com/workbenchdev/workbench/internal/server"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// mustFollowSession gathers a session's events to its end.
func mustFollowSession(t *testing.T, c *sdk.Client, id string) (events []sdk.SessionEvent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for e, err := range c.SessionEvents(ctx, id, 0) {
		if err != nil {
			t.Fatalf("after %d events: %v", len(events), err)
		}
		if e.Seq != int64(len(events)+1) || e.SessionID != id {
			t.Fatalf("event %d: %+v", len(events)+1, e)
		}
		events = append(events, e)
	}
	return events
}

func eventKinds(events []sdk.SessionEvent) string {
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, string(e.Kind))
	}
	return strings.Join(kinds, " ")
}

// mustEvent reads the one event of a kind.
func mustEvent[M any](t *testing.T, events []sdk.SessionEvent, kind workbench.SessionEventKind) (meta M) {
	t.Helper()
	i := slices.IndexFunc(events, func(e sdk.SessionEvent) bool { return e.Kind == kind })
	if i < 0 {
		t.Fatalf("no %s among %s", kind, eventKinds(events))
	}
	if err := events[i].Read(&meta); err != nil {
		t.Fatal(err)
	}
	return meta
}

// A session is warned before its deadline, and what it asked for is kept then:
// from the last commit, with what a run that was ended by the deadline left.
func TestDeadlineKeepsWhatWasAskedFor(t *testing.T) {
	t.Parallel() // it waits more than it works
	w := mustShared(t)
	c := w.mustUser(t, "deadline", "ada")
	s := mustSessionOf(t, c, sdk.CreateSession{TTLMs: ptr(int64(30_000)), KeepAtExpiry: []string{"out/**", "*.none"}, Limits: &workbench.LimitsRequest{FileBytes: ptr(int64(1000))}})
	made, err := c.AgentSession(t.Context(), s.id)
	if err != nil || !slices.Equal(made.KeepAtExpiry, []string{"out/**", "*.none"}) {
		t.Fatalf("the session keeps %v, %v", made.KeepAtExpiry, err)
	}
	r := s.mustBash(`mkdir -p out/deep; echo one > out/one.txt; echo two > out/deep/two.txt; head -c 2000 /dev/zero > out/large; echo no > other.txt`)
	wantEnd(t, r, workbench.StatusSucceeded, "")
	long, err := c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "echo three > out/three.txt; sleep 120", TimeoutMs: ptr(int64(100_000))})
	if err != nil {
		t.Fatal(err)
	}
	events := mustFollowSession(t, c, s.id)
	kinds := eventKinds(events)
	if strings.Count(kinds, "expiring") != 1 || strings.Count(kinds, "kept") != 1 || !strings.HasSuffix(kinds, "files run kept expired") {
		t.Errorf("events: %s", kinds)
	}
	warned := mustEvent[workbench.ExpiringEvent](t, events, workbench.EventExpiring)
	if !warned.Deadline.Equal(made.ExpiresAt) || warned.MsLeft > 15_000 || warned.MsLeft <= 0 || !slices.Equal(warned.Keep, made.KeepAtExpiry) {
		t.Errorf("the warning is %+v", warned)
	}
	if m := warned.Matching; m == nil || m.Files != 3 || !slices.Equal(m.First, []string{"out/deep/two.txt", "out/large", "out/one.txt"}) {
		t.Errorf("it counts %+v", m)
	}
	kept := mustEvent[workbench.KeptEvent](t, events, workbench.EventKept)
	if kept.Files != 3 || kept.Missed != 1 || len(kept.MissedItems) != 1 || kept.MissedItems[0].Path != "out/large" ||
		kept.MissedItems[0].Code != workbench.CodeFileTooLarge || !slices.Equal(kept.Unmatched, []string{"*.none"}) {
		t.Errorf("kept: %+v", kept)
	}
	contents := map[string]string{"out/one.txt": "one\n", "out/deep/two.txt": "two\n", "out/three.txt": "three\n"}
	for _, item := range kept.Items {
		if got := s.mustRead(item.ArtifactID); got != contents[item.Path] {
			t.Errorf("%s reads %q", item.Path, got)
		}
	}
	ended, err := c.GetRun(t.Context(), long.ID, 0)
	if err != nil || ended.Status != workbench.StatusCancelled || ended.Reason != workbench.ReasonSessionExpired {
		t.Errorf("the run that was under way: %s %s, %v", ended.Status, ended.Reason, err)
	}
	_, err = c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "ls"})
	wantCode(t, err, workbench.CodeSessionExpired)
	for _, told := range []string{made.ExpiresAt.UTC().Format(time.RFC3339), "create a new session", "/v1/workbench/sessions/" + s.id + "/events"} {
		if !strings.Contains(err.Error(), told) && !strings.Contains(workbench.AsError(err).Hint, told) {
			t.Errorf("the refusal does not say %q: %v", told, err)
		}
	}
}

// A receipt says that the deadline is near, and what becomes of the files then.
func TestReceiptTellsOfTheDeadline(t *testing.T) {
	t.Parallel() // it waits more than it works
	w := mustShared(t)
	c := w.mustUser(t, "deadline", "ben")
	s := mustSessionOf(t, c, sdk.CreateSession{TTLMs: ptr(int64(60_000))})
	early := s.mustBash("true")
	if slices.ContainsFunc(early.Notices, func(n workbench.Notice) bool { return n.Code == workbench.NoticeSessionExpiring }) {
		t.Errorf("a receipt of the first half of a short life tells of its end: %+v", early.Notices)
	}
	if left := time.Until(early.Session.ExpiresAt) - 29*time.Second; left > 0 {
		time.Sleep(left)
	}
	late := s.mustBash("true")
	i := slices.IndexFunc(late.Notices, func(n workbench.Notice) bool { return n.Code == workbench.NoticeSessionExpiring })
	if i < 0 || !strings.Contains(late.Notices[i].Detail, "keepAtExpiry") {
		t.Errorf("a receipt of the last half tells %+v", late.Notices)
	}
}

// A caller who closes a session is there to save what is needed: nothing is
// kept for it, and the log ends with the close. What its runs did is in it.
func TestCloseKeepsNothing(t *testing.T) {
	w := mustShared(t)
	c := w.mustUser(t, "deadline", "eve")
	s := mustSessionOf(t, c, sdk.CreateSession{KeepAtExpiry: []string{"**"}})
	r := s.mustBash("echo x > a.txt; mkdir d; echo y > d/b.txt")
	if _, err := c.CloseAgentSession(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	events := mustFollowSession(t, c, s.id)
	if got := eventKinds(events); got != "created run files run closed" {
		t.Errorf("events: %s", got)
	}
	files := mustEvent[workbench.FilesEvent](t, events, workbench.EventFiles)
	if files.CommitID != r.CommitID || files.Root != r.OutputRoot || files.Files != 2 || files.Bytes != 4 || !slices.Equal(files.RunIDs, []string{r.ID}) {
		t.Errorf("files: %+v", files)
	}
	kept, err := c.ListSessionArtifacts(t.Context(), s.id, workbench.Page{})
	if err != nil || len(kept.Items) != 0 {
		t.Errorf("closing kept %+v, %v", kept.Items, err)
	}
	_, err = c.CreateSessionRun(t.Context(), s.id, sdk.CreateRun{Language: workbench.Bash, Code: "ls"})
	wantCode(t, err, workbench.CodeSessionClosed)

	// The run's own stream: what it changed comes just before its end.
	var all []sdk.Event
	for e, err := range c.Events(t.Context(), r.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	changed, ok := all[len(all)-2].Files()
	if !ok || changed.Total != 3 || changed.CommitID != r.CommitID || changed.Root != r.OutputRoot || !changed.Exclusive ||
		len(changed.Items) != 3 || changed.Items[0].Path != "a.txt" || changed.Items[0].Change != workbench.ChangeAdded || changed.Items[0].Size != 2 {
		t.Errorf("the event before the last is %+v", all[len(all)-2])
	}
}

// stalled is a driver whose next start takes until it is let go, whatever its
// context says.
type stalled struct {
	sandbox.Driver
	stall atomic.Bool
	begun chan struct{}
	let   chan struct{}
}

// Start implements sandbox.Driver.
func (s *stalled) Start(ctx context.Context, class sandbox.Class) (sandbox.Sandbox, error) {
	if s.stall.CompareAndSwap(true, false) {
		close(s.begun)
		<-s.let
	}
	return s.Driver.Start(context.WithoutCancel(ctx), class)
}

// A session that cannot be ended, for its sandbox is being started, holds up the
// end of no other; its own sandbox goes once that is over.
func TestDeadlineOfOneHoldsUpNoOther(t *testing.T) {
	slow := &stalled{begun: make(chan struct{}), let: make(chan struct{})}
	w := mustWorld(t, func(o *server.Options) {
		o.DefaultImage = "minimal"
		o.WrapDriver = func(d sandbox.Driver) sandbox.Driver { slow.Driver = d; return slow }
	})
	letGo := sync.OnceFunc(func() { close(slow.let) })
	defer letGo()
	slow.stall.Store(true)
	mustExpire := func(s *session) {
		t.Helper()
		w.mustTouch(t, "UPDATE sessions SET expires_at = 1 WHERE id = ?", s.id)
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			got, err := s.c.AgentSession(t.Context(), s.id)
			if err != nil {
				t.Fatal(err)
			}
			if got.State == workbench.SessionExpired {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("the session has not expired")
			}
		}
	}
	c := w.mustUser(t, "acme", "ada")
	busy := mustSessionOf(t, c, sdk.CreateSession{})
	busy.mustSubmit(sdk.CreateRun{Language: workbench.Bash, Code: "true"})
	<-slow.begun
	mustExpire(busy)
	time.Sleep(1500 * time.Millisecond) // whoever ends it waits for its lock
	for range 2 {
		s := mustSessionOf(t, c, sdk.CreateSession{})
		mustExpire(s)
		if kinds := eventKinds(mustFollowSession(t, c, s.id)); !strings.HasSuffix(kinds, "expired") {
			t.Errorf("its events are %s", kinds)
		}
	}
	letGo()
	for deadline := time.Now().Add(30 * time.Second); w.live(t) > 0 || w.mustOwner(t, busy.id) != ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d sandboxes live, and the lease is held by %q", w.live(t), w.mustOwner(t, busy.id))
		}
	}
}

package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// A server that dies while a replay is judged, or a version published, has done it
// once or not at all: the request that is sent again finds out which.
func TestKillAroundPublications(t *testing.T) {
	t.Parallel()
	w := mustWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w.mustKey(ctx)
	series, session := "", ""
	version := func(n int64) {
		t.Helper()
		var reuse *workbench.ReuseRequest
		if series != "" {
			reuse = &workbench.ReuseRequest{SeriesID: series}
		}
		run, err := again(ctx, func() (sdk.Submitted, error) {
			return w.client(w.key).CreateSessionRun(ctx, session, sdk.CreateRun{Language: workbench.Bash, Code: fmt.Sprint("echo ", n), ReusableRun: reuse, IdempotencyKey: fmt.Sprint("version", n)})
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, w.log())
		}
		r, err := again(ctx, func() (workbench.Receipt, error) { return w.client(w.key).WaitForSessionRun(ctx, run.ID) })
		if err != nil || r.ReusableRun.Version != n {
			t.Fatalf("version %d: %+v, %v\n%s", n, r.ReusableRun, err, w.log())
		}
		series = r.ReusableRun.SeriesID
	}
	s, err := again(ctx, func() (workbench.Session, error) { return w.client(w.key).CreateAgentSession(ctx, sdk.CreateSession{}) })
	if err != nil {
		t.Fatalf("%v\n%s", err, w.log())
	}
	session = s.ID
	// dies has the server end at the failpoint while do asks it for something, which
	// goes on with the next server.
	dies := func(point string, do func()) {
		t.Helper()
		w.stop()
		w.mustStart(point + "=exit")
		exited := w.exited
		watch, stopWatching := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); w.supervise(watch) }()
		do()
		stopWatching()
		<-done
		select {
		case <-exited:
		default:
			t.Errorf("%s: the server did not die", point)
		}
	}
	for i, point := range []string{"before_commit", "after_commit"} {
		n := int64(i + 1)
		version(n)
		dies("store.judge."+point, func() {
			key := fmt.Sprint("replay", n)
			started, err := again(ctx, func() (workbench.Replay, error) {
				return w.client(w.key).ReplaySeries(ctx, series, sdk.ReplaySeries{Version: n, IdempotencyKey: key})
			})
			if err != nil {
				t.Fatalf("%v\n%s", err, w.log())
			}
			r, err := again(ctx, func() (workbench.Replay, error) { return w.client(w.key).WaitForReplay(ctx, started.ID) })
			if err != nil || r.Verdict != workbench.VerdictMatches {
				t.Fatalf("%s: %+v, %v\n%s", point, r, err, w.log())
			}
		})
		dies("store.publish."+point, func() {
			_, err := again(ctx, func() (workbench.Series, error) { return w.client(w.key).PublishSeries(ctx, series, n, n-1) })
			if made := workbench.HasCode(err, workbench.CodeVersionMismatch); made != (point == "after_commit") || err != nil && !made {
				t.Errorf("%s: the request that was sent again: %v", point, err)
			}
		})
		x, err := again(ctx, func() (workbench.Series, error) { return w.client(w.key).Series(ctx, series) })
		if err != nil || x.PublishedVersion != n || int64(len(x.Publications)) != n {
			t.Errorf("%s: %+v, %v", point, x, err)
		}
	}
	replays, err := again(ctx, func() (workbench.List[workbench.Replay], error) {
		return w.client(w.key).Replays(ctx, series, 0, workbench.Page{})
	})
	if err != nil || len(replays.Items) != 2 {
		t.Errorf("%d replays, want 2 (%v)", len(replays.Items), err)
	}
}

package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// publisher makes versions, and has the server die around what is done with them.
type publisher struct {
	*world
	session string
}

// mustVersion is a run that has become a version: of the series, or of a new one.
func (p *publisher) mustVersion(ctx context.Context, key, series string) workbench.ReusableRun {
	p.t.Helper()
	run, err := again(ctx, func() (sdk.Submitted, error) {
		return p.client(p.key).CreateSessionRun(ctx, p.session, sdk.CreateRun{Language: workbench.Bash, Code: "echo " + key, ReusableRun: &workbench.ReuseRequest{SeriesID: series}, IdempotencyKey: key})
	})
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.log())
	}
	r, err := again(ctx, func() (workbench.Receipt, error) { return p.client(p.key).WaitForSessionRun(ctx, run.ID) })
	if err != nil || r.ReusableRun.State != workbench.ReuseReady {
		p.t.Fatalf("%+v, %v\n%s", r.ReusableRun, err, p.log())
	}
	return r.ReusableRun
}

// dies has the server end at the failpoint while do asks it for something, which goes
// on with the next server.
func (p *publisher) dies(ctx context.Context, point string, do func()) {
	p.t.Helper()
	p.stop()
	p.mustStart(point + "=exit")
	exited := p.exited
	watch, stopWatching := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); p.supervise(watch) }()
	do()
	stopWatching()
	<-done
	select {
	case <-exited:
	default:
		p.t.Errorf("%s: the server did not die", point)
	}
}

// A server that dies while a replay is judged, or a version published, or a series
// deleted, has done it once or not at all: the request that is sent again finds out
// which.
func TestKillAroundPublications(t *testing.T) {
	t.Parallel()
	p := &publisher{world: mustWorld(t)}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p.mustKey(ctx)
	s, err := again(ctx, func() (workbench.Session, error) { return p.client(p.key).CreateAgentSession(ctx, sdk.CreateSession{}) })
	if err != nil {
		t.Fatalf("%v\n%s", err, p.log())
	}
	p.session = s.ID
	series := ""
	points := []string{"before_commit", "after_commit"}
	for i, point := range points {
		n := int64(i + 1)
		series = p.mustVersion(ctx, fmt.Sprint("version", n), series).SeriesID
		p.dies(ctx, "store.judge."+point, func() {
			started, err := again(ctx, func() (workbench.Replay, error) {
				return p.client(p.key).ReplaySeries(ctx, series, sdk.ReplaySeries{Version: n, IdempotencyKey: fmt.Sprint("replay", n)})
			})
			if err != nil {
				t.Fatalf("%v\n%s", err, p.log())
			}
			r, err := again(ctx, func() (workbench.Replay, error) { return p.client(p.key).WaitForReplay(ctx, started.ID) })
			if err != nil || r.Verdict != workbench.VerdictMatches {
				t.Fatalf("%s: %+v, %v\n%s", point, r, err, p.log())
			}
		})
		p.dies(ctx, "store.publish."+point, func() {
			_, err := again(ctx, func() (workbench.Series, error) { return p.client(p.key).PublishSeries(ctx, series, n, n-1) })
			if made := workbench.HasCode(err, workbench.CodeVersionMismatch); made != (point == "after_commit") || err != nil && !made {
				t.Errorf("%s: the request that was sent again: %v", point, err)
			}
		})
		x, err := again(ctx, func() (workbench.Series, error) { return p.client(p.key).Series(ctx, series) })
		if err != nil || x.PublishedVersion != n || int64(len(x.Publications)) != n {
			t.Errorf("%s: %+v, %v", point, x, err)
		}
	}
	replays, err := again(ctx, func() (workbench.List[workbench.Replay], error) {
		return p.client(p.key).Replays(ctx, series, 0, workbench.Page{})
	})
	if err != nil || len(replays.Items) != 2 {
		t.Errorf("%d replays, want 2 (%v)", len(replays.Items), err)
	}
	for _, point := range points {
		p.dies(ctx, "store.delete_series."+point, func() {
			_, err := again(ctx, func() (bool, error) { return true, p.client(p.key).DeleteSeries(ctx, series) })
			if gone := workbench.HasCode(err, workbench.CodeNotFound); gone != (point == "after_commit") || err != nil && !gone {
				t.Errorf("%s: the deletion that was sent again: %v", point, err)
			}
		})
		if point == points[0] {
			series = p.mustVersion(ctx, "another", "").SeriesID
		}
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

const (
	loadSessions = 8
	// loadSlice is how long one server is loaded before it is the other's turn.
	loadSlice = 3 * time.Second
)

// loaded is a server whose sessions have many runs behind them.
type loaded struct {
	*world
	stored   int
	sessions []string
	perSlice []float64 // cells per second
}

// cellsPerSecond measures servers with few and with many stored runs, in turns.
func cellsPerSecond(ctx context.Context, o options, dir string) (figures []figure, err error) {
	var all []*loaded
	defer func() {
		for _, l := range all {
			err = errors.Join(err, l.close())
		}
	}()
	for _, stored := range []int{o.storedFew, o.storedMany} {
		l, err := openLoaded(ctx, o, filepath.Join(dir, fmt.Sprint(stored)), stored)
		if err != nil {
			return nil, fmt.Errorf("%d stored runs: %w", stored, err)
		}
		all = append(all, l)
		if _, err := l.slice(ctx); err != nil { // interpreters start
			return nil, err
		}
	}
	for round := range o.loadRounds {
		for i := range all {
			l := all[(i+round)%len(all)]
			rate, err := l.slice(ctx)
			if err != nil {
				return nil, err
			}
			l.perSlice = append(l.perSlice, rate)
		}
	}
	for i, l := range all {
		name := nameCellsFew
		if i > 0 {
			name = nameCellsMany
		}
		figures = append(figures, figure{Name: name, Value: middle(l.perSlice), Unit: "/s", Samples: len(l.perSlice),
			Note: fmt.Sprintf("%d stored runs, %d sessions, %d s each, all: %.0f", l.stored, loadSessions, int(loadSlice.Seconds()), l.perSlice), Raw: l.perSlice})
	}
	return figures, nil
}

// openLoaded makes a server with its sessions, ends it, fills its database
// through the store, and starts it again. The sessions that are measured have
// the runs.
func openLoaded(ctx context.Context, o options, dir string, stored int) (*loaded, error) {
	how := setting{suspendAfter: -1}
	w, err := openWorld(ctx, o, dir, how)
	if err != nil {
		return nil, err
	}
	l := &loaded{stored: stored, sessions: make([]string, loadSessions)}
	for i := range l.sessions {
		if l.sessions[i], err = w.session(ctx, sdk.CreateSession{}); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	if err := w.close(); err != nil {
		return nil, err
	}
	progress("storing %d runs", stored)
	if err := fillStore(ctx, filepath.Join(dataIn(dir), "workbench.db"), l.sessions, stored); err != nil {
		return nil, err
	}
	how.secret = w.secret
	l.world, err = openWorld(ctx, o, dir, how)
	return l, err
}

// fillStore stores runs of sessions, each with its life: admitted, dispatched,
// with a line of output, settled.
func fillStore(ctx context.Context, path string, sessions []string, n int) (err error) {
	// Nothing is lost by a power cut that was not there before.
	db, err := store.Open(ctx, "sqlite:"+path, store.Options{SQLite: url.Values{"_pragma": {"synchronous(OFF)"}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for i, id := range sessions {
		const engine = "bench"
		epoch, err := db.AcquireLease(ctx, id, engine, time.Hour)
		if err != nil {
			return err
		}
		for range n*(i+1)/len(sessions) - n*i/len(sessions) {
			if err := storeRun(ctx, db, id, epoch); err != nil {
				return err
			}
		}
		if err := db.ReleaseLease(ctx, id, engine, epoch); err != nil {
			return err
		}
	}
	return nil
}

func storeRun(ctx context.Context, db *store.DB, session string, epoch int64) error {
	now := time.Now()
	r, _, err := db.Admit(ctx, workbench.SystemPrincipal(), store.Admission{
		Run: workbench.Run{ID: workbench.NewID(workbench.KindRun), SessionID: session, Lane: workbench.LaneForeground, Language: workbench.Python,
			TimeoutMs: 30000, CreatedAt: now, Sealed: make([]byte, 512)},
		Fingerprint: "f", FingerprintVersion: 1,
	})
	if err != nil {
		return err
	}
	if err := db.Dispatch(ctx, store.DispatchRecord{RunID: r.ID, Epoch: epoch, Generation: 1, SandboxID: "sbx_bench", At: now}); err != nil {
		return err
	}
	return db.Settle(ctx, store.Settlement{Epoch: epoch, Generation: 1,
		Run: workbench.Run{ID: r.ID, Status: workbench.StatusSucceeded, StartedAt: &now, FinishedAt: &now, DurationMs: 1},
		Entries: []workbench.LogEntry{{RunID: r.ID, Seq: 3, Kind: workbench.LogOutput, Stream: workbench.Stdout, Length: int64(len(helloText)),
			Data: make([]byte, 40), At: now}}})
}

// slice runs cells in all sessions for a while and tells how many a second.
func (l *loaded) slice(ctx context.Context) (float64, error) {
	cell := cellOf(workbench.Python, hellos[workbench.Python])
	errs := make([]error, len(l.sessions))
	var cells atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i, id := range l.sessions {
		wg.Go(func() {
			for errs[i] == nil && time.Since(began) < loadSlice {
				_, errs[i] = l.timed(ctx, id, cell)
				cells.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(cells.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}

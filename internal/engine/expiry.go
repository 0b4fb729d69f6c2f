package engine

import (
	"context"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/failpoint"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// keepWithin bounds one attempt to keep what a session asked for. What was kept
// stays; the next attempt goes on behind it.
const keepWithin = 2 * time.Minute

// keepTrying is how long after a session's end it is tried to keep what cannot
// be kept at the moment.
const keepTrying = time.Hour

// concludeEnded writes the last events of sessions whose end is not told yet:
// their last run settled late, or a server went away in the middle.
func (e *Engine) concludeEnded(ctx context.Context) {
	for after := ""; ; {
		ended, err := e.o.Store.EndingSessions(ctx, sweepBatch, after)
		if err != nil {
			e.sweepFailed(ctx, "ended sessions", err)
			return
		}
		for _, s := range ended {
			e.begin(ctx, e.concluding, s.ID, func() { e.conclude(ctx, s.ID) })
			after = s.ID
		}
		if len(ended) < sweepBatch {
			return
		}
	}
}

// conclude writes a session's last events once its last run has settled, and
// before them keeps what it asked for. Where that cannot be done now, the sweep
// comes back.
func (e *Engine) conclude(ctx context.Context, id string) {
	s, err := e.o.Store.Session(ctx, workbench.SystemPrincipal(), id)
	if err == nil {
		if s.State == workbench.SessionExpired && len(s.KeepAtExpiry) > 0 {
			err = e.concludeKeeping(ctx, id)
		} else {
			err = e.o.Store.Conclude(ctx, id, 0, nil)
		}
	}
	switch workbench.CodeOf(err) {
	case "", workbench.CodeRunsActive, workbench.CodeConflict: // another server is at it
	default:
		e.sweepFailed(ctx, "the end of session "+id, err)
	}
}

// concludeKeeping is conclude for a session that expired with something to
// keep. Whoever holds the lease does it, so that nothing is kept twice.
func (e *Engine) concludeKeeping(ctx context.Context, id string) error {
	ctx, done := context.WithTimeout(ctx, keepWithin)
	defer done()
	active, err := e.o.Store.ActiveRuns(ctx, id)
	if err != nil {
		return err
	}
	if len(active) > 0 {
		return workbench.E(workbench.CodeRunsActive, "a run of the session has not ended")
	}
	c := e.compute(id)
	defer e.forget(context.WithoutCancel(ctx), id)
	if !c.lockAlone() { // a run is being settled, or it is tried already
		return workbench.E(workbench.CodeRunsActive, "the session is in use")
	}
	defer c.mu.Unlock()
	if err := c.lease(ctx); err != nil {
		return err
	}
	s, err := e.o.Store.Session(ctx, workbench.SystemPrincipal(), id)
	if err != nil {
		return err
	}
	concluded, err := e.o.Store.SessionConcluded(ctx, workbench.SystemPrincipal(), id)
	if err != nil || concluded {
		return err
	}
	kept, err := e.keepAtExpiry(ctx, s, c.epoch)
	if err == nil {
		err = e.o.Store.Conclude(ctx, id, c.epoch, &kept)
	}
	c.gaveUp(ctx, err)
	return err
}

// keepAtExpiry keeps the files of the last commit that the session's globs
// match, as far as its quota goes, and says what became of each. What an
// earlier attempt kept is not kept again. An error means that it may be tried
// again.
func (e *Engine) keepAtExpiry(ctx context.Context, s workbench.Session, epoch int64) (workbench.KeptEvent, error) {
	k := &keeping{e: e, s: s, epoch: epoch, done: map[string]bool{}, event: workbench.KeptEvent{
		Items: []workbench.KeptFile{}, MissedItems: []workbench.MissedFile{}, Unmatched: []string{}}}
	before, err := e.o.Store.KeptAtExpiry(ctx, s.ID, epoch)
	if err != nil {
		return k.event, err
	}
	for _, a := range before {
		k.done[a.Path] = true
		k.kept(a)
	}
	if k.left, err = e.o.Artifacts.Left(ctx, s); err != nil {
		return k.event, err
	}
	tree, head, err := e.headTree(ctx, s.ID)
	if err != nil {
		return k.event, k.missed("", 0, err)
	}
	k.event.CommitID = head
	wanted := newGlobs(s.KeepAtExpiry)
	var failed error
	tree.Files(func(entry workspace.Entry) bool {
		if wanted.match(entry.Path) && !k.done[entry.Path] {
			failed = k.keep(ctx, tree, entry)
		}
		return failed == nil
	})
	for i, glob := range wanted.patterns {
		if wanted.unused[i] {
			k.event.Unmatched = append(k.event.Unmatched, glob)
		}
	}
	return k.event, failed
}

// keeping is one attempt to keep what a session asked for.
type keeping struct {
	e     *Engine
	s     workbench.Session
	epoch int64
	done  map[string]bool // paths that earlier attempts kept
	left  int64           // the largest file that there is room for
	event workbench.KeptEvent
}

// keep keeps one file of the tree. What can never be kept is noted as missed;
// an error is for what may work later.
func (k *keeping) keep(ctx context.Context, tree workspace.Tree, entry workspace.Entry) error {
	if entry.Size > k.left {
		code, detail := workbench.CodeQuotaExceeded, "there is no room for it in the quota of retained files"
		if entry.Size > k.s.Limits.FileBytes {
			code, detail = workbench.CodeFileTooLarge, "it is larger than a retained file may be"
		}
		return k.missed(entry.Path, entry.Size, workbench.E(code, "%s", detail))
	}
	_, content, err := k.e.o.Workspace.Open(ctx, k.s.TenantID, tree, entry.Path)
	if err != nil {
		return k.missed(entry.Path, entry.Size, err)
	}
	defer content.Close()
	kept, err := k.e.o.Artifacts.Keep(ctx, artifact.KeepRequest{Session: k.s, Revision: k.s.Revision, Generation: k.s.Generation, Epoch: k.epoch,
		Path: entry.Path, Origin: workbench.OriginExpiry, Size: entry.Size}, content)
	if err != nil {
		return k.missed(entry.Path, entry.Size, err)
	}
	k.kept(kept)
	if err := failpoint.Hit("engine.expiry.kept"); err != nil {
		return err
	}
	k.left, err = k.e.o.Artifacts.Left(ctx, k.s)
	return err
}

func (k *keeping) kept(a workbench.Artifact) {
	k.event.Files++
	k.event.Bytes += a.Size
	if len(k.event.Items) < workbench.MaxEventItems {
		k.event.Items = append(k.event.Items, workbench.KeptFile{ArtifactID: a.ID, Path: a.Path, Size: a.Size})
	}
}

// missed notes a file that is not kept, unless cause may pass: then it is
// returned, for as long as it makes sense to try.
func (k *keeping) missed(path string, size int64, cause error) error {
	tried := k.s.EndedAt != nil && k.e.now().Sub(*k.s.EndedAt) > keepTrying
	if workbench.ClassOf(workbench.CodeOf(cause)).Retryable && !tried {
		return cause
	}
	k.event.Missed++
	if len(k.event.MissedItems) < workbench.MaxEventItems {
		public := workbench.AsError(cause)
		k.event.MissedItems = append(k.event.MissedItems, workbench.MissedFile{Path: path, Size: size, Code: public.Code, Detail: public.Detail})
	}
	return nil
}

// globs are patterns of paths in a workspace.
type globs struct {
	patterns []string
	unused   map[int]bool // indexes of patterns that have matched nothing yet
}

func newGlobs(patterns []string) *globs {
	g := &globs{patterns: patterns, unused: make(map[int]bool, len(patterns))}
	for i := range patterns {
		g.unused[i] = true
	}
	return g
}

// match reports whether a pattern matches the path, and notes every one that
// does so for the first time.
func (g *globs) match(path string) bool {
	matches := false
	for i, glob := range g.patterns {
		if matches && !g.unused[i] {
			continue
		}
		if ok, err := doublestar.Match(workbench.WithoutWorkspace(glob), path); ok && err == nil {
			matches = true
			delete(g.unused, i)
		}
	}
	return matches
}

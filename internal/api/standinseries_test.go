package api_test

import (
	"context"
	"encoding/json"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// What of series needs a sandbox, or a spec that the engine sealed. The rest is the
// real engine's.

func (e *standIn) SeriesVersion(ctx context.Context, p workbench.Principal, id string, version int64) (workbench.SeriesVersion, error) {
	v, err := e.db.SeriesVersion(ctx, p, id, version)
	return workbench.SeriesVersion{SeriesID: id, Version: version, RunID: v.ID, SessionID: v.SessionID, CreatedAt: v.CreatedAt,
		Manifest: workbench.Manifest{InputRoot: v.InputRoot, Language: v.Language, Lane: v.Lane, Packages: []workbench.PackageSet{}}}, err
}

// again is a run of a version, in a session of its own.
func (e *standIn) again(ctx context.Context, p workbench.Principal, id string, version int64, replay *workbench.Replay) (workbench.Run, error) {
	v, err := e.db.SeriesVersion(ctx, p, id, max(version, 1))
	if err != nil {
		return workbench.Run{}, err
	}
	s, err := e.CreateSession(ctx, p, workbench.CreateSession{})
	if err != nil {
		return workbench.Run{}, err
	}
	spec := workbench.RunSpec{Language: v.Language, ReusableRun: workbench.ReuseRequest{Mode: workbench.ReuseOff}}
	sealed, _ := json.Marshal(spec)
	run := workbench.Run{ID: workbench.NewID(workbench.KindRun), SessionID: s.ID, Language: v.Language, TimeoutMs: v.TimeoutMs, CreatedAt: e.clock(), Sealed: sealed,
		ReusableRun: workbench.ReusableRun{Mode: workbench.ReuseOff, Of: &workbench.VersionRef{SeriesID: id, Version: v.ReusableRun.Version}}}
	if replay != nil {
		*replay = workbench.Replay{ID: workbench.NewID(workbench.KindReplay), ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, SessionID: s.ID, SeriesID: id,
			Version: v.ReusableRun.Version, RunID: run.ID, Tools: workbench.ReplayRefuses, CreatedAt: e.clock(), Differs: []string{}}
	}
	run, _, err = e.db.Admit(ctx, p, store.Admission{Run: run, Replay: replay, Fingerprint: workbench.Fingerprint(spec, nil, s.Limits), FingerprintVersion: 1})
	return run, err
}

func (e *standIn) StartReplay(ctx context.Context, p workbench.Principal, id string, r workbench.StartReplay) (workbench.StartedReplay, error) {
	replay := workbench.StartedReplay{Repeated: true} // the face writes its row of the trail
	_, err := e.again(ctx, p, id, r.Version, &replay.Replay)
	return replay, err
}

func (e *standIn) Replay(ctx context.Context, p workbench.Principal, id string, _ time.Duration) (workbench.Replay, error) {
	return e.db.Replay(ctx, p, id)
}

func (e *standIn) RunVersion(ctx context.Context, p workbench.Principal, id string, r workbench.RunVersion) (workbench.Submitted, error) {
	run, err := e.again(ctx, p, id, r.Version, nil)
	return workbench.Submitted{Run: run}, err
}

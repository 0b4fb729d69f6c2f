package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// ListSeries lists series, newest first.
func (e *Engine) ListSeries(ctx context.Context, p workbench.Principal, page workbench.Page) (workbench.List[workbench.Series], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.Series]{}, err
	}
	return e.o.Store.ListSeries(ctx, p, page)
}

// Series reads a series with what was published of it.
func (e *Engine) Series(ctx context.Context, p workbench.Principal, id string) (workbench.Series, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.Series{}, err
	}
	return e.o.Store.Series(ctx, p, id)
}

// SeriesVersions lists the versions of a series, newest first, with the manifest as
// far as it is no content.
func (e *Engine) SeriesVersions(ctx context.Context, p workbench.Principal, id string, page workbench.Page) (workbench.List[workbench.SeriesVersion], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.SeriesVersion]{}, err
	}
	x, err := e.o.Store.Series(ctx, p, id)
	if err != nil {
		return workbench.List[workbench.SeriesVersion]{}, err
	}
	list, err := e.o.Store.SeriesVersions(ctx, p, id, page)
	out := workbench.List[workbench.SeriesVersion]{NextCursor: list.NextCursor}
	for _, v := range list.Items {
		out.Items = append(out.Items, versionOf(x, v))
	}
	return out, err
}

// SeriesVersion reads one version with its whole manifest. version 0 is the
// published one, or the last where none is.
func (e *Engine) SeriesVersion(ctx context.Context, p workbench.Principal, id string, version int64) (workbench.SeriesVersion, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.SeriesVersion{}, err
	}
	x, v, err := e.version(ctx, p, id, version)
	if err != nil {
		return workbench.SeriesVersion{}, err
	}
	out := versionOf(x, v)
	s, err := e.o.Store.Session(ctx, p, v.SessionID)
	if err != nil {
		return out, err
	}
	out.Manifest.Size = s.Size
	if reads, err := e.reads(ctx, p, v.Run); err != nil || !reads {
		return out, err
	}
	spec, err := e.openSpec(ctx, v.Run)
	if err != nil {
		return out, err
	}
	out.Manifest.CodeSHA256, out.Manifest.Args = digestOf([]byte(spec.Code)), spec.Args
	out.Manifest.EnvNames = slices.Sorted(maps.Keys(spec.Env))
	if spec.Stdin != "" {
		out.Manifest.StdinSHA256 = digestOf([]byte(spec.Stdin))
	}
	return out, nil
}

// reads reports whether p may read, now, what the runs hold.
func (e *Engine) reads(ctx context.Context, p workbench.Principal, runs ...workbench.Run) (bool, error) {
	for _, run := range runs {
		if !p.MayReadContents(run.Owner()) {
			return false, nil
		}
		if err := e.mayLearn(ctx, p, run); workbench.HasCode(err, workbench.CodeAccessDenied) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}

func versionOf(x workbench.Series, v store.VersionRun) workbench.SeriesVersion {
	out := workbench.SeriesVersion{SeriesID: x.ID, Version: v.ReusableRun.Version, RunID: v.ID, SessionID: v.SessionID, Published: x.PublishedVersion == v.ReusableRun.Version,
		PublishedAt: v.Kept, Manifest: workbench.Manifest{InputRoot: v.InputRoot, Image: v.Image, Packages: packagesBefore(v.Run), Revision: v.Revision,
			Language: v.Language, Lane: v.Lane, TimeoutMs: v.TimeoutMs}}
	if v.FinishedAt != nil {
		out.CreatedAt = *v.FinishedAt
	}
	return out
}

// packagesBefore are the sets that a run began with.
func packagesBefore(run workbench.Run) []workbench.PackageSet {
	out := []workbench.PackageSet{}
	for _, set := range run.Packages {
		if set.RunID != run.ID {
			out = append(out, set)
		}
	}
	return out
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// version finds a version: 0 is the published one, or the last where none is.
func (e *Engine) version(ctx context.Context, p workbench.Principal, id string, version int64) (workbench.Series, store.VersionRun, error) {
	x, err := e.o.Store.Series(ctx, p, id)
	if err != nil {
		return x, store.VersionRun{}, err
	}
	if version == 0 {
		if version = x.PublishedVersion; version == 0 {
			version = x.Versions
		}
	}
	v, err := e.o.Store.SeriesVersion(ctx, p, id, version)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		err = workbench.AsError(err).WithField("version").WithHint("GET /v1/workbench/series/{id}/versions lists those that there are")
	}
	return x, v, err
}

// origin is what a version is run again from.
type origin struct {
	store.VersionRun
	spec    workbench.RunSpec
	session workbench.Session // as the run's revision had it, with the packages that the run began with
	commit  workbench.Commit  // of the workspace that it began with; none: an empty one
}

// origin reads what a version is run again from. Codes: not_found, forbidden,
// access_denied.
func (e *Engine) origin(ctx context.Context, p workbench.Principal, v store.VersionRun) (origin, error) {
	o := origin{VersionRun: v}
	var err error
	if o.session, err = e.session(ctx, p, v.SessionID); err != nil {
		return o, err
	}
	if err := actsAsOwner(p, o.session); err != nil {
		return o, err
	}
	if err := e.mayLearn(ctx, p, v.Run); err != nil {
		return o, err
	}
	if o.spec, err = e.openSpec(ctx, v.Run); err != nil {
		return o, err
	}
	r, err := e.o.Store.Revision(ctx, p, v.SessionID, v.Revision)
	if err != nil {
		return o, err
	}
	o.session.Tools, o.session.Aliases, o.session.Limits, o.session.Size, o.session.Agent = r.Tools, r.Aliases, r.Limits, r.Size, r.Agent
	o.session.Image, o.session.Packages, o.session.KeepAtExpiry, o.session.KeepMemory = v.Image, packagesBefore(v.Run), nil, false
	if v.InputRoot == workspace.Empty().Root() {
		return o, nil
	}
	last, err := e.o.Store.Commit(ctx, p, v.CommitID)
	if err != nil {
		return o, err
	}
	var ok bool
	if o.commit, ok, err = e.o.Store.CommitWithRoot(ctx, v.SessionID, v.InputRoot, last.Number+1); err == nil && !ok {
		err = workbench.E(workbench.CodeCorrupt, "the tree that the run began with is not among the session's commits")
	}
	return o, err
}

// again makes a session that is as the version's was before it ran.
func (e *Engine) again(ctx context.Context, p workbench.Principal, o origin, ttl time.Duration, labels map[string]string) (workbench.Session, error) {
	like := forkRequest(o.session, workbench.ForkSession{TTL: ttl, Labels: labels})
	s, r, err := e.sessionLike(ctx, p, o.session, like, workbench.ForkSession{})
	if err != nil {
		return s, err
	}
	s.Packages = o.session.Packages
	if o.commit.ID == "" {
		return s, e.o.Store.CreateSession(ctx, p, s, r)
	}
	s.ForkedFrom = &workbench.Lineage{SessionID: o.SessionID, RunID: o.ID, CommitID: o.commit.ID}
	return e.branch(ctx, p, s, r, o.commit)
}

// versionOfKey is the version that a request means which names none: that of an earlier
// request with its key, for a repeat means the same, or else this one.
func (e *Engine) versionOfKey(ctx context.Context, p workbench.Principal, seriesID, key string, now int64) (int64, error) {
	if key == "" {
		return now, nil
	}
	run, err := e.o.Store.RunOfKey(ctx, p, key)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return now, nil
	}
	if of := run.ReusableRun.Of; err == nil && of != nil && of.SeriesID == seriesID {
		return of.Version, nil
	}
	return now, err
}

// discard closes a session in which nothing has run.
func (e *Engine) discard(ctx context.Context, p workbench.Principal, s workbench.Session) {
	if _, err := e.Close(context.WithoutCancel(ctx), p, s.ID); err != nil {
		e.log.Warn("session not closed: it reaches its deadline", "session", s.ID, "err", err)
	}
}

// Publish sets the published version of a series, if the caller knows which is now.
// Codes: not_found, version_mismatch, replay_required, conflict.
func (e *Engine) Publish(ctx context.Context, p workbench.Principal, seriesID string, req workbench.PublishVersion) (workbench.Series, error) {
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return workbench.Series{}, err
	}
	x, err := e.o.Store.Series(ctx, p, seriesID)
	if err != nil {
		return x, err
	}
	if p.TenantID != x.TenantID || p.UserID != x.UserID {
		return x, workbench.E(workbench.CodeForbidden, "an admin key does not publish for a series' owner").WithHint("use the owner's key")
	}
	if req.Version < 0 || req.Version == 0 && !req.Rollback {
		return x, workbench.E(workbench.CodeInvalidRequest, "version is required").WithField("version").WithHint("name the version to publish, from 1")
	}
	if !req.Rollback {
		if _, err := e.judged(ctx, p, seriesID, req.Version, workbench.Page{}); err != nil {
			return x, err
		}
	}
	return e.o.Store.Publish(ctx, p, store.PublishRecord{SeriesID: seriesID, PublishVersion: req, By: p.UserID, At: e.now()})
}

// DeleteSeries deletes a series: its runs are versions no longer, and stay as long as
// other runs do. Code: not_found.
func (e *Engine) DeleteSeries(ctx context.Context, p workbench.Principal, seriesID string, trail workbench.AuditEntry) error {
	if !p.Has(workbench.ScopeManage) || !p.Admin() {
		if err := p.Require(workbench.ScopeExecute); err != nil {
			return err
		}
	}
	return e.o.Store.DeleteSeries(ctx, p, seriesID, trail)
}

// RunVersion runs a version of a series with other inputs, in a new session that
// begins as the version did. Codes: not_found, and those of Submit.
func (e *Engine) RunVersion(ctx context.Context, p workbench.Principal, seriesID string, req workbench.RunVersion) (workbench.Submitted, error) {
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return workbench.Submitted{}, err
	}
	x, err := e.o.Store.Series(ctx, p, seriesID)
	if err != nil {
		return workbench.Submitted{}, err
	}
	if req.Version == 0 {
		if req.Version, err = e.versionOfKey(ctx, p, seriesID, req.IdempotencyKey, x.PublishedVersion); err != nil {
			return workbench.Submitted{}, err
		}
		if req.Version == 0 {
			return workbench.Submitted{}, workbench.E(workbench.CodeConflict, "no version of the series is published").WithField("version").
				WithHint("publish one, or name the version to run")
		}
	}
	_, v, err := e.version(ctx, p, seriesID, req.Version)
	if err != nil {
		return workbench.Submitted{}, err
	}
	o, err := e.origin(ctx, p, v)
	if err != nil {
		return workbench.Submitted{}, err
	}
	s, err := e.again(ctx, p, o, 0, map[string]string{"series": seriesID})
	if err != nil {
		return workbench.Submitted{}, err
	}
	spec := req.Spec(o.spec)
	spec.ReusableRun, spec.Replay = workbench.ReuseRequest{Mode: workbench.ReuseOff}, nil
	spec.Of = &workbench.VersionRef{SeriesID: seriesID, Version: req.Version}
	sub, err := e.Submit(ctx, p, workbench.SubmitRun{SessionID: s.ID, Spec: spec, IdempotencyKey: req.IdempotencyKey, Trail: req.Trail, Dependencies: o.Dependencies})
	if err != nil || sub.Replayed {
		e.discard(ctx, p, s)
	}
	return sub, err
}

package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"

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

// replaySlack is how much longer than its run the session of a replay lives.
const replaySlack = time.Hour

// StartReplay runs a version again, in a new session with the workspace, packages,
// image, size and configuration that it began with. Codes: not_found, replay_called_tools
// (the version called tools, and none are to be served back), and those of Submit.
func (e *Engine) StartReplay(ctx context.Context, p workbench.Principal, seriesID string, req workbench.StartReplay) (workbench.StartedReplay, error) {
	none := workbench.StartedReplay{}
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return none, err
	}
	if req.Tools == "" {
		req.Tools = workbench.ReplayRefuses
	}
	x, err := e.o.Store.Series(ctx, p, seriesID)
	if err != nil {
		return none, err
	}
	if req.Version == 0 {
		if req.Version, err = e.versionOfKey(ctx, p, seriesID, req.IdempotencyKey, x.Versions); err != nil {
			return none, err
		}
	}
	_, v, err := e.version(ctx, p, seriesID, req.Version)
	if err != nil {
		return none, err
	}
	o, err := e.origin(ctx, p, v)
	if err != nil {
		return none, err
	}
	if err := replayable(v.Run, req.Tools); err != nil {
		return none, err
	}
	s, err := e.again(ctx, p, o, time.Duration(v.TimeoutMs)*time.Millisecond+replaySlack, map[string]string{"replay": seriesID})
	if err != nil {
		return none, err
	}
	spec := o.spec
	spec.Artifacts, spec.TimeoutMs, spec.ReusableRun = nil, v.TimeoutMs, workbench.ReuseRequest{Mode: workbench.ReuseOff}
	spec.Of, spec.Replay = &workbench.VersionRef{SeriesID: seriesID, Version: req.Version}, &workbench.ReplayOf{RunID: v.ID, Tools: req.Tools}
	r := workbench.Replay{ID: workbench.NewID(workbench.KindReplay), ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, SessionID: s.ID,
		SeriesID: seriesID, Version: req.Version, Tools: req.Tools, CreatedAt: s.CreatedAt}
	sub, err := e.Submit(ctx, p, workbench.SubmitRun{SessionID: s.ID, Spec: spec, IdempotencyKey: req.IdempotencyKey, Trail: req.Trail, Replay: &r, Dependencies: o.Dependencies})
	if err != nil || sub.Replayed {
		e.discard(ctx, p, s) // a repeat leaves nothing of its own behind
	}
	if err != nil {
		return none, err
	}
	made, err := e.o.Store.ReplayOf(ctx, p, sub.Run.ID)
	return workbench.StartedReplay{Replay: made, Repeated: sub.Replayed}, err
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

// replayable refuses what a replay could not repeat without doing it again.
func replayable(run workbench.Run, tools workbench.ReplayTools) error {
	for _, service := range slices.Sorted(maps.Keys(run.Services)) {
		if service != "packages" {
			return workbench.E(workbench.CodeReplayTools, "the version used %s, and what that answered is not recorded", service).
				WithHint("a version is replayed that calls tools alone, or nothing")
		}
	}
	if run.ToolCalls > 0 && tools != workbench.ReplayRecorded {
		return workbench.E(workbench.CodeReplayTools, "the version made %d tool calls, and a replay calls no tools", run.ToolCalls).WithField("tools").
			WithHint(`send {"tools": "recorded"} to have what its calls gave served back`)
	}
	return nil
}

// Replay reads a replay, and compares once its run has ended. With wait > 0 it
// returns when that is so or the wait is over.
func (e *Engine) Replay(ctx context.Context, p workbench.Principal, id string, wait time.Duration) (workbench.Replay, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.Replay{}, err
	}
	r, err := e.o.Store.Replay(ctx, p, id)
	if err != nil {
		return r, err
	}
	run, err := e.await(ctx, p, r.RunID, wait)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return r, nil // its receipt is gone: the verdict stays
	}
	if err != nil || !run.Status.Terminal() {
		return r, err
	}
	return e.judge(ctx, p, r, run)
}

// Replays lists replays of a series, or of one version of it, newest first.
func (e *Engine) Replays(ctx context.Context, p workbench.Principal, seriesID string, version int64, page workbench.Page) (workbench.List[workbench.Replay], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.Replay]{}, err
	}
	return e.judged(ctx, p, seriesID, version, page)
}

// judged lists replays, and gives those that have ended their verdict.
func (e *Engine) judged(ctx context.Context, p workbench.Principal, seriesID string, version int64, page workbench.Page) (workbench.List[workbench.Replay], error) {
	list, err := e.o.Store.Replays(ctx, p, seriesID, version, page)
	for i, r := range list.Items {
		if err != nil || r.Verdict != workbench.VerdictNone {
			continue
		}
		run, runErr := e.o.Store.Run(ctx, p, r.RunID)
		if runErr == nil && run.Status.Terminal() {
			list.Items[i], err = e.judge(ctx, p, r, run)
			list.Items[i].Facts = nil
		}
	}
	return list, err
}

// judge compares the ended run of a replay with its version, and keeps the verdict.
// Who may read the contents of both sees what differs.
func (e *Engine) judge(ctx context.Context, p workbench.Principal, r workbench.Replay, run workbench.Run) (workbench.Replay, error) {
	v, err := e.o.Store.SeriesVersion(ctx, workbench.SystemPrincipal(), r.SeriesID, r.Version)
	if workbench.HasCode(err, workbench.CodeNotFound) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	was, err := e.stable(ctx, v.Run)
	if err != nil {
		return r, err
	}
	is, err := e.stable(ctx, run)
	if err != nil {
		return r, err
	}
	pairs, verdict := was.facts.Compare(is.facts)
	if r.Verdict == workbench.VerdictNone {
		if r, err = e.o.Store.Judge(ctx, r.ID, verdict, workbench.DifferingFacts(pairs), e.now()); err != nil {
			return r, err
		}
	}
	if reads, err := e.reads(ctx, p, run, v.Run); err != nil || !reads {
		return r, err
	}
	for i := range pairs {
		if !pairs[i].Same {
			pairs[i].Diff = diffOf(was.texts[pairs[i].Name], is.texts[pairs[i].Name])
		}
	}
	r.Facts = pairs
	return r, nil
}

// stable is what is the same of a run wherever it is run again.
type stable struct {
	facts workbench.RunFacts
	texts map[string]string // of facts that are digests: what a difference is shown of
}

// stable reads the stable facts of a run that has ended.
func (e *Engine) stable(ctx context.Context, run workbench.Run) (stable, error) {
	shown, streams, err := e.contents(ctx, run)
	if err != nil {
		return stable{}, err
	}
	kept, err := e.o.Store.ArtifactsOfRun(ctx, run.ID)
	if err != nil {
		return stable{}, err
	}
	digest, artifacts := map[string]string{}, []string{}
	for _, a := range kept {
		digest[a.ID] = a.SHA256
		artifacts = append(artifacts, a.SHA256+" "+strings.ReplaceAll(a.Path, run.ID, "{run}"))
	}
	sort.Strings(artifacts)
	outputs, err := outputsOf(shown, digest)
	if err != nil {
		return stable{}, err
	}
	exit := ""
	if run.ExitCode != nil {
		exit = strconv.Itoa(*run.ExitCode)
	}
	stdout, stderr, result := streams[workbench.Stdout], streams[workbench.Stderr], lastStructured(shown)
	return stable{
		facts: workbench.RunFacts{
			workbench.FactStatus: string(run.Status), workbench.FactExitCode: exit,
			workbench.FactOutputs: strings.Join(outputs, "\n"), workbench.FactArtifacts: strings.Join(artifacts, "\n"),
			workbench.FactStdout: digestOf(stdout), workbench.FactStderr: digestOf(stderr), workbench.FactResult: digestOf(result),
			workbench.FactBytes: strconv.FormatInt(run.Outputs.Stdout.TotalBytes+run.Outputs.Stderr.TotalBytes, 10),
		},
		texts: map[string]string{workbench.FactStdout: string(stdout), workbench.FactStderr: string(stderr), workbench.FactResult: indented(string(result))},
	}, nil
}

// contents is what the log of a run holds: what it showed, and the bytes of its streams.
func (e *Engine) contents(ctx context.Context, run workbench.Run) (shown []workbench.Result, streams map[workbench.Stream][]byte, err error) {
	entries, err := e.o.Store.Contents(ctx, workbench.SystemPrincipal(), run.ID)
	if err != nil {
		return nil, nil, err
	}
	streams = map[workbench.Stream][]byte{}
	for _, entry := range entries {
		if entry.Data, err = e.openEntry(ctx, run, entry); err != nil {
			return nil, nil, err
		}
		if entry.Kind == workbench.LogOutput {
			streams[entry.Stream] = append(streams[entry.Stream], entry.Data...)
			continue
		}
		r, err := resultOf(entry)
		if err != nil {
			return nil, nil, err
		}
		shown = append(shown, r)
	}
	return shown, streams, nil
}

func indented(result string) string {
	var b bytes.Buffer
	if json.Indent(&b, []byte(result), "", "  ") != nil {
		return result
	}
	return b.String() + "\n"
}

// outputsOf are the digests of what a run showed, in order. What is in a retained
// file counts by its contents; display ids do not, which differ from run to run.
func outputsOf(results []workbench.Result, digest map[string]string) ([]string, error) {
	out := []string{}
	for _, r := range results {
		if r.Type == workbench.ResultStructured {
			continue
		}
		forms := map[string]string{}
		for mime, data := range r.Data {
			forms[mime] = digestOf(data)
			content, err := contentOf(mime, data)
			if err == nil {
				forms[mime] = digestOf(content)
			}
		}
		for mime, id := range r.Artifacts {
			forms[mime] = digest[id]
		}
		b, err := json.Marshal(struct {
			Type  workbench.ResultType `json:"type"`
			Forms map[string]string    `json:"forms"`
		}{r.Type, forms})
		if err != nil {
			return nil, err
		}
		out = append(out, string(r.Type)+" "+digestOf(b))
	}
	return out, nil
}

// maxFactDiff bounds what is shown of a difference.
const maxFactDiff = 64 << 10

// diffOf is a unified diff of texts, "" where there is nothing to show.
func diffOf(was, is string) string {
	if was == is || isBinary([]byte(was)) || isBinary([]byte(is)) {
		return ""
	}
	text, err := udiff.ToUnified("original", "replay", was, udiff.Lines(was, is), udiff.DefaultContextLines)
	if err != nil {
		return ""
	}
	if len(text) > maxFactDiff {
		text = workbench.TextOf([]byte(text)[:workbench.CutText([]byte(text), maxFactDiff, false)]) + "\n…\n"
	}
	return text
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

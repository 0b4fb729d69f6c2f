package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"

	"github.com/workbenchdev/workbench"
)

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
	shown, streams, err := e.contents(ctx, workbench.SystemPrincipal(), run)
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

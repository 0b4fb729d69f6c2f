package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

var versionPart = PathPart{Name: "version", Doc: "number of the version, from 1", Schema: "^[1-9][0-9]{0,17}$"}

const seriesPath = base + "/series/{id}"

func seriesRoutes() []Route {
	of := func(r Route) Route {
		r.Tag, r.Target = "series", workbench.KindSeries
		return r
	}
	changes := []workbench.Code{workbench.CodeVersionMismatch, workbench.CodeReplayRequired, workbench.CodeConflict}
	again := append([]workbench.Code{workbench.CodeIdempotencyReused, workbench.CodeIdempotencyHeader, workbench.CodeConflict, workbench.CodeAccessDenied, workbench.CodeReplayTools,
		workbench.CodeQueueFull, workbench.CodeCapacity, workbench.CodeQuotaExceeded, workbench.CodeWorkspaceFull, workbench.CodeImageNotFound, workbench.CodeSizeUnavailable, workbench.CodeLanguageUnknown},
		commitErrors...)
	keyed := []Param{{Name: idempotencyHeader, Doc: "the idempotency key, bare or quoted; must equal idempotencyKey if both are sent", Kind: TextParam}}
	run := submitRoute(seriesPath+"/runs", "runSeries", "Run a version with other inputs", RunSeriesRequest{}, runSeries)
	run.Tag, run.Target, run.OptionalBody, run.Action = "series", workbench.KindSeries, true, "series.run"
	run.Description = "In a new session with the workspace, packages, image, size and configuration that the version began with. The run becomes no version itself; its receipt names the one that it executes."
	run.Errors = append(append([]workbench.Code{}, submitErrors...), again...)
	return []Route{
		{
			Method: http.MethodGet, Pattern: base + "/series", ID: "listSeries", Tag: "series", Summary: "List series, newest first",
			Description: "A run that succeeded is a version of one: the first of a new series, or the next of the one that its submission named.",
			Scope:       workbench.ScopeRead, Admin: AdminReads, handle: listSeries, Params: []Param{limitParam, cursorParam},
			Replies: []Reply{ok("A page of series, without what was published.", workbench.List[workbench.Series]{})},
		},
		of(Route{
			Method: http.MethodGet, Pattern: seriesPath, ID: "getSeries", Summary: "Read a series, with what was published of it", Scope: workbench.ScopeRead, Admin: AdminReads, handle: getSeries,
			Replies: []Reply{ok("The series.", workbench.Series{})},
		}),
		of(Route{
			Method: http.MethodDelete, Pattern: seriesPath, ID: "deleteSeries", Summary: "Delete a series",
			Description: "With its publications and replays. Its runs stay as long as other runs do, published ones too, and are versions no longer.",
			Scope:       workbench.ScopeExecute, Admin: AdminManages, Action: "series.delete", handle: deleteSeries, Replies: []Reply{{Status: http.StatusNoContent, Doc: "It is deleted."}},
		}),
		of(Route{
			Method: http.MethodGet, Pattern: seriesPath + "/versions", ID: "listSeriesVersions", Summary: "List the versions of a series, newest first",
			Description: "A version stays as long as its run's receipt; once it was published, for good.",
			Scope:       workbench.ScopeRead, Admin: AdminReads, handle: listSeriesVersions, Params: []Param{limitParam, cursorParam},
			Replies: []Reply{ok("A page of versions; what is content of their manifests is left out.", workbench.List[workbench.SeriesVersion]{})},
		}),
		of(Route{
			Method: http.MethodGet, Pattern: seriesPath + "/versions/{version}", ID: "getSeriesVersion", Summary: "Read a version and its manifest", Scope: workbench.ScopeRead, Admin: AdminReads,
			handle: getSeriesVersion, Replies: []Reply{ok("The version.", workbench.SeriesVersion{})},
		}),
		of(Route{
			Method: http.MethodPost, Pattern: seriesPath + "/replays", ID: "replaySeries", Summary: "Replay a version",
			Description: "Runs it again in a fresh sandbox, with the very workspace, packages, image, size and configuration that it began with, and compares: terminal status, exit code, digests of what was shown in order, of stdout, of stderr and of the structured result, bytes written, and paths and digests of retained files. Nothing else counts. No tool is called.",
			Scope:       workbench.ScopeExecute, Admin: AdminNever, Action: "series.replay", Body: ReplayRequest{}, OptionalBody: true, handle: replaySeries, Headers: keyed,
			Replies: []Reply{{Status: http.StatusAccepted, Doc: "The replay was admitted; GET …/replays/{id}?waitMs=… gives the verdict.", Body: workbench.Replay{}, Headers: []string{"Location"}}},
			Errors:  again,
		}),
		of(Route{
			Method: http.MethodGet, Pattern: seriesPath + "/replays", ID: "listReplays", Summary: "List replays of a series, newest first", Scope: workbench.ScopeRead, Admin: AdminReads, handle: listReplays,
			Params:  []Param{{Name: "version", Doc: "only of this version", Kind: IntegerParam, Min: 1, Max: maxSeq}, limitParam, cursorParam},
			Replies: []Reply{ok("A page of replays, without the facts.", workbench.List[workbench.Replay]{})},
		}),
		{
			Method: http.MethodGet, Pattern: base + "/replays/{id}", ID: "getReplay", Tag: "series", Target: workbench.KindReplay, Summary: "Read a replay: its verdict, and in what it differs",
			Description: "With waitMs, answers when its run has ended or the wait is over. What differs is shown to who may read the contents of both runs.",
			Scope:       workbench.ScopeRead, Admin: AdminReads, handle: getReplay, Params: []Param{waitParam},
			Replies: []Reply{ok("The replay.", workbench.Replay{})},
		},
		of(Route{
			Method: http.MethodPost, Pattern: seriesPath + "/publish", ID: "publishSeries", Summary: "Publish a version",
			Description: "Compare and set: the request names the version that it believes to be published. A version can be published after one of its replays has matched.",
			Scope:       workbench.ScopeExecute, Admin: AdminNever, Action: "series.publish", Body: PublishRequest{}, handle: publishSeries,
			Replies: []Reply{ok("The series.", workbench.Series{})}, Errors: changes,
		}),
		of(Route{
			Method: http.MethodPost, Pattern: seriesPath + "/rollback", ID: "rollBackSeries", Summary: "Publish a version again that was published before",
			Description: "Compare and set, as publishing is; no replay is needed.",
			Scope:       workbench.ScopeExecute, Admin: AdminNever, Action: "series.rollback", Body: RollbackSeriesRequest{}, handle: rollBackSeries,
			Replies: []Reply{ok("The series.", workbench.Series{})}, Errors: changes,
		}),
		run,
	}
}

func listSeries(c *call) error {
	list, err := c.s.o.Engine.ListSeries(c.ctx, c.p, c.q.page())
	if err != nil {
		return err
	}
	list.Items = whole(list.Items)
	return c.json(http.StatusOK, list)
}

func getSeries(c *call) error {
	x, err := c.s.o.Engine.Series(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, x)
}

func deleteSeries(c *call) error {
	if err := c.s.o.Engine.DeleteSeries(c.ctx, c.p, c.id, c.trailOfSuccess()); err != nil {
		return err
	}
	c.recorded = true // with the deletion
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func listSeriesVersions(c *call) error {
	list, err := c.s.o.Engine.SeriesVersions(c.ctx, c.p, c.id, c.q.page())
	if err != nil {
		return err
	}
	list.Items = whole(list.Items)
	return c.json(http.StatusOK, list)
}

func getSeriesVersion(c *call) error {
	n, err := strconv.ParseInt(c.r.PathValue(versionPart.Name), 10, 64)
	if err != nil || n < 1 {
		return workbench.ErrNotFound("version of the series").WithHint("versions are numbered from 1; GET /v1/workbench/series/{id}/versions lists those that there are")
	}
	v, err := c.s.o.Engine.SeriesVersion(c.ctx, c.p, c.id, n)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, v)
}

func replaySeries(c *call) error {
	b := c.body.(*ReplayRequest)
	key, err := idempotencyKey(c.r.Header, b.IdempotencyKey)
	if err != nil {
		return err
	}
	c.note("series", c.id)
	trail := c.trailOfSuccess()
	r, err := c.s.o.Engine.StartReplay(c.ctx, c.p, c.id, workbench.StartReplay{Version: orZero(b.Version), Tools: b.Tools, IdempotencyKey: key, Trail: &trail})
	if err != nil {
		return err
	}
	c.target, c.recorded = r.RunID, !r.Repeated
	c.w.Header().Set("Location", base+"/replays/"+r.ID)
	return c.json(http.StatusAccepted, r.Replay)
}

func orZero(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func listReplays(c *call) error {
	list, err := c.s.o.Engine.Replays(c.ctx, c.p, c.id, c.q.integer("version"), c.q.page())
	if err != nil {
		return err
	}
	list.Items = whole(list.Items)
	return c.json(http.StatusOK, list)
}

func getReplay(c *call) error {
	wait := time.Duration(c.q.integer("waitMs")) * time.Millisecond
	done, err := c.hold(wait > 0)
	if err != nil {
		return err
	}
	defer done()
	r, err := c.s.o.Engine.Replay(c.ctx, c.p, c.id, wait)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, r)
}

func publishSeries(c *call) error {
	b := c.body.(*PublishRequest)
	return c.publish(workbench.PublishVersion{Version: b.Version, Expected: b.Expected})
}

func rollBackSeries(c *call) error {
	b := c.body.(*RollbackSeriesRequest)
	return c.publish(workbench.PublishVersion{Version: orZero(b.Version), Expected: b.Expected, Rollback: true})
}

func (c *call) publish(r workbench.PublishVersion) error {
	c.note("version", r.Version)
	c.note("expected", r.Expected)
	r.Trail = c.trailOfSuccess()
	x, err := c.s.o.Engine.Publish(c.ctx, c.p, c.id, r)
	if err != nil {
		return err
	}
	c.recorded = true // with the publication
	return c.json(http.StatusOK, x)
}

func runSeries(c *call) error {
	b := c.body.(*RunSeriesRequest)
	files, err := selections(b.ArtifactIDs)
	if err != nil {
		return err
	}
	if b.TimeoutMs != nil && *b.TimeoutMs <= 0 {
		return workbench.InRange("timeoutMs", *b.TimeoutMs, 1, workbench.MaxBackgroundTimeout.Milliseconds())
	}
	key, err := idempotencyKey(c.r.Header, b.IdempotencyKey)
	if err != nil {
		return err
	}
	done, err := c.hold(c.q.integer("waitMs") > 0)
	if err != nil {
		return err // before anything is admitted
	}
	defer done()
	c.note("series", c.id)
	trail := c.trailOfSuccess()
	sub, err := c.s.o.Engine.RunVersion(c.ctx, c.p, c.id, workbench.RunVersion{Version: orZero(b.Version), Args: b.Args, Env: b.Env, Stdin: b.Stdin,
		TimeoutMs: orZero(b.TimeoutMs), Artifacts: files, Keep: b.Keep, IdempotencyKey: key, Trail: &trail})
	if err != nil {
		return err
	}
	return c.submitted(sub)
}

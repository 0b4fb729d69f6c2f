package sdk

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

// ListSeries pages the series, newest first, without what was published of them.
func (c *Client) ListSeries(ctx context.Context, page workbench.Page) (workbench.List[workbench.Series], error) {
	return get[workbench.List[workbench.Series]](ctx, c, "/series", pageQuery(page))
}

// Series reads a series with what was published of it. Codes: not_found.
func (c *Client) Series(ctx context.Context, seriesID string) (workbench.Series, error) {
	return get[workbench.Series](ctx, c, "/series/"+seg(seriesID), nil)
}

// SeriesVersions pages the versions of a series, newest first.
func (c *Client) SeriesVersions(ctx context.Context, seriesID string, page workbench.Page) (workbench.List[workbench.SeriesVersion], error) {
	return get[workbench.List[workbench.SeriesVersion]](ctx, c, "/series/"+seg(seriesID)+"/versions", pageQuery(page))
}

// SeriesVersion reads a version with its manifest. Codes: not_found.
func (c *Client) SeriesVersion(ctx context.Context, seriesID string, version int64) (workbench.SeriesVersion, error) {
	return get[workbench.SeriesVersion](ctx, c, "/series/"+seg(seriesID)+"/versions/"+strconv.FormatInt(version, 10), nil)
}

// ReplaySeries asks for a replay.
type ReplaySeries struct {
	Version        int64                 `json:"version,omitempty"` // default: the last
	Tools          workbench.ReplayTools `json:"tools,omitempty"`   // default: refuse
	IdempotencyKey string                `json:"idempotencyKey,omitempty"`
}

// ReplaySeries runs a version again and compares: Replay and WaitForReplay read the
// verdict. Codes: not_found, replay_called_tools, and those of CreateSessionRun.
func (c *Client) ReplaySeries(ctx context.Context, seriesID string, r ReplaySeries) (workbench.Replay, error) {
	out, _, err := decode[workbench.Replay](ctx, c, call{method: http.MethodPost, path: "/series/" + seg(seriesID) + "/replays", json: r, keyed: r.IdempotencyKey != ""})
	return out, err
}

// Replay reads a replay. With wait > 0 the server answers when its run has ended or
// the wait (at most MaxPoll) is over.
func (c *Client) Replay(ctx context.Context, replayID string, wait time.Duration) (workbench.Replay, error) {
	q := url.Values{}
	if wait > 0 {
		q.Set("waitMs", strconv.FormatInt(min(wait, MaxPoll).Milliseconds(), 10))
	}
	return get[workbench.Replay](ctx, c, "/replays/"+seg(replayID), q)
}

// WaitForReplay returns a replay once it has a verdict.
func (c *Client) WaitForReplay(ctx context.Context, replayID string) (workbench.Replay, error) {
	for {
		r, err := c.Replay(ctx, replayID, MaxPoll)
		if err != nil || r.Verdict != workbench.VerdictNone {
			return r, err
		}
		if err := c.pause(ctx, 1, 0); err != nil {
			return r, c.unreachable(ctx, err)
		}
	}
}

// Replays pages replays of a series, or of one version of it (0: all), newest first.
func (c *Client) Replays(ctx context.Context, seriesID string, version int64, page workbench.Page) (workbench.List[workbench.Replay], error) {
	q := pageQuery(page)
	if version != 0 {
		q.Set("version", strconv.FormatInt(version, 10))
	}
	return get[workbench.List[workbench.Replay]](ctx, c, "/series/"+seg(seriesID)+"/replays", q)
}

// PublishSeries publishes a version, if expected is the one that is published now (0:
// none). Codes: version_mismatch, replay_required, conflict, not_found.
func (c *Client) PublishSeries(ctx context.Context, seriesID string, version, expected int64) (workbench.Series, error) {
	return post[workbench.Series](ctx, c, "/series/"+seg(seriesID)+"/publish", map[string]int64{"version": version, "expectedPublishedVersion": expected})
}

// RollBackSeries publishes a version again that was published before: 0 is the one
// before the current one. Codes: version_mismatch, conflict, not_found.
func (c *Client) RollBackSeries(ctx context.Context, seriesID string, version, expected int64) (workbench.Series, error) {
	body := map[string]int64{"expectedPublishedVersion": expected}
	if version != 0 {
		body["version"] = version
	}
	return post[workbench.Series](ctx, c, "/series/"+seg(seriesID)+"/rollback", body)
}

// DeleteSeries deletes a series: its runs are versions no longer. Codes: not_found.
func (c *Client) DeleteSeries(ctx context.Context, seriesID string) error {
	res, err := c.do(ctx, call{method: http.MethodDelete, path: "/series/" + seg(seriesID)})
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// RunSeries asks for a run of a version with other inputs. What is left out is as the
// version has it.
type RunSeries struct {
	Version        int64                      `json:"version,omitempty"` // default: the published one
	Args           *[]string                  `json:"args,omitempty"`
	Env            map[string]string          `json:"env,omitempty"` // beside the version's
	Stdin          *string                    `json:"stdin,omitempty"`
	TimeoutMs      *int64                     `json:"timeoutMs,omitempty"`
	Artifacts      []workbench.ArtifactSelect `json:"artifactIds,omitempty"`
	Keep           *[]string                  `json:"keep,omitempty"`
	IdempotencyKey string                     `json:"idempotencyKey,omitempty"`
}

// RunSeries runs a version in a new session that begins as the version did. Codes:
// not_found, conflict (none is published), and those of CreateSessionRun.
func (c *Client) RunSeries(ctx context.Context, seriesID string, r RunSeries) (Submitted, error) {
	run, header, err := decode[workbench.Run](ctx, c, call{method: http.MethodPost, path: "/series/" + seg(seriesID) + "/runs", json: r, keyed: r.IdempotencyKey != ""})
	return Submitted{Run: run, Replayed: header.Get("Idempotency-Replayed") == "true"}, err
}

package sdk

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

// CreateRun is one submission of code.
type CreateRun struct {
	Language    workbench.Language         `json:"language,omitempty"` // a cell may leave it out: its context's
	Code        string                     `json:"code"`
	Args        []string                   `json:"args,omitempty"`
	Env         map[string]string          `json:"env,omitempty"`
	Stdin       string                     `json:"stdin,omitempty"`
	TimeoutMs   *int64                     `json:"timeoutMs,omitempty"`   // default: the session's
	OutputBytes *int64                     `json:"outputBytes,omitempty"` // default: the session's
	Artifacts   []workbench.ArtifactSelect `json:"artifactIds,omitempty"` // put into the workspace first
	Keep        []string                   `json:"keep,omitempty"`        // globs of files to retain
	Background  bool                       `json:"background,omitempty"`  // beside the foreground queue, for up to 60 minutes
	// ContextID makes it a cell of that context: see RunCell. Args, Env and Stdin
	// are not for cells. OnLostContext says what to do when the variables of the
	// context are gone and nobody was told; by default nothing runs then.
	ContextID     string                      `json:"contextId,omitempty"`
	OnLostContext workbench.LostContextPolicy `json:"onLostContext,omitempty"`
	// ReusableRun says whether the run becomes a version that can be run again; by
	// default of a new series.
	ReusableRun *workbench.ReuseRequest `json:"reusableRun,omitempty"`
	// IdempotencyKey makes the submission safe to repeat: the same key with
	// the same job gives the same run. Without one, every submission is a new
	// job and this client never repeats it.
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
}

// Submitted is an admitted run.
type Submitted struct {
	workbench.Run
	// Replayed says that the key named an earlier identical job, which Run is;
	// it may belong to another session, which Run.SessionID names.
	Replayed bool `json:"-"`
}

// CreateSessionRun submits code. The run is queued when this returns. Codes:
// queue_full, idempotency_key_reused, session_closed, session_expired,
// limit_out_of_range, language_not_available, not_found.
func (c *Client) CreateSessionRun(ctx context.Context, sessionID string, r CreateRun) (Submitted, error) {
	run, header, err := decode[workbench.Run](ctx, c, call{
		method: http.MethodPost, path: "/sessions/" + seg(sessionID) + "/runs", json: r, keyed: r.IdempotencyKey != "",
	})
	if err != nil {
		return Submitted{}, err
	}
	return Submitted{Run: run, Replayed: header.Get("Idempotency-Replayed") == "true"}, nil
}

// MaxPoll is how long one request waits for the end of a run. It is below the
// server's own bound and below what proxies usually allow.
const MaxPoll = 25 * time.Second

// GetRun reads a run's receipt. With wait > 0 the server answers when the run
// is terminal or the wait (at most MaxPoll) is over.
func (c *Client) GetRun(ctx context.Context, runID string, wait time.Duration) (workbench.Receipt, error) {
	return c.receipt(ctx, runID, wait, false)
}

func (c *Client) receipt(ctx context.Context, runID string, wait time.Duration, once bool) (workbench.Receipt, error) {
	q := url.Values{}
	if wait > 0 {
		q.Set("waitMs", strconv.FormatInt(min(wait, MaxPoll).Milliseconds(), 10))
	}
	out, _, err := decode[workbench.Receipt](ctx, c, call{method: http.MethodGet, path: "/runs/" + seg(runID), query: q, once: once})
	return out, err
}

// WaitForSessionRun returns the receipt of a run once it is terminal. It reads
// only; a failed, timed out or unknown run is a receipt, not an error. It ends
// early with ctx, or when the server stays away for longer than the client's
// patience.
func (c *Client) WaitForSessionRun(ctx context.Context, runID string) (workbench.Receipt, error) {
	away := outage{c: c}
	for {
		receipt, err := c.receipt(ctx, runID, MaxPoll, true)
		if err != nil {
			if err := away.again(ctx, err); err != nil {
				return receipt, err
			}
			continue
		}
		away.over()
		if receipt.Status.Terminal() {
			return receipt, nil
		}
		// A server that answers early (it may be shutting down) is not asked
		// again without a breath.
		if err := c.pause(ctx, 1, 0); err != nil {
			return receipt, c.unreachable(ctx, err)
		}
	}
}

// RunFilter narrows a list of runs. Zero fields do not filter.
type RunFilter struct {
	SessionID    string
	Status       workbench.Status
	Lane         workbench.Lane
	Since, Until time.Time
}

// ListRuns lists the runs of one session, newest first, without their output.
func (c *Client) ListRuns(ctx context.Context, f RunFilter, page workbench.Page) (SessionList[workbench.Run], error) {
	q := pageQuery(page)
	if f.Status != "" {
		q.Set("status", string(f.Status))
	}
	if f.Lane != "" {
		q.Set("lane", string(f.Lane))
	}
	setTimes(q, f.Since, f.Until)
	return get[SessionList[workbench.Run]](ctx, c, "/sessions/"+seg(f.SessionID)+"/runs", q)
}

// CancelRun asks for a run's end. A queued run is cancelled at once, one that
// runs gets its end within seconds, one that is terminal stays as it is.
func (c *Client) CancelRun(ctx context.Context, runID string) (workbench.Run, error) {
	return post[workbench.Run](ctx, c, "/runs/"+seg(runID)+"/cancel", nil)
}

// Output reads one page of one stream. Codes: offset_invalid.
func (c *Client) Output(ctx context.Context, runID string, o workbench.OutputQuery) (workbench.OutputPage, error) {
	q := url.Values{}
	if o.Stream != "" {
		q.Set("stream", string(o.Stream))
	}
	if o.Offset != 0 {
		q.Set("offset", strconv.FormatInt(o.Offset, 10))
	}
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Encoding != "" {
		q.Set("encoding", string(o.Encoding))
	}
	return get[workbench.OutputPage](ctx, c, "/runs/"+seg(runID)+"/output", q)
}

// RunFiles pages what a run changed in its workspace, in order of path.
func (c *Client) RunFiles(ctx context.Context, runID string, page workbench.Page) (workbench.List[workbench.ChangedFile], error) {
	return get[workbench.List[workbench.ChangedFile]](ctx, c, "/runs/"+seg(runID)+"/files", pageQuery(page))
}

// DownloadRunFile writes a file as the run left it to w and returns how many
// bytes it wrote. A connection lost on the way is picked up where it broke.
func (c *Client) DownloadRunFile(ctx context.Context, runID, path string, w io.Writer) (int64, error) {
	return c.download(ctx, "/runs/"+seg(runID)+"/files/content", pathQuery(path), w)
}

// ReadRunFile is DownloadRunFile into memory; for small files.
func (c *Client) ReadRunFile(ctx context.Context, runID, path string) ([]byte, error) {
	var b bytes.Buffer
	_, err := c.DownloadRunFile(ctx, runID, path, &b)
	return b.Bytes(), err
}

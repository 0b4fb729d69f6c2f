package sdk

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/workbenchdev/workbench"
)

// CreateContext asks for a context.
type CreateContext struct {
	ID       string             `json:"id,omitempty"` // default: generated
	Language workbench.Language `json:"language"`
	Env      map[string]string  `json:"env,omitempty"` // of its interpreter
	Dir      string             `json:"cwd,omitempty"` // absolute, or relative to the workspace; default: /mnt/files
}

// CreateContext makes a context: a living interpreter whose cells keep their
// variables. Where the session has the very same one, that one is returned.
// Codes: context_exists, quota_exceeded, language_not_available, path_invalid,
// session_closed, session_expired.
func (c *Client) CreateContext(ctx context.Context, sessionID string, r CreateContext) (workbench.Context, error) {
	return post[workbench.Context](ctx, c, contextsOf(sessionID), r)
}

func contextsOf(sessionID string) string { return "/sessions/" + seg(sessionID) + "/contexts" }

// ListContexts lists a session's contexts; there are few.
func (c *Client) ListContexts(ctx context.Context, sessionID string) (SessionList[workbench.Context], error) {
	return get[SessionList[workbench.Context]](ctx, c, contextsOf(sessionID), nil)
}

// GetContext reads a context. Codes: context_not_found.
func (c *Client) GetContext(ctx context.Context, sessionID, id string) (workbench.Context, error) {
	return get[workbench.Context](ctx, c, contextsOf(sessionID)+"/"+seg(id), nil)
}

// DeleteContext ends a context's interpreter and forgets it. Codes:
// context_not_found, runs_active. It is never repeated by itself.
func (c *Client) DeleteContext(ctx context.Context, sessionID, id string) (workbench.Context, error) {
	out, _, err := decode[workbench.Context](ctx, c, call{method: http.MethodDelete, path: contextsOf(sessionID) + "/" + seg(id)})
	return out, err
}

// RestartContext ends a context's interpreter, or takes note that it was lost;
// the next cell starts a fresh one. cancelActive cancels cells that have not
// ended. Codes: context_not_found, runs_active.
func (c *Client) RestartContext(ctx context.Context, sessionID, id string, cancelActive bool) (workbench.Context, error) {
	return post[workbench.Context](ctx, c, contextsOf(sessionID)+"/"+seg(id)+"/restart", struct {
		CancelActive bool `json:"cancelActive,omitempty"`
	}{cancelActive})
}

// InterruptContext cancels the cell that runs in a context, as a keyboard
// would: variables stay if it answers. That nothing ran is no error.
func (c *Client) InterruptContext(ctx context.Context, sessionID, id string) (workbench.Interrupted, error) {
	return post[workbench.Interrupted](ctx, c, contextsOf(sessionID)+"/"+seg(id)+"/interrupt", nil)
}

// RunCell submits a cell to a context and waits for its end: CreateSessionRun
// and WaitForSessionRun. An empty context is workbench.DefaultContext, which
// needs no creating; an empty language is the context's. A cell that raised is a receipt, not an error. Codes: those
// of CreateSessionRun, context_not_found, context_language, context_lost.
func (c *Client) RunCell(ctx context.Context, sessionID, contextID string, language workbench.Language, code string) (workbench.Receipt, error) {
	if contextID == "" {
		contextID = workbench.DefaultContext
	}
	run, err := c.CreateSessionRun(ctx, sessionID, CreateRun{Language: language, Code: code, ContextID: contextID})
	if err != nil {
		return workbench.Receipt{}, err
	}
	return c.WaitForSessionRun(ctx, run.ID)
}

// DownloadResult writes the bytes of one form of a run's result to w, such as
// those of an image, wherever they are. An empty type is that of the only form.
// Codes: not_found, artifact_deleted, artifact_expired.
func (c *Client) DownloadResult(ctx context.Context, runID string, index int, mimeType string, w io.Writer) (int64, error) {
	q := url.Values{}
	if mimeType != "" {
		q.Set("type", mimeType)
	}
	return c.download(ctx, "/runs/"+seg(runID)+"/results/"+strconv.Itoa(index), q, w)
}

// ReadResult is DownloadResult into memory.
func (c *Client) ReadResult(ctx context.Context, runID string, index int, mimeType string) ([]byte, error) {
	var b bytes.Buffer
	_, err := c.DownloadResult(ctx, runID, index, mimeType, &b)
	return b.Bytes(), err
}

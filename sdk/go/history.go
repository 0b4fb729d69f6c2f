package sdk

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/workbenchdev/workbench"
)

// ListCommits pages a session's commits, newest first.
func (c *Client) ListCommits(ctx context.Context, sessionID string, page workbench.Page) (SessionList[workbench.Commit], error) {
	return get[SessionList[workbench.Commit]](ctx, c, "/sessions/"+seg(sessionID)+"/commits", pageQuery(page))
}

// Commit reads a commit. Codes: not_found, commit_gone.
func (c *Client) Commit(ctx context.Context, commitID string) (workbench.Commit, error) {
	return get[workbench.Commit](ctx, c, "/commits/"+seg(commitID), nil)
}

// CommitTree pages the files of a commit. Codes: not_found, commit_gone,
// path_conflict.
func (c *Client) CommitTree(ctx context.Context, commitID string, q workbench.TreeQuery) (workbench.List[workbench.TreeEntry], error) {
	return get[workbench.List[workbench.TreeEntry]](ctx, c, "/commits/"+seg(commitID)+"/tree", treeQuery(q))
}

// DownloadCommitFile writes a file of a commit to w and returns how many bytes
// it wrote. A connection lost on the way is picked up where it broke.
func (c *Client) DownloadCommitFile(ctx context.Context, commitID, path string, w io.Writer) (int64, error) {
	return c.download(ctx, "/commits/"+seg(commitID)+"/content", pathQuery(path), w)
}

// ReadCommitFile is DownloadCommitFile into memory; for small files.
func (c *Client) ReadCommitFile(ctx context.Context, commitID, path string) ([]byte, error) {
	var b bytes.Buffer
	_, err := c.DownloadCommitFile(ctx, commitID, path, &b)
	return b.Bytes(), err
}

// DownloadCommit writes all files of a commit to w, as a tar archive.
func (c *Client) DownloadCommit(ctx context.Context, commitID string, w io.Writer) (int64, error) {
	return c.download(ctx, "/commits/"+seg(commitID)+"/tar", nil, w)
}

// CompareCommits pages what differs from one commit to another; from "" is the
// parent of the other.
func (c *Client) CompareCommits(ctx context.Context, from, to string, page workbench.Page) (workbench.Comparison, error) {
	return get[workbench.Comparison](ctx, c, "/commits/"+seg(to)+"/diff", fromQuery(from, page))
}

// CompareRun pages what a run changed in its workspace.
func (c *Client) CompareRun(ctx context.Context, runID string, page workbench.Page) (workbench.Comparison, error) {
	return get[workbench.Comparison](ctx, c, "/runs/"+seg(runID)+"/diff", pageQuery(page))
}

// CommitPatch writes what differs from one commit to another as one patch.
func (c *Client) CommitPatch(ctx context.Context, from, to string, w io.Writer) error {
	return c.text(ctx, "/commits/"+seg(to)+"/diff", fromQuery(from, workbench.Page{}), "text/x-diff", w)
}

// RunPatch writes what a run changed as one patch.
func (c *Client) RunPatch(ctx context.Context, runID string, w io.Writer) error {
	return c.text(ctx, "/runs/"+seg(runID)+"/diff", nil, "text/x-diff", w)
}

// text writes an answer of a media type to w as it comes.
func (c *Client) text(ctx context.Context, path string, query url.Values, mediaType string, w io.Writer) error {
	res, err := c.do(ctx, call{method: http.MethodGet, path: path, query: query, header: http.Header{"Accept": {mediaType}}})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, readErr, writeErr := copyBody(w, res.Body)
	if writeErr != nil {
		return writeErr
	}
	if readErr != nil {
		return c.unreachable(ctx, readErr)
	}
	return nil
}

func fromQuery(from string, page workbench.Page) url.Values {
	q := pageQuery(page)
	if from != "" {
		q.Set("from", from)
	}
	return q
}

// RollBack asks for the workspace of an earlier commit of a session.
type RollBack struct {
	Commit       string `json:"commit,omitempty"`
	Run          string `json:"run,omitempty"`          // the commit that a run made, instead
	ExpectedHead string `json:"expectedHead,omitempty"` // fail unless this is the last commit
}

// RolledBack is the outcome: a new commit with the old tree.
type RolledBack struct {
	Session workbench.Session `json:"session"`
	Commit  workbench.Commit  `json:"commit"`
	Memory  workbench.Memory  `json:"memory"`
}

// RollBackSession makes a new commit with the tree of an earlier one. Codes:
// runs_active, version_mismatch, not_found, commit_gone, session_closed,
// session_expired.
func (c *Client) RollBackSession(ctx context.Context, sessionID string, r RollBack) (RolledBack, error) {
	return post[RolledBack](ctx, c, "/sessions/"+seg(sessionID)+"/rollback", r)
}

// ForkSession asks for a new session that begins with the workspace of a commit
// of another one. What is left out is as it is there.
type ForkSession struct {
	Commit string                   `json:"commit,omitempty"` // default: the last
	Run    string                   `json:"run,omitempty"`    // the commit that a run made, instead
	Agent  *string                  `json:"agent,omitempty"`
	Labels map[string]string        `json:"labels,omitempty"`
	Limits *workbench.LimitsRequest `json:"limits,omitempty"`
	Size   string                   `json:"size,omitempty"`
	Image  string                   `json:"image,omitempty"`
	TTLMs  *int64                   `json:"ttlMs,omitempty"`
}

// ForkAgentSession makes a new session of the same owner with the files of a
// commit. Codes: not_found, commit_gone, conflict (there is no commit),
// workspace_full.
func (c *Client) ForkAgentSession(ctx context.Context, sessionID string, r ForkSession) (workbench.Session, error) {
	return post[workbench.Session](ctx, c, "/sessions/"+seg(sessionID)+"/fork", r)
}

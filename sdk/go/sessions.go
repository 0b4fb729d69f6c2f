package sdk

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/workbenchdev/workbench"
)

// CreateSession asks for a session. Every field may be left out.
type CreateSession struct {
	Kind        workbench.SessionKind    `json:"kind,omitempty"`
	Agent       string                   `json:"agent,omitempty"` // descriptive; grants nothing
	Labels      map[string]string        `json:"labels,omitempty"`
	Tools       []workbench.ToolRef      `json:"tools,omitempty"`
	Connections []string                 `json:"connections,omitempty"`
	Limits      *workbench.LimitsRequest `json:"limits,omitempty"`
	Size        string                   `json:"size,omitempty"`
	Image       string                   `json:"image,omitempty"` // name or id
	TTLMs       *int64                   `json:"ttlMs,omitempty"`
	KeepMemory  bool                     `json:"keepMemory,omitempty"` // also while it is suspended
	// KeepAtExpiry are globs of files of the last commit to retain when the
	// session reaches its deadline.
	KeepAtExpiry []string `json:"keepAtExpiry,omitempty"`
}

// ConfigureSession makes a new revision. Nil fields keep what they were.
type ConfigureSession struct {
	Agent        *string                  `json:"agent,omitempty"`
	Labels       *map[string]string       `json:"labels,omitempty"`
	Tools        *[]workbench.ToolRef     `json:"tools,omitempty"`
	Connections  *[]string                `json:"connections,omitempty"`
	Limits       *workbench.LimitsRequest `json:"limits,omitempty"`
	KeepAtExpiry *[]string                `json:"keepAtExpiry,omitempty"`
	// ExpectedCurrentVersion is the revision believed to be current; another
	// one answers version_mismatch.
	ExpectedCurrentVersion *int64 `json:"expectedCurrentVersion,omitempty"`
}

// RestartSession replaces the compute generation. Only the named retained
// files are in the new workspace.
type RestartSession struct {
	Artifacts    []workbench.ArtifactSelect `json:"artifactIds,omitempty"`
	CancelActive bool                       `json:"cancelActive,omitempty"`
}

// SessionFilter narrows a list of sessions. Zero fields do not filter.
type SessionFilter struct {
	State        workbench.SessionState
	Labels       map[string]string
	Since, Until time.Time
}

// SessionList is a page of what belongs to one session.
type SessionList[T any] struct {
	Session    workbench.SessionRef `json:"session"`
	Items      []T                  `json:"items"`
	NextCursor string               `json:"nextCursor,omitempty"`
}

// CreateAgentSession creates a session. It is never repeated by itself: a
// session that nobody knows of ends at its deadline.
func (c *Client) CreateAgentSession(ctx context.Context, r CreateSession) (workbench.Session, error) {
	return post[workbench.Session](ctx, c, "/sessions", r)
}

// AgentSession reads a session.
func (c *Client) AgentSession(ctx context.Context, id string) (workbench.Session, error) {
	return get[workbench.Session](ctx, c, "/sessions/"+seg(id), nil)
}

// ListAgentSessions lists sessions, newest first.
func (c *Client) ListAgentSessions(ctx context.Context, f SessionFilter, page workbench.Page) (workbench.List[workbench.Session], error) {
	q := pageQuery(page)
	if f.State != "" {
		q.Set("state", string(f.State))
	}
	for name, value := range f.Labels {
		q.Add("label", name+"="+value)
	}
	setTimes(q, f.Since, f.Until)
	return get[workbench.List[workbench.Session]](ctx, c, "/sessions", q)
}

// ConfigureAgentSession makes a new revision. Codes: runs_active,
// version_mismatch, session_closed, session_expired, limit_out_of_range.
func (c *Client) ConfigureAgentSession(ctx context.Context, id string, r ConfigureSession) (workbench.Session, error) {
	return post[workbench.Session](ctx, c, "/sessions/"+seg(id)+"/configure", r)
}

// RestartAgentSession replaces the compute generation: variables, processes
// and the workspace are gone, the selected retained files are restored. Codes:
// runs_active, session_closed, session_expired.
func (c *Client) RestartAgentSession(ctx context.Context, id string, r RestartSession) (workbench.Session, error) {
	return post[workbench.Session](ctx, c, "/sessions/"+seg(id)+"/restart", r)
}

// CloseAgentSession ends a session's compute. Retained files and receipts stay
// readable. Closing twice changes nothing.
func (c *Client) CloseAgentSession(ctx context.Context, id string) (workbench.Session, error) {
	return post[workbench.Session](ctx, c, "/sessions/"+seg(id)+"/close", nil)
}

// SessionRevisions lists a session's configurations.
func (c *Client) SessionRevisions(ctx context.Context, id string, page workbench.Page) (SessionList[workbench.Revision], error) {
	return get[SessionList[workbench.Revision]](ctx, c, "/sessions/"+seg(id)+"/revisions", pageQuery(page))
}

// RuntimeTiers lists the sandbox sizes and what this server can hold of them.
func (c *Client) RuntimeTiers(ctx context.Context) ([]workbench.Size, error) {
	list, err := get[workbench.List[workbench.Size]](ctx, c, "/runtime-tiers", nil)
	return list.Items, err
}

// Ready reports whether the server can accept work.
func (c *Client) Ready(ctx context.Context) error {
	res, err := c.once(ctx, call{method: http.MethodGet, path: "/readyz", root: true}, nil)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

func setTimes(q url.Values, since, until time.Time) {
	if !since.IsZero() {
		q.Set("since", since.UTC().Format(time.RFC3339Nano))
	}
	if !until.IsZero() {
		q.Set("until", until.UTC().Format(time.RFC3339Nano))
	}
}

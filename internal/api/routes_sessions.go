package api

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

func sessionRoutes() []Route {
	return []Route{
		{
			Method: http.MethodPost, Pattern: base + "/sessions", ID: "createSession", Tag: "sessions",
			Summary: "Create a session", Description: "A session is a computer for one identity: the key's user, or the end user an embedded key names. The identity never changes.",
			Scope: workbench.ScopeExecute, Admin: AdminNever, Action: "session.create",
			Body: CreateSessionRequest{}, OptionalBody: true, handle: createSession,
			Replies: []Reply{{Status: http.StatusCreated, Doc: "The session.", Body: workbench.Session{}, Headers: []string{"Location", "ETag"}}},
			Errors: []workbench.Code{workbench.CodeToolNotFound, workbench.CodeConnectionNotFound, workbench.CodeImageNotFound, workbench.CodeSizeUnavailable, workbench.CodeCapacity,
				workbench.CodeNotBuilt},
		},
		{
			Method: http.MethodGet, Pattern: base + "/sessions", ID: "listSessions", Tag: "sessions",
			Summary: "List sessions, newest first", Scope: workbench.ScopeRead, Admin: AdminReads, handle: listSessions,
			Params: []Param{
				{Name: "state", Doc: "only sessions in this state", Kind: TextParam, Enum: []string{"active", "closed", "expired"}},
				{Name: "label", Doc: "only sessions with this label, as name=value; may be repeated", Kind: TextParam, Repeat: true},
				sinceParam, untilParam, limitParam, cursorParam,
			},
			Replies: []Reply{ok("A page of sessions.", workbench.List[workbench.Session]{})},
		},
		{
			Method: http.MethodGet, Pattern: base + "/sessions/{id}", ID: "getSession", Tag: "sessions",
			Summary: "Read a session", Scope: workbench.ScopeRead, Admin: AdminReads, Target: workbench.KindSession, handle: getSession,
			Replies: []Reply{{Status: http.StatusOK, Doc: "The session.", Body: workbench.Session{}, Headers: []string{"ETag"}}},
		},
		{
			Method: http.MethodGet, Pattern: base + "/sessions/{id}/revisions", ID: "listRevisions", Tag: "sessions",
			Summary: "List a session's revisions", Scope: workbench.ScopeRead, Admin: AdminReads, Target: workbench.KindSession, handle: listRevisions,
			Params:  []Param{limitParam, cursorParam},
			Replies: []Reply{ok("A page of revisions.", SessionList[workbench.Revision]{})},
		},
		{
			Method: http.MethodPost, Pattern: base + "/sessions/{id}/configure", ID: "configureSession", Tag: "sessions",
			Summary: "Make a new revision", Description: "Changes what is sent and keeps the rest. A request that names nothing to change is refused. Refused also while any run of the session is not terminal.",
			Scope: workbench.ScopeExecute, Admin: AdminNever, Target: workbench.KindSession, Action: "session.configure",
			Body: ConfigureRequest{}, handle: configureSession, Headers: []Param{{Name: "If-Match", Doc: "the revision believed to be current, as the ETag of a session gives it", Kind: TextParam}},
			Replies: []Reply{{Status: http.StatusOK, Doc: "The session at its new revision.", Body: workbench.Session{}, Headers: []string{"ETag"}}},
			Errors:  []workbench.Code{workbench.CodeRunsActive, workbench.CodeVersionMismatch, workbench.CodeSessionClosed, workbench.CodeSessionExpired, workbench.CodeToolNotFound, workbench.CodeConnectionNotFound},
		},
		{
			Method: http.MethodPost, Pattern: base + "/sessions/{id}/restart", ID: "restartSession", Tag: "sessions",
			Summary: "Replace the compute", Description: "A new generation with an empty workspace, in which only the retained files named are restored. Refused while any run is not terminal, unless cancelActive is set.",
			Scope: workbench.ScopeExecute, Admin: AdminNever, Target: workbench.KindSession, Action: "session.restart",
			Body: RestartRequest{}, OptionalBody: true, handle: restartSession,
			Replies: []Reply{{Status: http.StatusOK, Doc: "The session at its new generation.", Body: workbench.Session{}, Headers: []string{"ETag"}}},
			Errors: []workbench.Code{workbench.CodeRunsActive, workbench.CodeSessionClosed, workbench.CodeSessionExpired, workbench.CodePathConflict,
				workbench.CodePathInvalid, workbench.CodeArtifactDeleted, workbench.CodeArtifactExpired, workbench.CodeWorkspaceFull, workbench.CodeQuotaExceeded, workbench.CodeCorrupt},
		},
		{
			Method: http.MethodPost, Pattern: base + "/sessions/{id}/close", ID: "closeSession", Tag: "sessions",
			Summary: "End a session's compute", Description: "Cancels what runs. Receipts and retained files stay readable. Closing twice changes nothing.",
			Scope: workbench.ScopeExecute, Admin: AdminManages, Target: workbench.KindSession, Action: "session.close",
			Body: EmptyRequest{}, OptionalBody: true, handle: closeSession,
			Replies: []Reply{{Status: http.StatusOK, Doc: "The session, closed.", Body: workbench.Session{}, Headers: []string{"ETag"}}},
		},
		{
			Method: http.MethodGet, Pattern: base + "/sessions/{id}/events", ID: "streamSessionEvents", Tag: "sessions", Summary: "Follow what happens to a session",
			Description: "In the form of a run's events, with the same ids, heartbeats and resumption: created, run (queued, ended), files (a commit of the workspace), configured, suspended, resumed, restarted, sandbox_lost, expiring (before the deadline), kept (at expiry), and as the last one closed or expired. " +
				"Output is in the runs' own streams.",
			Scope: workbench.ScopeRead, Admin: AdminReads, Target: workbench.KindSession, handle: streamSessionEvents, Streams: true,
			Params: streamParams, Headers: streamHeaders,
			Replies: streamReplies("The events, each as SessionEvent.", workbench.SessionEvent{}),
			Errors:  []workbench.Code{workbench.CodeNotAcceptable, workbench.CodeOffsetInvalid},
		},
	}
}

func createSession(c *call) error {
	b := c.body.(*CreateSessionRequest)
	size := b.Size
	if b.SandboxSize != "" {
		if size != "" && size != b.SandboxSize {
			return invalid("sandboxSize", "size and sandboxSize differ").WithHint("send one of them")
		}
		size = b.SandboxSize
	}
	if err := checkLabels(b.Labels); err != nil {
		return err
	}
	r := workbench.CreateSession{
		Kind: b.Kind, Agent: b.Agent, Labels: b.Labels, Tools: tools(b.Tools), Aliases: b.Connections,
		Limits: b.Limits.request(), Size: size, Image: b.Image, KeepMemory: b.KeepMemory, KeepAtExpiry: b.KeepAtExpiry,
	}
	if b.TTLMs != nil {
		if err := workbench.InRange("ttlMs", *b.TTLMs, workbench.MinSessionTTL.Milliseconds(), workbench.MaxSessionTTL.Milliseconds()); err != nil {
			return err
		}
		r.TTL = time.Duration(*b.TTLMs) * time.Millisecond
	}
	s, err := c.s.o.Engine.CreateSession(c.ctx, c.p, r)
	if err != nil {
		return err
	}
	c.target = s.ID
	c.w.Header().Set("Location", base+"/sessions/"+s.ID)
	return c.session(http.StatusCreated, s)
}

func (c *call) session(status int, s workbench.Session) error {
	c.w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(s.Revision, 10)))
	return c.json(status, wholeSession(s))
}

func listSessions(c *call) error {
	labels, err := labelFilter(c.q.values["label"])
	if err != nil {
		return err
	}
	list, err := c.s.o.Engine.ListSessions(c.ctx, c.p, workbench.SessionFilter{
		State: workbench.SessionState(c.q.text("state")), Label: labels, Since: c.q.time("since"), Until: c.q.time("until"),
	}, c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeList(list, wholeSession))
}

func labelFilter(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	if len(pairs) > maxLabels {
		return nil, invalid("label", "at most %d labels can be asked for", maxLabels).WithHint("ask for fewer")
	}
	labels := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if _, twice := labels[name]; !ok || name == "" || twice {
			return nil, invalid("label", "label must be name=value, each name once").WithHint("write ?label=team=sales&label=stage=test")
		}
		labels[name] = value
	}
	return labels, nil
}

const (
	maxLabels     = 32
	maxLabelBytes = 128
)

func checkLabels(labels map[string]string) error {
	for name, value := range labels {
		if name == "" || len(name) > maxLabelBytes || len(value) > maxLabelBytes {
			return invalid("labels", "a label's name has 1 to %d bytes and its value at most %d", maxLabelBytes, maxLabelBytes).WithHint("shorten it")
		}
	}
	return nil
}

func tools(in []ToolInput) []workbench.ToolRef {
	out := make([]workbench.ToolRef, 0, len(in))
	for _, t := range in {
		out = append(out, workbench.ToolRef(t))
	}
	return out
}

func getSession(c *call) error {
	s, err := c.s.o.Engine.Session(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.session(http.StatusOK, s)
}

func listRevisions(c *call) error {
	s, err := c.s.o.Engine.Session(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	list, err := c.s.o.Engine.Revisions(c.ctx, c.p, c.id, c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, ofSession(s, wholeList(list, wholeRevision)))
}

func ofSession[T any](s workbench.Session, l workbench.List[T]) SessionList[T] {
	return SessionList[T]{Session: s.Ref(), Items: whole(l.Items), NextCursor: l.NextCursor}
}

// sessionRef is where a session is that the caller may use, also with a key
// without the scope read.
func (c *call) sessionRef(id string) (*workbench.SessionRef, error) {
	s, err := c.s.o.Engine.Session(c.ctx, c.reader(), id)
	if err != nil {
		return nil, err
	}
	ref := s.Ref()
	return &ref, nil
}

// reader is the caller with the scope read.
func (c *call) reader() workbench.Principal {
	if c.p.Has(workbench.ScopeRead) {
		return c.p
	}
	p := c.p
	p.Scopes = append(slices.Clone(p.Scopes), workbench.ScopeRead)
	return p
}

func configureSession(c *call) error {
	b := c.body.(*ConfigureRequest)
	expected, err := expectedRevision(c.r.Header, b.ExpectedCurrentVersion)
	if err != nil {
		return err
	}
	r := workbench.ConfigureSession{Agent: b.Agent, Aliases: b.Connections, Limits: b.Limits.request(), Labels: b.Labels, KeepAtExpiry: b.KeepAtExpiry, ExpectedRevision: expected}
	if b.Tools != nil {
		list := tools(*b.Tools)
		r.Tools = &list
	}
	if b.Labels != nil {
		if err := checkLabels(*b.Labels); err != nil {
			return err
		}
	}
	if err := c.changesSomething(r); err != nil {
		return err
	}
	s, err := c.s.o.Engine.Configure(c.ctx, c.p, c.id, r)
	if err != nil {
		return err
	}
	return c.session(http.StatusOK, s)
}

// changesSomething refuses a request that names nothing to change, unless it
// would be refused for its revision: every revision is one that somebody meant.
func (c *call) changesSomething(r workbench.ConfigureSession) error {
	if r.Agent != nil || r.Labels != nil || r.Tools != nil || r.Aliases != nil || r.Limits != nil || r.KeepAtExpiry != nil {
		return nil
	}
	if r.ExpectedRevision != 0 {
		s, err := c.s.o.Engine.Session(c.ctx, c.p, c.id)
		if err != nil || s.Revision != r.ExpectedRevision {
			return err // nil: the engine says what is wrong with the revision
		}
	}
	return invalid("", "the request changes nothing").WithHint(`send at least one of "agent", "connections", "keepAtExpiry", "labels", "limits", "tools"`)
}

// expectedRevision is the revision the caller believes to be current, from the
// body or If-Match; 0 for none.
func expectedRevision(h http.Header, inBody *int64) (int64, error) {
	var expected int64
	if inBody != nil {
		expected = *inBody
	}
	match := h.Get("If-Match")
	if match == "" || match == "*" {
		return expected, nil
	}
	unquoted, ok := strings.CutPrefix(match, `"`)
	unquoted, closed := strings.CutSuffix(unquoted, `"`)
	n, err := strconv.ParseInt(unquoted, 10, 64)
	if !ok || !closed || err != nil || n < 1 {
		return 0, invalid("If-Match", `If-Match must be a revision in quotes, such as "3"`).WithHint("send the ETag of the session as it was given")
	}
	if inBody != nil && n != expected {
		return 0, invalid("expectedCurrentVersion", "expectedCurrentVersion and If-Match differ").WithHint("send one of them")
	}
	return n, nil
}

func restartSession(c *call) error {
	b := c.body.(*RestartRequest)
	files, err := selections(b.ArtifactIDs)
	if err != nil {
		return err
	}
	s, err := c.s.o.Engine.Restart(c.ctx, c.p, c.id, workbench.RestartSession{Artifacts: files, CancelActive: b.CancelActive})
	if err != nil {
		return err
	}
	return c.session(http.StatusOK, s)
}

func closeSession(c *call) error {
	s, err := c.s.o.Engine.Close(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.session(http.StatusOK, s)
}

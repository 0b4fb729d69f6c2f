package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// Bounds of what describes a session.
const (
	maxAgentBytes = 200
	maxLabels     = 32
	maxLabelBytes = 128
	maxTools      = 200
	maxAliases    = 50
)

// CreateSession makes a session for the principal. Codes: invalid_request,
// limit_out_of_range, size_unavailable, image_not_found, tool_not_found,
// connection_not_found, forbidden, unavailable (the server stops, or has no
// image).
func (e *Engine) CreateSession(ctx context.Context, p workbench.Principal, req workbench.CreateSession) (workbench.Session, error) {
	s, r, err := e.newSession(ctx, p, req, workbench.Session{})
	if err != nil {
		return workbench.Session{}, err
	}
	if err := e.o.Store.CreateSession(ctx, p, s, r); err != nil {
		return workbench.Session{}, err
	}
	return s, nil
}

// newSession is what CreateSession keeps; from is what it is a fork of, if it is one.
func (e *Engine) newSession(ctx context.Context, p workbench.Principal, req workbench.CreateSession, from workbench.Session) (workbench.Session, workbench.Revision, error) {
	bad := func(err error) (workbench.Session, workbench.Revision, error) {
		return workbench.Session{}, workbench.Revision{}, err
	}
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return bad(err)
	}
	if e.draining() {
		return bad(errDraining())
	}
	if p.SessionID != "" {
		return bad(workbench.E(workbench.CodeForbidden, "this key is narrowed to one session").
			WithHint("use a key that is not narrowed to create sessions"))
	}
	if p.TenantID == "" || p.UserID == "" {
		return bad(workbench.E(workbench.CodeForbidden, "this key acts for nobody, so it cannot own a session").
			WithHint("use a direct or an embedded key; POST /v1/workbench/keys makes one"))
	}
	kind, err := sessionKind(p, req.Kind)
	if err != nil {
		return bad(err)
	}
	if err := validateDescription(req.Agent, req.Labels); err != nil {
		return bad(err)
	}
	asked := workbench.Session{ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, GroupID: p.GroupID, Tools: req.Tools, Aliases: req.Aliases}
	if err := e.validateTools(ctx, asked, from); err != nil {
		return bad(err)
	}
	if err := validateGlobs("keepAtExpiry", req.KeepAtExpiry); err != nil {
		return bad(err)
	}
	size, err := e.size(req.Size)
	if err != nil {
		return bad(err)
	}
	limits, err := size.Limits.Lower(req.Limits)
	if err != nil {
		return bad(err)
	}
	ttl := workbench.DefaultSessionTTL
	if req.TTL != 0 {
		if err := workbench.InRange("ttlMs", req.TTL.Milliseconds(), workbench.MinSessionTTL.Milliseconds(), workbench.MaxSessionTTL.Milliseconds()); err != nil {
			return bad(err)
		}
		ttl = req.TTL
	}
	if req.KeepMemory && !e.keepsMemory() {
		return bad(workbench.E(workbench.CodeNotBuilt, "the driver %s cannot keep memory", e.info.Driver).WithField("keepMemory").
			WithHint("leave keepMemory out: files stay either way"))
	}
	img, err := e.resolveImage(ctx, req.Image)
	if err != nil {
		return bad(err)
	}
	now := e.now().Truncate(time.Microsecond) // as every later read has it
	labels := req.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	s := workbench.Session{
		ID: workbench.NewID(workbench.KindSession), ProjectID: p.ProjectID, TenantID: p.TenantID, Kind: kind,
		UserID: p.UserID, GroupID: p.GroupID, KeyID: p.KeyID, Agent: req.Agent, Labels: labels,
		State: workbench.SessionActive, Generation: 1, Revision: 1, Size: size.Name, Limits: limits,
		Tools: nonNil(req.Tools), Aliases: nonNil(req.Aliases), Image: img.ID, Driver: e.info.Driver,
		Isolation: string(e.info.Strength), CreatedAt: now, ExpiresAt: now.Add(ttl), ActiveAt: now, KeepMemory: req.KeepMemory,
		KeepAtExpiry: nonNil(req.KeepAtExpiry),
	}
	return s, revisionOf(s, p, now), nil
}

// Session returns a session; it reads as expired from its deadline on, even
// before the sweeper came by.
func (e *Engine) Session(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.Session{}, err
	}
	return e.session(ctx, p, id)
}

func (e *Engine) session(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error) {
	s, err := e.o.Store.Session(ctx, p, id)
	if err != nil {
		return workbench.Session{}, err
	}
	return e.asOfNow(s), nil
}

func (e *Engine) asOfNow(s workbench.Session) workbench.Session {
	if s.State == workbench.SessionActive && !e.now().Before(s.ExpiresAt) {
		s.State = workbench.SessionExpired
		ended := s.ExpiresAt
		s.EndedAt = &ended
	}
	return s
}

// ListSessions lists what the principal may see, newest first.
func (e *Engine) ListSessions(ctx context.Context, p workbench.Principal, f workbench.SessionFilter, page workbench.Page) (workbench.List[workbench.Session], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.Session]{}, err
	}
	list, err := e.o.Store.ListSessions(ctx, p, f, page)
	for i := range list.Items {
		list.Items[i] = e.asOfNow(list.Items[i])
	}
	return list, err
}

// Revisions lists a session's configurations, newest first.
func (e *Engine) Revisions(ctx context.Context, p workbench.Principal, id string, page workbench.Page) (workbench.List[workbench.Revision], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.Revision]{}, err
	}
	return e.o.Store.ListRevisions(ctx, p, id, page)
}

// Configure makes a new immutable revision. Codes: runs_active while a run is
// not terminal, version_mismatch, session_closed, session_expired, and those of
// validation.
func (e *Engine) Configure(ctx context.Context, p workbench.Principal, id string, req workbench.ConfigureSession) (workbench.Session, error) {
	if req.ExpectedRevision != 0 {
		return e.configure(ctx, p, id, req)
	}
	return despiteRevisions(func() (workbench.Session, error) { return e.configure(ctx, p, id, req) })
}

func (e *Engine) configure(ctx context.Context, p workbench.Principal, id string, req workbench.ConfigureSession) (workbench.Session, error) {
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return workbench.Session{}, err
	}
	s, err := e.session(ctx, p, id)
	if err != nil {
		return workbench.Session{}, err
	}
	if err := s.Open(e.now()); err != nil {
		return workbench.Session{}, err
	}
	expected := req.ExpectedRevision
	if expected == 0 {
		expected = s.Revision // compare and set on what this request was computed from
	}
	was := s
	if s, err = e.reconfigured(ctx, s, req); err != nil {
		return workbench.Session{}, err
	}
	if expected == s.Revision && sameConfiguration(was, s) {
		return was, nil // nothing of it is new: no revision says so
	}
	seen := store.Seen{Revision: expected}
	if req.Limits != nil && req.Limits.WorkspaceBytes != nil {
		seen.Head = &s.HeadCommit
		if err := e.holdsNoMore(ctx, s); err != nil {
			return workbench.Session{}, err
		}
	}
	s.Revision = expected + 1
	return e.o.Store.AddRevision(ctx, p, revisionOf(s, p, e.now()), req.Labels, seen)
}

// reconfigured is the session as a request wants it. Codes: invalid_request,
// limit_out_of_range, and those of what does not exist.
func (e *Engine) reconfigured(ctx context.Context, s workbench.Session, req workbench.ConfigureSession) (workbench.Session, error) {
	had := s
	if req.Agent != nil {
		s.Agent = *req.Agent
	}
	if req.Tools != nil {
		s.Tools = nonNil(*req.Tools)
	}
	if req.Aliases != nil {
		s.Aliases = nonNil(*req.Aliases)
	}
	if req.Labels != nil {
		s.Labels = *req.Labels
	}
	if req.KeepAtExpiry != nil {
		s.KeepAtExpiry = nonNil(*req.KeepAtExpiry)
		if err := validateGlobs("keepAtExpiry", s.KeepAtExpiry); err != nil {
			return workbench.Session{}, err
		}
	}
	if err := validateDescription(s.Agent, s.Labels); err != nil {
		return workbench.Session{}, err
	}
	if req.Tools != nil || req.Aliases != nil {
		if err := e.validateTools(ctx, s, had); err != nil {
			return workbench.Session{}, err
		}
	}
	if req.Limits != nil {
		size, err := e.size(s.Size)
		if err != nil {
			return workbench.Session{}, err
		}
		if s.Limits, err = s.Limits.Within(size.Limits, req.Limits); err != nil {
			return workbench.Session{}, err
		}
	}
	return s, nil
}

// holdsNoMore refuses a limit that the session's last commit, which is what a
// sandbox holds while no run is active, has outgrown: no sandbox of that size
// could be given the files. Code: limit_out_of_range.
func (e *Engine) holdsNoMore(ctx context.Context, s workbench.Session) error {
	head, ok, err := e.o.Store.HeadCommit(ctx, s.ID)
	if err != nil || !ok {
		return err
	}
	tree, err := e.loadTree(ctx, head)
	if err != nil {
		return err
	}
	if _, bytes := takes(tree); bytes > s.Limits.WorkspaceBytes {
		return workbench.E(workbench.CodeLimitOutOfRange, "limits.workspaceBytes must be at least %d: the workspace holds that much, in whole pages", bytes).
			WithField("limits.workspaceBytes").WithHint("send at least that, or delete files from the workspace first")
	}
	return nil
}

func sameConfiguration(a, b workbench.Session) bool {
	return a.Agent == b.Agent && a.Limits == b.Limits && slices.Equal(a.Tools, b.Tools) && slices.Equal(a.Aliases, b.Aliases) && maps.Equal(a.Labels, b.Labels) &&
		slices.Equal(a.KeepAtExpiry, b.KeepAtExpiry)
}

func revisionOf(s workbench.Session, p workbench.Principal, at time.Time) workbench.Revision {
	return workbench.Revision{SessionID: s.ID, Number: s.Revision, Agent: s.Agent, Tools: s.Tools, Aliases: s.Aliases,
		Limits: s.Limits, Size: s.Size, CreatedAt: at, KeyID: p.KeyID, KeepAtExpiry: s.KeepAtExpiry}
}

func sessionKind(p workbench.Principal, want workbench.SessionKind) (workbench.SessionKind, error) {
	natural := workbench.SessionPersonal
	if p.KeyKind == workbench.KeyEmbedded {
		natural = workbench.SessionBusiness
	}
	switch want {
	case "", natural:
		return natural, nil
	case workbench.SessionPersonal, workbench.SessionBusiness:
		return "", workbench.E(workbench.CodeInvalidRequest, "a %s key makes %s sessions", p.KeyKind, natural).
			WithField("kind").WithHint("leave kind out, or use a key of the other kind")
	}
	return "", workbench.E(workbench.CodeInvalidRequest, "kind must be personal or business").WithField("kind")
}

func validateDescription(agent string, labels map[string]string) error {
	if len(agent) > maxAgentBytes || !utf8.ValidString(agent) {
		return workbench.E(workbench.CodeInvalidRequest, "agent must be UTF-8 of at most %d bytes", maxAgentBytes).WithField("agent")
	}
	if len(labels) > maxLabels {
		return workbench.E(workbench.CodeInvalidRequest, "at most %d labels", maxLabels).WithField("labels")
	}
	for k, v := range labels {
		if k == "" || len(k) > maxLabelBytes || len(v) > maxLabelBytes || !utf8.ValidString(k) || !utf8.ValidString(v) || strings.ContainsRune(k+v, 0) {
			return workbench.E(workbench.CodeInvalidRequest, "label keys must have 1 to %d bytes, values at most as many, both UTF-8 without NUL", maxLabelBytes).WithField("labels")
		}
	}
	return nil
}

// validateTools refuses tools and connections that the session cannot have. The
// shape is checked first, so that a wrong request reads as wrong. What it had before is
// not asked for: code is told when it uses what is gone.
func (e *Engine) validateTools(ctx context.Context, s, had workbench.Session) error {
	if len(s.Tools) > maxTools {
		return workbench.E(workbench.CodeInvalidRequest, "at most %d tools", maxTools).WithField("tools")
	}
	if len(s.Aliases) > maxAliases {
		return workbench.E(workbench.CodeInvalidRequest, "at most %d connections", maxAliases).WithField("connections")
	}
	for i, t := range s.Tools {
		if t.Name == "" || t.Version == "" {
			return workbench.E(workbench.CodeInvalidRequest, "a tool needs a name and an exact version").WithField(fmt.Sprintf("tools[%d]", i)).
				WithHint(`such as {"name": "github.list_issues", "version": "1"}`)
		}
	}
	return e.o.Tools.Validate(ctx, s, had)
}

func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return slices.Clone(s)
}

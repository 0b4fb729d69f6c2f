package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// Bounds of a submission besides the session's limits.
const (
	maxArgs      = 64
	maxArgBytes  = 64 * 1024
	maxEnv       = 64
	maxEnvBytes  = 64 * 1024
	maxSelected  = 100
	maxKeepGlobs = 20
)

// Submit admits a run: one transaction, then the answer. An identical repeat
// under the same key returns the original, from whatever session it comes, and
// nothing is admitted. Codes: those of validation, idempotency_key_reused,
// conflict, session_closed, session_expired, queue_full, unavailable.
func (e *Engine) Submit(ctx context.Context, p workbench.Principal, req workbench.SubmitRun) (workbench.Submitted, error) {
	return despiteRevisions(func() (workbench.Submitted, error) { return e.submit(ctx, p, req) })
}

// despiteRevisions repeats what was computed from a revision that another
// request replaced meanwhile. It is for callers who named none: they have
// nothing to correct.
func despiteRevisions[T any](do func() (T, error)) (T, error) {
	const most = 10
	for attempt := 1; ; attempt++ {
		v, err := do()
		if attempt == most || !workbench.HasCode(err, workbench.CodeVersionMismatch) {
			return v, err
		}
	}
}

func (e *Engine) submit(ctx context.Context, p workbench.Principal, req workbench.SubmitRun) (workbench.Submitted, error) {
	if err := p.Require(workbench.ScopeExecute); err != nil {
		return workbench.Submitted{}, err
	}
	if e.draining() {
		return workbench.Submitted{}, errDraining()
	}
	s, err := e.session(ctx, p, req.SessionID)
	if err != nil {
		return workbench.Submitted{}, err
	}
	if err := actsAsOwner(p, s); err != nil {
		return workbench.Submitted{}, err
	}
	spec, speaks := req.Spec, error(nil)
	if spec.Language == "" && spec.ContextID != "" {
		spec.Language, speaks = e.contextLanguage(ctx, p, s.ID, spec.ContextID)
		if speaks != nil && workbench.ClassOf(workbench.CodeOf(speaks)).HTTP >= 500 {
			return workbench.Submitted{}, speaks
		}
	}
	spec, selected, err := e.validate(ctx, p, s, spec)
	if err != nil {
		return workbench.Submitted{}, err
	}
	if err := validateKey(req.IdempotencyKey); err != nil {
		return workbench.Submitted{}, err
	}
	run, err := e.newRun(ctx, s, spec)
	if err != nil {
		return workbench.Submitted{}, err
	}
	run.IdempotencyKey, run.ContextID = req.IdempotencyKey, spec.ContextID
	run.Fingerprint = workbench.Fingerprint(req.Spec, digests(selected, spec.Artifacts), workbench.DefaultLimits())
	if req.Trail != nil {
		req.Trail.Target = run.ID
	}
	if req.Replay != nil {
		req.Replay.RunID, run.ReusableRun.ReplayID = run.ID, req.Replay.ID
	}
	hold, rules, err := e.o.Tools.Hold(ctx, s, run)
	if err != nil {
		return workbench.Submitted{}, err
	}
	lease := store.LeaseWish{EngineID: e.id, TTL: e.o.LeaseTTL}
	run, replayed, err := e.o.Store.Admit(ctx, p, store.Admission{
		Replay: req.Replay, Hold: hold, Decided: &rules, Trail: req.Trail, Dependencies: append(dependencies(selected), req.Dependencies...),
		Run: run, IdempotencyKey: req.IdempotencyKey, Fingerprint: run.Fingerprint,
		FingerprintVersion: workbench.FingerprintVersion, QueueLimit: s.Limits.QueuedRuns,
		Check: func() error {
			if speaks != nil {
				return speaks // a repeat is one also where its context has gone meanwhile
			}
			return e.usable(ctx, s, spec, selected)
		}, Context: e.contextUse(s, spec), Lease: &lease,
	})
	if err != nil {
		return workbench.Submitted{}, err
	}
	if !replayed {
		e.granted(ctx, run.SessionID, lease.Epoch)
		e.wake(run.SessionID, run.Lane)
	}
	return workbench.Submitted{Run: run, Replayed: replayed, Recorded: req.Trail != nil && !replayed}, nil
}

// actsAsOwner refuses an admin key: it manages, it does not run code as
// somebody.
func actsAsOwner(p workbench.Principal, s workbench.Session) error {
	if p.TenantID == s.TenantID && p.UserID == s.UserID {
		return nil
	}
	return workbench.E(workbench.CodeForbidden, "an admin key does not act as the session's owner").
		WithHint("use the owner's key to run code or to add files")
}

// newRun is the run of a spec, sealed, before admission.
func (e *Engine) newRun(ctx context.Context, s workbench.Session, spec workbench.RunSpec) (workbench.Run, error) {
	id := workbench.NewID(workbench.KindRun)
	plain, err := json.Marshal(spec)
	if err != nil {
		return workbench.Run{}, err
	}
	sealed, err := e.o.Seal.SealBytes(ctx, s.TenantID, "spec", id, plain)
	if err != nil {
		return workbench.Run{}, err
	}
	timeout := spec.TimeoutMs
	switch {
	case timeout != 0:
	case spec.Background:
		timeout = workbench.MaxBackgroundTimeout.Milliseconds()
	default:
		timeout = s.Limits.TimeoutMs
	}
	return workbench.Run{
		ReusableRun: workbench.ReusableRun{Mode: spec.ReusableRun.Mode, SeriesID: spec.ReusableRun.SeriesID, Of: spec.Of},
		ID:          id, ExecutionID: id, ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, SessionID: s.ID,
		Revision: s.Revision, Lane: spec.Lane(), Language: spec.Language, Status: workbench.StatusQueued,
		TimeoutMs: timeout, LimitsHit: []string{}, Notices: []workbench.Notice{}, Artifacts: []workbench.Artifact{},
		Files: workbench.FilesChanged{Items: []workbench.ChangedFile{}}, Dependencies: []workbench.Dependency{},
		CreatedAt: e.now(), Sealed: sealed,
	}, nil
}

// validate checks everything about a spec that does not depend on whether the
// session is still open or a file still readable: a repeat of an old job must
// be recognised even after its session ended. It returns the spec with its
// paths filled in, and the selected artifacts in order.
func (e *Engine) validate(ctx context.Context, p workbench.Principal, s workbench.Session, spec workbench.RunSpec) (workbench.RunSpec, []workbench.Artifact, error) {
	if err := validateCode(s, spec); err != nil {
		return spec, nil, err
	}
	if spec.TimeoutMs != 0 {
		if err := workbench.TimeoutInRange(spec.TimeoutMs, spec.Background, s.Limits.MaxTimeoutMs); err != nil {
			return spec, nil, err
		}
	}
	if spec.OutputBytes != 0 {
		if err := workbench.InRange("outputBytes", spec.OutputBytes, 1, workbench.MaxOutputBytes); err != nil {
			return spec, nil, err
		}
	}
	if err := validateArgs(spec.Args, spec.Env); err != nil {
		return spec, nil, err
	}
	if err := validateGlobs("keep", spec.Keep); err != nil {
		return spec, nil, err
	}
	if err := validateCell(spec); err != nil {
		return spec, nil, err
	}
	if err := spec.CheckReuse(); err != nil {
		return spec, nil, err
	}
	if len(spec.Artifacts) > maxSelected {
		return spec, nil, workbench.E(workbench.CodeInvalidRequest, "at most %d files can be selected", maxSelected).WithField("artifactIds")
	}
	return e.selection(ctx, p, spec)
}

// selection looks up the selected artifacts and settles their paths.
func (e *Engine) selection(ctx context.Context, p workbench.Principal, spec workbench.RunSpec) (workbench.RunSpec, []workbench.Artifact, error) {
	selected := make([]workbench.Artifact, len(spec.Artifacts))
	spec.Artifacts = slices.Clone(spec.Artifacts)
	taken := map[string]int{}
	for i, sel := range spec.Artifacts {
		field := fmt.Sprintf("artifactIds[%d]", i)
		if err := workbench.ParseID(workbench.KindArtifact, sel.ID); err != nil {
			return spec, nil, workbench.AsError(err).WithField(field)
		}
		a, err := e.o.Store.Artifact(ctx, p, sel.ID)
		if err != nil {
			return spec, nil, workbench.AsError(err).WithField(field)
		}
		path := sel.Path
		if path == "" {
			path = a.Path
		}
		if path, err = workbench.CleanPath(field+".path", path); err != nil {
			return spec, nil, err
		}
		for other, j := range taken {
			if other == path || strings.HasPrefix(path, other+"/") || strings.HasPrefix(other, path+"/") {
				return spec, nil, workbench.E(workbench.CodePathConflict, "artifactIds[%d] and artifactIds[%d] would be at the same path", j, i).
					WithField(field).WithHint("give one of them another path: {\"id\": …, \"path\": …}")
			}
		}
		taken[path] = i
		selected[i], spec.Artifacts[i].Path = a, path
	}
	return spec, selected, nil
}

// usable is what must hold for a new run, but not for a repeat.
func (e *Engine) usable(ctx context.Context, s workbench.Session, spec workbench.RunSpec, selected []workbench.Artifact) error {
	now := e.now()
	if err := s.Open(now); err != nil {
		return err
	}
	for i, a := range selected {
		if err := a.Readable(now); err != nil {
			return workbench.AsError(err).WithField(fmt.Sprintf("artifactIds[%d]", i))
		}
	}
	return e.speaks(ctx, s.Image, spec.Language)
}

// dependencies are those of all the files.
func dependencies(files []workbench.Artifact) []workbench.Dependency {
	var on []workbench.Dependency
	for _, a := range files {
		for _, d := range a.Dependencies {
			if !slices.Contains(on, d) {
				on = append(on, d)
			}
		}
	}
	return on
}

func digests(selected []workbench.Artifact, sel []workbench.ArtifactSelect) []workbench.SelectedContent {
	out := make([]workbench.SelectedContent, len(selected))
	for i, a := range selected {
		out[i] = workbench.SelectedContent{SHA256: a.SHA256, Path: sel[i].Path}
	}
	return out
}

// contextLanguage is the language of a cell that names none: its context's.
// Codes: context_not_found, invalid_request for the context that its first cell
// makes.
func (e *Engine) contextLanguage(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Language, error) {
	c, err := e.o.Store.Context(ctx, p, sessionID, id)
	if id == workbench.DefaultContext && workbench.HasCode(err, workbench.CodeContextNotFound) {
		return "", workbench.E(workbench.CodeInvalidRequest, "language is required: the session has no context %q yet, and its first cell makes it in that cell's language", id).
			WithField("language").WithHint("name it: python, javascript, typescript or bash")
	}
	return c.Language, err
}

func validateCode(s workbench.Session, spec workbench.RunSpec) error {
	if !slices.Contains(workbench.Languages(), spec.Language) && (spec.Language != "" || spec.ContextID == "") {
		return workbench.E(workbench.CodeInvalidRequest, "language must be python, javascript, typescript or bash").WithField("language")
	}
	switch {
	case strings.TrimSpace(spec.Code) == "":
		return workbench.E(workbench.CodeInvalidRequest, "code is empty").WithField("code").WithHint("send the program to run")
	case int64(len(spec.Code)) > s.Limits.CodeBytes:
		return workbench.E(workbench.CodeLimitOutOfRange, "code is longer than %d bytes", s.Limits.CodeBytes).WithField("code").
			WithHint("upload it as a file, select it, and run a short program that starts it")
	case !utf8.ValidString(spec.Code):
		return workbench.E(workbench.CodeInvalidRequest, "code is not valid UTF-8").WithField("code")
	case strings.ContainsRune(spec.Code, 0):
		return workbench.E(workbench.CodeInvalidRequest, "code has a NUL character").WithField("code")
	case int64(len(spec.Stdin)) > s.Limits.StdinBytes:
		return workbench.E(workbench.CodeLimitOutOfRange, "stdin is longer than %d bytes", s.Limits.StdinBytes).WithField("stdin").
			WithHint("upload it as a file and select it")
	}
	return nil
}

func validateArgs(args []string, env map[string]string) error {
	total := 0
	for i, a := range args {
		if strings.ContainsRune(a, 0) {
			return workbench.E(workbench.CodeInvalidRequest, "an argument has a NUL character").WithField(fmt.Sprintf("args[%d]", i))
		}
		total += len(a)
	}
	if len(args) > maxArgs || total > maxArgBytes {
		return workbench.E(workbench.CodeLimitOutOfRange, "at most %d arguments of %d bytes together", maxArgs, maxArgBytes).WithField("args")
	}
	total = 0
	for k, v := range env {
		if !envName(k) || strings.ContainsRune(v, 0) {
			return workbench.E(workbench.CodeInvalidRequest, "environment names are letters, digits and _, not beginning with a digit; values have no NUL").WithField("env")
		}
		if strings.HasPrefix(k, "WORKBENCH_") {
			return workbench.E(workbench.CodeInvalidRequest, "names that begin with WORKBENCH_ are the server's").WithField("env")
		}
		total += len(k) + len(v)
	}
	if len(env) > maxEnv || total > maxEnvBytes {
		return workbench.E(workbench.CodeLimitOutOfRange, "at most %d environment variables of %d bytes together", maxEnv, maxEnvBytes).WithField("env")
	}
	return nil
}

func envName(s string) bool {
	if s == "" || len(s) > 128 || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		letter, digit := r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z', r >= '0' && r <= '9'
		return r != '_' && !letter && !digit
	})
}

func validateGlobs(field string, globs []string) error {
	if len(globs) > maxKeepGlobs {
		return workbench.E(workbench.CodeInvalidRequest, "at most %d globs", maxKeepGlobs).WithField(field)
	}
	for i, g := range globs {
		if why := notAGlob(workbench.WithoutWorkspace(g)); why != "" {
			field := fmt.Sprintf("%s[%d]", field, i)
			return workbench.E(workbench.CodeInvalidRequest, "%s %s", field, why).WithField(field).
				WithHint("globs are relative to the workspace, such as out/*.csv or **/*.png")
		}
	}
	return nil
}

// notAGlob says what keeps a string from being a glob of paths in a workspace,
// "" if nothing does.
func notAGlob(g string) string {
	switch {
	case g == "":
		return "is empty"
	case len(g) > workbench.MaxPathBytes:
		return fmt.Sprintf("is longer than %d bytes", workbench.MaxPathBytes)
	case strings.HasPrefix(g, "/"):
		return "is absolute"
	case strings.Contains("/"+g+"/", "/../"):
		return `has a ".." element`
	case !doublestar.ValidatePattern(g):
		return `has a "[" or "{" that is not closed or holds nothing, or ends in a backslash`
	}
	return ""
}

func validateKey(key string) error {
	bad := len(key) > workbench.MaxIdempotencyKeyBytes || !utf8.ValidString(key) ||
		strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r == 0x7f })
	if bad {
		return workbench.E(workbench.CodeInvalidRequest, "an idempotency key has at most %d bytes and no control characters", workbench.MaxIdempotencyKeyBytes).WithField("idempotencyKey")
	}
	return nil
}

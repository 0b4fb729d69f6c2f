package api_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/engine"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// standIn is an engine without sandboxes over a real store: it admits, lists,
// follows and scopes as the real one does, and a test decides what a run
// prints and how it ends.
type standIn struct {
	*engine.Engine // never started: it reads commits
	trees          *workspace.Store
	db             *store.DB
	clock          func() time.Time
	unready        error
	enter          *store.ContextEntry // of the next run that is started, if it is a cell
}

func newStandIn(db *store.DB, sealer *seal.Sealer, blobs blob.Store, clock func() time.Time) *standIn {
	trees := workspace.New(blobs, sealer, db)
	return &standIn{Engine: engine.New(engine.Options{Store: db, Seal: sealer, Workspace: trees, Clock: clock}), trees: trees, db: db, clock: clock}
}

const standInEngine = "eng_standin"

func (e *standIn) CreateSession(ctx context.Context, p workbench.Principal, r workbench.CreateSession) (workbench.Session, error) {
	if p.SessionID != "" {
		return workbench.Session{}, workbench.E(workbench.CodeForbidden, "this key is narrowed to one session").WithHint("use a key that is not narrowed")
	}
	if len(r.Tools) > 0 {
		return workbench.Session{}, workbench.E(workbench.CodeToolNotFound, "no such tool at that version").WithField("tools[0]")
	}
	limits, err := workbench.DefaultLimits().Lower(r.Limits)
	if err != nil {
		return workbench.Session{}, err
	}
	if r.Size != "" && r.Size != "standard" {
		return workbench.Session{}, workbench.E(workbench.CodeInvalidRequest, "size must be standard").WithField("size")
	}
	ttl := r.TTL
	if ttl == 0 {
		ttl = workbench.DefaultSessionTTL
	}
	now := e.clock()
	kind := workbench.SessionPersonal
	if p.KeyKind == workbench.KeyEmbedded {
		kind = workbench.SessionBusiness
	}
	s := workbench.Session{
		ID: workbench.NewID(workbench.KindSession), ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, GroupID: p.GroupID, KeyID: p.KeyID,
		Kind: kind, Agent: r.Agent, Labels: r.Labels, State: workbench.SessionActive, Generation: 1, Revision: 1, Size: "standard", Limits: limits,
		Image: "img_test", Driver: "none", Isolation: "none", CreatedAt: now, ExpiresAt: now.Add(ttl), ActiveAt: now, KeepAtExpiry: r.KeepAtExpiry,
	}
	return s, e.db.CreateSession(ctx, p, s, workbench.Revision{Number: 1, Agent: s.Agent, Limits: limits, Size: s.Size, CreatedAt: now, KeyID: p.KeyID})
}

func (e *standIn) Session(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error) {
	return e.db.Session(ctx, p, id)
}

func (e *standIn) ListSessions(ctx context.Context, p workbench.Principal, f workbench.SessionFilter, page workbench.Page) (workbench.List[workbench.Session], error) {
	return e.db.ListSessions(ctx, p, f, page)
}

func (e *standIn) Configure(ctx context.Context, p workbench.Principal, id string, r workbench.ConfigureSession) (workbench.Session, error) {
	s, err := e.db.Session(ctx, p, id)
	if err != nil {
		return s, err
	}
	if r.Agent != nil {
		s.Agent = *r.Agent
	}
	if r.KeepAtExpiry != nil {
		s.KeepAtExpiry = *r.KeepAtExpiry
	}
	return e.db.AddRevision(ctx, p, workbench.Revision{SessionID: id, Number: s.Revision + 1, Agent: s.Agent, Limits: s.Limits, Size: s.Size, CreatedAt: e.clock(), KeyID: p.KeyID, KeepAtExpiry: s.KeepAtExpiry}, r.Labels, store.Seen{Revision: r.ExpectedRevision})
}

func (e *standIn) Revisions(ctx context.Context, p workbench.Principal, id string, page workbench.Page) (workbench.List[workbench.Revision], error) {
	return e.db.ListRevisions(ctx, p, id, page)
}

func (e *standIn) Restart(ctx context.Context, p workbench.Principal, id string, _ workbench.RestartSession) (workbench.Session, error) {
	if _, err := e.db.Session(ctx, p, id); err != nil {
		return workbench.Session{}, err
	}
	epoch, err := e.db.AcquireLease(ctx, id, standInEngine, time.Minute)
	if err != nil {
		return workbench.Session{}, err
	}
	return e.db.BumpGeneration(ctx, p, id, epoch, true)
}

func (e *standIn) Active(string) func() { return func() {} }

func (e *standIn) Close(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error) {
	return e.db.EndSession(ctx, p, id, workbench.SessionClosed, e.clock())
}

func (e *standIn) SessionEvents(ctx context.Context, p workbench.Principal, id string, after int64, yield func(workbench.SessionEvent) error) error {
	sub := e.db.Subscribe(store.SessionTopic(id))
	defer sub.Close()
	for {
		events, err := e.db.SessionEvents(ctx, p, id, after, 2)
		if err != nil {
			return err
		}
		for _, event := range events {
			if err := yield(event); err != nil {
				return err
			}
			if after = event.Seq; event.Kind.Terminal() {
				return nil
			}
		}
		if len(events) > 0 {
			continue
		}
		if done, err := e.db.SessionConcluded(ctx, p, id); err != nil || done {
			return err
		}
		select {
		case <-sub.C:
		case <-ctx.Done():
			return workbench.E(workbench.CodeCancelled, "given up").Caused(ctx.Err())
		}
	}
}

func (e *standIn) Submit(ctx context.Context, p workbench.Principal, r workbench.SubmitRun) (workbench.Submitted, error) {
	s, err := e.db.Session(ctx, p, r.SessionID)
	if err != nil {
		return workbench.Submitted{}, err
	}
	if err := r.Spec.CheckReuse(); err != nil {
		return workbench.Submitted{}, err
	}
	for i, a := range r.Spec.Artifacts {
		if _, err := e.db.Artifact(ctx, p, a.ID); err != nil {
			return workbench.Submitted{}, workbench.AsError(err).WithField("artifactIds[" + string(rune('0'+i)) + "]")
		}
	}
	sealed, _ := json.Marshal(r.Spec)
	var use *store.ContextUse
	if r.Spec.ContextID != "" {
		use = &store.ContextUse{OnLost: r.Spec.OnLost, Default: workbench.Context{ID: r.Spec.ContextID, Language: r.Spec.Language,
			Dir: workbench.WorkspaceDir, Handle: workbench.NewID(workbench.KindContext), CreatedAt: e.clock()}}
	}
	run, replayed, err := e.db.Admit(ctx, p, store.Admission{Context: use,
		Run: workbench.Run{ID: workbench.NewID(workbench.KindRun), SessionID: s.ID, Language: r.Spec.Language, ContextID: r.Spec.ContextID, TimeoutMs: max(r.Spec.TimeoutMs, 30_000),
			CreatedAt: e.clock(), Sealed: sealed, ReusableRun: workbench.ReusableRun{Mode: r.Spec.ReusableRun.Mode, SeriesID: r.Spec.ReusableRun.SeriesID}},
		IdempotencyKey: r.IdempotencyKey, Fingerprint: workbench.Fingerprint(r.Spec, nil, s.Limits), FingerprintVersion: 1, QueueLimit: 100,
	})
	return workbench.Submitted{Run: run, Replayed: replayed}, err
}

func (e *standIn) Receipt(ctx context.Context, p workbench.Principal, id string, wait time.Duration) (workbench.Receipt, error) {
	sub := e.db.Subscribe("run:" + id)
	defer sub.Close()
	over := time.After(wait)
	for {
		run, err := e.db.Run(ctx, p, id)
		if err != nil {
			return workbench.Receipt{}, err
		}
		if run.Status.Terminal() || wait == 0 {
			return e.receipt(ctx, p, run)
		}
		select {
		case <-sub.C:
		case <-over:
			wait = 0
		case <-ctx.Done():
			return workbench.Receipt{}, workbench.E(workbench.CodeCancelled, "given up").Caused(ctx.Err())
		}
	}
}

func (e *standIn) receipt(ctx context.Context, p workbench.Principal, run workbench.Run) (workbench.Receipt, error) {
	s, err := e.db.Session(ctx, p, run.SessionID)
	if err != nil {
		return workbench.Receipt{}, err
	}
	r := workbench.Receipt{Run: run, Session: s.Ref()}
	if r.Results, err = e.results(ctx, run.ID); err != nil {
		return r, err
	}
	for stream, text := range map[workbench.Stream]**string{workbench.Stdout: &r.Stdout, workbench.Stderr: &r.Stderr} {
		raw, _, err := e.bytes(ctx, workbench.SystemPrincipal(), run.ID, stream)
		if err != nil {
			return r, err
		}
		got := workbench.TextOf(raw)
		*text = &got // the face must leave it out for who may not read it
	}
	return r, nil
}

func (e *standIn) bytes(ctx context.Context, p workbench.Principal, id string, stream workbench.Stream) ([]byte, int64, error) {
	entries, total, err := e.db.OutputRange(ctx, p, id, stream, 0, 1<<30)
	var all []byte
	for _, entry := range entries {
		all = append(all, entry.Data...)
	}
	return all, total, err
}

func (e *standIn) ListRuns(ctx context.Context, p workbench.Principal, f workbench.RunFilter, page workbench.Page) (workbench.List[workbench.Run], error) {
	return e.db.ListRuns(ctx, p, f, page)
}

func (e *standIn) CancelRun(ctx context.Context, p workbench.Principal, id string) (workbench.Run, error) {
	return e.db.RequestCancel(ctx, p, id, workbench.ReasonCancelled, e.clock())
}

func (e *standIn) Events(ctx context.Context, p workbench.Principal, id string, after int64, yield func(workbench.LogEntry) error) error {
	if _, err := e.db.Run(ctx, p, id); err != nil {
		return err
	}
	sub := e.db.Subscribe("run:" + id)
	defer sub.Close()
	for {
		entries, err := e.db.Log(ctx, p, id, after, 2)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if err := yield(entry); err != nil {
				return err
			}
			if after = entry.Seq; entry.Kind == workbench.LogTerminal {
				return nil
			}
		}
		if len(entries) > 0 {
			continue
		}
		run, err := e.db.Run(ctx, p, id)
		if err != nil || run.Status.Terminal() {
			return err
		}
		select {
		case <-sub.C:
		case <-ctx.Done():
			return workbench.E(workbench.CodeCancelled, "given up").Caused(ctx.Err())
		}
	}
}

func (e *standIn) Output(ctx context.Context, p workbench.Principal, id string, q workbench.OutputQuery) (workbench.OutputPage, error) {
	if q.Stream == "" {
		q.Stream = workbench.Stdout
	}
	if q.Encoding == "" {
		q.Encoding = workbench.EncodingUTF8
	}
	if q.Limit == 0 {
		q.Limit = workbench.DefaultOutputPage
	}
	all, total, err := e.bytes(ctx, p, id, q.Stream)
	if err != nil {
		return workbench.OutputPage{}, err
	}
	if q.Offset > total {
		return workbench.OutputPage{}, workbench.E(workbench.CodeOffsetInvalid, "offset is beyond the end").WithField("offset")
	}
	if q.Encoding == workbench.EncodingUTF8 && workbench.InsideCharacter(all[:q.Offset], all[q.Offset:], true) {
		return workbench.OutputPage{}, workbench.E(workbench.CodeOffsetInvalid, "offset lies inside a character").WithField("offset")
	}
	rest := all[q.Offset:]
	n := min(q.Limit, len(rest))
	text := base64.StdEncoding.EncodeToString(rest[:n])
	if q.Encoding == workbench.EncodingUTF8 {
		n = workbench.CutText(rest, q.Limit, true)
		text = workbench.TextOf(rest[:n])
	}
	return workbench.OutputPage{Stream: q.Stream, Text: text, Encoding: q.Encoding, Offset: q.Offset, NextOffset: q.Offset + int64(n),
		TotalBytes: total, CapturedBytes: total, Complete: q.Offset+int64(n) == total}, nil
}

func (e *standIn) RunFiles(ctx context.Context, p workbench.Principal, id string, page workbench.Page) (workbench.List[workbench.ChangedFile], error) {
	if _, err := e.db.Run(ctx, p, id); err != nil {
		return workbench.List[workbench.ChangedFile]{}, err
	}
	return e.db.Changes(ctx, p, id, page)
}

const runFile = "made by the run\n"

func (e *standIn) RunFile(ctx context.Context, p workbench.Principal, id, path string) (workbench.ChangedFile, io.ReadSeekCloser, error) {
	if _, err := e.db.Run(ctx, p, id); err != nil {
		return workbench.ChangedFile{}, nil, err
	}
	if path != "out/made.txt" {
		return workbench.ChangedFile{}, nil, workbench.ErrNotFound("file").WithField("path")
	}
	sum := sha256.Sum256([]byte(runFile))
	return workbench.ChangedFile{Path: path, Size: int64(len(runFile)), SHA256: hex.EncodeToString(sum[:])}, content{bytes.NewReader([]byte(runFile))}, nil
}

func (e *standIn) Sizes(context.Context) []workbench.Size { return workbench.StandardSizes() }
func (e *standIn) Ready(context.Context) error            { return e.unready }

type content struct{ io.ReadSeeker }

func (content) Close() error { return nil }

// running is a run that a test drives from dispatch to its end.
type running struct {
	t     testing.TB
	e     *standIn
	run   workbench.Run
	epoch int64
	seq   int64
	at    map[workbench.Stream]int64
}

// MustStart dispatches a queued run.
func (e *standIn) MustStart(t testing.TB, id string) *running {
	t.Helper()
	ctx := t.Context()
	run, err := e.db.Run(ctx, workbench.SystemPrincipal(), id)
	if err != nil {
		t.Fatalf("reading the run: %v", err)
	}
	epoch, err := e.db.AcquireLease(ctx, run.SessionID, standInEngine, time.Minute)
	if err != nil {
		t.Fatalf("lease: %v", err)
	}
	if err := e.db.Dispatch(ctx, store.DispatchRecord{RunID: id, Epoch: epoch, Generation: 1, SandboxID: "sbx_test", At: e.clock(), Context: e.enter}); err != nil {
		t.Fatalf("dispatch: %v", err)
	}
	return &running{t: t, e: e, run: run, epoch: epoch, seq: 2, at: map[workbench.Stream]int64{}}
}

// Write appends one log entry of a stream.
func (r *running) Write(stream workbench.Stream, data string) {
	r.t.Helper()
	var status *workbench.Status
	if r.seq == 2 {
		s := workbench.StatusRunning
		status = &s
	}
	r.seq++
	entry := workbench.LogEntry{RunID: r.run.ID, Seq: r.seq, Kind: workbench.LogOutput, Stream: stream, Offset: r.at[stream], Length: int64(len(data)), Data: []byte(data), At: r.e.clock()}
	if err := r.e.db.AppendLog(r.t.Context(), r.run.ID, r.epoch, 1, status, []workbench.LogEntry{entry}); err != nil {
		r.t.Fatalf("append: %v", err)
	}
	r.at[stream] += int64(len(data))
}

// End settles the run as succeeded, with one changed file, committed.
func (r *running) End() {
	r.t.Helper()
	now, zero := r.e.clock(), 0
	head, ok, err := r.e.db.HeadCommit(r.t.Context(), r.run.SessionID)
	if err != nil {
		r.t.Fatalf("head: %v", err)
	}
	tree := workspace.Empty()
	if ok {
		if tree, err = r.e.trees.Load(r.t.Context(), r.run.TenantID, head.ManifestID); err != nil {
			r.t.Fatalf("tree: %v", err)
		}
	}
	b := r.e.trees.Begin(r.t.Context(), r.run.TenantID, tree)
	entry := workspace.Entry{Path: "out/made.txt", Mode: 0o644, Size: int64(len(runFile)), MtimeNs: now.UnixNano()}
	if err := b.File(r.t.Context(), entry, strings.NewReader(runFile)); err != nil {
		r.t.Fatalf("file: %v", err)
	}
	made, err := b.Commit(r.t.Context())
	if err != nil {
		r.t.Fatalf("commit: %v", err)
	}
	commit := made.Describe(workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: r.run.SessionID, TenantID: r.run.TenantID, ParentID: head.ID,
		Generation: 1, RunIDs: []string{r.run.ID}, Exclusive: true, CreatedAt: now})
	run := workbench.Run{InputRoot: tree.Root(), OutputRoot: made.Tree.Root(), CommitID: commit.ID, Files: workbench.FilesChanged{Exclusive: true},
		ID: r.run.ID, Status: workbench.StatusSucceeded, ExitCode: &zero, FinishedAt: &now, StartedAt: &now}
	for stream, info := range map[workbench.Stream]*workbench.StreamInfo{workbench.Stdout: &run.Outputs.Stdout, workbench.Stderr: &run.Outputs.Stderr} {
		info.TotalBytes, info.CapturedBytes = r.at[stream], r.at[stream]
	}
	err = r.e.db.Settle(r.t.Context(), store.Settlement{Run: run, Epoch: r.epoch, Generation: 1, Commit: &commit, ManifestRefs: made.Refs,
		Changes: []workbench.ChangedFile{{Path: "out/made.txt", Change: workbench.ChangeAdded, Type: "file", Size: int64(len(runFile))}}})
	if err != nil {
		r.t.Fatalf("settle: %v", err)
	}
}

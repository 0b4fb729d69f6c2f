package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/identity"
	"github.com/workbenchdev/workbench/internal/policy"
	"github.com/workbenchdev/workbench/internal/store"
)

// Engine is the life of sessions and runs. All errors are *workbench.Error.
type Engine interface {
	CreateSession(ctx context.Context, p workbench.Principal, r workbench.CreateSession) (workbench.Session, error)
	Session(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error)
	ListSessions(ctx context.Context, p workbench.Principal, f workbench.SessionFilter, page workbench.Page) (workbench.List[workbench.Session], error)
	Configure(ctx context.Context, p workbench.Principal, id string, r workbench.ConfigureSession) (workbench.Session, error)
	Revisions(ctx context.Context, p workbench.Principal, id string, page workbench.Page) (workbench.List[workbench.Revision], error)
	Restart(ctx context.Context, p workbench.Principal, id string, r workbench.RestartSession) (workbench.Session, error)
	Close(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error)
	// Active keeps a session from being suspended until done is called.
	Active(sessionID string) (done func())
	SessionEvents(ctx context.Context, p workbench.Principal, id string, after int64, yield func(workbench.SessionEvent) error) error

	Submit(ctx context.Context, p workbench.Principal, r workbench.SubmitRun) (workbench.Submitted, error)
	Receipt(ctx context.Context, p workbench.Principal, runID string, wait time.Duration) (workbench.Receipt, error)
	ListRuns(ctx context.Context, p workbench.Principal, f workbench.RunFilter, page workbench.Page) (workbench.List[workbench.Run], error)
	CancelRun(ctx context.Context, p workbench.Principal, id string) (workbench.Run, error)
	Events(ctx context.Context, p workbench.Principal, runID string, after int64, yield func(workbench.LogEntry) error) error
	Output(ctx context.Context, p workbench.Principal, runID string, q workbench.OutputQuery) (workbench.OutputPage, error)
	RunFiles(ctx context.Context, p workbench.Principal, runID string, page workbench.Page) (workbench.List[workbench.ChangedFile], error)
	RunFile(ctx context.Context, p workbench.Principal, runID, path string) (workbench.ChangedFile, io.ReadSeekCloser, error)

	CreateContext(ctx context.Context, p workbench.Principal, sessionID string, r workbench.CreateContext) (c workbench.Context, made bool, err error)
	Contexts(ctx context.Context, p workbench.Principal, sessionID string) ([]workbench.Context, error)
	Context(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Context, error)
	DeleteContext(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Context, error)
	RestartContext(ctx context.Context, p workbench.Principal, sessionID, id string, cancelActive bool) (workbench.Context, error)
	InterruptContext(ctx context.Context, p workbench.Principal, sessionID, id string) (workbench.Interrupted, error)
	ResultForm(ctx context.Context, p workbench.Principal, runID string, index int, mimeType string) (workbench.ResultContent, io.ReadSeekCloser, error)

	History
	Workspace
	Series

	Usage(ctx context.Context, p workbench.Principal, q workbench.UsageQuery) (workbench.UsageReport, error)
	Sizes(ctx context.Context) []workbench.Size
	Ready(ctx context.Context) error
}

// History is the commits of sessions' workspaces. A path is exact; what returns
// a function has checked everything and writes an archive with it.
type History interface {
	Commits(ctx context.Context, p workbench.Principal, sessionID string, page workbench.Page) (workbench.List[workbench.Commit], error)
	Commit(ctx context.Context, p workbench.Principal, id string) (workbench.Commit, error)
	CommitTree(ctx context.Context, p workbench.Principal, id string, q workbench.TreeQuery) (workbench.List[workbench.TreeEntry], error)
	CommitFile(ctx context.Context, p workbench.Principal, id, path string) (workbench.TreeEntry, io.ReadSeekCloser, error)
	CommitTar(ctx context.Context, p workbench.Principal, id string) (func(io.Writer) error, error)
	CompareCommits(ctx context.Context, p workbench.Principal, id, from string) (workbench.Compared, error)
	CompareRun(ctx context.Context, p workbench.Principal, runID string) (workbench.Compared, error)
	RollBack(ctx context.Context, p workbench.Principal, sessionID string, r workbench.RollBack) (workbench.RolledBack, error)
	Fork(ctx context.Context, p workbench.Principal, sessionID string, r workbench.ForkSession) (workbench.Session, error)
}

// Series is programs that can be run again.
type Series interface {
	ListSeries(ctx context.Context, p workbench.Principal, page workbench.Page) (workbench.List[workbench.Series], error)
	Series(ctx context.Context, p workbench.Principal, id string) (workbench.Series, error)
	SeriesVersions(ctx context.Context, p workbench.Principal, id string, page workbench.Page) (workbench.List[workbench.SeriesVersion], error)
	SeriesVersion(ctx context.Context, p workbench.Principal, id string, version int64) (workbench.SeriesVersion, error)
	StartReplay(ctx context.Context, p workbench.Principal, seriesID string, r workbench.StartReplay) (workbench.StartedReplay, error)
	Replay(ctx context.Context, p workbench.Principal, id string, wait time.Duration) (workbench.Replay, error)
	Replays(ctx context.Context, p workbench.Principal, seriesID string, version int64, page workbench.Page) (workbench.List[workbench.Replay], error)
	Publish(ctx context.Context, p workbench.Principal, seriesID string, r workbench.PublishVersion) (workbench.Series, error)
	DeleteSeries(ctx context.Context, p workbench.Principal, seriesID string, trail workbench.AuditEntry) error
	RunVersion(ctx context.Context, p workbench.Principal, seriesID string, r workbench.RunVersion) (workbench.Submitted, error)
}

// Workspace is the files of sessions as they are now. A path is exact.
type Workspace interface {
	WorkspaceTree(ctx context.Context, p workbench.Principal, sessionID string, q workbench.TreeQuery) (workbench.WorkspaceView, error)
	WorkspaceFile(ctx context.Context, p workbench.Principal, sessionID, path string) (workbench.TreeEntry, io.ReadSeekCloser, error)
	WorkspaceTar(ctx context.Context, p workbench.Principal, sessionID string) (func(io.Writer) error, error)
	WriteFile(ctx context.Context, p workbench.Principal, sessionID string, w workbench.WriteFile, r io.Reader) (workbench.WorkspaceChange, error)
	DeleteFile(ctx context.Context, p workbench.Principal, sessionID, path string, recursive bool) (workbench.WorkspaceChange, error)
	MoveFile(ctx context.Context, p workbench.Principal, sessionID string, m workbench.MoveFile) (workbench.WorkspaceChange, error)
	MakeDirectory(ctx context.Context, p workbench.Principal, sessionID, path string) (workbench.WorkspaceChange, error)
}

// Artifacts is the service of retained files. Open is the one download gate.
type Artifacts interface {
	Upload(ctx context.Context, p workbench.Principal, sessionID string, r UploadRequest, content io.Reader) (workbench.Artifact, error)
	List(ctx context.Context, p workbench.Principal, sessionID string, page workbench.Page) (workbench.List[workbench.Artifact], error)
	Get(ctx context.Context, p workbench.Principal, id string) (workbench.Artifact, error)
	Open(ctx context.Context, p workbench.Principal, id string) (workbench.Artifact, io.ReadSeekCloser, error)
	Delete(ctx context.Context, p workbench.Principal, id string) (workbench.Artifact, error)
}

// Identity authenticates requests and manages keys.
type Identity interface {
	Authenticate(ctx context.Context, bearer, tenantName, endUserName, groupName, address, requestID string) (workbench.Principal, error)
	CreateKey(ctx context.Context, p workbench.Principal, r identity.KeyRequest) (workbench.Key, string, error)
	ListKeys(ctx context.Context, p workbench.Principal, page workbench.Page) (workbench.List[workbench.Key], error)
	RevokeKey(ctx context.Context, p workbench.Principal, id string, force bool) (workbench.Key, error)
}

// Audit is the append-only record of who did what.
type Audit interface {
	Audit(ctx context.Context, e workbench.AuditEntry) error
	ListAudit(ctx context.Context, p workbench.Principal, f workbench.AuditFilter, page workbench.Page) (workbench.List[workbench.AuditEntry], error)
	AuditChain(ctx context.Context, projectID string, after int64) ([]workbench.AuditEntry, error)
	VerifyAudit(ctx context.Context, projectID string) (workbench.AuditCheck, error)
}

// Tools is the governed path and what people do about it; *govern.Governor is
// one. It writes the audit trail of its changes itself, with them.
type Tools interface {
	PutApp(ctx context.Context, p workbench.Principal, a workbench.App, alias string) (govern.Import, error)
	ImportApp(ctx context.Context, p workbench.Principal, name, alias string) (govern.Import, error)
	RemoveApp(ctx context.Context, p workbench.Principal, name string) error
	Apps(ctx context.Context, p workbench.Principal) ([]workbench.App, error)
	App(ctx context.Context, p workbench.Principal, name string) (workbench.App, error)
	Tools(ctx context.Context, p workbench.Principal, f store.ToolFilter, query string) ([]workbench.Tool, error)

	Connect(ctx context.Context, p workbench.Principal, n govern.NewConnection) (workbench.Connection, error)
	Connection(ctx context.Context, p workbench.Principal, id string) (workbench.Connection, error)
	Connections(ctx context.Context, p workbench.Principal, alias string, page workbench.Page) (workbench.List[workbench.Connection], error)
	Rotate(ctx context.Context, p workbench.Principal, id string, credentials workbench.Credentials, expected int64) (workbench.Connection, error)
	Revoke(ctx context.Context, p workbench.Principal, id string) (workbench.Connection, error)

	Rules(ctx context.Context, p workbench.Principal) (store.RuleSet, error)
	ChangeRules(ctx context.Context, p workbench.Principal, expected int64, put []workbench.Rule, remove []string) (store.RuleSet, []policy.Problem, error)
	Explain(ctx context.Context, p workbench.Principal, q govern.Question) (govern.Explanation, error)

	Receipt(ctx context.Context, p workbench.Principal, id string, wait time.Duration) (workbench.ToolReceipt, error)
	Receipts(ctx context.Context, p workbench.Principal, f store.CallFilter, page workbench.Page) (workbench.List[workbench.ToolReceipt], error)
	Waiting(ctx context.Context, p workbench.Principal, page workbench.Page) (workbench.List[workbench.ToolReceipt], error)
	Decide(ctx context.Context, p workbench.Principal, id string, v govern.Verdict) (workbench.ToolReceipt, error)
	HeldRuns(ctx context.Context, p workbench.Principal, page workbench.Page) (workbench.List[govern.HeldRun], error)
	DecideRun(ctx context.Context, p workbench.Principal, id string, v govern.Verdict) (workbench.Run, error)
}

// Metrics is what the face counts, and serves at /metrics.
type Metrics interface {
	http.Handler
	Request(route, method string, status int, took time.Duration, in, out int64)
	Streams(delta int) // long polls and event streams that are open
}

// UploadRequest describes a file that is uploaded.
type UploadRequest = artifact.UploadRequest

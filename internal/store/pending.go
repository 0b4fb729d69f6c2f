package store

import (
	"context"
	"time"

	"github.com/workbenchdev/workbench"
)

type (
	ctx  = context.Context
	prin = workbench.Principal
	page = workbench.Page
)

var errPending = workbench.E(workbench.CodeNotBuilt, "not built")

// DB is an open database.
type DB struct{ hub *hub }
type hub struct{}

// Subscription wakes its owner.
type Subscription struct {
	C   <-chan struct{} // buffered by one: wakeups coalesce
	hub *hub
}

func (s *Subscription) Close()                          {}
func (db *DB) Subscribe(topics ...string) *Subscription { return nil }
func Open(c ctx, dsn string, o Options) (*DB, error)    { return nil, errPending }
func (db *DB) Close() error                             { return nil }
func (db *DB) Ping(c ctx) error                         { return nil }
func (db *DB) Dialect() Dialect                         { return "" }
func (db *DB) Now(c ctx) (time.Time, error)             { return time.Time{}, errPending }
func StatusEntry(runID string, seq int64, s workbench.Status, r workbench.Reason, at time.Time) workbench.LogEntry {
	return workbench.LogEntry{}
}
func TerminalEntry(runID string, seq int64, s workbench.Status, r workbench.Reason, at time.Time) workbench.LogEntry {
	return workbench.LogEntry{}
}

func (db *DB) EnsureProject(c ctx, name string) (workbench.Named, error) {
	return workbench.Named{}, errPending
}
func (db *DB) EnsureTenant(c ctx, projectID, name string) (workbench.Named, error) {
	return workbench.Named{}, errPending
}
func (db *DB) EnsureUser(c ctx, projectID, tenantID, name string) (workbench.Named, error) {
	return workbench.Named{}, errPending
}
func (db *DB) EnsureGroup(c ctx, projectID, tenantID, name string) (workbench.Named, error) {
	return workbench.Named{}, errPending
}
func (db *DB) CreateKey(c ctx, k workbench.Key) error { return errPending }
func (db *DB) KeyByHash(c ctx, hash []byte) (workbench.Key, error) {
	return workbench.Key{}, errPending
}
func (db *DB) ListKeys(c ctx, p prin, pg page) (workbench.List[workbench.Key], error) {
	return workbench.List[workbench.Key]{}, errPending
}
func (db *DB) RevokeKey(c ctx, p prin, id string, at time.Time) (workbench.Key, error) {
	return workbench.Key{}, errPending
}
func (db *DB) TouchKey(c ctx, id string, at time.Time) error        { return errPending }
func (db *DB) CountKeys(c ctx, kind workbench.KeyKind) (int, error) { return 0, errPending }
func (db *DB) TenantKey(c ctx, tenantID string) (keyID string, wrapped []byte, err error) {
	return "", nil, errPending
}
func (db *DB) PutTenantKey(c ctx, tenantID, keyID string, wrapped []byte) (string, []byte, error) {
	return "", nil, errPending
}
func (db *DB) TenantKeyByID(c ctx, keyID string) (tenantID string, wrapped []byte, err error) {
	return "", nil, errPending
}

func (db *DB) CreateSession(c ctx, p prin, s workbench.Session, r workbench.Revision) error {
	return errPending
}
func (db *DB) Session(c ctx, p prin, id string) (workbench.Session, error) {
	return workbench.Session{}, errPending
}
func (db *DB) ListSessions(c ctx, p prin, f workbench.SessionFilter, pg page) (workbench.List[workbench.Session], error) {
	return workbench.List[workbench.Session]{}, errPending
}

// AddRevision: expected 0 means any.
func (db *DB) AddRevision(c ctx, p prin, r workbench.Revision, labels *map[string]string, expected int64) (workbench.Session, error) {
	return workbench.Session{}, errPending
}
func (db *DB) Revision(c ctx, p prin, sessionID string, n int64) (workbench.Revision, error) {
	return workbench.Revision{}, errPending
}
func (db *DB) ListRevisions(c ctx, p prin, sessionID string, pg page) (workbench.List[workbench.Revision], error) {
	return workbench.List[workbench.Revision]{}, errPending
}

// EndSession also ends every queued run as cancelled (session_closed or session_expired) and asks the active ones to cancel, in the same transaction.
func (db *DB) EndSession(c ctx, p prin, id string, to workbench.SessionState, at time.Time) (workbench.Session, error) {
	return workbench.Session{}, errPending
}
func (db *DB) BumpGeneration(c ctx, p prin, sessionID string, epoch int64, requireIdle bool) (workbench.Session, error) {
	return workbench.Session{}, errPending
}

// AcquireLease: conflict while another engine's lease lives.
func (db *DB) AcquireLease(c ctx, sessionID, engineID string, ttl time.Duration) (int64, error) {
	return 0, errPending
}

// RenewLeases: lost are sessions another engine took over since the last call, and those whose lease ran out before this renewal (they are released and their epoch grows).
func (db *DB) RenewLeases(c ctx, engineID string, ttl time.Duration) (lost []string, err error) {
	return nil, errPending
}
func (db *DB) ReleaseLease(c ctx, sessionID, engineID string, epoch int64) error { return errPending }
func (db *DB) TakeOver(c ctx, engineID, deadEngineID string, ttl time.Duration) ([]string, error) {
	return nil, errPending
}
func (db *DB) ExpiredSessions(c ctx, now time.Time, limit int, afterID string) ([]workbench.Session, error) {
	return nil, errPending
}
func (db *DB) TouchSession(c ctx, id string, at time.Time) error { return errPending }

// AbandonedSessions are sessions with dispatched, unfinished runs whose lease is free or ran out: work for a recovering engine.
func (db *DB) AbandonedSessions(c ctx, limit int, afterID string) ([]string, error) {
	return nil, errPending
}

func (db *DB) Admit(c ctx, p prin, a Admission) (run workbench.Run, replayed bool, err error) {
	return workbench.Run{}, false, errPending
}

// Run fills Files.Items with the first 1000; Artifacts stays empty (ArtifactsOfRun). Sealed is nil for an admin without contents.
func (db *DB) Run(c ctx, p prin, id string) (workbench.Run, error) {
	return workbench.Run{}, errPending
}
func (db *DB) ListRuns(c ctx, p prin, f workbench.RunFilter, pg page) (workbench.List[workbench.Run], error) {
	return workbench.List[workbench.Run]{}, errPending
}
func (db *DB) NextQueued(c ctx, sessionID string, lane workbench.Lane) (run workbench.Run, ok bool, err error) {
	return workbench.Run{}, false, errPending
}

// SessionsWithQueued: sessions with a startable foreground run that no other living engine owns, round-robin over tenants; afterID is the last of the previous page.
func (db *DB) SessionsWithQueued(c ctx, engineID string, limit int, afterID string) ([]string, error) {
	return nil, errPending
}
func (db *DB) Dispatch(c ctx, d DispatchRecord) error { return errPending }
func (db *DB) AppendLog(c ctx, runID string, epoch, generation int64, status *workbench.Status, entries []workbench.LogEntry) error {
	return errPending
}
func (db *DB) Settle(c ctx, s Settlement) error { return errPending }
func (db *DB) RequestCancel(c ctx, p prin, runID string, reason workbench.Reason, at time.Time) (workbench.Run, error) {
	return workbench.Run{}, errPending
}

// CancelSession is RequestCancel for every unfinished run of a session, in one transaction; it returns those now cancelled or asked to.
func (db *DB) CancelSession(c ctx, p prin, sessionID string, reason workbench.Reason, at time.Time) ([]workbench.Run, error) {
	return nil, errPending
}

// CancelReason is the reason RequestCancel recorded; ReasonNone if no cancel was asked for.
func (db *DB) CancelReason(c ctx, runID string) (workbench.Reason, error)  { return "", errPending }
func (db *DB) ActiveRuns(c ctx, sessionID string) ([]workbench.Run, error) { return nil, errPending }

// StrandedRuns are the session's dispatched, unfinished runs of an older lease epoch than the given one.
func (db *DB) StrandedRuns(c ctx, sessionID string, epoch int64) ([]workbench.Run, error) {
	return nil, errPending
}
func (db *DB) SettleUnknown(c ctx, runID string, epoch int64, reason workbench.Reason, at time.Time) (workbench.Run, error) {
	return workbench.Run{}, errPending
}
func (db *DB) Step(c ctx, runID string, index int) (workbench.Step, error) {
	return workbench.Step{}, errPending
}
func (db *DB) Log(c ctx, p prin, runID string, afterSeq int64, limit int) ([]workbench.LogEntry, error) {
	return nil, errPending
}
func (db *DB) OutputRange(c ctx, p prin, runID string, s workbench.Stream, offset, limit int64) ([]workbench.LogEntry, int64, error) {
	return nil, 0, errPending
}
func (db *DB) Changes(c ctx, p prin, runID string, pg page) (workbench.List[workbench.ChangedFile], error) {
	return workbench.List[workbench.ChangedFile]{}, errPending
}

// CreateCommit: generation is the commit's Generation; refs as Settlement.ManifestRefs.
func (db *DB) CreateCommit(c ctx, cm workbench.Commit, epoch int64, refs []string) (workbench.Commit, error) {
	return cm, errPending
}
func (db *DB) Commit(c ctx, p prin, id string) (workbench.Commit, error) {
	return workbench.Commit{}, errPending
}
func (db *DB) HeadCommit(c ctx, sessionID string) (workbench.Commit, bool, error) {
	return workbench.Commit{}, false, errPending
}
func (db *DB) ListCommits(c ctx, p prin, sessionID string, pg page) (workbench.List[workbench.Commit], error) {
	return workbench.List[workbench.Commit]{}, errPending
}

func (db *DB) ReserveArtifact(c ctx, p prin, a workbench.Artifact, q Quota) error { return errPending }
func (db *DB) CommitArtifact(c ctx, id string, size int64, sha, blobID string, refs []string) (workbench.Artifact, error) {
	return workbench.Artifact{}, errPending
}
func (db *DB) AbandonArtifact(c ctx, id string) error { return errPending }
func (db *DB) Artifact(c ctx, p prin, id string) (workbench.Artifact, error) {
	return workbench.Artifact{}, errPending
}
func (db *DB) ListArtifacts(c ctx, p prin, sessionID string, pg page) (workbench.List[workbench.Artifact], error) {
	return workbench.List[workbench.Artifact]{}, errPending
}
func (db *DB) ArtifactsOfRun(c ctx, runID string) ([]workbench.Artifact, error) {
	return nil, errPending
}
func (db *DB) DeleteArtifact(c ctx, p prin, id string, at time.Time) (workbench.Artifact, error) {
	return workbench.Artifact{}, errPending
}
func (db *DB) ExpiredArtifacts(c ctx, now time.Time, limit int) ([]workbench.Artifact, error) {
	return nil, errPending
}
func (db *DB) MarkExpired(c ctx, id string, at time.Time) error { return errPending }
func (db *DB) PendingArtifacts(c ctx, olderThan time.Time, limit int) ([]workbench.Artifact, error) {
	return nil, errPending
}
func (db *DB) QuotaUse(c ctx, sessionID string) (QuotaUse, error) { return QuotaUse{}, errPending }

func (db *DB) NoteBlob(c ctx, blobID, tenantID string, size int64, at time.Time) error {
	return errPending
}
func (db *DB) PutBlobRefs(c ctx, owner, tenantID string, blobIDs []string) error { return errPending }
func (db *DB) DropBlobRefs(c ctx, owner string) error                            { return errPending }

// UnreferencedBlobs claims what it returns: until ForgetBlob, NoteBlob of such a blob waits and PutBlobRefs refuses. Delete the bytes, then ForgetBlob.
func (db *DB) UnreferencedBlobs(c ctx, olderThan time.Time, limit int) ([]string, error) {
	return nil, errPending
}
func (db *DB) ForgetBlob(c ctx, blobID string) error { return errPending }

func (db *DB) Audit(c ctx, e workbench.AuditEntry) error { return errPending }
func (db *DB) ListAudit(c ctx, p prin, f AuditFilter, pg page) (workbench.List[workbench.AuditEntry], error) {
	return workbench.List[workbench.AuditEntry]{}, errPending
}

func (db *DB) RegisterEngine(c ctx, id, instance string, at time.Time) error { return errPending }
func (db *DB) HeartbeatEngine(c ctx, id string) error                        { return errPending }

// DeadEngines are the other engines of the same instance (its data directory has one owner), and any engine silent for longer than that.
func (db *DB) DeadEngines(c ctx, self, instance string, silent time.Duration) ([]Engine, error) {
	return nil, errPending
}
func (db *DB) ForgetEngine(c ctx, id string) error { return errPending }
func (db *DB) PurgeReceipts(c ctx, now time.Time, limit int) ([]string, error) {
	return nil, errPending
}
func (db *DB) ImageInUse(c ctx, imageID string) (bool, error) { return false, errPending }

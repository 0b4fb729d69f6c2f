// Package artifact keeps retained files: uploads, and what code saves. Its one
// job is that a file is there whole or not at all, that quotas hold, and that
// contents leave through one gate, Open, which asks for the right again each
// time.
//
// Contents are sealed on their way to the blob store and never touch a disk in
// the clear. Names and sizes are not secret. What a file is called and declared
// to be is never believed: nothing is opened by name, parsed or unpacked.
package artifact

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
)

// Records is what the database does for this package; store.DB is one.
type Records interface {
	Session(ctx context.Context, p workbench.Principal, id string) (workbench.Session, error)
	ReserveArtifact(ctx context.Context, p workbench.Principal, a workbench.Artifact, q store.Quota) error
	CommitArtifact(ctx context.Context, id string, size int64, sha, blobID string, refs []string) (workbench.Artifact, error)
	AbandonArtifact(ctx context.Context, id string) error
	Artifact(ctx context.Context, p workbench.Principal, id string) (workbench.Artifact, error)
	ListArtifacts(ctx context.Context, p workbench.Principal, sessionID string, page workbench.Page) (workbench.List[workbench.Artifact], error)
	DeleteArtifact(ctx context.Context, p workbench.Principal, id string, at time.Time) (workbench.Artifact, error)
	QuotaUse(ctx context.Context, sessionID string) (store.QuotaUse, error)

	NoteBlob(ctx context.Context, blobID, tenantID string, size int64, at time.Time) error

	ExpiredArtifacts(ctx context.Context, now time.Time, limit int) ([]workbench.Artifact, error)
	MarkExpired(ctx context.Context, id string, at time.Time) error
	PendingArtifacts(ctx context.Context, olderThan time.Time, limit int) ([]workbench.Artifact, error)
	UnreferencedBlobs(ctx context.Context, olderThan time.Time, limit int) ([]string, error)
	ForgetBlob(ctx context.Context, blobID string) error
}

// Access is asked at the gate about what a file was derived from: the tools
// and connections in its Dependencies. It returns the error that refuses.
type Access func(ctx context.Context, p workbench.Principal, a workbench.Artifact) error

// Service keeps retained files. It is safe for concurrent use.
type Service struct {
	blobs   blob.Store
	sealer  *seal.Sealer
	records Records
	clock   func() time.Time
	access  Access
	log     *slog.Logger

	pendingGrace time.Duration
	blobGrace    time.Duration
	blobsEvery   time.Duration

	mu       sync.Mutex
	blobsDue time.Time // when blobs are swept next
}

// Option is a setting of New.
type Option func(*Service)

// WithClock sets the clock; the default is time.Now.
func WithClock(clock func() time.Time) Option { return func(s *Service) { s.clock = clock } }

// WithAccess sets who is asked about a file's dependencies at every download.
func WithAccess(a Access) Option { return func(s *Service) { s.access = a } }

// WithLog sets where the sweeper says what it could not do.
func WithLog(l *slog.Logger) Option { return func(s *Service) { s.log = l } }

// WithGrace sets how long a reservation may stay unfinished, and how long a
// blob may stay without a reference: longer than the longest upload and the
// longest commit. It also sets how often unreferenced blobs are looked for.
func WithGrace(pending, unreferenced, every time.Duration) Option {
	return func(s *Service) { s.pendingGrace, s.blobGrace, s.blobsEvery = pending, unreferenced, every }
}

// New makes a service.
func New(blobs blob.Store, sealer *seal.Sealer, records Records, options ...Option) *Service {
	s := &Service{blobs: blobs, sealer: sealer, records: records, clock: time.Now, log: slog.New(slog.DiscardHandler),
		pendingGrace: 10 * time.Minute, blobGrace: time.Hour, blobsEvery: 30 * time.Second,
		access: func(context.Context, workbench.Principal, workbench.Artifact) error { return nil }}
	for _, o := range options {
		o(s)
	}
	return s
}

// releasedGrace is what whoever needs a blob has to refer to it, once somebody
// else has released it: longer than a commit takes from announcing to its
// record.
const releasedGrace = 3 * time.Minute

// Released is when a blob that is released now counts as announced, so that the
// sweep takes it after releasedGrace.
func (s *Service) Released(now time.Time) time.Time {
	return now.Add(min(releasedGrace, s.blobGrace) - s.blobGrace)
}

// Get is a file's metadata. Codes: not_found, artifact_deleted,
// artifact_expired.
func (s *Service) Get(ctx context.Context, p workbench.Principal, id string) (workbench.Artifact, error) {
	a, err := s.records.Artifact(ctx, p, id)
	if err != nil {
		return workbench.Artifact{}, err
	}
	if err := a.Readable(s.clock()); err != nil {
		return workbench.Artifact{}, err
	}
	return s.present(ctx, p, a), nil
}

// List lists a session's files that can be read now, newest first. Codes:
// not_found (the session), invalid_request (the cursor).
func (s *Service) List(ctx context.Context, p workbench.Principal, sessionID string, page workbench.Page) (workbench.List[workbench.Artifact], error) {
	list, err := s.records.ListArtifacts(ctx, p, sessionID, page)
	if err != nil {
		return workbench.List[workbench.Artifact]{}, err
	}
	list.Items = s.Present(ctx, p, list.Items)
	return list, nil
}

// Open opens a file for reading: the one way contents leave. What p may do is
// asked here and now. Codes: not_found, forbidden (no right to read, or not
// contents), artifact_deleted, artifact_expired, content_corrupt,
// encryption_key_unavailable, unavailable.
func (s *Service) Open(ctx context.Context, p workbench.Principal, id string) (workbench.Artifact, io.ReadSeekCloser, error) {
	a, content, err := s.open(ctx, p, id)
	if err != nil {
		return workbench.Artifact{}, nil, err
	}
	return s.present(ctx, p, a), content, nil
}

func (s *Service) open(ctx context.Context, p workbench.Principal, id string) (workbench.Artifact, *seal.Object, error) {
	a, err := s.records.Artifact(ctx, p, id)
	if err != nil {
		return a, nil, err
	}
	if err := p.Require(workbench.ScopeRead); err != nil {
		return a, nil, err
	}
	if !p.MayReadContents(a.Owner()) {
		return a, nil, workbench.E(workbench.CodeForbidden, "this key may see the file's metadata, not its contents").
			WithHint("use a key of the owner, or an admin key created with contents")
	}
	if err := a.Readable(s.clock()); err != nil {
		return a, nil, err
	}
	if err := s.access(ctx, p, a); err != nil {
		return a, nil, err
	}
	content, err := s.content(ctx, a)
	if blob.IsNotFound(err) {
		// Deleted between the two reads, or lost.
		if again, second := s.records.Artifact(ctx, p, id); second != nil {
			return a, nil, second
		} else if gone := again.Readable(s.clock()); gone != nil {
			return a, nil, gone
		}
		err = workbench.E(workbench.CodeCorrupt, "the contents of artifact %s are missing", id).
			WithHint("the operator has to restore them from a backup").Caused(err)
	}
	return a, content, err
}

// content opens and checks what the row says is there.
func (s *Service) content(ctx context.Context, a workbench.Artifact) (*seal.Object, error) {
	r, err := s.blobs.Open(ctx, a.BlobID)
	if err != nil {
		return nil, err
	}
	content, err := s.sealer.Open(ctx, a.TenantID, seal.KindContent, a.BlobID, r, r.Size())
	if err != nil {
		return nil, err
	}
	if content.Size() != a.Size {
		_ = content.Close()
		return nil, workbench.E(workbench.CodeCorrupt, "the contents of artifact %s have another size than they had", a.ID).
			WithHint("the operator has to restore them from a backup")
	}
	return content, nil
}

// Delete deletes a file for good; its quota is free at once, its bytes go with
// the next sweep unless something else refers to them. A second delete is
// artifact_deleted. Codes: not_found, artifact_deleted, artifact_expired.
func (s *Service) Delete(ctx context.Context, p workbench.Principal, id string) (workbench.Artifact, error) {
	a, err := s.records.DeleteArtifact(ctx, p, id, s.clock())
	if err != nil {
		return workbench.Artifact{}, err
	}
	s.mu.Lock()
	s.blobsDue = time.Time{} // do not let deleted bytes wait
	s.mu.Unlock()
	a.SealedPreview = nil
	return s.present(ctx, p, a), nil
}

// Present completes rows as p may see them: the path of the contents, and the
// preview.
func (s *Service) Present(ctx context.Context, p workbench.Principal, rows []workbench.Artifact) []workbench.Artifact {
	out := make([]workbench.Artifact, len(rows))
	for i, a := range rows {
		out[i] = s.present(ctx, p, a)
	}
	return out
}

func (s *Service) present(ctx context.Context, p workbench.Principal, a workbench.Artifact) workbench.Artifact {
	a.DownloadPath = DownloadPath(a.ID)
	a.Preview = ""
	if len(a.SealedPreview) > 0 && p.MayReadContents(a.Owner()) && s.access(ctx, p, a) == nil {
		// A preview that cannot be opened is no reason to hide the file.
		plain, err := s.sealer.OpenBytes(ctx, a.TenantID, kindPreview, a.ID, a.SealedPreview)
		if err != nil {
			s.log.WarnContext(ctx, "preview not readable", "artifact", a.ID, "err", err)
		}
		a.Preview = string(plain)
	}
	return a
}

// DownloadPath is the authenticated path of a file's contents.
func DownloadPath(id string) string { return "/v1/workbench/artifacts/" + id + "/content" }

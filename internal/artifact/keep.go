package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/blob"
	"github.com/workbenchdev/workbench/internal/failpoint"
	"github.com/workbenchdev/workbench/internal/seal"
	"github.com/workbenchdev/workbench/internal/store"
)

// UploadRequest describes a file that a client sends.
type UploadRequest struct {
	Name     string // what it is called; default: the last element of Path
	Path     string // where it goes by default in a workspace; default: Name
	MimeType string // as declared; empty or application/octet-stream: guessed
	Size     int64  // -1 if it is not known before the end
}

// KeepRequest describes a file that a run leaves.
type KeepRequest struct {
	Session     workbench.Session
	RunID       string
	Revision    int64
	Generation  int64  // with Epoch: refused with fenced if the session has moved on
	Epoch       int64  // lease epoch of the engine; required, but of a tool's result
	CallID      string // of a tool's result: refused with fenced if that call is not executed by EngineID any more
	EngineID    string
	Path        string
	Origin      workbench.ArtifactOrigin
	MimeType    string
	Size        int64    // -1 if it is not known before the end
	DerivedFrom []string // the files selected for the run
}

// Upload keeps a file for a session of p. It is listed when it is whole, and
// nothing of it stays if it does not become so. Errors of content come back as
// they are.
//
// Codes: not_found, forbidden (an admin key), session_closed, session_expired,
// path_invalid, file_too_large, quota_exceeded, invalid_request (fewer or more
// bytes than declared), encryption_key_unavailable, unavailable.
func (s *Service) Upload(ctx context.Context, p workbench.Principal, sessionID string, r UploadRequest, content io.Reader) (workbench.Artifact, error) {
	session, err := s.records.Session(ctx, p, sessionID)
	if err != nil {
		return workbench.Artifact{}, err
	}
	if p.Admin() {
		return workbench.Artifact{}, workbench.E(workbench.CodeForbidden, "an admin key does not add files to somebody's session").
			WithHint("use a key of the session's owner")
	}
	if err := session.Open(s.clock()); err != nil {
		return workbench.Artifact{}, err
	}
	a := describe(session, workbench.OriginUpload, r.MimeType)
	if a.Name, a.Path, err = names(r.Name, r.Path); err != nil {
		return workbench.Artifact{}, err
	}
	a.Revision, a.Generation = session.Revision, session.Generation
	return s.keep(ctx, p, session, a, quota(session), r.Size, content)
}

// Keep keeps a file that a run leaves, with the rules of Upload; its path comes
// from the code and is believed as little. Codes: as Upload, and fenced.
func (s *Service) Keep(ctx context.Context, r KeepRequest, content io.Reader) (workbench.Artifact, error) {
	if r.Epoch <= 0 && r.CallID == "" {
		return workbench.Artifact{}, workbench.E(workbench.CodeFenced, "a run's file is kept under its engine's lease only")
	}
	a := describe(r.Session, r.Origin, r.MimeType)
	var err error
	if a.Name, a.Path, err = names("", r.Path); err != nil {
		return workbench.Artifact{}, err
	}
	a.RunID, a.Revision, a.Generation = r.RunID, r.Revision, r.Generation
	a.DerivedFrom = append(a.DerivedFrom, r.DerivedFrom...)
	slices.Sort(a.DerivedFrom)
	a.DerivedFrom = slices.Compact(a.DerivedFrom)
	q := quota(r.Session)
	q.Epoch, q.CallID, q.EngineID = r.Epoch, r.CallID, r.EngineID
	return s.keep(ctx, workbench.SystemPrincipal(), r.Session, a, q, r.Size, content)
}

// Left is the largest file that the session may still keep, in bytes; 0 when a
// quota is used up. Somebody else may be faster.
func (s *Service) Left(ctx context.Context, session workbench.Session) (int64, error) {
	use, err := s.records.QuotaUse(ctx, session.ID)
	if err != nil {
		return 0, err
	}
	q, left := quota(session), session.Limits.FileBytes
	if q.SessionFiles > 0 && use.SessionFiles >= q.SessionFiles {
		return 0, nil
	}
	if q.SessionBytes > 0 {
		left = min(left, q.SessionBytes-use.SessionBytes)
	}
	if q.TenantBytes > 0 {
		left = min(left, q.TenantBytes-use.TenantBytes)
	}
	return max(left, 0), nil
}

func quota(s workbench.Session) store.Quota {
	l := s.Limits
	return store.Quota{SessionBytes: l.SessionFilesBytes, SessionFiles: l.SessionFiles, TenantBytes: l.TenantFilesBytes}
}

// describe is the row of a new file, without names, contents and times.
func describe(session workbench.Session, origin workbench.ArtifactOrigin, declared string) workbench.Artifact {
	return workbench.Artifact{ID: workbench.NewID(workbench.KindArtifact), ProjectID: session.ProjectID, TenantID: session.TenantID, UserID: session.UserID,
		SessionID: session.ID, Origin: origin, MimeType: declared, DerivedFrom: []string{}, Dependencies: []workbench.Dependency{}}
}

// retention is how long a file of the session is kept.
func retention(session workbench.Session) time.Duration {
	if session.Limits.RetentionMs <= 0 {
		return workbench.DefaultRetention
	}
	return time.Duration(session.Limits.RetentionMs) * time.Millisecond
}

// names checks what a file is called and where it goes. Both stay byte for
// byte as they came.
func names(name, where string) (string, string, error) {
	if where == "" {
		cleaned, err := workbench.CleanPath("name", name)
		return path.Base(cleaned), cleaned, err
	}
	cleaned, err := workbench.CleanPath("path", where)
	if err != nil {
		return "", "", err
	}
	if name == "" {
		return path.Base(cleaned), cleaned, nil
	}
	if _, err := workbench.CleanPath("name", name); err != nil {
		return "", "", err
	}
	if strings.Contains(name, "/") {
		return "", "", workbench.E(workbench.CodePathInvalid, "name has a slash").WithField("name").
			WithHint("name the file alone; path says where it goes")
	}
	return name, cleaned, nil
}

// keep takes the bytes, then makes room, then makes the file visible. Bytes
// come first so that a reservation is exact and short.
func (s *Service) keep(ctx context.Context, p workbench.Principal, session workbench.Session, a workbench.Artifact, q store.Quota, declared int64, content io.Reader) (workbench.Artifact, error) {
	limit := session.Limits.FileBytes
	if declared > limit {
		return workbench.Artifact{}, tooLarge(limit)
	}
	if err := s.roomFor(ctx, session, max(declared, 0)); err != nil {
		return workbench.Artifact{}, err
	}
	got, err := s.receive(ctx, a.TenantID, limit, declared, content)
	if err != nil {
		return workbench.Artifact{}, err
	}
	defer got.blob.Abort()
	a.Size, a.SHA256 = got.size, hex.EncodeToString(got.sum[:])
	a.MimeType = mimeType(a.MimeType, a.Name, got.head)
	a.CreatedAt = s.clock() // now that it is here: the body may have taken long
	a.ExpiresAt = a.CreatedAt.Add(retention(session))
	preview := previewOf(got.head, got.size)
	if preview != "" {
		if a.SealedPreview, err = s.sealer.SealBytes(ctx, a.TenantID, kindPreview, a.ID, []byte(preview)); err != nil {
			return workbench.Artifact{}, err
		}
	}
	if err := s.records.ReserveArtifact(ctx, p, a, q); err != nil {
		return workbench.Artifact{}, err
	}
	made, err := s.publish(ctx, a, got)
	if err != nil {
		return s.abandon(ctx, p, a.ID, err)
	}
	return s.present(ctx, p, made), nil
}

// roomFor refuses early what is over a quota already. The reservation decides.
func (s *Service) roomFor(ctx context.Context, session workbench.Session, size int64) error {
	use, err := s.records.QuotaUse(ctx, session.ID)
	if err != nil {
		return err
	}
	l := session.Limits
	var what string
	var limit int64
	switch {
	case l.SessionFiles > 0 && use.SessionFiles >= l.SessionFiles:
		what, limit = "the number of the session's retained files", int64(l.SessionFiles)
	case l.SessionFilesBytes > 0 && use.SessionBytes+size > l.SessionFilesBytes:
		what, limit = "the bytes of the session's retained files", l.SessionFilesBytes
	case l.TenantFilesBytes > 0 && use.TenantBytes+size > l.TenantFilesBytes:
		what, limit = "the bytes of the tenant's retained files", l.TenantFilesBytes
	default:
		return nil
	}
	return workbench.E(workbench.CodeQuotaExceeded, "%s would be more than %d", what, limit).
		WithHint("delete retained files that are no longer needed, or wait for their deadline")
}

// received is a content that lies sealed in a blob nobody sees yet.
type received struct {
	blob   blob.Writer
	sealed *seal.Writer
	size   int64
	sum    [sha256.Size]byte
	head   []byte // the first bytes
}

// copyBuffer is how much is read at a time.
const copyBuffer = 128 << 10

func (s *Service) receive(ctx context.Context, tenantID string, limit, declared int64, content io.Reader) (got received, err error) {
	if got.blob, err = s.blobs.Create(ctx); err != nil {
		return got, err
	}
	defer func() {
		if err != nil {
			got.blob.Abort()
		}
	}()
	if got.sealed, err = s.sealer.NewWriter(ctx, tenantID, seal.KindContent, got.blob); err != nil {
		return got, err
	}
	hash, head := sha256.New(), &firstBytes{limit: headBytes}
	size, err := io.CopyBuffer(io.MultiWriter(hash, head, got.sealed), onlyReader{io.LimitReader(content, limit+1)}, make([]byte, copyBuffer))
	switch {
	case err != nil:
		return got, err
	case size > limit:
		return got, tooLarge(limit)
	case declared >= 0 && size != declared:
		return got, workbench.E(workbench.CodeInvalidRequest, "the content has %d bytes, %d were declared", size, declared).
			WithHint("send it again")
	}
	got.size, got.sum, got.head = size, [sha256.Size]byte(hash.Sum(nil)), head.b
	return got, nil
}

// onlyReader hides other methods, so that the copy has a buffer of one size.
type onlyReader struct{ io.Reader }

func tooLarge(limit int64) error {
	return workbench.E(workbench.CodeFileTooLarge, "a file may have at most %d bytes", limit).
		WithHint("send a smaller file, or split it; larger ones go straight into the workspace with PUT …/workspace/content")
}

// publish makes the bytes durable, then the row ready.
func (s *Service) publish(ctx context.Context, a workbench.Artifact, got received) (workbench.Artifact, error) {
	id, err := s.sealer.ContentID(ctx, a.TenantID, got.sum)
	if err != nil {
		return a, err
	}
	if err := got.sealed.Close(id); err != nil {
		return a, err
	}
	if err := s.records.NoteBlob(ctx, id, a.TenantID, got.size, s.clock()); err != nil {
		return a, err
	}
	if err := blob.CommitOnce(ctx, s.blobs, got.blob, id, seal.SealedSize(got.size)); err != nil {
		return a, err
	}
	if err := failpoint.Hit("artifact.after_blob"); err != nil {
		return a, workbench.AsError(err)
	}
	return s.records.CommitArtifact(ctx, a.ID, got.size, a.SHA256, id, nil)
}

// abandon gives a reservation back after an error, also when the caller has
// gone. If the file turns out to be there, the commit's answer was lost.
func (s *Service) abandon(ctx context.Context, p workbench.Principal, id string, cause error) (workbench.Artifact, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := s.records.AbandonArtifact(ctx, id)
	if workbench.HasCode(err, workbench.CodeConflict) {
		if a, err := s.records.Artifact(ctx, p, id); err == nil {
			return s.present(ctx, p, a), nil
		}
	}
	if err != nil { // the sweeper gives it back
		s.log.WarnContext(ctx, "reservation not given back", "artifact", id, "err", errors.Join(cause, err))
	}
	return workbench.Artifact{}, cause
}

package artifact

import (
	"context"
	"errors"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/failpoint"
)

const (
	sweepBatch = 100
	// sweepMost bounds the rows that one sweep looks at, so that a call ends.
	// Rows that cannot be swept are passed over, up to this many.
	sweepMost = 5000
)

// Sweep does what has become due at now: files past their deadline end,
// reservations that a crash left are given back, and blobs to which nothing has
// referred for the grace are deleted. What fails is tried again by the next
// sweep and holds up nothing else; the error tells of it. Blobs are looked for
// now and then only, so Sweep may be called often.
func (s *Service) Sweep(ctx context.Context, now time.Time) error {
	errs := []error{
		s.sweepRows(ctx, "expired", func(limit int) ([]workbench.Artifact, error) { return s.records.ExpiredArtifacts(ctx, now, limit) },
			func(id string) error { return s.records.MarkExpired(ctx, id, now) }),
		s.sweepRows(ctx, "pending", func(limit int) ([]workbench.Artifact, error) {
			return s.records.PendingArtifacts(ctx, now.Add(-s.pendingGrace), limit)
		}, func(id string) error { return s.records.AbandonArtifact(ctx, id) }),
	}
	if s.blobsAreDue(now) {
		errs = append(errs, s.sweepBlobs(ctx, now.Add(-s.blobGrace)))
	}
	return errors.Join(errs...)
}

func (s *Service) blobsAreDue(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.blobsDue) {
		return false
	}
	s.blobsDue = now.Add(s.blobsEvery)
	return true
}

func (s *Service) sweepRows(ctx context.Context, what string, list func(limit int) ([]workbench.Artifact, error), end func(id string) error) error {
	return sweep(ctx, what, func(limit int) ([]string, error) {
		rows, err := list(limit)
		ids := make([]string, len(rows))
		for i, a := range rows {
			ids[i] = a.ID
		}
		return ids, err
	}, end)
}

// sweepBlobs deletes the bytes, then the row that knows of them.
func (s *Service) sweepBlobs(ctx context.Context, olderThan time.Time) error {
	return sweep(ctx, "blob", func(limit int) ([]string, error) { return s.records.UnreferencedBlobs(ctx, olderThan, limit) },
		func(id string) error {
			if err := s.blobs.Delete(ctx, id); err != nil {
				return err
			}
			if err := failpoint.Hit("artifact.sweep.after_delete"); err != nil {
				return err
			}
			return s.records.ForgetBlob(ctx, id)
		})
}

// sweep ends what list gives, in batches, until nothing is left that it has not
// tried. list gives the same rows again as long as they are there, so rows that
// fail are asked for on top of a batch and passed over.
func sweep(ctx context.Context, what string, list func(limit int) ([]string, error), end func(id string) error) error {
	failed := map[string]error{}
	var first error
	for seen := 0; seen < sweepMost && len(failed)+sweepBatch <= sweepMost && ctx.Err() == nil; {
		ids, err := list(sweepBatch + len(failed))
		if err != nil {
			return err
		}
		fresh := 0
		for _, id := range ids {
			if failed[id] != nil {
				continue
			}
			fresh++
			if err := end(id); err != nil {
				failed[id] = err
				if first == nil {
					first = err
				}
			}
		}
		seen += fresh
		if fresh == 0 || len(ids) < sweepBatch {
			break
		}
	}
	if len(failed) > 0 {
		return workbench.E(workbench.CodeUnavailable, "%d rows (%s) could not be swept", len(failed), what).Caused(first)
	}
	return ctx.Err()
}

package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
)

// The store counts who still needs a blob; the bytes are another room's. A
// writer notes a blob, puts its bytes, then refers to it in the transaction
// that makes it visible. The sweeper claims blobs that nobody has referred to
// for a while, deletes the bytes and forgets them. Claiming and referring
// exclude each other, so a blob in use is never swept and a swept one is never
// referred to.

// NoteBlob announces a blob before its bytes are put, again at every put. It
// waits, up to the call's deadline, for a sweeper that is deleting the same
// blob, then is unavailable.
func (db *DB) NoteBlob(ctx context.Context, blobID, tenantID string, size int64, at time.Time) error {
	return db.NoteBlobs(ctx, tenantID, map[string]int64{blobID: size}, at)
}

// NoteBlobs is NoteBlob for several at once, by id with their sizes: all are
// announced, or none.
func (db *DB) NoteBlobs(ctx context.Context, tenantID string, sizes map[string]int64, at time.Time) error {
	ctx, cancel := db.bound(ctx)
	defer cancel()
	ids := slices.Sorted(maps.Keys(sizes)) // one order for every writer: no deadlock
	for {
		dropping := false
		err := db.write(ctx, "note_blob", func(t *tx) error {
			for _, id := range ids {
				n, err := t.exec(`INSERT INTO blobs (id, tenant_id, size, noted_at) VALUES ($1, $2, $3, $4)
					ON CONFLICT (id) DO UPDATE SET noted_at = $4, size = $3 WHERE blobs.dropping = 0`, id, tenantID, sizes[id], micros(at))
				if err != nil {
					return err
				}
				if dropping = n == 0; dropping {
					return errDropping
				}
			}
			return nil
		})
		if !dropping {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return db.explain(ctx, ctx.Err())
		}
	}
}

// errDropping takes back what was announced beside a blob that a sweeper is
// deleting.
var errDropping = errors.New("a blob is being deleted")

// insertInline adds a blob whose bytes the database itself keeps. It goes with
// its row in blobs.
func (t *tx) insertInline(blobID, tenantID string, data []byte, at int64) error {
	if _, err := t.exec("INSERT INTO blobs (id, tenant_id, size, noted_at) VALUES ($1, $2, $3, $4)", blobID, tenantID, len(data), at); err != nil {
		return err
	}
	_, err := t.exec("INSERT INTO inline_blobs (blob_id, data) VALUES ($1, $2)", blobID, data)
	return err
}

// InlineBlob reads a blob that came with a commit, as Commit.Inline; not_found
// for any other.
func (db *DB) InlineBlob(ctx context.Context, tenantID, blobID string) ([]byte, error) {
	return one(ctx, db, "blob", func(s scanner) ([]byte, error) {
		var data []byte
		err := s.Scan(&data)
		return data, err
	}, "SELECT i.data FROM inline_blobs i JOIN blobs b ON b.id = i.blob_id WHERE i.blob_id = $1 AND b.tenant_id = $2", blobID, tenantID)
}

// PutBlobRefs makes owner need the blobs; repeating one is harmless. conflict
// if one was never noted, is another tenant's or is being deleted. It counts in
// no history: those of a session come with its commits.
func (db *DB) PutBlobRefs(ctx context.Context, owner, tenantID string, blobIDs []string) error {
	return db.write(ctx, "blob_refs", func(t *tx) error {
		_, err := t.insertRefs(owner, tenantID, blobIDs)
		return err
	})
}

// DropBlobRefs makes owner need nothing any more.
func (db *DB) DropBlobRefs(ctx context.Context, owner string) error {
	return db.write(ctx, "blob_refs", func(t *tx) error {
		_, err := t.exec("DELETE FROM blob_refs WHERE owner = $1", owner)
		return err
	})
}

// refsPerStatement bounds the bound values of one statement.
const refsPerStatement = 500

// insertRefs holds the blobs' rows while it refers to them, so that the
// sweeper, which claims rows under the same lock, sees the references or
// passes the rows over. It returns the bytes of those that owner had not
// referred to.
func (t *tx) insertRefs(owner, tenantID string, blobIDs []string) (added int64, err error) {
	ids := slices.Clone(blobIDs)
	slices.Sort(ids) // one order for every writer: no deadlock
	ids = slices.Compact(ids)
	lock := ""
	if t.db.dialect == Postgres {
		lock = " FOR SHARE"
	}
	for len(ids) > 0 {
		part := ids[:min(len(ids), refsPerStatement)]
		ids = ids[len(part):]
		q := newQuery("SELECT id, size FROM blobs WHERE dropping = 0").add(" AND tenant_id = ? AND id IN ", tenantID).in(part)
		rows, err := t.rows(q.add(" ORDER BY id").String()+lock, q.args...)
		sizes := make(map[string]int64, len(part))
		found, err := collect(rows, err, scanBlob)
		if err != nil {
			return 0, err
		}
		if len(found) != len(part) {
			return 0, workbench.E(workbench.CodeConflict, "a stored part of the contents is gone or was never announced")
		}
		for _, b := range found {
			sizes[b.id] = b.size
		}
		args := make([]any, 0, 2*len(part))
		for _, id := range part {
			args = append(args, owner, id)
		}
		rows, err = t.rows("INSERT INTO blob_refs (owner, blob_id) VALUES "+placeholders(len(part), 2)+" ON CONFLICT DO NOTHING RETURNING blob_id", args...)
		fresh, err := collect(rows, err, scanString)
		if err != nil {
			return 0, err
		}
		for _, id := range fresh {
			added += sizes[id]
		}
	}
	return added, nil
}

// sized is a blob with its size.
type sized struct {
	id   string
	size int64
}

func scanBlob(s scanner) (sized, error) {
	var b sized
	err := s.Scan(&b.id, &b.size)
	return b, err
}

// ReleaseBlobs makes those of the tenant's blobs that nobody refers to count as
// announced at noted, if they were announced later: nothing came of what they
// were for. The sweeper then takes them sooner, but must still leave whoever has
// announced one of them by now the time to refer to it.
func (db *DB) ReleaseBlobs(ctx context.Context, tenantID string, blobIDs []string, noted time.Time) error {
	return db.write(ctx, "release_blobs", func(t *tx) error { return t.releaseBlobs(tenantID, blobIDs, noted) })
}

func (t *tx) releaseBlobs(tenantID string, blobIDs []string, noted time.Time) error {
	at := micros(noted)
	ids := slices.Sorted(slices.Values(blobIDs)) // one order for every writer: no deadlock
	for len(ids) > 0 {
		part := ids[:min(len(ids), refsPerStatement)]
		ids = ids[len(part):]
		if t.db.dialect == Postgres { // an UPDATE of several locks them in any order
			q := newQuery("SELECT id FROM blobs WHERE").add(" tenant_id = ? AND id IN ", tenantID).in(part)
			rows, err := t.rows(q.add(" ORDER BY id FOR UPDATE").String(), q.args...)
			if _, err := collect(rows, err, scanString); err != nil {
				return err
			}
		}
		q := newQuery("UPDATE blobs SET").add(" noted_at = ? WHERE tenant_id = ? AND noted_at > ?", at, tenantID, at).add(" AND dropping = 0 AND id IN ").in(part).
			add(" AND NOT EXISTS (SELECT 1 FROM blob_refs r WHERE r.blob_id = blobs.id)")
		if _, err := t.exec(q.String(), q.args...); err != nil {
			return err
		}
	}
	return nil
}

// UnreferencedBlobs claims blobs that nobody refers to and that were last noted
// before olderThan, which must lie further back than the longest put takes.
// The caller deletes their bytes, then calls ForgetBlob for each. Blobs claimed
// before and not forgotten come again.
func (db *DB) UnreferencedBlobs(ctx context.Context, olderThan time.Time, limit int) ([]string, error) {
	var claimed []string
	err := db.write(ctx, "claim_blobs", func(t *tx) error {
		lock := ""
		if t.db.dialect == Postgres {
			lock = " FOR UPDATE SKIP LOCKED"
		}
		rows, err := t.rows(`SELECT id FROM blobs WHERE noted_at < $1 AND NOT EXISTS (SELECT 1 FROM blob_refs r WHERE r.blob_id = blobs.id)
			ORDER BY noted_at, id LIMIT $2`+lock, micros(olderThan), limit)
		candidates, err := collect(rows, err, scanString)
		if err != nil {
			return err
		}
		claimed = []string{}
		for _, id := range candidates {
			// A new statement sees references committed before the lock.
			n, err := t.exec(`UPDATE blobs SET dropping = 1 WHERE id = $1 AND noted_at < $2
				AND NOT EXISTS (SELECT 1 FROM blob_refs r WHERE r.blob_id = blobs.id)`, id, micros(olderThan))
			if err != nil {
				return err
			}
			if n > 0 {
				claimed = append(claimed, id)
			}
		}
		return nil
	})
	return claimed, err
}

// ForgetBlob ends a claim after the bytes are gone. A blob that was not claimed
// stays.
func (db *DB) ForgetBlob(ctx context.Context, blobID string) error {
	return db.write(ctx, "forget_blob", func(t *tx) error {
		_, err := t.exec("DELETE FROM blobs WHERE id = $1 AND dropping = 1", blobID)
		return err
	})
}

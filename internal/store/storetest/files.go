package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func (w *world) use(s workbench.Session) store.QuotaUse {
	w.t.Helper()
	u, err := w.QuotaUse(ctx(w.t), s.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

func testArtifacts(t *testing.T, open Open) {
	t.Run("a file's life", func(t *testing.T) { testArtifactLife(t, open) })
	t.Run("a hundred uploads race at the limit: never over, never short", func(t *testing.T) {
		for name, q := range map[string]store.Quota{
			"bytes of the session": {SessionBytes: 370}, "files of the session": {SessionFiles: 37}, "bytes of the tenant": {TenantBytes: 370},
		} {
			t.Run(name, func(t *testing.T) { testQuotaRace(t, open, q) })
		}
	})
	t.Run("an abandoned or shrunk reservation gives its room back", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		a := w.artifact(s, 100)
		want(t, w.ReserveArtifact(ctx(t), w.ann, a, store.Quota{SessionBytes: 100, SessionFiles: 100, TenantBytes: 1 << 40}), "")
		equal(t, "use", w.use(s), store.QuotaUse{SessionBytes: 100, SessionFiles: 1, TenantBytes: 100})
		want(t, w.ReserveArtifact(ctx(t), w.ann, w.artifact(s, 1), store.Quota{SessionBytes: 100}), workbench.CodeQuotaExceeded)
		_, err := w.Artifact(ctx(t), w.ann, a.ID)
		want(t, err, workbench.CodeNotFound)
		pending, err := w.PendingArtifacts(ctx(t), w.now.Add(time.Second), 10)
		want(t, err, "")
		equal(t, "pending", len(pending), 1)
		want(t, w.AbandonArtifact(ctx(t), a.ID), "")
		want(t, w.AbandonArtifact(ctx(t), a.ID), "")
		equal(t, "use", w.use(s), store.QuotaUse{})
		b := w.artifact(s, 100)
		want(t, w.ReserveArtifact(ctx(t), w.ann, b, store.Quota{}), "")
		w.mustBlob("b")
		_, err = w.CommitArtifact(ctx(t), b.ID, 101, "sha", "b", nil)
		want(t, err, workbench.CodeConflict)
		_, err = w.CommitArtifact(ctx(t), b.ID, 40, "sha", "b", nil)
		want(t, err, "")
		equal(t, "use", w.use(s), store.QuotaUse{SessionBytes: 40, SessionFiles: 1, TenantBytes: 40})
		want(t, w.AbandonArtifact(ctx(t), b.ID), workbench.CodeConflict)
	})
	t.Run("a finish races an abandonment and the counters are exact", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		for i := range 10 {
			a := w.artifact(s, 10)
			want(t, w.ReserveArtifact(ctx(t), w.ann, a, store.Quota{}), "")
			blob := w.mustBlob(fmt.Sprintf("raced-%d", i))
			before := w.use(s)
			errs := together(2, func(i int) error {
				if i == 0 {
					return w.AbandonArtifact(ctx(t), a.ID)
				}
				_, err := w.CommitArtifact(ctx(t), a.ID, 10, "sha", blob, nil)
				return err
			})
			if errs[0] == nil {
				want(t, errs[1], workbench.CodeNotFound)
				equal(t, "use", w.use(s).SessionBytes, before.SessionBytes-10)
				continue
			}
			want(t, errs[0], workbench.CodeConflict)
			want(t, errs[1], "")
			equal(t, "use", w.use(s), before)
		}
	})
	t.Run("an upload needs an open session, a save the current generation", func(t *testing.T) {
		w := mustWorld(t, open)
		s, _, epoch := w.mustOut(w.ann)
		late := w.artifact(s, 1)
		late.CreatedAt = s.ExpiresAt
		want(t, w.ReserveArtifact(ctx(t), w.ann, late, store.Quota{}), workbench.CodeSessionExpired)
		late.Origin = workbench.OriginSave // a run that is out at the deadline may still save
		want(t, w.ReserveArtifact(ctx(t), w.ann, late, store.Quota{Epoch: epoch}), "")
		w.mustBlob("late")
		stale := w.artifact(s, 1)
		stale.Origin = workbench.OriginSave
		want(t, w.ReserveArtifact(ctx(t), w.ann, stale, store.Quota{Epoch: epoch + 1}), workbench.CodeFenced)
		_, err := w.BumpGeneration(ctx(t), w.ann, s.ID, epoch, false)
		want(t, err, "")
		want(t, w.ReserveArtifact(ctx(t), w.ann, stale, store.Quota{Epoch: epoch}), workbench.CodeFenced)
		_, err = w.CommitArtifact(ctx(t), late.ID, 1, "sha", "late", nil)
		want(t, err, workbench.CodeFenced)
		_, err = w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
		want(t, err, "")
		want(t, w.ReserveArtifact(ctx(t), w.ann, w.artifact(s, 1), store.Quota{}), workbench.CodeSessionClosed)
	})
	t.Run("a file can be deleted after its session ended", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		a := w.mustArtifact(w.ann, s, 5)
		_, err := w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
		want(t, err, "")
		_, err = w.Artifact(ctx(t), w.ann, a.ID)
		want(t, err, "")
		_, err = w.DeleteArtifact(ctx(t), w.ann, a.ID, w.now)
		want(t, err, "")
		equal(t, "use", w.use(s), store.QuotaUse{})
	})
}

func testArtifactLife(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	a := w.artifact(s, 5)
	a.RunID, a.Origin, a.DerivedFrom = "run_x", workbench.OriginSave, []string{"art_parent"}
	want(t, w.ReserveArtifact(ctx(t), w.ann, a, store.Quota{}), "")
	want(t, w.DescribeArtifact(ctx(t), a.ID, "text/plain", []byte("sealed preview")), "")
	_, err := w.CommitArtifact(ctx(t), a.ID, 5, "sha", "never noted", nil)
	want(t, err, workbench.CodeConflict)
	w.mustBlob("b1")
	w.mustBlob("b2")
	_, err = w.CommitArtifact(ctx(t), a.ID, 5, "sha", "b1", []string{"b2"})
	want(t, err, "")
	_, err = w.CommitArtifact(ctx(t), a.ID, 5, "sha", "b1", []string{"b2"}) // its answer was lost
	want(t, err, "")
	_, err = w.CommitArtifact(ctx(t), a.ID, 4, "other", "b1", nil)
	want(t, err, workbench.CodeConflict)
	read, err := w.Artifact(ctx(t), w.ann, a.ID)
	want(t, err, "")
	equal(t, "name", read.Name, "a.csv")
	equal(t, "path", read.Path, "data/a.csv")
	equal(t, "type", read.MimeType, "text/plain")
	equal(t, "size", read.Size, 5)
	equal(t, "digest", read.SHA256, "sha")
	equal(t, "blob", read.BlobID, "b1")
	equal(t, "origin", read.Origin, workbench.OriginSave)
	equal(t, "derived from", read.DerivedFrom[0], "art_parent")
	equal(t, "dependencies are never null", read.Dependencies != nil, true)
	equal(t, "expires", read.ExpiresAt, w.now.Add(7*24*time.Hour))
	same(t, "preview", read.SealedPreview, []byte("sealed preview"))
	ofAdmin, err := w.Artifact(ctx(t), w.admin(), a.ID)
	want(t, err, "")
	equal(t, "an admin's preview", ofAdmin.SealedPreview == nil, true)
	ofRun, err := w.ArtifactsOfRun(ctx(t), "run_x")
	want(t, err, "")
	equal(t, "of the run", len(ofRun), 1)
	list, err := w.ListArtifacts(ctx(t), w.ann, s.ID, workbench.Page{})
	want(t, err, "")
	equal(t, "listed", len(list.Items), 1)

	gone, err := w.DeleteArtifact(ctx(t), w.ann, a.ID, w.now.Add(time.Minute))
	want(t, err, "")
	equal(t, "deleted", *gone.DeletedAt, w.now.Add(time.Minute))
	_, err = w.DeleteArtifact(ctx(t), w.ann, a.ID, w.now.Add(time.Hour))
	want(t, err, workbench.CodeArtifactDeleted)
	read, err = w.Artifact(ctx(t), w.ann, a.ID)
	want(t, err, "")
	want(t, read.Readable(w.now), workbench.CodeArtifactDeleted)
	list, err = w.ListArtifacts(ctx(t), w.ann, s.ID, workbench.Page{})
	want(t, err, "")
	equal(t, "listed", len(list.Items), 0)
	equal(t, "use", w.use(s), store.QuotaUse{})
	free, err := w.UnreferencedBlobs(ctx(t), w.now.Add(time.Second), 10)
	want(t, err, "")
	equal(t, "its blobs are free", len(free), 2)

	b := w.mustArtifact(w.ann, s, 7)
	due, err := w.ExpiredArtifacts(ctx(t), b.ExpiresAt.Add(-1), 10)
	want(t, err, "")
	equal(t, "not due yet", len(due), 0)
	want(t, w.MarkExpired(ctx(t), b.ID, b.ExpiresAt.Add(-time.Second)), "")
	due, err = w.ExpiredArtifacts(ctx(t), b.ExpiresAt, 10)
	want(t, err, "")
	equal(t, "due", len(due), 1)
	want(t, w.MarkExpired(ctx(t), b.ID, b.ExpiresAt), "")
	want(t, w.MarkExpired(ctx(t), b.ID, b.ExpiresAt), "")
	equal(t, "use", w.use(s), store.QuotaUse{})
	read, err = w.Artifact(ctx(t), w.ann, b.ID)
	want(t, err, "")
	want(t, read.Readable(b.ExpiresAt), workbench.CodeArtifactExpired)
	_, err = w.DeleteArtifact(ctx(t), w.ann, b.ID, b.ExpiresAt)
	want(t, err, workbench.CodeArtifactExpired)
}

// testQuotaRace sends a hundred files of ten bytes, to two sessions of one
// tenant where the quota is the tenant's, at a quota with room for 37.
func testQuotaRace(t *testing.T, open Open, q store.Quota) {
	w := mustWorld(t, open)
	s, other := w.mustSession(w.ann), w.mustSession(w.ann)
	blobs := w.mustBlob("raced")
	errs := together(100, func(i int) error {
		to := s
		if q.TenantBytes > 0 && i%2 == 1 {
			to = other
		}
		a := w.artifact(to, 10)
		if err := w.ReserveArtifact(ctx(t), w.ann, a, q); err != nil {
			return err
		}
		_, err := w.CommitArtifact(ctx(t), a.ID, 10, "sha", blobs, nil)
		return err
	})
	equal(t, "kept", count(errs, ""), 37)
	equal(t, "refused", count(errs, workbench.CodeQuotaExceeded), 63)
	use := w.use(s)
	equal(t, "tenant's bytes", use.TenantBytes, 370)
	equal(t, "sessions' bytes", use.SessionBytes+w.use(other).SessionBytes, 370)
	equal(t, "sessions' files", use.SessionFiles+w.use(other).SessionFiles, 37)
}

func testBlobs(t *testing.T, open Open) {
	t.Run("only blobs nobody needs, and not the fresh ones, are swept", func(t *testing.T) {
		w := mustWorld(t, open)
		w.mustBlob("needed")
		w.mustBlob("free")
		want(t, w.PutBlobRefs(ctx(t), "commit:1", w.tenant.ID, []string{"needed", "needed"}), "")
		want(t, w.PutBlobRefs(ctx(t), "commit:2", w.tenant.ID, []string{"needed"}), "")
		want(t, w.PutBlobRefs(ctx(t), "commit:2", w.tenant.ID, []string{"needed"}), "")
		got, err := w.UnreferencedBlobs(ctx(t), w.now, 10)
		want(t, err, "")
		equal(t, "within the grace", len(got), 0)
		got, err = w.UnreferencedBlobs(ctx(t), w.now.Add(time.Second), 10)
		want(t, err, "")
		equal(t, "free ones", fmt.Sprint(got), "[free]")
		want(t, w.DropBlobRefs(ctx(t), "commit:1"), "")
		got, err = w.UnreferencedBlobs(ctx(t), w.now.Add(time.Second), 10)
		want(t, err, "")
		equal(t, "one reference is enough; a claim not finished comes again", fmt.Sprint(got), "[free]")
		want(t, w.ForgetBlob(ctx(t), "free"), "")
		want(t, w.ForgetBlob(ctx(t), "needed"), "") // not claimed: stays
		want(t, w.DropBlobRefs(ctx(t), "commit:2"), "")
		got, err = w.UnreferencedBlobs(ctx(t), w.now.Add(time.Second), 10)
		want(t, err, "")
		equal(t, "now the other", fmt.Sprint(got), "[needed]")
	})
	t.Run("a claimed blob is neither referred to nor put until it is gone", func(t *testing.T) {
		w := mustWorld(t, open)
		w.mustBlob("b")
		got, err := w.UnreferencedBlobs(ctx(t), w.now.Add(time.Second), 10)
		want(t, err, "")
		equal(t, "claimed", fmt.Sprint(got), "[b]")
		want(t, w.PutBlobRefs(ctx(t), "o", w.tenant.ID, []string{"b"}), workbench.CodeConflict)
		noted := make(chan error)
		go func() { noted <- w.NoteBlob(ctx(t), "b", w.tenant.ID, 1, w.now) }()
		select {
		case err := <-noted:
			t.Fatalf("a put did not wait for the sweeper: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		want(t, w.ForgetBlob(ctx(t), "b"), "")
		want(t, <-noted, "")
		want(t, w.PutBlobRefs(ctx(t), "o", w.tenant.ID, []string{"b"}), "")
	})
	t.Run("a sweep races references and one of them holds", func(t *testing.T) {
		w := mustWorld(t, open)
		for i := range 20 {
			id := w.mustBlob(fmt.Sprintf("raced-%d", i))
			var claimed []string
			errs := together(2, func(i int) error {
				var err error
				if i == 0 {
					claimed, err = w.UnreferencedBlobs(ctx(t), w.now.Add(time.Second), 10)
				} else {
					err = w.PutBlobRefs(ctx(t), "o:"+id, w.tenant.ID, []string{id})
				}
				return err
			})
			want(t, errs[0], "")
			equal(t, "exactly one holds", (errs[1] == nil) != (len(claimed) > 0), true)
			for _, c := range claimed {
				want(t, w.ForgetBlob(ctx(t), c), "")
			}
		}
	})
	t.Run("another tenant's blob cannot be referred to", func(t *testing.T) {
		w := mustWorld(t, open)
		w.mustBlob("b")
		want(t, w.PutBlobRefs(ctx(t), "o", w.mustDirect("globex", "bob").TenantID, []string{"b"}), workbench.CodeConflict)
		want(t, w.PutBlobRefs(ctx(t), "o", w.tenant.ID, []string{"never noted"}), workbench.CodeConflict)
	})
	t.Run("a small blob comes with its commit and goes with its last reference", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		c := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: s.ID, Generation: 1, Root: "r", ManifestID: "i_1", Inline: []byte("\x00sealed\xff"), CreatedAt: w.now}
		_, err := w.CreateCommit(ctx(t), c, w.mustLease(s.ID), []string{"i_1"})
		want(t, err, "")
		data, err := w.InlineBlob(ctx(t), w.tenant.ID, "i_1")
		want(t, err, "")
		same(t, "data", data, c.Inline)
		_, err = w.InlineBlob(ctx(t), w.mustDirect("globex", "bob").TenantID, "i_1")
		want(t, err, workbench.CodeNotFound)
		later := w.now.Add(time.Second)
		free, err := w.UnreferencedBlobs(ctx(t), later, 10)
		want(t, err, "")
		equal(t, "free", len(free), 0)
		want(t, w.DropBlobRefs(ctx(t), store.SessionBlobOwner(s.ID)), "")
		free, err = w.UnreferencedBlobs(ctx(t), later, 10)
		want(t, err, "")
		equal(t, "free", len(free), 1)
		want(t, w.ForgetBlob(ctx(t), "i_1"), "")
		_, err = w.InlineBlob(ctx(t), w.tenant.ID, "i_1")
		want(t, err, workbench.CodeNotFound)
	})
	t.Run("hundreds of references in one commit", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		epoch := w.mustLease(s.ID)
		var ids []string
		for i := range 600 {
			ids = append(ids, w.mustBlob(fmt.Sprintf("many-%04d", i)))
		}
		c := workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: s.ID, Generation: 1, Root: "r", ManifestID: ids[0], CreatedAt: w.now}
		_, err := w.CreateCommit(ctx(t), c, epoch, ids)
		want(t, err, "")
		got, err := w.UnreferencedBlobs(ctx(t), w.now.Add(time.Second), 5000)
		want(t, err, "")
		equal(t, "free", len(got), 0)
	})
}

func testCommits(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s := w.mustSession(w.ann)
	epoch := w.mustLease(s.ID)
	_, ok, err := w.HeadCommit(ctx(t), s.ID)
	want(t, err, "")
	equal(t, "a head", ok, false)
	w.mustBlob("m")
	commit := func(parent string) workbench.Commit {
		return workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: s.ID, ParentID: parent, Root: "root", Generation: 1, Files: 1, Bytes: 2,
			RunIDs: []string{"run_1"}, Exclusive: true, ManifestID: "m", CreatedAt: w.now}
	}
	first, err := w.CreateCommit(ctx(t), commit(""), epoch, []string{"m"})
	want(t, err, "")
	equal(t, "number", first.Number, 1)
	_, err = w.CreateCommit(ctx(t), commit(""), epoch, nil)
	want(t, err, workbench.CodeConflict) // another head by now
	_, err = w.CreateCommit(ctx(t), commit(first.ID), epoch+1, nil)
	want(t, err, workbench.CodeFenced)
	errs := together(6, func(int) error {
		_, err := w.CreateCommit(ctx(t), commit(first.ID), epoch, []string{"m"})
		return err
	})
	equal(t, "winners of a race", count(errs, ""), 1)
	equal(t, "losers", count(errs, workbench.CodeConflict), 5)
	head, ok, err := w.HeadCommit(ctx(t), s.ID)
	want(t, err, "")
	equal(t, "a head", ok, true)
	equal(t, "number", head.Number, 2)
	equal(t, "parent", head.ParentID, first.ID)
	read, err := w.Commit(ctx(t), w.ann, first.ID)
	want(t, err, "")
	equal(t, "run", read.RunIDs[0], "run_1")
	equal(t, "tenant", read.TenantID, w.tenant.ID)
	equal(t, "exclusive", read.Exclusive, true)
	list, err := w.ListCommits(ctx(t), w.ann, s.ID, workbench.Page{})
	want(t, err, "")
	equal(t, "commits", len(list.Items), 2)
	equal(t, "newest first", list.Items[0].ID, head.ID)
	_, err = w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)
	want(t, err, "")
	_, err = w.CreateCommit(ctx(t), commit(head.ID), epoch, nil)
	want(t, err, workbench.CodeSessionClosed)
}

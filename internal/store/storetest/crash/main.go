// Command crash takes one run through its life on a SQLite file and prints a
// line after each answer, or brings a database's schema up to date. Its one job
// is to be killed at a failpoint by the store's tests, which build it with the
// tag "failpoint".
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

func main() {
	do := life
	if len(os.Args) > 2 { // any word: no more than opening the database
		do = open
	}
	if err := do(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The ids are fixed, so that the test finds what a killed life left.
const (
	session  = "ses_crash"
	run      = "run_crash"
	queued   = "run_queued"
	artifact = "art_crash"
	second   = "art_second"
	key      = "key_crash"
	fork     = "ses_fork"
)

// open brings a database's schema up to date.
func open(ctx context.Context, dsn string) error {
	db, err := store.Open(ctx, dsn, store.Options{})
	if err != nil {
		return err
	}
	return db.Close()
}

func life(ctx context.Context, path string) error {
	db, err := store.Open(ctx, path, store.Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	project, err := db.EnsureProject(ctx, "p")
	if err != nil {
		return err
	}
	tenant, err := db.EnsureTenant(ctx, project.ID, "t")
	if err != nil {
		return err
	}
	user, err := db.EnsureUser(ctx, project.ID, tenant.ID, "u")
	if err != nil {
		return err
	}
	for _, blob := range []string{"blob", "other"} {
		if err := db.NoteBlob(ctx, blob, tenant.ID, 1, time.Now()); err != nil {
			return err
		}
	}
	p := workbench.Principal{ProjectID: project.ID, TenantID: tenant.ID, UserID: user.ID, KeyKind: workbench.KeyDirect}
	for _, move := range moves(db, p) {
		if err := move.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", move.name, err)
		}
		fmt.Println(move.name)
	}
	return nil
}

type move struct {
	name string
	do   func(context.Context) error
}

func moves(db *store.DB, p workbench.Principal) []move {
	now := time.Now()
	end := now.Add(time.Hour)
	admit := func(ctx context.Context, id string) error {
		_, _, err := db.Admit(ctx, p, store.Admission{Run: workbench.Run{ID: id, SessionID: session, Language: workbench.Python, CreatedAt: now},
			IdempotencyKey: id, Fingerprint: "f", FingerprintVersion: 1})
		return err
	}
	lease := func(ctx context.Context) error { _, err := db.AcquireLease(ctx, session, "eng", time.Hour); return err }
	return append([]move{
		{"create_session", func(ctx context.Context) error {
			return db.CreateSession(ctx, p, workbench.Session{ID: session, ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID,
				Kind: workbench.SessionPersonal, Generation: 1, Size: "standard", CreatedAt: now, ExpiresAt: end}, workbench.Revision{Number: 1, CreatedAt: now})
		}},
		{"lease", lease},
		{"admit", func(ctx context.Context) error { return admit(ctx, run) }},
		{"dispatch", func(ctx context.Context) error {
			return db.Dispatch(ctx, store.DispatchRecord{RunID: run, Epoch: 1, Generation: 1, SandboxID: "sbx", At: now})
		}},
		{"append_log", func(ctx context.Context) error {
			running := workbench.StatusRunning
			return db.AppendLog(ctx, run, 1, 1, &running, []workbench.LogEntry{{Seq: 3, Kind: workbench.LogOutput, Stream: workbench.Stdout, Length: 1, Data: []byte("x"), At: now}})
		}},
		{"packages", func(ctx context.Context) error {
			return db.AddPackages(ctx, run, 1, workbench.PackageSet{Name: "set_crash", Manager: workbench.PackagesPip})
		}},
		{"meter", func(ctx context.Context) error {
			return db.Meter(ctx, session, 1, []store.ActiveTime{{ID: "use_crash", RunID: run, Us: 7, At: now}})
		}},
		{"reserve_artifact", func(ctx context.Context) error {
			return db.ReserveArtifact(ctx, p, workbench.Artifact{ID: artifact, SessionID: session, Generation: 1, Size: 5, Origin: workbench.OriginSave,
				CreatedAt: now, ExpiresAt: end}, store.Quota{SessionBytes: 5, SessionFiles: 1, Epoch: 1})
		}},
		{"commit_artifact", func(ctx context.Context) error {
			_, err := db.CommitArtifact(ctx, artifact, 4, "sha", "blob", nil)
			return err
		}},
		{"settle", func(ctx context.Context) error {
			return db.Settle(ctx, store.Settlement{Run: workbench.Run{ID: run, Status: workbench.StatusSucceeded, FinishedAt: &now}, Epoch: 1, Generation: 1,
				Commit: &workbench.Commit{ID: "cmt_1", Root: "r", ManifestID: "blob", CreatedAt: now}, ManifestRefs: []string{"blob"},
				Changes: []workbench.ChangedFile{{Path: "f", Change: workbench.ChangeAdded, Type: "file"}}})
		}},
		{"create_commit", func(ctx context.Context) error {
			_, err := db.CreateCommit(ctx, workbench.Commit{ID: "cmt_2", SessionID: session, ParentID: "cmt_1", Generation: 1, Root: "r2", ManifestID: "blob", CreatedAt: now}, 1, nil)
			return err
		}},
		{"start_over", func(ctx context.Context) error {
			_, _, err := db.StartOver(ctx, p, session, 1, workbench.Commit{ID: "cmt_3", Root: "r3", ManifestID: "blob", CreatedAt: now}, nil, "")
			return err
		}},
		{"admit again", func(ctx context.Context) error { return admit(ctx, queued) }},
		{"cancel", func(ctx context.Context) error {
			_, err := db.RequestCancel(ctx, p, queued, workbench.ReasonCancelled, now)
			return err
		}},
	}, later(db, p, now, lease)...)
}

// later are the moves that a session makes besides running code.
func later(db *store.DB, p workbench.Principal, now time.Time, lease func(context.Context) error) []move {
	admin := workbench.SystemPrincipal()
	afterwards := now.Add(2 * workbench.ReceiptGrace)
	reserve := func(ctx context.Context) error {
		return db.ReserveArtifact(ctx, p, workbench.Artifact{ID: second, SessionID: session, Generation: 3, Size: 5, Origin: workbench.OriginSave,
			CreatedAt: now, ExpiresAt: now.Add(time.Hour)}, store.Quota{SessionBytes: 5, SessionFiles: 1, Epoch: 3})
	}
	return []move{
		{"create_key", func(ctx context.Context) error {
			return db.CreateKey(ctx, workbench.Key{ID: key, ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, Kind: workbench.KeyDirect, Name: "k", SecretHash: []byte("hash"), CreatedAt: now})
		}},
		{"revoke_key", func(ctx context.Context) error { _, err := db.RevokeKey(ctx, admin, key, now, false); return err }},
		{"add_revision", func(ctx context.Context) error {
			_, err := db.AddRevision(ctx, p, workbench.Revision{SessionID: session, Size: "standard", CreatedAt: now}, nil, store.Seen{Revision: 1})
			return err
		}},
		{"create_context", func(ctx context.Context) error {
			_, _, err := db.CreateContext(ctx, p, workbench.Context{ID: "c", SessionID: session, Handle: "one", Language: workbench.Python, Dir: "d", SealedEnv: []byte("e"), CreatedAt: now})
			return err
		}},
		{"restart_context", func(ctx context.Context) error {
			_, err := db.RestartContext(ctx, p, session, "c", "two", now)
			return err
		}},
		{"delete_context", func(ctx context.Context) error { _, err := db.DeleteContext(ctx, p, session, "c", now); return err }},
		{"suspend", func(ctx context.Context) error {
			return db.Suspend(ctx, session, 1, 2, &workbench.Checkpoint{Blob: "blob", Generation: 2}, now)
		}},
		{"lease again", lease},
		{"resume", func(ctx context.Context) error { return db.Resume(ctx, session, 2, "blob") }},
		{"suspend again", func(ctx context.Context) error { return db.Suspend(ctx, session, 2, 2, nil, now) }},
		{"lease once more", lease},
		{"return_without_memory", func(ctx context.Context) error {
			_, err := db.ReturnWithoutMemory(ctx, session, 3)
			return err
		}},
		{"fork", func(ctx context.Context) error {
			_, _, err := db.Fork(ctx, p, workbench.Session{ID: fork, ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, Kind: workbench.SessionPersonal,
				Generation: 1, Size: "standard", CreatedAt: now, ExpiresAt: now.Add(time.Hour)}, workbench.Revision{Number: 1, CreatedAt: now},
				workbench.Commit{ID: "cmt_fork", Root: "r3", ManifestID: "blob", CreatedAt: now}, []string{"blob"})
			return err
		}},
		{"delete_artifact", func(ctx context.Context) error { _, err := db.DeleteArtifact(ctx, p, artifact, now); return err }},
		{"reserve_artifact again", reserve},
		{"describe_artifact", func(ctx context.Context) error { return db.DescribeArtifact(ctx, second, "text/plain", nil) }},
		{"abandon_artifact", func(ctx context.Context) error { return db.AbandonArtifact(ctx, second) }},
		{"reserve_artifact once more", reserve},
		{"commit_artifact again", func(ctx context.Context) error {
			_, err := db.CommitArtifact(ctx, second, 4, "sha", "blob", nil)
			return err
		}},
		{"expire_artifact", func(ctx context.Context) error { return db.MarkExpired(ctx, second, now.Add(2*time.Hour)) }},
		{"release_blobs", func(ctx context.Context) error {
			return db.ReleaseBlobs(ctx, p.TenantID, []string{"other"}, now.Add(-2*time.Hour))
		}},
		{"blob_refs", func(ctx context.Context) error { return db.PutBlobRefs(ctx, "owner", p.TenantID, []string{"other"}) }},
		{"end_session", func(ctx context.Context) error {
			_, err := db.EndSession(ctx, p, session, workbench.SessionClosed, now)
			return err
		}},
		{"purge", func(ctx context.Context) error { _, err := db.PurgeReceipts(ctx, afterwards, 10); return err }},
	}
}

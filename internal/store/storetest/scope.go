package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// owned is one of everything that one user of one tenant of one project has.
type owned struct {
	w        *world
	p        workbench.Principal // the owner's direct key
	project  int
	session  workbench.Session
	second   workbench.Session // another session of the owner
	run      workbench.Run     // settled, with output, a changed file and a commit
	queued   workbench.Run
	artifact workbench.Artifact
	commit   workbench.Commit
	key      workbench.Key
}

// caller is a principal, with the owners it may see by their index and, for a
// narrowed one, the session it is confined to.
type caller struct {
	name   string
	p      workbench.Principal
	owners map[int]bool
	narrow bool // sees the owner's first session only
}

// testScope has two projects with two tenants with two users, one of
// everything for each user, and calls every method that takes a principal as
// every kind of key.
func testScope(t *testing.T, open Open) {
	db := open(t)
	var owners []owned
	for project := range 2 {
		w := mustWorldIn(t, db)
		for _, tenant := range []string{"acme", "globex"} {
			for _, user := range []string{"ann", "ben"} {
				owners = append(owners, w.mustOwned(project, w.mustDirect(tenant, user)))
			}
		}
	}
	var callers []caller
	for i, o := range owners {
		embedded := o.p
		embedded.KeyKind = workbench.KeyEmbedded
		narrowed := o.p
		narrowed.SessionID = o.session.ID
		grouped := o.p
		grouped.UserID, grouped.GroupID = "usr_of_the_same_group", "grp_shared" // a group gives no right
		callers = append(callers,
			caller{fmt.Sprintf("direct %d", i), o.p, map[int]bool{i: true}, false},
			caller{fmt.Sprintf("embedded %d", i), embedded, map[int]bool{i: true}, false},
			caller{fmt.Sprintf("narrowed %d", i), narrowed, map[int]bool{i: true}, true},
			caller{fmt.Sprintf("same group %d", i), grouped, nil, false})
	}
	callers = append(callers,
		caller{"admin of the first project", owners[0].w.admin(), map[int]bool{0: true, 1: true, 2: true, 3: true}, false},
		caller{"admin of the second project", owners[4].w.admin(), map[int]bool{4: true, 5: true, 6: true, 7: true}, false},
		caller{"nobody", workbench.Principal{}, nil, false},
		caller{"the server", workbench.SystemPrincipal(), map[int]bool{0: true, 1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true}, false})
	for _, c := range callers {
		for i, o := range owners {
			probeReads(t, db, c, o, c.owners[i])
			if !c.owners[i] {
				probeWrites(t, db, c, o)
			}
			if c.narrow && c.owners[i] {
				second := o
				second.session = o.second
				probeWrites(t, db, c, second, "session")
			}
		}
		probeLists(t, db, c, owners)
	}
	for _, o := range owners { // nothing that was refused has happened
		s := o.w.mustRead(o.session.ID)
		equal(t, "state", s.State, workbench.SessionActive)
		equal(t, "revision", s.Revision, 1)
		equal(t, "generation", s.Generation, 1)
		equal(t, "queued run", o.w.mustRun(o.queued.ID).Status, workbench.StatusQueued)
		equal(t, "files", o.w.use(o.session).SessionFiles, 1)
	}
}

func (w *world) mustOwned(project int, p workbench.Principal) owned {
	w.t.Helper()
	t := w.t
	o := owned{w: w, p: p, project: project}
	o.session, o.run, _ = w.mustOut(p)
	o.second = w.mustSession(p)
	epoch := o.session.LeaseEpoch + 1
	blob := "m-" + o.session.ID
	want(t, w.NoteBlob(ctx(t), blob, p.TenantID, 1, w.now), "")
	o.commit = workbench.Commit{ID: workbench.NewID(workbench.KindCommit), Root: "r", ManifestID: blob, CreatedAt: w.now}
	s := w.settlement(o.run, epoch, workbench.StatusSucceeded)
	s.Commit, s.ManifestRefs = &o.commit, []string{blob}
	s.Changes = []workbench.ChangedFile{{Path: "f", Change: workbench.ChangeAdded, Type: "file"}}
	s.Entries = []workbench.LogEntry{output(3, workbench.Stdout, 0, "x"), store.TerminalEntry(o.run.ID, 4, workbench.StatusSucceeded, "", w.now)}
	want(t, w.Settle(ctx(t), s), "")
	o.queued = w.mustAdmit(p, o.session.ID)
	o.artifact = w.mustArtifact(p, o.session, 1)
	o.key = w.key("key of " + o.session.ID)
	o.key.TenantID, o.key.UserID, o.key.SessionID = p.TenantID, p.UserID, o.session.ID
	want(t, w.CreateKey(ctx(t), o.key), "")
	want(t, w.Audit(ctx(t), workbench.AuditEntry{ProjectID: p.ProjectID, TenantID: p.TenantID, UserID: p.UserID, Action: "session.create",
		Target: o.session.ID, Outcome: "ok"}), "")
	return o
}

// probeReads calls every read of one thing.
func probeReads(t *testing.T, db *store.DB, c caller, o owned, sees bool) {
	t.Helper()
	page := workbench.Page{}
	for name, err := range map[string]error{
		"Session":       second(db.Session(ctx(t), c.p, o.session.ID)),
		"Revision":      second(db.Revision(ctx(t), c.p, o.session.ID, 1)),
		"ListRevisions": second(db.ListRevisions(ctx(t), c.p, o.session.ID, page)),
		"Run":           second(db.Run(ctx(t), c.p, o.run.ID)),
		"Log":           second(db.Log(ctx(t), c.p, o.run.ID, 0, 0)),
		"Changes":       second(db.Changes(ctx(t), c.p, o.run.ID, page)),
		"OutputRange":   third(db.OutputRange(ctx(t), c.p, o.run.ID, workbench.Stdout, 0, 10)),
		"Commit":        second(db.Commit(ctx(t), c.p, o.commit.ID)),
		"ListCommits":   second(db.ListCommits(ctx(t), c.p, o.session.ID, page)),
		"Artifact":      second(db.Artifact(ctx(t), c.p, o.artifact.ID)),
		"ListArtifacts": second(db.ListArtifacts(ctx(t), c.p, o.session.ID, page)),
	} {
		expected := workbench.Code("")
		switch {
		case !sees:
			expected = workbench.CodeNotFound
		case name == "OutputRange" && c.p.Admin(): // metadata, not contents
			expected = workbench.CodeForbidden
		}
		if got := workbench.CodeOf(err); got != expected {
			t.Fatalf("%s as %s of %s's: %q, want %q", name, c.name, o.p.UserID, got, expected)
		}
	}
	if sees && c.narrow {
		_, err := db.Session(ctx(t), c.p, o.second.ID)
		want(t, err, workbench.CodeNotFound)
	}
}

// probeWrites calls every write on what the caller may not see; with only,
// those on the session alone.
func probeWrites(t *testing.T, db *store.DB, c caller, o owned, only ...string) {
	t.Helper()
	now := time.Now()
	onSession := map[string]error{
		"AddRevision":     second(db.AddRevision(ctx(t), c.p, workbench.Revision{SessionID: o.session.ID, CreatedAt: now}, nil, store.Seen{})),
		"EndSession":      second(db.EndSession(ctx(t), c.p, o.session.ID, workbench.SessionClosed, now)),
		"BumpGeneration":  second(db.BumpGeneration(ctx(t), c.p, o.session.ID, o.session.LeaseEpoch, false)),
		"StartOver":       third(db.StartOver(ctx(t), c.p, o.session.ID, o.session.LeaseEpoch, workbench.Commit{ID: "cmt_none", CreatedAt: now}, nil, "")),
		"CancelSession":   second(db.CancelSession(ctx(t), c.p, o.session.ID, workbench.ReasonCancelled, now)),
		"Admit":           third(db.Admit(ctx(t), c.p, o.w.admission(o.session.ID, "", "f"))),
		"ReserveArtifact": db.ReserveArtifact(ctx(t), c.p, o.w.artifact(o.session, 1), store.Quota{}),
	}
	onThings := map[string]error{}
	if len(only) == 0 {
		onThings = map[string]error{
			"RequestCancel":  second(db.RequestCancel(ctx(t), c.p, o.queued.ID, workbench.ReasonCancelled, now)),
			"DeleteArtifact": second(db.DeleteArtifact(ctx(t), c.p, o.artifact.ID, now)),
			"RevokeKey":      second(db.RevokeKey(ctx(t), c.p, o.key.ID, now, true)),
		}
		s, r := o.w.newSession(o.p)
		want(t, db.CreateSession(ctx(t), c.p, s, r), workbench.CodeForbidden)
	}
	for _, probes := range []map[string]error{onSession, onThings} {
		for name, err := range probes {
			if got := workbench.CodeOf(err); got != workbench.CodeNotFound {
				t.Fatalf("%s as %s of %s's: %q, want not_found", name, c.name, o.p.UserID, got)
			}
		}
	}
}

// probeLists counts what the lists give out: exactly what the caller may see.
func probeLists(t *testing.T, db *store.DB, c caller, owners []owned) {
	t.Helper()
	n := len(c.owners)
	sessions, err := db.ListSessions(ctx(t), c.p, workbench.SessionFilter{}, workbench.Page{Limit: 200})
	want(t, err, "")
	runs, err := db.ListRuns(ctx(t), c.p, workbench.RunFilter{}, workbench.Page{Limit: 200})
	want(t, err, "")
	keys, err := db.ListKeys(ctx(t), c.p, workbench.Page{Limit: 200})
	want(t, err, "")
	audit, err := db.ListAudit(ctx(t), c.p, store.AuditFilter{}, workbench.Page{Limit: 200})
	want(t, err, "")
	perOwner := 2
	if c.narrow {
		perOwner = 1
	}
	equal(t, "sessions listed to "+c.name, len(sessions.Items), n*perOwner)
	equal(t, "runs listed to "+c.name, len(runs.Items), n*2)
	equal(t, "keys listed to "+c.name, len(keys.Items), n)
	equal(t, "audit rows listed to "+c.name, len(audit.Items), n)
	for _, r := range runs.Items {
		visible := false
		for i, o := range owners {
			visible = visible || (c.owners[i] && r.UserID == o.p.UserID && r.TenantID == o.p.TenantID && r.ProjectID == o.p.ProjectID)
		}
		equal(t, "a listed run is the caller's", visible, true)
	}
}

func second[T any](_ T, err error) error        { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

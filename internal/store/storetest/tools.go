package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// row is a row of the trail, for what needs one.
func (w *world) row(action string) workbench.AuditEntry {
	return workbench.AuditEntry{ID: workbench.NewID(workbench.KindAudit), At: w.now, ProjectID: w.project.ID, Action: action, Outcome: "ok"}
}

// mustImport imports the app crm as offering a tool of each form.
func (w *world) mustImport(forms ...string) []workbench.Tool {
	w.t.Helper()
	const app = "crm"
	_, err := w.PutApp(ctx(w.t), workbench.App{ProjectID: w.project.ID, Name: app, Kind: workbench.AppHTTP, Provider: app, CreatedAt: w.now}, w.row("app.put"))
	want(w.t, err, "")
	var offered []workbench.Tool
	for i, form := range forms {
		offered = append(offered, workbench.Tool{Name: fmt.Sprintf("%s.t%d", app, i), Description: form, InputSchema: []byte(`{"type":"object"}`), Digest: form, Binding: []byte(`{}`)})
	}
	tools, err := w.ImportTools(ctx(w.t), w.project.ID, app, offered, w.now, w.row("app.import"))
	want(w.t, err, "")
	return tools
}

// mustConnection makes a connection of the alias support.
func (w *world) mustConnection(change func(*workbench.Connection)) workbench.Connection {
	w.t.Helper()
	c := workbench.Connection{ID: workbench.NewID(workbench.KindConnect), ProjectID: w.project.ID, Alias: "support", Provider: "crm", Auth: workbench.AuthBearer,
		Version: 1, Sealed: []byte("sealed"), CreatedAt: w.now}
	if change != nil {
		change(&c)
	}
	want(w.t, w.CreateConnection(ctx(w.t), c, w.row("connection.create")), "")
	return c
}

func (w *world) mustRules(text string) store.RuleSet {
	w.t.Helper()
	set, err := w.ChangeRules(ctx(w.t), w.project.ID, 0, []workbench.Rule{{Name: "all", Text: text}}, nil, w.now, "key_1",
		func([]workbench.Rule) error { return nil }, w.row("rules.change"))
	want(w.t, err, "")
	return set
}

// intent is a call of a tool by a run that is out.
func (w *world) intent(r workbench.Run, epoch int64, tool workbench.Tool, status workbench.CallStatus) store.CallIntent {
	w.t.Helper()
	version, err := w.RulesVersion(ctx(w.t), w.project.ID)
	want(w.t, err, "")
	in := store.CallIntent{Epoch: epoch, Limit: 25, Decided: &store.Decided{RulesVersion: version}, Trail: w.row("tool.call"),
		Receipt: workbench.ToolReceipt{ID: workbench.NewID(workbench.KindReceipt), ProjectID: w.project.ID, RunID: r.ID, Tool: tool.Name, Version: tool.Version,
			ArgsDigest: "d", Status: status, CreatedAt: w.now, EngineID: engine, SealedArgs: []byte("args")}}
	if status == workbench.CallPending {
		in.Receipt.Approval = &workbench.Approval{State: workbench.ApprovalPending, Rules: []string{"all#1"}, ExpiresAt: w.now.Add(time.Hour)}
	}
	return in
}

func (w *world) end(r workbench.ToolReceipt, status workbench.CallStatus) store.CallEnd {
	return store.CallEnd{ID: r.ID, EngineID: r.EngineID, Status: status, SealedResult: []byte("result"), ResultBytes: 6, At: w.now.Add(time.Second),
		Duration: time.Second, Trail: w.row("tool.end")}
}

func (w *world) approval(r workbench.ToolReceipt, revision int64) store.CallDecision {
	w.t.Helper()
	version, err := w.RulesVersion(ctx(w.t), w.project.ID)
	want(w.t, err, "")
	return store.CallDecision{ReceiptID: r.ID, State: workbench.ApprovalApproved, By: "usr_boss", KeyID: "key_2", Reason: "fine", At: w.now.Add(time.Minute),
		EngineID: "eng_two", Revision: revision, Decided: &store.Decided{RulesVersion: version}, Trail: w.row("approval.decide")}
}

func testTools(t *testing.T, open Open) {
	t.Run("a form that a tool has not had makes a version, and no label is given twice", func(t *testing.T) {
		w := mustWorld(t, open)
		first := w.mustImport("a", "b")
		equal(t, "version", first[0].Version, "1")
		again := w.mustImport("a", "c")
		equal(t, "version of what is as it was", again[0].Version, "1")
		equal(t, "version of what changed", again[1].Version, "2")
		old, err := w.Tool(ctx(t), w.project.ID, workbench.ToolRef{Name: "crm.t1", Version: "1"})
		want(t, err, "")
		equal(t, "the old version", old.Description+" "+string(old.State), "b superseded")
		back := w.mustImport("d", "b")
		equal(t, "version of another form", back[0].Version, "2")
		equal(t, "version of a form that it had", back[1].Version, "1")
		next := w.mustImport("e", "f")
		equal(t, "the next label", next[0].Version+next[1].Version, "33")
		w.mustImport("e")
		gone, err := w.Tool(ctx(t), w.project.ID, workbench.ToolRef{Name: "crm.t1", Version: "3"})
		want(t, err, "")
		equal(t, "what is not offered any more", gone.State, workbench.ToolWithdrawn)
		want(t, w.RemoveApp(ctx(t), w.project.ID, "crm", w.now, w.row("app.remove")), "")
		want(t, w.RemoveApp(ctx(t), w.project.ID, "crm", w.now, w.row("app.remove")), workbench.CodeNotFound)
		listed, err := w.Tools(ctx(t), w.project.ID, store.ToolFilter{})
		want(t, err, "")
		equal(t, "current tools", len(listed), 0)
		equal(t, "a label after the app's return", w.mustImport("g")[0].Version, "4")
	})
	t.Run("an alias is its user's connection first, then its group's, tenant's and the project's", func(t *testing.T) {
		w := mustWorld(t, open)
		s := w.mustSession(w.ann)
		s.GroupID = "grp_1"
		is := func(want string) {
			t.Helper()
			c, err := w.ConnectionFor(ctx(t), s, "support")
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "the connection", c.ID, want)
		}
		want(t, second(w.ConnectionFor(ctx(t), s, "support")), workbench.CodeConnectionNotFound)
		w.mustConnection(func(c *workbench.Connection) { c.TenantID, c.UserID = s.TenantID, "usr_other" })
		w.mustConnection(func(c *workbench.Connection) { c.TenantID = "ten_other" })
		want(t, second(w.ConnectionFor(ctx(t), s, "support")), workbench.CodeConnectionNotFound)
		project := w.mustConnection(nil)
		is(project.ID)
		is(w.mustConnection(func(c *workbench.Connection) { c.TenantID = s.TenantID }).ID)
		is(w.mustConnection(func(c *workbench.Connection) { c.TenantID, c.GroupID = s.TenantID, "grp_1" }).ID)
		own := w.mustConnection(func(c *workbench.Connection) { c.TenantID, c.UserID = s.TenantID, s.UserID })
		is(own.ID)
		err := w.CreateConnection(ctx(t), workbench.Connection{ID: workbench.NewID(workbench.KindConnect), ProjectID: w.project.ID, Alias: "support"}, w.row("x"))
		want(t, err, workbench.CodeConflict)
		gone, err := w.RevokeConnection(ctx(t), own.ID, w.now, w.row("connection.revoke"))
		want(t, err, "")
		equal(t, "sealed credentials after the revocation", len(gone.Sealed), 0)
		want(t, second(w.RotateConnection(ctx(t), own.ID, 0, []byte("new"), w.now, w.row("x"))), workbench.CodeConnectionRevoked)
		rotated, err := w.RotateConnection(ctx(t), project.ID, 1, []byte("new"), w.now, w.row("connection.rotate"))
		want(t, err, "")
		equal(t, "version", rotated.Version, 2)
		want(t, second(w.RotateConnection(ctx(t), project.ID, 1, []byte("x"), w.now, w.row("x"))), workbench.CodeVersionMismatch)
	})
	t.Run("rules change together, or not at all", func(t *testing.T) {
		w := mustWorld(t, open)
		first := w.mustRules("one")
		refuse := errors.New("no")
		_, err := w.ChangeRules(ctx(t), w.project.ID, first.Version, []workbench.Rule{{Name: "b", Text: "b"}}, []string{"all"}, w.now, "k",
			func(rules []workbench.Rule) error { equal(t, "rules as they would be", len(rules), 1); return refuse }, w.row("x"))
		if !errors.Is(err, refuse) && workbench.CodeOf(err) == "" {
			t.Fatalf("the check's error is lost: %v", err)
		}
		now, err := w.Rules(ctx(t), w.project.ID)
		want(t, err, "")
		equal(t, "version", now.Version, first.Version)
		equal(t, "text", now.Rules[0].Text, "one")
		_, err = w.ChangeRules(ctx(t), w.project.ID, first.Version+1, nil, []string{"all"}, w.now, "k", func([]workbench.Rule) error { return nil }, w.row("x"))
		want(t, err, workbench.CodeVersionMismatch)
	})
	t.Run("calls", func(t *testing.T) { testCalls(t, open) })
	t.Run("approvals", func(t *testing.T) { testCallApprovals(t, open) })
	t.Run("dependencies", func(t *testing.T) { testDependencies(t, open) })
}

func testCalls(t *testing.T, open Open) {
	t.Run("a run makes its calls and not one more, however many it begins at once", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		tool := w.mustImport("a")[0]
		w.mustRules("one")
		in := w.intent(r, epoch, tool, workbench.CallExecuting)
		errs := together(60, func(int) error {
			in := in
			in.Receipt.ID = workbench.NewID(workbench.KindReceipt)
			in.Trail = w.row("tool.call")
			return second(w.BeginCall(ctx(t), in))
		})
		equal(t, "calls begun", count(errs, ""), 25)
		equal(t, "calls refused", count(errs, workbench.CodeToolCallLimit), 35)
		list, err := w.CallReceipts(ctx(t), w.ann, store.CallFilter{RunID: r.ID}, workbench.Page{Limit: 100})
		want(t, err, "")
		seen := map[int64]bool{}
		for _, c := range list.Items {
			seen[c.Number] = true
		}
		equal(t, "numbers of receipts", len(seen), 25)
		equal(t, "calls on the run", w.mustRun(r.ID).ToolCalls, 25)
	})
	t.Run("a decision under other rules, or with other credentials, is made again", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		tool := w.mustImport("a")[0]
		w.mustRules("one")
		in := w.intent(r, epoch, tool, workbench.CallExecuting)
		w.mustRules("two")
		want(t, second(w.BeginCall(ctx(t), in)), workbench.CodeVersionMismatch)
		c := w.mustConnection(nil)
		in = w.intent(r, epoch, tool, workbench.CallExecuting)
		in.Receipt.Alias, in.Receipt.ConnectionID, in.Decided.ConnectionVersion = "support", c.ID, 1
		want(t, second(w.RotateConnection(ctx(t), c.ID, 0, []byte("new"), w.now, w.row("x"))), "")
		want(t, second(w.BeginCall(ctx(t), in)), workbench.CodeVersionMismatch)
		want(t, second(w.RevokeConnection(ctx(t), c.ID, w.now, w.row("x"))), "")
		want(t, second(w.BeginCall(ctx(t), in)), workbench.CodeConnectionRevoked)
		want(t, w.RemoveApp(ctx(t), w.project.ID, "crm", w.now, w.row("x")), "")
		want(t, second(w.BeginCall(ctx(t), w.intent(r, epoch, tool, workbench.CallExecuting))), workbench.CodeVersionMismatch)
		equal(t, "calls on the run", w.mustRun(r.ID).ToolCalls, 0)
	})
	t.Run("an answer is recorded once, by who sent the call", func(t *testing.T) {
		w := mustWorld(t, open)
		s, r, epoch := w.mustOut(w.ann)
		tool := w.mustImport("a")[0]
		w.mustRules("one")
		want(t, second(w.BeginCall(ctx(t), func() store.CallIntent {
			in := w.intent(r, epoch+1, tool, workbench.CallExecuting)
			return in
		}())), workbench.CodeFenced)
		c, err := w.BeginCall(ctx(t), w.intent(r, epoch, tool, workbench.CallExecuting))
		want(t, err, "")
		other := w.end(c, workbench.CallSucceeded)
		other.EngineID = "eng_two"
		want(t, w.EndCall(ctx(t), other), workbench.CodeConflict)
		want(t, w.EndCall(ctx(t), w.end(c, workbench.CallSucceeded)), "")
		want(t, w.EndCall(ctx(t), w.end(c, workbench.CallFailed)), workbench.CodeConflict)
		read, err := w.CallReceipt(ctx(t), w.ann, c.ID)
		want(t, err, "")
		equal(t, "status", read.Status, workbench.CallSucceeded)
		equal(t, "session", read.SessionID, s.ID)
		same(t, "result", read.SealedResult, []byte("result"))
		want(t, second(w.CallReceipt(ctx(t), w.mustDirect("acme", "bob"), c.ID)), workbench.CodeNotFound)
		want(t, second(w.CallReceipt(ctx(t), w.mustDirect("other", "ann"), c.ID)), workbench.CodeNotFound)
	})
	t.Run("what was on its way when its run, or its engine, was lost ends as unknown, and stays so", func(t *testing.T) {
		w := mustWorld(t, open)
		_, r, epoch := w.mustOut(w.ann)
		tool := w.mustImport("a")[0]
		w.mustRules("one")
		c, err := w.BeginCall(ctx(t), w.intent(r, epoch, tool, workbench.CallExecuting))
		want(t, err, "")
		w.mustSettle(r, epoch)
		read, err := w.CallReceipt(ctx(t), w.ann, c.ID)
		want(t, err, "")
		equal(t, "status", read.Status, workbench.CallUnknown)
		if read.Error == nil || read.FinishedAt == nil {
			t.Fatalf("the receipt does not say why: %+v", read)
		}
		want(t, w.EndCall(ctx(t), w.end(c, workbench.CallSucceeded)), workbench.CodeConflict)
		late, err := w.ListAudit(ctx(t), w.admin(), store.AuditFilter{Action: "tool.late", Target: c.ID}, workbench.Page{})
		want(t, err, "")
		equal(t, "rows that tell of the late answer", len(late.Items), 1)
		want(t, second(w.BeginCall(ctx(t), w.intent(r, epoch, tool, workbench.CallExecuting))), workbench.CodeConflict)
	})
}

func testCallApprovals(t *testing.T, open Open) {
	begin := func(t *testing.T) (*world, workbench.Session, workbench.ToolReceipt) {
		w := mustWorld(t, open)
		s, r, epoch := w.mustOut(w.ann)
		tool := w.mustImport("a")[0]
		w.mustRules("one")
		c, err := w.BeginCall(ctx(t), w.intent(r, epoch, tool, workbench.CallPending))
		want(t, err, "")
		w.mustSettle(r, epoch)
		return w, s, c
	}
	t.Run("of many decisions one counts", func(t *testing.T) {
		w, s, c := begin(t)
		d := w.approval(c, s.Revision)
		errs := together(8, func(i int) error {
			d := d
			d.Trail = w.row("approval.decide")
			if i%2 == 1 {
				d.State = workbench.ApprovalDenied
			}
			return second(w.DecideCall(ctx(t), d))
		})
		equal(t, "decisions that counted", count(errs, ""), 1)
		equal(t, "decisions that came late", count(errs, workbench.CodeApprovalDecided), 7)
	})
	t.Run("an approved call is executing, and its executor alone may end it", func(t *testing.T) {
		w, s, c := begin(t)
		r, err := w.DecideCall(ctx(t), w.approval(c, s.Revision))
		want(t, err, "")
		equal(t, "status", r.Status, workbench.CallExecuting)
		equal(t, "who decided", r.Approval.DecidedBy+" "+r.Approval.Reason, "usr_boss fine")
		want(t, w.EndCall(ctx(t), w.end(c, workbench.CallSucceeded)), workbench.CodeConflict)
		want(t, w.RegisterEngine(ctx(t), "eng_two", "i", w.now), "")
		want(t, w.ForgetEngine(ctx(t), "eng_two"), "")
		lost, err := w.CallReceipt(ctx(t), w.ann, c.ID)
		want(t, err, "")
		equal(t, "status once its engine is gone", lost.Status, workbench.CallUnknown)
	})
	t.Run("nothing leaves after the deadline, the session's end, another revision or another rule", func(t *testing.T) {
		w, s, c := begin(t)
		late := w.approval(c, s.Revision)
		late.At = w.now.Add(time.Hour)
		want(t, second(w.DecideCall(ctx(t), late)), workbench.CodeApprovalExpired)
		stale := w.approval(c, s.Revision)
		w.mustRules("two")
		want(t, second(w.DecideCall(ctx(t), stale)), workbench.CodeVersionMismatch)
		want(t, second(w.DecideCall(ctx(t), w.approval(c, s.Revision+1))), workbench.CodeVersionMismatch)
		want(t, second(w.EndSession(ctx(t), w.ann, s.ID, workbench.SessionClosed, w.now)), "")
		want(t, second(w.DecideCall(ctx(t), w.approval(c, s.Revision))), workbench.CodeSessionClosed)
		ended, err := w.ExpireCalls(ctx(t), w.now.Add(time.Minute), 10)
		want(t, err, "")
		equal(t, "calls that ended with their session", len(ended), 1)
		equal(t, "state", ended[0].Approval.State, workbench.ApprovalRevoked)
		want(t, second(w.DecideCall(ctx(t), w.approval(c, s.Revision))), workbench.CodeApprovalDecided)
	})
	t.Run("what nobody decided expires once", func(t *testing.T) {
		w, _, c := begin(t)
		ended, err := w.ExpireCalls(ctx(t), w.now.Add(59*time.Minute), 10)
		want(t, err, "")
		equal(t, "expired early", len(ended), 0)
		ended, err = w.ExpireCalls(ctx(t), w.now.Add(time.Hour), 10)
		want(t, err, "")
		equal(t, "expired", len(ended), 1)
		equal(t, "receipt", ended[0].ID+string(ended[0].Status), c.ID+"expired")
		ended, err = w.ExpireCalls(ctx(t), w.now.Add(2*time.Hour), 10)
		want(t, err, "")
		equal(t, "expired twice", len(ended), 0)
	})
}

func testDependencies(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s, r, epoch := w.mustOut(w.ann)
	tool := w.mustImport("a")[0]
	w.mustRules("one")
	c, err := w.BeginCall(ctx(t), w.intent(r, epoch, tool, workbench.CallExecuting))
	want(t, err, "")
	want(t, w.EndCall(ctx(t), w.end(c, workbench.CallSucceeded)), "")
	on := workbench.Dependency{Tool: "crm.t0", Version: "1"}
	saved := w.artifact(s, 5)
	saved.Origin, saved.RunID = workbench.OriginSave, r.ID
	want(t, w.ReserveArtifact(ctx(t), w.ann, saved, store.Quota{}), "")
	saved, err = w.CommitArtifact(ctx(t), saved.ID, 5, "sha", w.mustBlob("dep"), nil)
	want(t, err, "")
	uploaded := w.mustArtifact(w.ann, s, 5)
	equal(t, "dependencies of an upload", len(uploaded.Dependencies), 0)
	if len(saved.Dependencies) != 1 || saved.Dependencies[0] != on {
		t.Fatalf("a saved file depends on %v", saved.Dependencies)
	}
	w.mustSettle(r, epoch)
	if got := w.mustRun(r.ID).Dependencies; len(got) != 1 || got[0] != on {
		t.Fatalf("the run depends on %v", got)
	}
	other := w.mustSession(w.ann)
	a := w.admission(other.ID, "", "f")
	a.Dependencies = saved.Dependencies
	want(t, third(w.Admit(ctx(t), w.ann, a)), "")
	learned, err := w.SessionDependencies(ctx(t), other.ID)
	want(t, err, "")
	equal(t, "dependencies of a session that was given the file", len(learned), 1)
}

func testAuditChain(t *testing.T, open Open) {
	w := mustWorld(t, open)
	errs := together(20, func(i int) error {
		e := w.row("run.submit")
		e.Detail = fmt.Appendf(nil, `{"n":%d}`, i)
		return w.Audit(ctx(t), e)
	})
	equal(t, "rows written", count(errs, ""), 20)
	check, err := w.VerifyAudit(ctx(t), w.project.ID)
	want(t, err, "")
	if !check.Intact || check.Rows != 20 || check.Head == "" {
		t.Fatalf("the chain reads %+v", check)
	}
	rows, err := w.AuditChain(ctx(t), w.project.ID, 0)
	want(t, err, "")
	var v workbench.AuditVerifier
	for _, e := range rows {
		if why := v.Next(e); why != "" {
			t.Fatalf("row %d: %s", e.Seq, why)
		}
	}
	_, head := v.Head()
	equal(t, "head of the exported rows", head, check.Head)
	changed := rows[7]
	changed.Outcome = "forbidden"
	var again workbench.AuditVerifier
	for _, e := range rows[:7] {
		equal(t, "verdict", again.Next(e), "")
	}
	equal(t, "verdict on a changed row", again.Next(changed) != "", true)
	equal(t, "verdict on a row that follows a missing one", again.Next(rows[8]) != "", true)

	// What is refused after its row was linked leaves no gap, in no chain.
	twice := workbench.NewID(workbench.KindAudit)
	errs = together(60, func(i int) error {
		e := w.row("run.submit")
		switch i % 4 {
		case 1:
			e.ProjectID = ""
		case 2:
			e.ID = twice // rows have different ids: one of them stays
		}
		return w.Audit(ctx(t), e)
	})
	equal(t, "rows written", count(errs, ""), 46)
	for project, more := range map[string]int64{w.project.ID: 31, "": 15} {
		before := int64(0)
		if project != "" {
			before = check.Rows
		}
		after, err := w.VerifyAudit(ctx(t), project)
		want(t, err, "")
		if !after.Intact || after.Rows != before+more {
			t.Errorf("the chain of %q reads %+v, want %d rows", project, after, before+more)
		}
	}
}

package storetest

import (
	"testing"

	"github.com/workbenchdev/workbench"
)

// testPackages: what a run installs is its own, and its session's for later runs
// and forks.
func testPackages(t *testing.T, open Open) {
	w := mustWorld(t, open)
	s, r, epoch := w.mustOut(w.ann)
	set := func(name string) workbench.PackageSet {
		return workbench.PackageSet{Manager: workbench.PackagesPip, Requested: []string{"x"}, Name: name, Bytes: 7,
			Lock: []workbench.LockedPackage{{Name: "x", Version: "1", Hash: "sha256-x"}}}
	}
	want(t, w.AddPackages(ctx(t), r.ID, epoch+1, set("a")), workbench.CodeFenced)
	want(t, w.AddPackages(ctx(t), "run_nowhere", epoch, set("a")), workbench.CodeNotFound)
	want(t, w.AddPackages(ctx(t), r.ID, epoch, set("a")), "")
	want(t, w.AddPackages(ctx(t), r.ID, epoch, set("a")), "") // again: it is there
	want(t, w.AddPackages(ctx(t), r.ID, epoch, set("b")), "")
	names := func(sets []workbench.PackageSet) (all string) {
		for _, s := range sets {
			all += s.Name
		}
		return all
	}
	equal(t, "the run's sets", names(w.mustRun(r.ID).Packages), "ab")
	equal(t, "the run's lock", len(w.mustRun(r.ID).Packages[0].Lock), 1)
	equal(t, "the session's sets", names(w.mustRead(s.ID).Packages), "ab")
	equal(t, "a lock in a session", len(w.mustRead(s.ID).Packages[0].Lock), 0)
	runs, err := w.ListRuns(ctx(t), w.ann, workbench.RunFilter{SessionID: s.ID}, workbench.Page{})
	want(t, err, "")
	equal(t, "sets in a list of runs", len(runs.Items[0].Packages), 0)
	w.mustSettle(r, epoch)
	want(t, w.AddPackages(ctx(t), r.ID, epoch, set("c")), workbench.CodeConflict)

	later := w.mustAdmit(w.ann, s.ID)
	equal(t, "sets of a run that waits", len(w.mustRun(later.ID).Packages), 0)
	w.mustDispatch(later, epoch)
	equal(t, "sets of a later run", names(w.mustRun(later.ID).Packages), "ab")
	for i := range workbench.MaxPackageSets - 2 {
		want(t, w.AddPackages(ctx(t), later.ID, epoch, set(string(rune('c'+i)))), "")
	}
	want(t, w.AddPackages(ctx(t), later.ID, epoch, set("z")), workbench.CodePackages)
	want(t, w.AddPackages(ctx(t), later.ID, epoch, set("a")), "") // which is there

	used, err := w.PackagesInUse(ctx(t))
	want(t, err, "")
	equal(t, "sets in use", len(used), workbench.MaxPackageSets)
	equal(t, "a set in use", used["a"], true)
}

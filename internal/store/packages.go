package store

import (
	"context"
	"slices"

	"github.com/workbenchdev/workbench"
)

// AddPackages notes a set that a run installed, with its run and its session: later
// runs have it too. A set that the session has already stays where it is.
//
// Errors: not_found, fenced, conflict (the run has ended), packages_refused (the
// session has as many sets as it may).
func (db *DB) AddPackages(ctx context.Context, runID string, epoch int64, set workbench.PackageSet) error {
	set.RunID = runID
	return db.write(ctx, "packages", func(t *tx) error {
		h, err := t.lockForRun(runID, epoch, 0)
		if err != nil {
			return err
		}
		var ofRun, ofSession string
		var finished int64
		if err := t.row("SELECT packages, finished_at FROM runs WHERE id = $1", runID).Scan(&ofRun, &finished); err != nil {
			return missing(err, "run")
		}
		if finished != 0 {
			return workbench.E(workbench.CodeConflict, "the run has ended").WithHint("its socket and token end with it")
		}
		if err := t.row("SELECT packages FROM sessions WHERE id = $1", h.id).Scan(&ofSession); err != nil {
			return missing(err, "session")
		}
		for _, to := range []struct{ table, id, kept string }{{"sessions", h.id, ofSession}, {"runs", runID, ofRun}} {
			var sets []workbench.PackageSet
			if err := fromJSON(to.kept, &sets); err != nil {
				return err
			}
			if slices.ContainsFunc(sets, func(s workbench.PackageSet) bool { return s.Name == set.Name }) {
				continue
			}
			if len(sets) >= workbench.MaxPackageSets {
				return workbench.E(workbench.CodePackages, "the session has %d sets of packages, which is what it may", len(sets)).
					WithHint("ask for all packages at once, or create another session")
			}
			if _, err := t.exec("UPDATE "+to.table+" SET packages = $2 WHERE id = $1", to.id, toJSON(append(sets, set))); err != nil {
				return err
			}
		}
		return nil
	})
}

// PackagesInUse are the names of the sets that sessions which have not ended have, and
// versions of series.
func (db *DB) PackagesInUse(ctx context.Context) (map[string]bool, error) {
	lists, err := all(ctx, db, func(r scanner) (sets []workbench.PackageSet, err error) {
		var kept string
		if err = r.Scan(&kept); err == nil {
			err = fromJSON(kept, &sets)
		}
		return sets, err
	}, "SELECT packages FROM sessions WHERE ended_at = 0 AND packages <> '[]' UNION ALL SELECT packages FROM runs WHERE series_id <> '' AND packages <> '[]'")
	used := map[string]bool{}
	for _, sets := range lists {
		for _, s := range sets {
			used[s.Name] = true
		}
	}
	return used, err
}

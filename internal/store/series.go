package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/workbenchdev/workbench"
)

const seriesColumns = "x.id, x.project_id, x.tenant_id, x.user_id, x.session_id, x.versions, x.published, x.created_at"

func scanSeries(s scanner) (workbench.Series, error) {
	var x workbench.Series
	var created int64
	err := s.Scan(&x.ID, &x.ProjectID, &x.TenantID, &x.UserID, &x.SessionID, &x.Versions, &x.PublishedVersion, &created)
	x.CreatedAt, x.Publications = fromMicros(created), []workbench.Publication{}
	return x, err
}

// Series reads a series with its last publications.
func (db *DB) Series(ctx context.Context, p workbench.Principal, id string) (workbench.Series, error) {
	q := newQuery("SELECT "+seriesColumns+" FROM series x WHERE ").add("x.id = ?", id).visible(p, "x", "session_id")
	x, err := one(ctx, db, "series", scanSeries, q.String(), q.args...)
	if err == nil {
		x.Publications, err = all(ctx, db, scanPublication, "SELECT "+publicationColumns+" FROM publications WHERE series_id = $1 ORDER BY number DESC LIMIT $2",
			id, workbench.MaxPublications)
	}
	return x, err
}

// ListSeries lists the series p may see, newest first, without publications.
func (db *DB) ListSeries(ctx context.Context, p workbench.Principal, pg workbench.Page) (workbench.List[workbench.Series], error) {
	l, err := newListing("series", pg)
	if err != nil {
		return workbench.List[workbench.Series]{}, err
	}
	q := newQuery("SELECT "+seriesColumns+" FROM series x WHERE 1 = 1").visible(p, "x", "session_id")
	l.newest(q, "x.id")
	found, err := all(ctx, db, scanSeries, q.String(), q.args...)
	return page(l, found, func(x workbench.Series) string { return x.ID }), err
}

const publicationColumns = "version, previous, restored, replay_id, by_user, at"

func scanPublication(s scanner) (workbench.Publication, error) {
	var p workbench.Publication
	var restored, at int64
	err := s.Scan(&p.Version, &p.PreviousVersion, &restored, &p.ReplayID, &p.By, &at)
	p.Rollback, p.At = restored != 0, fromMicros(at)
	return p, err
}

// VersionRun is a version of a series: the run, and when it was first published.
type VersionRun struct {
	workbench.Run
	Kept *time.Time
}

func scanVersion(s scanner) (VersionRun, error) {
	var kept int64
	r, err := scanRun(prefixed{s, &kept})
	return VersionRun{r, pointMicros(kept)}, err
}

// SeriesVersions lists the versions of a series, the newest first, as ListRuns does.
func (db *DB) SeriesVersions(ctx context.Context, p workbench.Principal, seriesID string, pg workbench.Page) (workbench.List[VersionRun], error) {
	none := workbench.List[VersionRun]{}
	l, err := newListing("versions", pg)
	if err != nil {
		return none, err
	}
	if _, err := db.Series(ctx, p, seriesID); err != nil {
		return none, err
	}
	q := newQuery("SELECT r.series_kept, "+listedRunColumns+" FROM runs r WHERE ").add("r.series_id = ?", seriesID).visible(p, "r", "session_id")
	l.newest(q, "r.id")
	found, err := all(ctx, db, scanVersion, q.String(), q.args...)
	return page(l, found, func(v VersionRun) string { return v.ID }), err
}

// SeriesVersion reads one version, with its sealed spec for who may read contents.
// Code: not_found, also where its receipt is gone.
func (db *DB) SeriesVersion(ctx context.Context, p workbench.Principal, seriesID string, version int64) (VersionRun, error) {
	q := newQuery("SELECT r.series_kept, "+runColumns+" FROM runs r WHERE ").add("r.series_id = ? AND r.series_version = ?", seriesID, version).visible(p, "r", "session_id")
	v, err := one(ctx, db, "version of the series", scanVersion, q.String(), q.args...)
	v.Run = hideContents(p, v.Run)
	return v, err
}

// version makes a run that is about to end a version, if it can be one: the next of
// the series that it was submitted for, or the first of its own.
func (t *tx) version(r workbench.Run, o out) (seriesID string, version int64, err error) {
	r.ContextID = o.context
	if o.reuse.Mode == workbench.ReuseOff || workbench.NotReusable(r) != "" {
		return "", 0, nil
	}
	if o.reuse.SeriesID != "" {
		err := t.row("UPDATE series SET versions = versions + 1 WHERE id = $1 RETURNING versions", o.reuse.SeriesID).Scan(&version)
		if errors.Is(err, sql.ErrNoRows) {
			return "", 0, nil // it was deleted meanwhile: the receipt says so
		}
		return o.reuse.SeriesID, version, err
	}
	id := workbench.SeriesOf(r.ID)
	_, err = t.exec(`INSERT INTO series (id, project_id, tenant_id, user_id, session_id, versions, created_at)
		SELECT CAST($2 AS TEXT), project_id, tenant_id, user_id, session_id, 1, CAST($3 AS BIGINT) FROM runs WHERE id = $1`, r.ID, id, microsOf(r.FinishedAt))
	return id, 1, err
}

// mayContinue refuses a series that p may not see. Code: not_found.
func (t *tx) mayContinue(p workbench.Principal, seriesID string) error {
	q := newQuery("SELECT 1 FROM series x WHERE ").add("x.id = ?", seriesID).visible(p, "x", "session_id")
	if _, err := scanInt(t.row(q.String(), q.args...)); err != nil {
		err = missing(err, "series")
		if workbench.HasCode(err, workbench.CodeNotFound) {
			return workbench.AsError(err).WithField("reusableRun.seriesId").WithHint("leave seriesId out to begin a new series; GET /v1/workbench/series lists those that there are")
		}
		return err
	}
	return nil
}

const replayColumns = "y.id, y.project_id, y.tenant_id, y.user_id, y.session_id, y.series_id, y.version, y.run_id, y.tools, y.verdict, y.differs, y.created_at, y.judged_at"

func scanReplay(s scanner) (workbench.Replay, error) {
	var r workbench.Replay
	var differs string
	var created, judged int64
	err := s.Scan(&r.ID, &r.ProjectID, &r.TenantID, &r.UserID, &r.SessionID, &r.SeriesID, &r.Version, &r.RunID, &r.Tools, &r.Verdict, &differs, &created, &judged)
	if err == nil {
		err = fromJSON(differs, &r.Differs)
	}
	r.Differs, r.CreatedAt, r.JudgedAt = list(r.Differs), fromMicros(created), pointMicros(judged)
	return r, err
}

// Replay reads a replay that p may see.
func (db *DB) Replay(ctx context.Context, p workbench.Principal, id string) (workbench.Replay, error) {
	q := newQuery("SELECT "+replayColumns+" FROM replays y WHERE ").add("y.id = ?", id).visible(p, "y", "session_id")
	return one(ctx, db, "replay", scanReplay, q.String(), q.args...)
}

// Replays lists those of a series, or of one version of it (0: all), newest first.
func (db *DB) Replays(ctx context.Context, p workbench.Principal, seriesID string, version int64, pg workbench.Page) (workbench.List[workbench.Replay], error) {
	none := workbench.List[workbench.Replay]{}
	l, err := newListing("replays", pg)
	if err != nil {
		return none, err
	}
	if _, err := db.Series(ctx, p, seriesID); err != nil {
		return none, err
	}
	q := newQuery("SELECT "+replayColumns+" FROM replays y WHERE ").add("y.series_id = ?", seriesID).visible(p, "y", "session_id")
	if version != 0 {
		q.add(" AND y.version = ?", version)
	}
	l.newest(q, "y.id")
	found, err := all(ctx, db, scanReplay, q.String(), q.args...)
	return page(l, found, func(r workbench.Replay) string { return r.ID }), err
}

// ReplayOf finds the replay that a run belongs to.
func (db *DB) ReplayOf(ctx context.Context, p workbench.Principal, runID string) (workbench.Replay, error) {
	q := newQuery("SELECT "+replayColumns+" FROM replays y WHERE ").add("y.run_id = ?", runID).visible(p, "y", "session_id")
	return one(ctx, db, "replay", scanReplay, q.String(), q.args...)
}

func (t *tx) insertReplay(r workbench.Replay) error {
	_, err := t.exec(`INSERT INTO replays (id, project_id, tenant_id, user_id, session_id, series_id, version, run_id, tools, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`, r.ID, r.ProjectID, r.TenantID, r.UserID, r.SessionID, r.SeriesID, r.Version, r.RunID,
		string(r.Tools), micros(r.CreatedAt))
	return err
}

// Judge records the verdict of a replay, once: it returns the one that stands.
func (db *DB) Judge(ctx context.Context, id string, v workbench.Verdict, differs []string, at time.Time) (workbench.Replay, error) {
	var r workbench.Replay
	err := db.write(ctx, "judge", func(t *tx) error {
		if _, err := t.exec("UPDATE replays SET verdict = $2, differs = $3, judged_at = $4 WHERE id = $1 AND verdict = ''",
			id, string(v), toJSON(list(differs)), micros(at)); err != nil {
			return err
		}
		var err error
		r, err = scanReplay(t.row("SELECT "+replayColumns+" FROM replays y WHERE y.id = $1", id))
		return missing(err, "replay")
	})
	return r, err
}

// PublishRecord is a change of the published version.
type PublishRecord struct {
	SeriesID string
	workbench.PublishVersion
	By string // user
	At time.Time
}

// Publish compares the series' published version with the expected one and sets
// it, in one transaction. A version is kept from its first publication on: with its
// run, and the history of its session.
//
// Errors: not_found (of series or version), version_mismatch, replay_required (no
// replay of the version has matched), conflict (of a rollback: it was never
// published, or is published now).
func (db *DB) Publish(ctx context.Context, p workbench.Principal, r PublishRecord) (workbench.Series, error) {
	err := db.write(ctx, "publish", func(t *tx) error {
		q := newQuery("SELECT "+seriesColumns+" FROM series x WHERE ").add("x.id = ?", r.SeriesID).visible(p, "x", "session_id")
		x, err := scanSeries(t.row(q.String()+t.forUpdate(), q.args...))
		if err != nil {
			return missing(err, "series")
		}
		if x.PublishedVersion != r.Expected {
			return workbench.E(workbench.CodeVersionMismatch, "%s, and the request expects %s", published(x.PublishedVersion), published(r.Expected)).
				WithField("expectedPublishedVersion").WithHint("read the series, look at what was published meanwhile, and send its publishedVersion")
		}
		version, err := t.publishable(x, r)
		if err != nil {
			return err
		}
		replay := ""
		if !r.Rollback {
			if replay, err = t.matched(x.ID, version); err != nil {
				return err
			}
		}
		at := micros(r.At)
		if _, err := t.exec("UPDATE series SET published = $2 WHERE id = $1", x.ID, version); err != nil {
			return err
		}
		if _, err := t.exec("UPDATE runs SET series_kept = $3 WHERE series_id = $1 AND series_version = $2 AND series_kept = 0", x.ID, version, at); err != nil {
			return err
		}
		if _, err := t.exec(`INSERT INTO publications (series_id, number, version, previous, restored, replay_id, by_user, at)
			SELECT CAST($1 AS TEXT), COALESCE(MAX(number), 0) + 1, CAST($2 AS BIGINT), CAST($3 AS BIGINT), CAST($4 AS BIGINT), CAST($5 AS TEXT), CAST($6 AS TEXT), CAST($7 AS BIGINT)
			FROM publications WHERE series_id = $1`, x.ID, version, x.PublishedVersion, oneOrZero(r.Rollback), replay, r.By, at); err != nil {
			return err
		}
		r.Trail.Target = x.ID
		t.audit(r.Trail)
		return nil
	})
	if err != nil {
		return workbench.Series{}, err
	}
	return db.Series(ctx, p, r.SeriesID)
}

// DeleteSeries deletes a series with its publications and replays. Its runs stay as long
// as they would have if it had not been, and are versions no longer. Code: not_found.
func (db *DB) DeleteSeries(ctx context.Context, p workbench.Principal, id string, trail workbench.AuditEntry) error {
	return db.write(ctx, "delete_series", func(t *tx) error {
		q := newQuery("SELECT x.id FROM series x WHERE ").add("x.id = ?", id).visible(p, "x", "session_id")
		if _, err := scanString(t.row(q.String()+t.forUpdate(), q.args...)); err != nil {
			return missing(err, "series")
		}
		if _, err := t.exec("UPDATE runs SET series_id = '', series_version = 0, series_kept = 0, reuse = $2 WHERE series_id = $1",
			id, workbench.MarshalReuse(workbench.ReusableRun{SeriesID: id})); err != nil {
			return err
		}
		if _, err := t.exec("DELETE FROM series WHERE id = $1", id); err != nil {
			return err
		}
		trail.Target = id
		t.audit(trail)
		return nil
	})
}

// published says which version is, in words.
func published(version int64) string {
	if version == 0 {
		return "no version is published"
	}
	return fmt.Sprintf("version %d is published", version)
}

// publishable is the version that a record means, if it is there.
func (t *tx) publishable(x workbench.Series, r PublishRecord) (int64, error) {
	version := r.Version
	if version == 0 && r.Rollback {
		err := t.row(`SELECT previous FROM publications WHERE series_id = $1 AND version = $2 AND previous <> 0 ORDER BY number DESC LIMIT 1`, x.ID, x.PublishedVersion).Scan(&version)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, workbench.E(workbench.CodeConflict, "nothing was published before").WithHint("publish a version first; rollback returns to one that was published")
		}
		if err != nil {
			return 0, err
		}
	}
	var kept int64
	err := t.row("SELECT series_kept FROM runs WHERE series_id = $1 AND series_version = $2", x.ID, version).Scan(&kept)
	switch {
	case err != nil:
		err = missing(err, "version of the series")
		if workbench.HasCode(err, workbench.CodeNotFound) {
			err = workbench.AsError(err).WithField("version").WithHint("GET /v1/workbench/series/{id}/versions lists those that there are")
		}
		return 0, err
	case version == x.PublishedVersion:
		return 0, workbench.E(workbench.CodeConflict, "version %d is published already", version).WithField("version").WithHint("nothing has to be done")
	case r.Rollback && kept == 0:
		return 0, workbench.E(workbench.CodeConflict, "version %d was never published", version).WithField("version").
			WithHint("publish it: that needs a replay that matches")
	}
	return version, nil
}

// matched is the newest replay of a version that matches. Code: replay_required.
func (t *tx) matched(seriesID string, version int64) (string, error) {
	id, err := scanString(t.row("SELECT id FROM replays WHERE series_id = $1 AND version = $2 AND verdict = 'matches' ORDER BY id DESC LIMIT 1", seriesID, version))
	if !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	return "", workbench.E(workbench.CodeReplayRequired, "no replay of version %d has matched", version).WithField("version").
		WithHint("replay it first: POST /v1/workbench/series/{id}/replays; what differs is on the replay")
}

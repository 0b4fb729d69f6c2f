package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

// PutApp makes an app, or changes one; a removed one is there again. Its tools
// stay as they are until ImportTools.
func (db *DB) PutApp(ctx context.Context, a workbench.App, trail workbench.AuditEntry) (workbench.App, error) {
	err := db.write(ctx, "app", func(t *tx) error {
		t.audit(trail)
		if _, err := t.exec(`INSERT INTO apps (project_id, name, kind, config, provider, needs_connection, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (project_id, name) DO UPDATE SET kind = $3, config = $4, provider = $5, needs_connection = $6,
			removed_at = 0, error = '', version = apps.version + 1`,
			a.ProjectID, a.Name, string(a.Kind), toJSON(a.Config), a.Provider, oneOrZero(a.NeedsConnection), micros(a.CreatedAt)); err != nil {
			return err
		}
		var err error
		a, err = scanApp(t.row(appQuery+" WHERE a.project_id = $1 AND a.name = $2", a.ProjectID, a.Name))
		return err
	})
	return a, err
}

const appQuery = "SELECT a.project_id, a.name, a.kind, a.config, a.provider, a.needs_connection, a.version, a.error, a.created_at, a.imported_at, a.removed_at FROM apps a"

func scanApp(s scanner) (workbench.App, error) {
	var a workbench.App
	var config string
	var needs, created, imported, removed int64
	if err := s.Scan(&a.ProjectID, &a.Name, &a.Kind, &config, &a.Provider, &needs, &a.Version, &a.Error, &created, &imported, &removed); err != nil {
		return a, err
	}
	a.NeedsConnection, a.CreatedAt, a.ImportedAt, a.RemovedAt = needs != 0, fromMicros(created), pointMicros(imported), pointMicros(removed)
	return a, fromJSON(config, &a.Config)
}

// App reads an app of a project; one that was removed is not_found.
func (db *DB) App(ctx context.Context, projectID, name string) (workbench.App, error) {
	return one(ctx, db, "app", scanApp, appQuery+" WHERE a.project_id = $1 AND a.name = $2 AND a.removed_at = 0", projectID, name)
}

// AppVersion is the version of an app as it is: a cheaper question than App.
func (db *DB) AppVersion(ctx context.Context, projectID, name string) (int64, error) {
	n, err := one(ctx, db, "app", scanInt, "SELECT a.version FROM apps a WHERE a.project_id = $1 AND a.name = $2 AND a.removed_at = 0", projectID, name)
	return int64(n), err
}

// Apps lists the apps of a project by name.
func (db *DB) Apps(ctx context.Context, projectID string) ([]workbench.App, error) {
	return all(ctx, db, scanApp, appQuery+" WHERE a.project_id = $1 AND a.removed_at = 0 ORDER BY a.name", projectID)
}

// RemoveApp withdraws an app and all its tools. Their versions keep their labels.
func (db *DB) RemoveApp(ctx context.Context, projectID, name string, at time.Time, trail workbench.AuditEntry) error {
	return db.write(ctx, "app", func(t *tx) error {
		n, err := t.exec("UPDATE apps SET removed_at = $3, version = version + 1 WHERE project_id = $1 AND name = $2 AND removed_at = 0", projectID, name, micros(at))
		if err != nil {
			return err
		}
		if n == 0 {
			return workbench.ErrNotFound("app")
		}
		t.audit(trail)
		_, err = t.exec("UPDATE tools SET state = 'withdrawn' WHERE project_id = $1 AND app = $2 AND state <> 'withdrawn'", projectID, name)
		return err
	})
}

// ImportTools records what an app offers now. A form that a tool has not had
// makes a version with the next label; one that it had is current again under
// the label it was given then. What the app does not offer any more is
// withdrawn. Every Tool gives App, Name, Digest and what the digest is of.
func (db *DB) ImportTools(ctx context.Context, projectID, app string, offered []workbench.Tool, at time.Time, trail workbench.AuditEntry) ([]workbench.Tool, error) {
	var now []workbench.Tool
	err := db.write(ctx, "import", func(t *tx) error {
		now = nil
		n, err := t.exec("UPDATE apps SET imported_at = $3, error = '' WHERE project_id = $1 AND name = $2 AND removed_at = 0", projectID, app, micros(at))
		if err != nil {
			return err
		}
		if n == 0 {
			return workbench.ErrNotFound("app")
		}
		t.audit(trail)
		if _, err := t.exec("UPDATE tools SET state = 'withdrawn' WHERE project_id = $1 AND app = $2", projectID, app); err != nil {
			return err
		}
		for _, tool := range offered {
			tool.ProjectID, tool.App, tool.CreatedAt = projectID, app, at
			tool, err = t.importTool(tool)
			if err != nil {
				return err
			}
			now = append(now, tool)
		}
		return nil
	})
	return now, err
}

func (t *tx) importTool(tool workbench.Tool) (workbench.Tool, error) {
	if _, err := t.exec("UPDATE tools SET state = 'superseded' WHERE project_id = $1 AND name = $2", tool.ProjectID, tool.Name); err != nil {
		return tool, err
	}
	known, err := scanTool(t.row(toolQuery+" WHERE t.project_id = $1 AND t.name = $2 AND t.digest = $3", tool.ProjectID, tool.Name, tool.Digest))
	switch {
	case err == nil:
		known.State = workbench.ToolCurrent
		_, err = t.exec("UPDATE tools SET state = 'current' WHERE project_id = $1 AND name = $2 AND digest = $3", tool.ProjectID, tool.Name, tool.Digest)
		return known, err
	case !errors.Is(err, sql.ErrNoRows):
		return tool, err
	}
	last, err := scanInt(t.row("SELECT COALESCE(MAX(version), 0) FROM tools WHERE project_id = $1 AND name = $2", tool.ProjectID, tool.Name))
	if err != nil {
		return tool, err
	}
	tool.Version, tool.State = strconv.Itoa(last+1), workbench.ToolCurrent
	_, err = t.exec(`INSERT INTO tools (project_id, name, version, app, state, description, input_schema, output_schema, annotations, digest, binding, created_at)
		VALUES ($1, $2, $3, $4, 'current', $5, $6, $7, $8, $9, $10, $11)`,
		tool.ProjectID, tool.Name, last+1, tool.App, plain(tool.Description), string(tool.InputSchema), string(tool.OutputSchema), toJSON(tool.Annotations),
		tool.Digest, string(tool.Binding), micros(tool.CreatedAt))
	return tool, err
}

// NoteImport records why an import failed; the tools stay as they were.
func (db *DB) NoteImport(ctx context.Context, projectID, app, why string) error {
	return db.write(ctx, "import", func(t *tx) error {
		_, err := t.exec("UPDATE apps SET error = $3 WHERE project_id = $1 AND name = $2", projectID, app, plain(why))
		return err
	})
}

const toolQuery = "SELECT t.project_id, t.name, t.version, t.app, t.state, t.description, t.input_schema, t.output_schema, t.annotations, t.digest, t.binding, t.created_at FROM tools t"

func scanTool(s scanner) (workbench.Tool, error) {
	var t workbench.Tool
	var version, created int64
	var input, output, annotations, binding string
	if err := s.Scan(&t.ProjectID, &t.Name, &version, &t.App, &t.State, &t.Description, &input, &output, &annotations, &t.Digest, &binding, &created); err != nil {
		return t, err
	}
	t.Version, t.CreatedAt = strconv.FormatInt(version, 10), fromMicros(created)
	t.InputSchema, t.Binding = json.RawMessage(input), json.RawMessage(binding)
	if output != "" {
		t.OutputSchema = json.RawMessage(output)
	}
	return t, fromJSON(annotations, &t.Annotations)
}

// Tool reads one version of a tool, whatever its state.
func (db *DB) Tool(ctx context.Context, projectID string, ref workbench.ToolRef) (workbench.Tool, error) {
	version, err := strconv.ParseInt(ref.Version, 10, 64)
	if err != nil {
		return workbench.Tool{}, workbench.ErrNotFound("tool")
	}
	return one(ctx, db, "tool", scanTool, toolQuery+" WHERE t.project_id = $1 AND t.name = $2 AND t.version = $3", projectID, ref.Name, version)
}

// ToolFilter narrows a list of tools. Zero fields do not filter.
type ToolFilter struct {
	App  string
	Name string // exact
	All  bool   // also versions that are not current
}

// Tools lists tools of a project by name, the youngest version first.
func (db *DB) Tools(ctx context.Context, projectID string, f ToolFilter) ([]workbench.Tool, error) {
	q := newQuery(toolQuery+" WHERE ").add("t.project_id = ?", projectID)
	if f.App != "" {
		q.add(" AND t.app = ?", f.App)
	}
	if f.Name != "" {
		q.add(" AND t.name = ?", f.Name)
	}
	if !f.All {
		q.add(" AND t.state = 'current'")
	}
	q.add(" ORDER BY t.name, t.version DESC")
	return all(ctx, db, scanTool, q.String(), q.args...)
}

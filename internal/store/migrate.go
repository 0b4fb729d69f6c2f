package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"text/template"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/failpoint"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrate brings the schema to this program's version: each migration is one
// transaction, and on PostgreSQL an advisory lock lets one server do it. A
// schema that a newer program wrote is refused, unchanged.
func migrate(ctx context.Context, db *sql.DB, d Dialect) error {
	provider, err := migrations(db, d)
	if err != nil {
		return err
	}
	current, target, err := provider.GetVersions(ctx)
	if err != nil {
		return err
	}
	if current > target {
		return workbench.E(workbench.CodeUnavailable, "the database has schema %d and this program knows schemas up to %d", current, target).
			WithHint("a newer Workbench has used this database: run that version, or restore a backup made before it")
	}
	if current == target {
		return nil
	}
	_, err = provider.Up(ctx)
	return err
}

// migrations are the program's, for a database.
func migrations(db *sql.DB, d Dialect) (*goose.Provider, error) {
	migrations, err := renderMigrations(d)
	if err != nil {
		return nil, err
	}
	options := []goose.ProviderOption{
		goose.WithGoMigrations(migrations...), goose.WithDisableGlobalRegistry(true), goose.WithTableName("schema_version"),
		goose.WithLogger(goose.NopLogger()),
	}
	dialect := goose.DialectSQLite3
	if d == Postgres {
		dialect = goose.DialectPostgres
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
		if err != nil {
			return nil, err
		}
		options = append(options, goose.WithSessionLocker(locker))
	}
	return goose.NewProvider(dialect, db, nil, options...)
}

// renderMigrations turns migrations/NNNNN_name.sql into goose migrations for
// the dialect. The files are templates: {{text}} and {{bytes}} are column
// types, {{postgres}} is a condition.
func renderMigrations(d Dialect) ([]*goose.Migration, error) {
	text, bytes := "TEXT", "BLOB"
	if d == Postgres {
		// Byte order, as SQLite has it; ids and cursors rely on it.
		text, bytes = `TEXT COLLATE "C"`, "BYTEA"
	}
	funcs := template.FuncMap{
		"text":     func() string { return text },
		"bytes":    func() string { return bytes },
		"postgres": func() bool { return d == Postgres },
	}
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var out []*goose.Migration
	for _, name := range names {
		digits, _, _ := strings.Cut(strings.TrimPrefix(name, "migrations/"), "_")
		version, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("migration %s has no number: %w", name, err)
		}
		source, err := migrationFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		t, err := template.New(name).Funcs(funcs).Parse(string(source))
		if err != nil {
			return nil, err
		}
		var b strings.Builder
		if err := t.Execute(&b, nil); err != nil {
			return nil, err
		}
		script := statements(b.String())
		out = append(out, goose.NewGoMigration(version, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			for _, statement := range script {
				if _, err := tx.ExecContext(ctx, statement); err != nil {
					return err
				}
				if err := failpoint.Hit("store.migrate.statement"); err != nil {
					return err
				}
			}
			return failpoint.Hit("store.migrate.before_commit")
		}}, nil))
	}
	return out, nil
}

// statements cuts a migration into its statements. One ends with a line that
// ends with a semicolon, a comment aside, unless that is within a PostgreSQL
// function's body.
func statements(script string) (all []string) {
	var b strings.Builder
	body := false
	for line := range strings.Lines(script) {
		b.WriteString(line)
		code, _, _ := strings.Cut(line, "--")
		if strings.Count(code, "$$")%2 == 1 {
			body = !body
		}
		if !body && strings.HasSuffix(strings.TrimSpace(code), ";") {
			all = append(all, b.String())
			b.Reset()
		}
	}
	if rest := strings.TrimSpace(b.String()); rest != "" {
		all = append(all, rest)
	}
	return all
}

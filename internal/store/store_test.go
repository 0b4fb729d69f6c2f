package store_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/store/pgtest"
	"github.com/workbenchdev/workbench/internal/store/storetest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		_ = f.Value.Set("25") // each is dozens of transactions
	}
	code := pgtest.Main(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// mustOpen opens a database that is closed with the test.
func mustOpen(t testing.TB, dsn string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), dsn, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func mustSQLite(t testing.TB) *store.DB {
	t.Helper()
	return mustOpen(t, "sqlite:"+filepath.Join(t.TempDir(), "workbench.db"))
}

func mustPostgres(t testing.TB) *store.DB {
	t.Helper()
	return mustOpen(t, pgtest.MustSchemaURL(t))
}

func TestSQLite(t *testing.T) { storetest.Run(t, mustSQLite) }

func TestPostgreSQL(t *testing.T) { storetest.Run(t, mustPostgres) }

package packages_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/packages"
)

// mustShelve puts a set on the shelf as if it had been installed, and asked for at
// this minute.
func mustShelve(t *testing.T, dir, name string, bytes int64, minute int) {
	t.Helper()
	at := filepath.Join(packages.SetsDir(dir), name)
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(workbench.PackageSet{Manager: workbench.PackagesPip, Name: name, Bytes: bytes})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(at, "lock.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "asked", "of-"+name[:1]), []byte(name), 0o600); err != nil {
		t.Fatal(err)
	}
	when := time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)
	if err := os.Chtimes(file, when, when); err != nil {
		t.Fatal(err)
	}
}

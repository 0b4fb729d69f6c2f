package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/workbenchdev/workbench/internal/sandbox"
)

// record is what a sandbox's directory says about it, for a later process of
// the instance. It is written before anything else of the sandbox exists.
type record struct {
	ID        string        `json:"id"`
	Class     sandbox.Class `json:"class"`
	StartedAt time.Time     `json:"startedAt"`
	IDRange   uint32        `json:"idRange"` // which range of host ids it is mapped to
}

// layout names the files of one sandbox.
type layout struct{ dir string }

func (l layout) record() string     { return filepath.Join(l.dir, "record.json") }
func (l layout) bundle() string     { return filepath.Join(l.dir, "bundle") }
func (l layout) config() string     { return filepath.Join(l.dir, "bundle", "config.json") }
func (l layout) pidFile() string    { return filepath.Join(l.dir, "pid") }
func (l layout) runtimeLog() string { return filepath.Join(l.dir, "runtime.log") }
func (l layout) panicLog() string   { return filepath.Join(l.dir, "panic.log") }

// runtimeRoot is where the runtime keeps its own state of this sandbox. The
// name is short because the runtime makes a socket below it.
func (l layout) runtimeRoot() string { return filepath.Join(l.dir, "r") }

// make makes the directories and writes the record.
func (l layout) make(r record) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	// Searchable, so that a mapped user can walk to the bundle.
	if err := os.Mkdir(l.dir, 0o711); err != nil {
		return err
	}
	if err := os.WriteFile(l.record(), raw, 0o600); err != nil {
		return err
	}
	if err := os.Mkdir(l.bundle(), 0o711); err != nil {
		return err
	}
	return os.Mkdir(l.runtimeRoot(), 0o700)
}

// readRecord reads a sandbox's record; what an interrupted start left may have
// none.
func readRecord(l layout) (record, error) {
	var r record
	raw, err := os.ReadFile(l.record())
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("%s: %w", l.record(), err)
	}
	return r, nil
}

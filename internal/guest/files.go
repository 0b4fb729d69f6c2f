package guest

import (
	"context"
	"io"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

type tree struct{}

func newTree() *tree { return &tree{} }

func notBuilt() error { return workbench.E(workbench.CodeNotBuilt, "not built yet") }

// Scan implements guestwire.Guest.
func (s *supervisor) Scan(context.Context, guestwire.ScanRequest, func(guestwire.Entry, io.Reader) error) (guestwire.ScanResult, error) {
	return guestwire.ScanResult{}, notBuilt()
}

// Read implements guestwire.Guest.
func (s *supervisor) Read(context.Context, guestwire.Path, func(io.Reader) error) (guestwire.Entry, error) {
	return guestwire.Entry{}, notBuilt()
}

// Write implements guestwire.Guest.
func (s *supervisor) Write(context.Context, bool, guestwire.FileSource) (guestwire.WriteResult, error) {
	return guestwire.WriteResult{}, notBuilt()
}

func transpileMain() int        { return 1 }
func shellCommand([]string) int { return 1 }

func (e *execution) transpile(context.Context, string, []byte) ([]byte, error) {
	return nil, notBuilt()
}

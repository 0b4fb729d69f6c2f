package workbench

import "time"

// Suspension is a session without a sandbox: it idled, and its next run has it
// return. Its files are those of the last commit.
type Suspension struct {
	At         time.Time `json:"at"`
	MemoryKept bool      `json:"memoryKept"`            // variables and processes return too
	Bytes      int64     `json:"memoryBytes,omitempty"` // of the kept memory, sealed
}

// Checkpoint is the kept memory of a suspended session. It belongs to one
// generation and is used once.
type Checkpoint struct {
	Blob         string   `json:"blob"`
	Bytes        int64    `json:"bytes"`
	Generation   int64    `json:"generation"`
	Memory       string   `json:"memory"`       // names what interpreters live in
	Interpreters []string `json:"interpreters"` // handles of those that may
	Head         string   `json:"head"`         // commit that its workspace is
	Binding      string   `json:"binding"`      // what its guest says it is bound to
	Base         string   `json:"base"`         // what its guest compares the workspace with
	Limits       Limits   `json:"limits"`       // it was started with
}

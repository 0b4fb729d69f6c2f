package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/sandbox"
)

// witness wraps a driver so that no step's code leaves unrecorded.
type witness struct {
	sandbox.Driver
	file string
}

// Start implements sandbox.Driver.
func (w *witness) Start(ctx context.Context, class sandbox.Class) (sandbox.Sandbox, error) {
	box, err := w.Driver.Start(ctx, class)
	if err != nil {
		return nil, err
	}
	return w.watch(box), nil
}

// Restore implements sandbox.Restorer.
func (w *witness) Restore(ctx context.Context, class sandbox.Class, dir string, vessel sandbox.Sandbox) (sandbox.Sandbox, error) {
	r, err := w.restorer()
	if err != nil {
		return nil, err
	}
	box, err := r.Restore(ctx, class, dir, vessel)
	if err != nil {
		return nil, err
	}
	return w.watch(box), nil
}

// Vessel implements sandbox.Restorer. No code leaves for one.
func (w *witness) Vessel(ctx context.Context, class sandbox.Class) (sandbox.Sandbox, error) {
	r, err := w.restorer()
	if err != nil {
		return nil, err
	}
	return r.Vessel(ctx, class)
}

func (w *witness) restorer() (sandbox.Restorer, error) {
	r, ok := w.Driver.(sandbox.Restorer)
	if !ok {
		return nil, workbench.E(workbench.CodeNotBuilt, "this driver restores no sandbox")
	}
	return r, nil
}

func (w *witness) watch(box sandbox.Sandbox) sandbox.Sandbox {
	return &witnessed{Sandbox: box, stream: &watchedStream{ReadWriteCloser: box.Stream(), file: w.file}}
}

type witnessed struct {
	sandbox.Sandbox
	stream io.ReadWriteCloser
}

// Checkpoint implements sandbox.Checkpointer.
func (w *witnessed) Checkpoint(ctx context.Context, dir string) error {
	c, ok := w.Sandbox.(sandbox.Checkpointer)
	if !ok {
		return workbench.E(workbench.CodeNotBuilt, "this driver writes no memory out")
	}
	return c.Checkpoint(ctx, dir)
}

// Stream implements sandbox.Sandbox.
func (w *witnessed) Stream() io.ReadWriteCloser { return w.stream }

// watchedStream records the id in every exec request before the request is
// written.
type watchedStream struct {
	io.ReadWriteCloser
	file string
	mu   sync.Mutex
	tail []byte // the end of what was written, for a request cut by two writes
}

var (
	execRequest = []byte(`"op":"exec","body":{"id":"`)
	idLength    = len("run_") + 26
)

// Write implements io.Writer.
func (s *watchedStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	seen := append(s.tail, p...)
	for {
		at := bytes.Index(seen, execRequest)
		if at < 0 || len(seen) < at+len(execRequest)+idLength {
			break
		}
		id := seen[at+len(execRequest):][:idLength]
		if err := record(s.file, id); err != nil {
			s.mu.Unlock()
			return 0, err
		}
		seen = seen[at+len(execRequest)+idLength:]
	}
	keep := min(len(seen), len(execRequest)+idLength-1)
	s.tail = bytes.Clone(seen[len(seen)-keep:])
	s.mu.Unlock()
	return s.ReadWriteCloser.Write(p)
}

func record(file string, id []byte) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %d\n", id, time.Now().UnixNano())
	return errors.Join(err, f.Sync(), f.Close())
}

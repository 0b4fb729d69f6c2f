package main

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/workbenchdev/workbench/internal/sandbox"
)

// watched is a driver that knows when each of its sandboxes was last spoken to:
// it tells which of them a session got.
type watched struct {
	sandbox.Driver
	mu   sync.Mutex
	last map[string]time.Time
}

func (d *watched) Start(ctx context.Context, c sandbox.Class) (sandbox.Sandbox, error) {
	box, err := d.Driver.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return &watchedBox{Sandbox: box, stream: watchedStream{ReadWriteCloser: box.Stream(), d: d, id: box.ID()}}, nil
}

// latest is the sandbox that was spoken to last.
func (d *watched) latest() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := ""
	for other, at := range d.last {
		if id == "" || at.After(d.last[id]) {
			id = other
		}
	}
	return id
}

type watchedBox struct {
	sandbox.Sandbox
	stream watchedStream
}

func (b *watchedBox) Stream() io.ReadWriteCloser { return b.stream }

type watchedStream struct {
	io.ReadWriteCloser
	d  *watched
	id string
}

func (s watchedStream) Write(p []byte) (int, error) {
	s.d.mu.Lock()
	s.d.last[s.id] = time.Now()
	s.d.mu.Unlock()
	return s.ReadWriteCloser.Write(p)
}

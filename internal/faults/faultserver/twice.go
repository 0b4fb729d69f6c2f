package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/workbenchdev/workbench/internal/sandbox"
)

// doubling starts a second sandbox beside each one and tells it, later,
// everything that the first is told, so every step runs twice. Only the first
// is heard.
type doubling struct{ sandbox.Driver }

// later is how far the second sandbox lags behind, also on a busy machine: what it is told answers what
// the first has said, and it must have said the same by then.
const later = 3 * time.Second

// Start implements sandbox.Driver.
func (d *doubling) Start(ctx context.Context, class sandbox.Class) (sandbox.Sandbox, error) {
	first, err := d.Driver.Start(ctx, class)
	if err != nil {
		return nil, err
	}
	second, err := d.Driver.Start(ctx, class)
	if err != nil {
		return nil, errors.Join(err, first.Kill(context.WithoutCancel(ctx)))
	}
	b := &doubled{Sandbox: first, second: second, told: make(chan message, 1024)}
	b.work.Go(func() { _, _ = io.Copy(io.Discard, second.Stream()) })
	b.work.Go(b.repeat)
	return b, nil
}

type doubled struct {
	sandbox.Sandbox
	second sandbox.Sandbox
	told   chan message
	work   sync.WaitGroup
}

type message struct {
	at   time.Time
	text []byte
}

// repeat tells the second sandbox what the first was told.
func (b *doubled) repeat() {
	for {
		select {
		case m := <-b.told:
			time.Sleep(time.Until(m.at.Add(later)))
			if _, err := b.second.Stream().Write(m.text); err != nil {
				return
			}
		case <-b.second.Done():
			return
		}
	}
}

// Stream implements sandbox.Sandbox.
func (b *doubled) Stream() io.ReadWriteCloser { return doubledStream{b.Sandbox.Stream(), b} }

// Kill implements sandbox.Sandbox.
func (b *doubled) Kill(ctx context.Context) error {
	err := errors.Join(b.Sandbox.Kill(ctx), b.second.Kill(ctx))
	b.work.Wait()
	return err
}

type doubledStream struct {
	io.ReadWriteCloser
	b *doubled
}

// Write implements io.Writer.
func (s doubledStream) Write(p []byte) (int, error) {
	select {
	case s.b.told <- message{time.Now(), bytes.Clone(p)}:
	case <-s.b.second.Done():
	}
	return s.ReadWriteCloser.Write(p)
}

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workbenchdev/workbench/internal/sandbox"
)

// doubling starts a second sandbox beside each one and tells it, later,
// everything that the first is told, so every step runs twice. Only the first
// is heard.
type doubling struct{ sandbox.Driver }

// What the second sandbox is told answers what the first has said, and it must
// have said as much by then: it lags behind by at least atLeast, and until it
// has, but for what is measured and may take fewer digits, and not for so long
// that the session is suspended meanwhile.
const (
	atLeast = time.Second
	atMost  = 15 * time.Second
	digits  = 512 // bytes
)

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
	b.work.Go(func() { _, _ = io.Copy(&b.answered, second.Stream()) })
	b.work.Go(b.repeat)
	return b, nil
}

type doubled struct {
	sandbox.Sandbox
	second sandbox.Sandbox
	told   chan message
	work   sync.WaitGroup

	said, answered tally // by the first, by the second
}

type message struct {
	at   time.Time
	said int64 // by the first, before
	text []byte
}

// tally counts the bytes written to it.
type tally struct{ n atomic.Int64 }

// Write implements io.Writer.
func (t *tally) Write(p []byte) (int, error) {
	t.n.Add(int64(len(p)))
	return len(p), nil
}

// repeat tells the second sandbox what the first was told.
func (b *doubled) repeat() {
	for {
		select {
		case m := <-b.told:
			time.Sleep(time.Until(m.at.Add(atLeast)))
			for time.Since(m.at) < atMost && b.answered.n.Load() < m.said-digits {
				time.Sleep(10 * time.Millisecond)
			}
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

// Read implements io.Reader.
func (s doubledStream) Read(p []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(p)
	s.b.said.n.Add(int64(n))
	return n, err
}

// Write implements io.Writer.
func (s doubledStream) Write(p []byte) (int, error) {
	select {
	case s.b.told <- message{time.Now(), s.b.said.n.Load(), bytes.Clone(p)}:
	case <-s.b.second.Done():
	}
	return s.ReadWriteCloser.Write(p)
}

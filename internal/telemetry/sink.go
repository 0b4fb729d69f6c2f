package telemetry

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// sinkBytes is how much may wait for a reader that is slow.
const sinkBytes = 1 << 20

// Sink stands between a log and a reader that may stall, such as a pipe that
// nobody empties: writing never waits. What finds no room is left out whole,
// and counted; the log says so once it moves again.
type Sink struct {
	w io.Writer

	mu      sync.Mutex
	pending bytes.Buffer
	lost    int
	closed  bool
	kick    chan struct{} // capacity 1
	done    chan struct{} // closed when the writing goroutine has ended
}

// NewSink starts a sink that writes to w until Close.
func NewSink(w io.Writer) *Sink {
	s := &Sink{w: w, kick: make(chan struct{}, 1), done: make(chan struct{})}
	go s.run()
	return s
}

// Write takes p as a whole or leaves it out as a whole. It never fails.
func (s *Sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	if s.closed || s.pending.Len()+len(p) > sinkBytes {
		s.lost++
	} else {
		s.pending.Write(p)
	}
	s.mu.Unlock()
	s.wake()
	return len(p), nil
}

// Close writes what waits, for at most a second: a stalled reader does not hold
// up the end of the process.
func (s *Sink) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.wake()
	select {
	case <-s.done:
	case <-time.After(time.Second):
	}
}

func (s *Sink) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *Sink) run() {
	defer close(s.done)
	for range s.kick {
		for {
			batch, last := s.take()
			if len(batch) > 0 {
				_, _ = s.w.Write(batch) // there is nobody to tell
				continue
			}
			if last {
				return
			}
			break
		}
	}
}

// take returns what waits, and whether nothing more will come.
func (s *Sink) take() (batch []byte, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch = bytes.Clone(s.pending.Bytes())
	s.pending.Reset()
	if s.lost > 0 {
		batch = fmt.Appendf(batch, "%d log lines were lost: whoever reads the log was too slow\n", s.lost)
		s.lost = 0
	}
	return batch, s.closed
}

package main

import (
	"io"
	"sync"
)

// screen is the terminal that both of this process's streams may show on. It
// knows whether its last line is still open, so that what this command has to
// say never sticks to the end of what a program printed.
type screen struct {
	mu   sync.Mutex
	open bool // the last line has no end yet
}

// onScreen is a stream that shows on the screen.
type onScreen struct {
	s  *screen
	to io.Writer
}

// Write shows p.
func (w onScreen) Write(p []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	n, err := w.to.Write(p)
	if n > 0 {
		w.s.open = p[n-1] != '\n' && p[n-1] != '\r'
	}
	return n, err
}

// tell writes whole lines, on a line of their own where w shows on the screen.
func tell(w io.Writer, lines string) {
	if on, ok := w.(onScreen); ok {
		on.s.mu.Lock()
		defer on.s.mu.Unlock()
		if on.s.open {
			lines = "\n" + lines
		}
		on.s.open = false
		w = on.to
	}
	_, _ = io.WriteString(w, lines) // a terminal that went away is not told about that
}

package guest

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pipe makes a pipe whose end for this process works with deadlines; the other
// end, a bare descriptor, is for a child.
func pipe(childReads bool) (mine *os.File, its int, err error) {
	own, its, err := barePipe(childReads)
	if err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(own), "pipe"), its, nil
}

// barePipe makes a pipe whose end for this process does not block.
func barePipe(childReads bool) (own, its int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, os.NewSyscallError("pipe", err)
	}
	own, its = fds[0], fds[1]
	if childReads {
		own, its = fds[1], fds[0]
	}
	if err := unix.SetNonblock(own, true); err != nil {
		_ = unix.Close(own)
		_ = unix.Close(its)
		return -1, -1, err
	}
	return own, its, nil
}

// sender is the writing end of a pipe to a process. What the pipe takes at once is
// written to the bare descriptor: the runtime, which would hear of it when the pipe
// is written and read, has no part in that. nil is one that there is not.
type sender struct {
	mu   sync.Mutex
	fd   int      // -1 once it is closed, or the file's
	file *os.File // nil until somebody has to wait
}

// pipeHolds is what an empty pipe takes without its reader, whatever its size, whole
// or not at all.
const pipeHolds = 4 << 10

// waits is the end as a file, on which writing waits and can be ended; nil once it
// is closed.
func (s *sender) waits() *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil && s.fd >= 0 {
		s.file, s.fd = os.NewFile(uintptr(s.fd), "pipe"), -1
	}
	return s.file
}

// Write writes all of p, or fails.
func (s *sender) Write(p []byte) (int, error) {
	if len(p) <= pipeHolds {
		if err := s.writeNow(p); !errors.Is(err, unix.EAGAIN) {
			return len(p), err
		}
	}
	f := s.waits()
	if f == nil {
		return 0, os.ErrClosed
	}
	return f.Write(p)
}

// writeNow writes at most pipeHolds, whole or not at all: EAGAIN where there is no
// room, or others may be writing.
func (s *sender) writeNow(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return unix.EAGAIN
	}
	for len(p) > 0 {
		n, err := unix.Write(s.fd, p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		default:
			p = p[n:]
		}
	}
	return nil
}

// writeWithin writes all of p, or fails, within some time.
func (s *sender) writeWithin(p []byte, most time.Duration) error {
	if len(p) <= pipeHolds {
		if err := s.writeNow(p); !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	f := s.waits()
	if f == nil {
		return os.ErrClosed
	}
	defer s.endWrites(time.Time{})
	s.endWrites(time.Now().Add(most))
	_, err := f.Write(p)
	return err
}

// endWrites ends writing that waits, now or at a time; the zero time lets it wait.
func (s *sender) endWrites(at time.Time) {
	s.mu.Lock()
	f := s.file
	s.mu.Unlock()
	if f != nil {
		_ = f.SetWriteDeadline(at)
	}
}

func (s *sender) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
	}
	if s.file != nil {
		s.file.Close()
	}
}

package engine

import (
	"context"
	"sync"
)

// slots bounds how many runs execute at once and shares the places fairly:
// waiting tenants take turns, whatever the length of their queues.
type slots struct {
	mu      sync.Mutex
	max     int
	free    int
	waiting map[string][]chan struct{} // by tenant, in order of arrival
	turn    []string                   // tenants with waiters, next first
}

func newSlots(n int) *slots {
	return &slots{max: n, free: n, waiting: map[string][]chan struct{}{}}
}

// tryAcquire takes a place if one is free that nobody waits for.
func (s *slots) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked()
}

func (s *slots) takeLocked() bool {
	if s.free == 0 || len(s.turn) > 0 {
		return false
	}
	s.free--
	return true
}

// acquire takes a place for the tenant, or returns the context's error.
func (s *slots) acquire(ctx context.Context, tenant string) error {
	s.mu.Lock()
	if s.takeLocked() {
		s.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	if len(s.waiting[tenant]) == 0 {
		s.turn = append(s.turn, tenant)
	}
	s.waiting[tenant] = append(s.waiting[tenant], granted)
	s.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.waiting[tenant]
	for i, c := range queue {
		if c == granted {
			s.setQueue(tenant, append(queue[:i:i], queue[i+1:]...))
			return ctx.Err()
		}
	}
	// Granted at the same moment: give the place on.
	s.releaseLocked()
	return ctx.Err()
}

// release gives a place back.
func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

func (s *slots) releaseLocked() {
	if len(s.turn) == 0 {
		s.free++
		return
	}
	tenant := s.turn[0]
	queue := s.waiting[tenant]
	next := queue[0]
	s.turn = s.turn[1:]
	if len(queue) > 1 {
		s.waiting[tenant] = queue[1:]
		s.turn = append(s.turn, tenant)
	} else {
		delete(s.waiting, tenant)
	}
	close(next)
}

func (s *slots) setQueue(tenant string, queue []chan struct{}) {
	if len(queue) > 0 {
		s.waiting[tenant] = queue
		return
	}
	delete(s.waiting, tenant)
	for i, t := range s.turn {
		if t == tenant {
			s.turn = append(s.turn[:i:i], s.turn[i+1:]...)
			return
		}
	}
}

// busy counts the places taken.
func (s *slots) busy() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.max - s.free
}

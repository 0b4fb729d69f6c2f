package store

import "sync"

// hub wakes subscribers. It holds nothing about the news itself: a woken
// subscriber reads the store.
type hub struct {
	mu     sync.Mutex
	topics map[string]map[*Subscription]struct{}
}

func newHub() *hub { return &hub{topics: map[string]map[*Subscription]struct{}{}} }

// Subscription wakes its owner after something under its topics changed.
// Wakeups coalesce and may be spurious: read, then wait, then read again.
type Subscription struct {
	C <-chan struct{} // holds at most one wakeup

	hub    *hub
	topics []string
	c      chan struct{}
}

// Subscribe wakes on RunTopic, SessionTopic and QueueTopic names, from commits
// of this server and, on PostgreSQL, of every other. Subscribe before reading
// what is waited for. The caller closes it.
func (db *DB) Subscribe(topics ...string) *Subscription {
	c := make(chan struct{}, 1)
	s := &Subscription{C: c, c: c, hub: db.hub, topics: topics}
	db.hub.mu.Lock()
	defer db.hub.mu.Unlock()
	for _, t := range topics {
		if db.hub.topics[t] == nil {
			db.hub.topics[t] = map[*Subscription]struct{}{}
		}
		db.hub.topics[t][s] = struct{}{}
	}
	return s
}

// Close ends the wakeups. C is not closed.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, t := range s.topics {
		delete(s.hub.topics[t], s)
		if len(s.hub.topics[t]) == 0 {
			delete(s.hub.topics, t)
		}
	}
}

func (s *Subscription) wake() {
	select {
	case s.c <- struct{}{}:
	default: // one is waiting already
	}
}

func (h *hub) wake(topics ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range topics {
		for s := range h.topics[t] {
			s.wake()
		}
	}
}

func (h *hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, subs := range h.topics {
		for s := range subs {
			s.wake()
		}
	}
}

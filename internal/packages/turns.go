package packages

import (
	"context"
	"slices"
	"sync"
)

// turns shares places among tenants: a free one goes to whoever has the fewest, and of
// those to the one that has waited longest since it came, or since it was given one.
// Requests of one tenant take theirs in order.
type turns struct {
	mu      sync.Mutex
	free    int
	has     map[string]int             // places, by tenant
	waiting map[string][]chan struct{} // closed with a place
	order   []string                   // tenants that wait, first who is to be next
}

func newTurns(places int) *turns {
	return &turns{free: places, has: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// take waits for a place. It returns false if ctx ends before there is one.
func (t *turns) take(ctx context.Context, tenant string) bool {
	t.mu.Lock()
	if t.free > 0 { // then nobody waits
		t.free--
		t.has[tenant]++
		t.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	if t.waiting[tenant] = append(t.waiting[tenant], turn); len(t.waiting[tenant]) == 1 {
		t.order = append(t.order, tenant)
	}
	t.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := slices.Index(t.waiting[tenant], turn)
	if at < 0 { // it was given one meanwhile
		return true
	}
	t.leave(tenant, at)
	return false
}

// leave removes one that waits.
func (t *turns) leave(tenant string, at int) {
	t.waiting[tenant] = slices.Delete(t.waiting[tenant], at, at+1)
	if len(t.waiting[tenant]) == 0 {
		delete(t.waiting, tenant)
		t.order = slices.DeleteFunc(t.order, func(of string) bool { return of == tenant })
	}
}

// give returns a place of a tenant's, and passes it on.
func (t *turns) give(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.has[tenant]--; t.has[tenant] == 0 {
		delete(t.has, tenant)
	}
	if len(t.order) == 0 {
		t.free++
		return
	}
	next := slices.MinFunc(t.order, func(a, b string) int { return t.has[a] - t.has[b] })
	turn := t.waiting[next][0]
	t.order = append(slices.DeleteFunc(t.order, func(of string) bool { return of == next }), next)
	t.leave(next, 0)
	t.has[next]++
	close(turn)
}

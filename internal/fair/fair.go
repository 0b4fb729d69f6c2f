// Package fair shares a fixed number of places among tenants.
package fair

import (
	"context"
	"slices"
	"sync"
)

// Places are given to whoever asks while any is free. Once tenants wait, one that is
// given back goes to the tenant that has the fewest, and of those to the one that has
// waited longest since it came, or since it was given one. What one tenant asks for is
// given in order.
type Places struct {
	mu      sync.Mutex
	total   int
	free    int
	has     map[string]int             // places, by tenant
	waiting map[string][]chan struct{} // closed with a place
	order   []string                   // tenants that wait, first who is to be next
}

// New makes n places, all of them free.
func New(n int) *Places {
	return &Places{total: n, free: n, has: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// Try takes a place if one is free.
func (p *Places) Try(tenant string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.try(tenant)
}

func (p *Places) try(tenant string) bool {
	if p.free == 0 { // one that is free has nobody waiting for it
		return false
	}
	p.free--
	p.has[tenant]++
	return true
}

// Acquire waits for a place. Its error is ctx's, and then no place was taken.
func (p *Places) Acquire(ctx context.Context, tenant string) error {
	p.mu.Lock()
	if p.try(tenant) {
		p.mu.Unlock()
		return nil
	}
	given := make(chan struct{})
	if p.waiting[tenant] = append(p.waiting[tenant], given); len(p.waiting[tenant]) == 1 {
		p.order = append(p.order, tenant)
	}
	p.mu.Unlock()
	select {
	case <-given:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := slices.Index(p.waiting[tenant], given); at >= 0 {
		p.leave(tenant, at)
	} else { // given at the same moment
		p.release(tenant)
	}
	return ctx.Err()
}

// leave removes one that waits.
func (p *Places) leave(tenant string, at int) {
	p.waiting[tenant] = slices.Delete(p.waiting[tenant], at, at+1)
	if len(p.waiting[tenant]) == 0 {
		delete(p.waiting, tenant)
		p.order = slices.DeleteFunc(p.order, func(of string) bool { return of == tenant })
	}
}

// Release gives a place of the tenant's back.
func (p *Places) Release(tenant string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(tenant)
}

func (p *Places) release(tenant string) {
	if p.has[tenant]--; p.has[tenant] == 0 {
		delete(p.has, tenant)
	}
	if len(p.order) == 0 {
		p.free++
		return
	}
	next := slices.MinFunc(p.order, func(a, b string) int { return p.has[a] - p.has[b] })
	given := p.waiting[next][0]
	p.order = append(slices.DeleteFunc(p.order, func(of string) bool { return of == next }), next)
	p.leave(next, 0)
	p.has[next]++
	close(given)
}

// Taken counts the places that are not free.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total - p.free
}

package identity

import (
	"sync"

	"github.com/workbenchdev/workbench"
)

// nameOf names a tenant of a project, or a user or group of a tenant.
type nameOf struct{ kind, parentID, name string }

// nameCache remembers the ids of names: a name's id never changes, so entries
// do not age. When it is full it starts again.
type nameCache struct {
	mu  sync.Mutex
	max int
	ids map[nameOf]string
}

func newNameCache(max int) *nameCache {
	return &nameCache{max: max, ids: map[nameOf]string{}}
}

// get returns the id of n, asking ensure when it is not known yet.
func (c *nameCache) get(n nameOf, ensure func() (workbench.Named, error)) (string, error) {
	c.mu.Lock()
	id, ok := c.ids[n]
	c.mu.Unlock()
	if ok {
		return id, nil
	}
	named, err := ensure()
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ids) >= c.max {
		clear(c.ids)
	}
	c.ids[n] = named.ID
	return named.ID, nil
}

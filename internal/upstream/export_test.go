package upstream

import (
	"context"
	"encoding/json"

	"github.com/workbenchdev/workbench"
)

// Target is the URL that a call of an HTTP tool would go to.
func Target(app workbench.App, tool workbench.Tool, args json.RawMessage) (string, error) {
	var b binding
	if err := json.Unmarshal(tool.Binding, &b); err != nil {
		return "", err
	}
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(args, &members); err != nil {
		return "", err
	}
	base, err := baseOf(app, b.Request.Base)
	if err != nil {
		return "", err
	}
	req, err := b.Request.build(context.Background(), base, members)
	if err != nil {
		return "", err
	}
	return req.URL.String(), nil
}

// Uses is how many calls use the sessions of a connection.
func (c *Clients) Uses(connection string, version int64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for key, s := range c.sessions {
		if key.connection == connection && key.version == version {
			n += s.uses
		}
	}
	return n
}

// Sessions is how many sessions there are.
func (c *Clients) Sessions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sessions)
}

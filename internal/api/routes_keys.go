package api

import (
	"encoding/json"
	"net/http"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/identity"
)

func keyRoutes() []Route {
	key := func(r Route) Route {
		r.Tag, r.Scope, r.Admin = "keys", workbench.ScopeManage, AdminOnly
		return r
	}
	return []Route{
		key(Route{
			Method: http.MethodPost, Pattern: base + "/keys", ID: "createKey", Action: "key.create", Summary: "Create a key",
			Description: "Needs an admin key. The secret is in the answer and nowhere else.",
			Body:        CreateKeyRequest{}, handle: createKey,
			Replies: []Reply{{Status: http.StatusCreated, Doc: "The key and its secret.", Body: CreatedKey{}, Headers: []string{"Location"}}},
			Errors:  []workbench.Code{workbench.CodeNotFound},
		}),
		key(Route{
			Method: http.MethodGet, Pattern: base + "/keys", ID: "listKeys", Summary: "List the project's keys", Params: []Param{limitParam, cursorParam},
			Replies: []Reply{ok("A page of keys, without secrets.", workbench.List[workbench.Key]{})}, handle: listKeys,
		}),
		key(Route{
			Method: http.MethodDelete, Pattern: base + "/keys/{id}", ID: "revokeKey", Target: workbench.KindKey, Action: "key.revoke", Summary: "Revoke a key",
			Description: "Takes effect with the next request. Revoking twice changes nothing. The project's last admin key is not revoked (409 conflict) unless force is true.",
			Params:      []Param{{Name: "force", Doc: "true revokes the project's last admin key too", Kind: TextParam, Enum: []string{"true", "false"}}},
			Replies:     []Reply{ok("The key, revoked.", workbench.Key{})}, handle: revokeKey,
			Errors: []workbench.Code{workbench.CodeConflict},
		}),
		key(Route{
			Method: http.MethodGet, Pattern: base + "/audit", ID: "listAudit", Summary: "Read the audit trail, newest first",
			Params: []Param{
				{Name: "action", Doc: "such as run.submit", Kind: TextParam},
				{Name: "target", Doc: "an id", Kind: TextParam},
				{Name: "tenant", Doc: "a tenant id", Kind: TextParam},
				{Name: "user", Doc: "a user id", Kind: TextParam},
				{Name: "key", Doc: "a key id", Kind: TextParam},
				sinceParam, untilParam, limitParam, cursorParam,
			},
			Replies: []Reply{ok("A page of entries.", workbench.List[workbench.AuditEntry]{})}, handle: listAudit,
		}),
		key(Route{
			Method: http.MethodGet, Pattern: base + "/audit/export", ID: "exportAudit", Action: "audit.export", Summary: "Export the audit trail, oldest first",
			Description: "One entry a line, in the order of the chain: the hash of each is over the entry and the hash before it, so that a copy can be verified without the server.",
			Params:      []Param{{Name: "after", Doc: "seq of the last entry that is known already", Kind: IntegerParam, Min: 0, Max: 1 << 53}},
			Replies:     []Reply{{Status: http.StatusOK, Doc: "The entries.", Types: []string{"application/x-ndjson"}, Event: workbench.AuditEntry{}}}, handle: exportAudit,
		}),
		key(Route{
			Method: http.MethodGet, Pattern: base + "/audit/verify", ID: "verifyAudit", Action: "audit.verify", Summary: "Verify the audit trail",
			Description: "Follows the whole chain: an entry that was changed, removed or added in the database shows.",
			Replies:     []Reply{ok("What was found.", workbench.AuditCheck{})}, handle: verifyAudit,
		}),
	}
}

func createKey(c *call) error {
	b := c.body.(*CreateKeyRequest)
	key, secret, err := c.s.o.Identity.CreateKey(c.ctx, c.p, identity.KeyRequest{
		Kind: b.Kind, Name: b.Name, Tenant: b.Tenant, User: b.User, Tenants: b.Tenants, Scopes: b.Scopes,
		SessionID: b.SessionID, Contents: b.Contents, ExpiresAt: b.ExpiresAt,
	})
	if err != nil {
		return err
	}
	c.target = key.ID
	c.w.Header().Set("Location", base+"/keys/"+key.ID)
	return c.json(http.StatusCreated, CreatedKey{Key: wholeKey(key), Secret: secret})
}

func listKeys(c *call) error {
	list, err := c.s.o.Identity.ListKeys(c.ctx, c.p, c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeList(list, wholeKey))
}

func revokeKey(c *call) error {
	key, err := c.s.o.Identity.RevokeKey(c.ctx, c.p, c.id, c.q.text("force") == "true")
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeKey(key))
}

// exportAudit writes the chain as it is when it begins, and what follows until it
// gets there.
func exportAudit(c *call) error {
	rows, err := c.s.o.Audit.AuditChain(c.ctx, c.p.ProjectID, c.q.integer("after"))
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	c.w.WriteHeader(http.StatusOK)
	for len(rows) > 0 {
		for _, e := range rows {
			line, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if _, err := c.w.Write(append(line, '\n')); err != nil {
				return nil //nolint:nilerr // the client has gone
			}
		}
		if rows, err = c.s.o.Audit.AuditChain(c.ctx, c.p.ProjectID, rows[len(rows)-1].Seq); err != nil {
			panic(http.ErrAbortHandler) // a trail that ends early must not look whole
		}
	}
	return nil
}

func verifyAudit(c *call) error {
	check, err := c.s.o.Audit.VerifyAudit(c.ctx, c.p.ProjectID)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, check)
}

func listAudit(c *call) error {
	list, err := c.s.o.Audit.ListAudit(c.ctx, c.p, workbench.AuditFilter{
		TenantID: c.q.text("tenant"), UserID: c.q.text("user"), KeyID: c.q.text("key"), Action: c.q.text("action"),
		Target: c.q.text("target"), Since: c.q.time("since"), Until: c.q.time("until"),
	}, c.q.page())
	if err != nil {
		return err
	}
	list.Items = whole(list.Items)
	return c.json(http.StatusOK, list)
}

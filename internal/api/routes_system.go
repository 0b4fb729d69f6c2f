package api

import (
	"net/http"

	"github.com/workbenchdev/workbench"
)

func systemRoutes() []Route {
	return []Route{
		{
			Method: http.MethodGet, Pattern: base + "/runtime-tiers", ID: "listRuntimeTiers", Tag: "system",
			Summary: "List the sandbox sizes", Description: "With their limits and rates, and whether this host can hold them.",
			Scope: workbench.ScopeRead, Admin: AdminReads, handle: listTiers,
			Replies: []Reply{ok("The sizes.", workbench.List[workbench.Size]{})},
		},
		{
			Method: http.MethodGet, Pattern: "/healthz", ID: "health", Tag: "system", Public: true,
			Summary: "The process answers", Description: "Looks at nothing else.", handle: health,
			Replies: []Reply{ok("It does.", Health{})},
		},
		{
			Method: http.MethodGet, Pattern: "/readyz", ID: "ready", Tag: "system", Public: true,
			Summary: "The server can take work", Description: "503 while the database does not answer, there is no sandbox image, or the server is shutting down; detail says which.", handle: ready,
			Replies: []Reply{ok("It can.", Health{})}, Errors: []workbench.Code{workbench.CodeUnavailable},
		},
		{
			Method: http.MethodGet, Pattern: "/metrics", ID: "metrics", Tag: "system", Public: true,
			Summary: "Metrics in the Prometheus text format", Description: "Counts of the server as a whole: no project, tenant, user, session or key is named.", handle: metrics,
			Replies: []Reply{{Status: http.StatusOK, Doc: "The metrics.", Types: []string{"text/plain"}}},
		},
		{
			Method: http.MethodGet, Pattern: "/openapi.json", ID: "openapi", Tag: "system", Public: true,
			Summary: "This document", handle: openapi,
			Replies: []Reply{{Status: http.StatusOK, Doc: "OpenAPI 3.1.", Body: map[string]any{}, Headers: []string{"ETag"}}},
		},
	}
}

func listTiers(c *call) error {
	return c.json(http.StatusOK, workbench.List[workbench.Size]{Items: whole(c.s.o.Engine.Sizes(c.ctx))})
}

func health(c *call) error { return c.json(http.StatusOK, Health{Status: "ok"}) }

func ready(c *call) error {
	if err := c.s.o.Engine.Ready(c.ctx); err != nil {
		why := "the server is not ready"
		if workbench.HasCode(err, workbench.CodeUnavailable) {
			why += ": " + workbench.AsError(err).Detail
		}
		return workbench.E(workbench.CodeUnavailable, "%s", why).WithHint("wait, or look at its log").Caused(err)
	}
	return c.json(http.StatusOK, Health{Status: "ok"})
}

func metrics(c *call) error {
	c.s.o.Metrics.ServeHTTP(c.w, c.r)
	return nil
}

func openapi(c *call) error {
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("ETag", c.s.documentTag)
	if c.r.Header.Get("If-None-Match") == c.s.documentTag {
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	_, err := c.w.Write(c.s.document)
	return err
}

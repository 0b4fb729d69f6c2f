package api

import (
	"net/http"
	"strings"

	"github.com/workbenchdev/workbench"
)

// Route is one operation: how it is reached, who may call it, what it takes
// and gives. The mux, the OpenAPI document, the audit trail and the tests are
// made from the same list.
type Route struct {
	Method      string
	Pattern     string // net/http pattern without the method, e.g. /v1/workbench/runs/{id}
	ID          string // operationId
	Tag         string
	Summary     string
	Description string

	Public bool            // needs no key
	Scope  workbench.Scope // what a direct or embedded key needs
	Admin  AdminRule       // what an admin key needs
	Target workbench.IDKind
	Action string // audit action; empty: only refusals are recorded

	Parts   []PathPart // of the pattern, besides {id}
	Params  []Param
	Headers []Param // request headers of the document
	Body    any     // a zero value of the JSON body's type; nil: none
	// OptionalBody lets the body be absent.
	OptionalBody bool
	// BodyBytes and BodyDepth bound the body where it may be more than others: its
	// bytes, and how deep it is nested.
	BodyBytes, BodyDepth int
	Upload               bool // the body is a file: raw, or multipart/form-data
	RawBody              bool // the body is a file: raw
	Replies              []Reply
	Errors               []workbench.Code // beyond those every route of its kind has
	// Streams marks a route that may hold its connection for long; so does the
	// parameter waitMs above 0.
	Streams bool

	handle func(*call) error
}

// PathPart is a part of a pattern that is no id of a kind.
type PathPart struct {
	Name   string
	Doc    string
	Schema string // pattern of its values
}

// Reply is one successful answer.
type Reply struct {
	Status  int
	Doc     string
	Body    any      // a zero value of the JSON body's type; nil: see Types
	Types   []string // media types of a body that is not plain JSON
	Event   any      // a zero value of the type of a stream's events
	Headers []string
}

// AdminRule says what an admin key may do with a route. An admin key acts for
// nobody: it manages, and sees metadata.
type AdminRule int

// The rules.
const (
	AdminNever    AdminRule = iota // acting as a user: never
	AdminReads                     // metadata: needs read
	AdminContents                  // contents: needs read and the grant
	AdminManages                   // close, cancel, delete: needs manage
	AdminApproves                  // decides: needs approve
	AdminOnly                      // keys and audit: admin keys with manage, and nobody else
)

// admit checks p's rights on the route. Code: forbidden.
func (r *Route) admit(p workbench.Principal) error {
	if !p.Admin() {
		if r.Admin == AdminOnly {
			return workbench.E(workbench.CodeForbidden, "only an admin key may do this").WithHint("use an admin key")
		}
		return p.Require(r.Scope)
	}
	switch r.Admin {
	case AdminNever:
		return workbench.E(workbench.CodeForbidden, "an admin key acts for nobody and cannot do this").
			WithHint("use a direct or an embedded key; POST /v1/workbench/keys makes one")
	case AdminContents:
		if !p.Contents {
			return workbench.E(workbench.CodeForbidden, "this admin key sees metadata, not contents").
				WithHint("use the owner's key, or an admin key that was created with contents")
		}
		return p.Require(workbench.ScopeRead)
	case AdminReads:
		return p.Require(workbench.ScopeRead)
	case AdminApproves:
		return p.Require(workbench.ScopeApprove)
	case AdminManages, AdminOnly:
	}
	return p.Require(workbench.ScopeManage)
}

// takes reports whether the body is a JSON object.
func (r *Route) takesJSON() bool { return r.Body != nil }

const base = "/v1/workbench"

// routes is the table. It is assembled from the files that hold the handlers.
func routes() []Route {
	var all []Route
	parts := []PathPart{contextPart, resultPart, appPart, versionPart}
	for _, group := range [][]Route{sessionRoutes(), runRoutes(), contextRoutes(), artifactRoutes(), historyRoutes(), seriesRoutes(), usageRoutes(), workspaceRoutes(), toolRoutes(), ruleRoutes(), keyRoutes(), systemRoutes()} {
		all = append(all, group...)
	}
	for i := range all {
		for _, p := range parts {
			if strings.Contains(all[i].Pattern, "{"+p.Name+"}") {
				all[i].Parts = append(all[i].Parts, p)
			}
		}
	}
	return all
}

// Routes lists every route, for tests and documents.
func Routes() []Route { return routes() }

func ok(doc string, body any) Reply {
	return Reply{Status: http.StatusOK, Doc: doc, Body: body}
}

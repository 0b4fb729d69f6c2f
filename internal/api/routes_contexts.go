package api

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/workbenchdev/workbench"
)

// CreateContextRequest is the body of POST …/contexts.
type CreateContextRequest struct {
	ID       string             `json:"id,omitempty" maxLength:"64" doc:"letters, digits and _.-, beginning with a letter, a digit or _; generated if it is left out"`
	Language workbench.Language `json:"language" doc:"javascript and typescript are the same interpreter"`
	Env      map[string]string  `json:"env,omitempty" maxProperties:"64" doc:"environment of the interpreter; sealed, never shown again"`
	Dir      string             `json:"cwd,omitempty" maxLength:"1024" doc:"where the interpreter starts: absolute, or relative to the workspace; default /mnt/files"`
}

// RestartContextRequest is the body of POST …/contexts/{context}/restart.
type RestartContextRequest struct {
	CancelActive bool `json:"cancelActive,omitempty" doc:"cancel cells that have not ended first, instead of answering 409"`
}

const contextPath = base + "/sessions/{id}/contexts/{context}"

var (
	contextPart = PathPart{Name: "context", Doc: "id of the context", Schema: "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"}
	resultPart  = PathPart{Name: "index", Doc: "index of the result, from 0", Schema: "^[0-9]{1,9}$"}
)

func contextRoutes() []Route {
	of := func(r Route) Route {
		r.Tag, r.Target = "contexts", workbench.KindSession
		if r.Pattern == "" {
			r.Pattern = contextPath
		}
		r.Errors = append(r.Errors, workbench.CodeContextNotFound)
		return r
	}
	ended := []workbench.Code{workbench.CodeSessionClosed, workbench.CodeSessionExpired, workbench.CodeRunsActive}
	return []Route{
		of(Route{
			Method: http.MethodPost, Pattern: base + "/sessions/{id}/contexts", ID: "createContext", Summary: "Create a context",
			Description: "A living interpreter: cells (runs that name it in contextId) keep their variables. The context \"default\" needs no creating. Its interpreter starts with its first cell. Creating one that is there already gives that one.",
			Scope:       workbench.ScopeExecute, Admin: AdminNever, Action: "context.create", Body: CreateContextRequest{}, handle: createContext,
			Replies: []Reply{
				{Status: http.StatusCreated, Doc: "The context.", Body: workbench.Context{}, Headers: []string{"Location"}},
				{Status: http.StatusOK, Doc: "The session has the very same one.", Body: workbench.Context{}, Headers: []string{"Location"}},
			},
			Errors: []workbench.Code{workbench.CodeContextExists, workbench.CodeQuotaExceeded, workbench.CodePathInvalid, workbench.CodeLanguageUnknown,
				workbench.CodeSessionClosed, workbench.CodeSessionExpired},
		}),
		of(Route{
			Method: http.MethodGet, Pattern: base + "/sessions/{id}/contexts", ID: "listContexts", Summary: "List a session's contexts, the first one made first",
			Scope: workbench.ScopeRead, Admin: AdminReads, handle: listContexts,
			Replies: []Reply{ok("All of them.", SessionList[workbench.Context]{})},
		}),
		of(Route{
			Method: http.MethodGet, ID: "getContext", Summary: "Read a context", Scope: workbench.ScopeRead, Admin: AdminReads, handle: getContext,
			Replies: []Reply{ok("The context.", workbench.Context{})},
		}),
		of(Route{
			Method: http.MethodDelete, ID: "deleteContext", Summary: "Delete a context", Description: "Ends its interpreter. 409 while a cell of it has not ended.",
			Scope: workbench.ScopeExecute, Admin: AdminNever, Action: "context.delete", handle: deleteContext,
			Replies: []Reply{ok("What the context was.", workbench.Context{})}, Errors: ended,
		}),
		of(Route{
			Method: http.MethodPost, Pattern: contextPath + "/restart", ID: "restartContext", Summary: "Restart a context",
			Description: "Ends its interpreter, or takes note that it was lost: the next cell starts a fresh one.",
			Scope:       workbench.ScopeExecute, Admin: AdminNever, Action: "context.restart", Body: RestartContextRequest{}, OptionalBody: true, handle: restartContext,
			Replies: []Reply{ok("The context.", workbench.Context{})}, Errors: ended,
		}),
		of(Route{
			Method: http.MethodPost, Pattern: contextPath + "/interrupt", ID: "interruptContext", Summary: "Interrupt what runs in a context",
			Description: "Cancels the cell that runs in it, as a keyboard would; variables stay if it answers. Where nothing runs, the answer says so.",
			Scope:       workbench.ScopeExecute, Admin: AdminManages, Action: "context.interrupt", Body: EmptyRequest{}, OptionalBody: true, handle: interruptContext,
			Replies: []Reply{ok("Whether something ran.", workbench.Interrupted{})},
		}),
		{
			Method: http.MethodGet, Pattern: base + "/runs/{id}/results/{index}", ID: "readRunResult", Tag: "runs", Summary: "Download one form of a result",
			Description: "The bytes of an image, a table or whatever the run showed. Ranges are supported; the answer is an attachment that no browser runs.",
			Scope:       workbench.ScopeRead, Admin: AdminContents, Target: workbench.KindRun, Action: "result.download", handle: readRunResult, Headers: rangeHeaders,
			Params:  []Param{{Name: "type", Doc: "MIME type of the form, such as image/png; may be left out where there is one only", Kind: TextParam}},
			Replies: contentReplies,
			Errors: []workbench.Code{workbench.CodeArtifactDeleted, workbench.CodeArtifactExpired, workbench.CodeRangeInvalid, workbench.CodeVersionMismatch,
				workbench.CodeCorrupt, workbench.CodeKeyUnavailable},
		},
	}
}

// contextID is the context that the path names. What is no id of one is an id
// that there is not.
func (c *call) contextID() (string, error) {
	id := c.r.PathValue(contextPart.Name)
	if workbench.CheckContextID("context", id) != nil {
		none := workbench.ErrContextNotFound()
		none.Field = ""
		return "", none
	}
	return id, nil
}

// onContext answers with what do says of the path's context.
func (c *call) onContext(do func(id string) (workbench.Context, error)) error {
	id, err := c.contextID()
	if err != nil {
		return err
	}
	k, err := do(id)
	if err != nil {
		return unnamed(err)
	}
	return c.context(http.StatusOK, k)
}

// context answers with a context and, if that can be told, where its session is:
// what was done must not be answered as failed.
func (c *call) context(status int, k workbench.Context) error {
	k.Session, _ = c.sessionRef(k.SessionID)
	return c.json(status, k)
}

// unnamed is an error about the path's context: no field is at fault.
func unnamed(err error) error {
	if e := workbench.AsError(err); e.Field == "contextId" {
		return e.WithField("")
	}
	return err
}

func createContext(c *call) error {
	b := c.body.(*CreateContextRequest)
	k, made, err := c.s.o.Engine.CreateContext(c.ctx, c.p, c.id, workbench.CreateContext{ID: b.ID, Language: b.Language, Env: b.Env, Dir: b.Dir})
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", base+"/sessions/"+c.id+"/contexts/"+k.ID)
	if !made {
		return c.context(http.StatusOK, k)
	}
	return c.context(http.StatusCreated, k)
}

func listContexts(c *call) error {
	s, err := c.s.o.Engine.Session(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	all, err := c.s.o.Engine.Contexts(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, ofSession(s, workbench.List[workbench.Context]{Items: all}))
}

func getContext(c *call) error {
	return c.onContext(func(id string) (workbench.Context, error) { return c.s.o.Engine.Context(c.ctx, c.p, c.id, id) })
}

func deleteContext(c *call) error {
	return c.onContext(func(id string) (workbench.Context, error) { return c.s.o.Engine.DeleteContext(c.ctx, c.p, c.id, id) })
}

func restartContext(c *call) error {
	b := c.body.(*RestartContextRequest)
	return c.onContext(func(id string) (workbench.Context, error) {
		return c.s.o.Engine.RestartContext(c.ctx, c.p, c.id, id, b.CancelActive)
	})
}

func interruptContext(c *call) error {
	id, err := c.contextID()
	if err != nil {
		return err
	}
	done, err := c.s.o.Engine.InterruptContext(c.ctx, c.p, c.id, id)
	if err != nil {
		return unnamed(err)
	}
	done.Context.Session, _ = c.sessionRef(c.id)
	return c.json(http.StatusOK, done)
}

func readRunResult(c *call) error {
	index, err := strconv.ParseUint(c.r.PathValue(resultPart.Name), 10, 31)
	if err != nil {
		return workbench.ErrNotFound("result").WithHint("results are numbered from 0")
	}
	mimeType := strings.ReplaceAll(c.q.text("type"), " ", "+") // a + that was not percent-encoded
	form, content, err := c.s.o.Engine.ResultForm(c.ctx, c.p, c.id, int(index), mimeType)
	if err != nil {
		return err
	}
	return c.content(form.Name, form.MIMEType, form.SHA256, content)
}

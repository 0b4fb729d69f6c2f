package upstream

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/redact"
)

const (
	// maxPages bounds the pages of a list of tools.
	maxPages = 200
	// listAge is how old the list of a session may be. A server can tell that its
	// list has changed, but not over HTTP, where nobody listens between calls, and
	// it need not.
	listAge = time.Minute
)

// listing is what a session's server offers.
type listing struct {
	turn  chan struct{} // holds one token while somebody asks
	stale atomic.Bool   // the server says that it has changed

	// Of who holds the turn:
	known   bool
	at      time.Time
	offered Imported
	digests map[string]string // by name within the app, see LocalName
	names   map[string]string // what the server calls them
}

// changed notes that the list is to be asked for again.
func (l *listing) changed() { l.stale.Store(true) }

func (c *Clients) importMCP(ctx context.Context, app workbench.App, g *Grant) (out Imported, err error) {
	err = c.withSession(ctx, app, g, func(s *session) error {
		s.listing.changed()
		return c.list(ctx, s, g, func(l *listing) {
			out = Imported{Tools: slices.Clone(l.offered.Tools), Skipped: slices.Clone(l.offered.Skipped)}
		})
	})
	return out, err
}

// withSession works with a session. One that was kept may turn out to have ended
// before anything left: then another takes its place, once.
func (c *Clients) withSession(ctx context.Context, app workbench.App, g *Grant, work func(*session) error) error {
	for first := true; ; first = false {
		s, err := c.acquire(ctx, app, g)
		if err != nil {
			return err
		}
		err = work(s)
		gone := hadEnded(err)
		hangs := app.Kind == workbench.AppMCPStdio && workbench.HasCode(err, workbench.CodeToolTimeout)
		if gone || hangs { // a program that hangs ends once nobody waits for it; others begin another one
			c.remove(s)
		}
		c.release(s)
		if !gone || !first || ctx.Err() != nil {
			return err
		}
	}
}

// callMCP asks a tool of an MCP server, if the tool still has the form that it
// was imported with.
func (c *Clients) callMCP(ctx context.Context, app workbench.App, tool workbench.Tool, args json.RawMessage, g *Grant) (a Answer, err error) {
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	err = c.withSession(ctx, app, g, func(s *session) error {
		var name, form string
		if err := c.list(ctx, s, g, func(l *listing) { name, form = l.names[tool.Local()], l.digests[tool.Local()] }); err != nil {
			return err
		}
		if form == "" || form != tool.Digest {
			return errChanged(tool, form == "")
		}
		ctx, abort := context.WithCancelCause(ctx)
		defer abort(nil)
		f := &flight{method: callTool, abort: abort, changed: s.listing.changed}
		_, err := s.mcp.CallTool(withFlight(ctx, f), &mcp.CallToolParams{Name: name, Arguments: args})
		a, err = toolAnswer(ctx, f, err)
		return err
	})
	return a, err
}

func errChanged(tool workbench.Tool, gone bool) error {
	what := "has another form now than when it was imported"
	if gone {
		what = "is not offered by its app any more, or not in a form that can be used"
	}
	return workbench.E(workbench.CodeToolChanged, "%s %s; it was not asked", tool.Name, what).
		WithHint("import the app's tools again, and configure the session for the new version")
}

// toolAnswer is what became of a tools/call.
func toolAnswer(ctx context.Context, f *flight, err error) (Answer, error) {
	l := f.landed()
	switch {
	case l.large:
		return Answer{}, errTooLarge()
	case l.reply != nil && l.reply.Error != nil:
		return Answer{}, rpcError(l.status, l.reply.Error.Code, l.reply.Error.Message)
	case l.reply != nil:
		return mcpAnswer(l.reply.Result)
	case l.status == http.StatusNotFound:
		return Answer{}, workbench.E(workbench.CodeToolUnavailable, "the session with the app was gone; nothing was done").
			WithHint("call the tool again: that begins a new session")
	case l.status != 0:
		return Answer{}, answered(l.status, "")
	case l.unread:
		return Answer{}, errUnread()
	case !l.sent:
		return Answer{}, notSent(ctx, "the app", err)
	}
	return Answer{}, lost(ctx, err)
}

func errUnread() error {
	return uncertain(workbench.E(workbench.CodeToolFailed, "the tool's answer cannot be read; it may have been done").
		WithHint("look whether it was done before asking again"), nil)
}

// rpcError is the error for a JSON-RPC error of a tool's server. Of an internal
// error nobody knows how far it came; the others say that the request was
// refused.
func rpcError(status int, code int64, message string) error {
	if code == jsonrpc.CodeInternalError || status >= 500 {
		return uncertain(workbench.E(workbench.CodeToolFailed, "the tool failed inside (%d); it may have been done: %s", code, message).
			WithHint("look whether it was done before asking again"), nil)
	}
	return workbench.E(workbench.CodeToolFailed, "the tool refused the call (%d): %s", code, message)
}

// list brings the listing up to date and shows it to look. Its error means that
// no tool was asked.
func (c *Clients) list(ctx context.Context, s *session, g *Grant, look func(*listing)) error {
	l := &s.listing
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return notSent(ctx, "the app", ctx.Err())
	}
	if stale := l.stale.Swap(false); stale || !l.known || c.now().Sub(l.at) > listAge {
		if err := c.fetchList(ctx, s, c.redactor(g)); err != nil {
			l.stale.Store(true)
			return err
		}
	}
	look(l)
	return nil
}

// LocalName is what a tool is called within its app, by what the app calls it.
func LocalName(name string) string { return strings.ReplaceAll(name, "/", ".") }

// fetchList asks for every page of the list. What a server says of its tools is
// free of the secrets that it was sent.
func (c *Clients) fetchList(ctx context.Context, s *session, red *redact.Redactor) error {
	l, in, cursor := &s.listing, newIntake(s.key.app), ""
	for page := 0; page == 0 || cursor != ""; page++ {
		if page == maxPages || in.skipped > 10*workbench.MaxToolsOfApp {
			return workbench.E(workbench.CodeToolFailed, "the app's list of tools has no end").WithHint("no tool was asked")
		}
		p, unchanged, err := askPage(ctx, s, cursor)
		if err != nil {
			return err
		}
		if unchanged && l.known {
			l.at = c.now()
			return nil
		}
		for _, t := range p.Tools {
			if t, err = red.JSON(t); err == nil {
				takeTool(in, t, p.usable)
			}
			if ctx.Err() != nil {
				return notSent(ctx, "the app", ctx.Err())
			}
		}
		cursor = p.NextCursor
	}
	l.offered, l.digests, l.names, l.known, l.at = in.done(), map[string]string{}, map[string]string{}, true, c.now()
	for _, t := range l.offered.Tools {
		if local := LocalName(t.Name); l.names[local] == "" {
			l.names[local], l.digests[local] = t.Name, Digest(s.key.app, t)
		}
	}
	return nil
}

// listPage is a page of a list, as it was on the wire: schemas keep the numbers
// they had.
type listPage struct {
	Tools      []json.RawMessage `json:"tools"`
	NextCursor string            `json:"nextCursor"`
	usable     map[string]bool   // names that the MCP client took; nil: it did not look
}

// askPage asks for one page. unchanged: the server said before for how long its
// list holds, and it still does.
func askPage(ctx context.Context, s *session, cursor string) (p listPage, unchanged bool, err error) {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	f := &flight{method: "tools/list", abort: abort, changed: s.listing.changed}
	res, err := s.mcp.ListTools(withFlight(ctx, f), &mcp.ListToolsParams{Cursor: cursor})
	l := f.landed()
	var raw json.RawMessage
	switch {
	case l.reply != nil && l.reply.Error == nil:
		raw = l.reply.Result
	case err == nil && l.reply == nil:
		unchanged, raw = true, jsonOf(res)
	default:
		return p, false, noList(ctx, l, err)
	}
	if json.Unmarshal(raw, &p) != nil {
		return p, false, workbench.E(workbench.CodeToolFailed, "the app's list of tools cannot be read").WithHint("no tool was asked")
	}
	if res != nil {
		p.usable = map[string]bool{}
		for _, t := range res.Tools {
			p.usable[t.Name] = true
		}
	}
	return p, unchanged, nil
}

// noList is why there is no list. No tool was asked.
func noList(ctx context.Context, l landing, err error) error {
	switch {
	case l.large:
		return workbench.E(workbench.CodeToolFailed, "the app's list of tools is too large").WithHint("no tool was asked")
	case l.reply != nil:
		return workbench.E(workbench.CodeToolFailed, "the app does not list its tools (%d): %s", l.reply.Error.Code, l.reply.Error.Message).
			WithHint("no tool was asked")
	case l.status == http.StatusNotFound:
		return workbench.E(workbench.CodeToolUnavailable, "the session with the app was gone; no tool was asked").
			WithHint("call the tool again: that begins a new session")
	case l.status != 0:
		return workbench.E(workbench.CodeToolUnavailable, "the app answered %d when it was asked for its tools", l.status).
			WithHint("%s", workbench.AsError(answered(l.status, "")).Hint)
	}
	return notSent(ctx, "the app", err)
}

// takeTool takes in one tool of a list.
func takeTool(in *intake, raw json.RawMessage, usable map[string]bool) {
	var t struct {
		Name         string          `json:"name"`
		Title        string          `json:"title"`
		Description  string          `json:"description"`
		InputSchema  json.RawMessage `json:"inputSchema"`
		OutputSchema json.RawMessage `json:"outputSchema"`
		Annotations  *struct {
			Title           string `json:"title"`
			ReadOnlyHint    *bool  `json:"readOnlyHint"`
			DestructiveHint *bool  `json:"destructiveHint"`
			IdempotentHint  *bool  `json:"idempotentHint"`
			OpenWorldHint   *bool  `json:"openWorldHint"`
		} `json:"annotations"`
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		in.skip(t.Name, "it is not a tool as MCP has them")
		return
	}
	if usable != nil && !usable[t.Name] {
		in.skip(t.Name, "what it says of headers is not as MCP has it")
		return
	}
	spec := workbench.ToolSpec{
		Name: t.Name, Description: t.Description, InputSchema: t.InputSchema, OutputSchema: t.OutputSchema,
		// What a tool that says nothing is taken for, in MCP.
		Annotations: workbench.ToolAnnotations{Title: t.Title, Destructive: true, OpenWorld: true},
		Binding:     binding{Kind: "mcp"}.raw(),
	}
	if string(spec.OutputSchema) == "null" {
		spec.OutputSchema = nil
	}
	if a := t.Annotations; a != nil {
		if spec.Annotations.Title == "" {
			spec.Annotations.Title = a.Title
		}
		for _, hint := range []struct {
			from *bool
			to   *bool
		}{
			{a.ReadOnlyHint, &spec.Annotations.ReadOnly}, {a.DestructiveHint, &spec.Annotations.Destructive},
			{a.IdempotentHint, &spec.Annotations.Idempotent}, {a.OpenWorldHint, &spec.Annotations.OpenWorld},
		} {
			if hint.from != nil {
				*hint.to = *hint.from
			}
		}
	}
	in.add(spec)
}

// mcpAnswer is the answer that the result of a tools/call is.
func mcpAnswer(raw json.RawMessage) (Answer, error) {
	var r struct {
		Content           []json.RawMessage `json:"content"`
		StructuredContent json.RawMessage   `json:"structuredContent"`
		IsError           bool              `json:"isError"`
		ResultType        string            `json:"resultType"`
	}
	if err := json.Unmarshal(raw, &r); err != nil || len(raw) == 0 || raw[0] != '{' {
		return Answer{}, errUnread()
	}
	if r.ResultType == "input_required" {
		return Answer{}, workbench.E(workbench.CodeToolFailed, "the tool wants to ask somebody something before it goes on; nobody is asked here").
			WithHint("the tool was not carried out; give all it needs in its arguments")
	}
	text, texts := joinText(r.Content)
	a := Answer{Failed: r.IsError}
	switch {
	case len(r.StructuredContent) > 0 && string(r.StructuredContent) != "null":
		a.Result = r.StructuredContent
	case len(r.Content) == 0:
		a.Result = json.RawMessage("null")
	case texts:
		a.Result = jsonOf(text)
	default:
		a.Result = jsonOf(r.Content)
	}
	if a.Failed {
		if a.Detail = text; text == "" {
			a.Detail = "the tool failed and does not say why"
		}
	}
	return a, nil
}

// joinText joins the texts of content, by lines, and reports whether all of it
// is text.
func joinText(content []json.RawMessage) (string, bool) {
	all := true
	var lines []string
	for _, block := range content {
		var b struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if json.Unmarshal(block, &b) != nil || b.Type != "text" || b.Text == nil {
			all = false
			continue
		}
		lines = append(lines, *b.Text)
	}
	return strings.Join(lines, "\n"), all
}

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/redact"
)

// callHTTP asks a tool of http or openapi: one request.
func (c *Clients) callHTTP(ctx context.Context, app workbench.App, tool workbench.Tool, args json.RawMessage, g *Grant) (Answer, error) {
	var b binding
	if json.Unmarshal(tool.Binding, &b) != nil || b.Kind != "http" || b.Request == nil {
		return Answer{}, workbench.E(workbench.CodeToolChanged, "%s was imported in another way; it was not asked", tool.Name).
			WithHint("import the app's tools again, and configure the session for the new version")
	}
	members := map[string]json.RawMessage{}
	if len(args) > 0 && json.Unmarshal(args, &members) != nil {
		return Answer{}, errArgument("args", "must be an object")
	}
	base, err := baseOf(app, b.Request.Base)
	if err != nil {
		return Answer{}, err
	}
	if err := g.mayGo(base); err != nil {
		return Answer{}, err
	}
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	req, err := b.Request.build(ctx, base, members)
	if err != nil {
		return Answer{}, err
	}
	f := &flight{abort: abort}
	d := door{clients: c, ctx: c.ctx, home: base, grant: g}
	resp, err := d.send(req, f, "")
	if err != nil {
		if f.landed().sent {
			return Answer{}, lost(ctx, err)
		}
		return Answer{}, notSent(ctx, "the tool's host", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return Answer{}, answered(resp.StatusCode, said(resp, c.redactor(g)))
	}
	body, err := readAll(resp.Body, workbench.MaxToolResult)
	switch {
	case errors.Is(err, errOverflow):
		return Answer{}, errTooLarge()
	case err != nil:
		return Answer{}, lost(ctx, err)
	}
	return httpAnswer(resp.Header.Get("Content-Type"), body), nil
}

// baseOf is what the paths of an app are relative to.
func baseOf(app workbench.App, server string) (*url.URL, error) {
	raw := app.Config.URL
	if raw == "" {
		raw = server
	}
	base, err := url.Parse(raw)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, errURL()
	}
	return base, nil
}

// said is the beginning of what a tool says in an answer that is not a success,
// if that is text. It is free of secrets, also of one that it was cut within.
func said(resp *http.Response, red *redact.Redactor) string {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if !isJSON(kind) && !strings.HasPrefix(kind, "text/") && kind != "" {
		return ""
	}
	var b strings.Builder
	w := red.Writer(&b)
	n, err := io.Copy(w, io.LimitReader(resp.Body, maxRefusal))
	if err == nil && n < maxRefusal {
		_ = w.Close()
	} // else the end, which may be the beginning of a secret, is left in w
	return bounded(strings.TrimSpace(b.String()), maxDetail/2)
}

// httpAnswer is the answer that a body is: JSON as it is, text as a JSON string,
// null for nothing, and anything else as bytes.
func httpAnswer(contentType string, body []byte) Answer {
	kind, _, _ := mime.ParseMediaType(contentType)
	switch {
	case len(body) == 0:
		return Answer{Result: json.RawMessage("null")}
	case isJSON(kind) && json.Valid(body):
		return Answer{Result: body}
	case isJSON(kind), strings.HasPrefix(kind, "text/"):
		return Answer{Result: jsonOf(strings.ToValidUTF8(string(body), "\uFFFD"))}
	}
	if kind == "" {
		kind = "application/octet-stream"
	}
	return Answer{Result: json.RawMessage("null"), Binary: body, MimeType: bounded(kind, 128)}
}

func isJSON(kind string) bool {
	return kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")
}

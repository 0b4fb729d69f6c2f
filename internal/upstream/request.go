package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/workbenchdev/workbench"
)

// request is how a tool becomes an HTTP request: the binding of a tool of http
// or openapi.
type request struct {
	Method string      `json:"method"`
	Base   string      `json:"base,omitempty"` // of openapi: the document's server, for an app without a URL
	Path   string      `json:"path"`           // with {placeholders}
	Params []parameter `json:"params,omitempty"`
	// Rest is where arguments without a parameter go: query or body (each a member
	// of a JSON object); "": there are none.
	Rest string `json:"rest,omitempty"`
	// Body is the argument that is the whole JSON body, if there is one.
	Body string `json:"body,omitempty"`
}

// parameter is one argument's place.
type parameter struct {
	Arg  string `json:"arg"`
	Name string `json:"name"` // there
	In   string `json:"in"`   // path, query, header or body
	// Style is how an array or object is written in a query: "" (the name
	// again for each item), "," " " or "|" (items with that between them),
	// "deep" (name[key]) or "json".
	Style string `json:"style,omitempty"`
}

// Places of arguments.
const (
	inPath   = "path"
	inQuery  = "query"
	inHeader = "header"
	inBody   = "body"
)

// build makes the request of a call. An argument becomes a piece of the path, a
// value of the query or a header, or part of the body, and nothing else: none
// can change where the request goes. Code arguments_invalid.
func (r *request) build(ctx context.Context, base *url.URL, args map[string]json.RawMessage) (*http.Request, error) {
	header, query, body := http.Header{}, url.Values{}, map[string]json.RawMessage{}
	pieces := map[string]string{}
	for _, p := range r.Params {
		v, given := args[p.Arg]
		if !given || string(v) == "null" && p.In != inBody {
			continue
		}
		var err error
		switch p.In {
		case inPath:
			pieces[p.Name], err = pathPiece(p.Arg, v)
		case inQuery:
			err = addQuery(query, p, v)
		case inHeader:
			err = addHeader(header, p, v)
		default:
			body[p.Name] = v
		}
		if err != nil {
			return nil, err
		}
	}
	for name, v := range args {
		if name == r.Body || slices.ContainsFunc(r.Params, func(p parameter) bool { return p.Arg == name }) {
			continue
		}
		switch r.Rest {
		case inQuery:
			if err := addQuery(query, parameter{Arg: name, Name: name}, v); err != nil {
				return nil, err
			}
		case inBody:
			body[name] = v
		default:
			return nil, errArgument("args."+name, "is not a known argument")
		}
	}
	target, err := r.target(base, pieces)
	if err != nil {
		return nil, err
	}
	target.RawQuery = query.Encode()
	return r.assemble(ctx, target, header, r.payload(args, body))
}

// payload is the JSON body; nil if there is none.
func (r *request) payload(args, members map[string]json.RawMessage) []byte {
	if r.Body != "" {
		return args[r.Body]
	}
	takes := r.Rest == inBody || slices.ContainsFunc(r.Params, func(p parameter) bool { return p.In == inBody })
	if !takes || len(members) == 0 && r.Method == http.MethodDelete {
		return nil
	}
	return jsonOf(members)
}

func (r *request) assemble(ctx context.Context, target *url.URL, header http.Header, payload []byte) (*http.Request, error) {
	var body io.Reader
	if payload != nil {
		body = bytes.NewReader(payload)
		header.Set("Content-Type", "application/json")
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, target.String(), body)
	if err != nil {
		return nil, workbench.E(workbench.CodeArgumentsInvalid, "the arguments do not make a request").Caused(err)
	}
	if header.Get("Accept") == "" {
		header.Set("Accept", "application/json, text/*;q=0.9, */*;q=0.8")
	}
	req.Header = header
	return req, nil
}

// target is where the request goes: the base and the path, with the pieces in
// place of their placeholders.
func (r *request) target(base *url.URL, pieces map[string]string) (*url.URL, error) {
	path := strings.TrimSuffix(base.EscapedPath(), "/")
	for _, segment := range strings.Split(strings.TrimPrefix(r.Path, "/"), "/") {
		filled, err := fill(segment, pieces)
		if err != nil {
			return nil, err
		}
		path += "/" + filled
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return nil, workbench.E(workbench.CodeArgumentsInvalid, "the arguments do not make a path")
	}
	return &url.URL{Scheme: base.Scheme, Host: base.Host, Path: plain, RawPath: path}, nil
}

// fill puts pieces into one segment of a path.
func fill(segment string, pieces map[string]string) (string, error) {
	var b strings.Builder
	filled := false
	for {
		text, rest, ok := strings.Cut(segment, "{")
		b.WriteString(escapeSegment(text))
		if !ok {
			break
		}
		name, rest, ok := strings.Cut(rest, "}")
		if !ok {
			return "", workbench.E(workbench.CodeInvalidRequest, "the path has an open placeholder")
		}
		piece, given := pieces[name]
		if !given {
			return "", errArgument("args."+name, "is required")
		}
		b.WriteString(url.PathEscape(piece))
		segment, filled = rest, true
	}
	if whole, err := url.PathUnescape(b.String()); filled && (err != nil || whole == "." || whole == "..") {
		return "", errArgument("args", "make a step in the path")
	}
	return b.String(), nil
}

// escapeSegment escapes what a declared path may not hold as it is.
func escapeSegment(s string) string {
	plain, err := url.PathUnescape(s)
	if err != nil {
		plain = s
	}
	return strings.ReplaceAll((&url.URL{Path: plain}).EscapedPath(), "/", "%2F")
}

// pathPiece is the text of an argument in a path. It is never empty and has no
// steps (. and ..), whatever a server takes for a separator.
func pathPiece(arg string, v json.RawMessage) (string, error) {
	text, ok := scalar(v)
	if !ok {
		return "", errArgument("args."+arg, "must be a text, a number or a boolean: it becomes part of a path")
	}
	for _, step := range strings.FieldsFunc(text, func(r rune) bool { return r == '/' || r == '\\' }) {
		if step == "." || step == ".." {
			return "", errArgument("args."+arg, "must not have . or .. as a step: it becomes part of a path")
		}
	}
	if text == "" || !headerValue(text) {
		return "", errArgument("args."+arg, "must not be empty or have control characters: it becomes part of a path")
	}
	return text, nil
}

// scalar is the text of a string, number or boolean.
func scalar(v json.RawMessage) (string, bool) {
	if len(v) == 0 {
		return "", false
	}
	switch v[0] {
	case '"':
		var s string
		err := json.Unmarshal(v, &s)
		return s, err == nil
	case '{', '[', 'n':
		return "", false
	}
	return string(v), true
}

// scalars are the texts of a list of them.
func scalars(v json.RawMessage) ([]string, bool) {
	var items []json.RawMessage
	if len(v) == 0 || v[0] != '[' || json.Unmarshal(v, &items) != nil {
		return nil, false
	}
	texts := make([]string, len(items))
	for i, item := range items {
		text, ok := scalar(item)
		if !ok {
			return nil, false
		}
		texts[i] = text
	}
	return texts, true
}

// addQuery adds an argument to a query. What has no other way there is written
// as JSON.
func addQuery(q url.Values, p parameter, v json.RawMessage) error {
	text, one := scalar(v)
	texts, list := scalars(v)
	switch {
	case string(v) == "null":
	case p.Style == "json":
		q.Add(p.Name, string(v))
	case one:
		q.Add(p.Name, text)
	case p.Style == "deep":
		return addMembers(q, p, v)
	case list && p.Style == "":
		q[p.Name] = append(q[p.Name], texts...)
	case list:
		q.Add(p.Name, strings.Join(texts, p.Style))
	default:
		q.Add(p.Name, string(v))
	}
	return nil
}

// addMembers adds an object to a query, member by member: name[key]=value.
func addMembers(q url.Values, p parameter, v json.RawMessage) error {
	var members map[string]json.RawMessage
	if json.Unmarshal(v, &members) != nil {
		return errArgument("args."+p.Arg, "must be an object: it becomes part of a query")
	}
	for key, member := range members {
		text, ok := scalar(member)
		if !ok {
			return errArgument("args."+p.Arg, "must hold texts, numbers and booleans alone: it becomes part of a query")
		}
		q.Add(p.Name+"["+key+"]", text)
	}
	return nil
}

// addHeader adds an argument as a header.
func addHeader(h http.Header, p parameter, v json.RawMessage) error {
	if !headerName(p.Name) || reserved(p.Name) {
		return errArgument("args."+p.Arg, "cannot be sent: its header is not an argument's to set")
	}
	text, one := scalar(v)
	if texts, list := scalars(v); list {
		text = strings.Join(texts, ",")
	} else if !one {
		return errArgument("args."+p.Arg, "must be a text, a number, a boolean or a list of them: it becomes a header")
	}
	if !headerValue(text) {
		return errArgument("args."+p.Arg, "must not have control characters: it becomes a header")
	}
	h.Set(p.Name, text)
	return nil
}

func errArgument(field, what string) error {
	return workbench.E(workbench.CodeArgumentsInvalid, "%s %s", field, what).WithField(field).
		WithHint("nothing was sent; the tool's input schema says what it takes")
}

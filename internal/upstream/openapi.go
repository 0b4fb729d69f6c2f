package upstream

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/workbenchdev/workbench"
)

const (
	// maxDocument bounds, in bytes, an OpenAPI document, and maxDocumentDepth how
	// deep its values are nested.
	maxDocument      = 4 * 1024 * 1024
	maxDocumentDepth = 200
)

func errDocument(what string) *workbench.Error {
	return workbench.E(workbench.CodeSchemaInvalid, "config.document %s", what).WithField("config.document")
}

// importOpenAPI makes tools of the operations of an OpenAPI document.
//
// Each operation is one, named by its operationId (with _ for what a tool's name
// cannot have), or by its method and path. Its parameters are arguments of their
// own names; one whose name another has, in another place, gets that place before
// it (query_id). The JSON body of its request is the one argument "body", or
// "requestBody" where a parameter has that name. What cannot be expressed is
// skipped, with the reason.
func importOpenAPI(app workbench.App) (Imported, error) {
	doc, err := loadDocument(app.Config.Document)
	if err != nil {
		return Imported{}, err
	}
	base := ""
	if app.Config.URL != "" {
		if err := checkURL(app, true); err != nil {
			return Imported{}, err
		}
	} else if base, err = serverOf(app, doc); err != nil {
		return Imported{}, err
	}
	in := newIntake(app.Name)
	paths := doc.Paths.Map()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item := paths[path]
		if item == nil {
			continue
		}
		operations := item.Operations()
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			o := operation{doc: doc, path: path, method: method, item: item, op: operations[method], base: base}
			if o.op == nil {
				continue
			}
			spec, why := o.tool()
			if why != "" {
				in.skip(method+" "+path, why)
				continue
			}
			in.add(spec)
		}
	}
	if len(in.out.Tools) == 0 {
		e := errDocument("has no operation that can be a tool")
		if len(in.out.Skipped) > 0 {
			e = e.WithHint("the first that was left out: %s", in.out.Skipped[0])
		}
		return Imported{}, e
	}
	return in.done(), nil
}

// loadDocument reads an OpenAPI document, all by itself: a reference to anything
// outside of it is refused, and nothing is fetched.
func loadDocument(raw json.RawMessage) (doc *openapi3.T, err error) {
	defer func() {
		if recover() != nil {
			doc, err = nil, errDocument("cannot be read")
		}
	}()
	if len(raw) == 0 {
		return nil, errConfig("config.document", "must be an OpenAPI document")
	}
	if len(raw) > maxDocument {
		return nil, errDocument("is too large").WithHint("documents have at most %d bytes", maxDocument)
	}
	plain, err := decode(raw, maxDocumentDepth)
	if err != nil {
		return nil, errDocument(err.Error())
	}
	top, _ := plain.(map[string]any)
	version, _ := top["openapi"].(string)
	if !strings.HasPrefix(version, "3.0.") && !strings.HasPrefix(version, "3.1.") {
		return nil, errDocument("must be of OpenAPI 3.0 or 3.1")
	}
	if where := place(plain, true, "$ref"); where != "" {
		return nil, errDocument("refers to something outside of it, at " + where).
			WithHint("put what it refers to into the document, under components")
	}
	doc, err = openapi3.NewLoader().LoadFromData(raw) // without external references
	if err != nil {
		return nil, errDocument("cannot be read").WithHint("%s", bounded(err.Error(), 300)).Caused(err)
	}
	return doc, nil
}

// serverOf is the document's first server.
func serverOf(app workbench.App, doc *openapi3.T) (string, error) {
	missing := errConfig("config.url", "is needed: the document names no server with a whole URL")
	if len(doc.Servers) == 0 || doc.Servers[0] == nil {
		return "", missing
	}
	server := doc.Servers[0]
	raw := server.URL
	for name, v := range server.Variables {
		if v != nil {
			raw = strings.ReplaceAll(raw, "{"+name+"}", v.Default)
		}
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return "", missing
	}
	app.Config.URL = raw
	if err := checkURL(app, true); err != nil {
		return "", workbench.AsError(err).WithHint("this is of the document's first server; config.url takes its place")
	}
	return raw, nil
}

// operation is one operation of a document on its way to a tool.
type operation struct {
	doc          *openapi3.T
	path, method string
	item         *openapi3.PathItem
	op           *openapi3.Operation
	base         string
}

// tool makes a tool of the operation, or says why it cannot be one.
func (o operation) tool() (workbench.ToolSpec, string) {
	none := workbench.ToolSpec{}
	if !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, o.method) {
		return none, "its method is not supported"
	}
	if o.base != "" && (o.op.Servers != nil && len(*o.op.Servers) > 0 || len(o.item.Servers) > 0) {
		return none, "it has a server of its own; set config.url"
	}
	placeholders, err := placeholdersOf(o.path)
	if err != nil {
		return none, "its " + err.Detail
	}
	b := &request{Method: o.method, Base: o.base, Path: o.path}
	schema := newObjectSchema(o.doc)
	if why := o.parameters(b, schema); why != "" {
		return none, why
	}
	for _, name := range placeholders {
		if !slices.ContainsFunc(b.Params, func(p parameter) bool { return p.In == inPath && p.Name == name }) {
			return none, "its path has a placeholder that is no parameter"
		}
	}
	if why := o.body(b, schema); why != "" {
		return none, why
	}
	input, why := schema.finish()
	if why != "" {
		return none, why
	}
	annotations := byMethod(o.method)
	annotations.Title = bounded(o.op.Summary, 256)
	return workbench.ToolSpec{
		Name: o.name(), Description: o.description(), InputSchema: input,
		Annotations: annotations, Binding: binding{Kind: "http", Request: b}.raw(),
	}, ""
}

func (o operation) name() string {
	name := o.op.OperationID
	if name == "" {
		name = strings.ToLower(o.method) + "_" + strings.Trim(strings.NewReplacer("/", "_", "{", "", "}", "").Replace(o.path), "_")
	}
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(toolLetters, r) {
			return r
		}
		return '_'
	}, name)
}

func (o operation) description() string {
	text := o.op.Description
	if text == "" {
		text = o.op.Summary
	}
	return bounded(text, workbench.MaxToolDescription)
}

// parameters takes in the parameters of the operation and the path: the
// operation's win, and those of the path keep their names.
func (o operation) parameters(b *request, schema *objectSchema) string {
	var all []*openapi3.Parameter
	for _, list := range []openapi3.Parameters{o.op.Parameters, o.item.Parameters} {
		for _, ref := range list {
			if ref == nil || ref.Value == nil {
				return "a parameter of it is missing"
			}
			same := func(p *openapi3.Parameter) bool { return p.In == ref.Value.In && p.Name == ref.Value.Name }
			if !slices.ContainsFunc(all, same) {
				all = append(all, ref.Value)
			}
		}
	}
	slices.SortStableFunc(all, func(x, y *openapi3.Parameter) int {
		return cmp.Compare(places[x.In], places[y.In])
	})
	for _, p := range all {
		if why := takeParameter(b, schema, p); why != "" {
			return why
		}
	}
	return ""
}

var places = map[string]int{inPath: -1}

func takeParameter(b *request, schema *objectSchema, p *openapi3.Parameter) string {
	style, why := styleOf(p)
	switch {
	case p.In == "cookie", p.In == inHeader && (!headerName(p.Name) || reserved(p.Name) || strings.EqualFold(p.Name, "accept")):
		why = "it needs a " + p.In + " that no argument may set"
		if !p.Required || p.In == inHeader {
			return "" // left out: OpenAPI has such headers ignored
		}
	}
	if why != "" {
		return why
	}
	arg := p.Name
	if schema.has(arg) {
		arg = p.In + "_" + p.Name
	}
	if schema.has(arg) {
		return "two of its parameters have one name"
	}
	value := p.Schema
	if media := p.Content.Get("application/json"); value == nil && media != nil {
		value = media.Schema
	}
	if why := schema.add(arg, value, p.Description, p.Required || p.In == inPath); why != "" {
		return why
	}
	b.Params = append(b.Params, parameter{Arg: arg, Name: p.Name, In: p.In, Style: style})
	return ""
}

// styleOf is how a parameter is written, if that can be done.
func styleOf(p *openapi3.Parameter) (style, why string) {
	const other = "a parameter of it is written in a way that is not supported"
	if p.Schema == nil && len(p.Content) > 0 {
		if p.Content.Get("application/json") == nil || p.In != inQuery {
			return "", other
		}
		return "json", ""
	}
	switch p.In {
	case inPath, inHeader:
		if p.Style != "" && p.Style != "simple" {
			return "", other
		}
	case inQuery:
		explode := p.Explode == nil || *p.Explode
		switch p.Style {
		case "", "form":
			if !explode {
				return ",", ""
			}
		case "spaceDelimited":
			return " ", ""
		case "pipeDelimited":
			return "|", ""
		case "deepObject":
			return "deep", ""
		default:
			return "", other
		}
	case "cookie":
	default:
		return "", "a parameter of it is in a place that is not known"
	}
	return "", ""
}

// body takes in the request's body.
func (o operation) body(b *request, schema *objectSchema) string {
	if o.op.RequestBody == nil {
		return ""
	}
	body := o.op.RequestBody.Value
	if body == nil {
		return "its request body is missing"
	}
	var media *openapi3.MediaType
	for _, kind := range slices.Sorted(maps.Keys(body.Content)) {
		if plain, _, _ := strings.Cut(kind, ";"); media == nil && isJSON(strings.TrimSpace(strings.ToLower(plain))) {
			media = body.Content[kind]
		}
	}
	if media == nil {
		if !body.Required {
			return "" // it is left out
		}
		return "its request body is not JSON"
	}
	b.Body = "body"
	if schema.has(b.Body) {
		b.Body = "requestBody"
	}
	if schema.has(b.Body) {
		return "two of its parameters have the name of its body"
	}
	return schema.add(b.Body, media.Schema, body.Description, body.Required)
}

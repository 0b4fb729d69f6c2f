package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/identity"
)

// Document is the OpenAPI 3.1 document of every route: the same bytes for the
// same routes and version.
func Document(version string) []byte {
	if version == "" {
		version = "0.1.0"
	}
	b := documenter{registry: newRegistry()}
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Workbench", Version: version,
			Description: "A safe and disposable computer for agents: sessions, runs, retained files. " +
				"JSON is camelCase, times are RFC 3339 in UTC, durations are milliseconds. Every error is application/problem+json with a code from a closed list. " +
				"A program that fails is a receipt, not an error.",
			License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
		},
		Servers:  []*huma.Server{{URL: "/"}},
		Security: []map[string][]string{{"key": {}}},
		Tags: []*huma.Tag{
			{Name: "sessions", Description: "Computers for one identity."},
			{Name: "runs", Description: "Code and its receipts."},
			{Name: "contexts", Description: "Living interpreters of a session: what a cell defines is there for the next one."},
			{Name: "artifacts", Description: "Retained files."},
			{Name: "workspace", Description: "The files of a session as they are now."},
			{Name: "history", Description: "Commits of a session's workspace: to read, compare, go back to and fork."},
			{Name: "series", Description: "Programs that can be run again: versions, replays, publications."},
			{Name: "usage", Description: "What was used, and what it costs."},
			{Name: "tools", Description: "Governed tools: where they come from, connections, rules, receipts and approvals."},
			{Name: "keys", Description: "API keys and the audit trail; for admin keys."},
			{Name: "system", Description: "The server itself."},
		},
		Components: &huma.Components{
			Schemas: b.registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{"key": {
				Type: "http", Scheme: "bearer", Description: "An API key: wbk_… An embedded key also needs " + identity.TenantHeader + " and " + identity.EndUserHeader + ".",
			}},
			Parameters: identityParameters(),
			Headers:    replyHeaders(),
		},
	}
	b.problem = b.ref(Problem{})
	for _, r := range routes() {
		doc.AddOperation(b.operation(r))
	}
	b.openReplies()
	describe(b.registry.Map())
	raw, err := json.Marshal(doc)
	if err != nil {
		panic("api: the document does not marshal: " + err.Error())
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		panic("api: the document is not JSON: " + err.Error())
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func etagOf(b []byte) string {
	sum := sha256.Sum256(b)
	return strconv.Quote(hex.EncodeToString(sum[:16]))
}

type documenter struct {
	registry huma.Registry
	problem  *huma.Schema
	requests []*huma.Schema // of JSON bodies
}

func (b *documenter) ref(v any) *huma.Schema {
	t := reflect.TypeOf(v)
	return b.registry.Schema(t, true, t.Name())
}

func (b *documenter) operation(r Route) *huma.Operation {
	op := &huma.Operation{
		Method: r.Method, Path: r.Pattern, OperationID: r.ID, Tags: []string{r.Tag}, Summary: r.Summary, Description: description(r),
		Responses: map[string]*huma.Response{},
	}
	if r.Public {
		op.Security = []map[string][]string{}
	}
	if strings.Contains(r.Pattern, "{id}") {
		op.Parameters = append(op.Parameters, &huma.Param{Name: "id", In: "path", Required: true, Description: "id of the " + kindNames[r.Target],
			Schema: &huma.Schema{Type: huma.TypeString, Pattern: "^" + string(r.Target) + "_[0-9a-z]{26}$"}})
	}
	for _, p := range r.Parts {
		op.Parameters = append(op.Parameters, &huma.Param{Name: p.Name, In: "path", Required: true, Description: p.Doc,
			Schema: &huma.Schema{Type: huma.TypeString, Pattern: p.Schema}})
	}
	for _, p := range r.Params {
		op.Parameters = append(op.Parameters, p.document("query"))
	}
	for _, p := range r.Headers {
		op.Parameters = append(op.Parameters, p.document("header"))
	}
	if !r.Public {
		for _, name := range []string{"tenant", "endUser", "group"} {
			op.Parameters = append(op.Parameters, &huma.Param{Ref: "#/components/parameters/" + name})
		}
	}
	op.RequestBody = b.requestBody(r)
	for _, reply := range r.Replies {
		op.Responses[strconv.Itoa(reply.Status)] = b.response(reply)
	}
	b.problems(r, op)
	return op
}

// description says in words what the key needs.
func description(r Route) string {
	d := r.Description
	if r.Public {
		return strings.TrimSpace(d + " Needs no key.")
	}
	if r.Admin == AdminOnly {
		return strings.TrimSpace(d + " Needs an admin key with the scope manage.")
	}
	d += fmt.Sprintf(" Needs the scope %s.", r.Scope)
	switch r.Admin {
	case AdminNever:
		d += " Not for admin keys."
	case AdminContents:
		d += " Admin keys need the grant to read contents."
	case AdminManages:
		d += " Admin keys need manage."
	case AdminApproves:
		d += " Admin keys need it too."
	case AdminReads, AdminOnly:
	}
	return strings.TrimSpace(d)
}

func (p Param) document(in string) *huma.Param {
	s := &huma.Schema{Type: huma.TypeString}
	switch p.Kind {
	case IntegerParam:
		s.Type, s.Format = huma.TypeInteger, "int64"
		low, high := float64(p.Min), float64(p.Max)
		s.Minimum, s.Maximum = &low, &high
	case TimeParam:
		s.Format = "date-time"
	case TextParam:
		for _, v := range p.Enum {
			s.Enum = append(s.Enum, v)
		}
	}
	if p.Repeat {
		s = &huma.Schema{Type: huma.TypeArray, Items: s}
	}
	return &huma.Param{Name: p.Name, In: in, Description: p.Doc, Required: p.Required, Schema: s}
}

func (b *documenter) requestBody(r Route) *huma.RequestBody {
	switch {
	case r.Upload:
		binary := &huma.Schema{Type: huma.TypeString, Format: "binary"}
		text := &huma.Schema{Type: huma.TypeString}
		return &huma.RequestBody{Required: true, Description: "The file.", Content: map[string]*huma.MediaType{
			"*/*": {Schema: binary},
			"multipart/form-data": {Schema: &huma.Schema{Type: huma.TypeObject, Required: []string{"file"}, AdditionalProperties: false,
				Properties: map[string]*huma.Schema{"name": text, "path": text, "file": binary}}},
		}}
	case r.RawBody:
		return &huma.RequestBody{Required: true, Description: "The file.", Content: map[string]*huma.MediaType{"*/*": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}}
	case r.takesJSON():
		schema := b.ref(r.Body)
		b.requests = append(b.requests, schema)
		return &huma.RequestBody{Required: !r.OptionalBody, Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}
	}
	return nil
}

func (b *documenter) response(reply Reply) *huma.Response {
	out := &huma.Response{Description: reply.Doc, Headers: map[string]*huma.Param{requestIDHeader: {Ref: "#/components/headers/" + requestIDHeader}}}
	for _, name := range reply.Headers {
		out.Headers[name] = &huma.Param{Ref: "#/components/headers/" + name}
	}
	out.Content = map[string]*huma.MediaType{}
	if reply.Body != nil {
		schema := &huma.Schema{Type: huma.TypeObject}
		if _, free := reply.Body.(map[string]any); !free {
			schema = b.ref(reply.Body)
		}
		out.Content["application/json"] = &huma.MediaType{Schema: schema}
	}
	for _, t := range reply.Types {
		schema := &huma.Schema{Type: huma.TypeString}
		switch t {
		case octetStream:
			schema.Format = "binary"
			t = "*/*" // the type the file was declared to have
		case tarType:
			schema.Format = "binary"
		case sseType, ndjsonType:
			// A string on the wire; its data lines, or its lines, are Events.
			schema.Extensions = map[string]any{"x-item-schema": b.ref(reply.Event)}
		}
		out.Content[t] = &huma.MediaType{Schema: schema}
	}
	return out
}

// problems documents every status an error of the route can have, with the
// codes behind it.
func (b *documenter) problems(r Route, op *huma.Operation) {
	codes := append([]workbench.Code{workbench.CodeInternal}, r.Errors...)
	if !r.Public {
		codes = append(codes, workbench.CodeUnauthenticated, workbench.CodeForbidden, workbench.CodeInvalidRequest, workbench.CodeUnknownField, workbench.CodeUnavailable)
	} else {
		codes = append(codes, workbench.CodeUnknownField)
	}
	if len(r.Params) > 0 || r.takesJSON() {
		codes = append(codes, workbench.CodeLimitOutOfRange, workbench.CodeInvalidRequest)
	}
	if r.Target != "" || r.Tag == "runs" {
		codes = append(codes, workbench.CodeNotFound)
	}
	if r.Admin == AdminContents {
		codes = append(codes, workbench.CodeAccessDenied)
	}
	if r.takesJSON() {
		codes = append(codes, workbench.CodeBodyTooLarge, workbench.CodeUnsupportedMedia)
	}
	if r.Streams || hasParam(r.Params, "waitMs") {
		codes = append(codes, workbench.CodeRateLimited)
	}
	byStatus := map[int][]string{}
	for _, code := range codes {
		status := workbench.ClassOf(code).HTTP
		if name := "`" + string(code) + "`"; !contains(byStatus[status], name) {
			byStatus[status] = append(byStatus[status], name)
		}
	}
	for status, names := range byStatus {
		sort.Strings(names)
		response := &huma.Response{
			Description: strings.Join(names, ", "),
			Headers:     map[string]*huma.Param{requestIDHeader: {Ref: "#/components/headers/" + requestIDHeader}},
			Content:     map[string]*huma.MediaType{problemType: {Schema: b.problem}},
		}
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			response.Headers["Retry-After"] = &huma.Param{Ref: "#/components/headers/Retry-After"}
		}
		if status == http.StatusUnauthorized {
			response.Headers["WWW-Authenticate"] = &huma.Param{Ref: "#/components/headers/WWW-Authenticate"}
		}
		op.Responses[strconv.Itoa(status)] = response
	}
}

func hasParam(params []Param, name string) bool {
	for _, p := range params {
		if p.Name == name {
			return true
		}
	}
	return false
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// openReplies lets replies grow: a schema that no request uses allows further
// properties, so that a client made from this document accepts a later server.
func (b *documenter) openReplies() {
	used := map[string]bool{}
	for _, s := range b.requests {
		b.mark(s, used)
	}
	for name, s := range b.registry.Map() {
		if !used[name] && s.AdditionalProperties == false {
			s.AdditionalProperties = nil
		}
	}
}

func (b *documenter) mark(s *huma.Schema, used map[string]bool) {
	if s == nil {
		return
	}
	if name, ok := strings.CutPrefix(s.Ref, schemaPrefix); ok {
		if used[name] {
			return
		}
		used[name] = true
		b.mark(b.registry.Map()[name], used)
	}
	b.mark(s.Items, used)
	for _, p := range s.Properties {
		b.mark(p, used)
	}
	for _, o := range s.OneOf {
		b.mark(o, used)
	}
	if p, ok := s.AdditionalProperties.(*huma.Schema); ok {
		b.mark(p, used)
	}
}

func identityParameters() map[string]*huma.Param {
	header := func(name, doc string) *huma.Param {
		return &huma.Param{Name: name, In: "header", Description: doc, Schema: &huma.Schema{Type: huma.TypeString, MinLength: ptr(1), MaxLength: ptr(workbench.MaxIdentityBytes)}}
	}
	return map[string]*huma.Param{
		"tenant":  header(identity.TenantHeader, "embedded keys: the tenant acted for; created on first use"),
		"endUser": header(identity.EndUserHeader, "embedded keys: the end user acted for; created on first use"),
		"group":   header(identity.GroupHeader, "embedded keys: the end user's group; optional"),
	}
}

func replyHeaders() map[string]*huma.Header {
	header := func(doc string) *huma.Header {
		return &huma.Header{Description: doc, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	return map[string]*huma.Header{
		requestIDHeader:        header("names the request in logs and the audit trail; the client's own if it sent one"),
		"Location":             header("path of what was made"),
		"ETag":                 header("the version: a session's revision, a content's digest"),
		"Idempotency-Replayed": header("true when the run is an earlier one with the same key"),
		"Retry-After":          header("seconds"),
		"WWW-Authenticate":     header("Bearer"),
		"Content-Disposition":  header("attachment, with the file's name"),
		"Accept-Ranges":        header("bytes"),
		"Content-Range":        header("the range sent"),
	}
}

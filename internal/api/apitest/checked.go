// Package apitest checks HTTP exchanges against the OpenAPI document. Its one
// job is to make a test fail where what the server does and what the document
// says part: it wraps a handler and looks at everything that passes.
package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	documentURL = "https://workbench.invalid/openapi.json"
	problemType = "application/problem+json"
	jsonType    = "application/json"
)

// Checker checks exchanges and remembers which operations succeeded.
type Checker struct {
	report   func(deviation string)
	doc      map[string]any
	compiler *jsonschema.Compiler
	handler  http.Handler

	mu        sync.Mutex
	schemas   map[string]*jsonschema.Schema
	succeeded map[string]bool // operationId
}

// Checked is New for one test: a deviation is an error of t, which must outlive
// the exchanges.
func Checked(t testing.TB, document []byte, h http.Handler) *Checker {
	t.Helper()
	c, err := New(document, h, func(deviation string) { t.Error(deviation) })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// New wraps h and reports each deviation, from several goroutines at once.
// Replies may not hold properties that the document leaves out, although the
// document tells clients to expect more later.
func New(document []byte, h http.Handler, report func(deviation string)) (*Checker, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		return nil, fmt.Errorf("the document is not JSON: %w", err)
	}
	closeObjects(doc)
	c := &Checker{report: report, doc: doc.(map[string]any), compiler: jsonschema.NewCompiler(), handler: h,
		schemas: map[string]*jsonschema.Schema{}, succeeded: map[string]bool{}}
	c.compiler.AssertFormat()
	if err := c.compiler.AddResource(documentURL, doc); err != nil {
		return nil, fmt.Errorf("the document cannot be compiled: %w", err)
	}
	return c, nil
}

// closeObjects refuses further properties in every object schema that names
// some and does not say.
func closeObjects(v any) {
	switch v := v.(type) {
	case map[string]any:
		_, named := v["properties"].(map[string]any)
		if _, said := v["additionalProperties"]; named && !said && v["type"] == "object" {
			v["additionalProperties"] = false
		}
		for _, child := range v {
			closeObjects(child)
		}
	case []any:
		for _, child := range v {
			closeObjects(child)
		}
	}
}

// NeverSucceeded lists the operations of the document that no exchange has
// completed with a status below 400.
func (c *Checker) NeverSucceeded() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []string
	for _, item := range c.doc["paths"].(map[string]any) {
		for _, op := range item.(map[string]any) {
			if id := op.(map[string]any)["operationId"].(string); !c.succeeded[id] {
				missing = append(missing, id)
			}
		}
	}
	sort.Strings(missing)
	return missing
}

// ServeHTTP passes the exchange on and checks it when it is over.
func (c *Checker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request := &tee{ReadCloser: r.Body}
	rec := &recorder{ResponseWriter: w}
	seen := *r
	seenURL := *r.URL
	seen.URL = &seenURL
	r = r.WithContext(r.Context()) // net/http looks at the body it made itself
	r.Body = request
	defer func() {
		if v := recover(); v != nil {
			panic(v) // a cut answer has no form to check
		}
		if r.Context().Err() == nil { // a client that gave up gets an answer of no form
			c.check(&seen, request.read.Bytes(), rec)
		}
	}()
	c.handler.ServeHTTP(rec, r)
}

func (c *Checker) errorf(r *http.Request, status int, format string, args ...any) {
	c.report(fmt.Sprintf("openapi: %s %s → %d: %s", r.Method, r.URL.Path, status, fmt.Sprintf(format, args...)))
}

func (c *Checker) check(r *http.Request, body []byte, rec *recorder) {
	status := rec.status
	if status == 0 {
		status = http.StatusOK
	}
	if rec.Header().Get("Workbench-Request-Id") == "" {
		c.errorf(r, status, "no Workbench-Request-Id")
	}
	pointer, op := c.operation(r)
	if op == nil {
		c.checkProblem(r, status, rec, "#/components/schemas/Problem", "")
		if status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			c.errorf(r, status, "not an operation of the document")
		}
		return
	}
	response, ok := op["responses"].(map[string]any)[strconv.Itoa(status)].(map[string]any)
	if !ok {
		c.errorf(r, status, "status is not documented; body: %.300s", rec.body.String())
		return
	}
	pointer += "/responses/" + strconv.Itoa(status)
	if status >= 400 {
		c.checkProblem(r, status, rec, pointer+"/content/"+escape(problemType)+"/schema", response["description"].(string))
		return
	}
	c.mu.Lock()
	c.succeeded[op["operationId"].(string)] = true
	c.mu.Unlock()
	c.checkHeaders(r, status, rec, response)
	c.checkRequest(r, status, body, op, strings.TrimSuffix(pointer, "/responses/"+strconv.Itoa(status)))
	c.checkBody(r, status, rec, response, pointer)
}

// operation finds the operation of a request by the document's own paths.
func (c *Checker) operation(r *http.Request) (pointer string, op map[string]any) {
	method := strings.ToLower(r.Method)
	if method == "head" {
		method = "get"
	}
	got := strings.Split(r.URL.Path, "/")
	best := -1
	for template, item := range c.doc["paths"].(map[string]any) {
		want := strings.Split(template, "/")
		exact, matches := 0, len(want) == len(got)
		for i := 0; matches && i < len(want); i++ {
			if want[i] == got[i] {
				exact++
			} else if !strings.HasPrefix(want[i], "{") || got[i] == "" {
				matches = false
			}
		}
		if found, ok := item.(map[string]any)[method].(map[string]any); matches && ok && exact > best {
			best, op, pointer = exact, found, "#/paths/"+escape(template)+"/"+method
		}
	}
	return pointer, op
}

func escape(s string) string {
	return url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(s))
}

// valid checks v against the schema at a pointer into the document.
func (c *Checker) valid(r *http.Request, status int, what, pointer string, v any) {
	c.mu.Lock()
	schema, ok := c.schemas[pointer]
	if !ok {
		var err error
		if schema, err = c.compiler.Compile(documentURL + pointer); err != nil {
			c.mu.Unlock()
			c.errorf(r, status, "%s: schema %s: %v", what, pointer, err)
			return
		}
		c.schemas[pointer] = schema
	}
	c.mu.Unlock()
	if err := schema.Validate(v); err != nil {
		c.errorf(r, status, "%s does not match %s: %v", what, pointer, err)
	}
}

func (c *Checker) validJSON(r *http.Request, status int, what, pointer string, raw []byte) map[string]any {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		c.errorf(r, status, "%s is not JSON: %v: %.200s", what, err, raw)
		return nil
	}
	c.valid(r, status, what, pointer, v)
	object, _ := v.(map[string]any)
	return object
}

// checkProblem checks an error: its form, that its status is its code's, and
// that the route documents the code.
func (c *Checker) checkProblem(r *http.Request, status int, rec *recorder, pointer, codes string) {
	if got := rec.Header().Get("Content-Type"); got != problemType {
		c.errorf(r, status, "an error has Content-Type %q", got)
		return
	}
	if status == http.StatusUnauthorized && rec.Header().Get("WWW-Authenticate") != "Bearer" {
		c.errorf(r, status, "no WWW-Authenticate: Bearer")
	}
	if (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && rec.Header().Get("Retry-After") == "" {
		c.errorf(r, status, "no Retry-After")
	}
	if r.Method == http.MethodHead {
		return
	}
	problem := c.validJSON(r, status, "the problem", pointer, rec.body.Bytes())
	if problem == nil {
		return
	}
	if n, ok := problem["status"].(json.Number); !ok || n.String() != strconv.Itoa(status) {
		c.errorf(r, status, "the problem says status %v", problem["status"])
	}
	if code, _ := problem["code"].(string); codes != "" && !strings.Contains(codes, "`"+code+"`") {
		c.errorf(r, status, "code %s is not documented for this route (%s)", code, codes)
	}
	if problem["requestId"] != rec.Header().Get("Workbench-Request-Id") {
		c.errorf(r, status, "the problem's requestId is not the header's")
	}
}

func (c *Checker) checkHeaders(r *http.Request, status int, rec *recorder, response map[string]any) {
	documented, _ := response["headers"].(map[string]any)
	for _, name := range []string{"Location", "Etag", "Content-Disposition", "Content-Range", "Idempotency-Replayed"} {
		if rec.Header().Get(name) == "" {
			continue
		}
		found := false
		for d := range documented {
			found = found || http.CanonicalHeaderKey(d) == name
		}
		if !found && status != http.StatusNotModified && name != "Content-Disposition" {
			c.errorf(r, status, "header %s is not documented", name)
		}
	}
}

// checkRequest checks a request that the server accepted.
func (c *Checker) checkRequest(r *http.Request, status int, body []byte, op map[string]any, pointer string) {
	known := map[string]int{}
	params, _ := op["parameters"].([]any)
	for i, p := range params {
		if param := p.(map[string]any); param["in"] == "query" {
			known[param["name"].(string)] = i
		}
	}
	for name, values := range r.URL.Query() {
		i, ok := known[name]
		if !ok {
			c.errorf(r, status, "parameter %s was accepted and is not documented", name)
			continue
		}
		schema := params[i].(map[string]any)["schema"].(map[string]any)
		var v any = values[0]
		switch schema["type"] {
		case "integer":
			v = json.Number(values[0])
		case "array":
			list := make([]any, len(values))
			for j := range values {
				list[j] = values[j]
			}
			v = list
		}
		c.valid(r, status, "parameter "+name, pointer+"/parameters/"+strconv.Itoa(i)+"/schema", v)
	}
	if _, ok := op["requestBody"]; !ok || len(bytes.TrimSpace(body)) == 0 {
		return
	}
	if mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); mediaType == jsonType {
		if content := op["requestBody"].(map[string]any)["content"].(map[string]any); content[jsonType] != nil {
			c.validJSON(r, status, "the accepted body", pointer+"/requestBody/content/"+escape(jsonType)+"/schema", body)
		}
	}
}

func (c *Checker) checkBody(r *http.Request, status int, rec *recorder, response map[string]any, pointer string) {
	content, _ := response["content"].(map[string]any)
	if len(content) == 0 {
		if rec.body.Len() > 0 {
			c.errorf(r, status, "a body where none is documented")
		}
		return
	}
	got, _, _ := mime.ParseMediaType(rec.Header().Get("Content-Type"))
	_, exact := content[got]
	if _, any := content["*/*"]; !exact && !any {
		c.errorf(r, status, "Content-Type %q is not documented", got)
		return
	}
	if r.Method == http.MethodHead {
		if rec.body.Len() > 0 {
			c.errorf(r, status, "HEAD has a body")
		}
		return
	}
	switch got {
	case jsonType:
		if exact {
			c.validJSON(r, status, "the body", pointer+"/content/"+escape(jsonType)+"/schema", rec.body.Bytes())
		}
	case "text/event-stream":
		c.checkEvents(r, status, pointer+"/content/"+escape(got)+"/schema/x-item-schema", rec.body.String())
	case "application/x-ndjson":
		for _, line := range strings.Split(strings.TrimSuffix(rec.body.String(), "\n"), "\n") {
			c.checkEvent(r, status, pointer+"/content/"+escape(got)+"/schema/x-item-schema", line)
		}
	}
}

// checkEvents checks server-sent events, of which the numbered ones are what
// the document says at schema.
func (c *Checker) checkEvents(r *http.Request, status int, schema, stream string) {
	for _, block := range strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		for _, line := range strings.Split(block, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			switch name {
			case "", "id", "event":
			case "data":
				c.checkEvent(r, status, schema, value)
			default:
				c.errorf(r, status, "a line that is no event: %.80q", line)
			}
		}
	}
}

func (c *Checker) checkEvent(r *http.Request, status int, schema, raw string) {
	var kind struct {
		Kind string `json:"kind"`
		Code string `json:"code"`
	}
	if err := json.Unmarshal([]byte(raw), &kind); err != nil {
		c.errorf(r, status, "an event is not JSON: %.200s", raw)
		return
	}
	if kind.Kind == "heartbeat" || kind.Code != "" {
		return
	}
	c.validJSON(r, status, "the event", schema, []byte(raw))
}

// recorder keeps what is written while passing it on.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// Unwrap serves http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	w.body.Write(b)
	return w.ResponseWriter.Write(b)
}

// tee keeps what is read of a request.
type tee struct {
	io.ReadCloser
	read bytes.Buffer
}

func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if t.read.Len() < 8<<20 {
		t.read.Write(p[:n])
	}
	return n, err
}

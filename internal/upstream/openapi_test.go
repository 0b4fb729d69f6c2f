package upstream_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

const petstore = `{
 "openapi": "3.0.3", "info": {"title": "Pets", "version": "1"},
 "servers": [{"url": "SERVER/{v}", "variables": {"v": {"default": "v2"}}}],
 "paths": {
  "/pets/{petId}": {
   "parameters": [{"name": "petId", "in": "path", "required": true, "schema": {"type": "integer"}}],
   "get": {"operationId": "getPet", "summary": "One pet", "parameters": [
      {"name": "fields", "in": "query", "explode": false, "schema": {"type": "array", "items": {"type": "string"}}},
      {"name": "filter", "in": "query", "style": "deepObject", "explode": true, "schema": {"type": "object"}},
      {"name": "tags", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
      {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
      {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
      {"name": "sid", "in": "cookie", "schema": {"type": "string"}}],
    "responses": {"200": {"description": "ok"}}},
   "put": {"operationId": "put pet!", "requestBody": {"$ref": "#/components/requestBodies/Pet"},
    "parameters": [{"name": "petId", "in": "query", "schema": {"type": "string"}}, {"name": "body", "in": "query", "schema": {"type": "string"}}],
    "responses": {"200": {"description": "ok"}}},
   "delete": {"responses": {"204": {"description": "gone"}}, "description": "Deletes"}
  },
  "/pets": {
   "post": {"operationId": "addPet", "requestBody": {"required": true, "content": {"application/vnd.pets+json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}, "responses": {"200": {"description": "ok"}}},
   "patch": {"operationId": "form", "requestBody": {"required": true, "content": {"multipart/form-data": {"schema": {"type": "object"}}}}, "responses": {"200": {"description": "ok"}}},
   "get": {"operationId": "matrix", "parameters": [{"name": "c", "in": "cookie", "required": true, "schema": {"type": "string"}}], "responses": {"200": {"description": "ok"}}},
   "options": {"responses": {"200": {"description": "ok"}}}
  }
 },
 "components": {
  "requestBodies": {"Pet": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}},
  "schemas": {
   "Pet": {"type": "object", "required": ["name"], "x-internal": true, "example": {"name": "Rex"}, "properties": {
     "name": {"type": "string", "nullable": true}, "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": true},
     "parent": {"$ref": "#/components/schemas/Pet"}, "owner": {"$ref": "#/components/schemas/Owner"}}},
   "Owner": {"type": "object", "properties": {"pets": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}}}},
   "Unused": {"type": "object"}
  }
 }
}`

func openAPIApp(document string) workbench.App {
	return workbench.App{ProjectID: "prj_1", Name: "pets", Kind: workbench.AppOpenAPI, Config: workbench.AppConfig{Document: json.RawMessage(document)}}
}

func TestOperationsBecomeTools(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	app := openAPIApp(strings.Replace(petstore, "SERVER", o.URL, 1))
	got, err := w.Import(t.Context(), app, nil)
	if err != nil {
		t.Fatal(err)
	}
	tools := map[string]workbench.Tool{}
	var names []string
	for _, s := range got.Tools {
		names = append(names, s.Name)
		tools[s.Name] = toolOf(app, s)
	}
	slices.Sort(names)
	if want := []string{"addPet", "delete_pets_petId", "getPet", "put_pet_"}; !slices.Equal(names, want) {
		t.Fatalf("tools %q, want %q", names, want)
	}
	if len(got.Skipped) != 3 {
		t.Errorf("skipped %q", got.Skipped)
	}
	if a := tools["getPet"].Annotations; !a.ReadOnly || a.Title != "One pet" {
		t.Errorf("annotations %+v", a)
	}
	const petDefs = `"$defs":{"Owner":{"properties":{"pets":{"items":{"$ref":"#/$defs/Pet"},"type":"array"}},"type":"object"},` +
		`"Pet":{"properties":{"age":{"exclusiveMinimum":0,"type":"integer"},"name":{"type":["string","null"]},"owner":{"$ref":"#/$defs/Owner"},"parent":{"$ref":"#/$defs/Pet"}},"required":["name"],"type":"object"}}`
	if got, want := string(tools["addPet"].InputSchema), `{`+petDefs+`,"additionalProperties":false,"properties":{"body":{"$ref":"#/$defs/Pet"}},"required":["body"],"type":"object"}`; got != want {
		t.Errorf("the schema of addPet is\n%s, want\n%s", got, want)
	}
	for _, c := range []struct{ tool, args, line, body string }{
		{"getPet", `{"petId":7,"fields":["a","b"],"filter":{"x":"1"},"tags":["t","u"],"X-Trace":"q"}`, "GET /v2/pets/7?fields=a%2Cb&filter%5Bx%5D=1&tags=t&tags=u", ""},
		{"put_pet_", `{"query_petId":"q","petId":7,"body":"b","requestBody":{"name":null}}`, "PUT /v2/pets/7?body=b&petId=q", `{"name":null}`},
		{"put_pet_", `{"petId":7}`, "PUT /v2/pets/7", ""},
		{"delete_pets_petId", `{"petId":7}`, "DELETE /v2/pets/7", ""},
		{"addPet", `{"body":{"name":"Rex","age":12345678901234567890}}`, "POST /v2/pets", `{"name":"Rex","age":12345678901234567890}`},
	} {
		tool := tools[c.tool]
		if err := upstream.Arguments(tool.InputSchema, json.RawMessage(c.args)); err != nil {
			t.Errorf("%s: %v in %s", c.tool, err, tool.InputSchema)
			continue
		}
		if _, err := w.ask(t.Context(), app, tool, c.args, nil); err != nil {
			t.Errorf("%s: %v", c.tool, err)
			continue
		}
		r, body := o.last()
		line := r.Method + " " + r.URL.EscapedPath()
		if r.URL.RawQuery != "" {
			line += "?" + r.URL.RawQuery
		}
		if line != c.line || body != c.body {
			t.Errorf("%s: %s with %s, want %s with %s", c.tool, line, body, c.line, c.body)
		}
	}
	for args, field := range map[string]string{
		`{"body":{"name":"x","age":0}}`:                                    "args.body.age",
		`{"body":{"name":"x","owner":{"pets":[{"name":"y"},{"name":1}]}}}`: "args.body.owner.pets[1].name",
		`{"body":{}}`: "args.body.name",
		`{}`:          "args.body",
	} {
		if err := upstream.Arguments(tools["addPet"].InputSchema, json.RawMessage(args)); err == nil || workbench.AsError(err).Field != field {
			t.Errorf("%s: %v, want %s", args, err, field)
		}
	}
}

func TestConfigURLTakesTheServersPlace(t *testing.T) {
	o := mustOracle(t)
	w := mustWorld(t, upstream.Options{})
	app := openAPIApp(strings.Replace(petstore, "SERVER", "https://elsewhere.example", 1))
	app.Config.URL = o.URL + "/mine/"
	if _, err := w.ask(t.Context(), app, w.mustTools(app, nil)["delete_pets_petId"], `{"petId":1}`, bearer()); err != nil {
		t.Fatal(err)
	}
	if r, _ := o.last(); r.URL.Path != "/mine/pets/1" || r.Header.Get("Authorization") != "Bearer "+canary {
		t.Errorf("asked %s", r.URL)
	}
}

func TestDocumentsThatAreRefused(t *testing.T) {
	doc := func(paths, components string) string {
		return fmt.Sprintf(`{"openapi":"3.1.0","info":{"title":"t","version":"1"},"servers":[{"url":"https://api.example.com"}],"paths":%s,"components":%s}`, paths, components)
	}
	op := func(inner string) string {
		return `{"/a":{"post":{"operationId":"a",` + inner + `"responses":{"200":{"description":"ok"}}}}}`
	}
	w := mustWorld(t, upstream.Options{})
	for _, c := range []struct{ name, doc, detail string }{
		{"remote schema", doc(op(`"requestBody":{"content":{"application/json":{"schema":{"$ref":"https://evil.example/s.json"}}}},`), `{}`),
			"at /paths/~1a/post/requestBody/content/application~1json/schema/$ref"},
		{"file", doc(op(`"parameters":[{"$ref":"file:///etc/passwd"}],`), `{}`), "at /paths/~1a/post/parameters/0/$ref"},
		{"relative", doc(`{"/a":{"$ref":"paths.json#/a"}}`, `{}`), "at /paths/~1a/$ref"},
		{"in a part that nobody uses", doc(op(``), `{"schemas":{"A":{"properties":{"b":{"$ref":"b.yaml"}}}}}`), "at /components/schemas/A/properties/b/$ref"},
		{"missing", doc(op(`"parameters":[{"$ref":"#/components/parameters/P"}],`), `{}`), "cannot be read"},
		{"a reference to itself", doc(op(`"requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/A"}}}},`), `{"schemas":{"A":{"$ref":"#/components/schemas/A"}}}`), ""},
		{"references in a circle", doc(op(`"requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/A"}}}},`), `{"schemas":{"A":{"$ref":"#/components/schemas/B"},"B":{"$ref":"#/components/schemas/A"}}}`), ""},
		{"too deep", doc(op(`"requestBody":{"content":{"application/json":{"schema":`+strings.Repeat(`{"items":`, 300)+`{}`+strings.Repeat(`}`, 300)+`}}},`), `{}`), "too deep"},
		{"too large", `{"openapi":"3.1.0","x":"` + strings.Repeat("x", 5<<20) + `"}`, "too large"},
		{"Swagger 2", `{"swagger":"2.0"}`, "3.0 or 3.1"},
		{"not a document", `[1]`, "3.0 or 3.1"},
		{"YAML", `openapi: 3.0.0`, "not valid JSON"},
		{"no operation", doc(`{}`, `{}`), "no operation"},
		{"nothing", ``, "OpenAPI document"},
	} {
		_, err := w.Import(t.Context(), openAPIApp(c.doc), nil)
		if err == nil {
			t.Errorf("%s: accepted", c.name)
			continue
		}
		e := workbench.AsError(err)
		code := workbench.CodeSchemaInvalid
		if c.name == "nothing" {
			code = workbench.CodeInvalidRequest
		}
		if e.Code != code || e.Field != "config.document" || !strings.Contains(e.Detail, c.detail) {
			t.Errorf("%s: %+v", c.name, e)
		}
		if checked := w.Check(openAPIApp(c.doc)); workbench.CodeOf(checked) != e.Code {
			t.Errorf("%s: Check says %v", c.name, checked)
		}
	}
	for name, server := range map[string]string{"relative": "/v1", "none": "", "with a password": "https://a:b@c.example"} {
		_, err := w.Import(t.Context(), openAPIApp(strings.Replace(petstore, "SERVER/{v}", server, 1)), nil)
		if e := w.mustFail(err, workbench.CodeInvalidRequest, false); e.Field != "config.url" {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func TestSchemasOf31(t *testing.T) {
	w := mustWorld(t, upstream.Options{})
	app := openAPIApp(`{"openapi":"3.1.0","info":{"title":"t","version":"1"},"servers":[{"url":"https://api.example.com"}],"paths":{
		"/a":{"post":{"operationId":"a","requestBody":{"required":true,"content":{"application/json":{"schema":{
			"type":["object","null"],"properties":{"n":{"type":"integer","exclusiveMinimum":3},"t":{"$ref":"#/components/schemas/Tree","description":"beside"},"c":{"const":"x"}}}}}}}},
		"/b":{"get":{"parameters":[{"name":"q","in":"query","content":{"application/json":{"schema":{"type":"object"}}}}]}},
		"/c":{"servers":[{"url":"https://other.example"}],"get":{}},
		"/d/{x}":{"get":{}},
		"/e":{"get":{"parameters":[{"name":"y","in":"query","schema":{"$ref":"#/paths/~1b/get/parameters/0/content/application~1json/schema"}}]}}},
		"components":{"schemas":{"Tree":{"type":"object","properties":{"left":{"$ref":"#/components/schemas/Tree"}},"additionalProperties":false}}}}`)
	got, err := w.Import(t.Context(), app, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Tools) != 2 || got.Tools[0].Name != "a" || got.Tools[1].Name != "get_b" || len(got.Skipped) != 3 {
		t.Fatalf("%+v", got)
	}
	schema := got.Tools[0].InputSchema
	for args, field := range map[string]string{
		`{"body":null}`: "", `{"body":{"t":{"left":{"left":{}}},"c":"x"}}`: "",
		`{"body":{"n":3}}`: "args.body.n", `{"body":{"t":{"left":{"right":1}}}}`: "args.body.t.left.right", `{"body":{"c":"y"}}`: "args.body.c",
	} {
		err := upstream.Arguments(schema, json.RawMessage(args))
		if field == "" && err != nil || field != "" && (err == nil || workbench.AsError(err).Field != field) {
			t.Errorf("%s: %v, want %q", args, err, field)
		}
	}
}

func FuzzOpenAPI(f *testing.F) {
	f.Add(petstore)
	f.Add(`{"openapi":"3.1.0","paths":{"/a":{"get":{"parameters":[null]}}}}`)
	f.Add(`{"openapi":"3.0.0","components":{"schemas":{"A":{"$ref":"#/components/schemas/B"},"B":{"$ref":"#/components/schemas/A"}}},"paths":{"/a":null}}`)
	c := upstream.New(upstream.Options{})
	defer c.Close()
	f.Fuzz(func(t *testing.T, document string) {
		app := openAPIApp(document)
		app.Config.URL = "https://api.example.com"
		got, err := c.Import(t.Context(), app, nil)
		if err != nil {
			if code := workbench.CodeOf(err); code != workbench.CodeSchemaInvalid && code != workbench.CodeInvalidRequest {
				t.Errorf("%v", err)
			}
			return
		}
		for _, tool := range got.Tools {
			if err := upstream.ValidateSchema(tool.InputSchema); err != nil {
				t.Errorf("%s: %v", tool.Name, err)
			}
		}
	})
}

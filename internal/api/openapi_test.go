package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench/internal/api"
)

// TestDocumentIsCurrent: docs/openapi.json is what the code says. `make
// generate` writes it.
func TestDocumentIsCurrent(t *testing.T) {
	if mustRead(t, "../../docs/openapi.json") != string(api.Document("")) {
		t.Error("docs/openapi.json is not current: run make generate")
	}
	if !bytes.Equal(api.Document("1.2.3"), api.Document("1.2.3")) {
		t.Error("the document differs from one call to the next")
	}
}

// TestDocumentLint holds the document to what readers and generators of
// clients need.
func TestDocumentLint(t *testing.T) {
	var doc map[string]any
	if err := json.Unmarshal(api.Document(""), &doc); err != nil {
		t.Fatal(err)
	}
	if doc["openapi"] != "3.1.0" {
		t.Errorf("openapi is %v", doc["openapi"])
	}
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	used := map[string]bool{}
	walk(doc, "", func(path string, object map[string]any) {
		if ref, ok := object["$ref"].(string); ok {
			if resolve(doc, ref) == nil {
				t.Errorf("%s: %s leads nowhere", path, ref)
			}
			if !strings.HasPrefix(path, "/components/schemas/"+strings.TrimPrefix(ref, "#/components/schemas/")+"/") {
				used[strings.TrimPrefix(ref, "#/components/schemas/")] = true
			}
		}
		if required, ok := object["required"].([]any); ok {
			properties, _ := object["properties"].(map[string]any)
			for _, name := range required {
				if properties[name.(string)] == nil {
					t.Errorf("%s: requires %s, which it does not have", path, name)
				}
			}
		}
		if object["type"] == "array" && object["items"] == nil {
			t.Errorf("%s: an array without items", path)
		}
	})
	for name := range schemas {
		if !used[name] {
			t.Errorf("schema %s is not used", name)
		}
	}
	camel := regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)
	for name, s := range schemas {
		properties, _ := s.(map[string]any)["properties"].(map[string]any)
		for property, p := range properties {
			if p.(map[string]any)["description"] == nil {
				t.Errorf("%s.%s has no description", name, property)
			}
			if !camel.MatchString(property) {
				t.Errorf("%s.%s is not camelCase", name, property)
			}
		}
	}
	lintOperations(t, doc, camel)
}

func lintOperations(t *testing.T, doc map[string]any, camel *regexp.Regexp) {
	t.Helper()
	tags := map[string]bool{}
	for _, tag := range doc["tags"].([]any) {
		tags[tag.(map[string]any)["name"].(string)] = true
	}
	ids := map[string]bool{}
	for path, item := range doc["paths"].(map[string]any) {
		for method, v := range item.(map[string]any) {
			op := v.(map[string]any)
			where := method + " " + path
			id, _ := op["operationId"].(string)
			if !camel.MatchString(id) || ids[id] {
				t.Errorf("%s: operationId %q", where, id)
			}
			ids[id] = true
			if op["summary"] == "" || op["summary"] == nil || op["description"] == nil {
				t.Errorf("%s: no summary or description", where)
			}
			for _, tag := range op["tags"].([]any) {
				if !tags[tag.(string)] {
					t.Errorf("%s: unknown tag %s", where, tag)
				}
			}
			params, _ := op["parameters"].([]any)
			inPath := 0
			seen := map[string]bool{}
			for _, p := range params {
				param := p.(map[string]any)
				if ref, ok := param["$ref"].(string); ok {
					param = resolve(doc, ref).(map[string]any)
				}
				key := fmt.Sprint(param["in"], " ", param["name"])
				if seen[key] || param["schema"] == nil || param["description"] == nil {
					t.Errorf("%s: parameter %s is given twice, or without schema or description", where, key)
				}
				seen[key] = true
				if param["in"] == "path" {
					inPath++
				}
			}
			if inPath != strings.Count(path, "{") {
				t.Errorf("%s: %d path parameters", where, inPath)
			}
			responses := op["responses"].(map[string]any)
			if responses["500"] == nil || responses["400"] == nil {
				t.Errorf("%s: errors are not documented", where)
			}
			if public := op["security"] != nil; !public && (responses["401"] == nil || responses["403"] == nil) {
				t.Errorf("%s: needs a key and does not say what happens without", where)
			}
			for status, r := range responses {
				if r.(map[string]any)["description"] == "" || r.(map[string]any)["description"] == nil {
					t.Errorf("%s: %s has no description", where, status)
				}
			}
		}
	}
}

func walk(v any, path string, visit func(string, map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		visit(path, v)
		for name, child := range v {
			walk(child, path+"/"+name, visit)
		}
	case []any:
		for i, child := range v {
			walk(child, fmt.Sprintf("%s/%d", path, i), visit)
		}
	}
}

func resolve(doc map[string]any, ref string) any {
	var v any = doc
	for _, name := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	return v
}

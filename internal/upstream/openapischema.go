package upstream

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// objectSchema is the JSON Schema of a tool's arguments, made of schemas of an
// OpenAPI document. What they refer to comes along, under $defs.
type objectSchema struct {
	doc        *openapi3.T
	properties map[string]any
	required   []string
	defs       map[string]any
	wanted     []string // names of components that are to become defs
	why        string   // it cannot be made
}

const componentSchemas = "#/components/schemas/"

func newObjectSchema(doc *openapi3.T) *objectSchema {
	return &objectSchema{doc: doc, properties: map[string]any{}, defs: map[string]any{}}
}

func (o *objectSchema) has(name string) bool {
	_, ok := o.properties[name]
	return ok
}

// add adds a property, or says why it cannot be one.
func (o *objectSchema) add(name string, ref *openapi3.SchemaRef, description string, required bool) string {
	schema := o.convert(ref)
	if members, ok := schema.(map[string]any); ok && description != "" {
		if _, has := members["description"]; !has && members["$ref"] == nil {
			members["description"] = bounded(description, 4096)
		}
	}
	o.properties[name] = schema
	if required {
		o.required = append(o.required, name)
	}
	return o.why
}

// convert is a schema of the document as JSON Schema.
func (o *objectSchema) convert(ref *openapi3.SchemaRef) any {
	if ref == nil || ref.Ref == "" && ref.Value == nil {
		return map[string]any{}
	}
	raw, err := json.Marshal(ref)
	if err != nil {
		o.why = "a schema of it cannot be read"
		return nil
	}
	v, err := decode(raw, maxDocumentDepth)
	if err != nil {
		o.why = "a schema of it cannot be read: it " + err.Error()
		return nil
	}
	return o.schema(v)
}

// Where the keywords of a schema hold schemas.
var (
	oneSchema   = []string{"not", "items", "additionalProperties", "contains", "propertyNames", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties", "contentSchema"}
	listSchemas = []string{"allOf", "anyOf", "oneOf", "prefixItems"}
	mapSchemas  = []string{"properties", "patternProperties", "dependentSchemas", "$defs"}
	notNeeded   = []string{"example", "examples", "externalDocs", "xml", "discriminator", "nullable", "$schema", "$id"}
)

// schema turns a schema as OpenAPI has it into JSON Schema 2020-12, in place.
func (o *objectSchema) schema(v any) any {
	s, ok := v.(map[string]any)
	if !ok {
		return v // true and false
	}
	if ref, ok := s["$ref"].(string); ok {
		name, ok := strings.CutPrefix(ref, componentSchemas)
		if !ok {
			o.why = "a schema of it refers to a place outside of components/schemas"
			return nil
		}
		o.wanted = append(o.wanted, strings.SplitN(name, "/", 2)[0])
		s["$ref"] = "#/$defs/" + name
		if strings.HasPrefix(o.doc.OpenAPI, "3.0.") {
			return map[string]any{"$ref": s["$ref"]} // what is beside it does not count there
		}
	}
	if s["nullable"] == true {
		orNull(s)
	}
	exclusive(s, "exclusiveMinimum", "minimum")
	exclusive(s, "exclusiveMaximum", "maximum")
	for _, key := range notNeeded {
		delete(s, key)
	}
	maps.DeleteFunc(s, func(key string, _ any) bool { return strings.HasPrefix(key, "x-") })
	for _, key := range oneSchema {
		if inner, ok := s[key]; ok {
			s[key] = o.schema(inner)
		}
	}
	for _, key := range listSchemas {
		list, _ := s[key].([]any)
		for i := range list {
			list[i] = o.schema(list[i])
		}
	}
	for _, key := range mapSchemas {
		members, _ := s[key].(map[string]any)
		for name := range members {
			members[name] = o.schema(members[name])
		}
	}
	return s
}

// orNull lets null be a value, as OpenAPI 3.0's nullable does.
func orNull(s map[string]any) {
	switch t := s["type"].(type) {
	case string:
		s["type"] = []any{t, "null"}
	case []any:
		s["type"] = append(t, "null")
	}
	if values, ok := s["enum"].([]any); ok && !slices.Contains(values, nil) {
		s["enum"] = append(values, nil)
	}
}

// exclusive turns a boolean bound, as OpenAPI 3.0 has it, into a number.
func exclusive(s map[string]any, key, bound string) {
	is, ok := s[key].(bool)
	if !ok {
		return
	}
	delete(s, key)
	if n, has := s[bound]; is && has {
		s[key] = n
		delete(s, bound)
	}
}

// finish brings along what is referred to and returns the schema.
func (o *objectSchema) finish() (json.RawMessage, string) {
	for len(o.wanted) > 0 && o.why == "" {
		name := pointerName(o.wanted[0])
		o.wanted = o.wanted[1:]
		if _, done := o.defs[name]; done {
			continue
		}
		if o.doc.Components == nil || o.doc.Components.Schemas[name] == nil {
			return nil, "a schema of it refers to one that is not there"
		}
		o.defs[name] = true // it may refer to itself
		o.defs[name] = o.convert(o.doc.Components.Schemas[name])
	}
	if o.why == "" {
		o.why = o.aliases()
	}
	if o.why != "" {
		return nil, o.why
	}
	out := map[string]any{"type": "object", "properties": o.properties, "additionalProperties": false}
	if len(o.required) > 0 {
		out["required"] = o.required
	}
	if len(o.defs) > 0 {
		out["$defs"] = o.defs
	}
	return jsonOf(out), ""
}

// aliases says whether a schema is nothing but a reference that leads to itself.
func (o *objectSchema) aliases() string {
	for name := range o.defs {
		at := name
		for range len(o.defs) + 1 {
			def, _ := o.defs[at].(map[string]any)
			ref, _ := def["$ref"].(string)
			next, ok := strings.CutPrefix(ref, "#/$defs/")
			if at = pointerName(next); !ok || len(def) > 1 {
				break
			}
			if at == name {
				return "a schema of it is a reference to itself"
			}
		}
	}
	return ""
}

// pointerPart is a key as a part of a JSON pointer; pointerName the way back.
func pointerPart(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

func pointerName(part string) string {
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

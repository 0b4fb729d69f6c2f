package upstream_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/upstream"
)

func TestSchemas(t *testing.T) {
	for _, c := range []struct{ name, schema, field, detail string }{
		{"draft 2020-12", `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"a":{"prefixItems":[{"type":"string"}]}}}`, "", ""},
		{"draft 2019-09", `{"$schema":"https://json-schema.org/draft/2019-09/schema","type":"object"}`, "", ""},
		{"draft-07", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","definitions":{"a":{}},"properties":{"a":{"$ref":"#/definitions/a"}}}`, "", ""},
		{"draft-04", `{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","properties":{"a":{"minimum":1,"exclusiveMinimum":true}}}`, "", ""},
		{"none", `{"type":"object"}`, "", ""},
		{"refers to itself", `{"type":"object","properties":{"child":{"$ref":"#"}}}`, "", ""},
		{"refers to its own id", `{"$id":"https://example.com/s","type":"object","$defs":{"a":{"$id":"a","type":"string"}},"properties":{"x":{"$ref":"a"}}}`, "", ""},
		{"remote", `{"type":"object","properties":{"a":{"$ref":"https://evil.example/s.json"}}}`, "/properties/a/$ref", "outside"},
		{"file", `{"type":"object","properties":{"a":{"items":{"$ref":"file:///etc/passwd"}}}}`, "/properties/a/items/$ref", "outside"},
		{"relative", `{"type":"object","allOf":[{"$ref":"other.json#/a"}]}`, "/allOf/0/$ref", "outside"},
		{"another metaschema", `{"$schema":"https://evil.example/meta","type":"object"}`, "/$schema", "outside"},
		{"missing part", `{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}}}`, "/properties/a/$ref", "not there"},
		{"missing anchor", `{"type":"object","properties":{"a":{"$ref":"#b"}}}`, "/properties/a/$ref", "not there"},
		{"dynamic", `{"type":"object","$dynamicAnchor":"n","properties":{"a":{"$dynamicRef":"#n"}}}`, "/properties/a/$dynamicRef", "not supported"},
		{"not an object", `{"type":"string"}`, "/type", "root"},
		{"no type", `{"properties":{}}`, "/type", "root"},
		{"true", `true`, "/type", "root"},
		{"wrong", `{"type":"object","properties":{"a":{"type":"strin"}}}`, "/properties/a/type", "not a valid"},
		{"wrong, deeper", `{"type":"object","properties":{"a":{"anyOf":[]}}}`, "/properties/a/anyOf", "not a valid"},
		{"pattern", `{"type":"object","properties":{"a":{"pattern":"(?<=a)b"}}}`, "", ""},
		{"not JSON", `{"type":`, "", "not valid JSON"},
		{"nothing", ``, "", "not valid JSON"},
		{"a key twice", `{"type":"object","type":"object"}`, "", "twice"},
		{"too deep", `{"type":"object","properties":` + strings.Repeat(`{"a":`, 200) + `{}` + strings.Repeat(`}`, 200) + `}`, "", "too deep"},
		{"too large", `{"type":"object","description":"` + strings.Repeat("x", 300_000) + `"}`, "", "262144 bytes"},
		{"too many parts", `{"type":"object","anyOf":[` + strings.Repeat(`{},`, 5000) + `{}]}`, "", "4096 parts"},
		{"a huge number", `{"type":"object","properties":{"a":{"maximum":1e999999999}}}`, "", "out of range"},
	} {
		err := upstream.ValidateSchema(json.RawMessage(c.schema))
		if c.name == "pattern" {
			if !workbench.HasCode(err, workbench.CodeSchemaInvalid) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if c.detail == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if !workbench.HasCode(err, workbench.CodeSchemaInvalid) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if e := workbench.AsError(err); e.Field != c.field || !strings.Contains(e.Detail, c.detail) {
			t.Errorf("%s: %q at %q, want %q at %q", c.name, e.Detail, e.Field, c.detail, c.field)
		}
	}
}

const orderSchema = `{
  "type": "object", "additionalProperties": false, "required": ["to", "amount"],
  "properties": {
    "to": {"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^[a-z]+$"},
    "amount": {"type": "number", "minimum": 1, "exclusiveMaximum": 10.5},
    "whole": {"type": "integer", "multipleOf": 5},
    "colour": {"enum": ["red", "blue", 3]},
    "kind": {"const": "x"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"oneOf": [{"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}, {"type": "integer"}]},
    "items": {"type": "array", "minItems": 1, "maxItems": 4, "uniqueItems": true, "items": {"$ref": "#/$defs/item"}},
    "odd key": {"type": "object", "properties": {"x.y": {"type": "boolean"}}, "additionalProperties": {"type": "string"}},
    "pair": {"dependentRequired": {"a": ["b"]}, "type": "object"},
    "list": {"type": "array", "contains": {"const": 1}},
    "none": false
  },
  "$defs": {"item": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}
}`

func TestArguments(t *testing.T) {
	for _, c := range []struct{ args, field, detail string }{
		{`{"to":"ab","amount":5}`, "", ""},
		{`{"to":"ab","amount":1.0e0,"whole":10.0,"maybe":null,"either":3,"items":[{"name":"x"}],"colour":3,"kind":"x","list":[2,1]}`, "", ""},
		{`{"amount":5}`, "args.to", "args.to is required"},
		{``, "args.amount", "args.amount is required"},
		{`null`, "args.amount", "args.amount is required"},
		{`{"to":"ab","amount":"5"}`, "args.amount", "args.amount must be a number"},
		{`{"to":"ab","amount":null}`, "args.amount", "args.amount must be a number"},
		{`{"to":"ab","amount":0.5}`, "args.amount", "args.amount must be at least 1"},
		{`{"to":"ab","amount":10.5}`, "args.amount", "args.amount must be less than 10.5"},
		{`{"to":"a","amount":5}`, "args.to", "args.to must have at least 2 characters"},
		{`{"to":"abcdef","amount":5}`, "args.to", "args.to must have at most 5 characters"},
		{`{"to":"AB","amount":5}`, "args.to", "args.to must match the pattern ^[a-z]+$"},
		{`{"to":"ab","amount":5,"whole":1.5}`, "args.whole", "args.whole must be a whole number"},
		{`{"to":"ab","amount":5,"whole":7}`, "args.whole", "args.whole must be a multiple of 5"},
		{`{"to":"ab","amount":5,"colour":"secret"}`, "args.colour", `args.colour must be one of "red", "blue", 3`},
		{`{"to":"ab","amount":5,"kind":"secret"}`, "args.kind", `args.kind must be "x"`},
		{`{"to":"ab","amount":5,"maybe":7}`, "args.maybe", "args.maybe must be null or a string"},
		{`{"to":"ab","amount":5,"either":{"a":1}}`, "args.either.a", "args.either.a must be a string"},
		{`{"to":"ab","amount":5,"either":{}}`, "args.either.a", "args.either.a is required"},
		{`{"to":"ab","amount":5,"either":"x"}`, "args.either", "args.either must be a whole number or an object"},
		{`{"to":"ab","amount":5,"items":[]}`, "args.items", "args.items must have at least 1 item"},
		{`{"to":"ab","amount":5,"items":[{"name":"a"},{"name":"b"},{"name":"c"},{"name":7}]}`, "args.items[3].name", "args.items[3].name must be a string"},
		{`{"to":"ab","amount":5,"items":[{}]}`, "args.items[0].name", "args.items[0].name is required"},
		{`{"to":"ab","amount":5,"items":[{"name":"a"},{"name":"a"}]}`, "args.items", "args.items must not have an item twice"},
		{`{"to":"ab","amount":5,"color":"x"}`, "args.color", "args.color is not a known argument"},
		{`{"to":"ab","amount":5,"none":1}`, "args.none", "args.none is not a known argument"},
		{`{"to":"ab","amount":5,"odd key":{"x.y":"secret"}}`, `args["odd key"]["x.y"]`, `args["odd key"]["x.y"] must be a boolean`},
		{`{"to":"ab","amount":5,"odd key":{"12":7}}`, `args["odd key"].12`, `args["odd key"].12 must be a string`},
		{`{"to":"ab","amount":5,"pair":{"a":1}}`, "args.pair.b", "args.pair.b is required beside a"},
		{`{"to":"ab","amount":5,"list":[2]}`, "args.list", "args.list lacks an item that it must have"},
		{`[]`, "args", "args must be an object"},
		{`"secret"`, "args", "args must be an object"},
		{`{"to":"ab","to":"cd","amount":5}`, "args", `args has the key "to" twice in one object`},
		{`{"to":`, "args", "args is not valid JSON"},
		{`{} {}`, "args", "args is not valid JSON"},
		{`{"to":"ab","amount":1e999999999}`, "args", "args has a number that is out of range"},
		{`{"to":"ab","amount":` + strings.Repeat("1", 1000) + `}`, "args", "args has a number of too many digits"},
		{strings.Repeat(`{"a":`, 200) + `1` + strings.Repeat(`}`, 200), "args", "args is nested too deep"},
		{`{"to":"` + strings.Repeat("x", 300_000) + `"}`, "args", "args has more than 262144 bytes"},
	} {
		for range 3 { // maps have no order; what is told has
			err := upstream.Arguments(json.RawMessage(orderSchema), json.RawMessage(c.args))
			if c.field == "" {
				if err != nil {
					t.Errorf("%.80s: %v", c.args, err)
				}
				continue
			}
			e := workbench.AsError(err)
			if e == nil || e.Code != workbench.CodeArgumentsInvalid || e.Field != c.field || e.Detail != c.detail || e.Hint == "" {
				t.Errorf("%.80s: %+v, want %q at %s", c.args, e, c.detail, c.field)
				break
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%.80s: a value is repeated: %v", c.args, err)
			}
		}
	}
	if err := upstream.Arguments(json.RawMessage(`{"type":"string"}`), nil); !workbench.HasCode(err, workbench.CodeSchemaInvalid) {
		t.Errorf("a bad schema: %v", err)
	}
}

func TestFormatsAreNotAsserted(t *testing.T) {
	for _, draft := range []string{"http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"} {
		schema := fmt.Sprintf(`{"$schema":%q,"type":"object","properties":{"at":{"type":"string","format":"date-time"}}}`, draft)
		if err := upstream.Arguments(json.RawMessage(schema), json.RawMessage(`{"at":"noon"}`)); err != nil {
			t.Errorf("%s: %v", draft, err)
		}
	}
}

// Schemas whose check would take for ever.
func TestACheckIsBoundedInTime(t *testing.T) {
	doubling := func(keyword, leaf string) string {
		defs := ""
		for i := range 60 {
			defs += fmt.Sprintf(`"d%d":{%q:[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, keyword, i+1, i+1)
		}
		return `"$defs":{` + defs + `"d60":` + leaf + `}`
	}
	for name, schema := range map[string]string{
		"all of":           `{"type":"object","properties":{"a":{"$ref":"#/$defs/d0"}},` + doubling("allOf", `{}`) + `}`,
		"any of, under no": `{"type":"object","properties":{"a":{"not":{"$ref":"#/$defs/d0"}}},` + doubling("anyOf", `{"type":"string"}`) + `}`,
		"one of":           `{"type":"object","properties":{"a":{"$ref":"#/$defs/d0"}},` + doubling("oneOf", `false`) + `}`,
	} {
		begun := time.Now()
		err := upstream.Arguments(json.RawMessage(schema), json.RawMessage(`{"a":1}`))
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
		if err != nil && !workbench.HasCode(err, workbench.CodeArgumentsInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	nested := `{"type":"object","$defs":{"n":{"allOf":[{"properties":{"x":{"$ref":"#/$defs/n"}}},{"properties":{"x":{"$ref":"#/$defs/n"}}}]}},"$ref":"#/$defs/n"}`
	args := strings.Repeat(`{"x":`, 90) + `1` + strings.Repeat(`}`, 90)
	begun := time.Now()
	if err := upstream.Arguments(json.RawMessage(nested), json.RawMessage(args)); !workbench.HasCode(err, workbench.CodeArgumentsInvalid) {
		t.Errorf("nested: %v", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("nested: took %s", took)
	}
}

// Patterns are bounded in what they need together, and each comparison looks at the time.
func TestPatternsAreBounded(t *testing.T) {
	patterned := func(n int, pattern string) json.RawMessage {
		var b strings.Builder
		b.WriteString(`{"type":"object","patternProperties":{`)
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `"%s%d":{}`, pattern, i)
		}
		return json.RawMessage(b.String() + `}}`)
	}
	begun := time.Now()
	for name, schema := range map[string]json.RawMessage{
		"many that repeat": patterned(4000, `(\\pL{0,500}x){2}`),
		"one that repeats": json.RawMessage(`{"type":"object","properties":{"a":{"pattern":"((a{1,100}){1,100}){1,50}"}}}`),
		"large classes":    patterned(400, `^[\\pL\\pN]{1,900}$`),
	} {
		if err := upstream.ValidateSchema(schema); !workbench.HasCode(err, workbench.CodeSchemaInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("to refuse them took %s", took)
	}
	for name, schema := range map[string]json.RawMessage{
		"names":   json.RawMessage(`{"type":"object","properties":{"a":{"pattern":"^[\\pL ]{1,64}$"},"b":{"pattern":"^\\d{4}-\\d{2}-\\d{2}T.{1,255}$"}}}`),
		"a uuid":  json.RawMessage(`{"type":"object","properties":{"a":{"pattern":"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}}}`),
		"hundred": patterned(100, `^x-.{0,100}`),
	} {
		if err := upstream.ValidateSchema(schema); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var args strings.Builder
	for i := range 12_000 {
		fmt.Fprintf(&args, `,"key%d":1`, i)
	}
	begun = time.Now()
	err := upstream.Arguments(patterned(500, `^z.y`), json.RawMessage("{"+args.String()[1:]+"}"))
	if took := time.Since(begun); took > 5*time.Second || err != nil && !workbench.HasCode(err, workbench.CodeArgumentsInvalid) {
		t.Errorf("12,000 keys against 500 patterns: %v after %s", err, took)
	}
}

func FuzzArguments(f *testing.F) {
	f.Add(orderSchema, `{"to":"ab","amount":5}`)
	f.Add(`{"type":"object","properties":{"a":{"$ref":"#"}}}`, `{"a":{"a":{"a":1}}}`)
	f.Add(`{"type":"object","unevaluatedProperties":false,"if":{"required":["a"]},"then":{"properties":{"a":{"type":"string"}}}}`, `{"a":1}`)
	f.Add(`{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","dependencies":{"a":["b"]}}`, `{"a":1e400}`)
	f.Fuzz(func(t *testing.T, schema, args string) {
		err := upstream.Arguments(json.RawMessage(schema), json.RawMessage(args))
		if err == nil && upstream.ValidateSchema(json.RawMessage(schema)) != nil {
			t.Error("arguments are right for a schema that is not")
		}
		if code := workbench.CodeOf(err); err != nil && code != workbench.CodeArgumentsInvalid && code != workbench.CodeSchemaInvalid {
			t.Errorf("%v", err)
		}
	})
}

package upstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/workbenchdev/workbench"
)

const (
	// maxSchemaDepth and maxArgumentsDepth bound how deep values are nested.
	maxSchemaDepth    = 100
	maxArgumentsDepth = 100
	// maxSchemaNodes bounds the objects and booleans of a schema: to compile one
	// takes time that grows with their square.
	maxSchemaNodes = 4096
	// maxDigits bounds a number: its characters, and its exponent either way.
	maxDigits = 400
	// checkTime bounds the check of one call's arguments. Schemas can be made so
	// that a check takes for ever.
	checkTime = time.Second
	// compileTime bounds what a schema's own patterns are compared with meanwhile.
	compileTime = 10 * time.Second
	// maxCompiled bounds the schemas that are kept compiled, and maxCompiledBytes what
	// they are taken to need.
	maxCompiled      = 512
	maxCompiledBytes = 128 << 20
	// maxPatternBytes bounds what the patterns of a schema need, compiled.
	maxPatternBytes = 4 << 20
	// nodeBytes is about what a part of a schema needs, and patternBytes a pattern
	// beside its instructions.
	nodeBytes, patternBytes = 2 << 10, 2 << 10
)

// ValidateSchema reports whether a schema can be used for a tool's arguments: a
// JSON Schema, of a draft up to 2020-12, of an object. Nothing is ever fetched
// for it. Formats are not asserted. Code schema_invalid, with the place in the
// schema, as a JSON pointer, as field.
func ValidateSchema(raw json.RawMessage) error {
	_, err := compiled(raw)
	return err
}

func errSchema(place, format string, args ...any) *workbench.Error {
	return workbench.E(workbench.CodeSchemaInvalid, "the schema "+format, args...).WithField(place)
}

// checker is a compiled schema. One call's arguments are checked at a time, so
// that the check can be bounded.
type checker struct {
	mu     sync.Mutex
	schema *jsonschema.Schema
	until  time.Time
	bytes  int // about what it needs
}

// errLong ends a check that takes too long, as a panic: the library has no other
// way out.
var errLong = errors.New("the check takes too long")

// cache keeps compiled schemas, by the digest of their text.
var cache = struct {
	mu    sync.Mutex
	of    map[[sha256.Size]byte]*checker
	ages  [][sha256.Size]byte // first in, first out
	bytes int
}{of: map[[sha256.Size]byte]*checker{}}

func compiled(raw json.RawMessage) (*checker, error) {
	key := sha256.Sum256(raw)
	cache.mu.Lock()
	c := cache.of[key]
	cache.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := compile(raw)
	if err != nil {
		return nil, err
	}
	cache.mu.Lock()
	defer cache.mu.Unlock()
	if known := cache.of[key]; known != nil {
		return known, nil
	}
	cache.bytes += c.bytes
	for len(cache.ages) > 0 && (len(cache.ages) == maxCompiled || cache.bytes > maxCompiledBytes) {
		oldest := cache.ages[0]
		cache.bytes -= cache.of[oldest].bytes
		delete(cache.of, oldest)
		cache.ages = cache.ages[1:]
	}
	cache.of[key], cache.ages = c, append(cache.ages, key)
	return c, nil
}

// schemaURL is where the library believes a schema to be.
const schemaURL = "mem:///schema"

// noLoader fetches nothing.
type noLoader struct{}

func (noLoader) Load(string) (any, error) { return nil, errOutside }

var errOutside = errors.New("nothing outside of a schema is looked at")

func compile(raw json.RawMessage) (c *checker, err error) {
	if len(raw) > workbench.MaxToolSchema {
		return nil, errSchema("", "has more than %d bytes", workbench.MaxToolSchema)
	}
	doc, err := decode(raw, maxSchemaDepth)
	if err != nil {
		return nil, errSchema("", "%v", err)
	}
	root, _ := doc.(map[string]any)
	if root["type"] != "object" {
		return nil, errSchema("/type", `must say "type": "object" at its root`)
	}
	parts := nodes(doc)
	if parts > maxSchemaNodes {
		return nil, errSchema("", "has more than %d parts", maxSchemaNodes)
	}
	c = &checker{bytes: parts*nodeBytes + 4*len(raw), until: time.Now().Add(compileTime)}
	patterns := 0
	defer func() {
		if r := recover(); r != nil {
			c, err = nil, errSchema("", "cannot be compiled")
		}
	}()
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(noLoader{})
	compiler.UseRegexpEngine(func(expression string) (jsonschema.Regexp, error) {
		need, err := patternNeeds(expression)
		if err != nil {
			return nil, err
		}
		if patterns += need; patterns > maxPatternBytes {
			return nil, errPatterns
		}
		re, err := regexp.Compile(expression)
		return pattern{re, c}, err
	})
	if err := compiler.AddResource(schemaURL, doc); err != nil {
		return nil, errSchema("", "cannot be compiled").Caused(err)
	}
	schema, err := compiler.Compile(schemaURL)
	if err != nil {
		return nil, schemaError(doc, err)
	}
	c.schema, c.bytes = schema, c.bytes+patterns
	if !c.bound(schema, map[*jsonschema.Schema]bool{}) {
		return nil, errSchema(place(doc, false, "$dynamicRef", "$recursiveRef"), "uses $dynamicRef or $recursiveRef, which are not supported")
	}
	return c, nil
}

var errPatterns = errors.New("the patterns of a schema are too large")

// pattern is a regular expression that looks at the time before it looks at a text.
type pattern struct {
	*regexp.Regexp
	c *checker
}

func (p pattern) MatchString(s string) bool {
	_ = p.c.tick(nil)
	return p.Regexp.MatchString(s)
}

// patternNeeds is about how many bytes a regular expression needs, compiled.
func patternNeeds(expression string) (int, error) {
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return 0, err
	}
	n := needs(tree)
	bytes := patternBytes + n.steps*48 + n.ranges*4
	if n.steps < 1000 { // Go makes a copy, with a table for each step, of one that needs no search
		bytes += n.tables * 2
	}
	return bytes, nil
}

// need is what an expression has once its repetitions are written out: steps, the
// bounds of ranges in its classes, which copies share, and those bounds for each copy.
type need struct{ steps, ranges, tables int }

func needs(t *syntax.Regexp) need {
	const most = 1 << 30
	n := need{steps: 1}
	if t.Op == syntax.OpCharClass {
		n.ranges, n.tables = len(t.Rune), len(t.Rune)
	} else {
		n.steps += len(t.Rune)
	}
	for _, sub := range t.Sub {
		inner := needs(sub)
		n = need{min(n.steps+inner.steps, most), min(n.ranges+inner.ranges, most), min(n.tables+inner.tables, most)}
	}
	if t.Op == syntax.OpRepeat {
		times := max(t.Min, t.Max, 1)
		n.steps, n.tables = min(n.steps*times, most), min(n.tables*times, most)
	}
	return n
}

// schemaError says what is wrong with a schema.
func schemaError(doc any, err error) error {
	var (
		load    *jsonschema.LoadURLError
		regex   *jsonschema.InvalidRegexError
		missing *jsonschema.JSONPointerNotFoundError
		anchor  *jsonschema.AnchorNotFoundError
		invalid *jsonschema.SchemaValidationError
	)
	switch {
	case errors.As(err, &load):
		return errSchema(place(doc, true, "$ref", "$dynamicRef", "$recursiveRef", "$schema"), "refers to something outside of it; nothing is fetched").Caused(err)
	case errors.As(err, &regex) && errors.Is(regex.Err, errPatterns):
		return errSchema(fragment(regex.URL), "has patterns that are too large together: fewer, shorter, or with smaller repetitions").Caused(err)
	case errors.As(err, &regex):
		return errSchema(fragment(regex.URL), "has a pattern that is not a regular expression as Go (RE2) has them").Caused(err)
	case errors.As(err, &missing), errors.As(err, &anchor):
		return errSchema(place(doc, false, "$ref"), "refers to a part of it that is not there").Caused(err)
	case errors.As(err, &invalid):
		where := ""
		var why *jsonschema.ValidationError
		if errors.As(invalid.Err, &why) {
			where = pointer(deepest(why).InstanceLocation)
		}
		return errSchema(where, "is not a valid JSON Schema").Caused(err)
	}
	return errSchema("", "cannot be compiled").Caused(err)
}

// place finds the first of the keys with text for its value, in the order of the
// keys of objects, and returns its JSON pointer. outside: one that points out of
// the schema.
func place(doc any, outside bool, keys ...string) string {
	switch v := doc.(type) {
	case map[string]any:
		for _, key := range sortedKeys(v) {
			here := "/" + pointerPart(key)
			ref, ok := v[key].(string)
			if within := strings.HasPrefix(ref, "#"); ok && slices.Contains(keys, key) && (!outside || !within) {
				return here
			}
			if inner := place(v[key], outside, keys...); inner != "" {
				return bounded(here+inner, 256)
			}
		}
	case []any:
		for i, item := range v {
			if inner := place(item, outside, keys...); inner != "" {
				return bounded("/"+strconv.Itoa(i)+inner, 256)
			}
		}
	}
	return ""
}

func fragment(url string) string {
	_, f, _ := strings.Cut(url, "#")
	return bounded(f, 256)
}

func pointer(parts []string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("/" + pointerPart(p))
	}
	return bounded(b.String(), 256)
}

func deepest(e *jsonschema.ValidationError) *jsonschema.ValidationError {
	best := e
	for _, cause := range e.Causes {
		if d := deepest(cause); len(d.InstanceLocation) > len(best.InstanceLocation) || best == e {
			best = d
		}
	}
	return best
}

// nodes counts what may be schemas.
func nodes(v any) int {
	n := 0
	switch v := v.(type) {
	case bool:
		n++
	case map[string]any:
		n++
		for _, inner := range v {
			n += nodes(inner)
		}
	case []any:
		for _, inner := range v {
			n += nodes(inner)
		}
	}
	return n
}

// bound makes every part of a schema look at the time, in place of asserting a
// format. It is false if there may be parts that cannot be reached.
func (c *checker) bound(s *jsonschema.Schema, seen map[*jsonschema.Schema]bool) bool {
	if s == nil || seen[s] {
		return true
	}
	seen[s] = true
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		return false
	}
	s.Format = &jsonschema.Format{Name: "", Validate: c.tick}
	inner := []*jsonschema.Schema{
		s.Ref, s.Not, s.If, s.Then, s.Else, s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems, s.ContentSchema,
	}
	for _, list := range [][]*jsonschema.Schema{s.AllOf, s.AnyOf, s.OneOf, s.PrefixItems} {
		inner = append(inner, list...)
	}
	for _, members := range []map[string]*jsonschema.Schema{s.Properties, s.DependentSchemas} {
		for _, m := range members {
			inner = append(inner, m)
		}
	}
	for _, m := range s.PatternProperties {
		inner = append(inner, m)
	}
	for _, m := range s.Dependencies {
		inner = append(inner, schemasIn(m)...)
	}
	for _, v := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		inner = append(inner, schemasIn(v)...)
	}
	for _, i := range inner {
		if !c.bound(i, seen) {
			return false
		}
	}
	return true
}

func schemasIn(v any) []*jsonschema.Schema {
	switch v := v.(type) {
	case *jsonschema.Schema:
		return []*jsonschema.Schema{v}
	case []*jsonschema.Schema:
		return v
	}
	return nil
}

func (c *checker) tick(any) error {
	if time.Now().After(c.until) {
		panic(errLong)
	}
	return nil
}

// check checks a value.
func (c *checker) check(v any) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		if r := recover(); r != nil {
			err = errLong
		}
	}()
	c.until = time.Now().Add(checkTime)
	return c.schema.Validate(v)
}

// decode reads one JSON value: numbers as they are written, no key twice in an
// object, nothing nested deeper than depth. What is wrong is said as the rest of
// a sentence.
func decode(raw json.RawMessage, depth int) (any, error) {
	if !json.Valid(raw) {
		return nil, errors.New("is not valid JSON")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decodeValue(d, depth)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one value")
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, errors.New("is not valid JSON")
	}
	switch t := token.(type) {
	case json.Number:
		return t, number(string(t))
	case json.Delim:
		if depth == 0 {
			return nil, errors.New("is nested too deep")
		}
		if t == '[' {
			list := []any{}
			for d.More() {
				v, err := decodeValue(d, depth-1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := d.Token()
			return list, err
		}
		members := map[string]any{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			name, _ := key.(string)
			if _, twice := members[name]; twice {
				return nil, fmt.Errorf("has the key %s twice in one object", strconv.Quote(bounded(name, 64)))
			}
			if members[name], err = decodeValue(d, depth-1); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return members, err
	}
	return token, nil
}

// number refuses a number that it would take long to compute with.
func number(s string) error {
	if len(s) > maxDigits {
		return errors.New("has a number of too many digits")
	}
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		if e, err := strconv.Atoi(s[i+1:]); err != nil || e > maxDigits || e < -maxDigits {
			return errors.New("has a number that is out of range")
		}
	}
	return nil
}

// propertiesOf lists the arguments that a schema declares, and reports whether
// it takes others.
func propertiesOf(raw json.RawMessage) (declared map[string]bool, others bool) {
	var s struct {
		Properties           map[string]json.RawMessage `json:"properties"`
		AdditionalProperties json.RawMessage            `json:"additionalProperties"`
	}
	declared = map[string]bool{}
	if json.Unmarshal(raw, &s) != nil {
		return declared, true
	}
	for name := range s.Properties {
		declared[name] = true
	}
	return declared, string(s.AdditionalProperties) != "false"
}

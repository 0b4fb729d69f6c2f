package api

import (
	"errors"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/workbenchdev/workbench"
)

// violation makes one error of huma's list: the first one by field, unknown
// fields before all others. The words are ours and come from the schema: the
// field, what is wrong with it, what is allowed and what to send. No value that
// was sent is repeated.
func (b *bodySchema) violation(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	found := make([]*workbench.Error, 0, len(errs))
	for _, err := range errs {
		var d *huma.ErrorDetail
		if errors.As(err, &d) {
			found = append(found, b.explain(d))
		}
	}
	sort.SliceStable(found, func(i, j int) bool {
		a, b := found[i], found[j]
		if (a.Code == workbench.CodeUnknownField) != (b.Code == workbench.CodeUnknownField) {
			return a.Code == workbench.CodeUnknownField
		}
		return a.Field < b.Field
	})
	if len(found) == 0 {
		return invalid("", "the request does not have the right form").WithHint("see /openapi.json for its fields")
	}
	return found[0]
}

var requiredPrefix, requiredSuffix, _ = strings.Cut(validation.MsgExpectedRequiredProperty, "%s")

func (b *bodySchema) explain(d *huma.ErrorDetail) *workbench.Error {
	field := fieldName(d.Location)
	if name, ok := strings.CutPrefix(d.Message, requiredPrefix); ok {
		name = strings.TrimSuffix(name, requiredSuffix)
		s := b.at(joinField(d.Location, name))
		return invalid(joinField(field, name), "%s is required", joinField(field, name)).WithHint("add it: %s", wanted(b.resolved(s)))
	}
	if d.Message == validation.MsgUnexpectedProperty {
		parent, name := b.parent(d.Location)
		return unknownField("field", field, name, fieldNames(parent))
	}
	s := b.resolved(b.at(d.Location))
	if s == nil {
		return invalid(field, "%s does not have the right form", subject(field)).WithHint("see /openapi.json for its form")
	}
	if len(s.OneOf) > 0 {
		return b.alternative(s, d)
	}
	return misfit(s, field, d.Value)
}

// alternative explains a value that may have two forms by the form that it has
// begun: an object's fields, or the text.
func (b *bodySchema) alternative(s *huma.Schema, d *huma.ErrorDetail) *workbench.Error {
	field := fieldName(d.Location)
	var forms []string
	for _, one := range s.OneOf {
		one = b.resolved(one)
		forms = append(forms, wanted(one))
		if typeName(d.Value) != one.Type {
			continue
		}
		if one.Type != huma.TypeObject {
			return misfit(one, field, d.Value)
		}
		inner := &bodySchema{registry: b.registry, schema: one}
		if err, ok := inner.validate(d.Value).(*workbench.Error); ok { //nolint:errorlint // violation returns it bare
			err.Field = joinField(field, err.Field)
			err.Detail = field + ": " + err.Detail
			return err
		}
	}
	return invalid(field, "%s must be %s", field, strings.Join(forms, " or ")).WithHint("see /openapi.json for its form")
}

// misfit says what of s the value at field does not hold to.
func misfit(s *huma.Schema, field string, value any) *workbench.Error {
	what := subject(field)
	text, isText := value.(string)
	number, isNumber := value.(float64)
	switch {
	case s.Type != "" && s.Type != typeName(value) && (s.Type != huma.TypeInteger || !isNumber):
		return invalid(field, "%s must be %s", what, typeWords[s.Type]).WithHint("send %s", wanted(s))
	case len(s.Enum) > 0:
		return notListed(what, field, text, enumOf(s))
	case isNumber && s.Type == huma.TypeInteger && number != float64(int64(number)) && number > -1e18 && number < 1e18:
		return invalid(field, "%s must be a whole number", what).WithHint("send %s", wanted(s))
	case isNumber && (s.Minimum != nil && number < *s.Minimum || s.Maximum != nil && number > *s.Maximum):
		return workbench.E(workbench.CodeLimitOutOfRange, "%s must be %s", what, rangeWords(s)).WithField(field).WithHint("send a value in that range")
	case isText && s.MinLength != nil && len([]rune(text)) < *s.MinLength:
		if *s.MinLength == 1 {
			return invalid(field, "%s must not be empty", what).WithHint("send %s", wanted(s))
		}
		return invalid(field, "%s must have at least %d characters", what, *s.MinLength).WithHint("send a longer text")
	case isText && s.MaxLength != nil && len([]rune(text)) > *s.MaxLength:
		return invalid(field, "%s must have at most %d characters", what, *s.MaxLength).WithHint("shorten it")
	case s.MaxItems != nil && s.Type == huma.TypeArray:
		return invalid(field, "%s takes at most %d items", what, *s.MaxItems).WithHint("send fewer")
	case s.MaxProperties != nil && s.Type == huma.TypeObject:
		return invalid(field, "%s takes at most %d entries", what, *s.MaxProperties).WithHint("send fewer")
	case s.Format == "date-time":
		return invalid(field, "%s must be an RFC 3339 time", what).WithHint("send a time such as 2026-01-31T08:00:00Z")
	}
	return invalid(field, "%s must be %s", what, wanted(s)).WithHint("see /openapi.json for its form")
}

// notListed refuses a value outside a closed list and, where it looks like one
// of the list, says which.
func notListed(what, field, value string, allowed []string) *workbench.Error {
	e := invalid(field, "%s must be one of %s", what, quotedList(allowed))
	if near := Nearest(value, allowed); near != "" {
		return e.WithHint("did you mean %q?", near)
	}
	return e.WithHint("send one of these, spelled exactly so")
}

// ofCreation are the fields that say what a session is from its first moment to
// its last: no configuration has them.
var ofCreation = []string{"image", "size", "sandboxSize", "ttlMs", "keepMemory", "kind"}

// unknownField refuses a name that is not among those allowed. kind is what
// the name is of: a field or a parameter.
func unknownField(kind, field, name string, allowed []string) *workbench.Error {
	e := workbench.E(workbench.CodeUnknownField, "the request has an unknown %s %s", kind, strconv.Quote(field)).WithField(field)
	if slices.Contains(allowed, "expectedCurrentVersion") && slices.Contains(ofCreation, name) {
		return e.WithHint("it is chosen when a session is created and stays: create another session, or fork this one")
	}
	if near := Nearest(name, allowed); near != "" {
		return e.WithHint("did you mean %q?", near)
	}
	if len(allowed) == 0 {
		return e.WithHint("remove it: there is no %s to set here", kind)
	}
	return e.WithHint("remove it, or use one of %s", quotedList(allowed))
}

var typeWords = map[string]string{
	huma.TypeString: "a text", huma.TypeInteger: "a whole number", huma.TypeNumber: "a number", huma.TypeBoolean: "true or false",
	huma.TypeArray: "a list", huma.TypeObject: "an object",
}

// wanted is what s takes, for "send …".
func wanted(s *huma.Schema) string {
	switch {
	case s == nil:
		return "a value of the form in /openapi.json"
	case len(s.Enum) > 0:
		return "one of " + quotedList(enumOf(s))
	case s.Pattern != "" && s.Description != "":
		return "a text of the form " + s.Description
	case s.Format == "date-time":
		return "an RFC 3339 time, such as 2026-01-31T08:00:00Z"
	}
	switch s.Type {
	case huma.TypeString:
		return "a text in double quotes"
	case huma.TypeInteger:
		return "a whole number without quotes"
	case huma.TypeNumber:
		return "a number without quotes"
	case huma.TypeBoolean:
		return "true or false, without quotes"
	case huma.TypeArray:
		return "a list in square brackets"
	case huma.TypeObject:
		if names := fieldNames(s); len(names) > 0 {
			return "an object with the fields " + quotedList(names)
		}
		return "an object in curly brackets"
	}
	return "a value of the form in /openapi.json"
}

func rangeWords(s *huma.Schema) string {
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	switch {
	case s.Maximum == nil:
		return "at least " + number(*s.Minimum)
	case s.Minimum == nil:
		return "at most " + number(*s.Maximum)
	}
	return "between " + number(*s.Minimum) + " and " + number(*s.Maximum)
}

// typeName is the schema type of a parsed JSON value; "" for null.
func typeName(v any) string {
	switch v.(type) {
	case string:
		return huma.TypeString
	case float64:
		return huma.TypeNumber
	case bool:
		return huma.TypeBoolean
	case []any:
		return huma.TypeArray
	case map[string]any:
		return huma.TypeObject
	}
	return ""
}

func enumOf(s *huma.Schema) []string {
	out := make([]string, 0, len(s.Enum))
	for _, v := range s.Enum {
		if name, ok := v.(string); ok {
			out = append(out, name)
		}
	}
	return out
}

func subject(field string) string {
	if field == "" {
		return "the body"
	}
	return field
}

func joinField(path, name string) string {
	switch {
	case path == "":
		return name
	case name == "" || strings.HasPrefix(name, "["):
		return path + name
	}
	return path + "." + name
}

func quotedList(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = strconv.Quote(n)
	}
	return strings.Join(quoted, ", ")
}

// fieldNames are the properties of an object's schema, in order.
func fieldNames(s *huma.Schema) []string {
	if s == nil {
		return nil
	}
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (b *bodySchema) resolved(s *huma.Schema) *huma.Schema {
	for s != nil && s.Ref != "" {
		s = b.registry.SchemaFromRef(s.Ref)
	}
	return s
}

// at is the schema of a place that huma names, such as env.A or
// artifactIds[0].path; nil if there is none.
func (b *bodySchema) at(location string) *huma.Schema {
	s := b.resolved(b.schema)
	for location != "" && s != nil {
		if strings.HasPrefix(location, "[") {
			_, location, _ = strings.Cut(location, "]")
			location = strings.TrimPrefix(location, ".")
			s = b.resolved(s.Items)
			continue
		}
		name := location
		if i := strings.IndexAny(location, ".["); i >= 0 && s.Properties[location] == nil && len(s.Properties) > 0 {
			name = location[:i]
		}
		location = strings.TrimPrefix(location[len(name):], ".")
		next, ok := s.Properties[name]
		if !ok { // a free name, such as that of a variable or a label
			next, _ = s.AdditionalProperties.(*huma.Schema)
			location = ""
		}
		s = b.resolved(next)
	}
	return s
}

// parent is the schema of the object that holds the place, and the place's own
// name in it.
func (b *bodySchema) parent(location string) (*huma.Schema, string) {
	s, path, name := b.resolved(b.schema), "", location
	for {
		i := strings.Index(name, ".")
		if i < 0 {
			return s, name
		}
		path = joinField(path, name[:i])
		inner := b.at(path)
		if inner == nil || len(inner.Properties) == 0 {
			return s, name
		}
		s, name = inner, name[i+1:]
	}
}

package upstream

import (
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/workbenchdev/workbench"
)

// Arguments checks the arguments of a call against a tool's schema. None, and
// null, are the empty object. Codes: arguments_invalid, whose field is the path
// of the first one that is wrong (args.items[3].name) and whose detail repeats
// no value; schema_invalid.
func Arguments(schema, args json.RawMessage) error {
	c, err := compiled(schema)
	if err != nil {
		return err
	}
	if len(args) > workbench.MaxToolArguments {
		return argument("args", "has more than "+strconv.Itoa(workbench.MaxToolArguments)+" bytes")
	}
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	v, err := decode(args, maxArgumentsDepth)
	if err != nil {
		return argument("args", err.Error())
	}
	if _, ok := v.(map[string]any); !ok {
		return argument("args", "must be an object")
	}
	err = c.check(v)
	var wrong *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		f := first(v, wrong)
		return argument(f.field, f.what)
	}
	return argument("args", "takes too long to check")
}

func argument(field, what string) error {
	return workbench.E(workbench.CodeArgumentsInvalid, "%s %s", field, what).WithField(field).
		WithHint("the tool was not asked; its input schema says what it takes")
}

// fault is what is wrong with one argument.
type fault struct {
	field, what string
	rank        int // among those of one field: lower is told first
}

// first is the fault to tell: of the field that comes first, by its path.
func first(args any, e *jsonschema.ValidationError) fault {
	all := faults(args, e)
	if len(all) == 0 {
		return fault{field: "args", what: "does not match the tool's input schema"}
	}
	return slices.MinFunc(all, func(a, b fault) int {
		if c := strings.Compare(a.field, b.field); c != 0 {
			return c
		}
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		return strings.Compare(a.what, b.what)
	})
}

// faults lists what an error of the library tells, without the values it has.
func faults(args any, e *jsonschema.ValidationError) []fault {
	at := pathOf(args, e.InstanceLocation)
	one := func(what string) []fault { return []fault{{field: at, what: what}} }
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.AllOf, *kind.Reference:
		var all []fault
		for _, cause := range e.Causes {
			all = append(all, faults(args, cause)...)
		}
		return all
	case *kind.AnyOf:
		return alternatives(args, e, at)
	case *kind.OneOf:
		if len(k.Subschemas) > 0 {
			return one("matches more than one of the forms that it may have")
		}
		return alternatives(args, e, at)
	case *kind.Type:
		return one("must be " + types(k.Want))
	case *kind.Required:
		return missing(args, e.InstanceLocation, k.Missing, "is required")
	case *kind.Dependency:
		return missing(args, e.InstanceLocation, k.Missing, "is required beside "+strings.TrimPrefix(name(k.Prop), "."))
	case *kind.DependentRequired:
		return missing(args, e.InstanceLocation, k.Missing, "is required beside "+strings.TrimPrefix(name(k.Prop), "."))
	case *kind.AdditionalProperties:
		return missing(args, e.InstanceLocation, k.Properties, "is not a known argument")
	case *kind.FalseSchema:
		return one("is not a known argument")
	case *kind.PropertyNames:
		return one("has a name in it that is not allowed")
	case *kind.Enum:
		return one("must be one of " + values(k.Want))
	case *kind.Const:
		return one("must be " + values([]any{k.Want}))
	}
	return []fault{{field: at, what: bounds(e.ErrorKind), rank: 1}}
}

// bounds tells of a value that is out of bounds.
func bounds(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Minimum:
		return "must be at least " + decimal(k.Want)
	case *kind.Maximum:
		return "must be at most " + decimal(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be more than " + decimal(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + decimal(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + decimal(k.Want)
	case *kind.MinLength:
		return "must have at least " + count(k.Want, "character")
	case *kind.MaxLength:
		return "must have at most " + count(k.Want, "character")
	case *kind.MinItems:
		return "must have at least " + count(k.Want, "item")
	case *kind.MaxItems:
		return "must have at most " + count(k.Want, "item")
	case *kind.MinProperties:
		return "must have at least " + count(k.Want, "member")
	case *kind.MaxProperties:
		return "must have at most " + count(k.Want, "member")
	case *kind.AdditionalItems:
		return "has more items than it may"
	case *kind.UniqueItems:
		return "must not have an item twice"
	case *kind.Pattern:
		return "must match the pattern " + bounded(k.Want, 128)
	case *kind.Contains, *kind.MinContains:
		return "lacks an item that it must have"
	case *kind.MaxContains:
		return "has too many items of a kind"
	}
	return "does not match the tool's input schema"
}

func decimal(r *big.Rat) string {
	if r.IsInt() {
		return bounded(r.Num().String(), 64)
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

func missing(args any, at, names []string, what string) []fault {
	var all []fault
	for _, n := range names {
		all = append(all, fault{field: pathOf(args, append(slices.Clone(at), n)), what: what})
	}
	return all
}

// alternatives tells of a value that has none of the forms that it may have: of
// the types that it may be, if it has another; else of the one form whose type it
// has.
func alternatives(args any, e *jsonschema.ValidationError, at string) []fault {
	var want []string
	var near []*jsonschema.ValidationError
	for _, cause := range e.Causes {
		if k, ok := ofType(cause, len(e.InstanceLocation)); ok {
			want = append(want, k.Want...)
		} else {
			near = append(near, cause)
		}
	}
	switch {
	case len(near) == 0 && len(want) > 0:
		slices.Sort(want)
		return []fault{{field: at, what: "must be " + types(slices.Compact(want))}}
	case len(near) == 1:
		return faults(args, near[0])
	}
	return []fault{{field: at, what: "has none of the forms that it may have", rank: 1}}
}

// ofType reports whether an error is of a type alone, of the value at a depth.
func ofType(e *jsonschema.ValidationError, depth int) (*kind.Type, bool) {
	for {
		switch k := e.ErrorKind.(type) {
		case *kind.Type:
			return k, len(e.InstanceLocation) == depth
		case *kind.Reference, *kind.Group:
			if len(e.Causes) != 1 {
				return nil, false
			}
			e = e.Causes[0]
		default:
			return nil, false
		}
	}
}

// types names types: "a string or null".
func types(want []string) string {
	named := make([]string, len(want))
	for i, w := range want {
		switch w {
		case "null":
			named[i] = w
		case "integer":
			named[i] = "a whole number"
		case "array", "object":
			named[i] = "an " + w
		default:
			named[i] = "a " + w
		}
	}
	return strings.Join(named, " or ")
}

// values lists values of a schema, as JSON.
func values(want []any) string {
	var texts []string
	for _, w := range want[:min(len(want), 20)] {
		texts = append(texts, bounded(string(jsonOf(w)), 64))
	}
	if len(want) > 20 {
		texts = append(texts, "…")
	}
	return bounded(strings.Join(texts, ", "), 512)
}

// pathOf is the path of a value in the arguments: args.items[3].name.
func pathOf(args any, at []string) string {
	var b strings.Builder
	b.WriteString("args")
	for _, part := range at {
		if list, ok := args.([]any); ok {
			b.WriteString("[" + part + "]")
			args = nil
			if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(list) {
				args = list[i]
			}
			continue
		}
		members, _ := args.(map[string]any)
		args = members[part]
		b.WriteString(name(part))
	}
	return bounded(strings.TrimSuffix(b.String(), "."), 256)
}

// name is a key as a step of a path.
func name(key string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	if key != "" && strings.Trim(key, plain) == "" && len(key) <= 64 {
		return "." + key
	}
	return "[" + strconv.Quote(bounded(key, 64)) + "]"
}

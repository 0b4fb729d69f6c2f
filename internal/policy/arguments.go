package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/cedar-policy/cedar-go"
)

const (
	// maxArgumentDepth bounds objects and arrays within each other.
	maxArgumentDepth = 64
	// maxMixedSet bounds the sets of which cedar-go's hash does not keep the members
	// apart: a number hashes to itself and a set to the sum of its members, so that
	// one call's arguments could be made to take seconds.
	maxMixedSet = 256
)

// arguments converts the arguments of a call: as they are, and with every number
// rounded up to a Long. Its errors name no value.
func arguments(raw json.RawMessage) (args, ceil cedar.Record, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return args, ceil, errors.New("the arguments are missing or not JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return args, ceil, errors.New("the arguments are more than one JSON value")
	}
	object, ok := v.(map[string]any)
	if !ok {
		return args, ceil, errors.New("the arguments are not a JSON object")
	}
	return record(object, 1)
}

var errDepth = fmt.Errorf("the arguments nest more than %d objects and arrays", maxArgumentDepth)

// record converts an object at a depth, from 1. What is null is not there.
func record(object map[string]any, depth int) (args, ceil cedar.Record, err error) {
	if depth > maxArgumentDepth {
		return args, ceil, errDepth
	}
	a, c := make(cedar.RecordMap, len(object)), make(cedar.RecordMap, len(object))
	for name, v := range object {
		arg, up, err := value(v, depth)
		if err != nil {
			return args, ceil, err
		}
		if arg != nil {
			a[cedar.String(name)], c[cedar.String(name)] = arg, up
		}
	}
	return cedar.NewRecord(a), cedar.NewRecord(c), nil
}

// value converts what is within an object or array at a depth. It is nil for
// null.
func value(v any, depth int) (arg, ceil cedar.Value, err error) {
	switch v := v.(type) {
	case nil:
		return nil, nil, nil
	case bool:
		return cedar.Boolean(v), cedar.Boolean(v), nil
	case string:
		return cedar.String(v), cedar.String(v), nil
	case json.Number:
		arg, ceil = number(string(v))
		return arg, ceil, nil
	case []any:
		return array(v, depth+1)
	case map[string]any:
		return record(v, depth+1)
	}
	return nil, nil, fmt.Errorf("the arguments hold a %T", v) // encoding/json makes nothing else
}

func array(values []any, depth int) (arg, ceil cedar.Value, err error) {
	if depth > maxArgumentDepth {
		return nil, nil, errDepth
	}
	a, c := make([]cedar.Value, 0, len(values)), make([]cedar.Value, 0, len(values))
	for _, v := range values {
		arg, up, err := value(v, depth)
		if err != nil {
			return nil, nil, err
		}
		if arg != nil {
			a, c = append(a, arg), append(c, up)
		}
	}
	return set(a), set(c), nil
}

// set makes a Set, or a String in the place of one that cannot be had cheaply:
// what is done to sets errs with it.
func set(values []cedar.Value) cedar.Value {
	if len(values) > maxMixedSet && !uniform(values) {
		return cedar.String(fmt.Sprintf("array of %d values", len(values)))
	}
	return cedar.NewSet(values...)
}

// uniform reports whether values are all of one type whose hashes differ.
func uniform(values []cedar.Value) bool {
	first := reflect.TypeOf(values[0])
	for _, v := range values {
		if _, nested := v.(cedar.Set); nested || reflect.TypeOf(v) != first {
			return false
		}
	}
	return true
}

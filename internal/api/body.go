package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/workbenchdev/workbench"
)

// Bounds of a JSON body.
const (
	MaxJSONBody  = 4 << 20 // bytes
	maxJSONDepth = 32      // nested arrays and objects

	// Of a body that declares an app: an OpenAPI document may be in it.
	MaxAppBody  = 16 << 20
	maxAppDepth = 202 // its config, and a document nested as deep as upstream takes
)

// bodySchema checks and decodes bodies of one type.
type bodySchema struct {
	registry huma.Registry
	schema   *huma.Schema
	typ      reflect.Type // of the body, not a pointer
	optional bool         // an absent body is {}
	bytes    int          // at most; 0: MaxJSONBody
	depth    int          // at most; 0: maxJSONDepth
}

// read takes the body of a request: capped, valid UTF-8, strict JSON, checked against
// the schema. It returns a pointer to the body's type. Codes:
// unsupported_media_type, body_too_large, unknown_field, limit_out_of_range,
// invalid_request.
func (b *bodySchema) read(c *call) (any, error) {
	raw, err := c.readCapped(orDefault(b.bytes, MaxJSONBody))
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		if !b.optional {
			return nil, invalid("", "the request needs a JSON body").WithHint("send a JSON object with Content-Type: application/json")
		}
		raw = []byte("{}")
	} else if err := mustBeJSON(c.r.Header.Get("Content-Type")); err != nil {
		return nil, err
	}
	tree, err := parseStrict(raw, orDefault(b.depth, maxJSONDepth))
	if err != nil {
		for _, field := range []string{"pathBase64", "fromBase64"} {
			if b.resolved(b.schema).Properties[field] != nil && !utf8.Valid(raw) {
				return nil, workbench.AsError(err).WithHint(nameBytes, field)
			}
		}
		return nil, err
	}
	if err := b.validate(tree); err != nil {
		return nil, err
	}
	body := reflect.New(b.typ).Interface()
	if err := json.Unmarshal(raw, body); err != nil {
		return nil, decodeError(err)
	}
	return body, nil
}

// orDefault is n, or what holds where it is 0.
func orDefault(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

func (c *call) readCapped(atMost int) ([]byte, error) {
	tooLarge := workbench.E(workbench.CodeBodyTooLarge, "the body is larger than %d bytes", atMost).
		WithHint("upload big inputs as retained files and select them by id")
	if atMost == MaxAppBody {
		tooLarge = tooLarge.WithHint("leave out of the document what nobody calls")
	}
	if c.r.ContentLength > int64(atMost) {
		return nil, tooLarge
	}
	c.w.readDeadline(c.s.o.ReadTimeout)
	raw, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, int64(atMost)))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge
	case err != nil:
		return nil, workbench.E(workbench.CodeInvalidRequest, "the body could not be read to its end").
			WithHint("send it again").Caused(err)
	}
	c.w.readDeadline(0)
	return raw, nil
}

func mustBeJSON(contentType string) error {
	mediaType, params, err := mime.ParseMediaType(contentType)
	charset := strings.ToLower(params["charset"])
	if err == nil && mediaType == "application/json" && (charset == "" || charset == "utf-8") {
		return nil
	}
	return workbench.E(workbench.CodeUnsupportedMedia, "this route takes a JSON body in UTF-8").WithField("Content-Type").
		WithHint("send Content-Type: application/json")
}

// parseStrict parses one JSON object: no name twice in an object, bounded
// nesting, nothing behind it. Numbers are float64, as huma's validator expects.
func parseStrict(raw []byte, deepest int) (any, error) {
	if !utf8.Valid(raw) {
		return nil, invalid("", "the body is not valid UTF-8").WithHint("send binary data as a retained file")
	}
	if bytes.HasPrefix(raw, byteOrderMark) {
		return nil, invalid("", "the body begins with a byte order mark").WithHint("send it without one, as UTF-8 alone")
	}
	if halfPair(raw) {
		return nil, invalid("", "the body holds half of a surrogate pair, which is no character").
			WithHint("write characters beyond U+FFFF as themselves, or as two \\u escapes")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	tree, err := (&strictParser{d, deepest}).value(0, "")
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid("", "the body holds more than one JSON value").WithHint("send one JSON object and nothing behind it")
	}
	if _, ok := tree.(map[string]any); !ok {
		return nil, invalid("", "the body must be a JSON object").WithHint("send the fields in curly brackets: {…}")
	}
	return tree, nil
}

// halfPair reports whether an escape names one half of a surrogate pair without
// the other. The decoder would put U+FFFD in its place, and run other code than
// was sent.
func halfPair(raw []byte) bool {
	for i := bytes.IndexByte(raw, '\\'); i >= 0 && i+1 < len(raw); {
		unit, ok := escapedUnit(raw[i:])
		switch {
		case !ok:
			i += 2
		case unit >= 0xdc00 && unit < 0xe000:
			return true
		case unit >= 0xd800 && unit < 0xdc00:
			if low, ok := escapedUnit(raw[i+6:]); !ok || low < 0xdc00 || low >= 0xe000 {
				return true
			}
			i += 12
		default:
			i += 6
		}
		next := bytes.IndexByte(raw[min(i, len(raw)):], '\\')
		if next < 0 {
			return false
		}
		i += next
	}
	return false
}

// escapedUnit is the UTF-16 unit of a \u escape at the beginning of b.
func escapedUnit(b []byte) (uint64, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return unit, err == nil
}

// strictParser reads JSON values, nested so deep at most.
type strictParser struct {
	*json.Decoder
	deepest int
}

func (d *strictParser) value(depth int, path string) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, notJSON(d.Decoder, path, err)
	}
	open, ok := token.(json.Delim)
	if !ok {
		return token, nil
	}
	if depth == d.deepest {
		return nil, invalid(path, "the body is nested deeper than %d", d.deepest).WithHint("send it flatter")
	}
	var value any
	if open == '[' {
		value, err = d.array(depth, path)
	} else {
		value, err = d.object(depth, path)
	}
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != nil { // the closing bracket
		return nil, notJSON(d.Decoder, path, err)
	}
	return value, nil
}

// byteOrderMark is what some editors and shells begin a text with.
var byteOrderMark = []byte("\xef\xbb\xbf")

// notJSON says where the body stops to be JSON, or to be of use. err is what the
// decoder said, path the field it was at.
func notJSON(d *json.Decoder, path string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("", "the body is not valid JSON: it ends too early").WithHint("close every quote and bracket")
	}
	var number *json.UnmarshalTypeError
	if errors.As(err, &number) { // nothing else is made of a bare token
		return workbench.E(workbench.CodeLimitOutOfRange, "a number is beyond every range").WithField(path).WithHint("send a smaller number")
	}
	return invalid("", "the body is not valid JSON (byte %d)", d.InputOffset()).WithHint("look at that byte, counted from 0; quotes and backslashes inside a text are written \\\" and \\\\")
}

func (d *strictParser) array(depth int, path string) (any, error) {
	list := []any{}
	for d.More() {
		v, err := d.value(depth+1, path)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func (d *strictParser) object(depth int, path string) (any, error) {
	object := map[string]any{}
	for d.More() {
		token, err := d.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, notJSON(d.Decoder, path, err)
		}
		at := fieldName(name)
		if path != "" {
			at = path + "." + at
		}
		if _, twice := object[name]; twice {
			return nil, invalid(at, "the body names a field twice").WithHint("send it once")
		}
		if object[name], err = d.value(depth+1, at); err != nil {
			return nil, err
		}
	}
	return object, nil
}

func (b *bodySchema) validate(tree any) error {
	var result huma.ValidateResult
	huma.Validate(b.registry, b.schema, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, tree, &result)
	return b.violation(result.Errors)
}

// decodeError is for what the schema let through: numbers that do not fit.
func decodeError(err error) error {
	var typeError *json.UnmarshalTypeError
	if errors.As(err, &typeError) {
		field := fieldName(strings.TrimPrefix(typeError.Field, reflect.TypeFor[RunOptions]().Name()+".")) // embedded: no part of the path
		number := strings.TrimPrefix(typeError.Value, "number ")
		if n, err := strconv.ParseFloat(number, 64); err == nil && math.Abs(n) < 1<<63 && strings.ContainsAny(number, ".eE") {
			return invalid(field, "%s must be written as a whole number", field).
				WithHint("write digits alone, such as 1000 for 1e3 or 1000.0").Caused(typeError)
		}
		if strings.HasPrefix(typeError.Value, "number") {
			return workbench.E(workbench.CodeLimitOutOfRange, "%s does not fit a 64-bit integer", field).WithField(field).
				WithHint("send a smaller number").Caused(err)
		}
		return invalid(field, "%s has the wrong type", field).WithHint("see /openapi.json for its type").Caused(err)
	}
	return invalid("", "the body does not have the right form").WithHint("see /openapi.json for its fields").Caused(fmt.Errorf("decode: %w", err))
}

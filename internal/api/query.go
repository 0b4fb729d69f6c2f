package api

import (
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
)

// Param is one query parameter of a route.
type Param struct {
	Name     string
	Doc      string
	Kind     ParamKind
	Enum     []string       // text: the values allowed
	Min, Max int64          // integer: the range, inclusive; text: Max is of its bytes, default 4096
	Bad      workbench.Code // code of a bad value; default by kind
	Repeat   bool           // may be given several times
	Required bool
}

// ParamKind is the type of a parameter.
type ParamKind string

// The kinds of parameter.
const (
	TextParam    ParamKind = "string"
	IntegerParam ParamKind = "integer"
	TimeParam    ParamKind = "date-time"
)

const maxParamBytes = 4096

// The parameters of every list.
var (
	limitParam  = Param{Name: "limit", Doc: "items per page", Kind: IntegerParam, Min: 1, Max: workbench.MaxPageLimit}
	cursorParam = Param{Name: "cursor", Doc: "nextCursor of the page before; opaque", Kind: TextParam}
	sinceParam  = Param{Name: "since", Doc: "created at or after", Kind: TimeParam}
	untilParam  = Param{Name: "until", Doc: "created before", Kind: TimeParam}
	waitParam   = Param{Name: "waitMs", Doc: "long poll: answer when the run is terminal, or after so many milliseconds", Kind: IntegerParam, Min: 0, Max: MaxWaitMs}
)

// query holds checked parameters.
type query struct{ values map[string][]string }

// parseQuery checks the query string against the route's parameters. Codes:
// unknown_field, limit_out_of_range, invalid_request, or the parameter's own.
func parseQuery(raw string, params []Param) (query, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return query{}, invalid("", "the query string is malformed").WithHint("percent-encode names and values")
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		i := slices.IndexFunc(params, func(p Param) bool { return p.Name == name })
		if i < 0 {
			return query{}, unknownField("parameter", fieldName(name), name, paramNames(params))
		}
		if len(values[name]) > 1 && !params[i].Repeat {
			return query{}, invalid(name, "the parameter %s is given more than once", name).WithHint("send it once")
		}
		for _, v := range values[name] {
			if err := params[i].check(v); err != nil {
				if named := name + "Base64"; !utf8.ValidString(v) && slices.ContainsFunc(params, func(p Param) bool { return p.Name == named }) {
					return query{}, workbench.AsError(err).WithHint(nameBytes, named)
				}
				return query{}, err
			}
		}
	}
	for _, p := range params {
		if p.Required && len(values[p.Name]) == 0 {
			return query{}, invalid(p.Name, "the parameter %s is required", p.Name).WithHint("add ?%s=…: %s", p.Name, p.Doc)
		}
	}
	return query{values: values}, nil
}

// nameBytes is what to do about a name that is no text.
const nameBytes = "send a name that is not UTF-8 in %s instead, as its bytes in standard base64"

func (p Param) check(v string) error {
	bad := func(fallback workbench.Code, format string, args ...any) *workbench.Error {
		if p.Bad != "" {
			fallback = p.Bad
		}
		return workbench.E(fallback, format, args...).WithField(p.Name)
	}
	most := int64(maxParamBytes)
	if p.Kind == TextParam && p.Max > 0 {
		most = p.Max
	}
	if int64(len(v)) > most || !utf8.ValidString(v) {
		return bad(workbench.CodeInvalidRequest, "%s must be valid UTF-8 of at most %d bytes", p.Name, most).WithHint("send less, percent-encoded")
	}
	switch p.Kind {
	case IntegerParam:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil && !strings.HasSuffix(err.Error(), strconv.ErrRange.Error()) {
			return bad(workbench.CodeInvalidRequest, "%s must be a whole number", p.Name).WithHint("send digits only: %s", p.Doc)
		}
		if err != nil || n < p.Min || n > p.Max {
			return bad(workbench.CodeLimitOutOfRange, "%s must be between %d and %d", p.Name, p.Min, p.Max).WithHint("send a value in that range, or leave %s out", p.Name)
		}
	case TimeParam:
		if _, err := time.Parse(time.RFC3339, v); err != nil {
			return bad(workbench.CodeInvalidRequest, "%s must be an RFC 3339 time", p.Name).WithHint("send a time such as 2026-01-31T08:00:00Z")
		}
	case TextParam:
		if len(p.Enum) > 0 && !slices.Contains(p.Enum, v) {
			return notListed(p.Name, p.Name, v, p.Enum)
		}
	}
	return nil
}

func paramNames(params []Param) []string {
	names := make([]string, 0, len(params))
	for _, p := range params {
		names = append(names, p.Name)
	}
	return names
}

func (q query) has(name string) bool { return len(q.values[name]) > 0 }

func (q query) text(name string) string {
	if !q.has(name) {
		return ""
	}
	return q.values[name][0]
}

// integer is 0 for an absent parameter.
func (q query) integer(name string) int64 {
	n, _ := strconv.ParseInt(q.text(name), 10, 64) // checked by parseQuery
	return n
}

// time is the zero time for an absent parameter.
func (q query) time(name string) time.Time {
	t, _ := time.Parse(time.RFC3339, q.text(name)) // checked by parseQuery
	return t.UTC()
}

func (q query) page() workbench.Page {
	return workbench.Page{Limit: int(q.integer("limit")), Cursor: q.text("cursor")}
}

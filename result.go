package workbench

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Result is one thing that a run showed, in as many forms as it has: the value
// of a cell's last expression, a table, an image, a chart, an error.
type Result struct {
	Index int        `json:"index"` // within the run, from 0
	Type  ResultType `json:"type"`
	// Data holds each form by its MIME type: text as a string, JSON types as
	// the JSON they are, everything else in base64.
	Data     map[string]json.RawMessage `json:"data"`
	Metadata json.RawMessage            `json:"metadata,omitempty"` // an object
	// Artifacts are retained files with the forms that are too large for Data.
	Artifacts map[string]string `json:"artifactIds,omitempty"`
	DisplayID string            `json:"displayId,omitempty"` // a later result with the same one replaces it on a screen
	Truncated bool              `json:"truncated,omitempty"` // a form could not be kept at all
}

// ResultType is what a result is.
type ResultType string

// The types of result.
const (
	ResultStructured ResultType = "structured" // workbench.result; the last one is the run's Result
	ResultValue      ResultType = "value"      // of a cell's last expression
	ResultDisplay    ResultType = "display"
	ResultError      ResultType = "error" // an uncaught exception
	ResultClear      ResultType = "clear" // what was displayed before is obsolete; it has no forms
)

// CellError is the exception that a cell did not catch, as its interpreter
// tells it.
type CellError struct {
	Name      string `json:"name"`  // its class
	Value     string `json:"value"` // what it says
	Traceback string `json:"traceback"`
}

// maxHeadline bounds an error's headline, in bytes.
const maxHeadline = 200

// Headline is the error in a line: its name and the first line of what it says,
// shortened.
func (e CellError) Headline() string {
	line, _, _ := strings.Cut(e.Value, "\n")
	if line = strings.TrimSpace(line); line != "" {
		line = ": " + line
	}
	if line = e.Name + line; len(line) > maxHeadline {
		line = TextOf([]byte(line)[:CutText([]byte(line), maxHeadline, false)]) + "…"
	}
	return line
}

// LastError is what the last result of type error says, nil if there is none
// or it is too large to be among the results.
func LastError(all []Result) *CellError {
	for _, r := range slices.Backward(all) {
		if r.Type != ResultError {
			continue
		}
		var told struct {
			Name      string   `json:"ename"`
			Value     string   `json:"evalue"`
			Traceback []string `json:"traceback"`
		}
		if raw := r.Data["application/json"]; raw == nil || json.Unmarshal(raw, &told) != nil {
			return nil
		}
		return &CellError{Name: told.Name, Value: told.Value, Traceback: strings.Join(told.Traceback, "\n")}
	}
	return nil
}

// ResultTypes lists every type.
func ResultTypes() []ResultType {
	return []ResultType{ResultStructured, ResultValue, ResultDisplay, ResultError, ResultClear}
}

// Text is a form of a text type that is in Data; ok is false where there is
// none.
func (r Result) Text(mimeType string) (text string, ok bool) {
	raw, has := r.Data[mimeType]
	return text, has && TextMIME(mimeType) && json.Unmarshal(raw, &text) == nil
}

// ResultContent describes one form of a result as a download.
type ResultContent struct {
	Name     string
	MIMEType string
	SHA256   string // "" where it is not known
}

// Bounds of a run's results.
const (
	MaxResults          = 100      // of a run
	MaxResultForms      = 16       // MIME types of one result
	MaxResultInline     = 1 * MiB  // of one result, in the log; larger forms become retained files
	MaxRunResultsInline = 8 * MiB  // of all results of a run, in the log
	MaxResultMetadata   = 64 * KiB // of one result
	MaxDisplayBytes     = 16 * MiB // of one result as the code sends it
	MaxMIMEBytes        = 127
)

// resultMeta is the Meta of a log entry that holds a result.
type resultMeta struct {
	Index int        `json:"index"`
	Type  ResultType `json:"type"`
}

// Entry is the log entry of a result, without its number. The data of a
// structured one is its value alone.
func (r Result) Entry(runID string, at time.Time) (LogEntry, error) {
	meta, err := json.Marshal(resultMeta{r.Index, r.Type})
	if err != nil {
		return LogEntry{}, err
	}
	data := []byte(r.Data[structuredMIME])
	if r.Type != ResultStructured {
		if data, err = json.Marshal(r); err != nil {
			return LogEntry{}, err
		}
	}
	return LogEntry{RunID: runID, Kind: LogResult, Meta: meta, Data: data, At: at}, nil
}

const structuredMIME = "application/json"

// StructuredResult is a structured result of a run.
func StructuredResult(index int, value json.RawMessage) Result {
	return Result{Index: index, Type: ResultStructured, Data: map[string]json.RawMessage{structuredMIME: value}}
}

// ResultOf is the result that a log entry holds, with its data in plain.
func ResultOf(e LogEntry) (Result, error) {
	var meta resultMeta
	if len(e.Meta) > 0 {
		if err := json.Unmarshal(e.Meta, &meta); err != nil {
			return Result{}, err
		}
	}
	if meta.Type == "" || meta.Type == ResultStructured {
		return StructuredResult(meta.Index, e.Data), nil
	}
	r := Result{Data: map[string]json.RawMessage{}}
	if err := json.Unmarshal(e.Data, &r); err != nil {
		return Result{}, err
	}
	r.Index, r.Type = meta.Index, meta.Type
	return r, nil
}

// ValidMIME reports whether s is a MIME type as results have them: lower case,
// without parameters.
func ValidMIME(s string) bool {
	family, kind, ok := strings.Cut(s, "/")
	return ok && len(s) <= MaxMIMEBytes && mimeToken(family) && mimeToken(kind)
}

func mimeToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		word := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !word && (i == 0 || strings.IndexByte("!#$&^_.+-", c) < 0) {
			return false
		}
	}
	return s != ""
}

// JSONMIME reports whether a form of the type is JSON.
func JSONMIME(t string) bool { return t == "application/json" || strings.HasSuffix(t, "+json") }

// TextMIME reports whether a form of the type is text, and not bytes in base64.
func TextMIME(t string) bool {
	family, _, _ := strings.Cut(t, "/")
	switch {
	case t == "image/svg+xml" || strings.HasSuffix(t, "+xml"):
		return true
	case family == "image", family == "audio", family == "video", family == "font":
		return false
	}
	switch t {
	case "application/pdf", "application/octet-stream", "application/zip", "application/gzip", "application/wasm":
		return false
	}
	return true
}

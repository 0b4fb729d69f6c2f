package workbench

import (
	"encoding/json"
	"strings"
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
)

// ResultTypes lists every type.
func ResultTypes() []ResultType {
	return []ResultType{ResultStructured, ResultValue, ResultDisplay, ResultError}
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

// MIMEError is the type of the machine-readable form of an error:
// {"name", "value", "traceback"}.
const MIMEError = "application/vnd.workbench.error+json"

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

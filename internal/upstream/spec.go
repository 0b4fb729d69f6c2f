package upstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/workbenchdev/workbench"
)

// Digest names the form of a tool: the SHA-256, in hex, of the canonical JSON
// (keys sorted, no space) of its whole name, description, schemas, annotations
// and binding. Two tools of the same digest are asked in the same way and say
// the same of themselves.
func Digest(app string, t workbench.ToolSpec) string {
	form := map[string]any{
		"name": app + "." + t.Name, "description": t.Description, "annotations": t.Annotations,
		"inputSchema": canonical(t.InputSchema), "outputSchema": canonical(t.OutputSchema), "binding": canonical(t.Binding),
	}
	b, err := json.Marshal(form)
	if err != nil { // not possible: it holds what came out of JSON
		b = fmt.Append(nil, form)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// canonical is a JSON value that marshals with its keys sorted and its numbers
// as they were written; what is not JSON stands for itself.
func canonical(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	v, err := decode(raw, maxSchemaDepth)
	if err != nil {
		return string(raw)
	}
	return v
}

// binding is how a tool's app is asked: ToolSpec.Binding.
type binding struct {
	Kind    string   `json:"kind"` // "mcp" or "http"
	Request *request `json:"request,omitempty"`
}

func (b binding) raw() json.RawMessage {
	raw, err := json.Marshal(b)
	if err != nil {
		panic("upstream: a binding that is not JSON: " + err.Error())
	}
	return raw
}

const toolLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./"

// jsonOf is v as JSON, without escapes that JSON does not need.
func jsonOf(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // not possible: it is text, or came out of JSON
		return json.RawMessage("null")
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// intake collects the tools of an app, and why others were left out.
type intake struct {
	app     string
	names   map[string]bool
	out     Imported
	bytes   int
	skipped int
}

const (
	// maxSkippedListed bounds the reasons that are given.
	maxSkippedListed = 100
	// maxListing bounds, in bytes, descriptions and schemas of an app.
	maxListing = 8 * 1024 * 1024
)

func newIntake(app string) *intake { return &intake{app: app, names: map[string]bool{}} }

// add takes a tool in, or says why it cannot.
func (in *intake) add(t workbench.ToolSpec) {
	if why := in.refuse(t); why != "" {
		in.skip(t.Name, why)
		return
	}
	in.names[t.Name] = true
	in.bytes += size(t)
	in.out.Tools = append(in.out.Tools, t)
}

func (in *intake) refuse(t workbench.ToolSpec) string {
	switch {
	case t.Name == "" || strings.Trim(t.Name, toolLetters) != "":
		return "its name has other characters than letters, digits, _, -, . and /"
	case len(in.app)+1+len(t.Name) > workbench.MaxToolName:
		return fmt.Sprintf("its name, with the app's, has more than %d bytes", workbench.MaxToolName)
	case in.names[t.Name]:
		return "another tool has its name"
	case len(in.out.Tools) >= workbench.MaxToolsOfApp:
		return fmt.Sprintf("the app has more than %d tools", workbench.MaxToolsOfApp)
	case len(t.Description) > workbench.MaxToolDescription:
		return fmt.Sprintf("its description has more than %d bytes", workbench.MaxToolDescription)
	}
	if in.bytes+size(t) > maxListing {
		return fmt.Sprintf("the app's tools have more than %d bytes", maxListing)
	}
	if err := ValidateSchema(t.InputSchema); err != nil {
		return "its input schema cannot be used: " + workbench.AsError(err).Detail
	}
	if t.OutputSchema != nil {
		if err := ValidateSchema(t.OutputSchema); err != nil {
			return "its output schema cannot be used: " + workbench.AsError(err).Detail
		}
	}
	return ""
}

func size(t workbench.ToolSpec) int {
	return len(t.Description) + len(t.InputSchema) + len(t.OutputSchema) + len(t.Binding)
}

func (in *intake) skip(name, why string) {
	if in.skipped++; in.skipped <= maxSkippedListed {
		in.out.Skipped = append(in.out.Skipped, bounded(fmt.Sprintf("%q: %s", bounded(name, 64), why), 512))
	}
}

// done is what was taken in.
func (in *intake) done() Imported {
	if more := in.skipped - maxSkippedListed; more > 0 {
		in.out.Skipped = append(in.out.Skipped, fmt.Sprintf("and %d more", more))
	}
	return in.out
}

package guestwire

import (
	"encoding/json"

	"github.com/workbenchdev/workbench"
)

// The operations that the host alone understands. They have no content: their
// arguments are one JSON object, which the guest passes on as it is, and their
// answers JSON of at most MaxResult bytes. Every field of the arguments is
// hostile, also its type.
const (
	OpCall       = "call"         // args: CallArgs; the answer is a workbench.ToolReceipt, whatever its status
	OpReceipt    = "receipt"      // args: ReceiptArgs; the answer is the workbench.ToolReceipt as it is now
	OpToolSearch = "tools.search" // args: ToolSearchArgs; the answer is FoundTools
	OpToolSchema = "tools.schema" // args: ToolSchemaArgs; the answer is a ToolSchema
	OpAI         = "ai"           // args: AIArgs; the answer is an AIAnswer
	OpWebSearch  = "web.search"   // args: WebSearchArgs; the answer is FoundPages
	OpFetch      = "fetch"        // args: FetchArgs; the answer is a FetchAnswer
	OpPackages   = "packages"     // args: PackagesArgs; the answer is an InstalledPackages
)

// PassedOn reports whether an operation is the host's alone to understand.
func PassedOn(op string) bool {
	switch op {
	case OpCall, OpReceipt, OpToolSearch, OpToolSchema, OpAI, OpWebSearch, OpFetch, OpPackages:
		return true
	}
	return false
}

// takesLong reports whether the host waits for others before it answers: such
// calls have places of their own, so that no file, result or display waits for
// them.
func takesLong(op string) bool {
	switch op {
	case OpCall, OpReceipt, OpAI, OpWebSearch, OpFetch, OpPackages:
		return true
	}
	return false
}

// CallArgs are the arguments of OpCall.
type CallArgs struct {
	Tool       string          `json:"tool"`                 // app.tool
	Version    string          `json:"version,omitempty"`    // "": the only one that the session may call
	Connection string          `json:"connection,omitempty"` // the alias of one of the session's
	Args       json.RawMessage `json:"args"`                 // the tool's own
}

// ReceiptArgs are the arguments of OpReceipt.
type ReceiptArgs struct {
	ID     string `json:"id"`
	WaitMs int64  `json:"waitMs"` // for its status to be final; the host may wait less
}

// MaxReceiptWaitMs is the longest that the helpers ask for at once: who waits
// longer asks again, and lets others take a turn.
const MaxReceiptWaitMs = 10_000

// ToolSearchArgs are the arguments of OpToolSearch.
type ToolSearchArgs struct {
	Query string `json:"query"`
	Limit int    `json:"limit,omitempty"` // 0: the host's own
}

// FoundTools answer OpToolSearch, best first.
type FoundTools struct {
	Items []FoundTool `json:"items"`
}

// FoundTool is a tool that the session may call.
type FoundTool struct {
	Name        string   `json:"name"`
	Version     string   `json:"version"`
	Description string   `json:"description"`
	Connections []string `json:"connections"` // aliases it can be called with
}

// ToolSchemaArgs are the arguments of OpToolSchema.
type ToolSchemaArgs struct {
	Tool    string `json:"tool"`
	Version string `json:"version,omitempty"`
}

// ToolSchema answers OpToolSchema.
type ToolSchema struct {
	FoundTool
	InputSchema  json.RawMessage           `json:"inputSchema"`
	OutputSchema json.RawMessage           `json:"outputSchema,omitempty"`
	Annotations  workbench.ToolAnnotations `json:"annotations"`
}

// The tasks of OpAI.
const (
	AIComplete  = "complete"  // Input is a prompt; the output is text
	AISummarise = "summarise" // Input is a text; the output is text
	AIClassify  = "classify"  // the output is one of Labels
	AIExtract   = "extract"   // the output is an object that is valid against Schema
)

// AIArgs are the arguments of OpAI.
type AIArgs struct {
	Task      string          `json:"task"`
	Input     string          `json:"input"`
	System    string          `json:"system,omitempty"`    // of complete
	MaxTokens int             `json:"maxTokens,omitempty"` // of complete; 0: the host's own
	Words     int             `json:"words,omitempty"`     // of summarise: about so many; 0: the host's own
	Labels    []string        `json:"labels,omitempty"`    // of classify
	Schema    json.RawMessage `json:"schema,omitempty"`    // of extract: JSON Schema
}

// AIAnswer answers OpAI.
type AIAnswer struct {
	Output json.RawMessage `json:"output"`
}

// FetchArgs are the arguments of OpFetch: a request to a host, or, with a handle,
// for the next piece of an answer.
type FetchArgs struct {
	URL        string            `json:"url,omitempty"`
	Method     string            `json:"method,omitempty"` // "": GET
	Headers    map[string]string `json:"headers,omitempty"`
	Body       []byte            `json:"body,omitempty"`       // base64
	Connection string            `json:"connection,omitempty"` // alias whose credentials the server places
	Handle     string            `json:"handle,omitempty"`
}

// FetchAnswer answers OpFetch. The first piece has status and headers.
type FetchAnswer struct {
	Status     int               `json:"status,omitempty"`
	Headers    map[string]string `json:"headers,omitempty"` // names in lower case
	Body       []byte            `json:"body"`              // base64; a piece
	TotalBytes int64             `json:"totalBytes,omitempty"`
	More       bool              `json:"more,omitempty"` // with the handle
	Handle     string            `json:"handle,omitempty"`
}

// PackagesArgs are the arguments of OpPackages.
type PackagesArgs struct {
	Manager  string   `json:"manager"` // pip or npm
	Packages []string `json:"packages"`
}

// InstalledPackages answer OpPackages.
type InstalledPackages struct {
	workbench.PackageSet
	Path string `json:"path"` // where the set is
}

// WebSearchArgs are the arguments of OpWebSearch.
type WebSearchArgs struct {
	Query string `json:"query"`
	Limit int    `json:"limit,omitempty"` // 0: the host's own
}

// FoundPages answer OpWebSearch, best first.
type FoundPages struct {
	Items []FoundPage `json:"items"`
}

// FoundPage is one page.
type FoundPage struct {
	Title   string `json:"title"`
	URL     string `json:"url"`
	Snippet string `json:"snippet"`
}

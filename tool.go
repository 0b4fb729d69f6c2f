package workbench

import (
	"encoding/json"
	"strings"
	"time"
)

// AppKind is how the tools of an app are reached.
type AppKind string

// The kinds of app.
const (
	AppMCPStdio AppKind = "mcp_stdio" // an MCP server that the server starts, over its stdin and stdout
	AppMCPHTTP  AppKind = "mcp_http"  // an MCP server over streamable HTTP
	AppOpenAPI  AppKind = "openapi"   // the operations of an OpenAPI 3 document
	AppHTTP     AppKind = "http"      // single HTTP endpoints, declared
)

// AppKinds lists every kind.
func AppKinds() []AppKind { return []AppKind{AppMCPStdio, AppMCPHTTP, AppOpenAPI, AppHTTP} }

// App is where tools come from: an upstream, under a name that begins the names
// of its tools. It belongs to a project.
type App struct {
	ProjectID string    `json:"project"`
	Name      string    `json:"name"`
	Kind      AppKind   `json:"kind"`
	Config    AppConfig `json:"config"`
	// Provider is what connections of the app are made for: a connection serves
	// the app if it names the same one. The app's own name by default.
	Provider string `json:"provider"`
	// NeedsConnection says that a call without a connection is refused. Apps that
	// do not need one are asked without credentials.
	NeedsConnection bool       `json:"needsConnection"`
	Version         int64      `json:"version"` // grows with every change
	CreatedAt       time.Time  `json:"createdAt"`
	ImportedAt      *time.Time `json:"importedAt,omitempty"` // the last import that succeeded
	RemovedAt       *time.Time `json:"removedAt,omitempty"`  // its tools are withdrawn
	Error           string     `json:"error,omitempty"`      // of the last import, if it failed
}

// AppConfig is what an app's kind needs. It holds no secret: these are in
// connections.
type AppConfig struct {
	// Of mcp_stdio: a program on the server's host, its arguments and variables.
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// CredentialEnv is the variable that a connection's secret is given to the
	// program in.
	CredentialEnv string `json:"credentialEnv,omitempty"`

	// URL is the endpoint of mcp_http, or what paths of openapi and http are
	// relative to (of openapi: the document's first server by default).
	URL string `json:"url,omitempty"`
	// Document is an OpenAPI 3.0 or 3.1 document as JSON.
	Document json.RawMessage `json:"document,omitempty"`
	// Endpoints are those of http.
	Endpoints []Endpoint `json:"endpoints,omitempty"`

	// TimeoutMs bounds one call; 0: DefaultToolTimeoutMs.
	TimeoutMs int64 `json:"timeoutMs,omitempty"`
}

// Endpoint declares one HTTP endpoint as a tool.
type Endpoint struct {
	Name        string          `json:"name"` // of the tool, after the app's
	Description string          `json:"description,omitempty"`
	Method      string          `json:"method"`
	Path        string          `json:"path"` // with {placeholders}, each an argument
	InputSchema json.RawMessage `json:"inputSchema"`
	// In says where an argument goes: path, query, header or body. By default
	// placeholders go into the path, the rest of GET, HEAD and DELETE into the
	// query, the rest of other methods into a JSON body.
	In          map[string]string `json:"in,omitempty"`
	Annotations *ToolAnnotations  `json:"annotations,omitempty"` // by default from the method
}

// ToolAnnotations say what a tool does to the world, as its source declares it.
// They are claims; rules may use them.
type ToolAnnotations struct {
	Title       string `json:"title,omitempty"`
	ReadOnly    bool   `json:"readOnly"`
	Destructive bool   `json:"destructive"`
	Idempotent  bool   `json:"idempotent"`
	OpenWorld   bool   `json:"openWorld"`
}

// ToolState is what became of a version of a tool.
type ToolState string

// The states of a version.
const (
	ToolCurrent    ToolState = "current"    // what the app offered at its last import
	ToolSuperseded ToolState = "superseded" // a later import brought another form
	ToolWithdrawn  ToolState = "withdrawn"  // the app does not offer the tool any more, or is gone
)

// ToolSpec is a tool as an app offers it.
type ToolSpec struct {
	Name         string // after the app's, and a dot
	Description  string
	InputSchema  json.RawMessage // JSON Schema of an object
	OutputSchema json.RawMessage // nil: none
	Annotations  ToolAnnotations
	Binding      json.RawMessage // how the app is asked; nothing outside of its provider reads it
}

// Tool is one version of a tool. What a version is bound to never changes, and
// its label is never given to anything else.
type Tool struct {
	ProjectID    string          `json:"project"`
	App          string          `json:"app"`
	Name         string          `json:"name"`    // app.tool
	Version      string          `json:"version"` // "1", "2", …
	State        ToolState       `json:"state"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema,omitempty"`
	Annotations  ToolAnnotations `json:"annotations"`
	Digest       string          `json:"digest"` // SHA-256, hex, of everything above but state and version, and of the binding
	CreatedAt    time.Time       `json:"createdAt"`

	Binding json.RawMessage `json:"-"`
}

// Ref is the tool's name and version.
func (t Tool) Ref() ToolRef { return ToolRef{Name: t.Name, Version: t.Version} }

// Local is the tool's name within its app.
func (t Tool) Local() string { return strings.TrimPrefix(t.Name, t.App+".") }

// Bounds of tools.
const (
	MaxAppName            = 64
	MaxToolName           = 128 // whole, app included
	MaxToolDescription    = 16 * 1024
	MaxToolSchema         = 256 * 1024
	MaxToolsOfApp         = 1000
	MaxToolArguments      = 256 * 1024 // JSON of one call
	DefaultToolTimeoutMs  = 30_000
	MaxToolTimeoutMs      = 180_000
	MaxToolResultInline   = 64 * 1024       // JSON in a receipt; more becomes a retained file
	MaxToolResult         = 8 * 1024 * 1024 // what an app may answer
	ToolResultPreview     = 2 * 1024        // characters of a large result in its receipt
	DefaultApprovalExpiry = 24 * time.Hour
	MaxApprovalExpiry     = 7 * 24 * time.Hour
)

// ToolName checks a whole name, app.tool: the app of lower-case letters, digits,
// _ and -, the tool of letters, digits, _, - and dots.
func ToolName(field, name string) error {
	app, tool, ok := strings.Cut(name, ".")
	if !ok || len(name) > MaxToolName || AppName(field, app) != nil || tool == "" || strings.TrimLeft(tool, toolLetters) != "" {
		return E(CodeInvalidRequest, "%s must name a tool as app.tool", field).WithField(field).
			WithHint("such as github.list_issues; GET /v1/workbench/tools lists them")
	}
	return nil
}

const (
	appLetters  = "abcdefghijklmnopqrstuvwxyz0123456789_-"
	toolLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
)

// AppName checks the name of an app.
func AppName(field, name string) error {
	if name == "" || len(name) > MaxAppName || strings.TrimLeft(name, appLetters) != "" {
		return E(CodeInvalidRequest, "%s must be 1 to %d lower-case letters, digits, _ or -", field, MaxAppName).WithField(field)
	}
	return nil
}

// ToolVersion checks a version's label.
func ToolVersion(field, version string) error {
	if version == "" || len(version) > 9 || strings.TrimLeft(version, "0123456789") != "" || version[0] == '0' {
		return E(CodeInvalidRequest, "%s must be the exact label of a version", field).WithField(field).
			WithHint(`such as "1"; GET /v1/workbench/tools lists the versions`)
	}
	return nil
}

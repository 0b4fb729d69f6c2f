package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/api"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// appFlags are what `workbench tools add` is told.
type appFlags struct {
	stdio           bool
	mcp             string
	openapi         string
	http            string
	url             string
	provider        string
	needsConnection bool
	connection      string
	env             []string
	credentialEnv   string
	timeout         time.Duration
}

func (f *appFlags) flags(fl *pflag.FlagSet) {
	fl.BoolVar(&f.stdio, "mcp-stdio", false, "an MCP server that the server starts as a program on its own host: its command comes after --")
	fl.StringVar(&f.mcp, "mcp-http", "", "URL of an MCP server over streamable HTTP")
	fl.StringVar(&f.openapi, "openapi", "", "OpenAPI 3 document, as JSON or YAML: a file, an http or https URL, or - for standard input")
	fl.StringVar(&f.http, "http", "", "file that declares HTTP endpoints, as JSON or YAML, or - for standard input")
	fl.StringVar(&f.url, "url", "", "with --openapi and --http: what paths are relative to; default what the document says")
	fl.StringVar(&f.provider, "provider", "", "what its connections are made for; default NAME")
	fl.BoolVar(&f.needsConnection, "needs-connection", false, "refuse calls without a connection")
	fl.StringVar(&f.connection, "connection", "", "alias of a connection of the project to ask the app for its tools with")
	fl.StringArrayVar(&f.env, "env", nil, "with --mcp-stdio: environment variable NAME=VALUE, or NAME to pass on this process's; no secrets; may be repeated")
	fl.StringVar(&f.credentialEnv, "credential-env", "", "with --mcp-stdio: the variable that a connection's secret is given to the program in")
	fl.DurationVar(&f.timeout, "timeout", 0, "longest time one call may take; default 30s, at most 3m")
}

// appKinds are the flags of which each declares an app of another kind.
var appKinds = []struct {
	flag string
	kind workbench.AppKind
}{
	{"mcp-stdio", workbench.AppMCPStdio}, {"mcp-http", workbench.AppMCPHTTP}, {"openapi", workbench.AppOpenAPI}, {"http", workbench.AppHTTP},
}

// kind is the kind of app that the flags of c declare, with the flag that says
// so.
func (f appFlags) kind(c *cobra.Command, command []string) (workbench.AppKind, error) {
	var kind workbench.AppKind
	for _, k := range appKinds {
		if !c.Flags().Changed(k.flag) {
			continue
		}
		if kind != "" {
			return "", usageError(c, "an app is of one kind: give one of --mcp-stdio, --mcp-http, --openapi and --http")
		}
		kind = k.kind
	}
	switch {
	case kind == "" || kind == workbench.AppMCPStdio && !f.stdio:
		return "", usageError(c, "say where the app is: with --mcp-stdio, --mcp-http, --openapi or --http")
	case kind == workbench.AppMCPStdio && len(command) == 0:
		return "", usageError(c, "--mcp-stdio needs the program: its command comes after --")
	case kind != workbench.AppMCPStdio && len(command) > 0:
		return "", usageError(c, "a command after -- goes with --mcp-stdio alone")
	}
	for name, kinds := range map[string][]workbench.AppKind{
		"url": {workbench.AppOpenAPI, workbench.AppHTTP}, "env": {workbench.AppMCPStdio}, "credential-env": {workbench.AppMCPStdio},
	} {
		if c.Flags().Changed(name) && kinds[0] != kind && kinds[len(kinds)-1] != kind {
			return "", usageError(c, "--%s does not go with an app of this kind", name)
		}
	}
	return kind, nil
}

// declared is the app that the flags and the command after -- declare.
func (a *app) declared(c *cobra.Command, f appFlags, command []string) (sdk.PutApp, error) {
	r := sdk.PutApp{Provider: f.provider, NeedsConnection: f.needsConnection, Connection: f.connection}
	var err error
	if r.Kind, err = f.kind(c, command); err != nil {
		return r, err
	}
	if c.Flags().Changed("timeout") {
		if r.Config.TimeoutMs = f.timeout.Milliseconds(); r.Config.TimeoutMs <= 0 {
			return r, workbench.E(workbench.CodeLimitOutOfRange, "--timeout must be more than nothing").WithHint("leave it out for the default")
		}
	}
	switch r.Kind {
	case workbench.AppMCPStdio:
		r.Config.Command, r.Config.Args, r.Config.CredentialEnv = command[0], command[1:], f.credentialEnv
		if len(f.env) > 0 {
			r.Config.Env, err = environment(f.env)
		}
	case workbench.AppMCPHTTP:
		r.Config.URL = f.mcp
	case workbench.AppOpenAPI:
		r.Config.URL = f.url
		r.Config.Document, err = a.document(c.Context(), f.openapi, "--openapi")
	case workbench.AppHTTP:
		err = a.endpoints(c.Context(), f, &r.Config)
	}
	if err != nil {
		return r, err
	}
	return r, fitsServer(r)
}

// fitsServer refuses an app that is larger than a server takes.
func fitsServer(r sdk.PutApp) error {
	raw, err := json.Marshal(r)
	if err == nil && len(raw) > api.MaxJSONBody {
		err = workbench.E(workbench.CodeBodyTooLarge, "the app takes %s to send, and a server takes at most %s", size(int64(len(raw))), size(api.MaxJSONBody)).
			WithHint("leave out what nobody calls")
	}
	return err
}

// endpoints reads what --http names.
func (a *app) endpoints(ctx context.Context, f appFlags, config *workbench.AppConfig) error {
	raw, err := a.document(ctx, f.http, "--http")
	if err != nil {
		return err
	}
	var declared struct {
		URL       string               `json:"url"`
		Endpoints []workbench.Endpoint `json:"endpoints"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&declared); err != nil {
		return workbench.E(workbench.CodeInvalidRequest, "--http %s does not declare endpoints: %v", f.http, err).
			WithHint(`it holds {"url": …, "endpoints": [{"name", "description", "method", "path", "inputSchema", "in", "annotations"}, …]}`)
	}
	config.URL, config.Endpoints = declared.URL, declared.Endpoints
	if f.url != "" {
		config.URL = f.url
	}
	return nil
}

// maxDocument bounds a document as it is read; as JSON it has to fit a request.
const maxDocument = api.MaxAppBody

// document reads a document, JSON or YAML, as JSON.
func (a *app) document(ctx context.Context, place, flag string) (json.RawMessage, error) {
	raw, err := a.source(ctx, place, flag)
	if err != nil {
		return nil, err
	}
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	if json.Valid(raw) {
		return raw, nil
	}
	out, err := fromYAML(raw)
	if err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "%s %s is neither JSON nor YAML", flag, place).Caused(err)
	}
	return out, nil
}

// source reads a file, standard input, or what a URL gives.
func (a *app) source(ctx context.Context, place, flag string) ([]byte, error) {
	var from io.Reader = a.in
	switch {
	case strings.HasPrefix(place, "http://"), strings.HasPrefix(place, "https://"):
		return fetchDocument(ctx, place, flag)
	case place != "-":
		f, err := os.Open(place)
		if err != nil {
			return nil, workbench.E(workbench.CodeInvalidRequest, "%s cannot be read: %s", flag, place).WithHint("name a file, an http or https URL, or - for standard input").Caused(err)
		}
		defer f.Close()
		from = f
	}
	raw, err := io.ReadAll(io.LimitReader(from, maxDocument+1))
	return wholeDocument(raw, err, place, flag)
}

func wholeDocument(raw []byte, err error, place, flag string) ([]byte, error) {
	switch {
	case err != nil:
		return nil, workbench.E(workbench.CodeInvalidRequest, "%s cannot be read to its end: %s", flag, place).Caused(err)
	case len(raw) > maxDocument:
		return nil, workbench.E(workbench.CodeBodyTooLarge, "%s %s is too large: at most %s are read", flag, place, size(maxDocument)).WithHint("leave out what nobody calls")
	case len(bytes.TrimSpace(raw)) == 0:
		return nil, workbench.E(workbench.CodeInvalidRequest, "%s %s is empty", flag, place)
	}
	return raw, nil
}

// fetchTimeout bounds the fetching of a document.
const fetchTimeout = 30 * time.Second

// fetchDocument fetches a document. Nobody's key is sent along.
func fetchDocument(ctx context.Context, place, flag string) ([]byte, error) {
	u, err := url.Parse(place)
	if err != nil || u.Host == "" || u.User != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "%s: that is no URL of a document", flag).WithHint("without a user or a password in it: fetch what needs them by other means, and name the file")
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, place, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, application/yaml, */*;q=0.5")
	req.Header.Set("User-Agent", "workbench-cli")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, workbench.E(workbench.CodeUnavailable, "%s: nothing came from %s", flag, u.Host).WithHint("fetch it by other means, and name the file").Caused(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, workbench.E(workbench.CodeUnavailable, "%s: %s answered %d %s", flag, u.Host, res.StatusCode, http.StatusText(res.StatusCode)).
			WithHint("fetch it by other means, and name the file")
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	return wholeDocument(raw, err, place, flag)
}

var errAlias = errors.New("its aliases make it too large")

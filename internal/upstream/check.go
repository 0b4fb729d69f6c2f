package upstream

import (
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/workbenchdev/workbench"
)

// admits refuses what no call may be made for, whatever is stored.
func (c *Clients) admits(app workbench.App) error {
	switch app.Kind {
	case workbench.AppMCPHTTP, workbench.AppOpenAPI, workbench.AppHTTP:
		return nil
	case workbench.AppMCPStdio:
		if c.stdioAllowed {
			return nil
		}
		return errConfig("kind", "mcp_stdio is not allowed on this server").
			WithHint("the operator has to start the server with --tool-programs; or use an MCP server over HTTP")
	}
	return errConfig("kind", "must be one of mcp_stdio, mcp_http, openapi, http")
}

func errConfig(field, what string) *workbench.Error {
	return workbench.E(workbench.CodeInvalidRequest, "%s %s", field, what).WithField(field)
}

func errURL() *workbench.Error {
	return errConfig("config.url", "must be an http or https URL with a host, and without user, password and fragment")
}

// Check reports whether an app's config is complete and can be used. It asks
// nobody. Codes: invalid_request and schema_invalid, with the field at fault.
func (c *Clients) Check(app workbench.App) error {
	if err := workbench.AppName("name", app.Name); err != nil {
		return err
	}
	if err := c.admits(app); err != nil {
		return err
	}
	if ms := app.Config.TimeoutMs; ms < 0 || ms > workbench.MaxToolTimeoutMs {
		return errConfig("config.timeoutMs", "must be 0 to "+strconv.Itoa(workbench.MaxToolTimeoutMs))
	}
	if err := onlyItsOwn(app); err != nil {
		return err
	}
	switch app.Kind {
	case workbench.AppMCPStdio:
		if app.NeedsConnection && app.Config.CredentialEnv == "" {
			return errConfig("config.credentialEnv", "is needed: it names the variable that the connection's credentials are given in")
		}
		return checkProgram(app.Config)
	case workbench.AppMCPHTTP:
		return checkURL(app, false)
	case workbench.AppOpenAPI:
		_, err := importOpenAPI(app)
		return err
	default:
		_, err := importEndpoints(app)
		return err
	}
}

// onlyItsOwn refuses settings of other kinds of app: they would do nothing.
func onlyItsOwn(app workbench.App) error {
	k, cf := app.Kind, app.Config
	for _, f := range []struct {
		name  string
		set   bool
		kinds []workbench.AppKind
	}{
		{"config.command", cf.Command != "", []workbench.AppKind{workbench.AppMCPStdio}},
		{"config.args", len(cf.Args) > 0, []workbench.AppKind{workbench.AppMCPStdio}},
		{"config.env", len(cf.Env) > 0, []workbench.AppKind{workbench.AppMCPStdio}},
		{"config.credentialEnv", cf.CredentialEnv != "", []workbench.AppKind{workbench.AppMCPStdio}},
		{"config.url", cf.URL != "", []workbench.AppKind{workbench.AppMCPHTTP, workbench.AppOpenAPI, workbench.AppHTTP}},
		{"config.document", len(cf.Document) > 0, []workbench.AppKind{workbench.AppOpenAPI}},
		{"config.endpoints", len(cf.Endpoints) > 0, []workbench.AppKind{workbench.AppHTTP}},
	} {
		if f.set && !slices.Contains(f.kinds, k) {
			return errConfig(f.name, "is not for apps of kind "+string(k))
		}
	}
	return nil
}

// maxProgramText bounds, in bytes, a program's arguments and variables together.
const maxProgramText = 64 * 1024

func checkProgram(cf workbench.AppConfig) error {
	total := len(cf.Command)
	if cf.Command == "" || strings.ContainsRune(cf.Command, 0) {
		return errConfig("config.command", "must name a program")
	}
	if strings.Contains(cf.Command, "/") && !filepath.IsAbs(cf.Command) {
		return errConfig("config.command", "must be an absolute path, or a name that is looked for in PATH")
	}
	for i, arg := range cf.Args {
		total += len(arg)
		if strings.ContainsRune(arg, 0) {
			return errConfig("config.args["+strconv.Itoa(i)+"]", "must not have a zero byte")
		}
	}
	for name, v := range cf.Env {
		total += len(name) + len(v)
		if !variable(name) || strings.ContainsRune(v, 0) {
			return errConfig("config.env", "must hold names of letters, digits and _, and values without a zero byte")
		}
	}
	if total > maxProgramText {
		return errConfig("config", "has more than "+strconv.Itoa(maxProgramText)+" bytes of command, arguments and variables")
	}
	if name := cf.CredentialEnv; name != "" {
		_, taken := cf.Env[name]
		if !variable(name) || taken || slices.Contains([]string{"PATH", "HOME", "LANG", "TMPDIR"}, name) || strings.HasPrefix(name, "LD_") {
			return errConfig("config.credentialEnv", "must be a variable's name that nothing else uses, of letters, digits and _")
		}
	}
	return nil
}

func variable(name string) bool {
	return name != "" && len(name) <= 128 && name[0] > '9' &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}

// checkURL checks config.url. relative: paths are relative to it, so that it has
// no query.
func checkURL(app workbench.App, relative bool) error {
	u, err := url.Parse(app.Config.URL)
	if err != nil || u.Host == "" || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.Fragment != "" {
		return errURL()
	}
	if relative && (u.RawQuery != "" || u.ForceQuery) {
		return errConfig("config.url", "must not have a query: paths are added to it")
	}
	if app.NeedsConnection && u.Scheme != "https" && !loopback(u.Hostname()) {
		return errConfig("config.url", "must be https: the app needs a connection, and credentials go nowhere else")
	}
	return nil
}

// importEndpoints makes tools of declared endpoints.
func importEndpoints(app workbench.App) (Imported, error) {
	if err := checkURL(app, true); err != nil {
		return Imported{}, err
	}
	if n := len(app.Config.Endpoints); n == 0 || n > workbench.MaxToolsOfApp {
		return Imported{}, errConfig("config.endpoints", "must declare 1 to "+strconv.Itoa(workbench.MaxToolsOfApp)+" endpoints")
	}
	in := newIntake(app.Name)
	for i, e := range app.Config.Endpoints {
		field := "config.endpoints[" + strconv.Itoa(i) + "]"
		spec, err := endpointTool(field, e)
		if err != nil {
			return Imported{}, err
		}
		if why := in.refuse(spec); why != "" {
			return Imported{}, errConfig(field, "cannot be a tool: "+why)
		}
		in.add(spec)
	}
	return in.done(), nil
}

// endpointTool makes a tool of one endpoint.
func endpointTool(field string, e workbench.Endpoint) (workbench.ToolSpec, error) {
	none := workbench.ToolSpec{}
	if e.Name == "" || strings.Trim(e.Name, toolLetters) != "" {
		return none, errConfig(field+".name", "must be letters, digits, _, -, . and /")
	}
	if !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, e.Method) {
		return none, errConfig(field+".method", "must be one of GET, HEAD, POST, PUT, PATCH, DELETE")
	}
	if err := ValidateSchema(e.InputSchema); err != nil {
		inner := workbench.AsError(err)
		return none, inner.WithField(field + ".inputSchema" + inner.Field)
	}
	placeholders, err := placeholdersOf(e.Path)
	if err != nil {
		return none, err.WithField(field + ".path")
	}
	b := &request{Method: e.Method, Path: e.Path, Rest: inBody}
	if e.Method == http.MethodGet || e.Method == http.MethodHead || e.Method == http.MethodDelete {
		b.Rest = inQuery
	}
	declared, takesOthers := propertiesOf(e.InputSchema)
	for _, p := range placeholders {
		if in := e.In[p]; in != "" && in != inPath {
			return none, errConfig(field+".in."+p, "must be path: it is a placeholder of the path")
		}
		if !declared[p] && !takesOthers {
			return none, errConfig(field+".path", "has a placeholder that is not an argument in the input schema")
		}
		b.Params = append(b.Params, parameter{Arg: p, Name: p, In: inPath})
	}
	for _, arg := range sortedKeys(e.In) {
		p, err := placed(field+".in."+arg, arg, e.In[arg], placeholders)
		if err != nil {
			return none, err
		}
		if p.In != inPath {
			b.Params = append(b.Params, p)
		}
	}
	b.Rest = restOf(b, declared, takesOthers)
	spec := workbench.ToolSpec{
		Name: e.Name, Description: e.Description, InputSchema: e.InputSchema,
		Annotations: byMethod(e.Method), Binding: binding{Kind: "http", Request: b}.raw(),
	}
	if e.Annotations != nil {
		spec.Annotations = *e.Annotations
	}
	return spec, nil
}

// placed is the place that an endpoint declares for an argument.
func placed(field, arg, in string, placeholders []string) (parameter, error) {
	switch in {
	case inPath:
		if !slices.Contains(placeholders, arg) {
			return parameter{}, errConfig(field, "is path, but the path has no such placeholder")
		}
	case inHeader:
		if !headerName(arg) || reserved(arg) {
			return parameter{}, errConfig(field, "is header, but no argument may set that header")
		}
	case inQuery, inBody:
	default:
		return parameter{}, errConfig(field, "must be path, query, header or body")
	}
	return parameter{Arg: arg, Name: arg, In: in}, nil
}

// restOf drops the place of other arguments if there can be none.
func restOf(b *request, declared map[string]bool, takesOthers bool) string {
	if takesOthers {
		return b.Rest
	}
	for name := range declared {
		if !slices.ContainsFunc(b.Params, func(p parameter) bool { return p.Arg == name }) {
			return b.Rest
		}
	}
	return ""
}

// placeholdersOf lists the placeholders of a path, and checks the path.
func placeholdersOf(path string) ([]string, *workbench.Error) {
	if !strings.HasPrefix(path, "/") || len(path) > 2048 || strings.ContainsAny(path, "?#\\") || !headerValue(path) {
		return nil, errConfig("path", "must begin with / and have no ?, # and \\")
	}
	var out []string
	for _, segment := range strings.Split(path, "/") {
		if plain, err := url.PathUnescape(segment); err != nil || plain == "." || plain == ".." {
			return nil, errConfig("path", "must not have . or .. as a step")
		}
		for rest := segment; ; {
			before, after, ok := strings.Cut(rest, "{")
			if strings.Contains(before, "}") {
				return nil, errConfig("path", "must close each placeholder that it opens")
			}
			if !ok {
				break
			}
			name, after, ok := strings.Cut(after, "}")
			if !ok || name == "" || strings.Contains(name, "{") || slices.Contains(out, name) {
				return nil, errConfig("path", "must name each placeholder once, as {name}")
			}
			out, rest = append(out, name), after
		}
	}
	return out, nil
}

// byMethod is what an HTTP method promises (RFC 9110, 9.2).
func byMethod(method string) workbench.ToolAnnotations {
	a := workbench.ToolAnnotations{OpenWorld: true}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		a.ReadOnly, a.Idempotent = true, true
	case http.MethodPut:
		a.Destructive, a.Idempotent = true, true
	case http.MethodDelete:
		a.Destructive, a.Idempotent = true, true
	default:
		a.Destructive = true
	}
	return a
}

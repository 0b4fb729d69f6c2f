package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/identity"
)

// Options wires a Server. Fields without a default are required.
type Options struct {
	Engine    Engine
	Artifacts Artifacts
	Tools     Tools
	Identity  Identity
	Audit     Audit

	Metrics Metrics          // default: counts nothing
	Log     *slog.Logger     // default: discards
	Clock   func() time.Time // default time.Now

	Heartbeat      time.Duration // of event streams; default 10 s, at most 15 s
	StreamsPerUser int           // long polls and event streams one user of one key may have open; default 64
	Streams        int           // … of the whole server; default 4096
	ReadTimeout    time.Duration // for a JSON body in all, and between two pieces of an upload; default 30 s
	WriteTimeout   time.Duration // for one write to a client that does not read; default 30 s
	MaxUploadBytes int64         // of one upload, whatever the session's limits; default 64 MiB
	Version        string        // of the product, for the document
}

// Server is the REST face as an http.Handler.
type Server struct {
	o           Options
	log         *slog.Logger
	mux         *http.ServeMux
	holds       *holds
	refusals    *refusals
	trail       *audit.Trail
	patterns    []string // of every route
	document    []byte
	documentTag string
}

// New makes a Server.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	if o.Heartbeat <= 0 || o.Heartbeat > maxHeartbeat {
		o.Heartbeat = defaultHeartbeat
	}
	if o.StreamsPerUser == 0 {
		o.StreamsPerUser = 64
	}
	if o.ReadTimeout == 0 {
		o.ReadTimeout = 30 * time.Second
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 30 * time.Second
	}
	if o.Streams == 0 {
		o.Streams = 4096
	}
	if o.MaxUploadBytes == 0 {
		o.MaxUploadBytes = 64 << 20
	}
	s := &Server{o: o, log: o.Log, mux: http.NewServeMux(), holds: newHolds(o.StreamsPerUser, o.Streams), refusals: newRefusals(o.Clock),
		trail: audit.New(o.Audit, o.Clock, o.Log)}
	registry := newRegistry()
	for _, r := range routes() {
		s.mount(r, registry)
		s.patterns = append(s.patterns, r.Pattern)
	}
	s.document = Document(o.Version)
	s.documentTag = etagOf(s.document)
	return s
}

func (s *Server) mount(r Route, registry huma.Registry) {
	var body *bodySchema
	if r.takesJSON() {
		t := reflect.TypeOf(r.Body)
		body = &bodySchema{registry: registry, schema: registry.Schema(t, true, t.Name()), typ: t, optional: r.OptionalBody, bytes: r.BodyBytes, depth: r.BodyDepth}
	}
	s.mux.HandleFunc(r.Method+" "+r.Pattern, func(w http.ResponseWriter, req *http.Request) {
		s.serve(&call{s: s, w: w.(*reply), r: req, ctx: req.Context(), route: &r, requestID: w.(*reply).requestID}, body)
	})
}

// call is one request on its way through a route.
type call struct {
	s         *Server
	w         *reply
	r         *http.Request
	ctx       context.Context
	route     *Route
	requestID string

	p    workbench.Principal
	id   string // {id} of the path
	q    query
	body any // pointer to the route's body type

	target string         // what the audit trail names; default id
	notes  map[string]any // detail of the audit row

	recorded bool // the audit row is written already
	err      error
}

// note adds a detail to the audit row: counts and flags, never names.
func (c *call) note(name string, value any) {
	if c.notes == nil {
		c.notes = map[string]any{}
	}
	c.notes[name] = value
}

// json answers with v.
func (c *call) json(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return workbench.E(workbench.CodeInternal, "the answer could not be written").Caused(err)
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	c.w.WriteHeader(status)
	_, _ = c.w.Write(append(body, '\n')) // a client that is gone is no error of ours
	return nil
}

// ServeHTTP answers one request: with what a route says, or a problem.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := s.o.Clock()
	rw := &reply{ResponseWriter: w, timeout: s.o.WriteTimeout, requestID: requestID(r.Header.Get(requestIDHeader))}
	h := rw.Header()
	h.Set(requestIDHeader, rw.requestID)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	counted := &countedBody{ReadCloser: r.Body}
	// A copy: net/http looks at the body it made itself to know how much of it is
	// unread, and whether the client waits for a go-ahead. With another one in its
	// place it holds the answer back until the client has sent.
	r = r.WithContext(r.Context())
	r.Body, rw.unread = counted, counted
	rw.head = r.Method == http.MethodHead
	if r.ContentLength != 0 {
		// Also for a body that nobody reads: net/http drains it after the answer,
		// and must not wait for a client that sends nothing.
		rw.readDeadline(s.o.ReadTimeout)
	}
	defer func() {
		if v := recover(); v != nil {
			s.panicked(rw, v)
		}
		took := s.o.Clock().Sub(start)
		s.o.Metrics.Request(rw.route, method(r.Method), rw.status, took, counted.n, rw.bytes)
		s.logRequest(r, rw, took)
		if rw.cut {
			panic(http.ErrAbortHandler)
		}
	}()
	if _, pattern := s.mux.Handler(r); pattern == "" || path.Clean(r.URL.Path) != r.URL.Path {
		s.noRoute(rw, r)
		return
	}
	s.mux.ServeHTTP(rw, r)
}

// panicked answers internal, unless the answer has begun: then the connection
// is cut, so that a cut answer does not look whole.
func (s *Server) panicked(w *reply, v any) {
	s.log.Error("panic in a handler", "requestId", w.requestID, "route", w.route, "panic", v, "stack", string(debug.Stack()))
	if w.status != 0 {
		w.cut = true
		return
	}
	writeProblem(w, workbench.E(workbench.CodeInternal, "something went wrong on the server").
		WithHint("try again; if it persists, quote the request id to the operator"), w.requestID)
}

// noRoute answers what no route takes: 405 with Allow for a known path with
// another method, 404 for the rest.
func (s *Server) noRoute(w *reply, r *http.Request) {
	w.route = "none"
	var allow string
	if path.Clean(r.URL.Path) == r.URL.Path {
		allow = s.allowed(r)
	}
	if allow == "" {
		none := workbench.E(workbench.CodeNotFound, "no such route").WithHint("see /openapi.json")
		if near := nearestRoute(strings.TrimSuffix(path.Clean(r.URL.Path), "/"), s.patterns); near != "" {
			none = none.WithHint("did you mean %s?", near)
		}
		w.err = none
	} else {
		w.Header().Set("Allow", allow)
		w.err = workbench.E(workbench.CodeMethodNotAllowed, "this path does not take the method").WithHint("use one of: %s%s", allow, instead(r))
	}
	writeProblem(w, w.err, w.requestID)
}

// instead names the route for what a method usually means where it is not taken.
func instead(r *http.Request) string {
	for _, way := range []struct{ methods, of, action, does string }{
		{"DELETE", "sessions", "close", "ends the session"},
		{"PUT PATCH", "sessions", "configure", "changes the session"},
		{"DELETE", "runs", "cancel", "cancels the run"},
	} {
		if ok, _ := path.Match(base+"/"+way.of+"/*", r.URL.Path); ok && slices.Contains(strings.Fields(way.methods), r.Method) {
			return "; POST " + base + "/" + way.of + "/{id}/" + way.action + " " + way.does
		}
	}
	return ""
}

// allowed lists the methods that the path of r takes.
func (s *Server) allowed(r *http.Request) string {
	var methods []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete} {
		probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
		if _, pattern := s.mux.Handler(probe); pattern != "" {
			methods = append(methods, m)
		}
	}
	return strings.Join(methods, ", ")
}

// serve runs one request through its route and answers what went wrong.
func (s *Server) serve(c *call, body *bodySchema) {
	c.w.route = c.route.Pattern
	c.err = c.run(body)
	c.w.err = c.err
	s.audit(c)
	if c.err == nil {
		return
	}
	if c.w.status == 0 {
		writeProblem(c.w, c.err, c.requestID)
		if c.p.KeyID != "" {
			c.w.drain(c.r)
		}
	}
}

// run goes from the outside in: who, may they, what do they ask, do it.
func (c *call) run(body *bodySchema) error {
	// Also what is refused before it is looked up has a target for the trail:
	// an id that is one, never other text of a client.
	if id := c.r.PathValue("id"); id != "" && workbench.ParseID(c.route.Target, id) == nil {
		c.target = id
	}
	if !c.route.Public {
		if err := c.authenticate(); err != nil {
			return err
		}
		if err := c.route.admit(c.p); err != nil {
			return err
		}
	}
	if id := c.r.PathValue("id"); id != "" {
		if workbench.ParseID(c.route.Target, id) != nil {
			return workbench.E(workbench.CodeNotFound, "no such %s", kindNames[c.route.Target]).
				WithHint("ids look like %s_ followed by 26 lower-case characters", c.route.Target)
		}
		c.id = id
	}
	if coding := c.r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return workbench.E(workbench.CodeUnsupportedMedia, "bodies are taken as they are, not compressed").WithField("Content-Encoding").
			WithHint("send the bytes themselves, without Content-Encoding")
	}
	var err error
	if c.q, err = parseQuery(c.r.URL.RawQuery, c.route.Params); err != nil {
		return err
	}
	if body != nil {
		if c.body, err = body.read(c); err != nil {
			return err
		}
	}
	return c.route.handle(c)
}

var kindNames = map[workbench.IDKind]string{
	workbench.KindSession: "session", workbench.KindRun: "run", workbench.KindArtifact: "artifact", workbench.KindKey: "key", workbench.KindCommit: "commit",
	workbench.KindReceipt: "receipt", workbench.KindConnect: "connection",
	workbench.KindSeries: "series", workbench.KindReplay: "replay",
}

func (c *call) authenticate() error {
	names := map[string]string{}
	for _, name := range []string{identity.TenantHeader, identity.EndUserHeader, identity.GroupHeader} {
		values := c.r.Header.Values(name)
		if len(values) > 1 {
			return invalid(name, "the header %s is sent more than once", name).WithHint("send it once")
		}
		if len(values) == 1 && values[0] == "" {
			return invalid(name, "the header %s is empty", name).WithHint("send a name in it, or leave it out")
		}
		if len(values) == 1 {
			names[name] = values[0]
		}
	}
	p, err := c.s.o.Identity.Authenticate(c.ctx, bearer(c.r.Header), names[identity.TenantHeader], names[identity.EndUserHeader],
		names[identity.GroupHeader], clientAddress(c.r), c.requestID)
	c.p = p
	c.w.keyID = p.KeyID
	return err
}

// bearer is the secret of the one Authorization header, "" if there is none.
func bearer(h http.Header) string {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}

// clientAddress is the peer of the connection. Forwarded headers are not
// believed: anybody can send them.
func clientAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

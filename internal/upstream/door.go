package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
)

const (
	dialTimeout = 10 * time.Second
	// idleConnection is how long a connection waits for the next request. It is
	// shorter than what servers wait (5 s and more), so that a request is not
	// sent on a connection that its server is closing: what became of it would be
	// unknown.
	idleConnection = 3 * time.Second
	// maxRefusal bounds, in bytes, what is read of an answer that is not a success.
	maxRefusal = 64 * 1024
)

// newTransport makes the transport of every request. HTTP/1.1 alone: HTTP/2
// sends some requests again by itself.
func newTransport() *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        idleConnection,
		MaxResponseHeaderBytes: 64 * 1024,
		Protocols:              &protocols,
	}
}

// single makes a transport whose connections carry one request each. It is for
// requests with credentials: what a server sends beyond its answer is not read
// then, which net/http would write to the process's log, and no request is lost
// on a connection that its server is closing.
func single() *http.Transport {
	t := newTransport()
	t.DisableKeepAlives = true
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(256)}
	return t
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// door is the one way out to an app over HTTP: to its host alone, with one
// grant, until ctx ends.
type door struct {
	clients *Clients
	ctx     context.Context
	home    *url.URL // whose scheme and host every request goes to
	grant   *Grant

	transport *http.Transport // nil: the clients' own
}

var (
	errElsewhere = errors.New("the request would go to another host")
	errShut      = errors.New("the session has ended")
)

// send sends one request, once. f, if there is one, notes that it left.
func (d *door) send(req *http.Request, f *flight, id string) (*http.Response, error) {
	if req.URL.Scheme != d.home.Scheme || req.URL.Host != d.home.Host {
		return nil, errElsewhere
	}
	if d.ctx.Err() != nil {
		return nil, errShut
	}
	if err := d.grant.mayGo(req.URL); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	unlink := context.AfterFunc(d.ctx, func() { cancel(context.Cause(d.ctx)) })
	done := func() { unlink(); cancel(nil) }
	header := req.Header.Clone()
	if err := d.clients.authorize(ctx, d.grant, header); err != nil {
		done()
		return nil, err
	}
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "workbench")
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		if f != nil {
			f.leave(id)
		}
	}})
	out := req.WithContext(ctx)
	out.Header = header
	once(out)
	web := d.transport
	switch {
	case web == nil && d.grant != nil:
		web = d.clients.single
	case web == nil:
		web = d.clients.web
	}
	out.Close = d.grant != nil // see single
	resp, err := web.RoundTrip(out)
	if err != nil {
		done()
		return nil, err
	}
	if resp.StatusCode == http.StatusUnauthorized {
		d.clients.tokens.drop(d.grant)
	}
	resp.Body = &closing{ReadCloser: resp.Body, done: sync.OnceFunc(done)}
	return resp, nil
}

// once keeps net/http from sending a request again when the connection breaks
// before the answer (http.Request.isReplayable): it does so with what has no
// body, or one it can get again.
func once(req *http.Request) {
	req.GetBody = nil
	if req.Body != nil && req.Body != http.NoBody {
		return
	}
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(nil)), 0 // sent as no body at all
	}
}

// closing releases what a response holds when its body is closed.
type closing struct {
	io.ReadCloser
	done func()
}

func (c *closing) Close() error {
	defer c.done()
	return c.ReadCloser.Close()
}

// readAll reads a body to its end, or errOverflow if that has more than limit
// bytes.
func readAll(r io.Reader, limit int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if len(b) > limit {
		return nil, errOverflow
	}
	return b, err
}

// rpcDoor carries the requests of an MCP session: it bounds what comes back and
// notes what became of a request.
type rpcDoor struct {
	door

	mu      sync.Mutex
	trouble error // the last
}

// RoundTrip is for the MCP client's transport.
func (d *rpcDoor) RoundTrip(req *http.Request) (*http.Response, error) {
	f := flightOf(req.Context())
	id := ""
	if f != nil && req.Method == http.MethodPost {
		var asks bool
		if id, asks = d.asks(req, f.method); !asks {
			f = nil // a notice that goes with it, such as that it is cancelled
		}
	}
	resp, err := d.send(req, f, id)
	if err != nil {
		d.note(notSent(req.Context(), "the app", err))
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		if req.Method != http.MethodPost {
			f = nil // of a stream that is taken up again: the request itself was accepted
		}
		return d.refused(resp, f)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/event-stream" {
		resp.Body = newEventTap(resp.Body, f)
		return resp, nil
	}
	body, err := readAll(resp.Body, maxFrame)
	_ = resp.Body.Close()
	if err != nil {
		if f != nil && errors.Is(err, errOverflow) {
			f.overflow()
		}
		return nil, err
	}
	if f != nil {
		body = f.observe(body)
		f.unreadable()
	}
	return withBody(resp, body), nil
}

// asks reports whether a request carries the JSON-RPC method, and its id.
func (d *rpcDoor) asks(req *http.Request, method string) (string, bool) {
	if req.GetBody == nil {
		return "", false
	}
	body, err := req.GetBody()
	if err != nil {
		return "", false
	}
	defer body.Close()
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	raw, err := io.ReadAll(body)
	if err != nil || json.Unmarshal(raw, &m) != nil {
		return "", false
	}
	return idOf(m.ID), m.Method == method
}

// refused notes an answer that is not a success.
func (d *rpcDoor) refused(resp *http.Response, f *flight) (*http.Response, error) {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	_ = resp.Body.Close()
	if f != nil {
		f.answeredWith(resp.StatusCode)
		f.observe(body)
	}
	e := workbench.E(workbench.CodeToolUnavailable, "the app answered %d to the greeting", resp.StatusCode).
		WithHint("nothing was asked of a tool; look at the app's URL")
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
		e = e.WithHint("nothing was asked of a tool; the app needs a connection, or does not accept this one")
	}
	d.note(e)
	return withBody(resp, body), nil
}

// note keeps what went wrong, for when the session cannot be set up.
func (d *rpcDoor) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trouble = err
}

func (d *rpcDoor) lastTrouble() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trouble
}

func withBody(resp *http.Response, body []byte) *http.Response {
	resp.Body = io.NopCloser(bytes.NewReader(body))
	resp.ContentLength = int64(len(body))
	return resp
}

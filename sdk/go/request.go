package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

// call is one request. A call with a JSON body can be sent again; one with a
// stream cannot.
type call struct {
	method string
	path   string // below apiPrefix unless absolute is set
	query  url.Values
	json   any       // body; nil for none
	stream io.Reader // body instead of json, sent once
	size   int64     // of stream; -1 unknown
	header http.Header
	keyed  bool // the body carries an idempotency key
	once   bool // the caller repeats it by itself
	root   bool // path is not below apiPrefix
}

// repeatable is the whole retry rule: what is read, and what carries a key.
func (r call) repeatable() bool {
	if r.stream != nil || r.once {
		return false
	}
	return r.method == http.MethodGet || (r.method == http.MethodPost && r.keyed)
}

// do sends the call, again where that is allowed, and returns the first
// successful answer. The caller closes its body. Errors: *Error for an answer,
// *workbench.Error (unavailable, request_cancelled) for none.
func (c *Client) do(ctx context.Context, r call) (*http.Response, error) {
	var body []byte
	if r.json != nil {
		var err error
		if body, err = json.Marshal(r.json); err != nil {
			return nil, workbench.E(workbench.CodeInvalidRequest, "the request cannot be written as JSON").Caused(err)
		}
	}
	for n := 1; ; n++ {
		res, err := c.once(ctx, r, body)
		if err == nil {
			return res, nil
		}
		if n > c.o.Retries || !r.repeatable() || !worthRepeating(err) {
			return nil, err
		}
		var answer *Error
		var asked time.Duration
		if errors.As(err, &answer) {
			asked = answer.RetryAfter
		}
		if asked > MaxRetryAfter || c.pause(ctx, n, asked) != nil {
			return nil, err
		}
	}
}

// worthRepeating reports whether an error may go away by itself: no answer at
// all, or one that asks to come back later.
func worthRepeating(err error) bool {
	var answer *Error
	if errors.As(err, &answer) {
		return transient(answer.Status)
	}
	return workbench.HasCode(err, workbench.CodeUnavailable)
}

func (c *Client) once(ctx context.Context, r call, body []byte) (*http.Response, error) {
	req, err := c.request(ctx, r, body)
	if err != nil {
		return nil, err
	}
	res, err := c.o.HTTP.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, errorOf(res, time.Now())
}

func (c *Client) request(ctx context.Context, r call, body []byte) (*http.Request, error) {
	u := *c.base
	prefix := apiPrefix
	if r.root {
		prefix = ""
	}
	ref, err := url.Parse(prefix + r.path)
	if err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "not a usable path").Caused(err)
	}
	u.Path, u.RawPath = u.Path+ref.Path, ""
	if ref.RawPath != "" {
		u.RawPath = c.base.EscapedPath() + ref.RawPath
	}
	u.RawQuery = r.query.Encode()
	var content io.Reader
	switch {
	case r.stream != nil:
		content = r.stream
	case r.json != nil:
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), content)
	if err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "not a usable request").Caused(err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if r.stream != nil {
		req.ContentLength = r.size
	} else if r.json != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json")
	}
	req.Header.Set("User-Agent", c.o.UserAgent)
	if c.o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.o.Key)
	}
	for name, value := range map[string]string{
		"Workbench-Tenant": c.o.Tenant, "Workbench-End-User": c.o.EndUser, "Workbench-Group": c.o.Group,
	} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	return req, nil
}

// maxAnswer bounds a JSON answer; the largest honest one is a receipt with two
// full streams, escaped.
const maxAnswer = 64 << 20

// decode sends the call and reads its JSON answer. An answer cut short is
// asked for again where that is allowed.
func decode[T any](ctx context.Context, c *Client, r call) (T, http.Header, error) {
	var out T
	for n := 1; ; n++ {
		res, err := c.do(ctx, r)
		if err != nil {
			return out, nil, err
		}
		raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
		res.Body.Close()
		if err == nil {
			if err := json.Unmarshal(raw, &out); err != nil {
				return out, nil, workbench.E(workbench.CodeInternal, "the server's answer is not the JSON expected").
					WithHint("check that the address is that of a Workbench server of this version").Caused(err)
			}
			return out, res.Header, nil
		}
		err = c.unreachable(ctx, err)
		if n > c.o.Retries || !r.repeatable() || c.pause(ctx, n, 0) != nil {
			return out, nil, err
		}
	}
}

// get reads one JSON answer.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	out, _, err := decode[T](ctx, c, call{method: http.MethodGet, path: path, query: query})
	return out, err
}

// post sends an unkeyed POST: never repeated.
func post[T any](ctx context.Context, c *Client, path string, body any) (T, error) {
	if body == nil {
		body = struct{}{}
	}
	out, _, err := decode[T](ctx, c, call{method: http.MethodPost, path: path, json: body})
	return out, err
}

func pageQuery(p workbench.Page) url.Values {
	q := url.Values{}
	if p.Limit > 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	if p.Cursor != "" {
		q.Set("cursor", p.Cursor)
	}
	return q
}

// seg is one path segment, escaped.
func seg(s string) string { return url.PathEscape(s) }

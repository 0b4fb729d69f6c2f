package sdk

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

// Error is an answer of the server that is not a success. It unwraps to the
// *workbench.Error it carries, so workbench.CodeOf and workbench.HasCode work
// on it.
type Error struct {
	Err        *workbench.Error
	Status     int           // of the HTTP answer
	RequestID  string        // to quote to the operator; may be empty
	Retryable  bool          // whether the same request may succeed later, unchanged
	RetryAfter time.Duration // as the server asked; 0 if it did not
}

// Error is the detail, the hint and the request id, in one line.
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString(string(e.Err.Code) + ": " + e.Err.Detail)
	if e.Err.Field != "" {
		s.WriteString(" (field " + e.Err.Field + ")")
	}
	if e.RequestID != "" {
		s.WriteString(" [request " + e.RequestID + "]")
	}
	return s.String()
}

// Unwrap gives the *workbench.Error.
func (e *Error) Unwrap() error { return e.Err }

// problem is an application/problem+json body.
type problem struct {
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail"`
	Code      workbench.Code `json:"code"`
	Hint      string         `json:"hint"`
	Field     string         `json:"field"`
	RequestID string         `json:"requestId"`
	Retryable bool           `json:"retryable"`
}

func (p problem) toError(status int, requestID string) *Error {
	e := &Error{Err: workbench.E(p.Code, "%s", p.Detail), Status: status, RequestID: p.RequestID, Retryable: p.Retryable}
	e.Err.Hint, e.Err.Field = p.Hint, p.Field
	if e.RequestID == "" {
		e.RequestID = requestID
	}
	return e
}

// maxProblem bounds what is read of a failed answer.
const maxProblem = 64 << 10

// errorOf reads a failed answer. A body that is no problem+json (a proxy's
// page, say) is not shown: only its status is.
func errorOf(res *http.Response, now time.Time) *Error {
	e := &Error{Status: res.StatusCode, RequestID: res.Header.Get("X-Request-Id"), RetryAfter: retryAfter(res.Header, now)}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	var p problem
	if err == nil && kind == "application/problem+json" && json.Unmarshal(raw, &p) == nil && p.Code != "" {
		told := p.toError(e.Status, e.RequestID)
		told.RetryAfter = e.RetryAfter
		return told
	}
	if res.StatusCode == http.StatusBadRequest && res.TLS == nil && wantsTLS(raw) {
		e.Err = workbench.E(workbench.CodeInvalidRequest, "the server speaks https, not http").WithField("server").WithHint("write its address with https://")
		return e
	}
	e.Err = workbench.E(codeOfStatus(res.StatusCode), "the server answered %d %s without saying why", res.StatusCode, http.StatusText(res.StatusCode)).
		WithHint("check that the address is that of a Workbench server, and what stands between you and it")
	e.Retryable = transient(res.StatusCode)
	return e
}

// wantsTLS reports whether an answer says that its port is for https: so do Go
// and nginx.
func wantsTLS(body []byte) bool {
	return bytes.Contains(body, []byte("HTTP request to an HTTPS server")) || bytes.Contains(body, []byte("HTTP request was sent to HTTPS port"))
}

// codeOfStatus is the code for an answer that carries none.
func codeOfStatus(status int) workbench.Code {
	switch status {
	case http.StatusUnauthorized:
		return workbench.CodeUnauthenticated
	case http.StatusForbidden:
		return workbench.CodeForbidden
	case http.StatusNotFound:
		return workbench.CodeNotFound
	case http.StatusRequestEntityTooLarge:
		return workbench.CodeBodyTooLarge
	case http.StatusTooManyRequests:
		return workbench.CodeRateLimited
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return workbench.CodeUnavailable
	}
	if status >= 500 {
		return workbench.CodeInternal
	}
	return workbench.CodeInvalidRequest
}

// transient reports whether a status asks the client to come back later.
func transient(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// retryAfter reads Retry-After: seconds or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseInt(v, 10, 32); err == nil && s >= 0 {
		return time.Duration(s) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil && t.After(now) {
		return t.Sub(now)
	}
	return 0
}

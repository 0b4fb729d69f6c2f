package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"unicode"

	"github.com/workbenchdev/workbench"
)

const problemType = "application/problem+json"

// problemOf shows an error to the caller: code, safe detail, hint, field.
func problemOf(err error, requestID string) Problem {
	e := workbench.AsError(err)
	class := workbench.ClassOf(e.Code)
	detail := e.Detail
	if detail == "" {
		detail = class.Title
	}
	hint := e.Hint
	if hint == "" && class.HTTP == http.StatusBadRequest && e.Field != "" {
		hint = "correct " + e.Field + " and send the request again"
	}
	return Problem{
		Type: "/problems/" + string(class.Code), Title: class.Title, Status: class.HTTP, Code: class.Code,
		Detail: detail, Hint: hint, Field: e.Field, RequestID: requestID, Retryable: class.Retryable,
	}
}

// writeProblem answers with err. Headers of the answer that failed are gone
// from it, the request id stays.
func writeProblem(w http.ResponseWriter, err error, requestID string) {
	p := problemOf(err, requestID)
	h := w.Header()
	for _, name := range []string{"Content-Disposition", "Content-Length", "Content-Encoding", "Etag", "Last-Modified", "Location", "Accept-Ranges"} {
		h.Del(name)
	}
	h.Set("Content-Type", problemType)
	switch {
	case p.Code == workbench.CodeUnauthenticated:
		h.Set("WWW-Authenticate", "Bearer")
	case h.Get("Retry-After") != "":
	case p.Status == http.StatusTooManyRequests:
		h.Set("Retry-After", "1")
	case p.Status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "2")
	}
	body, _ := json.Marshal(p) // plain fields always marshal
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

// fieldName makes a name that came from outside fit to be shown: printable,
// short, one line.
func fieldName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
	if runes := []rune(name); len(runes) > 64 {
		name = string(runes[:64]) + "…"
	}
	return name
}

func invalid(field, format string, args ...any) *workbench.Error {
	return workbench.E(workbench.CodeInvalidRequest, format, args...).WithField(field)
}

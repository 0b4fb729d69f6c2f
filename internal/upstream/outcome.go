package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/redact"
)

// maxDetail bounds, in bytes, what a tool may say in an error.
const maxDetail = 2 * 1024

// Why a call ended before its answer. They are causes of contexts.
var (
	errTime      = errors.New("the call's time is up")
	errForgotten = errors.New("the connection was revoked or rotated")
	errAppGone   = errors.New("the app was changed or removed")
	errOverflow  = errors.New("the answer is too large")
)

// outcome is the private cause of an error of this package: text without
// secrets, wrapping nothing, and whether the call may have been executed.
type outcome struct {
	text      string
	uncertain bool
	ended     bool // the session had ended before, and nothing left
}

func (o *outcome) Error() string { return o.text }

// Uncertain reports whether err is of a call that may have been executed, or
// was. An error that is not uncertain means that nothing was done.
func Uncertain(err error) bool {
	var o *outcome
	return errors.As(err, &o) && o.uncertain
}

// uncertain says that the call of an error may have been executed.
func uncertain(e *workbench.Error, cause error) *workbench.Error {
	text := "the call had left"
	if cause != nil {
		text = cause.Error()
	}
	return e.Caused(&outcome{text: text, uncertain: true})
}

// certain keeps a cause of an error after which nothing was done.
func certain(e *workbench.Error, cause error) *workbench.Error {
	if cause == nil {
		return e
	}
	return e.Caused(&outcome{text: cause.Error()})
}

// cleanError takes secrets out of everything that an error says, in public and
// in private, and what it wraps out of it.
func cleanError(err error, r *redact.Redactor) error {
	if err == nil {
		return nil
	}
	e := workbench.AsError(err)
	out := workbench.E(e.Code, "%s", bounded(r.String(e.Detail), maxDetail)).
		WithHint("%s", r.String(e.Hint)).WithField(r.String(e.Field))
	if cause := e.Unwrap(); cause != nil {
		return out.Caused(&outcome{text: bounded(r.String(cause.Error()), maxDetail), uncertain: Uncertain(err)})
	}
	return out
}

// bounded cuts a text to n bytes, between characters, and makes it printable.
func bounded(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\n' && r != '\t' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= n {
		return s
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

func errStopping() *workbench.Error {
	return workbench.E(workbench.CodeToolUnavailable, "the server is stopping").WithHint("try again")
}

// NothingDone begins the hint of an error of which nothing left.
const NothingDone = "nothing was done"

func errTooLarge() *workbench.Error {
	return uncertain(workbench.E(workbench.CodeResultTooLarge, "the tool's answer has more than %d bytes; it was done", workbench.MaxToolResult).
		WithHint("ask for less: most tools have an argument for pages or a limit"), errOverflow)
}

// notSent is the error of a call of which nothing left. It says why, as far as
// that is safe to say.
func notSent(ctx context.Context, whom string, err error) error {
	var known *workbench.Error
	if errors.As(err, &known) {
		return known
	}
	e := workbench.E(workbench.CodeToolUnavailable, "%s was not reached: %s", whom, reason(ctx, err)).
		WithHint(NothingDone + "; try again later")
	if cause := ended(ctx); errors.Is(cause, context.Canceled) {
		e = workbench.E(workbench.CodeCancelled, "the call was given up before it was sent")
	}
	ended := errors.Is(err, mcp.ErrConnectionClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed)
	return e.Caused(&outcome{text: err.Error(), ended: ended})
}

// hadEnded reports whether err is of a session that had ended before anything
// left: the call can be made with another.
func hadEnded(err error) bool {
	var o *outcome
	return errors.As(err, &o) && o.ended
}

// lost is the error of a call that was sent and got no answer.
func lost(ctx context.Context, err error) error {
	cause := ended(ctx)
	const may = "it may have been done"
	var e *workbench.Error
	switch {
	case errors.Is(cause, errOverflow):
		return errTooLarge()
	case errors.Is(cause, errTime), errors.Is(cause, context.DeadlineExceeded):
		e = workbench.E(workbench.CodeToolTimeout, "the tool did not answer in time; %s", may)
	case errors.Is(cause, errForgotten), errors.Is(cause, errAppGone), errors.Is(cause, workbench.ErrStopping):
		e = workbench.E(workbench.CodeToolUnavailable, "the call was cut short, because %v; %s", cause, may)
	case cause != nil:
		e = workbench.E(workbench.CodeCancelled, "the call was given up while the tool worked; %s", may)
	default:
		e = workbench.E(workbench.CodeToolUnavailable, "the connection to the tool was cut before it answered; %s", may)
	}
	return uncertain(e.WithHint("look whether it was done before asking again"), err)
}

// ended is why ctx is over; nil if it is not.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// reason names why nobody was reached. It never repeats what an error says.
func reason(ctx context.Context, err error) string {
	switch cause := ended(ctx); {
	case errors.Is(cause, errForgotten), errors.Is(cause, errAppGone), errors.Is(cause, workbench.ErrStopping):
		return cause.Error()
	case errors.Is(cause, errTime), errors.Is(cause, context.DeadlineExceeded):
		return "it did not answer in time"
	}
	var (
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		record    tls.RecordHeaderError
		timed     net.Error
	)
	switch {
	case errors.As(err, &dns):
		return "its name is not known"
	case errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid), errors.As(err, &verify):
		return "its certificate is not accepted"
	case errors.As(err, &record):
		return "it does not speak TLS"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "it refuses connections"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timed) && timed.Timeout():
		return "it does not answer"
	}
	return "no connection"
}

// answered is the error for an HTTP status that is not a success; nil for one
// that is. said is what came with it.
func answered(status int, said string) error {
	if said != "" {
		said = ": " + said
	}
	switch {
	case status >= 200 && status < 300:
		return nil
	case status >= 500:
		return uncertain(workbench.E(workbench.CodeToolFailed, "the tool answered %d; it may have been done%s", status, said).
			WithHint("look whether it was done before asking again"), fmt.Errorf("status %d", status))
	}
	e := workbench.E(workbench.CodeToolFailed, "the tool answered %d%s", status, said)
	switch {
	case status >= 300 && status < 400:
		e = workbench.E(workbench.CodeToolFailed, "the tool answered %d and named another place, which was not followed", status).
			WithHint("set the app's URL to where the tool is")
	case status == 401 || status == 403:
		e = e.WithHint("the tool does not accept the connection, or its credentials have expired; nothing was done")
	case status == 429:
		e = e.WithHint("too many requests at the tool's provider; wait before asking again")
	}
	return e
}

package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/workbenchdev/workbench"
)

const requestIDHeader = "Workbench-Request-Id"

var saneRequestID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$`)

// requestID is the client's own id when it is fit to be logged, else a new one.
func requestID(sent string) string {
	if saneRequestID.MatchString(sent) {
		return sent
	}
	return workbench.NewID(workbench.KindRequest)
}

// reply counts what is sent, and gives every write a deadline: a reader that
// takes nothing for so long is let go.
type reply struct {
	http.ResponseWriter
	timeout   time.Duration
	head      bool // nothing but headers is sent
	requestID string
	route     string
	keyID     string
	status    int
	bytes     int64
	err       error // what went wrong, for the log
	gone      bool  // the client takes nothing any more
	cut       bool  // the connection ends with the answer
	unread    *countedBody
}

// Unwrap serves http.ResponseController.
func (w *reply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the status once.
func (w *reply) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.status = status
	}
	w.deadline()
	w.ResponseWriter.WriteHeader(status)
}

func (w *reply) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.head {
		return len(b), nil
	}
	w.deadline()
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, w.sent(err)
}

// sent remembers that a client takes nothing any more. What else a write can
// fail at is a mistake of ours.
func (w *reply) sent(err error) error {
	if err != nil && !errors.Is(err, http.ErrBodyNotAllowed) && !errors.Is(err, http.ErrContentLength) {
		w.gone = true
	}
	return err
}

// cutOff has the connection cut behind an answer of which part is out and the
// rest cannot follow, so that it does not look whole. It returns what to tell of
// it: err, or request_cancelled where it is the client that has gone.
func (w *reply) cutOff(err error) error {
	w.cut = true
	if w.gone {
		return workbench.E(workbench.CodeCancelled, "the client went away before it had the whole answer").Caused(err)
	}
	return err
}

// deadline moves the connection's write deadline. A writer without one, as in
// a recorder, has no slow client either.
func (w *reply) deadline() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.timeout))
}

func (w *reply) flush() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return w.sent(err)
}

// countedBody counts what was read of a request.
type countedBody struct {
	io.ReadCloser
	n   int64
	err error // what ended the reading
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	b.err = err
	return n, err
}

// What a refused client may still send before its connection is cut.
const (
	drainBytes  = 64 << 20
	drainWithin = 5 * time.Second
)

// drain takes what a client is still sending after the refusal is out. Many
// clients read no answer before they have sent everything; cut off, they would
// never see why. One that waits for a go-ahead sends nothing more.
func (w *reply) drain(r *http.Request) {
	if w.unread == nil || w.unread.err != nil || r.Header.Get("Expect") != "" && w.unread.n == 0 {
		return
	}
	if w.flush() != nil {
		return
	}
	w.readDeadline(drainWithin)
	_, _ = io.CopyN(io.Discard, w.unread, drainBytes)
}

// logRequest writes one line a request: never a query, a body or a header,
// which may hold what is the user's.
func (s *Server) logRequest(r *http.Request, w *reply, took time.Duration) {
	attrs := []slog.Attr{
		slog.String("method", method(r.Method)), slog.String("route", w.route), slog.Int("status", w.status),
		slog.Duration("took", took), slog.Int64("bytes", w.bytes), slog.String("requestId", w.requestID),
	}
	if w.keyID != "" {
		attrs = append(attrs, slog.String("key", w.keyID))
	}
	level := slog.LevelDebug
	if w.err != nil {
		e := workbench.AsError(w.err)
		attrs = append(attrs, slog.String("code", string(e.Code)))
		switch {
		case errors.Is(w.err, workbench.ErrStopping): // asked for
		case workbench.ClassOf(e.Code).HTTP >= 500 && e.Code != workbench.CodeNotBuilt:
			level = slog.LevelError
			attrs = append(attrs, slog.String("err", e.Error()))
		}
	}
	s.log.LogAttrs(context.WithoutCancel(r.Context()), level, "request", attrs...)
}

// method is a known method's name: the text of an unknown one is the client's.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

type noMetrics struct{}

func (noMetrics) Request(string, string, int, time.Duration, int64, int64) {}
func (noMetrics) Streams(int)                                              {}
func (noMetrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
}

// readDeadline bounds the reading of the body from now; 0 lifts the bound. It
// is lifted once the body was read whole, because from then on net/http reads
// the connection to see the client go. After an error it stays, so that the
// rest of the body is not waited for.
func (w *reply) readDeadline(d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(at)
}

package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

// InProcess is an http.RoundTripper that calls a handler of the same process,
// with no socket. Answers stream: what the handler writes can be read at once,
// and a handler that writes faster than its answer is read waits. Closing an
// answer's body ends the request's context, as a lost connection would.
type InProcess struct {
	handler http.Handler
	calls   sync.WaitGroup
}

// NewInProcess returns a transport for the handler:
//
//	sdk.New(sdk.Options{Key: key, HTTP: &http.Client{Transport: sdk.NewInProcess(handler)}})
func NewInProcess(h http.Handler) *InProcess { return &InProcess{handler: h} }

// Wait returns when no handler is at work any more. Call it after the last
// request, before what the handler uses is closed.
func (t *InProcess) Wait() { t.calls.Wait() }

// RoundTrip calls the handler and returns once it has written its header. The
// handler's goroutine ends by itself or when the answer's body is closed.
func (t *InProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "in-process"
	if in.Host == "" {
		in.Host = req.URL.Host
	}
	in.URL.Scheme, in.URL.Host = "", ""
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/1.1", 1, 1
	if in.Body == nil {
		in.Body = http.NoBody
	}
	read, write := io.Pipe()
	w := &answer{header: http.Header{}, pipe: write, sent: make(chan struct{})}
	// The reader's half must not wait for a handler that does not look at its
	// context while it writes.
	stop := context.AfterFunc(ctx, func() { _ = write.CloseWithError(context.Cause(ctx)) })
	t.calls.Go(func() {
		defer cancel()
		defer stop()
		w.finish(t.serve(w, in))
		if req.Body != nil {
			_ = req.Body.Close()
		}
	})
	select {
	case <-w.sent:
	case <-req.Context().Done(): // the handler sees the same end; Wait waits for it
		return nil, req.Context().Err()
	}
	if w.failed != nil {
		cancel()
		return nil, w.failed
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.snapshot, Body: &answerBody{PipeReader: read, cancel: cancel}, ContentLength: -1, Request: req,
	}, nil
}

// serve calls the handler and turns a panic into an error: one bad request
// must not take the process down.
func (t *InProcess) serve(w http.ResponseWriter, in *http.Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler gave up: %v", p)
			if p != http.ErrAbortHandler { //nolint:errorlint // a panic value, not an error chain
				err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
			}
		}
	}()
	t.handler.ServeHTTP(w, in)
	return nil
}

// answer is the handler's side of one exchange. One goroutine uses it.
type answer struct {
	header   http.Header
	pipe     *io.PipeWriter
	status   int
	snapshot http.Header
	sent     chan struct{} // closed when status and snapshot are final
	once     sync.Once
	failed   error // the handler ended badly before a header
}

func (w *answer) Header() http.Header { return w.header }

func (w *answer) WriteHeader(status int) {
	if status >= 100 && status < 200 {
		return // informational: there is nobody to tell
	}
	w.once.Do(func() {
		w.status, w.snapshot = status, w.header.Clone()
		close(w.sent)
	})
}

func (w *answer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if len(p) == 0 {
		return 0, nil
	}
	return w.pipe.Write(p)
}

// Flush sends the header; the body is never held back.
func (w *answer) Flush() { w.WriteHeader(http.StatusOK) }

// FlushError, SetReadDeadline, SetWriteDeadline and EnableFullDuplex are what
// http.ResponseController asks for. There is no connection to set a deadline
// on, and both directions are always open.
func (w *answer) FlushError() error                { w.Flush(); return nil }
func (w *answer) SetReadDeadline(time.Time) error  { return nil }
func (w *answer) SetWriteDeadline(time.Time) error { return nil }
func (w *answer) EnableFullDuplex() error          { return nil }

func (w *answer) finish(err error) {
	if err != nil {
		w.once.Do(func() { w.failed = err; close(w.sent) })
		_ = w.pipe.CloseWithError(errors.Join(io.ErrUnexpectedEOF, err))
		return
	}
	w.WriteHeader(http.StatusOK)
	_ = w.pipe.Close()
}

// answerBody ends the request when it is closed.
type answerBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *answerBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

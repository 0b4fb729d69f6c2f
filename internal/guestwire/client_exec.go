package guestwire

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/workbenchdev/workbench"
)

// execBody opens an exec; source and stdin follow as streams.
type execBody struct {
	ID          string             `json:"id"`
	Group       string             `json:"group"`
	Argv        []word             `json:"argv,omitempty"`
	Language    workbench.Language `json:"language,omitempty"`
	Source      []byte             `json:"source,omitempty"` // when it is short; otherwise it follows
	SourceBytes int64              `json:"sourceBytes"`      // that follow as a stream
	Name        string             `json:"name,omitempty"`
	Args        []word             `json:"args,omitempty"`
	Env         []word             `json:"env,omitempty"` // name=value
	Dir         string             `json:"dir,omitempty"`
	Stdin       []byte             `json:"stdin,omitempty"`
	StdinBytes  int64              `json:"stdinBytes"`
	TimeoutNs   int64              `json:"timeoutNs"`
	GraceNs     int64              `json:"graceNs"`
	OutputBytes int64              `json:"outputBytes"`
	KeepGroup   bool               `json:"keepGroup"`
	Context     string             `json:"context,omitempty"`
	Living      bool               `json:"living,omitempty"`
	Packages    string             `json:"packages,omitempty"`
}

type attachBody struct {
	ID   string  `json:"id"`
	From Offsets `json:"from"`
}

type signalBody struct {
	ID     string `json:"id"`
	Signal int    `json:"signal,omitempty"`
	Cancel bool   `json:"cancel,omitempty"`
}

// inline is the longest source or stdin that travels inside the request.
const inline = 32 << 10

// Exec is the host's view of one exec.
type Exec struct {
	ID      string
	c       *Client
	ch      *channel
	handler ExecHandler
	started chan struct{}
	once    sync.Once
	done    chan struct{}
	result  ExecResult
	err     error

	mu      sync.Mutex
	handled Offsets       // output for which the handler has returned
	more    chan struct{} // closed and replaced when that grows
}

var execStreams = []uint8{streamStdout, streamStderr}

// Exec starts a program and returns once the guest has begun it: an error means
// that no byte of it ran, except sandbox_lost, guest_protocol and
// request_cancelled, after which it may have. Codes: invalid_request,
// language_not_available, conflict (the id is in use, the sandbox is not bound,
// or the context is another language's), context_lost (Living), capacity_exhausted
// (too many execs or contexts).
func (c *Client) Exec(ctx context.Context, r ExecRequest, h ExecHandler) (*Exec, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	body := execBody{ID: r.ID, Group: r.Group, Argv: toWords(r.Argv), Language: r.Language,
		Name: r.Name, Args: toWords(r.Args), Env: envList(r.Env), Dir: r.Dir,
		TimeoutNs: int64(r.Timeout), GraceNs: int64(r.Grace), OutputBytes: r.OutputBytes, KeepGroup: r.KeepGroup, Context: r.Context, Living: r.Living, Packages: r.Packages}
	follow := map[uint8][]byte{}
	if body.Source = r.Source; len(r.Source) > inline {
		body.Source, body.SourceBytes = nil, int64(len(r.Source))
		follow[streamSource] = r.Source
	}
	if body.Stdin = r.Stdin; len(r.Stdin) > inline {
		body.Stdin, body.StdinBytes = nil, int64(len(r.Stdin))
		follow[streamStdin] = r.Stdin
	}
	return c.begin(ctx, r.ID, "exec", body, Offsets{}, h, follow)
}

// Attach takes up an exec again after the connection was lost, from the offsets
// that the host has. Codes: not_found (the guest does not know it, or has
// forgotten it), offset_invalid (the bytes at an offset are gone).
func (c *Client) Attach(ctx context.Context, id string, from Offsets, h ExecHandler) (*Exec, error) {
	if !validID(id) || from.Stdout < 0 || from.Stderr < 0 {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the exec id or an offset is not well formed")
	}
	return c.begin(ctx, id, "attach", attachBody{ID: id, From: from}, from, h, nil)
}

func (c *Client) begin(ctx context.Context, id, op string, body any, from Offsets, h ExecHandler, send map[uint8][]byte) (*Exec, error) {
	e := &Exec{ID: id, c: c, handler: h, started: make(chan struct{}), done: make(chan struct{}), handled: from, more: make(chan struct{})}
	c.mu.Lock()
	if c.execs[id] != nil {
		c.mu.Unlock()
		return nil, workbench.E(workbench.CodeConflict, "an exec with this id is attached already")
	}
	if len(c.execs) >= MaxExecs {
		c.mu.Unlock()
		return nil, workbench.E(workbench.CodeCapacity, "too many execs at once in this sandbox")
	}
	c.execs[id] = e
	c.mu.Unlock()

	event := func(json.RawMessage) error {
		again := true
		e.once.Do(func() { again = false; close(e.started) })
		if again {
			return violation("started twice")
		}
		return nil
	}
	out := make([]uint8, 0, len(send))
	for s := range send {
		out = append(out, s)
	}
	c.mu.Lock() // calls of code find e only when it is whole
	ch, err := c.l.request(op, body, execStreams, out, map[uint8]int64{streamStdout: from.Stdout, streamStderr: from.Stderr}, event)
	e.ch = ch
	if err != nil {
		delete(c.execs, id)
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for s, data := range send {
		c.work.Go(func() {
			o := ch.out[s].(*outbound)
			if _, err := o.Write(data); err == nil {
				_ = o.Close() // a failed write has ended the connection
			}
		})
	}
	c.work.Go(e.follow)
	select {
	case <-e.started:
		return e, nil
	case <-e.done:
		select {
		case <-e.started:
			return e, nil
		default:
		}
		if e.err == nil {
			return nil, c.broken(violation("ended without having started"))
		}
		return nil, e.err
	case <-ctx.Done():
		err := workbench.E(workbench.CodeCancelled, "the request was given up").Caused(context.Cause(ctx))
		ch.giveUp(err)
		return nil, err
	}
}

// follow delivers the output and the end of an exec.
func (e *Exec) follow() {
	var got Offsets
	var readers sync.WaitGroup
	readers.Go(func() { got.Stdout = e.deliver(workbench.Stdout, e.ch.in[streamStdout]) })
	readers.Go(func() { got.Stderr = e.deliver(workbench.Stderr, e.ch.in[streamStderr]) })
	err := e.ch.wait(context.Background(), &e.result)
	readers.Wait()
	if err == nil {
		e.result.Message = cleanText(e.result.Message, maxDetail)
		if bad := e.result.check(got); bad != nil {
			err = e.c.broken(bad)
		}
	}
	e.err = err
	e.c.mu.Lock()
	delete(e.c.execs, e.ID)
	e.c.mu.Unlock()
	close(e.done)
}

// deliver hands a stream to the handler and returns the offset it ended at.
func (e *Exec) deliver(stream workbench.Stream, in *inbound) int64 {
	deaf := false
	for {
		offset, data, err := in.next()
		if err != nil {
			return offset
		}
		if !deaf && len(data) > 0 {
			deaf = e.handler.Output(stream, offset, data) != nil
		}
		e.advance(stream, offset+int64(len(data)))
		in.consumed(len(data))
	}
}

// advance notes that a stream was handled up to the offset.
func (e *Exec) advance(stream workbench.Stream, to int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if stream == workbench.Stdout {
		e.handled.Stdout = to
	} else {
		e.handled.Stderr = to
	}
	close(e.more)
	e.more = make(chan struct{})
}

// reached waits until the output was handled up to the offsets.
func (e *Exec) reached(ctx context.Context, at Offsets) error {
	for {
		e.mu.Lock()
		now, more := e.handled, e.more
		e.mu.Unlock()
		if now.Stdout >= at.Stdout && now.Stderr >= at.Stderr {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return workbench.E(workbench.CodeCancelled, "the run ended").Caused(context.Cause(ctx))
		}
	}
}

// Wait returns the end of the exec, after the last byte of output was handled.
// The guest keeps the end until Release.
func (e *Exec) Wait(ctx context.Context) (ExecResult, error) {
	select {
	case <-e.done:
		return e.result, e.err
	case <-ctx.Done():
		return ExecResult{}, workbench.E(workbench.CodeCancelled, "the wait was given up").Caused(context.Cause(ctx))
	}
}

// Done is closed when Wait would return at once.
func (e *Exec) Done() <-chan struct{} { return e.done }

// Signal sends a signal to the main process. Codes: not_found (it has ended).
func (e *Exec) Signal(ctx context.Context, signal int) error {
	if signal < 1 || signal > 64 {
		return workbench.E(workbench.CodeInvalidRequest, "no such signal")
	}
	return e.c.do(ctx, "signal", signalBody{ID: e.ID, Signal: signal}, nil)
}

// Cancel asks the program to end as an interrupt from a keyboard would, then
// more firmly, then kills its group: all within the exec's grace. It returns
// when the guest has begun to. Codes: not_found (it has ended).
func (e *Exec) Cancel(ctx context.Context) error {
	return e.c.do(ctx, "signal", signalBody{ID: e.ID, Cancel: true}, nil)
}

// Release lets the guest forget an exec that has ended: what it said is stored.
// Without it the guest forgets the oldest ended ones when it needs room.
func (c *Client) Release(ctx context.Context, id string) error {
	return c.do(ctx, "release", signalBody{ID: id}, nil)
}

// ListExecs lists the execs the guest keeps.
func (c *Client) ListExecs(ctx context.Context) ([]ExecInfo, error) {
	var execs []ExecInfo
	if err := c.do(ctx, "listExecs", struct{}{}, &execs); err != nil {
		return nil, err
	}
	for _, e := range execs {
		if len(execs) > MaxExecs || !validID(e.ID) || !validID(e.Group) || e.Acked.Stdout < 0 || e.Acked.Stderr < 0 {
			return nil, c.broken(violation("list of execs"))
		}
	}
	return execs, nil
}

// Scan compares the workspace with the base and gives the sink what differs.
// Every group is paused meanwhile. Codes: conflict (the sandbox is not bound),
// and whatever the sink returns.
func (c *Client) Scan(ctx context.Context, r ScanRequest, sink ScanSink) (ScanResult, error) {
	ch, err := c.l.request("scan", r, []uint8{streamContent}, nil, nil, nil)
	if err != nil {
		return ScanResult{}, err
	}
	defer context.AfterFunc(ctx, func() {
		ch.giveUp(workbench.E(workbench.CodeCancelled, "the request was given up").Caused(context.Cause(ctx)))
	})()
	if err := feed(newRecordReader(ch.in[streamContent], r.MaxEntries, r.MaxBytes), sink); err != nil {
		return ScanResult{}, c.stopped(ch, err)
	}
	var res ScanResult
	if err := ch.wait(ctx, &res); err != nil {
		return ScanResult{}, err
	}
	if r.Base == "" && !res.Complete {
		return ScanResult{}, c.broken(violation("a part of a scan, where there is no base"))
	}
	if err := res.check(); err != nil {
		return ScanResult{}, c.broken(err)
	}
	return res, nil
}

// stopped ends a request whose content could not be read to its end.
func (c *Client) stopped(ch *channel, err error) error {
	if errors.Is(err, errFrame) {
		return c.broken(err)
	}
	select {
	case a := <-ch.answer: // the guest's own error says more
		if a.err != nil && errors.Is(err, a.err) {
			return a.err
		}
	default:
	}
	ch.giveUp(err)
	return err
}

type readBody struct {
	Path Path `json:"path"`
}

// ReadFile copies one regular file of the workspace to w. No link is followed.
// Codes: not_found, path_conflict (it is no regular file, or a part of its path
// is no directory), path_invalid.
func (c *Client) ReadFile(ctx context.Context, path Path, w io.Writer) (Entry, error) {
	if err := path.Check(); err != nil {
		return Entry{}, err
	}
	ch, err := c.l.request("read", readBody{path}, []uint8{streamContent}, nil, nil, nil)
	if err != nil {
		return Entry{}, err
	}
	defer context.AfterFunc(ctx, func() {
		ch.giveUp(workbench.E(workbench.CodeCancelled, "the request was given up").Caused(context.Cause(ctx)))
	})()
	n, err := io.CopyBuffer(onlyWriter{w}, ch.in[streamContent], make([]byte, MaxData))
	if err != nil {
		return Entry{}, c.stopped(ch, err)
	}
	var e Entry
	if err := ch.wait(ctx, &e); err != nil {
		return Entry{}, err
	}
	if e.Path != path || e.Type != TypeFile || e.Size != n || e.check() != nil {
		return Entry{}, c.broken(violation("entry of a read file"))
	}
	return e, nil
}

// WriteFiles places files, directories and links in the workspace, each file
// atomically, never through a link. Codes: path_conflict, path_invalid,
// workspace_full, conflict (the sandbox is not bound).
func (c *Client) WriteFiles(ctx context.Context, src FileSource) (WriteResult, error) {
	return c.write(ctx, "write", src)
}

// Restore fills the empty workspace with a tree and returns the token that the
// next scan may use as its base. Codes: as WriteFiles; conflict when the
// workspace is not empty.
func (c *Client) Restore(ctx context.Context, src FileSource) (WriteResult, error) {
	return c.write(ctx, "restore", src)
}

func (c *Client) write(ctx context.Context, op string, src FileSource) (WriteResult, error) {
	ch, err := c.l.request(op, struct{}{}, nil, []uint8{streamContent}, nil, nil)
	if err != nil {
		return WriteResult{}, err
	}
	defer context.AfterFunc(ctx, func() {
		ch.giveUp(workbench.E(workbench.CodeCancelled, "the request was given up").Caused(context.Cause(ctx)))
	})()
	o := ch.out[streamContent].(*outbound)
	records := recordWriter{newChunker(o)}
	for {
		e, content, err := src.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = e.check()
		}
		if err == nil {
			err = records.write(e, content)
		}
		if err != nil {
			return WriteResult{}, c.stopped(ch, err)
		}
	}
	if err := records.w.(*chunker).flush(); err != nil {
		return WriteResult{}, c.stopped(ch, err)
	}
	if err := o.Close(); err != nil {
		return WriteResult{}, lost(err)
	}
	var res WriteResult
	if err := ch.wait(ctx, &res); err != nil {
		return WriteResult{}, err
	}
	if res.Token != "" && !validID(res.Token) || res.Entries < 0 || res.Bytes < 0 {
		return WriteResult{}, c.broken(violation("write result out of bounds"))
	}
	return res, nil
}

// chunker gathers small writes into whole data frames.
type chunker struct {
	w   io.Writer
	buf []byte
}

func newChunker(w io.Writer) *chunker { return &chunker{w: w} }

func (k *chunker) Write(p []byte) (int, error) {
	if len(k.buf)+len(p) > MaxData {
		if err := k.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) >= MaxData {
		return k.w.Write(p)
	}
	k.buf = append(k.buf, p...)
	return len(p), nil
}

func (k *chunker) flush() error {
	if len(k.buf) == 0 {
		return nil
	}
	_, err := k.w.Write(k.buf)
	k.buf = k.buf[:0]
	return err
}

func toWords(s []string) []word {
	out := make([]word, len(s))
	for i, v := range s {
		out[i] = word(v)
	}
	return out
}

func envList(env map[string]string) []word {
	out := make([]word, 0, len(env))
	for k, v := range env {
		out = append(out, word(k+"="+v))
	}
	return out
}

func fromWords(p []word) []string {
	out := make([]string, len(p))
	for i, v := range p {
		out[i] = string(v)
	}
	return out
}

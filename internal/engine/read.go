package engine

import (
	"context"
	"encoding/base64"
	"io"
	"slices"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/store"
)

// logPage is how many log entries are read at once.
const logPage = 256

// Receipt returns a run. With wait > 0 it returns when the run is terminal or
// the wait is over, whichever comes first. It never resubmits anything.
func (e *Engine) Receipt(ctx context.Context, p workbench.Principal, runID string, wait time.Duration) (workbench.Receipt, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.Receipt{}, err
	}
	run, err := e.await(ctx, p, runID, wait)
	if err != nil {
		return workbench.Receipt{}, err
	}
	s, err := e.session(ctx, p, run.SessionID)
	if err != nil {
		return workbench.Receipt{}, err
	}
	rows, err := e.o.Store.ArtifactsOfRun(ctx, run.ID)
	if err != nil {
		return workbench.Receipt{}, err
	}
	run.Artifacts = e.o.Artifacts.Present(ctx, p, rows)
	receipt := workbench.Receipt{Run: run, Session: s.Ref()}
	if !p.MayReadContents(run.Owner()) {
		return receipt, nil
	}
	if err := e.mayLearn(ctx, p, run); err != nil {
		return withheld(receipt, err)
	}
	err = e.addContents(ctx, p, &receipt)
	return receipt, err
}

// contents is what the log of a run holds: what it showed, in order, and the bytes of its
// streams.
func (e *Engine) contents(ctx context.Context, p workbench.Principal, run workbench.Run) (shown []workbench.Result, streams map[workbench.Stream][]byte, err error) {
	entries, err := e.o.Store.Contents(ctx, p, run.ID)
	if err != nil {
		return nil, nil, err
	}
	shown, streams = []workbench.Result{}, map[workbench.Stream][]byte{}
	for _, entry := range entries {
		if entry.Data, err = e.openEntry(ctx, run, entry); err != nil {
			return nil, nil, err
		}
		if entry.Kind == workbench.LogOutput {
			streams[entry.Stream] = append(streams[entry.Stream], entry.Data...)
			continue
		}
		r, err := resultOf(entry)
		if err != nil {
			return nil, nil, err
		}
		shown = append(shown, r)
	}
	return shown, streams, nil
}

// addContents fills in what the run's log holds: output and results.
func (e *Engine) addContents(ctx context.Context, p workbench.Principal, r *workbench.Receipt) error {
	r.Results = []workbench.Result{}
	text := map[workbench.Stream][]byte{}
	if !r.Status.Waiting() { // it has none before
		var err error
		if r.Results, text, err = e.contents(ctx, p, r.Run); err != nil {
			return err
		}
	}
	r.Result = lastStructured(r.Results)
	final := r.Status.Terminal() // a character may still be on its way
	if final && r.Status != workbench.StatusSucceeded {
		r.Error = workbench.LastError(r.Results)
	}
	if r.Error != nil && r.Reason == workbench.ReasonExit { // a content: it is not among what is stored in plain
		r.Message = r.Error.Headline()
	}
	captured := func(stream workbench.Stream) *string {
		b := text[stream]
		s := workbench.TextOf(b[:workbench.CutText(b, len(b), final)])
		return &s
	}
	r.Stdout, r.Stderr = captured(workbench.Stdout), captured(workbench.Stderr)
	return nil
}

// await returns the run once it is terminal or the wait is over.
func (e *Engine) await(ctx context.Context, p workbench.Principal, runID string, wait time.Duration) (workbench.Run, error) {
	if wait <= 0 {
		return e.o.Store.Run(ctx, p, runID)
	}
	sub := e.o.Store.Subscribe(store.EndTopic(runID))
	defer sub.Close()
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		run, err := e.o.Store.Run(ctx, p, runID)
		if err != nil || run.Status.Terminal() {
			return run, err
		}
		select {
		case <-sub.C:
		case <-over.C:
			return run, nil
		case <-e.ctx.Done():
			return e.o.Store.Run(ctx, p, runID) // it may just have ended
		case <-ctx.Done():
			return run, workbench.E(workbench.CodeCancelled, "the request was given up").Caused(ctx.Err())
		}
	}
}

// ListRuns lists runs without their output, newest first.
func (e *Engine) ListRuns(ctx context.Context, p workbench.Principal, f workbench.RunFilter, page workbench.Page) (workbench.List[workbench.Run], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.Run]{}, err
	}
	if f.SessionID != "" {
		if _, err := e.o.Store.Session(ctx, p, f.SessionID); err != nil {
			return workbench.List[workbench.Run]{}, err
		}
	}
	return e.o.Store.ListRuns(ctx, p, f, page)
}

// Events yields the run's log from after on, follows it while the run lives,
// and returns nil once the terminal entry was yielded. Output data is plain.
func (e *Engine) Events(ctx context.Context, p workbench.Principal, runID string, after int64, yield func(workbench.LogEntry) error) error {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return err
	}
	run, err := e.o.Store.Run(ctx, p, runID)
	if err != nil {
		return err
	}
	if err := e.contentsOf(ctx, p, run); err != nil {
		return err
	}
	return e.follow(ctx, store.RunTopic(runID), func() (int, bool, error) {
		entries, err := e.o.Store.Log(ctx, p, runID, after, logPage)
		if err := e.stillReadable(ctx, p, run, entries); err != nil {
			return 0, false, err
		}
		for _, entry := range entries {
			if entry.Data, err = e.openEntry(ctx, run, entry); err != nil {
				return 0, false, err
			}
			if err := yield(entry); err != nil {
				return 0, false, err
			}
			after = entry.Seq
			if entry.Kind == workbench.LogTerminal {
				return 0, true, nil
			}
		}
		return len(entries), false, err
	}, func() (bool, error) {
		run, err := e.o.Store.Run(ctx, p, runID)
		return run.Status.Terminal(), err
	})
}

// stillReadable asks anew, before a stream goes on with contents, what it was
// asked when it was opened: the run may have been queued then, or have learned
// something since, or what it knows may not be used any more.
func (e *Engine) stillReadable(ctx context.Context, p workbench.Principal, run workbench.Run, entries []workbench.LogEntry) error {
	if !slices.ContainsFunc(entries, func(entry workbench.LogEntry) bool { return len(entry.Data) > 0 }) {
		return nil
	}
	on, err := e.o.Store.SessionDependencies(ctx, run.SessionID)
	if err != nil || len(on) == 0 {
		return err
	}
	if run, err = e.o.Store.Run(ctx, p, run.ID); err != nil {
		return err
	}
	return e.mayLearn(ctx, p, run)
}

// withheld is a receipt whose contents came from what may not be used any more.
func withheld(r workbench.Receipt, why error) (workbench.Receipt, error) {
	if !workbench.HasCode(why, workbench.CodeAccessDenied) {
		return r, why
	}
	e := workbench.AsError(why)
	r.Withheld = &workbench.CallError{Code: e.Code, Detail: e.Detail, Hint: e.Hint}
	return r, nil
}

// mayLearn refuses who may not use, now, every tool that the contents of a run
// may come from. Code: access_denied.
func (e *Engine) mayLearn(ctx context.Context, p workbench.Principal, run workbench.Run) error {
	on := run.Dependencies
	if !run.Status.Terminal() && !run.Status.Waiting() { // they are noted at its end
		var err error
		if on, err = e.o.Store.SessionDependencies(ctx, run.SessionID); err != nil {
			return err
		}
	}
	if len(on) == 0 {
		return nil
	}
	return e.o.Tools.MayRead(ctx, p, run.SessionID, on)
}

// contentsOf refuses a principal who may see the run but not what it holds.
func (e *Engine) contentsOf(ctx context.Context, p workbench.Principal, run workbench.Run) error {
	if p.MayReadContents(run.Owner()) {
		return e.mayLearn(ctx, p, run)
	}
	return workbench.E(workbench.CodeForbidden, "this key sees metadata, not contents").
		WithHint(`use the owner's key, or an admin key that was made with "contents": true`)
}

// openEntry unseals the data of an output or a result; other kinds have none.
func (e *Engine) openEntry(ctx context.Context, run workbench.Run, entry workbench.LogEntry) ([]byte, error) {
	if len(entry.Data) == 0 {
		return nil, nil
	}
	return e.o.Seal.OpenBytes(ctx, run.TenantID, "log", logContext(run.ID, entry.Seq), entry.Data)
}

// Output returns one page of one stream. Codes: offset_invalid (inside a
// character, or beyond the end), limit_out_of_range, invalid_request.
func (e *Engine) Output(ctx context.Context, p workbench.Principal, runID string, q workbench.OutputQuery) (workbench.OutputPage, error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.OutputPage{}, err
	}
	if err := checkQuery(&q); err != nil {
		return workbench.OutputPage{}, err
	}
	run, err := e.o.Store.Run(ctx, p, runID)
	if err != nil {
		return workbench.OutputPage{}, err
	}
	if err := e.contentsOf(ctx, p, run); err != nil {
		return workbench.OutputPage{}, err
	}
	from := max(0, q.Offset-3) // enough to see whether the offset is inside a character
	window, captured, err := e.window(ctx, p, run, q.Stream, from, q.Offset+int64(q.Limit)+4)
	if err != nil {
		return workbench.OutputPage{}, err
	}
	if q.Offset > captured {
		return workbench.OutputPage{}, workbench.E(workbench.CodeOffsetInvalid, "offset is beyond the captured %d bytes", captured).WithField("offset").
			WithHint("use the nextOffset of the page before")
	}
	info := run.Outputs.Stdout
	if q.Stream == workbench.Stderr {
		info = run.Outputs.Stderr
	}
	done := run.Status.Terminal()
	before, after := window[:q.Offset-from], window[q.Offset-from:]
	atEnd := done && q.Offset+int64(len(after)) >= captured
	page := workbench.OutputPage{Stream: q.Stream, Encoding: q.Encoding, Offset: q.Offset,
		TotalBytes: max(info.TotalBytes, captured), CapturedBytes: captured, Truncated: info.Truncated, FileID: info.FileID}
	n := min(q.Limit, len(after))
	if q.Encoding == workbench.EncodingBase64 {
		page.Text = base64.StdEncoding.EncodeToString(after[:n])
	} else {
		if workbench.InsideCharacter(before, after, atEnd) {
			return workbench.OutputPage{}, workbench.E(workbench.CodeOffsetInvalid, "offset lies inside a character").WithField("offset").
				WithHint("use the nextOffset of the page before, or encoding=base64")
		}
		n = workbench.CutText(after, q.Limit, atEnd)
		page.Text = workbench.TextOf(after[:n])
	}
	page.NextOffset = q.Offset + int64(n)
	page.Complete = done && page.NextOffset == captured
	return page, nil
}

func checkQuery(q *workbench.OutputQuery) error {
	if q.Stream == "" {
		q.Stream = workbench.Stdout
	}
	if q.Encoding == "" {
		q.Encoding = workbench.EncodingUTF8
	}
	if q.Limit == 0 {
		q.Limit = workbench.DefaultOutputPage
	}
	if q.Stream != workbench.Stdout && q.Stream != workbench.Stderr {
		return workbench.E(workbench.CodeInvalidRequest, "stream must be stdout or stderr").WithField("stream")
	}
	if q.Encoding != workbench.EncodingUTF8 && q.Encoding != workbench.EncodingBase64 {
		return workbench.E(workbench.CodeInvalidRequest, "encoding must be utf-8 or base64").WithField("encoding")
	}
	if err := workbench.InRange("limit", int64(q.Limit), 1, workbench.MaxOutputPage); err != nil {
		return err
	}
	if q.Offset < 0 {
		return workbench.E(workbench.CodeOffsetInvalid, "offset must not be negative").WithField("offset")
	}
	return nil
}

// window returns the plain bytes [from, to) of a stream, as far as captured,
// and how much is captured.
func (e *Engine) window(ctx context.Context, p workbench.Principal, run workbench.Run, stream workbench.Stream, from, to int64) ([]byte, int64, error) {
	entries, captured, err := e.o.Store.OutputRange(ctx, p, run.ID, stream, from, to-from)
	if err != nil {
		return nil, 0, err
	}
	var all []byte
	for _, entry := range entries {
		data, err := e.openEntry(ctx, run, entry)
		if err != nil {
			return nil, 0, err
		}
		low, high := max(from, entry.Offset), min(to, entry.Offset+int64(len(data)))
		if low < high {
			all = append(all, data[low-entry.Offset:high-entry.Offset]...)
		}
	}
	return all, captured, nil
}

// RunFiles pages what a run changed in its workspace, in order of path.
func (e *Engine) RunFiles(ctx context.Context, p workbench.Principal, runID string, page workbench.Page) (workbench.List[workbench.ChangedFile], error) {
	if err := p.Require(workbench.ScopeRead); err != nil {
		return workbench.List[workbench.ChangedFile]{}, err
	}
	return e.o.Store.Changes(ctx, p, runID, page)
}

// RunFile opens a file as the run's commit has it; path is exact. Codes:
// not_found (also for a run without a commit), path_conflict (it is no regular
// file), forbidden.
func (e *Engine) RunFile(ctx context.Context, p workbench.Principal, runID, path string) (workbench.ChangedFile, io.ReadSeekCloser, error) {
	none := workbench.ChangedFile{}
	if err := p.Require(workbench.ScopeRead); err != nil {
		return none, nil, err
	}
	run, err := e.o.Store.Run(ctx, p, runID)
	if err != nil {
		return none, nil, err
	}
	if err := e.contentsOf(ctx, p, run); err != nil {
		return none, nil, err
	}
	if run.CommitID == "" {
		return none, nil, workbench.E(workbench.CodeNotFound, "this run has no commit").WithHint("a run has one once it ended and its workspace was committed")
	}
	commit, err := e.o.Store.Commit(ctx, p, run.CommitID)
	if err != nil {
		return none, nil, err
	}
	tree, err := e.loadTree(ctx, commit)
	if err != nil {
		return none, nil, err
	}
	e.touch(ctx, run.SessionID)
	entry, content, err := e.openFile(ctx, run.TenantID, tree, path)
	return workbench.ChangedFile{Path: entry.Path, PathBase64: entry.PathBase64, Type: entry.Type, Size: entry.Size, SHA256: entry.SHA256, Mode: entry.Mode}, content, ofCommit(err, run.CommitID)
}

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/audit"
	"github.com/workbenchdev/workbench/internal/failpoint"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/workspace"
)

// Output implements guestwire.ExecHandler.
func (x *execution) Output(stream workbench.Stream, _ int64, data []byte) error {
	return x.log.write(stream, data)
}

// Call implements guestwire.ExecHandler: what code asks of the server.
func (x *execution) Call(ctx context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
	switch call.Op {
	case guestwire.OpSave:
		return x.save(ctx, call)
	case guestwire.OpResult:
		return x.structured(call)
	case guestwire.OpDisplay:
		return x.display(ctx, call)
	case guestwire.OpRefused:
		if !x.refused.Swap(true) {
			x.e.refusedCall(ctx, x.s, x.run.ID, workbench.E(workbench.CodeForbidden, "it asked with a token that is not its own"))
		}
		return nil, nil
	}
	return x.reach(ctx, call)
}

// reach passes on what leaves the sandbox.
func (x *execution) reach(ctx context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
	run := workbench.Run{ID: x.run.ID, Revision: x.run.Revision, Language: x.run.Language, Lane: x.run.Lane} // what never changes of it
	from := govern.Caller{Session: x.s, Run: run, Epoch: x.epoch, Together: &x.calls}
	var answer json.RawMessage
	var receipt *workbench.ToolReceipt
	var err error
	if x.recorded != nil {
		answer, receipt, err = x.e.o.Broker.Repeat(ctx, from, x.recorded, call.Op, call.Args)
	} else {
		answer, receipt, err = x.e.o.Broker.Serve(ctx, from, call.Op, call.Args)
	}
	if receipt != nil {
		x.log.note(workbench.LogCall, workbench.CallEntry{ReceiptID: receipt.ID, Number: receipt.Number, Tool: receipt.Tool, Version: receipt.Version,
			Alias: receipt.Alias, Status: receipt.Status})
	}
	if workbench.HasCode(err, workbench.CodeToolCallLimit) && !x.exhausted.Swap(true) {
		x.e.refusedCall(ctx, x.s, run.ID, err)
	}
	return answer, err
}

// refusedCall records, once for a run, that it asked for more calls than it may
// make, or with a token that was not its own: none of those has a receipt.
func (e *Engine) refusedCall(ctx context.Context, s workbench.Session, runID string, why error) {
	owner := workbench.Principal{ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID}
	row := audit.Entry(owner, e.now(), "tool.refused", runID, why, map[string]any{"session": s.ID})
	if err := e.o.Store.Audit(context.WithoutCancel(ctx), row); err != nil {
		e.log.Error("audit row not written", "id", row.ID, "action", row.Action, "target", row.Target, "err", err)
	}
}

// save keeps a file that the code named.
func (x *execution) save(ctx context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
	var args guestwire.SaveArgs
	if err := json.Unmarshal(call.Args, &args); err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the call cannot be read").WithField("args")
	}
	if call.Content == nil || call.Size < 0 {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the call has no content").WithField("content")
	}
	kept, err := x.keep(ctx, string(args.Path), workbench.OriginSave, call.Size, call.Content)
	if err != nil {
		x.noRoom(err)
		return nil, err
	}
	return json.Marshal(struct {
		workbench.Artifact
		Status string `json:"status"`
	}{kept, "saved"})
}

// noRoom notes that a file could not be retained because of a limit. Calls of
// the code come at any time, also at once.
func (x *execution) noRoom(err error) {
	if workbench.HasCode(err, workbench.CodeQuotaExceeded) || workbench.HasCode(err, workbench.CodeFileTooLarge) {
		x.full.Store(true)
	}
}

// keep makes a retained file of this run.
func (x *execution) keep(ctx context.Context, path string, origin workbench.ArtifactOrigin, size int64, content io.Reader) (workbench.Artifact, error) {
	return x.keepAs(ctx, path, origin, "", size, content)
}

// keepAs is keep for a file of a known type.
func (x *execution) keepAs(ctx context.Context, path string, origin workbench.ArtifactOrigin, mimeType string, size int64, content io.Reader) (workbench.Artifact, error) {
	derived := make([]string, len(x.spec.Artifacts))
	for i, sel := range x.spec.Artifacts {
		derived[i] = sel.ID
	}
	kept, err := x.e.o.Artifacts.Keep(ctx, artifact.KeepRequest{Session: x.s, RunID: x.run.ID, Revision: x.run.Revision,
		Generation: x.gen, Epoch: x.epoch, Path: path, Origin: origin, MimeType: mimeType, Size: size, DerivedFrom: derived}, content)
	if err != nil {
		return workbench.Artifact{}, err
	}
	public := kept
	public.Preview, public.SealedPreview = "", nil // contents; the log's metadata is not sealed
	x.log.note(workbench.LogFile, public)
	return kept, nil
}

// settle ends a step whose end was seen: commit, kept files, counts, and the
// terminal status, in one transaction at the end.
func (x *execution) settle(ctx context.Context) error {
	x.run.DurationMs = x.result.Duration.Milliseconds()
	x.run.PeakMemoryBytes = x.result.PeakBytes
	x.lookForKills(ctx)
	if x.exhausted.Load() {
		x.result.LimitsHit = append(x.result.LimitsHit, workbench.LimitToolCalls)
	}
	x.run.LimitsHit = append(x.run.LimitsHit, x.result.LimitsHit...)
	made, err := x.committed(ctx)
	if err != nil {
		x.uncommitted(ctx, err)
	} else {
		keeping, kept := x.within(ctx, startWithin)
		lied := x.keepGlobs(keeping, made.Tree)
		late := keeping.Err() != nil
		if kept(); late || lied && x.lone() { // where other code runs, a file may have changed since
			x.c.drop(ctx) // it did not give, or not in time, what it had just named
		}
	}
	x.outcome()
	return x.finish(ctx, made, err == nil)
}

// lookForKills asks the host whether the kernel ended processes of the sandbox for
// memory, and takes the run for their cause where it failed and ran alone, or was
// killed itself. Those of other runs are taken up as well, or they would be told of
// a later one.
func (x *execution) lookForKills(ctx context.Context) {
	r := &x.result
	if x.c.box != x.box || r.ExitCode == 0 && !x.shared && !slices.Contains(r.LimitsHit, workbench.LimitMemory) || !x.c.outOfMemory(ctx) {
		return
	}
	if r.ExitCode == 0 || r.Reason == workbench.ReasonOutOfMemory || x.shared && r.Signal != "SIGKILL" {
		return
	}
	r.LimitsHit = append(r.LimitsHit, workbench.LimitMemory)
	if r.Signal != "" {
		r.Reason = workbench.ReasonOutOfMemory
	}
}

// committed is the workspace as the run left it, if the sandbox is still there.
func (x *execution) committed(ctx context.Context) (workspace.Committed, error) {
	if x.c.box != x.box {
		return workspace.Committed{}, workbench.E(workbench.CodeSandboxLost, "the sandbox was lost before it could be looked at")
	}
	err := x.e.stubbornly(ctx, "head", func() error { return x.c.certain(ctx) }, func() bool { return false })
	if err != nil {
		return workspace.Committed{}, err
	}
	committing, done := x.within(ctx, startWithin)
	defer done()
	began := time.Now()
	made, err := x.commit(committing)
	if err == nil {
		x.e.o.Metrics.Committed(time.Since(began))
	}
	return made, err
}

// settleWithout ends a step that left no workspace to commit.
func (x *execution) settleWithout(ctx context.Context, status workbench.Status, why workbench.Reason, message string) error {
	x.run.Status, x.run.Reason, x.run.Message = status, why, message
	x.run.DurationMs = time.Since(x.began).Milliseconds()
	return x.finish(ctx, workspace.Committed{}, false)
}

// outcome derives status and reason from how the program ended.
func (x *execution) outcome() {
	r, run := x.result, &x.run
	if r.ExitCode >= 0 {
		code := r.ExitCode
		run.ExitCode = &code
	}
	run.Signal = r.Signal
	stopped := x.stopped != workbench.ReasonNone && r.Reason == workbench.ReasonCancelled
	switch {
	case stopped:
		run.Status, run.Reason, run.Message = workbench.StatusCancelled, x.stopped, workbench.CancelMessage(x.stopped, true)
	case r.Reason == workbench.ReasonTimeout:
		run.Status, run.Reason = workbench.StatusTimedOut, r.Reason
		run.Message = "the time limit of " + strconv.FormatInt(run.TimeoutMs, 10) + " ms was used up"
	case r.Reason == workbench.ReasonOutOfMemory:
		run.Status, run.Reason, run.Message = workbench.StatusFailed, r.Reason, "the memory limit ended the run"
	case r.Reason == workbench.ReasonCompile || r.Reason == workbench.ReasonInfrastructure:
		run.Status, run.Reason, run.Message = workbench.StatusFailed, r.Reason, r.Message
	case r.ExitCode == 0:
		run.Status = workbench.StatusSucceeded
	case r.Signal != "":
		run.Status = workbench.StatusFailed
		run.Reason, run.Message = failure(r, "the program was ended by "+r.Signal)
	default:
		run.Status = workbench.StatusFailed
		run.Reason, run.Message = failure(r, "the program ended with exit code "+strconv.Itoa(r.ExitCode))
	}
}

// failure names the limit that a failing program had met, if any; end says how it
// ended.
func failure(r guestwire.ExecResult, end string) (workbench.Reason, string) {
	for _, limit := range []struct {
		name   string
		reason workbench.Reason
		met    string
	}{
		{workbench.LimitMemory, workbench.ReasonOutOfMemory, "the memory limit was met"},
		{workbench.LimitWorkspace, workbench.ReasonWorkspaceFull, "the workspace was full"},
		{workbench.LimitScratch, workbench.ReasonScratchFull, "/tmp and /dev/shm were full"},
		{workbench.LimitTasks, workbench.ReasonProcessLimit, "the limit of processes and threads was met"},
		{workbench.LimitOpenFiles, workbench.ReasonOpenFiles, "the limit of open files was met"},
		{workbench.LimitToolCalls, workbench.ReasonToolCalls, "the limit of tool calls was met"},
	} {
		if slices.Contains(r.LimitsHit, limit.name) {
			return limit.reason, limit.met + ", and " + end
		}
	}
	switch r.Signal {
	case "":
		return workbench.ReasonExit, end
	case "killed", "SIGKILL":
		return workbench.ReasonInterpreterDied, end
	}
	return workbench.ReasonSignal, end
}

// finish writes the settlement, with the commit if there is one that the history
// has room for.
func (x *execution) finish(ctx context.Context, made workspace.Committed, committed bool) error {
	x.log.stop()
	s := store.Settlement{Epoch: x.epoch, Generation: x.gen, Context: x.leave()}
	x.count(ctx)
	finished := x.e.now()
	x.run.FinishedAt = &finished
	if committed {
		x.describe(&s, made, finished)
	}
	x.warnOfDeadline(finished)
	last := []workbench.LogEntry{statusEntry(x.run.ID, workbench.LogTerminal,
		statusMeta{Status: x.run.Status, Reason: x.run.Reason, ExitCode: x.run.ExitCode, Message: x.run.Message}, finished)}
	if len(s.Changes) > 0 {
		last = append([]workbench.LogEntry{x.filesEntry(s.Changes, finished)}, last...)
	}
	tail := x.log.finish(last...)
	if tail.err != nil {
		return tail.err // the log is a prefix; the step is recovered as unknown
	}
	s.Run, s.Entries, s.Usage = x.run, tail.entries, x.c.unmetered
	if err := failpoint.Hit("engine.settle.before"); err != nil {
		return err
	}
	err := x.e.stubbornly(ctx, "settle", func() error { return x.e.o.Store.Settle(ctx, s) }, x.e.terminal(x.run.ID))
	if committed && workbench.HasCode(err, workbench.CodeQuotaExceeded) {
		committed, s = false, x.withoutCommit(ctx, s, made, err)
		err = x.e.stubbornly(ctx, "settle", func() error { return x.e.o.Store.Settle(ctx, s) }, x.e.terminal(x.run.ID))
	}
	if err != nil {
		return err
	}
	x.c.unmetered = nil
	if err := failpoint.Hit("engine.settle.after"); err != nil {
		return err
	}
	if committed {
		x.c.advance(made.Tree, x.run.CommitID, x)
	}
	x.e.o.Metrics.RunEnded(string(x.run.Language), string(x.run.Status), time.Duration(x.run.QueuedMs)*time.Millisecond, time.Duration(x.run.DurationMs)*time.Millisecond)
	return nil
}

// count notes how much the run gave out, and which limits it met by that.
func (x *execution) count(ctx context.Context) {
	x.countResults()
	x.run.Outputs.Stdout = x.streamInfo(ctx, workbench.Stdout, x.result.Total.Stdout)
	x.run.Outputs.Stderr = x.streamInfo(ctx, workbench.Stderr, x.result.Total.Stderr)
	if x.run.Outputs.Stdout.Truncated || x.run.Outputs.Stderr.Truncated {
		x.run.LimitsHit = append(x.run.LimitsHit, workbench.LimitOutput)
	}
	if x.full.Load() {
		x.run.LimitsHit = append(x.run.LimitsHit, workbench.LimitFiles)
	}
	slices.Sort(x.run.LimitsHit)
	x.run.LimitsHit = slices.Compact(x.run.LimitsHit)
}

// describe puts the workspace as the run left it into its settlement.
func (x *execution) describe(s *store.Settlement, made workspace.Committed, at time.Time) {
	x.run.OutputRoot = made.Tree.Root()
	x.run.Files.Exclusive = !x.shared
	s.Changes = made.Changes
	if x.shared { // what others committed meanwhile may be its own too
		s.Changes = workspace.Diff(x.input, made.Tree)
	}
	if x.run.OutputRoot == x.c.tree.Root() && x.c.head != "" && len(made.Refs) == 0 {
		x.run.CommitID = x.c.head // nothing changed: the same tree
		return
	}
	commit := made.Describe(workbench.Commit{ID: workbench.NewID(workbench.KindCommit), SessionID: x.s.ID, TenantID: x.s.TenantID,
		ParentID: x.c.head, Generation: x.gen, RunIDs: slices.Clone(x.c.since), Exclusive: !x.shared, CreatedAt: at})
	s.Commit, s.ManifestRefs, x.run.CommitID = &commit, made.Refs, commit.ID
}

// filesEntry is the log entry of what the run changed.
func (x *execution) filesEntry(changes []workbench.ChangedFile, at time.Time) workbench.LogEntry {
	first := changes[:min(len(changes), workbench.MaxEventItems)]
	meta, _ := json.Marshal(workbench.FilesEntry{CommitID: x.run.CommitID, Root: x.run.OutputRoot, Total: len(changes),
		Exclusive: x.run.Files.Exclusive, Items: first}) // cannot fail: plain fields
	return workbench.LogEntry{RunID: x.run.ID, Kind: workbench.LogFiles, Meta: meta, At: at}
}

// streamInfo counts a stream and keeps what went beyond the cap. A full quota
// never fails a run.
func (x *execution) streamInfo(ctx context.Context, stream workbench.Stream, total int64) workbench.StreamInfo {
	logged, seen, rest := x.log.stream(stream)
	info := workbench.StreamInfo{TotalBytes: max(total, seen), CapturedBytes: logged}
	info.Truncated = info.TotalBytes > info.CapturedBytes
	if !info.Truncated {
		return info
	}
	info.FileTruncated = true
	if len(rest) == 0 {
		return info
	}
	path := "output/" + x.run.ID + "." + string(stream)
	kept, err := x.keep(ctx, path, workbench.OriginOverflow, int64(len(rest)), bytes.NewReader(rest))
	if workbench.HasCode(err, workbench.CodeQuotaExceeded) {
		left, leftErr := x.e.o.Artifacts.Left(ctx, x.s)
		if leftErr == nil && left > 0 {
			rest = rest[:min(int64(len(rest)), left)]
			kept, err = x.keep(ctx, path, workbench.OriginOverflow, int64(len(rest)), bytes.NewReader(rest))
		}
		x.full.Store(true)
	}
	if err != nil {
		x.notice(workbench.NoticeOverflowLost, "output beyond the cap could not be kept: "+workbench.AsError(err).Detail)
		return info
	}
	info.FileID = kept.ID
	info.FileTruncated = info.TotalBytes > info.CapturedBytes+kept.Size
	return info
}

// keepGlobs keeps the files that the submission named. It reports whether the
// sandbox gave something else than it had committed.
func (x *execution) keepGlobs(ctx context.Context, tree workspace.Tree) (lied bool) {
	if len(x.spec.Keep) == 0 {
		return false
	}
	wanted, whole := newGlobs(x.spec.Keep), true
	tree.Files(func(entry workspace.Entry) bool {
		if !wanted.match(entry.Path) {
			return true
		}
		if err := x.keepFromSandbox(ctx, entry); err != nil {
			x.noRoom(err)
			lied = lied || workbench.HasCode(err, workbench.CodeGuestProtocol)
			x.notice(workbench.NoticeKeepFailed, shortened(entry.Path)+": "+workbench.AsError(err).Detail)
			whole = len(x.run.Notices) < 20
		}
		return whole
	})
	for i := 0; whole && i < len(x.spec.Keep); i++ {
		if wanted.unused[i] { // the glob itself is sealed, a notice is not
			x.notice(workbench.NoticeKeepNothing, fmt.Sprintf("keep[%d] matched no file of the workspace; globs are relative to it and name files: out/** is everything below out", i))
		}
	}
	return lied
}

// keepFromSandbox keeps a file as the sandbox has it: nothing runs there any
// more, and what the commit holds can be read only once it is settled.
func (x *execution) keepFromSandbox(ctx context.Context, entry workspace.Entry) error {
	from, to := io.Pipe()
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, err := x.wire.ReadFile(ctx, guestwire.Path(entry.Path), to)
		_ = to.CloseWithError(err) // nil is the end of the file
	}()
	kept, err := x.keep(ctx, entry.Path, workbench.OriginKeep, entry.Size, from)
	_ = from.Close() // a reader that gave up ends the copy
	<-read
	if err == nil && kept.SHA256 != entry.SHA256 {
		return workbench.E(workbench.CodeGuestProtocol, "the sandbox gave other bytes than it had committed")
	}
	return err
}

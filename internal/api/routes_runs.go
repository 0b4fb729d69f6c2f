package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/workbenchdev/workbench"
)

// MaxWaitMs bounds a long poll.
const MaxWaitMs = 60_000

func statusNames() []string {
	var names []string
	for _, s := range workbench.Statuses() {
		names = append(names, string(s))
	}
	return names
}

var submitErrors = []workbench.Code{
	workbench.CodeIdempotencyReused, workbench.CodeIdempotencyHeader, workbench.CodeConflict, workbench.CodeSessionClosed, workbench.CodeSessionExpired,
	workbench.CodeLanguageUnknown, workbench.CodePathInvalid, workbench.CodePathConflict, workbench.CodeArtifactDeleted, workbench.CodeArtifactExpired,
	workbench.CodeQueueFull, workbench.CodeCapacity, workbench.CodeNotBuilt,
	workbench.CodeContextNotFound, workbench.CodeContextLanguage, workbench.CodeContextLost, workbench.CodeQuotaExceeded,
}

// submitRoute is one of the three ways to submit code; they differ in their
// body only.
func submitRoute(pattern, id, summary string, body any, handle func(*call) error) Route {
	run := workbench.Receipt{}
	headers := []string{"Location", "Idempotency-Replayed"}
	r := Route{
		Method: http.MethodPost, Pattern: pattern, ID: id, Tag: "runs", Summary: summary,
		Description: "Answers at once: the run is queued and will happen even if the caller goes away. The same idempotency key with the same request gives the original run, from any session of the tenant, with the header Idempotency-Replayed.",
		Scope:       workbench.ScopeExecute, Admin: AdminNever, Action: "run.submit",
		Params: []Param{waitParam}, Body: body, handle: handle, Errors: submitErrors,
		Headers: []Param{{Name: idempotencyHeader, Doc: "the idempotency key, bare or quoted; must equal idempotencyKey if both are sent", Kind: TextParam}},
		Replies: []Reply{
			{Status: http.StatusAccepted, Doc: "The run was admitted.", Body: run, Headers: headers},
			{Status: http.StatusOK, Doc: "The run ended while the request waited (waitMs).", Body: run, Headers: headers},
		},
	}
	return r
}

// What every stream of events takes and answers.
var (
	streamParams  = []Param{{Name: "after", Doc: "number of the last event seen; 0 for all", Kind: IntegerParam, Min: 0, Max: maxSeq}}
	streamHeaders = []Param{{Name: "Last-Event-ID", Doc: "as after; must be the same if both are sent", Kind: IntegerParam, Min: 0, Max: maxSeq}}
)

func streamReplies(doc string, event any) []Reply {
	return []Reply{
		{Status: http.StatusOK, Doc: doc, Event: event, Types: []string{sseType, ndjsonType}},
		{Status: http.StatusNoContent, Doc: "The terminal event was seen already."},
	}
}

func runRoutes() []Route {
	ofRun := func(r Route) Route {
		r.Tag, r.Target, r.Scope = "runs", workbench.KindRun, workbench.ScopeRead
		return r
	}
	submit := submitRoute(base+"/sessions/{id}/runs", "submitRun", "Submit code to a session", SubmitRunRequest{}, submitRun)
	submit.Target = workbench.KindSession
	return []Route{
		submit,
		submitRoute(base+"/run_code", "runCode", "Submit code, naming the session in the body", RunCodeRequest{}, runCode),
		submitRoute(base+"/bash", "bash", "Submit a Bash command", BashRequest{}, runBash),
		{
			Method: http.MethodGet, Pattern: base + "/sessions/{id}/runs", ID: "listRuns", Tag: "runs",
			Summary: "List a session's runs, newest first", Description: "Without their output.",
			Scope: workbench.ScopeRead, Admin: AdminReads, Target: workbench.KindSession, handle: listRuns,
			Params: []Param{{Name: "status", Doc: "only runs in this status", Kind: TextParam, Enum: statusNames()},
				{Name: "lane", Doc: "only runs of this lane", Kind: TextParam, Enum: []string{string(workbench.LaneForeground), string(workbench.LaneBackground)}}, sinceParam, untilParam, limitParam, cursorParam},
			Replies: []Reply{ok("A page of runs.", SessionList[workbench.Run]{})},
		},
		ofRun(Route{
			Method: http.MethodGet, Pattern: base + "/runs/{id}", ID: "getRun", Summary: "Read a run's receipt",
			Description: "With waitMs, answers when the run is terminal or the wait is over. Reading never submits anything again. A program that failed is a receipt, not an HTTP error.",
			Admin:       AdminReads, handle: getRun, Params: []Param{waitParam},
			Replies: []Reply{ok("The receipt.", workbench.Receipt{})},
		}),
		ofRun(Route{
			Method: http.MethodGet, Pattern: base + "/runs/{id}/events", ID: "streamRunEvents", Summary: "Follow a run's log",
			Description: "Server-sent events, or one JSON object a line with Accept: application/x-ndjson. Each carries its number as id; Last-Event-ID (or after) resumes behind it, also across a crash of the server. " +
				"The stream ends after the one terminal event. A comment, or a line of kind heartbeat, comes at least every 15 s. Output is lossless: see Event. A resume behind the terminal event answers 204; one beyond the last event there is, 400 offset_invalid.",
			Admin: AdminContents, handle: streamEvents, Streams: true,
			Params: streamParams, Headers: streamHeaders,
			Replies: streamReplies("The events, each as Event.", Event{}),
			Errors:  []workbench.Code{workbench.CodeNotAcceptable, workbench.CodeOffsetInvalid},
		}),
		ofRun(Route{
			Method: http.MethodGet, Pattern: base + "/runs/{id}/output", ID: "readRunOutput", Summary: "Page through one output stream",
			Description: "Offsets, limits and totals count raw bytes. Text never ends inside a character, and an offset inside one is refused; each invalid byte shows as one U+FFFD. With encoding=base64 the page is the raw bytes.",
			Admin:       AdminContents, handle: readOutput,
			Params: []Param{
				{Name: "stream", Doc: "default stdout", Kind: TextParam, Enum: []string{"stdout", "stderr"}},
				{Name: "offset", Doc: "of the first byte", Kind: IntegerParam, Min: 0, Max: maxSeq, Bad: workbench.CodeOffsetInvalid},
				{Name: "limit", Doc: "bytes; default 16384", Kind: IntegerParam, Min: 1, Max: workbench.MaxOutputPage},
				{Name: "encoding", Doc: "default utf-8", Kind: TextParam, Enum: []string{"utf-8", "base64"}},
			},
			Replies: []Reply{ok("A page.", workbench.OutputPage{})},
			Errors:  []workbench.Code{workbench.CodeOffsetInvalid},
		}),
		{
			Method: http.MethodPost, Pattern: base + "/runs/{id}/cancel", ID: "cancelRun", Tag: "runs", Target: workbench.KindRun,
			Summary: "Cancel a run", Description: "A queued run ends at once; a running one is asked to. A terminal run is returned unchanged.",
			Scope: workbench.ScopeExecute, Admin: AdminManages, Action: "run.cancel", Body: EmptyRequest{}, OptionalBody: true, handle: cancelRun,
			Replies: []Reply{
				ok("The run is terminal.", workbench.Receipt{}),
				{Status: http.StatusAccepted, Doc: "The run was asked to end.", Body: workbench.Receipt{}},
			},
		},
		ofRun(Route{
			Method: http.MethodGet, Pattern: base + "/runs/{id}/files", ID: "listRunFiles", Summary: "List the files a run changed",
			Admin: AdminReads, handle: listRunFiles, Params: []Param{limitParam, cursorParam},
			Replies: []Reply{ok("A page of changes, in order of path.", workbench.List[workbench.ChangedFile]{})},
		}),
		ofRun(Route{
			Method: http.MethodGet, Pattern: base + "/runs/{id}/files/content", ID: "readRunFile", Summary: "Download a file as the run left it",
			Description: "From the commit the run made of its workspace: any file of it, changed by the run or not. Ranges are supported.",
			Admin:       AdminContents, Action: "file.download", handle: readRunFile, Headers: rangeHeaders,
			Params:  []Param{treePathParam, treeBytesParam},
			Replies: contentReplies, Errors: contentErrors,
		}),
	}
}

func submitRun(c *call) error {
	b := c.body.(*SubmitRunRequest)
	return c.submit(c.id, b.Language, "code", b.Code, b.RunOptions)
}

func runCode(c *call) error {
	b := c.body.(*RunCodeRequest)
	return c.submitNaming(b.SessionID, b.Language, "code", b.Code, b.RunOptions)
}

func runBash(c *call) error {
	b := c.body.(*BashRequest)
	return c.submitNaming(b.SessionID, workbench.Bash, "command", b.Command, b.RunOptions)
}

// submitNaming is for the routes whose body names the session.
func (c *call) submitNaming(sessionID string, language workbench.Language, field, code string, o RunOptions) error {
	if err := workbench.ParseID(workbench.KindSession, sessionID); err != nil {
		return workbench.AsError(err).WithField("sessionId")
	}
	err := c.submit(sessionID, language, field, code, o)
	if e := workbench.AsError(err); e != nil && e.Code == workbench.CodeNotFound && e.Field == "" {
		return e.WithField("sessionId")
	}
	return err
}

func (c *call) submit(sessionID string, language workbench.Language, codeField, code string, o RunOptions) error {
	c.target = sessionID
	if language == "" && o.ContextID == nil {
		return invalid("language", "language is required").
			WithHint(`add it: one of "python", "javascript", "typescript", "bash"; a cell ("contextId") may leave it out`)
	}
	spec, err := o.spec(language, code)
	if err != nil {
		return err
	}
	key, err := idempotencyKey(c.r.Header, o.IdempotencyKey)
	if err != nil {
		return err
	}
	done, err := c.hold(c.q.integer("waitMs") > 0)
	if err != nil {
		return err // before anything is admitted
	}
	defer done()
	trail := c.trailOfSuccess()
	sub, err := c.s.o.Engine.Submit(c.ctx, c.p, workbench.SubmitRun{SessionID: sessionID, Spec: spec, IdempotencyKey: key, Trail: &trail})
	if err != nil {
		if e := workbench.AsError(err); e.Field == "code" {
			return e.WithField(codeField)
		}
		return err
	}
	return c.submitted(sub)
}

// submitted answers with the run, once it has ended or the caller's wait is over.
func (c *call) submitted(sub workbench.Submitted) error {
	c.target, c.recorded = sub.Run.ID, sub.Recorded
	c.w.Header().Set("Location", base+"/runs/"+sub.Run.ID)
	if sub.Replayed {
		c.w.Header().Set("Idempotency-Replayed", "true")
		c.note("replayed", true)
	}
	wait := time.Duration(c.q.integer("waitMs")) * time.Millisecond
	receipt, err := c.receiptOf(sub.Run.ID, wait)
	if err != nil {
		return err
	}
	status := http.StatusAccepted
	if wait > 0 && receipt.Status.Terminal() {
		status = http.StatusOK
	}
	return c.json(status, receiptFor(c.p, receipt))
}

// receiptOf reads the receipt of a run the caller just submitted or cancelled. A
// key without the scope read gets it too, but nothing the program wrote.
func (c *call) receiptOf(runID string, wait time.Duration) (workbench.Receipt, error) {
	if c.p.Has(workbench.ScopeRead) {
		return c.s.o.Engine.Receipt(c.ctx, c.p, runID, wait)
	}
	receipt, err := c.s.o.Engine.Receipt(c.ctx, c.reader(), runID, wait)
	receipt.Stdout, receipt.Stderr, receipt.Result, receipt.Results, receipt.Error = nil, nil, nil, nil, nil
	for i := range receipt.Artifacts {
		receipt.Artifacts[i].Preview = ""
	}
	return receipt, err
}

// spec is what the body asks to run. Fields that are declared and not built
// are refused by name: code not_built.
func (o RunOptions) spec(language workbench.Language, code string) (workbench.RunSpec, error) {
	if err := o.refuseNotBuilt(); err != nil {
		return workbench.RunSpec{}, err
	}
	files, err := selections(o.ArtifactIDs)
	if err != nil {
		return workbench.RunSpec{}, err
	}
	spec := workbench.RunSpec{
		Language: language, Code: code, Args: o.Args, Env: o.Env, Stdin: o.Stdin, Artifacts: files, Keep: o.Keep,
		Background: o.Background != nil && *o.Background,
	}
	if o.ReusableRun != nil {
		spec.ReusableRun = workbench.ReuseRequest(*o.ReusableRun)
	}
	if spec.OnLost = o.OnLostContext; o.ContextID != nil {
		if err := workbench.CheckContextID("contextId", *o.ContextID); err != nil {
			return workbench.RunSpec{}, err
		}
		spec.ContextID = *o.ContextID
	}
	// 0 means the default to the engine; a caller who sends it asks for nothing
	// at all, and is refused like every value below the range.
	if o.TimeoutMs != nil {
		if err := workbench.TimeoutInRange(*o.TimeoutMs, spec.Background, workbench.MaxForegroundTimeout.Milliseconds()); err != nil {
			return workbench.RunSpec{}, err
		}
		spec.TimeoutMs = *o.TimeoutMs
	}
	if o.OutputBytes != nil {
		if err := workbench.InRange("outputBytes", *o.OutputBytes, 1, workbench.MaxOutputBytes); err != nil {
			return workbench.RunSpec{}, err
		}
		spec.OutputBytes = *o.OutputBytes
	}
	return spec, nil
}

func (o RunOptions) refuseNotBuilt() error {
	const field = "afterExecution"
	if o.AfterExecution != nil {
		return workbench.E(workbench.CodeNotBuilt, "%s is not built yet", field).WithField(field).WithHint("leave %s out", field)
	}
	return nil
}

// selections are the retained files to place. The ids' form is checked here;
// whether they may be used, by the engine.
func selections(in []SelectInput) ([]workbench.ArtifactSelect, error) {
	out := make([]workbench.ArtifactSelect, 0, len(in))
	for i, s := range in {
		field := "artifactIds[" + strconv.Itoa(i) + "]"
		if err := workbench.ParseID(workbench.KindArtifact, s.ID); err != nil {
			return nil, workbench.AsError(err).WithField(field)
		}
		if s.Path != "" {
			path, err := workbench.CleanPath(field+".path", s.Path)
			if err != nil {
				return nil, err
			}
			s.Path = path
		}
		out = append(out, workbench.ArtifactSelect(s))
	}
	return out, nil
}

func listRuns(c *call) error {
	s, err := c.s.o.Engine.Session(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	list, err := c.s.o.Engine.ListRuns(c.ctx, c.p, workbench.RunFilter{
		SessionID: c.id, Status: workbench.Status(c.q.text("status")), Lane: workbench.Lane(c.q.text("lane")), Since: c.q.time("since"), Until: c.q.time("until"),
	}, c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, ofSession(s, wholeList(list, func(r workbench.Run) workbench.Run { return runFor(c.p, r) })))
}

func getRun(c *call) error {
	wait := time.Duration(c.q.integer("waitMs")) * time.Millisecond
	done, err := c.hold(wait > 0)
	if err != nil {
		return err
	}
	defer done()
	receipt, err := c.s.o.Engine.Receipt(c.ctx, c.p, c.id, wait)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, receiptFor(c.p, receipt))
}

func readOutput(c *call) error {
	page, err := c.s.o.Engine.Output(c.ctx, c.p, c.id, workbench.OutputQuery{
		Stream: workbench.Stream(c.q.text("stream")), Offset: c.q.integer("offset"),
		Limit: int(c.q.integer("limit")), Encoding: workbench.Encoding(c.q.text("encoding")),
	})
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, page)
}

func cancelRun(c *call) error {
	run, err := c.s.o.Engine.CancelRun(c.ctx, c.p, c.id)
	if err != nil {
		return err
	}
	receipt, err := c.receiptOf(run.ID, 0)
	if err != nil {
		return err
	}
	status := http.StatusAccepted
	if receipt.Status.Terminal() {
		status = http.StatusOK
	}
	return c.json(status, receiptFor(c.p, receipt))
}

func listRunFiles(c *call) error {
	list, err := c.s.o.Engine.RunFiles(c.ctx, c.p, c.id, c.q.page())
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, wholeList(list, wholeChange))
}

package govern

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/artifact"
	"github.com/workbenchdev/workbench/internal/failpoint"
	"github.com/workbenchdev/workbench/internal/store"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// recordWithin bounds how long the answer of a tool waits for the database.
const recordWithin = 30 * time.Second

// answersTogether is how long after it left a call's answer is waited for by those that
// have come: calls made at once are often answered at once.
const answersTogether = 3 * time.Millisecond

// execute asks the tool, once, and records what became of it. ctx ends with the
// run: a call that was sent by then ends as unknown.
func (c *call) execute(ctx context.Context) (workbench.ToolReceipt, error) {
	began := time.Now()
	here := c.from.Together.Expect(answersTogether)
	answer, err := c.ask(ctx)
	defer here()
	if hit := failpoint.Hit("govern.answer.before"); hit != nil {
		return workbench.ToolReceipt{}, hit
	}
	// What was sent is recorded, also when its run has gone.
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer done()
	end := c.ended(ctx, answer, err)
	end.Duration = time.Since(began)
	c.r.DurationMs = end.Duration.Milliseconds()
	here()
	if err := c.g.o.Store.EndCall(ctx, end); err != nil {
		return workbench.ToolReceipt{}, err
	}
	return c.r, failpoint.Hit("govern.answer.after")
}

// ask sends the call, if its credentials can be had.
func (c *call) ask(ctx context.Context) (upstream.Answer, error) {
	grant, err := c.g.grant(ctx, c.conn)
	if err != nil {
		return upstream.Answer{}, err
	}
	return c.g.o.Upstream.Call(upstream.WithTenant(ctx, c.r.TenantID), c.app, c.tool, c.args, grant)
}

// ended makes the call's final receipt and its record.
func (c *call) ended(ctx context.Context, answer upstream.Answer, err error) store.CallEnd {
	status := workbench.CallSucceeded
	switch {
	case err != nil && upstream.Uncertain(err):
		status = workbench.CallUnknown
	case err != nil:
		status = workbench.CallFailed
	case answer.Failed:
		status = workbench.CallFailed
		err = workbench.E(workbench.CodeToolFailed, "the tool reports a failure: %s", shortened(answer.Detail, 2048)).
			WithHint("it was called, and answered: mend the arguments, or read what it says")
	}
	c.r.Status = status
	if err != nil {
		c.r.Error = callError(err)
	}
	var sealed []byte
	if len(answer.Result) > 0 || len(answer.Binary) > 0 {
		if lost := c.keep(ctx, answer); lost != nil {
			c.lose(lost)
		} else if sealed, lost = c.sealResult(ctx); lost != nil {
			c.lose(lost)
		}
	}
	at := c.g.now().UTC().Truncate(time.Microsecond)
	c.r.FinishedAt = &at
	var outcome error
	if c.r.Error != nil {
		outcome = workbench.E(c.r.Error.Code, "ended")
	}
	return store.CallEnd{ID: c.r.ID, EngineID: c.r.EngineID, Status: c.r.Status, Error: c.r.Error, SealedResult: sealed, ArtifactID: c.r.ArtifactID,
		ResultBytes: c.r.ResultBytes, At: at, Trail: c.trail("tool.end", outcome), Together: c.from.Together}
}

// lose says that the tool did what it was asked, and that what it gave could not
// be kept. The call is not to be repeated for that.
func (c *call) lose(why error) {
	e := callError(why)
	e.Detail = "the tool was called; what it gave could not be kept: " + e.Detail
	c.r.Error, c.r.Result, c.r.Preview, c.r.ArtifactID = e, nil, "", ""
}

// keep puts what the tool gave on the receipt, or into a retained file where it
// is large.
func (c *call) keep(ctx context.Context, a upstream.Answer) error {
	if len(a.Binary) == 0 && len(a.Result) <= workbench.MaxToolResultInline {
		c.r.Result, c.r.ResultBytes = a.Result, int64(len(a.Result))
		return nil
	}
	content, name, kind := []byte(a.Result), ".json", "application/json"
	if len(a.Binary) > 0 {
		content, name, kind = a.Binary, "", a.MimeType
	} else {
		var text string
		if json.Unmarshal(a.Result, &text) == nil { // as it is, and not as JSON writes it
			content, name, kind = []byte(text), ".txt", "text/plain; charset=utf-8"
		}
	}
	c.r.ResultBytes = int64(len(content))
	s := c.from.Session
	kept, err := c.g.o.Artifacts.Keep(ctx, artifact.KeepRequest{Session: s, RunID: c.r.RunID, Revision: c.r.Revision, Generation: s.Generation, CallID: c.r.ID, EngineID: c.r.EngineID,
		Path: "tools/" + c.tool.Local() + "-" + c.r.ID[len(c.r.ID)-6:] + name, Origin: workbench.OriginTool, MimeType: kind, Size: int64(len(content))},
		bytes.NewReader(content))
	if err != nil {
		return err
	}
	c.r.ArtifactID = kept.ID
	if len(a.Binary) == 0 {
		c.r.Preview = shortened(string(content), workbench.ToolResultPreview)
	}
	return nil
}

// result is what of a receipt is sealed.
type result struct {
	Result  json.RawMessage `json:"result,omitempty"`
	Preview string          `json:"preview,omitempty"`
}

func (c *call) sealResult(ctx context.Context) ([]byte, error) {
	plain, err := json.Marshal(result{c.r.Result, c.r.Preview})
	if err != nil {
		return nil, workbench.E(workbench.CodeToolFailed, "the tool's answer is not JSON").Caused(err)
	}
	return c.g.o.Seal.SealBytes(ctx, c.r.TenantID, sealedResult, c.r.ID, plain)
}

// shortened cuts text to at most n bytes, between characters.
func shortened(s string, n int) string {
	if len(s) <= n {
		return strings.ToValidUTF8(s, "\ufffd")
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.ToValidUTF8(s[:n], "\ufffd") + "…"
}

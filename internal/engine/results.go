package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"slices"
	"strings"
	"sync"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

const (
	// largeDisplay is what makes a display one of few that are looked at at the
	// same time: it is in memory several times then.
	largeDisplay = 1 << 20
	// largeAtOnce is how many.
	largeAtOnce = 2
)

// results takes what a run shows, one after another.
type results struct {
	mu    sync.Mutex
	lost  int64 // displays that were not kept
	forms int64 // forms of kept ones that were not
}

// structured sets the run's structured result.
func (x *execution) structured(call guestwire.BrokerCall) (json.RawMessage, error) {
	var args guestwire.ResultArgs
	if err := json.Unmarshal(call.Args, &args); err != nil || !json.Valid(args.Value) {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the result is not JSON").WithField("value")
	}
	if int64(len(args.Value)) > x.s.Limits.StructuredResult {
		return nil, workbench.E(workbench.CodeLimitOutOfRange, "the result is larger than %d bytes", x.s.Limits.StructuredResult).
			WithField("value").WithHint("save it as a file")
	}
	x.shown.mu.Lock() // not between a display's index and its entry
	defer x.shown.mu.Unlock()
	return json.RawMessage(`{}`), x.log.result(args.Value)
}

// display takes what code shows: one bundle of forms. What is too much is left
// out and told on the receipt; the code does not fail for it.
func (x *execution) display(ctx context.Context, call guestwire.BrokerCall) (json.RawMessage, error) {
	var args guestwire.DisplayArgs
	if err := json.Unmarshal(call.Args, &args); err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the call cannot be read").WithField("args")
	}
	if call.Content == nil || call.Size < 0 || call.Size > guestwire.MaxDisplay {
		return nil, workbench.E(workbench.CodeInvalidRequest, "a display has a content of at most %d bytes", guestwire.MaxDisplay).WithField("content")
	}
	done := json.RawMessage(`{}`)
	x.shown.mu.Lock()
	defer x.shown.mu.Unlock()
	index, room, ok := x.log.next()
	if !ok {
		x.shown.lost++
		return done, nil
	}
	raw := make([]byte, call.Size)
	if _, err := io.ReadFull(call.Content, raw); err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the content ends early").WithField("content").Caused(err)
	}
	if call.Size > largeDisplay {
		select {
		case x.e.large <- struct{}{}:
			defer func() { <-x.e.large }()
		case <-ctx.Done():
			return nil, workbench.E(workbench.CodeCancelled, "the run ended").Caused(ctx.Err())
		}
	}
	var sent map[string]json.RawMessage
	if err := json.Unmarshal(raw, &sent); err != nil {
		return nil, workbench.E(workbench.CodeInvalidRequest, "the content is no JSON object").WithField("content")
	}
	r := workbench.Result{Index: index, Type: resultType(args.Kind), Data: map[string]json.RawMessage{}, Metadata: metadataOf(args.Metadata)}
	r.DisplayID = workbench.TextOf([]byte(args.ID))
	x.bundle(ctx, &r, sent, min(room, workbench.MaxResultInline))
	return done, x.log.show(r)
}

// resultType is the type of what code shows. An update is a display under the
// id of an earlier one.
func resultType(kind string) workbench.ResultType {
	switch kind {
	case guestwire.DisplayResult:
		return workbench.ResultValue
	case guestwire.DisplayError:
		return workbench.ResultError
	case guestwire.DisplayClear:
		return workbench.ResultClear
	}
	return workbench.ResultDisplay
}

// metadataOf is the metadata of a bundle, if it is an object of bounded size.
func metadataOf(raw json.RawMessage) json.RawMessage {
	if len(raw) > int(workbench.MaxResultMetadata) || len(raw) == 0 || raw[0] != '{' || !json.Valid(raw) {
		return nil
	}
	return compact(raw)
}

func compact(raw []byte) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return nil
	}
	return b.Bytes()
}

// bundle fills a result with its forms, the small ones first: room bytes of
// them go into the log, what is larger into retained files.
func (x *execution) bundle(ctx context.Context, r *workbench.Result, sent map[string]json.RawMessage, room int64) {
	types := make([]string, 0, len(sent))
	for t := range sent {
		types = append(types, t)
	}
	slices.SortFunc(types, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(sent[a]), len(sent[b])), strings.Compare(a, b))
	})
	for _, t := range types {
		f, ok := formOf(t, sent[t])
		delete(sent, t) // it may be large
		switch {
		case !ok || len(r.Data)+len(r.Artifacts) >= workbench.MaxResultForms:
			r.Truncated = true
			x.shown.forms++
		case int64(len(f.value)) <= room:
			room -= int64(len(f.value))
			r.Data[t] = f.value
		default:
			x.keepForm(ctx, r, t, f)
		}
	}
}

// keepForm makes a form a retained file, if the quota allows.
func (x *execution) keepForm(ctx context.Context, r *workbench.Result, mimeType string, f form) {
	path := fmt.Sprintf("results/%s.%d%s", x.run.ID, r.Index, extension(mimeType))
	kept, err := x.keepAs(ctx, path, workbench.OriginResult, mimeType, int64(len(f.content)), bytes.NewReader(f.content))
	if err != nil {
		x.noRoom(err)
		r.Truncated = true
		x.shown.forms++
		return
	}
	if r.Artifacts == nil {
		r.Artifacts = map[string]string{}
	}
	r.Artifacts[mimeType] = kept.ID
}

// extensions are those of the usual forms: what a host's table says differs.
var extensions = map[string]string{
	"text/plain": ".txt", "text/html": ".html", "text/markdown": ".md", "text/latex": ".tex", "text/csv": ".csv", "image/png": ".png", "image/jpeg": ".jpg",
	"image/svg+xml": ".svg", "image/gif": ".gif", "image/webp": ".webp", "application/json": ".json", "application/pdf": ".pdf",
}

func extension(mimeType string) string {
	if e, ok := extensions[mimeType]; ok {
		return e
	}
	if all, err := mime.ExtensionsByType(mimeType); err == nil && len(all) > 0 {
		return slices.Min(all)
	}
	return ".bin"
}

// form is one form of a result: as it stands in JSON, and its bytes.
type form struct {
	value   json.RawMessage
	content []byte
}

// formOf reads a form as code sent it: a string, which for what is no text is
// base64, and for JSON types may be the JSON itself. It believes nothing: ok is
// false for what cannot be.
func formOf(mimeType string, raw json.RawMessage) (f form, ok bool) {
	if !workbench.ValidMIME(mimeType) {
		return form{}, false
	}
	var text string
	isText := json.Unmarshal(raw, &text) == nil && len(raw) > 0 && raw[0] == '"'
	switch {
	case workbench.JSONMIME(mimeType):
		if !isText {
			f.value = compact(raw)
		} else if f.value = compact([]byte(text)); f.value == nil {
			return form{}, false
		}
		return form{f.value, f.value}, f.value != nil
	case !isText:
		return form{}, false
	case workbench.TextMIME(mimeType):
		f.content = []byte(text)
	default:
		plain, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
		if err != nil {
			return form{}, false
		}
		f.content, text = plain, base64.StdEncoding.EncodeToString(plain)
	}
	f.value = quoted(text)
	return f, f.value != nil
}

// contentOf is the bytes of a form as formOf wrote it.
func contentOf(mimeType string, value json.RawMessage) ([]byte, error) {
	if workbench.JSONMIME(mimeType) {
		return value, nil
	}
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		return nil, err
	}
	if workbench.TextMIME(mimeType) {
		return []byte(text), nil
	}
	return base64.StdEncoding.DecodeString(text)
}

// quoted is text as a JSON string, with nothing escaped that need not be.
func quoted(text string) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(text) != nil {
		return nil
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// countResults says on the receipt what of the results was not kept.
func (x *execution) countResults() {
	x.shown.mu.Lock()
	defer x.shown.mu.Unlock()
	if lost := x.shown.lost + x.result.DisplaysDropped; lost > 0 {
		x.notice(workbench.NoticeResultsLost, fmt.Sprintf("%s not kept: a run shows at most %d, with %d bytes together",
			counted(lost, "result was", "results were"), workbench.MaxResults, guestwire.MaxDisplayBytes))
	}
	if x.shown.forms > 0 {
		x.notice(workbench.NoticeResultsLost, fmt.Sprintf("%s of results not kept: too large for what is left of the quota of retained files, or malformed",
			counted(x.shown.forms, "form was", "forms were")))
	}
}

// results are what a run has shown so far, in order.
func (e *Engine) results(ctx context.Context, p workbench.Principal, run workbench.Run) ([]workbench.Result, error) {
	entries, err := e.o.Store.Results(ctx, p, run.ID)
	if err != nil {
		return nil, err
	}
	all := make([]workbench.Result, 0, len(entries))
	for _, entry := range entries {
		if entry.Data, err = e.openEntry(ctx, run, entry); err != nil {
			return nil, err
		}
		r, err := resultOf(entry)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// resultOf is the result that an opened entry of the log holds.
func resultOf(entry workbench.LogEntry) (workbench.Result, error) {
	r, err := workbench.ResultOf(entry)
	if err != nil {
		return r, workbench.E(workbench.CodeCorrupt, "a stored result cannot be read").Caused(err)
	}
	return r, nil
}

// lastStructured is the structured result that the code set last, nil if none.
func lastStructured(all []workbench.Result) json.RawMessage {
	for _, r := range slices.Backward(all) {
		if r.Type == workbench.ResultStructured {
			return r.Data["application/json"]
		}
	}
	return nil
}

// ResultForm opens one form of a result of a run: its bytes. An empty type is
// that of the only form. Codes: not_found, invalid_request (which of several
// forms), artifact_deleted, artifact_expired, forbidden.
func (e *Engine) ResultForm(ctx context.Context, p workbench.Principal, runID string, index int, mimeType string) (workbench.ResultContent, io.ReadSeekCloser, error) {
	none := workbench.ResultContent{}
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
	all, err := e.results(ctx, p, run)
	if err != nil {
		return none, nil, err
	}
	i := slices.IndexFunc(all, func(r workbench.Result) bool { return r.Index == index })
	if i < 0 {
		return none, nil, workbench.E(workbench.CodeNotFound, "the run has no such result").WithHint("the receipt lists its results with their index")
	}
	if mimeType, err = pickForm(all[i], mimeType); err != nil {
		return none, nil, err
	}
	if id := all[i].Artifacts[mimeType]; id != "" {
		a, content, err := e.o.Artifacts.Open(ctx, p, id)
		return workbench.ResultContent{Name: a.Name, MIMEType: mimeType, SHA256: a.SHA256}, content, err
	}
	raw, err := contentOf(mimeType, all[i].Data[mimeType])
	if err != nil {
		return none, nil, workbench.E(workbench.CodeCorrupt, "a stored result cannot be read").Caused(err)
	}
	name := fmt.Sprintf("%s.%d%s", run.ID, index, extension(mimeType))
	return workbench.ResultContent{Name: name, MIMEType: mimeType}, nothingToClose{bytes.NewReader(raw)}, nil
}

// pickForm is the type of the form that is meant.
func pickForm(r workbench.Result, want string) (string, error) {
	var has []string
	for t := range r.Data {
		has = append(has, t)
	}
	for t := range r.Artifacts {
		has = append(has, t)
	}
	slices.Sort(has)
	switch {
	case want == "" && len(has) == 1:
		return has[0], nil
	case want == "":
		return "", workbench.E(workbench.CodeInvalidRequest, "the result has several forms, or none: type says which").WithField("type").
			WithHint("this one has: %s", strings.Join(has, ", "))
	case !slices.Contains(has, want):
		return "", workbench.E(workbench.CodeNotFound, "the result has no form of that type").WithField("type").
			WithHint("this one has: %s", strings.Join(has, ", "))
	}
	return want, nil
}

type nothingToClose struct{ io.ReadSeeker }

func (nothingToClose) Close() error { return nil }

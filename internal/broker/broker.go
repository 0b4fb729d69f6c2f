// Package broker answers what code in a sandbox asks of the server: tools of the
// session, their receipts and descriptions, a language model, a web search, hosts that
// the rules let it reach. Its one job is to read a request
// that hostile code made, for the run that the engine says it comes from, and to
// write the answer.
//
// It decides nothing: package govern does. It sees no socket and no sandbox.
package broker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// Governor is the governed path; *govern.Governor is one.
type Governor interface {
	Call(ctx context.Context, from govern.Caller, req govern.CallRequest) (workbench.ToolReceipt, error)
	Receipt(ctx context.Context, p workbench.Principal, id string, wait time.Duration) (workbench.ToolReceipt, error)
	Search(ctx context.Context, s workbench.Session, query string, limit int) ([]govern.Found, error)
	Schema(ctx context.Context, s workbench.Session, req govern.CallRequest) (govern.Found, error)
	// Use asks the rules whether the run may use a service, and counts the use.
	Use(ctx context.Context, from govern.Caller, service string, limit int, detail map[string]string) error
	// Fetch makes a request to a host, if the rules let the run.
	Fetch(ctx context.Context, from govern.Caller, r upstream.FetchRequest, alias string) (upstream.FetchAnswer, error)
	// Used notes what a use took, in tokens.
	Used(ctx context.Context, from govern.Caller, service string, input, output int64) error
}

// Options are the services that code may use besides tools; nil: there is none.
type Options struct {
	AI     *AI
	Search *Search
	// Packages installs them.
	Packages Installer
}

// Broker serves the runs of one server. It is safe for concurrent use.
type Broker struct {
	govern Governor
	o      Options
	rest   remainders
}

// New makes a Broker.
func New(g Governor, o Options) *Broker {
	return &Broker{govern: g, o: o, rest: remainders{all: map[string]*remainder{}}}
}

// Bounds of what code asks for.
const (
	usualFound = 10
	mostFound  = 50
)

// Serve answers one request. A receipt of the call that it made, if it made one,
// comes with the answer. Codes: invalid_request, not_built (no such operation),
// and those of the operation.
func (b *Broker) Serve(ctx context.Context, from govern.Caller, op string, args json.RawMessage) (json.RawMessage, *workbench.ToolReceipt, error) {
	switch op {
	case guestwire.OpCall:
		return b.call(ctx, from, args)
	case guestwire.OpReceipt:
		answer, err := b.receipt(ctx, from, args)
		return answer, nil, err
	case guestwire.OpToolSearch:
		answer, err := b.search(ctx, from, args)
		return answer, nil, err
	case guestwire.OpToolSchema:
		answer, err := b.schema(ctx, from, args)
		return answer, nil, err
	case guestwire.OpAI:
		answer, err := b.ai(ctx, from, args)
		return answer, nil, err
	case guestwire.OpWebSearch:
		return b.webSearch(ctx, from, args)
	case guestwire.OpPackages:
		answer, err := b.packages(ctx, from, nil, args)
		return answer, nil, err
	case guestwire.OpFetch:
		answer, err := b.fetch(ctx, from, args)
		return answer, nil, err
	}
	return nil, nil, workbench.E(workbench.CodeNotBuilt, "this server does not have that operation").WithField("op")
}

func (b *Broker) call(ctx context.Context, from govern.Caller, raw json.RawMessage) (json.RawMessage, *workbench.ToolReceipt, error) {
	var args guestwire.CallArgs
	if err := read(raw, &args); err != nil {
		return nil, nil, err
	}
	r, err := b.govern.Call(ctx, from, govern.CallRequest{Tool: args.Tool, Version: args.Version, Connection: args.Connection, Arguments: args.Args})
	if err != nil && r.ID == "" {
		return nil, nil, err
	}
	if err != nil { // the code's own mistake, which has a receipt too
		return nil, &r, err
	}
	answer, err := write(inside(r))
	return answer, &r, err
}

// inside is a receipt as code sees it: it knows its arguments.
func inside(r workbench.ToolReceipt) workbench.ToolReceipt {
	r.Arguments = nil
	return r
}

// receipt reads one of the session's own: what another session did is not there.
func (b *Broker) receipt(ctx context.Context, from govern.Caller, raw json.RawMessage) (json.RawMessage, error) {
	var args guestwire.ReceiptArgs
	if err := read(raw, &args); err != nil {
		return nil, err
	}
	if err := workbench.ParseID(workbench.KindReceipt, args.ID); err != nil {
		return nil, workbench.AsError(err).WithField("id")
	}
	if args.WaitMs < 0 || args.WaitMs > govern.MaxReceiptWait.Milliseconds() {
		return nil, workbench.InRange("waitMs", args.WaitMs, 0, govern.MaxReceiptWait.Milliseconds())
	}
	s := from.Session
	p := workbench.Principal{ProjectID: s.ProjectID, TenantID: s.TenantID, UserID: s.UserID, GroupID: s.GroupID, KeyKind: workbench.KeyDirect,
		Scopes: []workbench.Scope{workbench.ScopeRead}, SessionID: s.ID}
	r, err := b.govern.Receipt(ctx, p, args.ID, time.Duration(args.WaitMs)*time.Millisecond)
	if err != nil {
		return nil, err
	}
	return write(inside(r))
}

func (b *Broker) search(ctx context.Context, from govern.Caller, raw json.RawMessage) (json.RawMessage, error) {
	var args guestwire.ToolSearchArgs
	if err := read(raw, &args); err != nil {
		return nil, err
	}
	if args.Limit == 0 {
		args.Limit = usualFound
	}
	if err := workbench.InRange("limit", int64(args.Limit), 1, mostFound); err != nil {
		return nil, err
	}
	found, err := b.govern.Search(ctx, from.Session, args.Query, args.Limit)
	if err != nil {
		return nil, err
	}
	return write(struct {
		Items []govern.Found `json:"items"`
	}{found})
}

func (b *Broker) schema(ctx context.Context, from govern.Caller, raw json.RawMessage) (json.RawMessage, error) {
	var args guestwire.ToolSchemaArgs
	if err := read(raw, &args); err != nil {
		return nil, err
	}
	found, err := b.govern.Schema(ctx, from.Session, govern.CallRequest{Tool: args.Tool, Version: args.Version})
	if err != nil {
		return nil, err
	}
	return write(found)
}

func read(raw json.RawMessage, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return workbench.E(workbench.CodeInvalidRequest, "the request cannot be read").WithField("args").
			WithHint("the helper library writes requests that can").Caused(err)
	}
	return nil
}

func write(v any) (json.RawMessage, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, workbench.E(workbench.CodeInternal, "the answer cannot be written").Caused(err)
	}
	if len(raw) > guestwire.MaxResult {
		return nil, workbench.E(workbench.CodeResultTooLarge, "the answer has %d bytes, %d can be given to code", len(raw), guestwire.MaxResult)
	}
	return raw, nil
}

package broker

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
	"github.com/workbenchdev/workbench/internal/guestwire"
	"github.com/workbenchdev/workbench/internal/upstream"
)

// Bounds of requests to hosts.
const (
	maxFetchHeaders = 50
	maxFetchBody    = 180 * 1024 // bytes that a request may send: it comes in one piece
	fetchPiece      = 150 * 1024 // bytes of an answer that code is given at once
	keptAnswers     = 64 << 20   // bytes of answers that code has yet to take, over all tenants; more than an answer has
	keptOfRun       = 4          // such answers
	keptFor         = time.Minute
)

// remainders are answers too large for one piece, until their code has taken the
// rest.
type remainders struct {
	mu   sync.Mutex
	all  map[string]*remainder // by handle
	size int
}

type remainder struct {
	run   string
	whose string // tenant
	body  []byte
	until time.Time
}

// keep holds the rest of an answer for a run. What is too old goes, the run's oldest
// of too many, and where there is no room the oldest of the tenant that holds most: what
// was asked for was done, so nobody is refused its answer.
func (k *remainders) keep(whose, run string, body []byte, now time.Time) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var own []string
	for handle, r := range k.all {
		switch {
		case now.After(r.until):
			k.drop(handle)
		case r.run == run:
			own = append(own, handle)
		}
	}
	slices.Sort(own) // by time: ids sort so
	for len(own) >= keptOfRun {
		k.drop(own[0])
		own = own[1:]
	}
	for k.size+len(body) > keptAnswers {
		k.drop(k.foremost())
	}
	handle := workbench.NewID(workbench.KindRequest)
	k.all[handle] = &remainder{run: run, whose: whose, body: body, until: now.Add(keptFor)}
	k.size += len(body)
	return handle
}

// foremost is the oldest of the tenant that holds most.
func (k *remainders) foremost() string {
	held, oldest, most := map[string]int{}, map[string]string{}, ""
	for handle, r := range k.all {
		held[r.whose] += len(r.body)
		if first, ok := oldest[r.whose]; !ok || handle < first {
			oldest[r.whose] = handle
		}
	}
	for whose, bytes := range held {
		if most == "" || bytes > held[most] || bytes == held[most] && whose < most {
			most = whose
		}
	}
	return oldest[most]
}

func (k *remainders) drop(handle string) {
	k.size -= len(k.all[handle].body)
	delete(k.all, handle)
}

// next is the next piece of what is kept, and whether there is more.
func (k *remainders) next(run, handle string, now time.Time) (piece []byte, more bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.all[handle]
	if r == nil || r.run != run {
		return nil, false, workbench.E(workbench.CodeNotFound, "the rest of that answer is not kept any more").WithField("handle").WithHint("fetch again")
	}
	n := min(len(r.body), fetchPiece)
	piece, r.body = r.body[:n], r.body[n:]
	k.size -= n
	r.until = now.Add(keptFor)
	if len(r.body) == 0 {
		delete(k.all, handle)
		return piece, false, nil
	}
	return piece, true, nil
}

// fetch answers guestwire.OpFetch.
func (b *Broker) fetch(ctx context.Context, from govern.Caller, raw json.RawMessage) (json.RawMessage, error) {
	var args guestwire.FetchArgs
	if err := read(raw, &args); err != nil {
		return nil, err
	}
	if args.Handle != "" {
		piece, more, err := b.rest.next(from.Run.ID, args.Handle, time.Now())
		if err != nil {
			return nil, err
		}
		return write(guestwire.FetchAnswer{Body: piece, More: more, Handle: args.Handle})
	}
	r, err := fetchRequest(args)
	if err != nil {
		return nil, err
	}
	answer, err := b.govern.Fetch(ctx, from, r, args.Connection)
	if err != nil {
		return nil, err
	}
	out := guestwire.FetchAnswer{Status: answer.Status, Headers: map[string]string{}, TotalBytes: int64(len(answer.Body))}
	for name, values := range answer.Header {
		out.Headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	out.Body = append([]byte{}, answer.Body[:min(len(answer.Body), fetchPiece)]...) // never null
	if rest := answer.Body[len(out.Body):]; len(rest) > 0 {
		out.Handle, out.More = b.rest.keep(from.Session.TenantID, from.Run.ID, rest, time.Now()), true
	}
	return write(out)
}

func fetchRequest(args guestwire.FetchArgs) (upstream.FetchRequest, error) {
	var r upstream.FetchRequest
	u, err := upstream.FetchURL(args.URL)
	if err != nil {
		return r, err
	}
	r = upstream.FetchRequest{URL: u, Method: strings.ToUpper(args.Method), Header: http.Header{}, Body: args.Body}
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	if !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}, r.Method) {
		return r, workbench.E(workbench.CodeInvalidRequest, "method must be GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS").WithField("method")
	}
	if len(args.Body) > maxFetchBody {
		return r, workbench.E(workbench.CodeBodyTooLarge, "the body has %d bytes, %d can be sent", len(args.Body), maxFetchBody).WithField("body")
	}
	if len(args.Headers) > maxFetchHeaders {
		return r, workbench.E(workbench.CodeInvalidRequest, "at most %d headers", maxFetchHeaders).WithField("headers")
	}
	for name, value := range args.Headers {
		r.Header[name] = []string{value}
	}
	return r, nil
}

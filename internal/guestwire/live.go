package guestwire

import (
	"context"
	"io"
	"strings"

	"github.com/workbenchdev/workbench"
)

// What the host does to the workspace of a bound sandbox while code may run in
// it, besides writing files. Nothing here follows a link.

// Live is the part of a Guest that does it.
type Live interface {
	List(ctx context.Context, r ListRequest) (ListReply, error)
	// ReadFrom calls send once with the file's content from an offset to the end
	// that it had when it was opened.
	ReadFrom(ctx context.Context, r ReadRequest, send func(io.Reader) error) error
	Remove(ctx context.Context, r RemoveRequest) error
	Move(ctx context.Context, r MoveRequest) error
}

// MaxListed bounds the entries of one page.
const MaxListed = 200

// listedBytes is about how much of a reply a page of entries may take.
const listedBytes = 192 << 10

// ListRequest asks for a page of what is below a path, in the order of a walk:
// names by their bytes, a directory before what is in it.
type ListRequest struct {
	Path      Path `json:"path"` // "" is the workspace; what is no directory is listed itself
	Recursive bool `json:"recursive"`
	After     Path `json:"after"` // the last entry of the page before; "" begins
	Limit     int  `json:"limit"` // 1 to MaxListed
}

// ListReply is a page. Entries of files have no digest; what would not be
// committed (FIFOs, sockets, devices) is left out.
type ListReply struct {
	Entries []Entry `json:"entries"`
	More    bool    `json:"more"`
}

// ReadRequest asks for a file's content from an offset on.
type ReadRequest struct {
	Path   Path  `json:"path"`
	Offset int64 `json:"offset"`
}

// RemoveRequest asks for an entry to go; a directory that is not empty only
// with Recursive.
type RemoveRequest struct {
	Path      Path `json:"path"`
	Recursive bool `json:"recursive"`
}

// MoveRequest asks for another name. Missing directories above To are made.
// With Overwrite a file or link at To is replaced; a directory never is.
type MoveRequest struct {
	From      Path `json:"from"`
	To        Path `json:"to"`
	Overwrite bool `json:"overwrite"`
}

// Check refuses a request that no guest could carry out.
func (r ListRequest) Check() error {
	for _, p := range []Path{r.Path, r.After} {
		if p == "" {
			continue
		}
		if err := p.Check(); err != nil {
			return err
		}
	}
	if r.Limit < 1 || r.Limit > MaxListed {
		return workbench.E(workbench.CodeInvalidRequest, "a page has 1 to %d entries", MaxListed)
	}
	return nil
}

// Check refuses a request that no guest could carry out.
func (r MoveRequest) Check() error {
	if err := r.From.Check(); err != nil {
		return err
	}
	if err := r.To.Check(); err != nil {
		return err
	}
	if r.From == r.To || strings.HasPrefix(string(r.To), string(r.From)+"/") {
		return workbench.E(workbench.CodePathInvalid, "a path cannot be moved to itself or below itself")
	}
	return nil
}

// Fits reports whether an entry still fits into a page that took so many bytes
// already, and how many it takes with it.
func Fits(taken int, e Entry) (now int, ok bool) {
	const frame = 256 // names of fields and numbers
	now = taken + frame + (len(e.Path)+len(e.Target))*4/3
	return now, taken == 0 || now <= listedBytes
}

// Before reports whether a path comes before another in the order of a walk.
func Before(a, b Path) bool {
	for i := 0; i < len(a) && i < len(b); i++ {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		return x == '/' || y != '/' && x < y // an element that ends comes first
	}
	return len(a) < len(b)
}

// ListFiles lists a page of the live workspace. Codes: not_found,
// path_conflict (a part of the path is no directory), path_invalid.
func (c *Client) ListFiles(ctx context.Context, r ListRequest) (ListReply, error) {
	if err := r.Check(); err != nil {
		return ListReply{}, err
	}
	var reply ListReply
	if err := c.do(ctx, "list", r, &reply); err != nil {
		return ListReply{}, err
	}
	if len(reply.Entries) > r.Limit || reply.More && len(reply.Entries) == 0 {
		return ListReply{}, c.broken(violation("a page of %d entries", len(reply.Entries)))
	}
	last := r.After
	for _, e := range reply.Entries {
		if e.checkListed(r) != nil || last != "" && !Before(last, e.Path) {
			return ListReply{}, c.broken(violation("an entry of a page"))
		}
		last = e.Path
	}
	return reply, nil
}

// checkListed refuses an entry that no page of the request can have.
func (e Entry) checkListed(r ListRequest) error {
	if e.Type == TypeFile {
		e.SHA256 = make([]byte, 32) // a listed file has none
	}
	if err := e.check(); err != nil {
		return err
	}
	rest, below := strings.CutPrefix(string(e.Path), string(r.Path)+"/")
	switch {
	case r.Path == "":
		rest, below = string(e.Path), true
	case e.Path == r.Path && e.Type != TypeDir:
		return nil
	}
	if !below || !r.Recursive && strings.Contains(rest, "/") || e.Content || e.Change != "" {
		return violation("listed")
	}
	return nil
}

// ReadFileFrom copies the rest of a regular file of the workspace to w. Codes:
// as ReadFile; offset_invalid beyond its end.
func (c *Client) ReadFileFrom(ctx context.Context, r ReadRequest, w io.Writer) error {
	if err := r.Path.Check(); err != nil {
		return err
	}
	ch, err := c.l.request("readFrom", r, []uint8{streamContent}, nil, nil, nil)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		ch.giveUp(workbench.E(workbench.CodeCancelled, "the request was given up").Caused(context.Cause(ctx)))
	})()
	if _, err := io.CopyBuffer(onlyWriter{w}, ch.in[streamContent], make([]byte, MaxData)); err != nil {
		return c.stopped(ch, err)
	}
	return ch.wait(ctx, nil)
}

// RemoveFile takes an entry out of the live workspace. Codes: not_found,
// path_conflict, path_invalid.
func (c *Client) RemoveFile(ctx context.Context, r RemoveRequest) error {
	if err := r.Path.Check(); err != nil {
		return err
	}
	return c.do(ctx, "remove", r, nil)
}

// MoveFile gives an entry of the live workspace another name. Codes: not_found,
// path_conflict, path_invalid, workspace_full.
func (c *Client) MoveFile(ctx context.Context, r MoveRequest) error {
	if err := r.Check(); err != nil {
		return err
	}
	return c.do(ctx, "move", r, nil)
}

// liveOperations are what the host may open of this file.
func (s *Server) liveOperations() map[string]operation {
	return map[string]operation{
		"list":     {run: s.list},
		"readFrom": {out: []uint8{streamContent}, run: s.readFrom},
		"remove":   {run: s.remove},
		"move":     {run: s.move},
	}
}

func (s *Server) list(ch *channel) (any, error) {
	var r ListRequest
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	return s.g.List(ch.ctx, r)
}

func (s *Server) readFrom(ch *channel) (any, error) {
	var r ReadRequest
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	if err := r.Path.Check(); err != nil {
		return nil, err
	}
	o := ch.out[streamContent].(*outbound)
	err := s.g.ReadFrom(ch.ctx, r, func(content io.Reader) error {
		_, err := io.CopyBuffer(onlyWriter{o}, content, make([]byte, MaxData))
		return err
	})
	if err != nil {
		return nil, err
	}
	return nil, o.Close()
}

func (s *Server) remove(ch *channel) (any, error) {
	var r RemoveRequest
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	if err := r.Path.Check(); err != nil {
		return nil, err
	}
	return nil, s.g.Remove(ch.ctx, r)
}

func (s *Server) move(ch *channel) (any, error) {
	var r MoveRequest
	if err := parse(ch, &r); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	return nil, s.g.Move(ch.ctx, r)
}

package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"sync"

	"github.com/workbenchdev/workbench"
)

// maxFrame bounds, in bytes, one message of an upstream: the largest result and
// what is around it.
const maxFrame = workbench.MaxToolResult + 64*1024

// flight is what is known of one request on the wire. Transports write it, and
// whoever asked reads it: it, and not the errors that come up through libraries,
// says what became of the request.
type flight struct {
	method  string // of the JSON-RPC request it is about; "" for a plain HTTP request
	abort   context.CancelCauseFunc
	changed func() // hears that the server's list of tools has changed; may be nil

	mu     sync.Mutex
	id     string // of the JSON-RPC request, once it is sent
	sent   bool   // some of it may have left
	status int    // of an HTTP answer that is not a success
	reply  *reply
	large  bool
	unread bool // an answer came that could not be read
}

// reply is the first answer to a JSON-RPC request.
type reply struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// listChanged is the notice that a server's list of tools has changed.
const listChanged = "notifications/tools/list_changed"

type flightKey struct{}

func withFlight(ctx context.Context, f *flight) context.Context {
	return context.WithValue(ctx, flightKey{}, f)
}

func flightOf(ctx context.Context) *flight {
	f, _ := ctx.Value(flightKey{}).(*flight)
	return f
}

// leave notes that the request is about to leave.
func (f *flight) leave(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = true
	if f.id == "" {
		f.id = id
	}
}

// stayed takes back leave: no byte left.
func (f *flight) stayed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = false
}

func (f *flight) wireID() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.id
}

func (f *flight) answeredWith(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = status
}

// overflow notes that the answer is too large, and ends the waiting for it.
func (f *flight) overflow() {
	f.mu.Lock()
	f.large = true
	f.mu.Unlock()
	f.abort(errOverflow)
}

// unreadable notes that what came is no answer, unless one came.
func (f *flight) unreadable() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unread = true
}

// observe looks at a message of the upstream. The first answer to the request
// counts; what else comes (another answer, one to nothing that was asked) does
// not. It returns what the MCP client is to see of the message: of a tool's result
// only that there is one, since decoded it may take thirty times its bytes.
func (f *flight) observe(message []byte) []byte {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
		reply
	}
	if json.Unmarshal(message, &m) != nil {
		return message
	}
	if m.Method != nil {
		if *m.Method == listChanged && f.changed != nil {
			f.changed()
		}
		return message
	}
	id := idOf(m.ID)
	f.mu.Lock()
	defer f.mu.Unlock()
	if id == "" || id != f.id {
		return message
	}
	if f.reply == nil {
		f.reply = &m.reply
	}
	if f.method != callTool || m.Error != nil || len(m.Result) == 0 {
		return message
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, m.ID)
}

// callTool is the method whose results are not the client's to decode.
const callTool = "tools/call"

// landing is what became of a request.
type landing struct {
	sent, large, unread bool
	status              int
	reply               *reply
}

func (f *flight) landed() landing {
	f.mu.Lock()
	defer f.mu.Unlock()
	return landing{sent: f.sent, large: f.large, unread: f.unread, status: f.status, reply: f.reply}
}

// idOf makes ids of JSON-RPC comparable; "" is none.
func idOf(raw json.RawMessage) string {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return ""
	}
	switch v := v.(type) {
	case float64:
		if v != math.Trunc(v) {
			return ""
		}
		return strconv.FormatInt(int64(v), 10)
	case string:
		return strconv.Quote(v)
	}
	return ""
}
